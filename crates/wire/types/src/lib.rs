//! The shared vocabulary: identifiers, objects, placement groups and the cluster maps.
//!
//! Types that stock clients see encode to exactly the bytes that Ceph 16.2 to 19 write. Each names
//! its C++ counterpart. [`Dump`] gives the JSON that `ceph ... -f json` shows for it.

#![forbid(unsafe_code)]

pub mod compat_set;
pub mod dencode;
pub mod dump;
pub mod entity;
pub mod errno;
pub mod features;
pub mod fsmap;
pub mod hash;
pub mod ids;
pub mod interval_set;
pub mod log;
pub mod message;
pub mod mgrmap;
pub mod monmap;
pub mod object;
pub mod object_info;
pub mod osdmap;
pub mod pg_info;
pub mod pg_log;
pub mod pg_stat;
pub mod pgid;
pub mod pgmap;
pub mod pool;
pub mod pool_opts;
pub mod rados;
pub mod release;
pub mod replies;
pub mod room;
pub mod scrub;
pub mod service_map;
pub mod snap;
pub mod stats;
pub mod time;
pub mod version;

pub use compat_set::CompatSet;
pub use dump::Dump;
pub use entity::{AddrType, EntityAddr, EntityAddrVec, EntityName, EntityType, ReqId};
pub use errno::Errno;
pub use fsmap::{FsMap, FsMapUser, MdsMap};
pub use ids::{Epoch, Eversion, Fsid, OsdId, PoolId, SnapId};
pub use interval_set::IntervalSet;
pub use log::{LogEntry, LogName, LogPriority, LogSummary};
pub use mgrmap::MgrMap;
pub use monmap::{MonFeatures, MonInfo, MonMap};
pub use object::{ObjectId, ObjectLocator};
pub use object_info::ObjectInfo;
pub use osdmap::{OsdMap, OsdMapIncremental, OsdMapMapping};
pub use pg_info::{PgHistory, PgInfo};
pub use pg_log::{LogOp, PgLogDup, PgLogEntry};
pub use pg_stat::{PgStat, PgState};
pub use pgid::{PgId, PgShard, ShardId, SpgId};
pub use pgmap::PgMapDigest;
pub use pool::{PgPool, PoolOpts, PoolSnapInfo};
pub use release::Release;
pub use replies::{ListObject, PgNlsResponse};
pub use service_map::ServiceMap;
pub use snap::{SnapContext, SnapSet};
pub use stats::{ObjectStatCollection, ObjectStatSum, OsdStat, PoolStat, StoreStatfs};
pub use time::Utime;
