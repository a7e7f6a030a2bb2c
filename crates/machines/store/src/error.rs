//! What can go wrong in the store.

use crate::types::{Coll, Key};

/// An error of the store. The variants differ in what the caller does about them.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// The collection does not exist.
    #[error("{0} does not exist")]
    NoCollection(Coll),
    /// The collection exists already.
    #[error("{0} exists already")]
    CollectionExists(Coll),
    /// The collection to remove still has objects.
    #[error("{0} is not empty")]
    NotEmpty(Coll),
    /// The object does not exist.
    #[error("{coll} has no object {}", key.escape_ascii())]
    NoObject {
        /// Its collection.
        coll: Coll,
        /// Its key.
        key: Key,
    },
    /// The key belongs to another collection of the space. Nothing was changed.
    #[error("{coll} has no such range: {}", key.escape_ascii())]
    NotInWindow {
        /// The collection.
        coll: Coll,
        /// The key.
        key: Key,
    },
    /// Collections that cannot be cut or joined like this. Nothing was changed.
    #[error("{0}: the ranges do not fit")]
    BadWindow(Coll),
    /// The destination of a move exists already.
    #[error("{coll} already has an object {}", key.escape_ascii())]
    ObjectExists {
        /// Its collection.
        coll: Coll,
        /// Its key.
        key: Key,
    },
    /// The object's attribute has another value than the transaction expects, or is not there.
    /// Nothing was changed.
    #[error(
        "{coll} object {}: the attribute {} is not as the change expects",
        key.escape_ascii(),
        attr.escape_ascii()
    )]
    Unexpected {
        /// Its collection.
        coll: Coll,
        /// Its key.
        key: Key,
        /// The attribute.
        attr: Key,
    },
    /// The attribute does not exist.
    #[error("no such attribute")]
    NoAttr,
    /// The transaction needs more space than may be used. Nothing was changed.
    #[error("no space left")]
    NoSpace,
    /// An argument is beyond what an object can hold. Nothing was changed.
    #[error("{0} is beyond the limit")]
    TooBig(&'static str),
    /// More is under way than the log can hold; wait for [`crate::Store::admit`]. Nothing was
    /// changed.
    #[error("the log is full, a checkpoint is under way")]
    Busy,
    /// The device returned other bytes than were written. Repair from a replica.
    #[error("checksum error in {coll} object {} at offset {off}", key.escape_ascii())]
    Checksum {
        /// The collection of the damaged object.
        coll: Coll,
        /// The damaged object.
        key: Key,
        /// Logical offset of the damaged block.
        off: u64,
    },
    /// Metadata on the device is damaged.
    #[error("damaged metadata: {0}")]
    Corrupt(String),
    /// The device does not hold a store, or one of another kind.
    #[error("{0}")]
    Foreign(String),
    /// The device refused.
    #[error("device error: {0}")]
    Io(String),
    /// An earlier device error stopped all writing; the store must be opened again.
    #[error("the store has stopped after an error: {0}")]
    Failed(String),
}

impl StoreError {
    /// The Linux error number (positive) that a client is told.
    pub fn errno(&self) -> i32 {
        match self {
            StoreError::NoCollection(_) | StoreError::NoObject { .. } => libc::ENOENT,
            StoreError::CollectionExists(_) | StoreError::ObjectExists { .. } => libc::EEXIST,
            StoreError::NotEmpty(_) => libc::ENOTEMPTY,
            StoreError::NoAttr => libc::ENODATA,
            StoreError::NoSpace => libc::ENOSPC,
            StoreError::TooBig(_) => libc::EFBIG,
            StoreError::Busy => libc::EAGAIN,
            StoreError::Foreign(_) | StoreError::NotInWindow { .. } | StoreError::BadWindow(_) => {
                libc::EINVAL
            }
            StoreError::Unexpected { .. }
            | StoreError::Checksum { .. }
            | StoreError::Corrupt(_)
            | StoreError::Io(_)
            | StoreError::Failed(_) => libc::EIO,
        }
    }
}

impl From<std::io::Error> for StoreError {
    fn from(e: std::io::Error) -> StoreError {
        StoreError::Io(e.to_string())
    }
}
