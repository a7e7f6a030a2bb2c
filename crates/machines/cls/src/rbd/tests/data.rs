//! Data objects.

use super::*;
use crate::rbd::types::AssertSnapcSeqState;
use std::collections::BTreeMap;

fn object(data: &[u8]) -> TestObject {
    let mut o = TestObject::new();
    o.stored.exists = true;
    o.stored.data = data.to_vec();
    o
}

#[test]
fn copyup_fills_only_what_is_not_there() {
    let mut o = TestObject::new();
    o.call("rbd", "copyup", "parent").unwrap();
    assert_eq!(o.stored.data, b"parent");
    o.call("rbd", "copyup", "other").unwrap();
    assert_eq!(o.stored.data, b"parent");
}

#[test]
fn sparse_copyup_writes_extents() {
    let extents = |e: &[(u64, u64)]| e.iter().copied().collect::<BTreeMap<u64, u64>>();
    let mut o = TestObject::new();
    run(&mut o, "sparse_copyup", (extents(&[]), "")).unwrap();
    assert!(o.stored.exists && o.stored.data.is_empty());

    let mut o = TestObject::new();
    assert_eq!(
        run(&mut o, "sparse_copyup", (extents(&[(0, 2), (4, 4)]), "abcd")),
        Err(Errno::EINVAL)
    );
    assert!(!o.stored.exists);
    run(&mut o, "sparse_copyup", (extents(&[(1, 2), (5, 2)]), "abcd")).unwrap();
    assert_eq!(o.stored.data, b"\0ab\0\0cd");
    run(&mut o, "sparse_copyup", (extents(&[(0, 1)]), "x")).unwrap();
    assert_eq!(o.stored.data, b"\0ab\0\0cd");
}

#[test]
fn a_snapshot_context_is_compared_with_the_object() {
    let check = |o: &mut TestObject, seq: u64, state| run(o, "assert_snapc_seq", (seq, state));
    use AssertSnapcSeqState as S;
    let mut o = TestObject::new();
    check(&mut o, 0, S::NEWER).unwrap();
    assert_eq!(check(&mut o, 0, S::NOT_NEWER), Err(Errno::ERANGE));
    let mut o = object(b"");
    o.origin.snap_seq = 5;
    assert_eq!(check(&mut o, 5, S::NEWER), Err(Errno::ERANGE));
    check(&mut o, 6, S::NEWER).unwrap();
    check(&mut o, 5, S::NOT_NEWER).unwrap();
    assert_eq!(check(&mut o, 6, S::NOT_NEWER), Err(Errno::ERANGE));
    assert_eq!(check(&mut o, 6, S(7)), Err(Errno::EOPNOTSUPP));
}

#[test]
fn zeros_are_given_back() {
    let sparsify = |o: &mut TestObject, size: u64, remove: bool| run(o, "sparsify", (size, remove));
    assert_eq!(sparsify(&mut TestObject::new(), 16, false), Err(Errno::ENOENT));

    let mut o = object(&[0; 100]);
    sparsify(&mut o, 16, false).unwrap();
    assert!(o.stored.exists && o.stored.data.is_empty());
    sparsify(&mut o, 16, true).unwrap();
    assert!(!o.stored.exists);

    // Zeros at the end go; those in between stay as a hole.
    let mut o = object(&[&[0u8; 16][..], &[1; 8], &[0; 40], &[2; 1], &[0; 35]].concat());
    let before = o.stored.data.clone();
    sparsify(&mut o, 16, true).unwrap();
    assert_eq!(o.stored.data, before[..80]);

    let mut o = object(&[1, 0, 1]);
    sparsify(&mut o, 16, true).unwrap();
    assert_eq!(o.stored.data, [1, 0, 1]);
    assert_eq!(sparsify(&mut o, 0, true), Err(Errno::EINVAL));
}
