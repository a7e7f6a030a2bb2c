//! The host's part of scrub: when, how many at a time, and what a collection holds.
//!
//! An OSD takes part in `osd_max_scrubs` scrubs, its own and those of other primaries together. A
//! PG does not wait while it has a reservation: a replica without one says no, and the primary
//! gives back what it has and tries again later. PGs with an overdue scrub have further
//! reservations, the more the later they are ([`scrub_schedule::turns`]).
//!
//! What there is, is found out by slices: each reads a bounded number of bytes or rows, and then
//! waits in the scheduler behind everything that is more important.

use crate::client_op::Slot;
use crate::collections::is_own_key;
use crate::core::Core;
use crate::host::PgHost;
use crate::host_background::LISTED;
use crate::scrubs::{Omap, Reading, Scan, ScrubRules, ScrubSettings, Turns};
use crate::waits::Reason;
use admission::meter::Receipt;
use admission::work::Kind;
use bytes::{Bytes, BytesMut};
use client::wall_clock;
use denc::crc::{Sum, crc32c};
use denc::{Encode, Features};
use pg::scrub::shards::{FOLD_BYTES, fold};
use pg::scrub_schedule::{self, Rules};
use pg::{Backfill, Event, ReadToken, ScrubKind, ScrubMap, ScrubObject};
use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;
use std::time::{Duration, Instant};
use store::StoreError;
use types::{ObjectId, PgId, SpgId};

/// Keys that are read at a time.
const PAGE: usize = 256;
/// Objects of which one slice reads the attributes.
const OBJECTS_A_SLICE: usize = 16;
/// Without mClock, while clients are at work, a slice is followed by a pause of this many times its
/// own length (see [`crate::host_trim`]), ...
const PAUSE: u32 = 3;
/// ... but not longer than this: writers may be waiting for the scrub.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How long a scrub that could not begin waits, at least and at most.
const AGAIN: std::ops::Range<u64> = 500..2500;

/// Two numbers from 0 to 1 that only change with what they are made of.
fn draw(pgid: SpgId, stamp: types::Utime) -> [f64; 2] {
    let mut bytes = BytesMut::new();
    pgid.encode(&mut bytes, Features::ALL);
    stamp.encode(&mut bytes, Features::ALL);
    [1, 2].map(|seed| f64::from(crc32c(seed, &bytes)) / f64::from(u32::MAX))
}

/// Hour and day of the week, where this process is.
fn local_time() -> (u32, u32) {
    let seconds = libc::time_t::from(wall_clock().sec);
    // SAFETY: all-zero bytes are a `tm` (numbers, and a pointer that may be null).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to valid memory of their types, which is not shared.
    unsafe { libc::localtime_r(&seconds, &mut tm) };
    (u32::try_from(tm.tm_hour).unwrap_or(0), u32::try_from(tm.tm_wday).unwrap_or(0))
}

impl Core {
    /// An operator wants PGs scrubbed that this OSD leads.
    pub fn want_scrub(&self, pgids: impl IntoIterator<Item = PgId>, deep: bool, repair: bool) {
        // A repair compares everything.
        let kind = ScrubKind { deep: deep || repair, repair, check: false };
        for pgid in pgids {
            if let Some(host) = self.leading(pgid) {
                let mut scrubs = self.reservations.scrubs.borrow_mut();
                scrubs.wanted.insert(host.id, kind);
                scrubs.later.remove(&host.id);
            }
        }
        self.next_scrubs();
    }

    /// Scrubs that go on here: led from here, and led from elsewhere.
    pub fn scrubbing_groups(&self) -> (usize, usize) {
        let s = self.reservations.scrubs.borrow();
        (s.own.len(), s.others.len())
    }

    /// PGs with a scrub that was asked for and has not begun.
    pub fn wanted_scrubs(&self) -> Vec<(SpgId, ScrubKind)> {
        self.reservations.scrubs.borrow().wanted.iter().map(|(p, k)| (*p, *k)).collect()
    }

    /// Begins what is wanted or due, as far as there are turns. Called now and then.
    pub fn next_scrubs(&self) {
        let settings = self.settings();
        let now = Instant::now();
        if self.reservations.scrubs.borrow().rest.is_some_and(|at| at > now) {
            return;
        }
        let turns = self.scrub_turns(&settings.scrub);
        let mut candidates: Vec<(SpgId, ScrubKind)> = self.wanted_scrubs();
        if self.reservations.scrubs.borrow().has_turn(turns, true) {
            candidates.extend(self.due_scrubs(&settings.scrub));
        }
        for (pgid, kind) in candidates {
            let Some(host) = self.host(pgid) else {
                self.reservations.scrubs.borrow_mut().wanted.remove(&pgid);
                continue;
            };
            if !host.with_pg(|pg| pg.is_primary()) {
                self.reservations.scrubs.borrow_mut().wanted.remove(&pgid);
                continue;
            }
            if !host.with_pg(|pg| pg.is_active() && pg.is_clean()) {
                continue;
            }
            {
                let late = self.scrub_lateness(&host, &settings.scrub) > 0.0;
                let mut s = self.reservations.scrubs.borrow_mut();
                if !s.has_turn(turns, true) {
                    break;
                }
                if !s.has_turn(turns, late) || !s.may_try(pgid, now) {
                    continue;
                }
                let wanted = s.wanted.remove(&pgid).is_some();
                s.own.insert(pgid, (kind, wanted));
            }
            host.handle(Event::StartScrub(kind));
        }
    }

    /// A map came: it may forbid scrubs that go on.
    pub fn check_scrub_flags(&self) {
        for host in self.hosts() {
            host.check_scrub_flags();
        }
    }

    /// When PGs of this pool are scrubbed.
    fn rules_of_scrubs(&self, pool: ScrubRules, s: &ScrubSettings) -> Rules {
        Rules {
            min_interval: pool.min_interval.unwrap_or(s.min_interval),
            max_interval: pool.max_interval.unwrap_or(s.max_interval),
            deep_interval: pool.deep_interval.unwrap_or(s.deep_interval),
            randomize: s.randomize,
            deep_randomize: s.deep_randomize,
            no_scrub: pool.no_scrub,
            no_deep_scrub: pool.no_deep_scrub,
            permitted: scrub_schedule::permitted(local_time(), s.begin, s.end),
        }
    }

    /// By which part of its interval the scrub of this PG is late, whichever OSD is its primary.
    fn scrub_lateness(&self, host: &PgHost, s: &ScrubSettings) -> f64 {
        let Some(map) = self.map() else { return 0.0 };
        let rules = self.rules_of_scrubs(map.scrub_rules(host.pgid.pool), s);
        // What cannot be scrubbed does not make an OSD hurry. Of PGs that others lead, only these
        // know that.
        let history = host.with_pg(|pg| {
            (!pg.info().removing && (!pg.is_primary() || pg.is_clean())).then(|| pg.info().history)
        });
        history.map_or(0.0, |h| scrub_schedule::lateness(wall_clock(), &h, &rules))
    }

    /// How many scrubs this OSD takes part in now.
    fn scrub_turns(&self, s: &ScrubSettings) -> Turns {
        let latest = self.hosts().iter().map(|h| self.scrub_lateness(h, s)).fold(0.0, f64::max);
        Turns { most: s.most, late: scrub_schedule::turns(s.most, s.overdue_factor, latest) }
    }

    /// What is due: what is late first, the latest before others, and then what has waited longest.
    fn due_scrubs(&self, s: &ScrubSettings) -> Vec<(SpgId, ScrubKind)> {
        let Some(map) = self.map() else { return Vec::new() };
        let now = wall_clock();
        let mut due = Vec::new();
        for host in self.hosts() {
            let Some((history, pgid)) = host.with_pg(|pg| {
                (pg.is_primary() && pg.is_clean()).then(|| (pg.info().history, pg.spgid()))
            }) else {
                continue;
            };
            let rules = self.rules_of_scrubs(map.scrub_rules(pgid.pgid.pool), s);
            if let Some(kind) =
                scrub_schedule::due(now, &history, &rules, draw(pgid, history.last_scrub_stamp))
            {
                due.push((
                    scrub_schedule::lateness(now, &history, &rules),
                    history.last_scrub_stamp,
                    pgid,
                    kind,
                ));
            }
        }
        due.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        due.into_iter().map(|(_, _, pgid, kind)| (pgid, kind)).collect()
    }
}

impl PgHost {
    /// The primary on another OSD asks for a turn.
    pub(crate) fn reserve_scrub(self: &Rc<Self>) {
        let settings = self.core.settings();
        let (turns, late) = (
            self.core.scrub_turns(&settings.scrub),
            self.core.scrub_lateness(self, &settings.scrub) > 0.0,
        );
        let granted = {
            let mut s = self.core.reservations.scrubs.borrow_mut();
            let granted = s.others.contains(&self.id) || s.has_turn(turns, late);
            if granted {
                s.others.insert(self.id);
            }
            granted
        };
        self.handle(Event::ScrubSlot { granted });
    }

    /// That turn is given back.
    pub(crate) fn release_scrub(&self) {
        self.core.reservations.scrubs.borrow_mut().others.remove(&self.id);
    }

    /// The own scrub is over.
    pub(crate) fn scrub_ended(&self, ran: bool, again: Option<ScrubKind>) {
        let mut s = self.core.reservations.scrubs.borrow_mut();
        let begun = s.own.remove(&self.id);
        if ran {
            self.note_scrubbed();
            s.later.remove(&self.id);
            if let Some(kind) = again {
                s.wanted.entry(self.id).or_insert(kind);
            }
        } else {
            if let Some((kind, true)) = begun {
                s.wanted.entry(self.id).or_insert(kind);
            }
            let wait = AGAIN.start + rand::random::<u64>() % (AGAIN.end - AGAIN.start);
            let again = Instant::now() + Duration::from_millis(wait);
            s.later.insert(self.id, again);
            s.rest = Some(again);
        }
        drop(s);
        // The manager should see the end soon, and others have waited for the turn.
        self.core.pgs.changed.notify_one();
        let core = self.core.clone();
        tokio::task::spawn_local(async move { core.next_scrubs() });
    }

    /// The interval ended: all turns are void.
    pub(crate) fn leave_scrub(&self) {
        self.scans.borrow_mut().clear();
        let mut s = self.core.reservations.scrubs.borrow_mut();
        if let Some((kind, true)) = s.own.remove(&self.id) {
            // If this OSD still leads the PG when it is clean again.
            s.wanted.entry(self.id).or_insert(kind);
        }
        s.others.remove(&self.id);
    }

    /// The map has changed: scrubs that it forbids now stop, unless an operator asked for them.
    pub(crate) fn check_scrub_flags(self: &Rc<Self>) {
        let Some(kind) = self.with_pg(|pg| pg.scrubbing()) else { return };
        let Some(map) = self.core.map() else { return };
        let rules = map.scrub_rules(self.pgid.pool);
        let forbidden = if kind.deep { rules.no_deep_scrub } else { rules.no_scrub };
        let wanted = self
            .core
            .reservations
            .scrubs
            .borrow()
            .own
            .get(&self.id)
            .is_some_and(|(_, wanted)| *wanted);
        if forbidden && !wanted {
            self.handle(Event::StopScrub);
        }
    }

    /// Writers that waited for the scrub go on.
    pub(crate) fn resume_scrub_waiters(self: &Rc<Self>) {
        let ops = self.st.borrow_mut().waits.take_ops(&Reason::Scrub);
        self.core.resume_all(ops.collect());
    }

    /// The machine wants to know what is here.
    pub(crate) fn begin_scan(
        self: &Rc<Self>,
        token: ReadToken,
        after: Backfill,
        upto: Backfill,
        deep: bool,
        max: usize,
    ) {
        self.scans.borrow_mut().insert(
            token.0,
            Scan {
                after,
                upto,
                deep,
                max,
                listed: None,
                current: None,
                map: ScrubMap::default(),
                bytes: 0,
            },
        );
        self.background(Kind::Scan(token));
    }

    /// One slice of a scan, which the scheduler let in.
    pub(crate) async fn scan_slice(
        self: &Rc<Self>,
        token: ReadToken,
        slot: Slot,
        receipt: Receipt,
    ) {
        let generation = self.generation.get();
        let (begun, clients) = (Instant::now(), self.core.admission.clients_started());
        let Some(mut scan) = self.scans.borrow_mut().remove(&token.0) else { return };
        let done = scan.slice(self).await;
        self.core.admission.has_read(&receipt, std::mem::take(&mut scan.bytes));
        drop(slot);
        if self.generation.get() != generation {
            return;
        }
        match done {
            Err(why) => self.core.health.fail(format!("{}: cannot be scrubbed: {why}", self.pgid)),
            Ok(true) => self.handle(Event::Scanned { token, map: scan.map }),
            Ok(false) => {
                self.scans.borrow_mut().insert(token.0, scan);
                let scrub = self.core.settings().scrub;
                let busy = scrub.gently && self.core.admission.clients_started() != clients;
                let pause =
                    if busy { (begun.elapsed() * PAUSE).min(PAUSE_MAX) } else { Duration::ZERO };
                let sleep = scrub.sleep.max(pause);
                if sleep.is_zero() {
                    self.background(Kind::Scan(token));
                    return;
                }
                let host = self.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(sleep).await;
                    if host.generation.get() == generation {
                        host.background(Kind::Scan(token));
                    }
                });
            }
        }
    }

    /// Names after `after`, up to and with `upto`, about `max`; and up to where these are all.
    async fn names(
        &self,
        after: &Backfill,
        upto: &Backfill,
        max: usize,
    ) -> Result<(VecDeque<ObjectId>, Backfill), StoreError> {
        let mut names: VecDeque<ObjectId> = VecDeque::new();
        let mut start = match after {
            Backfill::Complete => return Ok((names, Backfill::Complete)),
            Backfill::Nothing => Bytes::new(),
            Backfill::UpTo(oid) => oid.to_key(),
        };
        loop {
            let page = self.core.store.list(self.coll, &start, None, PAGE).await?;
            for key in page.keys {
                if is_own_key(&key) {
                    continue;
                }
                let oid = ObjectId::from_key(&key)
                    .map_err(|e| StoreError::Corrupt(format!("key {key:?}: {e}")))?;
                if after.covers(&oid) {
                    continue;
                }
                if !upto.covers(&oid) {
                    return Ok((names, upto.clone()));
                }
                if names.len() >= max.max(1)
                    && let Some(last) = names.back().filter(|l| l.head() != oid.head())
                {
                    let end = Backfill::after(last);
                    return Ok((names, end));
                }
                // The name would otherwise hold the whole page.
                names.push_back(oid.detached());
            }
            match page.next {
                Some(next) => start = next,
                None => return Ok((names, upto.clone())),
            }
        }
    }
}

impl Scan {
    /// Does a bounded amount of work; whether that was the last.
    async fn slice(&mut self, host: &PgHost) -> Result<bool, StoreError> {
        let s = host.core.settings().scrub;
        if self.listed.is_none() {
            let (names, upto) = host.names(&self.after, &self.upto, self.max).await?;
            self.map.upto = upto;
            self.listed = Some(names);
        }
        for _ in 0..OBJECTS_A_SLICE {
            if self.current.is_none() {
                let Some(oid) = self.listed.as_mut().and_then(|l| l.pop_front()) else {
                    return Ok(true);
                };
                self.bytes += LISTED;
                let Some(object) = look(host, &oid).await? else { continue };
                self.current = Some(Reading {
                    oid,
                    object,
                    data_to: 0,
                    data: Sum::EMPTY,
                    fold: [0; FOLD_BYTES],
                    omap: Omap::Header,
                });
            }
            let Some(reading) = &mut self.current else { continue };
            // A deep scrub reads a stride, and then lets others go first.
            let before = reading.bytes();
            let whole = !self.deep || reading.read(host, &s).await?;
            self.bytes += reading.bytes().saturating_sub(before);
            if whole && let Some(r) = self.current.take() {
                self.map.objects.insert(r.oid, r.object);
            }
            if self.deep {
                break;
            }
        }
        Ok(self.current.is_none() && self.listed.as_ref().is_some_and(|l| l.is_empty()))
    }
}

/// Size and attributes; `None` if the object was removed meanwhile.
async fn look(host: &PgHost, oid: &ObjectId) -> Result<Option<ScrubObject>, StoreError> {
    let (store, key) = (&host.core.store, oid.to_key());
    let size = match store.stat(host.coll, &key).await {
        Ok(stat) => stat.size,
        Err(StoreError::NoObject { .. }) => return Ok(None),
        Err(e) => return Err(e),
    };
    match store.get_attrs(host.coll, &key).await {
        Ok(attrs) => Ok(Some(ScrubObject {
            size,
            attrs: attrs.into_iter().collect(),
            ..ScrubObject::default()
        })),
        Err(StoreError::NoObject { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Reading {
    /// Bytes that were read so far.
    fn bytes(&self) -> u64 {
        self.data_to + self.object.omap_bytes
    }

    /// Reads the next part of data or omap; whether nothing is left.
    async fn read(&mut self, host: &PgHost, s: &ScrubSettings) -> Result<bool, StoreError> {
        let (store, key) = (&host.core.store, self.oid.to_key());
        let o = &mut self.object;
        if o.data_digest.is_none() && !o.read_error {
            let len = s.stride.max(4096).min(o.size.saturating_sub(self.data_to));
            if len > 0 {
                if host.is_coded() {
                    // What is damaged is found by the look at the device below.
                    if let Ok(data) = store.read(host.coll, &key, self.data_to, len).await {
                        fold(&mut self.fold, self.data_to, &data.to_bytes());
                    }
                }
                match store.verify(host.coll, &key, self.data_to, len).await {
                    Ok(sum) => {
                        self.data = self.data.then(sum);
                        self.data_to += len;
                    }
                    Err(StoreError::Checksum { .. } | StoreError::Io(_)) => {
                        tracing::error!(pg = %host.pgid, oid = %self.oid, "a scrub cannot read the object");
                        o.read_error = true;
                    }
                    // Removed meanwhile: what is said of it is not used.
                    Err(StoreError::NoObject { .. }) => return Ok(true),
                    Err(e) => return Err(e),
                }
            }
            if !o.read_error && self.data_to >= o.size {
                o.data_digest = Some(self.data.crc());
                if host.is_coded() {
                    o.fold = Some(Bytes::copy_from_slice(&self.fold));
                }
            }
            return Ok(false);
        }
        match &mut self.omap {
            Omap::Header => match store.omap_header(host.coll, &key).await {
                Ok(header) => {
                    self.omap = Omap::Rows(None, crc32c(u32::MAX, &header));
                    Ok(false)
                }
                Err(StoreError::NoObject { .. }) => Ok(true),
                Err(e) => Err(e),
            },
            Omap::Rows(last, sum) => {
                let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let page = match store
                    .omap_iter(host.coll, &key, from, s.keys.max(1), s.stride.max(4096) as usize)
                    .await
                {
                    Ok(page) => page,
                    Err(StoreError::NoObject { .. }) => return Ok(true),
                    Err(e) => return Err(e),
                };
                for (k, v) in &page.rows {
                    // As Ceph sums them: each with its length before it.
                    for part in [k, v] {
                        *sum = crc32c(
                            *sum,
                            &u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes(),
                        );
                        *sum = crc32c(*sum, part);
                    }
                    o.omap_keys += 1;
                    o.omap_bytes += (k.len() + v.len()) as u64;
                }
                if page.more
                    && let Some((k, _)) = page.rows.last()
                {
                    *last = Some(k.clone());
                    return Ok(false);
                }
                o.omap_digest = Some(*sum);
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrubs::Scrubs;
    use types::{PoolId, Utime};

    #[test]
    fn what_is_drawn_is_spread_and_stays() {
        let pg = |seed| SpgId::from(PgId { pool: PoolId(1), seed });
        let stamp = Utime { sec: 1_000_000_000, nsec: 5 };
        assert_eq!(draw(pg(1), stamp), draw(pg(1), stamp));
        let all: Vec<f64> = (0..400).flat_map(|i| draw(pg(i), stamp)).collect();
        assert!(all.iter().all(|x| (0.0..=1.0).contains(x)));
        for tenth in 0..10 {
            let n = all.iter().filter(|x| (**x * 10.0) as u32 == tenth).count();
            assert!((40..130).contains(&n), "{n} of 800 in the {tenth}th tenth");
        }
    }

    #[test]
    fn turns_are_counted_together() {
        let mut s = Scrubs::default();
        let pg = |seed| SpgId::from(PgId { pool: PoolId(1), seed });
        let is_full = |s: &Scrubs, most| !s.has_turn(Turns { most, late: most }, false);
        assert!(!is_full(&s, 1) && !is_full(&s, 0));
        s.others.insert(pg(1));
        assert!(is_full(&s, 1) && is_full(&s, 0) && !is_full(&s, 2));
        s.own.insert(pg(2), (ScrubKind::default(), true));
        let now = Instant::now();
        // The further turns are for what is late.
        let turns = Turns { most: 2, late: 3 };
        assert!(!s.has_turn(turns, false) && s.has_turn(turns, true));
        assert!(is_full(&s, 2) && !s.may_try(pg(2), now) && s.may_try(pg(3), now));
        s.later.insert(pg(3), now + Duration::from_secs(1));
        assert!(!s.may_try(pg(3), now) && s.may_try(pg(3), now + Duration::from_secs(1)));
    }
}
