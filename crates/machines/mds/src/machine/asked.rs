//! What a request has asked of other owners.

use crate::peer::{Found, Half, Message, Prepare, Refusal, TxnId};
use crate::types::{Batch, ClientId, Rank};
use std::collections::BTreeMap;
use types::Utime;

/// What other owners do of a request.
#[derive(Clone, Debug)]
pub(crate) struct Txn {
    pub id: TxnId,
    pub client: ClientId,
    pub tid: u64,
    pub stamp: Utime,
    pub halves: Vec<(Rank, Half)>,
    /// What each owner said, in the order of its halves.
    pub answers: BTreeMap<Rank, Option<Result<Vec<Found>, Refusal>>>,
}

impl Txn {
    /// What an owner is asked for.
    pub(crate) fn ask(&self, rank: Rank) -> Prepare {
        let halves = self.halves.iter().filter(|(r, _)| *r == rank).map(|(_, h)| h.clone());
        Prepare {
            txn: self.id,
            client: self.client,
            tid: self.tid,
            stamp: self.stamp,
            halves: halves.collect(),
        }
    }

    /// What halves are about, in their order, if all are ready.
    pub(crate) fn found(&self) -> Option<Vec<Found>> {
        let mut by_rank = BTreeMap::new();
        for (rank, answer) in &self.answers {
            match answer {
                Some(Ok(found)) => by_rank.insert(*rank, found.iter()),
                _ => return None,
            };
        }
        let one = |(rank, _): &(Rank, Half)| by_rank.get_mut(rank)?.next().copied();
        self.halves.iter().map(one).collect()
    }

    /// Words to those that gave no answer.
    pub(crate) fn unanswered(&self, since: Batch) -> Vec<(Rank, Batch, Message)> {
        let open = self.answers.iter().filter(|(_, answer)| answer.is_none());
        open.map(|(rank, _)| (*rank, since, Message::Prepare(self.ask(*rank)))).collect()
    }
}
