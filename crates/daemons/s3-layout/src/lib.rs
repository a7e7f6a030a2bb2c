//! Buckets and objects of an S3 gateway on RADOS.
//!
//! [`Layout`] is what the protocol's half of a gateway asks of its storage. It names S3's things
//! (users, buckets, objects, versions, uploads) and none of RADOS. A layout lives on one thread,
//! as the [client](../client/index.html) below it does; a gateway of several threads has one on
//! each.

#![forbid(unsafe_code)]

pub mod api;
pub mod rgw;

pub use api::{Error, Layout, Result, Source, Upload};
