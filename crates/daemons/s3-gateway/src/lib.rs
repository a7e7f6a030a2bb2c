//! A gateway for S3: HTTP in front of a [layout](s3_layout::Layout) of buckets and objects.
//!
//! A request walks through pure functions: [`s3::route`] says what is asked for, [`s3::sig`] which
//! user asks, [`s3_rules`] whether it may. Only then the layout is called, and its values become
//! headers and documents. [`operations`] is the table of what is there.
//!
//! A [`Gateway`] belongs to one thread with a reactor of its own. What a peer can make it hold is
//! bounded: connections, requests under way in all and of one tenant, memory of bodies, the length
//! of heads and documents ([`Limits`]); a peer that stands still is given up.

#![forbid(unsafe_code)]

mod acl;
mod admin;
mod administration;
mod answer;
mod auth;
mod body;
mod bucket;
mod call;
mod copy;
mod cors;
mod counters;
mod fail;
mod gateway;
mod limits;
mod list;
mod multipart;
mod object;
pub mod operations;
mod policies;
mod post;
mod rights;
mod server;
mod settings;
mod tls;
mod usage;

pub use administration::{AdminAnswer, AdminFuture, AdminRequest, Administration};
pub use counters::{Counters, Kind, Value};
pub use gateway::{Gateway, Options};
pub use limits::Limits;
pub use server::listen;
pub use tls::{Certificates, TlsError};
