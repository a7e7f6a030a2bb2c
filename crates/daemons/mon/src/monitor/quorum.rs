//! This monitor's part in the group: the leader, the members, and the sessions while these change.
//!
//! ```text
//!            no leader, or no majority                  a leader is known
//!   Out ◄──────────────────────────────── Follower ──────────────────────► passes requests on
//!    │                                        ▲
//!    └── elected, and has applied everything that was committed ──► Leader ──► decides
//! ```
//!
//! While a monitor is out, requests of its sessions wait; if it stays out for longer than an
//! election takes, the sessions are closed, and clients find a monitor that is not.

use super::Inner;
use super::clock::now;
use super::part::{Role, View};
use super::peers::{Ask, Passed, Told, addr_of, addr_text};
use super::session::{Link, PassedPeer, Route, Session};
use crate::replica::{Members, NodeId};
use crate::state::{Change, Pending};
use auth::AuthCaps;
use denc::Decode;
use messages::{Embedded, MonForward, MonRoute, Payload};
use msgr::Connection;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::monmap::MonInfo;
use types::{EntityName, EntityType, Utime};

/// How often a monitor looks at its part, beside when the group says that something changed.
const LOOK: Duration = Duration::from_millis(250);
/// How long sessions wait for a new leader before they are closed.
const OUT_GRACE: Duration = Duration::from_secs(8);
/// How often the leader tells the quorum.
const VIEW_PERIOD: Duration = Duration::from_secs(1);
/// How often a monitor that belongs to no group asks to be taken in.
const JOIN_PAUSE: Duration = Duration::from_millis(500);
/// Requests of sessions that wait for the leader, at most.
const WAITING_MAX: usize = 20_000;
/// How long other monitors have to say whether the group was given up. An election takes longer.
const VETTING: Duration = Duration::from_millis(1500);
/// How long a new leader waits for its first changes to be committed.
const FIRST_CHANGES: Duration = Duration::from_secs(5);

impl Inner {
    /// An operator wants this monitor out of the quorum, or in it again. The others elect a leader
    /// without it, and it does not stand for election.
    pub(super) fn take_part(&self, takes: bool) {
        self.links.cut(!takes);
        self.replica.take_part(takes);
        if let (false, Some(inner)) = (takes, self.me()) {
            // Not a moment more: the others may have another leader soon.
            tokio::task::spawn_local(async move { inner.look().await });
        }
    }

    /// Whether this monitor decides. Its role may be out of date, above all after it was stopped
    /// for a while.
    pub(super) fn leads(&self) -> bool {
        let part = self.part.borrow();
        part.role == Role::Leader && self.replica.may_lead(part.term)
    }

    /// Follows what the group does, until the monitor stops.
    pub(super) async fn run_quorum(self: Rc<Self>) {
        let mut changes = self.replica.changes();
        loop {
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.stopped.notified() => return,
            }
            if self.stopping.get() {
                return;
            }
            self.look().await;
        }
    }

    /// Takes the part that the group gives this monitor now.
    pub(super) async fn look(self: &Rc<Self>) {
        // One after the other: the second would begin to lead when the first has done so, and throw
        // away what was begun since.
        let _alone = self.looking.lock().await;
        let standing = self.replica.standing();
        if let Some(why) = standing.stopped {
            self.end(format!("the replicated log has stopped: {why}"));
            return;
        }
        let before = self.part.borrow().role.clone();
        let same_term = self.part.borrow().term == standing.term;
        let mut role = match &standing.follows {
            Some(leader) if !standing.leads && standing.votes && !self.links.is_cut() => {
                Role::Follower(leader.clone())
            }
            _ if self.links.is_cut() => Role::Out,
            _ if self.replica.may_lead(standing.term) => Role::Leader,
            _ => Role::Out,
        };
        if !self.part.borrow().vetted {
            role = Role::Out;
        }
        if role == Role::Leader
            && !(before == Role::Leader && same_term)
            && (!self.begin_to_lead().await || self.links.is_cut())
        {
            role = Role::Out;
        }
        {
            let mut part = self.part.borrow_mut();
            part.term = standing.term;
            if part.role != role {
                tracing::info!(term = standing.term, "{:?} -> {role:?}", part.role);
            }
            match role {
                Role::Out => drop(part.out_since.get_or_insert_with(Instant::now)),
                _ => part.out_since = None,
            }
            part.role = role.clone();
            part.count_election();
        }
        if before == Role::Leader && role != Role::Leader {
            self.forget_manager();
        }
        self.publish();
        if let (Some(m), rank @ 0..) = (&*self.messenger.borrow(), self.rank()) {
            m.set_name(EntityName::new(EntityType::MON, rank.into()));
        }
        match role {
            Role::Leader => {
                self.tell_view();
                self.follow_monmap();
                self.refill_ids_soon();
            }
            Role::Follower(leader) => {
                self.greet(leader, standing.term);
                self.refill_ids_soon();
            }
            Role::Out => self.stay_out(),
        }
        self.set_ready();
        self.hand_on_answers();
        self.pass_on();
    }

    /// Clients are let in only while they can be served.
    fn set_ready(&self) {
        let serves = self.part.borrow().role != Role::Out;
        let has_ids = self.global_ids.borrow().iter().any(|(next, end)| next < end);
        self.auth.borrow_mut().ready = serves && has_ids;
    }

    /// What a new leader does before it decides anything. False if it is not to be.
    async fn begin_to_lead(self: &Rc<Self>) -> bool {
        match tokio::time::timeout(FIRST_CHANGES, self.replica.catch_up()).await {
            Ok(true) => {}
            _ => return false,
        }
        // A batch of an earlier term fails as soon as the group knows better.
        if tokio::time::timeout(FIRST_CHANGES, self.proposer_idle()).await.is_err() {
            return false;
        }
        self.start_batches_anew();
        // What a leader alone knows is learnt again.
        *self.osd_watch.borrow_mut() = Default::default();
        *self.mgr_watch.borrow_mut() = Default::default();
        self.forget_manager();
        *self.mds_watch.borrow_mut() = Default::default();
        self.stats.borrow_mut().stamp = now();
        *self.timechecks.borrow_mut() = Default::default();
        {
            let mut part = self.part.borrow_mut();
            part.view = View::default();
            part.told_view = None;
        }
        let first = self.first_changes(self.own_addrs());
        matches!(tokio::time::timeout(FIRST_CHANGES, first).await, Ok(Ok(())))
    }

    /// Where this monitor listens.
    pub(super) fn own_addrs(&self) -> types::EntityAddrVec {
        self.messenger.borrow().as_ref().map(|m| m.addrs()).unwrap_or_default()
    }

    fn stay_out(self: &Rc<Self>) {
        let out = self.part.borrow().out_since.map_or(Duration::ZERO, |t| t.elapsed());
        if out < OUT_GRACE {
            return;
        }
        // Closing tells clients to look elsewhere; most find a monitor that is in the quorum.
        let sessions: Vec<Rc<Session>> =
            std::mem::take(&mut *self.sessions.borrow_mut()).into_values().collect();
        if !sessions.is_empty() {
            tracing::warn!("out of quorum: {} sessions are closed", sessions.len());
        }
        for s in sessions {
            s.conn.lose();
        }
        self.waiting.borrow_mut().requests.retain(|_, p| !p.session.conn.is_direct());
        let ask = {
            let mut part = self.part.borrow_mut();
            let due = part.asked_whether_lost.is_none_or(|t| t.elapsed() > OUT_GRACE);
            if due {
                part.asked_whether_lost = Some(Instant::now());
            }
            due
        };
        if ask {
            tokio::task::spawn_local(self.clone().ask_whether_lost());
        }
    }

    /// A monitor that was removed while it was away hears nothing from the others, and one of a
    /// group that was given up may hear nothing of the one that went on: it has to ask.
    async fn ask_whether_lost(self: Rc<Self>) {
        let joins = self.replica.joins().await.unwrap_or(true);
        let probe = Ask::Probe { fsid: self.fsid().to_string(), id: self.replica.id() };
        for name in self.others() {
            let Some(Told::Probed { in_quorum, yours, rescued, .. }) =
                self.links.ask(&name, &probe).await
            else {
                continue;
            };
            self.hear_of_group(&name, rescued, yours);
            if self.ended.borrow().is_none() && in_quorum && !yours && !joins {
                self.end(format!(
                    "mon.{} was removed from the cluster; its store is of no use any more",
                    self.name
                ));
            }
            if self.ended.borrow().is_some() {
                return;
            }
        }
    }

    /// Asks all other monitors, once and before this one takes part, whether they went on without
    /// it. A member of a group that was given up so serves no client, even if enough of its
    /// fellows are back with it.
    pub(super) async fn vet(self: Rc<Self>) {
        let asking: Vec<_> = self
            .others()
            .into_iter()
            .map(|n| tokio::task::spawn_local(self.clone().ask_whether_given_up(n)))
            .collect();
        let all = async {
            for a in asking {
                let _ = a.await;
            }
        };
        let _ = tokio::time::timeout(VETTING, all).await;
        if self.ended.borrow().is_some() {
            return;
        }
        self.part.borrow_mut().vetted = true;
        self.look().await;
    }

    /// Asks another monitor whether it belongs to a group that went on when this one's was given
    /// up.
    async fn ask_whether_given_up(self: Rc<Self>, name: String) {
        let probe = Ask::Probe { fsid: self.fsid().to_string(), id: self.replica.id() };
        if let Some(Told::Probed { yours, rescued, .. }) = self.links.ask(&name, &probe).await {
            self.hear_of_group(&name, rescued, yours);
        }
    }

    /// Ends if another monitor belongs to a group that went on when this one's was given up. A
    /// member of that group may not have its state yet; then it has none at all, or the others know
    /// it.
    fn hear_of_group(&self, name: &str, rescued: u64, yours: bool) {
        let (here, empty) = self.replica.read(|s| (s.rescued, s.monmap.mon_info.is_empty()));
        if rescued > here && !empty && !yours {
            let own = &self.name;
            self.end(format!("mon.{name} went on when the group of mon.{own} was given up as lost; the store of mon.{own} is of no use any more"));
        }
    }

    /// Every other monitor with a known address.
    fn others(&self) -> Vec<String> {
        self.links.known().into_keys().filter(|n| *n != self.name).collect()
    }

    /// Ends the monitor from inside.
    pub(super) fn end(&self, why: String) {
        tracing::error!("{why}");
        self.ended.send_replace(Some(why));
    }

    /// The cluster's id.
    pub(super) fn fsid(&self) -> types::Fsid {
        let state = self.committed();
        if state.monmap.mon_info.is_empty() { self.given_fsid } else { state.monmap.fsid }
    }

    /// The quorum, as far as this monitor knows: names in the order of ranks.
    pub(super) fn quorum_names(&self) -> Vec<String> {
        let part = self.part.borrow();
        match &part.role {
            Role::Out => Vec::new(),
            Role::Follower(leader) if part.view.term != part.term => {
                vec![leader.clone(), self.name.clone()]
            }
            Role::Follower(_) => part.view.quorum.clone(),
            Role::Leader => {
                let heard = self.replica.followers();
                let here = |id: &NodeId| *id == self.replica.id() || heard.contains(id);
                let voters = self.replica.members().voters;
                let there: BTreeSet<String> =
                    voters.into_iter().filter(|(id, _)| here(id)).map(|(_, n)| n).collect();
                self.committed()
                    .monmap
                    .ranks
                    .iter()
                    .filter(|n| there.contains(*n))
                    .cloned()
                    .collect()
            }
        }
    }

    /// The quorum, its leader, and since when both stand.
    pub(super) fn quorum(&self) -> (Vec<i32>, Option<i32>, Utime) {
        let monmap = self.committed().monmap;
        let rank = |n: &String| {
            monmap.ranks.iter().position(|r| r == n).and_then(|r| i32::try_from(r).ok())
        };
        let mut ranks: Vec<i32> = self.quorum_names().iter().filter_map(rank).collect();
        ranks.sort_unstable();
        let part = self.part.borrow();
        let leader = match &part.role {
            Role::Leader => rank(&self.name),
            Role::Follower(l) => rank(l),
            Role::Out => None,
        };
        let since =
            if part.view.since == 0 { self.started } else { Utime::new(part.view.since, 0) };
        (ranks, leader, since)
    }

    /// The leader tells the quorum, and the log when that changed.
    fn tell_view(self: &Rc<Self>) {
        let quorum = self.quorum_names();
        let (view, changed, gone) = {
            let mut part = self.part.borrow_mut();
            let changed = part.view.quorum != quorum || part.view.term != part.term;
            let gone: Vec<String> =
                part.view.quorum.iter().filter(|n| !quorum.contains(n)).cloned().collect();
            if changed {
                let rescued = self.replica.read(|s| s.rescued);
                let leader = self.name.clone();
                part.view = View {
                    term: part.term,
                    quorum,
                    since: now().sec,
                    rescued,
                    leader,
                    members: BTreeSet::new(),
                };
            } else if part.told_view.is_some_and(|t| t.elapsed() < VIEW_PERIOD) {
                return;
            }
            part.told_view = Some(Instant::now());
            let members = self.replica.members();
            let members = members.voters.into_keys().chain(members.learners.into_keys()).collect();
            (View { members, ..part.view.clone() }, changed, gone)
        };
        if changed {
            let names = view.quorum.join(",");
            let (ranks, _, _) = self.quorum();
            let ranks: Vec<String> = ranks.iter().map(i32::to_string).collect();
            self.change_and_forget(|p| {
                let text = format!(
                    "mon.{} is new leader, mons {names} in quorum (ranks {})",
                    self.name,
                    ranks.join(",")
                );
                self.log_line(p, types::log::LogPriority::INFO, text);
                for name in gone {
                    let text = format!("mon.{name} has left the quorum");
                    self.log_line(p, types::log::LogPriority::WARN, text);
                }
            });
        }
        for name in self.others() {
            let (links, view) = (self.links.clone(), view.clone());
            let inner = self.clone();
            tokio::task::spawn_local(async move {
                let asked = Instant::now();
                match links.ask(&name, &Ask::View(view)).await {
                    Some(Told::Clock { sec, nsec, free }) => {
                        inner.timechecks.borrow_mut().has_free(&name, free);
                        inner.clock_told(&name, Utime::new(sec, nsec), asked.elapsed())
                    }
                    Some(Told::Rescued(_)) => inner.ask_whether_given_up(name).await,
                    _ => {}
                }
            });
        }
    }

    /// Tells a new leader of this monitor.
    fn greet(self: &Rc<Self>, leader: String, term: u64) {
        let now = Some((leader.clone(), term));
        if std::mem::replace(&mut self.part.borrow_mut().greeted, now.clone()) == now {
            return;
        }
        let addrs = self.own_addrs();
        let hello = Ask::Hello {
            name: self.name.clone(),
            addr: addr_text(&addrs),
            metadata: self.metadata(&addrs),
        };
        let inner = self.clone();
        tokio::task::spawn_local(async move {
            if !matches!(inner.links.ask(&leader, &hello).await, Some(Told::Yes)) {
                tokio::time::sleep(LOOK).await;
                inner.part.borrow_mut().greeted = None;
            }
        });
    }

    /// Makes the group follow the monitor map: a monitor that has caught up gets a vote, one that
    /// is not in the map leaves.
    fn follow_monmap(self: &Rc<Self>) {
        if self.part.borrow().changing {
            return;
        }
        let members = self.replica.members();
        let state = self.committed();
        let listed = |name: &String| state.monmap.mon_info.contains_key(name);
        let Some(change) =
            wanted_change(&members, self.replica.id(), listed, |id| self.replica.has_caught_up(id))
        else {
            return;
        };
        self.part.borrow_mut().changing = true;
        let inner = self.clone();
        tokio::task::spawn_local(async move {
            tracing::info!("members: {members:?}, change: {change:?}");
            let done = match change {
                MemberChange::Voters(v) => inner.replica.set_voters(v).await,
                MemberChange::Forget(ids) => inner.replica.remove_learners(ids).await,
            };
            if let Err(e) = done {
                tracing::warn!("the members could not be changed: {e}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            inner.part.borrow_mut().changing = false;
        });
    }

    /// Gets global ids before there are none left.
    fn refill_ids_soon(self: &Rc<Self>) {
        let left: u64 = self.global_ids.borrow().iter().map(|(next, end)| end - next).sum();
        if left >= super::tick::GLOBAL_IDS_STEP / 2
            || std::mem::replace(&mut self.part.borrow_mut().asking_ids, true)
        {
            return;
        }
        let inner = self.clone();
        tokio::task::spawn_local(async move {
            let role = inner.part.borrow().role.clone();
            let got = match role {
                Role::Leader => inner.reserve_ids().await.ok(),
                Role::Follower(leader) => match inner.links.ask(&leader, &Ask::Ids).await {
                    Some(Told::Ids(first, end)) if first < end => Some((first, end)),
                    _ => None,
                },
                Role::Out => None,
            };
            match got {
                Some(range) => inner.global_ids.borrow_mut().push_back(range),
                None => tokio::time::sleep(LOOK).await,
            }
            inner.part.borrow_mut().asking_ids = false;
            inner.set_ready();
        });
    }

    /// Takes a range of global ids that no client ever had.
    pub(super) async fn reserve_ids(&self) -> Result<(u64, u64), super::commits::NotCommitted> {
        self.change_async(reserve).await
    }

    /// Answers another monitor.
    pub(super) async fn asked(self: &Rc<Self>, ask: Ask) -> Told {
        match ask {
            Ask::Probe { fsid, id } => {
                if fsid != self.fsid().to_string() {
                    return Told::No("another cluster".into());
                }
                let m = self.replica.members();
                Told::Probed {
                    grouped: !m.voters.is_empty(),
                    in_quorum: self.part.borrow().role != Role::Out,
                    yours: m.voters.contains_key(&id) || m.learners.contains_key(&id),
                    rescued: self.replica.read(|s| s.rescued),
                }
            }
            Ask::View(view) if view.rescued != self.replica.read(|s| s.rescued) => {
                let yours = view.members.contains(&self.replica.id());
                self.hear_of_group(&view.leader, view.rescued, yours);
                Told::Rescued(self.replica.read(|s| s.rescued))
            }
            Ask::View(view) => {
                let mut part = self.part.borrow_mut();
                if view.term >= part.view.term && matches!(part.role, Role::Follower(_)) {
                    part.view = view;
                }
                let Utime { sec, nsec } = now();
                Told::Clock { sec, nsec, free: self.free.get() }
            }
            Ask::Ids | Ask::Hello { .. } | Ask::Join { .. } if !self.leads() => {
                let mons =
                    self.links.known().iter().map(|(n, a)| (n.clone(), addr_text(a))).collect();
                Told::NotLeader { mons }
            }
            Ask::Ids => match self.reserve_ids().await {
                Ok((first, end)) => Told::Ids(first, end),
                Err(e) => Told::No(e.to_string()),
            },
            Ask::Hello { name, addr, metadata } => {
                let addrs = addr_of(&addr);
                self.change_and_forget(|p| {
                    let Some(info) = p.state().monmap.mon_info.get(&name) else { return };
                    if let Some(addrs) = addrs.filter(|a| info.public_addrs != *a) {
                        p.change_monmap(|m| {
                            if let Some(i) = m.mon_info.get_mut(&name) {
                                i.public_addrs = addrs;
                            }
                        });
                    }
                    if p.state().mon_metadata.get(&name) != Some(&metadata) {
                        p.put(Change::MonMetadata(name.clone(), Some(metadata)));
                    }
                });
                Told::Yes
            }
            Ask::Join { fsid, name, id, addr } => self.take_in(fsid, name, id, addr).await,
        }
    }

    /// Takes a monitor into the group, at first without a vote.
    async fn take_in(
        self: &Rc<Self>,
        fsid: String,
        name: String,
        id: NodeId,
        addr: String,
    ) -> Told {
        if fsid != self.fsid().to_string() {
            return Told::No(format!("this is cluster {}, not {fsid}", self.fsid()));
        }
        let Some(addrs) = addr_of(&addr) else {
            return Told::No(format!("{addr:?} is no address"));
        };
        let members = self.replica.members();
        if members.voters.contains_key(&id) || members.learners.contains_key(&id) {
            return Told::Yes;
        }
        if self.part.borrow().changing {
            return Told::No("another change of the members is under way".into());
        }
        self.part.borrow_mut().changing = true;
        let done = self.take_in_now(&name, id, addrs).await;
        self.part.borrow_mut().changing = false;
        match done {
            Ok(()) => Told::Yes,
            Err(e) => {
                tracing::warn!("mon.{name} could not be taken in: {e}");
                Told::No(e)
            }
        }
    }

    async fn take_in_now(
        &self,
        name: &str,
        id: NodeId,
        addrs: types::EntityAddrVec,
    ) -> Result<(), String> {
        let new = name.to_owned();
        let listed = self.change_async(|p| {
            let old = p.state().monmap.mon_info.get(&new).map(|i| i.public_addrs.clone());
            match old {
                Some(old) if old == addrs => {}
                // It says where it listens, and it would not be heard elsewhere.
                Some(_) => p.change_monmap(|m| {
                    if let Some(i) = m.mon_info.get_mut(&new) {
                        i.public_addrs = addrs.clone();
                    }
                }),
                None => {
                    p.change_monmap(|m| {
                        m.add(MonInfo {
                            name: new.clone(),
                            public_addrs: addrs.clone(),
                            weight: 0,
                            ..Default::default()
                        })
                    });
                    self.log_line(
                        p,
                        types::log::LogPriority::INFO,
                        format!("mon.{new} joins the monitors at {addrs}"),
                    );
                }
            }
        });
        listed.await.map_err(|e| e.to_string())?;
        self.links.learn(name, &addrs);
        self.replica.admit(id, name).await?;
        tracing::info!("mon.{name} is taken in as member {id}");
        Ok(())
    }

    /// Finds the way into a group, for a monitor that belongs to none: founds one, or is taken in.
    pub(super) async fn run_membership(self: Rc<Self>, founder: bool) {
        while !self.stopping.get() {
            let is_member = match (self.replica.joins().await, self.replica.is_member().await) {
                (Ok(true), Ok(is_member)) => is_member,
                (Ok(false), _) => return,
                (Err(e), _) | (_, Err(e)) => return self.end(e.to_string()),
            };
            if founder && !is_member && self.nobody_has_a_group().await {
                if let Err(e) = self.replica.found(&self.name).await {
                    self.end(e.to_string());
                }
                return;
            }
            self.ask_to_join().await;
            tokio::time::sleep(JOIN_PAUSE).await;
        }
    }

    /// Whether every other initial monitor has said that it belongs to no group. One that does not
    /// answer may know of a group, and then this monitor has lost its store, and must not found
    /// another.
    async fn nobody_has_a_group(&self) -> bool {
        let probe = Ask::Probe { fsid: self.fsid().to_string(), id: self.replica.id() };
        for name in self.committed().monmap.ranks.iter().filter(|n| **n != self.name) {
            match self.links.ask(name, &probe).await {
                Some(Told::Probed { grouped: false, .. }) => {}
                other => {
                    tracing::info!(
                        "mon.{name}: {other:?}; the cluster is founded when all initial monitors run"
                    );
                    return false;
                }
            }
        }
        true
    }

    async fn ask_to_join(&self) {
        let join = Ask::Join {
            fsid: self.fsid().to_string(),
            name: self.name.clone(),
            id: self.replica.id(),
            addr: addr_text(&self.own_addrs()),
        };
        for name in self.others() {
            match self.links.ask(&name, &join).await {
                Some(Told::Yes) => return,
                Some(Told::NotLeader { mons }) => {
                    for (name, addr) in mons {
                        if let Some(addrs) = addr_of(&addr) {
                            self.links.learn(&name, &addrs);
                        }
                    }
                }
                Some(Told::No(why)) => {
                    tracing::warn!("mon.{name} does not take this monitor in: {why}")
                }
                _ => {}
            }
        }
    }

    /// Keeps a session's message for the leader.
    pub(super) fn postpone(&self, session: &Rc<Session>, message: msgr::Message) {
        self.keep(session, message, None);
    }

    /// What operators see of a message that waits for the leader.
    fn op_of(&self, session: &Session, message: &msgr::Message) -> Option<super::ops::Op> {
        let what = match message.msg_type {
            messages::MonCommand::TYPE => {
                super::commands::described(&messages::MonCommand::decode(message).ok()?.cmd)
            }
            messages::PoolOp::TYPE => {
                super::pool_ops::described(&messages::PoolOp::decode(message).ok()?)
            }
            _ => return None,
        };
        Some(self.ops.begin(what, session.name.to_string()))
    }

    fn keep(&self, session: &Rc<Session>, message: msgr::Message, sent: Option<(u64, u64)>) {
        let mut w = self.waiting.borrow_mut();
        if w.requests.len() >= WAITING_MAX {
            tracing::warn!("too many requests wait for a leader");
            return session.conn.lose();
        }
        w.last += 1;
        let at = w.last;
        let op = self.op_of(session, &message);
        w.requests.insert(at, Passed { session: session.clone(), message, sent, op });
        drop(w);
        self.pass_on();
    }

    /// Sends what waits to the leader, or deals with it if this is the leader.
    fn pass_on(&self) {
        let (role, term) = {
            let part = self.part.borrow();
            (part.role.clone(), part.term)
        };
        // The answers to these are lost; the clients ask again elsewhere.
        self.waiting.borrow_mut().requests.retain(|_, p| {
            let late = p.fate(term) == Fate::Never;
            if late {
                p.session.conn.lose();
            }
            !late && !p.session.conn.is_down()
        });
        match role {
            Role::Out => {}
            // The next look shows what becomes of it.
            Role::Leader if !self.leads() => {}
            Role::Leader => {
                // What was passed on in a term that is not known here yet waits for it.
                let due: Vec<Passed> = {
                    let mut w = self.waiting.borrow_mut();
                    let (due, later) = std::mem::take(&mut w.requests)
                        .into_iter()
                        .partition(|(_, p)| p.fate(term) == Fate::Now);
                    w.requests = later;
                    BTreeMap::into_values(due).collect()
                };
                for mut p in due {
                    if let Some(op) = p.op.take() {
                        op.forget();
                    }
                    self.decide(&p.session, p.message);
                }
            }
            Role::Follower(leader) => {
                if self.waiting.borrow().requests.is_empty() {
                    return;
                }
                let Some(conn) = self.links.connection(&leader) else { return };
                for (request, p) in &mut self.waiting.borrow_mut().requests {
                    // Once on each connection and to each leader: an old one may have forgotten it.
                    if p.sent == Some((conn.id(), term)) || !p.session.conn.is_direct() {
                        continue;
                    }
                    p.sent = Some((conn.id(), term));
                    if let Some(op) = &p.op {
                        op.passed_on();
                    }
                    let peer = denc::Encode::to_bytes(&p.session.passed(), denc::Features::ALL);
                    let forward = MonForward {
                        session: *request,
                        peer,
                        message: Embedded::of(&p.message, p.session.conn.features().0),
                        term,
                        ..MonForward::default()
                    };
                    let mut out = forward.encode(conn.features());
                    out.data.extend(p.message.data.iter().cloned());
                    conn.send(out);
                }
            }
        }
    }

    /// A session is gone: no client waits for its answers any more.
    pub(super) fn forget_requests(&self, conn: u64) {
        let of = |s: &Session| matches!(&s.conn, Link::Direct(c) if c.id() == conn);
        self.waiting.borrow_mut().requests.retain(|_, p| !of(&p.session));
    }

    /// A message that a follower passed on.
    pub(super) fn passed_on(self: &Rc<Self>, conn: &Rc<Connection>, m: MonForward) {
        if conn.is_down() {
            // Something before it on this connection was lost, and both come again.
            return;
        }
        let peer = match PassedPeer::from_bytes(&m.peer) {
            Ok(p) => p,
            Err(e) => {
                return tracing::warn!("a message that a monitor passed on cannot be read: {e}");
            }
        };
        let weak = Rc::downgrade(self);
        let applied = move || weak.upgrade().map_or(0, |i| i.replica.applied());
        let (name, caps) =
            (peer.name.clone(), AuthCaps { allow_all: peer.allow_all, text: peer.caps.clone() });
        let route = Route {
            via: conn.clone(),
            request: m.session,
            peer,
            applied: Box::new(applied),
            ends: Default::default(),
        };
        let Some(session) = Session::new(Link::Routed(Rc::new(route)), name, caps) else { return };
        let (session, message) = (Rc::new(session), m.message.into_message(m.data));
        // It may have been under way for long, as when the network between them was cut: then it
        // was sent to the next leader, too. What is for another term than this monitor leads in
        // waits until `pass_on` knows better: elected, but not ready yet; or not any more.
        match self.leads() && fate(m.term, self.part.borrow().term) == Fate::Now {
            true => self.decide(&session, message),
            false => self.keep(&session, message, Some((0, m.term))),
        }
    }

    /// A follower is gone, and with it the way back to its sessions.
    pub(super) fn follower_gone(&self, conn: &Rc<Connection>) {
        self.waiting
            .borrow_mut()
            .requests
            .retain(|_, p| !matches!(&p.session.conn, Link::Routed(r) if Rc::ptr_eq(&r.via, conn)));
    }

    /// The leader's answer to a message that was passed on.
    pub(super) fn routed(&self, m: MonRoute) {
        self.waiting.borrow_mut().answers.push_back(m);
        self.hand_on_answers();
    }

    /// Hands on the answers that tell of nothing that this monitor does not know yet.
    fn hand_on_answers(&self) {
        let mut published = false;
        loop {
            let next = {
                let mut w = self.waiting.borrow_mut();
                let known = w.answers.front().is_some_and(|a| a.applied <= self.replica.applied());
                if !known {
                    return;
                }
                w.answers.pop_front()
            };
            let Some(answer) = next else { return };
            if answer.ends {
                let ended = self.waiting.borrow_mut().requests.remove(&answer.session);
                if let Some(Link::Direct(c)) = ended.map(|p| p.session.conn.clone()) {
                    c.mark_down();
                    self.sessions.borrow_mut().remove(&c.id());
                    self.forget_requests(c.id());
                }
                continue;
            }
            if !std::mem::replace(&mut published, true) {
                self.publish();
            }
            match answer.message {
                Some(message) => {
                    let session = self
                        .waiting
                        .borrow()
                        .requests
                        .get(&answer.session)
                        .map(|p| p.session.clone());
                    if let Some(s) = session {
                        s.conn.send(message.into_message(answer.data));
                    }
                }
                None => drop(self.waiting.borrow_mut().requests.remove(&answer.session)),
            }
        }
    }

    /// Whether a connection is with another monitor. A tool that uses the monitors' key has a
    /// session, and with it a global id, which monitors do not have.
    pub(super) fn is_monitor(conn: &Connection) -> bool {
        conn.global_id() == 0 && conn.auth_name().is_some_and(|n| n.kind == EntityType::MON)
    }
}

/// What the leader of a term does with what a follower passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is this leader's to decide.
    Now,
    /// It is for the leader of a term that this monitor does not know of yet.
    Later,
    /// It was for an earlier leader, and was sent on since.
    Never,
}

/// Of a message that was passed on in the term `of`.
fn fate(of: u64, term: u64) -> Fate {
    match of.cmp(&term) {
        Ordering::Less => Fate::Never,
        Ordering::Equal => Fate::Now,
        Ordering::Greater => Fate::Later,
    }
}

impl Passed {
    fn fate(&self, term: u64) -> Fate {
        match self.sent {
            // A session of this monitor's own: no other monitor has its messages.
            _ if self.session.conn.is_direct() => Fate::Now,
            Some((_, of)) => fate(of, term),
            None => Fate::Now,
        }
    }
}

/// Takes a range of global ids.
pub(super) fn reserve(p: &mut Pending) -> (u64, u64) {
    let first = p.state().global_id_max.max(4096);
    let end = first + super::tick::GLOBAL_IDS_STEP;
    p.put(Change::GlobalIds(end));
    (first, end)
}

/// What is to be changed about the members.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// These have a vote from now on, and no other monitor.
    Voters(BTreeSet<NodeId>),
    /// These learners leave.
    Forget(BTreeSet<NodeId>),
}

/// One step from the members that there are towards those that the monitor map lists: first a
/// change that was begun is ended; then a learner that has caught up gets its vote, and an older
/// member of its name loses it; then a member that is not listed goes.
pub(crate) fn wanted_change(
    members: &Members,
    me: NodeId,
    listed: impl Fn(&String) -> bool,
    caught_up: impl Fn(NodeId) -> bool,
) -> Option<MemberChange> {
    if let Some(to) = &members.changing {
        // The leader that began this change may have lost the lead, or died, between its two steps.
        return Some(MemberChange::Voters(to.clone()));
    }
    let mut voters: BTreeMap<NodeId, String> = members.voters.clone();
    if let Some((id, name)) = members.learners.iter().find(|(id, n)| listed(n) && caught_up(**id)) {
        voters.retain(|old, n| n != name || *old == me);
        voters.insert(*id, name.clone());
        return Some(MemberChange::Voters(voters.into_keys().collect()));
    }
    voters.retain(|_, n| listed(n));
    if voters.len() < members.voters.len() && !voters.is_empty() {
        return Some(MemberChange::Voters(voters.into_keys().collect()));
    }
    let superfluous: BTreeSet<NodeId> =
        members.learners.iter().filter(|(_, n)| !listed(n)).map(|(id, _)| *id).collect();
    (!superfluous.is_empty()).then_some(MemberChange::Forget(superfluous))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::part::Part;

    fn members(voters: &[(NodeId, &str)], learners: &[(NodeId, &str)]) -> Members {
        let map = |l: &[(NodeId, &str)]| l.iter().map(|(i, n)| (*i, n.to_string())).collect();
        Members { voters: map(voters), learners: map(learners), changing: None }
    }

    fn voters(ids: &[NodeId]) -> Option<MemberChange> {
        Some(MemberChange::Voters(ids.iter().copied().collect()))
    }

    #[test]
    fn each_election_is_counted_once() {
        let mut part = Part::default();
        let mut seen = |role: Role, term| {
            (part.role, part.term) = (role, term);
            part.count_election();
            (part.won, part.lost)
        };
        let other = || Role::Follower("b".into());
        assert_eq!(seen(Role::Out, 3), (0, 0), "nobody has won yet");
        assert_eq!(seen(other(), 3), (0, 1));
        assert_eq!(seen(other(), 3), (0, 1));
        assert_eq!(seen(Role::Out, 4), (0, 1));
        assert_eq!(seen(Role::Leader, 4), (1, 1));
        // A majority that is away for a moment makes no election.
        assert_eq!((seen(Role::Out, 4), seen(Role::Leader, 4)), ((1, 1), (1, 1)));
        assert_eq!(seen(Role::Leader, 6), (2, 1));
    }

    /// A message that was under way for long, between monitors that could not reach each other,
    /// must not come behind what the session did since.
    #[test]
    fn what_was_passed_on_is_for_one_term() {
        assert_eq!([fate(1, 2), fate(2, 2), fate(3, 2)], [Fate::Never, Fate::Now, Fate::Later]);
    }

    #[test]
    fn members_follow_the_monitor_map_step_by_step() {
        let listed = |n: &String| ["a", "b", "c"].contains(&n.as_str());
        let all = |_| true;
        let change = |m: &Members, caught_up: &dyn Fn(NodeId) -> bool| {
            wanted_change(m, 1, listed, caught_up)
        };
        let three = [(1, "a"), (2, "b"), (3, "c")];
        assert_eq!(change(&members(&three, &[]), &all), None);
        // A newcomer waits until it has the log.
        let m = members(&[(1, "a")], &[(2, "b")]);
        assert_eq!(change(&m, &|_| false), None);
        assert_eq!(change(&m, &all), voters(&[1, 2]));
        // The same monitor with a new store takes the place of the old one.
        assert_eq!(change(&members(&three, &[(9, "b")]), &all), voters(&[1, 3, 9]));
        // A member that is not listed goes, the leader as well.
        assert_eq!(change(&members(&[(1, "a"), (2, "b"), (4, "d")], &[]), &all), voters(&[1, 2]));
        assert_eq!(change(&members(&[(1, "x"), (2, "b"), (3, "c")], &[]), &all), voters(&[2, 3]));
        let forget = Some(MemberChange::Forget([5].into()));
        assert_eq!(change(&members(&three, &[(5, "e")]), &all), forget);
        // What an earlier leader began is ended, and then comes the next change.
        let begun = Members {
            changing: Some([1, 3, 9].into()),
            ..members(&[(1, "a"), (2, "b"), (3, "c"), (9, "b")], &[(5, "e")])
        };
        assert_eq!(change(&begun, &all), voters(&[1, 3, 9]));
    }
}
