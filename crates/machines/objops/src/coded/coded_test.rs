//! Changes of whole objects, cut for shards, against a store of whole objects: bytes from any `k`
//! shards, parity, attributes and omap of each shard that may lead, and what undoes each change.

use super::*;
use crate::txn::Mutations;
use ec::{Pieces, ReadPlan, Recipes, ShardExtents, Sources, Technique};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Bound;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use store::{AllocHint, Coll, Store, Transaction};
use types::{Epoch, PoolId, SnapId};

const COLL: Coll = Coll(1);

fn now<T>(f: impl Future<Output = T>) -> T {
    match Box::pin(f).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => out,
        Poll::Pending => panic!("a store in memory does not wait"),
    }
}

fn oid(n: u8, snap: SnapId) -> ObjectId {
    let name = Bytes::from(format!("object-{n}"));
    ObjectId::with_hash(PoolId(1), Bytes::new(), name, Bytes::new(), snap, u32::from(n))
}

fn head(n: u8) -> ObjectId {
    oid(n, SnapId::NOSNAP)
}

struct Shards {
    layout: Layout,
    code: Rc<Code>,
    whole: Store,
    shards: Vec<Store>,
    before: BTreeMap<ObjectId, Before>,
    /// What undoes each change, by shard.
    log: Vec<Vec<(Eversion, KeptChange)>>,
    version: u64,
    /// What is known of stripes, of the version that objects have.
    stripes: BTreeMap<ObjectId, Stripe>,
    deltas: usize,
}

type Picture = Vec<String>;

impl Shards {
    fn new(k: usize, m: usize) -> Shards {
        let store = || {
            let store = Store::memory();
            let mut t = Transaction::new();
            t.create_collection(COLL);
            store.submit(t).unwrap();
            store
        };
        Shards {
            layout: Layout::new(k, m, 4096).unwrap(),
            code: Rc::new(Code::new(Technique::JerasureReedSolVan, k, m).unwrap()),
            whole: store(),
            shards: (0..k + m).map(|_| store()).collect(),
            before: BTreeMap::new(),
            log: Vec::new(),
            version: 0,
            stripes: BTreeMap::new(),
            deltas: 0,
        }
    }

    fn exists(&self, oid: &ObjectId) -> bool {
        now(self.whole.stat(COLL, &oid.to_key())).is_ok()
    }

    /// As an operation seals a change: objects that are there then have an info.
    fn seal(&self, txn: &Mutations, version: Eversion) -> Mutations {
        let (mut sealed, mut t) = (txn.clone(), Transaction::new());
        let names: BTreeSet<ObjectId> = txn.iter().map(|(o, _)| o.clone()).collect();
        for oid in names.iter().filter(|o| self.exists(o)) {
            let info = (Bytes::from_static(OI_ATTR), version.to_bytes(Features::ALL));
            t.set_attrs(COLL, &oid.to_key(), vec![info.clone()]);
            sealed.push(oid, Change::SetAttrs(smallvec![info]));
        }
        self.whole.submit(t).unwrap();
        sealed
    }

    /// Applies a change to all; false if the model refuses it.
    fn apply(&mut self, txn: &Mutations) -> bool {
        let mut t = Transaction::new();
        txn.clone().into_store(COLL, &mut t, |_, _, _, _| ());
        if self.whole.submit(t).is_err() {
            return false;
        }
        self.version += 1;
        let version = Eversion { epoch: Epoch(3), version: self.version };
        let txn = &self.seal(txn, version);
        let before = self.before.clone();
        let mut draft = Draft::new(self.layout, txn, |o| before.get(o).cloned()).unwrap();
        let available = self.layout.shards();
        let known: BTreeMap<_, _> =
            self.stripes.iter().map(|(o, s)| (o.clone(), s.extents())).collect();
        let nothing = ShardExtents::new();
        draft.choose(|oid| {
            let cached = known.get(oid).unwrap_or(&nothing);
            Some(Sources { available, local: Some(0), slow: ShardSet::EMPTY, cached })
        });
        self.deltas += draft.choices().0.len();
        let mut old = OldBytes::default();
        let mut stripes = std::mem::take(&mut self.stripes);
        for (oid, range) in draft.needs() {
            let size = before[&oid].size;
            assert!(range.end <= size, "{range:?} of {size} bytes");
            let bytes = self.read(&oid, &before[&oid], self.layout.shards(), &range);
            note_bytes(self.layout, stripes.entry(oid.clone()).or_default(), range.start, &bytes);
            old.insert(&oid, range.start, bytes.into());
        }
        for (oid, _) in before.iter().filter(|(o, _)| txn.iter().any(|(t, _)| t == *o)) {
            let stripe = stripes.remove(oid).unwrap_or_default();
            stripes.extend(draft.stripe_after(oid, stripe).map(|s| (oid.clone(), s)));
        }
        self.stripes = stripes;
        let cut = draft.cut(&self.code, &old, |_| version).unwrap();
        let mut all = Vec::new();
        for (shard, told) in &cut.shards {
            let (meta, data) = told.to_wire();
            let told = ShardChange::from_wire(&meta, &data).unwrap();
            let keep: Vec<_> = cut
                .written
                .iter()
                .filter(|(_, set)| set.contains(*shard))
                .map(|(o, _)| (version, o.clone()))
                .collect();
            for (o, v) in &told.before {
                assert_eq!(*v, before.get(o).cloned().unwrap_or_default().shard(*shard));
            }
            let mut t = Transaction::new();
            let mut kept = told.into_store(COLL, &mut t, &keep, |_, _, _, _| ());
            self.shards[usize::from(*shard)].submit(t).unwrap();
            // One entry a change is enough here.
            let mut one = KeptChange::default();
            kept.drain(..).for_each(|(_, k)| one.objects.extend(k.objects));
            let one = KeptChange::decode(&one.encode()).unwrap();
            all.push((usize::from(*shard), one));
        }
        self.log.push(Vec::new());
        let entry = self.log.last_mut().unwrap();
        for shard in 0..self.shards.len() {
            let found = all.iter().find(|(s, _)| *s == shard).map(|(_, k)| k.clone());
            entry.push((version, found.unwrap_or_default()));
        }
        for (oid, set) in &cut.written {
            match now(self.whole.stat(COLL, &oid.to_key())) {
                Ok(stat) => {
                    let b = self.before.entry(oid.clone()).or_default();
                    b.size = stat.size;
                    b.info = version.to_bytes(Features::ALL);
                    b.shards.resize(self.layout.shards().len(), Eversion::ZERO);
                    set.iter().for_each(|s| b.shards[usize::from(s)] = version);
                }
                Err(_) => drop(self.before.remove(oid)),
            }
        }
        true
    }

    fn stored(&self, shard: Shard, oid: &ObjectId) -> Vec<u8> {
        let data = now(self.shards[usize::from(shard)].read(COLL, &oid.to_key(), 0, u64::MAX));
        data.unwrap().to_bytes().to_vec()
    }

    fn read(&self, oid: &ObjectId, b: &Before, from: ShardSet, range: &Range<u64>) -> Vec<u8> {
        let cached = ShardExtents::new();
        let sources =
            Sources { available: from, local: None, slow: ShardSet::EMPTY, cached: &cached };
        let length = range.end - range.start;
        let plan = ReadPlan::new(self.layout, range.start, length, b.size, sources).unwrap();
        let mut pieces = Pieces::new(self.layout, b.size);
        for (shard, extents) in plan.reads() {
            let stored = self.stored(*shard, oid);
            for r in extents.iter() {
                let end = stored.len().min(r.end as usize);
                pieces.insert(*shard, r.clone(), &stored[end.min(r.start as usize)..end]);
            }
        }
        plan.assemble(&mut Recipes::new(self.code.clone()), pieces).unwrap()
    }

    fn check(&self, lost: ShardSet) {
        let (k, n) = (self.layout.k(), self.layout.shards().len());
        let lost: ShardSet = lost.and(self.layout.shards()).iter().take(n - k).collect();
        let from = self.layout.shards().without(lost);
        let list = now(self.whole.list(COLL, b"", None, usize::MAX)).unwrap().keys;
        let names: BTreeSet<_> = self.before.keys().map(ObjectId::to_key).collect();
        assert_eq!(list.iter().cloned().collect::<BTreeSet<_>>(), names);
        for (oid, b) in &self.before {
            let key = oid.to_key();
            let whole = now(self.whole.read(COLL, &key, 0, u64::MAX)).unwrap().to_bytes();
            assert_eq!(whole.len() as u64, b.size);
            let found = self.read(oid, b, from, &(0..b.size));
            assert!(whole == found, "{oid} of shards {from:?} is not what was written");
            let attrs = now(self.whole.get_attrs(COLL, &key)).unwrap();
            let omap = now(self.whole.omap_iter(COLL, &key, Bound::Unbounded, 999, 1 << 20));
            let header = now(self.whole.omap_header(COLL, &key)).unwrap();
            for (shard, at, bytes) in self.stripes.get(oid).iter().flat_map(|s| s.iter()) {
                let mut stored = self.stored(shard, oid);
                stored.resize(stored.len().max(at as usize + bytes.len()), 0);
                let found = &stored[at as usize..][..bytes.len()];
                assert!(found == bytes, "{oid} shard {shard} at {at}: what is kept is not there");
            }
            for shard in self.layout.shards().iter() {
                let store = &self.shards[usize::from(shard)];
                let mut found = now(store.get_attrs(COLL, &key)).unwrap();
                let f = Features::ALL;
                if !self.layout.primary_capable().contains(shard) {
                    let version = (Bytes::from_static(SHARD_ATTR), b.shard(shard).to_bytes(f));
                    assert_eq!(found, [version], "{oid} shard {shard}");
                    continue;
                }
                let newest = b.shards.iter().copied().max().unwrap_or_default();
                let info = ObjectInfo { size: b.size, version: newest, ..ObjectInfo::default() };
                found.retain(|(name, value)| {
                    let read = || Before::new(self.layout, &info, Some(value)).unwrap();
                    name != SHARDS_ATTR || read() != Before { info: Bytes::new(), ..b.clone() }
                });
                assert_eq!(found, attrs, "{oid} shard {shard}");
                let rows = now(store.omap_iter(COLL, &key, Bound::Unbounded, 999, 1 << 20));
                assert_eq!(rows, omap);
                assert_eq!(now(store.omap_header(COLL, &key)).unwrap(), header);
            }
        }
    }

    fn picture(&self) -> Vec<Picture> {
        let describe = |store: &Store| {
            let keys = now(store.list(COLL, b"", None, usize::MAX)).unwrap().keys;
            keys.iter()
                .map(|key| {
                    format!(
                        "{key:?} {:?} {:x?} {:?} {:?} {:?}",
                        now(store.stat(COLL, key)),
                        crc32c::crc32c(
                            &now(store.read(COLL, key, 0, u64::MAX)).unwrap().to_bytes()
                        ),
                        now(store.get_attrs(COLL, key)),
                        now(store.omap_header(COLL, key)),
                        now(store.omap_iter(COLL, key, Bound::Unbounded, 999, 1 << 20)),
                    )
                })
                .collect()
        };
        self.shards.iter().map(describe).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Change(u8, Change),
    CloneOf(u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = prop_oneof![0..60_000u64, (0..14u64).prop_map(|n| n * 4096)];
    let length = prop_oneof![1..300u64, 1..30_000u64, (1..6u64).prop_map(|n| n * 4096)];
    let name = || (0..4u8).prop_map(|n| Bytes::from(vec![b'a' + n]));
    let write = (offset.clone(), length.clone(), any::<u8>()).prop_map(|(off, length, first)| {
        let data: Vec<u8> = (0..length).map(|i| first.wrapping_add((i * 7 % 251) as u8)).collect();
        Change::Write { off, data: data.into(), hint: WriteHint::Normal }
    });
    let row = || (name(), name());
    let change = prop_oneof![
        6 => write,
        2 => offset.clone().prop_map(|size| Change::Truncate { size }),
        2 => (offset, length).prop_map(|(off, len)| Change::Zero { off, len }),
        1 => Just(Change::Touch),
        1 => Just(Change::Remove),
        1 => row().prop_map(|r| Change::SetAttrs(smallvec![r])),
        1 => name().prop_map(Change::RmAttr),
        1 => prop::collection::vec(row(), 1..3).prop_map(Change::OmapSet),
        1 => name().prop_map(|n| Change::OmapRm(vec![n])),
        1 => (name(), prop::option::of(name()))
            .prop_map(|(start, end)| Change::OmapRmRange { start, end }),
        1 => Just(Change::OmapClear),
        1 => name().prop_map(Change::OmapHeader),
        1 => Just(Change::Hint(AllocHint { object_size: 1, write_size: 2, flags: 3 })),
    ];
    let step = prop_oneof![
        8 => (0..2u8, change).prop_map(|(n, c)| Step::Change(n, c)),
        1 => (0..3u8, 0..3u8).prop_map(|(to, from)| Step::CloneOf(to, from)),
    ];
    prop::collection::vec(step, 1..4)
}

fn mutations(steps: Vec<Step>) -> Mutations {
    let mut txn = Mutations::new();
    for step in steps {
        match step {
            Step::Change(n, change) => txn.push(&head(n), change),
            // As snapshots are made: first of all, of what was there before.
            Step::CloneOf(to, from) if to != from => {
                let clone = oid(to, SnapId(7));
                txn.push_front(&clone, Change::CloneOf { from: head(from).to_key() });
            }
            // As a rollback.
            Step::CloneOf(to, _) => {
                txn.push(&head(to), Change::CloneOf { from: oid(to, SnapId(7)).to_key() });
            }
        }
    }
    txn
}

/// A rollback to a clone that the same request makes is none that clients can ask for.
fn is_sound(txn: &Mutations) -> bool {
    let clones = txn.iter().filter(|(o, c)| o.is_snap() && matches!(c, Change::CloneOf { .. }));
    let made: Vec<_> = clones.map(|(o, _)| o.to_key()).collect();
    txn.iter().all(|(_, c)| !matches!(c, Change::CloneOf { from } if made.contains(from)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn shards_have_what_was_written_and_give_it_back(
        shape in prop::sample::select(vec![(2, 1), (2, 2), (4, 2), (3, 1), (1, 2)]),
        changes in prop::collection::vec((steps(), any::<u128>()), 1..8),
    ) {
        let mut s = Shards::new(shape.0, shape.1);
        let mut pictures = Vec::new();
        for (steps, lost) in changes {
            let txn = mutations(steps);
            let before = s.picture();
            if is_sound(&txn) && s.apply(&txn) {
                pictures.push(before);
                s.check(ShardSet::from_bits(lost));
            }
        }
        while let (Some(before), Some(entry)) = (pictures.pop(), s.log.pop()) {
            for (store, (version, kept)) in s.shards.iter().zip(entry) {
                let mut t = Transaction::new();
                kept.undo(version, COLL, &mut t, |_, _, _, _| ());
                store.submit(t).unwrap();
            }
            prop_assert_eq!(s.picture(), before);
        }
    }
}

fn write(off: u64, length: usize) -> Change {
    Change::Write { off, data: vec![9; length].into(), hint: WriteHint::Normal }
}

fn txn(changes: Vec<Change>) -> Mutations {
    let mut txn = Mutations::new();
    changes.into_iter().for_each(|c| txn.push(&head(0), c));
    txn
}

#[test]
fn only_shards_concerned_are_named_and_only_what_is_missing_is_needed() {
    let layout = Layout::new(4, 2, 4096).unwrap();
    let v = Eversion { epoch: Epoch(1), version: 1 };
    let before = Before { size: 64 << 10, shards: vec![v; 6], info: Bytes::new() };
    let named = |changes: Vec<Change>, before: Option<Before>| {
        let txn = txn(changes);
        let draft = Draft::new(layout, &txn, |_| before.clone()).unwrap();
        let needs: u64 = draft.needs().iter().map(|(_, r)| r.end - r.start).sum();
        (draft.objects[0].written.iter().collect::<Vec<_>>(), needs)
    };
    let there = || Some(before.clone());
    // One unit of one shard: the other three are needed.
    assert_eq!(named(vec![write(4096, 4096)], there()), (vec![0, 1, 4, 5], 3 * 4096));
    assert_eq!(named(vec![write(4096, 10)], there()), (vec![0, 1, 4, 5], 30));
    // A whole stripe needs nothing.
    assert_eq!(named(vec![write(16384, 16384)], there()), (vec![0, 1, 2, 3, 4, 5], 0));
    // An object written whole needs nothing.
    let whole = vec![Change::Truncate { size: 5000 }, write(0, 5000)];
    assert_eq!(named(whole, there()), (vec![0, 1, 2, 3, 4, 5], 0));
    // An append needs what is beside it in its stripe: here nothing.
    assert_eq!(named(vec![write(64 << 10, 100)], there()), (vec![0, 4, 5], 0));
    let attrs = vec![Change::SetAttrs(smallvec![(Bytes::from("a"), Bytes::from("b"))])];
    assert_eq!(named(attrs, there()), (vec![0, 4, 5], 0));
    assert_eq!(named(vec![Change::Truncate { size: 1 << 20 }], there()), (vec![0, 4, 5], 0));
    assert_eq!(named(vec![Change::Truncate { size: 48 << 10 }], there()).1, 0);
    assert_eq!(named(vec![Change::Remove], there()).0.len(), 6);
    assert_eq!(named(vec![Change::Touch, write(0, 10)], None), (vec![0, 1, 2, 3, 4, 5], 0));
}

/// A block of a wide stripe is changed by a delta, which comes to its version alone and once.
#[test]
fn a_delta_is_applied_once_and_to_what_it_was_made_for() {
    let mut s = Shards::new(4, 2);
    assert!(s.apply(&txn(vec![write(0, 64 << 10)])) && s.deltas == 0);
    assert!(s.apply(&txn(vec![write(5000, 100)])) && s.deltas == 1);
    s.check(ShardSet::from_iter([1, 2]));
    let (layout, before) = (s.layout, s.before[&head(0)].clone());
    let change =
        txn(vec![Change::Write { off: 4096, data: vec![3; 4096].into(), hint: WriteHint::Normal }]);
    let cached = ShardExtents::new();
    let sources =
        |available| Sources { available, local: Some(0), slow: ShardSet::EMPTY, cached: &cached };
    let mut draft = Draft::new(layout, &change, |_| Some(before.clone())).unwrap();
    draft.choose(|_| Some(sources(layout.shards())));
    assert_eq!(draft.needs(), [(head(0), 4096..8192)], "the old bytes of what changes, alone");
    // What is not known to be of a version has no delta.
    let unknown = Before { info: Bytes::new(), ..before.clone() };
    let mut encoded = Draft::new(layout, &change, |_| Some(unknown.clone())).unwrap();
    encoded.choose(|_| Some(sources(layout.shards())));
    assert_eq!((encoded.choices().is_empty(), encoded.needs().len()), (true, 2));
    let mut old = OldBytes::default();
    let bytes = s.read(&head(0), &before, layout.shards(), &(4096..8192));
    old.insert(&head(0), 4096, bytes.into());
    let next = Eversion { epoch: Epoch(3), version: 3 };
    let mut cut = draft.cut(&s.code, &old, |_| next).unwrap();
    let told = cut.shards.remove(&4).unwrap();
    let is_delta = |c: &Change| matches!(c, Change::Xor { .. });
    assert!(told.txn.iter().any(|(_, c)| is_delta(c)));
    let apply = |s: &Shards, info: Option<Eversion>| {
        let mut told = told.clone();
        // As the change of the object's info, which any change has.
        let info = info.map(|v| (Bytes::from_static(OI_ATTR), v.to_bytes(Features::ALL)));
        info.into_iter().for_each(|i| told.txn.push(&head(0), Change::SetAttrs(smallvec![i])));
        let mut t = Transaction::new();
        told.into_store(COLL, &mut t, &[], |_, _, _, _| ());
        s.shards[4].submit(t).map(drop)
    };
    let unexpected = |r| matches!(r, Err(store::StoreError::Unexpected { .. }));
    assert_eq!(apply(&s, Some(next)), Ok(()));
    let then = s.stored(4, &head(0));
    assert!(unexpected(apply(&s, Some(next))), "it comes again");
    assert!(s.stored(4, &head(0)) == then);
    // A shard that missed a change.
    assert!(s.apply(&txn(vec![Change::Remove])));
    assert!(matches!(apply(&s, None), Err(store::StoreError::NoObject { .. })));
    assert!(s.apply(&txn(vec![write(0, 64 << 10)])));
    assert!(unexpected(apply(&s, None)), "another version");
}

#[test]
fn each_part_of_a_change_is_planned_alone() {
    let mut s = Shards::new(4, 2);
    let lost = ShardSet::from_iter([0, 3]);
    assert!(s.apply(&txn(vec![write(0, 64 << 10)])) && s.deltas == 0);
    assert!(s.apply(&txn(vec![write(5000, 100), write(40_000, 50)])));
    assert_eq!(s.deltas, 2, "blocks of two stripes");
    s.check(lost);
    assert!(s.apply(&txn(vec![write(0, 100), write(4096 + 50, 100)])));
    assert_eq!(s.deltas, 2, "both change the same parity");
    s.check(lost);
    // Without what is in memory of these stripes.
    s.stripes.clear();
    assert!(s.apply(&txn(vec![write(0, 100), Change::Zero { off: 20_000, len: 100 }])));
    assert_eq!(s.deltas, 4);
    s.check(lost);
    assert!(s.apply(&txn(vec![Change::Truncate { size: (64 << 10) - 100 }])));
    assert_eq!(s.deltas, 5, "the end of one shard");
    s.check(lost);
    let cut = vec![Change::Truncate { size: 50_000 }, write(5000, 100)];
    assert!(s.apply(&txn(cut)) && s.deltas == 5);
    s.check(lost);
}

#[test]
fn what_has_no_form_for_shards_is_refused() {
    let layout = Layout::new(2, 1, 4096).unwrap();
    for change in [
        Change::CloneRange { from: head(1).to_key(), off: 0, len: 1, to_off: 0 },
        Change::Xor { off: 0, data: vec![1].into() },
        Change::Write { off: u64::MAX, data: vec![1, 2].into(), hint: WriteHint::Normal },
    ] {
        let txn = txn(vec![change]);
        let draft = Draft::new(layout, &txn, |_| None);
        assert!(matches!(draft, Err(CodedError::Unsupported { .. })), "{draft:?}");
    }
}

#[test]
fn wire_forms_refuse_what_is_cut_off() {
    let told = ShardChange {
        before: vec![(head(0), Eversion { epoch: Epoch(1), version: 9 })],
        txn: txn(vec![Change::Touch, write(3, 10)]),
        payer: "client.a".to_owned(),
    };
    let (meta, data) = told.to_wire();
    assert_eq!(ShardChange::from_wire(&meta, &data).unwrap(), told);
    for n in 1..meta.len() {
        assert!(ShardChange::from_wire(&meta.slice(..n), &data).is_err());
    }
    assert_eq!(ShardChange::from_wire(&Bytes::new(), &[]).unwrap(), ShardChange::default());
}
