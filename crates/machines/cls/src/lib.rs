//! Object classes: methods that clients call on an object and that run where the object is (Ceph:
//! `src/cls`).
//!
//! * [`context`]: what a method may do to its object.
//! * [`method`]: how a class declares its methods.
//! * [`registry`]: the table of classes, and which of them a configuration lets clients call.
//! * one module for each class, under its Ceph name.
//!
//! A method does everything through [`context::ObjectContext`], in its caller's transaction: if the
//! request fails, nothing of it happened.

#![forbid(unsafe_code)]

pub mod cas;
pub mod cmpomap;
pub mod context;
pub mod fifo;
pub mod hello;
pub mod journal;
pub mod lock;
pub mod log;
pub mod method;
pub mod numops;
pub mod otp;
pub mod queue;
pub mod rbd;
pub mod refcount;
pub mod registry;
pub mod rgw;
pub mod rgw_gc;
#[cfg(test)]
pub(crate) mod testing;
pub mod timeindex;
pub mod two_phase_queue;
pub mod user;
pub mod version;

pub use context::{LocalFuture, Object, ObjectContext, Origin, Page};
pub use method::{Class, Method, MethodFlags, Output};
pub use registry::Registry;
