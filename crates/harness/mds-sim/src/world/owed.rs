//! What clients were answered early and a crash has taken back: they ask for it again.

use super::{Done, World};
use crate::model::Local;
use mds::{ClientId, Executed, Ino, Rank, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// What owners owe to clients.
#[derive(Default)]
pub(super) struct Owed {
    /// Answers that were given, and what the client knew better then.
    answers: BTreeMap<(ClientId, u64), (Box<Reply>, u32)>,
    /// Inodes that these requests are about.
    about: BTreeMap<ClientId, BTreeSet<Ino>>,
    /// What clients changed of them by themselves, since.
    later: BTreeMap<ClientId, Vec<Local>>,
}

impl Owed {
    fn is_owed(&self, client: ClientId) -> bool {
        self.answers.range((client, 0)..=(client, u64::MAX)).next().is_some()
    }
}

fn changes(local: &Local) -> Option<Ino> {
    match local {
        Local::Chmod(ino, _) | Local::Write(ino, _) => Some(*ino),
        Local::Lookup(..) | Local::Getattr(..) => None,
    }
}

impl Done {
    /// The client that saw it or did it, as far as it is known to.
    fn answered(&self) -> Option<ClientId> {
        match self {
            Done::Request { client, reply: Some(_), .. } => Some(*client),
            _ => None,
        }
    }
}

impl World {
    /// Whether a client lives, and may ask for what it was answered.
    fn lives(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|c| !c.dead) && !self.blocked.contains(&client)
    }

    /// An answer that is said to be safe tells of what the log has.
    pub(super) fn check_safe(
        &self,
        rank: Rank,
        client: ClientId,
        reply: &Reply,
    ) -> Result<(), String> {
        let (now, durable) = (self.life(rank), self.durable(rank));
        let of = |d: &Done| match d {
            Done::Request { rank: of, client: c, executed: e, life, .. } => {
                (*of, *c, e.tid, *life) == (rank, client, reply.tid, now)
                    && e.wrote
                    && e.batch > durable
            }
            _ => false,
        };
        match self.history.iter().find(|d| reply.safe && of(d)) {
            Some(done) => Err(format!("it is said to be safe, and may be lost: {done:?}")),
            None => Ok(()),
        }
    }

    /// Takes back what an owner that has just gone did and its log does not have.
    pub(super) fn lose(&mut self, rank: Rank) -> Result<(), String> {
        let (now, durable) = (self.life(rank), self.durable(rank));
        let is_lost = |d: &Done| match d {
            Done::Request { executed, life, rank: of, .. } => {
                executed.batch > durable && *life + 1 == now && *of == rank
            }
            Done::Found { batch, life, rank: of, .. } => {
                *batch > durable && *life + 1 == now && *of == rank
            }
            Done::Local(..) => false,
        };
        let mut first: BTreeMap<ClientId, usize> = BTreeMap::new();
        for (i, done) in self.history.iter().enumerate().filter(|(_, d)| is_lost(d)) {
            if let Some(client) = done.answered() {
                first.entry(client).or_insert(i);
            }
            if let Done::Request { executed, reply: Some(reply), .. } = done
                && executed.wrote
                && reply.safe
            {
                return Err(format!("answered, and lost: {done:?}"));
            }
        }
        // Of what may be lost a client has seen what it did itself, and nothing else.
        for client in first.keys() {
            let seen = self.history.iter().enumerate().filter(|(i, d)| match d {
                Done::Local(c, _) => c == client || first.get(c).is_none_or(|first| i < first),
                // What is lost without an answer, its client has not seen either.
                Done::Request { .. } => d.answered() == Some(*client) || !is_lost(d),
                Done::Found { .. } => !is_lost(d),
            });
            self.model_of(seen.map(|(_, d)| d))
                .map_err(|e| format!("{client:?} has seen what others did and was lost: {e}"))?;
        }
        let lost = self.history.iter().filter(|d| is_lost(d)).count();
        if lost > 0 {
            self.mark("undone");
        }
        let history = std::mem::take(&mut self.history);
        for (i, done) in history.iter().enumerate() {
            match done {
                Done::Request { client, request, executed, reply: Some(reply), better, .. }
                    if is_lost(done) && executed.wrote =>
                {
                    self.mark("owed");
                    let about = self.owed.about.entry(*client).or_default();
                    about.extend([request.path.ino, request.path2.ino]);
                    about.extend(executed.made);
                    about.extend(reply.target.as_ref().map(|t| t.inode.ino));
                    let answer = (reply.clone(), *better);
                    self.owed.answers.insert((*client, executed.tid), answer);
                }
                Done::Local(client, local) if first.get(client).is_some_and(|first| i > *first) => {
                    self.did(*client, local.clone());
                }
                done if is_lost(done) => {}
                done => self.history.push(done.clone()),
            }
        }
        Ok(())
    }

    /// A client does something by itself.
    pub(super) fn does(&mut self, client: ClientId, local: Local) {
        match self.owed.is_owed(client) {
            true => self.did(client, local),
            false => self.history.push(Done::Local(client, local)),
        }
    }

    /// A client that is owed something does, or has done, something by itself. Nothing has seen
    /// what it changed of the same inodes, and what it sees will be there again.
    fn did(&mut self, client: ClientId, local: Local) {
        let Some(ino) = changes(&local) else { return };
        match self.owed.about.get(&client).is_some_and(|about| about.contains(&ino)) {
            true => self.owed.later.entry(client).or_default().push(local),
            false => self.history.push(Done::Local(client, local)),
        }
    }

    /// A request is carried out. Says what its client was answered before.
    pub(super) fn is_done_again(
        &mut self,
        executed: &Executed,
    ) -> Result<(Option<Box<Reply>>, u32), String> {
        let key = (executed.client, executed.tid);
        let Some((reply, better)) = self.owed.answers.remove(&key) else { return Ok((None, 0)) };
        if executed.result != 0 || !executed.wrote {
            return Err(format!("answered early, and not done again: {executed:?} {reply:?}"));
        }
        self.mark("done again");
        Ok((Some(reply), better))
    }

    /// A client may be owed nothing any more: what it changed since comes behind it.
    pub(super) fn goes_on(&mut self, client: ClientId) {
        if self.owed.is_owed(client) {
            return;
        }
        self.owed.about.remove(&client);
        for local in self.owed.later.remove(&client).unwrap_or_default() {
            self.history.push(Done::Local(client, local));
        }
    }

    /// Nothing is owed in the end to a client that lives.
    pub(super) fn check_owed(&self) -> Result<(), String> {
        match self.owed.answers.iter().find(|((client, _), _)| self.lives(*client)) {
            Some(owed) => Err(format!("answered early, and never done again: {owed:?}")),
            None => Ok(()),
        }
    }
}
