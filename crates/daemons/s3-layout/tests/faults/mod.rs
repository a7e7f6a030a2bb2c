//! What is wrong with the objects of a bucket and with its index.

use crate::memory::{Disk, Raw};
use ::rgw::entry::{DirEntry, ObjCategory, flag};
use ::rgw::header::CategoryStats;
use ::rgw::index::CheckIndexRet;
use ::rgw::key::ObjKey;
use ::rgw::manifest::{Manifest, Place};
use ::rgw::names::ObjName;
use ::rgw::olh::{OlhEntry, OlhInfo};
use ::rgw::upload::PartInfo;
use bytes::Bytes;
use denc::Decode;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// All objects of a cluster by pool, namespace and name.
pub type Objects = BTreeMap<(String, Bytes, Bytes), Raw>;

pub fn decoded<T: Decode>(bytes: &Bytes) -> T {
    denc::Reader::new(bytes.clone()).get().unwrap()
}

fn show(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// Names of objects that a note has.
fn raw_names(note: &Bytes, own: &str) -> Vec<Bytes> {
    let text = String::from_utf8_lossy(note).into_owned();
    let starts = text.match_indices(own).map(|(at, _)| at);
    let name = |at: usize| {
        let rest = &text[at + own.len()..];
        let end = rest.find(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER);
        Bytes::copy_from_slice(&rest.as_bytes()[..end.unwrap_or(rest.len())])
    };
    starts.map(name).collect()
}

/// Looks at all objects of the cluster: what is wrong.
pub fn faults(all: &Objects, marker: &str) -> Vec<String> {
    let mut look = Look { own: format!("{marker}_"), ..Look::default() };
    look.sort_objects(all);
    look.read_index(all);
    look.look_at_tails();
    look.look_at_entries();
    look.look_at_heads();
    look.look_at_histories();
    look.look_at_listings();
    look.wrong
}

/// A bucket that is looked at.
#[derive(Default)]
struct Look<'a> {
    /// How names of its objects begin.
    own: String,
    heads: BTreeMap<Bytes, &'a Raw>,
    tails: BTreeMap<Bytes, &'a Raw>,
    uploads: BTreeMap<Bytes, &'a Raw>,
    /// Rows of the index: objects and versions, versions in the order of listings, and what is
    /// known of all versions of an object.
    entries: BTreeMap<Bytes, DirEntry>,
    listed: BTreeMap<Bytes, DirEntry>,
    olhs: BTreeMap<Bytes, OlhEntry>,
    /// Objects that have an entry.
    known: BTreeSet<Bytes>,
    wrong: Vec<String>,
}

impl<'a> Look<'a> {
    /// Sorts objects by what they are. Garbage and notes of changes must be gone.
    fn sort_objects(&mut self, all: &'a Objects) {
        for ((pool, ns, name), raw) in all {
            let own = name.strip_prefix(self.own.as_bytes()).filter(|_| ns.is_empty());
            let Some(rest) = own.map(Bytes::copy_from_slice) else {
                if pool.ends_with(".log") && ns == "gc" && !raw.rows.is_empty() {
                    self.wrong.push(format!("garbage is left in {}", show(name)));
                }
                if ns == "siphon" && !raw.rows.is_empty() {
                    let count = raw.rows.len();
                    self.wrong.push(format!("{count} notes of changes in {}", show(name)));
                }
                continue;
            };
            if pool.ends_with(".non-ec") {
                self.uploads.insert(rest, raw);
            } else if rest.starts_with(b"_shadow") || rest.starts_with(b"_multipart_") {
                self.tails.insert(rest, raw);
            } else {
                self.heads.insert(rest, raw);
            }
        }
    }

    /// Reads the index. No change is announced in it.
    fn read_index(&mut self, all: &Objects) {
        let shards = all.iter().filter(|((_, _, name), _)| name.starts_with(b".dir."));
        for (key, value) in shards.flat_map(|(_, raw)| &raw.rows) {
            if let Some(of) = key.strip_prefix(b"\x801001_") {
                self.olhs.insert(Bytes::copy_from_slice(of), decoded(value));
                continue;
            }
            let entry: DirEntry = decoded(value);
            if !entry.pending_map.is_empty() {
                self.wrong.push(format!("{} has announced changes", show(key)));
            }
            if key.first() == Some(&0x80) || !key.contains(&0) {
                self.entries.insert(key.clone(), entry);
            } else {
                self.listed.insert(key.clone(), entry);
            }
        }
    }

    /// Each tail that a head or a part refers to is there, and no other, unless it is noted with
    /// an upload as data that goes.
    fn look_at_tails(&mut self) {
        let mut manifests: Vec<(&Bytes, Manifest)> = Vec::new();
        let mut noted = BTreeSet::new();
        for (name, raw) in &self.heads {
            let manifest = raw.attrs.get(&b"user.rgw.manifest"[..]);
            manifests.extend(manifest.map(|m| (name, decoded(m))));
        }
        for (name, raw) in &self.uploads {
            for (key, value) in &raw.rows {
                if key.starts_with(b"part.") {
                    manifests.push((name, decoded::<PartInfo>(value).manifest));
                } else {
                    noted.extend(raw_names(value, &self.own));
                }
            }
        }
        let mut referred: BTreeSet<Bytes> = BTreeSet::new();
        for (name, manifest) in manifests {
            for piece in manifest.pieces(0, u64::MAX) {
                let Place::Tail(object) = piece.place else { continue };
                let tail = object.name.oid();
                if !self.tails.contains_key(&tail) {
                    self.wrong.push(format!("{} has no {}", show(name), show(&tail)));
                }
                referred.insert(tail);
            }
        }
        for tail in self.tails.keys().filter(|t| !referred.contains(*t) && !noted.contains(*t)) {
            self.wrong.push(format!("{} is an orphan", show(tail)));
        }
    }

    /// Each entry has an object with its tag, each upload has an entry.
    fn look_at_entries(&mut self) {
        for (key, entry) in &self.entries {
            if entry.has(flag::VER_MARKER) {
                if !self.olhs.contains_key(&entry.key.name) {
                    self.wrong.push(format!("{} is marked, and has no versions", show(key)));
                }
                continue;
            }
            if entry.has(flag::DELETE_MARKER) {
                continue;
            }
            if !entry.exists {
                self.wrong.push(format!("{} is an entry of nothing", show(key)));
            }
            let oid = ObjName::of_index(&entry.key).unwrap().oid();
            let places = [&self.heads, &self.uploads, &self.tails];
            let Some(raw) = places.into_iter().find_map(|place| place.get(&oid)) else {
                self.wrong.push(format!("{} has an entry and no object", show(key)));
                continue;
            };
            self.known.insert(oid);
            let etag = raw.attrs.get(&b"user.rgw.etag"[..]).cloned().unwrap_or_default();
            if etag.strip_suffix(b"\0").unwrap_or(&etag) != entry.meta.etag.as_ref() {
                self.wrong.push(format!("{} has another tag than its entry", show(key)));
            }
        }
        for upload in self.uploads.keys().filter(|u| !self.known.contains(*u)) {
            self.wrong.push(format!("{} has no entry", show(upload)));
        }
    }

    /// Each head has an entry, no pending change, and names the version that the index names.
    fn look_at_heads(&mut self) {
        let mut wrong = Vec::new();
        for (name, raw) in &self.heads {
            let pending = b"user.rgw.olh.pending.";
            let pending = raw.attrs.keys().filter(|a| a.starts_with(pending)).count();
            if pending > 0 {
                wrong.push(format!("{} has {pending} changes of versions pending", show(name)));
            }
            if is_object(raw) && !self.known.contains(name) {
                wrong.push(format!("{} has no entry", show(name)));
            }
            wrong.extend(self.wrong_version(name, raw).map(|w| format!("{} {w}", show(name))));
        }
        self.wrong.append(&mut wrong);
    }

    /// What is wrong with the version that a head names.
    fn wrong_version(&self, name: &Bytes, raw: &Raw) -> Option<&'static str> {
        let attr = |a: &str| raw.attrs.get(a.as_bytes());
        let tag = attr("user.rgw.olh.idtag")?;
        let object = ObjName::of_index(&ObjKey::plain(name.clone())).unwrap();
        let Some(olh) = self.olhs.get(&object.index_key().name) else {
            let linked = attr("user.rgw.olh.info").is_some();
            return (linked || !is_object(raw)).then_some("has no versions in the index");
        };
        if olh.tag != *tag {
            return Some("has another tag in the index");
        }
        let Some(info) = attr("user.rgw.olh.info").map(decoded::<OlhInfo>) else {
            return Some("names no version");
        };
        let target = info.target.name.index_key();
        let instance = |i: &Bytes| i.strip_prefix(b"null").unwrap_or(i).to_vec();
        let same = instance(&target.instance) == instance(&olh.key.instance)
            && info.removed == olh.delete_marker;
        (!same).then_some("names another version")
    }

    /// What the index has of all versions of an object is applied to a head.
    fn look_at_histories(&mut self) {
        for (key, olh) in &self.olhs {
            if !olh.pending_log.is_empty() {
                self.wrong.push(format!("{} has a log that is not applied", show(key)));
            }
            let object = ObjName::of_index(&ObjKey::plain(key.clone())).unwrap();
            if !self.heads.contains_key(&object.oid()) {
                self.wrong.push(format!("{} has versions in the index and no head", show(key)));
            }
        }
    }

    /// A version has two rows: one for itself, one in the order of listings.
    fn look_at_listings(&mut self) {
        let rows = |of: &BTreeMap<Bytes, DirEntry>| -> Vec<(Bytes, Bytes, bool)> {
            let all = of.iter().filter(|(k, e)| !e.has(flag::VER_MARKER) && k.contains(&0));
            let row = |e: &DirEntry| {
                (e.key.name.clone(), e.key.instance.clone(), e.has(flag::DELETE_MARKER))
            };
            let mut rows: Vec<_> = all.map(|(_, e)| row(e)).collect();
            rows.sort();
            rows
        };
        let (entries, listed) = (rows(&self.entries), rows(&self.listed));
        if entries != listed {
            self.wrong.push(format!("versions {entries:?} are listed as {listed:?}"));
        }
    }
}

/// Whether a head has an object's content, besides naming a version.
fn is_object(raw: &Raw) -> bool {
    let has = |a: &str| raw.attrs.contains_key(a.as_bytes());
    has("user.rgw.manifest") || has("user.rgw.etag")
}

/// Header and rows of each shard agree on how much there is.
pub async fn totals(disk: &Rc<Disk>, all: &Objects, wrong: &mut Vec<String>) {
    for ((pool, _, name), _) in all.iter().filter(|((_, _, n), _)| n.starts_with(b".dir.")) {
        let answer = disk.class_read(pool, name, "rgw", "bucket_check_index").await;
        let ret: CheckIndexRet = decoded(&answer);
        let (had, counted) = (ret.existing_header.stats, ret.calculated_header.stats);
        let of = |stats: &BTreeMap<ObjCategory, CategoryStats>| {
            // Marks and delete markers are not counted.
            let none = ObjCategory::NONE;
            let all = stats.iter().filter(|(c, s)| **c != none && **s != Default::default());
            all.map(|(c, s)| (c.0, s.num_entries, s.total_size)).collect::<Vec<_>>()
        };
        if of(&had) != of(&counted) {
            let (had, counted) = (of(&had), of(&counted));
            wrong.push(format!("{} says {had:?} and has {counted:?}", show(name)));
        }
    }
}
