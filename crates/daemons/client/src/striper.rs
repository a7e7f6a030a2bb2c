//! Files over objects: which bytes of a file are where, and reading and writing them
//! (Ceph: `doc/architecture.rst`, "Data Striping"; `osdc/Striper.cc`, `osdc/Filer.cc`).
//!
//! ```text
//! stripe_count 3, object_size 2 * stripe_unit:
//!
//!              object 0   object 1   object 2  |  object 3   object 4   object 5
//! stripe 0:      0          1          2       |
//! stripe 1:      3          4          5       |             second object set
//! stripe 2:                                    |    6          7          8
//! stripe 3:                                    |    9         10         11
//! ```

use crate::error::{ClientError, Result};
use crate::ioctx::IoCtx;
use crate::operation::Operation;
use bytes::{Bytes, BytesMut};
use std::rc::Rc;
use tokio::task::JoinSet;
use types::Errno;

/// Ceph's stripes are multiples of this many bytes (`CEPH_MIN_STRIPE_UNIT`).
const STRIPE_UNIT_MIN: u32 = 65536;

/// How a file is cut into objects (Ceph: the first three fields of `ceph_file_layout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    stripe_unit: u32,
    stripe_count: u32,
    object_size: u32,
}

/// A part of a file in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of the object.
    pub object: u64,
    /// First byte in the object.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Offsets and lengths of its pieces in the range that was asked for, in the object's order.
    pub pieces: Vec<(u64, u64)>,
}

impl Layout {
    /// CephFS's layout unless another is set: objects of 4 MiB, one after the other.
    pub const DEFAULT: Layout =
        Layout { stripe_unit: 4 << 20, stripe_count: 1, object_size: 4 << 20 };

    /// A layout as Ceph allows it (`file_layout_t::is_valid`): stripe units are multiples of
    /// 64 KiB, and objects of whole stripe units.
    pub fn new(stripe_unit: u32, stripe_count: u32, object_size: u32) -> Result<Layout> {
        let valid = stripe_unit > 0
            && stripe_unit.is_multiple_of(STRIPE_UNIT_MIN)
            && object_size > 0
            && object_size.is_multiple_of(stripe_unit)
            && stripe_count > 0;
        if !valid {
            return Err(ClientError::Invalid(
                "a layout: stripe units are multiples of 64 KiB, objects of stripe units",
            ));
        }
        Ok(Layout { stripe_unit, stripe_count, object_size })
    }

    /// Bytes of a stripe unit.
    pub fn stripe_unit(&self) -> u32 {
        self.stripe_unit
    }

    /// Objects that a stripe goes over.
    pub fn stripe_count(&self) -> u32 {
        self.stripe_count
    }

    /// Bytes of an object at most.
    pub fn object_size(&self) -> u32 {
        self.object_size
    }

    /// Bytes of an object set: `stripe_count` objects.
    pub fn period(&self) -> u64 {
        u64::from(self.object_size) * u64::from(self.stripe_count)
    }

    /// Where a byte of the file is: object, and offset in it.
    pub fn locate(&self, offset: u64) -> (u64, u64) {
        let (unit, count) = (u64::from(self.stripe_unit), u64::from(self.stripe_count));
        let units_per_object = u64::from(self.object_size / self.stripe_unit);
        let block = offset / unit;
        let (stripe, column) = (block / count, block % count);
        let (set, row) = (stripe / units_per_object, stripe % units_per_object);
        (set * count + column, row * unit + offset % unit)
    }

    /// The parts of a range, by object in ascending order.
    pub fn map(&self, offset: u64, length: u64) -> Vec<Extent> {
        let end = offset.saturating_add(length);
        let unit = u64::from(self.stripe_unit);
        let mut extents: Vec<Extent> = Vec::new();
        let mut by_object = rustc_hash::FxHashMap::default();
        let mut at = offset;
        while at < end {
            let (object, from) = self.locate(at);
            let piece = (unit - from % unit).min(end - at);
            let i = *by_object.entry(object).or_insert_with(|| {
                extents.push(Extent { object, offset: from, length: 0, pieces: Vec::new() });
                extents.len() - 1
            });
            extents[i].length += piece;
            match extents[i].pieces.last_mut() {
                // With one object to a stripe, what follows in the file follows in the object.
                Some((start, len)) if *start + *len == at - offset => *len += piece,
                _ => extents[i].pieces.push((at - offset, piece)),
            }
            at += piece;
        }
        extents.sort_unstable_by_key(|e| e.object);
        extents
    }

    /// Bytes of an object of a file of `size` bytes (Ceph: `Striper::object_truncate_size`).
    pub fn object_length(&self, object: u64, size: u64) -> u64 {
        let (unit, count) = (u64::from(self.stripe_unit), u64::from(self.stripe_count));
        let (set, column) = (object / count, object % count);
        let Some(begin) = set.checked_mul(self.period()).filter(|begin| *begin < size) else {
            return 0;
        };
        let rest = (size - begin).min(self.period());
        let (stripes, tail) = (rest / (unit * count), rest % (unit * count));
        stripes * unit + tail.saturating_sub(column * unit).min(unit)
    }

    /// How many objects a file of `size` bytes may have: those from this number on have no data.
    pub fn objects(&self, size: u64) -> u64 {
        let sets = size / self.period();
        let rest = size % self.period();
        let units = rest.div_ceil(u64::from(self.stripe_unit));
        sets * u64::from(self.stripe_count) + units.min(self.stripe_count.into())
    }

    /// The end of the file up to which an object reaches that has `length` bytes; the inverse of
    /// [`Self::locate`] for its last byte.
    pub fn end_of(&self, object: u64, length: u64) -> u64 {
        let Some(last) = length.checked_sub(1) else { return 0 };
        let (unit, count) = (u64::from(self.stripe_unit), u64::from(self.stripe_count));
        let (set, column) = (object / count, object % count);
        let (row, byte) = (last / unit, last % unit);
        set.saturating_mul(self.period())
            .saturating_add(row.saturating_mul(count).saturating_add(column).saturating_mul(unit))
            .saturating_add(byte + 1)
    }
}

/// Gives an object its name by its number.
pub type Namer = Rc<dyn Fn(u64) -> Bytes>;

/// The bytes of a file, in objects. It knows no size: that stands wherever the owner of the file
/// keeps it, and reads beyond the last written byte give nothing.
///
/// Requests to several objects go side by side, within the objecter's
/// [`Limits`](crate::Limits); they are no transaction.
#[derive(Clone)]
pub struct Striper {
    io: IoCtx,
    layout: Layout,
    name: Namer,
}

impl Striper {
    /// A file whose objects have these names.
    pub fn new(io: IoCtx, layout: Layout, name: impl Fn(u64) -> Bytes + 'static) -> Self {
        Striper { io, layout, name: Rc::new(name) }
    }

    /// A file of CephFS: objects are named by inode and number.
    pub fn inode(io: IoCtx, layout: Layout, inode: u64) -> Self {
        Self::new(io, layout, move |object| format!("{inode:x}.{object:08x}").into())
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads a range. What was never written reads as zeros if there is data behind it, and is
    /// left out at the end: the result is shorter if the file ends within the range.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Bytes> {
        let extents = self.layout.map(offset, length);
        let reads = extents.into_iter().map(|extent| {
            let (io, name) = (self.io.clone(), (self.name)(extent.object));
            async move {
                match io.read(name, extent.offset, extent.length).await {
                    Ok(data) => Ok((extent, data)),
                    Err(e) if e.errno() == Errno::ENOENT => Ok((extent, Bytes::new())),
                    Err(e) => Err(e),
                }
            }
        });
        let mut parts = all(reads).await?;
        if let [(extent, data)] = &mut parts[..]
            && extent.pieces.len() == 1
        {
            return Ok(std::mem::take(data));
        }
        let mut whole = BytesMut::new();
        for (extent, data) in parts {
            let mut data = &data[..];
            for (at, length) in extent.pieces {
                let (piece, rest) = data.split_at(data.len().min(length as usize));
                data = rest;
                let (at, end) = (at as usize, at as usize + piece.len());
                if piece.is_empty() {
                    break;
                }
                if whole.len() < end {
                    whole.resize(end, 0);
                }
                whole[at..end].copy_from_slice(piece);
            }
        }
        Ok(whole.freeze())
    }

    /// Writes a range.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<()> {
        let extents = self.layout.map(offset, data.len() as u64);
        let writes = extents.into_iter().map(|extent| {
            let (io, name) = (self.io.clone(), (self.name)(extent.object));
            let part = gather(&data, &extent.pieces);
            async move { io.write(name, extent.offset, part).await }
        });
        all(writes).await.map(|_| ())
    }

    /// Zeroes a range. Whole objects are removed.
    pub async fn zero(&self, offset: u64, length: u64) -> Result<()> {
        let whole = u64::from(self.layout.object_size);
        let zeros = self.layout.map(offset, length).into_iter().map(|extent| {
            let (io, name) = (self.io.clone(), (self.name)(extent.object));
            async move {
                let operation = match extent.length == whole {
                    true => Operation::new().remove(),
                    false => Operation::new().zero(extent.offset, extent.length),
                };
                if_there(io.run(name, operation).await?.ok().map(|_| ()))
            }
        });
        all(zeros).await.map(|_| ())
    }

    /// Cuts the file, which had no more than `from` bytes, to `to` bytes.
    pub async fn truncate(&self, from: u64, to: u64) -> Result<()> {
        let kept = self.layout.objects(to);
        // Objects of the last set, some of which become shorter, and all behind it.
        let first = to / self.layout.period() * u64::from(self.layout.stripe_count);
        let mut cuts = JoinSet::new();
        for object in first..self.layout.objects(from) {
            let length = self.layout.object_length(object, to);
            let (io, name) = (self.io.clone(), (self.name)(object));
            cuts.spawn_local(async move {
                let operation = match object < kept {
                    // A truncation would make an object that is not there.
                    true => Operation::new().assert_exists().truncate(length),
                    false => Operation::new().remove(),
                };
                if_there(io.run(name, operation).await?.ok().map(|_| ()))
            });
            if cuts.len() >= CONCURRENT_MAX {
                joined(&mut cuts).await?;
            }
        }
        while !cuts.is_empty() {
            joined(&mut cuts).await?;
        }
        Ok(())
    }

    /// Removes a file that had no more than `size` bytes.
    pub async fn remove(&self, size: u64) -> Result<()> {
        self.truncate(size, 0).await
    }

    /// Where the data ends, from the objects that are there (Ceph: `Filer::probe`). `at_least` is a
    /// size that the file is known to have. A hole of a whole object set or more behind that ends
    /// the search.
    pub async fn size(&self, at_least: u64) -> Result<u64> {
        let count = u64::from(self.layout.stripe_count);
        let mut end = 0;
        let mut set = at_least / self.layout.period();
        loop {
            let stats = (set * count..(set + 1) * count).map(|object| {
                let (io, name) = (self.io.clone(), (self.name)(object));
                async move {
                    match io.stat(name).await {
                        Ok(stat) => Ok(Some((object, stat.size))),
                        Err(e) if e.errno() == Errno::ENOENT => Ok(None),
                        Err(e) => Err(e),
                    }
                }
            });
            let found: Vec<(u64, u64)> = all(stats).await?.into_iter().flatten().collect();
            let ends = found.iter().map(|(object, length)| self.layout.end_of(*object, *length));
            end = ends.fold(end, u64::max);
            if found.is_empty() {
                return Ok(end.max(at_least));
            }
            set += 1;
        }
    }
}

/// Requests of one call that go side by side.
const CONCURRENT_MAX: usize = 64;

/// Runs futures side by side, some at a time; their results in order. The first error ends all.
async fn all<T: 'static>(
    futures: impl Iterator<Item = impl Future<Output = Result<T>> + 'static>,
) -> Result<Vec<T>> {
    let mut results: Vec<Option<T>> = Vec::new();
    let mut running = JoinSet::new();
    for (i, future) in futures.enumerate() {
        results.push(None);
        running.spawn_local(async move { future.await.map(|value| (i, value)) });
        if running.len() >= CONCURRENT_MAX
            && let Some((i, value)) = joined(&mut running).await?
        {
            results[i] = Some(value);
        }
    }
    while let Some((i, value)) = joined(&mut running).await? {
        results[i] = Some(value);
    }
    Ok(results.into_iter().flatten().collect())
}

async fn joined<T: 'static>(running: &mut JoinSet<Result<T>>) -> Result<Option<T>> {
    match running.join_next().await {
        None => Ok(None),
        Some(Ok(result)) => result.map(Some),
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Some(Err(_)) => Err(ClientError::Shutdown),
    }
}

/// The pieces of a write for one object.
fn gather(data: &Bytes, pieces: &[(u64, u64)]) -> Bytes {
    let slice = |(at, length): &(u64, u64)| data.slice(*at as usize..(*at + *length) as usize);
    match pieces {
        [one] => slice(one),
        many => many
            .iter()
            .map(slice)
            .fold(BytesMut::new(), |mut whole, piece| {
                whole.extend_from_slice(&piece);
                whole
            })
            .freeze(),
    }
}

/// An object that is not there has nothing to take away.
fn if_there(result: Result<()>) -> Result<()> {
    match result {
        Err(e) if e.errno() == Errno::ENOENT => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1024;

    fn layout(unit_kib: u32, count: u32, object_kib: u32) -> Layout {
        Layout::new(unit_kib * 1024, count, object_kib * 1024).unwrap()
    }

    #[test]
    fn layouts_are_those_of_ceph() {
        for (unit, count, size) in
            [(0, 1, 1), (65536, 0, 65536), (65536, 1, 65537), (4096, 1, 65536), (65536, 1, 0)]
        {
            assert!(Layout::new(unit, count, size).is_err(), "{unit} {count} {size}");
        }
        assert_eq!(Layout::new(4 << 20, 1, 4 << 20).unwrap(), Layout::DEFAULT);
    }

    #[test]
    fn the_picture_is_true() {
        let l = layout(64, 3, 128);
        let objects: Vec<u64> = (0..12).map(|block| l.locate(block * 64 * KIB).0).collect();
        assert_eq!(objects, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
        assert_eq!(l.locate(3 * 64 * KIB + 5), (0, 64 * KIB + 5));
        let extents = l.map(32 * KIB, 4 * 64 * KIB);
        let first = Extent {
            object: 0,
            offset: 32 * KIB,
            length: 96 * KIB,
            pieces: vec![(0, 32 * KIB), (160 * KIB, 64 * KIB)],
        };
        assert_eq!(extents[0], first);
        assert_eq!(extents.len(), 3);
        let simple = Layout::DEFAULT.map(1, 10 << 20);
        assert!(simple.iter().all(|e| e.pieces.len() == 1));
        assert_eq!(simple.iter().map(|e| e.length).sum::<u64>(), 10 << 20);
    }

    /// Every byte of a small file, one after the other.
    fn lengths(l: &Layout, size: u64) -> Vec<u64> {
        let unit = u64::from(l.stripe_unit);
        let mut lengths = Vec::new();
        let mut at = 0;
        while at < size {
            let (object, offset) = l.locate(at);
            let piece = unit.min(size - at);
            if lengths.len() <= object as usize {
                lengths.resize(object as usize + 1, 0);
            }
            lengths[object as usize] = offset + piece;
            at += piece;
        }
        lengths
    }

    proptest! {
        #[test]
        fn a_range_is_cut_without_loss(
            unit in 1u32..4, count in 1u32..5, per in 1u32..4,
            offset in 0u64..4_000_000, length in 0u64..4_000_000,
        ) {
            let l = Layout::new(unit << 16, count, (unit << 16) * per).unwrap();
            let mut pieces = Vec::new();
            for e in l.map(offset, length) {
                let mut at = e.offset;
                prop_assert_eq!(e.pieces.iter().map(|p| p.1).sum::<u64>(), e.length);
                for (from, len) in e.pieces {
                    prop_assert_eq!(l.locate(offset + from), (e.object, at));
                    prop_assert_eq!(l.locate(offset + from + len - 1), (e.object, at + len - 1));
                    at += len;
                    pieces.push((from, len));
                }
            }
            pieces.sort_unstable();
            let mut next = 0;
            for (from, len) in pieces {
                prop_assert_eq!(from, next);
                next += len;
            }
            prop_assert_eq!(next, length);
        }

        #[test]
        fn objects_are_as_long_as_their_bytes(
            unit in 1u32..4, count in 1u32..5, per in 1u32..4, size in 0u64..4_000_000,
        ) {
            let l = Layout::new(unit << 16, count, (unit << 16) * per).unwrap();
            let want = lengths(&l, size);
            prop_assert_eq!(l.objects(size), want.len() as u64);
            for (object, length) in want.iter().enumerate() {
                prop_assert_eq!(l.object_length(object as u64, size), *length);
            }
            prop_assert_eq!(l.object_length(want.len() as u64, size), 0);
            let ends = want.iter().enumerate().map(|(o, len)| l.end_of(o as u64, *len));
            prop_assert_eq!(ends.max().unwrap_or(0), size);
        }
    }

    #[test]
    fn sizes_from_outside_do_not_overflow() {
        let l = layout(64, 3, 128);
        assert!(l.object_length(u64::MAX, u64::MAX) <= 128 * KIB);
        assert_eq!(l.end_of(u64::MAX, u64::MAX), u64::MAX);
        assert!(l.objects(u64::MAX) > 0);
        assert!(l.map(u64::MAX - 10, 100).len() == 1);
    }
}
