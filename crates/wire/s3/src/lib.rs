//! The S3 protocol without I/O: what a gateway, a client and a load generator need of it.
//!
//! A request arrives as a method, a target and headers. [`route`] says which operation it asks for,
//! [`sig`] whether its sender is known, [`chunked`] and [`checksum`] turn its body into verified
//! bytes, [`xml`] reads and writes documents, [`error`] is the vocabulary of refusals.
//!
//! Nothing here knows a socket, a clock or a bucket: `now` is an argument, bodies arrive as slices.
//! Every parser of outside bytes is bounded in size and depth, and returns an [`error::S3Error`].
//!
//! Source of the formats: Amazon S3 API Reference (2006-03-01), AWS Signature Version 4, and what
//! Ceph's gateway (16.2, 18.2) answers where the reference leaves a choice.

#![forbid(unsafe_code)]

pub mod body;
pub mod checksum;
pub mod chunked;
pub mod condition;
pub mod date;
pub mod error;
pub mod etag;
pub mod names;
pub mod post;
pub mod range;
pub mod route;
pub mod sig;
pub mod uri;
pub mod xml;

pub use error::{ErrorCode, S3Error};
pub use route::{Operation, Route};
