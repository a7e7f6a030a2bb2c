//! Names of objects.

use crate::dump::{Dump, text};
use crate::hash::rjenkins;
use crate::{PoolId, SnapId};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// An object's full name (Ceph: `hobject_t`, `common/hobject.h`, version 4).
///
/// The order is the order in which placement groups list, scan and backfill: pool, bit-reversed
/// hash, namespace, locator key (the name if there is none), name, snapshot. Because the hash is
/// compared with its bits reversed, the objects of a group are one range, before and after a split.
///
/// Decoded byte strings share the message's buffer; what lives longer than the message should be
/// [detached](ObjectId::detached).
#[derive(Clone, Debug)]
pub struct ObjectId {
    /// The pool. [`ObjectId::MIN`] has `i64::MIN`.
    pub pool: PoolId,
    /// Hash of the locator key or name; its low bits choose the group.
    pub hash: u32,
    /// Namespace, empty by default.
    pub namespace: Bytes,
    /// Locator key; empty if it is the name itself. Invariant: never equal to `name`.
    pub key: Bytes,
    /// The name.
    pub name: Bytes,
    /// Which version: a clone's snapshot, or [`SnapId::NOSNAP`] for the head.
    pub snap: SnapId,
    /// After all objects. Invariant: then everything else is as in [`ObjectId::MIN`].
    pub max: bool,
}

const EMPTY: Bytes = Bytes::new();

/// The text or key does not name an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObjectIdError {
    /// Not a key that [`ObjectId::to_key`] makes.
    #[error("not an object key")]
    Key,
    /// Not what `Display` shows.
    #[error("not an object name of the form pool:hash:namespace:key:name:snap")]
    Text,
}

impl ObjectId {
    /// Before all objects.
    pub const MIN: ObjectId = ObjectId {
        pool: PoolId(i64::MIN),
        hash: 0,
        namespace: EMPTY,
        key: EMPTY,
        name: EMPTY,
        snap: SnapId(0),
        max: false,
    };
    /// After all objects.
    pub const MAX: ObjectId = ObjectId {
        pool: PoolId(i64::MIN),
        hash: 0,
        namespace: EMPTY,
        key: EMPTY,
        name: EMPTY,
        snap: SnapId(0),
        max: true,
    };

    /// An object of a pool that hashes with rjenkins, as all do. For any pool use
    /// `PgPool::object_id`.
    pub fn new(
        pool: PoolId,
        namespace: impl Into<Bytes>,
        name: impl Into<Bytes>,
        key: impl Into<Bytes>,
        snap: SnapId,
    ) -> Self {
        let (namespace, name, key) = (namespace.into(), name.into(), key.into());
        let hash = hash_key(rjenkins, &namespace, if key.is_empty() { &name } else { &key });
        Self::with_hash(pool, namespace, name, key, snap, hash)
    }

    /// An object with a known hash.
    pub fn with_hash(
        pool: PoolId,
        namespace: Bytes,
        name: Bytes,
        key: Bytes,
        snap: SnapId,
        hash: u32,
    ) -> Self {
        let key = if key == name { EMPTY } else { key };
        ObjectId { pool, hash, namespace, key, name, snap, max: false }
    }

    /// What decides the placement: the locator key, or the name without one.
    pub fn effective_key(&self) -> &Bytes {
        if self.key.is_empty() { &self.name } else { &self.key }
    }

    /// Whether this is after all objects.
    pub fn is_max(&self) -> bool {
        self.max
    }

    /// Whether this is before all objects.
    pub fn is_min(&self) -> bool {
        *self == Self::MIN
    }

    /// Whether this is the live object.
    pub fn is_head(&self) -> bool {
        self.snap == SnapId::NOSNAP
    }

    /// Whether this is a clone.
    pub fn is_snap(&self) -> bool {
        !self.max && self.snap != SnapId::NOSNAP && self.snap != SnapId::SNAPDIR
    }

    /// The same object at another snapshot.
    pub fn at(&self, snap: SnapId) -> Self {
        ObjectId { snap, ..self.clone() }
    }

    /// The live version of this object.
    pub fn head(&self) -> Self {
        self.at(SnapId::NOSNAP)
    }

    /// The hash in the order of listing.
    pub fn bitwise_hash(&self) -> u32 {
        self.hash.reverse_bits()
    }

    /// The first place in the order with this hash and pool (Ceph: `get_boundary`).
    pub fn boundary(&self) -> Self {
        match self.max {
            true => Self::MAX,
            false => ObjectId { pool: self.pool, hash: self.hash, ..Self::MIN },
        }
    }

    /// A copy that does not hold the buffer it was decoded from.
    pub fn detached(&self) -> Self {
        ObjectId {
            namespace: Bytes::copy_from_slice(&self.namespace),
            key: Bytes::copy_from_slice(&self.key),
            name: Bytes::copy_from_slice(&self.name),
            ..*self
        }
    }

    fn order(&self) -> (bool, PoolId, u32, &[u8], &[u8], &[u8], SnapId) {
        (
            self.max,
            self.pool,
            self.bitwise_hash(),
            &self.namespace,
            self.effective_key(),
            &self.name,
            self.snap,
        )
    }

    /// A key; its byte order is the order of objects.
    ///
    /// One byte (1 for the maximum, which is all of its key), pool with its sign bit flipped,
    /// reversed hash, namespace, locator key, how the name compares to the locator key (and the
    /// name itself unless they are equal), snapshot. Numbers are big-endian; strings end in `00 00`
    /// and have `00` written as `00 ff`.
    pub fn to_key(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.key_len_hint());
        self.put_key(&mut out);
        out.freeze()
    }

    fn key_len_hint(&self) -> usize {
        32 + self.namespace.len() + self.key.len() + self.name.len()
    }

    /// Appends what [`ObjectId::to_key`] returns.
    pub fn put_key(&self, out: &mut BytesMut) {
        if self.max {
            out.put_u8(1);
            return;
        }
        out.put_u8(0);
        out.put_u64(self.pool.0 as u64 ^ 1 << 63);
        out.put_u32(self.bitwise_hash());
        put_escaped(out, &self.namespace);
        put_escaped(out, self.effective_key());
        // With equal locator keys, names below the key come first, then the key itself, then the
        // rest.
        match self.name.cmp(self.effective_key()) {
            Ordering::Less => {
                out.put_u8(0);
                put_escaped(out, &self.name);
            }
            Ordering::Equal => out.put_u8(1),
            Ordering::Greater => {
                out.put_u8(2);
                put_escaped(out, &self.name);
            }
        }
        out.put_u64(self.snap.0);
    }

    /// The object of a key ([`ObjectId::to_key`]).
    pub fn from_key(key: &[u8]) -> std::result::Result<Self, ObjectIdError> {
        let (object, rest) = Self::split_key(key)?;
        if rest.is_empty() { Ok(object) } else { Err(ObjectIdError::Key) }
    }

    /// The object of the key at the beginning, and what follows it.
    pub fn split_key(key: &[u8]) -> std::result::Result<(Self, &[u8]), ObjectIdError> {
        let (tag, rest) = split::<1>(key)?;
        match tag {
            [0] => {}
            [1] => return Ok((Self::MAX, rest)),
            _ => return Err(ObjectIdError::Key),
        }
        let (pool, rest) = split::<8>(rest)?;
        let (hash, rest) = split::<4>(rest)?;
        let (namespace, rest) = split_escaped(rest)?;
        let (effective, rest) = split_escaped(rest)?;
        let (tag, rest) = split::<1>(rest)?;
        let (name, rest) = match tag {
            [1] => (effective.clone(), rest),
            [side] => {
                let (name, rest) = split_escaped(rest)?;
                let expected = match side {
                    0 => Ordering::Less,
                    2 => Ordering::Greater,
                    _ => return Err(ObjectIdError::Key),
                };
                // An empty locator key means the name itself, so it cannot be written out.
                if name.cmp(&effective) != expected || effective.is_empty() {
                    return Err(ObjectIdError::Key);
                }
                (name, rest)
            }
        };
        let (snap, rest) = split::<8>(rest)?;
        let object = ObjectId::with_hash(
            PoolId((u64::from_be_bytes(pool) ^ 1 << 63) as i64),
            namespace,
            name,
            effective,
            SnapId(u64::from_be_bytes(snap)),
            u32::from_be_bytes(hash).reverse_bits(),
        );
        Ok((object, rest))
    }
}

/// Hash of an effective key in a namespace (Ceph: `pg_pool_t::hash_key`).
pub fn hash_key(function: impl Fn(&[u8]) -> u32, namespace: &[u8], key: &[u8]) -> u32 {
    if namespace.is_empty() {
        return function(key);
    }
    let mut both = Vec::with_capacity(namespace.len() + 1 + key.len());
    both.extend_from_slice(namespace);
    both.push(0o37);
    both.extend_from_slice(key);
    function(&both)
}

fn put_escaped(out: &mut BytesMut, bytes: &[u8]) {
    let mut parts = bytes.split(|&b| b == 0);
    if let Some(first) = parts.next() {
        out.put_slice(first);
    }
    for part in parts {
        out.put_slice(&[0, 0xff]);
        out.put_slice(part);
    }
    out.put_slice(&[0, 0]);
}

fn split<const N: usize>(bytes: &[u8]) -> std::result::Result<([u8; N], &[u8]), ObjectIdError> {
    bytes.split_first_chunk().map(|(head, rest)| (*head, rest)).ok_or(ObjectIdError::Key)
}

fn split_escaped(bytes: &[u8]) -> std::result::Result<(Bytes, &[u8]), ObjectIdError> {
    let mut found = Vec::new();
    let mut rest = bytes;
    loop {
        let zero = rest.iter().position(|&b| b == 0).ok_or(ObjectIdError::Key)?;
        let (part, tail) = rest.split_at(zero);
        found.extend_from_slice(part);
        let ([_, mark], tail) = split::<2>(tail)?;
        rest = tail;
        match mark {
            0 => return Ok((found.into(), rest)),
            0xff => found.push(0),
            _ => return Err(ObjectIdError::Key),
        }
    }
}

impl Default for ObjectId {
    /// [`ObjectId::MIN`], as in Ceph.
    fn default() -> Self {
        Self::MIN
    }
}
impl PartialEq for ObjectId {
    fn eq(&self, other: &Self) -> bool {
        // Most differ in the hash: compare that first.
        self.hash == other.hash && self.order() == other.order()
    }
}
impl Eq for ObjectId {}
impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}
impl Hash for ObjectId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The name's hash, the name's length and the snapshot tell nearly all objects apart.
        self.hash.hash(state);
        self.snap.hash(state);
        self.name.len().hash(state);
    }
}

impl Encode for ObjectId {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 4, 3, |out| {
            self.key.encode(out, f);
            self.name.encode(out, f);
            self.snap.encode(out, f);
            self.hash.encode(out, f);
            self.max.encode(out, f);
            self.namespace.encode(out, f);
            self.pool.encode(out, f);
        });
    }
}
impl Decode for ObjectId {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("hobject_t", 4)?;
        if struct_v < 4 {
            return Err(DecodeError::TooOld { what: "hobject_t", struct_v, oldest: 4 });
        }
        let key: Bytes = r.get()?;
        let name: Bytes = r.get()?;
        let snap: SnapId = r.get()?;
        let hash: u32 = r.get()?;
        if r.get()? {
            return Ok(Self::MAX);
        }
        let namespace: Bytes = r.get()?;
        let pool = r.get()?;
        // Very old writers put the minimum into pool -1.
        if pool == PoolId::META && snap == SnapId(0) && hash == 0 && name.is_empty() {
            return Ok(Self::MIN);
        }
        Ok(Self::with_hash(pool, namespace, name, key, snap, hash))
    }
}

/// Bytes that would be ambiguous in `pool:hash:namespace:key:name:snap` as `%xx`.
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &b in self.0 {
            match b {
                b'%' | b':' | b'/' | 0..32 | 127.. => write!(f, "%{b:02x}")?,
                _ => write!(f, "{}", b as char)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.max {
            return f.write_str("MAX");
        }
        if self.is_min() {
            return f.write_str("MIN");
        }
        write!(
            f,
            "{}:{:08x}:{}:{}:{}:{}",
            self.pool,
            self.bitwise_hash(),
            Escaped(&self.namespace),
            Escaped(&self.key),
            Escaped(&self.name),
            self.snap
        )
    }
}

fn unescape(text: &str) -> std::result::Result<Bytes, ObjectIdError> {
    let mut bytes = text.bytes();
    let mut found = Vec::new();
    let digit = |bytes: &mut std::str::Bytes<'_>| {
        bytes.next().and_then(|b| (b as char).to_digit(16)).ok_or(ObjectIdError::Text)
    };
    while let Some(b) = bytes.next() {
        found.push(match b {
            b'%' => (digit(&mut bytes)? << 4 | digit(&mut bytes)?) as u8,
            b => b,
        });
    }
    Ok(found.into())
}

impl FromStr for ObjectId {
    type Err = ObjectIdError;

    fn from_str(s: &str) -> std::result::Result<Self, ObjectIdError> {
        let bad = ObjectIdError::Text;
        match s {
            "MIN" => return Ok(Self::MIN),
            "MAX" => return Ok(Self::MAX),
            _ => {}
        }
        let parts: Vec<&str> = s.split(':').collect();
        let [pool, hash, namespace, key, name, snap] = parts[..] else { return Err(bad) };
        let snap = match snap {
            "head" => SnapId::NOSNAP,
            "snapdir" => SnapId::SNAPDIR,
            hex => SnapId(u64::from_str_radix(hex, 16).map_err(|_| bad)?),
        };
        Ok(Self::with_hash(
            PoolId(pool.parse().map_err(|_| bad)?),
            unescape(namespace)?,
            unescape(name)?,
            unescape(key)?,
            snap,
            u32::from_str_radix(hash, 16).map_err(|_| bad)?.reverse_bits(),
        ))
    }
}

impl Dump for ObjectId {
    fn dump(&self) -> Value {
        json!({
            "oid": text(&self.name),
            "key": text(&self.key),
            "snapid": self.snap.0 as i64,
            "hash": self.hash,
            "max": self.max as u8,
            "pool": self.pool.0,
            "namespace": text(&self.namespace),
        })
    }
}

/// Where an object goes (Ceph: `object_locator_t`, `osd/osd_types.h`, version 6). Either a key or a
/// hash replaces the name in the choice of the group, never both.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectLocator {
    /// The pool; -1 if unset.
    pub pool: PoolId,
    /// Locator key, or empty.
    pub key: Bytes,
    /// Namespace.
    pub namespace: Bytes,
    /// The hash itself, or -1.
    pub hash: i64,
}

impl Default for ObjectLocator {
    fn default() -> Self {
        ObjectLocator { pool: PoolId(-1), key: EMPTY, namespace: EMPTY, hash: -1 }
    }
}

impl From<&ObjectId> for ObjectLocator {
    fn from(o: &ObjectId) -> Self {
        ObjectLocator { pool: o.pool, key: o.key.clone(), namespace: o.namespace.clone(), hash: -1 }
    }
}

impl Encode for ObjectLocator {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        // Without the hash the object must not be placed by its name.
        let compat = if self.hash == -1 { 3 } else { 6 };
        envelope(out, 6, compat, |out| {
            self.pool.encode(out, f);
            (-1i32).encode(out, f);
            self.key.encode(out, f);
            self.namespace.encode(out, f);
            self.hash.encode(out, f);
        });
    }
}
impl Decode for ObjectLocator {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("object_locator_t", 6)?;
        if struct_v < 3 {
            return Err(DecodeError::TooOld { what: "object_locator_t", struct_v, oldest: 3 });
        }
        let pool = r.get()?;
        r.skip("object_locator_t preferred", 4)?;
        let key: Bytes = r.get()?;
        let namespace = if struct_v >= 5 { r.get()? } else { EMPTY };
        let hash = if struct_v >= 6 { r.get()? } else { -1 };
        if hash != -1 && !key.is_empty() {
            return Err(DecodeError::Invalid {
                what: "object_locator_t with key and hash",
                found: hash as u64,
            });
        }
        Ok(ObjectLocator { pool, key, namespace, hash })
    }
}
impl Dump for ObjectLocator {
    fn dump(&self) -> Value {
        json!({
            "pool": self.pool.0,
            "key": text(&self.key),
            "namespace": text(&self.namespace),
            "hash": self.hash,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(
            prop::sample::select(vec![0u8, 1, b'a', b'b', b':', b'%', 0xff]),
            0..4,
        )
        .prop_map(Bytes::from)
    }

    fn object() -> impl Strategy<Value = ObjectId> {
        let hash = prop::sample::select(vec![0u32, 1, 0x8000_0000, 0x1234_5678]);
        let snap =
            prop::sample::select(vec![SnapId(1), SnapId(0x100), SnapId::NOSNAP, SnapId::SNAPDIR]);
        let some = (-2i64..3, string(), string(), string(), snap, hash).prop_map(
            |(p, ns, name, key, s, h)| ObjectId::with_hash(PoolId(p), ns, name, key, s, h),
        );
        prop_oneof![20 => some, 1 => Just(ObjectId::MIN), 1 => Just(ObjectId::MAX)]
    }

    proptest! {
        #[test]
        fn keys_order_like_objects(a in object(), b in object()) {
            prop_assert_eq!(a.cmp(&b), a.to_key().cmp(&b.to_key()));
            prop_assert_eq!(ObjectId::from_key(&a.to_key()).unwrap(), a.clone());
            prop_assert_eq!(a == b, a.cmp(&b).is_eq());
        }

        #[test]
        fn text_and_bytes_come_back(a in object()) {
            prop_assert_eq!(a.to_string().parse::<ObjectId>().unwrap(), a.clone());
            prop_assert_eq!(ObjectId::from_bytes(&a.to_bytes(Features::ALL)).unwrap(), a);
        }

        #[test]
        fn arbitrary_keys_do_not_panic_and_are_canonical(key in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(object) = ObjectId::from_key(&key) {
                prop_assert_eq!(object.to_key(), Bytes::from(key));
            }
        }
    }

    #[test]
    fn keys_can_be_split_off() {
        let object = ObjectId::new(PoolId(3), "ns", "name", "key", SnapId(7));
        let mut key = BytesMut::new();
        object.put_key(&mut key);
        key.put_slice(b"more");
        assert_eq!(ObjectId::split_key(&key).unwrap(), (object, &b"more"[..]));
    }

    #[test]
    fn the_order_is_by_reversed_hash() {
        let at = |hash| ObjectId { pool: PoolId(1), hash, ..ObjectId::MIN };
        assert!(at(0) < at(2) && at(2) < at(1) && at(1) < at(3));
        assert!(ObjectId::MIN < at(0) && at(u32::MAX) < ObjectId::MAX);
    }

    #[test]
    fn a_namespace_takes_part_in_the_hash() {
        let plain = ObjectId::new(PoolId(1), "", "foo", "", SnapId::NOSNAP);
        assert_eq!(plain.hash, rjenkins(b"foo"));
        let spaced = ObjectId::new(PoolId(1), "ns", "foo", "", SnapId::NOSNAP);
        assert_eq!(spaced.hash, rjenkins(b"ns\x1ffoo"));
        let keyed = ObjectId::new(PoolId(1), "", "bar", "foo", SnapId::NOSNAP);
        assert_eq!(keyed.hash, plain.hash);
    }

    #[test]
    fn locators_raise_compat_for_a_hash() {
        let by_hash = ObjectLocator { pool: PoolId(2), hash: 5, ..Default::default() };
        assert_eq!(by_hash.to_bytes(Features::ALL)[..2], [6, 6]);
        assert_eq!(ObjectLocator::default().to_bytes(Features::ALL)[..2], [6, 3]);
        assert_eq!(ObjectLocator::from_bytes(&by_hash.to_bytes(Features::ALL)).unwrap(), by_hash);
    }
}
