//! Commands: to the monitors, to daemons (`tell`) and to the mgr.

use crate::payload::{Paxos, message};
use types::Fsid;

message! {
    /// A command to the monitors (Ceph: `MMonCommand`).
    MonCommand = 50, "mon_command", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// One JSON object (split over several strings by some callers).
        cmd: Vec<String>,
    }, data input

    /// Answer to [`MonCommand`] (Ceph: `MMonCommandAck`).
    MonCommandAck = 51, "mon_command_ack", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// 0 or a negative errno.
        result: i32,
        /// Status, for people.
        status: String,
        /// The command.
        cmd: Vec<String>,
    }, data output

    /// A command to one daemon (Ceph: `MCommand`): `ceph tell`.
    Command = 97, "command", version 1, compat 1 {
        /// Of the cluster.
        fsid: Fsid,
        /// One JSON object.
        cmd: Vec<String>,
    }, data input

    /// Answer to [`Command`] (Ceph: `MCommandReply`).
    CommandReply = 98, "command_reply", version 1, compat 1 {
        /// 0 or a negative errno.
        result: i32,
        /// Status, for people.
        status: String,
    }, data output

    /// A command that the mgr serves for the whole cluster (Ceph: `MMgrCommand`).
    MgrCommand = 0x709, "mgr_command", version 1, compat 1 {
        /// Of the cluster.
        fsid: Fsid,
        /// One JSON object.
        cmd: Vec<String>,
    }, data input

    /// Answer to [`MgrCommand`] (Ceph: `MMgrCommandReply`).
    MgrCommandReply = 0x70a, "mgr_command_reply", version 1, compat 1 {
        /// 0 or a negative errno.
        result: i32,
        /// Status, for people.
        status: String,
    }, data output
}
