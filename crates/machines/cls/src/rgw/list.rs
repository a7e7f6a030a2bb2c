//! Listing a bucket's objects.

use super::{keys, rows};
use crate::context::Object;
use crate::method::{Output, decode, encode};
use ::rgw::entry::{DirEntry, flag};
use ::rgw::index::{LIST_ADVANCED, ListOp, ListRet};
use ::rgw::key::ObjKey;
use bytes::Bytes;
use std::ops::Bound;
use types::errno::Errno;

/// How often rows are read for one call, while what is read is not shown.
const MAX_ATTEMPTS: usize = 8;

/// Comes after all names that begin with a common prefix: no UTF-8 text has this byte.
fn after_delimiter(prefix: &[u8]) -> Bytes {
    [prefix, &[0xff]].concat().into()
}

/// Where to list from for an object: after its row.
async fn start_after(object: Object<'_>, key: &ObjKey) -> Result<Bytes, Errno> {
    if key.instance.is_empty() {
        return Ok(key.name.clone());
    }
    let mut version = key.clone();
    if &version.instance[..] == keys::NULL_INSTANCE {
        version.instance = Bytes::new();
    }
    let idx = keys::instance(&version);
    Ok(match rows::optional(rows::read::<DirEntry>(object, &idx).await)? {
        Some(entry) => keys::list(&entry),
        // After all rows of the object but before those of longer names.
        None => [&key.name[..], &[1]].concat().into(),
    })
}

/// Position of `needle` in `text` from `from` on.
fn find(text: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    text.get(from..)?.windows(needle.len()).position(|w| w == needle).map(|at| from + at)
}

/// A listing; with a delimiter, names with the same beginning up to it are one entry.
pub(super) async fn list(object: Object<'_>, op: ListOp) -> Result<Output, Errno> {
    let mut ret = ListRet::default();
    ret.dir.header = rows::header(object).await?;
    let wanted = op.num_entries as usize;
    if wanted == 0 {
        // The caller wants the header.
        return Ok(encode(&ret).into());
    }
    let has_delimiter = !op.delimiter.is_empty();
    // An index that cannot be read there is listed from its beginning, as in Ceph.
    let mut after = start_after(object, &op.start_obj).await.unwrap_or_default();
    if has_delimiter && after > op.filter_prefix && after.ends_with(&op.delimiter) {
        after = after_delimiter(&after);
    }
    // The object that has the row `after`.
    let mut marker = ObjKey::default();
    // The row is the mark of an object with versions, and their rows come next.
    let mut marked = false;
    let mut last_prefix = Bytes::new();
    let mut last_key = Bytes::new();
    let (mut done, mut more) = (false, true);
    let entries = &mut ret.dir.entries;
    for _ in 0..MAX_ATTEMPTS {
        if !more || done || entries.len() >= wanted {
            break;
        }
        let max = (wanted - entries.len()) as i32;
        let page = rows::listed(object, &after, &op.filter_prefix, max).await?;
        more = page.more;
        done = page.rows.is_empty();
        // Where to look in the page next: after a common prefix its other names are passed over.
        let mut from = Bound::Unbounded;
        while let Some((key, value)) = page.rows.range::<Bytes, _>((from, Bound::Unbounded)).next()
        {
            from = Bound::Excluded(key.clone());
            if !keys::is_listed(key) {
                done = true;
                break;
            }
            let entry: DirEntry = decode(value.clone(), Errno::EINVAL)?;
            after = key.clone();
            marker = entry.key.clone();
            marked = entry.has(flag::VER_MARKER);
            let Some(name) = keys::parse_list(key).map(|k| k.name) else {
                tracing::error!(key = %key.escape_ascii(), "an index has a key that cannot be read");
                continue;
            };
            let hidden = !op.list_versions && (!entry.is_visible() || op.start_obj.name == name);
            if entry.has(flag::VER_MARKER) || hidden {
                continue;
            }
            let at = if has_delimiter {
                find(&name, &op.delimiter, op.filter_prefix.len())
            } else {
                None
            };
            if let Some(at) = at {
                let prefix = name.slice(..at + op.delimiter.len());
                if prefix == last_prefix {
                    continue;
                }
                last_prefix = prefix.clone();
                after = after_delimiter(&prefix);
                marker = ObjKey::plain(after.clone());
                marked = false;
                from = Bound::Included(after.clone());
                if entries.len() < wanted {
                    let common = DirEntry {
                        key: ObjKey::plain(prefix.clone()),
                        flags: flag::COMMON_PREFIX,
                        ..DirEntry::default()
                    };
                    entries.insert(prefix, common);
                }
                continue;
            }
            if entries.len() < wanted && *key != last_key {
                last_key = key.clone();
                entries.insert(key.clone(), entry);
            }
        }
    }
    ret.is_truncated = more && !done;
    let advanced = ret.is_truncated && ret.dir.entries.is_empty();
    if advanced && marked {
        // A list that begins at a name leaves all versions of it out, and none of these was looked
        // at. Stock answers the name itself, and the object is missing from its lists.
        marker.name = [&marker.name[..], b"\0"].concat().into();
    }
    if ret.is_truncated {
        ret.marker = marker;
    }
    let value = if advanced { LIST_ADVANCED } else { 0 };
    Ok(Output { value, data: encode(&ret) })
}
