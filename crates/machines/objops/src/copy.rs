//! Copies between objects: reading one in portions (`COPY_GET`), and fetching one for `COPY_FROM`.

use crate::code::{Op, OpOutcome};
use crate::exec::Exec;
use crate::object::InfoExt;
use crate::reader::ObjectReader;
use bytes::{Bytes, BytesMut};
use cls::LocalFuture;
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::errno::Errno;
use types::{ObjectId, ObjectLocator, ReqId, SnapId, Utime};

/// How far a copy got (Ceph: `object_copy_cursor_t`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CopyCursor {
    /// Attributes are done.
    pub attr_complete: bool,
    /// Data before this offset is done.
    pub data_offset: u64,
    /// Data is done.
    pub data_complete: bool,
    /// Omap rows up to and with this key are done.
    pub omap_offset: Bytes,
    /// Omap is done.
    pub omap_complete: bool,
}

impl CopyCursor {
    /// Whether nothing is left.
    pub fn is_complete(&self) -> bool {
        self.attr_complete && self.data_complete && self.omap_complete
    }
}

/// One portion of an object (Ceph: `object_copy_data_t`, version 8, compat 5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 8, compat = 5, oldest = 5)]
pub struct CopyData {
    /// Bytes of the whole object.
    pub size: u64,
    /// Modification time.
    pub mtime: Utime,
    /// Attributes under the users' names.
    pub attrs: BTreeMap<Bytes, Bytes>,
    /// Data from the cursor of the request on.
    pub data: Bytes,
    /// Row count and rows, or empty.
    pub omap_data: Bytes,
    /// Where to go on.
    pub cursor: CopyCursor,
    /// The omap header; only with the first rows.
    pub omap_header: Bytes,
    /// The snapshots of a clone.
    pub snaps: Vec<SnapId>,
    /// The newest snapshot that a head knows.
    pub snap_seq: SnapId,
    /// Which digests are given.
    pub flags: u32,
    /// CRC of the data, if given.
    pub data_digest: u32,
    /// CRC of the omap, if given.
    pub omap_digest: u32,
    /// Requests that the object's log remembers.
    pub reqids: Vec<(ReqId, u64)>,
    /// Number of the last numbered truncation.
    #[denc(since = 6)]
    pub truncate_seq: u64,
    /// What it cut to.
    #[denc(since = 6)]
    pub truncate_size: u64,
    /// Results of `reqids` by index, where they failed.
    #[denc(since = 8)]
    pub reqid_return_codes: BTreeMap<u32, i32>,
}

/// What to copy.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    /// The object.
    pub source: ObjectId,
    /// How to address it.
    pub locator: ObjectLocator,
    /// The user version it must have, or 0 for any.
    pub version: u64,
    /// `CEPH_OSD_COPY_FROM_FLAG_*`.
    pub flags: u8,
    /// A larger object is refused with EFBIG.
    pub max_bytes: u64,
}

/// A whole object that was fetched.
#[derive(Clone, Debug, Default)]
pub struct Copied {
    /// Bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: Utime,
    /// The source's user version.
    pub user_version: u64,
    /// Attributes under the users' names.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// Pieces of data and where they go.
    pub data: Vec<(u64, Bytes)>,
    /// Omap header.
    pub omap_header: Bytes,
    /// Omap rows.
    pub omap: Vec<(Bytes, Bytes)>,
    /// Number of the last numbered truncation.
    pub truncate_seq: u32,
    /// What it cut to.
    pub truncate_size: u64,
}

impl Copied {
    /// Adds a portion, which continues at `offset` of the data.
    ///
    /// # Errors
    /// EIO if the portion is not what it says, EFBIG if it goes past `max_bytes`.
    pub fn add(&mut self, offset: u64, portion: CopyData, max_bytes: u64) -> Result<(), Errno> {
        let end = offset.checked_add(portion.data.len() as u64).ok_or(Errno::EIO)?;
        if portion.size > max_bytes || end > portion.size {
            return Err(if portion.size > max_bytes { Errno::EFBIG } else { Errno::EIO });
        }
        self.size = portion.size;
        self.mtime = portion.mtime;
        self.attrs.extend(portion.attrs);
        if !portion.data.is_empty() {
            self.data.push((offset, portion.data));
        }
        if !portion.omap_header.is_empty() {
            self.omap_header = portion.omap_header;
        }
        if !portion.omap_data.is_empty() {
            let mut r = Reader::new(portion.omap_data);
            self.omap.extend(Vec::<(Bytes, Bytes)>::decode(&mut r).map_err(|_| Errno::EIO)?);
        }
        self.truncate_seq = portion.truncate_seq as u32;
        self.truncate_size = portion.truncate_size;
        Ok(())
    }
}

/// Reads objects of other PGs.
pub trait CopySource {
    /// The full name of an object, `None` if its pool does not exist.
    fn resolve(&self, name: &Bytes, locator: &ObjectLocator, snap: SnapId) -> Option<ObjectId>;

    /// Fetches a whole object.
    fn fetch(&self, request: CopyRequest) -> LocalFuture<'_, Result<Copied, Errno>>;
}

/// No other PG can be reached.
pub struct NoCopies;

impl CopySource for NoCopies {
    fn resolve(&self, name: &Bytes, locator: &ObjectLocator, snap: SnapId) -> Option<ObjectId> {
        let o = ObjectId::new(
            locator.pool,
            locator.namespace.clone(),
            name.clone(),
            locator.key.clone(),
            snap,
        );
        Some(o)
    }

    fn fetch(&self, _: CopyRequest) -> LocalFuture<'_, Result<Copied, Errno>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP) })
    }
}

impl<R: ObjectReader> Exec<'_, R> {
    pub(crate) async fn copy_get(&mut self, op: &Op, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        let mut r = Reader::new(op.indata.clone());
        let mut cursor: CopyCursor = r.get().map_err(|_| Errno::EINVAL)?;
        let max: u64 = r.get().map_err(|_| Errno::EINVAL)?;
        let oi = &self.old.oi;
        let mut reply = CopyData {
            size: oi.size,
            mtime: oi.mtime,
            truncate_seq: oi.truncate_seq,
            truncate_size: oi.truncate_size,
            data_digest: u32::MAX,
            omap_digest: u32::MAX,
            ..CopyData::default()
        };
        if self.old.oid.is_head() {
            reply.snap_seq = self.snapset.seq;
        } else {
            reply.snaps =
                self.snapset.clone_snaps.get(&self.old.oid.snap).cloned().unwrap_or_default();
        }
        if !cursor.attr_complete {
            reply.attrs = self.user_attrs().await?;
            cursor.attr_complete = true;
        }
        let mut left = max.min(self.env.limits.object_size);
        if left > 0 && !cursor.data_complete {
            if cursor.data_offset < oi.size {
                let want = left.min(oi.size - cursor.data_offset);
                let data = self.env.reader.read(&self.key, cursor.data_offset, want).await?;
                reply.data = if let [one] = &data[..] { one.clone() } else { data.concat().into() };
                if reply.data.len() as u64 != want {
                    return Err(Errno::EIO);
                }
                cursor.data_offset += want;
                left -= want;
            }
            cursor.data_complete = cursor.data_offset >= oi.size;
        }
        if !oi.is_omap() {
            cursor.omap_complete = true;
        } else if left > 0 && cursor.data_complete && !cursor.omap_complete {
            if cursor.omap_offset.is_empty() {
                reply.omap_header = self.env.reader.omap_header(&self.key).await?;
            }
            let page = self
                .env
                .reader
                .omap_list(
                    &self.key,
                    &cursor.omap_offset,
                    cursor.omap_offset.is_empty(),
                    usize::MAX,
                    left as usize,
                )
                .await?;
            if let Some((last, _)) = page.rows.last() {
                cursor.omap_offset = last.clone();
                reply.omap_data = page.rows.to_bytes(Features::ALL);
            }
            cursor.omap_complete = !page.more;
        }
        reply.cursor = cursor;
        let mut b = BytesMut::with_capacity(256 + reply.data.len());
        reply.encode(&mut b, Features::ALL);
        out.outdata.push(b.freeze());
        Ok(0)
    }
}
