//! Where a request has to go. No I/O: a map in, a placement out.

use types::rados::{OsdFlags, osdmap_flag};
use types::{Epoch, OsdId, OsdMap, PgId, PgPool, ShardId, SpgId};

/// Where a PG is served under one map, and what of that map this depends on: when any of it
/// changes, OSDs forget requests that were in flight, and these have to be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The PG, with the shard that serves clients.
    pub pgid: SpgId,
    /// The acting primary; `None` if there is none now.
    pub primary: Option<OsdId>,
    interval: Interval,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    up: Vec<OsdId>,
    up_primary: OsdId,
    acting: Vec<OsdId>,
    size: u8,
    min_size: u8,
    /// Splits and merges concern a part of the PGs only; sending requests to the others again is
    /// harmless.
    pg_num: u32,
    pg_num_pending: u32,
    stretch: (u32, u32, u32, i32),
    flags: u32,
    force_resend: Epoch,
}

impl Placement {
    /// Where `pgid` is served; `None` if its pool does not exist.
    pub(crate) fn of(map: &OsdMap, pgid: PgId) -> Option<Placement> {
        let pool = map.pool(pgid.pool)?;
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
        Some(Placement {
            pgid: SpgId { pgid, shard },
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
}

/// Whether writes without `FULL_TRY` or `FULL_FORCE` have to wait until there is room.
pub(crate) fn is_full(map: &OsdMap, pool: &PgPool) -> bool {
    map.flags & osdmap_flag::FULL != 0 || pool.has_flag(types::pool::flag::FULL)
}

/// Whether requests with these flags have to wait for another map.
pub(crate) fn is_paused(map: &OsdMap, pool: &PgPool, flags: OsdFlags) -> bool {
    let forced = flags.any(OsdFlags::FULL_TRY | OsdFlags::FULL_FORCE);
    let reads = map.flags & osdmap_flag::PAUSERD != 0;
    let writes = map.flags & osdmap_flag::PAUSEWR != 0 || (is_full(map, pool) && !forced);
    (flags.any(OsdFlags::READ) && reads) || (flags.any(OsdFlags::WRITE) && writes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::Scope;
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
    fn a_request_goes_to_the_acting_primary_of_its_pg() {
        let map = map();
        let raw = object("foo").raw_pg(&map.pools[&POOL]);
        assert_eq!(raw.seed, types::hash::rjenkins(b"foo"));
        let pgid = map.raw_pg_to_pg(raw).unwrap();
        assert_eq!(pgid, PgId::new(POOL, raw.seed & 7));
        let placed = Placement::of(&map, pgid).unwrap();
        assert_eq!((placed.primary, placed.pgid.pgid), (Some(OsdId(1)), pgid));
        let listing = Scope::Pg { pgid, namespace: Bytes::new() };
        assert_eq!(listing.raw_pg(&map.pools[&POOL]), pgid);
        assert_eq!(Placement::of(&map, PgId::new(PoolId(2), 0)), None);
    }

    #[test]
    fn a_new_interval_is_another_placement() {
        let before = map();
        let pgid = map().raw_pg_to_pg(object("foo").raw_pg(&before.pools[&POOL])).unwrap();
        let placed = Placement::of(&before, pgid).unwrap();
        let changed = |change: &dyn Fn(&mut OsdMap)| {
            let mut after = before.clone();
            after.epoch = Epoch(6);
            change(&mut after);
            Placement::of(&after, pgid).unwrap() != placed
        };
        let pool =
            |m: &mut OsdMap, change: &dyn Fn(&mut PgPool)| change(m.pools.get_mut(&POOL).unwrap());
        assert!(!changed(&|_| {}), "another epoch is no other interval");
        assert!(
            !changed(&|m| drop(m.pg_temp.remove(&PgId::new(POOL, pgid.seed ^ 1)))),
            "nor is another PG's"
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
