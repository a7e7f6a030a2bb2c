//! Results of operations as values.

use super::ChecksumKind;
use crate::error::{ClientError, Result};
use crate::objecter::OpOutcome;
use bytes::Bytes;
use denc::{Decode, Reader};
use messages::{Op, OpArgs};
use std::collections::{BTreeMap, BTreeSet};
use types::Utime;
use types::rados::{OpCode, checksum_type};
use types::replies::{ListSnapsResponse, ListWatchersResponse, WatchItem};

/// Size and time of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Time of the last change.
    pub mtime: Utime,
}

/// The parts of a range that have data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sparse {
    /// Offset and length of each part, in order.
    pub extents: Vec<(u64, u64)>,
    /// Their data, one after the other.
    pub data: Bytes,
}

/// A page of an omap listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OmapPage<T> {
    /// The entries.
    pub entries: T,
    /// Whether there is more behind it.
    pub more: bool,
}

impl OpOutcome {
    /// The operation at `at`, if it is one of these and has not failed.
    fn result(&self, at: usize, codes: &[OpCode]) -> Result<&Op> {
        if let Some(e) = ClientError::from_code(self.result) {
            return Err(e);
        }
        let op = self.ops.get(at).filter(|op| codes.contains(&op.code));
        let op = op.ok_or(ClientError::Invalid("no such operation at this position"))?;
        match ClientError::from_code(op.rval) {
            Some(e) => Err(e),
            None => Ok(op),
        }
    }

    fn reader(&self, at: usize, codes: &[OpCode]) -> Result<Reader> {
        Ok(Reader::new(self.result(at, codes)?.outdata.clone()))
    }

    /// What the operation at `at` read: data, an attribute, an omap header, a class method's
    /// output.
    pub fn data(&self, at: usize) -> Result<Bytes> {
        let codes = [OpCode::READ, OpCode::GETXATTR, OpCode::OMAPGETHEADER, OpCode::CALL];
        Ok(self.result(at, &codes)?.outdata.clone())
    }

    /// Of [`Operation::stat`](super::Operation::stat).
    pub fn stat(&self, at: usize) -> Result<Stat> {
        let mut r = self.reader(at, &[OpCode::STAT])?;
        Ok(Stat { size: r.get()?, mtime: r.get()? })
    }

    /// Of [`Operation::sparse_read`](super::Operation::sparse_read).
    pub fn sparse(&self, at: usize) -> Result<Sparse> {
        let mut r = self.reader(at, &[OpCode::SPARSE_READ])?;
        let extents: BTreeMap<u64, u64> = BTreeMap::decode(&mut r)?;
        Ok(Sparse { extents: extents.into_iter().collect(), data: r.get()? })
    }

    /// Of [`Operation::map_extents`](super::Operation::map_extents): offsets and lengths.
    pub fn extents(&self, at: usize) -> Result<BTreeMap<u64, u64>> {
        Ok(self.reader(at, &[OpCode::MAPEXT])?.get()?)
    }

    /// Of [`Operation::checksum`](super::Operation::checksum), in order.
    pub fn checksums(&self, at: usize, kind: ChecksumKind) -> Result<Vec<u64>> {
        let op = self.result(at, &[OpCode::CHECKSUM])?;
        // An OSD gives the operation back as it was.
        if let OpArgs::Checksum { kind: k, .. } = op.args
            && k <= checksum_type::CRC32C
            && k != kind.number()
        {
            return Err(ClientError::Invalid("another kind of checksum was asked for"));
        }
        if op.outdata.is_empty() {
            return Ok(Vec::new());
        }
        let mut r = Reader::new(op.outdata.clone());
        Ok(match kind {
            ChecksumKind::XxHash64 => r.get()?,
            _ => r.get::<Vec<u32>>()?.into_iter().map(u64::from).collect(),
        })
    }

    /// Of [`Operation::get_xattrs`](super::Operation::get_xattrs).
    pub fn xattrs(&self, at: usize) -> Result<BTreeMap<Bytes, Bytes>> {
        Ok(self.reader(at, &[OpCode::GETXATTRS])?.get()?)
    }

    /// Of [`Operation::omap_keys`](super::Operation::omap_keys).
    pub fn omap_keys(&self, at: usize) -> Result<OmapPage<BTreeSet<Bytes>>> {
        page(self.reader(at, &[OpCode::OMAPGETKEYS])?)
    }

    /// Of [`Operation::omap_values`](super::Operation::omap_values).
    pub fn omap(&self, at: usize) -> Result<OmapPage<BTreeMap<Bytes, Bytes>>> {
        page(self.reader(at, &[OpCode::OMAPGETVALS])?)
    }

    /// Of [`Operation::omap_values_by_keys`](super::Operation::omap_values_by_keys). Keys that are
    /// not there are left out.
    pub fn omap_values(&self, at: usize) -> Result<BTreeMap<Bytes, Bytes>> {
        Ok(self.reader(at, &[OpCode::OMAPGETVALSBYKEYS])?.get()?)
    }

    /// Of [`Operation::list_watchers`](super::Operation::list_watchers).
    pub fn watchers(&self, at: usize) -> Result<Vec<WatchItem>> {
        let list: ListWatchersResponse = self.reader(at, &[OpCode::LIST_WATCHERS])?.get()?;
        Ok(list.entries)
    }

    /// Of [`Operation::list_snaps`](super::Operation::list_snaps).
    pub fn snaps(&self, at: usize) -> Result<ListSnapsResponse> {
        Ok(self.reader(at, &[OpCode::LIST_SNAPS])?.get()?)
    }
}

/// OSDs before Luminous do not say whether there is more.
fn page<T: Decode>(mut r: Reader) -> Result<OmapPage<T>> {
    let entries = T::decode(&mut r)?;
    Ok(OmapPage { entries, more: if r.left() > 0 { r.get()? } else { false } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::{Encode, Features};
    use types::{Epoch, Errno};

    fn outcome(result: i32, ops: Vec<Op>) -> OpOutcome {
        OpOutcome { result, ops, user_version: 1, epoch: Epoch(1) }
    }

    fn done(code: OpCode, outdata: Bytes) -> Op {
        Op { outdata, ..Op::new(code, OpArgs::default()) }
    }

    #[test]
    fn a_result_is_read_as_what_was_asked_for() {
        let stat = (7u64, Utime::ZERO).to_bytes(Features::ALL);
        let all = outcome(0, vec![done(OpCode::STAT, stat), done(OpCode::READ, "x".into())]);
        assert_eq!(all.stat(0).unwrap().size, 7);
        assert_eq!(all.data(1).unwrap(), "x");
        assert!(matches!(all.stat(1), Err(ClientError::Invalid(_))));
        assert!(matches!(all.data(2), Err(ClientError::Invalid(_))));
        let mut failed = done(OpCode::READ, Bytes::new());
        failed.rval = -Errno::EIO.0;
        let failed = outcome(0, vec![failed]);
        assert_eq!(failed.data(0).unwrap_err().errno(), Errno::EIO);
        let gone = outcome(-Errno::ENOENT.0, vec![done(OpCode::STAT, Bytes::new())]);
        assert_eq!(gone.stat(0).unwrap_err().errno(), Errno::ENOENT);
        let cut = outcome(0, vec![done(OpCode::STAT, Bytes::from_static(b"abc"))]);
        assert!(matches!(cut.stat(0), Err(ClientError::Value(_))));
    }

    #[test]
    fn pages_checksums_and_holes() {
        let keys = BTreeSet::from([Bytes::from_static(b"k")]);
        let mut out = keys.to_bytes(Features::ALL).to_vec();
        let old = outcome(0, vec![done(OpCode::OMAPGETKEYS, out.clone().into())]);
        assert_eq!(old.omap_keys(0).unwrap(), OmapPage { entries: keys.clone(), more: false });
        out.push(1);
        let new = outcome(0, vec![done(OpCode::OMAPGETKEYS, out.into())]);
        assert_eq!(new.omap_keys(0).unwrap(), OmapPage { entries: keys, more: true });

        let sums = vec![1u32, u32::MAX].to_bytes(Features::ALL);
        let args =
            OpArgs::Checksum { offset: 0, length: 8, chunk_size: 4, kind: checksum_type::CRC32C };
        let op = Op { outdata: sums, ..Op::new(OpCode::CHECKSUM, args) };
        let sums = outcome(0, vec![op]);
        assert_eq!(sums.checksums(0, ChecksumKind::Crc32c).unwrap(), [1, u32::MAX.into()]);
        assert!(sums.checksums(0, ChecksumKind::XxHash64).is_err());

        let mut sparse = BTreeMap::from([(4096u64, 2u64)]).to_bytes(Features::ALL).to_vec();
        sparse.extend_from_slice(&Bytes::from_static(b"ab").to_bytes(Features::ALL));
        let sparse = outcome(0, vec![done(OpCode::SPARSE_READ, sparse.into())]);
        let want = Sparse { extents: vec![(4096, 2)], data: "ab".into() };
        assert_eq!(sparse.sparse(0).unwrap(), want);
    }
}
