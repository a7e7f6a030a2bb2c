//! How a rank begins: from what is at rest and the log of the server before, or new. And how it is
//! left: in the form that a stock server takes over.

use super::work;
use super::{Rank, alarms, quotas, refusals};
use crate::at_rest;
use crate::follow::Follower;
use crate::log::{Log, LogHead, Tail};
use crate::server::Inner;
use crate::state::Progress;
use crate::store::{Result, StoreError};
use cephfs::journal::{JournalHeader, JournalPointer, SubtreeMap, decode_entry, encode_entry};
use cephfs::{DirFrag, FileLayout, Fnode, InoTable, SessionInfo, SnapTable, names};
use denc::{Decode, Encode, Features, Reader};
use mds::peer::OwnerTables;
use mds::{Conf, Ino, Mds, SessionRecord, Space, Tables};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use types::fsmap::{MdsMap, MdsState};
use types::log::LogPriority;
use types::{IntervalSet, Utime};

/// A rank that cannot be read is tried again after this pause.
const RETRY: Duration = Duration::from_secs(3);

/// Why a rank cannot be loaded.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] mds::ReplayError),
    #[error(
        "the journal of a stock metadata server has changes that this server does not read: run \
         `ceph fs compat FS rm_incompat 62`, start the stock server again, run `ceph mds repaired \
         FS:{0}`, then `ceph tell mds.NAME flush journal`, and then `ceph fs fail FS`"
    )]
    Journal(u32),
    #[error(
        "the log has {entries} batches of changes, and the journal in Ceph's form is not the one \
         that `siphon mds` wrote last: another server has had the rank since, and its changes and \
         those of the log exclude each other. To keep what the other server left: run \
         `ceph fs compat FS rm_incompat 62 --yes-i-really-mean-it`, start that server again and run \
         `ceph mds repaired FS:{rank}`. To come back to `siphon mds` after that, or to keep what is \
         at rest: remove the log's objects, mds{rank}_siphon and mds{rank}_siphon_log.*, from the \
         metadata pool with `rados rm`, and run `ceph mds repaired FS:{rank}`"
    )]
    Stale {
        /// The rank.
        rank: u32,
        /// Batches in the log.
        entries: usize,
    },
    #[error(
        "rank {0} is to be made, and the metadata pool has directories that an earlier rank {0} \
         made: set max_mds to {0}"
    )]
    Earlier(u32),
    #[error(
        "rank {rank} is to be made with inode numbers of range {owner}, and the metadata pool has \
         directories of an earlier rank {rank}, range {former}, that rank 0 did not take over: set \
         max_mds to {rank}"
    )]
    NotLeft {
        /// The rank.
        rank: u32,
        /// The owner that it is to be.
        owner: u16,
        /// The owner that it was.
        former: u16,
    },
    #[error(
        "rank {rank} is to be made with inode numbers of range {owner}, and the metadata pool has \
         directories with such numbers: set max_mds to {rank}"
    )]
    Used {
        /// The rank.
        rank: u32,
        /// The owner that it is to be.
        owner: u16,
    },
    #[error(
        "rank {rank} gives out inode numbers of range {owner} by the map, and its log in the \
         metadata pool is of range {former}: start the servers with the monitors and the pool that \
         belong together"
    )]
    OtherOwner {
        /// The rank.
        rank: u32,
        /// The owner that it is by the map.
        owner: u16,
        /// The owner of which its log is.
        former: u16,
    },
    #[error("there is no root directory in the metadata pool, and no log: restore the pool")]
    NoRoot,
}

/// What is in the journal in Ceph's form.
enum Journal {
    /// There is none.
    None,
    /// Nothing but maps of subtrees, of these times.
    Maps(Vec<Utime>),
    /// Changes.
    Changes,
}

impl Rank {
    /// Begins the work for a rank that the map gave to the server.
    pub fn start(
        server: &Rc<Inner>,
        map: &MdsMap,
        number: u32,
        owner: mds::Rank,
        follower: Option<Follower>,
    ) -> Rc<Rank> {
        let rank = Rank::new(server, map, number, owner, follower);
        tokio::task::spawn_local(run(Rc::downgrade(&rank)));
        tokio::task::spawn_local(alarms(Rc::downgrade(&rank)));
        tokio::task::spawn_local(quotas(Rc::downgrade(&rank)));
        tokio::task::spawn_local(refusals(Rc::downgrade(&rank)));
        rank
    }
}

impl LoadError {
    /// Whether another try, or another server, would find the same.
    fn stays(&self) -> bool {
        !matches!(self, LoadError::Store(StoreError::Client(_)))
    }
}

/// Loads the rank, and has it serve. A rank that no server can read is given up as damaged.
async fn run(rank: Weak<Rank>) {
    loop {
        let Some(r) = rank.upgrade() else { return };
        let Some(server) = r.server() else { return };
        // The OSDs must refuse the server that had the rank before.
        let epoch = server.map().last_failure_osd_epoch;
        if server.rados.objecter().wait_epoch(epoch).await.is_err() {
            return;
        }
        match r.load().await {
            Ok((core, log)) => {
                let (send, work) = mpsc::unbounded_channel();
                tokio::task::spawn_local(work::log(rank.clone(), log, work));
                r.serve(core, send);
                server.set_progress(Progress::Ready);
                if r.is_active() {
                    server.set_progress(Progress::ClientsBack);
                }
                drop(server);
                return reconnect_time(rank).await;
            }
            Err(LoadError::Store(StoreError::Client(e))) if e.is_blocklisted() => {
                return server.end("the OSDs refuse the server: it has lost its rank".to_owned());
            }
            Err(LoadError::Store(StoreError::Client(client::ClientError::Shutdown))) => return,
            Err(e) if e.stays() => {
                let (name, number) = (&server.frame.name, r.store.rank);
                let text = format!("mds.{name}: rank {number} cannot be read: {e}");
                tracing::error!("{text}");
                server.mon().log(LogPriority::ERROR, "cluster", text);
                if matches!(e, LoadError::Journal(_)) {
                    // The log was read: a stock server may have the rank again.
                    server.say_log_is_empty();
                }
                return server.set_progress(Progress::Damaged);
            }
            Err(e) => tracing::error!("mds.{}: the rank cannot be read: {e}", server.frame.name),
        }
        drop((server, r));
        tokio::time::sleep(RETRY).await;
    }
}

/// Gives clients time to come back, from the moment on at which they may know.
async fn reconnect_time(rank: Weak<Rank>) {
    let Some(server) = rank.upgrade().and_then(|r| r.server()) else { return };
    if !server.reached(MdsState::RECONNECT).await {
        return;
    }
    let seconds = server.frame.conf.borrow().f64("mds_reconnect_timeout");
    let pause = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(45));
    drop(server);
    tokio::time::sleep(pause).await;
    if let Some(r) = rank.upgrade() {
        r.event(mds::Event::ReconnectOver);
    }
}

impl Rank {
    async fn load(&self) -> std::result::Result<(Mds, Log), LoadError> {
        let follower = self.follower.take();
        let followed = match follower {
            Some(follower) => follower.end().await,
            None => None,
        };
        let ahead = followed.as_ref().map_or(0, Tail::entries);
        let mut tail = followed.unwrap_or_else(|| Tail::new(self.store.clone()));
        tail.follow().await?;
        let (mut log, entries) = Log::behind(tail);
        let conf = self.conf();
        let creating = self.server().and_then(|s| s.state()) == Some(MdsState::CREATING);
        let untouched = entries.is_empty() && log.head.trimmed == 0;
        let first = self.store.rank == 0;
        let former = log.head.owner(self.store.rank);
        let former = mds::Rank(u16::try_from(former).unwrap_or(u16::MAX));
        let anew = former != self.owner;
        if anew && !creating {
            let (rank, owner) = (self.store.rank, self.owner.0);
            return Err(LoadError::OtherOwner { rank, owner, former: former.0 });
        }
        let empty = creating && first;
        if empty || (untouched && !creating && !self.store.has_base(self.first()).await?) {
            if !creating && self.store.read_inotable().await?.is_some() {
                return Err(LoadError::NoRoot);
            }
            return Ok((self.create(&mut log, conf).await?, log));
        }
        if anew {
            self.check_former(&log, former, entries.len()).await?;
            return Ok((self.create(&mut log, conf).await?, log));
        }
        if !creating {
            self.check_journal(&mut log, entries.len()).await?;
        }
        let mut tables = Tables {
            next: BTreeMap::new(),
            truncating: log.head.truncating.iter().map(|i| Ino(*i)).collect(),
            recovering: log.head.recovering.iter().map(|i| Ino(*i)).collect(),
            promises: log.head.promises.iter().map(|(s, p)| (Space(*s), *p)).collect(),
            ..Tables::default()
        };
        if let Some(owners) = self.store.read_owners().await? {
            tables.owners = owners;
            self.shares.set(true);
        }
        if let Some(table) = self.store.read_inotable().await? {
            tables.next = next_numbers(&table.free);
            self.session_version.set(table.version.max(1));
        }
        for info in self.store.read_sessions().await? {
            let Ok(id) = u64::try_from(info.name.num) else { continue };
            let record = SessionRecord {
                completed: info
                    .completed_requests
                    .iter()
                    .map(|(tid, ino)| (*tid, Ino(ino.0)))
                    .collect(),
                oldest_tid: 0,
                flushes: info.completed_flushes.iter().map(|f| (*f, ())).collect(),
            };
            tables.sessions.insert(mds::ClientId(id), record);
            self.known_client(id, info);
        }
        let mut replay = Mds::replay(conf.clone(), tables);
        for (batch, bytes) in &entries {
            replay.batch(*batch, bytes)?;
        }
        if creating {
            // Numbers of inodes do not come again.
            if replay.gave_numbers() {
                return Err(LoadError::Earlier(self.store.rank));
            }
            self.clients.borrow_mut().clear();
            return Ok((self.create(&mut log, conf).await?, log));
        }
        let count = entries.len();
        let core = replay.finish(self.now(), log.last());
        self.forget_strangers(&core).await?;
        if let Some(server) = self.server() {
            tracing::info!(
                "mds.{}: {count} batches of the log, {ahead} were read ahead; {} sessions",
                server.frame.name,
                self.clients.borrow().len()
            );
        }
        Ok((core, log))
    }

    /// The directory that a rank has from the first moment on.
    fn first(&self) -> Ino {
        match self.owner {
            mds::Rank(0) => Ino::ROOT,
            owner => Ino::mds_dir(owner),
        }
    }

    /// Fails if the rank that had this number before has something that rank 0 has not, or if there
    /// are inodes with the numbers that this one is to give out.
    async fn check_former(
        &self,
        log: &Log,
        former: mds::Rank,
        entries: usize,
    ) -> std::result::Result<(), LoadError> {
        let (rank, owner) = (self.store.rank, self.owner.0);
        if self.store.has_base(self.first()).await? {
            return Err(LoadError::Used { rank, owner });
        }
        let left = self.store.read_owners().await?.is_some_and(|tables| tables.left);
        let made = log.head != LogHead::default();
        if entries > 0 || made && !left {
            return Err(LoadError::NotLeft { rank, owner, former: former.0 });
        }
        match self.read_journal().await? {
            Journal::Changes => Err(LoadError::Journal(rank)),
            Journal::None | Journal::Maps(_) => Ok(()),
        }
    }

    /// A new file system, or a new owner: what an earlier one left of its log and of its tables is
    /// no part of it.
    async fn create(&self, log: &mut Log, conf: Conf) -> Result<Mds> {
        log.reset(self.owner, client::wall_clock()).await?;
        // From now on it tells this log from one that an earlier file system left in the pool.
        self.write_journal(log).await?;
        self.store.remove_owners().await?;
        self.store.remove_inotable().await?;
        let rows = self.store.read_sessions().await?;
        let rows: BTreeSet<_> = rows.iter().map(SessionInfo::key).collect();
        self.store.write_sessions(1, &[], &rows).await?;
        Ok(Mds::create(conf, self.now(), client::wall_clock()))
    }

    /// Fails if a stock server left changes in its journal, or has had the rank since the log's
    /// entries were written. The journal is this rank's own from then on.
    async fn check_journal(
        &self,
        log: &mut Log,
        entries: usize,
    ) -> std::result::Result<(), LoadError> {
        let rank = self.store.rank;
        let found = self.read_journal().await?;
        let stale = LoadError::Stale { rank, entries };
        match found {
            Journal::None => Ok(()),
            Journal::Maps(times) if log.mark.is_own(&times) => Ok(()),
            // A log from the time in which the journal had no mark.
            Journal::Maps(_) if entries > 0 && log.mark.times().is_empty() => Ok(()),
            Journal::Maps(_) if entries == 0 => {
                log.mark.begin(client::wall_clock());
                log.write_head().await?;
                Ok(self.write_journal(log).await?)
            }
            Journal::Changes if entries == 0 => Err(LoadError::Journal(rank)),
            Journal::Maps(_) | Journal::Changes => Err(stale),
        }
    }

    /// What is in the journal in Ceph's form.
    async fn read_journal(&self) -> Result<Journal> {
        let rank = self.store.rank;
        let pointer = self.store.get(names::data(cephfs::Ino::log_pointer(rank), 0)).await?;
        let front = pointer
            .and_then(|bytes| JournalPointer::from_bytes(&bytes).ok())
            .map_or(cephfs::Ino::log(rank), |p| p.front);
        let Some((_, bytes)) = self.store.read_journal(front).await? else {
            return Ok(Journal::None);
        };
        let (mut r, mut times) = (Reader::new(bytes), Vec::new());
        while r.left() > 0 {
            let Ok((_, content)) = decode_entry(&mut r) else { break };
            match SubtreeMap::from_event(&content) {
                Ok(Some(map)) => times.push(map.stamp),
                _ => return Ok(Journal::Changes),
            }
        }
        Ok(Journal::Maps(times))
    }

    /// Writes what is in no directory: sessions, free inode numbers, an empty journal and the rest
    /// of what a stock server looks for.
    pub(super) async fn write_tables(&self, log: &mut Log, tables: &Tables) -> Result<()> {
        let version = self.session_version.get() + 1;
        self.session_version.set(version);
        let mut rows: BTreeMap<u64, SessionInfo> = self
            .clients
            .borrow()
            .iter()
            .filter(|(_, c)| c.at_rest)
            .map(|(id, c)| (*id, c.info.clone()))
            .collect();
        for (client, record) in &tables.sessions {
            let Some(info) = rows.get_mut(&client.0) else { continue };
            info.completed_requests =
                record.completed.iter().map(|(tid, ino)| (*tid, cephfs::Ino(ino.0))).collect();
            info.completed_flushes = record.flushes.keys().copied().collect();
        }
        let rows: Vec<SessionInfo> = rows.into_values().collect();
        self.store.write_sessions(version, &rows, &BTreeSet::new()).await?;
        let table = InoTable { version, free: free_numbers(self.owner, &tables.next) };
        self.store.write_inotable(&table).await?;
        if self.shares.get() || tables.owners != OwnerTables::default() {
            self.store.write_owners(&tables.owners).await?;
            self.shares.set(true);
        }
        log.head.truncating = tables.truncating.iter().map(|i| i.0).collect();
        log.head.recovering = tables.recovering.iter().map(|i| i.0).collect();
        log.head.promises = tables.promises.iter().map(|(s, p)| (s.0, *p)).collect();
        log.mark.begin(client::wall_clock());
        log.write_head().await?;
        if self.store.get(names::SNAPTABLE).await?.is_none() {
            let table = SnapTable { version: 1, ..SnapTable::new() };
            self.store.put(names::SNAPTABLE, table.to_bytes(Features::ALL)).await?;
        }
        self.write_journal(log).await
    }

    /// Writes an empty journal. The log's head has its time already.
    async fn write_journal(&self, log: &mut Log) -> Result<()> {
        let layout = FileLayout::of_pool(self.store.meta.pool().0);
        let rank = self.store.rank;
        let (root, mine) = (cephfs::Ino::ROOT, cephfs::Ino::mds_dir(rank));
        let subtrees: Vec<_> = [root, mine].into_iter().skip(usize::from(rank != 0)).collect();
        let dir = |ino| DirFrag { ino, ..DirFrag::default() };
        let mut dirs = Vec::new();
        for ino in subtrees.iter().copied() {
            let op = client::Operation::new().omap_header();
            let header = self.store.meta.run(names::dirfrag(ino, cephfs::Frag::ROOT), op).await;
            let fnode = match header.and_then(|o| o.data(0)) {
                Ok(bytes) => Fnode::from_bytes(&bytes).unwrap_or_default(),
                Err(_) => at_rest::head_out(&mds::DirHead::default(), 1),
            };
            dirs.push((dir(ino), fnode));
        }
        let mut header = JournalHeader::new(layout.clone());
        let map = SubtreeMap {
            stamp: log.mark.begin(client::wall_clock()),
            dirs,
            subtrees: subtrees.iter().map(|ino| (dir(*ino), vec![])).collect(),
            expire_pos: header.expire_pos,
            event_seq: 1,
            ..SubtreeMap::default()
        };
        let entry = encode_entry(header.write_pos, &map.to_event());
        let journal = cephfs::Ino::log(rank);
        header.write_pos += entry.len() as u64;
        self.store.put(names::data(journal, 1), entry).await?;
        self.store.put(names::data(journal, 0), header.to_bytes(Features::ALL)).await?;
        let pointer = JournalPointer { front: journal, back: cephfs::Ino(0) };
        let object = names::data(cephfs::Ino::log_pointer(rank), 0);
        self.store.put(object, pointer.to_bytes(Features::ALL)).await?;
        let purge = names::data(cephfs::Ino::purge_queue(rank), 0);
        if self.store.get(&purge).await?.is_none() {
            let header = JournalHeader::new(layout);
            self.store.put(&purge, header.to_bytes(Features::ALL)).await?;
        }
        log.mark.written();
        Ok(())
    }

    /// Sessions that have a row, and of which the log knows that they ended, or nothing. The row
    /// goes: without the log, a later server would wait for the client, and evict it.
    async fn forget_strangers(&self, core: &Mds) -> Result<()> {
        let is_there = |id: &u64| core.has_session(mds::ClientId(*id));
        let strangers = self.clients.borrow_mut().extract_if(.., |id, _| !is_there(id)).collect();
        let strangers: BTreeMap<u64, super::Client> = strangers;
        let rows: BTreeSet<_> = strangers.values().map(|c| c.info.key()).collect();
        if rows.is_empty() {
            return Ok(());
        }
        self.store.write_sessions(self.session_version.get(), &[], &rows).await
    }
}

/// The next number of each space: those behind all that were given out.
fn next_numbers(free: &IntervalSet) -> BTreeMap<Space, u64> {
    let mut next = BTreeMap::new();
    for (mut start, length) in free.iter() {
        let end = start.saturating_add(length);
        // An interval may go over several spaces.
        while start < end {
            let space = Ino(start).space();
            let limit = space.numbers().find(|r| r.contains(&start)).map_or(u64::MAX, |r| r.end);
            if end >= limit {
                // All of a range that comes later is free as well.
                let known = next.entry(space).or_insert(start);
                if !space.numbers().any(|r| r.contains(known) && r.end != limit) {
                    *known = start;
                }
            }
            start = limit;
        }
    }
    next
}

/// The numbers that are free.
fn free_numbers(owner: mds::Rank, next: &BTreeMap<Space, u64>) -> IntervalSet {
    let mut free = IntervalSet::new();
    let mut next = next.clone();
    let common = Space::common(owner);
    next.entry(common).or_insert_with(|| common.first_number());
    for (space, next) in next {
        for range in space.numbers().skip_while(|r| !r.contains(&next)) {
            let start = if range.contains(&next) { next } else { range.start };
            free.insert(start, range.end - start);
        }
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_return_from_the_table() {
        let next: BTreeMap<Space, u64> = [
            (Space(1), (1 << 40) + 5),
            (Space(0x200), Space(0x200).first_number() + 1),
            // The numbers of 48 bits are used up, or were none.
            (Space(0x201), (0x201 << 40) + 7),
        ]
        .into();
        assert_eq!(next_numbers(&free_numbers(mds::Rank(0), &next)), next);
        let other = next_numbers(&free_numbers(mds::Rank(1), &BTreeMap::new()));
        assert_eq!(other, [(Space(0x81), 0x81 << 40)].into());
        let new = InoTable::new(0);
        assert_eq!(next_numbers(&new.free), [(Space(1), 1 << 40)].into());
        // Numbers that a stock server gave back are left alone.
        let mut holes = IntervalSet::new();
        holes.insert((1 << 40) + 3, 2);
        holes.insert((1 << 40) + 100, (1 << 40) - 100);
        assert_eq!(next_numbers(&holes), [(Space(1), (1 << 40) + 100)].into());
    }
}
