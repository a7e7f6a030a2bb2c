//! How to start a daemon.

use client::ClusterConfig;
use conf::Config;
use msgr::BindError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use types::version;

/// How to start a daemon that keeps no data of its own on this host.
pub struct Options {
    /// Its name and key, and where the monitors are.
    pub cluster: ClusterConfig,
    /// Its keyring, for as long as there is no rotating secret yet.
    pub keyring: auth::Keyring,
    /// Where it listens,
    pub ip: IpAddr,
    /// on the first free port of these.
    pub ports: RangeInclusive<u16>,
    /// Its configuration; the monitors' is added to it.
    pub conf: Rc<RefCell<Config>>,
    /// Facts about the host, for the metadata that it reports.
    pub metadata: BTreeMap<String, String>,
}

/// Why a daemon does not join its cluster.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No session with the monitors.
    #[error("no session with the monitors")]
    Mon(#[from] client::ClientError),
    /// It cannot listen.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// What a daemon's metadata says of its program.
pub fn version_facts() -> impl Iterator<Item = (String, String)> {
    [
        ("ceph_release", version::RELEASE),
        ("ceph_version", version::LONG),
        ("ceph_version_short", version::SHORT),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
}
