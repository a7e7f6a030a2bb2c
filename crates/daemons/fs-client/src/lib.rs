//! A client of a file system (CephFS) for daemons: directories, attributes and small files.
//!
//! * [`Mount`]: a file system in use. The owner gives it the maps of the file system
//!   ([`Mount::follow`]); objects are read and written through the owner's [`client::Rados`].
//! * [`DirReader`]: a directory, page by page.
//! * `session`: sessions with the ranks; `caps`: capabilities.
//!
//! It caches nothing. A capability that comes with an answer is given back at once; a file keeps
//! it while data is read or written. One request is under way at a time. A change is answered when
//! it is durable. Every call ends after a while, with an error that says why.
//!
//! It works with `ceph-mds` of Ceph 16.2 and with metadata servers of this project. A mount lives
//! on one thread, inside a tokio `LocalSet`.

#![forbid(unsafe_code)]

mod caps;
mod error;
mod files;
mod mount;
mod session;
mod stat;

pub use error::{FsError, Result};
pub use files::FILE_BYTES_MAX;
pub use messages::FilePath;
pub use mount::{DirReader, Mount, Options, path};
pub use stat::{Entry, Kind, Stat};
