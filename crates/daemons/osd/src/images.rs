//! Operations on the data of block devices, counted by image. The manager shows them as
//! `rbd perf image iostat`.
//!
//! An image is recognised by the names of its data objects, as Ceph's manager does it with a
//! dynamic query: `rbd_data.ID.NUMBER`, with the pool of the image before the ID if the data has a
//! pool of its own; data of a journal belongs to its image. Images of the first format are not
//! counted.
//!
//! Counting begins anew with each report, so what is kept is bounded by the images used between two
//! reports.

use bytes::Bytes;
use messages::ImageCounters;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{ObjectId, PoolId};

/// Images that are counted between two reports; operations on more of them are not counted.
const MOST_COUNTED: usize = 4096;
/// Images in a report: those with the most operations (Ceph: `OSD_PERF_QUERY_MAX_RESULTS`).
const MOST_REPORTED: usize = 256;

/// The pool, the namespace and the id of the image that an object belongs to.
type Key = (PoolId, Bytes, Bytes);

/// Counters since the last report.
#[derive(Default)]
pub struct ImageStats(RefCell<BTreeMap<Key, ImageCounters>>);

/// The image that an object of `pool` has data of. The parts are slices of the object's name.
fn image_of(pool: PoolId, oid: &ObjectId) -> Option<Key> {
    let name = &oid.name;
    let rest = name.strip_prefix(b"rbd_data.").or_else(|| name.strip_prefix(b"journal_data."))?;
    let mut parts = rest.split(|b| *b == b'.');
    // What has no dot behind it is not an id.
    let (first, second, third) = (parts.next()?, parts.next()?, parts.next());
    let number = || std::str::from_utf8(first).ok()?.parse().ok().map(PoolId);
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    let (pool, id) = match number() {
        Some(data_of) if is_number && third.is_some() && !second.is_empty() => (data_of, second),
        _ => (pool, first),
    };
    (!id.is_empty()).then(|| (pool, oid.namespace.clone(), name.slice_ref(id)))
}

impl ImageStats {
    /// Counts an operation on an object of `pool`.
    #[allow(clippy::too_many_arguments, reason = "the facts of one operation")]
    pub fn count(
        &self,
        pool: PoolId,
        oid: &ObjectId,
        read: bool,
        write: bool,
        in_bytes: u64,
        out_bytes: u64,
        latency: Duration,
    ) {
        let Some(key) = image_of(pool, oid) else { return };
        let mut images = self.0.borrow_mut();
        if !images.contains_key(&key) {
            if images.len() >= MOST_COUNTED {
                return;
            }
            // The name belongs to a message.
            let (pool, own) = (key.0, |b: &Bytes| Bytes::copy_from_slice(b));
            let (namespace, id) = (own(&key.1), own(&key.2));
            let empty = ImageCounters {
                pool,
                namespace: namespace.clone(),
                id: id.clone(),
                ..ImageCounters::default()
            };
            images.insert((pool, namespace, id), empty);
        }
        let Some(c) = images.get_mut(&key) else { return };
        let nanos = latency.as_nanos() as u64;
        if write {
            c.write_ops += 1;
            c.write_bytes += in_bytes;
            c.write_latency += nanos;
        }
        if read {
            c.read_ops += 1;
            c.read_bytes += out_bytes;
            c.read_latency += nanos;
        }
    }

    /// The counters of the busiest images. Counting begins anew.
    pub fn take(&self) -> Vec<ImageCounters> {
        let mut all: Vec<ImageCounters> =
            std::mem::take(&mut *self.0.borrow_mut()).into_values().collect();
        if all.len() > MOST_REPORTED {
            all.sort_by_key(|c| std::cmp::Reverse(c.write_ops + c.read_ops));
            all.truncate(MOST_REPORTED);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::SnapId;

    fn object(name: &str) -> ObjectId {
        ObjectId::new(PoolId(3), "ns", Bytes::copy_from_slice(name.as_bytes()), "", SnapId::NOSNAP)
    }

    fn image(name: &str) -> Option<(i64, String)> {
        image_of(PoolId(3), &object(name))
            .map(|(pool, _, id)| (pool.0, String::from_utf8_lossy(&id).into_owned()))
    }

    #[test]
    fn objects_of_images_are_recognised() {
        let here = |id: &str| Some((3, id.to_owned()));
        assert_eq!(image("rbd_data.1056f9a1.0000000000000001"), here("1056f9a1"));
        assert_eq!(image("rbd_data.7.1056.0000000000000001"), Some((7, "1056".to_owned())));
        assert_eq!(image("rbd_data.1056.0000000000000001"), here("1056"), "an id of digits");
        assert_eq!(image("journal_data.2.abc.5"), Some((2, "abc".to_owned())));
        for name in ["rbd_header.1056", "rbd_data.1056", "rbd_data..1", "data.1056.1", "rbd_data."]
        {
            assert_eq!(image(name), None, "{name}");
        }
    }

    #[test]
    fn counters_are_taken_once_and_bounded() {
        let s = ImageStats::default();
        let took = Duration::from_micros(5);
        s.count(PoolId(3), &object("rbd_data.a.0"), false, true, 4096, 0, took);
        s.count(PoolId(3), &object("rbd_data.a.1"), true, false, 0, 512, took);
        s.count(PoolId(3), &object("other"), true, false, 0, 512, took);
        let taken = s.take();
        let c = &taken[..1][0];
        assert_eq!(
            (taken.len(), &c.namespace[..], &c.id[..], c.pool),
            (1, &b"ns"[..], &b"a"[..], PoolId(3))
        );
        assert_eq!((c.write_ops, c.write_bytes, c.write_latency), (1, 4096, 5000));
        assert_eq!((c.read_ops, c.read_bytes, c.read_latency), (1, 512, 5000));
        assert!(s.take().is_empty());
        for i in 0..MOST_COUNTED + 10 {
            s.count(PoolId(3), &object(&format!("rbd_data.i{i}.0")), true, false, 0, 1, took);
        }
        s.count(PoolId(3), &object("rbd_data.i9.0"), true, false, 0, 1, took);
        let taken = s.take();
        assert_eq!((taken.len(), &taken[0].id[..]), (MOST_REPORTED, &b"i9"[..]));
    }
}
