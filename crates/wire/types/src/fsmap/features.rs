//! Features of clients of file systems.

use crate::dump::Dump;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader, Result};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;

/// Names by number (Ceph 16.2: `mds/cephfs_features.cc`). The first five stand for releases that
/// are too old.
const NAMES: [&str; 16] = [
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "jewel",
    "kraken",
    "luminous",
    "mimic",
    "reply_encoding",
    "reclaim_client",
    "lazy_caps_wanted",
    "multi_reconnect",
    "deleg_ino",
    "metric_collect",
    "alternate_name",
];

/// The highest number that has a name.
pub const CLIENT_FEATURE_MAX: u32 = NAMES.len() as u32 - 1;

/// A feature's name.
pub fn client_feature_name(number: u32) -> &'static str {
    NAMES.get(number as usize).copied().unwrap_or("unknown")
}

/// The number of a name.
pub fn client_feature(name: &str) -> Option<u32> {
    match name {
        "reserved" => None,
        _ => NAMES.iter().position(|n| *n == name).map(|n| n as u32),
    }
}

/// A set of features (Ceph: `feature_bitset_t`, `mds/mdstypes.h`: the length in bytes, then words
/// of 64 bits).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ClientFeatures(pub BTreeSet<u32>);

impl ClientFeatures {
    /// Longer sets are cut: no feature has such a number.
    const BITS_MAX: u32 = 1024;
}

impl Encode for ClientFeatures {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let words = self.0.last().map_or(0, |last| last / 64 + 1);
        (words * 8).encode(out, f);
        for word in 0..words {
            let range = word * 64..(word + 1) * 64;
            out.put_u64_le(self.0.range(range).fold(0, |bits, n| bits | 1 << (n % 64)));
        }
    }
}

impl Decode for ClientFeatures {
    fn decode(r: &mut Reader) -> Result<Self> {
        let bytes: Bytes = r.get()?;
        let bits = bytes.iter().take(Self::BITS_MAX as usize / 8).enumerate();
        let set = bits.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & 1 << bit != 0).map(move |bit| at as u32 * 8 + bit)
        });
        Ok(ClientFeatures(set.collect()))
    }
}

impl Dump for ClientFeatures {
    fn dump(&self) -> Value {
        let name = |n: &u32| (format!("feature_{n}"), Value::from(client_feature_name(*n)));
        Value::Object(self.0.iter().map(name).collect::<Map<_, _>>())
    }
}

impl fmt::Display for ClientFeatures {
    /// `{9=reply_encoding,10=reclaim_client}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> =
            self.0.iter().map(|n| format!("{n}={}", client_feature_name(*n))).collect();
        write!(f, "{{{}}}", each.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_return() {
        for set in [vec![], vec![0], vec![9, 63, 64, 130]] {
            let set = ClientFeatures(set.into_iter().collect());
            let bytes = set.to_bytes(Features::ALL);
            assert_eq!(bytes.len() % 8, 4);
            assert_eq!(ClientFeatures::from_bytes(&bytes).unwrap(), set);
        }
        assert_eq!(client_feature("mimic"), Some(8));
        assert_eq!(client_feature("reserved"), None);
        assert_eq!(ClientFeatures([9].into()).to_string(), "{9=reply_encoding}");
    }

    #[test]
    fn a_long_set_is_cut() {
        let bytes = Bytes::from(vec![0xffu8; 10_000]).to_bytes(Features::ALL);
        assert_eq!(ClientFeatures::from_bytes(&bytes).unwrap().0.len(), 1024);
    }
}
