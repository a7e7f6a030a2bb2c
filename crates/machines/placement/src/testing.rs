//! Random clusters for tests.

use crate::stats::{Holds, Stats, Usage, groups};
use crush::CrushMap;
use crush::RuleMode;
use std::sync::Arc;
use types::osdmap::Osd;
use types::pool::{PoolType, flag};
use types::rados::osd_state;
use types::{Epoch, OsdId, OsdMap, PgPool, PoolId, Release};

/// A small generator of random numbers: the same seed gives the same cluster.
pub struct Rng(pub u64);

impl Rng {
    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// The shape of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub racks: i32,
    pub hosts: i32,
    pub osds: i32,
    /// Of each pool: copies and PGs.
    pub pools: &'static [(u8, u32)],
    /// Pools after the first are erasure-coded.
    pub erasure: bool,
    /// OSDs differ in size.
    pub mixed: bool,
}

/// Adds OSDs to a CRUSH map, in racks and hosts.
pub fn add_osd(crush: &mut CrushMap, osd: i32, weight: u32, rack: i32, host: i32) {
    let loc = [
        ("root".to_owned(), "default".to_owned()),
        ("rack".to_owned(), format!("r{rack}")),
        ("host".to_owned(), format!("h{host}")),
    ];
    crush.insert_item(osd, weight, &format!("osd.{osd}"), &loc.into(), true).unwrap();
}

/// An OSD that is up.
pub fn up() -> Osd {
    Osd { state: osd_state::EXISTS | osd_state::UP, ..Osd::default() }
}

/// A cluster with data.
pub fn cluster(shape: Shape, rng: &mut Rng) -> (OsdMap, Stats) {
    let mut crush = CrushMap::with_default_types();
    let mut stats = Stats::default();
    let (mut map, mut osd) = (OsdMap::default(), 0);
    map.epoch = Epoch(1);
    map.require_min_compat_client = Release::LUMINOUS;
    map.backfillfull_ratio = 0.9;
    let total = shape.racks * shape.hosts * shape.osds;
    map.osds = (0..total).map(|_| up()).collect();
    map.weights = vec![0x10000; total as usize];
    for rack in 0..shape.racks {
        for host in 0..shape.hosts {
            for _ in 0..shape.osds {
                let size = if shape.mixed { 1 + rng.below(3) } else { 1 };
                add_osd(&mut crush, osd, (size as u32) << 16, rack, rack * shape.hosts + host);
                stats.usage.insert(OsdId(osd), Usage { total: size << 30, used: 0 });
                osd += 1;
            }
        }
    }
    let rules: Vec<u8> = [
        ("host", RuleMode::Firstn, 1),
        ("rack", RuleMode::Firstn, 1),
        ("host", RuleMode::Indep, 3),
    ]
    .into_iter()
    .enumerate()
    .map(|(n, (domain, mode, kind))| {
        crush.add_simple_rule(&format!("rule{n}"), "default", domain, "", mode, kind, None).unwrap()
            as u8
    })
    .collect();
    map.crush = Arc::new(crush);
    for (n, (size, pg_num)) in shape.pools.iter().enumerate() {
        let coded = shape.erasure && n > 0;
        let pool = PgPool {
            kind: if coded { PoolType::Erasure } else { PoolType::Replicated },
            size: *size,
            min_size: 1,
            crush_rule: if coded { rules[2] } else { rules[0] },
            pg_num: *pg_num,
            pgp_num: *pg_num,
            pg_num_target: *pg_num,
            pgp_num_target: *pg_num,
            flags: flag::HASHPSPOOL,
            ..PgPool::default()
        };
        let id = PoolId(n as i64 + 1);
        map.pools.insert(id, pool);
        map.pool_names.insert(id, format!("p{}", n + 1));
    }
    map.pool_max = shape.pools.len() as i32;
    // About a third of all room is taken.
    let room: u64 = stats.usage.values().map(|u| u.total).sum();
    let copies: u64 =
        shape.pools.iter().map(|(size, pgs)| u64::from(*size) * u64::from(*pgs)).sum();
    let mean = room / 3 / copies.max(1);
    let all: Vec<_> = map.pools.keys().flat_map(|p| groups(&map, *p)).collect();
    for pg in all {
        let bytes = mean / 2 + rng.below(mean.max(1));
        stats.groups.insert(pg, Holds { objects: bytes / 4096, bytes });
        let each = stats.copy_bytes(&map, pg);
        for osd in map.pg_to_raw_upmap(pg) {
            if let Some(u) = stats.usage.get_mut(&osd) {
                u.used += each;
            }
        }
    }
    (map, stats)
}
