//! What clients saw, and whether one order of all operations explains it.

use std::collections::{BTreeMap, HashSet};

/// What a client did to one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Wrote this value.
    Write(u64),
    /// Deleted the object.
    Delete,
    /// Read: the value, or nothing.
    Read(Option<u64>),
    /// An operator gave the newest content up: any other may take its place, or nothing.
    GiveUp,
}

/// One finished operation.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Who.
    pub client: usize,
    /// What.
    pub did: Did,
    /// When it was asked for, on the clock of all events.
    pub start: u64,
    /// When the answer came.
    pub end: u64,
}

/// Finished operations by object.
#[derive(Debug, Default)]
pub struct History {
    /// By object name.
    pub objects: BTreeMap<u64, Vec<Done>>,
}

impl History {
    /// Whether for each object there is an order of its operations that respects real time and in which every
    /// read gives the newest write before it.
    pub fn check(&self) -> Result<(), String> {
        for (object, ops) in &self.objects {
            if !linearizable(ops) {
                let mut text = format!("object {object}: no order explains\n");
                let mut ops = ops.clone();
                ops.sort_by_key(|o| o.start);
                for o in ops {
                    text += &format!("  {:>8} .. {:<8} client {} {:?}\n", o.start, o.end, o.client, o.did);
                }
                return Err(text);
            }
        }
        Ok(())
    }
}

/// Wing and Gong's search with memory of the places it was in.
fn linearizable(ops: &[Done]) -> bool {
    assert!(ops.len() <= 128, "histories are kept short enough to search");
    let mut sorted: Vec<Done> = ops.to_vec();
    sorted.sort_by_key(|o| o.start);
    let all = if sorted.len() == 128 { u128::MAX } else { (1u128 << sorted.len()) - 1 };
    let mut seen = HashSet::new();
    let mut stack = vec![(0u128, None::<u64>)];
    while let Some((done, value)) = stack.pop() {
        if done == all {
            return true;
        }
        if !seen.insert((done, value)) {
            continue;
        }
        // Nobody may be overtaken by an operation that began after it ended.
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
        for (i, op) in sorted.iter().enumerate() {
            if done & 1 << i != 0 {
                continue;
            }
            if op.start > first_end {
                break;
            }
            let next = done | 1 << i;
            match op.did {
                Did::Write(v) => stack.push((next, Some(v))),
                Did::Delete => stack.push((next, None)),
                Did::GiveUp => {
                    let written = sorted.iter().filter_map(|o| if let Did::Write(v) = o.did { Some(Some(v)) } else { None });
                    stack.extend(written.chain([None, value]).map(|v| (next, v)));
                }
                Did::Read(v) if v == value => stack.push((next, value)),
                Did::Read(_) => {}
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(did: Did, start: u64, end: u64) -> Done {
        Done { client: 0, did, start, end }
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
        assert!(!linearizable(&[w[0], w[1], op(Did::Read(Some(1)), 10, 11), op(Did::Read(Some(2)), 12, 13)]));
    }

    #[test]
    fn what_was_given_up_is_what_it_was_before() {
        let ops = |read| [op(Did::Write(1), 0, 1), op(Did::Write(2), 2, 3), op(Did::GiveUp, 4, 5), op(Did::Read(read), 6, 7)];
        assert!(linearizable(&ops(Some(1))) && linearizable(&ops(None)) && !linearizable(&ops(Some(3))));
        let before = [op(Did::Write(1), 0, 1), op(Did::Write(2), 2, 3), op(Did::Read(Some(1)), 4, 5), op(Did::GiveUp, 6, 7)];
        assert!(!linearizable(&before));
    }

    #[test]
    fn a_write_taken_back_is_found() {
        // A read saw the write before it was acknowledged; a later one must not miss it.
        let ops = [op(Did::Write(1), 0, 20), op(Did::Read(Some(1)), 1, 2), op(Did::Read(None), 3, 4)];
        assert!(!linearizable(&ops));
        assert!(!linearizable(&[op(Did::Write(1), 0, 1), op(Did::Delete, 2, 3), op(Did::Read(Some(1)), 4, 5)]));
    }
}
