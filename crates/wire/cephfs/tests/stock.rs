//! What a stock `ceph-mds` of 16.2.15 left in its metadata pool after `flush journal`: each
//! object's data, omap and attributes are read, and written back byte for byte. Damaged ones are an
//! error or another value, never a panic.

use bytes::Bytes;
use cephfs::inode::BaseInode;
use cephfs::journal::{self, JournalHeader, JournalPointer, SubtreeMap};
use cephfs::*;
use denc::{Decode, Encode, Features, Reader, Result};
use proptest::prelude::*;
use std::collections::BTreeMap;
use types::SnapId;

/// One thing of an object: its place (`data`, `header`, `omap KEY` or `xattr NAME`), and its bytes.
struct Part {
    object: String,
    place: String,
    key: Vec<u8>,
    bytes: Bytes,
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn parts() -> Vec<Part> {
    let mut object = String::new();
    let mut parts = Vec::new();
    for line in include_str!("samples/pacific.txt").lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let (place, key, hex) = match words[..] {
            ["object", name] => {
                object = name.to_owned();
                continue;
            }
            ["omap", key, hex] => ("omap".to_owned(), unhex(key), hex),
            ["xattr", name, hex] => (format!("xattr {name}"), vec![], hex),
            [place, hex] => (place.to_owned(), vec![], hex),
            _ => panic!("a line of samples: {line}"),
        };
        parts.push(Part { object: object.clone(), place, key, bytes: unhex(hex).into() });
    }
    parts
}

fn again<T: Encode + Decode>(bytes: &Bytes) -> Result<Bytes> {
    Ok(T::from_bytes(bytes)?.to_bytes(Features::ALL))
}

/// Entries of a journal, each a map of subtrees.
fn journal_again(bytes: &Bytes) -> Result<Bytes> {
    let mut r = Reader::new(bytes.clone());
    let mut out = Vec::new();
    while r.left() > 0 {
        let (at, content) = journal::decode_entry(&mut r)?;
        let content = SubtreeMap::from_event(&content)?.map_or(content, |m| m.to_event());
        out.extend_from_slice(&journal::encode_entry(at, &content));
    }
    Ok(out.into())
}

/// Which record a part is, and its bytes after a way through our types.
fn recode(part: &Part) -> (&'static str, Result<Bytes>) {
    let b = &part.bytes;
    let object = names::parse_data(part.object.as_bytes());
    match (part.place.as_str(), part.object.as_str()) {
        ("xattr parent", _) => ("backtrace", again::<Backtrace>(b)),
        ("xattr layout", _) => ("layout", again::<FileLayout>(b)),
        ("data", name) if name.ends_with(".inode") => ("base inode", again::<BaseInode>(b)),
        ("data", "mds0_inotable") => ("inode numbers", again::<InoTable>(b)),
        ("data", "mds_snaptable") => ("snapshots", again::<SnapTable>(b)),
        ("header", "mds0_sessionmap") => ("session header", again::<SessionMapHeader>(b)),
        ("omap", "mds0_sessionmap") => ("session", again::<SessionInfo>(b)),
        ("data", _) if object == Some((Ino::log_pointer(0), 0)) => {
            ("journal pointer", again::<JournalPointer>(b))
        }
        ("data", _) if object.is_some_and(|(ino, n)| n == 0 && ino != Ino::ROOT) => {
            ("journal header", again::<JournalHeader>(b))
        }
        ("data", _) if object.is_some_and(|(ino, _)| ino == Ino::log(0)) => {
            ("journal", journal_again(b))
        }
        ("header", _) if object.is_some() => ("directory", again::<Fnode>(b)),
        ("omap", _) if object.is_some() => ("dentry", again::<Dentry>(b)),
        (place, object) => panic!("{place} of {object}"),
    }
}

#[test]
fn what_a_stock_server_left_is_written_back() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for part in &parts() {
        let (kind, ours) = recode(part);
        let what = format!("{kind}: {} of {}", part.place, part.object);
        assert_eq!(ours.as_ref(), Ok(&part.bytes), "{what}");
        *seen.entry(kind).or_default() += 1;
    }
    assert_eq!(seen.len(), 11, "{seen:?}");
    assert!(seen["dentry"] > 12, "{seen:?}");
}

#[test]
fn what_is_in_it() {
    let parts = parts();
    let mut names_seen = Vec::new();
    for part in parts.iter().filter(|p| p.place == "omap" && p.object != "mds0_sessionmap") {
        let (name, last) = parse_dentry_key(&part.key).expect("a row is an entry");
        assert_eq!(dentry_key(&name, last), part.key);
        let dentry = Dentry::from_bytes(&part.bytes).unwrap();
        assert!(dentry.first <= last);
        names_seen.push(String::from_utf8(name.to_vec()).unwrap());
        let Link::Primary { store, .. } = dentry.link else {
            assert_eq!(&name[..], b"hard");
            continue;
        };
        let inode = &store.inode;
        match &name[..] {
            b"d" => {
                assert!(inode.is_dir());
                assert_eq!(inode.quota, Quota { max_bytes: 100_000_000, max_files: 1000 });
                assert_eq!(inode.layout.stripe_count, 2);
                assert_eq!(store.snap.as_ref().unwrap().snaps.len(), 1);
            }
            b"g" if last == SnapId::NOSNAP => {
                assert_eq!(inode.mode, 0o100_600);
                assert_eq!(store.xattrs[&b"user.k"[..]], "value");
            }
            b"sym" => assert_eq!(store.symlink, "f"),
            _ => {}
        }
    }
    for name in ["stray0", "d", "g", "fifo", "e2", "file.29"] {
        assert!(names_seen.iter().any(|n| n == name), "{name}: {names_seen:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damage_never_panics(
        which: usize,
        edits in prop::collection::vec((any::<usize>(), prop::sample::select(vec![0u8, 1, 2, 0x7f, 0x80, 0xff])), 1..6),
        cut in prop_oneof![9 => Just(0usize), 1 => any::<usize>()],
    ) {
        let mut parts = parts();
        let which = which % parts.len();
        let part = &mut parts[which];
        let mut bytes = part.bytes.to_vec();
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - cut % bytes.len());
        part.bytes = bytes.into();
        if let (_, Ok(ours)) = recode(part) {
            // What was once read has a stable form.
            part.bytes = ours.clone();
            assert_eq!(recode(part).1, Ok(ours));
        }
    }
}
