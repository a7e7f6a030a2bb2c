//! Words between the servers of a file system. Each opens a connection of its own to another one
//! and sends; what is lost is said again by the core, or by `rank::forward`.

use denc::{BytesMut, Decode, DecodeError, Encode, Features, Reader};
use mds::FilePath;
use messages::FsPeerMessage;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use types::fsmap::MdsMap;

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

/// How many ranks there are or were, and those of them that were given up.
pub fn owners(map: &MdsMap) -> (u16, std::collections::BTreeSet<mds::Rank>) {
    let all = map.ranks_in.iter().chain(&map.stopped);
    let last = all.copied().filter_map(|r| u16::try_from(r).ok()).max().unwrap_or(0);
    let last = last.min(mds::Ino::OWNERS - 1);
    let asleep = map.asleep();
    let there = |r: &u16| [&map.ranks_in, &asleep].iter().any(|s| s.contains(&i32::from(*r)));
    let absent = (0..=last).filter(|r| !there(r)).map(mds::Rank);
    (last + 1, absent.collect())
}

/// Whether all ranks rest, those of them that have ended, and the map that says so.
pub fn rest(map: &MdsMap) -> (bool, std::collections::BTreeSet<mds::Rank>, u64) {
    let asleep = map.asleep().into_iter().filter_map(|r| u16::try_from(r).ok());
    (map.rests(), asleep.map(mds::Rank).collect(), map.epoch.0.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use types::EntityAddrVec;
    use types::compat_set::CompatSet;
    use types::fsmap::{MdsInfo, MdsState};

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
            map.mds_info = [(5, info)].into();
            assert_eq!(rest(&map).0, rests);
        }
    }
}
