//! What the class keeps in objects and exchanges with clients.
//!
//! Names and ids are byte strings: librbd sends whatever it was given. Enumerations are open (a
//! number with named values), because values of newer clients have to survive being stored and read
//! back, as they do in Ceph.

mod group;
mod migration;
mod mirror;
mod parent;
mod snapshot;
mod trash;

pub use group::{
    GroupImageLinkState, GroupImageSpec, GroupImageStatus, GroupSnapshot, GroupSnapshotState,
    GroupSpec, ImageSnapshotSpec,
};
pub use migration::{MigrationHeaderType, MigrationSpec, MigrationState};
pub use mirror::{
    EntityInst, MirrorImage, MirrorImageMap, MirrorImageMode, MirrorImageSiteStatus,
    MirrorImageState, MirrorImageStatus, MirrorImageStatusState, MirrorMode, MirrorPeer,
    MirrorPeerDirection, StoredSiteStatus,
};
pub use parent::{ChildImageSpec, ParentImageSpec, ParentRecord};
pub use snapshot::{
    MirrorSnapshot, MirrorSnapshotState, NamespaceKind, ProtectionStatus, SnapRecord, SnapshotInfo,
    SnapshotNamespace,
};
pub use trash::{TrashImageSource, TrashImageSpec, TrashImageState};

/// Declares a number with named values.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$value_doc:meta])* $value:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, denc_derive::Denc)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name($number);)*
        }
    };
}
use open_enum;

open_enum! {
    /// Whether a pool takes new images (Ceph: `cls::rbd::DirectoryState`).
    DirectoryState(u8) {
        /// It does.
        READY = 0,
        /// The directory is closed, because its namespace is being removed.
        ADD_DISABLED = 1,
    }
}

open_enum! {
    /// What `assert_snapc_seq` expects (Ceph: `cls::rbd::AssertSnapcSeqState`).
    AssertSnapcSeqState(u8) {
        /// The snapshot context is newer than the object's newest snapshot.
        NEWER = 0,
        /// It is not.
        NOT_NEWER = 1,
    }
}

/// The largest number of objects in an object map (Ceph: `MAX_OBJECT_MAP_OBJECT_COUNT`).
pub const MAX_OBJECT_MAP_OBJECT_COUNT: u64 = 256_000_000;
