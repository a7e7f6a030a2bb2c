//! Object maps (`rbd_object_map.ID`): which data objects of an image exist, and which of them are
//! as they were at the last snapshot.

use super::bit_vector::{BitVector, HEADER_LEN, Layout, block_crcs, change_elements};
use super::omap::{Args, optional};
use super::types::MAX_OBJECT_MAP_OBJECT_COUNT;
use crate::context::Object;
use crate::method::{Ignored, Raw, decode, encode};
use bytes::{Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use types::errno::Errno;

/// The object exists (Ceph: `OBJECT_EXISTS`, `include/rbd/object_map_types.h`; 0 is that it does
/// not, and 2 that it is being removed).
const EXISTS: u8 = 1;
/// It exists and did not change since the last snapshot (Ceph: `OBJECT_EXISTS_CLEAN`).
const EXISTS_CLEAN: u8 = 3;

/// Reads a map; ENOENT if there is none or it is empty, EINVAL if it is damaged.
async fn read(object: Object<'_>) -> Result<BitVector, Errno> {
    let (size, _) = object.stat().await?;
    if size == 0 {
        return Err(Errno::ENOENT);
    }
    decode(object.read(0, size).await?, Errno::EINVAL)
}

/// The map, without checksums: the messenger has its own.
pub async fn object_map_load(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let mut map = read(object).await?;
    map.has_crcs = false;
    Ok(encode(&map))
}

/// Replaces the map.
pub async fn object_map_save(object: Object<'_>, mut map: BitVector) -> Result<(), Errno> {
    map.has_crcs = true;
    object.write_full(encode(&map)).await
}

/// Makes the map one of so many objects; new ones get a state. ESTALE if an object that would be
/// cut off is not in that state, EINVAL if there would be too many.
pub async fn object_map_resize(object: Object<'_>, (count, state): (u64, u8)) -> Result<(), Errno> {
    if count > MAX_OBJECT_MAP_OBJECT_COUNT {
        return Err(Errno::EINVAL);
    }
    let mut map = optional(read(&mut *object).await)?.unwrap_or_default();
    if (count..map.size()).any(|i| map.get(i) != Some(state)) {
        return Err(Errno::ESTALE);
    }
    map.resize(count, state);
    object.write_full(encode(&map)).await
}

/// Changes the state of some objects. Input: the first of them, the one behind the last, the new
/// state, and the state that they must have had, if it matters. Only the blocks with these objects,
/// and their checksums, are read and written.
pub async fn object_map_update(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let mut args = Args::new(input);
    let objects = args.get::<u64>()?..args.get::<u64>()?;
    let new_state: u8 = args.get()?;
    let expected: Option<u8> = args.get()?;
    object.stat().await?;

    let header = object.read(0, HEADER_LEN).await?;
    let layout = Layout::decode(&mut Reader::new(header)).map_err(|_| Errno::EINVAL)?;
    if objects.start >= objects.end || objects.end > layout.size {
        return Err(Errno::ERANGE);
    }
    let blocks = layout.blocks_of(&objects);
    let data_range = layout.data_of(&blocks);
    let data_len = data_range.end - data_range.start;
    let crcs_range = layout.crcs_of(&blocks).ok_or(Errno::EINVAL)?;

    let crcs = object.read(crcs_range.start, crcs_range.end - crcs_range.start).await?;
    let data = object.read(HEADER_LEN + data_range.start, data_len).await?;
    let mut crcs = Reader::new(crcs);
    if data.len() as u64 != data_len || !block_crcs(&data).all(|crc| crcs.get() == Ok(crc)) {
        return Err(Errno::EINVAL);
    }

    let mut data = BytesMut::from(data);
    // An object that is to have existed may also be unchanged.
    let fits =
        |state: u8| expected.is_none_or(|e| state == e || (e == EXISTS && state == EXISTS_CLEAN));
    // Elements are counted from the first block.
    let skipped = data_range.start * 4;
    let changed =
        change_elements(&mut data, objects.start - skipped..objects.end - skipped, |state| {
            if fits(state) { new_state } else { state }
        });
    if changed {
        let mut crcs = BytesMut::new();
        block_crcs(&data).for_each(|crc| crc.encode(&mut crcs, Features::ALL));
        object.write(HEADER_LEN + data_range.start, data.freeze()).await?;
        object.write(crcs_range.start, crcs.freeze()).await?;
    }
    Ok(())
}

/// A snapshot was taken: from now on, existing objects are unchanged.
pub async fn object_map_snap_add(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    let mut map = read(&mut *object).await?;
    if map.change(0..u64::MAX, |state| if state == EXISTS { EXISTS_CLEAN } else { state }) {
        object.write_full(encode(&map)).await?;
    }
    Ok(())
}

/// A snapshot with the input as its map was removed: what was unchanged since it, but had changed
/// before it, has now changed since the snapshot before.
pub async fn object_map_snap_remove(object: Object<'_>, snap_map: BitVector) -> Result<(), Errno> {
    let mut map = read(&mut *object).await?;
    let mut changed = false;
    for i in 0..map.size() {
        if map.get(i) == Some(EXISTS_CLEAN) && snap_map.get(i).is_none_or(|state| state == EXISTS) {
            map.set(i, EXISTS);
            changed = true;
        }
    }
    if changed {
        object.write_full(encode(&map)).await?;
    }
    Ok(())
}
