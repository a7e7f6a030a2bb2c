//! Why a daemon does not start.

use crate::superblock::OwnError;
use client::ClientError;
use msgr::BindError;
use std::path::PathBuf;
use store::StoreError;
use types::{Fsid, OsdId, SpgId};

/// Why an OSD does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The device cannot be opened.
    #[error("cannot open {path}")]
    Device {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The store cannot be opened or made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The OSD's own data cannot be used.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// The store belongs to another OSD or cluster.
    #[error("the store belongs to osd.{found} of cluster {cluster}")]
    OtherOsd {
        /// Its number.
        found: OsdId,
        /// Its cluster.
        cluster: Fsid,
    },
    /// A group's rows cannot be read.
    #[error("placement group {id}")]
    Group {
        /// Which.
        id: SpgId,
        /// What is wrong.
        #[source]
        source: pg::LoadError,
    },
    /// It cannot listen.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The monitors cannot be reached.
    #[error("no session with a monitor")]
    Mon(#[from] ClientError),
}
