//! The hosts, and what they run.

use super::disk::{Backend, Disk, Lie};
use super::exec::{Exec, Process, WORLD, sleep};
use super::network::{Net, Wire};
use super::oracle::{Journal, Oracle};
use super::rng::Rng;
use crate::monitor::quorum::{MemberChange, wanted_change};
use crate::replica::store::Shared;
use crate::replica::{LEASE, NodeId, Replica, Rows};
use openraft::AsyncRuntime;
use redb::Database;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How often a monitor looks at its part; how long a new leader has to catch up; how often a member
/// without a group asks for one: as in `monitor::quorum`.
const LOOK: Duration = Duration::from_millis(250);
const FIRST_CHANGES: Duration = Duration::from_secs(5);
const JOIN_PAUSE: Duration = Duration::from_millis(500);

/// A mistake that is put back, to see it caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Log entries count as appended before they are synced.
    AppendNotSynced,
    /// A vote counts before it is synced.
    VoteNotSynced,
    /// A leader is relied on for longer than others wait before they elect another.
    LongLease,
    /// A member that lost its file comes back under the number that it had.
    SameNumber,
    /// What is for a member that is gone is answered by the one that has its name now.
    AnyoneAnswers,
}

thread_local!(static WORLD_HERE: RefCell<Option<Rc<World>>> = const { RefCell::new(None) });

/// Calls this with the world of this thread, if there is one.
pub fn with<T>(f: impl FnOnce(&Rc<World>) -> T) -> Option<T> {
    let here = WORLD_HERE.try_with(|w| w.borrow().clone()).ok().flatten();
    here.map(|w| f(&w))
}

/// A monitor that runs.
pub struct Up {
    pub process: Process,
    /// Not there yet while it starts.
    pub replica: Option<Replica<Journal>>,
    /// Whether it decides, and in which term: as `monitor::quorum` has it, from one look to the
    /// next.
    pub leads: Option<u64>,
    changing: bool,
}

/// A host of one monitor.
pub struct Host {
    pub id: NodeId,
    pub disk: Disk,
    pub up: Option<Up>,
}

/// The members, their hosts, network and clients, and the time.
pub struct World {
    pub exec: Rc<Exec>,
    pub rng: RefCell<Rng>,
    pub hosts: RefCell<BTreeMap<String, Host>>,
    /// Names of the monitors that there are to be; in a monitor it is part of the replicated state.
    pub listed: RefCell<BTreeSet<String>>,
    pub net: Net,
    pub oracle: RefCell<Oracle>,
    marks: RefCell<BTreeMap<&'static str, u64>>,
    pub bug: Option<Bug>,
    /// Nothing else happens before that: what was begun has its effect first.
    pub holds: Cell<Duration>,
    /// Clients pause.
    pub quiet: Cell<bool>,
    /// Faults have not begun, or are over.
    pub calm: Cell<bool>,
}

impl World {
    /// A world on this thread, until what is returned is dropped.
    pub fn new(exec: Rc<Exec>, seed: u64, bug: Option<Bug>) -> Rc<World> {
        let world = Rc::new(World {
            exec,
            rng: RefCell::new(Rng::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1))),
            hosts: RefCell::default(),
            listed: RefCell::default(),
            net: Net::default(),
            oracle: RefCell::default(),
            marks: RefCell::default(),
            bug,
            holds: Cell::default(),
            quiet: Cell::new(false),
            calm: Cell::new(true),
        });
        WORLD_HERE.with(|w| *w.borrow_mut() = Some(world.clone()));
        world
    }

    /// Ends the world of this thread.
    pub fn end() {
        let world = WORLD_HERE.with(|w| w.borrow_mut().take());
        if let Some(w) = world {
            let hosts = std::mem::take(&mut *w.hosts.borrow_mut());
            drop(hosts);
        }
    }

    /// Counts that something was reached.
    pub fn mark(&self, what: &'static str) {
        *self.marks.borrow_mut().entry(what).or_default() += 1;
    }

    pub fn marks(&self) -> BTreeMap<&'static str, u64> {
        self.marks.borrow().clone()
    }

    pub fn range(&self, low: u64, high: u64) -> u64 {
        self.rng.borrow_mut().range(low, high)
    }

    pub fn permille(&self, n: u64) -> bool {
        self.rng.borrow_mut().permille(n)
    }

    /// One of these.
    pub fn pick<T: Clone>(&self, of: &[T]) -> Option<T> {
        self.rng.borrow_mut().pick(of)
    }

    pub fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.range(low * 1000, high * 1000))
    }

    /// Writes what happens, if `SIPHON_SIM_TRACE` is set.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if std::env::var_os("SIPHON_SIM_TRACE").is_some() {
            eprintln!("{:>10.3} {}", self.exec.now().as_secs_f64(), what());
        }
    }

    /// How long a leader is relied on.
    fn lease(&self) -> Duration {
        match self.bug {
            Some(Bug::LongLease) => LEASE * 2,
            _ => LEASE,
        }
    }

    /// A host with a file that belongs to no group.
    pub fn add_host(&self, name: &str) {
        let old = self.hosts.borrow().get(name).map(|h| h.id);
        let id = match old {
            Some(id) if self.bug == Some(Bug::SameNumber) => id,
            _ => self.range(1 << 32, 1 << 48),
        };
        let disk = Disk::default();
        let file = Self::file(disk.attach(WORLD)).expect("a new file");
        file.seed(id, &Rows::new()).expect("a new file");
        drop(file);
        disk.lie(match self.bug {
            Some(Bug::AppendNotSynced) => Some(Lie::Appends),
            Some(Bug::VoteNotSynced) => Some(Lie::Votes),
            _ => None,
        });
        let old = self.hosts.borrow_mut().insert(name.to_owned(), Host { id, disk, up: None });
        assert!(old.is_none_or(|h| h.up.is_none()), "a monitor runs on {name}");
    }

    fn file(backend: Backend) -> Result<Shared, redb::Error> {
        Shared::over(Database::builder().set_cache_size(4 << 20).create_with_backend(backend)?)
    }

    /// Starts the monitor of a host.
    pub fn start(self: &Rc<Self>, name: &str) {
        let process = self.exec.number();
        let backend = {
            let mut hosts = self.hosts.borrow_mut();
            let Some(host) = hosts.get_mut(name).filter(|h| h.up.is_none()) else { return };
            host.up = Some(Up { process, replica: None, leads: None, changing: false });
            host.disk.attach(process)
        };
        self.tell(|| format!("{name} starts, process {process}"));
        self.exec.spawn_in(process, self.clone().run_monitor(name.to_owned(), process, backend));
    }

    /// A monitor dies where it stands.
    pub fn kill(&self, name: &str) {
        let up = {
            let mut hosts = self.hosts.borrow_mut();
            let Some(host) = hosts.get_mut(name) else { return };
            let Some(up) = host.up.take() else { return };
            if host.disk.crash(&mut self.rng.borrow_mut()) {
                self.mark("unsynced writes lost");
            }
            up
        };
        self.tell(|| format!("{name} is dead"));
        if up.leads.is_some() {
            self.mark("leader killed");
        }
        self.exec.kill(up.process);
    }

    /// The dead among those that should run: they died while they wrote.
    pub fn collect_dead(&self) {
        let dead = |h: &Host| h.up.as_ref().is_some_and(|u| self.exec.is_dead(u.process));
        let names: Vec<String> =
            self.hosts.borrow().iter().filter(|(_, h)| dead(h)).map(|(n, _)| n.clone()).collect();
        for name in names {
            self.mark("died in the middle of a sync");
            self.kill(&name);
        }
    }

    /// The file that a host lost its monitor with is gone; another one is made.
    pub fn replace(self: &Rc<Self>, name: &str) {
        self.kill(name);
        self.add_host(name);
        self.tell(|| format!("{name} has a new file"));
        self.start(name);
    }

    /// Whether a process is past its start.
    pub fn has_opened(&self, process: Process) -> bool {
        self.hosts
            .borrow()
            .values()
            .filter_map(|h| h.up.as_ref())
            .any(|u| u.process == process && u.replica.is_some())
    }

    /// The monitor of a host, if it runs.
    pub fn replica(&self, name: &str) -> Option<(Process, Replica<Journal>)> {
        let hosts = self.hosts.borrow();
        let up = hosts.get(name)?.up.as_ref()?;
        Some((up.process, up.replica.clone()?))
    }

    /// Does something with what runs as a process, if it still does.
    fn up<T>(&self, name: &str, process: Process, f: impl FnOnce(&mut Up) -> T) -> Option<T> {
        let mut hosts = self.hosts.borrow_mut();
        hosts.get_mut(name)?.up.as_mut().filter(|u| u.process == process).map(f)
    }

    /// The member that decides, of those that go on.
    pub fn leader(&self) -> Option<String> {
        let hosts = self.hosts.borrow();
        let leads = |h: &Host| {
            h.up.as_ref().is_some_and(|u| u.leads.is_some() && !self.exec.is_frozen(u.process))
        };
        hosts.iter().find(|(_, h)| leads(h)).map(|(n, _)| n.clone())
    }

    /// Makes the first monitor found a group; the others ask to join it.
    pub async fn found(self: &Rc<Self>, names: &[String]) {
        for name in names {
            self.listed.borrow_mut().insert(name.clone());
            self.add_host(name);
            self.start(name);
        }
        while self.replica(&names[0]).is_none() {
            sleep(LOOK).await;
        }
        let (process, replica) = self.replica(&names[0]).expect("it runs");
        let name = names[0].clone();
        let founded = self.exec.spawn_in(process, async move { replica.found(&name).await });
        founded.await.expect("nobody kills it").expect("it founds a group");
        while !self.is_whole() {
            sleep(LOOK).await;
        }
    }

    /// Whether a member leads, every listed monitor has a vote, and no other is a member.
    pub fn is_whole(&self) -> bool {
        let Some((_, leader)) = self.leader().and_then(|n| self.replica(&n)) else { return false };
        let members = leader.members();
        let hosts = self.hosts.borrow();
        let wanted: BTreeMap<NodeId, String> = self
            .listed
            .borrow()
            .iter()
            .filter_map(|n| Some((hosts.get(n)?.id, n.clone())))
            .collect();
        members.changing.is_none() && members.learners.is_empty() && members.voters == wanted
    }

    /// Whether the leader knows of no such member.
    fn is_unknown(&self, id: NodeId) -> bool {
        let Some((_, leader)) = self.leader().and_then(|n| self.replica(&n)) else { return false };
        let members = leader.members();
        !members.voters.contains_key(&id) && !members.learners.contains_key(&id)
    }

    async fn run_monitor(self: Rc<Self>, name: String, process: Process, backend: Backend) {
        let dead = || self.exec.is_dead(process);
        let shared = match Self::file(backend) {
            Ok(s) => s,
            Err(_) if dead() => return,
            Err(e) => panic!("the file of {name} cannot be opened: {e}"),
        };
        let replica =
            match Replica::<Journal>::start(shared, Arc::new(Wire { name: name.clone(), process }))
                .await
            {
                Ok(r) => r,
                Err(_) if dead() => return,
                Err(e) => panic!("the monitor {name} does not start: {e}"),
            };
        if replica.standing().leads {
            self.mark("started as a leader");
        }
        self.up(&name, process, |up| up.replica = Some(replica.clone()));
        self.exec.spawn_in(process, self.clone().join(name.clone(), replica.clone()));
        loop {
            self.look(&name, process, &replica).await;
            sleep(LOOK).await;
        }
    }

    /// What `monitor::quorum` does from time to time.
    async fn look(self: &Rc<Self>, name: &str, process: Process, replica: &Replica<Journal>) {
        let standing = replica.standing();
        if let Some(why) = standing.stopped {
            assert!(self.exec.is_dead(process), "{name} has stopped: {why}");
            return;
        }
        let before = self.up(name, process, |up| up.leads).flatten();
        let mut leads = replica.may_lead_for(standing.term, self.lease()).then_some(standing.term);
        if leads.is_some() && leads != before {
            let caught_up = super::Runtime::timeout(FIRST_CHANGES, replica.catch_up()).await;
            leads = leads.filter(|_| matches!(caught_up, Ok(true)));
        }
        if leads != before {
            self.tell(|| format!("{name} leads: {leads:?}"));
            match leads {
                Some(_) => self.mark("leader"),
                None if standing.leads => self.mark("leader without a lease"),
                None => self.mark("leader deposed"),
            }
        }
        self.up(name, process, |up| up.leads = leads);
        if leads.is_some() {
            self.follow_list(name, process, replica);
        }
    }

    /// One step towards the members that are listed.
    fn follow_list(self: &Rc<Self>, name: &str, process: Process, replica: &Replica<Journal>) {
        if self.up(name, process, |up| up.changing).unwrap_or(true) {
            return;
        }
        let members = replica.members();
        let listed = |n: &String| self.listed.borrow().contains(n);
        let Some(change) =
            wanted_change(&members, replica.id(), listed, |id| replica.has_caught_up(id))
        else {
            return;
        };
        self.up(name, process, |up| up.changing = true);
        if members.changing.is_some() {
            self.mark("change of the members ended by another");
        }
        let (world, name, replica) = (self.clone(), name.to_owned(), replica.clone());
        self.exec.spawn_in(process, async move {
            world.tell(|| format!("{name} changes the members {members:?}: {change:?}"));
            let done = match change {
                MemberChange::Voters(v) => replica.set_voters(v).await,
                MemberChange::Forget(ids) => replica.remove_learners(ids).await,
            };
            match done {
                Ok(()) => world.mark("members changed"),
                Err(e) => {
                    world.tell(|| format!("{name} cannot change the members: {e}"));
                    sleep(Duration::from_secs(1)).await;
                }
            }
            world.up(&name, process, |up| up.changing = false);
        });
    }

    /// Asks to be taken in, until this is a member.
    async fn join(self: Rc<Self>, name: String, replica: Replica<Journal>) {
        while replica.joins().await.unwrap_or(false) {
            if !replica.members().voters.is_empty() && self.is_unknown(replica.id()) {
                self.mark("admission lost");
            }
            let names: Vec<String> =
                self.hosts.borrow().keys().filter(|n| **n != name).cloned().collect();
            for other in names {
                let at = self.clone();
                let (asking, id, to) = (name.clone(), replica.id(), other.clone());
                self.net.deliver(&self, &name, &other, move |target, leader| async move {
                    at.take_in(&to, target, &leader, id, &asking).await;
                });
            }
            sleep(JOIN_PAUSE).await;
        }
    }

    /// A leader takes a monitor in.
    async fn take_in(
        &self,
        name: &str,
        process: Process,
        leader: &Replica<Journal>,
        id: NodeId,
        new: &str,
    ) {
        let members = leader.members();
        let known = members.voters.contains_key(&id) || members.learners.contains_key(&id);
        let free = self.up(name, process, |up| up.leads.is_some() && !up.changing).unwrap_or(false);
        if known || !free || !self.listed.borrow().contains(new) {
            return;
        }
        self.up(name, process, |up| up.changing = true);
        if !self.calm.get() && self.permille(200) {
            self.cut_off_with(name, new);
        }
        match leader.admit(id, new).await {
            Ok(()) => self.mark("member admitted"),
            Err(e) => self.tell(|| format!("{name} cannot admit {new}: {e}")),
        }
        self.up(name, process, |up| up.changing = false);
    }

    /// A leader reaches only the newcomer: no other will know that it was admitted.
    fn cut_off_with(&self, leader: &str, new: &str) {
        self.mark("leader cut off while it admitted");
        self.holds.set(self.exec.now() + self.millis(0, 10_000));
        self.tell(|| format!("{leader} reaches nobody but {new}"));
        let hosts = self.hosts.borrow();
        let mut cut = self.net.cut.borrow_mut();
        for name in hosts.keys().filter(|n| **n != leader && **n != new) {
            for lost in [leader, new] {
                cut.insert((lost.to_owned(), name.clone()));
                cut.insert((name.clone(), lost.to_owned()));
            }
        }
    }

    /// What must be true whenever nothing goes on without time passing: leaders that may be relied
    /// on have everything, and there is one at most.
    pub fn watch(&self) {
        let hosts = self.hosts.borrow();
        let mut leaders: Vec<(&String, u64)> = Vec::new();
        for (name, host) in &*hosts {
            let Some(up) = host
                .up
                .as_ref()
                .filter(|u| !self.exec.is_frozen(u.process) && !self.exec.is_dead(u.process))
            else {
                continue;
            };
            let (Some(term), Some(replica)) = (up.leads, &up.replica) else { continue };
            if !replica.may_lead_for(term, self.lease()) {
                continue;
            }
            leaders.push((name, term));
            let has = replica.read(|m| m.0.len());
            let floor = self.oracle.borrow().floor();
            assert!(
                has >= floor,
                "{name} leads, in term {term}, and has {has} entries of {floor} that were acknowledged"
            );
        }
        assert!(leaders.len() < 2, "several leaders at once: {leaders:?}");
    }
}
