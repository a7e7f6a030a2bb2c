//! What collectors of diagnostics ask every OSD for, in the shape of Ceph (`OSD::asok_command`,
//! 16.2).

use crate::clones::snap_of;
use crate::core::Core;
use crate::shard::Question;
use crate::shard_admin::reply;
use bytes::Bytes;
use command::{Args, Format, Refusal, Reply};
use pg::{Reserver, StayTimes, Wish, snap_mapper};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use store::Budgets;
use types::{Errno, SnapId, SpgId};

/// Ranges of free space that are listed.
const RANGES_MAX: usize = 100_000;
/// Rows that are read at a time.
const PAGE: usize = 256;
/// Clones that are named.
const NAMED_MAX: usize = 100;

pub(crate) fn allocator_dump(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let hex = |n: u64| format!("{n:#x}");
    let extents: Vec<Value> = core
        .store
        .free_ranges(RANGES_MAX)
        .into_iter()
        .map(|(start, len)| json!({"offset": hex(start), "length": hex(len)}))
        .collect();
    reply(
        args,
        json!({
            "capacity": core.store.statfs().total,
            "alloc_unit": store::BLOCK,
            "alloc_type": "bitmap",
            "alloc_name": "block",
            "extents": extents,
        }),
    )
}

/// What the store did and keeps. Ceph shows counters of RocksDB here.
pub(crate) fn kv_stats(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let statfs = core.store.statfs();
    let usage = core.store.usage();
    reply(
        args,
        json!({
            "metadata_bytes": statfs.metadata,
            "cached_bytes": statfs.cached,
            "deferred_bytes": statfs.deferred,
            "transactions": usage.as_ref().map_or(0, |u| u.transactions),
            "data_bytes_submitted": usage.as_ref().map_or(0, |u| u.data),
        }),
    )
}

pub(crate) fn state_history(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let mut hosts = core.hosts();
    hosts.sort_by_key(|h| h.pgid);
    let group = |id: SpgId, pg: &pg::Pg| {
        let mut epochs: Vec<Value> = Vec::new();
        for stay in pg.state_history().stays() {
            let state = json!({
                "state": stay.state, "enter": stay.entered.to_string(), "exit": stay.left.to_string(),
            });
            let epoch = stay.epoch.0.to_string();
            match epochs.last_mut().filter(|e| e["epoch"] == *epoch) {
                Some(entry) => {
                    entry["states"].as_array_mut().into_iter().for_each(|s| s.push(state.clone()))
                }
                None => epochs.push(json!({"epoch": epoch, "states": [state]})),
            }
        }
        json!({"pg": id.to_string(), "currently": pg.phase_name(), "history": epochs})
    };
    let pgs: Vec<Value> = hosts.iter().map(|h| h.with_pg(|pg| group(h.id, pg))).collect();
    reply(args, json!({"pgs": pgs}))
}

pub(crate) fn recovery_stats(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let mut all: BTreeMap<&str, StayTimes> = BTreeMap::new();
    for host in core.hosts() {
        host.with_pg(|pg| {
            for (state, times) in pg.state_history().times() {
                all.entry(state).or_default().add(times);
            }
        });
    }
    let state = |(name, t): (&str, StayTimes)| {
        let seconds = |d: std::time::Duration| format!("{:.6}", d.as_secs_f64());
        json!({
            "recovery_state": name,
            "enters": t.entered,
            "exits": t.left,
            "total_time": seconds(t.total),
            "min_time": seconds(t.shortest),
            "max_time": seconds(t.longest),
        })
    };
    reply(args, all.into_iter().map(state).collect())
}

fn reserver(of: &Reserver<SpgId>, most: usize) -> Value {
    let (hold, wait) = of.wishes();
    // A turn is taken back when one of a higher priority asks.
    let item = |w: &Wish<SpgId>| json!({"item": w.who.to_string(), "prio": w.priority, "can_preempt": true});
    let mut queues: Vec<Value> = Vec::new();
    for w in &wait {
        match queues.last_mut().filter(|q| q["priority"] == w.priority) {
            Some(queue) => queue["items"].as_array_mut().into_iter().for_each(|i| i.push(item(w))),
            None => queues.push(json!({"priority": w.priority, "items": [item(w)]})),
        }
    }
    json!({
        "max_allowed": most,
        "min_priority": 0,
        "queues": queues,
        "in_progress": hold.iter().map(item).collect::<Vec<_>>(),
    })
}

pub(crate) fn recovery_reservations(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let most = core.settings().backfills;
    let turns = core.reservations.recovery.borrow();
    reply(
        args,
        json!({
            "local_reservations": reserver(&turns.own, most),
            "remote_reservations": reserver(&turns.target, most),
            // Not in Ceph, where the OSDs that are read by a backfill are not asked.
            "source_reservations": reserver(&turns.source, most),
        }),
    )
}

/// This daemon has counters, and no histograms of two axes.
pub(crate) fn no_histograms(_: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, json!({}))
}

/// Drops what the store keeps in memory of what it has on the device.
pub(crate) fn cache_drop(core: &Core, _: &Args) -> Result<Reply, Refusal> {
    if let Some(budgets) = core.store.budgets() {
        core.store.set_budgets(Budgets { data_cache: 0, onode_cache: 0, node_cache: 0, ..budgets });
        core.store.set_budgets(budgets);
    }
    Ok(Reply::empty())
}

/// Looks for clones that belong only to snapshots that are gone.
pub(crate) struct ScrubPurgedSnaps(pub(crate) Args);

impl Question for ScrubPurgedSnaps {
    type Answer = Result<Reply, Refusal>;

    async fn answer(self, core: &Rc<Core>) -> Self::Answer {
        let (mut rows, mut stray, mut named) = (0u64, 0u64, Vec::new());
        let mut hosts = core.hosts();
        hosts.sort_by_key(|h| h.pgid);
        for host in &hosts {
            let purged = host.with_pg(|pg| pg.info().purged_snaps.clone());
            if purged.is_empty() {
                continue;
            }
            let mut after: Bytes = snap_mapper::snap_prefix(SnapId(0));
            loop {
                let from = Bound::Excluded(&after[..]);
                let page = core
                    .store
                    .omap_iter(host.coll, &host.meta, from, PAGE, 1 << 20)
                    .await
                    .map_err(|e| {
                    Refusal::new(Errno(e.errno()), format!("{}: {e}", host.pgid))
                })?;
                let found = page.rows.iter().map_while(|(k, v)| Some((snap_of(k)?, v)));
                let before = rows;
                for (snap, row) in found {
                    rows += 1;
                    if purged.contains(snap) {
                        stray += 1;
                        if let Ok(object) = snap_mapper::object_of_row(row)
                            && named.len() < NAMED_MAX
                        {
                            named.push(json!({"pg": host.id.to_string(), "snap": snap, "object": object.to_string()}));
                        }
                    }
                }
                match page.rows.last() {
                    Some((last, _)) if rows - before == page.rows.len() as u64 => {
                        after = last.clone()
                    }
                    _ => break,
                }
            }
        }
        if stray > 0 {
            tracing::warn!(
                "{stray} rows of clones name snapshots that are gone; the first: {}",
                named[0]
            );
        }
        let found = json!({"rows": rows, "stray": stray, "clones": named});
        Ok(Reply::data(Format::of(&self.0).json(&found)))
    }
}
