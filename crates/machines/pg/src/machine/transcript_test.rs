//! Peering of small clusters as text: what happens, and what each copy causes. A reviewer reads
//! the files in `transcripts`; `SIPHON_TRANSCRIPTS=write` writes them anew.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::rc::Rc;

use ec::{Layout, Technique};
use types::{OsdId, ShardId};

use super::machine_test::{Map, PGID, proposal};
use super::*;
use crate::action::Source;
use crate::backend::{Erasure, PoolKind};
use crate::msg::Query;
use crate::proposal::{Payloads, Proposal};

/// Copies of one PG on OSDs 0, 1, ..., at these positions if copies are shards.
struct Cluster {
    pgs: BTreeMap<PgShard, Pg>,
    queue: VecDeque<(PgShard, PgShard, PeerHeader, PeerMsg)>,
    /// Nothing arrives there.
    cut: Vec<PgShard>,
    /// Processes that do not run, and from which map on they miss maps.
    dead: BTreeMap<OsdId, u32>,
    text: String,
    map: Map,
    /// All maps, in order.
    maps: Vec<Map>,
    /// The last version of each object.
    versions: BTreeMap<String, Eversion>,
}

fn v(version: Eversion) -> String {
    format!("{}.{}", version.epoch, version.version)
}

impl Cluster {
    fn new(kind: PoolKind, size: u32) -> Self {
        let acting: Vec<OsdId> = (0..size as i32).map(OsdId).collect();
        let map = Map { epoch: 5, acting, up_thru: 5, size, kind, ..Map::default() };
        let mapping = crate::map::MapView::mapping(&map, PGID);
        let mut cluster = Self {
            pgs: BTreeMap::new(),
            queue: VecDeque::new(),
            cut: Vec::new(),
            dead: BTreeMap::new(),
            text: String::new(),
            map: map.clone(),
            maps: vec![map.clone()],
            versions: BTreeMap::new(),
        };
        cluster.say("map 5: a new PG");
        for copy in mapping.acting.iter() {
            let id = SpgId { pgid: PGID, shard: copy.shard };
            let (conf, now) = (PgConf::default(), Utime::default());
            let pg = Pg::create(copy.osd, id, Rc::new(map.clone()), conf, now).unwrap();
            cluster.pgs.insert(*copy, pg);
        }
        cluster.each(|_| Event::ActivateMap);
        cluster
    }

    fn say(&mut self, text: &str) {
        let _ = writeln!(self.text, "-- {text}");
    }

    /// The same event for all copies, and all that follows.
    fn each(&mut self, event: impl Fn(PgShard) -> Event) {
        let lives: Vec<_> =
            self.pgs.keys().copied().filter(|c| !self.dead.contains_key(&c.osd)).collect();
        for copy in lives {
            self.pgs.get_mut(&copy).unwrap().handle(event(copy), Utime::default());
            self.drain(copy);
        }
        self.run();
    }

    /// The next map, in which an OSD has started anew.
    fn restart(&mut self, osd: i32) {
        let epoch = self.map.epoch + 1;
        self.say(&format!("map {epoch}: osd.{osd} has started anew"));
        self.next(Map { epoch, rebooted: Some((OsdId(osd), epoch)), ..self.map.clone() });
    }

    /// The next map, in which an OSD is down and does not act.
    fn dies(&mut self, osd: i32) {
        let epoch = self.map.epoch + 1;
        self.say(&format!("map {epoch}: osd.{osd} is down"));
        self.dead.insert(OsdId(osd), epoch);
        let acting = self.map.acting.iter().copied().filter(|o| *o != OsdId(osd)).collect();
        self.next(Map { epoch, acting, ..self.map.clone() });
    }

    /// The next map, in which an OSD that was down acts again. Its PG sees all that it missed.
    fn returns(&mut self, osd: i32) {
        let epoch = self.map.epoch + 1;
        self.say(&format!("map {epoch}: osd.{osd} is up again"));
        let since = self.dead.remove(&OsdId(osd)).expect("it was down");
        let copy = *self.pgs.keys().find(|c| c.osd == OsdId(osd)).unwrap();
        for map in self.maps.iter().filter(|m| m.epoch >= since).cloned() {
            let pg = self.pgs.get_mut(&copy).unwrap();
            pg.handle(Event::AdvanceMap(Rc::new(map)), Utime::default());
        }
        let mut acting = self.map.acting.clone();
        acting.push(OsdId(osd));
        acting.sort();
        self.next(Map { epoch, acting, rebooted: Some((OsdId(osd), epoch)), ..self.map.clone() });
    }

    fn next(&mut self, map: Map) {
        self.map = Map { up_thru: map.epoch, ..map };
        self.maps.push(self.map.clone());
        self.queue.clear();
        let map: crate::MapRef = Rc::new(self.map.clone());
        for (_, pg) in self.pgs.iter_mut().filter(|(c, _)| !self.dead.contains_key(&c.osd)) {
            pg.handle(Event::AdvanceMap(map.clone()), Utime::default());
        }
        self.each(|_| Event::ActivateMap);
        // Leases of the interval before are over: no copy serves reads by one.
        let now = crate::Steady(u64::from(self.map.epoch) * 60_000_000_000);
        self.pgs.values_mut().for_each(|pg| pg.set_clock(now));
        self.each(|_| Event::Wake);
        let primary = crate::map::MapView::mapping(&self.map, PGID).primary;
        let waits = primary.map(|p| (p, &self.pgs[&p])).filter(|(_, pg)| !pg.is_active());
        if let Some((copy, pg)) = waits {
            let (phase, down) = (pg.phase_name(), pg.blocked_by());
            let _ = writeln!(self.text, "osd.{copy} does not serve: {phase}, for {down:?}");
        }
    }

    /// A write of an object that changes these shards.
    fn write(&mut self, tid: u64, name: &str, written: &[ec::Shard]) {
        let primary = crate::map::MapView::mapping(&self.map, PGID).primary.unwrap();
        let mut p = proposal(tid, name);
        p.entries[0].written = written.iter().copied().collect();
        p.entries[0].prior_version = self.versions.get(name).copied().unwrap_or_default();
        if self.map.kind != PoolKind::Replicated {
            let Payloads::Same(payload) = p.payloads else { unreachable!() };
            let positions = written.iter().map(|s| ShardId(*s as i8));
            p = Proposal {
                payloads: Payloads::Each(positions.map(|s| (s, payload.clone())).collect()),
                ..p
            };
        }
        let version = self.pgs.get_mut(&primary).unwrap().propose(p).unwrap();
        self.versions.insert(name.to_owned(), version);
        self.say(&format!("osd.{primary} writes {name}: {}", v(version)));
        self.drain(primary);
        self.run();
    }

    fn drain(&mut self, copy: PgShard) {
        let pg = self.pgs.get_mut(&copy).unwrap();
        let mut token = None;
        while let Some(action) = pg.poll_action() {
            let line = match action {
                Action::Send { to, header, msg } => {
                    for to in to {
                        self.queue.push_back((copy, to, header, msg.clone()));
                    }
                    continue;
                }
                Action::Persist(p) => {
                    token = Some(p.token);
                    persisted(&p)
                }
                Action::Reply { version, .. } => {
                    Some(format!("answers the client: {}", v(version)))
                }
                Action::Active => Some("is active".into()),
                Action::QueueRecovery => Some("has objects to recover".into()),
                Action::Rebuild { targets, sources, .. } => {
                    Some(format!("rebuilds for {targets:?} of {sources:?}"))
                }
                Action::ObjectUnfound(oid) => Some(format!("cannot find {oid}")),
                Action::WantPgTemp(want) => Some(format!("wants to act: {want:?}")),
                _ => None,
            };
            if let Some(line) = line {
                let _ = writeln!(self.text, "osd.{copy} {line}");
            }
        }
        if let Some(token) = token {
            pg.handle(Event::Committed(token), Utime::default());
            self.drain(copy);
        }
    }

    fn run(&mut self) {
        while let Some((from, to, header, msg)) = self.queue.pop_front() {
            let lost = self.cut.contains(&to) || self.dead.contains_key(&to.osd);
            if let Some(text) = told(&msg) {
                let lost = if lost { " (lost)" } else { "" };
                let _ = writeln!(self.text, "osd.{from} -> osd.{to} {text}{lost}");
            }
            if !lost && let Some(pg) = self.pgs.get_mut(&to) {
                pg.handle(Event::Peer { from: from.osd, header, msg }, Utime::default());
                self.drain(to);
            }
        }
    }

    fn is(&mut self, name: &str, expected: &str) {
        for (copy, pg) in &self.pgs {
            let missing: Vec<String> =
                pg.missing().iter().map(|(o, i)| format!("{o} at {}", v(i.need))).collect();
            let _ = writeln!(
                self.text,
                "osd.{copy} in the end: {}, log to {}, missing {missing:?}",
                pg.phase_name(),
                v(pg.info().last_update)
            );
        }
        if std::env::var("SIPHON_TRANSCRIPTS").is_ok_and(|w| w == "write") {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/transcripts/");
            std::fs::write(format!("{dir}{name}.txt"), &self.text).unwrap();
            return;
        }
        assert!(self.text == expected, "{name} is another transcript:\n{}", self.text);
    }
}

fn persisted(p: &Persist) -> Option<String> {
    let mut what = Vec::new();
    let versions =
        |of: &[(Eversion, ObjectId)]| of.iter().map(|(at, _)| v(*at)).collect::<Vec<_>>();
    if !p.undo.is_empty() {
        what.push(format!("takes back {:?}", versions(&p.undo)));
    }
    match p.source {
        Source::Proposal(_) | Source::RepOp(_) => what.push("applies a change".into()),
        _ => {}
    }
    if !p.keep_undo.is_empty() {
        what.push(format!("can take back {:?}", versions(&p.keep_undo)));
    }
    if !p.forget_undo.is_empty() {
        let all: Vec<String> = p.forget_undo.iter().map(|at| v(*at)).collect();
        what.push(format!("keeps {all:?} for ever"));
    }
    if !p.remove_objects.is_empty() {
        what.push(format!("removes {} objects", p.remove_objects.len()));
    }
    (!what.is_empty()).then(|| what.join(", "))
}

fn told(msg: &PeerMsg) -> Option<String> {
    Some(match msg {
        PeerMsg::Query { query: Query::Info, .. } => "asks for the info".into(),
        PeerMsg::Query { query: Query::Log(since), .. } => {
            format!("asks for the log after {}", v(*since))
        }
        PeerMsg::Notify { info, .. } => {
            let started = info.last_epoch_started;
            format!("has the log to {}, started in {started}", v(info.last_update))
        }
        PeerMsg::Log { log, undo, .. } => {
            let undo: Vec<String> = undo.iter().map(|at| v(*at)).collect();
            format!("tells {} entries; can take back {undo:?}", log.entries.len())
        }
        PeerMsg::Activate { info, log, .. } => {
            format!("activates with {}, {} entries are new", v(info.last_update), log.entries.len())
        }
        PeerMsg::Activated => "is activated".into(),
        PeerMsg::RepOp(op) => {
            let entries: Vec<String> = op
                .entries
                .iter()
                .map(|e| format!("{} of {:?}", v(e.entry.version), e.entry.written))
                .collect();
            let what = if op.log_only { "nothing to apply" } else { "a change" };
            format!("tells {} with {what}", entries.join(", "))
        }
        PeerMsg::RepOpReply { version } => format!("has {}", v(*version)),
        PeerMsg::MarkMissing { objects } => format!("says that {} objects are bad", objects.len()),
        _ => return None,
    })
}

fn coded() -> PoolKind {
    let layout = Layout::new(2, 1, 4096).unwrap();
    PoolKind::Erasure(Erasure { layout, technique: Technique::JerasureReedSolVan })
}

#[test]
fn a_write_that_one_replica_lacks_is_given_to_it() {
    let mut c = Cluster::new(PoolKind::Replicated, 3);
    c.write(1, "a", &[]);
    c.cut = vec![OsdId(2).into()];
    c.write(2, "a", &[]);
    c.cut.clear();
    c.restart(2);
    c.is("replica_lacks_a_write", include_str!("transcripts/replica_lacks_a_write.txt"));
}

#[test]
fn a_write_that_one_shard_lacks_is_taken_back() {
    let mut c = Cluster::new(coded(), 3);
    c.write(1, "a", &[0, 1, 2]);
    c.write(2, "a", &[0, 2]);
    c.cut = vec![PgShard { osd: OsdId(2), shard: ShardId(2) }];
    c.write(3, "a", &[0, 1, 2]);
    c.cut.clear();
    c.restart(2);
    c.is("shard_lacks_a_write", include_str!("transcripts/shard_lacks_a_write.txt"));
}

#[test]
fn a_write_that_does_not_name_the_shard_that_lacks_it_is_kept() {
    let mut c = Cluster::new(coded(), 3);
    c.write(1, "a", &[0, 1, 2]);
    c.cut = vec![PgShard { osd: OsdId(1), shard: ShardId(1) }];
    c.write(2, "a", &[0, 2]);
    c.cut.clear();
    c.restart(1);
    c.is("shard_is_not_named", include_str!("transcripts/shard_is_not_named.txt"));
}

#[test]
fn a_write_that_only_a_dead_primary_had_is_given_up() {
    let mut c = Cluster::new(PoolKind::Replicated, 3);
    c.write(1, "a", &[]);
    c.cut = vec![OsdId(1).into(), OsdId(2).into()];
    c.write(2, "a", &[]);
    c.cut.clear();
    c.dies(0);
    c.write(3, "b", &[]);
    c.returns(0);
    c.is("divergent_primary", include_str!("transcripts/divergent_primary.txt"));
}

#[test]
fn a_copy_that_missed_the_last_interval_waits_for_one_that_acted_in_it() {
    let mut c = Cluster::new(PoolKind::Replicated, 3);
    c.write(1, "a", &[]);
    c.dies(0);
    c.write(2, "a", &[]);
    c.dies(1);
    c.dies(2);
    c.returns(0);
    c.returns(1);
    c.is("last_interval_is_down", include_str!("transcripts/last_interval_is_down.txt"));
}
