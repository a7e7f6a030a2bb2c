//! The central configuration as one entity sees it.

use crate::state::ClusterState;
use conf::sections::{Section, Who, resolve};
use std::collections::BTreeMap;
use types::OsdId;

/// Splits a key of the configuration database: `section[/mask]` and the option's name.
pub fn split_key(key: &str) -> Option<(&str, &str)> {
    key.rsplit_once('/')
}

/// The settings that hold for an entity. Its place and device class come from the CRUSH map if it is an
/// OSD, else its place is only its host.
pub fn for_entity(state: &ClusterState, kind: &str, id: &str, host: Option<&str>) -> BTreeMap<String, String> {
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
    let parsed: Vec<(Section, &str, &str)> = state
        .config
        .iter()
        .filter_map(|(key, value)| {
            let (section, name) = split_key(key)?;
            Some((Section::parse(section).ok()?, name, value.as_str()))
        })
        .collect();
    resolve(parsed.iter().map(|(s, n, v)| (s, *n, *v)), &who)
        .into_iter()
        .map(|(name, (value, _))| (name.to_owned(), value.to_owned()))
        .collect()
}
