//! Hundreds of snapshots of one object against a plain model: what each snapshot reads, which
//! clones there are, and which bytes each of them shares with the next.

use super::*;
use std::collections::BTreeMap;

/// Small enough that pieces often meet.
const SIZE: u64 = 2 << 10;

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

struct Clone {
    id: u64,
    /// Newest first.
    snaps: Vec<u64>,
    /// For each byte, whether the next clone, or the head, has the same.
    shared: Vec<bool>,
}

#[derive(Default)]
struct Model {
    head: Option<Vec<u8>>,
    /// What the object was at each snapshot that is left.
    at: BTreeMap<u64, Option<Vec<u8>>>,
    clones: Vec<Clone>,
    /// The newest snapshot that a change has seen.
    seq: u64,
    /// The newest snapshot that was ever taken.
    last: u64,
}

impl Model {
    fn snapshot(&mut self) {
        self.last += 1;
        self.at.insert(self.last, self.head.clone());
    }

    fn context(&self) -> SnapContext {
        context(self.last, &self.at.keys().rev().copied().collect::<Vec<_>>())
    }

    /// Before a change of the bytes `from..to`.
    fn changes(&mut self, from: usize, to: usize) {
        let newer: Vec<u64> = self.at.keys().rev().copied().take_while(|s| *s > self.seq).collect();
        if let (Some(head), false) = (&self.head, newer.is_empty()) {
            self.clones.push(Clone { id: self.last, snaps: newer, shared: vec![true; head.len()] });
        }
        self.seq = self.last;
        if let Some(newest) = self.clones.last_mut() {
            let size = newest.shared.len();
            newest.shared[from.min(size)..to.min(size)].fill(false);
        }
    }

    fn write(&mut self, from: usize, data: &[u8]) {
        self.changes(from, from + data.len());
        let head = self.head.get_or_insert_default();
        head.resize(head.len().max(from + data.len()), 0);
        head[from..from + data.len()].copy_from_slice(data);
    }

    fn trim(&mut self, snap: u64) {
        self.at.remove(&snap);
        for c in &mut self.clones {
            c.snaps.retain(|s| *s != snap);
        }
        while let Some(i) = self.clones.iter().position(|c| c.snaps.is_empty()) {
            let gone = self.clones.remove(i);
            if let Some(older) = i.checked_sub(1).map(|i| &mut self.clones[i]) {
                for (at, shared) in older.shared.iter_mut().enumerate() {
                    *shared &= gone.shared.get(at) == Some(&true);
                }
            }
        }
        if self.clones.is_empty() && self.head.is_none() {
            self.seq = 0;
        }
    }

    fn bytes(&self) -> i64 {
        let alone = |c: &Clone| c.shared.iter().filter(|s| !**s).count();
        (self.head.as_ref().map_or(0, Vec::len) + self.clones.iter().map(alone).sum::<usize>())
            as i64
    }

    /// All clones, or the newest few.
    fn check_set(&self, set: &SnapSet, newest: usize) {
        assert_eq!(set.clones, self.clones.iter().map(|c| SnapId(c.id)).collect::<Vec<_>>());
        for c in self.clones.iter().rev().take(newest) {
            let id = SnapId(c.id);
            assert_eq!(
                set.clone_snaps[&id],
                c.snaps.iter().map(|s| SnapId(*s)).collect::<Vec<_>>(),
                "clone {id}"
            );
            assert_eq!(set.clone_size[&id], c.shared.len() as u64, "clone {id}");
            let mut shared = types::IntervalSet::new();
            for run in c.shared.iter().enumerate().collect::<Vec<_>>().chunk_by(|a, b| a.1 == b.1) {
                if *run[0].1 {
                    shared.insert(run[0].0 as u64, run.len() as u64);
                }
            }
            assert_eq!(set.clone_overlap[&id], shared, "clone {id}");
        }
    }

    fn check_content(&self, t: &mut Bench) {
        for (snap, content) in &self.at {
            assert_eq!(t.at_snap(*snap).as_deref(), content.as_deref(), "snapshot {snap}");
        }
    }
}

#[test]
fn hundreds_of_snapshots_follow_a_model() {
    let mut r = Draw(0x5eed_0001);
    let mut t = Bench::new();
    let mut m = Model::default();
    for step in 0..360u64 {
        // Mostly more snapshots, up to several hundred at a time; some come together, some go in
        // between.
        for _ in 0..[1, 1, 1, 0, 2][r.below(5) as usize] {
            m.snapshot();
        }
        t.snapc = m.context();
        let size = m.head.as_ref().map_or(0, Vec::len) as u64;
        let (from, length) = (r.below(SIZE), r.below(300) + 1);
        let length = length.min(SIZE - from);
        let (a, z) = (from as usize, (from + length) as usize);
        match r.below(40) {
            0 if m.head.is_some() => {
                t.ok(plain(OpCode::DELETE));
                m.changes(0, size as usize);
                m.head = None;
            }
            1 => {
                let data = vec![step as u8; length as usize];
                t.ok(Op { indata: data.clone().into(), ..on_extent(OpCode::WRITEFULL, 0, length) });
                m.changes(0, usize::MAX);
                m.head = Some(data);
            }
            2..5 if m.head.is_some() => {
                t.ok(on_extent(OpCode::TRUNCATE, from, 0));
                m.changes(a.min(size as usize), a.max(size as usize));
                m.head.as_mut().unwrap().resize(a, 0);
            }
            5..10 if m.head.is_some() && z < size as usize => {
                t.ok(on_extent(OpCode::ZERO, from, length));
                m.changes(a, z);
                m.head.as_mut().unwrap()[a..z].fill(0);
            }
            _ => {
                let data: Vec<u8> = (0..length).map(|i| (step + i) as u8).collect();
                t.ok(write_op(from, data.clone()));
                m.write(a, &data);
            }
        }
        if r.below(8) == 0
            && let Some(snap) = m.at.keys().nth(r.below(m.at.len() as u64) as usize).copied()
        {
            t.trim(snap);
            m.trim(snap);
        }
        m.check_set(&t.snapset(), 3);
        if step % 100 == 99 {
            m.check_set(&t.snapset(), usize::MAX);
            assert_eq!(t.totals.num_bytes, m.bytes(), "step {step}");
            m.check_content(&mut t);
        }
    }
    assert!(
        m.at.len() > 200 && m.clones.len() > 150,
        "{} snapshots, {} clones",
        m.at.len(),
        m.clones.len()
    );
    assert_eq!(t.totals.num_object_clones, m.clones.len() as i64);
    // All of them go again, in any order.
    while let Some(snap) = m.at.keys().nth(r.below(m.at.len() as u64) as usize).copied() {
        t.trim(snap);
        m.trim(snap);
        if m.at.len().is_multiple_of(50) {
            m.check_set(&t.snapset(), usize::MAX);
            assert_eq!(t.totals.num_bytes, m.bytes());
            m.check_content(&mut t);
        }
    }
    assert_eq!(t.totals.num_object_clones, 0);
    if let Some(head) = &m.head {
        assert_eq!(t.content(), &head[..]);
    }
}
