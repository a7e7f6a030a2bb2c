//! Which owner a new directory gets. What is there already stays where it is.
//!
//! The nearest directory above that says something decides: a pin names the owner, a distributed
//! directory spreads those made in it, and below a random one the owner is drawn by chance. Else a
//! directory goes where the directory above it is.

use super::Mds;
use crate::peer::LotId;
use crate::request::Request;
use crate::types::{Chance, ClientId, Ino, Inode, Name, Rank, Space};
use std::collections::BTreeMap;

/// Where subvolumes are, in the file system's root.
const VOLUMES: &[u8] = b"volumes";

/// What a directory says of those below it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Policy {
    Pin(Rank),
    Distributed,
    Random(Chance),
}

impl Mds {
    /// The owner of a new directory, and the chance that directories below it inherit. A subvolume
    /// and what is below a quota stay together, and so does what a client with limited rights
    /// makes: others do not know these.
    pub(crate) fn place(
        &self,
        client: ClientId,
        request: &Request,
        dir: Ino,
        name: &Name,
    ) -> (Rank, Chance) {
        let here = (self.conf.rank, Chance::default());
        if self.conf.owners <= 1
            || self.space_of(dir) != Space::COMMON
            || self.quota_of(dir).is_some()
            || self.wish.is_some()
            || self.holds_subvolumes(dir)
        {
            return here;
        }
        match self.policy_above(dir) {
            // The directory that is pinned goes there with all below it.
            Some((at, Policy::Pin(rank))) if self.goes_itself(at, rank) => here,
            Some((_, Policy::Pin(rank))) => (rank, Chance::default()),
            Some((at, Policy::Distributed)) if at == dir => {
                (self.by_hash(dir.0, name), Chance::default())
            }
            // It stays with the directory that was spread.
            Some((_, Policy::Distributed)) => here,
            Some((_, Policy::Random(chance))) => {
                // A request that is tried or sent again has the same luck.
                let draw = mixed(mixed(client.0) ^ request.tid);
                let drawn = unit(draw) < chance.get().min(self.conf.random_max);
                (if drawn { self.by_hash(draw, name) } else { here.0 }, chance)
            }
            None if self.conf.spread => (self.by_hash(dir.0, name), Chance::default()),
            None => here,
        }
    }

    /// The nearest directory above with a policy that is in force, and the policy.
    fn policy_above(&self, dir: Ino) -> Option<(Ino, Policy)> {
        let mut at = dir;
        loop {
            let node = self.nodes.get(&at)?;
            if let Some(policy) = self.policy_of(&node.inode) {
                return Some((at, policy));
            }
            match &node.parent {
                Some((above, _)) => at = *above,
                None => break,
            }
        }
        let inherited = self.peers.roots.get(&at)?.random;
        self.random(inherited).map(|policy| (at, policy))
    }

    /// The chance that a directory made below has in force.
    pub(crate) fn chance_below(&self, dir: Ino) -> Chance {
        match self.policy_above(dir) {
            Some((_, Policy::Random(chance))) => chance,
            _ => Chance::default(),
        }
    }

    /// The owner that a subvolume or a tree is to have: that of its own pin, or what is said above
    /// of those made there. Chance places new directories alone. What is below a quota stays
    /// together. Nothing for what stays where it is.
    pub(crate) fn wished(&self, id: LotId, root: Ino) -> Option<Rank> {
        let node = self.nodes.get(&root)?;
        let (dir, name) = node.parent.as_ref().filter(|(d, _)| !d.is_system())?;
        if !self.is_mine(*dir) || self.part_of(*dir) != Ino::ROOT {
            return None;
        }
        let pinned = self.pinned_to(&node.inode);
        if let LotId::Tree(_) = id {
            let special = node.inode.space != Space(0)
                || self.space_of(*dir) != Space::COMMON
                || self.holds_subvolumes(root)
                || self.holds_subvolumes(*dir);
            // Without a pin, it goes back if it moved, and else stays with the owner that has it.
            let moved = self.peers.lots.contains_key(&id);
            if special || !moved && pinned.is_none() && !self.is_mine(root) {
                return None;
            }
            if !moved && pinned.is_none() {
                return Some(self.conf.rank);
            }
        }
        if self.quota_of(*dir).is_some() {
            return Some(self.conf.rank);
        }
        let above = || match self.policy_above(*dir) {
            Some((_, Policy::Pin(rank))) => rank,
            Some((at, Policy::Distributed)) if at == *dir && matches!(id, LotId::Space(_)) => {
                self.by_hash(dir.0, name)
            }
            _ => self.conf.rank,
        };
        Some(pinned.unwrap_or_else(above))
    }

    /// The owner that a directory is pinned to, if it is there.
    fn pinned_to(&self, inode: &Inode) -> Option<Rank> {
        let pin = inode.pin.checked_sub(1).and_then(|p| u16::try_from(p).ok());
        pin.and_then(|p| self.named(p)).filter(|r| self.is_there(*r))
    }

    fn policy_of(&self, inode: &Inode) -> Option<Policy> {
        if let Some(rank) = self.pinned_to(inode) {
            return Some(Policy::Pin(rank));
        }
        if inode.distributed && self.conf.distributed {
            return Some(Policy::Distributed);
        }
        self.random(inode.random)
    }

    /// The owner that a pin names.
    fn named(&self, pin: u16) -> Option<Rank> {
        match &self.conf.ranks {
            ranks if ranks.is_empty() => Some(Rank(pin)),
            ranks => ranks.get(&pin).copied(),
        }
    }

    /// Pins to ranks name these owners from now on.
    pub fn set_ranks(&mut self, ranks: BTreeMap<u16, Rank>) {
        self.peers.choose_all |= self.conf.ranks != ranks;
        self.conf.ranks = ranks;
    }

    fn random(&self, chance: Chance) -> Option<Policy> {
        (self.conf.random && chance.get() > 0.0).then_some(Policy::Random(chance))
    }

    /// Whether an owner takes new directories.
    pub(crate) fn is_there(&self, rank: Rank) -> bool {
        let gone = self.conf.absent.contains(&rank) || self.peers.kept.contains(&rank);
        rank.0 < self.conf.owners && !gone
    }

    /// The owner of a name by a hash. With one owner more, only what goes to that one changes.
    fn by_hash(&self, seed: u64, name: &Name) -> Rank {
        let there: Vec<Rank> =
            (0..self.conf.owners).map(Rank).filter(|r| self.is_there(*r)).collect();
        let name = crc32c::crc32c_append(seed as u32, name);
        let hash = mixed(seed ^ u64::from(name) << 32);
        there.get(bucket(hash, there.len())).copied().unwrap_or(self.conf.rank)
    }

    /// Whether a directory is that of all groups, or of a group: subvolumes are the first owner's.
    fn holds_subvolumes(&self, dir: Ino) -> bool {
        let parent = |ino| self.nodes.get(&ino).and_then(|n| n.parent.as_ref());
        let is_volumes =
            |ino| parent(ino).is_some_and(|(above, name)| *above == Ino::ROOT && name == VOLUMES);
        is_volumes(dir) || parent(dir).is_some_and(|(above, _)| is_volumes(*above))
    }
}

/// All bits depend on all bits (the finisher of SplitMix64).
fn mixed(of: u64) -> u64 {
    let mut z = of.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A number from 0 up to, not including, 1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// One of so many buckets (Lamping and Veach: "A Fast, Minimal Memory, Consistent Hash Algorithm").
fn bucket(mut hash: u64, buckets: usize) -> usize {
    let (mut found, mut next) = (0, 0);
    while next < buckets {
        found = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((found + 1) as f64 * ((1u64 << 31) as f64 / ((hash >> 33) + 1) as f64)) as usize;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_even_and_few_move() {
        let hashes: Vec<u64> = (0..10_000).map(mixed).collect();
        for count in 1..10usize {
            let mut in_each = vec![0usize; count];
            for hash in &hashes {
                let (now, more) = (bucket(*hash, count), bucket(*hash, count + 1));
                assert!(more == now || more == count, "{count}: {now} {more}");
                in_each[now] += 1;
            }
            let even = hashes.len() / count;
            assert!(in_each.iter().all(|n| n.abs_diff(even) < even / 5), "{in_each:?}");
        }
        assert_eq!(bucket(7, 0), 0);
    }

    #[test]
    fn draws_are_even() {
        for chance in [0.01, 0.3, 1.0] {
            let drawn = (0..100_000).filter(|n| unit(mixed(*n)) < chance).count() as f64;
            assert!((drawn / 100_000.0 - chance).abs() < 0.01, "{chance}: {drawn}");
        }
    }
}
