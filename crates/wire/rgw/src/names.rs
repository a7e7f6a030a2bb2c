//! How objects of a bucket are named in RADOS, and which shard of its index has an object.

use crate::key::ObjKey;
use bytes::Bytes;
use denc_derive::Denc;
use types::hash;

/// Namespace of the parts of uploads, and of what is known of an upload (Ceph:
/// `RGW_OBJ_NS_MULTIPART`).
pub const NS_MULTIPART: &[u8] = b"multipart";
/// Namespace of data behind a head or the first stripe of a part (Ceph: `RGW_OBJ_NS_SHADOW`).
pub const NS_SHADOW: &[u8] = b"shadow";
/// The null version's id.
pub const NULL_VERSION: &[u8] = b"null";
/// How a bucket's index objects begin.
pub const INDEX_PREFIX: &str = ".dir.";

const PRIMES: [u32; 2] = [7877, 65521];

/// An object of a bucket (Ceph: `rgw_obj_key`, `rgw/rgw_common.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ObjName {
    /// The name.
    pub name: Bytes,
    /// The version; empty for an object without versions.
    pub instance: Bytes,
    /// What of the object: empty for its head, else [`NS_MULTIPART`] or [`NS_SHADOW`].
    #[denc(since = 2)]
    pub ns: Bytes,
}

impl ObjName {
    /// A head without a version.
    pub fn plain(name: impl Into<Bytes>) -> Self {
        ObjName { name: name.into(), ..ObjName::default() }
    }

    /// A head of a version.
    pub fn version(name: impl Into<Bytes>, instance: impl Into<Bytes>) -> Self {
        ObjName { name: name.into(), instance: instance.into(), ns: Bytes::new() }
    }

    /// An object in a namespace.
    pub fn in_ns(name: impl Into<Bytes>, ns: &'static [u8]) -> Self {
        ObjName { name: name.into(), instance: Bytes::new(), ns: Bytes::from_static(ns) }
    }

    fn has_version(&self) -> bool {
        !self.instance.is_empty() && self.instance != NULL_VERSION
    }

    fn starts_with_underscore(&self) -> bool {
        self.name.first() == Some(&b'_')
    }

    /// The name within the bucket's objects.
    pub fn oid(&self) -> Bytes {
        if self.ns.is_empty() && !self.has_version() {
            return self.escaped();
        }
        let mut out = vec![b'_'];
        out.extend_from_slice(&self.ns);
        if self.has_version() {
            out.push(b':');
            out.extend_from_slice(&self.instance);
        }
        out.push(b'_');
        out.extend_from_slice(&self.name);
        out.into()
    }

    fn escaped(&self) -> Bytes {
        if self.starts_with_underscore() {
            [b"_", &self.name[..]].concat().into()
        } else {
            self.name.clone()
        }
    }

    /// What the index calls it: the namespace is part of the name, the version is not.
    pub fn index_key(&self) -> ObjKey {
        let name = if self.ns.is_empty() {
            self.escaped()
        } else {
            [b"_", &self.ns[..], b"_", &self.name].concat().into()
        };
        ObjKey { name, instance: self.instance.clone() }
    }

    /// The object of an index key; `None` if no object has such a key.
    pub fn of_index(key: &ObjKey) -> Option<Self> {
        let text = &key.name;
        let mut found = ObjName { instance: key.instance.clone(), ..ObjName::default() };
        match &text[..] {
            [b'_', b'_', ..] => found.name = text.slice(1..),
            [b'_', rest @ ..] => {
                let end = rest.iter().position(|b| *b == b'_').filter(|at| *at > 0)?;
                let ns = text.slice(1..1 + end);
                // A name of RADOS, which has the version beside the namespace.
                found.ns = match ns.iter().position(|b| *b == b':') {
                    None => ns,
                    Some(at) => {
                        found.instance = ns.slice(at + 1..);
                        ns.slice(..at)
                    }
                };
                found.name = text.slice(end + 2..);
            }
            _ => found.name = text.clone(),
        }
        Some(found)
    }

    /// The name in the pool: objects of all buckets are in one.
    pub fn raw(&self, marker: &[u8]) -> Bytes {
        [marker, b"_", &self.oid()].concat().into()
    }

    /// What the object is placed by; empty for its name. Heads with an escaped name are placed
    /// as if they were not escaped: gateways before the escape did so.
    pub fn locator(&self) -> Bytes {
        if self.ns.is_empty() && self.starts_with_underscore() {
            self.name.clone()
        } else {
            Bytes::new()
        }
    }

    /// The same in the pool.
    pub fn raw_locator(&self, marker: &[u8]) -> Bytes {
        let locator = self.locator();
        if locator.is_empty() { locator } else { [marker, b"_", &locator].concat().into() }
    }
}

fn modulo(hash: u32, shards: u32) -> u32 {
    let prime = if shards <= PRIMES[0] { PRIMES[0] } else { PRIMES[1] };
    hash % prime % shards.max(1)
}

/// The shard of an object's entry (Ceph: `RGWSI_BucketIndex_RADOS::bucket_shard_index`). Parts of
/// an upload are where the object is: `name` is the object's name without namespace and version.
pub fn index_shard(name: &[u8], shards: u32) -> u32 {
    let hash = hash::linux(name);
    modulo(hash ^ ((hash & 0xff) << 24), shards)
}

/// The object of a shard of an index; `shards` is 0 for an index of one object.
pub fn index_object(bucket_id: &[u8], shards: u32, generation: u64, shard: u32) -> Bytes {
    let id = String::from_utf8_lossy(bucket_id);
    match (shards, generation) {
        (0, _) => format!("{INDEX_PREFIX}{id}").into(),
        (_, 0) => format!("{INDEX_PREFIX}{id}.{shard}").into(),
        _ => format!("{INDEX_PREFIX}{id}.{generation}.{shard}").into(),
    }
}

/// Which of `count` objects has what belongs to `key` (Ceph: `rgw_shard_id`): the usage log.
pub fn log_shard(key: &[u8], count: u32) -> u32 {
    modulo(hash::linux(key), count)
}

/// Which of `count` objects has a bucket's entry for lifecycle (Ceph: `RGWLC`, `get_lc_oid`).
pub fn lifecycle_shard(key: &[u8], count: u32) -> u32 {
    hash::linux(key) % PRIMES[0] % count.clamp(1, PRIMES[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, instance: &str) -> ObjKey {
        ObjKey {
            name: Bytes::copy_from_slice(name.as_bytes()),
            instance: instance.to_owned().into(),
        }
    }

    #[test]
    fn names_as_radosgw_makes_them() {
        // Listed in the pool of a radosgw 16.2.15.
        let raw = |o: &ObjName| String::from_utf8(o.raw(b"M").to_vec()).unwrap();
        assert_eq!(raw(&ObjName::plain("small")), "M_small");
        let under = ObjName::plain("_under");
        assert_eq!(raw(&under), "M___under");
        assert_eq!(under.raw_locator(b"M"), "M__under");
        assert_eq!(raw(&ObjName::version("k", "pdJb")), "M__:pdJb_k");
        assert_eq!(raw(&ObjName::version("k", "null")), "M_k");
        assert_eq!(raw(&ObjName::in_ns(".Yp5k_1", NS_SHADOW)), "M__shadow_.Yp5k_1");
        assert_eq!(raw(&ObjName::in_ns("mp.2~x.1", NS_MULTIPART)), "M__multipart_mp.2~x.1");
        assert!(ObjName::version("k", "v").raw_locator(b"M").is_empty());
    }

    #[test]
    fn index_keys_return() {
        for (object, name) in [
            (ObjName::plain("small"), "small"),
            (ObjName::plain("_under"), "__under"),
            (ObjName::version("k", "v1"), "k"),
            (ObjName::in_ns("mp.2~x.meta", NS_MULTIPART), "_multipart_mp.2~x.meta"),
        ] {
            let k = object.index_key();
            assert_eq!(k.name, name);
            assert_eq!(ObjName::of_index(&k), Some(object));
        }
        assert_eq!(ObjName::of_index(&key("_x", "")), None);
        let raw = ObjName::of_index(&key("_shadow:i1_.p_1", "")).unwrap();
        assert_eq!(
            (&raw.ns[..], &raw.instance[..], &raw.name[..]),
            (NS_SHADOW, &b"i1"[..], &b".p_1"[..])
        );
    }

    #[test]
    fn shards_as_radosgw_chooses_them() {
        // Seen in an index of 11 shards of a radosgw 16.2.15.
        for (name, shard) in [("small", 1), ("_under", 2), ("big", 5), ("mp", 6), ("j", 0)] {
            assert_eq!(index_shard(name.as_bytes(), 11), shard, "{name}");
        }
        assert_eq!(index_object(b"id", 0, 0, 0), ".dir.id");
        assert_eq!(index_object(b"id", 11, 0, 3), ".dir.id.3");
        assert_eq!(index_object(b"id", 11, 2, 3), ".dir.id.2.3");
    }
}
