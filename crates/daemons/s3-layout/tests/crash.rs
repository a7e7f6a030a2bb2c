//! A gateway that ends after any of the writes of a change: another one works on the bucket,
//! garbage is collected, and then nothing is wrong. What was answered is there, what was not is
//! there as a whole or not at all.

mod faults;
mod memory;

use bytes::Bytes;
use faults::{Objects, faults, totals};
use memory::{Body, Dice, Disk, Link, gateway, gateway_alone, run};
use s3::condition::Conditions;
use s3::range::Span;
use s3::xml::config::{Acl, Grant, Grantee, Permission, TagSet, Versioning};
use s3::xml::multi::CompletePart;
use s3_layout::api::{
    BucketChange, BucketName, Complete, List, NewBucket, NewObject, NewUpload, ObjectChange,
    Uploads, UserId,
};
use s3_layout::rgw::{BucketRef, Rgw};
use s3_layout::{Layout, Result, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;

const MIB: usize = 1 << 20;
/// More than fits into a head.
const LARGE: usize = 4 * MIB + 1000;
const OWNER: &str = "ann";
/// Longer than anything that is under way is waited for.
const LONG_SECONDS: u32 = 3 * 86400;

fn acl() -> Acl {
    let grantee = Grantee::User { id: OWNER.into(), display_name: OWNER.into() };
    let grant = Grant { grantee, permission: Permission::FullControl };
    Acl { owner: OWNER.into(), owner_name: OWNER.into(), grants: vec![grant] }
}

fn new_object() -> NewObject {
    NewObject { acl: acl(), ..NewObject::default() }
}

fn bytes(length: usize, seed: u8) -> Bytes {
    vec![seed; length].into()
}

fn name() -> BucketName {
    BucketName { tenant: String::new(), name: "b".into() }
}

async fn make_bucket(rgw: &Rgw) -> BucketRef {
    let id = UserId { tenant: String::new(), id: OWNER.into() };
    let user =
        s3_layout::api::User { id: id.clone(), display_name: OWNER.into(), ..Default::default() };
    rgw.create_user(&user).await.unwrap();
    let new = NewBucket { name: name(), owner: id, acl: acl(), ..NewBucket::default() };
    rgw.create_bucket(new).await.unwrap()
}

/// A gateway with a bucket at hand.
struct At {
    rgw: Rgw,
    bucket: BucketRef,
}

impl At {
    async fn put(&self, key: &str, data: Bytes) -> Result<Option<String>> {
        let body = &mut Body::new(data);
        Ok(self.rgw.put(&self.bucket, key, new_object(), body).await?.version)
    }

    async fn delete(&self, key: &str, version: Option<&str>) -> Result<()> {
        self.rgw.delete(&self.bucket, key, version, &Conditions::default()).await.map(|_| ())
    }

    /// Deletes a version of `k`; 0 is the newest.
    async fn delete_version(&self, at: usize) -> Result<()> {
        let version = self.version_of("k", at).await;
        self.delete("k", Some(&version)).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        let source = self.rgw.open(&self.bucket, from, None, false).await?;
        self.rgw.copy(&source, &self.bucket, to, new_object()).await.map(|_| ())
    }

    async fn versions(&mut self, how: Versioning) {
        self.rgw.change_bucket(&self.bucket, BucketChange::Versioning(how)).await.unwrap();
        self.bucket = self.rgw.bucket(&name()).await.unwrap();
    }

    /// The newest version first.
    async fn version_of(&self, key: &str, at: usize) -> String {
        let all = self.list(true).await.unwrap();
        let of_key: Vec<_> = all.into_iter().filter(|e| e.key == key).collect();
        of_key[at].version.clone().unwrap()
    }

    async fn upload(&self, key: &str) -> Result<String> {
        let new = NewUpload { acl: acl(), ..NewUpload::default() };
        self.rgw.create_upload(&self.bucket, key, new).await
    }

    async fn part(&self, key: &str, id: &str, number: u32, data: Bytes) -> Result<CompletePart> {
        let body = &mut Body::new(data);
        let part = self.rgw.put_part(&self.bucket, key, id, number, None, body).await?;
        Ok(CompletePart { number, etag: part.etag, checksum: None })
    }

    async fn complete(&self, key: &str, id: &str, parts: &[CompletePart]) -> Result<()> {
        let options = Complete::default();
        self.rgw.complete_upload(&self.bucket, key, id, parts, &options).await.map(|_| ())
    }

    async fn list(&self, versions: bool) -> Result<Vec<s3_layout::api::Entry>> {
        let mut what = List { versions, max: 3, ..List::default() };
        let mut all = Vec::new();
        loop {
            let page = self.rgw.list(&self.bucket, &what).await?;
            all.extend(page.entries);
            let Some((after, version)) = page.next else { return Ok(all) };
            (what.after, what.after_version) = (after, version);
        }
    }

    async fn content(&self, key: &str, version: Option<&str>) -> Result<Bytes> {
        let object = self.rgw.open(&self.bucket, key, version, true).await?;
        let length = object.as_ref().size;
        let mut reader = self.rgw.read(&object, Span { offset: 0, length });
        let mut all = Vec::new();
        while let Some(piece) = reader.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.into())
    }

    /// What clients see: keys with content, versions in order, uploads with their parts.
    async fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        for entry in self.list(false).await.unwrap() {
            let content = self.content(&entry.key, None).await;
            let content = content.unwrap_or_else(|e| panic!("{} is listed: {e}", entry.key));
            assert_eq!(content.len() as u64, entry.size, "{}", entry.key);
            let object = self.rgw.open(&self.bucket, &entry.key, None, false).await.unwrap();
            assert_eq!(object.as_ref().etag, entry.etag, "{}", entry.key);
            assert!(seen.objects.insert(entry.key, md5_of(&content)).is_none(), "listed twice");
        }
        let mut current = BTreeSet::new();
        for entry in self.list(true).await.unwrap() {
            let version = entry.version.clone().unwrap();
            if entry.latest {
                assert!(current.insert(entry.key.clone()), "two current versions");
                assert_eq!(seen.objects.contains_key(&entry.key), !entry.marker, "{}", entry.key);
            }
            let content = match entry.marker {
                true => None,
                false => {
                    let content = self.content(&entry.key, Some(&version)).await;
                    Some(md5_of(&content.unwrap_or_else(|e| panic!("{version} is listed: {e}"))))
                }
            };
            let of_key = seen.versions.entry(entry.key).or_default();
            assert!(of_key.iter().all(|(v, _)| *v != version), "{version} is listed twice");
            of_key.push((version, content));
        }
        assert_eq!(current, seen.versions.keys().cloned().collect(), "one version is current");
        let what = Uploads { max: 100, ..Uploads::default() };
        for upload in self.rgw.list_uploads(&self.bucket, &what).await.unwrap().uploads {
            let page = self.rgw.list_parts(&self.bucket, &upload.key, &upload.id, 0, 100).await;
            let parts = page.unwrap().parts.into_iter().map(|p| (p.number, p.etag)).collect();
            seen.uploads.insert((upload.key, upload.id), parts);
        }
        seen
    }
}

fn md5_of(content: &[u8]) -> String {
    s3::etag::of_digest(&memory::digest(content))
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    objects: BTreeMap<String, String>,
    versions: BTreeMap<String, Vec<(String, Option<String>)>>,
    uploads: BTreeMap<(String, String), Vec<(u32, String)>>,
}

impl Seen {
    /// Ids differ from run to run.
    fn without_ids(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let versions: BTreeMap<_, Vec<_>> = self
            .versions
            .iter()
            .map(|(k, v)| (k.clone(), v.iter().map(|(id, c)| (id == "null", c.clone())).collect()))
            .collect();
        let uploads: Vec<_> =
            self.uploads.iter().map(|((key, _), parts)| (key.clone(), parts.clone())).collect();
        (self.objects.clone(), versions, uploads)
    }
}

/// From when on lists must be right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// The next list heals what was left.
    AtOnce,
    /// A null version that takes the place of another is listed as that one, until the note of the
    /// change is settled: no list reads its head.
    Settled,
}

/// Another gateway works on the bucket after the first one ended; then everything is looked at.
fn look(disk: &Rc<Disk>, what: &str, when: When) -> Seen {
    let link = Link::new(disk, None, None);
    run(async {
        let rgw = gateway(&link).await;
        let bucket = rgw.bucket(&name()).await.unwrap();
        let at = At { rgw, bucket };
        let mut early = Vec::new();
        for _ in 0..2 {
            match when {
                When::AtOnce => early.push(at.seen().await),
                When::Settled => {
                    at.list(false).await.unwrap();
                    at.list(true).await.unwrap();
                }
            }
            disk.pass(LONG_SECONDS);
        }
        at.rgw.reclaim(false).await.unwrap();
        disk.pass(LONG_SECONDS);
        at.rgw.reclaim(false).await.unwrap();
        let seen = at.seen().await;
        // An upload of which an object was made may be there for a while. A null version that was
        // written over others and not entered is entered when its note is settled.
        let null = seen.versions.values().flatten().any(|(id, _)| id == "null");
        let objects = |s: &Seen| (s.objects.clone(), s.versions.clone());
        for before in &early {
            let same = objects(before) == objects(&seen);
            let late = null || before.uploads != seen.uploads;
            assert!(same || late, "{what}: it changes by itself: {before:#?}\n{seen:#?}");
        }
        let all = disk.objects().await;
        let marker = marker(&all);
        let mut wrong = faults(&all, &marker);
        totals(disk, &all, &mut wrong).await;
        assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
        seen
    })
}

/// What objects of the only bucket begin with.
fn marker(all: &Objects) -> String {
    let index = all.keys().find(|(_, _, n)| n.starts_with(b".dir.")).unwrap();
    let id = String::from_utf8(index.2[5..].to_vec()).unwrap();
    let parts: Vec<&str> = id.split('.').collect();
    parts[..3].join(".")
}

/// The change is cut after each of its writes.
fn cut<S, C>(what: &str, setup: S, change: C)
where
    S: AsyncFn(&mut At),
    C: AsyncFn(&At) -> Result<()>,
{
    cut_when(what, When::AtOnce, setup, change);
}

fn cut_when<S, C>(what: &str, when: When, setup: S, change: C)
where
    S: AsyncFn(&mut At),
    C: AsyncFn(&At) -> Result<()>,
{
    let attempt = |left: Option<u32>| {
        let disk = Disk::new();
        let link = Link::new(&disk, None, None);
        let answered = run(async {
            let rgw = gateway(&link).await;
            let bucket = make_bucket(&rgw).await;
            let mut at = At { rgw, bucket };
            setup(&mut at).await;
            at.rgw.reclaim(true).await.unwrap();
            let ended = async {
                match left {
                    None => std::future::pending().await,
                    Some(left) => {
                        link.end_after(left);
                        link.end.notified().await;
                    }
                }
            };
            if left.is_none() {
                link.changes.set(0);
            }
            tokio::select! {
                biased;
                _ = ended => false,
                done = change(&at) => { done.unwrap(); true }
            }
        });
        (disk, link.changes.get(), answered)
    };
    let before = {
        let disk = Disk::new();
        let link = Link::new(&disk, None, None);
        run(async {
            let rgw = gateway(&link).await;
            let bucket = make_bucket(&rgw).await;
            setup(&mut At { rgw, bucket }).await;
        });
        look(&disk, &format!("{what}: before"), when)
    };
    let (disk, changes, answered) = attempt(None);
    assert!(answered && changes > 0, "{what}");
    let after = look(&disk, &format!("{what}: whole"), when);
    assert_ne!(before.without_ids(), after.without_ids(), "{what} changes something");
    let mut begun = false;
    for left in 0..=changes {
        let (disk, _, answered) = attempt(Some(left));
        let seen = look(&disk, &format!("{what}: after {left} of {changes} writes"), when);
        let made = seen.without_ids() == after.without_ids();
        assert!(
            made || seen.without_ids() == before.without_ids(),
            "{what}: after {left} of {changes} writes: {seen:#?} is neither\n\
             {before:#?} nor {after:#?}"
        );
        assert!(made || !answered, "{what}: after {left} writes an answered change is not there");
        assert!(made || !begun, "{what}: after {left} writes a change that was there is gone");
        begun |= made;
    }
    assert!(begun, "{what}");
}

async fn nothing(_: &mut At) {}

async fn enabled(at: &mut At) {
    at.versions(Versioning::Enabled).await;
}

/// A gateway and a new bucket with versions.
async fn versioned(link: &Rc<Link>) -> At {
    let rgw = gateway(link).await;
    let bucket = make_bucket(&rgw).await;
    let mut at = At { rgw, bucket };
    enabled(&mut at).await;
    at
}

#[test]
fn puts() {
    cut("a put", nothing, async |at| at.put("k", bytes(100, 1)).await.map(|_| ()));
    let small = async |at: &mut At| {
        at.put("k", bytes(100, 1)).await.unwrap();
        at.put("other", bytes(10, 1)).await.unwrap();
    };
    cut("a put over an object", small, async |at| at.put("k", bytes(50, 2)).await.map(|_| ()));
    cut("a large put", nothing, async |at| at.put("k", bytes(9 * MIB, 1)).await.map(|_| ()));
    let large = async |at: &mut At| {
        at.put("k", bytes(LARGE, 1)).await.unwrap();
    };
    cut("a large put over a large object", large, async |at| {
        at.put("k", bytes(LARGE, 2)).await.map(|_| ())
    });
}

#[test]
fn deletions_copies_and_attributes() {
    let large = async |at: &mut At| {
        at.put("_k", bytes(LARGE, 1)).await.unwrap();
        at.put("l", bytes(9, 1)).await.unwrap();
    };
    cut("a deletion", large, async |at| at.delete("_k", None).await);
    cut("a copy", large, async |at| at.copy("_k", "m").await);
    cut("a copy over an object", large, async |at| at.copy("_k", "l").await);
    cut("a copy of a small object", large, async |at| at.copy("l", "_k").await);
    let shared = async |at: &mut At| {
        large(at).await;
        at.copy("_k", "m").await.unwrap();
    };
    cut("a deletion of what was copied", shared, async |at| at.delete("_k", None).await);
}

#[test]
fn uploads() {
    let begun = async |at: &mut At| {
        at.upload("k").await.unwrap();
    };
    let id = async |at: &At| {
        let what = Uploads { max: 1, ..Uploads::default() };
        let page = at.rgw.list_uploads(&at.bucket, &what).await.unwrap();
        page.uploads[0].id.clone()
    };
    cut("an upload", nothing, async |at| at.upload("k").await.map(|_| ()));
    cut("a part", begun, async |at| {
        let id = id(at).await;
        at.part("k", &id, 1, bytes(5 * MIB, 1)).await.map(|_| ())
    });
    let parts = async |at: &mut At| {
        let id = at.upload("k").await.unwrap();
        at.part("k", &id, 1, bytes(5 * MIB, 1)).await.unwrap();
        at.part("k", &id, 2, bytes(MIB, 2)).await.unwrap();
        at.part("k", &id, 7, bytes(MIB, 3)).await.unwrap();
    };
    cut("a part again", parts, async |at| {
        let id = id(at).await;
        at.part("k", &id, 1, bytes(5 * MIB, 4)).await.map(|_| ())
    });
    cut("an abort", parts, async |at| {
        let id = id(at).await;
        at.rgw.abort_upload(&at.bucket, "k", &id).await
    });
    let complete = async |at: &At| {
        let id = id(at).await;
        let page = at.rgw.list_parts(&at.bucket, "k", &id, 0, 10).await.unwrap();
        let asked = |p: &s3_layout::api::Part| CompletePart {
            number: p.number,
            etag: p.etag.clone(),
            checksum: None,
        };
        let parts: Vec<_> = page.parts.iter().take(2).map(asked).collect();
        at.complete("k", &id, &parts).await
    };
    cut("a completion", parts, complete);
    let over = async |at: &mut At| {
        at.put("k", bytes(LARGE, 9)).await.unwrap();
        parts(at).await;
    };
    cut("a completion over an object", over, complete);
    let versions = async |at: &mut At| {
        at.versions(Versioning::Enabled).await;
        parts(at).await;
    };
    cut("a completion of a version", versions, complete);
}

#[test]
fn versions() {
    let two = async |at: &mut At| {
        enabled(at).await;
        at.put("k", bytes(LARGE, 1)).await.unwrap();
        at.put("k", bytes(100, 2)).await.unwrap();
    };
    let put = async |at: &At| at.put("k", bytes(LARGE, 3)).await.map(|_| ());
    cut("a first version", enabled, put);
    cut("a version", two, put);
    let plain = async |at: &mut At| {
        at.put("k", bytes(LARGE, 1)).await.unwrap();
        enabled(at).await;
    };
    cut("a version over an object without", plain, put);
    cut("a delete marker on nothing", enabled, async |at| at.delete("k", None).await);
    cut("a delete marker", two, async |at| at.delete("k", None).await);
    cut("a delete marker on an object without versions", plain, async |at| {
        at.delete("k", None).await
    });
    for (which, of) in [(0, "the current version"), (1, "an old version")] {
        cut(&format!("a deletion of {of}"), two, async |at| {
            let version = at.version_of("k", which).await;
            at.delete("k", Some(&version)).await
        });
    }
    let one = async |at: &mut At| {
        enabled(at).await;
        at.put("k", bytes(LARGE, 1)).await.unwrap();
    };
    let newest = async |at: &At| {
        let version = at.version_of("k", 0).await;
        at.delete("k", Some(&version)).await
    };
    cut("a deletion of the only version", one, newest);
    let marked = async |at: &mut At| {
        two(at).await;
        at.delete("k", None).await.unwrap();
    };
    cut("a deletion of a delete marker", marked, newest);
    cut("a version over a delete marker", marked, put);
    let marker = async |at: &mut At| {
        enabled(at).await;
        at.delete("k", None).await.unwrap();
    };
    cut("a deletion of a lone delete marker", marker, newest);
    cut("a delete marker over a delete marker", two, async |at| {
        at.delete("k", None).await?;
        at.delete("k", None).await
    });
    cut("a copy of a version", two, async |at| at.copy("k", "m").await);
}

#[test]
fn suspended_versions() {
    let put = async |at: &At| at.put("k", bytes(LARGE, 3)).await.map(|_| ());
    let suspended = async |at: &mut At| {
        enabled(at).await;
        at.versions(Versioning::Suspended).await;
    };
    cut("a null version", suspended, put);
    let old = async |at: &mut At| {
        enabled(at).await;
        at.put("k", bytes(100, 1)).await.unwrap();
        at.versions(Versioning::Suspended).await;
    };
    cut_when("a null version over a version", When::Settled, old, put);
    let null = async |at: &mut At| {
        old(at).await;
        at.put("k", bytes(LARGE, 2)).await.unwrap();
    };
    cut_when("a null version over a null version", When::Settled, null, put);
    let delete = async |at: &At| at.delete("k", None).await;
    cut("a null marker on nothing", suspended, delete);
    cut("a null marker over a version", old, delete);
    cut_when("a null marker over a null version", When::Settled, null, delete);
    let plain = async |at: &mut At| {
        suspended(at).await;
        at.put("k", bytes(LARGE, 2)).await.unwrap();
    };
    cut("a null version over the only null version", plain, put);
    cut("a null marker over the only null version", plain, delete);
    cut("a deletion of the only null version", plain, async |at| {
        at.delete("k", Some("null")).await
    });
    cut("a deletion of the null version", null, async |at| at.delete("k", Some("null")).await);
    let marked = async |at: &mut At| {
        null(at).await;
        at.delete("k", None).await.unwrap();
    };
    cut_when("a null version over a null marker", When::Settled, marked, put);
    cut("a deletion of a null marker", marked, async |at| at.delete("k", Some("null")).await);
}

#[test]
fn attributes_are_changed_in_one_step() {
    // Tags are in no list: what is asked is that nothing is wrong afterwards.
    for left in 0..4 {
        let disk = Disk::new();
        let link = Link::new(&disk, None, None);
        run(async {
            let rgw = gateway(&link).await;
            let bucket = make_bucket(&rgw).await;
            let at = At { rgw, bucket };
            at.put("k", bytes(LARGE, 1)).await.unwrap();
            link.end_after(left);
            let tags = TagSet(vec![("a".into(), "b".into())]);
            let change = ObjectChange { tags: Some(tags), acl: None };
            tokio::select! {
                biased;
                _ = link.end.notified() => {}
                done = at.rgw.change_object(&at.bucket, "k", None, change) => { done.unwrap(); }
            }
        });
        let seen = look(&disk, &format!("a change of tags after {left} writes"), When::AtOnce);
        assert_eq!(seen.objects.len(), 1);
    }
}

/// A change that is made.
type Made = for<'a> fn(&'a At) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// What was left is settled once: with notes of no time, too, nothing stays in heads that holds
/// their removal back, and nothing in entries that the index still takes for a change under way.
#[test]
fn what_was_left_is_settled_without_waiting() {
    const FIRST: &str = "a first version";
    const MARKER: &str = "a delete marker on nothing";
    const NEWEST: &str = "a deletion of the newest version";
    const OLD: &str = "a deletion of an old version";
    const ONLY: &str = "a deletion of the only version";
    const TAGS: &str = "tags of a version";
    let changes: [(&str, u8, Made); 6] = [
        (NEWEST, 2, |at| Box::pin(at.delete_version(0))),
        (OLD, 2, |at| Box::pin(at.delete_version(1))),
        (ONLY, 1, |at| Box::pin(at.delete_version(0))),
        (MARKER, 0, |at| Box::pin(at.delete("k", None))),
        (FIRST, 0, |at| Box::pin(async { at.put("k", bytes(LARGE, 1)).await.map(|_| ()) })),
        (TAGS, 2, |at| {
            let tags = TagSet(vec![("a".into(), "b".into())]);
            let change = ObjectChange { tags: Some(tags), acl: None };
            Box::pin(async {
                at.rgw.change_object(&at.bucket, "k", None, change).await.map(|_| ())
            })
        }),
    ];
    for (what, versions, change) in changes {
        for (left, waited) in (0..24).flat_map(|left| [(left, 2), (left, 300)]) {
            let disk = Disk::new();
            let link = Link::new(&disk, None, None);
            run(async {
                let rgw = gateway(&link).await;
                let bucket = make_bucket(&rgw).await;
                let mut at = At { rgw, bucket };
                enabled(&mut at).await;
                for n in 0..versions {
                    at.put("k", bytes(LARGE, n)).await.unwrap();
                }
                at.rgw.reclaim(true).await.unwrap();
                link.end_after(left);
                tokio::select! {
                    biased;
                    _ = link.end.notified() => {}
                    done = change(&at) => done.unwrap(),
                }
            });
            // The index gives up what was announced after two minutes. Heads do so after an hour,
            // unless notes have less.
            disk.pass(waited);
            let link = Link::new(&disk, None, None);
            run(async {
                let rgw = gateway_alone(&link).await;
                let bucket = rgw.bucket(&name()).await.unwrap();
                let at = At { rgw, bucket };
                at.list(true).await.unwrap();
                for _ in 0..2 {
                    at.rgw.reclaim(true).await.unwrap();
                    disk.pass(2);
                }
                let all = disk.objects().await;
                let mut wrong = faults(&all, &marker(&all));
                totals(&disk, &all, &mut wrong).await;
                let when = format!("{what} after {left} writes and {waited} seconds");
                assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
            });
        }
    }
}

/// What a change of one key, in a series of them, is.
async fn any_change(at: &At, dice: &Dice) -> Result<()> {
    let versions = at.list(true).await?;
    match dice.below(8) {
        0..3 => at.put("k", bytes(100, dice.below(200) as u8)).await.map(|_| ()),
        3..5 => at.delete("k", None).await,
        // A version that is gone, too.
        5 => at.delete("k", Some("0123456789abcdef0123456789abcdef")).await,
        _ if versions.is_empty() => Ok(()),
        _ => {
            let at_random = &versions[dice.below(versions.len() as u64) as usize];
            at.delete("k", at_random.version.as_deref()).await
        }
    }
}

/// The cluster after changes of which nothing is left: garbage alone is collected.
async fn nothing_is_wrong(disk: &Rc<Disk>, rgw: &Rgw, what: &str) {
    for _ in 0..2 {
        // Notes of changes go after the answer.
        tokio::task::yield_now().await;
        rgw.reclaim(true).await.unwrap();
        disk.pass(2);
    }
    let all = disk.objects().await;
    let mut wrong = faults(&all, &marker(&all));
    totals(disk, &all, &mut wrong).await;
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

/// A delete marker that is to follow another changes nothing. What was noted of it in the head
/// would hold back the removal of the head when the last version goes.
#[test]
fn a_change_that_changes_nothing_leaves_nothing() {
    let disk = Disk::new();
    let link = Link::new(&disk, None, None);
    run(async {
        let at = versioned(&link).await;
        at.delete("k", None).await.unwrap();
        at.delete("k", None).await.unwrap();
        at.delete_version(0).await.unwrap();
        assert_eq!(at.seen().await, Seen::default());
        nothing_is_wrong(&disk, &at.rgw, "two delete markers and a deletion").await;
        let all = disk.objects().await;
        let own = format!("{}_", marker(&all));
        let left: Vec<_> = all.keys().filter(|(_, _, n)| n.starts_with(own.as_bytes())).collect();
        assert!(left.is_empty(), "objects of a bucket without versions: {left:?}");
    });
}

/// One call of the class looks at a bounded number of rows: a list passes over more than that.
#[test]
fn a_list_passes_over_any_number_of_versions_that_are_not_shown() {
    let disk = Disk::new();
    let link = Link::new(&disk, None, None);
    run(async {
        let at = versioned(&link).await;
        for n in 0..60 {
            at.put("k", bytes(10, n)).await.unwrap();
        }
        at.delete("k", None).await.unwrap();
        let listed = |all: Vec<s3_layout::api::Entry>| all.into_iter().map(|e| e.key);
        assert_eq!(listed(at.list(false).await.unwrap()).count(), 0);
        assert_eq!(listed(at.list(true).await.unwrap()).count(), 61);
        for key in ["a", "z"] {
            at.put(key, bytes(10, 1)).await.unwrap();
        }
        let shown: Vec<_> = listed(at.list(false).await.unwrap()).collect();
        assert_eq!(shown, ["a", "z"]);
    });
}

/// Changes of the versions of one key in a row, each after an answer: nothing is left at once, and
/// nothing if the gateway ends anywhere in between.
#[test]
fn a_series_of_changes_of_versions_leaves_nothing() {
    for seed in 0..150 {
        let disk = Disk::new();
        let link = Link::new(&disk, None, None);
        let dice = Dice::new(seed);
        run(async {
            let rgw = gateway(&link).await;
            let bucket = make_bucket(&rgw).await;
            let mut at = At { rgw, bucket };
            enabled(&mut at).await;
            let cut = seed % 3 != 0;
            if cut {
                link.end_after(1 + dice.below(100) as u32);
            }
            let series = async {
                for _ in 0..12 {
                    any_change(&at, &dice).await.unwrap();
                }
            };
            tokio::select! {
                biased;
                _ = link.end.notified() => {}
                () = series => {
                    if !cut {
                        nothing_is_wrong(&disk, &at.rgw, &format!("series {seed}")).await;
                    }
                }
            }
        });
        disk.pass(2);
        let link = Link::new(&disk, None, None);
        run(async {
            let rgw = gateway_alone(&link).await;
            let bucket = rgw.bucket(&name()).await.unwrap();
            let at = At { rgw, bucket };
            at.list(true).await.unwrap();
            nothing_is_wrong(&disk, &at.rgw, &format!("series {seed} that was cut")).await;
        });
    }
}

/// Two gateways change the versions of one key at the same time: nothing is left at once.
#[test]
fn changes_of_versions_that_race_leave_nothing() {
    for seed in 0..150 {
        let disk = Disk::new();
        let dice = Rc::new(Dice::new(seed));
        let links = [0, 1].map(|_| Link::new(&disk, None, Some(dice.clone())));
        run(async {
            let rgw = gateway(&links[0]).await;
            let bucket = make_bucket(&rgw).await;
            let mut one = At { rgw, bucket };
            enabled(&mut one).await;
            let rgw = gateway(&links[1]).await;
            let bucket = rgw.bucket(&name()).await.unwrap();
            let other = At { rgw, bucket };
            let series = async |at: &At| {
                for _ in 0..6 {
                    any_change(at, &dice).await.unwrap();
                }
            };
            tokio::join!(series(&one), series(&other));
            nothing_is_wrong(&disk, &one.rgw, &format!("race {seed}")).await;
        });
    }
}
