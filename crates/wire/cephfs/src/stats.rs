//! What is counted of directories, and what quotas limit.

use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use types::Utime;

/// What is in a directory itself (Ceph: `frag_info_t`, `mds/mdstypes.h`, version 3).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 3, compat = 2, oldest = 2)]
pub struct FragInfo {
    /// Rises with each change that is accounted.
    pub version: u64,
    /// When entries changed last.
    pub mtime: Utime,
    /// Entries that are no directories.
    pub nfiles: i64,
    /// Directories.
    pub nsubdirs: i64,
    /// Counts changes.
    #[denc(since = 3)]
    pub change_attr: u64,
}

/// What is in a directory and everything below it (Ceph: `nest_info_t`, `mds/mdstypes.h`,
/// version 3).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NestInfo {
    /// Rises with each change that is accounted.
    pub version: u64,
    /// Bytes of files.
    pub rbytes: i64,
    /// Files.
    pub rfiles: i64,
    /// Directories, the directory itself included if it is an inode's.
    pub rsubdirs: i64,
    /// Snapshots.
    pub rsnaps: i64,
    /// The latest change.
    pub rctime: Utime,
}

impl Encode for NestInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 3, 2, |out| {
            self.version.encode(out, f);
            self.rbytes.encode(out, f);
            self.rfiles.encode(out, f);
            self.rsubdirs.encode(out, f);
            0i64.encode(out, f); // anchors, which are gone
            self.rsnaps.encode(out, f);
            self.rctime.encode(out, f);
        });
    }
}

impl Decode for NestInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("nest_info_t", 3)?;
        if struct_v < 2 {
            return Err(DecodeError::TooOld { what: "nest_info_t", struct_v, oldest: 2 });
        }
        let (version, rbytes, rfiles) = (r.get()?, r.get()?, r.get()?);
        let rsubdirs = r.get()?;
        r.get::<i64>()?;
        Ok(NestInfo { version, rbytes, rfiles, rsubdirs, rsnaps: r.get()?, rctime: r.get()? })
    }
}

/// What a directory may hold; 0 is no limit (Ceph: `quota_info_t`, `mds/mdstypes.h`, version 1).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Quota {
    /// Bytes of files below it.
    pub max_bytes: i64,
    /// Files and directories below it.
    pub max_files: i64,
}

impl Quota {
    /// Whether anything is limited.
    pub fn is_set(&self) -> bool {
        self.max_bytes != 0 || self.max_files != 0
    }
}
