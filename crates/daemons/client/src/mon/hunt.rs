//! Looking for a monitor, and looking after the session with it.

use super::{Inner, MonHost, State};
use crate::clock::wall_clock;
use msgr::Connection;
use rand::seq::SliceRandom;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::{EntityAddr, EntityAddrVec, EntityType};

/// Hunts while there is no session, and looks after it while there is one. It holds the client only
/// between pauses, so it ends soon after the last handle is dropped.
pub(super) async fn run(client: Weak<Inner>, work: Rc<Notify>) {
    let mut backoff = Duration::from_millis(100);
    loop {
        let (has_session, mut hosts) = {
            let Some(inner) = client.upgrade() else { return };
            let st = inner.state.borrow();
            if st.down {
                return;
            }
            (st.session.is_some(), inner.candidates(&st))
        };
        if has_session {
            backoff = Duration::from_millis(100);
            let next = {
                let Some(inner) = client.upgrade() else { return };
                inner.tend()
            };
            // A wake-up is about what `tend` does as well, except that a keepalive is not due yet.
            tokio::select! {
                _ = tokio::time::sleep_until(next) => {}
                _ = lost(&client, &work) => {}
            }
            continue;
        }
        hosts.shuffle(&mut rand::rng());
        {
            // Without a valid ticket to prove it, no monitor gives us our old global id again.
            let Some(inner) = client.upgrade() else { return };
            let mut auth = inner.auth.borrow_mut();
            if inner.uses_tickets()
                && auth.global_id() != 0
                && !auth.has_ticket(EntityType::AUTH, wall_clock())
            {
                auth.forget_session();
            }
        }
        if !hunt(&client, &work, hosts).await {
            tokio::time::sleep(backoff).await;
            let Some(inner) = client.upgrade() else { return };
            backoff = (backoff * 2).min(inner.config.timing.max_backoff);
        }
    }
}

/// Waits until the session is gone (or the client).
async fn lost(client: &Weak<Inner>, work: &Notify) {
    loop {
        work.notified().await;
        let Some(inner) = client.upgrade() else { return };
        let st = inner.state.borrow();
        if st.down || st.session.is_none() {
            return;
        }
    }
}

/// One round over all monitors. True if there is a session at the end.
async fn hunt(client: &Weak<Inner>, work: &Notify, hosts: Vec<MonHost>) -> bool {
    let mut addrs = VecDeque::new();
    for host in hosts {
        match host {
            MonHost::Addr(addr) => addrs.push_back(addr),
            MonHost::Name(name, port) => addrs.extend(Inner::look_up(&name, port).await),
        }
    }
    loop {
        let timing = {
            let Some(inner) = client.upgrade() else { return true };
            let timing = inner.config.timing;
            let late: Vec<_> = {
                let mut st = inner.state.borrow_mut();
                if st.down || st.session.is_some() {
                    return true;
                }
                let (late, on_time) = std::mem::take(&mut st.attempts)
                    .into_iter()
                    .partition(|(_, at)| at.elapsed() >= timing.hunt_interval);
                st.attempts = on_time;
                late
            };
            late.iter().for_each(|(conn, _)| conn.mark_down());
            let running = inner.state.borrow().attempts.len();
            if running < timing.hunt_parallel
                && let Some(addr) = addrs.pop_front()
            {
                inner.attempt(addr);
            } else if running == 0 {
                return false;
            }
            timing
        };
        let _ = tokio::time::timeout(timing.hunt_step, work.notified()).await;
    }
}

impl Inner {
    /// Where monitors may be: the map knows best.
    pub(super) fn candidates(&self, st: &State) -> Vec<MonHost> {
        let known: Vec<MonHost> = st
            .monmap
            .iter()
            .flat_map(|m| m.mon_info.values())
            .filter_map(|mon| mon.public_addrs.0.iter().find(|a| a.kind == types::AddrType::MSGR2))
            .map(|addr| MonHost::Addr(*addr))
            .collect();
        if known.is_empty() { self.config.mon_hosts.clone() } else { known }
    }

    /// Opens a connection to a monitor, unless there is one to it already.
    pub(super) fn attempt(&self, addr: EntityAddr) {
        let tried = |c: &Rc<Connection>| c.peer_addrs().0.contains(&addr);
        if self.state.borrow().attempts.iter().any(|(c, _)| tried(c)) {
            return;
        }
        let conn = self.messenger.connect(EntityType::MON, EntityAddrVec::one(addr));
        self.state.borrow_mut().attempts.push((conn, Instant::now()));
    }

    /// Looks after the session; returns when to look again.
    pub(super) fn tend(&self) -> Instant {
        let timing = self.config.timing;
        let wall = Instant::now();
        let Some(session) = self.state.borrow().session.clone() else { return wall };
        let silent = {
            let mut st = self.state.borrow_mut();
            let answered = match (st.pinged, session.last_keepalive_ack()) {
                (None, _) => true,
                // The two clocks are read one after the other: a second of slack.
                (Some(at), Some(acked)) => {
                    wall_clock().since(acked) <= wall.duration_since(at) + Duration::from_secs(1)
                }
                (Some(_), None) => false,
            };
            if answered {
                st.pinged = None;
            }
            st.pinged.is_some_and(|at| wall.duration_since(at) > timing.ping_timeout)
        };
        if silent {
            session.mark_down();
            self.reset(&session);
            return wall;
        }
        session.send_keepalive();
        let renew = {
            let mut st = self.state.borrow_mut();
            st.pinged.get_or_insert(wall);
            st.renew_subs.take_if(|at| *at <= wall).is_some()
        };
        if renew {
            self.send_subs(&session, None);
        }
        self.renew_tickets();
        let mut next = wall + timing.ping_interval;
        if let Some(at) = self.state.borrow().renew_subs {
            next = next.min(at);
        }
        if let Some(at) = self.auth.borrow().renew_at() {
            let soon = at.since(wall_clock()).max(Duration::from_secs(1));
            next = next.min(wall + soon);
        }
        next
    }

    /// Addresses of a monitor given by name.
    pub(super) async fn look_up(name: &str, port: u16) -> Vec<EntityAddr> {
        match tokio::net::lookup_host((name, port)).await {
            Ok(found) => found.map(|addr| EntityAddr::msgr2(addr, 0)).collect(),
            Err(error) => {
                tracing::warn!(%error, name, "cannot look up a monitor");
                Vec::new()
            }
        }
    }
}
