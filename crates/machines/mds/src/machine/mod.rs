//! The machine. A request is tried from its beginning until all it needs is there; then it is done
//! in one step. It holds nothing while it waits, so requests cannot wait for each other in a ring.

mod asked;
mod attrs;
mod cache;
mod capability;
mod count_table;
mod counts;
mod decay;
mod early;
mod emptying;
mod entrance;
mod few;
mod halves;
mod hand_over;
mod lease_table;
mod leases;
mod lock_table;
mod locks;
mod log;
mod memory;
mod moves;
mod names;
mod node;
mod operation;
mod ops;
mod owners;
mod placing;
mod promises;
mod recall;
mod recovery;
mod rename;
mod rest;
mod rights;
mod runs;
mod schedule;
mod sessions;
mod shown;
mod since;
mod state;
mod stats;
mod strays;
mod trees;
mod txn;
mod vxattrs;
mod weight;
mod write_back;

use crate::action::{Action, Tables};
use crate::conf::{Bounds, Conf};
use crate::event::{Event, Token};
use crate::peer::LotId;
use crate::rights::Wish;
use crate::types::{Batch, ClientId, DirFrag, Ino, Name, Promise, Space, Steady};
use count_table::Counting;
use decay::Decay;
use entrance::Entrance;
use lease_table::Leases;
use node::{Directory, Fetch, Need, Node};
use operation::{Answer, Exec, Kind, OpId, OpState, Phase, Stop};
use rustc_hash::FxHashMap;
use since::Since;
use state::{COST_UNIT, Early, Flushing, Log, Peers, Session, Tenant, Write};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::Errno;
use weight::{Claims, Deferred, Queue, Weighed};

pub use memory::Memory;
pub use recall::Complaints;
pub use recovery::{Replay, ReplayError};
pub use schedule::TenantUse;
pub use shown::{ShownCap, ShownDir, ShownInode};

/// Tests count all that is in memory after so many events.
const CHECK_EVERY: u64 = 64;

/// A metadata server.
#[derive(Debug)]
pub struct Mds {
    conf: Conf,
    now: Steady,
    /// Counts events.
    events: u64,
    phase: Phase,
    next_token: u64,
    next_op: u64,
    next_cap: u64,
    // The cache.
    nodes: Weighed<FxHashMap<Ino, Box<Node>>>,
    dirs: Weighed<FxHashMap<DirFrag, Box<Directory>>>,
    places: FxHashMap<Ino, (Ino, Name)>,
    /// Places at which an inode was not found.
    misplaced: FxHashMap<Ino, (Ino, Name)>,
    /// Directories that reads found to be split, and how many reads.
    splits: BTreeMap<Ino, u32>,
    /// How many of them are looked for by the current operation, one for the other.
    nested: u32,
    /// Directories with quotas, and perhaps some that had one.
    with_quota: BTreeSet<Ino>,
    queue: Queue,
    /// Entries that were looked at since one was dropped, or another thing could be.
    barren: usize,
    fetches: BTreeMap<Token, (Fetch, Vec<OpId>)>,
    fetching: BTreeMap<Fetch, Token>,
    /// Errors of what was read, for the operations that waited for it.
    failed: BTreeMap<OpId, i32>,
    // Operations.
    ops: Weighed<BTreeMap<OpId, OpState>>,
    by_tid: BTreeMap<(ClientId, u64), OpId>,
    /// Words of a client about an inode that have not come to their end, in their order.
    caps_ops: BTreeMap<(ClientId, Ino), VecDeque<OpId>>,
    deferred: Deferred,
    entrance: Entrance,
    promises: BTreeMap<Space, Promise>,
    tenants: BTreeMap<Space, Tenant>,
    /// Directories that were marked as subvolumes, as far as they were in memory.
    roots: BTreeMap<Space, Ino>,
    again: BTreeSet<OpId>,
    judge: BTreeSet<Ino>,
    current: OpId,
    collected: Vec<(Ino, Need)>,
    /// What the current request does, if its client is limited.
    wish: Option<Wish>,
    seen: Batch,
    /// What may be shown before it is durable.
    early: Early,
    /// What is shared with other owners.
    peers: Peers,
    // The log.
    log: Log,
    next_ino: BTreeMap<Space, u64>,
    // What is to be written.
    dirty_dirs: Since<DirFrag>,
    dirty_base: Since<Ino>,
    backtraces: Since<Ino>,
    dirty_entries: usize,
    writes: BTreeMap<Token, Write>,
    write_ops: BTreeSet<OpId>,
    flush: Option<Flushing>,
    // Strays and files of which the size changes.
    purgeable: BTreeSet<Ino>,
    purging: BTreeSet<Ino>,
    /// All of `purgeable` wait for more of the log to be durable than this.
    purge_waits: Option<Batch>,
    truncating: BTreeSet<Ino>,
    recovering: BTreeSet<Ino>,
    size_work: BTreeMap<Token, Ino>,
    purges: BTreeMap<Token, Ino>,
    // Sessions.
    sessions: Weighed<BTreeMap<ClientId, Session>>,
    with_output: BTreeSet<ClientId>,
    claims: Claims,
    evicting: BTreeMap<Token, ClientId>,
    /// The cache is being emptied.
    emptying: bool,
    /// When clients were last asked to drop inodes, as there was too much in memory.
    recalled: Option<Steady>,
    /// When it was looked last which clients have more than they should.
    looked: Option<Steady>,
    /// What all clients were asked for lately.
    asked_for: Decay,
    /// Requests that wait for their clients to give something back.
    crowded: BTreeSet<OpId>,
    leases: Leases,
    counting: Counting,
    /// Directories of which the current operation looked at all that they count.
    looked_at: Vec<Ino>,
    /// Names that the current operation takes away, or gives to something else.
    taken_names: Vec<(Ino, Name)>,
    /// Bytes that the shell holds for clients.
    outside: usize,
    out: VecDeque<Action>,
    wake_at: Option<Steady>,
    history: Vec<Executed>,
}

/// One request that was carried out, in the order in which they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// The client.
    pub client: ClientId,
    /// Its request.
    pub tid: u64,
    /// When this batch is durable, it has happened for good.
    pub batch: Batch,
    /// Whether it changed something.
    pub wrote: bool,
    /// The inode that it made.
    pub made: Option<Ino>,
    /// 0, or the negative errno.
    pub result: i32,
    /// It goes on at another owner, with the inode that its name stands for.
    pub onward: Option<Ino>,
}

impl Mds {
    fn empty(conf: Conf) -> Self {
        let class = |weight| qos::ClassSpec { reservation: 0, weight, limit: 0 };
        let spec = qos::MclockSpec {
            client: class(4),
            background_recovery: class(1),
            background_best_effort: class(1),
            cost_per_io: COST_UNIT,
        };
        let entrance = Entrance::new(spec, conf.requests_max);
        Mds {
            conf,
            now: 0,
            events: 0,
            phase: Phase::Active,
            next_token: 1,
            next_op: 1,
            next_cap: 1,
            nodes: Weighed::default(),
            dirs: Weighed::default(),
            places: FxHashMap::default(),
            misplaced: FxHashMap::default(),
            splits: BTreeMap::new(),
            nested: 0,
            with_quota: BTreeSet::new(),
            queue: Queue::default(),
            barren: 0,
            fetches: BTreeMap::new(),
            fetching: BTreeMap::new(),
            failed: BTreeMap::new(),
            ops: Weighed::default(),
            by_tid: BTreeMap::new(),
            caps_ops: BTreeMap::new(),
            deferred: Deferred::default(),
            entrance,
            promises: BTreeMap::new(),
            tenants: BTreeMap::new(),
            roots: BTreeMap::new(),
            again: BTreeSet::new(),
            judge: BTreeSet::new(),
            current: OpId(0),
            collected: Vec::new(),
            wish: None,
            seen: Batch(0),
            early: Early::default(),
            peers: Peers::default(),
            log: Log::default(),
            next_ino: BTreeMap::new(),
            dirty_dirs: Since::default(),
            dirty_base: Since::default(),
            backtraces: Since::default(),
            dirty_entries: 0,
            writes: BTreeMap::new(),
            write_ops: BTreeSet::new(),
            flush: None,
            purgeable: BTreeSet::new(),
            purging: BTreeSet::new(),
            purge_waits: None,
            truncating: BTreeSet::new(),
            recovering: BTreeSet::new(),
            size_work: BTreeMap::new(),
            purges: BTreeMap::new(),
            sessions: Weighed::default(),
            with_output: BTreeSet::new(),
            claims: Claims::default(),
            evicting: BTreeMap::new(),
            emptying: false,
            recalled: None,
            looked: None,
            asked_for: Decay::default(),
            crowded: BTreeSet::new(),
            leases: Leases::default(),
            counting: Counting::default(),
            looked_at: Vec::new(),
            taken_names: Vec::new(),
            outside: 0,
            out: VecDeque::new(),
            wake_at: None,
            history: Vec::new(),
        }
    }

    /// The next thing to do. Drained after each [`Mds::handle`].
    pub fn poll(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// Whether requests are carried out: clients of the server before this one are back.
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Requests in the order in which they were carried out since the last call, if
    /// [`Conf::history`] says so.
    pub fn take_history(&mut self) -> Vec<Executed> {
        std::mem::take(&mut self.history)
    }

    /// Entries in the cache.
    pub fn cached_entries(&self) -> usize {
        self.queue.len()
    }

    /// Entries that are not at rest.
    pub fn dirty_entries(&self) -> usize {
        self.dirty_entries
    }

    /// Operations that wait, and for what: reads, or capabilities of inodes.
    pub fn waiting(&self) -> Vec<String> {
        let mut out = Vec::new();
        if !self.is_active() {
            out.push(format!("{:?}", self.phase));
        }
        if let Some(step) = self.peers.leaving {
            out.push(format!("leaving: {step:?}"));
        }
        for (id, moving) in &self.peers.moving {
            out.push(format!("{id:?}: {moving:?}"));
        }
        for (id, lot) in &self.peers.lots {
            let parked = self.peers.parked.get(id).map_or(0, Deferred::len);
            let (holder, turn, leaves, rested) =
                (lot.holder, lot.turn, lot.parcel.is_some(), lot.rested);
            out.push(format!("{id:?}: {holder:?} {turn} {leaves} {rested}, {parked} parked"));
        }
        for (id, state) in self.ops.iter() {
            let reads = self.fetches.values().filter(|(_, ops)| ops.contains(id));
            let reads: Vec<_> = reads.map(|(what, _)| what).collect();
            let on: Vec<_> = state
                .needs_on
                .iter()
                .filter_map(|ino| self.nodes.get(ino).map(|n| (ino, &n.needs, &n.caps)))
                .collect();
            out.push(format!("{id:?} {:?} {:?}: {reads:?} {on:?}", state.client, state.kind));
        }
        out
    }

    /// How many inodes a client has capabilities of.
    pub fn inodes_of(&self, client: ClientId) -> usize {
        self.sessions.get(&client).map_or(0, |s| s.inodes.len())
    }

    /// What a client was issued of an inode, with what was asked back and is not yet given back.
    pub fn issued(&self, ino: Ino, client: ClientId) -> u32 {
        self.nodes.get(&ino).and_then(|n| n.caps.get(&client)).map_or(0, |c| c.issued())
    }

    /// Whether a client has a session.
    pub fn has_session(&self, client: ClientId) -> bool {
        self.sessions.contains_key(&client)
    }

    /// Whether a client of the server before this one is waited for.
    pub fn waits_for(&self, client: ClientId) -> bool {
        matches!(&self.phase, Phase::Reconnect(waiting) if waiting.contains(&client))
    }

    /// Files of which new files may be in these pools from now on.
    pub fn set_data_pools(&mut self, pools: Vec<i64>) {
        self.conf.data_pools = pools;
    }

    /// Sets what may be in memory. The cache shrinks with what happens next.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.conf.bounds = bounds;
        self.barren = 0;
    }

    /// Sets whether directories say that those below them are spread over owners: those made in
    /// them, and any by chance, with the largest chance.
    pub fn set_spreading(&mut self, distributed: bool, random: bool, random_max: f64) {
        self.conf.distributed = distributed;
        self.conf.random = random;
        self.conf.random_max = random_max;
        self.peers.choose_all = true;
    }

    /// Whether a client has something of an inode.
    pub fn has_caps(&self, client: ClientId, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|n| n.caps.contains_key(&client))
    }

    /// Whether a client has nothing of an inode, and knows that: all that it was told has left.
    pub fn knows_of_no_caps(&self, client: ClientId, ino: Ino) -> bool {
        let waits = self.sessions.get(&client).is_some_and(|s| s.output.waits());
        !waits && !self.has_caps(client, ino)
    }

    /// Inodes in memory.
    pub fn cached_inodes(&self) -> usize {
        self.nodes.len()
    }

    /// Batches of the log that a successor would read.
    pub fn log_batches(&self) -> u64 {
        (self.log.sealed.0 + 1).saturating_sub(self.log.first.0)
    }

    /// Takes in what happened at the time `now`.
    pub fn handle(&mut self, now: Steady, event: Event) {
        self.now = self.now.max(now);
        self.events += 1;
        // A request that has just come waits for those that come with it.
        let bounded = self.conf.requests_at_once < usize::MAX;
        let waits = bounded && matches!(event, Event::Request(..));
        self.entrance.turns = if waits { 0 } else { self.conf.requests_at_once };
        self.end_leases();
        self.take(event);
        self.settle();
    }

    fn take(&mut self, mut event: Event) {
        if self.refuses(&event) {
            return;
        }
        if let Phase::Reconnect(_) = self.phase
            && let Event::Request(client, request) = event
        {
            if request.replay.is_some() {
                return self.take_replay(client, request);
            }
            return self.deferred.push(Event::Request(client, request));
        }
        if self.defers(&event) {
            // An owner that leaves waits for what comes back with a request.
            if let Event::Request(client, request) = &mut event
                && self.phase == Phase::Active
            {
                for release in std::mem::take(&mut request.releases) {
                    self.take_release(*client, &release);
                }
            }
            self.deferred.push(event);
            return;
        }
        match event {
            Event::Session(client, e) => self.session_event(client, e),
            Event::Rights(client, rights) => self.set_rights(client, rights),
            Event::Request(client, request) => self.take_request(client, request),
            Event::Caps(client, update) => {
                if self.sessions.contains_key(&client) {
                    self.start_caps(client, update);
                }
            }
            Event::CapRelease(client, list) => {
                for (ino, cap_id, seq) in list {
                    self.cap_released(client, ino, cap_id, seq);
                }
                self.retry_crowded();
            }
            Event::LeaseRelease(client, dir, name, seq) => {
                self.lease_released(client, dir, &name, seq);
            }
            Event::Reconnect(client, claims) => self.claimed(client, claims),
            Event::Reconnected(client) => self.reconnected(client),
            Event::ReconnectOver => self.reconnect_over(),
            Event::Appended(batch) => self.appended(batch),
            Event::Page(token, result) => self.page_read(token, result),
            Event::Entry(token, result) => self.entry_read(token, result),
            Event::Split(token) => self.is_split(token),
            Event::Base(token, result) => self.base_read(token, result),
            Event::Backtrace(token, result) => self.backtrace_read(token, result),
            Event::Probed(token, result) => self.probed(token, result),
            Event::Done(token) => self.done(token),
            Event::Wake => {
                if self.wake_at.is_some_and(|at| at <= self.now) {
                    self.wake_at = None;
                }
                self.check_sessions();
                self.ask_peers_again();
                self.retry_crowded();
            }
            Event::Peer(rank, message) => self.peer_message(rank, *message),
            Event::Flush => self.begin_flush(),
            Event::Leave => self.leave(),
            Event::End => self.end(),
        }
    }

    /// Whether an event has to wait until clients are back.
    fn defers(&self, event: &Event) -> bool {
        match event {
            Event::Request(..) => {
                self.phase != Phase::Active || self.peers.leaving > Some(state::Leaving::Locks)
            }
            Event::Caps(..) | Event::CapRelease(..) => self.phase != Phase::Active,
            _ => false,
        }
    }

    /// Does all that can be done now.
    fn settle(&mut self) {
        loop {
            if let Some(op) = self.again.pop_first() {
                self.run(op);
            } else if let Some(ino) = self.judge.pop_first() {
                self.judge(ino);
            } else if !(self.pump()
                || self.purge()
                || self.write_back()
                || self.move_on()
                || self.leave_on())
            {
                break;
            }
        }
        self.seal();
        self.release_output();
        self.shrink();
        self.perhaps_emptied();
        self.set_alarm();
        self.set_lease_alarm();
        self.set_peer_alarm();
        self.weigh();
        debug_assert!(!self.events.is_multiple_of(CHECK_EVERY) || self.check_memory() == Ok(()));
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Begins an operation at once, without the scheduler.
    fn start(&mut self, client: ClientId, kind: Kind) -> OpId {
        let id = self.new_op(client, kind);
        self.again.insert(id);
        id
    }

    fn new_op(&mut self, client: ClientId, kind: Kind) -> OpId {
        let id = OpId(self.next_op);
        self.next_op += 1;
        let state = OpState {
            kind,
            client,
            needs_on: Vec::new(),
            names_on: Vec::new(),
            have: None,
            skip: None,
            txn: None,
            judged: false,
            resent: false,
            looks: false,
            is_free: false,
            began: self.events,
            since: self.now,
            weight: Default::default(),
        };
        self.ops.insert(id, state);
        id
    }

    /// Tries an operation from its beginning.
    fn run(&mut self, id: OpId) {
        let Some(mut state) = self.ops.remove(&id) else { return };
        for ino in std::mem::take(&mut state.needs_on) {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.needs.retain(|n| n.op != id);
            }
            self.judge.insert(ino);
        }
        self.free_names(id, &mut state);
        let (client, resent) = (state.client, state.resent);
        self.current = id;
        self.entrance.tries(id, self.now);
        self.peers.onward = None;
        self.peers.impatient = false;
        self.collected.clear();
        self.taken_names.clear();
        self.looked_at.clear();
        self.seen = self.early.rules;
        self.begin_to_show(&state);
        let looked = std::mem::take(&mut state.looks);
        let result = match self.failed.remove(&id) {
            Some(errno) if looked && errno == Errno::ESTALE.0 => {
                state.is_free = true;
                self.step(&mut state)
            }
            Some(errno) => Err(Stop::Fail(errno)),
            None => self.step(&mut state),
        };
        match result {
            Err(Stop::Wait) => {
                self.make_way(&mut state);
                for (ino, _) in &self.collected {
                    if !state.needs_on.contains(ino) {
                        state.needs_on.push(*ino);
                    }
                }
                state.names_on = std::mem::take(&mut self.taken_names);
                self.ops.insert(id, state);
                self.entrance.waits(id);
                self.end_to_show();
                if resent && !self.entrance.reads {
                    self.replay_waits(id);
                }
            }
            result => {
                self.ended(id, state, result);
                self.end_to_show();
                if resent {
                    self.replay_ended(id, client);
                }
            }
        }
    }

    /// Carries an operation out, as far as it gets.
    fn step(&mut self, state: &mut OpState) -> Exec<Option<Answer>> {
        match state.kind.clone() {
            Kind::Request(request) => self.execute(state, &request).map(Some),
            Kind::Caps(update) => self.caps_update(state.client, &update).map(|()| None),
            Kind::WriteDir(dir) => self.write_dir(dir).map(|()| None),
            Kind::Backtrace(ino) => self.write_backtrace(ino).map(|()| None),
            Kind::Strays(dir) => self.scan_strays(dir, state).map(|()| None),
            Kind::Rehome(ino) => self.rehome(ino).map(|()| None),
            Kind::Graft(ino) => self.graft(ino).map(|()| None),
            Kind::Claimed(ino) => self.chain(ino).map(|()| None),
            Kind::Purged(ino) => self.purged(ino).map(|()| None),
            Kind::Sized(ino, found) => self.sized(ino, found).map(|()| None),
            Kind::Prepare(prepare) => self.prepare_halves(&prepare).map(|()| None),
            Kind::Apply(txn) => self.apply_halves(txn).map(|()| None),
            Kind::Choose(id) => self.choose_owner(id).map(|()| None),
            Kind::Collect(space) => self.collect(space, state).map(|()| None),
            Kind::Walk(root) => self.walk(root, state).map(|()| None),
            Kind::Take(rank, parcel) => self.take_parcel(rank, &parcel).map(|()| None),
            Kind::Report(rank, inode) => self.reported(rank, *inode).map(|()| None),
        }
    }

    fn ended(&mut self, id: OpId, mut state: OpState, result: Exec<Option<Answer>>) {
        self.give_back(&mut state);
        self.write_ops.remove(&id);
        if let Phase::Flushing(ops) = &mut self.phase
            && ops.remove(&id)
        {
            self.perhaps_active();
        }
        let wrote = matches!(&result, Ok(Some(answer)) if answer.wrote);
        match (&state.kind, result) {
            (Kind::Request(request), Ok(Some(answer))) => {
                self.by_tid.remove(&(state.client, request.tid));
                self.answer(state.client, request, answer);
            }
            (Kind::Request(request), Err(Stop::Fail(errno))) => {
                self.by_tid.remove(&(state.client, request.tid));
                self.refuse(state.client, request, errno, state.judged);
            }
            (Kind::Request(request), Err(Stop::Away)) => {
                self.by_tid.remove(&(state.client, request.tid));
                self.forward(state.client, request);
            }
            (Kind::Request(request), Err(Stop::Park(id))) => {
                self.by_tid.remove(&(state.client, request.tid));
                self.park(id, state.client, request);
            }
            (Kind::Caps(update), _) => self.caps_ended(state.client, update.ino),
            (Kind::Prepare(prepare), result) => self.halves_ended(prepare, result.map(|_| ())),
            (Kind::Graft(ino), Err(Stop::Fail(e))) if e == Errno::ESTALE.0 => {
                self.peers.placeless.insert(*ino);
            }
            (Kind::Graft(ino), Err(_)) => {
                self.start(ClientId(0), Kind::Graft(*ino));
            }
            // Nothing is there that the client could have.
            (Kind::Claimed(ino), Err(Stop::Fail(_) | Stop::Away | Stop::Park(_))) => {
                self.claims.remove(*ino);
            }
            (Kind::Apply(txn), _) => {
                self.peers.applying.remove(txn);
            }
            (Kind::Report(rank, inode), Err(Stop::Fail(e))) if e == Errno::ESTALE.0 => {
                self.report_taken(*rank, inode.ino, inode.version);
            }
            (Kind::Collect(space), Err(_)) => self.cancel_move(LotId::Space(*space)),
            (Kind::Walk(root), Err(why)) => self.cannot_walk(*root, why),
            // There is no such directory, or inode, any more.
            (Kind::WriteDir(dir), Err(Stop::Fail(e))) if e == Errno::ESTALE.0 => {
                self.forget_dir(*dir);
            }
            (Kind::Backtrace(ino), Err(Stop::Fail(e))) if e == Errno::ESTALE.0 => {
                self.backtraces.remove(ino);
            }
            _ => {}
        }
        self.entrance.done(id, wrote, self.seen, self.log.durable, self.now);
    }

    fn tables(&self) -> Tables {
        Tables {
            next: self.next_ino.clone(),
            sessions: self.sessions.iter().map(|(c, s)| (*c, s.record.clone())).collect(),
            truncating: self.truncating.iter().copied().collect(),
            recovering: self.recovering.iter().copied().collect(),
            promises: self.promises.clone(),
            owners: self.owner_tables(),
        }
    }
}
