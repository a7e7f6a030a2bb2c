//! The watchers of objects, and the watchers that a notification waits for (Ceph: `osd/Watch.cc`).
//!
//! The list of an object's watchers is in its info and outlives everything here. This is what only
//! the PG's primary knows, and only for an interval: over which connection a watcher is reached,
//! when it was heard of, and the notifications on their way. A watcher that is in the info but not
//! heard of since the interval began stands here without a connection.
//!
//! There is no clock and no socket: `now` is an argument, messages are taken with
//! [`Watches::take_messages`] and the earliest new deadline with [`Watches::take_soonest`].

use bytes::{Bytes, BytesMut};
use denc::{Encode, Features};
use messages::WatchNotify;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::object_info::WatchInfo;
use types::rados::watch_event;
use types::{EntityAddr, EntityName, Errno, ObjectId};

/// A watch of an object: the client's cookie for it, and the client. The key of
/// [`types::ObjectInfo::watchers`].
pub type Watcher = (u64, EntityName);

/// A client's connection.
pub trait Link {
    /// Tells connections apart.
    fn session(&self) -> u64;
    /// Whether anything sent can still arrive.
    fn is_open(&self) -> bool;
}

impl<T: Link + ?Sized> Link for Rc<T> {
    fn session(&self) -> u64 {
        (**self).session()
    }

    fn is_open(&self) -> bool {
        (**self).is_open()
    }
}

/// What a request does to watches, once it has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Watches that end; whether the watcher must be told.
    pub ended: Vec<(Watcher, bool)>,
    /// Watches that begin, or are taken up again over the request's connection.
    pub begun: Vec<Begun>,
    /// Notifications.
    pub notifies: Vec<NotifyStart>,
    /// Answers to notifications.
    pub acks: Vec<NotifyAck>,
}

/// See [`Effects::begun`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The client's number for the watch.
    pub cookie: u64,
    /// Seconds of silence after which it ends.
    pub timeout: u32,
    /// The client will ping. Old ones did not; they live as long as their connection.
    pub pings: bool,
}

/// See [`Effects::notifies`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyStart {
    /// Unique for the OSD.
    pub id: u64,
    /// The notifier's number for it.
    pub cookie: u64,
    /// Seconds until it completes without the watchers that did not answer.
    pub timeout: u32,
    /// What watchers are told.
    pub payload: Bytes,
}

/// See [`Effects::acks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyAck {
    /// Of the notification.
    pub id: u64,
    /// Of the watch; clients before Hammer did not tell, and answered for all their watches.
    pub cookie: Option<u64>,
    /// For the notifier.
    pub reply: Bytes,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub struct From<C> {
    /// The client.
    pub entity: EntityName,
    /// Its address.
    pub addr: EntityAddr,
    /// Its connection.
    pub link: C,
}

struct Watch<C> {
    timeout: Duration,
    addr: EntityAddr,
    link: Option<C>,
    pings: bool,
    last_ping: Option<Instant>,
    deadline: Option<Instant>,
    ending: Ending,
    /// Notifications that it has not answered.
    notifies: BTreeSet<u64>,
}

/// Whether a watch is about to be taken out of the object's info.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// It was silent for too long. A ping in the last moment saves it.
    Silent,
    /// Its client is on the blocklist.
    Doomed,
}

impl<C: Link + Clone> Watch<C> {
    fn is_on(&self, session: u64) -> bool {
        self.link.as_ref().is_some_and(|l| l.session() == session)
    }

    /// Lets the time run from now on, and returns when it ends.
    fn restart(&mut self, now: Instant) -> Option<Instant> {
        if self.ending == Ending::Doomed {
            return None;
        }
        self.ending = Ending::No;
        self.deadline = Some(now + self.timeout);
        self.deadline
    }

    /// The connection is gone. One that pings has its deadline already.
    fn disconnect(&mut self, now: Instant) -> Option<Instant> {
        self.link = None;
        if self.pings { None } else { self.restart(now) }
    }
}

struct Notify<C> {
    oid: ObjectId,
    notifier: C,
    gid: u64,
    cookie: u64,
    version: u64,
    payload: Bytes,
    deadline: Instant,
    /// The watchers that have not answered.
    waiting: BTreeSet<Watcher>,
    /// Client and cookie, and what it answered.
    replies: Vec<((u64, u64), Bytes)>,
}

/// One watch, as `dump_watchers` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The object.
    pub oid: ObjectId,
    /// Client and cookie.
    pub watcher: Watcher,
    /// Seconds.
    pub timeout: u32,
    /// The client's address.
    pub addr: EntityAddr,
}

/// The monitors number clients from 1 on.
fn gid(name: EntityName) -> u64 {
    name.num as u64
}

/// The watches of one PG, and the notifications that are on their way.
pub struct Watches<C> {
    objects: BTreeMap<ObjectId, BTreeMap<Watcher, Watch<C>>>,
    notifies: BTreeMap<u64, Notify<C>>,
    messages: Vec<(C, WatchNotify)>,
    soonest: Option<Instant>,
}

impl<C> Default for Watches<C> {
    fn default() -> Self {
        Watches {
            objects: BTreeMap::new(),
            notifies: BTreeMap::new(),
            messages: Vec::new(),
            soonest: None,
        }
    }
}

impl<C: Link + Clone> Watches<C> {
    /// Whether there is no watcher and no notification on its way.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.notifies.is_empty()
    }

    /// Forgets everything without a word: the interval is over. Clients begin anew when they see
    /// the map.
    pub fn clear(&mut self) {
        *self = Watches::default();
    }

    /// Messages to send.
    pub fn take_messages(&mut self) -> Vec<(C, WatchNotify)> {
        std::mem::take(&mut self.messages)
    }

    /// The earliest deadline set since the last call.
    pub fn take_soonest(&mut self) -> Option<Instant> {
        self.soonest.take()
    }

    /// The earliest deadline of all.
    pub fn next_deadline(&self) -> Option<Instant> {
        let watches = self.objects.values().flat_map(BTreeMap::values).filter_map(|w| w.deadline);
        watches.chain(self.notifies.values().map(|n| n.deadline)).min()
    }

    fn due_at(&mut self, at: Option<Instant>) {
        if let Some(at) = at {
            self.soonest = Some(self.soonest.map_or(at, |s| s.min(at)));
        }
    }

    fn watch(&mut self, oid: &ObjectId, watcher: &Watcher) -> Option<&mut Watch<C>> {
        self.objects.get_mut(oid)?.get_mut(watcher)
    }

    /// An object was loaded: its watchers wait to be heard of, and end if they are not (Ceph:
    /// `populate_obc_watchers`).
    pub fn populate<'a>(
        &mut self,
        oid: &ObjectId,
        watchers: impl IntoIterator<Item = (&'a Watcher, &'a WatchInfo)>,
        blocked: impl Fn(&EntityAddr) -> bool,
        now: Instant,
    ) {
        for (watcher, info) in watchers {
            let known = self.objects.get(oid).is_some_and(|o| o.contains_key(watcher));
            if known {
                continue;
            }
            let mut watch = Watch {
                timeout: Duration::from_secs(info.timeout_seconds.into()),
                addr: info.addr,
                link: None,
                pings: false,
                last_ping: None,
                deadline: None,
                ending: Ending::No,
                notifies: BTreeSet::new(),
            };
            let at = if blocked(&info.addr) {
                watch.ending = Ending::Doomed;
                watch.deadline = Some(now);
                watch.deadline
            } else {
                watch.disconnect(now)
            };
            self.due_at(at);
            self.objects.entry(oid.detached()).or_default().insert(*watcher, watch);
        }
    }

    /// Whether a session has this watch and was not heard of for so long.
    pub fn is_due(
        &self,
        oid: &ObjectId,
        watcher: &Watcher,
        session: u64,
        after: Duration,
        now: Instant,
    ) -> bool {
        let watch = self
            .objects
            .get(oid)
            .and_then(|watches| watches.get(watcher))
            .filter(|w| w.pings && w.is_on(session));
        watch.is_some_and(|w| {
            w.last_ping.is_none_or(|last| now.saturating_duration_since(last) >= after)
        })
    }

    /// A ping. False if the watch has no connection, and must be taken up again.
    pub fn ping(&mut self, oid: &ObjectId, watcher: &Watcher, now: Instant) -> bool {
        let Some(watch) = self.watch(oid, watcher).filter(|w| w.link.is_some()) else {
            return false;
        };
        watch.last_ping = Some(now);
        // The timer that is set fires early and finds the later deadline.
        watch.restart(now);
        true
    }

    /// What a request that succeeded does to the watches of `oid`, at the user version `version`
    /// (Ceph: `do_osd_op_effects`).
    pub fn apply(
        &mut self,
        oid: &ObjectId,
        effects: Effects,
        from: &From<C>,
        version: u64,
        now: Instant,
    ) {
        for (watcher, tell) in effects.ended {
            self.end(oid, &watcher, tell);
        }
        for begun in effects.begun {
            self.begin(oid, begun, from, now);
        }
        for n in effects.notifies {
            self.notify(oid, n, from, version, now);
        }
        for ack in effects.acks {
            self.ack(oid, ack, from.entity);
        }
    }

    fn begin(&mut self, oid: &ObjectId, begun: Begun, from: &From<C>, now: Instant) {
        let watcher = (begun.cookie, from.entity);
        let watch =
            self.objects.entry(oid.detached()).or_default().entry(watcher).or_insert_with(|| {
                Watch {
                    timeout: Duration::from_secs(begun.timeout.into()),
                    addr: from.addr,
                    link: None,
                    pings: begun.pings,
                    last_ping: None,
                    deadline: None,
                    ending: Ending::No,
                    notifies: BTreeSet::new(),
                }
            });
        if watch.is_on(from.link.session()) {
            return;
        }
        watch.link = Some(from.link.clone());
        watch.pings = begun.pings;
        let mut at = None;
        if begun.pings {
            watch.last_ping = Some(now);
            at = watch.restart(now);
        } else if watch.ending != Ending::Doomed {
            watch.ending = Ending::No;
            watch.deadline = None;
        }
        if !from.link.is_open() {
            // The connection went while the request was on its way, and that will not be told
            // again.
            at = watch.disconnect(now).or(at);
        } else {
            let unanswered: Vec<u64> = watch.notifies.iter().copied().collect();
            for id in unanswered {
                self.send_notify(id, &watcher);
            }
        }
        self.due_at(at);
    }

    fn send_notify(&mut self, id: u64, watcher: &Watcher) {
        let Some(n) = self.notifies.get(&id) else { return };
        let link =
            self.objects.get(&n.oid).and_then(|o| o.get(watcher)).and_then(|w| w.link.clone());
        if let Some(link) = link {
            self.messages.push((
                link,
                WatchNotify {
                    cookie: watcher.0,
                    ver: n.version,
                    notify_id: id,
                    opcode: watch_event::NOTIFY,
                    payload: n.payload.clone(),
                    notifier_gid: n.gid,
                    ..WatchNotify::default()
                },
            ));
        }
    }

    fn notify(
        &mut self,
        oid: &ObjectId,
        n: NotifyStart,
        from: &From<C>,
        version: u64,
        now: Instant,
    ) {
        let mut waiting = BTreeSet::new();
        let mut deadlines = Vec::new();
        for (key, watch) in self.objects.get_mut(oid).into_iter().flatten() {
            let silent = watch.pings && watch.last_ping.is_none_or(|p| p + watch.timeout < now);
            if silent {
                deadlines.extend(watch.disconnect(now));
                continue;
            }
            watch.notifies.insert(n.id);
            waiting.insert(*key);
        }
        let deadline = now + Duration::from_secs(n.timeout.into());
        deadlines.push(deadline);
        let watchers: Vec<Watcher> = waiting.iter().copied().collect();
        self.notifies.insert(
            n.id,
            Notify {
                oid: oid.detached(),
                notifier: from.link.clone(),
                gid: gid(from.entity),
                cookie: n.cookie,
                version,
                payload: n.payload,
                deadline,
                waiting,
                replies: Vec::new(),
            },
        );
        for watcher in &watchers {
            self.send_notify(n.id, watcher);
        }
        deadlines.into_iter().for_each(|at| self.due_at(Some(at)));
        self.complete_if_answered(n.id);
    }

    fn ack(&mut self, oid: &ObjectId, ack: NotifyAck, entity: EntityName) {
        let Some(watches) = self.objects.get_mut(oid) else { return };
        let mine = watches.iter_mut().filter(|((cookie, name), _)| {
            *name == entity && ack.cookie.is_none_or(|c| c == *cookie)
        });
        let answered: Vec<Watcher> =
            mine.filter_map(|(key, w)| w.notifies.remove(&ack.id).then_some(*key)).collect();
        for watcher in answered {
            if let Some(n) = self.notifies.get_mut(&ack.id)
                && n.waiting.remove(&watcher)
            {
                n.replies.push(((gid(watcher.1), watcher.0), ack.reply.clone()));
            }
        }
        self.complete_if_answered(ack.id);
    }

    fn complete_if_answered(&mut self, id: u64) {
        if self.notifies.get(&id).is_some_and(|n| n.waiting.is_empty()) {
            self.complete(id, false);
        }
    }

    fn complete(&mut self, id: u64, timed_out: bool) {
        let Some(mut n) = self.notifies.remove(&id) else { return };
        for watcher in &n.waiting {
            if let Some(w) = self.watch(&n.oid, watcher) {
                w.notifies.remove(&id);
            }
        }
        n.replies.sort_by_key(|(key, _)| *key);
        // Answers by client and cookie, then the watchers that did not answer.
        let missed: Vec<(u64, u64)> =
            n.waiting.iter().map(|(cookie, name)| (gid(*name), *cookie)).collect();
        let f = Features::ALL;
        let mut answers = BytesMut::new();
        n.replies.encode(&mut answers, f);
        missed.encode(&mut answers, f);
        self.messages.push((
            n.notifier,
            WatchNotify {
                cookie: n.cookie,
                ver: n.version,
                notify_id: id,
                opcode: watch_event::NOTIFY_COMPLETE,
                return_code: if timed_out { Errno::ETIMEDOUT.as_result() } else { 0 },
                notifier_gid: n.gid,
                answers: answers.freeze(),
                ..WatchNotify::default()
            },
        ));
    }

    /// A watch is over: its object's info no longer has it. Notifications do not wait for it any
    /// more.
    pub fn end(&mut self, oid: &ObjectId, watcher: &Watcher, tell: bool) {
        let Some(watches) = self.objects.get_mut(oid) else { return };
        let gone = watches.remove(watcher);
        if watches.is_empty() {
            self.objects.remove(oid);
        }
        let Some(gone) = gone else { return };
        if tell && let Some(link) = gone.link {
            let event = WatchNotify {
                cookie: watcher.0,
                opcode: watch_event::DISCONNECT,
                ..WatchNotify::default()
            };
            self.messages.push((link, event));
        }
        for id in gone.notifies {
            if let Some(n) = self.notifies.get_mut(&id) {
                n.waiting.remove(watcher);
            }
            self.complete_if_answered(id);
        }
    }

    /// A connection is gone. Its watches stay until they time out.
    pub fn disconnected(&mut self, session: u64, now: Instant) {
        let mut deadlines = Vec::new();
        for watch in
            self.objects.values_mut().flat_map(BTreeMap::values_mut).filter(|w| w.is_on(session))
        {
            deadlines.extend(watch.disconnect(now));
        }
        deadlines.into_iter().for_each(|at| self.due_at(Some(at)));
    }

    /// The blocklist has changed: watches of clients on it end now.
    pub fn check_blocklist(&mut self, blocked: impl Fn(&EntityAddr) -> bool, now: Instant) {
        let mut any = false;
        for watch in self.objects.values_mut().flat_map(BTreeMap::values_mut) {
            if watch.ending != Ending::Doomed && blocked(&watch.addr) {
                watch.ending = Ending::Doomed;
                watch.deadline = Some(now);
                any = true;
            }
        }
        self.due_at(any.then_some(now));
    }

    /// Completes the notifications that ran out of time, and returns the watches that must be taken
    /// out of their objects' infos: each is then either ended, or postponed, or no longer
    /// [ending](Self::is_ending).
    pub fn expire(&mut self, now: Instant) -> Vec<(ObjectId, Watcher)> {
        let late: Vec<u64> =
            self.notifies.iter().filter(|(_, n)| n.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            self.complete(id, true);
        }
        let mut over = Vec::new();
        for (oid, watches) in &mut self.objects {
            for (watcher, watch) in watches {
                if watch.deadline.is_some_and(|d| d <= now) {
                    watch.deadline = None;
                    if watch.ending == Ending::No {
                        watch.ending = Ending::Silent;
                    }
                    over.push((oid.clone(), *watcher));
                }
            }
        }
        over
    }

    /// Whether a watch that was returned by [`Self::expire`] must still go.
    pub fn is_ending(&self, oid: &ObjectId, watcher: &Watcher) -> bool {
        self.objects.get(oid).and_then(|o| o.get(watcher)).is_some_and(|w| w.ending != Ending::No)
    }

    /// A watch cannot be taken out now; it is due again at `at`.
    pub fn postpone(&mut self, oid: &ObjectId, watcher: &Watcher, at: Instant) {
        if let Some(watch) = self.watch(oid, watcher) {
            watch.deadline = Some(at);
            self.due_at(Some(at));
        }
    }

    /// All watches.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (oid, watches) in &self.objects {
            rows.extend(watches.iter().map(|(watcher, w)| Row {
                oid: oid.clone(),
                watcher: *watcher,
                timeout: w.timeout.as_secs() as u32,
                addr: w.addr,
            }));
        }
        rows
    }
}
