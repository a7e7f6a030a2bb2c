//! Queues in an object's bytes.
//!
//! The object begins with the queue's head: the number [`HEAD_START`], the length of what follows,
//! and a [`QueueHead`]. From [`QueueHead::max_head_size`] on it is a ring of entries, each of which
//! is the number [`ENTRY_START`], a length and that many bytes.

use bytes::Bytes;
use denc_derive::Denc;

/// How the head begins (Ceph: `QUEUE_HEAD_START`).
pub const HEAD_START: u16 = 0xDEAD;
/// How an entry begins (Ceph: `QUEUE_ENTRY_START`).
pub const ENTRY_START: u16 = 0xBEEF;
/// Bytes in front of head and entries: a start and a length (Ceph: `QUEUE_ENTRY_OVERHEAD`).
pub const ENTRY_OVERHEAD_BYTES: u64 = 2 + 8;
/// The room of a head without data of its own (Ceph: `QUEUE_HEAD_SIZE_1K`).
pub const HEAD_SIZE_BYTES: u64 = 1024;

/// A place in the ring (Ceph: `cls_queue_marker`, `cls/queue/cls_queue_types.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Marker {
    /// How often the ring was gone round.
    pub generation: u64,
    /// The offset in the object.
    pub offset: u64,
}

impl Marker {
    /// As text: `GENERATION/OFFSET`.
    pub fn text(&self) -> Bytes {
        format!("{}/{}", self.generation, self.offset).into()
    }

    /// Reads the text as far as it goes, and leaves the rest 0: a text that is no marker lists from
    /// the front, as in Ceph.
    pub fn parse(text: &[u8]) -> Self {
        let (generation, rest) = number(text);
        let offset = match rest.strip_prefix(b"/") {
            Some(rest) => number(rest).0,
            None => None,
        };
        Marker { generation: generation.unwrap_or(0), offset: offset.unwrap_or(0) }
    }
}

/// A decimal number in front of a text as C reads it: after white space and a sign, and not beyond
/// the largest.
fn number(text: &[u8]) -> (Option<u64>, &[u8]) {
    let is_space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let start = text.iter().position(|b| !is_space(b)).unwrap_or(text.len());
    let trimmed = &text[start..];
    let (negative, digits) = match trimmed.first() {
        Some(b'-') => (true, &trimmed[1..]),
        Some(b'+') => (false, &trimmed[1..]),
        _ => (false, trimmed),
    };
    let len = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    if len == 0 {
        return (None, text);
    }
    let value = digits[..len]
        .iter()
        .try_fold(0u64, |n, d| n.checked_mul(10)?.checked_add(u64::from(d - b'0')));
    let value = match value {
        None => u64::MAX,
        Some(n) if negative => n.wrapping_neg(),
        Some(n) => n,
    };
    (Some(value), &digits[len..])
}

/// The queue's head (Ceph: `cls_queue_head`, `cls/queue/cls_queue_types.h`, version 1).
#[derive(Clone, Debug, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct QueueHead {
    /// Room for the head, and where the ring begins.
    pub max_head_size: u64,
    /// The oldest entry.
    pub front: Marker,
    /// After the newest entry.
    pub tail: Marker,
    /// Where the ring ends.
    pub queue_size: u64,
    /// Room for the data below.
    pub max_urgent_data_size: u64,
    /// Data of the queue's user.
    pub urgent_data: Bytes,
}

impl Default for QueueHead {
    fn default() -> Self {
        let start = Marker { generation: 0, offset: HEAD_SIZE_BYTES };
        QueueHead {
            max_head_size: HEAD_SIZE_BYTES,
            front: start,
            tail: start,
            queue_size: 0,
            max_urgent_data_size: 0,
            urgent_data: Bytes::new(),
        }
    }
}

/// An entry (Ceph: `cls_queue_entry`, `cls/queue/cls_queue_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct QueueEntry {
    /// Its bytes.
    pub data: Bytes,
    /// Its place.
    pub marker: Bytes,
}

/// Input of `queue_init` (Ceph: `cls_queue_init_op`, `cls/queue/cls_queue_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct InitOp {
    /// Bytes that the ring is to have.
    pub queue_size: u64,
    /// Room in the head for data of the queue's user.
    pub max_urgent_data_size: u64,
    /// That data.
    pub urgent_data: Bytes,
}

/// Input of `queue_enqueue` (Ceph: `cls_queue_enqueue_op`, `cls/queue/cls_queue_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct EnqueueOp {
    /// Entries.
    pub data: Vec<Bytes>,
}

/// Input of `queue_list_entries` (Ceph: `cls_queue_list_op`, `cls/queue/cls_queue_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct QueueListOp {
    /// At most so many.
    pub max: u64,
    /// From here; empty for the front.
    pub start_marker: Bytes,
}

/// Output of `queue_list_entries` (Ceph: `cls_queue_list_ret`, `cls/queue/cls_queue_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct QueueListRet {
    /// There is more.
    pub is_truncated: bool,
    /// What to go on with.
    pub next_marker: Bytes,
    /// In order.
    pub entries: Vec<QueueEntry>,
}

/// Input of `queue_remove_entries` (Ceph: `cls_queue_remove_op`, `cls/queue/cls_queue_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct QueueRemoveOp {
    /// Up to before this one.
    pub end_marker: Bytes,
}

/// Output of `queue_get_capacity` (Ceph: `cls_queue_get_capacity_ret`, `cls/queue/cls_queue_ops.h`,
/// version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CapacityRet {
    /// Bytes of the ring.
    pub queue_capacity: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_read_as_far_as_they_go() {
        let at = |generation, offset| Marker { generation, offset };
        for (text, marker) in [
            ("3/1024", at(3, 1024)),
            ("", at(0, 0)),
            ("7", at(7, 0)),
            ("7/x", at(7, 0)),
            ("x/7", at(0, 0)),
            (" 1/+2", at(1, 2)),
            ("99999999999999999999/5", at(u64::MAX, 5)),
        ] {
            assert_eq!(Marker::parse(text.as_bytes()), marker, "{text}");
        }
        assert_eq!(at(3, 1024).text(), "3/1024");
    }
}
