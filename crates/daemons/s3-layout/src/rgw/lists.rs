//! Lists of objects, versions and uploads.

use super::cluster::nanoseconds;
use super::convert::shown_version;
use super::convert::text;
use super::handle::Handle;
use super::index::{Query, behind};
use super::inner::Inner;
use crate::api::{Entry, List, Listing, PendingUpload, Result, UploadPage, Uploads, UserId};
use ::rgw::entry::{DirEntry, flag};
use ::rgw::key::ObjKey;
use ::rgw::names::{self, ObjName};
use ::rgw::upload::{meta_name, parse_meta_name};
use bytes::Bytes;

/// Entries that are asked for to find the uploads among parts.
const UPLOADS_AT_ONCE: usize = 1000;

/// Where a list of objects begins.
fn start(list: &List) -> ObjKey {
    if list.after.is_empty() {
        return ObjKey::default();
    }
    let after = ObjName::plain(list.after.clone()).index_key();
    if let Some(version) = list.after_version.as_ref().filter(|_| list.versions) {
        return ObjKey { instance: version.clone().into(), ..after };
    }
    if let Some(prefix) = common_prefix(&list.after, &list.prefix, &list.delimiter) {
        return behind(&ObjName::plain(prefix.to_owned()).index_key().name);
    }
    if list.versions {
        // Without a version the list goes on behind all versions of the key.
        let name = [&after.name[..], &[1]].concat().into();
        return ObjKey::plain(name);
    }
    after
}

/// The common prefix that a key is listed as.
fn common_prefix<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    if delimiter.is_empty() || !key.starts_with(prefix) {
        return None;
    }
    let at = key[prefix.len()..].find(delimiter)?;
    Some(&key[..prefix.len() + at + delimiter.len()])
}

fn listed(key: String, entry: &DirEntry, versions: bool) -> Entry {
    Entry {
        key,
        version: versions.then(|| shown_version(&entry.key.instance)),
        latest: entry.is_current(),
        marker: entry.has(flag::DELETE_MARKER),
        size: entry.meta.accounted_size,
        etag: text(&entry.meta.etag),
        modified: nanoseconds(entry.meta.mtime),
        owner: UserId::parse(&text(&entry.meta.owner)),
        owner_name: text(&entry.meta.owner_display_name),
        storage_class: text(&entry.meta.storage_class),
    }
}

impl Inner {
    /// Lists objects or versions.
    pub(super) async fn list(&self, bucket: &Handle, list: &List) -> Result<Listing> {
        let mut listing = Listing::default();
        if list.max == 0 {
            return Ok(listing);
        }
        let prefix = if list.prefix.is_empty() {
            Bytes::new()
        } else {
            ObjName::plain(list.prefix.clone()).index_key().name
        };
        let mut query = Query {
            after: start(list),
            prefix,
            delimiter: list.delimiter.clone().into(),
            versions: list.versions,
            // One more tells whether there is more.
            max: list.max + 1,
        };
        loop {
            let page = self.list_index(bucket, &query).await?;
            for entry in page.entries {
                let Some(name) = ObjName::of_index(&entry.key) else { continue };
                if !name.ns.is_empty() {
                    continue;
                }
                let key = text(&name.name);
                if listing.entries.len() + listing.prefixes.len() >= list.max {
                    listing.next = Some(self.last_of(&listing, list));
                    return Ok(listing);
                }
                if entry.has(flag::COMMON_PREFIX) {
                    listing.prefixes.push(key);
                } else if list.versions || entry.is_visible() {
                    listing.entries.push(listed(key, &entry, list.versions));
                }
            }
            match page.next {
                None => return Ok(listing),
                Some(next) => query.after = next,
            }
        }
    }

    fn last_of(&self, listing: &Listing, list: &List) -> (String, Option<String>) {
        let prefix = listing.prefixes.last();
        match listing.entries.last() {
            Some(e) if prefix.is_none_or(|p| *p < e.key) => {
                (e.key.clone(), e.version.clone().filter(|_| list.versions))
            }
            _ => (prefix.cloned().unwrap_or_default(), None),
        }
    }

    /// Whether there is neither an object nor a version nor a delete marker.
    pub(super) async fn is_empty(&self, bucket: &Handle) -> Result<bool> {
        let any = List { versions: true, max: 1, ..List::default() };
        let listing = self.list(bucket, &any).await?;
        Ok(listing.entries.is_empty() && listing.prefixes.is_empty())
    }

    /// Lists uploads under way.
    pub(super) async fn list_uploads(&self, bucket: &Handle, what: &Uploads) -> Result<UploadPage> {
        let in_ns = |name: &[u8]| {
            ObjName::in_ns(Bytes::copy_from_slice(name), names::NS_MULTIPART).index_key()
        };
        let mut page = UploadPage::default();
        if what.max == 0 {
            return Ok(page);
        }
        let after = if what.after.is_empty() {
            ObjKey::default()
        } else if let Some(prefix) = common_prefix(&what.after, &what.prefix, &what.delimiter) {
            behind(&in_ns(prefix.as_bytes()).name)
        } else if what.after_id.is_empty() {
            // Behind all uploads of the key: their ids begin with a digit.
            in_ns(format!("{}.{}", what.after, char::from(b'9' + 1)).as_bytes())
        } else {
            in_ns(&meta_name(what.after.as_bytes(), what.after_id.as_bytes()))
        };
        let mut query = Query {
            after,
            prefix: in_ns(what.prefix.as_bytes()).name,
            delimiter: what.delimiter.clone().into(),
            versions: false,
            max: UPLOADS_AT_ONCE,
        };
        loop {
            let found = self.list_index(bucket, &query).await?;
            for entry in found.entries {
                let Some(name) = ObjName::of_index(&entry.key) else { continue };
                if &name.ns[..] != names::NS_MULTIPART {
                    continue;
                }
                let full = page.uploads.len() + page.prefixes.len() >= what.max;
                let last = || {
                    let upload = page.uploads.last();
                    match page.prefixes.last() {
                        Some(p) if upload.is_none_or(|u| u.key < *p) => (p.clone(), String::new()),
                        _ => upload.map(|u| (u.key.clone(), u.id.clone())).unwrap_or_default(),
                    }
                };
                if entry.has(flag::COMMON_PREFIX) {
                    if full {
                        page.next = Some(last());
                        return Ok(page);
                    }
                    page.prefixes.push(text(&name.name));
                    continue;
                }
                let Some((key, id)) = parse_meta_name(&name.name) else { continue };
                if full {
                    page.next = Some(last());
                    return Ok(page);
                }
                page.uploads.push(PendingUpload {
                    key: text(key),
                    id: text(id),
                    initiated: nanoseconds(entry.meta.mtime),
                    owner: UserId::parse(&text(&entry.meta.owner)),
                    owner_name: text(&entry.meta.owner_display_name),
                    storage_class: text(&entry.meta.storage_class),
                    checksum: None,
                });
            }
            match found.next {
                None => return Ok(page),
                Some(next) => query.after = next,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_begin_behind_what_was_listed() {
        let list = |after: &str, delimiter: &str, versions, after_version: Option<&str>| List {
            after: after.into(),
            delimiter: delimiter.into(),
            versions,
            after_version: after_version.map(str::to_owned),
            ..List::default()
        };
        assert_eq!(start(&list("", "/", false, None)), ObjKey::default());
        assert_eq!(start(&list("_a", "", false, None)).name, "__a");
        let behind_dir = start(&list("dir/x", "/", false, None)).name;
        assert!(behind_dir > "dir/zzz" && behind_dir < "dir0");
        assert_eq!(start(&list("dir/x", "", false, None)).name, "dir/x");
        let version = start(&list("k", "", true, Some("v1")));
        assert_eq!((&version.name[..], &version.instance[..]), (&b"k"[..], &b"v1"[..]));
        let key = start(&list("k", "", true, None)).name;
        assert!(key > "k\0v912\0iabc" && key < "k\u{2}");
        assert_eq!(common_prefix("a/b/c", "a/", "/"), Some("a/b/"));
        assert_eq!(common_prefix("b", "a/", "/"), None);
    }
}
