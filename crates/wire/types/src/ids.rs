//! Numbers with a meaning.

use bytes::BytesMut;
use denc::{Decode, Encode, Features, Reader, Result};
use denc_derive::Denc;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl From<$inner> for $name {
            fn from(n: $inner) -> Self {
                Self(n)
            }
        }
        impl From<$name> for serde_json::Value {
            fn from(n: $name) -> Self {
                n.0.into()
            }
        }
    };
}

number!(
    /// Version of the OSD map, and the clock of everything that depends on it (Ceph: `epoch_t`).
    Epoch(u32)
);
number!(
    /// An OSD's number. Negative numbers are CRUSH buckets; see [`OsdId::NONE`].
    OsdId(i32)
);
number!(
    /// A pool's number. Real pools count from 1 (Ceph: `int64_t` pool ids).
    PoolId(i64)
);

impl Epoch {
    /// The following epoch.
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

impl OsdId {
    /// A hole in an up or acting set (Ceph: `CRUSH_ITEM_NONE`).
    pub const NONE: OsdId = OsdId(0x7fff_ffff);

    /// Whether this names an OSD rather than a hole or "unknown" (-1).
    pub fn is_some(self) -> bool {
        self.0 >= 0 && self != Self::NONE
    }
}

impl PoolId {
    /// The pool of objects that belong to no pool (Ceph: `hobject_t::POOL_META`).
    pub const META: PoolId = PoolId(-1);
    /// The largest number that monitors give: an OSD has 24 bits for it in the number of a
    /// collection.
    pub const LAST: PoolId = PoolId((1 << 24) - 1);
}

/// A snapshot's number (Ceph: `snapid_t`, `include/object.h`). Shown in hexadecimal, or as `head`
/// or `snapdir`.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SnapId(pub u64);

impl SnapId {
    /// The live object, newer than every snapshot (Ceph: `CEPH_NOSNAP`).
    pub const NOSNAP: SnapId = SnapId(u64::MAX - 1);
    /// All clones of an object, for listing (Ceph: `CEPH_SNAPDIR`).
    pub const SNAPDIR: SnapId = SnapId(u64::MAX);
    /// The largest number a snapshot can have (Ceph: `CEPH_MAXSNAP`).
    pub const MAX: SnapId = SnapId(u64::MAX - 2);
}

impl fmt::Display for SnapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SnapId::NOSNAP => f.write_str("head"),
            SnapId::SNAPDIR => f.write_str("snapdir"),
            SnapId(n) => write!(f, "{n:x}"),
        }
    }
}
impl From<u64> for SnapId {
    fn from(n: u64) -> Self {
        SnapId(n)
    }
}
impl From<SnapId> for serde_json::Value {
    fn from(s: SnapId) -> Self {
        s.0.into()
    }
}

/// Position in a placement group's log (Ceph: `eversion_t`, `osd/osd_types.h`). Ordered by epoch,
/// then version; on the wire the version comes first.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize,
)]
pub struct Eversion {
    /// The epoch in which the entry was made.
    pub epoch: Epoch,
    /// Counts the group's entries; rises within and across epochs.
    pub version: u64,
}

impl Eversion {
    /// Before every entry.
    pub const ZERO: Eversion = Eversion { epoch: Epoch(0), version: 0 };
    /// After every entry.
    pub const MAX: Eversion = Eversion { epoch: Epoch(u32::MAX), version: u64::MAX };

    /// Entry `version` of `epoch`.
    pub const fn new(epoch: Epoch, version: u64) -> Self {
        Eversion { epoch, version }
    }
}

impl Encode for Eversion {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.version.encode(out, f);
        self.epoch.encode(out, f);
    }
}
impl Decode for Eversion {
    fn decode(r: &mut Reader) -> Result<Self> {
        let version = r.get()?;
        Ok(Eversion { epoch: r.get()?, version })
    }
}
impl fmt::Display for Eversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}'{}", self.epoch, self.version)
    }
}

/// Identity of a cluster, and UUIDs in general (Ceph: `uuid_d`, 16 plain bytes).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Denc)]
pub struct Fsid(pub [u8; 16]);

impl Fsid {
    /// Whether no UUID was set.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Fsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
impl fmt::Debug for Fsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl Serialize for Fsid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Fsid {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The text is not a UUID in its usual form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a UUID of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
pub struct ParseFsidError;

impl std::str::FromStr for Fsid {
    type Err = ParseFsidError;

    fn from_str(s: &str) -> std::result::Result<Self, ParseFsidError> {
        let bytes = s.as_bytes();
        if bytes.len() != 36 {
            return Err(ParseFsidError);
        }
        let mut id = [0u8; 16];
        let mut nibble = 0;
        for (i, &c) in bytes.iter().enumerate() {
            if matches!(i, 8 | 13 | 18 | 23) {
                if c != b'-' {
                    return Err(ParseFsidError);
                }
                continue;
            }
            let digit = (c as char).to_digit(16).ok_or(ParseFsidError)? as u8;
            let byte: &mut u8 = id.get_mut(nibble / 2).ok_or(ParseFsidError)?;
            *byte = *byte << 4 | digit;
            nibble += 1;
        }
        Ok(Fsid(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eversions_order_by_epoch_first_and_encode_version_first() {
        let early = Eversion::new(Epoch(1), 9);
        let late = Eversion::new(Epoch(2), 1);
        assert!(early < late);
        assert_eq!(early.to_string(), "1'9");
        assert_eq!(early.to_bytes(Features::ALL).as_ref(), [9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(Eversion::from_bytes(&early.to_bytes(Features::ALL)).unwrap(), early);
    }

    #[test]
    fn snap_ids_show_their_special_values() {
        assert_eq!(SnapId::NOSNAP.to_string(), "head");
        assert_eq!(SnapId::SNAPDIR.to_string(), "snapdir");
        assert_eq!(SnapId(0x1f).to_string(), "1f");
    }

    #[test]
    fn uuids_parse_what_they_print() {
        let text = "00112233-4455-6677-8899-aabbccddeeff";
        let id: Fsid = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(id.0[15], 0xff);
        for bad in [
            "",
            "00112233-4455-6677-8899-aabbccddeef",
            "0011223304455-6677-8899-aabbccddeeff",
            "zz112233-4455-6677-8899-aabbccddeeff",
        ] {
            assert!(bad.parse::<Fsid>().is_err(), "{bad}");
        }
    }
}
