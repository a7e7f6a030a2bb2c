//! Words between the servers of a file system. Each opens a connection of its own to another one
//! and sends; what is lost is said again by the core, or by `rank::forward`.

use denc::{BytesMut, Decode, DecodeError, Encode, Features, Reader};
use mds::FilePath;
use messages::FsPeerMessage;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use types::fsmap::{self, MdsMap, MdsState, Owners};

/// What one server tells another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// A word of the core.
    Owner(mds::peer::Message),
    /// A client is going to ask: client, number of its request, and with what it goes on.
    Onward(u64, u64, FilePath),
    /// The client may ask.
    Expected(u64, u64),
}

/// The newest form of a word, and the oldest reader that understands it.
const FORM: (u8, u8) = (1, 1);

impl Encode for Word {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, FORM.0, FORM.1, |out| match self {
            Word::Owner(message) => {
                1u8.encode(out, f);
                message.encode(out, f);
            }
            Word::Onward(client, tid, path) => {
                2u8.encode(out, f);
                (*client, *tid).encode(out, f);
                path.encode(out, f);
            }
            Word::Expected(client, tid) => {
                3u8.encode(out, f);
                (*client, *tid).encode(out, f);
            }
        });
    }
}

impl Decode for Word {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (_, mut r) = r.envelope("a word of a metadata server", FORM.0)?;
        Ok(match u8::decode(&mut r)? {
            1 => Word::Owner(r.get()?),
            2 => Word::Onward(r.get()?, r.get()?, r.get()?),
            3 => Word::Expected(r.get()?, r.get()?),
            found => {
                let what = "a word of a metadata server";
                return Err(DecodeError::Invalid { what, found: found.into() });
            }
        })
    }
}

/// What was said to other servers, and heard of them.
#[derive(Default)]
pub struct Peers {
    /// The number of the last word to any of them.
    pub said: Cell<u64>,
    pub heard: RefCell<Heard>,
}

/// The last word of each rank: the server that has it, and the number.
#[derive(Default)]
pub struct Heard(BTreeMap<i32, (u64, u64)>);

impl Heard {
    /// Whether a word comes from the server that holds a rank, is for this one, and is later than
    /// all before it. `sender` is the id that the sender has proved to have.
    pub fn admits(&mut self, map: &MdsMap, me: u64, sender: u64, word: &FsPeerMessage) -> bool {
        let Ok(rank) = i32::try_from(word.from) else { return false };
        if word.to != me || map.up.get(&rank) != Some(&sender) {
            return false;
        }
        let last = self.0.entry(rank).or_default();
        if last.0 == sender && last.1 >= word.seq {
            return false;
        }
        *last = (sender, word.seq);
        true
    }
}

/// How many owners there are or were, and those of them that are no rank any more, or of which the
/// rank is not made yet.
pub fn owners(map: &MdsMap) -> (u16, BTreeSet<mds::Rank>) {
    let (owners, asleep) = (Owners::of(map), map.asleep());
    let is = |r: fsmap::Rank| map.ranks_in.contains(&r) || asleep.contains(&r);
    let there = |owner: &u16| owners.rank(*owner).is_some_and(is);
    let absent = (0..owners.count()).filter(|owner| !there(owner)).map(mds::Rank);
    (owners.count(), absent.collect())
}

/// The owner that each rank is.
pub fn ranks(map: &MdsMap) -> BTreeMap<u16, mds::Rank> {
    let owners = Owners::of(map);
    let ranks = owners.ranks().filter_map(|(r, o)| Some((u16::try_from(r).ok()?, mds::Rank(o))));
    ranks.collect()
}

/// The owner that a rank is.
pub fn owner_of(map: &MdsMap, rank: fsmap::Rank) -> Option<mds::Rank> {
    Owners::of(map).owner(rank).map(mds::Rank)
}

/// The rank that an owner is.
pub fn rank_of(map: &MdsMap, owner: mds::Rank) -> Option<fsmap::Rank> {
    Owners::of(map).rank(owner.0)
}

/// Whether all ranks rest, the owners of those that have ended, and the map that says so.
pub fn rest(map: &MdsMap) -> (bool, BTreeSet<mds::Rank>, u64) {
    let owners = Owners::of(map);
    let asleep = map.asleep().into_iter().filter_map(|r| owners.owner(r));
    (map.rests(), asleep.map(mds::Rank).collect(), map.epoch.0.into())
}

/// Whether a rank may say something to others, and hear of them. One that is being made may be made
/// anew by another server, and what was agreed with it would be lost.
pub fn may_talk(map: &MdsMap, rank: fsmap::Rank) -> bool {
    map.holder(rank).is_some_and(|info| info.state != MdsState::CREATING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use types::EntityAddrVec;
    use types::compat_set::CompatSet;
    use types::fsmap::MdsInfo;

    fn words() -> [Word; 3] {
        let path = FilePath { ino: mds::Ino(0x81 << 40), path: "a/b".into() };
        let txn = mds::peer::TxnId { rank: mds::Rank(1), number: 3 };
        [
            Word::Owner(mds::peer::Message::Ask(txn)),
            Word::Onward(4711, 12, path),
            Word::Expected(4711, 12),
        ]
    }

    #[test]
    fn words_come_back_and_damage_is_an_error_or_a_word() {
        for word in words() {
            let bytes = word.to_bytes(Features::ALL);
            assert_eq!(Word::from_bytes(&bytes), Ok(word));
            for cut in 0..bytes.len() {
                assert!(Word::from_bytes(&bytes.slice(..cut)).is_err());
            }
            for at in 0..bytes.len() {
                for change in [1u8, 0x80, 0xff] {
                    let mut changed = bytes.to_vec();
                    changed[at] ^= change;
                    if let Ok(read) = Word::from_bytes(&Bytes::from(changed)) {
                        assert_eq!(Word::from_bytes(&read.to_bytes(Features::ALL)), Ok(read));
                    }
                }
            }
        }
    }

    #[test]
    fn words_are_of_the_holder_and_in_order() {
        let map = MdsMap { up: [(0, 10), (1, 11)].into(), ..MdsMap::default() };
        let word = |from, to, seq| FsPeerMessage { from, to, seq, payload: Bytes::new() };
        let mut heard = Heard::default();
        assert!(heard.admits(&map, 10, 11, &word(1, 10, 5)));
        assert!(!heard.admits(&map, 10, 11, &word(1, 10, 5)), "it was heard");
        assert!(!heard.admits(&map, 10, 11, &word(1, 10, 4)), "it is late");
        assert!(heard.admits(&map, 10, 11, &word(1, 10, 9)), "some may be lost");
        assert!(!heard.admits(&map, 10, 12, &word(1, 10, 10)), "another server has the rank");
        assert!(!heard.admits(&map, 10, 11, &word(0, 10, 10)), "it has another rank");
        assert!(!heard.admits(&map, 10, 11, &word(1, 9, 10)), "it is for the server before");
        assert!(!heard.admits(&map, 10, 11, &word(u32::MAX, 10, 10)));
        let map = MdsMap { up: [(0, 10), (1, 12)].into(), ..MdsMap::default() };
        assert!(heard.admits(&map, 10, 12, &word(1, 10, 1)), "a successor counts anew");
    }

    #[test]
    fn ranks_that_were_are_counted() {
        let map = MdsMap { ranks_in: [0].into(), stopped: [2].into(), ..MdsMap::default() };
        assert_eq!(owners(&map), (3, [mds::Rank(1), mds::Rank(2)].into()));
        assert_eq!(owners(&MdsMap::default()), (1, [mds::Rank(0)].into()));
    }

    #[test]
    fn a_rank_that_came_again_is_another_owner() {
        let mut map = MdsMap { ranks_in: [0, 1].into(), max_mds: 2, ..MdsMap::default() };
        let mut known = Owners::of(&map);
        known.begin_to_leave(1);
        known.stopped(1);
        known.admit(1);
        known.note(&mut map);
        assert_eq!(owners(&map), (3, [mds::Rank(1)].into()));
        assert_eq!(ranks(&map), [(0, mds::Rank(0)), (1, mds::Rank(2))].into());
        assert_eq!(
            [0, 1, 2].map(|r| owner_of(&map, r)),
            [Some(mds::Rank(0)), Some(mds::Rank(2)), None]
        );
        assert_eq!([0, 1, 2].map(|o| rank_of(&map, mds::Rank(o))), [Some(0), None, Some(1)]);
        // It sleeps.
        (map.ranks_in, map.stopped) = ([0].into(), [1].into());
        assert_eq!(owners(&map), (3, [mds::Rank(1)].into()));
        assert_eq!(rest(&map).1, [mds::Rank(2)].into());
        // It is going to be made.
        map.stopped.clear();
        assert_eq!(owners(&map), (3, [mds::Rank(1), mds::Rank(2)].into()));
    }

    #[test]
    fn a_rank_that_is_being_made_is_silent() {
        let mut map = MdsMap { up: [(1, 5)].into(), ..MdsMap::default() };
        assert!(!may_talk(&map, 1) && !may_talk(&map, 0));
        let mut info = MdsInfo::standby(5, "a", EntityAddrVec::default(), CompatSet::default());
        for (state, talks) in [(MdsState::CREATING, false), (MdsState::ACTIVE, true)] {
            info.state = state;
            map.mds_info = [(5, info.clone())].into();
            assert_eq!(may_talk(&map, 1), talks);
        }
    }

    #[test]
    fn ranks_that_sleep_come_back_and_until_then_none_serves() {
        let mut map = MdsMap { ranks_in: [0, 1].into(), stopped: [2].into(), ..MdsMap::default() };
        map.max_mds = 2;
        assert_eq!(rest(&map), (false, [].into(), 0));
        // The file system goes down, and a rank has ended.
        (map.max_mds, map.old_max_mds) = (0, 2);
        assert_eq!(rest(&map), (true, [].into(), 0));
        map.ranks_in.remove(&1);
        map.stopped.insert(1);
        assert_eq!(rest(&map), (true, [mds::Rank(1)].into(), 0));
        assert_eq!(owners(&map), (3, [mds::Rank(2)].into()), "rank 2 was given up");
        // It is to be up again.
        map.max_mds = 2;
        assert_eq!(rest(&map), (true, [mds::Rank(1)].into(), 0));
        map.stopped.remove(&1);
        map.ranks_in.insert(1);
        assert!(!rest(&map).0);
        // A rank that is about to end is not served either; one that is given up does not matter.
        for (rank, rests) in [(1, true), (2, false)] {
            let mut info = MdsInfo::standby(5, "a", EntityAddrVec::default(), CompatSet::default());
            (info.rank, info.state) = (rank, MdsState::STOPPING);
            map.ranks_in.insert(rank);
            map.stopped.remove(&rank);
            map.mds_info = [(5, info)].into();
            assert_eq!(rest(&map).0, rests);
        }
    }
}
