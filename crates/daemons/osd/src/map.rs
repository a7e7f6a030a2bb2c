//! The cluster map as an OSD uses it. The daemon answers from the real OSDMap, tests from a small
//! one.

use bytes::Bytes;
use std::rc::Rc;
use types::{EntityAddr, EntityAddrVec, Epoch, ObjectId, OsdId, PgId, PoolId, SnapContext, SnapId};

use crate::scrubs::ScrubRules;
use objops::object::PoolRules;

/// Application, key, value.
pub type AppMetadata =
    std::collections::BTreeMap<String, std::collections::BTreeMap<String, String>>;

/// Properties of a pool that operations depend on.
#[derive(Clone, Debug, Default)]
pub struct PoolOps {
    /// The operations that it allows.
    pub rules: PoolRules,
    /// The snap context of writes, if the pool has pool snapshots.
    pub pool_snapc: Option<SnapContext>,
    /// Requests sent before this epoch are dropped: their senders send them again.
    pub last_force_op_resend: Epoch,
    /// The pool's name.
    pub name: String,
    /// Applications and their keys and values, for capabilities.
    pub applications: AppMetadata,
    /// The oldest release of clients that the cluster admits, as a number.
    pub min_compat_client: u8,
    /// The release that every OSD is at least.
    pub require_osd_release: u8,
    /// The stripe width of an erasure-coded pool.
    pub stripe_width: u64,
}

/// One epoch of the cluster map.
pub trait ClusterMap: pg::MapView {
    /// All pools.
    fn pools(&self) -> Vec<PoolId>;
    /// A pool's rules; `None` if there is no such pool.
    fn pool_ops(&self, pool: PoolId) -> Option<Rc<PoolOps>>;
    /// The PG that a raw placement (an object's hash) falls into.
    fn fold(&self, raw: PgId) -> Option<PgId>;
    /// The full name of an object.
    fn object(
        &self,
        pool: PoolId,
        namespace: &Bytes,
        name: &Bytes,
        key: &Bytes,
        snap: SnapId,
    ) -> Option<ObjectId>;
    /// Whether a client's address is on the blocklist.
    fn is_blocklisted(&self, addr: &EntityAddr) -> bool;
    /// Whether the snapshot was deleted and is not trimmed everywhere.
    fn snap_removed(&self, pool: PoolId, snap: SnapId) -> bool;
    /// The pool's settings of scrubs.
    fn scrub_rules(&self, _: PoolId) -> ScrubRules {
        ScrubRules::default()
    }
    /// Where other OSDs find this one.
    fn addrs(&self, osd: OsdId) -> EntityAddrVec;
}

/// A map shared on one thread.
pub type ClusterMapRef = Rc<dyn ClusterMap>;
