//! What a client of the monitors needs to know.

use super::MonHost;
use crate::config::ClusterConfig;
use auth::{AuthName, AuthPolicy, CryptoKey, RotatingKeyRing};
use msgr::{Limits, PolicySet};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use types::{EntityName, EntityType};

/// Time in the life of a session.
#[derive(Clone, Copy, Debug)]
pub struct MonTiming {
    /// While hunting, another monitor is tried as well after so long.
    pub hunt_step: Duration,
    /// An attempt that has not led to a session by then is given up (`mon_client_hunt_interval`).
    pub hunt_interval: Duration,
    /// At most so many attempts at a time (`mon_client_hunt_parallel`).
    pub hunt_parallel: usize,
    /// The longest pause between two rounds in which no monitor was reachable.
    pub max_backoff: Duration,
    /// How often a session is looked after: keepalive, tickets (`mon_client_ping_interval`).
    pub ping_interval: Duration,
    /// A monitor that does not answer for so long is left (`mon_client_ping_timeout`).
    pub ping_timeout: Duration,
}

impl MonTiming {
    /// Ceph's times.
    pub const DEFAULT: MonTiming = MonTiming {
        hunt_step: Duration::from_millis(300),
        hunt_interval: Duration::from_secs(3),
        hunt_parallel: 3,
        max_backoff: Duration::from_secs(5),
        ping_interval: Duration::from_secs(10),
        ping_timeout: Duration::from_secs(30),
    };
}

impl Default for MonTiming {
    fn default() -> Self {
        MonTiming::DEFAULT
    }
}

/// What a [`MonClient`](super::MonClient) needs to know.
pub struct MonConfig {
    /// The name that the client proves.
    pub name: AuthName,
    /// The client's name in messages. A client's number is its global id, which comes with the
    /// session: leave it negative.
    pub entity: EntityName,
    /// Our secret.
    pub key: CryptoKey,
    /// Authentication methods and connection modes.
    pub policy: AuthPolicy,
    /// Services that we need tickets for, besides the monitors.
    pub want: Vec<EntityType>,
    /// Where monitors may be, until there is a monitor map.
    pub mon_hosts: Vec<MonHost>,
    /// Tells this process from others at the same address.
    pub nonce: u32,
    /// Name of this host, for the monitors' list of sessions.
    pub hostname: String,
    /// Of a daemon: where its service's rotating secrets go.
    pub rotating: Option<Rc<RefCell<RotatingKeyRing>>>,
    /// Connection policies by kind of peer.
    pub policies: PolicySet,
    /// Bounds of the messenger.
    pub limits: Limits,
    /// Times.
    pub timing: MonTiming,
}

impl MonConfig {
    /// For the entity that a cluster configuration names.
    pub fn new(cluster: &ClusterConfig) -> Self {
        let kind = cluster.name.kind;
        let num =
            if kind == EntityType::CLIENT { -1 } else { cluster.name.id.parse().unwrap_or(0) };
        MonConfig {
            name: cluster.name.clone(),
            entity: EntityName::new(kind, num),
            key: cluster.key.clone(),
            policy: cluster.policy.clone(),
            want: vec![EntityType::MON, EntityType::OSD, EntityType::MGR, EntityType::MDS],
            mon_hosts: cluster.mon_hosts.clone(),
            nonce: rand::random(),
            hostname: hostname(),
            rotating: None,
            policies: PolicySet::new(msgr::Policy::lossy_client()),
            limits: Limits::default(),
            timing: MonTiming::default(),
        }
    }
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|s| s.trim().to_owned())
        .unwrap_or_default()
}
