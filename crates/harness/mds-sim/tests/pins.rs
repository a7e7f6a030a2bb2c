//! Where new directories go: pins, directories that spread those made in them, and chance.

use bytes::Bytes;
use mds::peer::{Half, LotId, Message, Prepare};
use mds::{Conf, Event, Ino, Name, Op, Rank, XattrMode};
use mds_sim::bench::Bench;
use std::collections::{BTreeMap, BTreeSet};
use types::Errno;

const OWNERS: u16 = 4;

fn set(name: &str, value: &str) -> Op {
    Op::Setxattr {
        name: Name::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        mode: XattrMode::Any,
    }
}

fn conf() -> Conf {
    Conf { owners: OWNERS, random_max: 1.0, ..Bench::conf() }
}

/// Makes a directory, and says which other owner is asked to make it.
fn made(b: &mut Bench, dir: Ino, name: &str) -> Option<(Rank, Prepare)> {
    let tid = b.send(1, dir, name, (Ino(0), ""), Op::Mkdir { mode: 0o755 });
    if let Some(reply) = b.answer(tid) {
        assert_eq!(reply.result, 0, "{name}");
        return None;
    }
    let asked = std::mem::take(&mut b.words).into_iter().find_map(|(rank, word)| match word {
        Message::Prepare(p) if p.tid == tid => Some((rank, p)),
        _ => None,
    });
    Some(asked.expect("another owner is asked"))
}

/// How many directories of a hundred go to which owner.
fn hundred(b: &mut Bench, dir: Ino) -> BTreeMap<u16, usize> {
    let mut found = BTreeMap::new();
    for i in 0..100 {
        let name = format!("{}.{i}", b.told.len());
        *found.entry(made(b, dir, &name).map_or(0, |(rank, _)| rank.0)).or_default() += 1;
    }
    found
}

fn put(b: &mut Bench, dir: Ino, name: &str, value: &str) {
    assert_eq!(b.ask(dir, "", set(name, value)).result, 0, "{name} {value}");
}

#[test]
fn a_distributed_directory_spreads_those_made_in_it() {
    let mut b = Bench::new(conf());
    let top = b.mkdir(Ino::ROOT, "top");
    let old = b.mkdir(top, "old");
    put(&mut b, top, "ceph.dir.pin.distributed", "1");
    let found = hundred(&mut b, top);
    assert!(found.len() == 4 && found.values().all(|n| (10..45).contains(n)), "{found:?}");
    // What is below them stays with them.
    assert_eq!(hundred(&mut b, old), [(0, 100)].into());
    // A pin comes first, if its owner is there.
    put(&mut b, top, "ceph.dir.pin", "2");
    assert_eq!(hundred(&mut b, top), [(2, 100)].into());
    assert_eq!(hundred(&mut b, old), [(2, 100)].into());
    put(&mut b, top, "ceph.dir.pin", "7");
    assert_eq!(hundred(&mut b, top).len(), 4);
    b.mds.set_owners(OWNERS, BTreeSet::from([Rank(2)]));
    let found = hundred(&mut b, top);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 1, 3]);
    b.mds.set_spreading(false, true, 1.0);
    assert_eq!(hundred(&mut b, top), [(0, 100)].into());
    b.mds.set_spreading(true, true, 1.0);
    put(&mut b, top, "ceph.dir.pin.distributed", "0");
    assert_eq!(hundred(&mut b, top), [(0, 100)].into());
}

#[test]
fn a_pin_names_a_rank_whatever_owner_that_is() {
    let mut b = Bench::new(conf());
    let top = b.mkdir(Ino::ROOT, "top");
    // Rank 1 came again as owner 3, and owner 1 has left. There is no rank 3.
    b.mds.set_owners(OWNERS, BTreeSet::from([Rank(1)]));
    b.mds.set_ranks([(0, Rank(0)), (1, Rank(3)), (2, Rank(2))].into());
    for (pin, owner) in [("1", 3), ("2", 2), ("3", 0), ("0", 0)] {
        put(&mut b, top, "ceph.dir.pin", pin);
        assert_eq!(hundred(&mut b, top), [(owner, 100)].into(), "a pin to rank {pin}");
    }
}

#[test]
fn one_rank_more_gets_a_part_and_moves_no_other() {
    let mut places: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for owners in [3, 4] {
        let mut b = Bench::new(Conf { owners, ..conf() });
        let top = b.mkdir(Ino::ROOT, "top");
        put(&mut b, top, "ceph.dir.pin.distributed", "1");
        for i in 0..200 {
            let rank = made(&mut b, top, &format!("d{i}")).map_or(0, |(rank, _)| rank.0);
            places.entry(format!("d{i}")).or_default().push(rank);
        }
    }
    assert!(places.values().all(|p| p[1] == p[0] || p[1] == 3), "{places:?}");
    assert!(places.values().any(|p| p[1] == 3));
}

#[test]
fn below_a_random_directory_some_go_to_any_owner() {
    let mut b = Bench::new(conf());
    let top = b.mkdir(Ino::ROOT, "top");
    let below = b.mkdir(top, "below");
    put(&mut b, top, "ceph.dir.pin.random", "0.5");
    for dir in [top, below] {
        let found = hundred(&mut b, dir);
        assert!(found.len() == 4, "{found:?}");
        assert!((40..85).contains(&found[&0]), "a half, and a part of the other: {found:?}");
    }
    b.mds.set_spreading(true, true, 0.0);
    assert_eq!(hundred(&mut b, below), [(0, 100)].into(), "the largest chance comes first");
    b.mds.set_spreading(true, false, 1.0);
    assert_eq!(hundred(&mut b, below), [(0, 100)].into());
    b.mds.set_spreading(true, true, 1.0);
    put(&mut b, below, "ceph.dir.pin.distributed", "1");
    put(&mut b, top, "ceph.dir.pin.random", "1");
    assert!(hundred(&mut b, below)[&0] < 50, "the nearest directory says it");
    put(&mut b, top, "ceph.dir.pin.random", "0");
    assert_eq!(hundred(&mut b, top), [(0, 100)].into());
}

#[test]
fn a_part_inherits_the_chance_of_what_is_above() {
    let mut first = Bench::new(conf());
    let top = first.mkdir(Ino::ROOT, "top");
    put(&mut first, top, "ceph.dir.pin.random", "0.75");
    let asked = (0..100).find_map(|i| made(&mut first, top, &format!("d{i}")));
    let (rank, prepare) = asked.expect("one of a hundred goes elsewhere");
    assert!(matches!(&prepare.halves[..], [Half::Make { random, .. }] if random.get() == 0.75));
    let conf = Conf { rank, ..conf() };
    let mut other = Bench::new(conf.clone());
    let txn = prepare.txn;
    other.event(Event::Peer(Rank(0), Box::new(Message::Prepare(prepare))));
    let ino = other.words.iter().find_map(|(_, word)| match word {
        Message::Prepared(t, found) if *t == txn => Some(found[0].ino),
        _ => None,
    });
    let ino = ino.expect("it is ready");
    other.event(Event::Peer(Rank(0), Box::new(Message::Decided(txn, true))));
    other.restart(conf);
    other.event(Event::Reconnected(mds::ClientId(1)));
    let own = |b: &mut Bench| {
        let asked = (0..100).filter(|i| made(b, ino, &format!("{}.{i}", b.told.len())).is_some());
        asked.count()
    };
    assert!((35..75).contains(&own(&mut other)), "three quarters of three quarters");
    put(&mut other, ino, "ceph.dir.pin", &rank.0.to_string());
    assert_eq!(own(&mut other), 0);
}

#[test]
fn values_are_refused_as_by_stock() {
    let mut b = Bench::new(Conf { random_max: 0.25, ..conf() });
    let dir = b.mkdir(Ino::ROOT, "d");
    let create = Op::Mknod { mode: 0o644, rdev: 0 };
    let file = b.ask(Ino::ROOT, "f", create).target.unwrap().inode.ino;
    let (inval, dom) = (-Errno::EINVAL.0, -Errno::EDOM.0);
    for (name, value, result) in [
        ("ceph.dir.pin", "1", 0),
        ("ceph.dir.pin", "2147483647", 0),
        ("ceph.dir.pin", "-7", 0),
        ("ceph.dir.pin", "", inval),
        ("ceph.dir.pin", "1x", inval),
        ("ceph.dir.pin", "99999999999", inval),
        ("ceph.dir.pin.distributed", "1", 0),
        ("ceph.dir.pin.distributed", "+01", 0),
        ("ceph.dir.pin.distributed", "-0", 0),
        ("ceph.dir.pin.distributed", "-1", inval),
        ("ceph.dir.pin.distributed", "2", inval),
        ("ceph.dir.pin.distributed", "true", inval),
        ("ceph.dir.pin.distributed", "", inval),
        ("ceph.dir.pin.random", "0.25", 0),
        ("ceph.dir.pin.random", "1e-3", 0),
        ("ceph.dir.pin.random", "0.26", inval),
        ("ceph.dir.pin.random", "1.01", dom),
        ("ceph.dir.pin.random", "-0.1", dom),
        ("ceph.dir.pin.random", "inf", dom),
        ("ceph.dir.pin.random", "x", inval),
        ("ceph.dir.pin.none", "1", inval),
    ] {
        assert_eq!(b.ask(dir, "", set(name, value)).result, result, "{name} {value}");
        for other in [Ino::ROOT, file] {
            assert_eq!(b.ask(other, "", set(name, "1")).result, inval, "{name} of {other:?}");
        }
    }
    for ino in [dir, file] {
        let removed = Op::Rmxattr { name: Name::from_static(b"ceph.dir.pin.random") };
        assert_eq!(b.ask(ino, "", removed).result, -Errno::ENODATA.0);
    }
    b.event(Event::Flush);
    b.restart(conf());
    b.event(Event::Reconnected(mds::ClientId(1)));
    let inode = b.ask(Ino::ROOT, "d", Op::Lookup { mask: 0 }).target.unwrap().inode;
    assert_eq!((inode.pin, inode.distributed, inode.random.get()), (0, false, 0.001));
}

#[test]
fn subvolumes_stay_with_the_first_owner() {
    let mut b = Bench::new(conf());
    let volumes = b.mkdir(Ino::ROOT, "volumes");
    let group = b.mkdir(volumes, "group");
    for dir in [volumes, group] {
        put(&mut b, dir, "ceph.dir.pin.distributed", "1");
        assert_eq!(hundred(&mut b, dir), [(0, 100)].into());
        put(&mut b, dir, "ceph.dir.pin", "1");
        assert_eq!(hundred(&mut b, dir), [(0, 100)].into());
    }
}

#[test]
fn a_pin_moves_a_subvolume_and_a_quota_above_holds_it() {
    let mut b = Bench::new(Conf { moves: true, ..conf() });
    let volumes = b.mkdir(Ino::ROOT, "volumes");
    let group = b.mkdir(volumes, "group");
    let sub = b.mkdir(group, "sub");
    let older = b.mkdir(sub, "older");
    put(&mut b, sub, "ceph.dir.subvolume", "1");
    let file = b.ask(older, "f", Op::Mknod { mode: 0o644, rdev: 0 }).target.unwrap().inode.ino;
    put(&mut b, group, "ceph.quota.max_files", "100");
    put(&mut b, sub, "ceph.dir.pin", "2");
    assert_eq!(b.words, []);
    put(&mut b, group, "ceph.quota.max_files", "0");
    let again = |b: &mut Bench| {
        b.now += 1_000_000_000;
        b.event(Event::Wake);
        std::mem::take(&mut b.words)
    };
    let words = again(&mut b);
    let Some((Rank(2), Message::Give(parcel))) = words.last() else { panic!("{words:?}") };
    let (space, turn) = (file.space(), parcel.turn);
    assert_eq!((parcel.space, parcel.root.inode.ino, turn), (space, sub, 1));
    assert_eq!(parcel.way, ["volumes", "group", "sub"].map(Name::from));
    assert!(parcel.older.contains(&older) && parcel.root.inode.pinned() == 2);
    // Requests wait until the other owner has it, whatever a server before this one did.
    b.restart(Conf { moves: true, ..conf() });
    b.event(Event::Reconnected(mds::ClientId(1)));
    let tid = b.send(1, older, "f", (Ino(0), ""), Op::Lookup { mask: 0 });
    let words = again(&mut b);
    assert!(matches!(words.last(), Some((Rank(2), Message::Give(p))) if **p == **parcel));
    assert!(b.answer(tid).is_none());
    let forwards = |b: &Bench| {
        let to = |a: &mds::Action| match a {
            mds::Action::Forward(_, to, request) if request.tid == tid => Some(*to),
            _ => None,
        };
        b.told.iter().filter_map(|(_, _, action)| to(action)).collect::<Vec<_>>()
    };
    assert_eq!(forwards(&b), []);
    b.event(Event::Peer(Rank(2), Box::new(Message::Taken(LotId::Space(space), turn))));
    assert_eq!(forwards(&b), [Rank(2)]);
    // The pin above is of the same rank, then of none.
    let recalls = |words: &[(Rank, Message)]| {
        words.iter().any(|w| *w == (Rank(2), Message::Recall(LotId::Space(space), turn)))
    };
    let mut inode = parcel.root.inode.clone();
    inode.pin_to(-1);
    inode.version += 1;
    put(&mut b, group, "ceph.dir.pin", "2");
    b.event(Event::Peer(Rank(2), Box::new(Message::Report(Box::new(inode)))));
    assert!(!recalls(&again(&mut b)));
    put(&mut b, group, "ceph.dir.pin", "-1");
    assert!(recalls(&again(&mut b)));
}

#[test]
fn a_pin_moves_a_directory_with_all_below_it() {
    let conf = Conf { moves: true, trees: true, ..conf() };
    let mut b = Bench::new(conf.clone());
    let top = b.mkdir(Ino::ROOT, "top");
    let aside = b.mkdir(Ino::ROOT, "aside");
    let below = b.mkdir(top, "below");
    let make = |b: &mut Bench, dir: Ino, name: &str| {
        b.ask(dir, name, Op::Mknod { mode: 0o644, rdev: 0 }).target.unwrap().inode.ino
    };
    let (file, other) = (make(&mut b, below, "f"), make(&mut b, aside, "g"));
    let tid = b.send(1, aside, "linked", (file, ""), Op::Link);
    assert_eq!(b.answer(tid).map(|r| r.result), Some(0));
    put(&mut b, top, "ceph.dir.pin", "2");
    let again = |b: &mut Bench| {
        b.now += 1_000_000_000;
        b.event(Event::Wake);
        std::mem::take(&mut b.words)
    };
    let words = again(&mut b);
    let Some((Rank(2), Message::Give(parcel))) = words.last() else { panic!("{words:?}") };
    let has =
        |ino: Ino| parcel.runs.iter().any(|(first, n)| (first.0..first.0 + n).contains(&ino.0));
    assert_eq!((parcel.root.inode.ino, parcel.turn), (top, 1));
    assert!(
        [top, below, file].into_iter().all(has) && ![Ino::ROOT, aside, other].into_iter().any(has)
    );
    // Requests wait, also by the name that is elsewhere, whatever a server before this one did.
    b.restart(conf);
    b.event(Event::Reconnected(mds::ClientId(1)));
    let names = [(below, "f"), (Ino::ROOT, "top"), (aside, "linked")];
    let tids = names.map(|(dir, name)| b.send(1, dir, name, (Ino(0), ""), Op::Lookup { mask: 0 }));
    assert!(matches!(again(&mut b).last(), Some((Rank(2), Message::Give(p))) if **p == **parcel));
    b.event(Event::Peer(Rank(2), Box::new(Message::Taken(parcel.id(), 1))));
    let forwards = |b: &Bench, tid: u64| {
        b.told.iter().any(|(_, _, action)| {
            matches!(action, mds::Action::Forward(_, Rank(2), request) if request.tid == tid)
        })
    };
    for tid in tids {
        assert!(b.answer(tid).is_none() && forwards(&b, tid));
    }
    assert_eq!(b.ask(aside, "g", Op::Lookup { mask: 0 }).result, 0);
    // The other owner says that the pin has gone.
    let mut inode = parcel.root.inode.clone();
    inode.pin_to(-1);
    inode.version += 1;
    b.event(Event::Peer(Rank(2), Box::new(Message::Report(Box::new(inode.clone())))));
    assert!(again(&mut b).contains(&(Rank(2), Message::Recall(parcel.id(), 1))));
    let mut back = (**parcel).clone();
    (back.turn, back.root.inode) = (2, inode);
    b.event(Event::Peer(Rank(2), Box::new(Message::Give(Box::new(back)))));
    assert!(again(&mut b).contains(&(Rank(2), Message::Taken(parcel.id(), 2))));
    assert_eq!(b.ask(below, "f", Op::Lookup { mask: 0 }).target.unwrap().inode.ino, file);
}

#[test]
fn a_directory_with_a_part_of_another_owner_in_it_stays() {
    let mut b = Bench::new(Conf { moves: true, trees: true, ..conf() });
    let top = b.mkdir(Ino::ROOT, "top");
    put(&mut b, top, "ceph.dir.pin.distributed", "1");
    let found = (0..100).find_map(|i| made(&mut b, top, &format!("d{i}")));
    let (rank, prepare) = found.expect("one of a hundred goes elsewhere");
    let ino = mds::Ino((0x80 + u64::from(rank.0)) << 40);
    let d_type = 4;
    let found = vec![mds::peer::Found { ino, d_type }];
    b.event(Event::Peer(rank, Box::new(Message::Prepared(prepare.txn, found))));
    b.words.clear();
    put(&mut b, top, "ceph.dir.pin", "2");
    for _ in 0..3 {
        b.now += 1_000_000_000;
        b.event(Event::Wake);
    }
    assert!(!b.words.iter().any(|(_, word)| matches!(word, Message::Give(_))), "{:?}", b.words);
    // New directories go where the pin says.
    assert_eq!(hundred(&mut b, top), [(2, 100)].into());
}
