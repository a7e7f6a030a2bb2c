//! Every message that travels over `msgr`: Ceph's, byte for byte, and our own between daemons.
//!
//! One struct per message. [`Payload`] gives its number, its header versions and the two
//! conversions, `encode` to and `decode` from [`types::message::Message`]. [`AnyMessage`] decodes
//! by number.
//! Payloads that can be large (object data, command input) are slices of the message's data
//! segment and are never copied here.
//!
//! Layouts are those of Ceph 16.2 (`src/messages/M*.h`); where a newer client sends a newer header
//! version, the struct's page says what is understood.

#![forbid(unsafe_code)]

mod any;
mod cluster;
mod command;
mod config;
mod fs_caps;
mod fs_metrics;
mod fs_reply;
mod fs_request;
mod fs_session;
mod maps;
mod mds;
mod mgr;
mod mgr_clients;
mod mon;
mod ops;
mod osd;
mod osd_mon;
mod own;
mod payload;
#[cfg(test)]
mod sample;

pub use any::AnyMessage;
pub use cluster::*;
pub use command::*;
pub use config::*;
pub use fs_caps::*;
pub use fs_metrics::*;
pub use fs_reply::*;
pub use fs_request::*;
pub use fs_session::*;
pub use maps::*;
pub use mds::*;
pub use mgr::*;
pub use mgr_clients::{ClientCounter, ClientKey, ClientQuery, ClientReport, ClientRows, KeyPart};
pub use mon::*;
pub use ops::*;
pub use osd::*;
pub use osd_mon::*;
pub use own::*;
pub use payload::*;
