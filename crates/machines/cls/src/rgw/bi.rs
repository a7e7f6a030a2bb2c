//! Raw rows of an index, for tools and for moving them to other shards.

use super::{keys, rows};
use crate::context::Object;
use crate::method::{decode, encode};
use ::rgw::bi::{BiEntry, BiGetOp, BiListOp, BiListRet, BiRow, BiType};
use ::rgw::entry::DirEntry;
use ::rgw::key::ObjKey;
use ::rgw::olh::OlhEntry;
use bytes::Bytes;
use types::errno::Errno;

/// Rows in one answer at most.
const MAX_LIST: u32 = 1000;

pub(super) async fn get(object: Object<'_>, op: BiGetOp) -> Result<Bytes, Errno> {
    let idx = match op.kind {
        BiType::PLAIN => op.key.name.clone(),
        BiType::INSTANCE => keys::object(&op.key),
        BiType::OLH => keys::olh(&op.key.name),
        _ => return Err(Errno::EINVAL),
    };
    let data = object.map_get_val(&idx).await?;
    Ok(encode(&BiRow { entry: BiEntry { kind: op.kind, idx, data } }))
}

/// A write that fails is not told, as in Ceph.
pub(super) async fn put(object: Object<'_>, op: BiRow) -> Result<(), Errno> {
    if let Err(error) = object.map_set_val(&op.entry.idx, op.entry.data).await {
        tracing::error!(%error, "a row of an index could not be written");
    }
    Ok(())
}

/// How far a part of a listing came.
struct Listed {
    count: u32,
    more: bool,
}

/// Rows in the order of listings, up to before `end` if that is not empty. The flag says that the
/// end was reached.
async fn plain_range(
    object: Object<'_>,
    name: &[u8],
    after: &[u8],
    end: &[u8],
    max: u32,
    entries: &mut Vec<BiEntry>,
) -> Result<(Listed, bool), Errno> {
    let page = object.map_get_vals(after, name, max.into()).await?;
    let mut count = 0;
    for (key, data) in page.rows {
        if !end.is_empty() && &key[..] >= end {
            return Ok((Listed { count, more: true }, true));
        }
        let entry: DirEntry = decode(data.clone(), Errno::EIO)?;
        if !name.is_empty() && entry.key.name != name {
            return Ok((Listed { count, more: false }, false));
        }
        entries.push(BiEntry { kind: BiType::PLAIN, idx: key, data });
        count += 1;
        if count as i32 >= max as i32 {
            break;
        }
    }
    Ok((Listed { count, more: page.more }, false))
}

/// Names that come before the rows of other kinds.
async fn low(
    object: Object<'_>,
    op: &BiListOp,
    max: u32,
    entries: &mut Vec<BiEntry>,
) -> Result<Listed, Errno> {
    if &op.marker[..] >= keys::LOG {
        return Ok(Listed { count: 0, more: false });
    }
    let (found, ended) = plain_range(object, &op.name, &op.marker, keys::LOG, max, entries).await?;
    Ok(Listed { more: found.more && !ended, ..found })
}

/// Names that come after the rows of other kinds.
async fn high(
    object: Object<'_>,
    op: &BiListOp,
    max: u32,
    entries: &mut Vec<BiEntry>,
) -> Result<Listed, Errno> {
    let after = op.marker.clone().max(Bytes::from_static(keys::END));
    Ok(plain_range(object, &op.name, &after, b"", max, entries).await?.0)
}

/// Rows of another kind, which begin with `prefix`; `name_of` reads a row as far as the object's
/// name.
#[allow(clippy::too_many_arguments)]
async fn special(
    object: Object<'_>,
    op: &BiListOp,
    kind: BiType,
    prefix: &Bytes,
    name_of: fn(Bytes) -> Result<Bytes, Errno>,
    mut max: u32,
    mut more: bool,
    entries: &mut Vec<BiEntry>,
) -> Result<Listed, Errno> {
    let mut after = prefix.clone();
    if keys::comes_after(&op.marker, &after) {
        after = op.marker.clone();
    }
    let mut found = std::collections::BTreeMap::new();
    let first = rows::optional(object.map_get_val(&after).await)?;
    // The marker's row was in the answer before.
    if let Some(first) = first.filter(|_| after != op.marker) {
        // Wraps around where nothing was left to list, as in Ceph; the caller drops what is too
        // much.
        max = max.wrapping_sub(1);
        found.insert(after.clone(), first);
    }
    if max > 0 {
        let page = object.map_get_vals(&after, b"", max.into()).await?;
        more = page.more;
        found.extend(page.rows);
    }
    let mut count = 0;
    for (key, data) in found {
        let stop =
            !key.starts_with(prefix) || (name_of(data.clone())? != op.name && !op.name.is_empty());
        if stop {
            return Ok(Listed { count, more: false });
        }
        entries.push(BiEntry { kind, idx: key, data });
        count += 1;
    }
    Ok(Listed { count, more })
}

/// All rows of objects, or of versions, after a row; the answer says whether there are more.
pub(super) async fn of_kind(
    object: Object<'_>,
    kind: BiType,
    after: &Bytes,
    max: u32,
    entries: &mut Vec<BiEntry>,
) -> Result<bool, Errno> {
    let op = BiListOp { marker: after.clone(), ..BiListOp::default() };
    if kind == BiType::INSTANCE {
        let prefix = Bytes::from_static(keys::INSTANCES);
        let found = special(object, &op, kind, &prefix, name_of_entry, max, false, entries).await?;
        return Ok(found.more);
    }
    let before = low(object, &op, max, entries).await?;
    if before.more || before.count >= max {
        return Ok(true);
    }
    Ok(high(object, &op, max - before.count, entries).await?.more)
}

fn name_of_entry(data: Bytes) -> Result<Bytes, Errno> {
    decode::<DirEntry>(data, Errno::EIO).map(|e| e.key.name)
}

fn name_of_olh(data: Bytes) -> Result<Bytes, Errno> {
    decode::<OlhEntry>(data, Errno::EIO).map(|e| e.key.name)
}

pub(super) async fn list(object: Object<'_>, op: BiListOp) -> Result<Bytes, Errno> {
    let mut ret = BiListRet::default();
    let max = op.max.min(MAX_LIST);
    let entries = &mut ret.entries;
    let Listed { mut count, mut more } = low(object, &op, max, entries).await?;
    let (instances, olh) = if op.name.is_empty() {
        (Bytes::from_static(keys::INSTANCES), Bytes::from_static(keys::OLH))
    } else {
        (keys::instance(&ObjKey::plain(op.name.clone())), keys::olh(&op.name))
    };
    let kinds: [(BiType, Bytes, fn(Bytes) -> Result<Bytes, Errno>); 2] =
        [(BiType::INSTANCE, instances, name_of_entry), (BiType::OLH, olh, name_of_olh)];
    // Names after the rows of other kinds come last.
    let past = keys::is_listed(&op.marker) && &op.marker[..] > keys::END;
    for (kind, prefix, name_of) in kinds {
        if more || past {
            break;
        }
        let left = max.wrapping_sub(count);
        let found = special(object, &op, kind, &prefix, name_of, left, more, entries).await?;
        count += found.count;
        more = found.more;
    }
    if !more {
        let left = max.saturating_sub(count);
        let found = high(object, &op, left, entries).await?;
        count += found.count;
        more = found.more;
    }
    ret.is_truncated = count > max || more;
    let surplus = count.saturating_sub(max) as usize;
    ret.entries.truncate(ret.entries.len() - surplus);
    Ok(encode(&ret))
}
