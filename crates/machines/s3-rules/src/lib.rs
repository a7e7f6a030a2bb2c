//! Decisions of an S3 gateway: which requests are allowed, and which objects expire.
//!
//! [`policy`] reads and evaluates bucket policies, [`canned`] the ACLs of headers, [`access`] joins
//! policies, ACLs, ownership and the public access block to one verdict. [`lifecycle`] says when
//! rules let an object expire. Everything is a function of values: no bucket is read here, and the
//! time is part of the [`policy::Context`] and of [`lifecycle::Days`].

#![forbid(unsafe_code)]

pub mod access;
pub mod canned;
pub mod lifecycle;
pub mod policy;

mod net;
mod pattern;
