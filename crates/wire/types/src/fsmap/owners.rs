//! Which owner of directories each rank of a file system is.
//!
//! Servers with a log of their own tell the owner of an inode from its number. A rank that was
//! given up leaves its numbers to rank 0 for good. When it is added again it is another owner, with
//! numbers that were never used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

type Rank = i32;

/// How many ranks servers with a log of their own can have.
pub const OWN_LOG_RANKS: Rank = 64;

/// The compatible feature that says which owner each rank of such servers is ([`Owners`]).
pub const OWNERS_FEATURE: u64 = 61;

/// What the text of [`OWNERS_FEATURE`] begins with.
const PREFIX: &str = "siphon owners: ";

/// Owners of a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owners {
    /// The lowest number that was never used.
    next: u16,
    /// The owner of each rank that there is, or that comes back.
    ranks: BTreeMap<Rank, u16>,
    /// Ranks that are being given up, whatever `max_mds` is meanwhile.
    leaving: BTreeSet<Rank>,
}

impl Default for Owners {
    fn default() -> Self {
        Owners { next: 1, ranks: [(0, 0)].into(), leaving: BTreeSet::new() }
    }
}

impl Owners {
    /// The owner of each rank has the rank's number. `known` are ranks that there are or were,
    /// `there` those of them that were not given up.
    pub(super) fn by_ranks(
        known: impl Iterator<Item = Rank>,
        there: impl Iterator<Item = Rank>,
        leaving: BTreeSet<Rank>,
    ) -> Owners {
        let number = |rank: Rank| u16::try_from(rank).ok().filter(|_| rank < OWN_LOG_RANKS);
        let next = known.filter_map(number).max().unwrap_or(0) + 1;
        let ranks = there.chain([0]).filter_map(|rank| Some((rank, number(rank)?)));
        Owners { next, ranks: ranks.collect(), leaving }
    }

    /// How many owners there are or were.
    pub fn count(&self) -> u16 {
        self.next
    }

    /// The owner that a rank is.
    pub fn owner(&self, rank: Rank) -> Option<u16> {
        self.ranks.get(&rank).copied()
    }

    /// The rank that an owner is.
    pub fn rank(&self, owner: u16) -> Option<Rank> {
        self.ranks.iter().find(|(_, o)| **o == owner).map(|(rank, _)| *rank)
    }

    /// Ranks and their owners.
    pub fn ranks(&self) -> impl Iterator<Item = (Rank, u16)> {
        self.ranks.iter().map(|(rank, owner)| (*rank, *owner))
    }

    /// The owner that a rank is, which it becomes if it is none. Nothing if all numbers were used.
    pub fn admit(&mut self, rank: Rank) -> Option<u16> {
        if let Some(owner) = self.owner(rank) {
            return Some(owner);
        }
        let owner = self.next;
        if i32::from(owner) >= OWN_LOG_RANKS {
            return None;
        }
        self.next += 1;
        self.ranks.insert(rank, owner);
        Some(owner)
    }

    /// A rank is going to be given up.
    pub fn begin_to_leave(&mut self, rank: Rank) {
        self.leaving.insert(rank);
    }

    /// Whether a rank is being given up.
    pub fn is_leaving(&self, rank: Rank) -> bool {
        self.leaving.contains(&rank)
    }

    /// A rank has stopped. If it was given up, rank 0 has what its owner had.
    pub fn stopped(&mut self, rank: Rank) {
        if self.leaving.remove(&rank) {
            self.ranks.remove(&rank);
        }
    }

    /// Whether there are numbers for so many ranks.
    pub fn suffice(&self, ranks: Rank) -> bool {
        let new = |r: &Rank| !self.ranks.contains_key(r) || self.leaving.contains(r);
        let new = (0..ranks).filter(new).count();
        usize::from(self.next) + new <= OWN_LOG_RANKS as usize
    }
}

impl fmt::Display for Owners {
    /// `siphon owners: 0=0,1=3 leaving 1 next 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<String> = self.ranks.iter().map(|(r, o)| format!("{r}={o}")).collect();
        write!(f, "{PREFIX}{}", ranks.join(","))?;
        if !self.leaving.is_empty() {
            let leaving: Vec<String> = self.leaving.iter().map(Rank::to_string).collect();
            write!(f, " leaving {}", leaving.join(","))?;
        }
        write!(f, " next {}", self.next)
    }
}

impl FromStr for Owners {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.strip_prefix(PREFIX).ok_or(())?.split(' ');
        let mut owners = Owners { next: 0, ranks: BTreeMap::new(), leaving: BTreeSet::new() };
        for pair in words.next().ok_or(())?.split(',') {
            let (rank, owner) = pair.split_once('=').ok_or(())?;
            owners.ranks.insert(rank.parse().map_err(drop)?, owner.parse().map_err(drop)?);
        }
        while let (Some(word), Some(value)) = (words.next(), words.next()) {
            match word {
                "leaving" => {
                    let ranks: Result<_, _> = value.split(',').map(str::parse).collect();
                    owners.leaving = ranks.map_err(drop)?;
                }
                "next" => owners.next = value.parse().map_err(drop)?,
                _ => return Err(()),
            }
        }
        let most = OWN_LOG_RANKS as u16;
        let sound = owners.next <= most && owners.ranks.values().all(|o| *o < owners.next);
        if sound { Ok(owners) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_up() {
        let mut owners = Owners::default();
        for number in 1..64 {
            assert!(owners.suffice(2) && owners.suffice(65 - i32::from(number)));
            assert!(!owners.suffice(66 - i32::from(number)));
            assert_eq!(owners.admit(1), Some(number));
            assert!(owners.suffice(2));
            owners.begin_to_leave(1);
            assert_eq!(owners.suffice(2), number < 63);
            owners.stopped(1);
        }
        assert!(owners.suffice(1) && !owners.suffice(2));
        assert_eq!((owners.admit(1), owners.owner(1)), (None, None));
        let text = owners.to_string();
        assert_eq!(text.parse(), Ok(owners));
    }

    #[test]
    fn a_text_that_is_none_is_refused() {
        for text in [
            "",
            "siphon owners: ",
            "siphon owners: 0=0",
            "siphon owners: 0=0 next 65",
            "siphon owners: 0=0,1=2 next 2",
            "siphon owners: 0=0 leaving x next 2",
            "siphon owners: 0=0 other 1 next 2",
        ] {
            assert_eq!(text.parse::<Owners>(), Err(()), "{text}");
        }
    }
}
