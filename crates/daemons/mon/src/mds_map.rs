//! The rules by which the file system map changes (Ceph: `FSMap`, `MDSMonitor`).
//!
//! A rank of a file system is held by one daemon. A daemon that loses its rank may still believe
//! that it holds it: its address goes onto the OSDs' blocklist in the same batch, and the map says
//! from which OSD map on that is so. Its successor waits for that OSD map.

use crate::state::{Change, Pending};
use conf::Config;
use messages::MdsBeacon;
use std::collections::BTreeSet;
use std::time::Duration;
use types::fsmap::{
    Filesystem, FsMap, MdsInfo, MdsMap, MdsState, OWNERS_FEATURE, Owners, Rank, flag, has_own_log,
    set_empty_log,
};
use types::log::LogPriority;
use types::{AddrType, EntityAddr, EntityAddrVec, Epoch};

/// A line for the cluster log.
pub type Line = (LogPriority, String);

/// The answer to a beacon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The beacon, with the epoch that the daemon should have.
    Beacon(Epoch),
    /// A map without the daemon: it starts again.
    NotInMap,
    /// Nothing.
    None,
}

/// One change of the file system map: the next epoch, for the map and for each file system that is
/// touched. Without an effect there is no new epoch.
pub struct Edit<'a> {
    p: &'a mut Pending,
    /// The map as it will be.
    pub map: FsMap,
    touched: BTreeSet<i32>,
    until: Duration,
    /// Lines for the cluster log.
    pub lines: Vec<Line>,
}

impl<'a> Edit<'a> {
    /// Begins a change.
    pub fn new(p: &'a mut Pending, conf: &Config) -> Edit<'a> {
        let mut map = (*p.state().fs).clone();
        map.epoch = map.epoch.next();
        let seconds = conf.f64("mon_mds_blocklist_interval");
        let until = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let mut edit = Edit { p, map, touched: BTreeSet::new(), until, lines: Vec::new() };
        edit.note_owners();
        edit
    }

    /// Has maps that do not say which owner each rank is say it, before anything changes from which
    /// that follows in them.
    fn note_owners(&mut self) {
        let says = |map: &MdsMap| map.compat.compat.names.contains_key(&OWNERS_FEATURE);
        let silent = |fs: &&Filesystem| has_own_log(&fs.map.compat) && !says(&fs.map);
        let silent = self.map.filesystems.values().filter(silent).map(|fs| fs.id);
        for id in silent.collect::<Vec<_>>() {
            self.change_owners(id, |_| {});
        }
    }

    /// Changes which owners the ranks of a file system are.
    fn change_owners(&mut self, id: i32, change: impl FnOnce(&mut Owners)) {
        let Some(fs) = self.map.filesystems.get_mut(&id) else { return };
        let (mut owners, before) = (Owners::of(&fs.map), fs.map.compat.clone());
        change(&mut owners);
        owners.note(&mut fs.map);
        if fs.map.compat != before {
            self.touched.insert(id);
        }
    }

    /// Puts the change into the batch, if it is one. Returns the lines for the log.
    pub fn finish(mut self) -> Vec<Line> {
        for id in &self.touched {
            if let Some(fs) = self.map.filesystems.get_mut(id) {
                fs.map.epoch = self.map.epoch;
                fs.map.modified = self.p.now();
            }
        }
        let before = self.p.state().fs.clone();
        if self.map != (FsMap { epoch: self.map.epoch, ..(*before).clone() }) {
            self.p.put(Change::FsMap(Box::new(self.map)));
        }
        // What daemons said of themselves goes with them.
        let gone: Vec<u64> = {
            let state = self.p.state();
            let known = |gid: &u64| state.fs.mds_roles.contains_key(gid);
            state.mds_metadata.keys().copied().filter(|gid| !known(gid)).collect()
        };
        for gid in gone {
            self.p.put(Change::MdsMetadata(gid, None));
        }
        self.lines
    }

    fn info(&mut self, text: String) {
        self.lines.push((LogPriority::INFO, text));
    }

    /// The OSD map, to be changed in the same batch.
    pub fn pending(&mut self) -> &mut Pending {
        self.p
    }

    /// A file system to be changed; it gets the new epoch.
    pub fn fs(&mut self, id: i32) -> Option<&mut Filesystem> {
        self.touched.insert(id);
        self.map.filesystems.get_mut(&id)
    }

    /// A daemon to be changed.
    pub fn daemon(&mut self, gid: u64) -> Option<&mut MdsInfo> {
        match *self.map.mds_roles.get(&gid)? {
            -1 => {
                let epoch = self.map.epoch;
                self.map.standby_epochs.insert(gid, epoch);
                self.map.standby_daemons.get_mut(&gid)
            }
            id => {
                self.touched.insert(id);
                self.map.filesystems.get_mut(&id)?.map.mds_info.get_mut(&gid)
            }
        }
    }

    /// OSDs refuse a daemon from now on; the epoch from which on they do.
    fn refuse(&mut self, addrs: &EntityAddrVec) -> Epoch {
        let until = self.p.now() + self.until;
        for addr in &addrs.0 {
            // An entry without a nonce stands for a host.
            if addr.nonce != 0 {
                let addr = EntityAddr { kind: AddrType::ANY, ..*addr };
                self.p.osd_mut().blocklist.insert(addr, until);
            }
        }
        self.p.osd_epoch()
    }

    /// A daemon that waits.
    pub fn add_standby(&mut self, info: MdsInfo) {
        self.map.mds_roles.insert(info.gid, -1);
        self.map.standby_epochs.insert(info.gid, self.map.epoch);
        self.map.standby_daemons.insert(info.gid, info);
    }

    /// Takes a daemon out. A rank that it holds is failed, or forgotten if it was never made.
    fn erase(&mut self, gid: u64, blocklisted: Epoch) {
        let Some(id) = self.map.mds_roles.remove(&gid) else { return };
        self.map.standby_daemons.remove(&gid);
        self.map.standby_epochs.remove(&gid);
        let Some(fs) = (id != -1).then(|| self.fs(id)).flatten() else { return };
        if let Some(info) = fs.map.mds_info.remove(&gid)
            && info.state != MdsState::STANDBY_REPLAY
            && fs.map.up.get(&info.rank) == Some(&gid)
        {
            fs.map.up.remove(&info.rank);
            if info.state == MdsState::CREATING {
                fs.map.ranks_in.remove(&info.rank);
            } else {
                fs.map.failed.insert(info.rank);
            }
        }
        fs.map.last_failure_osd_epoch = blocklisted;
    }

    /// Takes a daemon out, and lets OSDs refuse it if it holds a rank.
    pub fn fail(&mut self, gid: u64) {
        let Some(info) = self.map.daemon(gid).cloned() else { return };
        let holds = info.rank >= 0 && info.state != MdsState::STANDBY_REPLAY;
        let epoch = if holds { self.refuse(&info.addrs) } else { Epoch(0) };
        self.erase(gid, epoch);
    }

    /// A rank cannot be replayed: no daemon gets it until an operator says so.
    fn damaged(&mut self, gid: u64) {
        let Some(info) = self.map.daemon(gid).cloned() else { return };
        let Some(&id) = self.map.mds_roles.get(&gid) else { return };
        let fs = self.map.filesystems.get(&id);
        let holder = fs.and_then(|fs| fs.map.holder(info.rank)).cloned();
        let follower = fs.and_then(|fs| fs.map.follower(info.rank)).map(|i| i.gid);
        if let Some(gid) = follower {
            self.fail(gid);
        }
        if let Some(holder) = holder {
            let epoch = self.refuse(&holder.addrs);
            self.erase(holder.gid, epoch);
        }
        if let Some(fs) = self.fs(id) {
            fs.map.failed.remove(&info.rank);
            fs.map.damaged.insert(info.rank);
        }
    }

    /// A rank was given up.
    fn stopped(&mut self, gid: u64) {
        let Some(info) = self.map.daemon(gid).cloned() else { return };
        let Some(&id) = self.map.mds_roles.get(&gid) else { return };
        let Some(fs) = self.fs(id) else { return };
        fs.map.up.remove(&info.rank);
        fs.map.ranks_in.remove(&info.rank);
        fs.map.stopped.insert(info.rank);
        fs.map.mds_info.remove(&gid);
        let follower = fs.map.follower(info.rank).map(|i| i.gid);
        let (name, ranks) = (fs.map.fs_name.clone(), fs.map.ranks_in.len());
        self.map.mds_roles.remove(&gid);
        if let Some(gid) = follower {
            self.erase(gid, Epoch(0));
        }
        if has_own_log(&info.compat) {
            self.change_owners(id, |owners| owners.stopped(info.rank));
        }
        self.info(format!(
            "{} finished stopping rank {} in filesystem {name} (now has {ranks} ranks)",
            info.human_name(),
            info.rank
        ));
    }

    /// The daemon that would take a rank over: the one that follows its journal, else one that
    /// waits.
    pub fn replacement(&self, id: i32, rank: Rank) -> Option<MdsInfo> {
        replacement(&self.map, id, rank)
    }

    /// A daemon gets a rank.
    pub fn promote(&mut self, gid: u64, id: i32, rank: Rank) {
        let epoch = self.map.epoch;
        let standby = self.map.standby_daemons.remove(&gid);
        self.map.standby_epochs.remove(&gid);
        let Some(fs) = self.fs(id) else { return };
        if let Some(info) = standby {
            fs.map.mds_info.insert(gid, info);
        }
        let own = fs.map.mds_info.get(&gid).is_some_and(|info| has_own_log(&info.compat));
        // A rank that was given up is made anew.
        let known = !own || Owners::of(&fs.map).owner(rank).is_some();
        let state = if fs.map.stopped.remove(&rank) && known {
            MdsState::STARTING
        } else if !fs.map.ranks_in.contains(&rank) {
            MdsState::CREATING
        } else {
            fs.map.failed.remove(&rank);
            MdsState::REPLAY
        };
        fs.map.ranks_in.insert(rank);
        fs.map.up.insert(rank, gid);
        let compat = fs.map.mds_info.get_mut(&gid).map(|info| {
            info.state = state;
            info.rank = rank;
            info.inc = epoch.0 as i32;
            info.compat.clone()
        });
        // A newer daemon brings what it needs with it.
        if let Some(compat) = compat
            && !fs.map.compat.writeable(&compat)
        {
            fs.map.compat.merge(&compat);
        }
        // The daemon writes to its log without a word, until it says that there is nothing in it.
        set_empty_log(&mut fs.map.compat, rank, false);
        self.map.mds_roles.insert(gid, id);
        if own {
            self.change_owners(id, |owners| {
                owners.admit(rank);
            });
        }
    }

    /// A daemon that waits follows a rank's journal.
    fn follow(&mut self, gid: u64, id: i32, rank: Rank) {
        let Some(mut info) = self.map.standby_daemons.remove(&gid) else { return };
        self.map.standby_epochs.remove(&gid);
        self.map.mds_roles.insert(gid, id);
        info.rank = rank;
        info.state = MdsState::STANDBY_REPLAY;
        if let Some(fs) = self.fs(id) {
            fs.map.mds_info.insert(gid, info);
        }
    }

    /// A new file system. Its number must be free.
    pub fn create(&mut self, name: &str, metadata: i64, data: i64, number: Option<i32>) -> i32 {
        let id = number.unwrap_or(self.map.next_filesystem_id as i32);
        self.map.next_filesystem_id = self.map.next_filesystem_id.max(id as u64 + 1);
        let mut fs = Filesystem { id, ..Filesystem::default() };
        fs.map.fs_name = name.to_owned();
        fs.map.data_pools.push(data);
        fs.map.metadata_pool = metadata;
        fs.map.compat = self.map.default_compat.clone();
        fs.map.created = self.p.now();
        fs.map.enabled = true;
        self.map.filesystems.insert(id, fs);
        self.touched.insert(id);
        if self.map.filesystems.len() == 1 {
            self.map.legacy_client_fscid = id;
        }
        id
    }

    /// A file system goes; daemons that preferred it prefer none.
    pub fn remove(&mut self, id: i32) {
        let left: Vec<u64> = match self.map.filesystems.get(&id) {
            Some(fs) => fs.map.mds_info.keys().copied().collect(),
            None => return,
        };
        for gid in left {
            self.fail(gid);
        }
        self.map.filesystems.remove(&id);
        self.touched.remove(&id);
        if self.map.legacy_client_fscid == id {
            self.map.legacy_client_fscid = -1;
        }
        let preferring: Vec<u64> =
            self.map.daemons().filter(|i| i.join_fscid == id).map(|i| i.gid).collect();
        for gid in preferring {
            if let Some(info) = self.daemon(gid) {
                info.join_fscid = -1;
            }
        }
    }

    /// Ranks without a daemon get one, ranks are added and taken away up to what is wanted, and
    /// daemons that are left follow journals.
    pub fn settle(&mut self) {
        for id in self.map.filesystems.keys().copied().collect::<Vec<_>>() {
            self.resize(id);
            self.fill(id);
            self.want_standby(id);
        }
    }

    fn resize(&mut self, id: i32) {
        let Some(fs) = self.map.filesystems.get(&id) else { return };
        if !fs.map.is_resizeable() {
            return;
        }
        let ranks = fs.map.ranks_in.len() as i32;
        let owners = Owners::of(&fs.map);
        // One that has begun to hand over goes on with that when its server was replaced.
        let leaves = fs.map.ranks_in.last().is_some_and(|r| owners.is_leaving(*r));
        if ranks < fs.map.max_mds && !leaves && !fs.map.has(flag::NOT_JOINABLE) {
            let Some(rank) = (0..=ranks).find(|r| !fs.map.ranks_in.contains(r)) else { return };
            let Some(next) = self.replacement(id, rank) else { return };
            if has_own_log(&next.compat) && owners.clone().admit(rank).is_none() {
                return;
            }
            let name = fs.map.fs_name.clone();
            self.info(format!(
                "{} assigned to filesystem {name} as rank {rank} (now has {} ranks)",
                next.human_name(),
                ranks + 1
            ));
            self.promote(next.gid, id, rank);
        } else if ranks > fs.map.max_mds || leaves {
            let Some(last) = fs.map.holder(ranks - 1).cloned() else { return };
            if last.state == MdsState::ACTIVE {
                let comes_back = last.rank < fs.map.ranks_wanted();
                self.info(format!("stopping {}", last.human_name()));
                if let Some(info) = self.daemon(last.gid) {
                    info.state = MdsState::STOPPING;
                }
                if has_own_log(&last.compat) && !comes_back {
                    self.change_owners(id, |owners| owners.begin_to_leave(last.rank));
                }
            }
        }
    }

    fn fill(&mut self, id: i32) {
        let Some(fs) = self.map.filesystems.get(&id) else { return };
        if fs.map.has(flag::NOT_JOINABLE) {
            return;
        }
        let (name, failed) = (fs.map.fs_name.clone(), fs.map.failed.clone());
        for rank in failed {
            let Some(next) = self.replacement(id, rank) else { continue };
            self.info(format!(
                "Standby {} assigned to filesystem {name} as rank {rank}",
                next.human_name()
            ));
            self.promote(next.gid, id, rank);
        }
        // A daemon must not follow a journal that is being replayed.
        while let Some(fs) = self.map.filesystems.get(&id)
            && fs.map.is_resizeable()
            && fs.map.has(flag::ALLOW_STANDBY_REPLAY)
            && let Some(rank) = fs.map.ranks_in.iter().copied().find(|r| fs.map.is_followable(*r))
            && let Some(gid) = standby(&self.map, fs, rank).map(|i| i.gid)
        {
            self.follow(gid, id, rank);
        }
    }

    /// Where a daemon waits, one is wanted from then on.
    fn want_standby(&mut self, id: i32) {
        let Some(fs) = self.map.filesystems.get(&id) else { return };
        let follows = |i: &MdsInfo| i.state == MdsState::STANDBY_REPLAY;
        let waits = !self.map.standby_daemons.is_empty() || fs.map.mds_info.values().any(follows);
        if fs.map.standby_count_wanted == -1
            && waits
            && let Some(fs) = self.fs(id)
        {
            fs.map.standby_count_wanted = 1;
        }
    }
}

/// The daemon that would take a rank over.
pub fn replacement(map: &FsMap, id: i32, rank: Rank) -> Option<MdsInfo> {
    let fs = map.filesystems.get(&id)?;
    if let Some(follower) = fs.map.follower(rank) {
        return (!follower.is_frozen()).then(|| follower.clone());
    }
    standby(map, fs, rank).cloned()
}

/// The daemon that waits and suits a file system best: one that prefers it, else one without a
/// preference, else any.
fn standby<'a>(map: &'a FsMap, fs: &Filesystem, rank: Rank) -> Option<&'a MdsInfo> {
    // What a daemon brings with it may enter the map only while it is the only rank.
    let upgradeable = fs.map.ranks_in.iter().all(|r| *r == 0);
    let suits = |i: &&MdsInfo| {
        !i.is_laggy()
            && !i.is_frozen()
            && i.compat.writeable(&fs.map.compat)
            && (upgradeable || fs.map.compat.writeable(&i.compat))
            // A rank beside a server without such a log would see nothing of what that one changes.
            && (rank == 0 || has_own_log(&i.compat) == has_own_log(&fs.map.compat))
    };
    map.standby_daemons.values().filter(suits).min_by_key(|i| match i.join_fscid {
        id if id == fs.id => 0,
        -1 => 1,
        _ => 2,
    })
}

/// The epoch of the map that a daemon should have.
fn epoch_of(map: &FsMap, gid: u64) -> Option<Epoch> {
    match *map.mds_roles.get(&gid)? {
        -1 => map.standby_epochs.get(&gid).copied(),
        id => map.filesystems.get(&id).map(|fs| fs.map.epoch),
    }
}

/// A daemon says that it lives, and asks for a state.
pub fn beacon(
    p: &mut Pending,
    conf: &Config,
    b: &MdsBeacon,
    addrs: &EntityAddrVec,
) -> (Reply, Vec<Line>) {
    let map = p.state().fs.clone();
    let asked = MdsState(b.state);
    let Some(info) = map.daemon(b.gid).cloned() else {
        if asked != MdsState::BOOT {
            return (Reply::NotInMap, Vec::new());
        }
        return boot(p, conf, b, addrs);
    };
    if asked != MdsState::DNE && info.state_seq > b.seq {
        return (Reply::None, Vec::new());
    }
    let has = epoch_of(&map, b.gid).unwrap_or_default();
    if asked != MdsState::DNE && u64::from(has.0) != b.paxos.0 {
        // It has not seen its map yet, and may ask for what is no longer so.
        return (Reply::Beacon(has), Vec::new());
    }
    if asked == MdsState::BOOT {
        return (Reply::None, Vec::new());
    }
    let join = map.by_name(&b.fs).filter(|_| !b.fs.is_empty()).map_or(-1, |fs| fs.id);
    let of_log = log_word(&map, b, &info);
    if info.state == asked
        && info.join_fscid == join
        && !info.is_laggy()
        && b.compat == info.compat
        && of_log.is_none()
    {
        return (Reply::Beacon(has), Vec::new());
    }
    let mut e = Edit::new(p, conf);
    if let Some((id, empty)) = of_log {
        if let Some(fs) = e.fs(id) {
            set_empty_log(&mut fs.map.compat, info.rank, empty);
        }
        // A beacon before this one says no more what is so; and the daemon sees that it was heard.
        if let Some(d) = e.daemon(b.gid) {
            d.state_seq = b.seq;
        }
    }
    let reply = transition(&mut e, b, &info, asked, join);
    if reply != Reply::NotInMap {
        e.settle();
    }
    let lines = e.finish();
    let reply = match reply {
        Reply::Beacon(_) => Reply::Beacon(epoch_of(&p.state().fs, b.gid).unwrap_or_default()),
        other => other,
    };
    (reply, lines)
}

/// What a beacon says of the log of a rank that the daemon holds, if that is to be noted: the file
/// system, and whether the log is empty. A log that is to be used is noted each time: the daemon
/// waits for a map that answers this beacon.
fn log_word(map: &FsMap, b: &MdsBeacon, info: &MdsInfo) -> Option<(i32, bool)> {
    let id = *map.mds_roles.get(&b.gid)?;
    let fs = map.filesystems.get(&id)?;
    if fs.map.up.get(&info.rank) != Some(&b.gid) || !has_own_log(&info.compat) {
        return None;
    }
    match b.log.as_str() {
        MdsBeacon::LOG_USED => Some((id, false)),
        MdsBeacon::LOG_EMPTY => {
            let known = types::fsmap::empty_logs(&fs.map.compat).contains(&info.rank);
            (!known).then_some((id, true))
        }
        _ => None,
    }
}

fn boot(
    p: &mut Pending,
    conf: &Config,
    b: &MdsBeacon,
    addrs: &EntityAddrVec,
) -> (Reply, Vec<Line>) {
    let mut e = Edit::new(p, conf);
    if conf.bool("mds_enforce_unique_name") {
        let earlier: Vec<MdsInfo> = e.map.daemons().filter(|i| i.name == b.name).cloned().collect();
        for old in earlier {
            e.info(format!("{} restarted", old.human_name()));
            e.fail(old.gid);
        }
    }
    let join = e.map.by_name(&b.fs).filter(|_| !b.fs.is_empty()).map_or(-1, |fs| fs.id);
    // Daemons up to 16.2.4 do not say.
    let compat = match b.compat == Default::default() {
        true => types::fsmap::default_compat(),
        false => b.compat.clone(),
    };
    let info = MdsInfo {
        state_seq: b.seq,
        features: b.features,
        join_fscid: join,
        ..MdsInfo::standby(b.gid, &b.name, addrs.clone(), compat)
    };
    e.add_standby(info);
    e.settle();
    let lines = e.finish();
    p.put(Change::MdsMetadata(b.gid, Some(b.metadata.clone())));
    (Reply::Beacon(epoch_of(&p.state().fs, b.gid).unwrap_or_default()), lines)
}

fn transition(
    e: &mut Edit<'_>,
    b: &MdsBeacon,
    info: &MdsInfo,
    asked: MdsState,
    join: i32,
) -> Reply {
    let waits = info.state == MdsState::STANDBY;
    let follows = info.state == MdsState::STANDBY_REPLAY;
    let to_wait = asked == MdsState::STANDBY || asked == MdsState::STANDBY_REPLAY;
    let stops = asked == MdsState::STOPPING || asked == MdsState::STOPPED;
    if b.compat != info.compat {
        e.lines.push((
            LogPriority::WARN,
            format!("{} compat changed unexpectedly", info.human_name()),
        ));
        e.fail(b.gid);
        return Reply::NotInMap;
    }
    // No daemon gives itself a rank, takes another state than the next one, or goes back.
    let refused = asked == MdsState::DNE
        || (waits && asked != MdsState::STANDBY)
        || (follows && asked.0 > 0 && asked != MdsState::DAMAGED)
        || (to_wait && info.rank >= 0 && !follows)
        || (info.state == MdsState::STOPPING && !stops)
        || (!waits
            && !follows
            && !matches!(asked, MdsState::DAMAGED | MdsState::STOPPED)
            && !info.state.may_become(asked));
    if refused {
        e.fail(b.gid);
        return Reply::NotInMap;
    }
    match asked {
        MdsState::STOPPED => {
            e.stopped(b.gid);
            return Reply::NotInMap;
        }
        MdsState::DAMAGED => {
            e.damaged(b.gid);
            return Reply::Beacon(Epoch(0));
        }
        _ => {}
    }
    if info.state != MdsState::ACTIVE && asked == MdsState::ACTIVE {
        let id = e.map.mds_roles.get(&b.gid).copied().unwrap_or(-1);
        let name = e.map.filesystems.get(&id).map_or(String::new(), |fs| fs.map.fs_name.clone());
        e.info(format!(
            "{} is now active in filesystem {name} as rank {}",
            info.human_name(),
            info.rank
        ));
    }
    if let Some(d) = e.daemon(b.gid) {
        d.state = asked;
        d.state_seq = b.seq;
        d.join_fscid = join;
        d.laggy_since = types::Utime::ZERO;
    }
    Reply::Beacon(Epoch(0))
}

/// The leader's round: daemons of which no beacons come are replaced, and ranks are filled.
/// `replace` says whether beacons of others came lately: if none do, this monitor is what is cut
/// off.
pub fn round(
    p: &mut Pending,
    conf: &Config,
    silent: impl Fn(u64) -> bool,
    replace: bool,
) -> Vec<Line> {
    let now = p.now();
    let mut e = Edit::new(p, conf);
    let known: Vec<u64> = e.map.mds_roles.keys().copied().filter(|g| silent(*g)).collect();
    for gid in known {
        let Some(info) = e.map.daemon(gid).cloned() else { continue };
        if !info.is_laggy()
            && let Some(d) = e.daemon(gid)
        {
            d.laggy_since = now;
        }
        if !replace || info.is_frozen() {
            continue;
        }
        let waits = [MdsState::STANDBY, MdsState::STANDBY_REPLAY].contains(&info.state);
        let id = e.map.mds_roles.get(&gid).copied().unwrap_or(-1);
        let joinable = e.map.filesystems.get(&id).is_some_and(|fs| !fs.map.has(flag::NOT_JOINABLE));
        let next = e.replacement(id, info.rank);
        if waits {
            e.fail(gid);
        } else if let (true, Some(next)) = (joinable, next) {
            e.lines.push((
                LogPriority::WARN,
                format!(
                    "Replacing {} as rank {} with standby {}",
                    info.human_name(),
                    info.rank,
                    next.human_name()
                ),
            ));
            e.fail(gid);
            e.promote(next.gid, id, info.rank);
        } else {
            continue;
        }
        e.info(format!(
            "MDS {} is removed because it is dead or otherwise unavailable.",
            info.human_name()
        ));
    }
    e.prefer();
    e.settle();
    e.finish()
}

impl Edit<'_> {
    /// A daemon that prefers a file system takes the place of one that does not, one at a time.
    fn prefer(&mut self) {
        for id in self.map.filesystems.keys().copied().collect::<Vec<_>>() {
            let Some(fs) = self.map.filesystems.get(&id) else { continue };
            if fs.map.has(flag::NOT_JOINABLE) || !fs.map.is_resizeable() {
                continue;
            }
            let better = fs.map.mds_info.values().find_map(|info| {
                let next = match info.state {
                    MdsState::STANDBY_REPLAY => standby(&self.map, fs, info.rank).cloned(),
                    _ => self.replacement(id, info.rank),
                }?;
                let rank_of = |join: i32| match join {
                    j if j == id => 0,
                    -1 => 1,
                    _ => 2,
                };
                (rank_of(next.join_fscid) < rank_of(info.join_fscid) && !info.is_frozen())
                    .then(|| (info.clone(), next))
            });
            let Some((info, next)) = better else { continue };
            if info.state == MdsState::STANDBY_REPLAY {
                self.info(format!(
                    "Dropping low affinity standby-replay {} in favor of higher affinity standby.",
                    info.human_name()
                ));
                self.fail(info.gid);
            } else {
                self.info(format!(
                    "Dropping low affinity active {} in favor of higher affinity standby.",
                    info.human_name()
                ));
                self.fail(info.gid);
                self.promote(next.gid, id, info.rank);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsArgs, initial_state};
    use auth::{CryptoKey, Keyring};
    use messages::Paxos;
    use types::Utime;
    use types::compat_set::CompatSet;

    fn fresh() -> (Pending, Config) {
        let addrs = EntityAddrVec::one(EntityAddr::msgr2("127.0.0.1:3300".parse().unwrap(), 0));
        let args = MkfsArgs {
            fsid: types::Fsid([7; 16]),
            name: "a".into(),
            monitors: [("a".to_owned(), addrs)].into(),
            mon_key: CryptoKey::default(),
            keyring: Keyring::default(),
            crush: None,
            config: Default::default(),
            now: Utime::new(1000, 0),
        };
        let conf = Config::new();
        let (state, _) = initial_state(&args, &conf).unwrap();
        (Pending::new(state, Utime::new(2000, 0)), conf)
    }

    fn with_log() -> CompatSet {
        let mut own = types::fsmap::default_compat();
        own.incompat.names.insert(types::fsmap::LOG_FEATURE.0, "siphon log".into());
        own
    }

    struct World {
        p: Pending,
        conf: Config,
        seq: u64,
    }

    impl World {
        fn new() -> World {
            let (p, conf) = fresh();
            World { p, conf, seq: 0 }
        }

        fn say(&mut self, name: &str, gid: u64, state: MdsState) -> Reply {
            self.say_as(name, gid, state, types::fsmap::default_compat())
        }

        fn say_as(&mut self, name: &str, gid: u64, state: MdsState, compat: CompatSet) -> Reply {
            self.say_of_log(name, gid, state, compat, "")
        }

        /// As a server with a log of its own.
        fn log(&mut self, name: &str, gid: u64, state: MdsState, log: &str) -> Reply {
            self.say_of_log(name, gid, state, with_log(), log)
        }

        fn say_of_log(
            &mut self,
            name: &str,
            gid: u64,
            state: MdsState,
            compat: CompatSet,
            log: &str,
        ) -> Reply {
            self.seq += 1;
            let has = epoch_of(&self.p.state().fs, gid).unwrap_or_default();
            let b = MdsBeacon {
                paxos: Paxos(has.0.into()),
                gid,
                name: name.into(),
                state: state.0,
                seq: self.seq,
                compat,
                log: log.into(),
                ..MdsBeacon::default()
            };
            let addr = EntityAddr::msgr2(([127, 0, 0, 1], 6800 + gid as u16).into(), gid as u32);
            beacon(&mut self.p, &self.conf, &b, &EntityAddrVec::one(addr)).0
        }

        fn make(&mut self, name: &str) -> i32 {
            let mut e = Edit::new(&mut self.p, &self.conf);
            let id = e.create(name, 1, 2, None);
            e.settle();
            e.finish();
            id
        }

        fn max_mds(&mut self, id: i32, n: i32) {
            let mut e = Edit::new(&mut self.p, &self.conf);
            e.fs(id).unwrap().map.max_mds = n;
            e.settle();
            e.finish();
        }

        fn state_of(&self, gid: u64) -> Option<(MdsState, Rank)> {
            self.p.state().fs.daemon(gid).map(|i| (i.state, i.rank))
        }

        fn up(&mut self, gid: u64, name: &str) {
            for s in [MdsState::RECONNECT, MdsState::REJOIN, MdsState::ACTIVE] {
                assert!(matches!(self.say(name, gid, s), Reply::Beacon(_)));
            }
        }
    }

    #[test]
    fn a_rank_is_made_and_taken_over() {
        let mut w = World::new();
        assert!(matches!(w.say("a", 10, MdsState::BOOT), Reply::Beacon(_)));
        assert_eq!(w.state_of(10), Some((MdsState::STANDBY, -1)));
        let id = w.make("cephfs");
        assert_eq!(w.state_of(10), Some((MdsState::CREATING, 0)));
        w.say("a", 10, MdsState::ACTIVE);
        assert_eq!(w.state_of(10), Some((MdsState::ACTIVE, 0)));
        w.say("b", 11, MdsState::BOOT);
        assert_eq!(w.state_of(11), Some((MdsState::STANDBY, -1)));
        assert_eq!(w.p.state().fs.filesystems[&id].map.standby_count_wanted, 1);
        w.p.close();
        let epoch = w.p.osd_epoch();
        let lines = round(&mut w.p, &w.conf, |gid| gid == 10, true);
        assert!(lines[0].1.contains("Replacing daemon mds.a as rank 0"), "{lines:?}");
        assert_eq!(w.state_of(11), Some((MdsState::REPLAY, 0)));
        assert_eq!(w.state_of(10), None);
        let fs = &w.p.state().fs.filesystems[&id];
        assert_eq!(fs.map.last_failure_osd_epoch, epoch);
        assert!(w.p.osd().blocklist.keys().any(|a| a.nonce == 10), "the old holder is refused");
        assert_eq!(w.say("a", 10, MdsState::ACTIVE), Reply::NotInMap);
        w.up(11, "b");
        assert_eq!(w.state_of(11), Some((MdsState::ACTIVE, 0)));
    }

    #[test]
    fn a_monitor_that_hears_nobody_replaces_nobody() {
        let mut w = World::new();
        w.say("a", 10, MdsState::BOOT);
        w.say("b", 11, MdsState::BOOT);
        w.make("cephfs");
        w.say("a", 10, MdsState::ACTIVE);
        round(&mut w.p, &w.conf, |_| true, false);
        assert_eq!(w.state_of(10), Some((MdsState::ACTIVE, 0)));
        assert!(w.p.state().fs.daemon(10).unwrap().is_laggy());
        w.say("a", 10, MdsState::ACTIVE);
        assert!(!w.p.state().fs.daemon(10).unwrap().is_laggy());
    }

    #[test]
    fn daemons_do_not_choose_their_state() {
        let mut w = World::new();
        w.say("a", 10, MdsState::BOOT);
        assert_eq!(w.say("a", 10, MdsState::ACTIVE), Reply::NotInMap);
        assert_eq!(w.state_of(10), None);
        w.say("a", 12, MdsState::BOOT);
        w.say("b", 13, MdsState::BOOT);
        let id = w.make("cephfs");
        w.say("a", 12, MdsState::ACTIVE);
        assert_eq!(w.say("a", 12, MdsState::STANDBY), Reply::NotInMap);
        assert_eq!(w.p.state().fs.filesystems[&id].map.failed, [0].into());
        round(&mut w.p, &w.conf, |_| false, true);
        assert_eq!(w.state_of(13), Some((MdsState::REPLAY, 0)));
        assert_eq!(w.say("b", 13, MdsState::ACTIVE), Reply::NotInMap, "replay comes first");
    }

    #[test]
    fn damage_keeps_a_rank_down() {
        let mut w = World::new();
        w.say("a", 10, MdsState::BOOT);
        w.say("b", 11, MdsState::BOOT);
        let id = w.make("cephfs");
        w.say("a", 10, MdsState::DAMAGED);
        let map = &w.p.state().fs.filesystems[&id].map;
        assert_eq!((map.damaged.len(), map.failed.len(), map.up.len()), (1, 0, 0));
        round(&mut w.p, &w.conf, |_| false, true);
        assert_eq!(w.state_of(11), Some((MdsState::STANDBY, -1)));
    }

    #[test]
    fn ranks_grow_and_shrink() {
        let mut w = World::new();
        for gid in 10..13 {
            w.say(&format!("m{gid}"), gid, MdsState::BOOT);
        }
        let id = w.make("cephfs");
        w.say("m10", 10, MdsState::ACTIVE);
        w.max_mds(id, 2);
        assert_eq!(w.state_of(11), Some((MdsState::CREATING, 1)));
        w.say("m11", 11, MdsState::ACTIVE);
        w.max_mds(id, 1);
        assert_eq!(w.state_of(11), Some((MdsState::STOPPING, 1)));
        assert_eq!(w.say("m11", 11, MdsState::STOPPED), Reply::NotInMap);
        let map = &w.p.state().fs.filesystems[&id].map;
        assert_eq!((map.ranks_in.len(), map.stopped.len()), (1, 1));
        w.max_mds(id, 2);
        assert_eq!(w.state_of(12), Some((MdsState::STARTING, 1)));
    }

    /// Ranks of servers with logs of their own, and their owners.
    fn owners(w: &World, id: i32) -> Vec<(Rank, u16)> {
        Owners::of(&w.p.state().fs.filesystems[&id].map).ranks().collect()
    }

    /// Servers from 10 on wait, and one more has rank 0.
    fn with_rank_0(servers: u64) -> (World, i32) {
        let mut w = World::new();
        w.log("m9", 9, MdsState::BOOT, "");
        let id = w.make("cephfs");
        w.log("m9", 9, MdsState::ACTIVE, "");
        for gid in 10..10 + servers {
            w.log(&format!("m{gid}"), gid, MdsState::BOOT, "");
        }
        (w, id)
    }

    #[test]
    fn a_rank_that_was_given_up_is_made_anew_as_another_owner() {
        let (mut w, id) = with_rank_0(5);
        assert_eq!(owners(&w, id), [(0, 0)]);
        w.max_mds(id, 2);
        w.log("m10", 10, MdsState::ACTIVE, "");
        assert_eq!(owners(&w, id), [(0, 0), (1, 1)]);
        w.max_mds(id, 1);
        assert_eq!(w.state_of(10), Some((MdsState::STOPPING, 1)));
        assert_eq!(owners(&w, id), [(0, 0), (1, 1)], "it has its directories until it has stopped");
        w.log("m10", 10, MdsState::STOPPED, "");
        assert_eq!(owners(&w, id), [(0, 0)]);
        w.max_mds(id, 3);
        assert_eq!(w.state_of(11), Some((MdsState::CREATING, 1)), "it is not started as it was");
        assert_eq!(owners(&w, id), [(0, 0), (1, 2)]);
        // One that ends before it has served is made again with the same numbers.
        round(&mut w.p, &w.conf, |gid| gid == 11, true);
        assert_eq!(w.state_of(12), Some((MdsState::CREATING, 1)));
        assert_eq!(owners(&w, id), [(0, 0), (1, 2)]);
        w.log("m12", 12, MdsState::ACTIVE, "");
        assert_eq!(w.state_of(13), Some((MdsState::CREATING, 2)));
        w.log("m13", 13, MdsState::ACTIVE, "");
        assert_eq!(owners(&w, id), [(0, 0), (1, 2), (2, 3)]);
        // A server that takes the rank over is the same owner.
        round(&mut w.p, &w.conf, |gid| gid == 12, true);
        assert_eq!(w.state_of(14), Some((MdsState::REPLAY, 1)));
        assert_eq!(owners(&w, id), [(0, 0), (1, 2), (2, 3)]);
    }

    #[test]
    fn ranks_that_stop_with_the_file_system_stay_what_they_are() {
        let (mut w, id) = with_rank_0(4);
        w.max_mds(id, 2);
        w.log("m10", 10, MdsState::ACTIVE, "");
        w.max_mds(id, 1);
        w.log("m10", 10, MdsState::STOPPED, "");
        w.max_mds(id, 2);
        w.log("m11", 11, MdsState::ACTIVE, "");
        let mut e = Edit::new(&mut w.p, &w.conf);
        let map = &mut e.fs(id).unwrap().map;
        (map.old_max_mds, map.max_mds) = (map.max_mds, 0);
        e.settle();
        e.finish();
        assert_eq!(w.state_of(11), Some((MdsState::STOPPING, 1)));
        w.log("m11", 11, MdsState::STOPPED, "");
        w.log("m9", 9, MdsState::STOPPED, "");
        assert_eq!(owners(&w, id), [(0, 0), (1, 2)]);
        let map = &w.p.state().fs.filesystems[&id].map;
        assert_eq!((map.asleep(), map.rests()), ([0, 1].into(), true));
        w.max_mds(id, 2);
        assert_eq!(w.state_of(12), Some((MdsState::STARTING, 0)));
        w.log("m12", 12, MdsState::ACTIVE, "");
        assert_eq!(w.state_of(13), Some((MdsState::STARTING, 1)));
        assert_eq!(owners(&w, id), [(0, 0), (1, 2)]);
    }

    #[test]
    fn a_rank_that_has_begun_to_leave_leaves() {
        let (mut w, id) = with_rank_0(4);
        w.max_mds(id, 2);
        w.log("m10", 10, MdsState::ACTIVE, "");
        w.max_mds(id, 1);
        // There are to be more ranks again, and then none.
        w.max_mds(id, 3);
        let mut e = Edit::new(&mut w.p, &w.conf);
        let map = &mut e.fs(id).unwrap().map;
        (map.old_max_mds, map.max_mds) = (map.max_mds, 0);
        e.settle();
        e.finish();
        let is = |w: &World| {
            let map = &w.p.state().fs.filesystems[&id].map;
            (Owners::of(map).is_leaving(1), map.asleep().len(), map.rests())
        };
        assert_eq!((w.state_of(10), is(&w)), (Some((MdsState::STOPPING, 1)), (true, 0, true)));
        w.max_mds(id, 3);
        assert_eq!(is(&w), (true, 0, false), "the others go on serving");
        // Its server ends, and the next one goes on with that: no other rank is added before.
        round(&mut w.p, &w.conf, |gid| gid == 10, true);
        w.log("m11", 11, MdsState::RECONNECT, "");
        w.log("m11", 11, MdsState::REJOIN, "");
        w.log("m11", 11, MdsState::ACTIVE, "");
        assert_eq!((w.state_of(11), is(&w)), (Some((MdsState::STOPPING, 1)), (true, 0, false)));
        w.log("m11", 11, MdsState::STOPPED, "");
        round(&mut w.p, &w.conf, |_| false, true);
        assert_eq!(w.state_of(12), Some((MdsState::CREATING, 1)));
        assert_eq!((owners(&w, id), is(&w)), (vec![(0, 0), (1, 2)], (false, 0, false)));
    }

    #[test]
    fn a_map_that_says_nothing_of_owners_is_taken_over_as_it_is() {
        let (mut w, id) = with_rank_0(4);
        w.max_mds(id, 2);
        w.log("m10", 10, MdsState::ACTIVE, "");
        w.max_mds(id, 1);
        w.log("m10", 10, MdsState::STOPPED, "");
        let mut e = Edit::new(&mut w.p, &w.conf);
        e.fs(id).unwrap().map.compat.compat.names.remove(&OWNERS_FEATURE);
        e.finish();
        assert_eq!(owners(&w, id), [(0, 0)]);
        // It is noted before the larger number says that rank 1 is to come back.
        w.max_mds(id, 2);
        assert_eq!(w.state_of(11), Some((MdsState::CREATING, 1)));
        assert_eq!(owners(&w, id), [(0, 0), (1, 2)]);
    }

    #[test]
    fn a_rank_without_numbers_is_not_made() {
        let (mut w, id) = with_rank_0(70);
        for gid in 10..73 {
            w.max_mds(id, 2);
            assert_eq!(w.state_of(gid), Some((MdsState::CREATING, 1)), "{gid}");
            w.log(&format!("m{gid}"), gid, MdsState::ACTIVE, "");
            w.max_mds(id, 1);
            w.log(&format!("m{gid}"), gid, MdsState::STOPPED, "");
        }
        w.max_mds(id, 2);
        assert_eq!(owners(&w, id), [(0, 0)]);
        assert_eq!(w.state_of(73), Some((MdsState::STANDBY, -1)));
    }

    #[test]
    fn a_log_is_empty_from_a_word_on_until_another_one() {
        const EMPTY: &str = MdsBeacon::LOG_EMPTY;
        const USED: &str = MdsBeacon::LOG_USED;
        let known = |w: &World, id| {
            let map = &w.p.state().fs.filesystems[&id].map;
            types::fsmap::empty_logs(&map.compat).into_iter().collect::<Vec<Rank>>()
        };
        let mut w = World::new();
        w.log("a", 10, MdsState::BOOT, "");
        w.log("b", 11, MdsState::BOOT, EMPTY);
        let id = w.make("cephfs");
        w.log("a", 10, MdsState::ACTIVE, "");
        assert!(known(&w, id).is_empty(), "there was no word");
        w.log("b", 11, MdsState::STANDBY, EMPTY);
        assert!(known(&w, id).is_empty(), "the word of a server without the rank");
        w.log("a", 10, MdsState::ACTIVE, EMPTY);
        assert_eq!(known(&w, id), [0]);
        let epoch = w.p.state().fs.epoch;
        w.log("a", 10, MdsState::ACTIVE, EMPTY);
        assert_eq!(w.p.state().fs.epoch, epoch, "it is known");

        // The word that it is used is answered with a map, also if that was known, and a word from
        // before does not count after it.
        let late = w.seq;
        for _ in 0..2 {
            w.log("a", 10, MdsState::ACTIVE, USED);
            assert!(known(&w, id).is_empty());
            assert_eq!(w.p.state().fs.daemon(10).unwrap().state_seq, w.seq);
        }
        let now = std::mem::replace(&mut w.seq, late - 1);
        assert_eq!(w.log("a", 10, MdsState::ACTIVE, EMPTY), Reply::None);
        assert!(known(&w, id).is_empty(), "a word that comes late");
        w.seq = now;

        // It stays so when the server ends, and until another one may write.
        w.max_mds(id, 2);
        w.log("b", 11, MdsState::ACTIVE, EMPTY);
        w.log("a", 10, MdsState::ACTIVE, EMPTY);
        assert_eq!(known(&w, id), [0, 1]);
        w.log("a", 20, MdsState::BOOT, "");
        assert_eq!(w.state_of(20), Some((MdsState::REPLAY, 0)));
        assert_eq!(known(&w, id), [1]);

        // A server that gives its rank up as damaged has read the log.
        w.log("a", 20, MdsState::DAMAGED, EMPTY);
        assert_eq!(known(&w, id), [0, 1]);
    }

    #[test]
    fn servers_with_logs_of_their_own_share_no_file_system_with_stock_servers() {
        let own = with_log();
        let mut w = World::new();
        w.say_as("stock", 10, MdsState::BOOT, types::fsmap::default_compat());
        let id = w.make("cephfs");
        w.say("stock", 10, MdsState::ACTIVE);
        w.say_as("own", 11, MdsState::BOOT, own.clone());
        w.max_mds(id, 2);
        assert_eq!(w.state_of(11), Some((MdsState::STANDBY, -1)), "beside a stock server");

        let mut w = World::new();
        w.say_as("own", 10, MdsState::BOOT, own.clone());
        let id = w.make("cephfs");
        w.say_as("own", 10, MdsState::ACTIVE, own.clone());
        assert_eq!(w.state_of(10), Some((MdsState::ACTIVE, 0)));
        w.say_as("stock", 11, MdsState::BOOT, types::fsmap::default_compat());
        w.max_mds(id, 2);
        assert_eq!(w.state_of(11), Some((MdsState::STANDBY, -1)), "beside a server with a log");
        w.say_as("other", 12, MdsState::BOOT, own.clone());
        round(&mut w.p, &w.conf, |_| false, true);
        assert_eq!(w.state_of(12), Some((MdsState::CREATING, 1)), "beside its like");
        w.say_as("other", 12, MdsState::ACTIVE, own.clone());
        assert_eq!(w.state_of(12), Some((MdsState::ACTIVE, 1)));
        w.say_as("third", 13, MdsState::BOOT, own);
        round(&mut w.p, &w.conf, |gid| gid == 12, true);
        assert_eq!(w.state_of(13), Some((MdsState::REPLAY, 1)), "its rank is taken over");
        assert_eq!(w.state_of(11), Some((MdsState::STANDBY, -1)), "by no stock server");
    }

    #[test]
    fn journals_are_followed_when_allowed() {
        let mut w = World::new();
        w.say("a", 10, MdsState::BOOT);
        w.say("b", 11, MdsState::BOOT);
        let id = w.make("cephfs");
        w.say("a", 10, MdsState::ACTIVE);
        let mut e = Edit::new(&mut w.p, &w.conf);
        e.fs(id).unwrap().map.set(flag::ALLOW_STANDBY_REPLAY, true);
        e.settle();
        e.finish();
        assert_eq!(w.state_of(11), Some((MdsState::STANDBY_REPLAY, 0)));
        round(&mut w.p, &w.conf, |gid| gid == 10, true);
        assert_eq!(w.state_of(11), Some((MdsState::REPLAY, 0)), "the follower is first");
    }

    #[test]
    fn a_restart_under_the_same_name_takes_the_place() {
        let mut w = World::new();
        w.say("a", 10, MdsState::BOOT);
        w.make("cephfs");
        w.say("a", 10, MdsState::ACTIVE);
        w.say("a", 20, MdsState::BOOT);
        assert_eq!(w.state_of(10), None);
        assert_eq!(w.state_of(20), Some((MdsState::REPLAY, 0)));
        assert_eq!(w.p.state().mds_metadata.keys().copied().collect::<Vec<_>>(), [20]);
    }
}
