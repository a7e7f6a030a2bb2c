//! The central configuration as one entity sees it.

use crate::state::ClusterState;
use conf::sections::{Section, Who, resolve};
use std::collections::BTreeMap;
use types::OsdId;

/// Splits a key of the configuration database: `section[/mask...]` and the option's name. Masks
/// have a colon; names of options of the manager's modules have slashes themselves.
pub fn split_key(key: &str) -> Option<(&str, &str)> {
    let mut at = key.find('/')?;
    while let Some((mask, _)) = key[at + 1..].split_once('/')
        && mask.contains(':')
    {
        at += 1 + mask.len();
    }
    Some((&key[..at], &key[at + 1..]))
}

/// Which sections are for an entity. Its place and device class come from the CRUSH map if it is an
/// OSD, else its place is only its host.
pub fn whose(state: &ClusterState, kind: &str, id: &str, host: Option<&str>) -> Who {
    let mut who = Who { entity_type: kind.to_owned(), id: id.to_owned(), ..Default::default() };
    if kind == "osd"
        && let Ok(osd) = id.parse::<i32>()
    {
        let crush = &state.osd.map().crush;
        who.location = crush.full_location(osd).into_iter().collect();
        who.device_class = crush.item_class(osd).map(str::to_owned);
        if who.location.is_empty()
            && let Some(host) = state.osd_metadata.get(&OsdId(osd)).and_then(|m| m.get("hostname"))
        {
            who.location.insert("host".into(), host.clone());
        }
    }
    if let Some(host) = host {
        who.location.entry("host".into()).or_insert_with(|| host.to_owned());
    }
    who
}

/// The settings that hold for an entity: see [`whose`]. OSDs are told the ceiling of a movement
/// job.
pub fn for_entity(
    state: &ClusterState,
    kind: &str,
    id: &str,
    host: Option<&str>,
) -> BTreeMap<String, String> {
    let who = whose(state, kind, id, host);
    let parsed: Vec<(Section, &str, &str)> = state
        .config
        .iter()
        .filter_map(|(key, value)| {
            let (section, name) = split_key(key)?;
            Some((Section::parse(section).ok()?, name, value.as_str()))
        })
        .collect();
    let mut settings: BTreeMap<String, String> =
        resolve(parsed.iter().map(|(s, n, v)| (s, *n, *v)), &who)
            .into_iter()
            .map(|(name, (value, _))| (name.to_owned(), value.to_owned()))
            .collect();
    if kind == "osd"
        && let Some(ceiling) = crate::moves::ceiling(state)
    {
        settings.insert("osd_mclock_movement_latency".into(), format!("{}", ceiling as f64 / 1e6));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_slashes() {
        for (who, name) in [
            ("mgr", "mgr/prometheus/server_port"),
            ("osd", "osd_max_backfills"),
            ("osd/class:ssd", "osd_max_backfills"),
            ("client.a/host:b/class:hdd", "rbd_cache"),
            ("class:ssd", "osd_max_backfills"),
            ("mgr/host:b", "mgr/pg_autoscaler/threshold"),
        ] {
            assert_eq!(split_key(&format!("{who}/{name}")), Some((who, name)));
        }
        assert_eq!(split_key("osd_max_backfills"), None);
    }
}
