//! Requests for one object that go on together: each finds the object as those ahead left it.
//!
//! They wait behind a read that its client ordered, or for their PG, and the event that lets one
//! go on lets all go on.

use crate::core_test::{Cluster, run};
use bytes::Bytes;
use denc::{Encode, Features};
use messages::{Op, OpArgs, OsdOpReply};
use objops::code::{on_extent, write_op};
use objops::{OpCode, OsdFlags};
use std::collections::BTreeMap;
use types::{SnapContext, SnapId};

/// What lets the requests of a batch go on.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// A write ahead of them becomes durable.
    Durable,
    /// Their PG becomes active.
    Active,
}

/// A request of a batch: the snapshot that was taken last before it, and its operations.
type Step = (u64, Vec<Op>);

const OBJECT: &str = "a";

fn encoded(v: impl Encode) -> Bytes {
    v.to_bytes(Features::ALL)
}

fn with_input(code: OpCode, input: Bytes) -> Op {
    Op { indata: input, ..on_extent(code, 0, 0) }
}

fn full(data: &'static str) -> Op {
    Op { indata: data.into(), ..on_extent(OpCode::WRITEFULL, 0, data.len() as u64) }
}

fn append(data: &'static str) -> Op {
    Op { indata: data.into(), ..on_extent(OpCode::APPEND, 0, data.len() as u64) }
}

fn call(class: &str, method: &str, input: &[u8]) -> Op {
    Op::call(class, method, input).expect("short names")
}

fn rollback(snap: u64) -> Op {
    Op::new(OpCode::ROLLBACK, OpArgs::Snap { snapid: SnapId(snap) })
}

fn is_equal(data: &'static str) -> Op {
    Op { indata: data.into(), ..on_extent(OpCode::CMPEXT, 0, data.len() as u64) }
}

fn row(value: &str) -> Op {
    let rows = BTreeMap::from([(Bytes::from("k"), Bytes::from(value.to_owned()))]);
    with_input(OpCode::OMAPSETVALS, encoded(rows))
}

fn has_row(value: &str) -> Op {
    const EQUAL: i32 = 1;
    let wanted = BTreeMap::from([(Bytes::from("k"), (Bytes::from(value.to_owned()), EQUAL))]);
    with_input(OpCode::OMAP_CMP, encoded(wanted))
}

fn add(number: &str) -> Op {
    let input = encoded((Bytes::from("sum"), Bytes::from(number.to_owned())));
    call("numops", "add", &input)
}

fn sum() -> Op {
    with_input(OpCode::OMAPGETVALSBYKEYS, encoded(vec![Bytes::from("sum")]))
}

impl Cluster {
    fn since(&mut self, snap: u64) {
        let snaps = (1..=snap).rev().map(SnapId).collect();
        self.snapc = SnapContext { seq: SnapId(snap), snaps };
    }

    /// Sends all requests at once, so that they wait and go on together; their answers.
    async fn together(&mut self, steps: Vec<Step>, until: Until) -> Vec<OsdOpReply> {
        let mut answers = Vec::new();
        match until {
            Until::Durable => {
                let read = vec![on_extent(OpCode::READ, 0, 0)];
                let ahead = [vec![Op::xattr(OpCode::SETXATTR, b"x", b"y")], read];
                for ops in ahead {
                    let (mut request, to) = self.message(OBJECT, SnapId::NOSNAP, ops);
                    request.m.flags |= OsdFlags::RWORDERED;
                    drop(self.send(request, to));
                }
            }
            // The next map begins an interval: all PGs lose a copy.
            Until::Active => {
                let down = self.up_last();
                self.next_map(|m| {
                    m.up.remove(&down);
                });
            }
        }
        for (snap, ops) in steps {
            self.since(snap);
            let (mut request, to) = self.message(OBJECT, SnapId::NOSNAP, ops);
            request.m.flags |= OsdFlags::RETURNVEC;
            let answer = self.send(request, to);
            answers.push(answer);
        }
        for answer in &mut answers {
            assert!(answer.try_recv().is_err(), "{until:?}: it does not wait");
        }
        self.settle().await;
        let mut all = Vec::new();
        for answer in answers {
            all.push(answer.await.expect("an answer"));
        }
        all
    }

    /// An OSD that does not lead the object's PG.
    fn up_last(&mut self) -> i32 {
        let (_, leader) = self.message(OBJECT, SnapId::NOSNAP, vec![]);
        *self.map.up.keys().rfind(|osd| **osd != leader.0).expect("three are up")
    }

    async fn at(&mut self, snap: SnapId) -> Bytes {
        let reply = self.op_at(OBJECT, snap, vec![on_extent(OpCode::READ, 0, 0)]).await;
        assert_eq!(reply.result, 0, "{snap:?}");
        reply.ops[0].outdata.clone()
    }
}

/// Runs a batch in each way; all of it succeeds. Then the head and each snapshot are as given.
fn check(steps: impl Fn() -> Vec<Step>, head: &'static str, snaps: &[(u64, &'static str)]) {
    for until in [Until::Durable, Until::Active] {
        run(async || {
            let mut c = Cluster::new();
            c.publish();
            c.settle().await;
            c.put(OBJECT, "first").await;
            for (n, reply) in c.together(steps(), until).await.iter().enumerate() {
                assert_eq!(reply.result, 0, "{until:?}: request {n}");
            }
            assert_eq!(c.at(SnapId::NOSNAP).await, head, "{until:?}");
            for (snap, content) in snaps {
                assert_eq!(c.at(SnapId(*snap)).await, content, "{until:?}: snapshot {snap}");
            }
        });
    }
}

#[test]
fn what_goes_on_together_sees_what_was_written_before_it() {
    let steps = || {
        vec![
            (0, vec![full("second")]),
            (0, vec![append(" and third")]),
            (0, vec![call("hello", "turn_it_to_11", b"")]),
        ]
    };
    check(steps, "SECOND AND THIRD", &[]);
}

#[test]
fn a_class_call_sees_the_rows_of_the_one_before_it() {
    let steps = || vec![(0, vec![add("2")]), (0, vec![add("3")]), (0, vec![add("4")])];
    for until in [Until::Durable, Until::Active] {
        run(async || {
            let mut c = Cluster::new();
            c.publish();
            c.settle().await;
            c.put(OBJECT, "first").await;
            let answers = c.together(steps(), until).await;
            assert!(answers.iter().all(|a| a.result == 0), "{until:?}: {answers:?}");
            let rows = c.op(OBJECT, vec![sum()]).await.ops[0].outdata.clone();
            let wanted = BTreeMap::from([(Bytes::from("sum"), Bytes::from("9"))]);
            assert_eq!(rows, encoded(wanted), "{until:?}");
        });
    }
}

#[test]
fn a_rollback_finds_the_clone_of_the_write_before_it() {
    let steps = || {
        vec![
            (0, vec![append(" second")]),
            (1, vec![full("third")]),
            (1, vec![rollback(1)]),
            (1, vec![append(" fourth")]),
        ]
    };
    check(steps, "first second fourth", &[(1, "first second")]);
}

#[test]
fn a_clone_has_what_was_written_before_the_snapshot() {
    let steps = || {
        vec![
            (0, vec![write_op(3, "many bytes")]),
            (1, vec![write_op(0, "FIR")]),
            (2, vec![on_extent(OpCode::TRUNCATE, 3, 0)]),
            (3, vec![on_extent(OpCode::DELETE, 0, 0)]),
            (3, vec![append("new")]),
            (3, vec![rollback(2)]),
        ]
    };
    let snaps = [(1, "firmany bytes"), (2, "FIRmany bytes"), (3, "FIR")];
    check(steps, "FIRmany bytes", &snaps);
}

#[test]
fn comparisons_see_what_was_written_before_them() {
    let attr_is = |value: &'static [u8]| {
        const EQUAL: u8 = 1;
        let mut op = Op::xattr(OpCode::CMPXATTR, b"n", value);
        if let OpArgs::Xattr { cmp_op, cmp_mode, .. } = &mut op.args {
            (*cmp_op, *cmp_mode) = (EQUAL, 1);
        }
        op
    };
    let steps = || {
        vec![
            (0, vec![full("second"), row("1"), Op::xattr(OpCode::SETXATTR, b"n", b"1")]),
            (0, vec![is_equal("second"), full("third")]),
            (0, vec![is_equal("third"), append(" fourth")]),
            (0, vec![has_row("1"), row("2")]),
            (0, vec![has_row("2"), row("3"), append(".")]),
            (0, vec![attr_is(b"1"), Op::xattr(OpCode::SETXATTR, b"n", b"2")]),
            (0, vec![attr_is(b"2"), append(".")]),
        ]
    };
    // A comparison of attributes that holds gives 1.
    for until in [Until::Durable, Until::Active] {
        run(async || {
            let mut c = Cluster::new();
            c.publish();
            c.settle().await;
            c.put(OBJECT, "first").await;
            let answers = c.together(steps(), until).await;
            let failed: Vec<usize> =
                (0..answers.len()).filter(|n| answers[*n].result < 0).collect();
            assert!(failed.is_empty(), "{until:?}: requests {failed:?} failed: {answers:?}");
            assert_eq!(c.at(SnapId::NOSNAP).await, "third fourth..", "{until:?}");
        });
    }
}
