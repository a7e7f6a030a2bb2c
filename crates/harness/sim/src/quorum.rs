//! The monitors as a group: the leader, what is in each log, and what each has applied.
//!
//! It is Raft as its outside looks. A leader proposes one change after the other, and each is
//! agreed on when a majority has it in its log. An election takes no messages, but the elected
//! monitor has a log no older than that of any monitor that votes for it, and a monitor that has
//! voted takes nothing of an earlier term. So a change that was under way when its leader went may
//! be lost, or kept by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use types::{Epoch, OsdId};

use crate::bug::Bug;
use crate::map::MapModel;
use crate::monitor::MonMsg;

/// A change that a leader proposed.
#[derive(Clone)]
pub struct Entry {
    /// The leader's term.
    pub term: u64,
    /// Its place in the log.
    pub at: usize,
    /// New maps.
    pub maps: Vec<Rc<MapModel>>,
    /// Older maps go with it.
    pub oldest: Epoch,
    /// Requests that it serves, and which monitor has their session.
    pub asked: Vec<(usize, u64)>,
    /// Commands that it executes.
    pub commands: Vec<u64>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epochs: Vec<u32> = self.maps.iter().map(|m| m.epoch.0).collect();
        write!(
            f,
            "{} of term {}: maps {epochs:?}, oldest {}, {:?} {:?}",
            self.at, self.term, self.oldest, self.asked, self.commands
        )
    }
}

/// What was agreed on: the state after it.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// The term in which it was.
    pub term: u64,
    /// The newest map.
    pub newest: Epoch,
    /// The oldest map that is kept.
    pub oldest: Epoch,
}

/// A request of a session, until the leader has answered it.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The client that asks.
    pub osd: OsdId,
    /// In which session.
    pub session: u64,
    /// What.
    pub msg: MonMsg,
    /// In which term the leader was told of it last.
    pub sent: Option<u64>,
}

/// A monitor.
#[derive(Debug, Default)]
pub struct Mon {
    /// Its process runs.
    pub running: bool,
    /// The newest term that it knows of.
    pub term: u64,
    /// The leader of that term, if it has heard of one.
    pub follows: Option<usize>,
    /// How much of what is agreed on is in its log.
    pub logged: usize,
    /// What is in its log behind that.
    pub pending: Option<Rc<Entry>>,
    /// How much of what is agreed on it shows.
    pub applied: usize,
    /// It has closed its sessions, because it hears of no majority.
    pub out: bool,
    /// Requests of its sessions.
    pub kept: BTreeMap<u64, Kept>,
}

/// All monitors, and what is between them.
#[derive(Debug)]
pub struct Group {
    /// They, by number.
    pub mons: Vec<Mon>,
    /// Everything that was agreed on.
    pub commits: Vec<Commit>,
    /// The newest term.
    pub term: u64,
    /// The monitor that was elected in it, as long as it lives.
    pub leader: Option<usize>,
    /// What the leader has proposed.
    pub under_way: Option<Rc<Entry>>,
    /// The monitors that have it.
    pub has: BTreeSet<usize>,
    /// Requests that wait for the leader to decide.
    pub inbox: Vec<(usize, u64, MonMsg)>,
    /// Commands of operators, and what daemons say again until they are heard. Each is executed
    /// once.
    pub commands: Vec<(u64, MonMsg)>,
    /// Numbers of requests and commands.
    pub numbers: u64,
    /// Requests that were executed.
    pub executed: BTreeSet<u64>,
    bug: Bug,
}

impl Group {
    /// Monitors that run and have no leader.
    pub fn new(mons: usize, bug: Bug) -> Self {
        Self {
            mons: (0..mons).map(|_| Mon { running: true, ..Mon::default() }).collect(),
            commits: vec![Commit { term: 0, newest: Epoch(1), oldest: Epoch(1) }],
            term: 0,
            leader: None,
            under_way: None,
            has: BTreeSet::new(),
            inbox: Vec::new(),
            commands: Vec::new(),
            numbers: 0,
            executed: BTreeSet::new(),
            bug,
        }
    }

    /// A number for a request or a command.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Whether so many are a majority.
    pub fn is_majority(&self, count: usize) -> bool {
        count * 2 > self.mons.len()
    }

    /// How new a monitor's log is.
    fn last(&self, mon: usize) -> (u64, usize) {
        let m = &self.mons[mon];
        m.pending.as_ref().map_or((self.commits[m.logged].term, m.logged), |e| (e.term, e.at))
    }

    /// Whether a monitor would be elected if these can vote.
    pub fn wins(&self, candidate: usize, voters: &[usize]) -> bool {
        let for_it = voters.iter().filter(|v| self.last(**v) <= self.last(candidate));
        self.is_majority(for_it.count())
    }

    /// A monitor is elected. What it had in its log behind what is agreed on is under way again, if
    /// there was anything.
    pub fn elect(&mut self, leader: usize, voters: &[usize]) -> Rc<Entry> {
        self.term += 1;
        self.leader = Some(leader);
        self.inbox.clear();
        for voter in voters {
            (self.mons[*voter].term, self.mons[*voter].follows) = (self.term, None);
        }
        let at = self.commits.len();
        let m = &mut self.mons[leader];
        m.follows = Some(leader);
        m.logged = at - 1;
        let newest = self.commits[at - 1];
        let empty = || Entry {
            term: 0,
            at,
            maps: Vec::new(),
            oldest: newest.oldest,
            asked: Vec::new(),
            commands: Vec::new(),
        };
        let first =
            m.pending.take().filter(|e| e.at == at).map_or_else(empty, |e| Entry::clone(&e));
        self.propose(Entry { term: self.term, ..first })
    }

    /// The leader proposes a change.
    pub fn propose(&mut self, entry: Entry) -> Rc<Entry> {
        let entry = Rc::new(entry);
        self.has.clear();
        self.under_way = Some(entry.clone());
        entry
    }

    /// The leader, if it may decide: everything that it found in its log is agreed on, and it has
    /// proposed nothing else.
    pub fn deciding(&self) -> Option<usize> {
        let ready =
            self.under_way.is_none() && self.commits.last().is_some_and(|c| c.term == self.term);
        self.leader.filter(|_| ready)
    }

    /// A leader's proposal arrives. Whether it is taken into the log.
    pub fn append(&mut self, mon: usize, leader: usize, entry: &Rc<Entry>) -> bool {
        let m = &mut self.mons[mon];
        if entry.term < m.term || entry.at <= m.logged {
            return false;
        }
        (m.term, m.follows) = (entry.term, Some(leader));
        m.logged = entry.at - 1;
        m.pending = Some(entry.clone());
        true
    }

    /// A monitor has the leader's proposal. Returns it if it is agreed on now.
    pub fn acknowledged(&mut self, by: usize, term: u64, at: usize) -> Option<Rc<Entry>> {
        let entry = self
            .under_way
            .clone()
            .filter(|e| (e.term, e.at) == (term, at) && self.leader.is_some())?;
        self.has.insert(by);
        if !self.is_majority(self.has.len()) && self.bug != Bug::MinorityAgrees {
            return None;
        }
        self.under_way = None;
        let oldest = self.commits[at - 1].oldest.max(entry.oldest);
        let newest = entry.maps.last().map_or(self.commits[at - 1].newest, |m| m.epoch);
        self.commits.push(Commit { term, newest, oldest });
        self.commands.retain(|(number, _)| !entry.commands.contains(number));
        Some(entry)
    }

    /// A monitor hears what is agreed on up to a place, from the leader of a term. Whether it shows
    /// more now.
    pub fn apply(&mut self, mon: usize, leader: usize, term: u64, upto: usize) -> bool {
        let m = &mut self.mons[mon];
        if term >= m.term {
            (m.term, m.follows) = (term, Some(leader));
        }
        m.logged = m.logged.max(upto);
        m.pending.take_if(|e| e.at <= upto);
        let more = upto > m.applied;
        m.applied = m.applied.max(upto);
        more
    }

    /// The newest and the oldest map that a monitor shows.
    pub fn shows(&self, mon: usize) -> Commit {
        self.commits[self.mons[mon].applied]
    }
}
