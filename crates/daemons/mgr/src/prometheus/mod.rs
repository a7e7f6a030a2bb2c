//! Metrics for Prometheus over HTTP (Ceph: the manager's module `prometheus`).
//!
//! * [`text`]: the text format;
//! * [`cluster`]: what Ceph's module exports, under its names;
//! * [`tenants`]: what classes and tenants are promised and get;
//! * [`http`]: the server, which peers cannot make wait or grow.

pub mod cluster;
pub mod http;
pub mod tenants;
pub mod text;

/// The module's name.
pub const MODULE: &str = "prometheus";
