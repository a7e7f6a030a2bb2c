//! `ceph pg PGID query`: what a PG is, knows and waits for, in the shape of Ceph
//! (`PrimaryLogPG::do_command`, `PeeringState::dump_peering_state`, and what its states answer to
//! `QueryState`).

use crate::core::Core;
use crate::shard_admin::{host, reply};
use crate::{admin_unfound, stats};
use command::{Args, Refusal, Reply};
use pg::{Backfill, BackfillStatus, Incomplete, PastIntervals, PeeringStatus, Pg, WaitsFor};
use serde_json::{Value, json};
use types::pg_info::PgHitSetHistory;
use types::stats::ObjectStatCollection;
use types::{Dump, Epoch, ObjectId, ObjectStatSum, OsdId, PgHistory, PgInfo, PgShard, PgStat};

fn object(cursor: &Backfill) -> ObjectId {
    match cursor {
        Backfill::Complete => ObjectId::MAX,
        Backfill::Nothing => ObjectId::MIN,
        Backfill::UpTo(oid) => (**oid).clone(),
    }
}

/// A cursor as Ceph shows it.
fn cursor(b: &Backfill) -> String {
    object(b).to_string()
}

fn numbers<'a>(osds: impl IntoIterator<Item = &'a OsdId>) -> Vec<i32> {
    osds.into_iter().map(|o| o.0).collect()
}

fn names<'a>(copies: impl IntoIterator<Item = &'a PgShard>) -> Vec<String> {
    copies.into_iter().map(PgShard::to_string).collect()
}

/// A copy's info as `pg_info_t`, with the statistics that it carries.
fn info(pg: &Pg, info: &pg::PgInfo, stats: PgStat) -> Value {
    let h = &info.history;
    let history = PgHistory {
        epoch_created: h.epoch_created,
        epoch_pool_created: pg.pool_created(),
        last_epoch_started: h.last_epoch_started,
        last_interval_started: h.last_interval_started,
        last_epoch_clean: h.last_epoch_clean,
        last_interval_clean: h.last_interval_clean,
        last_epoch_split: h.last_epoch_split,
        same_up_since: h.same_up_since,
        same_interval_since: h.same_interval_since,
        same_primary_since: h.same_primary_since,
        last_scrub: h.last_scrub,
        last_scrub_stamp: h.last_scrub_stamp,
        last_deep_scrub: h.last_deep_scrub,
        last_deep_scrub_stamp: h.last_deep_scrub_stamp,
        last_clean_scrub_stamp: h.last_clean_scrub_stamp,
        ..PgHistory::default()
    };
    let shown = PgInfo {
        pgid: info.spgid(),
        last_update: info.last_update,
        last_complete: info.last_complete,
        log_tail: info.log_tail,
        last_epoch_started: info.last_epoch_started,
        last_interval_started: info.last_interval_started,
        last_user_version: info.last_user_version,
        last_backfill: object(&info.last_backfill),
        stats,
        purged_snaps: info.purged_snaps.clone(),
        history,
        hit_set: PgHitSetHistory::default(),
    };
    let mut dump = shown.dump();
    dump["incomplete"] = u8::from(info.is_incomplete()).into();
    dump
}

/// The statistics that another copy's info carries.
fn stats_of(info: &pg::PgInfo) -> PgStat {
    let (t, h) = (&info.stats, &info.history);
    let sum = ObjectStatSum {
        num_bytes: t.num_bytes,
        num_objects: t.num_objects,
        num_object_clones: t.num_object_clones,
        num_objects_dirty: t.num_objects_dirty,
        num_whiteouts: t.num_whiteouts,
        num_objects_omap: t.num_objects_omap,
        num_omap_bytes: t.num_omap_bytes,
        num_omap_keys: t.num_omap_keys,
        num_rd: t.num_rd,
        num_rd_kb: t.num_rd_kb,
        num_wr: t.num_wr,
        num_wr_kb: t.num_wr_kb,
        num_objects_recovered: t.num_objects_recovered,
        num_bytes_recovered: t.num_bytes_recovered,
        num_keys_recovered: t.num_keys_recovered,
        ..ObjectStatSum::default()
    };
    PgStat {
        version: info.last_update,
        log_start: info.log_tail,
        ondisk_log_start: info.log_tail,
        created: h.epoch_created,
        last_epoch_clean: h.last_epoch_clean,
        last_scrub: h.last_scrub,
        last_scrub_stamp: h.last_scrub_stamp,
        last_deep_scrub: h.last_deep_scrub,
        last_deep_scrub_stamp: h.last_deep_scrub_stamp,
        last_clean_scrub_stamp: h.last_clean_scrub_stamp,
        mapping_epoch: h.same_interval_since,
        stats: ObjectStatCollection { sum },
        stats_invalid: info.stats_invalid,
        ..PgStat::default()
    }
}

fn past_intervals(past: &PastIntervals) -> Value {
    let mut all: Vec<PgShard> =
        past.intervals.iter().flat_map(|i| i.acting.iter().copied()).collect();
    all.sort();
    all.dedup();
    let intervals: Vec<Value> = past
        .intervals
        .iter()
        .map(|i| {
            let mut acting = i.acting.clone();
            acting.sort();
            json!({"first": i.first.0.to_string(), "last": i.last.0.to_string(), "acting": names(&acting).join(",")})
        })
        .collect();
    json!([{
        "first": past.first.0.to_string(),
        "last": past.last.0.to_string(),
        "all_participants": all.iter().map(Dump::dump).collect::<Vec<_>>(),
        "intervals": intervals,
    }])
}

fn who_could_help(osds: &[(OsdId, Epoch)], comment: &str) -> Vec<Value> {
    osds.iter()
        .map(|(osd, lost)| json!({"osd": osd.0, "current_lost_at": lost.0, "comment": comment}))
        .collect()
}

/// What the state `Started/Primary/Peering` says.
fn peering(s: &PeeringStatus<'_>, state: &mut Value) {
    state["past_intervals"] = past_intervals(s.past);
    state["probing_osds"] = names(&s.probing).into();
    if s.blocked {
        state["blocked"] = "peering is blocked due to down osds".into();
    }
    state["down_osds_we_would_probe"] = numbers(&s.down).into();
    state["peering_blocked_by"] =
        who_could_help(&s.blocked_by, "starting or marking this osd lost may let us proceed")
            .into();
    if !s.shortage.is_empty() {
        state["shards"] = s.shortage.clone().into();
    }
    if matches!(&s.waits, WaitsFor::Complete(i) if i.history_only) {
        state["peering_blocked_by_detail"] =
            json!([{"detail": "peering_blocked_by_history_les_bound"}]);
    }
}

/// What Ceph leaves to be worked out from the infos: which copies are no good, and which OSDs may
/// have a better one.
fn incomplete(i: &Incomplete, state: &mut Value) {
    state["needs_last_epoch_started"] = i.started.0.into();
    let copy = |c: &pg::RuledOut| {
        json!({
            "osd": c.shard.to_string(),
            "last_epoch_started": c.last_epoch_started.0,
            "last_update": c.last_update.to_string(),
            "last_backfill": cursor(&c.last_backfill),
            "comment": c.why,
        })
    };
    state["copies"] = i.copies.iter().map(copy).collect();
    state["down_osds_that_may_have_a_complete_instance"] =
        who_could_help(&i.may_help, "starting this osd may let us proceed").into();
}

/// What the innermost state says while the PG peers.
fn waits(pg: &Pg, s: &PeeringStatus<'_>, state: &mut Value) {
    let asked = |got: &str,
                 waiting: &std::collections::BTreeSet<PgShard>,
                 all: Vec<PgShard>|
     -> Vec<Value> {
        let one = |copy: &PgShard| {
            let mut entry = json!({"osd": copy.to_string()});
            if let Some(p) = pg.peers().find(|p| p.shard == *copy && !waiting.contains(copy)) {
                entry[got] = match p.missing.filter(|_| got == "got_missing") {
                    Some(count) => json!({"num_missing": count}),
                    None => info(pg, p.info, stats_of(p.info)),
                };
            }
            entry
        };
        all.iter().filter(|o| **o != pg.whoami()).map(one).collect()
    };
    match &s.waits {
        WaitsFor::Infos(waiting) => {
            state["requested_info_from"] = asked("got_info", waiting, s.probing.clone()).into()
        }
        WaitsFor::Missing(waiting) => {
            state["peer_missing_requested"] =
                asked("got_missing", waiting, pg.mapping().acting.to_vec()).into()
        }
        WaitsFor::Down => {
            state["comment"] = "not enough up instances of this PG to go active".into()
        }
        WaitsFor::Complete(i) => {
            state["comment"] = "not enough complete instances of this PG".into();
            incomplete(i, state);
        }
        WaitsFor::Log(copy) => state["auth_log_shard"] = copy.to_string().into(),
        WaitsFor::Acting => state["comment"] = "waiting for pg acting set to change".into(),
        WaitsFor::UpThru => {
            state["comment"] = "waiting for osdmap to reflect a new up_thru for this osd".into()
        }
        WaitsFor::Leases => {
            state["comment"] = "waiting for read leases of earlier intervals to end".into()
        }
        WaitsFor::Nothing => {}
    }
}

/// What the state `Started/Primary/Active` says.
fn active(pg: &Pg, state: &mut Value) {
    state["substate"] = pg.phase_name().rsplit('/').next().unwrap_or_default().into();
    state["might_have_unfound"] = admin_unfound::might_have_unfound(pg, true);
    let targets: Vec<BackfillStatus> = pg.backfills().collect();
    let Some(last) = targets.iter().min_by(|a, b| a.last_backfill.cmp(&b.last_backfill)) else {
        return;
    };
    let progress = |b: &BackfillStatus| (b.fraction * 1000.0).round() / 1000.0;
    let peers = targets.iter().map(|b| {
        let osd = b.target.to_string();
        json!({"peer": osd, "last_backfill": cursor(&b.last_backfill), "backfill_progress": progress(b), "in_flight": b.missing})
    });
    state["recovery_progress"] = json!({
        "backfill_targets": targets.iter().map(|b| b.target.to_string()).collect::<Vec<_>>(),
        "last_backfill_started": cursor(&last.last_backfill),
        "backfill_progress": progress(last),
        "backfills_in_flight": targets.iter().map(|b| b.missing).sum::<usize>(),
        "peer_backfill_info": peers.collect::<Vec<_>>(),
    });
}

/// The states that the machine is in, the innermost first.
fn recovery_state(pg: &Pg) -> Vec<Value> {
    let status = pg.peering_status();
    let states = pg.states();
    states
        .into_iter()
        .enumerate()
        .map(|(i, (name, since))| {
            let mut state = json!({"name": name, "enter_time": since.to_string()});
            match &status {
                Some(s) if name == "Started/Primary/Peering" => peering(s, &mut state),
                Some(s) if i == 0 => waits(pg, s, &mut state),
                _ if name == "Started/Primary/Active" => active(pg, &mut state),
                _ => {}
            }
            state
        })
        .collect()
}

/// `pg PGID query`.
pub(crate) fn query(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let host = host(core, args)?;
    let value = host.with_pg(|pg| {
        let stat = stats::pg_stat(pg, &host.reads(), 0);
        let peers: Vec<Value> = pg
            .peers()
            .map(|p| {
                let mut dump = info(pg, p.info, stats_of(p.info));
                (dump["peer"], dump["missing"]) = (p.shard.to_string().into(), p.missing.into());
                dump
            })
            .collect();
        let trims = pg.snap_trim_queue();
        let mut value = json!({
            "snap_trimq": trims.to_string(),
            "snap_trimq_len": trims.size(),
            "state": stat.state.to_string(),
            "epoch": pg.epoch().0,
            "up": numbers(&stat.up),
            "acting": numbers(&stat.acting),
        });
        let (beside, filled): (Vec<PgShard>, Vec<PgShard>) =
            pg.backfills().map(|b| b.target).partition(|o| pg.recovers_beside(*o));
        for (key, osds) in [("backfill_targets", &filled), ("async_recovery_targets", &beside)] {
            if !osds.is_empty() {
                value[key] = names(osds).into();
            }
        }
        if pg.is_primary() {
            let mut all: Vec<PgShard> =
                pg.mapping().acting.iter().chain(&filled).chain(&beside).copied().collect();
            all.sort();
            value["acting_recovery_backfill"] = names(&all).into();
        }
        value["info"] = info(pg, pg.info(), stat);
        value["peer_info"] = peers.into();
        value["recovery_state"] = recovery_state(pg).into();
        value["agent_state"] = json!({});
        value
    });
    reply(args, value)
}
