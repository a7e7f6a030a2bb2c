//! The log of an erasure-coded PG played through: partial writes and deltas that arrive on some
//! shards and not on others, messages that come again, shards that go and come, entries that are
//! taken back or kept, shards that are rebuilt. No acknowledged write is lost, no read shows what
//! is taken back, and in the end all shards are what the code makes of the objects.
//!
//! What is put back wrong must be caught. `SIPHON_SIM_SEEDS=10000` runs more.

use ec::{
    Change, Code, Layout, Pieces, ReadPlan, RebuildPlan, Recipes, Shard, ShardExtents, ShardOp,
    ShardSet, Sources, Technique, WritePlan,
};
use pg::shards::{Named, Reached, complete_to, leader, recoverable};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use types::{Epoch, Eversion};

const UNIT: u64 = 4096;
const OBJECTS: usize = 3;
const NONE: Eversion = Eversion { epoch: Epoch(0), version: 0 };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// A delta is applied again when its message comes again.
    DeltaTwice,
    /// The newest entry that any survivor has counts.
    NewestHead,
    /// A hole counts as a survivor.
    HoleIsACopy,
    /// Reads do not wait for writes, and take shards of any version.
    MixedRead,
    /// What undoes an entry is dropped before all shards have it.
    EarlyDrop,
    /// A write is acknowledged when the shards that it names have it, and an earlier one is not yet
    /// on all that it names: what takes back the earlier one takes back this one.
    AckOutOfOrder,
    /// A shard that was away takes part as if it had everything.
    StaleMember,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Object info as shards have it that may lead.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Info {
    version: Eversion,
    size: u64,
    /// The version of the last entry that named each shard.
    of_shards: Vec<Eversion>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Object {
    bytes: Vec<u8>,
    version: Eversion,
    info: Info,
}

#[derive(Clone)]
struct Entry {
    named: Named,
    object: usize,
    info: Info,
}

#[derive(Clone)]
struct Message {
    entry: Entry,
    /// The version that the shard's object has before.
    before: Eversion,
    ops: Vec<ShardOp>,
    committed_to: Eversion,
}

struct Osd {
    up: bool,
    last: Eversion,
    log: Vec<Entry>,
    /// What objects were before entries that may be taken back.
    undo: Vec<(Eversion, usize, Object)>,
    objects: Vec<Object>,
    /// Objects to rebuild, with the version of each shard. Without it a right shard could not be
    /// told from a wrong one while all infos are being rebuilt.
    missing: BTreeMap<usize, Info>,
}

impl Osd {
    /// What an object is, or needs to be.
    fn info(&self, object: usize) -> Info {
        self.missing.get(&object).unwrap_or(&self.objects[object].info).clone()
    }
}

struct Flight {
    version: Eversion,
    object: usize,
    content: Vec<u8>,
    waits_for: ShardSet,
}

#[derive(Default, Debug)]
struct Seen {
    acknowledged: u64,
    deltas: u64,
    duplicates: u64,
    rolled_back: u64,
    kept: u64,
    rebuilt: u64,
    degraded_reads: u64,
    unserved: u64,
}

struct World {
    rng: Rng,
    bug: Option<Bug>,
    layout: Layout,
    recipes: Recipes,
    osds: Vec<Osd>,
    queues: Vec<VecDeque<Message>>,
    epoch: u32,
    count: u64,
    serving: bool,
    acting: ShardSet,
    /// The acting set of the last interval that served: maps tell it to everyone.
    served: ShardSet,
    /// Durable on each shard in this interval.
    durable: Vec<Eversion>,
    base: Eversion,
    entries: Vec<Named>,
    flights: Vec<Flight>,
    /// What clients know: content and version of each object.
    known: Vec<(Vec<u8>, Eversion)>,
    seen: Seen,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let shapes = [(2, 1), (2, 2), (4, 2), (3, 3), (1, 2), (5, 1)];
        let (k, m) = shapes[rng.below(shapes.len() as u64) as usize];
        let techniques =
            [Technique::JerasureReedSolVan, Technique::IsaReedSolVan, Technique::IsaCauchy];
        let technique = techniques[rng.below(3) as usize];
        let n = k + m;
        let info = Info { version: NONE, size: 0, of_shards: vec![NONE; n] };
        let object = Object { bytes: Vec::new(), version: NONE, info };
        let osd = |_| Osd {
            up: true,
            last: NONE,
            log: Vec::new(),
            undo: Vec::new(),
            objects: vec![object.clone(); OBJECTS],
            missing: BTreeMap::new(),
        };
        let layout = Layout::new(k, m, UNIT).unwrap();
        let mut world = World {
            rng,
            bug,
            layout,
            recipes: Recipes::new(Rc::new(Code::new(technique, k, m).unwrap())),
            osds: (0..n).map(osd).collect(),
            queues: vec![VecDeque::new(); n],
            epoch: 1,
            count: 0,
            serving: false,
            acting: layout.shards(),
            served: layout.shards(),
            durable: vec![NONE; n],
            base: NONE,
            entries: Vec::new(),
            flights: Vec::new(),
            known: vec![(Vec::new(), NONE); OBJECTS],
            seen: Seen::default(),
        };
        world.peer();
        world
    }

    fn osd(&mut self, shard: Shard) -> &mut Osd {
        &mut self.osds[usize::from(shard)]
    }

    fn up(&self) -> ShardSet {
        (0..self.osds.len()).filter(|i| self.osds[*i].up).map(|i| i as Shard).collect()
    }

    fn min_size(&self) -> usize {
        self.layout.k() + (self.layout.m() - 1).min(1)
    }

    /// The primary's info of an object, and the acting shards that have it in that version.
    fn readable(&self, object: usize) -> Option<(Info, ShardSet)> {
        let primary = leader(&self.layout, self.acting)?;
        let info = self.osds[usize::from(primary)].info(object);
        let needs = self.osds.iter().zip(0u8..).filter(|(_, s)| self.acting.contains(*s));
        // Omap and attributes cannot be computed: one shard that leads must have them.
        let leads = self.acting.and(self.layout.primary_capable());
        if leads.iter().all(|s| self.osds[usize::from(s)].missing.contains_key(&object)) {
            return None;
        }
        let right = |(o, s): &(&Osd, Shard)| {
            !o.missing.contains_key(&object)
                && (o.objects[object].version == info.of_shards[usize::from(*s)]
                    || self.bug == Some(Bug::MixedRead))
        };
        let shards = needs.filter(right).map(|(_, s)| s).collect();
        Some((info, shards))
    }

    fn pieces(&self, object: usize, size: u64, reads: &ShardExtents) -> Pieces {
        let mut pieces = Pieces::new(self.layout, size);
        for (&s, extents) in reads {
            let stored = &self.osds[usize::from(s)].objects[object].bytes;
            for r in extents.iter() {
                let end = stored.len().min(r.end as usize);
                pieces.insert(s, r.clone(), &stored[end.min(r.start as usize)..end]);
            }
        }
        pieces
    }

    fn write(&mut self) {
        let object = self.rng.below(OBJECTS as u64) as usize;
        let lacking = |o: &Osd| o.up && o.missing.contains_key(&object);
        if self.flights.iter().any(|f| f.object == object) || self.osds.iter().any(lacking) {
            return;
        }
        let Some((info, available)) = self.readable(object) else { return };
        let (offset, length) = (self.rng.below(6 * UNIT), 1 + self.rng.below(3 * UNIT));
        let change = match self.rng.below(8) {
            0 => Change::Truncate { size: offset },
            1 => Change::Zero { offset, length },
            2 => Change::Replace { length },
            _ => Change::Write {
                offset,
                length: if self.rng.one_in(2) { 1 + length % 600 } else { length },
            },
        };
        let cached = ShardExtents::new();
        let local = leader(&self.layout, self.acting);
        let sources = Sources { available, local, slow: ShardSet::EMPTY, cached: &cached };
        let plan = WritePlan::new(self.layout, change, info.size, sources).unwrap();
        let new: Vec<u8> = match change {
            Change::Write { length, .. } | Change::Replace { length } => {
                let first = self.rng.below(256);
                (0..length).map(|i| (first + i * 7) as u8).collect()
            }
            _ => Vec::new(),
        };
        let mut content = self.known[object].0.clone();
        match change {
            Change::Write { offset, length } => {
                let end = (offset + length) as usize;
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(&new);
            }
            Change::Zero { offset, length } => {
                let end = content.len().min((offset + length) as usize);
                content[(offset as usize).min(end)..end].fill(0);
            }
            Change::Truncate { size } => content.resize(size as usize, 0),
            Change::Replace { .. } => content = new.clone(),
        }
        let pieces = self.pieces(object, info.size, plan.reads());
        let writes = plan.shard_writes(&mut self.recipes, pieces, &new).unwrap();
        self.count += 1;
        let version = Eversion { epoch: Epoch(self.epoch), version: self.count };
        let named = Named { version, written: plan.written() };
        let mut after =
            Info { version, size: plan.size_after(), of_shards: info.of_shards.clone() };
        named.written.iter().for_each(|s| after.of_shards[usize::from(s)] = version);
        let committed_to = self.committed_to();
        self.entries.push(named);
        let waits_for = named.written.and(self.acting);
        assert_eq!(writes.iter().map(|w| w.shard).collect::<ShardSet>(), waits_for);
        for w in writes {
            self.seen.deltas += u64::from(w.ops.iter().any(|op| matches!(op, ShardOp::Xor { .. })));
            self.queues[usize::from(w.shard)].push_back(Message {
                entry: Entry { named, object, info: after.clone() },
                before: info.of_shards[usize::from(w.shard)],
                ops: w.ops,
                committed_to,
            });
        }
        self.flights.push(Flight { version, object, content, waits_for });
    }

    fn committed_to(&self) -> Eversion {
        let members: Vec<Reached> = self
            .acting
            .iter()
            .map(|shard| Reached { shard, last: self.durable[usize::from(shard)] })
            .collect();
        complete_to(self.base, self.entries.iter().copied(), &members)
    }

    fn deliver(&mut self) {
        let shard = self.rng.below(self.osds.len() as u64) as Shard;
        let Some(message) = self.queues[usize::from(shard)].pop_front() else { return };
        if self.rng.one_in(6) {
            // The connection broke after this was done and before it was known.
            self.queues[usize::from(shard)].push_front(message.clone());
        }
        let (version, object) = (message.entry.named.version, message.entry.object);
        let (bug, trims) = (self.bug, self.rng.one_in(4));
        let again = self.osd(shard).last >= version;
        if again {
            self.seen.duplicates += 1;
        }
        let osd = self.osd(shard);
        if !again || bug == Some(Bug::DeltaTwice) {
            let o = &mut osd.objects[object];
            if bug != Some(Bug::DeltaTwice) {
                assert_eq!(o.version, message.before, "a change of another version");
            }
            if !again {
                osd.undo.push((version, object, o.clone()));
                osd.log.push(message.entry.clone());
            }
            for op in message.ops {
                apply(&mut o.bytes, op);
            }
            o.version = version;
            o.info = message.entry.info;
            osd.last = version;
        }
        let dropped = match bug {
            Some(Bug::EarlyDrop) => version,
            _ => message.committed_to,
        };
        osd.undo.retain(|(v, ..)| *v > dropped);
        if trims {
            osd.log.retain(|e| e.named.version > message.committed_to);
        }
        self.durable[usize::from(shard)] = self.durable[usize::from(shard)].max(version);
        for f in self.flights.iter_mut().filter(|f| f.version == version) {
            f.waits_for.remove(shard);
        }
        let complete = self.committed_to();
        let out_of_order = bug == Some(Bug::AckOutOfOrder);
        let done = |f: &Flight| match out_of_order {
            true => f.waits_for.is_empty(),
            false => f.version <= complete,
        };
        while let Some(i) = self.flights.iter().position(done) {
            let f = self.flights.remove(i);
            assert!(f.waits_for.is_empty(), "complete, and a shard lacks it");
            self.known[f.object] = (f.content, f.version);
            self.seen.acknowledged += 1;
        }
    }

    fn read(&mut self) {
        let object = self.rng.below(OBJECTS as u64) as usize;
        let busy = self.flights.iter().any(|f| f.object == object);
        if busy && self.bug != Some(Bug::MixedRead) {
            return;
        }
        let Some((info, available)) = self.readable(object) else { return };
        let cached = ShardExtents::new();
        let sources = Sources { available, local: None, slow: ShardSet::EMPTY, cached: &cached };
        let Ok(plan) = ReadPlan::new(self.layout, 0, u64::MAX, info.size, sources) else {
            return;
        };
        self.seen.degraded_reads += u64::from(!plan.rebuilds().is_empty());
        let pieces = self.pieces(object, info.size, plan.reads());
        let got = plan.assemble(&mut self.recipes, pieces).unwrap();
        assert!(got == self.known[object].0, "object {object} reads otherwise than it was written");
        assert_eq!(info.version, self.known[object].1, "object {object} has another version");
    }

    fn recover(&mut self) {
        for object in 0..OBJECTS {
            let lacks = |s: &Shard| self.osds[usize::from(*s)].missing.contains_key(&object);
            let Some(shard) = self.acting.iter().find(lacks) else { continue };
            let Some((info, available)) = self.readable(object) else { continue };
            let cached = ShardExtents::new();
            let sources =
                Sources { available, local: None, slow: ShardSet::EMPTY, cached: &cached };
            let size = self.layout.shard_size(shard, info.size);
            let want = ShardSet::one(shard);
            let plan = RebuildPlan::new(self.layout, want, 0..size, info.size, sources);
            let Ok(plan) = plan else { continue };
            let pieces = self.pieces(object, info.size, plan.reads());
            let rebuilt = plan.compute(&mut self.recipes, pieces).unwrap();
            let version = info.of_shards[usize::from(shard)];
            let osd = self.osd(shard);
            for (_, bytes) in rebuilt {
                osd.objects[object] = Object { bytes, version, info: info.clone() };
            }
            osd.missing.remove(&object);
            self.seen.rebuilt += 1;
        }
    }

    /// Some OSDs go, some come: a new interval.
    fn churn(&mut self) {
        for i in 0..self.osds.len() {
            let chance = if self.osds[i].up { 5 } else { 2 };
            if self.rng.one_in(chance) {
                self.osds[i].up = !self.osds[i].up;
            }
        }
        self.peer();
    }

    fn peer(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.epoch += 1;
        self.acting = self.up();
        self.serving = false;
        let survivors = self.acting.and(self.served);
        let enough = match self.bug {
            Some(Bug::HoleIsACopy) => {
                survivors.len() + 1 >= self.layout.k() && leader(&self.layout, survivors).is_some()
            }
            _ => recoverable(&self.layout, survivors),
        };
        let whole = self.bug == Some(Bug::HoleIsACopy) || self.acting.len() >= self.min_size();
        if !enough || !whole {
            self.seen.unserved += 1;
            return;
        }
        // What survivors have together, and up to where each has what names it.
        let mut entries: BTreeMap<Eversion, Named> = BTreeMap::new();
        let mut members = Vec::new();
        for shard in survivors.iter() {
            let osd = &self.osds[usize::from(shard)];
            entries.extend(osd.log.iter().map(|e| (e.named.version, e.named)));
            members.push(Reached { shard, last: osd.last });
        }
        let newest = entries.keys().next_back().copied().unwrap_or(NONE);
        let head = match self.bug {
            Some(Bug::NewestHead) => newest,
            _ => complete_to(NONE, entries.values().copied(), &members),
        };
        for shard in survivors.iter() {
            let osd = &mut self.osds[usize::from(shard)];
            while let Some((version, object, before)) =
                osd.undo.pop_if(|(version, ..)| *version > head)
            {
                // An object that is being rebuilt here is rebuilt as it was before.
                if !osd.missing.contains_key(&object) {
                    osd.objects[object] = before;
                }
                osd.log.retain(|e| e.named.version != version);
                self.seen.rolled_back += 1;
            }
        }
        // Writes under way are kept or gone; which of the two their clients learn from the log.
        for f in std::mem::take(&mut self.flights) {
            if f.version <= head && entries.contains_key(&f.version) {
                self.known[f.object] = (f.content, f.version);
                self.seen.kept += 1;
            }
        }
        // Shards that were away lack what has another version than the infos say.
        let stale = match self.bug {
            Some(Bug::StaleMember) => ShardSet::EMPTY,
            _ => self.acting.without(survivors),
        };
        for object in 0..OBJECTS {
            let infos = survivors.and(self.layout.primary_capable());
            let infos = infos.iter().map(|s| self.osds[usize::from(s)].info(object));
            let info = infos.max_by_key(|i| i.version).expect("one that leads survived");
            for shard in stale.iter() {
                let osd = &mut self.osds[usize::from(shard)];
                let half = osd.missing.contains_key(&object);
                if !half && osd.objects[object].version == info.of_shards[usize::from(shard)] {
                    // Other shards may have been written since.
                    osd.objects[object].info = info.clone();
                } else {
                    osd.missing.insert(object, info.clone());
                }
            }
        }
        for shard in self.acting.iter() {
            let osd = &mut self.osds[usize::from(shard)];
            if stale.contains(shard) {
                osd.log.clear();
            }
            osd.undo.clear();
            osd.last = head.max(if stale.contains(shard) { NONE } else { osd.last.min(head) });
            self.durable[usize::from(shard)] = head;
        }
        (self.base, self.served, self.serving) = (head, self.acting, true);
        self.entries.clear();
        let lost = (0..OBJECTS).find(|o| {
            let Some((info, shards)) = self.readable(*o) else { return false };
            shards.len() >= self.layout.k() && info.version != self.known[*o].1
        });
        assert_eq!(lost, None, "an acknowledged write is lost, or one that was not is there");
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..3 => self.churn(),
            _ if !self.serving => self.churn(),
            3..30 => self.write(),
            30..80 => self.deliver(),
            80..90 => self.recover(),
            _ => self.read(),
        }
    }

    fn calm(&mut self) {
        self.osds.iter_mut().for_each(|o| o.up = true);
        self.peer();
        assert!(self.serving, "all shards are there");
        for _ in 0..self.osds.len() * OBJECTS {
            self.recover();
        }
        for object in 0..OBJECTS {
            let content = &self.known[object].0;
            let size = content.len() as u64;
            let rows = self.layout.shard_size(self.layout.k() as Shard, size) as usize;
            let mut shards = vec![vec![0; rows]; self.layout.k()];
            for (i, b) in content.iter().enumerate() {
                let (shard, at) = self.layout.locate(i as u64);
                shards[usize::from(shard)][at as usize] = *b;
            }
            let mut parity = vec![vec![0; rows]; self.layout.m()];
            self.recipes.code().encode(
                &shards.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
            );
            shards.extend(parity);
            for (s, (osd, expected)) in self.osds.iter().zip(shards).enumerate() {
                assert!(!osd.missing.contains_key(&object), "shard {s} was not rebuilt");
                let mut stored = osd.objects[object].bytes.clone();
                let end = self.layout.shard_size(s as Shard, size) as usize;
                assert!(stored.len() <= end, "shard {s} is too long");
                stored.resize(rows, 0);
                assert!(stored == expected, "shard {s} of {object} is not what the code says");
            }
        }
    }

    fn run(seed: u64, bug: Option<Bug>) -> Seen {
        let mut world = World::new(seed, bug);
        for _ in 0..400 {
            world.step();
        }
        world.calm();
        world.seen
    }
}

fn apply(stored: &mut Vec<u8>, op: ShardOp) {
    let room = |stored: &mut Vec<u8>, offset: u64, n: usize| {
        stored.resize(stored.len().max(offset as usize + n), 0);
        offset as usize..offset as usize + n
    };
    match op {
        ShardOp::Cut { size } => stored.truncate(size as usize),
        ShardOp::Write { offset, bytes } => {
            let at = room(stored, offset, bytes.len());
            stored[at].copy_from_slice(&bytes);
        }
        ShardOp::Zero { offset, length } => {
            let end = stored.len().min((offset + length) as usize);
            stored[(offset as usize).min(end)..end].fill(0);
        }
        ShardOp::Xor { offset, bytes } => {
            let at = room(stored, offset, bytes.len());
            stored[at].iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
        }
    }
}

fn seeds(default: u64) -> u64 {
    std::env::var("SIPHON_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn what_was_acknowledged_is_there_and_shards_are_right() {
    let mut sum = Seen::default();
    for seed in 0..seeds(400) {
        let seen = std::panic::catch_unwind(|| World::run(seed, None))
            .unwrap_or_else(|_| panic!("seed {seed} fails"));
        sum.acknowledged += seen.acknowledged;
        sum.deltas += seen.deltas;
        sum.duplicates += seen.duplicates;
        sum.rolled_back += seen.rolled_back;
        sum.kept += seen.kept;
        sum.rebuilt += seen.rebuilt;
        sum.degraded_reads += seen.degraded_reads;
        sum.unserved += seen.unserved;
    }
    println!("{sum:?}");
    for (what, n) in [
        ("acknowledged", sum.acknowledged),
        ("delta", sum.deltas),
        ("message came again", sum.duplicates),
        ("rolled back", sum.rolled_back),
        ("kept", sum.kept),
        ("rebuilt", sum.rebuilt),
        ("degraded read", sum.degraded_reads),
        ("not served", sum.unserved),
    ] {
        assert!(n > 0, "never reached: {what}");
    }
}

fn is_caught(bug: Bug) {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let caught =
        (0..200).any(|seed| std::panic::catch_unwind(|| World::run(seed, Some(bug))).is_err());
    std::panic::set_hook(quiet);
    assert!(caught, "{bug:?} is not caught in 200 seeds");
}

#[test]
fn bugs_that_are_put_back_are_caught() {
    for bug in [
        Bug::DeltaTwice,
        Bug::NewestHead,
        Bug::HoleIsACopy,
        Bug::MixedRead,
        Bug::EarlyDrop,
        Bug::AckOutOfOrder,
        Bug::StaleMember,
    ] {
        is_caught(bug);
    }
}
