//! The buckets of a gateway's user, with totals in the omap header (Ceph: `cls/user`).

use crate::context::Object;
use crate::log::at_most;
use crate::method::{Class, RD, RD_WR, decode, encode, method};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use types::Utime;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "user",
    methods: &[
        method!("set_buckets_info", RD_WR, set_buckets_info),
        method!("complete_stats_sync", RD_WR, complete_stats_sync),
        method!("remove_bucket", RD_WR, remove_bucket),
        method!("list_buckets", RD, list_buckets),
        method!("get_header", RD, get_header),
        method!("reset_user_stats", RD_WR, reset_stats),
        method!("reset_user_stats2", RD_WR, reset_stats2),
    ],
};

const PAGE: u64 = 1000;

/// A bucket (Ceph: `cls_user_bucket`, `cls/user/cls_user_types.h`). With a placement it is written
/// as version 9, without one as version 7, which older gateways read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Its name, and the key of its entry.
    pub name: Bytes,
    /// What its objects' names begin with.
    pub marker: Bytes,
    /// Which of the buckets that had the name.
    pub bucket_id: Bytes,
    /// The placement target; empty if the pools are named here.
    pub placement_id: Bytes,
    /// Pool of the data.
    pub data_pool: Bytes,
    /// Pool of the index.
    pub index_pool: Bytes,
    /// Pool of what cannot be in the data pool.
    pub data_extra_pool: Bytes,
}

impl Encode for Bucket {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if !self.placement_id.is_empty() {
            denc::envelope(out, 9, 8, |out| {
                for field in [&self.name, &self.marker, &self.bucket_id, &self.placement_id] {
                    field.encode(out, f);
                }
            });
            return;
        }
        denc::envelope(out, 7, 3, |out| {
            for field in [
                &self.name,
                &self.data_pool,
                &self.marker,
                &self.bucket_id,
                &self.index_pool,
                &self.data_extra_pool,
            ] {
                field.encode(out, f);
            }
        });
    }
}

impl Decode for Bucket {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "cls_user_bucket";
        let (v, mut r) = r.envelope(WHAT, 9)?;
        // Before, a bucket had no envelope.
        if v < 3 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 3 });
        }
        let mut b = Bucket { name: r.get()?, ..Bucket::default() };
        if v < 8 {
            b.data_pool = r.get()?;
        }
        b.marker = r.get()?;
        b.bucket_id = if v == 3 { r.get::<u64>()?.to_string().into() } else { r.get()? };
        if v < 8 {
            b.index_pool = if v >= 5 { r.get()? } else { b.data_pool.clone() };
            if v >= 7 {
                b.data_extra_pool = r.get()?;
            }
            return Ok(b);
        }
        b.placement_id = r.get()?;
        if v == 8 && b.placement_id.is_empty() {
            b.data_pool = r.get()?;
            b.index_pool = r.get()?;
            b.data_extra_pool = r.get()?;
        }
        Ok(b)
    }
}

/// A bucket's entry (Ceph: `cls_user_bucket_entry`, version 9).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketEntry {
    /// The bucket.
    pub bucket: Bucket,
    /// Bytes.
    pub size: u64,
    /// Bytes, each object rounded up to what it takes.
    pub size_rounded: u64,
    /// When it was made.
    pub creation_time: Utime,
    /// Objects.
    pub count: u64,
    /// Its numbers are in the user's totals.
    pub user_stats_sync: bool,
}

impl Encode for BucketEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 9, 5, |out| {
            // The bucket's name stood here once.
            Bytes::new().encode(out, f);
            self.size.encode(out, f);
            self.creation_time.sec.encode(out, f);
            self.count.encode(out, f);
            self.bucket.encode(out, f);
            self.size_rounded.encode(out, f);
            self.user_stats_sync.encode(out, f);
            self.creation_time.encode(out, f);
        });
    }
}

impl Decode for BucketEntry {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "cls_user_bucket_entry";
        let (v, mut r) = r.envelope(WHAT, 9)?;
        // Before, an entry had no envelope.
        if v < 5 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 5 });
        }
        let _: Bytes = r.get()?;
        let size = r.get()?;
        let seconds = r.get()?;
        let mut e = BucketEntry {
            size,
            count: r.get()?,
            bucket: r.get()?,
            size_rounded: r.get()?,
            creation_time: Utime::new(seconds, 0),
            user_stats_sync: false,
        };
        if v >= 6 {
            e.user_stats_sync = r.get()?;
        }
        if v >= 7 {
            e.creation_time = r.get()?;
        }
        Ok(e)
    }
}

/// Totals (Ceph: `cls_user_stats`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Stats {
    /// Objects.
    pub total_entries: u64,
    /// Bytes.
    pub total_bytes: u64,
    /// Bytes, each object rounded up.
    pub total_bytes_rounded: u64,
}

impl Stats {
    fn add(&mut self, e: &BucketEntry) {
        self.total_entries = self.total_entries.wrapping_add(e.count);
        self.total_bytes = self.total_bytes.wrapping_add(e.size);
        self.total_bytes_rounded = self.total_bytes_rounded.wrapping_add(e.size_rounded);
    }

    fn sub(&mut self, e: &BucketEntry) {
        self.total_entries = self.total_entries.wrapping_sub(e.count);
        self.total_bytes = self.total_bytes.wrapping_sub(e.size);
        self.total_bytes_rounded = self.total_bytes_rounded.wrapping_sub(e.size_rounded);
    }
}

/// What is known of the user (Ceph: `cls_user_header`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Header {
    /// Totals.
    pub stats: Stats,
    /// When all buckets were last counted.
    pub last_stats_sync: Utime,
    /// When the totals last changed.
    pub last_stats_update: Utime,
}

/// Input of `set_buckets_info` (Ceph: `cls_user_set_buckets_op`, `cls/user/cls_user_ops.h`, version
/// 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct SetBucketsOp {
    /// What to set.
    pub entries: Vec<BucketEntry>,
    /// Buckets that are not there are added, and the numbers of those that are stay.
    pub add: bool,
    /// When.
    pub time: Utime,
}

/// Input of `complete_stats_sync` and `reset_user_stats` (Ceph: `cls_user_complete_stats_sync_op`,
/// `cls_user_reset_stats_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct TimeOp {
    /// When.
    pub time: Utime,
}

/// Input of `remove_bucket` (Ceph: `cls_user_remove_bucket_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct RemoveBucketOp {
    /// The bucket; its name counts.
    pub bucket: Bucket,
}

/// Input of `list_buckets` (Ceph: `cls_user_list_buckets_op`, version 2).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ListBucketsOp {
    /// After this one.
    pub marker: Bytes,
    /// At most so many.
    pub max_entries: i32,
    /// Before this one, unless empty.
    #[denc(since = 2)]
    pub end_marker: Bytes,
}

/// Output of `list_buckets` (Ceph: `cls_user_list_buckets_ret`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListBucketsRet {
    /// By name.
    pub entries: Vec<BucketEntry>,
    /// Where to go on, if there is more.
    pub marker: Bytes,
    /// There is more.
    pub truncated: bool,
}

/// Input of `get_header` (Ceph: `cls_user_get_header_op`, version 1).
#[derive(Clone, Copy, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GetHeaderOp {}

/// Output of `get_header` (Ceph: `cls_user_get_header_ret`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GetHeaderRet {
    /// The header.
    pub header: Header,
}

/// Input of `reset_user_stats2` (Ceph: `cls_user_reset_stats2_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ResetStats2Op {
    /// When.
    pub time: Utime,
    /// After this bucket.
    pub marker: Bytes,
    /// What earlier calls counted. As in Ceph, it is not used.
    pub acc_stats: Stats,
}

/// Output of `reset_user_stats2` (Ceph: `cls_user_reset_stats2_ret`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ResetStats2Ret {
    /// The last bucket counted.
    pub marker: Bytes,
    /// What this call counted.
    pub acc_stats: Stats,
    /// There are buckets after it.
    pub truncated: bool,
}

async fn header(object: Object<'_>) -> Result<Header, Errno> {
    let stored = object.map_get_header().await?;
    if stored.is_empty() { Ok(Header::default()) } else { decode(stored, Errno::EIO) }
}

async fn store(object: Object<'_>, header: &Header) -> Result<(), Errno> {
    object.map_set_header(encode(header)).await
}

async fn existing(object: Object<'_>, name: &Bytes) -> Result<Option<BucketEntry>, Errno> {
    if name.is_empty() {
        return Err(Errno::EINVAL);
    }
    match object.map_get_val(name).await {
        Ok(stored) => decode(stored, Errno::EIO).map(Some),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

async fn set_buckets_info(object: Object<'_>, op: SetBucketsOp) -> Result<(), Errno> {
    let mut header = header(object).await?;
    for update in op.entries {
        let name = update.bucket.name.clone();
        let mut entry = match existing(object, &name).await? {
            Some(mut entry) => {
                if op.add {
                    // The bucket may have been made anew, or its index divided.
                    entry.bucket.bucket_id = update.bucket.bucket_id;
                    entry.creation_time = update.creation_time;
                }
                entry
            }
            None if op.add => update.clone(),
            // Removed meanwhile.
            None => continue,
        };
        if entry.user_stats_sync {
            header.stats.sub(&entry);
        }
        if !op.add {
            (entry.size, entry.size_rounded, entry.count) =
                (update.size, update.size_rounded, update.count);
        }
        entry.user_stats_sync = true;
        object.map_set_val(&name, encode(&entry)).await?;
        header.stats.add(&entry);
    }
    header.last_stats_update = header.last_stats_update.max(op.time);
    store(object, &header).await
}

async fn complete_stats_sync(object: Object<'_>, op: TimeOp) -> Result<(), Errno> {
    let mut header = header(object).await?;
    header.last_stats_sync = header.last_stats_sync.max(op.time);
    store(object, &header).await
}

async fn remove_bucket(object: Object<'_>, op: RemoveBucketOp) -> Result<(), Errno> {
    let mut header = header(object).await?;
    let name = op.bucket.name;
    let Some(entry) = existing(object, &name).await? else { return Ok(()) };
    object.map_remove_key(&name).await?;
    if !entry.user_stats_sync {
        return Ok(());
    }
    header.stats.sub(&entry);
    store(object, &header).await
}

async fn list_buckets(object: Object<'_>, op: ListBucketsOp) -> Result<Bytes, Errno> {
    let page = object.map_get_vals(&op.marker, b"", at_most(op.max_entries)).await?;
    let mut ret = ListBucketsRet { truncated: page.more, ..ListBucketsRet::default() };
    let mut last = Bytes::new();
    for (name, value) in page.rows {
        last = name;
        if !op.end_marker.is_empty() && op.end_marker <= last {
            ret.truncated = false;
            break;
        }
        match decode(value, Errno::EIO) {
            Ok(entry) => ret.entries.push(entry),
            Err(_) => {
                tracing::error!(name = %last.escape_ascii(), "a user has a bucket that cannot be read")
            }
        }
    }
    if ret.truncated {
        ret.marker = last;
    }
    Ok(encode(&ret))
}

async fn get_header(object: Object<'_>, _: GetHeaderOp) -> Result<Bytes, Errno> {
    Ok(encode(&GetHeaderRet { header: header(object).await? }))
}

/// Counts one page of buckets that come after `marker`, and moves it. True if there are more.
async fn count(object: Object<'_>, marker: &mut Bytes, stats: &mut Stats) -> Result<bool, Errno> {
    let page = object.map_get_vals(marker, b"", PAGE).await?;
    let more = page.more && !page.rows.is_empty();
    for (name, value) in page.rows {
        stats.add(&decode(value, Errno::EIO)?);
        *marker = name;
    }
    Ok(more)
}

async fn reset_stats(object: Object<'_>, op: TimeOp) -> Result<(), Errno> {
    let mut header = Header { last_stats_update: op.time, ..Header::default() };
    let mut marker = Bytes::new();
    while count(object, &mut marker, &mut header.stats).await? {}
    store(object, &header).await
}

async fn reset_stats2(object: Object<'_>, op: ResetStats2Op) -> Result<Bytes, Errno> {
    let mut ret = ResetStats2Ret::default();
    let mut marker = op.marker;
    let before = marker.clone();
    ret.truncated = count(object, &mut marker, &mut ret.acc_stats).await?;
    if marker != before {
        ret.marker = marker;
    }
    if !ret.truncated {
        let header = Header {
            stats: ret.acc_stats.clone(),
            last_stats_update: op.time,
            ..Header::default()
        };
        store(object, &header).await?;
    }
    Ok(encode(&ret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn entry(name: &'static str, count: u64) -> BucketEntry {
        BucketEntry {
            bucket: Bucket { name: name.into(), bucket_id: "id".into(), ..Bucket::default() },
            size: count * 10,
            size_rounded: count * 4096,
            count,
            creation_time: Utime::new(7, 8),
            user_stats_sync: false,
        }
    }

    fn set(
        o: &mut TestObject,
        entries: Vec<BucketEntry>,
        add: bool,
        time: u32,
    ) -> Result<(), Errno> {
        o.exec(
            "user",
            "set_buckets_info",
            &SetBucketsOp { entries, add, time: Utime::new(time, 0) },
        )
        .map(drop)
    }

    fn current(o: &mut TestObject) -> Header {
        o.query::<_, GetHeaderRet>("user", "get_header", &GetHeaderOp {}).unwrap().header
    }

    fn list(o: &mut TestObject, op: &ListBucketsOp) -> ListBucketsRet {
        o.query("user", "list_buckets", op).unwrap()
    }

    #[test]
    fn totals_follow_the_buckets() {
        let mut o = TestObject::new();
        set(&mut o, vec![entry("a", 1), entry("b", 2)], true, 5).unwrap();
        let h = current(&mut o);
        assert_eq!(
            h.stats,
            Stats { total_entries: 3, total_bytes: 30, total_bytes_rounded: 3 * 4096 }
        );
        assert_eq!(h.last_stats_update, Utime::new(5, 0));
        // An update counts what changed; one of a bucket that is gone is ignored.
        set(&mut o, vec![entry("a", 10), entry("gone", 9)], false, 4).unwrap();
        let h = current(&mut o);
        assert_eq!((h.stats.total_entries, h.last_stats_update.sec), (12, 5));
        // Adding again leaves the numbers.
        set(
            &mut o,
            vec![BucketEntry { creation_time: Utime::new(9, 9), ..entry("a", 99) }],
            true,
            6,
        )
        .unwrap();
        assert_eq!(current(&mut o).stats.total_entries, 12);
        let a = list(&mut o, &ListBucketsOp { max_entries: 1, ..ListBucketsOp::default() });
        assert_eq!(
            (a.entries[0].count, a.entries[0].creation_time, a.truncated),
            (10, Utime::new(9, 9), true)
        );
        for _ in 0..2 {
            o.exec("user", "remove_bucket", &RemoveBucketOp { bucket: entry("a", 0).bucket })
                .unwrap();
            assert_eq!(current(&mut o).stats.total_entries, 2);
        }
        assert_eq!(set(&mut o, vec![entry("", 1)], true, 7), Err(Errno::EINVAL));
    }

    #[test]
    fn listing_is_bounded() {
        let mut o = TestObject::new();
        set(&mut o, ["a", "b", "c"].map(|n| entry(n, 1)).into(), true, 1).unwrap();
        let names = |r: &ListBucketsRet| {
            r.entries.iter().map(|e| e.bucket.name.clone()).collect::<Vec<_>>()
        };
        let first = list(&mut o, &ListBucketsOp { max_entries: 2, ..ListBucketsOp::default() });
        assert_eq!((names(&first), &first.marker[..]), (vec!["a".into(), "b".into()], &b"b"[..]));
        let rest = list(
            &mut o,
            &ListBucketsOp { marker: first.marker, max_entries: 100, ..ListBucketsOp::default() },
        );
        assert_eq!(
            (names(&rest), rest.truncated, rest.marker.is_empty()),
            (vec!["c".into()], false, true)
        );
        let part = list(
            &mut o,
            &ListBucketsOp { max_entries: 100, end_marker: "c".into(), ..ListBucketsOp::default() },
        );
        assert_eq!(names(&part), ["a", "b"]);
    }

    #[test]
    fn totals_can_be_counted_anew() {
        let mut o = TestObject::new();
        set(&mut o, vec![entry("a", 1), entry("b", 2)], true, 5).unwrap();
        o.exec("user", "complete_stats_sync", &TimeOp { time: Utime::new(6, 0) }).unwrap();
        assert_eq!(current(&mut o).last_stats_sync, Utime::new(6, 0));
        o.stored.header = Bytes::new();
        o.omap_entries = 1;
        o.exec("user", "reset_user_stats", &TimeOp { time: Utime::new(7, 0) }).unwrap();
        let h = current(&mut o);
        assert_eq!((h.stats.total_entries, h.last_stats_update.sec), (3, 7));
        o.omap_entries = 100;
        o.stored.header = Bytes::new();
        let ret: ResetStats2Ret =
            o.query("user", "reset_user_stats2", &ResetStats2Op::default()).unwrap();
        assert_eq!(
            (ret.acc_stats.total_entries, &ret.marker[..], ret.truncated),
            (3, &b"b"[..], false)
        );
        assert_eq!(current(&mut o).stats, ret.acc_stats);
    }

    #[test]
    fn both_forms_of_a_bucket_are_read() {
        let old = Bucket {
            data_pool: "d".into(),
            index_pool: "i".into(),
            data_extra_pool: "e".into(),
            ..entry("n", 0).bucket
        };
        let new = Bucket { placement_id: "p".into(), ..entry("n", 0).bucket };
        assert_eq!((encode(&old)[0], encode(&old)[1]), (7, 3));
        assert_eq!((encode(&new)[0], encode(&new)[1]), (9, 8));
        for b in [old, new] {
            assert_eq!(decode::<Bucket>(encode(&b), Errno::EIO).unwrap(), b);
        }
    }
}
