//! Read leases: no copy serves a read that a later interval has made old.
//!
//! A primary that was cut off and marked down need not know it, and reads need no consent of
//! others. So it asks for consent beforehand. In rounds it asks every acting replica; an answer
//! *promises* for so long not to let a later interval begin to serve. While the promises of one
//! round last, the primary answers reads, and so may the replicas.
//!
//! ```text
//!   primary   s ───── Lease{length} ─────►  r            replica: promises until r + length
//!             all answered:  ◄── LeaseAck ───            primary: reads until s + length
//! ```
//!
//! * `s` is before `r`, so the promise lasts longer than the lease, whatever clocks say: each side
//!   measures a duration from a moment of its own. Only the speed of clocks matters, and a lease is
//!   a little shorter than its promise for that.
//! * To begin, an interval needs a survivor of each earlier interval that may have served (the
//!   prior set). Every acting copy promised, so any survivor knows. It tells in `Notify` which
//!   copies may still serve, and for how long; the new primary *waits* before it activates any
//!   copy. What waited for all earlier leases voids them: promises of intervals before the last one
//!   that was started do not count.
//! * It need not wait for a holder that the map knows to be dead, that has come up again since, or
//!   that has answered a question of this interval: it has seen the map.
//! * A copy that was loaded from disk does not know what it promised in its former life. It assumes
//!   the most.
//! * A replica holds a lease from a moment that is before `s`: it is when it answered the round
//!   before, because the primary begins a round after all answers to the one before. The next
//!   round's message tells it that the round is complete.
//! * The primary is bound as well, because replicas serve: while a complete round lasts it begins
//!   no interval without them.
//!
//! A round begins only when the one before is complete, so a copy that hangs is not promised
//! anything new by the others. Ceph sends times of the primary's clock instead, and bounds the
//! differences of clocks by pings (`src/osd/PeeringState.cc`: `send_lease`,
//! `recalc_readable_until`; `HeartbeatStamps`).

use std::time::Duration;

use types::{Eversion, ObjectId, PgShard};

use crate::action::Action;
use crate::lease::{Promise, Steady, nanos, usable};
use crate::msg::PeerMsg;

use super::parts::lease::{Held, Round};
use super::{Pg, Phase};

/// A pool with a smaller interval would do nothing else.
const LEAST: Duration = Duration::from_millis(10);
/// A replica looks through so many recent entries for a write of the object; one that has more does
/// not serve reads.
const RECENT_MAX: usize = 1_000;

impl Pg {
    /// Tells the time. The host does so before it hands over events; leases are measured with it.
    pub fn set_clock(&mut self, now: Steady) {
        if std::mem::take(&mut self.leases.assumed) {
            let until = now.after(self.lease_length());
            self.leases.promised.values_mut().for_each(|h| h.until = until);
        }
        self.leases.now = self.leases.now.max(now);
    }

    /// Whether what was read up to now may be answered by this primary. Ask with the time of the
    /// asking, *after* the data was read: then no later interval had begun to serve when it was
    /// read.
    pub fn is_readable(&self, now: Steady) -> bool {
        self.phase == Phase::Active
            && (self.mapping.acting.len() <= 1
                || self
                    .leases
                    .complete
                    .is_some_and(|(began, length)| now < began.after(usable(length))))
    }

    /// Whether this replica may answer a read of this object, and of what belongs to it. Ask before
    /// the data is read, and again after: a write may have come in between.
    pub fn may_read_replica(&self, oid: &ObjectId, now: Steady) -> bool {
        let recent =
            || self.log.iter().rev().take_while(|e| e.entry.version > self.leases.committed);
        self.phase == Phase::ReplicaActive
            && !self.backend().rebuilds()
            && self.enough()
            && self.mapping.acting.contains(&self.me)
            && now < self.leases.until
            && !self.missing.contains_name(&oid.head())
            && recent().take(RECENT_MAX + 1).count() <= RECENT_MAX
            && recent().all(|e| e.entry.oid.head() != oid.head())
    }

    /// Whether reads wait for replicas to answer (Ceph: `PG_STATE_LAGGY`).
    pub(super) fn is_laggy(&self) -> bool {
        self.phase == Phase::Active && self.enough() && !self.is_readable(self.leases.now)
    }

    fn lease_length(&self) -> Duration {
        self.map.read_lease(self.info.pgid.pool).unwrap_or(self.conf.read_lease).max(LEAST)
    }

    // --- promises ---

    /// The copy comes from disk: it may have promised until just before its process ended.
    pub(super) fn assume_promises(&mut self) {
        let now_acting = (self.info.history.same_interval_since, self.mapping.acting.to_vec());
        let past = self.past.intervals.iter().map(|i| (i.first, i.acting.clone()));
        let intervals: Vec<_> =
            past.chain([now_acting]).filter(|(_, acting)| acting.contains(&self.me)).collect();
        for (interval, acting) in intervals {
            for holder in acting.into_iter().filter(|o| *o != self.me) {
                let up_from = self.map.up_from(holder.osd);
                self.leases.note(holder, Held { up_from, interval, until: Steady::NEVER });
            }
        }
        self.leases.assumed = true;
    }

    /// The promises that a new primary must know.
    pub(super) fn promises(&self) -> Vec<Promise> {
        let now = self.leases.now;
        let open = self.leases.promised.iter().filter(|(_, h)| h.until > now);
        open.map(|(&holder, h)| Promise {
            holder,
            up_from: h.up_from,
            interval: h.interval,
            left: nanos(h.until.left(now)),
        })
        .collect()
    }

    /// Another copy told what it promised.
    pub(super) fn take_promises(&mut self, promises: Vec<Promise>) {
        for p in promises {
            if p.holder != self.me {
                let until = self.leases.now.after(Duration::from_nanos(p.left));
                self.leases
                    .note(p.holder, Held { up_from: p.up_from, interval: p.interval, until });
            }
        }
    }

    /// Until when a copy of an earlier interval may serve reads.
    pub(super) fn earlier_leases(&self) -> Option<Steady> {
        let knows = |shard: &PgShard| {
            self.peers.get(shard).is_some_and(|p| {
                p.up_from == self.map.up_from(shard.osd) && self.map.is_up(shard.osd)
            })
        };
        let counts = |(shard, h): &(&PgShard, &Held)| {
            h.until > self.leases.now
                && h.interval >= self.info.history.last_interval_started
                && self.map.up_from(shard.osd) <= h.up_from
                && self.map.dead_epoch(shard.osd) <= h.up_from
                && !knows(shard)
        };
        self.leases.promised.iter().filter(counts).map(|(_, h)| h.until).max()
    }

    /// All earlier leases are over: this copy is activated.
    pub(super) fn forget_promises(&mut self) {
        self.leases.promised.clear();
        self.leases.assumed = false;
    }

    fn promise(&mut self, until: Steady) {
        let interval = self.info.history.same_interval_since;
        for holder in self.replicas_and_primary() {
            let up_from = self.map.up_from(holder.osd);
            self.leases.note(holder, Held { up_from, interval, until });
        }
    }

    fn replicas_and_primary(&self) -> Vec<PgShard> {
        self.mapping.acting.iter().copied().filter(|o| *o != self.me).collect()
    }

    // --- primary ---

    /// Asks every acting replica.
    pub(super) fn begin_round(&mut self) {
        self.roll_forward(self.final_to());
        let replicas = self.replicas();
        let number = self.leases.round.number + 1;
        let (began, length) = (self.leases.now, self.lease_length());
        self.leases.round =
            Round { number, began, length, waiting: replicas.iter().copied().collect() };
        let msg = self.lease_message();
        self.send_all(replicas, msg);
    }

    fn lease_message(&self) -> PeerMsg {
        let r = &self.leases.round;
        PeerMsg::Lease { round: r.number, length: nanos(r.length), committed: self.final_to() }
    }

    /// The replica could not take the message, because it had no copy.
    pub(super) fn repeat_round(&mut self, shard: PgShard) {
        if self.leases.round.waiting.contains(&shard) {
            let msg = self.lease_message();
            self.send(shard, msg);
        }
    }

    pub(super) fn handle_lease_ack(&mut self, from: PgShard, number: u64) {
        let r = &mut self.leases.round;
        if r.number != number || !r.waiting.remove(&from) || !r.waiting.is_empty() {
            return;
        }
        let (began, length) = (r.began, r.length);
        self.leases.complete = Some((began, length));
        self.promise(began.after(length));
        if self.is_readable(self.leases.now) && std::mem::take(&mut self.leases.laggy) {
            self.actions.push_back(Action::Readable);
        }
        self.next_round();
    }

    /// The first rounds follow one another, because replicas hold a lease from the third message
    /// on.
    fn next_round(&mut self) {
        let r = &self.leases.round;
        if r.number == 0 || !r.waiting.is_empty() {
            return;
        }
        let due = if r.number < 3 { r.began } else { r.began.after(r.length / 4) };
        if self.leases.now >= due {
            self.begin_round();
        } else {
            self.actions.push_back(Action::WakeAt(due));
        }
    }

    pub(super) fn handle_wake(&mut self) {
        match self.phase {
            Phase::WaitUpThru => self.activate_if_up_thru(),
            Phase::Activating { .. } | Phase::Active => self.next_round(),
            _ => {}
        }
    }

    /// A read waits: say [`Action::Readable`] when it may be answered.
    pub fn wait_readable(&mut self) {
        self.leases.laggy = true;
    }

    // --- replica ---

    pub(super) fn handle_lease(
        &mut self,
        from: PgShard,
        number: u64,
        length: u64,
        committed: Eversion,
    ) {
        if self.phase != Phase::ReplicaActive || !self.mapping.acting.contains(&self.me) {
            return;
        }
        let (now, length) = (self.leases.now, Duration::from_nanos(length));
        self.promise(now.after(length));
        let l = &mut self.leases;
        match l.answered {
            Some((last, at, lasts)) if last + 1 == number => {
                // The round before is complete; it began after this copy had answered the one
                // before that.
                if let Some(before) = l.answered_before {
                    l.until = l.until.max(before.after(usable(lasts)));
                }
                l.answered_before = Some(at);
                l.answered = Some((number, now, length));
            }
            Some((last, ..)) if last == number => {}
            _ => {
                l.answered_before = None;
                l.answered = Some((number, now, length));
            }
        }
        l.committed = l.committed.max(committed);
        self.roll_forward(committed);
        self.send(from, PeerMsg::LeaseAck { round: number });
    }
}
