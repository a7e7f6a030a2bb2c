//! Who of the other OSDs is pinged, and who is silent. No I/O: `now` is an argument.

use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use types::{EntityAddrVec, OsdId, OsdMap};

/// How many OSDs one pings at least, if there are so many (Ceph: `osd_heartbeat_min_peers`).
pub const PEERS_MIN: usize = 10;

/// A pinged OSD's process.
#[derive(Debug)]
struct Peer {
    /// Addresses of its process, which a report names.
    process: EntityAddrVec,
    /// Where its pings go.
    at: EntityAddrVec,
    /// When it answered last, or when pinging began.
    heard: Instant,
    /// When the last ping left.
    pinged: Option<Instant>,
    /// When the monitors were told of its silence.
    reported: Option<Instant>,
}

/// What the monitors should be told of a silent OSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Which.
    pub osd: OsdId,
    /// Its process.
    pub process: EntityAddrVec,
    /// For how long.
    pub lasted: Duration,
}

/// All pinged OSDs.
#[derive(Debug, Default)]
pub struct Heartbeats {
    peers: BTreeMap<OsdId, Peer>,
    looked: Option<Instant>,
}

/// Chooses the OSDs to ping: those that share groups, and the next ones after us until there are enough.
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
    /// Takes who is to be pinged from a map. A process that is new gets its full grace. Returns those whose
    /// connections are to be closed.
    pub fn follow(&mut self, map: &OsdMap, chosen: &BTreeSet<OsdId>, now: Instant) -> Vec<OsdId> {
        let mut gone = Vec::new();
        self.peers.retain(|osd, p| {
            let stays = chosen.contains(osd) && map.osd(*osd).is_some_and(|o| o.client_addrs == p.process);
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
            self.peers.entry(*osd).or_insert_with(|| Peer {
                process: o.client_addrs.clone(),
                at: o.hb_back_addrs.clone(),
                heard: now,
                pinged: None,
                reported: None,
            });
        }
        gone
    }

    /// Forgets everybody.
    pub fn clear(&mut self) {
        self.peers.clear();
    }

    /// Who is to be pinged now, and where.
    pub fn due(&mut self, now: Instant, interval: Duration) -> Vec<(OsdId, EntityAddrVec)> {
        // Who did not run could not hear: time that this thread missed is nobody's silence.
        if let Some(missed) = self.looked.map(|t| now - t).filter(|gap| *gap > interval) {
            for p in self.peers.values_mut() {
                p.heard = (p.heard + missed).min(now);
            }
        }
        self.looked = Some(now);
        let due = |p: &Peer| p.pinged.is_none_or(|t| now.duration_since(t) >= interval);
        let mut out = Vec::new();
        for (osd, p) in self.peers.iter_mut().filter(|(_, p)| due(p)) {
            p.pinged = Some(now);
            out.push((*osd, p.at.clone()));
        }
        out
    }

    /// The connection to a peer broke: it is pinged again at once.
    pub fn lost(&mut self, osd: OsdId) {
        if let Some(p) = self.peers.get_mut(&osd) {
            p.pinged = None;
        }
    }

    /// An answer. Returns the process whose report is to be taken back, if there is one.
    pub fn answered(&mut self, osd: OsdId, now: Instant) -> Option<EntityAddrVec> {
        let p = self.peers.get_mut(&osd)?;
        p.heard = now;
        p.reported.take().map(|_| p.process.clone())
    }

    /// Nobody listens at a peer's address any more. What to report, unless that was done a moment ago.
    pub fn refused(&mut self, osd: OsdId, now: Instant, again: Duration) -> Option<Silence> {
        let p = self.peers.get_mut(&osd)?;
        if p.reported.is_some_and(|t| now.duration_since(t) < again) {
            return None;
        }
        p.reported = Some(now);
        Some(Silence { osd, process: p.process.clone(), lasted: now.duration_since(p.heard) })
    }

    /// Who has been silent for too long; each is reported again after `again`, because reports live in the
    /// memory of one monitor.
    pub fn silent(&mut self, now: Instant, grace: Duration, again: Duration) -> Vec<Silence> {
        let mut out = Vec::new();
        for (osd, p) in &mut self.peers {
            let lasted = now.duration_since(p.heard);
            if lasted >= grace && p.reported.is_none_or(|t| now.duration_since(t) >= again) {
                p.reported = Some(now);
                out.push(Silence { osd: *osd, process: p.process.clone(), lasted });
            }
        }
        out
    }

    /// For the admin socket: seconds since each peer was heard.
    pub fn ages(&self, now: Instant) -> FxHashMap<OsdId, f64> {
        self.peers.iter().map(|(o, p)| (*o, now.duration_since(p.heard).as_secs_f64())).collect()
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
        OsdMap { osds: (0..n).map(osd).collect(), weights: vec![0x10000; n.into()], ..OsdMap::default() }
    }

    const INTERVAL: Duration = Duration::from_secs(6);
    const GRACE: Duration = Duration::from_secs(20);
    const AGAIN: Duration = Duration::from_secs(5);

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
        assert!(chosen.contains(&OsdId(20)) && chosen.contains(&OsdId(46)) && chosen.contains(&OsdId(4)));
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
            let pinged = h.due(now, INTERVAL);
            assert_eq!(pinged.len(), if s % 6 == 0 { 2 } else { 0 }, "second {s}");
            for (osd, at) in pinged {
                assert_eq!(at, addrs(2000 + osd.0 as u16));
                if osd == OsdId(1) {
                    assert_eq!(h.answered(osd, now), None);
                }
            }
            reports.extend(h.silent(now, GRACE, AGAIN).into_iter().map(|r| (s, r.osd, r.process)));
        }
        let seconds: Vec<u64> = reports.iter().map(|r| r.0).collect();
        assert_eq!(seconds, [20, 25, 30, 35]);
        assert!(reports.iter().all(|r| r.1 == OsdId(2) && r.2 == addrs(1002)));
        let now = start + Duration::from_secs(40);
        assert_eq!(h.answered(OsdId(2), now), Some(addrs(1002)), "the report is taken back");
        assert_eq!(h.answered(OsdId(2), now), None);
    }

    #[test]
    fn a_pause_of_our_own_blames_nobody() {
        let (mut h, start) = pinging(3);
        h.due(start, INTERVAL);
        h.answered(OsdId(1), start);
        let later = start + Duration::from_secs(300);
        h.due(later, INTERVAL);
        assert_eq!(h.silent(later, GRACE, AGAIN), []);
    }

    #[test]
    fn a_new_process_starts_anew() {
        let (mut h, start) = pinging(3);
        let later = start + GRACE;
        let mut m = map(3);
        m.osds[2].client_addrs = addrs(1777);
        assert_eq!(h.follow(&m, &[OsdId(1), OsdId(2)].into(), later), [OsdId(2)]);
        assert_eq!(h.silent(later, GRACE, AGAIN).iter().map(|s| s.osd).collect::<Vec<_>>(), [OsdId(1)]);
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
}
