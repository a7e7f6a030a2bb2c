//! The header of a directory object.

use crate::stats::{FragInfo, NestInfo};
use denc_derive::Denc;
use types::{SnapId, Utime};

/// What is kept of a directory's fragment besides its entries: the omap header of its object (Ceph
/// 16.2: `fnode_t`, `mds/mdstypes.h`, version 4, compat 3).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 4, compat = 3, oldest = 3)]
pub struct Fnode {
    /// Rises with each change of an entry.
    pub version: u64,
    /// The snapshot up to which entries that no snapshot needs were removed.
    pub snap_purged_thru: SnapId,
    /// What is in the fragment.
    pub fragstat: FragInfo,
    /// The part of it that the inode has counted.
    pub accounted_fragstat: FragInfo,
    /// What is in it and below it.
    pub rstat: NestInfo,
    /// The part of it that the inode has counted.
    pub accounted_rstat: NestInfo,
    /// What is known to be wrong with it.
    pub damage_flags: u32,
    /// The version at the latest scrub of it and all below it.
    #[denc(since = 4)]
    pub recursive_scrub_version: u64,
    /// That scrub.
    #[denc(since = 4)]
    pub recursive_scrub_stamp: Utime,
    /// The version at the latest scrub of it.
    #[denc(since = 4)]
    pub localized_scrub_version: u64,
    /// That scrub.
    #[denc(since = 4)]
    pub localized_scrub_stamp: Utime,
}
