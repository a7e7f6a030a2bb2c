//! Images of the first format.

use super::*;
use bytes::{BufMut, BytesMut};

/// Bytes of a header as clients make them.
fn header(seq: u64, snaps: &[(u64, u64, &str)]) -> Vec<u8> {
    let names: Vec<u8> =
        snaps.iter().flat_map(|(.., name)| [name.as_bytes(), b"\0"].concat()).collect();
    let mut out = BytesMut::new();
    out.put_slice(b"<<< Rados Block Device Image >>>\n");
    out.put_bytes(0, 7);
    out.put_slice(b"rb.0.1234.5678\0\0\0\0\0\0\0\0\0\0RBD\x00001.005\0");
    out.put_slice(&[22, 0, 0, 0]);
    out.put_u64_le(1 << 30);
    out.put_u64_le(seq);
    out.put_u32_le(snaps.len() as u32);
    out.put_u32_le(0);
    out.put_u64_le(names.len() as u64);
    assert_eq!(out.len(), 112);
    for (id, size, _) in snaps {
        out.put_u64_le(*id);
        out.put_u64_le(*size);
    }
    out.put_slice(&names);
    out.to_vec()
}

fn old_image(data: Vec<u8>) -> TestObject {
    let mut o = TestObject::new();
    o.stored.exists = true;
    o.stored.data = data;
    o
}

#[test]
fn snapshots_are_kept_newest_first() {
    let mut o = old_image(header(0, &[]));
    run(&mut o, "snap_add", ("one", SnapId(3))).unwrap();
    assert_eq!(run(&mut o, "snap_add", ("late", SnapId(2))), Err(Errno::ESTALE));
    assert_eq!(run(&mut o, "snap_add", ("one", SnapId(4))), Err(Errno::EEXIST));
    run(&mut o, "snap_add", ("second", SnapId(7))).unwrap();
    run(&mut o, "snap_add", ("third", SnapId(9))).unwrap();
    let size = 1 << 30;
    assert_eq!(
        o.stored.data,
        header(9, &[(9, size, "third"), (7, size, "second"), (3, size, "one")])
    );

    let listed = o.exec("rbd", "snap_list", &()).unwrap();
    let mut r = denc::Reader::new(listed);
    assert_eq!(r.get::<(u64, u32)>().unwrap(), (9, 3));
    assert_eq!(r.get::<(u64, u64, Bytes)>().unwrap(), (9, size, "third".into()));

    assert_eq!(run(&mut o, "snap_rename", (SnapId(7), "one")), Err(Errno::EEXIST));
    assert_eq!(run(&mut o, "snap_rename", (SnapId(8), "new")), Err(Errno::ENOENT));
    run(&mut o, "snap_rename", (SnapId(7), "2")).unwrap();
    assert_eq!(o.stored.data, header(9, &[(9, size, "third"), (7, size, "2"), (3, size, "one")]));

    assert_eq!(run(&mut o, "snap_remove", "none"), Err(Errno::ENOENT));
    run(&mut o, "snap_remove", "2").unwrap();
    run(&mut o, "snap_remove", "third").unwrap();
    run(&mut o, "snap_remove", "one").unwrap();
    assert_eq!(o.stored.data, header(9, &[]));
}

#[test]
fn the_limit_holds_here_too() {
    let mut o = old_image(header(1, &[(1, 5, "one")]));
    assert_eq!(run(&mut o, "snapshot_set_limit", 0u64), Err(Errno::ERANGE));
    run(&mut o, "snapshot_set_limit", 1u64).unwrap();
    assert_eq!(run(&mut o, "snap_add", ("two", SnapId(2))), Err(Errno::EDQUOT));
}

#[test]
fn headers_that_lie_are_errors() {
    assert_eq!(run(&mut old_image(vec![0; 50]), "snap_list", ()), Err(Errno::EINVAL));
    let whole = header(1, &[(1, 5, "one"), (2, 6, "two")]);
    let mut cut = old_image(whole[..whole.len() - 1].to_vec());
    assert_eq!(run(&mut cut, "snap_list", ()), Err(Errno::EIO));
    let mut many = old_image(whole.clone());
    many.stored.data[96..100].fill(0xff);
    assert_eq!(run(&mut many, "snap_list", ()), Err(Errno::EIO));
    let mut long = old_image(whole);
    long.stored.data[104..112].fill(0xff);
    assert_eq!(run(&mut long, "snap_list", ()), Err(Errno::EIO));
}
