//! Requests wait in the scheduler, with the subvolume that they are about as their tenant.

use super::Mds;
use super::entrance::Next;
use super::operation::{Kind, OpId};
use super::state::COST_UNIT;
use crate::action::Action;
use crate::request::{Op, Request};
use crate::types::{ClientId, Ino, Name, Promise, Space, Steady};
use qos::{OpClass, Scheduler};
use std::collections::BTreeSet;

/// Ceph's priority of clients' requests (`CEPH_MSG_PRIO_DEFAULT`).
const PRIORITY: u32 = 63;

/// A path is followed in memory for so many names, to find the tenant.
const NAMES_MAX: usize = 32;

/// What a request costs. Changes have to be logged and written; a page has many records.
fn cost(op: &Op) -> u32 {
    match op {
        Op::Readdir { .. } => 8 * COST_UNIT,
        op if op.is_write() => 3 * COST_UNIT,
        _ => COST_UNIT,
    }
}

/// What a tenant asked for and got since the server began, and what it is promised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantUse {
    /// The space of the subvolume.
    pub space: Space,
    /// The names from the root to the subvolume, if they are in memory.
    pub path: Option<Vec<Name>>,
    /// What it is promised, if anything.
    pub promise: Option<Promise>,
    /// Requests that came.
    pub offered: u64,
    /// Requests that began.
    pub served: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// How long those that began had waited, in nanoseconds.
    pub waited_ns: u64,
    /// The same by powers of two of microseconds.
    pub waits_log2_us: Vec<u64>,
}

impl Mds {
    /// What tenants asked for and got.
    pub fn tenants(&self) -> Vec<TenantUse> {
        let spaces: BTreeSet<Space> =
            self.tenants.keys().chain(self.promises.keys()).copied().collect();
        let one = |space: Space| {
            let counted = self.tenants.get(&space).cloned().unwrap_or_default();
            let root = self.roots.get(&space).filter(|ino| self.nodes.contains_key(ino));
            TenantUse {
                space,
                path: root.map(|ino| self.way_above(*ino).unwrap_or_else(|| self.way_to(*ino))),
                promise: self.promises.get(&space).copied(),
                offered: counted.offered,
                served: counted.served,
                waiting: self.entrance.sched.tenant_len(OpClass::Client, space.0.into()) as u64,
                waited_ns: counted.waited_ns,
                waits_log2_us: counted.waits,
            }
        };
        spaces.into_iter().map(one).collect()
    }

    /// How many requests may be carried out at the same time, and what the window goes by.
    pub fn window(&self) -> (usize, [(u64, u64); 2]) {
        self.entrance.seen(self.now)
    }

    fn began(&mut self, op: &qos::Op<OpId>) {
        let Ok(space) = u16::try_from(op.tenant) else { return };
        let since = self.ops.get(&op.item).map_or(self.now, |o| o.since);
        let waited = self.now.saturating_sub(since);
        let tenant = self.tenants.entry(Space(space)).or_default();
        tenant.served += 1;
        tenant.waited_ns += waited;
        let bucket = (u64::BITS - (waited / 1_000).leading_zeros()) as usize;
        if tenant.waits.len() <= bucket {
            tenant.waits.resize(bucket + 1, 0);
        }
        tenant.waits[bucket] += 1;
    }

    /// The tenant of a request: the space of what it is about, as far as that is in memory. It is
    /// never what the client says of itself.
    fn tenant(&self, request: &Request) -> Space {
        let mut at = request.path.ino;
        for name in request.path.path.split(|b| *b == b'/').take(NAMES_MAX) {
            match self.peek(at, name) {
                Some(ino) => at = ino,
                None => break,
            }
        }
        self.space_of(at)
    }

    /// A name's inode, if both are in memory.
    fn peek(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        let d = self.dirs.get(&crate::types::DirFrag::whole(dir))?;
        match d.entries.get(name)?.link {
            super::node::Link::Primary(ino) | super::node::Link::Remote(ino, _) => Some(ino),
            super::node::Link::Absent => None,
        }
    }

    /// Takes a client's request in.
    pub(crate) fn take_request(&mut self, client: ClientId, request: Request) {
        let Some(session) = self.sessions.get_mut(&client) else { return };
        session.heard = self.now;
        session.forget_below(request.oldest_tid);
        let answered = session.answered.contains(&request.tid);
        for release in &request.releases {
            self.take_release(client, release);
        }
        if answered || self.by_tid.contains_key(&(client, request.tid)) {
            return;
        }
        let tenant = self.tenant(&request);
        self.tenants.entry(tenant).or_default().offered += 1;
        let (tid, charge) = (request.tid, cost(&request.op));
        let writes = request.op.is_write();
        let id = self.new_op(client, Kind::Request(Box::new(request)));
        self.by_tid.insert((client, tid), id);
        let op = qos::Op {
            item: id,
            class: OpClass::Client,
            tenant: tenant.0.into(),
            session: client.0,
            cost: charge,
            charge: 0,
            priority: PRIORITY,
        };
        self.entrance.comes(op, writes, self.now);
    }

    /// Begins requests that the scheduler lets go. Says whether there were any.
    pub(crate) fn pump(&mut self) -> bool {
        while self.entrance.has_work(self.now) && !self.is_choked() {
            if self.entrance.turns == 0 {
                self.wake(self.now);
                return false;
            }
            match self.entrance.next(self.now) {
                Next::Item(op) if self.ops.contains_key(&op.item) => {
                    self.entrance.turns -= 1;
                    self.began(&op);
                    self.entrance.begins(op.item, self.now);
                    self.again.insert(op.item);
                    // One at a time: the next one may find what this one left.
                    return true;
                }
                Next::Item(_) => {}
                Next::WaitUntil(at) => {
                    self.wake(at);
                    return false;
                }
                Next::None => return false,
            }
        }
        false
    }

    /// Has the shell call at this moment or before.
    pub(crate) fn wake(&mut self, at: Steady) {
        if self.wake_at.is_none_or(|w| at < w) {
            self.wake_at = Some(at);
            self.out.push_back(Action::WakeAt(at));
        }
    }

    /// Has the shell call when a session may have become stale.
    pub(crate) fn set_alarm(&mut self) {
        if !self.sessions.is_empty() && self.wake_at.is_none() {
            self.wake(self.now + self.conf.session_timeout / 4);
        }
    }

    /// Takes an operation out that no client waits for any more.
    pub(crate) fn abandon(&mut self, gone: &[OpId]) {
        self.entrance.sched.take_out(&mut |id| gone.contains(id), self.now);
        for id in gone {
            let Some(mut state) = self.ops.remove(id) else { continue };
            self.give_back(&mut state);
            self.free_names(*id, &mut state);
            if let Kind::Request(request) = &state.kind {
                self.by_tid.remove(&(state.client, request.tid));
            }
            for ino in state.needs_on {
                if let Some(node) = self.nodes.get_mut(&ino) {
                    node.needs.retain(|n| n.op != *id);
                }
                self.judge.insert(ino);
            }
            self.entrance.forget(*id);
            self.failed.remove(id);
        }
    }
}
