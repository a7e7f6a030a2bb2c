//! Plans carried out on shards in memory, beside a plain object: after each step each shard that is
//! there is what the code makes of the object, and any read with any `m` shards gone gives the
//! object's bytes.

use ec::{
    Change, Code, Extents, Layout, Pieces, ReadPlan, RebuildPlan, Recipes, Shard, ShardExtents,
    ShardOp, ShardSet, Sources, Technique, WritePlan,
};
use proptest::prelude::*;
use std::rc::Rc;

const UNIT: u64 = 4096;

#[derive(Clone, Debug)]
enum Step {
    Change(Change),
    /// The OSDs of some shards go; what they have stays as it is.
    Lose(u128),
    /// They come back and are rebuilt.
    Recover,
    Read(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Near the beginning and at edges of units more often than elsewhere.
    let at = || prop_oneof![0u64..300, 0u64..60_000, (0u64..14).prop_map(|u| u * UNIT)];
    let length = || prop_oneof![0u64..300, 0u64..30_000, (0u64..9).prop_map(|u| u * UNIT)];
    let change = prop_oneof![
        4 => (at(), length()).prop_map(|(offset, length)| Change::Write { offset, length }),
        1 => (at(), length()).prop_map(|(offset, length)| Change::Zero { offset, length }),
        1 => at().prop_map(|size| Change::Truncate { size }),
        1 => length().prop_map(|length| Change::Replace { length }),
    ];
    let step = prop_oneof![
        8 => change.prop_map(Step::Change),
        2 => any::<u128>().prop_map(Step::Lose),
        1 => Just(Step::Recover),
        3 => (at(), length()).prop_map(|(o, l)| Step::Read(o, l)),
    ];
    prop::collection::vec(step, 1..25)
}

struct Model {
    layout: Layout,
    recipes: Recipes,
    object: Vec<u8>,
    shards: Vec<Vec<u8>>,
    lost: ShardSet,
    noise: u64,
}

impl Model {
    fn new(technique: Technique, k: usize, m: usize) -> Model {
        Model {
            layout: Layout::new(k, m, UNIT).unwrap(),
            recipes: Recipes::new(Rc::new(Code::new(technique, k, m).unwrap())),
            object: Vec::new(),
            shards: vec![Vec::new(); k + m],
            lost: ShardSet::EMPTY,
            noise: 1,
        }
    }

    fn random(&mut self) -> u64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_991);
        self.noise >> 33
    }

    fn size(&self) -> u64 {
        self.object.len() as u64
    }

    /// What the code makes of the object.
    fn encoded(&self) -> Vec<Vec<u8>> {
        let l = self.layout;
        let rows = l.shard_size(l.k() as Shard, self.size()) as usize;
        let mut data = vec![vec![0; rows]; l.k()];
        for (i, b) in self.object.iter().enumerate() {
            let (shard, at) = l.locate(i as u64);
            data[usize::from(shard)][at as usize] = *b;
        }
        let mut parity = vec![vec![0; rows]; l.m()];
        self.recipes.code().encode(
            &data.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        );
        data.extend(parity);
        for (s, bytes) in data.iter_mut().enumerate() {
            bytes.truncate(l.shard_size(s as Shard, self.size()) as usize);
        }
        data
    }

    /// Shards that are there are right: zeroes at the end need not be stored.
    fn check(&self) {
        for (s, expected) in self.encoded().iter().enumerate() {
            if self.lost.contains(s as Shard) {
                continue;
            }
            let stored = &self.shards[s];
            assert!(stored.len() <= expected.len(), "shard {s} is too long");
            let (same, rest) = expected.split_at(stored.len());
            assert!(same == &stored[..], "shard {s} differs");
            assert!(rest.iter().all(|b| *b == 0), "shard {s} is too short");
        }
    }

    /// Some bytes that are in memory, of any shard, right as of now.
    fn cached(&mut self) -> (ShardExtents, Vec<(Shard, u64, Vec<u8>)>) {
        let (mut extents, mut bytes) = (ShardExtents::new(), Vec::new());
        for (s, expected) in self.encoded().into_iter().enumerate() {
            if self.random().is_multiple_of(3) && !expected.is_empty() {
                let at = self.random() as usize % expected.len();
                let n = (self.random() as usize % 9000).min(expected.len() - at);
                if n > 0 {
                    let range = at as u64..(at + n) as u64;
                    extents.insert(s as Shard, Extents::from(range));
                    bytes.push((s as Shard, at as u64, expected[at..at + n].to_vec()));
                }
            }
        }
        (extents, bytes)
    }

    fn pieces(&self, reads: &ShardExtents, cached: Vec<(Shard, u64, Vec<u8>)>) -> Pieces {
        let mut pieces = Pieces::new(self.layout, self.size());
        for (s, at, bytes) in cached {
            pieces.insert(s, at..at + bytes.len() as u64, bytes);
        }
        for (&s, extents) in reads {
            assert!(!self.lost.contains(s), "a shard that is gone is read");
            let stored = &self.shards[usize::from(s)];
            for r in extents.iter() {
                let end = stored.len().min(r.end as usize);
                let start = end.min(r.start as usize);
                pieces.insert(s, r, &stored[start..end]);
            }
        }
        pieces
    }

    fn change(&mut self, change: Change) {
        let (cached, bytes) = self.cached();
        let local = self.random() as Shard % 3;
        let available = self.layout.shards().without(self.lost);
        let sources = Sources {
            available,
            local: available.contains(local).then_some(local),
            slow: ShardSet::EMPTY,
            cached: &cached,
        };
        let plan = WritePlan::new(self.layout, change, self.size(), sources).unwrap();
        let new: Vec<u8> = match change {
            Change::Write { length, .. } | Change::Replace { length } => {
                (0..length).map(|_| self.random() as u8).collect()
            }
            _ => Vec::new(),
        };
        let pieces = self.pieces(plan.reads(), bytes);
        let writes = plan.shard_writes(&mut self.recipes, pieces, &new).unwrap();
        for w in writes {
            assert!(available.contains(w.shard) && plan.written().contains(w.shard));
            let stored = &mut self.shards[usize::from(w.shard)];
            for op in w.ops {
                apply(stored, op);
            }
        }
        let at = |n: u64| n as usize;
        match change {
            Change::Write { offset, length } if length > 0 => {
                let end = at(offset + length);
                self.object.resize(self.object.len().max(end), 0);
                self.object[at(offset)..end].copy_from_slice(&new);
            }
            Change::Write { .. } => (),
            Change::Zero { offset, length } => {
                let end = at(offset + length).min(self.object.len());
                self.object[at(offset).min(end)..end].fill(0);
            }
            Change::Truncate { size } => self.object.resize(at(size), 0),
            Change::Replace { .. } => self.object = new,
        }
        assert_eq!(plan.size_after(), self.size());
        self.check();
    }

    fn recover(&mut self) {
        let available = self.layout.shards().without(self.lost);
        let (local, slow) = (available.iter().next(), ShardSet::EMPTY);
        let cached = ShardExtents::new();
        let rows = self.layout.shard_size(self.layout.k() as Shard, self.size());
        let sources = Sources { available, local, slow, cached: &cached };
        // In parts, as recovery does it.
        let mut rebuilt = vec![Vec::new(); self.shards.len()];
        for start in (0..rows).step_by(3 * UNIT as usize) {
            let range = start..rows.min(start + 3 * UNIT);
            let plan =
                RebuildPlan::new(self.layout, self.lost, range, self.size(), sources).unwrap();
            assert!(plan.reads().len() <= self.layout.k());
            let pieces = self.pieces(plan.reads(), Vec::new());
            for (s, bytes) in plan.compute(&mut self.recipes, pieces).unwrap() {
                rebuilt[usize::from(s)].extend(bytes);
            }
        }
        for s in self.lost.iter() {
            let mut bytes = std::mem::take(&mut rebuilt[usize::from(s)]);
            bytes.truncate(self.layout.shard_size(s, self.size()) as usize);
            self.shards[usize::from(s)] = bytes;
        }
        self.lost = ShardSet::EMPTY;
        self.check();
    }

    fn read(&mut self, offset: u64, length: u64) {
        let (cached, bytes) = self.cached();
        let available = self.layout.shards().without(self.lost);
        let slow = ShardSet::from_bits(self.random().into()).and(available);
        let sources = Sources { available, local: None, slow, cached: &cached };
        let plan = ReadPlan::new(self.layout, offset, length, self.size(), sources).unwrap();
        if self.lost.is_empty() {
            let read: u64 = plan.reads().values().map(Extents::bytes).sum();
            assert!(read <= length && plan.rebuilds().is_empty(), "more is read than asked for");
        }
        let pieces = self.pieces(plan.reads(), bytes);
        let got = plan.assemble(&mut self.recipes, pieces).unwrap();
        let end = (offset + length).min(self.size());
        assert!(got == self.object[offset.min(end) as usize..end as usize], "read differs");
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Change(change) => self.change(change),
            Step::Lose(bits) => {
                // What is lost already stays lost.
                for s in ShardSet::from_bits(bits).and(self.layout.shards()).iter() {
                    if self.lost.len() < self.layout.m() {
                        self.lost.insert(s);
                    }
                }
                self.read(0, u64::from(u32::MAX));
            }
            Step::Recover => self.recover(),
            Step::Read(offset, length) => self.read(offset, length),
        }
    }
}

fn apply(stored: &mut Vec<u8>, op: ShardOp) {
    match op {
        ShardOp::Cut { size } => stored.truncate(size as usize),
        ShardOp::Write { offset, bytes } => {
            let end = offset as usize + bytes.len();
            stored.resize(stored.len().max(end), 0);
            stored[offset as usize..end].copy_from_slice(&bytes);
        }
        ShardOp::Zero { offset, length } => {
            let end = stored.len().min((offset + length) as usize);
            stored[(offset as usize).min(end)..end].fill(0);
        }
        ShardOp::Xor { offset, bytes } => {
            let end = offset as usize + bytes.len();
            stored.resize(stored.len().max(end), 0);
            stored[offset as usize..end].iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shards_are_what_the_code_makes_of_the_object(
        (k, m) in (1usize..7, 1usize..4),
        technique in prop_oneof![
            Just(Technique::JerasureReedSolVan),
            Just(Technique::IsaReedSolVan),
            Just(Technique::IsaCauchy),
        ],
        steps in steps(),
    ) {
        let mut model = Model::new(technique, k, m);
        for step in steps {
            model.step(step);
        }
        model.recover();
        model.read(0, u64::from(u32::MAX));
    }
}

/// The model itself must be able to fail: a delta applied twice is found.
#[test]
#[should_panic(expected = "differs")]
fn a_delta_applied_twice_is_found() {
    let mut model = Model::new(Technique::JerasureReedSolVan, 4, 2);
    model.change(Change::Write { offset: 0, length: 40_000 });
    let cached = ShardExtents::new();
    let available = model.layout.shards();
    let sources = Sources { available, local: None, slow: ShardSet::EMPTY, cached: &cached };
    let change = Change::Write { offset: 10, length: 10 };
    let plan = WritePlan::new(model.layout, change, model.size(), sources).unwrap();
    let pieces = model.pieces(plan.reads(), Vec::new());
    let mut again = Vec::new();
    for w in plan.shard_writes(&mut model.recipes, pieces, &[7; 10]).unwrap() {
        for op in w.ops {
            if matches!(op, ShardOp::Xor { .. }) {
                again.push((w.shard, op.clone()));
            }
            apply(&mut model.shards[usize::from(w.shard)], op);
        }
    }
    model.object[10..20].fill(7);
    model.check();
    assert!(!again.is_empty(), "the write was to be a delta");
    for (shard, op) in again {
        apply(&mut model.shards[usize::from(shard)], op);
    }
    model.check();
}
