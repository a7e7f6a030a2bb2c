//! What is chosen in cases that can be counted by hand, and that nothing cheaper was there.

use super::*;
use crate::extents::Extents;
use proptest::prelude::*;

const KIB: u64 = 1024;
const UNIT: u64 = 16 * KIB;
const MIB: u64 = 1 << 20;

fn nothing() -> &'static ShardExtents {
    static NOTHING: ShardExtents = ShardExtents::new();
    &NOTHING
}

fn layout(k: usize, m: usize) -> Layout {
    Layout::new(k, m, UNIT).unwrap()
}

fn all(layout: Layout) -> Sources<'static> {
    Sources { available: layout.shards(), local: Some(0), slow: ShardSet::EMPTY, cached: nothing() }
}

fn write(layout: Layout, offset: u64, length: u64, size: u64) -> WritePlan {
    WritePlan::new(layout, Change::Write { offset, length }, size, all(layout)).unwrap()
}

fn reads(plan: &WritePlan) -> Vec<(Shard, u64)> {
    plan.reads.iter().map(|(s, e)| (*s, e.bytes())).collect()
}

fn how(plan: &WritePlan) -> Vec<How> {
    plan.bands.iter().map(|b| b.how).collect()
}

#[test]
fn a_small_write_to_a_wide_stripe_is_a_delta() {
    // Unit 1 of 4: encoding would read three data shards, a delta reads one and both parities
    // read their own.
    let plan = write(layout(4, 2), UNIT, 4 * KIB, MIB);
    assert_eq!(how(&plan), [How::Delta]);
    assert_eq!(reads(&plan), [(1, 4 * KIB)]);
    assert_eq!(plan.written(), ShardSet::from_iter([0, 1, 4, 5]));
    let cost = plan.cost();
    assert_eq!((cost.device_reads, cost.device_writes, cost.messages), (3, 4, 4));
}

#[test]
fn a_small_write_to_a_narrow_stripe_is_encoded() {
    let plan = write(layout(2, 2), UNIT, 4 * KIB, MIB);
    assert_eq!(how(&plan), [How::Encode]);
    assert_eq!(reads(&plan), [(0, 4 * KIB)]);
    assert_eq!(plan.cost().device_reads, 1);
}

#[test]
fn whole_stripes_read_nothing() {
    let plan = write(layout(4, 2), 4 * UNIT, 12 * UNIT, MIB);
    assert_eq!((reads(&plan), plan.bands.len()), (vec![], 1));
    assert_eq!(plan.bands[0].range, UNIT..4 * UNIT);
    // An unaligned start and end cost a read each, and the middle none. At the start shard 0 is
    // read to encode; it is cheapest to read it at the end, too, and to send a delta there.
    let plan = write(layout(2, 1), UNIT, 4 * UNIT, MIB);
    assert_eq!(how(&plan), [How::Encode, How::Encode, How::Delta]);
    assert_eq!(plan.reads[&0], Extents::from_iter([0..UNIT, 2 * UNIT..3 * UNIT]));
    assert_eq!(plan.reads.len(), 1);
}

#[test]
fn an_append_reads_what_is_beside_it_and_no_more() {
    // The last stripe has 1 KiB on shard 0. What is behind that is zero everywhere.
    let size = 8 * UNIT + KIB;
    let plan = write(layout(4, 2), size, 4 * KIB, size);
    assert_eq!(reads(&plan), []);
    assert_eq!(plan.size_after(), size + 4 * KIB);
    // In unit 1 the first KiB has data beside it. Parity of that is there, so a delta of a byte
    // that was zero needs no old data at all.
    let plan = write(layout(4, 2), 9 * UNIT, 4 * KIB, size);
    assert!(reads(&plan).is_empty() || reads(&plan) == [(0, KIB)], "{plan:?}");
    assert!(write(layout(4, 2), 0, 100, 0).reads.is_empty());
    assert!(write(layout(4, 2), 100 * MIB, 100, 10).reads.is_empty());
}

#[test]
fn what_is_in_memory_is_not_read() {
    let l = layout(4, 2);
    let cached: ShardExtents = l.data().iter().map(|s| (s, Extents::from(0..2 * UNIT))).collect();
    let change = Change::Write { offset: UNIT, length: 4 * KIB };
    let plan = WritePlan::new(l, change, MIB, Sources { cached: &cached, ..all(l) }).unwrap();
    assert_eq!((how(&plan), reads(&plan)), (vec![How::Encode], vec![]));
}

#[test]
fn truncate_zero_and_replace() {
    let l = layout(4, 2);
    let plan = |change| WritePlan::new(l, change, 8 * UNIT, all(l)).unwrap();
    // At a stripe's end nothing is left to compute.
    let p = plan(Change::Truncate { size: 4 * UNIT });
    assert_eq!((reads(&p), p.bands.len(), p.written()), (vec![], 0, l.shards()));
    // Within a stripe the rest of it becomes zero. Only shard 0 is left, and it is read.
    let p = plan(Change::Truncate { size: 5 * UNIT });
    assert_eq!(reads(&p), [(0, UNIT)]);
    // One unit is cut off, of four: it is cheaper to take that out of parity.
    let p = plan(Change::Truncate { size: 7 * UNIT });
    assert_eq!((how(&p), reads(&p)), (vec![How::Delta], vec![(3, UNIT)]));
    let p = plan(Change::Truncate { size: 9 * UNIT });
    assert_eq!((reads(&p), p.written(), p.size_after()), (vec![], l.primary_capable(), 9 * UNIT));
    let p = plan(Change::Zero { offset: 4 * UNIT, length: 100 * UNIT });
    assert_eq!((reads(&p), p.size_after(), p.bands.len()), (vec![], 8 * UNIT, 1));
    let p = plan(Change::Zero { offset: 8 * UNIT, length: 5 });
    assert_eq!((p.bands.len(), p.written()), (0, l.primary_capable()));
    let p = plan(Change::Replace { length: 5 * UNIT + 7 });
    assert_eq!(reads(&p), []);
    assert_eq!(p.size_after(), 5 * UNIT + 7);
}

#[test]
fn a_write_without_some_shards() {
    let l = layout(4, 2);
    let without = |lost: &[Shard], offset| {
        let available = l.shards().without(lost.iter().copied().collect());
        let change = Change::Write { offset, length: 4 * KIB };
        WritePlan::new(l, change, MIB, Sources { available, ..all(l) })
    };
    // Parity is gone: there is nothing to keep right.
    let plan = without(&[4, 5], 0).unwrap();
    assert_eq!((reads(&plan), plan.cost().device_writes), (vec![], 1));
    assert!(plan.written().contains(4), "a log entry names what is not there, too");
    // The shard that is written is gone: its old bytes would have to be rebuilt, the others not.
    let plan = without(&[1], UNIT).unwrap();
    assert_eq!((how(&plan), plan.rebuilds.len()), (vec![How::Encode], 0));
    // Another one is gone: a delta does not need it.
    let plan = without(&[2], UNIT).unwrap();
    assert_eq!((how(&plan), plan.rebuilds.len()), (vec![How::Delta], 0));
    let err = without(&[1, 2, 3], UNIT).unwrap_err();
    assert_eq!(err, PlanError::TooFew { available: ShardSet::from_iter([0, 4, 5]), k: 4 });
}

#[test]
fn numbers_from_outside_do_not_overflow() {
    let l = layout(3, 2);
    for change in [
        Change::Write { offset: u64::MAX, length: 2 },
        Change::Zero { offset: 2, length: u64::MAX },
    ] {
        let plan = WritePlan::new(l, change, 10, all(l));
        assert!(matches!(plan, Err(PlanError::TooLarge { .. })), "{plan:?}");
    }
    for change in [
        Change::Write { offset: u64::MAX - 2, length: 2 },
        Change::Truncate { size: u64::MAX },
        Change::Replace { length: u64::MAX },
    ] {
        WritePlan::new(l, change, u64::MAX / 2, all(l)).unwrap();
    }
}

fn changes() -> impl Strategy<Value = Change> {
    let (offset, length) = (0..40 * UNIT, 0..20 * UNIT);
    prop_oneof![
        (offset.clone(), length.clone())
            .prop_map(|(offset, length)| Change::Write { offset, length }),
        (offset.clone(), length).prop_map(|(offset, length)| Change::Zero { offset, length }),
        offset.prop_map(|size| Change::Truncate { size }),
    ]
}

proptest! {
    /// Each way to do it is costed by counting what it does, and the plan is none dearer.
    #[test]
    fn nothing_is_cheaper(
        (k, m) in (1usize..7, 1usize..4),
        change in changes(),
        size in 0..40 * UNIT,
        lost in any::<u128>(),
        local in 0u8..3,
        cached in prop::collection::btree_map(0u8..7, (0..10 * UNIT, 0..4 * UNIT), 0..3),
    ) {
        let l = layout(k, m);
        let lost: ShardSet = ShardSet::from_bits(lost).and(l.shards()).iter().take(m).collect();
        let cached: ShardExtents =
            cached.into_iter().map(|(s, (at, n))| (s, Extents::from(at..at + n))).collect();
        let sources = Sources {
            available: l.shards().without(lost),
            local: Some(local).filter(|s| l.shards().without(lost).contains(*s)),
            slow: ShardSet::EMPTY,
            cached: &cached,
        };
        let plan = WritePlan::new(l, change, size, sources).unwrap();
        let draft = Draft::new(l, change, size, sources).unwrap();
        prop_assert!(draft.open.len() <= 4 && draft.bands.len() <= 5);
        for choice in 0..1 << draft.open.len() {
            let other = draft.plan(choice).unwrap();
            prop_assert!(plan.cost().total() <= other.cost().total(), "{plan:?} {other:?}");
            let parity_reads = other.bands.iter().any(|b| {
                b.how == How::Delta && b.range.start < l.shard_size(k as Shard, size)
            });
            let parity = l.parity().without(lost).len() as u64;
            prop_assert_eq!(
                other.cost().device_reads,
                other.reads.len() as u64 + u64::from(parity_reads) * parity
            );
            for (shard, extents) in &other.reads {
                prop_assert!(sources.available.contains(*shard));
                for r in extents.iter() {
                    prop_assert!(r.end <= l.shard_size(*shard, size), "reads behind the end");
                    let known = cached.get(shard).map_or(0, |c| {
                        extents.bytes() + c.bytes()
                            - c.iter().chain(extents.iter()).collect::<Extents>().bytes()
                    });
                    prop_assert_eq!(known, 0, "reads what is in memory");
                }
            }
        }
    }
}
