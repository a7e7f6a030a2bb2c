//! A queue in an object's bytes: a ring of entries of any length (Ceph: `cls/queue`).
//!
//! The functions on a [`QueueHead`] are those of the classes that keep their own data in it.

use crate::context::Object;
use crate::method::{Class, Ignored, RD, RD_WR, encode, method};
use bytes::{BufMut, Bytes, BytesMut};
use denc::Reader;
use rgw::queue::{
    CapacityRet, ENTRY_OVERHEAD_BYTES, ENTRY_START, EnqueueOp, HEAD_SIZE_BYTES, HEAD_START, InitOp,
    Marker, QueueEntry, QueueHead, QueueListOp, QueueListRet, QueueRemoveOp,
};
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "queue",
    methods: &[
        method!("queue_init", RD_WR, init),
        method!("queue_get_capacity", RD, get_capacity),
        method!("queue_enqueue", RD_WR, enqueue),
        method!("queue_list_entries", RD, list_entries),
        method!("queue_remove_entries", RD_WR, remove_entries),
    ],
};

/// Bytes that are read at a time.
const CHUNK_BYTES: u64 = 1024;

/// A start, the length of what follows, and what follows.
fn framed(start: u16, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(ENTRY_OVERHEAD_BYTES as usize + data.len());
    out.put_u16_le(start);
    out.put_u64_le(data.len() as u64);
    out.put_slice(data);
    out.freeze()
}

/// Writes the head. EINVAL if there is no room for it.
pub(crate) async fn write_head(object: Object<'_>, head: &QueueHead) -> Result<(), Errno> {
    let bytes = framed(HEAD_START, &encode(head));
    if bytes.len() as u64 > head.max_head_size {
        return Err(Errno::EINVAL);
    }
    object.write(0, bytes).await
}

/// Reads the head. EINVAL if the object does not begin with one.
pub(crate) async fn read_head(object: Object<'_>) -> Result<QueueHead, Errno> {
    let mut bytes = object.read(0, CHUNK_BYTES).await?;
    let mut r = Reader::new(bytes.clone());
    let mut frame = || Ok::<(u16, u64), denc::DecodeError>((r.get()?, r.get()?));
    let (start, len) = frame().map_err(|_| Errno::EINVAL)?;
    if start != HEAD_START {
        return Err(Errno::EINVAL);
    }
    if let Some(rest @ 1..) = len.checked_sub(CHUNK_BYTES - ENTRY_OVERHEAD_BYTES) {
        let rest = object.read(CHUNK_BYTES, rest).await?;
        bytes = [&bytes[..], &rest].concat().into();
    }
    let body = bytes.slice(ENTRY_OVERHEAD_BYTES as usize..);
    crate::method::decode(body, Errno::EINVAL)
}

/// Makes a queue. EEXIST if the object is one.
pub(crate) async fn create(object: Object<'_>, op: InitOp) -> Result<(), Errno> {
    match read_head(object).await {
        Ok(_) => return Err(Errno::EEXIST),
        Err(Errno::EINVAL) => {}
        Err(e) => return Err(e),
    }
    let max_head_size = HEAD_SIZE_BYTES.wrapping_add(op.max_urgent_data_size);
    let start = Marker { generation: 0, offset: max_head_size };
    let head = QueueHead {
        max_head_size,
        front: start,
        tail: start,
        queue_size: op.queue_size.wrapping_add(max_head_size),
        max_urgent_data_size: op.max_urgent_data_size,
        urgent_data: op.urgent_data,
    };
    write_head(object, &head).await
}

/// Puts entries behind the others. ENOSPC if there is no room. The caller writes the head
/// afterwards.
pub(crate) async fn push(
    object: Object<'_>,
    head: &mut QueueHead,
    entries: Vec<Bytes>,
) -> Result<(), Errno> {
    let full = head.front.offset == head.tail.offset
        && head.tail.generation == head.front.generation.wrapping_add(1);
    if full {
        return Err(Errno::ENOSPC);
    }
    for data in entries {
        let mut bytes = framed(ENTRY_START, &data);
        let len = bytes.len() as u64;
        let wraps = head.tail.offset >= head.front.offset;
        let end = if wraps { head.queue_size } else { head.front.offset };
        let fits = head.tail.offset.checked_add(len).is_some_and(|to| to <= end);
        if !fits {
            let before_end = end.saturating_sub(head.tail.offset);
            let free = before_end.wrapping_add(head.front.offset.wrapping_sub(head.max_head_size));
            if !wraps || len > free {
                return Err(Errno::ENOSPC);
            }
            let first = bytes.split_to((before_end as usize).min(bytes.len()));
            object.write(head.tail.offset, first).await?;
            head.tail.offset = head.max_head_size;
            head.tail.generation = head.tail.generation.wrapping_add(1);
        }
        let written = bytes.len() as u64;
        object.write(head.tail.offset, bytes).await?;
        head.tail.offset = head.tail.offset.wrapping_add(written);
        wrap(&mut head.tail, head.queue_size, head.max_head_size);
    }
    Ok(())
}

/// The end of the ring is its beginning.
fn wrap(marker: &mut Marker, end: u64, begin: u64) {
    if marker.offset == end {
        marker.offset = begin;
        marker.generation = marker.generation.wrapping_add(1);
    }
}

/// Where a list is in the ring.
struct Position {
    at: Marker,
    /// Bytes up to the end of the ring or of the queue.
    left: u64,
    /// The queue goes on after those.
    goes_on: bool,
}

impl Position {
    fn start(head: &QueueHead, at: Marker) -> Result<Position, Errno> {
        let at = if at.offset == 0 { head.front } else { at };
        let (left, goes_on) = if head.tail.offset > head.front.offset {
            (head.tail.offset.checked_sub(at.offset).ok_or(Errno::EINVAL)?, false)
        } else if at.offset >= head.front.offset {
            (head.queue_size.checked_sub(at.offset).ok_or(Errno::EINVAL)?, true)
        } else {
            (head.tail.offset.saturating_sub(at.offset), false)
        };
        Ok(Position { at, left, goes_on })
    }

    /// Goes on after bytes that were read; `false` if the queue ends there.
    fn pass(&mut self, head: &QueueHead, read: u64) -> bool {
        self.at.offset = self.at.offset.wrapping_add(read);
        self.left -= read;
        if self.left == 0 {
            if !self.goes_on {
                return false;
            }
            self.at.offset = head.max_head_size;
            self.at.generation = self.at.generation.wrapping_add(1);
            self.left = head.tail.offset.saturating_sub(head.max_head_size);
            self.goes_on = false;
        }
        true
    }
}

/// What was read of an entry that goes on in the next chunk.
#[derive(Default)]
struct Begun {
    /// Where it began.
    marker: Option<Marker>,
    /// Its length, if that was read.
    length: Option<u64>,
    kept: Bytes,
}

impl Begun {
    /// Cuts the chunk at a marker into entries. If there are `max` of them, returns where the next
    /// one begins.
    fn cut(
        &mut self,
        chunk: Bytes,
        at: Marker,
        max: u64,
        entries: &mut Vec<QueueEntry>,
    ) -> Result<Option<Marker>, Errno> {
        let kept = std::mem::take(&mut self.kept);
        let base = at.offset.wrapping_sub(kept.len() as u64);
        let mut bytes: Bytes = if kept.is_empty() { chunk } else { [kept, chunk].concat().into() };
        let total = bytes.len();
        let marker_of = |rest: &Bytes| {
            let index = (total - rest.len()) as u64;
            Marker { generation: at.generation, offset: base.wrapping_add(index) }
        };
        loop {
            let marker = self.marker.take().unwrap_or_else(|| marker_of(&bytes));
            let len = match self.length.take() {
                Some(len) => len,
                None if (bytes.len() as u64) < ENTRY_OVERHEAD_BYTES => {
                    *self = Begun { marker: Some(marker), length: None, kept: bytes };
                    return Ok(None);
                }
                None => {
                    let mut r = Reader::new(bytes.split_to(ENTRY_OVERHEAD_BYTES as usize));
                    let mut frame = || Ok::<(u16, u64), denc::DecodeError>((r.get()?, r.get()?));
                    let (start, len) = frame().map_err(|_| Errno::EINVAL)?;
                    if start != ENTRY_START {
                        return Err(Errno::EINVAL);
                    }
                    len
                }
            };
            if len > bytes.len() as u64 {
                *self = Begun { marker: Some(marker), length: Some(len), kept: bytes };
                return Ok(None);
            }
            let data = bytes.split_to(len as usize);
            entries.push(QueueEntry { data, marker: marker.text() });
            if entries.len() as u64 == max {
                return Ok(Some(marker_of(&bytes)));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
        }
    }
}

/// Lists entries.
pub(crate) async fn entries(
    object: Object<'_>,
    head: &QueueHead,
    op: &QueueListOp,
) -> Result<QueueListRet, Errno> {
    let mut ret = QueueListRet::default();
    if head.front == head.tail {
        ret.next_marker = head.front.text();
        return Ok(ret);
    }
    let mut position = Position::start(head, Marker::parse(&op.start_marker))?;
    let mut begun = Begun::default();
    let (mut next, more) = loop {
        let take = position.left.min(CHUNK_BYTES);
        if take == 0 {
            break (head.tail, false);
        }
        let chunk = object.read(position.at.offset, take).await?;
        if chunk.is_empty() {
            // The head says more than there is.
            return Err(Errno::EINVAL);
        }
        if let Some(next) = begun.cut(chunk, position.at, op.max, &mut ret.entries)? {
            break (next, true);
        }
        if !position.pass(head, take) {
            break (head.tail, false);
        }
        if ret.entries.len() as u64 >= op.max {
            break (Marker::default(), true);
        }
    };
    wrap(&mut next, head.queue_size, head.max_head_size);
    ret.is_truncated = more && next != head.tail;
    ret.next_marker = next.text();
    Ok(ret)
}

/// Removes entries from the front up to before a marker, and zeros their bytes. EINVAL if it is not
/// in the queue. The head is to be written afterwards.
pub(crate) async fn remove(
    object: Object<'_>,
    head: &mut QueueHead,
    end_marker: &[u8],
) -> Result<(), Errno> {
    if head.front == head.tail {
        return Ok(());
    }
    let end = Marker::parse(end_marker);
    let front = head.front;
    if end.offset > front.offset && end.generation == front.generation {
        object.zero(front.offset, end.offset - front.offset).await?;
    } else if front.offset >= end.offset && end.generation == front.generation.wrapping_add(1) {
        for (offset, to) in [(front.offset, head.queue_size), (head.max_head_size, end.offset)] {
            let len = to.wrapping_sub(offset);
            if len > 0 {
                object.zero(offset, len).await?;
            }
        }
    } else if front != end {
        return Err(Errno::EINVAL);
    }
    head.front = end;
    wrap(&mut head.front, head.queue_size, head.max_head_size);
    Ok(())
}

async fn init(object: Object<'_>, op: InitOp) -> Result<(), Errno> {
    create(object, op).await
}

/// The ring's bytes.
pub(crate) async fn get_capacity(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let head = read_head(object).await?;
    let queue_capacity = head.queue_size.wrapping_sub(head.max_head_size);
    Ok(encode(&CapacityRet { queue_capacity }))
}

async fn enqueue(object: Object<'_>, op: EnqueueOp) -> Result<(), Errno> {
    let mut head = read_head(object).await?;
    push(object, &mut head, op.data).await?;
    write_head(object, &head).await
}

async fn list_entries(object: Object<'_>, op: QueueListOp) -> Result<Bytes, Errno> {
    let head = read_head(object).await?;
    Ok(encode(&entries(object, &head, &op).await?))
}

async fn remove_entries(object: Object<'_>, op: QueueRemoveOp) -> Result<(), Errno> {
    let mut head = read_head(object).await?;
    remove(object, &mut head, &op.end_marker).await?;
    write_head(object, &head).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    /// A queue with a ring of so many bytes.
    fn queue(size: u64) -> TestObject {
        let mut o = TestObject::new();
        let op = InitOp { queue_size: size, ..InitOp::default() };
        o.exec("queue", "queue_init", &op).unwrap();
        o
    }

    fn put(o: &mut TestObject, entries: &[&str]) -> Result<(), Errno> {
        let data = entries.iter().map(|e| Bytes::copy_from_slice(e.as_bytes())).collect();
        o.exec("queue", "queue_enqueue", &EnqueueOp { data }).map(|_| ())
    }

    fn list(o: &mut TestObject, max: u64, from: &Bytes) -> QueueListRet {
        let op = QueueListOp { max, start_marker: from.clone() };
        o.query("queue", "queue_list_entries", &op).unwrap()
    }

    fn data(ret: &QueueListRet) -> Vec<&str> {
        ret.entries.iter().map(|e| std::str::from_utf8(&e.data).unwrap()).collect()
    }

    fn cut(o: &mut TestObject, end_marker: Bytes) -> Result<(), Errno> {
        o.exec("queue", "queue_remove_entries", &QueueRemoveOp { end_marker }).map(|_| ())
    }

    fn head(o: &TestObject) -> QueueHead {
        let bytes = Bytes::copy_from_slice(&o.stored.data[ENTRY_OVERHEAD_BYTES as usize..]);
        Reader::new(bytes).get().unwrap()
    }

    #[test]
    fn a_queue_is_made_once() {
        let mut o = TestObject::new();
        assert_eq!(put(&mut o, &["x"]), Err(Errno::EINVAL), "there is none");
        let mut o = queue(100);
        let again = InitOp { queue_size: 1, ..InitOp::default() };
        assert_eq!(o.exec("queue", "queue_init", &again), Err(Errno::EEXIST));
        let ret: CapacityRet = o.query("queue", "queue_get_capacity", &()).unwrap();
        assert_eq!(ret.queue_capacity, 100);
        let mut large = TestObject::new();
        let op = InitOp { urgent_data: vec![0; 2000].into(), ..InitOp::default() };
        assert_eq!(large.exec("queue", "queue_init", &op), Err(Errno::EINVAL), "no room");
        let op = InitOp { max_urgent_data_size: 2000, ..op };
        large.exec("queue", "queue_init", &op).unwrap();
        large.query::<_, CapacityRet>("queue", "queue_get_capacity", &()).unwrap();
    }

    #[test]
    fn entries_come_out_in_order_and_page_by_page() {
        let mut o = queue(100_000);
        assert_eq!(data(&list(&mut o, 10, &Bytes::new())), [""; 0]);
        let long = "y".repeat(3000);
        put(&mut o, &["a", &long, ""]).unwrap();
        put(&mut o, &["b"]).unwrap();
        let all = list(&mut o, 10, &Bytes::new());
        assert_eq!(data(&all), ["a", &long, "", "b"]);
        assert!(!all.is_truncated);
        let mut from = Bytes::new();
        let mut seen = Vec::new();
        loop {
            let page = list(&mut o, 1, &from);
            seen.extend(page.entries);
            from = page.next_marker;
            if !page.is_truncated {
                break;
            }
        }
        assert_eq!(seen, all.entries);
        let from_third = list(&mut o, 10, &all.entries[2].marker);
        assert_eq!(data(&from_third), ["", "b"]);
    }

    #[test]
    fn removing_frees_room_and_the_ring_goes_round() {
        // Room for three entries of ten bytes.
        let mut o = queue(60);
        put(&mut o, &["0123456789", "1123456789", "2123456789"]).unwrap();
        assert_eq!(put(&mut o, &["x"]), Err(Errno::ENOSPC));
        let first = list(&mut o, 1, &Bytes::new());
        cut(&mut o, first.next_marker).unwrap();
        put(&mut o, &["3123456789"]).unwrap();
        assert_eq!(put(&mut o, &["x"]), Err(Errno::ENOSPC));
        let all = list(&mut o, 10, &Bytes::new());
        assert_eq!(data(&all), ["1123456789", "2123456789", "3123456789"]);
        let two = list(&mut o, 2, &Bytes::new());
        cut(&mut o, two.next_marker).unwrap();
        assert_eq!(head(&o).front, Marker { generation: 1, offset: 1024 });
        // An entry over the end of the ring.
        put(&mut o, &["456"]).unwrap();
        put(&mut o, &["5123456789"]).unwrap();
        assert_eq!(head(&o).tail.generation, 1);
        let one = list(&mut o, 1, &Bytes::new());
        cut(&mut o, one.next_marker).unwrap();
        put(&mut o, &["61234567"]).unwrap();
        assert_eq!(head(&o).tail.generation, 2);
        let all = list(&mut o, 10, &Bytes::new());
        assert_eq!(data(&all), ["456", "5123456789", "61234567"]);
        let last = list(&mut o, 10, &Bytes::new()).next_marker;
        cut(&mut o, last).unwrap();
        assert!(list(&mut o, 10, &Bytes::new()).entries.is_empty());
        assert!(o.stored.data[1024..].iter().all(|b| *b == 0), "what was removed is zeroed");
    }

    #[test]
    fn markers_outside_the_queue_are_refused() {
        let mut o = queue(1000);
        put(&mut o, &["a", "b"]).unwrap();
        assert_eq!(cut(&mut o, "7/1024".into()), Err(Errno::EINVAL));
        let outside = QueueListOp { max: 10, start_marker: "0/9999".into() };
        assert_eq!(o.exec("queue", "queue_list_entries", &outside), Err(Errno::EINVAL));
        let inside = QueueListOp { max: 10, start_marker: "0/1025".into() };
        assert_eq!(o.exec("queue", "queue_list_entries", &inside), Err(Errno::EINVAL));
        let here = head(&o).front.text();
        cut(&mut o, here).unwrap();
        assert_eq!(list(&mut o, 10, &Bytes::new()).entries.len(), 2);
    }

    #[test]
    fn a_damaged_head_is_an_error() {
        let mut o = queue(1000);
        put(&mut o, &["a"]).unwrap();
        let mut damaged = head(&o);
        damaged.tail.offset = u64::MAX;
        damaged.queue_size = u64::MAX;
        let bytes = framed(HEAD_START, &encode(&damaged));
        o.stored.data[..bytes.len()].copy_from_slice(&bytes);
        let op = QueueListOp { max: 10, start_marker: Bytes::new() };
        assert_eq!(o.exec("queue", "queue_list_entries", &op), Err(Errno::EINVAL));
        assert_eq!(put(&mut o, &["b"]), Err(Errno::ENOSPC));
        o.stored.data[0] = 0;
        assert_eq!(put(&mut o, &["b"]), Err(Errno::EINVAL));
    }
}
