//! Metrics of the cluster for Prometheus over HTTP (Ceph: the manager's module `prometheus`).
//!
//! * [`cluster`]: what Ceph's module exports, under its names;
//! * [`tenants`]: what classes and tenants are promised and get.

pub mod cluster;
pub mod tenants;

pub use daemon_frame::metrics::{http, text};

/// The module's name.
pub const MODULE: &str = "prometheus";
