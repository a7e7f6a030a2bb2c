//! Performance counters, with the names and shapes that `perf dump` has in Ceph
//! (`osd/osd_perf_counters.cc`). One thread counts; a counter is a cell.

use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::time::Duration;

/// A number that only grows, or a gauge.
#[derive(Default)]
pub struct Count(Cell<u64>);

impl Count {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    /// Takes one off a gauge.
    pub fn dec(&self) {
        self.0.set(self.0.get().saturating_sub(1));
    }

    /// Sets a gauge.
    pub fn set(&self, n: u64) {
        self.0.set(n);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.get()
    }

    fn dump(&self) -> Value {
        self.0.get().into()
    }

    fn reset(&self) {
        self.0.set(0);
    }
}

/// How many times something took how long in all.
#[derive(Default)]
pub struct TimeAvg {
    count: Cell<u64>,
    nanos: Cell<u64>,
}

impl TimeAvg {
    /// One more, which took `d`.
    pub fn add(&self, d: Duration) {
        self.count.set(self.count.get() + 1);
        self.nanos.set(self.nanos.get().wrapping_add(d.as_nanos() as u64));
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Nanoseconds in all.
    pub fn nanos(&self) -> u64 {
        self.nanos.get()
    }

    fn dump(&self) -> Value {
        let sum = self.nanos.get() as f64 / 1e9;
        let avg = if self.count.get() == 0 { 0.0 } else { sum / self.count.get() as f64 };
        json!({"avgcount": self.count.get(), "sum": sum, "avgtime": avg})
    }

    fn reset(&self) {
        self.count.set(0);
        self.nanos.set(0);
    }
}

macro_rules! counters {
    ($($field:ident: $kind:ident, $type_bits:literal, $desc:literal;)*) => {
        /// The `osd` section of `perf dump`.
        #[derive(Default)]
        pub struct PerfCounters {
            $(#[doc = $desc] pub $field: $kind,)*
        }

        impl PerfCounters {
            /// Values by name.
            pub fn dump(&self) -> Map<String, Value> {
                let mut m = Map::new();
                $(m.insert(stringify!($field).into(), self.$field.dump());)*
                m
            }

            /// What each counter is: `type` is Ceph's bit mask (1 time, 2 integer, 4 average,
            /// 8 counter).
            pub fn schema(&self) -> Map<String, Value> {
                let mut m = Map::new();
                $(m.insert(stringify!($field).into(), json!({
                    "type": $type_bits,
                    "metric_type": if $type_bits & 8 != 0 { "counter" } else { "gauge" },
                    "value_type": if $type_bits & 1 != 0 { "real-integer-pair" } else { "integer" },
                    "description": $desc,
                    "nick": "",
                    "priority": 5,
                    "units": if stringify!($field).ends_with("bytes") { "bytes" } else { "none" },
                }));)*
                m
            }

            /// Sets everything to zero.
            pub fn reset(&self) {
                $(self.$field.reset();)*
            }
        }
    };
}

counters! {
    op_wip: Count, 2, "Replication operations currently being processed (primary)";
    op: Count, 10, "Client operations";
    op_in_bytes: Count, 10, "Client operations total write size";
    op_out_bytes: Count, 10, "Client operations total read size";
    op_latency: TimeAvg, 5, "Latency of client operations (including queue time)";
    op_process_latency: TimeAvg, 5, "Latency of client operations (excluding queue time)";
    op_prepare_latency: TimeAvg, 5, "Latency of client operations (excluding queue time and wait for finished)";
    op_r: Count, 10, "Client read operations";
    op_r_out_bytes: Count, 10, "Client data read";
    op_r_latency: TimeAvg, 5, "Latency of read operation (including queue time)";
    op_r_process_latency: TimeAvg, 5, "Latency of read operation (excluding queue time)";
    op_r_prepare_latency: TimeAvg, 5, "Latency of read operations (excluding queue time and wait for finished)";
    op_w: Count, 10, "Client write operations";
    op_w_in_bytes: Count, 10, "Client data written";
    op_w_latency: TimeAvg, 5, "Latency of write operation (including queue time)";
    op_w_process_latency: TimeAvg, 5, "Latency of write operation (excluding queue time)";
    op_w_prepare_latency: TimeAvg, 5, "Latency of write operations (excluding queue time and wait for finished)";
    op_rw: Count, 10, "Client read-modify-write operations";
    op_rw_in_bytes: Count, 10, "Client read-modify-write operations write in";
    op_rw_out_bytes: Count, 10, "Client read-modify-write operations read out ";
    op_rw_latency: TimeAvg, 5, "Latency of read-modify-write operation (including queue time)";
    op_rw_process_latency: TimeAvg, 5, "Latency of read-modify-write operation (excluding queue time)";
    op_rw_prepare_latency: TimeAvg, 5, "Latency of read-modify-write operations (excluding queue time and wait for finished)";
    op_before_queue_op_lat: TimeAvg, 5, "Latency of IO before calling queue(before really queue into ShardedOpWq)";
    op_before_dequeue_op_lat: TimeAvg, 5, "Latency of IO before calling dequeue_op(already dequeued and get PG lock)";
    subop: Count, 10, "Suboperations";
    subop_in_bytes: Count, 10, "Suboperations total size";
    subop_latency: TimeAvg, 5, "Suboperations latency";
    subop_w: Count, 10, "Replicated writes";
    subop_w_in_bytes: Count, 10, "Replicated written data size";
    subop_w_latency: TimeAvg, 5, "Replicated writes latency";
    pull: Count, 10, "Pull requests sent";
    push: Count, 10, "Push messages sent";
    push_out_bytes: Count, 10, "Pushed size";
    recovery_ops: Count, 10, "Started recovery operations";
    recovery_bytes: Count, 10, "recovery bytes";
    numpg: Count, 2, "Placement groups";
    numpg_primary: Count, 2, "Placement groups for which this osd is primary";
    numpg_replica: Count, 2, "Placement groups for which this osd is replica";
    numpg_stray: Count, 2, "Placement groups ready to be deleted from this osd";
    numpg_removing: Count, 2, "Placement groups queued for local deletion";
    heartbeat_to_peers: Count, 2, "Heartbeat (ping) peers we send to";
    map_messages: Count, 10, "OSD map messages";
    map_message_epochs: Count, 10, "OSD map epochs";
    map_message_epoch_dups: Count, 10, "OSD map duplicates";
    messages_delayed_for_map: Count, 10, "Operations waiting for OSD map";
    stat_bytes: Count, 2, "OSD size";
    stat_bytes_used: Count, 2, "Used space";
    stat_bytes_avail: Count, 2, "Available space";
    ec_read: Count, 10, "Reads of ranges of erasure-coded objects, for clients and for changes";
    ec_read_degraded: Count, 10, "Reads of erasure-coded objects for which bytes of lost or late shards were computed";
    ec_read_kept: Count, 10, "Such reads for changes that found all bytes in memory";
    ec_shard_read: Count, 10, "Shards read for such reads, on this OSD and on others";
    ec_shard_read_remote: Count, 10, "Shards of other OSDs read for such reads";
    ec_shard_read_remote_bytes: Count, 10, "Bytes of shards of other OSDs read for such reads";
    ec_shard_read_bytes: Count, 10, "Bytes of shards read for such reads";
    ec_shard_read_late: Count, 10, "Shards that were not waited for any longer";
    ec_shard_read_limit_us: Count, 2, "Microseconds after which a shard counts as late";
    ec_write: Count, 10, "Changes of erasure-coded objects";
    ec_write_delta: Count, 10, "Changes of which parity shards got what data changed";
    ec_shard_write: Count, 10, "Shards that such changes are about, on this OSD and on others";
    ec_shard_write_bytes: Count, 10, "Bytes of shards that such changes write";
    ec_rebuild: Count, 10, "Parts of objects of which lost shards were made";
    ec_rebuild_read_bytes: Count, 10, "Bytes of shards read for that";
    copyfrom: Count, 10, "Rados 'copy-from' operations";
    object_ctx_cache_hit: Count, 10, "Object context cache hits";
    object_ctx_cache_total: Count, 10, "Object context cache lookups";
    slow_ops_slow_ops_count: Count, 10, "Operations that took longer than osd_op_complaint_time";
}

impl PerfCounters {
    /// A client operation finished: counts it where Ceph counts it.
    pub fn client_op(
        &self,
        read: bool,
        write: bool,
        in_bytes: u64,
        out_bytes: u64,
        total: Duration,
        process: Duration,
    ) {
        self.op.inc();
        self.op_in_bytes.add(in_bytes);
        self.op_out_bytes.add(out_bytes);
        self.op_latency.add(total);
        self.op_process_latency.add(process);
        if read && write {
            self.op_rw.inc();
            self.op_rw_in_bytes.add(in_bytes);
            self.op_rw_out_bytes.add(out_bytes);
            self.op_rw_latency.add(total);
            self.op_rw_process_latency.add(process);
        } else if write {
            self.op_w.inc();
            self.op_w_in_bytes.add(in_bytes);
            self.op_w_latency.add(total);
            self.op_w_process_latency.add(process);
        } else {
            self.op_r.inc();
            self.op_r_out_bytes.add(out_bytes);
            self.op_r_latency.add(total);
            self.op_r_process_latency.add(process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_op_is_counted_by_kind() {
        let p = PerfCounters::default();
        p.client_op(false, true, 4096, 0, Duration::from_millis(2), Duration::from_millis(1));
        p.client_op(true, false, 0, 100, Duration::from_millis(4), Duration::from_millis(1));
        let d = p.dump();
        assert_eq!(d["op"], 2);
        assert_eq!((&d["op_w"], &d["op_r"], &d["op_rw"]), (&json!(1), &json!(1), &json!(0)));
        assert_eq!(d["op_latency"]["avgcount"], 2);
        assert_eq!(d["op_latency"]["avgtime"], 0.003);
        p.reset();
        assert_eq!(p.dump()["op"], 0);
        assert_eq!(p.schema().len(), p.dump().len());
    }
}
