//! A layout in memory: what the tests of the gateway store into.

use bytes::Bytes;
use s3::checksum::Checksum;
use s3::condition::{Conditions, Doomed};
use s3::range::Span;
use s3::xml::config::Versioning;
use s3::xml::multi::CompletePart;
use s3::{ErrorCode, etag};
use s3_layout::api::*;
use s3_layout::{Layout, Source, Upload};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Clone)]
struct Version {
    info: Object,
    marker: bool,
    data: Bytes,
    parts: Vec<PartSpan>,
}

struct PendingState {
    pending: PendingUpload,
    new: NewUpload,
    parts: BTreeMap<u32, (Part, Bytes)>,
}

struct BucketState {
    bucket: Rc<Bucket>,
    /// Versions, the newest first.
    keys: BTreeMap<String, Vec<Version>>,
    uploads: BTreeMap<String, PendingState>,
}

/// Users, buckets and objects.
#[derive(Default)]
pub struct Memory {
    users: RefCell<Vec<Rc<User>>>,
    buckets: RefCell<BTreeMap<BucketName, BucketState>>,
    clock: Cell<u64>,
    pub usage: RefCell<Vec<Usage>>,
    /// The largest number of bytes that uploads held before they ended.
    pub held_max: Cell<usize>,
}

impl Memory {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        1_700_000_000_000_000_000 + self.clock.get() * 1_000_000_000
    }

    fn with<T>(
        &self,
        bucket: &Rc<Bucket>,
        f: impl FnOnce(&mut BucketState) -> Result<T>,
    ) -> Result<T> {
        let mut buckets = self.buckets.borrow_mut();
        match buckets.get_mut(&bucket.name) {
            Some(state) if state.bucket.id == bucket.id => f(state),
            _ => Err(ErrorCode::NoSuchBucket.into()),
        }
    }

    async fn drain(&self, body: &mut impl Upload) -> Result<(Bytes, Sums)> {
        let mut data = Vec::new();
        while let Some(piece) = body.next().await? {
            assert!(!piece.is_empty() && piece.len() <= 4 << 20);
            data.extend_from_slice(&piece);
            self.held_max.set(self.held_max.get().max(data.len()));
        }
        let sums = body.finish()?;
        Ok((data.into(), sums))
    }

    fn store(
        &self,
        bucket: &Rc<Bucket>,
        mut version: Version,
        conditions: &Conditions,
    ) -> Result<Written> {
        let now = self.tick();
        self.with(bucket, |state| {
            let versioning = state.bucket.versioning;
            let list = state.keys.entry(version.info.key.clone()).or_default();
            let current = list.first().filter(|v| !v.marker).map(|v| v.info.etag.as_str());
            let judged = conditions.for_write(current);
            if list.is_empty() {
                let key = version.info.key.clone();
                if judged.is_err() {
                    state.keys.remove(&key);
                }
            }
            judged?;
            let list = state.keys.entry(version.info.key.clone()).or_default();
            version.info.version = versioning.map(|v| match v {
                Versioning::Enabled => format!("v{now}"),
                Versioning::Suspended => "null".to_owned(),
            });
            version.info.modified = now;
            let written = Written {
                version: version.info.version.clone(),
                etag: version.info.etag.clone(),
                modified: now,
                size: version.info.size,
                checksum: version.info.checksum.clone(),
            };
            if versioning != Some(Versioning::Enabled) {
                list.retain(|v| !matches!(v.info.version.as_deref(), None | Some("null")));
            }
            list.insert(0, version);
            Ok(written)
        })
    }
}

/// An object that was looked up.
pub struct Opened(Version);

impl AsRef<Object> for Opened {
    fn as_ref(&self) -> &Object {
        &self.0.info
    }
}

/// Reads in pieces of 64 KiB.
pub struct Pieces(Bytes);

impl Source for Pieces {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        tokio::task::yield_now().await;
        let n = self.0.len().min(64 << 10);
        Ok((n > 0).then(|| self.0.split_to(n)))
    }
}

fn absent(version: Option<&str>) -> Error {
    match version {
        Some(_) => ErrorCode::NoSuchVersion.into(),
        None => ErrorCode::NoSuchKey.into(),
    }
}

/// The place of a version in the list of its key.
fn find(list: &[Version], version: Option<&str>) -> Option<usize> {
    match version {
        None => (!list.is_empty()).then_some(0),
        Some(wanted) => {
            list.iter().position(|v| v.info.version.as_deref().unwrap_or("null") == wanted)
        }
    }
}

/// Goes through names in order and rolls them up.
fn rolled(prefix: &str, delimiter: &str, key: &str) -> Option<String> {
    let rest = key.strip_prefix(prefix)?;
    let at = if delimiter.is_empty() { None } else { rest.find(delimiter) }?;
    Some(key[..prefix.len() + at + delimiter.len()].to_owned())
}

impl Layout for Memory {
    type Bucket = Rc<Bucket>;
    type Object = Opened;
    type Reader = Pieces;

    async fn user(&self, id: &UserId) -> Result<Rc<User>> {
        let users = self.users.borrow();
        users.iter().find(|u| u.id == *id).cloned().ok_or(ErrorCode::NoSuchUser.into())
    }

    async fn user_of_key(&self, access_key: &str) -> Result<Rc<User>> {
        let users = self.users.borrow();
        let has = |u: &&Rc<User>| u.keys.iter().any(|k| k.id == access_key);
        users.iter().find(has).cloned().ok_or(ErrorCode::InvalidAccessKeyId.into())
    }

    async fn user_of_email(&self, email: &str) -> Result<Rc<User>> {
        let users = self.users.borrow();
        let found = users.iter().find(|u| u.email == email).cloned();
        found.ok_or(ErrorCode::UnresolvableGrantByEmailAddress.into())
    }

    async fn create_user(&self, user: &User) -> Result<()> {
        self.users.borrow_mut().push(Rc::new(user.clone()));
        Ok(())
    }

    async fn change_user(&self, _: &UserId, _: UserChange) -> Result<()> {
        Err(ErrorCode::NotImplemented.into())
    }

    async fn buckets_of(&self, owner: &UserId, after: &str, max: usize) -> Result<BucketPage> {
        let buckets = self.buckets.borrow();
        let mut mine: Vec<_> = buckets
            .values()
            .filter(|b| b.bucket.owner == *owner && b.bucket.name.name.as_str() > after)
            .map(|b| BucketEntry {
                name: b.bucket.name.name.clone(),
                created: b.bucket.created,
                ..BucketEntry::default()
            })
            .collect();
        let more = mine.len() > max;
        mine.truncate(max);
        Ok(BucketPage { buckets: mine, more })
    }

    async fn bucket(&self, name: &BucketName) -> Result<Rc<Bucket>> {
        let buckets = self.buckets.borrow();
        buckets.get(name).map(|b| b.bucket.clone()).ok_or(ErrorCode::NoSuchBucket.into())
    }

    async fn create_bucket(&self, new: NewBucket) -> Result<Rc<Bucket>> {
        let mut buckets = self.buckets.borrow_mut();
        if let Some(b) = buckets.get(&new.name) {
            return Err(if b.bucket.owner == new.owner {
                ErrorCode::BucketAlreadyOwnedByYou.into()
            } else {
                ErrorCode::BucketAlreadyExists.into()
            });
        }
        if new.object_lock {
            return Err(ErrorCode::NotImplemented.into());
        }
        let now = self.tick();
        let bucket = Rc::new(Bucket {
            name: new.name.clone(),
            id: format!("id{now}"),
            owner: new.owner,
            created: now,
            versioning: None,
            object_lock: false,
            quota: Quota::default(),
            location: new.location,
            settings: Settings { acl: new.acl, ownership: new.ownership, ..Settings::default() },
        });
        let state =
            BucketState { bucket: bucket.clone(), keys: BTreeMap::new(), uploads: BTreeMap::new() };
        buckets.insert(new.name, state);
        Ok(bucket)
    }

    async fn delete_bucket(&self, bucket: &Rc<Bucket>) -> Result<()> {
        self.with(bucket, |state| {
            if state.keys.is_empty() { Ok(()) } else { Err(ErrorCode::BucketNotEmpty.into()) }
        })?;
        self.buckets.borrow_mut().remove(&bucket.name);
        Ok(())
    }

    async fn change_bucket(&self, bucket: &Rc<Bucket>, change: BucketChange) -> Result<()> {
        self.with(bucket, |state| {
            let mut new = (*state.bucket).clone();
            let s = &mut new.settings;
            match change {
                BucketChange::Acl(x) => s.acl = x,
                BucketChange::Policy(x) => s.policy = x,
                BucketChange::Cors(x) => s.cors = x,
                BucketChange::Lifecycle(x) => s.lifecycle = x,
                BucketChange::Tags(x) => s.tags = x,
                BucketChange::PublicAccess(x) => s.public_access = x,
                BucketChange::Ownership(x) => s.ownership = x,
                BucketChange::Versioning(x) => new.versioning = Some(x),
                BucketChange::Quota(x) => new.quota = x,
            }
            state.bucket = Rc::new(new);
            Ok(())
        })
    }

    async fn bucket_stats(&self, bucket: &Rc<Bucket>) -> Result<BucketStats> {
        self.with(bucket, |state| {
            let all = || state.keys.values().flatten();
            Ok(BucketStats {
                objects: all().count() as u64,
                bytes: all().map(|v| v.info.size).sum(),
                rounded: all().map(|v| v.info.size.next_multiple_of(4096)).sum(),
            })
        })
    }

    async fn open(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        version: Option<&str>,
        _: bool,
    ) -> Result<Opened> {
        self.with(bucket, |state| {
            let list = state.keys.get(key).map(Vec::as_slice).unwrap_or_default();
            let found = &list[find(list, version).ok_or_else(|| absent(version))?];
            if found.marker {
                let id = found.info.version.clone().unwrap_or_default();
                return Err(Error::DeleteMarker { version: id, named: version.is_some() });
            }
            Ok(Opened(found.clone()))
        })
    }

    fn read(&self, object: &Opened, span: Span) -> Pieces {
        let (from, to) = (span.offset as usize, (span.offset + span.length) as usize);
        Pieces(object.0.data.slice(from..to))
    }

    fn parts(&self, object: &Opened) -> Vec<PartSpan> {
        object.0.parts.clone()
    }

    async fn put(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        new: NewObject,
        body: &mut impl Upload,
    ) -> Result<Written> {
        let (data, sums) = self.drain(body).await?;
        let info = Object {
            key: key.to_owned(),
            size: data.len() as u64,
            etag: etag::of_digest(&sums.md5),
            headers: new.headers,
            acl: new.acl,
            tags: new.tags,
            checksum: sums.checksum,
            storage_class: new.storage_class,
            ..Object::default()
        };
        let version = Version { info, marker: false, data, parts: Vec::new() };
        self.store(bucket, version, &new.conditions)
    }

    async fn copy(
        &self,
        source: &Opened,
        bucket: &Rc<Bucket>,
        key: &str,
        new: NewObject,
    ) -> Result<Written> {
        let mut version = source.0.clone();
        version.info = Object {
            key: key.to_owned(),
            headers: new.headers,
            acl: new.acl,
            tags: new.tags,
            storage_class: new.storage_class,
            ..version.info
        };
        self.store(bucket, version, &new.conditions)
    }

    async fn delete(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        version: Option<&str>,
        conditions: &Conditions,
    ) -> Result<Deleted> {
        let now = self.tick();
        self.with(bucket, |state| {
            let versioning = state.bucket.versioning;
            if !conditions.is_empty() {
                let list = state.keys.get(key).map(Vec::as_slice).unwrap_or_default();
                let Some(at) = find(list, version) else { return Ok(Deleted::default()) };
                let info = &list[at].info;
                let modified = info.modified / 1_000_000_000;
                let doomed = Doomed { etag: &info.etag, modified, size: info.size };
                conditions.for_delete(Some(doomed))?;
            }
            let list = state.keys.entry(key.to_owned()).or_default();
            let deleted = if let (None, Some(kind)) = (version, versioning) {
                let id = match kind {
                    Versioning::Enabled => format!("v{now}"),
                    Versioning::Suspended => "null".to_owned(),
                };
                if kind == Versioning::Suspended {
                    list.retain(|v| !matches!(v.info.version.as_deref(), None | Some("null")));
                }
                let info = Object {
                    key: key.to_owned(),
                    version: Some(id.clone()),
                    modified: now,
                    ..Object::default()
                };
                let marker = Version { info, marker: true, data: Bytes::new(), parts: Vec::new() };
                list.insert(0, marker);
                Deleted { version: Some(id), marker: true }
            } else {
                match find(list, version) {
                    Some(at) => {
                        let gone = list.remove(at);
                        Deleted { version: gone.info.version, marker: gone.marker }
                    }
                    None => Deleted { version: version.map(str::to_owned), marker: false },
                }
            };
            if list.is_empty() {
                state.keys.remove(key);
            }
            Ok(deleted)
        })
    }

    async fn change_object(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        version: Option<&str>,
        change: ObjectChange,
    ) -> Result<Option<String>> {
        self.with(bucket, |state| {
            let list = state.keys.get_mut(key).ok_or_else(|| absent(version))?;
            let at = find(list, version).ok_or_else(|| absent(version))?;
            let info = &mut list[at].info;
            if let Some(acl) = change.acl {
                info.acl = acl;
            }
            if let Some(tags) = change.tags {
                info.tags = tags;
            }
            Ok(info.version.clone())
        })
    }

    async fn list(&self, bucket: &Rc<Bucket>, what: &List) -> Result<Listing> {
        self.with(bucket, |state| {
            let mut page = Listing::default();
            let mut last: Option<(String, Option<String>)> = None;
            'all: for (key, versions) in &state.keys {
                if !key.starts_with(&what.prefix) {
                    continue;
                }
                if let Some(p) = rolled(&what.prefix, &what.delimiter, key) {
                    let alive = what.versions || !versions[0].marker;
                    if p.as_str() <= what.after.as_str() || page.prefixes.contains(&p) || !alive {
                        continue;
                    }
                    if page.entries.len() + page.prefixes.len() == what.max {
                        page.next = last;
                        break;
                    }
                    last = Some((p.clone(), None));
                    page.prefixes.push(p);
                    continue;
                }
                if key < &what.after || (*key == what.after && what.after_version.is_none()) {
                    continue;
                }
                let mut skip = *key == what.after;
                for (at, v) in versions.iter().enumerate() {
                    let id = v.info.version.clone();
                    if skip {
                        skip = id.as_deref().unwrap_or("null")
                            != what.after_version.as_deref().unwrap_or_default();
                        continue;
                    }
                    if !what.versions && (at > 0 || v.marker) {
                        continue;
                    }
                    if page.entries.len() + page.prefixes.len() == what.max {
                        page.next = last;
                        break 'all;
                    }
                    let shown = id.or(what.versions.then(|| "null".to_owned()));
                    last = Some((key.clone(), shown.clone().filter(|_| what.versions)));
                    page.entries.push(Entry {
                        key: key.clone(),
                        version: shown.filter(|_| what.versions),
                        latest: at == 0,
                        marker: v.marker,
                        size: v.info.size,
                        etag: v.info.etag.clone(),
                        modified: v.info.modified,
                        owner: UserId::parse(&v.info.acl.owner),
                        owner_name: v.info.acl.owner_name.clone(),
                        storage_class: v.info.storage_class.clone(),
                    });
                }
            }
            Ok(page)
        })
    }

    async fn create_upload(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        new: NewUpload,
    ) -> Result<String> {
        let now = self.tick();
        self.with(bucket, |state| {
            let id = format!("2~{now}");
            let pending = PendingUpload {
                key: key.to_owned(),
                id: id.clone(),
                initiated: now,
                owner: UserId::parse(&new.acl.owner),
                owner_name: new.acl.owner_name.clone(),
                storage_class: new.storage_class.clone(),
                checksum: new.checksum,
            };
            let upload = PendingState { pending, new, parts: BTreeMap::new() };
            state.uploads.insert(id.clone(), upload);
            Ok(id)
        })
    }

    async fn upload(&self, bucket: &Rc<Bucket>, key: &str, id: &str) -> Result<PendingUpload> {
        self.with(bucket, |state| match state.uploads.get(id) {
            Some(u) if u.pending.key == key => Ok(u.pending.clone()),
            _ => Err(ErrorCode::NoSuchUpload.into()),
        })
    }

    async fn put_part(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        id: &str,
        number: u32,
        _: Option<u64>,
        body: &mut impl Upload,
    ) -> Result<Part> {
        let (data, sums) = self.drain(body).await?;
        self.upload(bucket, key, id).await?;
        let part = Part {
            number,
            size: data.len() as u64,
            etag: etag::of_digest(&sums.md5),
            modified: self.tick(),
            checksum: sums.checksum,
        };
        self.with(bucket, |state| {
            let Some(u) = state.uploads.get_mut(id) else { unreachable!() };
            u.parts.insert(number, (part.clone(), data));
            Ok(part)
        })
    }

    async fn list_parts(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        id: &str,
        after: u32,
        max: usize,
    ) -> Result<PartPage> {
        let upload = self.upload(bucket, key, id).await?;
        self.with(bucket, |state| {
            let all = state.uploads[id].parts.range(after + 1..);
            let mut parts: Vec<Part> = all.map(|(_, (p, _))| p.clone()).collect();
            let more = parts.len() > max;
            parts.truncate(max);
            Ok(PartPage { upload, parts, more })
        })
    }

    async fn complete_upload(
        &self,
        bucket: &Rc<Bucket>,
        key: &str,
        id: &str,
        parts: &[CompletePart],
        options: &Complete,
    ) -> Result<Written> {
        self.upload(bucket, key, id).await?;
        let version = self.with(bucket, |state| {
            let upload = &state.uploads[id];
            let (mut data, mut spans, mut digests, mut sums) = (vec![], vec![], vec![], vec![]);
            for (at, p) in parts.iter().enumerate() {
                let Some((part, bytes)) = upload.parts.get(&p.number) else {
                    return Err(ErrorCode::InvalidPart.into());
                };
                if part.etag != p.etag {
                    return Err(ErrorCode::InvalidPart.into());
                }
                if part.size < 5 << 20 && at + 1 < parts.len() {
                    return Err(ErrorCode::EntityTooSmall.into());
                }
                let (offset, length) = (data.len() as u64, part.size);
                let checksum = part.checksum.clone();
                spans.push(PartSpan { number: p.number, offset, length, checksum });
                digests.push(etag::unhex::<16>(&part.etag).unwrap());
                sums.extend(part.checksum.clone().map(|c| (c, part.size)));
                data.extend_from_slice(bytes);
            }
            let new = &upload.new;
            let checksum = new
                .checksum
                .filter(|_| sums.len() == parts.len())
                .and_then(|(a, c)| Checksum::of_parts(a, c, &sums));
            let info = Object {
                key: key.to_owned(),
                size: data.len() as u64,
                etag: etag::of_parts(&digests),
                headers: new.headers.clone(),
                acl: new.acl.clone(),
                tags: new.tags.clone(),
                checksum,
                storage_class: new.storage_class.clone(),
                parts: Some(parts.len() as u32),
                ..Object::default()
            };
            Ok(Version { info, marker: false, data: data.into(), parts: spans })
        })?;
        let found = version.info.checksum.as_ref();
        if options.checksum.as_ref().is_some_and(|said| Some(said) != found) {
            return Err(ErrorCode::BadDigest.into());
        }
        if options.bytes.is_some_and(|said| said != version.info.size) {
            return Err(ErrorCode::InvalidRequest.into());
        }
        let written = self.store(bucket, version, &options.conditions)?;
        self.with(bucket, |state| {
            state.uploads.remove(id);
            Ok(())
        })?;
        Ok(written)
    }

    async fn abort_upload(&self, bucket: &Rc<Bucket>, key: &str, id: &str) -> Result<()> {
        self.upload(bucket, key, id).await?;
        self.with(bucket, |state| {
            state.uploads.remove(id);
            Ok(())
        })
    }

    async fn list_uploads(&self, bucket: &Rc<Bucket>, what: &Uploads) -> Result<UploadPage> {
        self.with(bucket, |state| {
            let mut all: Vec<_> = state.uploads.values().map(|u| u.pending.clone()).collect();
            all.sort_by(|a, b| (&a.key, &a.id).cmp(&(&b.key, &b.id)));
            let mut page = UploadPage::default();
            let mut last = None;
            for u in all {
                let after = (&u.key, &u.id) > (&what.after, &what.after_id)
                    && (u.key != what.after || !what.after_id.is_empty());
                if !u.key.starts_with(&what.prefix) || !after {
                    continue;
                }
                let p = rolled(&what.prefix, &what.delimiter, &u.key);
                if p.as_ref().is_some_and(|p| *p <= what.after || page.prefixes.contains(p)) {
                    continue;
                }
                if page.uploads.len() + page.prefixes.len() == what.max {
                    page.next = last;
                    break;
                }
                match p {
                    Some(p) => {
                        last = Some((p.clone(), String::new()));
                        page.prefixes.push(p);
                    }
                    None => {
                        last = Some((u.key.clone(), u.id.clone()));
                        page.uploads.push(u);
                    }
                }
            }
            Ok(page)
        })
    }

    fn note_usage(&self, usage: Usage) {
        self.usage.borrow_mut().push(usage);
    }
}
