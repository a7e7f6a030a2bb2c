//! A queue into which entries are put in two steps: room is reserved, then used or given back
//! (Ceph: `cls/2pc_queue`). Reservations are in the head or, when that is full, in an attribute.

use crate::context::Object;
use crate::method::{Class, Ignored, RD, RD_WR, decode, encode, method};
use crate::queue;
use bytes::Bytes;
use rgw::gc_queue::URGENT_DATA_XATTR;
use rgw::queue::{ENTRY_OVERHEAD_BYTES, InitOp, QueueHead, QueueListOp, QueueRemoveOp};
use rgw::two_phase::{
    CommitOp, ExpireOp, Reservation, ReservationId, Reservations, ReservationsRet, ReserveOp,
    TwoPhaseData,
};
use std::collections::btree_map::Entry;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "2pc_queue",
    methods: &[
        method!("2pc_queue_init", RD_WR, init),
        method!("2pc_queue_get_capacity", RD, queue::get_capacity),
        method!("2pc_queue_reserve", RD_WR, reserve),
        method!("2pc_queue_commit", RD_WR, commit),
        method!("2pc_queue_abort", RD_WR, abort),
        method!("2pc_queue_list_reservations", RD, list_reservations),
        method!("2pc_queue_list_entries", RD, list_entries),
        method!("2pc_queue_remove_entries", RD_WR, remove_entries),
        method!("2pc_queue_expire_reservations", RD_WR, expire_reservations),
    ],
};

/// Room in the head for reservations: about a thousand.
const MAX_RESERVATIONS_BYTES: u64 = 23552;

async fn init(object: Object<'_>, op: InitOp) -> Result<(), Errno> {
    let op = InitOp {
        queue_size: op.queue_size,
        max_urgent_data_size: MAX_RESERVATIONS_BYTES,
        urgent_data: encode(&TwoPhaseData::default()),
    };
    queue::create(object, op).await
}

async fn read(object: Object<'_>) -> Result<(QueueHead, TwoPhaseData), Errno> {
    let head = queue::read_head(object).await?;
    let data = decode(head.urgent_data.clone(), Errno::EINVAL)?;
    Ok((head, data))
}

async fn write(object: Object<'_>, mut head: QueueHead, data: &TwoPhaseData) -> Result<(), Errno> {
    head.urgent_data = encode(data);
    queue::write_head(object, &head).await
}

/// The reservations of the attribute; `None` if there is no such attribute.
async fn spilled(object: Object<'_>) -> Result<Option<Reservations>, Errno> {
    match object.getxattr(URGENT_DATA_XATTR).await {
        Ok(value) => decode(value, Errno::EINVAL).map(Some),
        Err(Errno::ENOENT | Errno::ENODATA) => Ok(None),
        Err(e) => Err(e),
    }
}

async fn spill(object: Object<'_>, reservations: &Reservations) -> Result<(), Errno> {
    object.setxattr(URGENT_DATA_XATTR, encode(reservations)).await
}

/// ENOSPC if there is no room, EAGAIN if the next id is in use.
async fn reserve(object: Object<'_>, op: ReserveOp) -> Result<Bytes, Errno> {
    if op.size == 0 || op.entries == 0 {
        return Err(Errno::EINVAL);
    }
    let (head, mut data) = read(object).await?;
    let overhead = u64::from(op.entries.wrapping_mul(ENTRY_OVERHEAD_BYTES as u32));
    let (front, tail) = (head.front.offset, head.tail.offset);
    let free = if tail >= front {
        head.queue_size.wrapping_sub(tail).wrapping_add(front.wrapping_sub(head.max_head_size))
    } else {
        front - tail
    };
    if op.size.wrapping_add(data.reserved_size).wrapping_add(overhead) > free {
        return Err(Errno::ENOSPC);
    }
    data.reserved_size = data.reserved_size.wrapping_add(op.size).wrapping_add(overhead);
    data.last_id = data.last_id.wrapping_add(1);
    let id = data.last_id;
    let reservation = Reservation { size: op.size, timestamp: object.origin().now };
    match data.reservations.entry(id) {
        Entry::Occupied(_) => return Err(Errno::EAGAIN),
        Entry::Vacant(free) => free.insert(reservation.clone()),
    };
    if encode(&data).len() as u64 > head.max_urgent_data_size {
        let mut more = spilled(object).await?.unwrap_or_default();
        if more.insert(id, reservation).is_some() {
            return Err(Errno::EAGAIN);
        }
        spill(object, &more).await?;
        data.has_xattrs = true;
        data.reservations.remove(&id);
    }
    write(object, head, &data).await?;
    Ok(encode(&ReservationId { id }))
}

/// A reservation, and the attribute's other reservations if it was there.
async fn take(
    object: Object<'_>,
    data: &mut TwoPhaseData,
    id: u32,
) -> Result<Option<(Reservation, Option<Reservations>)>, Errno> {
    if let Some(found) = data.reservations.remove(&id) {
        return Ok(Some((found, None)));
    }
    if !data.has_xattrs {
        return Ok(None);
    }
    let Some(mut more) = spilled(object).await? else { return Ok(None) };
    Ok(more.remove(&id).map(|found| (found, Some(more))))
}

/// Uses a reservation. ENOENT if there is none, EINVAL if the entries are larger. The headers of
/// entries stay reserved, as in Ceph.
async fn commit(object: Object<'_>, op: CommitOp) -> Result<(), Errno> {
    let (mut head, mut data) = read(object).await?;
    let (found, more) = take(object, &mut data, op.id).await?.ok_or(Errno::ENOENT)?;
    let size: u64 = op.data.iter().map(|d| d.len() as u64).sum();
    if found.size < size {
        return Err(Errno::EINVAL);
    }
    queue::push(object, &mut head, op.data).await?;
    data.reserved_size = data.reserved_size.wrapping_sub(found.size);
    if let Some(more) = more {
        spill(object, &more).await?;
    }
    write(object, head, &data).await
}

/// Gives a reservation back; one that is not there is given back already.
async fn abort(object: Object<'_>, op: ReservationId) -> Result<(), Errno> {
    let (head, mut data) = read(object).await?;
    let Some((found, more)) = take(object, &mut data, op.id).await? else { return Ok(()) };
    if let Some(more) = more {
        spill(object, &more).await?;
    }
    data.reserved_size = data.reserved_size.wrapping_sub(found.size);
    write(object, head, &data).await
}

async fn list_reservations(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let (_, data) = read(object).await?;
    let mut reservations = data.reservations;
    if data.has_xattrs
        && let Some(more) = spilled(object).await?
    {
        for (id, reservation) in more {
            reservations.entry(id).or_insert(reservation);
        }
    }
    Ok(encode(&ReservationsRet { reservations }))
}

/// Gives back the reservations of before a time.
async fn expire_reservations(object: Object<'_>, op: ExpireOp) -> Result<(), Errno> {
    let (head, mut data) = read(object).await?;
    let mut size: u64 = 0;
    let mut stale = |reservations: &mut Reservations| {
        let before = reservations.len();
        reservations.retain(|_, r| {
            let keep = r.timestamp >= op.stale_time;
            size = size.wrapping_add(if keep { 0 } else { r.size });
            keep
        });
        reservations.len() < before
    };
    let mut changed = stale(&mut data.reservations);
    if data.has_xattrs
        && let Some(mut more) = spilled(object).await?
        && stale(&mut more)
    {
        spill(object, &more).await?;
        changed = true;
    }
    if !changed {
        return Ok(());
    }
    data.reserved_size = data.reserved_size.wrapping_sub(size);
    write(object, head, &data).await
}

async fn list_entries(object: Object<'_>, op: QueueListOp) -> Result<Bytes, Errno> {
    let head = queue::read_head(object).await?;
    Ok(encode(&queue::entries(object, &head, &op).await?))
}

async fn remove_entries(object: Object<'_>, op: QueueRemoveOp) -> Result<(), Errno> {
    let mut head = queue::read_head(object).await?;
    queue::remove(object, &mut head, &op.end_marker).await?;
    queue::write_head(object, &head).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;
    use rgw::queue::{CapacityRet, QueueListRet};
    use types::Utime;

    fn queue(size: u64) -> TestObject {
        let mut o = TestObject::new();
        let op = InitOp { queue_size: size, ..InitOp::default() };
        o.exec("2pc_queue", "2pc_queue_init", &op).unwrap();
        o
    }

    fn reserve(o: &mut TestObject, size: u64, entries: u32) -> Result<u32, Errno> {
        let bytes = o.exec("2pc_queue", "2pc_queue_reserve", &ReserveOp { size, entries })?;
        Ok(decode::<ReservationId>(bytes, Errno::EIO).unwrap().id)
    }

    fn commit(o: &mut TestObject, id: u32, entries: &[&'static str]) -> Result<(), Errno> {
        let data = entries.iter().map(|e| Bytes::from(*e)).collect();
        o.exec("2pc_queue", "2pc_queue_commit", &CommitOp { id, data }).map(|_| ())
    }

    fn abort(o: &mut TestObject, id: u32) {
        o.exec("2pc_queue", "2pc_queue_abort", &ReservationId { id }).unwrap();
    }

    fn reservations(o: &mut TestObject) -> Vec<u32> {
        let ret: ReservationsRet =
            o.query("2pc_queue", "2pc_queue_list_reservations", &()).unwrap();
        ret.reservations.into_keys().collect()
    }

    fn entries(o: &mut TestObject) -> QueueListRet {
        let op = QueueListOp { max: 100, start_marker: Bytes::new() };
        o.query("2pc_queue", "2pc_queue_list_entries", &op).unwrap()
    }

    #[test]
    fn room_is_reserved_then_used() {
        let mut o = queue(1000);
        let ret: CapacityRet = o.query("2pc_queue", "2pc_queue_get_capacity", &()).unwrap();
        assert_eq!(ret.queue_capacity, 1000);
        assert_eq!(reserve(&mut o, 0, 1), Err(Errno::EINVAL));
        assert_eq!(reserve(&mut o, 1, 0), Err(Errno::EINVAL));
        assert_eq!(reserve(&mut o, 10, 2), Ok(1));
        assert_eq!(reserve(&mut o, 500, 1), Ok(2));
        assert_eq!(reserve(&mut o, 500, 1), Err(Errno::ENOSPC));
        assert_eq!(reservations(&mut o), [1, 2]);
        assert!(entries(&mut o).entries.is_empty());
        assert_eq!(commit(&mut o, 1, &["12345", "678901"]), Err(Errno::EINVAL), "too large");
        commit(&mut o, 1, &["12345", "67890"]).unwrap();
        assert_eq!(commit(&mut o, 1, &["x"]), Err(Errno::ENOENT));
        let found = entries(&mut o);
        assert_eq!(
            found.entries.iter().map(|e| &e.data[..]).collect::<Vec<_>>(),
            [b"12345", b"67890"]
        );
        let op = QueueRemoveOp { end_marker: found.next_marker };
        o.exec("2pc_queue", "2pc_queue_remove_entries", &op).unwrap();
        assert!(entries(&mut o).entries.is_empty());
        abort(&mut o, 2);
        abort(&mut o, 2);
        assert!(reservations(&mut o).is_empty());
        assert!(reserve(&mut o, 500, 1).is_ok());
    }

    #[test]
    fn old_reservations_are_given_back() {
        let mut o = queue(1000);
        reserve(&mut o, 100, 1).unwrap();
        o.origin.now = Utime::new(2000, 0);
        reserve(&mut o, 100, 1).unwrap();
        let expire = ExpireOp { stale_time: Utime::new(1500, 0) };
        o.exec("2pc_queue", "2pc_queue_expire_reservations", &expire).unwrap();
        assert_eq!(reservations(&mut o), [2]);
        let before = o.stored.clone();
        o.exec("2pc_queue", "2pc_queue_expire_reservations", &expire).unwrap();
        assert_eq!(o.stored, before);
    }

    #[test]
    fn reservations_spill_into_an_attribute() {
        let mut o = queue(1_000_000);
        let count = 1200;
        for id in 1..=count {
            assert_eq!(reserve(&mut o, 5, 1), Ok(id));
        }
        assert!(o.stored.xattrs.contains_key(URGENT_DATA_XATTR));
        assert_eq!(reservations(&mut o).len() as u32, count);
        commit(&mut o, count, &["x"]).unwrap();
        commit(&mut o, 1, &["y"]).unwrap();
        abort(&mut o, count - 1);
        abort(&mut o, count - 1);
        assert_eq!(commit(&mut o, count - 1, &["z"]), Err(Errno::ENOENT));
        assert_eq!(reservations(&mut o).len() as u32, count - 3);
        o.origin.now = Utime::new(3000, 0);
        let expire = ExpireOp { stale_time: Utime::new(2000, 0) };
        o.exec("2pc_queue", "2pc_queue_expire_reservations", &expire).unwrap();
        assert!(reservations(&mut o).is_empty());
    }

    #[test]
    fn a_plain_queue_is_not_one() {
        let mut o = TestObject::new();
        o.exec("queue", "queue_init", &InitOp { queue_size: 100, ..InitOp::default() }).unwrap();
        assert_eq!(reserve(&mut o, 1, 1), Err(Errno::EINVAL));
        assert_eq!(commit(&mut o, 1, &["x"]), Err(Errno::EINVAL));
    }
}
