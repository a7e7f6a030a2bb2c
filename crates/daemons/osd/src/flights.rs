//! The changes of a PG that are not durable everywhere yet, and how long each OSD takes for them.

use crate::tracker::Commits;
use admission::legs::{Peers, Took};
use pg::OpToken;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Instant;
use types::{Eversion, OsdId};

/// A change that is not durable everywhere yet.
struct Flight {
    token: OpToken,
    version: Eversion,
    begun: Instant,
    /// How long the store here and replicas took.
    took: Took,
    /// Where the operation tells it to commands that ask for slow ones.
    commits: Option<Commits>,
}

/// The changes of a PG that are not durable everywhere yet, in the order of their versions.
#[derive(Default)]
pub struct Flights {
    under_way: VecDeque<Flight>,
    /// Up to where others have them.
    acked: SmallVec<[(OsdId, Eversion); 3]>,
}

impl Flights {
    /// A change goes to the store and the replicas, for an operation or for the PG itself.
    pub fn begin(
        &mut self,
        token: OpToken,
        version: Eversion,
        now: Instant,
        commits: Option<Commits>,
    ) {
        self.under_way.push_back(Flight {
            token,
            version,
            begun: now,
            took: Took::default(),
            commits,
        });
    }

    /// The store here has it.
    pub fn committed(&mut self, token: OpToken, now: Instant) {
        let at = self.under_way.partition_point(|f| f.token < token);
        if let Some(flight) = self.under_way.get_mut(at).filter(|f| f.token == token) {
            flight.took.own = Some(now.saturating_duration_since(flight.begun));
            if let Some(commits) = &flight.commits {
                commits.add(None);
            }
        }
    }

    /// Another OSD has all changes up to a version.
    pub fn answered(&mut self, from: OsdId, version: Eversion, now: Instant, peers: &mut Peers) {
        let had = match self.acked.iter_mut().find(|(osd, _)| *osd == from) {
            Some((_, upto)) => {
                let had = *upto;
                *upto = had.max(version);
                had
            }
            None => {
                self.acked.push((from, version));
                Eversion::default()
            }
        };
        let begin = self.under_way.partition_point(|f| f.version <= had);
        for flight in self.under_way.iter_mut().skip(begin).take_while(|f| f.version <= version) {
            let took = now.saturating_duration_since(flight.begun);
            flight.took.acks.push((from, took));
            if let Some(commits) = &flight.commits {
                commits.add(Some(from));
            }
            peers.add(from, took);
        }
    }

    /// Every copy has it.
    pub fn end(&mut self, token: OpToken) -> Option<Took> {
        while let Some(flight) = self.under_way.pop_front_if(|f| f.token <= token) {
            if flight.token == token {
                return Some(flight.took);
            }
        }
        None
    }

    /// Another interval begins.
    pub fn clear(&mut self) {
        self.under_way.clear();
        self.acked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use admission::legs::{Leg, Legs, Marks, Spent};
    use std::time::Duration;
    use types::Epoch;

    const MS: Duration = Duration::from_millis(1);

    fn version(version: u64) -> Eversion {
        Eversion { epoch: Epoch(1), version }
    }

    fn to_nanos(d: Duration) -> u64 {
        d.as_nanos() as u64
    }

    fn of(spent: &Spent, leg: Leg) -> u64 {
        spent.legs[leg as usize] / to_nanos(MS)
    }

    #[test]
    fn every_moment_belongs_to_one_leg() {
        let begun = Instant::now();
        let (mut flights, mut peers) = (Flights::default(), Peers::default());
        flights.begin(OpToken(1), version(1), begun, None);
        flights.begin(OpToken(3), version(2), begun, None);
        flights.answered(OsdId(1), version(2), begun + MS, &mut peers);
        flights.committed(OpToken(1), begun + 3 * MS);
        flights.answered(OsdId(2), version(1), begun + 12 * MS, &mut peers);
        let noted = Legs::default();
        noted.add(Leg::Ceiling, to_nanos(20 * MS));
        noted.add(Leg::Queue, to_nanos(5 * MS));
        noted.add(Leg::Store, to_nanos(2 * MS));
        let marks =
            Marks { reached: Some(26 * MS), started: Some(27 * MS), proposed: Some(33 * MS) };
        let spent = Spent::new(&noted, marks, 45 * MS, flights.end(OpToken(1)));
        let legs = Leg::ALL.map(|leg| of(&spent, leg));
        assert_eq!(legs, [0, 20, 5, 1, 4, 2 + 3, 9, 1]);
        assert_eq!(spent.legs.iter().sum::<u64>(), spent.total);
        assert_eq!(spent.replicas[..], [(OsdId(1), MS), (OsdId(2), 12 * MS)]);
        // The other one has what was acknowledged with the first; the store here is the last to
        // have it.
        flights.answered(OsdId(2), version(2), begun + 2 * MS, &mut peers);
        flights.committed(OpToken(3), begun + 8 * MS);
        let spent = Spent::new(
            &Legs::default(),
            Marks { proposed: Some(MS), ..marks },
            40 * MS,
            flights.end(OpToken(3)),
        );
        assert_eq!(
            of(&spent, Leg::Execute),
            13,
            "what was marked before it began again is not this attempt's"
        );
        let marks = Marks { reached: Some(MS), started: Some(MS), proposed: Some(MS) };
        flights.begin(OpToken(4), version(3), begun, None);
        flights.answered(OsdId(1), version(3), begun + MS, &mut peers);
        flights.committed(OpToken(4), begun + 8 * MS);
        let spent = Spent::new(&Legs::default(), marks, 9 * MS, flights.end(OpToken(4)));
        assert_eq!((of(&spent, Leg::Store), of(&spent, Leg::Replicas)), (8, 0));
        assert_eq!(peers.dump()["1"]["answered"], 3);
        assert_eq!(
            peers.dump()["2"]["log2_us"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap())
                .sum::<u64>(),
            2
        );
    }

    #[test]
    fn an_interval_forgets() {
        let (now, mut peers, mut flights) = (Instant::now(), Peers::default(), Flights::default());
        flights.begin(OpToken(1), version(1), now, None);
        flights.clear();
        flights.answered(OsdId(1), version(9), now, &mut peers);
        flights.committed(OpToken(1), now);
        assert!(flights.end(OpToken(1)).is_none() && peers.dump().is_empty());
    }
}
