use std::collections::BTreeMap;
use types::Release;
use types::rados::osd_state as state;
use types::{IntervalSet, OsdId, OsdMap, OsdMapIncremental, PgId, PoolId};

/// What has to be told to a daemon that has `old` so that it has `new`, the map of the next epoch.
///
/// Applying the difference to `old` gives `new`, except for what an incremental map implies: an OSD
/// that comes up has its `up_from` set to the epoch, one that goes down its `down_at`, and pools
/// that changed their `last_change`. Snapshots that were removed or purged are events and come as
/// arguments. Returns `None` if nothing differs.
pub fn diff(
    old: &OsdMap,
    new: &OsdMap,
    removed_snaps: BTreeMap<PoolId, IntervalSet>,
    purged_snaps: BTreeMap<PoolId, IntervalSet>,
) -> Option<OsdMapIncremental> {
    let blank = OsdMapIncremental {
        fsid: old.fsid,
        epoch: new.epoch,
        modified: new.modified,
        ..Default::default()
    };
    let mut inc = blank.clone();
    if new.pool_max != old.pool_max {
        inc.new_pool_max = new.pool_max.into();
    }
    if new.flags != old.flags {
        inc.new_flags = new.flags as i32;
    }
    if new.max_osd() != old.max_osd() {
        inc.new_max_osd = new.max_osd();
    }
    for (id, pool) in &new.pools {
        if old.pools.get(id) != Some(pool) {
            inc.new_pools.insert(*id, pool.clone());
        }
    }
    for id in old.pools.keys().filter(|id| !new.pools.contains_key(id)) {
        inc.old_pools.insert(*id);
    }
    for (id, name) in &new.pool_names {
        if old.pool_names.get(id) != Some(name) {
            inc.new_pool_names.insert(*id, name.clone());
        }
    }
    changed(&old.erasure_code_profiles, &new.erasure_code_profiles, |k, v| match v {
        Some(v) => drop(inc.new_erasure_code_profiles.insert(k.clone(), v.clone())),
        None => inc.old_erasure_code_profiles.push(k.clone()),
    });
    for id in (0..new.max_osd()).map(OsdId) {
        diff_osd(old, new, id, &mut inc);
    }
    changed(&old.pg_temp, &new.pg_temp, |pg, v| {
        drop(inc.new_pg_temp.insert(*pg, v.cloned().unwrap_or_default()))
    });
    changed(&old.primary_temp, &new.primary_temp, |pg, v| {
        inc.new_primary_temp.insert(*pg, v.copied().unwrap_or(OsdId(-1)));
    });
    changed(&old.pg_upmap, &new.pg_upmap, |pg, v| match v {
        Some(v) => drop(inc.new_pg_upmap.insert(*pg, v.clone())),
        None => drop(inc.old_pg_upmap.insert(*pg)),
    });
    changed(&old.pg_upmap_items, &new.pg_upmap_items, |pg: &PgId, v| match v {
        Some(v) => drop(inc.new_pg_upmap_items.insert(*pg, v.clone())),
        None => drop(inc.old_pg_upmap_items.insert(*pg)),
    });
    changed(&old.pg_upmap_primaries, &new.pg_upmap_primaries, |pg, v| match v {
        Some(v) => drop(inc.new_pg_upmap_primaries.insert(*pg, *v)),
        None => drop(inc.old_pg_upmap_primaries.insert(*pg)),
    });
    changed(&old.blocklist, &new.blocklist, |addr, until| match until {
        Some(until) => drop(inc.new_blocklist.insert(*addr, *until)),
        None => inc.old_blocklist.push(*addr),
    });
    changed(&old.range_blocklist, &new.range_blocklist, |range, until| match until {
        Some(until) => drop(inc.new_range_blocklist.insert(*range, *until)),
        None => inc.old_range_blocklist.push(*range),
    });
    changed(&old.crush_node_flags, &new.crush_node_flags, |id, v| {
        inc.new_crush_node_flags.insert(*id, v.copied().unwrap_or(0));
    });
    changed(&old.device_class_flags, &new.device_class_flags, |id, v| {
        inc.new_device_class_flags.insert(*id, v.copied().unwrap_or(0));
    });
    inc.new_removed_snaps = removed_snaps;
    inc.new_purged_snaps = purged_snaps;
    let ratio = |old: f32, new: f32| if old == new { -1.0 } else { new };
    inc.new_full_ratio = ratio(old.full_ratio, new.full_ratio);
    inc.new_backfillfull_ratio = ratio(old.backfillfull_ratio, new.backfillfull_ratio);
    inc.new_nearfull_ratio = ratio(old.nearfull_ratio, new.nearfull_ratio);
    let release = |old: Release, new: Release| if old == new { Release::UNCHANGED } else { new };
    inc.new_require_min_compat_client =
        release(old.require_min_compat_client, new.require_min_compat_client);
    inc.new_require_osd_release = release(old.require_osd_release, new.require_osd_release);
    if new.last_up_change != old.last_up_change {
        inc.new_last_up_change = new.last_up_change;
    }
    if new.last_in_change != old.last_in_change {
        inc.new_last_in_change = new.last_in_change;
    }
    if new.crush != old.crush {
        inc.crush = denc::Encode::to_bytes(&*new.crush, types::features::SQUID);
    }
    (inc != blank).then_some(inc)
}

/// Calls `f` for every key with a value that differs, with the new value.
fn changed<K: Ord, V: PartialEq>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    mut f: impl FnMut(&K, Option<&V>),
) {
    for (k, v) in new {
        if old.get(k) != Some(v) {
            f(k, Some(v));
        }
    }
    for k in old.keys().filter(|k| !new.contains_key(k)) {
        f(k, None);
    }
}

fn diff_osd(old: &OsdMap, new: &OsdMap, id: OsdId, inc: &mut OsdMapIncremental) {
    let Some(n) = new.osd(id) else { return };
    let blank = types::osdmap::Osd::default();
    let o = old.osd(id).unwrap_or(&blank);
    let goes = o.state & state::EXISTS != 0 && n.state & state::EXISTS == 0;
    let comes_up = n.state & state::UP != 0 && o.state & state::UP == 0;
    let weight_changes = new.weight_fixed(id) != old.weight_fixed(id);
    if goes {
        // Taking the bit away resets everything that is known of the OSD.
        inc.new_state.insert(id, o.state);
    } else {
        // Bits are turned over after a new weight other than zero has set one and cleared two, and
        // before coming up sets two and clears one.
        let mut before_flip = o.state;
        if weight_changes && new.weight_fixed(id) != 0 {
            before_flip = before_flip & !(state::AUTOOUT | state::NEW) | state::EXISTS;
        }
        let by_up = if comes_up { state::EXISTS | state::UP | state::STOP } else { 0 };
        let flip = (before_flip ^ n.state) & !by_up;
        if flip != 0 {
            inc.new_state.insert(id, flip);
        }
    }
    if comes_up {
        inc.new_up_client.insert(id, n.client_addrs.clone());
        inc.new_up_cluster.insert(id, n.cluster_addrs.clone());
        inc.new_hb_back_up.insert(id, n.hb_back_addrs.clone());
        inc.new_hb_front_up.insert(id, n.hb_front_addrs.clone());
    }
    if weight_changes {
        inc.new_weight.insert(id, new.weight_fixed(id));
    }
    if goes {
        return;
    }
    if new.primary_affinity_fixed(id) != old.primary_affinity_fixed(id) {
        inc.new_primary_affinity.insert(id, new.primary_affinity_fixed(id));
    }
    if n.info.up_thru != o.info.up_thru {
        inc.new_up_thru.insert(id, n.info.up_thru);
    }
    if n.info.lost_at != o.info.lost_at {
        inc.new_lost.insert(id, n.info.lost_at);
    }
    let clean = |i: &types::osdmap::OsdInfo| (i.last_clean_begin, i.last_clean_end);
    if clean(&n.info) != clean(&o.info) {
        inc.new_last_clean_interval.insert(id, clean(&n.info));
    }
    if n.uuid != o.uuid {
        inc.new_uuid.insert(id, n.uuid);
    }
    let cleared = types::osdmap::OsdXinfo { old_weight: 0, ..o.xinfo };
    let implied = if weight_changes && new.weight_fixed(id) != 0 { cleared } else { o.xinfo };
    if n.xinfo != implied {
        let goes_down = o.state & state::UP != 0 && n.state & state::UP == 0;
        let down_stamp = if goes_down { new.modified } else { n.xinfo.down_stamp };
        inc.new_xinfo.insert(id, types::osdmap::OsdXinfo { down_stamp, ..n.xinfo });
    }
}
