//! A bucket's index: changes in two steps, lists over all shards, and entries that do not agree
//! with their objects.

use super::backend::Io;
use super::cluster::{call, decoded, encoded, submit};
use super::convert::text;
use super::handle::Handle;
use super::heads;
use super::inner::Inner;
use crate::api::{Error, Result};
use ::rgw::bi::{BiEntry, BiGetOp, BiListOp, BiListRet, BiRow, BiType};
use ::rgw::entry::{DirEntry, EntryMeta, EntryVer, ModifyOp, flag};
use ::rgw::header::{DirHeader, ReshardStatus};
use ::rgw::index::{CompleteOp, LIST_ADVANCED, ListOp, ListRet, PrepareOp, suggest};
use ::rgw::key::{ObjKey, ZoneEntry, ZoneSet};
use ::rgw::names::{self, ObjName};
use ::rgw::olh::OlhEntry;
use ::rgw::reshard::{BucketResharding, EmptyOp, GuardReshardingOp};
use bytes::{Bytes, BytesMut};
use client::{ClientError, Comparison, OpOutcome, Operation};
use denc::{Encode, Features};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::Errno;

/// What the class answers while entries are moved (Ceph: `ERR_BUSY_RESHARDING`).
const BUSY_RESHARDING: Errno = Errno(2300);
/// How often an index that is being resharded is asked whether it is done, and how long after.
const RESHARD_ATTEMPTS: u32 = 40;
const RESHARD_PAUSE: Duration = Duration::from_millis(500);
/// How many steps are before those of the caller of [`Inner::on_shard`].
pub(super) const GUARDS: usize = 2;
/// Shards that are asked at a time.
const SHARDS_AT_ONCE: usize = 128;
/// How many times more entries a shard is asked for before a list fails.
const SPARE_MAX: usize = 8 * 8 * 8 * 8 * 8;
/// How rows of versions begin (Ceph: `BI_PREFIX_CHAR`, `BI_BUCKET_OBJ_INSTANCE_INDEX`).
const INSTANCES: &[u8] = b"\x801000_";
/// A byte that no name has (names are UTF-8): after it in order come names that do not begin so.
const BEHIND_ALL: u8 = 0xff;

/// A page of entries, merged over the shards.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// In the order of listings.
    pub(super) entries: Vec<DirEntry>,
    /// Where the next page begins, if there is more.
    pub(super) next: Option<ObjKey>,
}

/// What to list of an index.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    pub(super) after: ObjKey,
    pub(super) prefix: Bytes,
    pub(super) delimiter: Bytes,
    pub(super) versions: bool,
    pub(super) max: usize,
}

/// Where a list goes on that ended with this entry.
pub(super) fn cursor(entry: &DirEntry, versions: bool) -> ObjKey {
    if entry.has(flag::COMMON_PREFIX) {
        return behind(&entry.key.name);
    }
    let mut key = entry.key.clone();
    if versions && key.instance.is_empty() && entry.has(flag::VER) {
        // Without a version the cursor would be before all versions of the object.
        key.instance = Bytes::from_static(names::NULL_VERSION);
    }
    if !versions {
        key.instance = Bytes::new();
    }
    key
}

/// After all names that begin with a prefix.
pub(super) fn behind(prefix: &[u8]) -> ObjKey {
    ObjKey::plain([prefix, &[BEHIND_ALL]].concat().into())
}

/// Merges pages of shards, in the order of their keys. Entries after the end of a page that is not
/// the shard's last are left out: the shard may have some before them. With `true`: there is more.
pub(super) fn merge(
    pages: Vec<(u32, BTreeMap<Bytes, DirEntry>, bool)>,
    max: usize,
) -> (Vec<(u32, DirEntry)>, bool) {
    let bound = pages
        .iter()
        .filter(|(_, _, truncated)| *truncated)
        .filter_map(|(_, entries, _)| entries.keys().next_back().cloned())
        .min();
    // A shard that is truncated and gave nothing stops everything: no progress is possible.
    let stuck = pages.iter().any(|(_, entries, truncated)| *truncated && entries.is_empty());
    let mut more = pages.iter().any(|(_, _, truncated)| *truncated);
    let mut all: BTreeMap<Bytes, (u32, DirEntry)> = BTreeMap::new();
    if !stuck {
        for (shard, entries, _) in pages {
            for (key, entry) in entries {
                if bound.as_ref().is_some_and(|b| key > *b) {
                    more = true;
                    break;
                }
                // The same common prefix can come from several shards.
                all.entry(key).or_insert((shard, entry));
            }
        }
    }
    more |= all.len() > max;
    (all.into_values().take(max).collect(), more)
}

/// Lists a shard; `None` if it is not there. Rows that are not shown are passed over, however many
/// there are: a call that found nothing else is repeated after what it looked at.
async fn ask_shard(io: &Io, object: Bytes, mut op: ListOp) -> Result<Option<ListRet>> {
    loop {
        let call = Operation::new().exec("rgw", "bucket_list", &encoded(&op), false)?;
        let answer = io.run(&object, call).await?;
        let advanced = answer.result == LIST_ADVANCED;
        let output = match advanced {
            true => answer.output(0),
            false => match answer.ok() {
                Err(ClientError::Errno(Errno::ENOENT)) => return Ok(None),
                answer => answer?.output(0),
            },
        };
        let page: ListRet = decoded("a page of an index", &output)?;
        if !advanced {
            return Ok(Some(page));
        }
        let mut next = page.marker;
        if !op.list_versions && next.instance.is_empty() {
            // It may be the mark of an object with versions. A list without versions that begins at
            // a name leaves all versions of it out: this one begins between the mark and those.
            next.name = [&next.name[..], b"\0"].concat().into();
        }
        if next == op.start_obj || next.name[..] == *b"\0" {
            return Err(Error::Internal(format!(
                "{} cannot be listed behind {}",
                text(&object),
                text(&op.start_obj.name)
            )));
        }
        op.start_obj = next;
    }
}

impl Inner {
    pub(super) async fn index_io(&self, bucket: &Handle) -> Result<Io> {
        let pool = match &bucket.instance.bucket.explicit {
            Some(pools) => &pools.index,
            None => &self.placement(&bucket.instance.placement.name)?.index_pool,
        };
        self.cluster.io(pool).await
    }

    fn shard_object(&self, bucket: &Handle, shard: u32) -> Bytes {
        let (id, shards, generation) = bucket.index.borrow().clone();
        names::index_object(&id, shards, generation, shard)
    }

    /// Objects of all shards.
    pub(super) fn index_objects(&self, bucket: &Handle) -> Vec<Bytes> {
        let shards = bucket.index.borrow().1.max(1);
        (0..shards).map(|shard| self.shard_object(bucket, shard)).collect()
    }

    fn shard_of(&self, bucket: &Handle, name: &[u8]) -> u32 {
        names::index_shard(name, bucket.index.borrow().1.max(1))
    }

    /// Makes the shards of a new bucket.
    pub(super) async fn init_index(&self, bucket: &Handle) -> Result<()> {
        let io = self.index_io(bucket).await?;
        for object in self.index_objects(bucket) {
            let op = call(Operation::new().create(true), "rgw", "bucket_init_index", &(), true);
            submit(&io, object, op, None).await?;
        }
        Ok(())
    }

    /// Removes the shards.
    pub(super) async fn remove_index(&self, bucket: &Handle) -> Result<()> {
        let io = self.index_io(bucket).await?;
        for object in self.index_objects(bucket) {
            match io.remove(object).await {
                Ok(()) | Err(ClientError::Errno(Errno::ENOENT)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Runs class calls on the shard of a name, behind two steps that guard them
    /// ([`GUARDS`]). Waits while the index is being resharded, and goes to the new one then.
    pub(super) async fn on_shard(
        &self,
        bucket: &Handle,
        name: &[u8],
        build: impl Fn(Operation) -> Operation,
    ) -> Result<std::result::Result<OpOutcome, Errno>> {
        let io = self.index_io(bucket).await?;
        for _ in 0..RESHARD_ATTEMPTS {
            let guard = GuardReshardingOp { ret_err: -BUSY_RESHARDING.0 };
            // Without a shard the bucket was resharded or removed: a change must not make one.
            let op = Operation::new().assert_exists();
            let op = call(op, "rgw", "guard_bucket_resharding", &guard, false);
            let object = self.shard_object(bucket, self.shard_of(bucket, name));
            match submit(&io, &object, build(op), None).await {
                Ok(outcome) => return Ok(Ok(outcome)),
                Err(ClientError::Errno(BUSY_RESHARDING)) => {
                    self.wait_for_reshard(bucket, &io, &object).await?;
                }
                // The shard is gone: the bucket was resharded, or removed.
                Err(ClientError::Errno(Errno::ENOENT)) if self.refresh_index(bucket).await? => {}
                Err(ClientError::Errno(e)) => return Ok(Err(e)),
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Unavailable(format!("{} is being resharded", bucket.info.name)))
    }

    async fn wait_for_reshard(&self, bucket: &Handle, io: &Io, object: &[u8]) -> Result<()> {
        let input = encoded(&EmptyOp {});
        let ask = io.exec(object, "rgw", "get_bucket_resharding", &input, false);
        let under_way = match ask.await {
            Ok(bytes) => {
                let state: BucketResharding = decoded("a state of resharding", &bytes)?;
                state.entry.reshard_status == ReshardStatus::IN_PROGRESS
            }
            Err(ClientError::Errno(Errno::ENOENT)) => false,
            Err(e) => return Err(e.into()),
        };
        if under_way || !self.refresh_index(bucket).await? {
            tokio::time::sleep(RESHARD_PAUSE).await;
        }
        Ok(())
    }

    /// Looks up the bucket's index again; `true` if it is another one.
    async fn refresh_index(&self, bucket: &Handle) -> Result<bool> {
        self.forget_bucket(&bucket.info.name);
        let fresh = self.bucket(&bucket.info.name).await?;
        let (old, new) = (bucket.index.borrow().clone(), fresh.index.borrow().clone());
        let moved = old != new && fresh.instance.bucket.marker == bucket.instance.bucket.marker;
        if moved {
            *bucket.index.borrow_mut() = new;
        }
        Ok(moved)
    }

    fn trace(&self, bucket: &Handle) -> ZoneSet {
        let location = Some(bucket.instance.bucket.instance_key());
        ZoneSet::from([ZoneEntry { zone: self.zone.meta.id.clone().into(), location }])
    }

    /// Announces a change of an object.
    pub(super) async fn prepare(
        &self,
        bucket: &Handle,
        name: &ObjName,
        hashed: &[u8],
        op: ModifyOp,
        tag: &Bytes,
        bilog_flags: u16,
    ) -> Result<()> {
        let prepare = PrepareOp {
            op,
            tag: tag.clone(),
            locator: name.locator(),
            log_op: self.log_data,
            key: name.index_key(),
            bilog_flags,
            zones_trace: self.trace(bucket),
        };
        let change = |o| call(o, "rgw", "bucket_prepare_op", &prepare, true);
        self.on_shard(bucket, hashed, change)
            .await?
            .map_err(|e| failed("announcing a change", e))?;
        Ok(())
    }

    /// Finishes a change: the object is as `meta` says, or gone, or as before. A failure is only
    /// noted: lists find the change under way and look at the object.
    pub(super) async fn complete(
        &self,
        bucket: &Handle,
        name: &ObjName,
        hashed: &[u8],
        op: ModifyOp,
        tag: &Bytes,
        ver: EntryVer,
        meta: EntryMeta,
        remove_objs: Vec<ObjKey>,
        bilog_flags: u16,
    ) {
        let complete = CompleteOp {
            op,
            ver,
            meta,
            tag: tag.clone(),
            locator: name.locator(),
            remove_objs,
            log_op: self.log_data,
            key: name.index_key(),
            bilog_flags,
            zones_trace: self.trace(bucket),
        };
        let change = |o| call(o, "rgw", "bucket_complete_op", &complete, true);
        let why = match self.on_shard(bucket, hashed, change).await {
            Ok(Ok(_)) => return,
            Ok(Err(e)) => e.to_string(),
            Err(e) => e.to_string(),
        };
        tracing::warn!("a change of {} stays announced in the index: {why}", bucket.info.name);
    }

    /// Removes entries, beside that of an object which stays as it is. They are of its shard.
    pub(super) async fn remove_entries(
        &self,
        bucket: &Handle,
        beside: &ObjName,
        hashed: &[u8],
        gone: Vec<ObjKey>,
    ) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        let op = BiGetOp { key: beside.index_key(), kind: BiType::INSTANCE };
        let get = |o| call(o, "rgw", "bi_get", &op, false);
        let entry = match self.on_shard(bucket, hashed, get).await? {
            Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(failed("reading an entry", e)),
            Ok(outcome) => {
                let row: BiRow = decoded("a row of an index", &outcome.data(GUARDS)?)?;
                decoded::<DirEntry>("an entry of an index", &row.entry.data)?
            }
        };
        let tag = self.new_tag();
        self.prepare(bucket, beside, hashed, ModifyOp::ADD, &tag, 0).await?;
        let ver = EntryVer { pool: entry.ver.pool, epoch: 0 };
        let (add, meta) = (ModifyOp::ADD, entry.meta);
        self.complete(bucket, beside, hashed, add, &tag, ver, meta, gone, 0).await;
        Ok(())
    }

    /// Gives a change up.
    pub(super) async fn cancel(
        &self,
        bucket: &Handle,
        name: &ObjName,
        hashed: &[u8],
        tag: &Bytes,
        bilog_flags: u16,
    ) {
        let (op, ver, meta) = (ModifyOp::CANCEL, EntryVer::default(), EntryMeta::default());
        self.complete(bucket, name, hashed, op, tag, ver, meta, Vec::new(), bilog_flags).await;
    }

    /// The entry of a version; `None` if there is none.
    pub(super) async fn version_entry(
        &self,
        bucket: &Handle,
        name: &ObjName,
    ) -> Result<Option<DirEntry>> {
        let op = BiGetOp { key: name.index_key(), kind: BiType::INSTANCE };
        let get = |o| call(o, "rgw", "bi_get", &op, false);
        match self.on_shard(bucket, &name.name, get).await? {
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(failed("reading an entry", e)),
            Ok(outcome) => {
                let row: BiRow = decoded("a row of an index", &outcome.data(GUARDS)?)?;
                Ok(Some(decoded("an entry of an index", &row.entry.data)?))
            }
        }
    }

    /// What the index knows of an object's versions; `None` if it has none.
    pub(super) async fn olh_entry(
        &self,
        bucket: &Handle,
        name: &ObjName,
    ) -> Result<Option<OlhEntry>> {
        let op = BiGetOp { key: name.index_key(), kind: BiType::OLH };
        let get = |o| call(o, "rgw", "bi_get", &op, false);
        match self.on_shard(bucket, &name.name, get).await? {
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(failed("reading what is known of an object's versions", e)),
            Ok(outcome) => {
                let row: BiRow = decoded("a row of an index", &outcome.data(GUARDS)?)?;
                Ok(Some(decoded("what is known of an object's versions", &row.entry.data)?))
            }
        }
    }

    /// The entry of an object that is the null version beside others; `None` if there is none.
    pub(super) async fn null_entry(
        &self,
        bucket: &Handle,
        name: &ObjName,
    ) -> Result<Option<DirEntry>> {
        let key = name.index_key();
        // Rows of versions are in the order of their ids, of which this one is empty.
        let before = [INSTANCES, &key.name, b"\0"].concat();
        let row = [&before[..], b"i"].concat();
        let op = BiListOp { max: 1, name: key.name.clone(), marker: before.into() };
        let list = |o| call(o, "rgw", "bi_list", &op, false);
        let outcome = match self.on_shard(bucket, &name.name, list).await? {
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(failed("listing rows", e)),
            Ok(outcome) => outcome,
        };
        let ret: BiListRet = decoded("rows of an index", &outcome.data(GUARDS)?)?;
        let found = ret.entries.iter().find(|e| e.kind == BiType::INSTANCE && e.idx == row);
        found.map(|e| decoded("an entry of an index", &e.data)).transpose()
    }

    /// Removes the row of a null version that no object has any more, if it is still as it was
    /// read: without other versions the class finds it no more.
    pub(super) async fn remove_null(
        &self,
        bucket: &Handle,
        name: &ObjName,
        entry: &DirEntry,
    ) -> Result<()> {
        if entry.exists {
            return Ok(());
        }
        let row: Bytes = [INSTANCES, &name.index_key().name, b"\0i"].concat().into();
        let same = BTreeMap::from([(row.clone(), (encoded(entry), Comparison::Eq))]);
        let rows = BTreeSet::from([row]);
        let remove = |op: Operation| op.omap_compare(&same).omap_remove(&rows);
        match self.on_shard(bucket, &name.name, remove).await? {
            Ok(_) | Err(Errno::ECANCELED | Errno::ENOENT) => Ok(()),
            Err(e) => Err(failed("removing a row", e)),
        }
    }

    /// Headers of all shards.
    pub(super) async fn index_headers(&self, bucket: &Handle) -> Result<Vec<DirHeader>> {
        let nothing = ListOp::default();
        let pages = self.list_shards(bucket, &nothing).await?;
        Ok(pages.into_iter().map(|(_, ret)| ret.dir.header).collect())
    }

    /// Asks all shards.
    async fn list_shards(&self, bucket: &Handle, op: &ListOp) -> Result<Vec<(u32, ListRet)>> {
        if let Some(answers) = self.ask_shards(bucket, op).await? {
            return Ok(answers);
        }
        // The bucket was resharded since it was looked up.
        if self.refresh_index(bucket).await?
            && let Some(answers) = self.ask_shards(bucket, op).await?
        {
            return Ok(answers);
        }
        Err(Error::Unavailable(format!("{} has lost a part of its index", bucket.info.name)))
    }

    /// The same; `None` if a shard is not there.
    async fn ask_shards(
        &self,
        bucket: &Handle,
        op: &ListOp,
    ) -> Result<Option<Vec<(u32, ListRet)>>> {
        let io = self.index_io(bucket).await?;
        let mut answers = Vec::new();
        let objects: Vec<(u32, Bytes)> = (0..).zip(self.index_objects(bucket)).collect();
        for some in objects.chunks(SHARDS_AT_ONCE) {
            let ask = |(shard, object): &(u32, Bytes)| {
                let (io, op, object, shard) = (io.clone(), op.clone(), object.clone(), *shard);
                tokio::task::spawn_local(async move { (shard, ask_shard(&io, object, op).await) })
            };
            let tasks: Vec<_> = some.iter().map(ask).collect();
            for task in tasks {
                let (shard, answer) =
                    task.await.map_err(|_| Error::Internal("a list was given up".into()))?;
                let Some(answer) = answer? else { return Ok(None) };
                answers.push((shard, answer));
            }
        }
        Ok(Some(answers))
    }

    /// Lists a page. Entries with changes under way are compared with their objects, and mended.
    pub(super) async fn list_index(&self, bucket: &Handle, query: &Query) -> Result<Page> {
        let mut page = Page::default();
        let mut after = query.after.clone();
        // OSDs before 16.2.15 do not say how far they came: a shard may give none of many rows.
        let mut spare = 1;
        loop {
            let want = query.max - page.entries.len();
            let shards = bucket.index.borrow().1.max(1) as usize;
            // Evenly spread, with some to spare; a shard with more is asked again.
            let each = if shards == 1 { want } else { want / shards + want / (shards * 4) + 8 };
            let op = ListOp {
                num_entries: u32::try_from((each.min(want).max(1)).saturating_mul(spare))
                    .unwrap_or(u32::MAX / 2),
                filter_prefix: query.prefix.clone(),
                start_obj: after.clone(),
                list_versions: query.versions,
                delimiter: query.delimiter.clone(),
            };
            let answers = self.list_shards(bucket, &op).await?;
            let pages =
                answers.into_iter().map(|(s, r)| (s, r.dir.entries, r.is_truncated)).collect();
            let (entries, more) = merge(pages, want);
            let Some(last) = entries.last() else {
                if more && spare < SPARE_MAX {
                    spare *= 8;
                    continue;
                }
                if more {
                    return Err(Error::Unavailable(format!(
                        "the index of {} has too many entries that are not shown",
                        bucket.info.name
                    )));
                }
                page.next = None;
                return Ok(page);
            };
            spare = 1;
            let next = cursor(&last.1, query.versions);
            page.entries.extend(self.healed(bucket, entries).await?);
            page.next = more.then(|| next.clone());
            if !more || page.entries.len() >= query.max {
                return Ok(page);
            }
            if next == after {
                return Err(Error::Internal(format!(
                    "the index of {} cannot be listed behind {}",
                    bucket.info.name,
                    text(&next.name)
                )));
            }
            after = next;
        }
    }

    async fn healed(&self, bucket: &Handle, found: Vec<(u32, DirEntry)>) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::with_capacity(found.len());
        for (shard, entry) in found {
            let settled = entry.exists || entry.has(flag::DELETE_MARKER | flag::COMMON_PREFIX);
            if settled && entry.pending_map.is_empty() {
                entries.push(entry);
                continue;
            }
            entries.extend(self.compare(bucket, shard, entry).await?);
        }
        Ok(entries)
    }

    /// Tells the index what is to become of a row, if it is still as it was read.
    async fn suggest(&self, bucket: &Handle, shard: u32, row: &BiEntry, what: &[u8]) -> Result<()> {
        let io = self.index_io(bucket).await?;
        let same = BTreeMap::from([(row.idx.clone(), (row.data.clone(), Comparison::Eq))]);
        let op = Operation::new().omap_compare(&same);
        let op = op.exec("rgw", "dir_suggest_changes", what, true)?;
        submit(&io, self.shard_object(bucket, shard), op, None).await?;
        Ok(())
    }

    /// Compares the entry of a version with its object if a change of it was announced.
    pub(super) async fn heal_entry(&self, bucket: &Handle, name: &ObjName) -> Result<()> {
        let Some(entry) = self.version_entry(bucket, name).await? else { return Ok(()) };
        let settled = entry.exists && entry.pending_map.is_empty();
        if settled || entry.has(flag::DELETE_MARKER | flag::VER_MARKER) {
            return Ok(());
        }
        self.compare(bucket, self.shard_of(bucket, &name.name), entry).await.map(|_| ())
    }

    /// Compares an entry with its object: what is to be shown. The index is told of it.
    ///
    /// The row is read before the object, and changes only if it is the same after that: a change
    /// that comes in between is not undone.
    async fn compare(
        &self,
        bucket: &Handle,
        shard: u32,
        listed: DirEntry,
    ) -> Result<Option<DirEntry>> {
        let Some(name) = ObjName::of_index(&listed.key) else { return Ok(Some(listed)) };
        let io = self.index_io(bucket).await?;
        let get = BiGetOp { key: listed.key.clone(), kind: BiType::INSTANCE };
        let object = self.shard_object(bucket, shard);
        let row = match io.exec(object, "rgw", "bi_get", &encoded(&get), false).await {
            Ok(bytes) => decoded::<BiRow>("a row of an index", &bytes)?.entry,
            // It was removed since it was listed.
            Err(ClientError::Errno(Errno::ENOENT)) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut entry: DirEntry = decoded("an entry of an index", &row.data)?;
        if entry.has(flag::VER_MARKER | flag::DELETE_MARKER) {
            // The row of a null version is another one, of which no list tells more.
            return Ok(Some(listed));
        }
        // Which version is the current one stands in the row that is listed.
        let shown = |entry| DirEntry { flags: listed.flags, ..entry };
        if entry.exists && entry.pending_map.is_empty() {
            return Ok(Some(shown(entry)));
        }
        let extra = &name.ns[..] == names::NS_MULTIPART && name.name.ends_with(b".meta");
        let head = self.read_head(bucket, &name, extra, 0).await?;
        entry.pending_map = Default::default();
        let log = if self.log_data { suggest::LOG_OP } else { 0 };
        let (io, _) = self.head_place(bucket, &name, extra).await?;
        entry.ver.pool = io.pool().0;
        entry.ver.epoch = head.user_version;
        let mut out = BytesMut::new();
        if head.exists {
            let mut meta = heads::entry_meta(&head)?;
            // What the head does not tell.
            meta.category = entry.meta.category;
            if !entry.exists && !extra {
                meta.category = ::rgw::entry::ObjCategory::MAIN;
            }
            entry.meta = meta;
            if let Some(tag) = head.tag() {
                entry.tag = tag.strip_suffix(b"\0").map_or(tag.clone(), Bytes::copy_from_slice);
            }
            entry.exists = true;
            out.extend_from_slice(&[suggest::UPDATE | log]);
        } else {
            out.extend_from_slice(&[suggest::REMOVE]);
        }
        entry.encode(&mut out, Features::ALL);
        // Lost suggestions are made again by the next list.
        if let Err(e) = self.suggest(bucket, shard, &row, &out).await {
            tracing::debug!("a suggestion for an index was refused: {e}");
        }
        Ok(head.exists.then(|| shown(entry)))
    }
}

/// A class call on an index was refused.
pub(super) fn failed(what: &str, e: Errno) -> Error {
    Error::Internal(format!("{what} in a bucket's index failed: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(shard: u32, names: &[&str], more: bool) -> (u32, BTreeMap<Bytes, DirEntry>, bool) {
        let entry = |n: &&str| {
            let name = Bytes::copy_from_slice(n.as_bytes());
            (name.clone(), DirEntry { key: ObjKey::plain(name), ..DirEntry::default() })
        };
        (shard, names.iter().map(entry).collect(), more)
    }

    fn names_of(merged: &[(u32, DirEntry)]) -> Vec<String> {
        merged.iter().map(|(_, e)| text(&e.key.name)).collect()
    }

    #[test]
    fn shards_are_merged_in_order() {
        let pages = vec![page(0, &["a", "d"], false), page(1, &["b", "c"], false)];
        let (merged, more) = merge(pages, 10);
        assert_eq!(
            (names_of(&merged), more),
            (["a", "b", "c", "d"].map(String::from).into(), false)
        );
        assert_eq!(merged[1].0, 1);
        let pages = vec![page(0, &["a", "d"], false), page(1, &["b", "c"], false)];
        assert!(merge(pages, 3).1);
    }

    #[test]
    fn a_page_ends_where_a_shard_may_have_more() {
        // Shard 0 may have "b2" behind its last entry.
        let pages = vec![page(0, &["a", "b"], true), page(1, &["a2", "c", "d"], false)];
        let (merged, more) = merge(pages, 10);
        assert_eq!((names_of(&merged), more), (["a", "a2", "b"].map(String::from).into(), true));
        let pages = vec![page(0, &[], true), page(1, &["c"], false)];
        assert!(merge(pages, 10).0.is_empty());
    }

    #[test]
    fn common_prefixes_of_several_shards_are_one() {
        let pages = vec![page(0, &["dir/"], false), page(1, &["dir/", "e"], false)];
        assert_eq!(names_of(&merge(pages, 10).0), ["dir/", "e"]);
    }

    #[test]
    fn cursors_pass_what_was_listed() {
        let mut entry = DirEntry { key: ObjKey::plain("k".into()), ..DirEntry::default() };
        assert_eq!(cursor(&entry, false), entry.key);
        entry.flags = flag::VER;
        assert_eq!(cursor(&entry, true).instance, "null");
        entry.key.instance = "v1".into();
        assert_eq!(cursor(&entry, true), entry.key);
        assert_eq!(cursor(&entry, false).instance, "");
        entry.flags = flag::COMMON_PREFIX;
        entry.key = ObjKey::plain("dir/".into());
        assert!(
            cursor(&entry, false).name > "dir/\u{10ffff}" && cursor(&entry, false).name < "dir0"
        );
    }
}
