//! What clients saw, and whether one order of all operations explains it.

use std::collections::{BTreeMap, HashSet};

use types::{Epoch, SnapId};

/// What a client did to one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Wrote this value.
    Write(u64),
    /// Deleted the object.
    Delete,
    /// Read: the value, or nothing.
    Read(Option<u64>),
    /// Read the object as it was at a snapshot.
    ReadAt(SnapId, Option<u64>),
    /// An operator gave the newest content up: any other may take its place, or nothing.
    GiveUp,
}

/// One finished operation.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The client.
    pub client: usize,
    /// What.
    pub did: Did,
    /// The map that it knew when it asked: the snapshots in it were taken before. Zero if a replica
    /// may have answered.
    pub epoch: Epoch,
    /// When it was asked for, on the clock of all events.
    pub start: u64,
    /// When the answer came.
    pub end: u64,
}

/// A snapshot of all objects. It is taken of each after the monitors have it, and before anything
/// that a client that knows it has from a primary.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// Its number.
    pub id: SnapId,
    /// The first map that has it.
    pub epoch: Epoch,
    /// When the monitors made it, on the clock of all events.
    pub at: u64,
    /// It was removed.
    pub removed: bool,
}

/// Finished operations by object.
#[derive(Debug, Default)]
pub struct History {
    /// By object name.
    pub objects: BTreeMap<u64, Vec<Done>>,
    /// Snapshots, oldest first.
    pub snaps: Vec<Snapshot>,
}

impl History {
    /// Whether for each object there is an order of its operations that respects real time and in
    /// which every read gives the newest write before it, or before the snapshot that it asks for
    /// was taken.
    pub fn check(&self) -> Result<(), String> {
        for (object, ops) in &self.objects {
            if !linearizable(ops, &self.snaps) {
                let mut text = format!("object {object}: no order explains\n");
                for Snapshot { id, epoch, at, removed } in &self.snaps {
                    text += &format!(
                        "  snapshot {id} epoch {epoch} at {at}{}\n",
                        if *removed { ", removed" } else { "" }
                    );
                }
                let mut ops = ops.clone();
                ops.sort_by_key(|o| o.start);
                for o in ops {
                    text += &format!(
                        "  {:>8} .. {:<8} client {} {:?}, epoch {}\n",
                        o.start, o.end, o.client, o.did, o.epoch
                    );
                }
                return Err(text);
            }
        }
        Ok(())
    }
}

/// Wing and Gong's search with memory of the places it was in.
fn linearizable(ops: &[Done], snaps: &[Snapshot]) -> bool {
    assert!(ops.len() <= 128, "histories are kept short enough to search");
    let mut sorted: Vec<Done> = ops.to_vec();
    sorted.sort_by_key(|o| o.start);
    let all = if sorted.len() == 128 { u128::MAX } else { (1u128 << sorted.len()) - 1 };
    // Those that were never read do not matter.
    let read =
        |s: &Snapshot| ops.iter().any(|o| matches!(o.did, Did::ReadAt(snap, _) if snap == s.id));
    let snaps: Vec<Snapshot> = snaps.iter().copied().filter(read).collect();
    let mut seen = HashSet::new();
    // What was done, the value, and the values at the snapshots that were taken.
    let mut stack = vec![(0u128, None::<u64>, Vec::new())];
    while let Some((done, value, kept)) = stack.pop() {
        if done == all {
            return true;
        }
        if !seen.insert((done, value, kept.clone())) {
            continue;
        }
        // No operation may be overtaken by one that began after it ended.
        let mut first_end = u64::MAX;
        for (i, op) in sorted.iter().enumerate() {
            if done & 1 << i != 0 {
                continue;
            }
            if op.start > first_end {
                break;
            }
            first_end = first_end.min(op.end);
        }
        if snaps.get(kept.len()).is_some_and(|s| s.at <= first_end) {
            stack.push((done, value, [&kept[..], &[value]].concat()));
        }
        for (i, op) in sorted.iter().enumerate() {
            if done & 1 << i != 0 {
                continue;
            }
            if op.start > first_end {
                break;
            }
            if snaps.get(kept.len()).is_some_and(|s| s.epoch <= op.epoch) {
                continue;
            }
            let next = done | 1 << i;
            match op.did {
                Did::Write(v) => stack.push((next, Some(v), kept.clone())),
                Did::Delete => stack.push((next, None, kept.clone())),
                Did::GiveUp => {
                    let written = sorted.iter().filter_map(|o| {
                        if let Did::Write(v) = o.did { Some(Some(v)) } else { None }
                    });
                    stack.extend(written.chain([None, value]).map(|v| (next, v, kept.clone())));
                }
                Did::Read(v) if v == value => stack.push((next, value, kept.clone())),
                Did::ReadAt(snap, v)
                    if snaps.iter().zip(&kept).any(|(s, at)| s.id == snap && *at == v) =>
                {
                    stack.push((next, value, kept.clone()))
                }
                Did::Read(_) | Did::ReadAt(..) => {}
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(did: Did, start: u64, end: u64) -> Done {
        Done { client: 0, did, epoch: Epoch(0), start, end }
    }

    fn linearizable(ops: &[Done]) -> bool {
        super::linearizable(ops, &[])
    }

    #[test]
    fn a_snapshot_keeps_what_was_there() {
        let snap = |at, epoch| Snapshot { id: SnapId(1), epoch: Epoch(epoch), at, removed: false };
        let knows = |op| Done { epoch: Epoch(7), ..op };
        let ops = |old, read| {
            [
                op(Did::Write(1), 0, 1),
                Done { epoch: Epoch(old), ..op(Did::Write(2), 4, 5) },
                knows(op(Did::ReadAt(SnapId(1), read), 6, 9)),
            ]
        };
        let check = |old, at, read| super::linearizable(&ops(old, read), &[snap(at, 7)]);
        // The second writer knows the snapshot: it has the first value.
        assert!(check(7, 3, Some(1)) && !check(7, 3, Some(2)) && !check(7, 3, None));
        // He does not, but the snapshot came before he asked, or while he did: either value.
        assert!(check(6, 3, Some(1)) && check(6, 3, Some(2)) && !check(6, 3, None));
        // The snapshot came later.
        assert!(!check(6, 6, Some(1)) && check(6, 6, Some(2)));
        // It does not change.
        let twice =
            [ops(6, Some(1)).to_vec(), vec![knows(op(Did::ReadAt(SnapId(1), Some(2)), 10, 11))]]
                .concat();
        assert!(!super::linearizable(&twice, &[snap(3, 7)]));
    }

    #[test]
    fn a_lost_write_is_found() {
        assert!(linearizable(&[op(Did::Write(1), 0, 1), op(Did::Read(Some(1)), 2, 3)]));
        assert!(!linearizable(&[op(Did::Write(1), 0, 1), op(Did::Read(None), 2, 3)]));
    }

    #[test]
    fn concurrent_operations_may_take_either_order() {
        let w = [op(Did::Write(1), 0, 9), op(Did::Write(2), 1, 8)];
        for last in [1, 2] {
            assert!(linearizable(&[w[0], w[1], op(Did::Read(Some(last)), 10, 11)]));
        }
        assert!(!linearizable(&[
            w[0],
            w[1],
            op(Did::Read(Some(1)), 10, 11),
            op(Did::Read(Some(2)), 12, 13)
        ]));
    }

    #[test]
    fn what_was_given_up_is_what_it_was_before() {
        let ops = |read| {
            [
                op(Did::Write(1), 0, 1),
                op(Did::Write(2), 2, 3),
                op(Did::GiveUp, 4, 5),
                op(Did::Read(read), 6, 7),
            ]
        };
        assert!(
            linearizable(&ops(Some(1))) && linearizable(&ops(None)) && !linearizable(&ops(Some(3)))
        );
        let before = [
            op(Did::Write(1), 0, 1),
            op(Did::Write(2), 2, 3),
            op(Did::Read(Some(1)), 4, 5),
            op(Did::GiveUp, 6, 7),
        ];
        assert!(!linearizable(&before));
    }

    #[test]
    fn a_write_taken_back_is_found() {
        // A read saw the write before it was acknowledged; a later one must not miss it.
        let ops =
            [op(Did::Write(1), 0, 20), op(Did::Read(Some(1)), 1, 2), op(Did::Read(None), 3, 4)];
        assert!(!linearizable(&ops));
        assert!(!linearizable(&[
            op(Did::Write(1), 0, 1),
            op(Did::Delete, 2, 3),
            op(Did::Read(Some(1)), 4, 5)
        ]));
    }
}
