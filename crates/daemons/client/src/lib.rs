//! The client's side of the cluster: a monitor session, and RADOS on top of it.
//!
//! * [`ClusterConfig`]: where the monitors are, and the client's name and key.
//! * [`MonClient`]: finds a monitor, authenticates, keeps the session, subscriptions and tickets
//!   alive. Daemons, the manager and tools use it alike.
//! * [`Rados`] and [`IoCtx`]: objects, pools, commands to OSDs, metadata servers and the manager.
//!   [`Operation`] says what to do with an object, [`OpOutcome`] what came of it.
//!   They work against Siphon and against a stock Ceph cluster.
//! * [`Objecter`]: the requests in flight, bounded by [`Limits`]; [`Watch`]es.
//! * [`Striper`]: files over objects.
//! * [`SharedMap`]: the one map of a process with several threads.
//!
//! A client lives on one thread, inside a tokio `LocalSet`; of its handles only [`SharedMap`] is
//! `Send`. A process with several threads has a client on each, over one map:
//!
//! ```no_run
//! # use client::{ClusterConfig, Rados, SharedMap};
//! # use std::time::Duration;
//! # fn start(cluster: ClusterConfig, threads: usize) {
//! let map = SharedMap::new();
//! for _ in 0..threads {
//!     let (cluster, map) = (cluster.clone(), map.clone());
//!     std::thread::spawn(move || {
//!         let mut builder = tokio::runtime::Builder::new_current_thread();
//!         let runtime = builder.enable_all().build().unwrap();
//!         tokio::task::LocalSet::new().block_on(&runtime, async {
//!             let limit = Duration::from_secs(30);
//!             let rados = Rados::connect_shared(&cluster, map, limit).await.unwrap();
//!             let io = rados.ioctx("rbd").await.unwrap();
//!             io.write_full("name", "data".into()).await.unwrap();
//!         });
//!     });
//! }
//! # }
//! ```

#![forbid(unsafe_code)]

mod clock;
mod config;
mod error;
mod ioctx;
mod listing;
mod mon;
mod objecter;
mod operation;
mod placement;
mod rados;
mod scope;
mod shared_map;
mod striper;

pub use clock::wall_clock;
pub use config::{ClusterConfig, ConfigError};
pub use error::{ClientError, Result};
pub use ioctx::IoCtx;
pub use listing::ListCursor;
pub use mon::{
    CommandOutput, MonClient, MonConfig, MonEvents, MonHost, MonTiming, ParseMonHostError,
    parse_mon_host,
};
pub use objecter::{
    Handler, InFlight, Limits, Notification, NotifyOutcome, Objecter, OpOutcome, Options, Reporter,
    Request, ServiceDaemon, Watch, WatchEvent, requests_json,
};
pub use operation::{ChecksumKind, Comparison, CopyFrom, OmapPage, Operation, Sparse, Stat};
pub use rados::Rados;
pub use scope::Scope;
pub use shared_map::SharedMap;
pub use striper::{Extent, Layout, Namer, Striper};
