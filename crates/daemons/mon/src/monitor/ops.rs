//! Requests that this monitor has not answered, and those that it answered lately (Ceph:
//! `MonOpRequest`, `common/TrackedOp.*`): `ceph tell mon.ID ops|dump_historic_ops`.

use super::clock::now;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use types::Utime;

struct Record {
    what: String,
    source: String,
    began: Utime,
    events: Vec<(Utime, &'static str)>,
    passed_on: bool,
}

impl Record {
    fn dump(&self, number: u64, at: Utime, duration: f64) -> Value {
        let events = self
            .events
            .iter()
            .map(|(time, event)| json!({"time": time.to_string(), "event": event}));
        json!({
            "description": self.what,
            "initiated_at": self.began.to_string(),
            "age": at.since(self.began).as_secs_f64(),
            "duration": duration,
            "type_data": {
                "events": events.collect::<Vec<_>>(),
                "info": {
                    "seq": number,
                    "src_is_mon": false,
                    "source": self.source,
                    "forwarded_to_leader": self.passed_on,
                },
            },
        })
    }
}

/// How much of what is over is kept: `mon_op_history_size`, and seconds, `mon_op_history_duration`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub size: usize,
    pub duration: u64,
}

/// The messages that this monitor works on, and the slowest of the past.
#[derive(Default)]
pub(crate) struct Ops {
    open: RefCell<BTreeMap<u64, Record>>,
    /// With the moment at which it was over.
    past: RefCell<VecDeque<(u64, Record, Utime)>>,
    last: Cell<u64>,
}

/// More than anybody may ask to keep.
pub(crate) const KEPT_MAX: usize = 10_000;

impl Ops {
    /// A request came.
    pub fn begin(self: &Rc<Self>, what: String, source: String) -> Op {
        self.begin_at(what, source, now())
    }

    fn begin_at(self: &Rc<Self>, what: String, source: String, at: Utime) -> Op {
        self.last.set(self.last.get() + 1);
        let events = vec![(at, "initiated")];
        self.open
            .borrow_mut()
            .insert(self.last.get(), Record { what, source, began: at, events, passed_on: false });
        Op { ops: self.clone(), number: self.last.get() }
    }

    fn end(&self, number: u64, at: Utime) {
        let Some(mut record) = self.open.borrow_mut().remove(&number) else { return };
        record.events.push((at, "done"));
        let mut past = self.past.borrow_mut();
        past.push_back((number, record, at));
        if past.len() > KEPT_MAX {
            past.pop_front();
        }
    }

    /// The messages without an answer.
    pub fn in_flight(&self, at: Utime) -> Value {
        let open = self.open.borrow();
        let ops = open.iter().map(|(n, r)| r.dump(*n, at, at.since(r.began).as_secs_f64()));
        json!({"ops": ops.collect::<Vec<_>>(), "num_ops": open.len()})
    }

    /// What is, not long ago.
    pub fn historic(&self, at: Utime, limits: Limits) -> Value {
        self.trim(at, limits);
        let past = self.past.borrow();
        let ops = past.iter().map(|(n, r, end)| r.dump(*n, at, end.since(r.began).as_secs_f64()));
        json!({"size": limits.size, "duration": limits.duration, "ops": ops.collect::<Vec<_>>()})
    }

    /// Forgets what is too much or too old.
    pub fn trim(&self, at: Utime, limits: Limits) {
        let mut past = self.past.borrow_mut();
        while past.len() > limits.size
            || past.front().is_some_and(|(_, _, end)| at.since(*end).as_secs() > limits.duration)
        {
            past.pop_front();
        }
    }
}

/// A request under way; it is over when this is dropped.
pub(crate) struct Op {
    ops: Rc<Ops>,
    number: u64,
}

impl Op {
    /// It came so far.
    pub fn event(&self, event: &'static str) {
        if let Some(r) = self.ops.open.borrow_mut().get_mut(&self.number) {
            r.events.push((now(), event));
        }
    }

    /// It went to the leader.
    pub fn passed_on(&self) {
        self.event("forwarded to leader");
        if let Some(r) = self.ops.open.borrow_mut().get_mut(&self.number) {
            r.passed_on = true;
        }
    }

    /// It begins anew, here: this is not one that is over.
    pub fn forget(self) {
        self.ops.open.borrow_mut().remove(&self.number);
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        self.ops.end(self.number, now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_seen_while_they_last_and_for_a_while_after() {
        let ops = Rc::new(Ops::default());
        let at = |s| Utime::new(1_000_000_000 + s, 0);
        let open: Vec<Op> = (0..3)
            .map(|i| ops.begin_at(format!("command {i}"), "client.admin".into(), at(i)))
            .collect();
        open[2].passed_on();
        let shown = ops.in_flight(at(10));
        assert_eq!(
            (&shown["num_ops"], &shown["ops"][1]["description"], &shown["ops"][1]["age"]),
            (&json!(3), &json!("command 1"), &json!(9.0))
        );
        let flags: Vec<_> = (0..3)
            .map(|i| shown["ops"][i]["type_data"]["info"]["forwarded_to_leader"].clone())
            .collect();
        assert_eq!(flags, [false, false, true]);
        for op in &open {
            ops.end(op.number, at(20 + op.number as u32));
        }
        drop(open);
        let limits = Limits { size: 2, duration: 60 };
        let shown = ops.historic(at(30), limits);
        let past: Vec<_> = (0..2)
            .map(|i| (shown["ops"][i]["description"].clone(), shown["ops"][i]["duration"].clone()))
            .collect();
        assert_eq!(
            past,
            [(json!("command 1"), json!(21.0)), (json!("command 2"), json!(21.0))],
            "the last two, once each"
        );
        assert_eq!(shown["ops"][1]["type_data"]["events"][2]["event"], "done");
        assert_eq!(ops.in_flight(at(30))["num_ops"], 0);
        assert_eq!(
            ops.historic(at(83), limits)["ops"].as_array().map(Vec::len),
            Some(1),
            "61 seconds after the end"
        );
        let again = ops.begin_at("x".into(), String::new(), at(90));
        again.forget();
        assert_eq!(ops.historic(at(91), limits)["ops"].as_array().map(Vec::len), Some(0));
    }
}
