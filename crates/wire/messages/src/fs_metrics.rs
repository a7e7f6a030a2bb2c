//! Statistics of clients of file systems.

use crate::payload::message;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use types::Utime;

/// One statistic (Ceph: `ClientMetricMessage`, `include/cephfs/metrics/Types.h`): its kind, then an
/// envelope. Kinds that are not known are kept as bytes: clients have more with each release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientMetric {
    /// See [`ClientMetric::CAP_INFO`].
    pub kind: u32,
    /// Version of the envelope.
    pub struct_v: u8,
    /// What is in it.
    pub fields: Bytes,
}

/// What a statistic says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricValue {
    /// Hits, misses, and how many there are.
    Hits(u64, u64, u64),
    /// How long they took.
    Latency(Latency),
    /// Some of all; or operations and their bytes.
    Of(u64, u64),
}

/// How long operations of a client took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// The latest, or all together, as the client's release has it.
    pub time: Utime,
    /// The mean. Clients since 16.2.11 tell it, and what follows.
    pub mean: Utime,
    /// The sum of the squares of distances from the mean, in squares of microseconds.
    pub squares: u64,
    /// How many operations there were.
    pub count: u64,
}

impl ClientMetric {
    /// Capabilities that were there, that were not, and how many the client has.
    pub const CAP_INFO: u32 = 0;
    /// Reads.
    pub const READ_LATENCY: u32 = 1;
    /// Writes.
    pub const WRITE_LATENCY: u32 = 2;
    /// Requests to the server.
    pub const METADATA_LATENCY: u32 = 3;
    /// Leases that were there, that were not, and how many the client has.
    pub const DENTRY_LEASE: u32 = 4;
    /// Open files of all inodes.
    pub const OPENED_FILES: u32 = 5;
    /// Pinned inodes of all.
    pub const PINNED_ICAPS: u32 = 6;
    /// Open inodes of all.
    pub const OPENED_INODES: u32 = 7;
    /// Reads and their bytes.
    pub const READ_IO_SIZES: u32 = 8;
    /// Writes and their bytes.
    pub const WRITE_IO_SIZES: u32 = 9;

    /// What it says; `None` for kinds that are not known.
    pub fn value(&self) -> denc::Result<Option<MetricValue>> {
        let mut r = Reader::new(self.fields.clone());
        Ok(Some(match self.kind {
            Self::CAP_INFO | Self::DENTRY_LEASE => MetricValue::Hits(r.get()?, r.get()?, r.get()?),
            Self::READ_LATENCY..=Self::METADATA_LATENCY => {
                let mut latency = Latency { time: r.get()?, ..Latency::default() };
                if self.struct_v >= 2 {
                    (latency.mean, latency.squares, latency.count) = (r.get()?, r.get()?, r.get()?);
                }
                MetricValue::Latency(latency)
            }
            Self::OPENED_FILES..=Self::WRITE_IO_SIZES => MetricValue::Of(r.get()?, r.get()?),
            _ => return Ok(None),
        }))
    }
}

impl Encode for ClientMetric {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.kind.encode(out, f);
        denc::envelope(out, self.struct_v, 1, |out| out.put_slice(&self.fields));
    }
}

impl Decode for ClientMetric {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let kind = r.get()?;
        let (struct_v, mut r) = r.envelope("ClientMetricMessage", 254)?;
        Ok(ClientMetric { kind, struct_v, fields: r.rest() })
    }
}

message! {
    /// Statistics that a client tells from time to time, if the server asked for them when the
    /// session was opened (Ceph: `MClientMetrics`).
    ClientMetrics = 29, "client_metrics", version 1, compat 1 {
        /// The statistics.
        metrics: Vec<ClientMetric>,
    }
}
