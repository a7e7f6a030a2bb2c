//! Images of the first format (Ceph: `rbd_obj_header_ondisk`, `include/rbd_types.h`).
//!
//! The bytes of `NAME.rbd` are a header of 112 bytes, then id and size of each snapshot, newest
//! first, then their names in the same order, each ended by a zero byte. Clients read the header
//! themselves; methods exist only for what must not be lost when two clients change it.

use super::snapshot;
use crate::context::Object;
use crate::method::{Ignored, decode};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use types::SnapId;
use types::errno::Errno;

/// Length of the header before the snapshots.
const HEADER_LEN: u64 = 112;
/// Where the fields begin that change; what is in front of them describes the image.
const IMAGE_SIZE_AT: usize = 80;

/// The text that a header begins with, with a zero byte behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderText {
    /// An image (Ceph: `RBD_HEADER_TEXT`).
    Image,
    /// An image that is being migrated away (Ceph: `RBD_MIGRATE_HEADER_TEXT`).
    Migrating,
}

impl HeaderText {
    /// Length with the zero byte.
    const LEN: usize = 34;

    const fn text(self) -> &'static [u8] {
        match self {
            HeaderText::Image => b"<<< Rados Block Device Image >>>\n\0",
            HeaderText::Migrating => b"<<< Migrating RBD Image      >>>\n\0",
        }
    }

    /// What is written to change one into the other.
    pub fn stored(self) -> Bytes {
        Bytes::from_static(self.text()).slice(..Self::LEN - 1)
    }
}

/// Which text the object begins with; ENXIO if neither.
pub async fn read_text(object: Object<'_>) -> Result<HeaderText, Errno> {
    let text = object.read(0, HeaderText::LEN as u64).await?;
    [HeaderText::Image, HeaderText::Migrating]
        .into_iter()
        .find(|t| text == t.text())
        .ok_or(Errno::ENXIO)
}

/// A snapshot.
pub struct Snap {
    id: SnapId,
    image_size: u64,
    name: Bytes,
}

/// The header with its snapshots, newest first.
pub struct Header {
    /// Text, names, version and options, as they are.
    fixed: Bytes,
    image_size: u64,
    snap_seq: SnapId,
    reserved: u32,
    /// The snapshots.
    pub snaps: Vec<Snap>,
}

/// Reads the header. EINVAL if the object is too short to be one, EIO if the snapshots are not what
/// the header says.
pub async fn read_header(object: Object<'_>) -> Result<Header, Errno> {
    let head = object.read(0, HEADER_LEN).await?;
    if (head.len() as u64) < HEADER_LEN {
        return Err(Errno::EINVAL);
    }
    let broken = |_| Errno::EIO;
    let mut r = Reader::new(head);
    let fixed = r.bytes("rbd_obj_header_ondisk", IMAGE_SIZE_AT).map_err(broken)?;
    let image_size = r.get().map_err(broken)?;
    let snap_seq = r.get().map_err(broken)?;
    let snap_count: u32 = r.get().map_err(broken)?;
    let reserved = r.get().map_err(broken)?;
    let names_len: u64 = r.get().map_err(broken)?;

    let mut header = Header { fixed, image_size, snap_seq, reserved, snaps: Vec::new() };
    let ids_len = u64::from(snap_count) * 16;
    let rest_len = ids_len.saturating_add(names_len);
    if rest_len == 0 {
        return Ok(header);
    }
    let rest = object.read(HEADER_LEN, rest_len).await?;
    if (rest.len() as u64) < rest_len {
        return Err(Errno::EIO);
    }
    let mut r = Reader::new(rest);
    let mut ids = r.sub("snapshots", ids_len as usize).map_err(broken)?;
    for _ in 0..snap_count {
        let (id, image_size) = ids.get().map_err(broken)?;
        let len = r.peek().iter().position(|&b| b == 0).ok_or(Errno::EIO)?;
        let name = r.bytes("snapshot name", len).map_err(broken)?;
        r.skip("end of name", 1).map_err(broken)?;
        header.snaps.push(Snap { id, image_size, name });
    }
    Ok(header)
}

impl Header {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        let f = Features::ALL;
        let names_len: u64 = self.snaps.iter().map(|snap| snap.name.len() as u64 + 1).sum();
        out.put_slice(&self.fixed);
        self.image_size.encode(&mut out, f);
        self.snap_seq.encode(&mut out, f);
        // Every snapshot was read from, or fits behind, a count of 32 bits.
        (self.snaps.len() as u32).encode(&mut out, f);
        self.reserved.encode(&mut out, f);
        names_len.encode(&mut out, f);
        for snap in &self.snaps {
            (snap.id, snap.image_size).encode(&mut out, f);
        }
        for snap in &self.snaps {
            out.put_slice(&snap.name);
            out.put_u8(0);
        }
        out.freeze()
    }

    fn has(&self, name: &[u8]) -> bool {
        self.snaps.iter().any(|snap| snap.name == name)
    }
}

/// A name as C knows it: up to the first zero byte.
fn c_name(name: Bytes) -> Bytes {
    match name.iter().position(|&b| b == 0) {
        Some(len) => name.slice(..len),
        None => name,
    }
}

/// Newest snapshot id ever, then number, and id, size and name of each snapshot.
pub async fn snap_list(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let header = read_header(object).await?;
    let mut out = BytesMut::new();
    let f = Features::ALL;
    header.snap_seq.encode(&mut out, f);
    (header.snaps.len() as u32).encode(&mut out, f);
    for snap in &header.snaps {
        (snap.id, snap.image_size, &snap.name).encode(&mut out, f);
    }
    Ok(out.freeze())
}

/// Adds a snapshot. ESTALE if the image had a newer one, EEXIST if the name is in use, EDQUOT if
/// there are as many as may be.
pub async fn snap_add(object: Object<'_>, input: crate::method::Raw) -> Result<(), Errno> {
    let mut header = read_header(&mut *object).await?;
    let (name, id): (Bytes, SnapId) = decode(input.0, Errno::EINVAL)?;
    let name = c_name(name);
    if header.snap_seq > id {
        return Err(Errno::ESTALE);
    }
    if header.snaps.len() as u64 >= snapshot::limit(&mut *object).await? {
        return Err(Errno::EDQUOT);
    }
    if header.has(&name) {
        return Err(Errno::EEXIST);
    }
    header.snap_seq = id;
    header.snaps.insert(0, Snap { id, image_size: header.image_size, name });
    object.write_full(header.encode()).await
}

/// Removes the snapshot of this name.
pub async fn snap_remove(object: Object<'_>, input: crate::method::Raw) -> Result<(), Errno> {
    let mut header = read_header(&mut *object).await?;
    let name = c_name(decode(input.0, Errno::EINVAL)?);
    let at = header.snaps.iter().position(|snap| snap.name == name).ok_or(Errno::ENOENT)?;
    header.snaps.remove(at);
    object.write_full(header.encode()).await
}

/// Gives the snapshot of this id another name.
pub async fn snap_rename(object: Object<'_>, input: crate::method::Raw) -> Result<(), Errno> {
    let mut header = read_header(&mut *object).await?;
    let (id, name): (SnapId, Bytes) = decode(input.0, Errno::EINVAL)?;
    let name = c_name(name);
    if header.has(&name) {
        return Err(Errno::EEXIST);
    }
    let snap = header.snaps.iter_mut().find(|snap| snap.id == id).ok_or(Errno::ENOENT)?;
    snap.name = name;
    object.write_full(header.encode()).await
}
