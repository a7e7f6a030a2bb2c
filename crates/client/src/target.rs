//! Where a request has to go. No I/O: a map in, a target out.

use crate::objecter::Scope;
use types::rados::{OsdFlags, osdmap_flag};
use types::{Epoch, ObjectId, OsdId, OsdMap, PgId, PgPool, ShardId, SnapId, SpgId};

/// Where a request goes under one map, and what of that map it depends on: when any of it changes,
/// the OSDs forget requests that were in flight, and it has to be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The placement group that answers.
    pub pgid: SpgId,
    /// The object's raw hash.
    pub hash: u32,
    /// The acting primary; `None` if there is none now.
    pub primary: Option<OsdId>,
    /// What an interval of the group is made of.
    interval: Interval,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    up: Vec<OsdId>,
    up_primary: OsdId,
    acting: Vec<OsdId>,
    size: u8,
    min_size: u8,
    /// Splits and merges concern a part of the groups only; sending the others again is harmless.
    pg_num: u32,
    pg_num_pending: u32,
    stretch: (u32, u32, u32, i32),
    flags: u32,
    force_resend: Epoch,
}

impl Target {
    /// Where a request on `scope` goes; `None` if the pool does not exist.
    pub(crate) fn of(map: &OsdMap, scope: &Scope) -> Option<Target> {
        let pool = map.pool(scope.pool())?;
        let raw = match scope {
            Scope::Object { pool: id, namespace, key, name } => {
                let named = if key.is_empty() { name } else { key };
                PgId::new(*id, pool.hash_key(named, namespace))
            }
            Scope::Pg { pgid, .. } => *pgid,
        };
        let pgid = pool.raw_pg_to_pg(raw);
        let placed = map.pg_to_up_acting(pgid);
        let primary = Some(placed.acting_primary).filter(|p| p.is_some());
        let shard = match pool.is_replicated() {
            true => ShardId::NONE,
            false => placed
                .acting
                .iter()
                .position(|osd| *osd == placed.acting_primary)
                .and_then(|at| i8::try_from(at).ok())
                .map_or(ShardId::NONE, ShardId),
        };
        let watched = osdmap_flag::SORTBITWISE | osdmap_flag::RECOVERY_DELETES;
        Some(Target {
            pgid: SpgId { pgid, shard },
            hash: raw.seed,
            primary,
            interval: Interval {
                up: placed.up,
                up_primary: placed.up_primary,
                acting: placed.acting,
                size: pool.size,
                min_size: pool.min_size,
                pg_num: pool.pg_num,
                pg_num_pending: pool.pg_num_pending,
                stretch: (
                    pool.peering_crush_bucket_count,
                    pool.peering_crush_bucket_target,
                    pool.peering_crush_bucket_barrier,
                    pool.peering_crush_mandatory_member,
                ),
                flags: map.flags & watched,
                force_resend: pool.last_force_op_resend,
            },
        })
    }

    /// The object as backoffs see it.
    pub(crate) fn object(&self, scope: &Scope, snapid: SnapId) -> ObjectId {
        match scope {
            Scope::Object { pool, namespace, key, name } => {
                ObjectId::with_hash(*pool, namespace.clone(), name.clone(), key.clone(), snapid, self.hash)
            }
            Scope::Pg { pgid, .. } => ObjectId { pool: pgid.pool, hash: self.hash, ..ObjectId::MIN },
        }
    }
}

/// Whether requests with these flags have to wait for another map.
pub(crate) fn is_paused(map: &OsdMap, pool: &PgPool, flags: OsdFlags) -> bool {
    let forced = flags.any(OsdFlags::FULL_TRY | OsdFlags::FULL_FORCE);
    let full = map.flags & osdmap_flag::FULL != 0 || pool.has_flag(types::pool::flag::FULL);
    let reads = map.flags & osdmap_flag::PAUSERD != 0;
    let writes = map.flags & osdmap_flag::PAUSEWR != 0 || (full && !forced);
    (flags.any(OsdFlags::READ) && reads) || (flags.any(OsdFlags::WRITE) && writes)
}
