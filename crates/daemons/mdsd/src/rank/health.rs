//! What the monitors are told of the rank's health (16.2: `Beacon::notify_health`), and the bounds
//! of its memory.

use super::counted::Counted;
use cephfs::SessionInfo;
use mds::{Bounds, ClientId, Complaints, Memory};
use messages::MdsHealthMetric;

/// Numbers of checks (16.2: `mds_metric_t`).
const CLIENT_RECALL: u16 = 2;
const CLIENT_RECALL_MANY: u16 = 4;
const CLIENT_OLDEST_TID: u16 = 6;
const CLIENT_OLDEST_TID_MANY: u16 = 7;
const CACHE_OVERSIZED: u16 = 11;
/// `HEALTH_WARN`.
const WARN: u8 = 1;
/// A client is named by its entity as well, if that is shorter than this.
const ENTITY_BYTES_MAX: usize = 16;

/// The bounds of the memory that options say.
pub(super) fn bounds(conf: &conf::Config) -> Bounds {
    let count = |name: &str| usize::try_from(conf.u64(name)).unwrap_or(usize::MAX);
    Bounds {
        bytes: count("mds_cache_memory_limit"),
        reservation: conf.f64("mds_cache_reservation"),
        health_threshold: conf.f64("mds_health_cache_threshold"),
        recall_max: count("mds_recall_max_caps"),
        recall_threshold: conf.u64("mds_recall_max_decay_threshold") as f64,
        recall_rate: conf.f64("mds_recall_max_decay_rate"),
        recall_global_threshold: conf.u64("mds_recall_global_max_decay_threshold") as f64,
        warning_threshold: conf.u64("mds_recall_warning_threshold") as f64,
        warning_rate: conf.f64("mds_recall_warning_decay_rate"),
        working_set: count("mds_min_caps_working_set"),
        caps_max: count("mds_max_caps_per_client"),
        caps_min: count("mds_min_caps_per_client"),
        liveness_magnitude: u32::try_from(conf.u64("mds_session_cache_liveness_magnitude"))
            .unwrap_or(u32::MAX),
        liveness_rate: conf.f64("mds_session_cache_liveness_decay_rate"),
        completed_max: count("mds_max_completed_requests"),
        ..Bounds::default()
    }
}

/// How a client is called: by its host, if it says that, and by its entity, if that is not the
/// usual one (16.2: `Session::_update_human_name`).
fn name_of(id: u64, info: Option<&SessionInfo>) -> String {
    let host = info.and_then(|i| i.metadata.texts.get("hostname").map(|h| (h, &i.auth_name.1)));
    match host {
        Some((host, entity)) if entity != "admin" && entity.len() < ENTITY_BYTES_MAX => {
            format!("{host}:{entity}")
        }
        Some((host, _)) => host.clone(),
        None => id.to_string(),
    }
}

/// Bytes in the largest unit of which there is one (16.2: `bytes2str`).
fn size(bytes: u64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    format!("{}{}B", bytes >> (10 * unit), units[unit])
}

fn metric(kind: u16, message: String) -> MdsHealthMetric {
    MdsHealthMetric { kind, severity: WARN, message, ..MdsHealthMetric::default() }
}

/// What is wrong: complaints of few clients one by one, by what is known of them.
pub(super) fn metrics<'a>(
    complaints: &Complaints,
    memory: &Memory,
    few: usize,
    info: impl Fn(u64) -> Option<&'a SessionInfo>,
) -> Vec<MdsHealthMetric> {
    let mut metrics = Vec::new();
    let mut of = |clients: &[ClientId], one: u16, many: u16, what: &str, all: &str| {
        if clients.len() > few {
            let n = clients.len();
            let mut m = metric(many, format!("Many clients ({n}) failing to {all}"));
            m.metadata.insert("client_count".to_owned(), n.to_string());
            return metrics.push(m);
        }
        metrics.extend(clients.iter().map(|ClientId(id)| {
            let name = name_of(*id, info(*id));
            let mut m = metric(one, format!("Client {name} failing to {what}"));
            m.metadata.insert("client_id".to_owned(), id.to_string());
            m
        }));
    };
    let pressure = "respond to cache pressure";
    of(&complaints.late, CLIENT_RECALL, CLIENT_RECALL_MANY, pressure, pressure);
    let one = "advance its oldest client/flush tid. ";
    let all = "advance their oldest client/flush tid";
    of(&complaints.oldest_tid, CLIENT_OLDEST_TID, CLIENT_OLDEST_TID_MANY, one, all);
    if complaints.oversized {
        let text = format!(
            "MDS cache is too large ({}/{}); {} inodes in use by clients, {} stray files",
            size(memory.bytes),
            size(memory.limit),
            memory.inodes_in_use,
            memory.strays
        );
        metrics.push(metric(CACHE_OVERSIZED, text));
    }
    metrics
}

/// Bytes that the server holds of what a client says about itself, and of what it counts.
pub(super) fn bytes_of(info: &SessionInfo) -> usize {
    let text = |(k, v): (&String, &String)| k.len() + v.len() + TEXT_BYTES;
    2 * size_of::<SessionInfo>()
        + size_of::<Counted>()
        + info.metadata.texts.iter().map(text).sum::<usize>()
}

/// What a pair of texts takes besides.
const TEXT_BYTES: usize = 2 * size_of::<(String, String)>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_called_as_stock_servers_call_them() {
        let mut info = SessionInfo::default();
        assert_eq!(name_of(7, Some(&info)), "7");
        info.metadata.texts.insert("hostname".to_owned(), "node".to_owned());
        info.auth_name.1 = "admin".to_owned();
        assert_eq!(name_of(7, Some(&info)), "node");
        info.auth_name.1 = "web".to_owned();
        assert_eq!(name_of(7, Some(&info)), "node:web");
        info.auth_name.1 = "a-name-of-sixteen".to_owned();
        assert_eq!(name_of(7, Some(&info)), "node");
    }

    #[test]
    fn sizes_have_the_largest_unit() {
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (64 << 20, "64MB"), (5 << 30, "5GB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
