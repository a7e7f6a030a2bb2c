//! The client's side of the cluster: a monitor session, and RADOS on top of it.
//!
//! * [`ClusterConfig`]: where the monitors are and who we are, from `ceph.conf` and a keyring.
//! * [`MonClient`]: finds a monitor, authenticates, keeps the session, subscriptions and tickets
//!   alive. Daemons, the mgr and tools use it alike.
//! * [`Rados`] and [`IoCtx`]: objects, pools, commands to OSDs and to the mgr. Works against Siphon
//!   and against a stock Ceph cluster.
//!
//! Everything lives on one thread, inside a tokio `LocalSet`; no handle is `Send`.

mod config;
mod error;
mod listing;
mod mon_client;
mod mon_host;
mod objecter;
mod operation;
mod rados;
mod target;

pub use config::{ClusterConfig, ConfigError};
pub use error::{ClientError, Result};
pub use listing::ListCursor;
pub use mon_client::{CommandOutput, MonClient, MonConfig, MonEvents, MonTiming};
pub use mon_host::{MonHost, ParseMonHostError, parse_mon_host};
pub use objecter::{Objecter, OpOutcome, Request, Scope};
pub use operation::{Operation, Stat, decode_omap};
pub use rados::{IoCtx, Rados};
