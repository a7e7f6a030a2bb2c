//! Loading the PGs of an OSD when it starts.

use super::error::StartError;
use crate::coding::Kept;
use crate::collections::{META_KEY, id_of};
use crate::core::Core;
use crate::osd_map::MapAt;
use crate::superblock::{self, Superblock};
use bytes::Bytes;
use client::wall_clock;
use objops::coded::KeptChange;
use pg::Pg;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use store::Store;
use types::{Epoch, SpgId};

/// PGs that are read from the store at the same time.
const LOADS: usize = 32;

async fn load_group(
    store: Rc<Store>,
    coll: store::Coll,
    id: SpgId,
) -> Result<(SpgId, pg::rows::Loaded, Kept), StartError> {
    let meta = Bytes::from_static(META_KEY);
    let mut rows = Vec::new();
    let mut from = Bytes::from_static(pg::rows::FIRST_ROW);
    let mut first = true;
    loop {
        let bound = if first { Bound::Included(&from[..]) } else { Bound::Excluded(&from[..]) };
        let page = store.omap_iter(coll, &meta, bound, 4096, 16 << 20).await?;
        let last = page.rows.last().map(|(k, _)| k.clone());
        rows.extend(page.rows);
        match last {
            Some(k) if page.more => from = k,
            _ => break,
        }
        first = false;
    }
    let values: Vec<(Bytes, Bytes)> = rows.clone();
    let loaded = pg::rows::load(id, rows).map_err(|source| StartError::Group { id, source })?;
    let mut kept = Kept::new();
    for version in &loaded.undo {
        let key = pg::rows::undo_key(*version);
        let damaged = |source| StartError::Group {
            id,
            source: pg::LoadError::Row { key: key.clone(), source },
        };
        if let Some((_, value)) = values.iter().find(|(k, _)| *k == key) {
            kept.insert(*version, KeptChange::decode(value).map_err(damaged)?);
        }
    }
    Ok((id, loaded, kept))
}

/// Loads all PGs and brings each up to the newest map that is kept.
pub(super) async fn load_groups(
    core: &Rc<Core>,
    store: &Rc<Store>,
    own: &Superblock,
) -> Result<Option<Rc<MapAt>>, StartError> {
    if own.current == Epoch(0) {
        return Ok(None);
    }
    let mut maps: BTreeMap<Epoch, Rc<MapAt>> = BTreeMap::new();
    // Many PGs at a time: what one waits for is a chain of reads.
    let mut waiting = store.collections().into_iter().filter_map(|c| id_of(c).map(|id| (c, id)));
    let mut under_way = tokio::task::JoinSet::new();
    let mut loaded = Vec::new();
    loop {
        while under_way.len() < LOADS
            && let Some((coll, id)) = waiting.next()
        {
            under_way.spawn_local(load_group(store.clone(), coll, id));
        }
        match under_way.join_next().await {
            Some(Ok(group)) => loaded.push(group?),
            Some(Err(e)) => std::panic::resume_unwind(e.into_panic()),
            None => break,
        }
    }
    loaded.sort_by_key(|(id, ..)| *id);
    let oldest =
        loaded.iter().map(|(_, l, _)| l.epoch).min().unwrap_or(own.current).max(own.oldest);
    // A PG may have made something of a map that the superblock does not count yet.
    let last = loaded.iter().map(|(_, l, _)| l.epoch).max().unwrap_or(own.current).max(own.current);
    for e in oldest.0..=last.0 {
        if let Some(map) = superblock::load_map(store, Epoch(e)).await? {
            maps.insert(Epoch(e), MapAt::new(Rc::new(map)));
        }
    }
    let Some(newest) = maps.get(&own.current).cloned() else { return Ok(None) };
    core.restore(newest.clone(), own.unborn.clone());
    for (_, l, kept) in loaded {
        let epoch = l.epoch;
        let Some((at, map)) = maps.range(epoch..).next().map(|(e, m)| (*e, m.clone())) else {
            continue;
        };
        let conf = core.settings().pg.clone();
        let pg = Pg::load(core.whoami, l, map, conf, wall_clock());
        let host = core.add_loaded(pg, kept);
        let mut hosts = vec![host];
        for (_, map) in maps.range(at.next()..).take_while(|(e, _)| **e <= own.current) {
            let map: pg::MapRef = map.clone();
            for host in hosts.clone() {
                hosts.extend(core.next_map_of(&host, &map));
            }
        }
    }
    Ok(Some(newest))
}
