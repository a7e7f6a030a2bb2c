use denc_derive::Denc;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{Epoch, Utime};

/// How many requests of one client are remembered.
const PER_CLIENT: usize = 64;
/// How many are remembered of all clients together.
const MAX: usize = 4096;
/// How many bytes all of them may have.
const MAX_BYTES: usize = 8 << 20;
/// For how long they are remembered. No connection holds a message back for as long.
const KEEP: Duration = Duration::from_secs(3600);

/// The kinds of requests that change something. Clients number each kind for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Denc)]
#[denc(repr = "u8")]
#[repr(u8)]
pub enum RequestKind {
    /// `MMonCommand`, by `MonClient`'s numbers.
    Command = 1,
    /// `MPoolOp`, by `Objecter`'s numbers.
    PoolOp = 2,
}

/// Which request of which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Denc)]
pub struct RequestId {
    /// The client's global id, which it keeps when it goes to another monitor.
    pub global_id: u64,
    /// The kind.
    pub kind: RequestKind,
    /// The client's number, which it keeps when it asks again. A later request has a larger one.
    pub tid: u64,
}

/// A request that was executed, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Execution {
    /// Which one.
    pub id: RequestId,
    /// When, by the leader's clock.
    pub stamp: Utime,
    /// Zero, or a negative error number.
    pub result: i32,
    /// The answer's text.
    pub text: String,
    /// Its data.
    pub data: Option<bytes::Bytes>,
    /// Its epoch, for a pool operation.
    pub epoch: Epoch,
}

impl Execution {
    fn size(&self) -> usize {
        self.text.len() + self.data.as_ref().map_or(0, |d| d.len())
    }
}

/// Whether a request that arrives was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: it is to be executed.
    New,
    /// It was executed, and this is its answer.
    Executed(Arc<Execution>),
    /// A later one of its client was executed, and what became of this one is not remembered. It
    /// was overtaken or given up long ago.
    Late,
}

/// The newest requests that changed something, with their answers.
///
/// A client that loses its monitor asks the next one again. The first one may have passed the
/// request on, and the network may hold that copy back until the client has gone on to something
/// else; it must not be executed then. Clients send requests in the order of their numbers, and
/// send them again in that order, so that one with a smaller number than one that was executed is
/// never waited for, unless it was executed as well.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    /// In the order of execution, with the numbers of their rows.
    rows: BTreeMap<u64, Arc<Execution>>,
    /// The rows by request.
    ids: BTreeMap<RequestId, u64>,
    bytes: usize,
}

impl Executed {
    /// Whether a request was executed, and its answer.
    pub fn known(&self, id: RequestId) -> Known {
        match self.ids.range(id..=RequestId { tid: u64::MAX, ..id }).next() {
            Some((found, at)) if *found == id => {
                self.rows.get(at).map_or(Known::New, |e| Known::Executed(e.clone()))
            }
            Some(_) => Known::Late,
            None => Known::New,
        }
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// In the order of execution, with their rows' numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Execution)> {
        self.rows.iter().map(|(at, e)| (*at, &**e))
    }

    /// Remembers one; returns the number of its row, and those of the rows that go. `None` if it is
    /// there already.
    pub(super) fn push(&mut self, now: Utime, e: Execution) -> Option<(u64, Vec<u64>)> {
        let id = e.id;
        if self.ids.contains_key(&id) {
            return None;
        }
        let at = self.rows.last_key_value().map_or(0, |(last, _)| last + 1);
        self.restore(at, e);
        let mut gone = Vec::new();
        // That the oldest of a client with many were executed follows from the newer ones; only
        // their answers go.
        let of_client = RequestId { tid: 0, ..id }..=RequestId { tid: u64::MAX, ..id };
        let many = self.ids.range(of_client.clone()).count().saturating_sub(PER_CLIENT);
        let oldest: Vec<u64> = self.ids.range(of_client).map(|(_, at)| *at).take(many).collect();
        gone.extend(oldest.into_iter().filter(|n| self.forget(*n)));
        // The newest of all stays in any case: the rows' numbers go on from it.
        while let Some((first, oldest)) =
            self.rows.first_key_value().map(|(n, e)| (*n, e.clone())).filter(|(n, _)| *n != at)
            && (now.since(oldest.stamp) > KEEP || self.rows.len() > MAX || self.bytes > MAX_BYTES)
        {
            if self.forget(first) {
                gone.push(first);
            }
        }
        Some((at, gone))
    }

    fn forget(&mut self, at: u64) -> bool {
        let Some(e) = self.rows.remove(&at) else { return false };
        self.bytes -= e.size();
        self.ids.remove(&e.id);
        true
    }

    /// Puts one back as its row has it.
    pub(super) fn restore(&mut self, at: u64, e: Execution) {
        self.bytes += e.size();
        self.ids.insert(e.id, at);
        self.rows.insert(at, Arc::new(e));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(global_id: u64, tid: u64) -> RequestId {
        RequestId { global_id, kind: RequestKind::Command, tid }
    }

    fn execution(global_id: u64, tid: u64) -> Execution {
        Execution {
            id: id(global_id, tid),
            stamp: Utime::new(100, 0),
            result: 0,
            text: tid.to_string(),
            data: None,
            epoch: Epoch(0),
        }
    }

    fn push(e: &mut Executed, now: u32, what: Execution) -> Vec<u64> {
        let stamp = Utime::new(now, 0);
        e.push(stamp, Execution { stamp, ..what }).unwrap().1
    }

    #[test]
    fn a_client_is_answered_again_and_what_it_overtook_is_late() {
        let mut e = Executed::default();
        for tid in [2, 4, 5] {
            push(&mut e, 100, execution(1, tid));
        }
        assert!(matches!(e.known(id(1, 4)), Known::Executed(x) if x.text == "4"));
        assert_eq!([e.known(id(1, 1)), e.known(id(1, 3))], [Known::Late, Known::Late]);
        assert_eq!(e.known(id(1, 6)), Known::New);
        // Neither another client, nor the same one's requests of another kind.
        assert_eq!(e.known(id(2, 1)), Known::New);
        assert_eq!(e.known(id(0, 1)), Known::New);
        assert_eq!(e.known(RequestId { kind: RequestKind::PoolOp, ..id(1, 4) }), Known::New);
        assert_eq!(e.push(Utime::new(101, 0), execution(1, 4)), None, "once is enough");
    }

    #[test]
    fn there_are_limits_for_a_client_for_all_and_in_time() {
        let mut e = Executed::default();
        for tid in 1..=PER_CLIENT as u64 {
            assert!(push(&mut e, 100, execution(1, tid)).is_empty());
        }
        assert_eq!(push(&mut e, 100, execution(1, 1000)), [0]);
        assert_eq!(
            e.known(id(1, 1)),
            Known::Late,
            "the answer is forgotten, that it was executed is not"
        );
        for client in 2..(MAX - PER_CLIENT + 2) as u64 {
            assert!(push(&mut e, 200, execution(client, 1)).is_empty(), "{client}");
        }
        assert_eq!((e.len(), push(&mut e, 200, execution(9999, 1))), (MAX, vec![1]));
        assert_eq!((e.len(), e.bytes), (MAX, e.iter().map(|(_, x)| x.size()).sum()));
        // All but the newest are too old some day.
        let gone = push(&mut e, 201 + KEEP.as_secs() as u32, execution(10_000, 1));
        assert_eq!((gone.len(), e.len(), e.bytes), (MAX, 1, 1));
        assert_eq!(e.known(id(1, 1)), Known::New);
        // Answers have a size.
        let big = Execution { data: Some(vec![0; MAX_BYTES].into()), ..execution(10_001, 1) };
        assert_eq!(push(&mut e, 202 + KEEP.as_secs() as u32, big).len(), 1);
        assert_eq!(push(&mut e, 203 + KEEP.as_secs() as u32, execution(10_002, 1)).len(), 1);
        assert_eq!((e.len(), e.bytes), (1, 1));
    }
}
