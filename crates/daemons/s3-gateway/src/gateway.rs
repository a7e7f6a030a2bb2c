//! What all requests of a gateway share.

use crate::administration::Administration;
use crate::answer::set;
use crate::counters::Counters;
use crate::limits::{Gate, Limits};
use crate::policies::Policies;
use crate::tls::{Certificates, Handshakes};
use http::HeaderMap;
use s3_layout::Layout;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// How a gateway behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names under which buckets stand in host names (`bucket.s3.example`).
    pub domains: Vec<String>,
    /// Whether signatures of version 2 are taken.
    pub allow_v2: bool,
    /// The region that clients are told (16.2: the name of the zone group).
    pub region: String,
    /// Whether names of buckets may have capitals and underscores.
    pub relaxed_bucket_names: bool,
    /// The first part of paths of the admin operations API (Ceph: `rgw_admin_entry`), if there is
    /// one; empty switches it off.
    pub admin_entry: String,
    /// Whether requests are noted for the usage log (Ceph: `rgw_enable_usage_log`).
    pub usage_log: bool,
    /// What clients are shown; `None` serves without TLS.
    pub tls: Option<Certificates>,
    /// Bounds of each thread.
    pub limits: Limits,
    /// What is counted; threads of one gateway share it.
    pub counters: Arc<Counters>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            domains: Vec::new(),
            allow_v2: false,
            region: "default".to_owned(),
            relaxed_bucket_names: false,
            admin_entry: "admin".to_owned(),
            usage_log: false,
            tls: None,
            limits: Limits::default(),
            counters: Arc::default(),
        }
    }
}

/// A gateway on one thread.
pub struct Gateway<L> {
    pub(crate) layout: L,
    pub(crate) admin: Option<Box<dyn Administration>>,
    pub(crate) options: Options,
    pub(crate) gate: Gate,
    pub(crate) policies: Policies,
    pub(crate) handshakes: Option<Handshakes>,
    /// Ids of requests: which gateway, and how many it had.
    pub(crate) instance: u64,
    pub(crate) requests: Cell<u64>,
}

impl<L: Layout> Gateway<L> {
    /// A gateway in front of a layout.
    pub fn new(layout: L, options: Options) -> Rc<Gateway<L>> {
        Self::with_admin(layout, options, None)
    }

    /// The same with the admin operations API.
    pub fn with_admin(
        layout: L,
        options: Options,
        admin: Option<Box<dyn Administration>>,
    ) -> Rc<Gateway<L>> {
        let limits = &options.limits;
        let handshakes = options
            .tls
            .clone()
            .map(|tls| Handshakes::new(tls, limits.handshakes, limits.handshake));
        Rc::new(Gateway {
            gate: Gate::new(limits.clone()),
            handshakes,
            layout,
            admin,
            options,
            policies: Policies::default(),
            instance: rand::random(),
            requests: Cell::new(0),
        })
    }

    /// Whether requests come through TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.handshakes.is_some()
    }
}

/// Seconds since 1970.
pub(crate) fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Headers with the host that a target names, if none of them does.
pub(crate) fn with_host(mut headers: HeaderMap, uri: &http::Uri) -> HeaderMap {
    if let (None, Some(authority)) = (headers.get("host"), uri.authority()) {
        set(&mut headers, "host", authority.as_str());
    }
    headers
}
