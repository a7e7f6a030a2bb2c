//! The queue of data that waits to be removed (Ceph: `cls/rgw_gc`). A gateway that still reads the
//! data defers its entry: the later time is kept beside the queue, in its head or, when that is
//! full, in an attribute.

use crate::context::Object;
use crate::method::{Class, RD, RD_WR, decode, encode, method};
use crate::queue;
use bytes::Bytes;
use rgw::gc::{GcListOp, GcListRet, GcObjInfo, GcSetEntryOp};
use rgw::gc_queue::{Deferred, GcQueueInitOp, GcQueueRemoveOp, URGENT_DATA_XATTR, UrgentData};
use rgw::queue::{InitOp, QueueHead, QueueListOp};
use std::time::Duration;
use types::Utime;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "rgw_gc",
    methods: &[
        method!("rgw_gc_queue_init", RD_WR, init),
        method!("rgw_gc_queue_enqueue", RD_WR, enqueue),
        method!("rgw_gc_queue_list_entries", RD, list_entries),
        method!("rgw_gc_queue_remove_entries", RD_WR, remove_entries),
        method!("rgw_gc_queue_update_entry", RD_WR, update_entry),
    ],
};

/// Entries of one call, unless the client says how many.
const DEFAULT_MAX: u32 = 128;
/// Room in the head for deferred entries (Ceph: `rgw_gc_max_deferred_entries_size`'s default).
const MAX_DEFERRED_BYTES: u64 = 3 * 1024;

async fn init(object: Object<'_>, op: GcQueueInitOp) -> Result<(), Errno> {
    let urgent = UrgentData {
        num_urgent_data_entries: op.num_deferred_entries as u32,
        ..UrgentData::default()
    };
    let op = InitOp {
        queue_size: op.size,
        max_urgent_data_size: MAX_DEFERRED_BYTES,
        urgent_data: encode(&urgent),
    };
    queue::create(object, op).await
}

fn in_secs(object: &(dyn crate::ObjectContext + '_), secs: u32) -> Utime {
    object.origin().now + Duration::from_secs(secs.into())
}

async fn enqueue(object: Object<'_>, mut op: GcSetEntryOp) -> Result<(), Errno> {
    op.info.time = in_secs(object, op.expiration_secs);
    let mut head = queue::read_head(object).await?;
    queue::push(object, &mut head, vec![encode(&op.info)]).await?;
    queue::write_head(object, &head).await
}

fn urgent_data(head: &QueueHead) -> Result<UrgentData, Errno> {
    if head.urgent_data.is_empty() {
        return Ok(UrgentData::default());
    }
    decode(head.urgent_data.clone(), Errno::EINVAL)
}

/// The deferred entries of the attribute; `None` if there is no such attribute.
async fn spilled(object: Object<'_>) -> Result<Option<Deferred>, Errno> {
    match object.getxattr(URGENT_DATA_XATTR).await {
        Ok(value) => decode(value, Errno::EINVAL).map(Some),
        Err(Errno::ENOENT | Errno::ENODATA) => Ok(None),
        Err(e) => Err(e),
    }
}

async fn list_entries(object: Object<'_>, op: GcListOp) -> Result<Bytes, Errno> {
    let head = queue::read_head(object).await?;
    let urgent = urgent_data(&head)?;
    let max = u64::from(if op.max == 0 { DEFAULT_MAX } else { op.max });
    let mut list = QueueListOp { max, start_marker: op.marker };
    let now = object.origin().now;
    let mut ret = GcListRet::default();
    // Entries that are not deferred, whether their time has come or not.
    let mut counted = 0;
    loop {
        let page = queue::entries(object, &head, &list).await?;
        ret.truncated = page.is_truncated;
        ret.next_marker = page.next_marker;
        if page.entries.is_empty() {
            break;
        }
        for entry in page.entries {
            let info: GcObjInfo = decode(entry.data, Errno::EINVAL)?;
            let mut later = urgent.deferred.get(&info.tag).copied();
            if later.is_none() && urgent.num_xattr_urgent_entries > 0 {
                later = spilled(object).await?.and_then(|d| d.get(&info.tag).copied());
            }
            if later.is_some_and(|time| time > info.time) {
                continue;
            }
            if !op.expired_only || info.time <= now {
                ret.entries.push(info);
            }
            counted += 1;
        }
        if counted >= max || !ret.truncated {
            break;
        }
        list = QueueListOp { max: max - counted, start_marker: ret.next_marker.clone() };
    }
    if !ret.truncated {
        ret.next_marker = Bytes::new();
    }
    Ok(encode(&ret))
}

/// Removes entries from the front: so many that are not deferred, and the deferred ones between
/// them, whose later entries take their place.
async fn remove_entries(object: Object<'_>, op: GcQueueRemoveOp) -> Result<(), Errno> {
    let mut head = queue::read_head(object).await?;
    let mut urgent = urgent_data(&head)?;
    let wanted = if op.num_entries == 0 { DEFAULT_MAX.into() } else { op.num_entries };
    // One more, for where it begins.
    let max = wanted.wrapping_add(1);
    let mut list = QueueListOp { max, start_marker: Bytes::new() };
    let mut end = Bytes::new();
    let mut counted: u32 = 0;
    loop {
        let page = queue::entries(object, &head, &list).await?;
        let Some(last) = page.entries.last().map(|e| e.marker.clone()) else { break };
        for entry in page.entries {
            let info: GcObjInfo = decode(entry.data, Errno::EINVAL)?;
            if let Some(&time) = urgent.deferred.get(&info.tag) {
                if time > info.time {
                    continue;
                }
                if time == info.time {
                    urgent.deferred.remove(&info.tag);
                    urgent.num_head_urgent_entries = urgent.num_head_urgent_entries.wrapping_sub(1);
                }
            } else if urgent.num_xattr_urgent_entries > 0
                && let Some(time) = spilled(object).await?.and_then(|d| d.get(&info.tag).copied())
            {
                if time > info.time {
                    continue;
                }
                // The attribute stays as it is, as in Ceph.
                if time == info.time {
                    urgent.num_xattr_urgent_entries =
                        urgent.num_xattr_urgent_entries.wrapping_sub(1);
                }
            }
            counted += 1;
        }
        if u64::from(counted) >= max {
            end = last;
            break;
        }
        if !page.is_truncated {
            end = page.next_marker;
            break;
        }
        list = QueueListOp { max: max - u64::from(counted), start_marker: page.next_marker };
    }
    if !end.is_empty() {
        queue::remove(object, &mut head, &end).await?;
    }
    head.urgent_data = encode(&urgent);
    queue::write_head(object, &head).await
}

/// Defers an entry. ENOSPC if there are too many deferred ones.
async fn update_entry(object: Object<'_>, op: GcSetEntryOp) -> Result<(), Errno> {
    let time = in_secs(object, op.expiration_secs);
    let tag = op.info.tag;
    let mut head = queue::read_head(object).await?;
    let mut urgent: UrgentData = decode(head.urgent_data.clone(), Errno::EINVAL)?;
    if let Some(known) = urgent.deferred.get_mut(&tag) {
        *known = time;
    } else {
        let mut attribute = spilled(object).await?.unwrap_or_default();
        if let Some(known) = attribute.get_mut(&tag) {
            *known = time;
            object.setxattr(URGENT_DATA_XATTR, encode(&attribute)).await?;
            return finish(object, &head, &urgent).await;
        }
        urgent.deferred.insert(tag.clone(), time);
        urgent.num_head_urgent_entries = urgent.num_head_urgent_entries.wrapping_add(1);
        if encode(&urgent).len() as u64 > head.max_urgent_data_size {
            urgent.deferred.remove(&tag);
            urgent.num_head_urgent_entries = urgent.num_head_urgent_entries.wrapping_sub(1);
            attribute.insert(tag, time);
            urgent.num_xattr_urgent_entries = urgent.num_xattr_urgent_entries.wrapping_add(1);
            object.setxattr(URGENT_DATA_XATTR, encode(&attribute)).await?;
        }
    }
    head.urgent_data = encode(&urgent);
    finish(object, &head, &urgent).await
}

async fn finish(object: Object<'_>, head: &QueueHead, urgent: &UrgentData) -> Result<(), Errno> {
    let deferred = urgent.num_head_urgent_entries.wrapping_add(urgent.num_xattr_urgent_entries);
    if deferred > urgent.num_urgent_data_entries {
        return Err(Errno::ENOSPC);
    }
    queue::write_head(object, head).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;
    use rgw::gc::{ObjChain, RawObj};
    use rgw::key::ObjKey;

    fn queue(deferred: u64) -> TestObject {
        let mut o = TestObject::new();
        let op = GcQueueInitOp { size: 100_000, num_deferred_entries: deferred };
        o.exec("rgw_gc", "rgw_gc_queue_init", &op).unwrap();
        o
    }

    fn op(tag: &str, expiration_secs: u32) -> GcSetEntryOp {
        let obj = RawObj { key: ObjKey::plain("o".into()), ..RawObj::default() };
        let info = GcObjInfo {
            tag: tag.to_owned().into(),
            chain: ObjChain { objs: vec![obj] },
            time: Utime::ZERO,
        };
        GcSetEntryOp { expiration_secs, info }
    }

    fn put(o: &mut TestObject, tag: &str, secs: u32) {
        o.exec("rgw_gc", "rgw_gc_queue_enqueue", &op(tag, secs)).unwrap();
    }

    fn defer(o: &mut TestObject, tag: &str, secs: u32) -> Result<(), Errno> {
        o.exec("rgw_gc", "rgw_gc_queue_update_entry", &op(tag, secs)).map(|_| ())
    }

    fn list(o: &mut TestObject, op: GcListOp) -> (Vec<String>, GcListRet) {
        let ret: GcListRet = o.query("rgw_gc", "rgw_gc_queue_list_entries", &op).unwrap();
        let tag = |e: &GcObjInfo| String::from_utf8_lossy(&e.tag).into_owned();
        (ret.entries.iter().map(tag).collect(), ret)
    }

    fn all(o: &mut TestObject) -> Vec<String> {
        list(o, GcListOp { expired_only: false, ..GcListOp::default() }).0
    }

    fn remove(o: &mut TestObject, num_entries: u64) {
        let op = GcQueueRemoveOp { num_entries };
        o.exec("rgw_gc", "rgw_gc_queue_remove_entries", &op).unwrap();
    }

    #[test]
    fn entries_are_listed_when_their_time_has_come() {
        let mut o = queue(10);
        for (tag, secs) in [("a", 0), ("b", 5), ("c", 500)] {
            put(&mut o, tag, secs);
        }
        assert_eq!(all(&mut o), ["a", "b", "c"]);
        let expired = GcListOp::default();
        assert_eq!(list(&mut o, expired.clone()).0, ["a"]);
        o.origin.now = Utime::new(1006, 0);
        assert_eq!(list(&mut o, expired).0, ["a", "b"]);
        let page = GcListOp { max: 2, expired_only: false, ..GcListOp::default() };
        let (tags, ret) = list(&mut o, page.clone());
        assert_eq!((tags.len(), ret.truncated), (2, true));
        let (tags, ret) = list(&mut o, GcListOp { marker: ret.next_marker, ..page });
        assert_eq!((tags, ret.truncated, ret.next_marker.len()), (vec!["c".into()], false, 0));
    }

    #[test]
    fn deferred_entries_are_passed_over() {
        let mut o = queue(10);
        for tag in ["a", "b", "c"] {
            put(&mut o, tag, 0);
        }
        defer(&mut o, "b", 100).unwrap();
        defer(&mut o, "b", 200).unwrap();
        assert_eq!(all(&mut o), ["a", "c"]);
        remove(&mut o, 1);
        assert_eq!(all(&mut o), ["c"]);
        remove(&mut o, 0);
        assert!(all(&mut o).is_empty());
    }

    #[test]
    fn removing_takes_so_many_from_the_front() {
        let mut o = queue(10);
        for n in 0..200 {
            put(&mut o, &n.to_string(), 0);
        }
        remove(&mut o, 0);
        assert_eq!(all(&mut o)[0], "128");
        remove(&mut o, 10);
        assert_eq!(all(&mut o)[0], "138");
        remove(&mut o, 1000);
        assert!(all(&mut o).is_empty());
        remove(&mut o, 1);
    }

    #[test]
    fn deferred_entries_spill_into_an_attribute() {
        let mut o = queue(1000);
        for n in 0..200 {
            put(&mut o, &format!("tag-{n:03}"), 0);
        }
        for n in 0..200 {
            defer(&mut o, &format!("tag-{n:03}"), 100).unwrap();
        }
        assert!(o.stored.xattrs.contains_key(URGENT_DATA_XATTR));
        assert!(all(&mut o).is_empty());
        defer(&mut o, "tag-199", 300).unwrap();
        let head = queue_head(&o);
        let urgent = urgent_data(&head).unwrap();
        assert_eq!(urgent.num_head_urgent_entries + urgent.num_xattr_urgent_entries, 200);
        assert_eq!(urgent.deferred.len() as u32, urgent.num_head_urgent_entries);
        assert!(head.urgent_data.len() as u64 <= head.max_urgent_data_size);
    }

    fn queue_head(o: &TestObject) -> QueueHead {
        denc::Reader::new(Bytes::copy_from_slice(&o.stored.data[10..])).get().unwrap()
    }

    #[test]
    fn there_are_not_too_many_deferred_entries() {
        let mut o = queue(1);
        put(&mut o, "a", 0);
        put(&mut o, "b", 0);
        defer(&mut o, "a", 100).unwrap();
        assert_eq!(defer(&mut o, "b", 100), Err(Errno::ENOSPC));
        assert_eq!(all(&mut o), ["b"]);
        let mut none = TestObject::new();
        assert_eq!(defer(&mut none, "a", 1), Err(Errno::EINVAL));
    }
}
