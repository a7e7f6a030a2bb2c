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
            Scope::Object { pool, namespace, key, name } => ObjectId::with_hash(
                *pool,
                namespace.clone(),
                name.clone(),
                key.clone(),
                snapid,
                self.hash,
            ),
            Scope::Pg { pgid, .. } => {
                ObjectId { pool: pgid.pool, hash: self.hash, ..ObjectId::MIN }
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use types::rados::osd_state;
    use types::{PoolId, pool};

    const POOL: PoolId = PoolId(1);

    fn map() -> OsdMap {
        let mut map = OsdMap { epoch: Epoch(5), ..OsdMap::default() };
        map.pools.insert(
            POOL,
            PgPool { pg_num: 8, pgp_num: 8, size: 2, min_size: 1, ..PgPool::default() },
        );
        map.set_max_osd(3);
        for osd in &mut map.osds {
            osd.state = osd_state::EXISTS | osd_state::UP;
        }
        for seed in 0..8 {
            map.pg_temp.insert(PgId::new(POOL, seed), vec![OsdId(1), OsdId(2)]);
        }
        map
    }

    fn object(name: &'static str) -> Scope {
        Scope::Object {
            pool: POOL,
            namespace: Bytes::new(),
            key: Bytes::new(),
            name: Bytes::from_static(name.as_bytes()),
        }
    }

    #[test]
    fn a_request_goes_to_the_acting_primary_of_its_group() {
        let map = map();
        let target = Target::of(&map, &object("foo")).unwrap();
        assert_eq!(target.primary, Some(OsdId(1)));
        assert_eq!(target.hash, types::hash::rjenkins(b"foo"));
        assert_eq!(target.pgid.pgid, PgId::new(POOL, target.hash & 7));
        let pgid = PgId::new(POOL, 3);
        let listing = Target::of(&map, &Scope::Pg { pgid, namespace: Bytes::new() }).unwrap();
        assert_eq!(listing.pgid.pgid, pgid);
        assert_eq!(
            Target::of(&map, &Scope::Pg { pgid: PgId::new(PoolId(2), 0), namespace: Bytes::new() }),
            None
        );
    }

    #[test]
    fn what_ends_an_interval_makes_another_target() {
        let before = map();
        let scope = object("foo");
        let target = Target::of(&before, &scope).unwrap();
        let pgid = target.pgid.pgid;
        let changed = |change: &dyn Fn(&mut OsdMap)| {
            let mut after = before.clone();
            after.epoch = Epoch(6);
            change(&mut after);
            Target::of(&after, &scope).unwrap() != target
        };
        let pool =
            |m: &mut OsdMap, change: &dyn Fn(&mut PgPool)| change(m.pools.get_mut(&POOL).unwrap());
        assert!(!changed(&|_| {}), "another epoch is no other interval");
        assert!(
            !changed(&|m| drop(m.pg_temp.remove(&PgId::new(POOL, pgid.seed ^ 1)))),
            "nor is another group's"
        );
        assert!(changed(&|m| drop(m.pg_temp.insert(pgid, vec![OsdId(1), OsdId(0)]))));
        assert!(changed(&|m| drop(m.pg_temp.insert(pgid, vec![OsdId(2), OsdId(1)]))));
        assert!(changed(&|m| pool(m, &|p| p.min_size = 2)));
        assert!(changed(&|m| pool(m, &|p| p.pg_num = 16)));
        assert!(changed(&|m| pool(m, &|p| p.last_force_op_resend = Epoch(6))));
        assert!(changed(&|m| m.flags |= osdmap_flag::RECOVERY_DELETES));
    }

    #[test]
    fn flags_of_map_and_pool_hold_requests_back() {
        let paused = |map_flags: u32, pool_flags: u64, flags: OsdFlags| {
            let mut map = map();
            map.flags = map_flags;
            let pool = PgPool { flags: pool_flags, ..PgPool::default() };
            is_paused(&map, &pool, flags)
        };
        let (read, write) = (OsdFlags::READ, OsdFlags::WRITE);
        assert!(!paused(0, 0, read | write));
        assert!(paused(osdmap_flag::PAUSERD, 0, read) && !paused(osdmap_flag::PAUSERD, 0, write));
        assert!(paused(osdmap_flag::PAUSEWR, 0, write) && !paused(osdmap_flag::PAUSEWR, 0, read));
        assert!(paused(0, pool::flag::FULL, write) && !paused(0, pool::flag::FULL, read));
        assert!(!paused(osdmap_flag::FULL, 0, write | OsdFlags::FULL_TRY));
    }
}
