//! Comparisons.

use super::*;
use denc::Encode;
use types::OsdId;
use types::PoolId;

const RULES: Rules =
    Rules { max_object_size: 1 << 20, large_omap_keys: 100, large_omap_bytes: 1 << 20 };

fn oid(name: &str) -> ObjectId {
    ObjectId::with_hash(
        PoolId(1),
        Bytes::new(),
        Bytes::copy_from_slice(name.as_bytes()),
        Bytes::new(),
        SnapId::NOSNAP,
        7,
    )
}

fn info(version: u64, size: u64) -> Bytes {
    let version = Eversion { epoch: types::Epoch(1), version };
    ObjectInfo { version, size, user_version: 9, ..ObjectInfo::default() }.to_bytes(Features::ALL)
}

/// A good copy.
fn object() -> ScrubObject {
    let attrs = [
        (Bytes::from_static(b"_"), info(5, 10)),
        (Bytes::from_static(b"_x"), Bytes::from_static(b"1")),
    ]
    .into();
    ScrubObject {
        size: 10,
        attrs,
        data_digest: Some(1),
        omap_digest: Some(2),
        omap_keys: 3,
        omap_bytes: 30,
        ..ScrubObject::default()
    }
}

fn set(o: &mut ScrubObject, name: &'static [u8], value: Bytes) {
    o.attrs.insert(Bytes::from_static(name), value);
}

/// Compares what OSDs 0, 1, 2 have of one object; the first is the primary.
fn three(copies: [Option<ScrubObject>; 3]) -> Found {
    let maps = copies
        .into_iter()
        .enumerate()
        .map(|(i, o)| {
            (
                on(i as i32),
                ScrubMap {
                    upto: Backfill::Complete,
                    objects: o.map(|o| (oid("a"), o)).into_iter().collect(),
                },
            )
        })
        .collect();
    compare("1.0", on(0), &maps, &RULES, |_| false)
}

fn on(osd: i32) -> PgShard {
    OsdId(osd).into()
}

fn errors(found: &Found, osd: i32) -> u64 {
    found.objects[0].1.shards[&OsdShard { osd: OsdId(osd), shard: -1 }].errors
}

fn repairable(found: &Found) -> (Vec<i32>, Vec<i32>) {
    let [r] = &found.repairable[..] else { panic!("{found:?}") };
    let n = |v: &[PgShard]| v.iter().map(|c| c.osd.0).collect();
    (n(&r.missing), n(&r.bad))
}

#[test]
fn equal_copies_are_right() {
    let found = three([Some(object()), Some(object()), Some(object())]);
    assert_eq!((found.shallow_errors, found.deep_errors), (0, 0));
    assert!(found.objects.is_empty() && found.lines.is_empty() && found.repairable.is_empty());
    assert_eq!((found.stats.num_objects, found.stats.num_omap_keys), (1, 3));
}

#[test]
fn copies_with_errors_of_their_own_are_to_blame() {
    let with = |change: fn(&mut ScrubObject)| {
        let mut o = object();
        change(&mut o);
        Some(o)
    };
    // The primary's copy is bad; then another is authoritative.
    let found = three([
        with(|o| (o.read_error, o.data_digest) = (true, None)),
        Some(object()),
        Some(object()),
    ]);
    assert_eq!(
        (found.shallow_errors, found.deep_errors, errors(&found, 0)),
        (0, 1, shard_error::READ)
    );
    assert_eq!(repairable(&found), (vec![], vec![0]));
    assert!(found.objects[0].1.shards[&OsdShard { osd: OsdId(1), shard: -1 }].selected_oi);
    assert!(
        found.lines[0].contains("1.0 shard 0 soid")
            && found.lines[0].contains("candidate had a read error"),
        "{:?}",
        found.lines
    );

    let found = three([Some(object()), None, Some(object())]);
    assert_eq!((found.shallow_errors, errors(&found, 1)), (1, shard_error::MISSING));
    assert_eq!(repairable(&found), (vec![1], vec![]));

    let found = three([Some(object()), Some(object()), with(|o| o.size = 4)]);
    assert_eq!(errors(&found, 2), shard_error::OBJ_SIZE_INFO | shard_error::SIZE_INFO);
    assert_eq!((found.objects[0].1.errors, found.objects[0].1.version), (object_error::SIZE, 9));
    assert_eq!((found.shallow_errors, repairable(&found)), (2, (vec![], vec![2])));

    let found = three([
        with(|o| drop(o.attrs.remove(OI_ATTR))),
        with(|o| set(o, b"_", Bytes::from_static(b"?"))),
        Some(object()),
    ]);
    assert_eq!(
        (errors(&found, 0), errors(&found, 1)),
        (shard_error::INFO_MISSING, shard_error::INFO_CORRUPTED)
    );
    assert_eq!(repairable(&found).1, [0, 1]);
    let found = three([
        with(|o| set(o, b"snapset", Bytes::from_static(b"?"))),
        Some(object()),
        Some(object()),
    ]);
    assert_eq!(
        (errors(&found, 0), repairable(&found).1),
        (shard_error::SNAPSET_CORRUPTED, vec![0])
    );
}

#[test]
fn without_one_to_blame_the_primary_is_right() {
    let mut other = object();
    other.data_digest = Some(77);
    let found = three([Some(object()), Some(other.clone()), Some(object())]);
    assert_eq!((found.deep_errors, found.objects[0].1.errors), (1, object_error::DATA_DIGEST));
    assert_eq!(repairable(&found), (vec![], vec![1]));
    // A newer copy is better than the primary's.
    set(&mut other, b"_", info(6, 10));
    let found = three([Some(object()), Some(other), Some(object())]);
    assert_eq!(found.repairable[0].version.version, 6);
    assert_eq!(
        (repairable(&found).1, found.objects[0].1.errors),
        (vec![0, 2], object_error::DATA_DIGEST | object_error::INFO)
    );

    let mut other = object();
    set(&mut other, b"_x", Bytes::from_static(b"2"));
    set(&mut other, b"_y", Bytes::new());
    other.omap_digest = Some(0);
    let found = three([Some(object()), Some(object()), Some(other)]);
    let all = object_error::ATTR_VALUE | object_error::ATTR_NAME | object_error::OMAP_DIGEST;
    assert_eq!((found.objects[0].1.errors, repairable(&found).1), (all, vec![2]));
}

#[test]
fn without_a_good_copy_nothing_is_repaired() {
    let bad = || Some(ScrubObject { read_error: true, ..object() });
    let found = three([bad(), bad(), None]);
    assert_eq!((found.deep_errors, found.shallow_errors), (2, 1));
    assert!(found.repairable.is_empty() && found.objects[0].1.version == 0);
    assert!(found.lines[0].contains("failed to pick suitable object info"));
    // What is told of it can be decoded by clients.
    assert!(InconsistentObject::from_bytes(&found.objects[0].1.to_bytes(Features::ALL)).is_ok());
}

#[test]
fn objects_in_recovery_are_left_out() {
    let maps = [
        (on(0), ScrubMap { upto: Backfill::Complete, objects: [(oid("a"), object())].into() }),
        (on(1), ScrubMap::default()),
    ]
    .into();
    let found = compare("1.0", on(0), &maps, &RULES, |o| *o == oid("a"));
    assert_eq!(found, Found::default());
}

#[test]
fn clones_must_be_those_of_the_snap_set() {
    let set_of = |clones: &[u64]| {
        let mut s = SnapSet { seq: SnapId(9), ..SnapSet::default() };
        for c in clones {
            s.clones.push(SnapId(*c));
            s.clone_size.insert(SnapId(*c), 10);
        }
        s.to_bytes(Features::ALL)
    };
    let one = |objects: Vec<(ObjectId, ScrubObject)>| {
        let maps = [(
            on(0),
            ScrubMap { upto: Backfill::Complete, objects: objects.into_iter().collect() },
        )]
        .into();
        compare("1.0", on(0), &maps, &RULES, |_| false)
    };
    let head = |clones: &[u64]| {
        let mut o = object();
        set(&mut o, b"snapset", set_of(clones));
        (oid("a"), o)
    };
    let clone = |c: u64| (oid("a").at(SnapId(c)), object());
    assert!(one(vec![head(&[2, 4]), clone(2), clone(4)]).snapsets.is_empty());
    let found = one(vec![head(&[2, 4]), clone(4), clone(6)]);
    let record = &found.snapsets[0].1;
    assert_eq!(record.errors, snapset_error::CLONE_MISSING | snapset_error::EXTRA_CLONES);
    assert_eq!(
        (&record.missing[..], &record.clones[..], found.shallow_errors),
        (&[SnapId(2)][..], &[SnapId(6)][..], 1)
    );
    assert_eq!(one(vec![clone(4)]).snapsets[0].1.errors, snapset_error::HEADLESS_CLONE);
    let mut short = clone(4);
    short.1.size = 3;
    set(&mut short.1, b"_", info(5, 3));
    assert_eq!(one(vec![head(&[4]), short]).snapsets[0].1.errors, snapset_error::SIZE_MISMATCH);
}

#[test]
fn very_many_rows_are_worth_a_warning() {
    let many = ScrubObject { omap_keys: 101, ..object() };
    let found = three([Some(many.clone()), Some(many.clone()), Some(many)]);
    assert_eq!((found.large_omap_objects, found.shallow_errors), (1, 0));
    assert!(
        found.warnings[0].starts_with("Large omap object found.")
            && found.warnings[0].contains("Key count: 101")
    );
}
