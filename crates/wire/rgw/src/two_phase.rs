//! A queue into which entries are put in two steps: room is reserved, then used. Gateways keep
//! notifications in it.

use bytes::Bytes;
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::Utime;

/// Room that was reserved (Ceph: `cls_2pc_reservation`, `cls/2pc_queue/cls_2pc_queue_types.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Reservation {
    /// Bytes.
    pub size: u64,
    /// When.
    pub timestamp: Utime,
}

/// Reservations by id. Ceph writes them in no order.
pub type Reservations = BTreeMap<u32, Reservation>;

/// The queue's data in its head (Ceph: `cls_2pc_urgent_data`,
/// `cls/2pc_queue/cls_2pc_queue_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct TwoPhaseData {
    /// Bytes that are reserved.
    pub reserved_size: u64,
    /// The last id that was given.
    pub last_id: u32,
    /// Reservations.
    pub reservations: Reservations,
    /// There are more of them in an attribute.
    pub has_xattrs: bool,
}

/// Input of `2pc_queue_reserve` (Ceph: `cls_2pc_queue_reserve_op`,
/// `cls/2pc_queue/cls_2pc_queue_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReserveOp {
    /// Bytes of all entries.
    pub size: u64,
    /// How many entries.
    pub entries: u32,
}

/// Output of `2pc_queue_reserve` and input of `2pc_queue_abort` (Ceph:
/// `cls_2pc_queue_reserve_ret`, `cls_2pc_queue_abort_op`, `cls/2pc_queue/cls_2pc_queue_ops.h`,
/// version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReservationId {
    /// The reservation.
    pub id: u32,
}

/// Input of `2pc_queue_commit` (Ceph: `cls_2pc_queue_commit_op`,
/// `cls/2pc_queue/cls_2pc_queue_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CommitOp {
    /// The reservation.
    pub id: u32,
    /// Entries.
    pub data: Vec<Bytes>,
}

/// Input of `2pc_queue_expire_reservations` (Ceph: `cls_2pc_queue_expire_op`,
/// `cls/2pc_queue/cls_2pc_queue_ops.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ExpireOp {
    /// Reservations of before this time are given up.
    pub stale_time: Utime,
}

/// Output of `2pc_queue_list_reservations` (Ceph: `cls_2pc_queue_reservations_ret`,
/// `cls/2pc_queue/cls_2pc_queue_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReservationsRet {
    /// Reservations.
    pub reservations: Reservations,
}
