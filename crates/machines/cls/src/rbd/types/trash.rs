//! Images in the trash.

use super::open_enum;
use bytes::Bytes;
use denc_derive::Denc;
use types::Utime;

open_enum! {
    /// What put the image there (Ceph: `cls::rbd::TrashImageSource`).
    TrashImageSource(u8) {
        /// A user.
        USER = 0,
        /// Mirroring.
        MIRRORING = 1,
        /// A migration.
        MIGRATION = 2,
        /// A removal that has not come to its end.
        REMOVING = 3,
        /// A user, though it has clones.
        USER_PARENT = 4,
    }
}

open_enum! {
    /// What is being done with it (Ceph: `cls::rbd::TrashImageState`).
    TrashImageState(u8) {
        /// Nothing.
        NORMAL = 0,
        /// It is on its way in.
        MOVING = 1,
        /// It is being removed.
        REMOVING = 2,
        /// It is on its way out.
        RESTORING = 3,
    }
}

impl Default for TrashImageState {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// An image in the trash (Ceph: `cls::rbd::TrashImageSpec`, `cls/rbd/cls_rbd_types.h`, version 2).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct TrashImageSpec {
    /// What put it there.
    pub source: TrashImageSource,
    /// The image's name.
    pub name: Bytes,
    /// When it was put there.
    pub deletion_time: Utime,
    /// Until when it must stay.
    pub deferment_end_time: Utime,
    /// What is being done with it.
    #[denc(since = 2)]
    pub state: TrashImageState,
}
