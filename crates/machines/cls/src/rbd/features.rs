//! Feature bits of images (Ceph: `include/rbd/features.h`).

/// The image may be a clone of another (`RBD_FEATURE_LAYERING`).
pub const LAYERING: u64 = 1 << 0;
/// Data is striped in units smaller than an object (`RBD_FEATURE_STRIPINGV2`).
pub const STRIPING: u64 = 1 << 1;
/// One client at a time writes (`RBD_FEATURE_EXCLUSIVE_LOCK`).
pub const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// There is a map of which data objects exist (`RBD_FEATURE_OBJECT_MAP`).
pub const OBJECT_MAP: u64 = 1 << 3;
/// The map also knows what changed since the last snapshot (`RBD_FEATURE_FAST_DIFF`).
pub const FAST_DIFF: u64 = 1 << 4;
/// Flattening also severs snapshots from the parent (`RBD_FEATURE_DEEP_FLATTEN`).
pub const DEEP_FLATTEN: u64 = 1 << 5;
/// Changes go through a journal (`RBD_FEATURE_JOURNALING`).
pub const JOURNALING: u64 = 1 << 6;
/// Data is in a pool of its own (`RBD_FEATURE_DATA_POOL`).
pub const DATA_POOL: u64 = 1 << 7;
/// Some bits of [`op`] are set (`RBD_FEATURE_OPERATIONS`).
pub const OPERATIONS: u64 = 1 << 8;
/// A migration is under way (`RBD_FEATURE_MIGRATING`).
pub const MIGRATING: u64 = 1 << 9;
/// A mirror's copy, written by the mirroring only (`RBD_FEATURE_NON_PRIMARY`).
pub const NON_PRIMARY: u64 = 1 << 10;
/// A client holds data that is not written back (`RBD_FEATURE_DIRTY_CACHE`).
pub const DIRTY_CACHE: u64 = 1 << 11;

/// Every feature that this class knows (`RBD_FEATURES_ALL`).
pub const ALL: u64 = (1 << 12) - 1;

/// Features without which a client cannot read the image (`RBD_FEATURES_INCOMPATIBLE`).
pub const INCOMPATIBLE: u64 = LAYERING | STRIPING | DATA_POOL | DIRTY_CACHE;

/// Features without which a client cannot write the image (`RBD_FEATURES_RW_INCOMPATIBLE`).
pub const RW_INCOMPATIBLE: u64 = ALL;

/// Features that can be switched on and off (`RBD_FEATURES_MUTABLE`).
pub const MUTABLE: u64 =
    EXCLUSIVE_LOCK | OBJECT_MAP | FAST_DIFF | JOURNALING | NON_PRIMARY | DIRTY_CACHE;

/// Features that can only be switched off (`RBD_FEATURES_DISABLE_ONLY`).
pub const DISABLE_ONLY: u64 = DEEP_FLATTEN;

/// Features that only this class sets (`RBD_FEATURES_INTERNAL`).
pub const INTERNAL: u64 = OPERATIONS | MIGRATING;

/// Features that come and go with what is done to the image (`RBD_OPERATION_FEATURE_*`).
pub mod op {
    /// A snapshot has clones that know it by id (`RBD_OPERATION_FEATURE_CLONE_PARENT`).
    pub const CLONE_PARENT: u64 = 1 << 0;
    /// The image is such a clone (`RBD_OPERATION_FEATURE_CLONE_CHILD`).
    pub const CLONE_CHILD: u64 = 1 << 1;
    /// The image is in a group (`RBD_OPERATION_FEATURE_GROUP`).
    pub const GROUP: u64 = 1 << 2;
    /// A snapshot is in the trash namespace (`RBD_OPERATION_FEATURE_SNAP_TRASH`).
    pub const SNAP_TRASH: u64 = 1 << 3;

    /// Every one of them (`RBD_OPERATION_FEATURES_ALL`).
    pub const ALL: u64 = CLONE_PARENT | CLONE_CHILD | GROUP | SNAP_TRASH;
}
