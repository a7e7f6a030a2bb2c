//! What `#[derive(Denc)]` writes and reads.

use denc::{Bytes, Decode, DecodeError, Encode, Features};
use denc_derive::Denc;

#[derive(Debug, PartialEq, Denc)]
struct Id(u32);

#[derive(Debug, PartialEq, Denc)]
struct Plain {
    id: Id,
    name: String,
}

#[derive(Debug, PartialEq, Denc)]
#[denc(version = 3, compat = 2, oldest = 2)]
struct Versioned {
    a: u8,
    #[denc(skip)]
    cache: Option<u64>,
    #[denc(since = 3)]
    b: u16,
}

#[derive(Debug, PartialEq, Denc)]
#[denc(version = 4, compat = 2)]
struct VersionedLater {
    a: u8,
    #[denc(since = 3)]
    b: u16,
    #[denc(since = 4)]
    c: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Denc)]
#[denc(repr = "u16")]
enum Kind {
    First = 1,
    Third = 0x103,
}

mod big_endian {
    use denc::{BufMut, BytesMut, Features, Reader, Result};

    pub fn encode(v: &u32, out: &mut BytesMut, _: Features) {
        out.put_u32(*v);
    }

    pub fn decode(r: &mut Reader) -> Result<u32> {
        Ok(u32::from_be_bytes(r.array("big endian")?))
    }
}

#[derive(Debug, PartialEq, Denc)]
struct With {
    #[denc(with = "big_endian")]
    n: u32,
}

#[derive(Debug, PartialEq, Denc)]
#[denc(version = 1)]
struct Generic<T> {
    items: Vec<T>,
}

fn bytes<T: Encode>(v: &T) -> Vec<u8> {
    v.to_bytes(Features::ALL).to_vec()
}

fn read<T: Decode>(b: &[u8]) -> denc::Result<T> {
    T::from_bytes(&Bytes::copy_from_slice(b))
}

#[test]
fn plain_structs_are_their_fields() {
    let v = Plain { id: Id(7), name: "ab".into() };
    let b = bytes(&v);
    assert_eq!(b, [7, 0, 0, 0, 2, 0, 0, 0, b'a', b'b']);
    assert_eq!(read::<Plain>(&b).unwrap(), v);
}

#[test]
fn versioned_structs_have_an_envelope() {
    let b = bytes(&Versioned { a: 1, cache: Some(9), b: 0x0302 });
    assert_eq!(b, [3, 2, 3, 0, 0, 0, 1, 2, 3]);
    assert_eq!(read::<Versioned>(&b).unwrap(), Versioned { a: 1, cache: None, b: 0x0302 });
}

#[test]
fn older_writers_leave_defaults_and_newer_ones_are_skipped() {
    assert_eq!(
        read::<Versioned>(&[2, 2, 1, 0, 0, 0, 5]).unwrap(),
        Versioned { a: 5, cache: None, b: 0 }
    );
    let later = bytes(&VersionedLater { a: 1, b: 2, c: vec![3, 4] });
    assert_eq!(read::<Versioned>(&later).unwrap(), Versioned { a: 1, cache: None, b: 2 });
}

#[test]
fn versions_out_of_range_are_refused() {
    assert_eq!(
        read::<Versioned>(&[1, 1, 1, 0, 0, 0, 5]),
        Err(DecodeError::TooOld { what: "Versioned", struct_v: 1, oldest: 2 })
    );
    assert_eq!(
        read::<Versioned>(&[9, 4, 1, 0, 0, 0, 5]),
        Err(DecodeError::Incompatible { what: "Versioned", compat: 4, supported: 3 })
    );
}

#[test]
fn a_field_cannot_leave_its_envelope() {
    assert!(matches!(
        read::<Versioned>(&[3, 2, 2, 0, 0, 0, 1, 2, 3]),
        Err(DecodeError::Short { .. })
    ));
}

#[test]
fn enums_are_their_number_and_strange_numbers_are_refused() {
    assert_eq!(bytes(&Kind::Third), [3, 1]);
    assert_eq!(read::<Kind>(&[1, 0]).unwrap(), Kind::First);
    assert_eq!(read::<Kind>(&[2, 0]), Err(DecodeError::Invalid { what: "Kind", found: 2 }));
}

#[test]
fn a_field_may_bring_its_own_form() {
    assert_eq!(bytes(&With { n: 1 }), [0, 0, 0, 1]);
    assert_eq!(read::<With>(&[0, 0, 1, 0]).unwrap(), With { n: 256 });
}

#[test]
fn generic_structs_carry_their_bounds() {
    let v = Generic { items: vec![Id(1), Id(2)] };
    let b = bytes(&v);
    assert_eq!(b[..6], [1, 1, 12, 0, 0, 0]);
    assert_eq!(read::<Generic<Id>>(&b).unwrap(), v);
}
