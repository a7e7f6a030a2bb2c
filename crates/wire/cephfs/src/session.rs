//! Sessions of clients: the omap of one object for each rank, one row for each session.

use crate::ids::Ino;
use bytes::{Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::fsmap::ClientFeatures;
use types::{EntityAddr, EntityName, EntityType, IntervalSet};

/// The omap header (Ceph: `SessionMapStore::encode_header`, `mds/SessionMap.cc`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct SessionMapHeader {
    /// Counts changes.
    pub version: u64,
}

/// Which statistics a client can send (Ceph: `metric_spec_t`, `mds/mdstypes.h`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MetricSpec {
    /// Their numbers.
    pub flags: ClientFeatures,
}

/// What a client told about itself (Ceph 16.2: `client_metadata_t`, `mds/mdstypes.h`, version 3,
/// compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 3, compat = 1)]
pub struct ClientMetadata {
    /// Texts by name, such as `hostname`.
    pub texts: BTreeMap<String, String>,
    /// Its features.
    #[denc(since = 2)]
    pub features: ClientFeatures,
    /// Its statistics.
    #[denc(since = 3)]
    pub metric_spec: MetricSpec,
}

/// What is kept of a session (Ceph 16.2: `session_info_t`, `mds/mdstypes.h`, version 7). The key of
/// its row is the name, such as `client.4100`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// The client.
    pub name: EntityName,
    /// Its address.
    pub addr: EntityAddr,
    /// Requests that are done and that the client may ask for again, with the inode that each made.
    pub completed_requests: BTreeMap<u64, Ino>,
    /// Inode numbers that are set aside for it.
    pub prealloc_inos: IntervalSet,
    /// Numbers of flushes that are done.
    pub completed_flushes: BTreeSet<u64>,
    /// The name that it authenticated with.
    pub auth_name: (EntityType, String),
    /// What it told about itself.
    pub metadata: ClientMetadata,
}

impl Default for SessionInfo {
    fn default() -> Self {
        SessionInfo {
            name: EntityName::default(),
            addr: EntityAddr::default(),
            completed_requests: BTreeMap::new(),
            prealloc_inos: IntervalSet::new(),
            completed_flushes: BTreeSet::new(),
            auth_name: (EntityType(0), String::new()),
            metadata: ClientMetadata::default(),
        }
    }
}

impl SessionInfo {
    /// The key of the session's row.
    pub fn key(&self) -> Bytes {
        self.name.to_string().into()
    }
}

impl Encode for SessionInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 7, 7, |out| {
            self.name.encode(out, f);
            self.addr.encode(out, f);
            self.completed_requests.encode(out, f);
            self.prealloc_inos.encode(out, f);
            0u32.encode(out, f); // numbers in use, which are among those above
            self.completed_flushes.encode(out, f);
            self.auth_name.encode(out, f);
            self.metadata.encode(out, f);
        });
    }
}

impl Decode for SessionInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("session_info_t", 7)?;
        if struct_v < 6 {
            return Err(DecodeError::TooOld { what: "session_info_t", struct_v, oldest: 6 });
        }
        let (name, addr, completed_requests) = (r.get()?, r.get()?, r.get()?);
        let mut prealloc_inos: IntervalSet = r.get()?;
        prealloc_inos.union(&r.get()?);
        let mut metadata = ClientMetadata::default();
        if struct_v < 7 {
            metadata.texts = r.get()?;
        }
        let (completed_flushes, auth_name) = (r.get()?, r.get()?);
        if struct_v >= 7 {
            metadata = r.get()?;
        }
        Ok(SessionInfo {
            name,
            addr,
            completed_requests,
            prealloc_inos,
            completed_flushes,
            auth_name,
            metadata,
        })
    }
}
