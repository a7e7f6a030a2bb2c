//! Prints how long it takes to map all placement groups of a cluster, to look one up, and to encode
//! and decode its map. `cargo run --release -p types --example map_all [osds] [groups]`

use denc::{Decode, Encode};
use std::collections::BTreeMap;
use std::time::Instant;
use types::rados::osd_state;
use types::{OsdId, OsdMap, OsdMapMapping, PgId, PgPool, PoolId, Release, features};

fn main() {
    let arg = |n: usize, default: u32| {
        std::env::args().nth(n).and_then(|a| a.parse().ok()).unwrap_or(default)
    };
    let (osds, groups) = (arg(1, 1000), arg(2, 32_768));
    let mut crush = crush::CrushMap::with_default_types();
    for o in 0..osds as i32 {
        let loc = BTreeMap::from([
            ("root".to_owned(), "default".to_owned()),
            ("rack".to_owned(), format!("rack{}", o / 200)),
            ("host".to_owned(), format!("host{}", o / 20)),
        ]);
        crush.insert_item(o, 0x10000, &format!("osd.{o}"), &loc, true).expect("a place");
    }
    crush
        .add_simple_rule("replicated", "default", "host", "", crush::RuleMode::Firstn, 1, None)
        .expect("a rule");
    let mut map =
        OsdMap { crush: crush.into(), require_osd_release: Release::SQUID, ..OsdMap::default() };
    map.set_max_osd(osds as usize);
    map.weights.fill(OsdMap::ONE);
    map.osds.iter_mut().for_each(|o| o.state = osd_state::EXISTS | osd_state::UP);
    let mut pool =
        PgPool { size: 3, min_size: 2, pg_num: groups, pgp_num: groups, ..PgPool::default() };
    pool.flags = types::pool::flag::HASHPSPOOL;
    map.pools.insert(PoolId(1), pool);

    let start = Instant::now();
    let table = OsdMapMapping::new(&map);
    let all = start.elapsed();
    let per_group = all.as_nanos() as f64 / f64::from(groups);
    println!("{groups} groups on {osds} OSDs: {all:?}, {per_group:.0} ns each");

    let start = Instant::now();
    let mut sum = 0u64;
    let rounds = 10_000_000u64;
    for i in 0..rounds {
        let pg = PgId::new(PoolId(1), (i.wrapping_mul(0x9e37_79b9) % u64::from(groups)) as u32);
        sum += table.get(pg).map_or(0, |p| p.acting_primary.0 as u64);
    }
    println!("look-up: {:.1} ns (sum {sum})", start.elapsed().as_nanos() as f64 / rounds as f64);
    assert!(
        table
            .get(PgId::new(PoolId(1), 0))
            .is_some_and(|p| p.acting.iter().all(|o| *o != OsdId::NONE))
    );

    let start = Instant::now();
    let bytes = map.to_bytes(features::SQUID);
    println!("encode: {:?}, {} bytes", start.elapsed(), bytes.len());
    let start = Instant::now();
    let again = OsdMap::from_bytes(&bytes).expect("it decodes");
    println!("decode: {:?}", start.elapsed());
    assert!(again.max_osd() as u32 == osds);
}
