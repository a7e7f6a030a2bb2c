//! The cluster log and health checks.

use crate::payload::{Paxos, message};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::{Fsid, LogEntry};

message! {
    /// Lines for the cluster log (Ceph: `MLog`).
    Log = 52, "log", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// The lines.
        entries: Vec<LogEntry>,
    }

    /// Lines up to `last` are stored (Ceph: `MLogAck`).
    LogAck = 53, "log_ack", version 1, compat 1 {
        /// Of the cluster.
        fsid: Fsid,
        /// Sequence number of the last stored line.
        last: u64,
        /// Channel of the lines; older senders leave it out.
        channel: crate::OrDefault<String>,
    }

    /// Health checks that another daemon raises (Ceph: `MMonHealthChecks`).
    MonHealthChecks = 0x608, "mon_health_checks", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// The checks.
        checks: HealthChecks,
    }
}

/// Health checks by code (Ceph: `health_check_map_t`).
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct HealthChecks {
    /// By code, such as `OSD_DOWN`.
    pub checks: BTreeMap<String, HealthCheck>,
}

/// One health check (Ceph: `health_check_t`).
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct HealthCheck {
    /// 0 error, 1 warning, 2 fine.
    pub severity: u8,
    /// One line.
    pub summary: String,
    /// More lines.
    pub detail: Vec<String>,
    /// How many things the summary counts.
    #[denc(since = 2)]
    pub count: i64,
}

impl HealthCheck {
    /// `HEALTH_ERR`.
    pub const ERR: u8 = 0;
    /// `HEALTH_WARN`.
    pub const WARN: u8 = 1;
    /// `HEALTH_OK`.
    pub const OK: u8 = 2;
}
