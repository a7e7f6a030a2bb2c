//! Keys of a bucket's index.
//!
//! Rows in the order of listings have the object's name, followed by the version if there are
//! versions. All other rows have keys that begin with [`SPECIAL`], a byte that no UTF-8 text begins
//! with, and a prefix for their kind. Names can come before and after those.

use ::rgw::entry::DirEntry;
use ::rgw::key::ObjKey;
use bytes::Bytes;

/// How rows outside the order of listings begin (Ceph: `BI_PREFIX_CHAR`).
pub(super) const SPECIAL: u8 = 0x80;
/// Where names that come after those rows begin.
pub(super) const AFTER_SPECIAL: &[u8] = &[SPECIAL + 1];

/// The log of changes.
pub(super) const LOG: &[u8] = b"\x800_";
/// Versions of objects.
pub(super) const INSTANCES: &[u8] = b"\x801000_";
/// Objects with versions.
pub(super) const OLH: &[u8] = b"\x801001_";
/// What no kind reaches.
pub(super) const END: &[u8] = b"\x809999_";

/// The version of an object without one, in requests.
pub(super) const NULL_INSTANCE: &[u8] = b"null";

/// A row in the order of listings.
pub(super) fn is_listed(key: &[u8]) -> bool {
    key.first() != Some(&SPECIAL)
}

/// The kind of a row, in the order of kinds: rows in the order of listings are the first, those of
/// no known kind come before them, as in Ceph (`bi_entry_type`).
fn kind(key: &[u8]) -> i32 {
    if is_listed(key) {
        return 0;
    }
    let kinds = [LOG, INSTANCES, OLH, END];
    kinds.iter().position(|p| key.starts_with(p)).map_or(-1, |i| i as i32 + 1)
}

/// A row comes after another: by kind, then by key.
pub(super) fn comes_after(first: &[u8], second: &[u8]) -> bool {
    (kind(first), first) > (kind(second), second)
}

/// The key of a log entry.
pub(super) fn log(id: &[u8]) -> Bytes {
    [LOG, id].concat().into()
}

/// The row of a version.
pub(super) fn instance(key: &ObjKey) -> Bytes {
    [INSTANCES, &key.name, b"\0i", &key.instance].concat().into()
}

/// The row of a delete marker that is the null version: it can be there beside an object that is.
pub(super) fn null_delete_marker(key: &ObjKey) -> Bytes {
    [INSTANCES, &key.name, b"\0i", &key.instance, b"\0d"].concat().into()
}

/// The row of an object: its version's, if it has one.
pub(super) fn object(key: &ObjKey) -> Bytes {
    if key.instance.is_empty() { key.name.clone() } else { instance(key) }
}

/// The row of an object's versions.
pub(super) fn olh(name: &[u8]) -> Bytes {
    [OLH, name].concat().into()
}

/// A number as text that is the smaller the greater the number is: the newest version of an object
/// is the first in listings.
fn decreasing(n: u64) -> String {
    match n {
        0..0x10 => format!("9{:02}", 15 - n),
        0x10..0x100 => format!("8{:03}", 255 - n),
        0x100..0x1000 => format!("7{:04}", 4095 - n),
        0x1000..0x1_0000 => format!("6{:05}", 65535 - n),
        0x1_0000..0x1_0000_0000 => format!("5{:010}", 0xFFFF_FFFF - n),
        _ => format!("4{:020}", (n as i64).wrapping_neg()),
    }
}

/// The row of a version in the order of listings.
pub(super) fn list(entry: &DirEntry) -> Bytes {
    let epoch = decreasing(entry.versioned_epoch);
    [&entry.key.name[..], b"\0v", epoch.as_bytes(), b"\0i", &entry.key.instance].concat().into()
}

/// The object of a row in the order of listings: its name, and whatever follows a zero byte. `None`
/// if the rest cannot be read.
pub(super) fn parse_list(key: &[u8]) -> Option<ObjKey> {
    let Some(end) = key.iter().position(|b| *b == 0) else {
        return Some(ObjKey::plain(Bytes::copy_from_slice(key)));
    };
    let mut object = ObjKey::plain(Bytes::copy_from_slice(&key[..end]));
    let rest = &key[end + 1..];
    if rest.is_empty() {
        return None;
    }
    for part in rest.strip_suffix(b"\0").unwrap_or(rest).split(|b| *b == 0) {
        match part.first() {
            Some(b'i') => object.instance = Bytes::copy_from_slice(&part[1..]),
            Some(b'v') => {
                std::str::from_utf8(&part[1..]).ok()?.parse::<i64>().ok()?;
            }
            _ => {}
        }
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_are_listed_first() {
        let epochs = [0, 1, 15, 16, 255, 256, 4095, 4096, 65535, 65536, u32::MAX as u64];
        let texts: Vec<String> = epochs.iter().map(|n| decreasing(*n)).collect();
        assert!(texts.windows(2).all(|w| w[0] > w[1]), "{texts:?}");
        assert_eq!(texts[1], "914");
        assert_eq!(decreasing(1 << 32), "4-0000000004294967296");
    }

    #[test]
    fn a_row_tells_its_object() {
        let entry = DirEntry {
            key: ObjKey { name: "n".into(), instance: "v1".into() },
            versioned_epoch: 3,
            ..DirEntry::default()
        };
        assert_eq!(list(&entry), "n\0v912\0iv1");
        assert_eq!(parse_list(&list(&entry)), Some(entry.key));
        assert_eq!(parse_list(b"plain"), Some(ObjKey::plain("plain".into())));
        assert_eq!(parse_list(b"n\0vx\0i"), None);
        assert_eq!(parse_list(b"n\0"), None);
    }

    #[test]
    fn kinds_are_in_order() {
        let rows = [&b"zz"[..], b"\x800_1", b"\x801000_a", b"\x801001_a", b"\x809999_"];
        for pair in rows.windows(2) {
            assert!(comes_after(pair[1], pair[0]) && !comes_after(pair[0], pair[1]));
        }
        assert!(comes_after(b"b", b"a"));
        assert!(comes_after(b"a", b"\x80?"), "a kind that is not known is before all others");
    }
}
