//! Structured reports for the command line: consistency check and dump.

use crate::types::{Coll, Key, Stat};

/// The result of [`crate::Store::fsck`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckReport {
    /// Collections seen.
    pub collections: u64,
    /// Objects seen.
    pub objects: u64,
    /// Omap rows seen.
    pub omap_rows: u64,
    /// Blocks referred to by objects, each counted once.
    pub data_blocks: u64,
    /// Blocks of the metadata tree.
    pub tree_blocks: u64,
    /// Blocks shared by more than one object.
    pub shared_blocks: u64,
    /// Bytes read and verified (only with `deep`).
    pub verified: u64,
    /// Everything that is wrong; empty means consistent.
    pub problems: Vec<FsckProblem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsckProblem {
    /// The object concerned, if it is about one.
    pub object: Option<(Coll, Key)>,
    /// What is wrong, for people.
    pub what: String,
}

impl std::fmt::Display for FsckProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((coll, key)) = &self.object {
            write!(f, "{coll} {}: ", key.escape_ascii())?;
        }
        f.write_str(&self.what)
    }
}

/// The result of [`crate::Store::dump`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpReport {
    /// Facts about the store as a whole: name and value.
    pub facts: Vec<(String, String)>,
    /// All collections.
    pub collections: Vec<Coll>,
    /// The objects asked for.
    pub objects: Vec<ObjectDump>,
}

/// One object of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectDump {
    /// Its collection.
    pub coll: Coll,
    /// Its key.
    pub key: Key,
    /// Sizes.
    pub stat: Stat,
    /// Attribute names and the lengths of their values.
    pub attrs: Vec<(bytes::Bytes, u64)>,
    /// Omap rows, counted.
    pub omap_rows: u64,
    /// Logical block, physical block, blocks, shared: the extent map.
    pub extents: Vec<(u64, u64, u64, bool)>,
}
