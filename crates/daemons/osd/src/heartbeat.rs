//! Which of the other OSDs are pinged, and which are silent. No I/O: `now` is an argument.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use types::stats::{PingTimes, U32x3};
use types::{EntityAddrVec, OsdId, OsdMap, Utime};

/// How many OSDs one pings at least, if there are so many (Ceph: `osd_heartbeat_min_peers`).
pub const PEERS_MIN: usize = 10;

/// A pinged OSD's process.
#[derive(Debug)]
struct Peer {
    /// Addresses of its process, which a report names.
    process: EntityAddrVec,
    /// The back network first; the front one only if it is another.
    ways: SmallVec<[Way; 2]>,
    /// When the last pings left.
    pinged: Option<Instant>,
    /// When the monitors were told of its silence.
    reported: Option<Instant>,
}

/// How a peer is reached.
#[derive(Debug)]
struct Way {
    lane: Lane,
    /// The address that pings go to.
    at: EntityAddrVec,
    /// When it answered last, or when pinging began.
    heard: Instant,
    /// How long answers take.
    times: Times,
}

/// A network in which OSDs ping each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lane {
    /// That of OSDs among themselves (Ceph: `cluster_network`).
    Back,
    /// That of clients (Ceph: `public_network`).
    Front,
}

impl Lane {
    /// Both.
    pub const ALL: [Lane; 2] = [Lane::Back, Lane::Front];

    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Back => "back",
            Lane::Front => "front",
        }
    }
}

impl Peer {
    /// The way on which it has been silent for longest.
    fn quietest(&self) -> Option<&Way> {
        self.ways.iter().min_by_key(|w| w.heard)
    }

    fn silence(&self, osd: OsdId, now: Instant) -> Option<Silence> {
        let way = self.quietest()?;
        Some(Silence {
            osd,
            process: self.process.clone(),
            lane: way.lane,
            lasted: now.duration_since(way.heard),
        })
    }
}

/// Pings that are remembered until their answers come.
const UNDER_WAY_MAX: usize = 16;

/// How long a peer's answers took (Ceph: `HeartbeatInfo::hb_back_pingtime` in osd/OSD.h), in
/// microseconds.
#[derive(Debug, Default)]
struct Times {
    /// What the pings say that are under way, and when they left.
    under_way: VecDeque<(Utime, Instant)>,
    /// Since when the present minute is counted.
    since: Option<Instant>,
    now: Minute,
    /// The minutes before, the newest first.
    before: VecDeque<Minute>,
    last: u32,
    updated: Utime,
}

#[derive(Clone, Copy, Debug, Default)]
struct Minute {
    count: u32,
    total: u64,
    min: u32,
    max: u32,
}

impl Minute {
    fn add(&mut self, us: u32) {
        self.min = if self.count == 0 { us } else { self.min.min(us) };
        self.max = self.max.max(us);
        self.count += 1;
        self.total += u64::from(us);
    }
}

impl Times {
    fn left(&mut self, stamp: Utime, now: Instant) {
        self.under_way.push_back((stamp, now));
        if self.under_way.len() > UNDER_WAY_MAX {
            self.under_way.pop_front();
        }
    }

    /// The answer to the ping with this stamp. What left before it is not waited for any more.
    fn answered(&mut self, stamp: Utime, now: Instant, wall: Utime, minute: Duration) {
        let Some(at) = self.under_way.iter().position(|(s, _)| *s == stamp) else { return };
        let Some((_, left)) = self.under_way.drain(..=at).next_back() else { return };
        let us = u32::try_from(now.duration_since(left).as_micros()).unwrap_or(u32::MAX);
        (self.last, self.updated) = (us, wall);
        self.now.add(us);
        if now.duration_since(*self.since.get_or_insert(left)) >= minute {
            self.since = Some(now);
            self.before.push_front(std::mem::take(&mut self.now));
            self.before.truncate(15);
        }
    }

    /// Enters them. Nothing before the first minute has passed, as with Ceph.
    fn tell(&self, lane: Lane, to: &mut PingTimes) {
        if self.before.is_empty() {
            return;
        }
        let over = |of: fn(&[Minute]) -> u64| {
            let of = |n: usize| {
                let some: Vec<Minute> = self.before.iter().take(n).copied().collect();
                u32::try_from(of(&some)).unwrap_or(u32::MAX)
            };
            U32x3(of(1), of(5), of(15))
        };
        let average = over(|m| {
            m.iter().map(|m| m.total / u64::from(m.count.max(1))).sum::<u64>()
                / m.len().max(1) as u64
        });
        let min = over(|m| m.iter().map(|m| m.min).min().unwrap_or(0).into());
        let max = over(|m| m.iter().map(|m| m.max).max().unwrap_or(0).into());
        to.last_update = to.last_update.max(self.updated.sec);
        match lane {
            Lane::Back => {
                (to.back_pingtime, to.back_min, to.back_max, to.back_last) =
                    (average, min, max, self.last)
            }
            Lane::Front => {
                (to.front_pingtime, to.front_min, to.front_max, to.front_last) =
                    (average, min, max, self.last)
            }
        }
    }
}

/// What the monitors should be told of a silent OSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Which.
    pub osd: OsdId,
    /// Its process.
    pub process: EntityAddrVec,
    /// In which network.
    pub lane: Lane,
    /// For how long.
    pub lasted: Duration,
}

/// All pinged OSDs.
#[derive(Debug, Default)]
pub struct Heartbeats {
    peers: BTreeMap<OsdId, Peer>,
    looked: Option<Instant>,
}

/// Chooses the OSDs to ping: those that share PGs, and the next ones after us until there are
/// enough.
pub fn choose(map: &OsdMap, me: OsdId, sharing: BTreeSet<OsdId>) -> BTreeSet<OsdId> {
    let up = |o: &OsdId| *o != me && map.is_up(*o);
    let mut chosen: BTreeSet<OsdId> = sharing.into_iter().filter(up).collect();
    let n = map.max_osd();
    for i in 1..n {
        if chosen.len() >= PEERS_MIN {
            break;
        }
        let next = OsdId((me.0 + i).rem_euclid(n));
        if up(&next) {
            chosen.insert(next);
        }
    }
    chosen
}

impl Heartbeats {
    /// Takes the OSDs to ping from a map. A process that is new gets its full grace. Returns OSDs
    /// to close connections to.
    pub fn follow(&mut self, map: &OsdMap, chosen: &BTreeSet<OsdId>, now: Instant) -> Vec<OsdId> {
        let mut gone = Vec::new();
        self.peers.retain(|osd, p| {
            let stays =
                chosen.contains(osd) && map.osd(*osd).is_some_and(|o| o.client_addrs == p.process);
            if !stays {
                gone.push(*osd);
            }
            stays
        });
        for osd in chosen {
            let Some(o) = map.osd(*osd) else { continue };
            // An OSD that tells no address for pings cannot be watched.
            if o.hb_back_addrs.is_empty() {
                continue;
            }
            self.peers.entry(*osd).or_insert_with(|| {
                let front = Some(&o.hb_front_addrs)
                    .filter(|front| !front.is_empty() && **front != o.hb_back_addrs);
                let ways =
                    [Some((Lane::Back, &o.hb_back_addrs)), front.map(|at| (Lane::Front, at))];
                let way = |(lane, at): (Lane, &EntityAddrVec)| Way {
                    lane,
                    at: at.clone(),
                    heard: now,
                    times: Times::default(),
                };
                Peer {
                    process: o.client_addrs.clone(),
                    ways: ways.into_iter().flatten().map(way).collect(),
                    pinged: None,
                    reported: None,
                }
            });
        }
        gone
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.peers.clear();
    }

    /// The OSDs to ping now, and where. `stamp` is what the pings say.
    pub fn due(
        &mut self,
        now: Instant,
        interval: Duration,
        stamp: Utime,
    ) -> Vec<(OsdId, Lane, EntityAddrVec)> {
        // A thread that did not run could not hear: the time that it missed is no peer's silence.
        if let Some(missed) = self.looked.map(|t| now - t).filter(|gap| *gap > interval) {
            for w in self.peers.values_mut().flat_map(|p| &mut p.ways) {
                w.heard = (w.heard + missed).min(now);
            }
        }
        self.looked = Some(now);
        let due = |p: &Peer| p.pinged.is_none_or(|t| now.duration_since(t) >= interval);
        let mut out = Vec::new();
        for (osd, p) in self.peers.iter_mut().filter(|(_, p)| due(p)) {
            p.pinged = Some(now);
            for w in &mut p.ways {
                w.times.left(stamp, now);
                out.push((*osd, w.lane, w.at.clone()));
            }
        }
        out
    }

    /// The connection to a peer broke: it is pinged again at once.
    pub fn lost(&mut self, osd: OsdId) {
        if let Some(p) = self.peers.get_mut(&osd) {
            p.pinged = None;
        }
    }

    /// An answer to the ping with this stamp. Returns the process with a report to take back, if
    /// there is one: when it has answered in all networks since. Times are told of spans of a
    /// `minute`.
    pub fn answered(
        &mut self,
        osd: OsdId,
        lane: Lane,
        now: Instant,
        stamp: Utime,
        wall: Utime,
        minute: Duration,
    ) -> Option<EntityAddrVec> {
        let p = self.peers.get_mut(&osd)?;
        let way = p.ways.iter_mut().find(|w| w.lane == lane)?;
        way.heard = now;
        way.times.answered(stamp, now, wall, minute);
        let heard = p.quietest()?.heard;
        p.reported.take_if(|reported| heard >= *reported).map(|_| p.process.clone())
    }

    /// A peer's address refuses connections. What to report, unless that was done a moment ago.
    pub fn refused(&mut self, osd: OsdId, now: Instant, again: Duration) -> Option<Silence> {
        let p = self.peers.get_mut(&osd)?;
        if p.reported.is_some_and(|t| now.duration_since(t) < again) {
            return None;
        }
        p.reported = Some(now);
        p.silence(osd, now)
    }

    /// The OSDs that have been silent for too long; each is reported again after `again`, because
    /// reports live in the memory of one monitor.
    pub fn silent(&mut self, now: Instant, grace: Duration, again: Duration) -> Vec<Silence> {
        let mut out = Vec::new();
        for (osd, p) in &mut self.peers {
            let Some(silence) = p.silence(*osd, now) else { continue };
            if silence.lasted >= grace && p.reported.is_none_or(|t| now.duration_since(t) >= again)
            {
                p.reported = Some(now);
                out.push(silence);
            }
        }
        out
    }

    /// Whether a part of the pinged OSDs answered within a time, in all networks; true if none is
    /// pinged.
    pub fn are_heard(&self, now: Instant, within: Duration, part: f64) -> bool {
        let heard = |p: &&Peer| p.quietest().is_some_and(|w| now.duration_since(w.heard) <= within);
        self.peers.values().filter(heard).count() as f64 >= self.peers.len() as f64 * part
    }

    /// When a peer answered last in a network, or pinging began.
    pub fn heard(&self, osd: OsdId, lane: Lane) -> Option<Instant> {
        self.peers.get(&osd)?.ways.iter().find(|w| w.lane == lane).map(|w| w.heard)
    }

    /// The OSDs that are pinged.
    pub fn peers(&self) -> Vec<OsdId> {
        self.peers.keys().copied().collect()
    }

    /// How long the answers of each took.
    pub fn times(&self) -> BTreeMap<OsdId, PingTimes> {
        let told = |p: &Peer| {
            let mut times = PingTimes::default();
            p.ways.iter().for_each(|w| w.times.tell(w.lane, &mut times));
            (times != PingTimes::default()).then_some(times)
        };
        self.peers.iter().filter_map(|(osd, p)| Some((*osd, told(p)?))).collect()
    }

    /// For the admin socket: seconds since each peer was heard.
    pub fn ages(&self, now: Instant) -> FxHashMap<OsdId, f64> {
        self.peers
            .iter()
            .map(|(o, p)| {
                (*o, p.quietest().map_or(0.0, |w| now.duration_since(w.heard).as_secs_f64()))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::EntityAddr;
    use types::osdmap::Osd;
    use types::rados::osd_state;

    fn addrs(port: u16) -> EntityAddrVec {
        EntityAddrVec::one(EntityAddr::msgr2(([127, 0, 0, 1], port).into(), 7))
    }

    fn map(n: u16) -> OsdMap {
        let osd = |i: u16| Osd {
            state: osd_state::EXISTS | osd_state::UP,
            client_addrs: addrs(1000 + i),
            hb_back_addrs: addrs(2000 + i),
            ..Osd::default()
        };
        OsdMap {
            osds: (0..n).map(osd).collect(),
            weights: vec![0x10000; n.into()],
            ..OsdMap::default()
        }
    }

    const INTERVAL: Duration = Duration::from_secs(6);
    const GRACE: Duration = Duration::from_secs(20);
    const AGAIN: Duration = Duration::from_secs(5);
    const MINUTE: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Utime {
        Utime::new(1_000 + s as u32, 0)
    }

    fn pinging(n: u16) -> (Heartbeats, Instant) {
        let (mut h, start, map) = (Heartbeats::default(), Instant::now(), map(n));
        let chosen = choose(&map, OsdId(0), BTreeSet::new());
        assert!(h.follow(&map, &chosen, start).is_empty());
        (h, start)
    }

    #[test]
    fn few_are_all_pinged_and_of_many_the_next_ones() {
        assert_eq!(choose(&map(3), OsdId(1), BTreeSet::new()), [OsdId(0), OsdId(2)].into());
        let chosen = choose(&map(50), OsdId(45), [OsdId(20), OsdId(45)].into());
        assert_eq!(chosen.len(), PEERS_MIN);
        assert!(
            chosen.contains(&OsdId(20))
                && chosen.contains(&OsdId(46))
                && chosen.contains(&OsdId(4))
        );
        assert!(!chosen.contains(&OsdId(45)));
        let mut m = map(3);
        m.osds[2].state = osd_state::EXISTS;
        assert_eq!(choose(&m, OsdId(1), [OsdId(2)].into()), [OsdId(0)].into());
    }

    #[test]
    fn silence_is_reported_again_and_again_until_an_answer() {
        let (mut h, start) = pinging(3);
        let mut reports = Vec::new();
        for s in 0..40 {
            let now = start + Duration::from_secs(s);
            let pinged = h.due(now, INTERVAL, at(s));
            assert_eq!(pinged.len(), if s % 6 == 0 { 2 } else { 0 }, "second {s}");
            for (osd, lane, place) in pinged {
                assert_eq!(place, addrs(2000 + osd.0 as u16));
                if osd == OsdId(1) {
                    assert_eq!(h.answered(osd, lane, now, at(s), at(s), MINUTE), None);
                }
            }
            reports.extend(h.silent(now, GRACE, AGAIN).into_iter().map(|r| (s, r.osd, r.process)));
        }
        let seconds: Vec<u64> = reports.iter().map(|r| r.0).collect();
        assert_eq!(seconds, [20, 25, 30, 35]);
        assert!(reports.iter().all(|r| r.1 == OsdId(2) && r.2 == addrs(1002)));
        let now = start + Duration::from_secs(40);
        assert_eq!(
            h.answered(OsdId(2), Lane::Back, now, at(36), at(40), MINUTE),
            Some(addrs(1002)),
            "the report is taken back"
        );
        assert_eq!(h.answered(OsdId(2), Lane::Back, now, at(36), at(40), MINUTE), None);
    }

    #[test]
    fn a_pause_of_our_own_blames_nobody() {
        let (mut h, start) = pinging(3);
        h.due(start, INTERVAL, at(0));
        h.answered(OsdId(1), Lane::Back, start, at(0), at(0), MINUTE);
        let later = start + Duration::from_secs(300);
        h.due(later, INTERVAL, at(300));
        assert_eq!(h.silent(later, GRACE, AGAIN), []);
    }

    #[test]
    fn a_new_process_starts_anew() {
        let (mut h, start) = pinging(3);
        let later = start + GRACE;
        let mut m = map(3);
        m.osds[2].client_addrs = addrs(1777);
        assert_eq!(h.follow(&m, &[OsdId(1), OsdId(2)].into(), later), [OsdId(2)]);
        assert_eq!(
            h.silent(later, GRACE, AGAIN).iter().map(|s| s.osd).collect::<Vec<_>>(),
            [OsdId(1)]
        );
        assert_eq!(h.follow(&m, &[OsdId(2)].into(), later), [OsdId(1)]);
    }

    #[test]
    fn refusal_is_reported_at_once() {
        let (mut h, start) = pinging(2);
        let now = start + Duration::from_millis(10);
        assert_eq!(h.refused(OsdId(1), now, AGAIN).map(|s| s.process), Some(addrs(1001)));
        assert_eq!(h.refused(OsdId(1), now, AGAIN), None);
        assert!(h.refused(OsdId(1), now + AGAIN, AGAIN).is_some());
        assert_eq!(h.refused(OsdId(7), now, AGAIN), None);
    }

    #[test]
    fn times_are_told_by_minutes() {
        let (mut h, start) = pinging(3);
        let (one, two) = (OsdId(1), OsdId(2));
        // Sixteen minutes: osd.1 answers after a millisecond, and after three in the last minute;
        // osd.2 never.
        for ping in 0..16 * 60 / 6u64 {
            let s = ping * 6;
            let now = start + Duration::from_secs(s);
            assert_eq!(h.due(now, INTERVAL, at(s)).len(), 2);
            let us = if s >= 15 * 60 { 3_000 } else { 1_000 + ping % 2 };
            h.answered(one, Lane::Back, now + Duration::from_micros(us), at(s), at(s), MINUTE);
            assert_eq!(h.times().contains_key(&one), s >= 60, "second {s}");
        }
        let t = h.times()[&one];
        assert_eq!((t.back_last, t.last_update), (3_000, at(954).sec));
        assert_eq!(
            (t.back_min, t.back_max),
            (U32x3(1_000, 1_000, 1_000), U32x3(3_000, 3_000, 3_000))
        );
        assert!(
            t.back_pingtime.0 > t.back_pingtime.1 && t.back_pingtime.1 > t.back_pingtime.2,
            "{t:?}"
        );
        assert!(!h.times().contains_key(&two));
        assert_eq!(h.peers(), [one, two]);
        // An answer to a ping that left long ago took as long as it did, and one to no ping says
        // nothing.
        let late = start + Duration::from_secs(954 + 50);
        h.answered(two, Lane::Back, late, at(954), at(1004), Duration::ZERO);
        assert_eq!(h.times()[&two].back_last, 50_000_000);
        h.answered(two, Lane::Back, late, at(954), at(1004), Duration::ZERO);
        h.answered(two, Lane::Back, late, at(5), at(1004), Duration::ZERO);
        assert_eq!(h.times()[&two].back_last, 50_000_000);
    }

    #[test]
    fn who_hears_too_few_knows_it() {
        let (mut h, start) = pinging(5);
        let (within, part) = (2 * INTERVAL, 0.33);
        assert!(
            Heartbeats::default().are_heard(start, within, part),
            "nobody is there to be heard"
        );
        assert!(h.are_heard(start + within, within, part), "all had their time");
        let later = start + within + Duration::from_secs(1);
        assert!(!h.are_heard(later, within, part));
        // One of four is not a third of them.
        for (osd, enough) in [(OsdId(1), false), (OsdId(3), true)] {
            h.answered(osd, Lane::Back, later, at(0), at(13), MINUTE);
            assert_eq!(h.are_heard(later, within, part), enough);
        }
    }

    #[test]
    fn silence_in_one_network_is_silence() {
        let (mut h, start) = (Heartbeats::default(), Instant::now());
        let mut m = map(2);
        m.osds[1].hb_front_addrs = addrs(3001);
        h.follow(&m, &[OsdId(1)].into(), start);
        let places = |due: Vec<(OsdId, Lane, EntityAddrVec)>| {
            due.into_iter().map(|(_, lane, at)| (lane, at)).collect::<Vec<_>>()
        };
        assert_eq!(
            places(h.due(start, INTERVAL, at(0))),
            [(Lane::Back, addrs(2001)), (Lane::Front, addrs(3001))]
        );
        for s in (0..=18).step_by(6) {
            let now = start + Duration::from_secs(s);
            h.due(now, INTERVAL, at(s));
            h.answered(
                OsdId(1),
                Lane::Front,
                now + Duration::from_millis(1),
                at(s),
                at(s),
                Duration::ZERO,
            );
        }
        let now = start + GRACE;
        let silent = h.silent(now, GRACE, AGAIN);
        assert_eq!(
            silent.iter().map(|s| (s.osd, s.lane, s.lasted)).collect::<Vec<_>>(),
            [(OsdId(1), Lane::Back, GRACE)]
        );
        // It is not taken back before both answer.
        let later = now + Duration::from_secs(1);
        assert_eq!(h.answered(OsdId(1), Lane::Front, later, at(18), at(21), Duration::ZERO), None);
        assert_eq!(
            h.answered(OsdId(1), Lane::Back, later, at(18), at(21), Duration::ZERO),
            Some(addrs(1001))
        );
        let t = h.times()[&OsdId(1)];
        assert_eq!(
            (t.back_last, t.front_last, t.last_update),
            (3_000_000, 1_000, at(21).sec),
            "one ping has one answer"
        );
        // The same place for both is pinged once.
        m.osds[1].hb_front_addrs = addrs(2001);
        let mut h = Heartbeats::default();
        h.follow(&m, &[OsdId(1)].into(), start);
        assert_eq!(places(h.due(start, INTERVAL, at(0))), [(Lane::Back, addrs(2001))]);
    }
}
