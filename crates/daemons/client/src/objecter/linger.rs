//! Watches, which outlive sessions and intervals, and notifications.
//!
//! ```text
//!            WATCH ok            session or interval ends
//! (none) ------------> watching ---------------------------> stale
//!                        |  ^                                  | RECONNECT
//!                 PING,  |  +------------------ ok ------------+
//!           DISCONNECT   v                                     v
//!                      failed <------------------------------ error
//! ```
//!
//! A watch that has failed stays so until its owner ends it: what it missed meanwhile, only the
//! owner can find out (Ceph: `Objecter::LingerOp`, `librados::WatchCtx2`).

use super::{Inner, Objecter, Request};
use crate::error::{ClientError, Result};
use crate::operation::Operation;
use crate::shared_map::Placed;
use bytes::Bytes;
use messages::WatchNotify;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use types::Errno;
use types::rados::{OsdFlags, watch_op};

/// An event for the owner of a watch.
pub enum WatchEvent {
    /// The object was notified of something. The notifier waits for [`Notification::ack`].
    Notify(Notification),
    /// The watch has failed and nothing more will come: `ENOTCONN` if the object is gone or the
    /// watch was silent for too long, `ESHUTDOWN` if this client is on the blocklist. To go on,
    /// end it, look at the object, and watch again.
    Error(Errno),
}

/// A handler of a watch's events. It runs on the objecter's thread and may use the objecter.
pub type Handler = Rc<dyn Fn(WatchEvent)>;

/// A notification of a watched object.
pub struct Notification {
    /// The OSD's number for it.
    pub id: u64,
    /// The watch's cookie.
    pub cookie: u64,
    /// Global id of the notifying client.
    pub notifier: u64,
    /// The notifier's message.
    pub payload: Bytes,
    inner: Weak<Inner>,
    watch: Rc<State>,
}

/// The outcome of a notification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifyOutcome {
    /// Replies by the watcher's global id and cookie.
    pub replies: BTreeMap<(u64, u64), Bytes>,
    /// Watches that did not reply in time, by global id and cookie.
    pub missed: Vec<(u64, u64)>,
}

/// A watch of an object. It ends when dropped; [`Watch::unwatch`] also waits for that.
pub struct Watch {
    inner: Rc<Inner>,
    state: Rc<State>,
}

/// Watches by cookie, and notifications on their way by cookie.
#[derive(Default)]
pub(super) struct Table {
    watches: RefCell<FxHashMap<u64, Rc<State>>>,
    notifies: RefCell<FxHashMap<u64, mpsc::UnboundedSender<WatchNotify>>>,
}

struct State {
    cookie: u64,
    /// On what, with which snapshots; without operations.
    request: Request,
    timeout: u32,
    handler: Handler,
    /// Where the OSD has it: connection, and the PG's placement.
    standing: RefCell<Option<(u64, Arc<Placed>)>>,
    generation: Cell<u32>,
    error: Cell<Option<Errno>>,
    /// It was surely in force then.
    valid: Cell<Instant>,
    ended: Cell<bool>,
    /// Wakes its task when it ends or fails.
    wake: Notify,
}

impl State {
    fn request(&self, what: u8, flags: OsdFlags) -> Request {
        let generation = self.generation.get();
        let operation = Operation::new()
            .watch(self.cookie, what, generation, self.timeout)
            .with_request_flags(flags);
        Request {
            flags: operation.request_flags() | self.request.flags,
            ops: operation.ops,
            ..self.request.clone()
        }
    }

    fn fail(&self, error: Errno) {
        if self.ended.get() || self.error.get().is_some() {
            return;
        }
        // As Ceph: an object that is gone and a watch that is gone are the same to the watcher.
        let error = if error == Errno::ENOENT { Errno::ENOTCONN } else { error };
        self.error.set(Some(error));
        *self.standing.borrow_mut() = None;
        self.wake.notify_one();
        (self.handler)(WatchEvent::Error(error));
    }
}

/// Takes an entry out of a table when dropped.
struct Entry<'a, T>(&'a RefCell<FxHashMap<u64, T>>, u64);
impl<T> Drop for Entry<'_, T> {
    fn drop(&mut self) {
        self.0.borrow_mut().remove(&self.1);
    }
}

impl Objecter {
    /// Watches the object that `on` is about (its operations do not matter). The OSD drops a
    /// watch from which it has heard nothing for `timeout`; 0 leaves that to the OSD.
    pub async fn watch(&self, on: Request, timeout: Duration, handler: Handler) -> Result<Watch> {
        let inner = &self.0;
        let cookie = inner.next_tid();
        let state = Rc::new(State {
            cookie,
            request: Request { ops: Vec::new(), ..on },
            timeout: seconds(timeout),
            handler,
            standing: RefCell::default(),
            generation: Cell::new(1),
            error: Cell::new(None),
            valid: Cell::new(Instant::now()),
            ended: Cell::new(false),
            wake: Notify::new(),
        });
        // A notification may come before the answer.
        inner.linger.watches.borrow_mut().insert(cookie, state.clone());
        let entry = Entry(&inner.linger.watches, cookie);
        state.valid.set(Instant::now());
        let reply = loop {
            let request = state.request(watch_op::WATCH, OsdFlags::default());
            if let Some(reply) = inner.submit_once(request).await? {
                break reply;
            }
        };
        reply.outcome.ok()?;
        *state.standing.borrow_mut() = Some((reply.conn, reply.placed));
        std::mem::forget(entry);
        tokio::task::spawn_local(tend(Rc::downgrade(inner), inner.changed.clone(), state.clone()));
        Ok(Watch { inner: inner.clone(), state })
    }

    /// Tells everything that watches the object that `on` is about, and waits for the replies, for
    /// `timeout` at most (0: as long as the OSD waits by default).
    pub async fn notify(
        &self,
        on: Request,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<NotifyOutcome> {
        let inner = &self.0;
        loop {
            let cookie = inner.next_tid();
            let (heard, mut done) = mpsc::unbounded_channel();
            inner.linger.notifies.borrow_mut().insert(cookie, heard);
            let _entry = Entry(&inner.linger.notifies, cookie);
            let operation = Operation::new().notify(cookie, seconds(timeout), &payload);
            let request = Request {
                flags: operation.request_flags() | on.flags,
                ops: operation.ops,
                ..on.clone()
            };
            let Some(reply) = inner.submit_once(request).await? else { continue };
            let (conn, placed) = (reply.conn, reply.placed);
            let id: u64 = denc::Decode::from_bytes(&reply.outcome.ok()?.output(0))?;
            loop {
                let changed = inner.changed.notified();
                if inner.down.get() {
                    return Err(ClientError::Shutdown);
                }
                if !inner.stands(&on, conn, &placed) {
                    // The OSD has forgotten it: once more. Watchers may hear it twice.
                    break;
                }
                tokio::select! {
                    event = done.recv() => match event {
                        Some(event) if event.notify_id == id => return outcome(event),
                        _ => {}
                    },
                    _ = changed => {}
                }
            }
        }
    }
}

fn outcome(event: WatchNotify) -> Result<NotifyOutcome> {
    // Watchers that did not reply are no failure of ours; they are named in the outcome.
    match ClientError::from_code(event.return_code) {
        Some(e) if e.errno() != Errno::ETIMEDOUT => return Err(e),
        _ => {}
    }
    let mut outcome = NotifyOutcome::default();
    if !event.answers.is_empty() {
        let mut r = denc::Reader::new(event.answers);
        let replies: Vec<((u64, u64), Bytes)> = r.get()?;
        outcome.replies.extend(replies);
        outcome.missed = r.get()?;
    }
    Ok(outcome)
}

/// Whole seconds, at least one unless there are none at all.
fn seconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
}

impl Notification {
    /// Answers. What stands in `reply` reaches the notifier.
    pub fn ack(self, reply: Bytes) {
        let Some(inner) = self.inner.upgrade() else { return };
        let operation = Operation::new().notify_ack(self.id, self.cookie, &reply);
        let request = Request {
            flags: operation.request_flags() | self.watch.request.flags,
            ops: operation.ops,
            ..self.watch.request.clone()
        };
        tokio::task::spawn_local(async move {
            if let Err(error) = inner.submit_unbounded(request).await {
                tracing::debug!(%error, "cannot answer a notification");
            }
        });
    }
}

impl Watch {
    /// Tells it from other watches of this client.
    pub fn cookie(&self) -> u64 {
        self.state.cookie
    }

    /// How long ago it was surely in force; or why it has failed.
    pub fn check(&self) -> Result<Duration> {
        match self.state.error.get() {
            Some(e) => Err(ClientError::Errno(e)),
            None => Ok(self.state.valid.get().elapsed()),
        }
    }

    /// Ends it. Its handler is not called any more.
    pub async fn unwatch(self) -> Result<()> {
        self.state.ended.set(true);
        let request = self.state.request(watch_op::UNWATCH, OsdFlags::FULL_TRY);
        let inner = self.inner.clone();
        // Its task need not end it a second time.
        self.state.error.set(Some(Errno::ENOTCONN));
        drop(self);
        inner.submit_unbounded(request).await?.outcome.ok().map(|_| ())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.state.ended.set(true);
        self.inner.linger.watches.borrow_mut().remove(&self.state.cookie);
        self.state.wake.notify_one();
    }
}

impl Inner {
    /// Whether what a request left with an OSD is still there.
    fn stands(&self, on: &Request, conn: u64, placed: &Placed) -> bool {
        let Some(Some(route)) = self.map.route(&on.scope, on.flags) else { return false };
        let Some(osd) = route.placed.at.primary else { return false };
        let sessions = self.sessions.borrow();
        let session = sessions.get(&super::peer::Peer::Osd(osd));
        route.placed.serial == placed.serial
            && session.is_some_and(|s| s.conn.id() == conn && !s.conn.is_down())
    }

    pub(super) fn notified(self: &Rc<Self>, event: WatchNotify) {
        if event.opcode == WatchNotify::NOTIFY_COMPLETE {
            if let Some(heard) = self.linger.notifies.borrow().get(&event.cookie) {
                let _ = heard.send(event);
            }
            return;
        }
        let Some(state) = self.linger.watches.borrow().get(&event.cookie).cloned() else { return };
        match event.opcode {
            WatchNotify::NOTIFY => (state.handler)(WatchEvent::Notify(Notification {
                id: event.notify_id,
                cookie: event.cookie,
                notifier: event.notifier_gid,
                payload: event.payload,
                inner: Rc::downgrade(self),
                watch: state.clone(),
            })),
            WatchNotify::DISCONNECT => state.fail(Errno::ENOTCONN),
            other => tracing::debug!(opcode = other, "unknown event on a watched object"),
        }
    }

    pub(super) fn fail_watches(&self, error: Errno) {
        let watches: Vec<Rc<State>> = self.linger.watches.borrow().values().cloned().collect();
        watches.iter().for_each(|watch| watch.fail(error));
    }
}

/// Keeps a watch alive: takes it up again where the object is served now, and pings.
async fn tend(weak: Weak<Inner>, changed: Rc<Notify>, state: Rc<State>) {
    let mut ping_at = None;
    loop {
        let news = changed.notified();
        let Some(inner) = weak.upgrade().filter(|inner| !inner.down.get()) else { return };
        let failed = state.error.get().is_some();
        if state.ended.get() {
            if !failed {
                let unwatch = state.request(watch_op::UNWATCH, OsdFlags::FULL_TRY);
                let _ = inner.submit_unbounded(unwatch).await;
            }
            return;
        }
        if failed {
            drop(inner);
            state.wake.notified().await;
            continue;
        }
        let standing = state.standing.borrow().clone();
        let stands =
            standing.is_some_and(|(conn, placed)| inner.stands(&state.request, conn, &placed));
        if !stands {
            take_up_again(&inner, &state).await;
            continue;
        }
        let due = *ping_at.get_or_insert_with(|| Instant::now() + inner.options.tick);
        if due > Instant::now() {
            drop(inner);
            tokio::select! {
                _ = news => {}
                _ = state.wake.notified() => {}
                _ = tokio::time::sleep_until(due) => {}
            }
            continue;
        }
        ping_at = None;
        let sent = Instant::now();
        let ping = state.request(watch_op::PING, OsdFlags::READ | OsdFlags::FULL_TRY);
        tokio::select! {
            reply = inner.submit_once(ping) => match reply {
                // A ping proves nothing about a session that came after it.
                Ok(None) => {}
                Ok(Some(reply)) => match reply.outcome.ok() {
                    Ok(_) => state.valid.set(sent),
                    Err(error) => failed_with(&inner, &state, &error),
                },
                Err(error) => failed_with(&inner, &state, &error),
            },
            _ = news => {}
            _ = state.wake.notified() => {}
        }
    }
}

async fn take_up_again(inner: &Rc<Inner>, state: &State) {
    state.generation.set(state.generation.get().wrapping_add(1));
    let sent = Instant::now();
    let request = state.request(watch_op::RECONNECT, OsdFlags::FULL_TRY);
    tokio::select! {
        reply = inner.submit_once(request) => {
            let done = reply.and_then(|reply| match reply {
                // Once more, from where the object is served then.
                None => Ok(None),
                Some(reply) => reply.outcome.ok().map(|_| Some((reply.conn, reply.placed))),
            });
            match done {
                Ok(None) => {}
                Ok(standing) => {
                    state.valid.set(sent);
                    *state.standing.borrow_mut() = standing;
                }
                Err(error) => failed_with(inner, state, &error),
            }
        }
        _ = state.wake.notified() => {}
    }
}

fn failed_with(inner: &Inner, state: &State, error: &ClientError) {
    if !inner.down.get() {
        state.fail(error.errno());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::{Encode, Features};

    #[test]
    fn timeouts_are_whole_seconds_rounded_up() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_millis(2000)), 2);
        assert_eq!(seconds(Duration::MAX), u32::MAX);
    }

    #[test]
    fn a_notification_tells_replies_from_silence() {
        let replies = vec![((4u64, 1u64), Bytes::from_static(b"yes"))];
        let mut answers = replies.to_bytes(Features::ALL).to_vec();
        answers.extend_from_slice(&vec![(5u64, 2u64)].to_bytes(Features::ALL));
        let event = |code: i32, answers: Vec<u8>| WatchNotify {
            opcode: WatchNotify::NOTIFY_COMPLETE,
            return_code: code,
            answers: answers.into(),
            ..WatchNotify::default()
        };
        let late = outcome(event(-Errno::ETIMEDOUT.0, answers.clone())).unwrap();
        assert_eq!(late.replies, replies.into_iter().collect());
        assert_eq!(late.missed, [(5, 2)]);
        assert_eq!(outcome(event(0, Vec::new())).unwrap(), NotifyOutcome::default());
        let refused = outcome(event(-Errno::EIO.0, Vec::new())).unwrap_err();
        assert_eq!(refused.errno(), Errno::EIO);
        answers.truncate(answers.len() - 1);
        assert!(outcome(event(0, answers)).is_err());
    }
}
