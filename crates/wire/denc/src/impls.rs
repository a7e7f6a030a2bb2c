//! The encodings of primitive and container types.

use crate::{Decode, DecodeError, Encode, Features, Reader, Result};
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hash};

macro_rules! int {
    ($($t:ty),*) => {$(
        impl Encode for $t {
            fn encode(&self, out: &mut BytesMut, _: Features) {
                out.put_slice(&self.to_le_bytes());
            }
        }
        impl Decode for $t {
            fn decode(r: &mut Reader) -> Result<Self> {
                Ok(<$t>::from_le_bytes(r.array(stringify!($t))?))
            }
        }
    )*};
}
int!(u8, i8, u16, i16, u32, i32, u64, i64, u128, f32, f64);

impl Encode for bool {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        out.put_u8(*self as u8);
    }
}
impl Decode for bool {
    /// Any non-zero byte is true, as in Ceph.
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(r.array::<1>("bool")?[0] != 0)
    }
}

impl Encode for () {
    fn encode(&self, _: &mut BytesMut, _: Features) {}
}
impl Decode for () {
    fn decode(_: &mut Reader) -> Result<Self> {
        Ok(())
    }
}

fn put_len(out: &mut BytesMut, len: usize) {
    out.put_u32_le(u32::try_from(len).expect("a container has under 2^32 elements"));
}

/// A byte string of the given length: `u32` length, then the bytes (Ceph: `bufferlist`,
/// `std::string`).
impl Encode for Bytes {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        put_len(out, self.len());
        out.put_slice(self);
    }
}
impl Decode for Bytes {
    fn decode(r: &mut Reader) -> Result<Self> {
        let n = r.count("bytes", 1)?;
        r.bytes("bytes", n)
    }
}
impl Encode for str {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        put_len(out, self.len());
        out.put_slice(self.as_bytes());
    }
}
impl Encode for String {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.as_str().encode(out, f);
    }
}
impl Decode for String {
    /// Strings on the wire are bytes; names must be UTF-8 here. Fields that may hold anything
    /// (object names, omap keys) are declared as [`Bytes`] or a type of their own.
    fn decode(r: &mut Reader) -> Result<Self> {
        let b = Bytes::decode(r)?;
        String::from_utf8(b.into()).map_err(|e| DecodeError::Invalid {
            what: "UTF-8 string",
            found: e.utf8_error().valid_up_to() as u64,
        })
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        out.put_slice(self);
    }
}
impl<const N: usize> Decode for [u8; N] {
    fn decode(r: &mut Reader) -> Result<Self> {
        r.array("byte array")
    }
}

/// Present or not: one byte, then the value (Ceph: `std::optional`).
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        match self {
            None => out.put_u8(0),
            Some(v) => {
                out.put_u8(1);
                v.encode(out, f);
            }
        }
    }
}
impl<T: Decode> Decode for Option<T> {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(if bool::decode(r)? { Some(T::decode(r)?) } else { None })
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        (**self).encode(out, f);
    }
}
impl<T: Encode + ?Sized> Encode for Box<T> {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        (**self).encode(out, f);
    }
}
impl<T: Decode> Decode for Box<T> {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(Box::new(T::decode(r)?))
    }
}
impl<T: Encode + ?Sized> Encode for std::sync::Arc<T> {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        (**self).encode(out, f);
    }
}
impl<T: Decode> Decode for std::sync::Arc<T> {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(std::sync::Arc::new(T::decode(r)?))
    }
}

macro_rules! tuple {
    ($($n:ident $i:tt),*) => {
        impl<$($n: Encode),*> Encode for ($($n,)*) {
            fn encode(&self, out: &mut BytesMut, f: Features) {
                $(self.$i.encode(out, f);)*
            }
        }
        impl<$($n: Decode),*> Decode for ($($n,)*) {
            fn decode(r: &mut Reader) -> Result<Self> {
                Ok(($($n::decode(r)?,)*))
            }
        }
    };
}
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);

macro_rules! sequence {
    ($t:ident, $push:ident $(, $bound:ident)?) => {
        impl<T: Encode> Encode for $t<T> {
            fn encode(&self, out: &mut BytesMut, f: Features) {
                put_len(out, self.len());
                for v in self {
                    v.encode(out, f);
                }
            }
        }
        impl<T: Decode $(+ $bound)?> Decode for $t<T> {
            fn decode(r: &mut Reader) -> Result<Self> {
                let n = r.count(stringify!($t), 1)?;
                let mut v = $t::new();
                for _ in 0..n {
                    v.$push(T::decode(r)?);
                }
                Ok(v)
            }
        }
    };
}
sequence!(Vec, push);
sequence!(VecDeque, push_back);
sequence!(BTreeSet, insert, Ord);

impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        put_len(out, self.len());
        for v in self {
            v.encode(out, f);
        }
    }
}

impl<K: Encode, V: Encode> Encode for BTreeMap<K, V> {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        put_len(out, self.len());
        for (k, v) in self {
            k.encode(out, f);
            v.encode(out, f);
        }
    }
}
impl<K: Decode + Ord, V: Decode> Decode for BTreeMap<K, V> {
    fn decode(r: &mut Reader) -> Result<Self> {
        let n = r.count("map", 1)?;
        let mut m = BTreeMap::new();
        for _ in 0..n {
            let k = K::decode(r)?;
            m.insert(k, V::decode(r)?);
        }
        Ok(m)
    }
}

/// In key order is not promised: use [`BTreeMap`] where the bytes must be reproducible.
impl<K: Encode, V: Encode, S> Encode for std::collections::HashMap<K, V, S> {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        put_len(out, self.len());
        for (k, v) in self {
            k.encode(out, f);
            v.encode(out, f);
        }
    }
}
impl<K: Decode + Hash + Eq, V: Decode, S: BuildHasher + Default> Decode
    for std::collections::HashMap<K, V, S>
{
    fn decode(r: &mut Reader) -> Result<Self> {
        let n = r.count("map", 1)?;
        let mut m = Self::default();
        for _ in 0..n {
            let k = K::decode(r)?;
            m.insert(k, V::decode(r)?);
        }
        Ok(m)
    }
}
