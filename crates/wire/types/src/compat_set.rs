//! Named features that a piece of software must know to read or write something.

use crate::dump::Dump;
use bytes::BytesMut;
use denc::{Decode, Encode, Features, Reader, Result};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Features by number from 1 to 63 (Ceph: `CompatSet::FeatureSet`, `include/CompatSet.h`; a mask,
/// then the names).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FeatureSet {
    /// Names by number.
    pub names: BTreeMap<u64, String>,
}

impl FeatureSet {
    /// The features of a list.
    pub fn new(names: &[(u64, &str)]) -> Self {
        FeatureSet { names: names.iter().map(|&(id, name)| (id, name.to_owned())).collect() }
    }

    fn mask(&self) -> u64 {
        let bits = self.names.keys().filter_map(|&id| 1u64.checked_shl(u32::try_from(id).ok()?));
        bits.fold(0, |mask, bit| mask | bit)
    }
}

impl Encode for FeatureSet {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.mask().encode(out, f);
        self.names.encode(out, f);
    }
}
impl Decode for FeatureSet {
    /// The mask follows from the names.
    fn decode(r: &mut Reader) -> Result<Self> {
        r.get::<u64>()?;
        let mut names: BTreeMap<u64, String> = r.get()?;
        names.retain(|id, _| (1..64).contains(id));
        Ok(FeatureSet { names })
    }
}
impl Dump for FeatureSet {
    fn dump(&self) -> Value {
        let name = |(id, name): (&u64, &String)| (format!("feature_{id}"), json!(name));
        Value::Object(self.names.iter().map(name).collect::<Map<_, _>>())
    }
}

/// What one must know (Ceph: `CompatSet`, plain).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
pub struct CompatSet {
    /// Good to know.
    pub compat: FeatureSet,
    /// Must be known to write.
    pub ro_compat: FeatureSet,
    /// Must be known to read or write.
    pub incompat: FeatureSet,
}

impl CompatSet {
    /// Whether software that knows `self` may read what needs `other`.
    pub fn readable(&self, other: &CompatSet) -> bool {
        other.incompat.mask() & !self.incompat.mask() == 0
    }

    /// Whether software that knows `self` may write what needs `other`.
    pub fn writeable(&self, other: &CompatSet) -> bool {
        self.readable(other) && other.ro_compat.mask() & !self.ro_compat.mask() == 0
    }
}

impl CompatSet {
    /// Adds what `other` needs.
    pub fn merge(&mut self, other: &CompatSet) {
        for (mine, theirs) in [
            (&mut self.compat, &other.compat),
            (&mut self.ro_compat, &other.ro_compat),
            (&mut self.incompat, &other.incompat),
        ] {
            let new = theirs.names.iter().map(|(id, name)| (*id, name.clone()));
            mine.names.extend(new);
        }
    }

    /// The numbers alone: `{c=[1],r=[1],i=[7ff]}` (Ceph: `CompatSet::printlite`).
    pub fn lite(&self) -> String {
        let (c, r, i) = (self.compat.mask(), self.ro_compat.mask(), self.incompat.mask());
        // Ceph counts "no feature 0" as the lowest bit of its masks.
        format!("{{c=[{:x}],r=[{:x}],i=[{:x}]}}", c | 1, r | 1, i | 1)
    }
}

impl fmt::Display for CompatSet {
    /// `compat={},rocompat={},incompat={1=base v0.20,...}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |set: &FeatureSet| {
            set.names.iter().map(|(id, name)| format!("{id}={name}")).collect::<Vec<_>>().join(",")
        };
        write!(
            f,
            "compat={{{}}},rocompat={{{}}},incompat={{{}}}",
            names(&self.compat),
            names(&self.ro_compat),
            names(&self.incompat)
        )
    }
}

impl Dump for CompatSet {
    fn dump(&self) -> Value {
        json!({
            "compat": self.compat.dump(),
            "ro_compat": self.ro_compat.dump(),
            "incompat": self.incompat.dump(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_needs_all_incompat_features() {
        let old = CompatSet { incompat: FeatureSet::new(&[(1, "one")]), ..Default::default() };
        let new = CompatSet {
            incompat: FeatureSet::new(&[(1, "one"), (2, "two")]),
            ..Default::default()
        };
        assert!(new.readable(&old) && new.writeable(&old) && !old.readable(&new));
        assert_eq!(CompatSet::from_bytes(&new.to_bytes(Features::ALL)).unwrap(), new);
        let reads = CompatSet { ro_compat: FeatureSet::new(&[(3, "three")]), ..Default::default() };
        assert!(old.readable(&reads) && !old.writeable(&reads));
    }

    #[test]
    fn numbers_out_of_range_are_dropped() {
        let wild = FeatureSet::new(&[(0, "zero"), (64, "x"), (u64::MAX, "y"), (5, "five")]);
        assert_eq!(
            FeatureSet::from_bytes(&wild.to_bytes(Features::ALL)).unwrap(),
            FeatureSet::new(&[(5, "five")])
        );
    }
}
