//! Against a running cluster, ours or a stock one, named by `SIPHON_TEST_CEPH_CONF`. Ignored unless
//! asked for:
//! `SIPHON_TEST_CEPH_CONF=/etc/ceph/ceph.conf cargo test -p s3-layout --test live -- --ignored`.

use auth::AuthName;
use bytes::Bytes;
use client::{ClusterConfig, Rados};
use md5::{Digest, Md5};
use s3::ErrorCode;
use s3::condition::Conditions;
use s3::range::Span;
use s3::xml::config::{
    Acl, Grant, Grantee, Lifecycle, LifecycleRule, Permission, TagSet, Versioning, When,
};
use s3::xml::multi::CompletePart;
use s3_layout::api::{
    AccessKey, BucketChange, BucketName, Complete, Error, List, NewBucket, NewObject, NewUpload,
    ObjectChange, Sums, Uploads, Usage, User, UserChange, UserId,
};
use s3_layout::rgw::{BucketRef, ObjectRef, Options, Rgw};
use s3_layout::{Layout, Result, Source, Upload};
use std::path::PathBuf;
use std::time::Duration;
use types::EntityType;

const LIMIT: Duration = Duration::from_secs(120);
/// What many rounds of kills left may be much for a machine with other work.
const SETTLE_LIMIT: Duration = Duration::from_secs(900);
const MIB: usize = 1 << 20;

fn run<F: Future>(test: F) -> F::Output {
    run_within(LIMIT, test)
}

fn run_within<F: Future>(limit: Duration, test: F) -> F::Output {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(limit, test).await.expect("the test ends in time")
    })
}

async fn open() -> Rgw {
    open_with(Options { gc_wait_seconds: 0, ..Options::default() }).await
}

async fn open_with(options: Options) -> Rgw {
    let conf = PathBuf::from(
        std::env::var_os("SIPHON_TEST_CEPH_CONF").expect("SIPHON_TEST_CEPH_CONF names a ceph.conf"),
    );
    let name = AuthName::new(EntityType::CLIENT, "admin");
    let cluster = ClusterConfig::read(&conf, name).unwrap();
    let rados = Rados::connect(&cluster, LIMIT).await.unwrap();
    Rgw::open(rados, options).await.unwrap()
}

/// A body of known bytes, in pieces that are no stripes.
struct Body(Bytes, Md5);

impl Body {
    fn new(bytes: impl Into<Bytes>) -> Self {
        Body(bytes.into(), Md5::new())
    }
}

impl Source for Body {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let piece = self.0.split_to(self.0.len().min(3 * MIB / 2));
        self.1.update(&piece);
        Ok(Some(piece).filter(|p| !p.is_empty()))
    }
}

impl Upload for Body {
    fn finish(&mut self) -> Result<Sums> {
        let md5 = std::mem::take(&mut self.1).finalize().into();
        Ok(Sums { md5, checksum: None })
    }
}

fn bytes(length: usize, seed: u8) -> Bytes {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn uid(name: &str) -> UserId {
    UserId { tenant: String::new(), id: name.into() }
}

fn acl(name: &str) -> Acl {
    let grantee = Grantee::User { id: name.into(), display_name: name.into() };
    let grant = Grant { grantee, permission: Permission::FullControl };
    Acl { owner: name.into(), owner_name: name.into(), grants: vec![grant] }
}

/// A user and a bucket that the test has for itself.
async fn bucket(rgw: &Rgw, test: &str) -> (BucketRef, String) {
    let unique =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let user = format!("live-{test}-{unique}");
    let key = AccessKey { id: user.clone(), secret: "s".into(), subuser: String::new() };
    let new = User {
        id: uid(&user),
        display_name: user.clone(),
        keys: vec![key],
        max_buckets: Some(2),
        ..User::default()
    };
    rgw.create_user(&new).await.unwrap();
    let name = BucketName { tenant: String::new(), name: user.clone() };
    let new = NewBucket { name, owner: uid(&user), acl: acl(&user), ..NewBucket::default() };
    (rgw.create_bucket(new).await.unwrap(), user)
}

fn object(owner: &str) -> NewObject {
    NewObject { acl: acl(owner), ..NewObject::default() }
}

async fn put(rgw: &Rgw, b: &BucketRef, owner: &str, key: &str, data: Bytes) -> Option<String> {
    rgw.put(b, key, object(owner), &mut Body::new(data)).await.unwrap().version
}

async fn read(rgw: &Rgw, object: &ObjectRef, offset: u64, length: u64) -> Bytes {
    let mut reader = rgw.read(object, Span { offset, length });
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        all.extend_from_slice(&piece);
    }
    all.into()
}

async fn get(rgw: &Rgw, b: &BucketRef, key: &str, version: Option<&str>) -> Result<Bytes> {
    let object = rgw.open(b, key, version, true).await?;
    let size = object.as_ref().size;
    Ok(read(rgw, &object, 0, size).await)
}

fn code<T>(result: Result<T>) -> ErrorCode {
    match result {
        Ok(_) => panic!("a refusal was expected"),
        Err(e) => e.code(),
    }
}

#[test]
#[ignore = "needs a cluster"]
fn users_and_buckets() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "buckets").await;
        assert_eq!(rgw.user_of_key(&user).await.unwrap().id, uid(&user));
        assert_eq!(code(rgw.user_of_key("no-such-key").await), ErrorCode::InvalidAccessKeyId);
        assert_eq!(code(rgw.user(&uid("no-such-user")).await), ErrorCode::NoSuchUser);
        let again = User { id: uid(&user), ..User::default() };
        assert_eq!(code(rgw.create_user(&again).await), ErrorCode::InvalidRequest);
        let change = UserChange { suspended: Some(true), ..UserChange::default() };
        rgw.change_user(&uid(&user), change).await.unwrap();
        assert!(rgw.user(&uid(&user)).await.unwrap().suspended);

        let name = b.as_ref().name.clone();
        let new = NewBucket {
            name: name.clone(),
            owner: uid(&user),
            acl: acl(&user),
            ..NewBucket::default()
        };
        let owned = code(rgw.create_bucket(new.clone()).await);
        assert_eq!(owned, ErrorCode::BucketAlreadyOwnedByYou);
        let (_, other) = bucket(&rgw, "other").await;
        let theirs = NewBucket { owner: uid(&other), ..new };
        assert_eq!(code(rgw.create_bucket(theirs).await), ErrorCode::BucketAlreadyExists);
        let list = rgw.buckets_of(&uid(&user), "", 10).await.unwrap();
        assert_eq!(list.buckets.iter().map(|b| &b.name).collect::<Vec<_>>(), [&name.name]);

        let tags = TagSet(vec![("k".into(), "v".into())]);
        rgw.change_bucket(&b, BucketChange::Tags(Some(tags.clone()))).await.unwrap();
        rgw.change_bucket(&b, BucketChange::Policy(Some("{}".into()))).await.unwrap();
        let now = rgw.bucket(&name).await.unwrap();
        assert_eq!(now.as_ref().settings.tags, Some(tags));
        assert_eq!(now.as_ref().settings.acl, acl(&user));
        rgw.change_bucket(&b, BucketChange::Policy(None)).await.unwrap();
        assert_eq!(rgw.bucket(&name).await.unwrap().as_ref().settings.policy, None);

        put(&rgw, &b, &user, "k", "x".into()).await;
        assert_eq!(code(rgw.delete_bucket(&b).await), ErrorCode::BucketNotEmpty);
        rgw.delete(&b, "k", None, &Conditions::default()).await.unwrap();
        rgw.delete_bucket(&b).await.unwrap();
        assert_eq!(code(rgw.bucket(&name).await), ErrorCode::NoSuchBucket);
        assert!(rgw.buckets_of(&uid(&user), "", 10).await.unwrap().buckets.is_empty());
        rgw.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn objects_of_all_sizes() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "sizes").await;
        for (at, length) in
            [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB].into_iter().enumerate()
        {
            let data = bytes(length, at as u8);
            let key = format!("_k/{length}");
            let written =
                rgw.put(&b, &key, object(&user), &mut Body::new(data.clone())).await.unwrap();
            assert_eq!((written.size, written.version), (length as u64, None));
            let found = rgw.open(&b, &key, None, true).await.unwrap();
            assert_eq!(found.as_ref().etag, written.etag);
            assert_eq!(found.as_ref().etag, s3::etag::hex(&Md5::digest(&data)));
            assert_eq!(read(&rgw, &found, 0, length as u64).await, data, "{length}");
        }
        let data = bytes(9 * MIB, 5);
        let head = rgw.open(&b, &format!("_k/{}", 9 * MIB), None, false).await.unwrap();
        for (offset, length) in [(0, 1), (4 * MIB - 2, 5), (8 * MIB + 7, MIB - 7), (9 * MIB - 1, 1)]
        {
            let part = read(&rgw, &head, offset as u64, length as u64).await;
            assert_eq!(part, data.slice(offset..offset + length));
        }
        let stats = rgw.bucket_stats(&b).await.unwrap();
        assert_eq!((stats.objects, stats.bytes), (6, (21 * MIB + 1) as u64));

        // What replaces an object leaves nothing of it.
        let key = format!("_k/{}", 9 * MIB);
        put(&rgw, &b, &user, &key, "new".into()).await;
        assert_eq!(get(&rgw, &b, &key, None).await.unwrap(), "new");
        rgw.reclaim(true).await.unwrap();
        let mut new = object(&user);
        new.conditions.none_match = Some("*".into());
        let refused = rgw.put(&b, &key, new.clone(), &mut Body::new("x")).await;
        assert_eq!(code(refused), ErrorCode::PreconditionFailed);
        rgw.put(&b, "fresh", new, &mut Body::new("x")).await.unwrap();
        let mut new = object(&user);
        new.conditions.matches = Some("\"0\"".into());
        let refused = rgw.put(&b, &key, new, &mut Body::new("x")).await;
        assert_eq!(code(refused), ErrorCode::PreconditionFailed);
        assert_eq!(get(&rgw, &b, &key, None).await.unwrap(), "new");

        let tags = TagSet(vec![("a".into(), "b".into())]);
        let change = ObjectChange { tags: Some(tags.clone()), acl: None };
        rgw.change_object(&b, &key, None, change).await.unwrap();
        let found = rgw.open(&b, &key, None, true).await.unwrap();
        assert_eq!((&found.as_ref().tags, &found.as_ref().acl), (&tags, &acl(&user)));
        rgw.delete(&b, &key, None, &Conditions::default()).await.unwrap();
        assert_eq!(code(get(&rgw, &b, &key, None).await), ErrorCode::NoSuchKey);
        rgw.delete(&b, &key, None, &Conditions::default()).await.unwrap();
        rgw.close().await.unwrap();
    });
}

/// Fails after so many bytes.
struct Broken(usize);

impl Source for Broken {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.0 == 0 {
            return Err(ErrorCode::IncompleteBody.into());
        }
        self.0 = self.0.saturating_sub(MIB);
        Ok(Some(bytes(MIB, 0)))
    }
}

impl Upload for Broken {
    fn finish(&mut self) -> Result<Sums> {
        Err(ErrorCode::BadDigest.into())
    }
}

#[test]
#[ignore = "needs a cluster"]
fn an_upload_that_fails_leaves_nothing() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "broken").await;
        let put = rgw.put(&b, "k", object(&user), &mut Broken(9 * MIB)).await;
        assert_eq!(code(put), ErrorCode::IncompleteBody);
        assert_eq!(code(get(&rgw, &b, "k", None).await), ErrorCode::NoSuchKey);
        let list = rgw.list(&b, &List { max: 10, ..List::default() }).await.unwrap();
        assert!(list.entries.is_empty());
        rgw.delete_bucket(&b).await.unwrap();
        rgw.close().await.unwrap();
    });
}

async fn keys(rgw: &Rgw, b: &BucketRef, list: &List) -> (Vec<String>, Vec<String>) {
    let (mut keys, mut prefixes, mut list) = (Vec::new(), Vec::new(), list.clone());
    loop {
        let page = rgw.list(b, &list).await.unwrap();
        assert!(page.entries.len() + page.prefixes.len() <= list.max);
        keys.extend(page.entries.into_iter().map(|e| e.key));
        prefixes.extend(page.prefixes);
        let Some((after, version)) = page.next else { return (keys, prefixes) };
        assert!(after > list.after || version.is_some(), "{after} is behind {}", list.after);
        (list.after, list.after_version) = (after, version);
    }
}

#[test]
#[ignore = "needs a cluster"]
fn lists() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "lists").await;
        let mut all: Vec<String> = (0..40).map(|n| format!("dir{}/{n:03}", n % 3)).collect();
        all.extend(["_u", "dir0", "dir1", "zz", "\u{e4}\u{4e16}", "dir0/sub/x"].map(String::from));
        for key in &all {
            put(&rgw, &b, &user, key, key.clone().into()).await;
        }
        all.sort();
        for max in [1, 7, 1000] {
            let list = List { max, ..List::default() };
            assert_eq!(keys(&rgw, &b, &list).await, (all.clone(), vec![]), "{max}");
            let list = List { max, delimiter: "/".into(), ..List::default() };
            let (flat, dirs) = keys(&rgw, &b, &list).await;
            let want: Vec<&String> = all.iter().filter(|k| !k.contains('/')).collect();
            assert_eq!(flat.iter().collect::<Vec<_>>(), want, "{max}");
            assert_eq!(dirs, ["dir0/", "dir1/", "dir2/"]);
            let list =
                List { max, prefix: "dir0/".into(), delimiter: "/".into(), ..List::default() };
            let (flat, dirs) = keys(&rgw, &b, &list).await;
            assert_eq!((flat.len(), dirs), (14, vec!["dir0/sub/".to_owned()]));
        }
        let list = List { max: 10, after: "dir2/038".into(), ..List::default() };
        assert_eq!(keys(&rgw, &b, &list).await.0, ["zz", "\u{e4}\u{4e16}"]);
        rgw.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn copies() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "copies").await;
        let data = bytes(9 * MIB, 1);
        put(&rgw, &b, &user, "a", data.clone()).await;
        let source = rgw.open(&b, "a", None, true).await.unwrap();
        let copy = rgw.copy(&source, &b, "b", object(&user)).await.unwrap();
        assert_eq!(copy.etag, source.as_ref().etag);
        rgw.delete(&b, "a", None, &Conditions::default()).await.unwrap();
        rgw.reclaim(true).await.unwrap();
        assert_eq!(get(&rgw, &b, "b", None).await.unwrap(), data, "the data is shared");
        // Onto itself, with other headers.
        let source = rgw.open(&b, "b", None, true).await.unwrap();
        let mut new = object(&user);
        new.headers.insert("content-type".into(), "text/x".into());
        rgw.copy(&source, &b, "b", new).await.unwrap();
        rgw.reclaim(true).await.unwrap();
        let found = rgw.open(&b, "b", None, true).await.unwrap();
        assert_eq!(found.as_ref().headers["content-type"], "text/x");
        assert_eq!(get(&rgw, &b, "b", None).await.unwrap(), data);
        rgw.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn uploads() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "uploads").await;
        let new = || NewUpload { acl: acl(&user), ..NewUpload::default() };
        let id = rgw.create_upload(&b, "m", new()).await.unwrap();
        let parts = [bytes(5 * MIB, 1), bytes(5 * MIB, 2), bytes(1000, 3)];
        let mut done = Vec::new();
        for (n, data) in (1..).zip(&parts) {
            // Each part a second time, as clients do when an answer is lost.
            rgw.put_part(&b, "m", &id, n, None, &mut Body::new("x")).await.unwrap();
            let part =
                rgw.put_part(&b, "m", &id, n, None, &mut Body::new(data.clone())).await.unwrap();
            done.push(CompletePart { number: n, etag: part.etag, checksum: None });
        }
        let page = rgw.list_parts(&b, "m", &id, 0, 2).await.unwrap();
        assert_eq!((page.parts.len(), page.more), (2, true));
        let page = rgw.list_parts(&b, "m", &id, 2, 2).await.unwrap();
        assert_eq!((page.parts.len(), page.parts[0].size, page.more), (1, 1000, false));
        let left = rgw.create_upload(&b, "left", new()).await.unwrap();
        rgw.put_part(&b, "left", &left, 1, None, &mut Body::new("x")).await.unwrap();
        let under_way =
            rgw.list_uploads(&b, &Uploads { max: 10, ..Uploads::default() }).await.unwrap();
        let keys: Vec<_> = under_way.uploads.iter().map(|u| (&u.key[..], &u.id[..])).collect();
        assert_eq!(keys, [("left", &left[..]), ("m", &id[..])]);
        let first = rgw.list_uploads(&b, &Uploads { max: 1, ..Uploads::default() }).await.unwrap();
        assert_eq!(first.next, Some(("left".into(), left.clone())));

        let options = Complete::default();
        let mut wrong = done.clone();
        wrong[0].etag = "0".repeat(32);
        let refused = rgw.complete_upload(&b, "m", &id, &wrong, &options).await;
        assert_eq!(code(refused), ErrorCode::InvalidPart);
        let written = rgw.complete_upload(&b, "m", &id, &done, &options).await.unwrap();
        assert!(written.etag.ends_with("-3"));
        let again = rgw.complete_upload(&b, "m", &id, &done, &options).await.unwrap();
        assert_eq!(again.etag, written.etag, "a second completion is answered as the first");
        assert_eq!(get(&rgw, &b, "m", None).await.unwrap(), parts.concat());
        let object = rgw.open(&b, "m", None, false).await.unwrap();
        let spans: Vec<_> = rgw.parts(&object).iter().map(|p| (p.number, p.length)).collect();
        assert_eq!(spans, [(1, 5 << 20), (2, 5 << 20), (3, 1000)]);
        assert_eq!(object.as_ref().parts, Some(3));
        rgw.abort_upload(&b, "left", &left).await.unwrap();
        assert_eq!(code(rgw.abort_upload(&b, "left", &left).await), ErrorCode::NoSuchUpload);
        assert_eq!(rgw.bucket_stats(&b).await.unwrap().objects, 1);
        rgw.delete(&b, "m", None, &Conditions::default()).await.unwrap();
        rgw.reclaim(true).await.unwrap();
        rgw.delete_bucket(&b).await.unwrap();
        rgw.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn versions() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "versions").await;
        let none = Conditions::default();
        put(&rgw, &b, &user, "k", "null".into()).await;
        rgw.change_bucket(&b, BucketChange::Versioning(Versioning::Enabled)).await.unwrap();
        let b = rgw.bucket(&b.as_ref().name).await.unwrap();
        let v1 = put(&rgw, &b, &user, "k", "one".into()).await.unwrap();
        let v2 = put(&rgw, &b, &user, "k", "two".into()).await.unwrap();
        assert_eq!(get(&rgw, &b, "k", None).await.unwrap(), "two");
        assert_eq!(get(&rgw, &b, "k", Some(&v1)).await.unwrap(), "one");
        assert_eq!(get(&rgw, &b, "k", Some("null")).await.unwrap(), "null");
        let deleted = rgw.delete(&b, "k", None, &none).await.unwrap();
        let marker = deleted.version.unwrap();
        assert!(deleted.marker);
        match rgw.open(&b, "k", None, true).await {
            Err(Error::DeleteMarker { version, named: false }) => assert_eq!(version, marker),
            _ => panic!("a delete marker was expected"),
        }
        let named = rgw.open(&b, "k", Some(&marker), true).await;
        assert!(matches!(named, Err(Error::DeleteMarker { named: true, .. })));
        let other = rgw.open(&b, "k", Some("no-such-version"), true).await;
        assert_eq!(code(other), ErrorCode::NoSuchVersion);

        let versions = List { versions: true, max: 1000, ..List::default() };
        let want = [&marker, &v2, &v1, &"null".to_owned()].map(Clone::clone);
        for max in [1, 2, 1000] {
            let (mut found, mut list) = (Vec::new(), List { max, ..versions.clone() });
            loop {
                let page = rgw.list(&b, &list).await.unwrap();
                found.extend(page.entries.into_iter().map(|e| e.version.unwrap()));
                let Some((after, version)) = page.next else { break };
                (list.after, list.after_version) = (after, version);
            }
            assert_eq!(found, want, "{max}");
        }
        assert!(
            rgw.list(&b, &List { max: 9, ..List::default() }).await.unwrap().entries.is_empty()
        );

        let gone = rgw.delete(&b, "k", Some(&marker), &none).await.unwrap();
        assert!(gone.marker);
        assert_eq!(get(&rgw, &b, "k", None).await.unwrap(), "two");
        rgw.delete(&b, "k", Some(&v2), &none).await.unwrap();
        assert_eq!(get(&rgw, &b, "k", None).await.unwrap(), "one");
        rgw.change_bucket(&b, BucketChange::Versioning(Versioning::Suspended)).await.unwrap();
        let b = rgw.bucket(&b.as_ref().name).await.unwrap();
        assert_eq!(put(&rgw, &b, &user, "k", "null again".into()).await.unwrap(), "null");
        assert_eq!(get(&rgw, &b, "k", None).await.unwrap(), "null again");
        assert_eq!(get(&rgw, &b, "k", Some(&v1)).await.unwrap(), "one");
        let deleted = rgw.delete(&b, "k", None, &none).await.unwrap();
        assert_eq!((deleted.version.as_deref(), deleted.marker), (Some("null"), true));
        assert_eq!(code(get(&rgw, &b, "k", None).await), ErrorCode::NoSuchKey);
        rgw.delete(&b, "k", Some("null"), &none).await.unwrap();
        rgw.delete(&b, "k", Some(&v1), &none).await.unwrap();
        let left = rgw.list(&b, &versions).await.unwrap();
        assert!(left.entries.is_empty(), "{left:?}");
        rgw.reclaim(true).await.unwrap();
        rgw.delete_bucket(&b).await.unwrap();
        rgw.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn background_work() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "background").await;
        put(&rgw, &b, &user, "tmp/old", "x".into()).await;
        put(&rgw, &b, &user, "kept", "x".into()).await;
        let rule = LifecycleRule {
            id: "r".into(),
            enabled: true,
            prefix: "tmp/".into(),
            expiration: Some(When::Days(1)),
            ..LifecycleRule::default()
        };
        let life = BucketChange::Lifecycle(Some(Lifecycle(vec![rule])));
        rgw.change_bucket(&b, life).await.unwrap();
        // Days without length: everything is due.
        assert!(rgw.expire(0).await.unwrap().objects >= 1);
        let list = rgw.list(&b, &List { max: 10, ..List::default() }).await.unwrap();
        assert_eq!(list.entries.iter().map(|e| &e.key[..]).collect::<Vec<_>>(), ["kept"]);
        let usage = Usage {
            owner: uid(&user),
            bucket: b.as_ref().name.name.clone(),
            category: "put_obj",
            bytes_received: 2,
            succeeded: true,
            ..Usage::default()
        };
        rgw.note_usage(usage);
        rgw.write_usage().await.unwrap();
        rgw.close().await.unwrap();
    });
}

/// Requests are given up at any point, as by a client that goes away or a gateway that ends: what
/// lists say is what can be opened.
#[test]
#[ignore = "needs a cluster"]
fn changes_that_are_given_up() {
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "given-up").await;
        let none = Conditions::default();
        for n in 0..80u64 {
            let key = format!("k{}", n % 7);
            let limit = Duration::from_micros(n * 1370 % 90_000);
            let mut body = Body::new(bytes(n as usize + 1, 0));
            if n % 3 == 2 {
                let _ = tokio::time::timeout(limit, rgw.delete(&b, &key, None, &none)).await;
            } else {
                let put = rgw.put(&b, &key, object(&user), &mut body);
                let _ = tokio::time::timeout(limit, put).await;
            }
        }
        // What was sent before a request was given up may be carried out later.
        for attempt in 0.. {
            let list = rgw.list(&b, &List { max: 100, ..List::default() }).await.unwrap();
            let listed: Vec<_> =
                list.entries.iter().map(|e| (e.key.clone(), e.size, e.etag.clone())).collect();
            let mut there = Vec::new();
            for n in 0..7 {
                let key = format!("k{n}");
                match rgw.open(&b, &key, None, true).await {
                    Ok(found) => {
                        let info = found.as_ref();
                        let data = read(&rgw, &found, 0, info.size).await;
                        assert_eq!(info.etag, s3::etag::hex(&Md5::digest(&data)));
                        there.push((key, info.size, info.etag.clone()));
                    }
                    Err(e) => assert_eq!(e.code(), ErrorCode::NoSuchKey),
                }
            }
            if listed == there {
                break;
            }
            assert!(attempt < 50, "{listed:?} are listed, {there:?} are there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        rgw.close().await.unwrap();
    });
}

/// With `SIPHON_TEST_RADOSGW_ADMIN` (the program's path) a bucket is resharded by it, while its
/// state from before is in use here.
#[test]
#[ignore = "needs a cluster"]
fn a_bucket_that_is_resharded() {
    let Some(admin) = std::env::var_os("SIPHON_TEST_RADOSGW_ADMIN") else { return };
    run(async {
        let rgw = open().await;
        let (b, user) = bucket(&rgw, "reshard").await;
        for n in 0..20 {
            put(&rgw, &b, &user, &format!("k{n:02}"), bytes(n, 0)).await;
        }
        let name = b.as_ref().name.name.clone();
        // Not on this thread: the program waits for its notifications to be answered.
        let resharded = tokio::task::spawn_blocking(move || {
            let conf = std::env::var_os("SIPHON_TEST_CEPH_CONF").unwrap();
            std::process::Command::new(admin)
                .args(["-n", "client.admin", "bucket", "reshard", "--num-shards=13"])
                .args(["--yes-i-really-mean-it", "--bucket", &name, "-c"])
                .arg(conf)
                .output()
        });
        let resharded = resharded.await.unwrap().unwrap();
        assert!(resharded.status.success(), "{resharded:?}");
        put(&rgw, &b, &user, "k20", bytes(20, 0)).await;
        rgw.delete(&b, "k00", None, &Conditions::default()).await.unwrap();
        let fresh = rgw.bucket(&b.as_ref().name).await.unwrap();
        for handle in [&b, &fresh] {
            let list = rgw.list(handle, &List { max: 100, ..List::default() }).await.unwrap();
            let sizes: Vec<u64> = list.entries.iter().map(|e| e.size).collect();
            assert_eq!(sizes, (1..=20).collect::<Vec<u64>>());
        }
        rgw.close().await.unwrap();
    });
}

/// `SIPHON_TEST_S3_BUCKET` names a bucket in which another gateway has written; without it there is
/// nothing to do. All of it is read, and some of it is changed: `tests/clients/test_s3_layout.py`
/// looks at that through the other gateway.
#[test]
#[ignore = "needs a cluster"]
fn a_bucket_of_another_gateway() {
    let Ok(name) = std::env::var("SIPHON_TEST_S3_BUCKET") else { return };
    run(async {
        let rgw = open().await;
        let b = rgw.bucket(&BucketName { tenant: String::new(), name }).await.unwrap();
        let owner = b.as_ref().owner.to_string();
        let versioned = b.as_ref().versioning.is_some();
        let mut list = List { versions: versioned, max: 7, ..List::default() };
        let mut read_objects = 0;
        loop {
            let page = rgw.list(&b, &list).await.unwrap();
            for e in page.entries.iter().filter(|e| !e.marker) {
                let object = rgw.open(&b, &e.key, e.version.as_deref(), true).await.unwrap();
                let info = object.as_ref();
                assert_eq!((info.size, &info.etag, info.modified), (e.size, &e.etag, e.modified));
                assert_eq!(info.acl.owner, owner);
                let data = read(&rgw, &object, 0, info.size).await;
                let parts = rgw.parts(&object);
                let etag = if parts.is_empty() {
                    s3::etag::hex(&Md5::digest(&data))
                } else {
                    let sums: Vec<[u8; 16]> = parts
                        .iter()
                        .map(|p| &data[p.offset as usize..(p.offset + p.length) as usize])
                        .map(|part| Md5::digest(part).into())
                        .collect();
                    s3::etag::of_parts(&sums)
                };
                assert_eq!(info.etag, etag, "{}", e.key);
                read_objects += 1;
            }
            let Some((after, version)) = page.next else { break };
            (list.after, list.after_version) = (after, version);
        }
        assert!(read_objects >= 5, "{read_objects}");

        let none = Conditions::default();
        put(&rgw, &b, &owner, "ours/small", bytes(5, 1)).await;
        put(&rgw, &b, &owner, "ours/big", bytes(9 * MIB, 2)).await;
        put(&rgw, &b, &owner, "theirs/big", bytes(3, 3)).await;
        rgw.delete(&b, "theirs/gone", None, &none).await.unwrap();
        let source = rgw.open(&b, "theirs/parts", None, true).await.unwrap();
        rgw.copy(&source, &b, "ours/copy", object(&owner)).await.unwrap();
        let tags = TagSet(vec![("a".into(), "b".into())]);
        let change = ObjectChange { tags: Some(tags), acl: None };
        rgw.change_object(&b, "theirs/small", None, change).await.unwrap();
        // An upload that the other gateway began is joined here, and the other way round.
        let under_way =
            rgw.list_uploads(&b, &Uploads { max: 9, ..Uploads::default() }).await.unwrap().uploads;
        assert_eq!(under_way.iter().map(|u| &u.key[..]).collect::<Vec<_>>(), ["theirs/begun"]);
        let id = &under_way[0].id;
        let mut end = Body::new(bytes(9, 4));
        rgw.put_part(&b, "theirs/begun", id, 2, None, &mut end).await.unwrap();
        let parts = rgw.list_parts(&b, "theirs/begun", id, 0, 10).await.unwrap().parts;
        let parts: Vec<_> = parts
            .into_iter()
            .map(|p| CompletePart { number: p.number, etag: p.etag, checksum: None })
            .collect();
        rgw.complete_upload(&b, "theirs/begun", id, &parts, &Complete::default()).await.unwrap();
        let new = NewUpload { acl: acl(&owner), ..NewUpload::default() };
        let id = rgw.create_upload(&b, "ours/begun", new).await.unwrap();
        let mut first = Body::new(bytes(5 * MIB, 5));
        rgw.put_part(&b, "ours/begun", &id, 1, None, &mut first).await.unwrap();
        rgw.close().await.unwrap();
    });
}

/// No gateway is at work: what was left by those that ended is settled without waiting.
#[test]
#[ignore = "needs a cluster"]
fn what_gateways_left() {
    run_within(SETTLE_LIMIT, async {
        let rgw =
            open_with(Options { gc_wait_seconds: 0, note_seconds: 0, ..Options::default() }).await;
        rgw.reclaim(true).await.unwrap();
        rgw.close().await.unwrap();
    });
}
