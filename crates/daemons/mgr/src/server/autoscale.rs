//! Changes `pg_num` of pools that want it, while this manager serves.

use super::Inner;
use crate::autoscaler::{Autoscaler, Goals};
use crate::commands;
use bytes::Bytes;
use std::rc::Weak;
use std::time::{Duration, Instant};
use types::stats::PgState;
use types::{PgId, PoolId};

/// How often it is looked whether it is time to look: the interval can be changed meanwhile.
const TICK: Duration = Duration::from_secs(1);

/// Looks at all pools, every `mgr/pg_autoscaler/sleep_interval`, until this manager is replaced.
pub(super) async fn autoscale(inner: Weak<Inner>) {
    let mut autoscaler = Autoscaler::default();
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(TICK).await;
        let Some(m) = inner.upgrade() else { return };
        if m.stopping.get() || !m.serves() {
            return;
        }
        let interval =
            Duration::from_secs(m.frame.conf.borrow().u64("mgr/pg_autoscaler/sleep_interval"));
        if last.elapsed() < interval {
            continue;
        }
        last = Instant::now();
        let Some((name, from, to)) = m.next_pg_num(&mut autoscaler) else { continue };
        let command = serde_json::json!({"prefix": "osd pool set", "pool": name, "var": "pg_num", "val": to.to_string()});
        match m.frame.mon.command(&command.to_string(), Bytes::new()).await {
            Ok(o) if o.code == 0 => tracing::info!("pool {name}: pg_num {from} -> {to}"),
            Ok(o) => tracing::warn!("pool {name}: pg_num {from} -> {to} was refused: {}", o.status),
            Err(e) => tracing::debug!("pool {name}: pg_num {from} -> {to}: {e}"),
        }
    }
}

impl Inner {
    /// What an operator wants of numbers of PGs.
    pub(super) fn goals(&self) -> Goals {
        let conf = self.frame.conf.borrow();
        Goals {
            per_osd: conf.u64("mon_target_pg_per_osd") as f64,
            threshold: conf.f64("mgr/pg_autoscaler/threshold"),
        }
    }

    fn next_pg_num(&self, autoscaler: &mut Autoscaler) -> Option<(String, u32, u32)> {
        self.follow_map();
        let state = self.state.borrow();
        let map = state.osd_map.clone()?;
        let whole = PgState::ACTIVE.0 | PgState::CLEAN.0;
        let settled = |id: PoolId| {
            let groups = state
                .pg_map
                .pgs
                .range(PgId { pool: id, seed: 0 }..=PgId { pool: id, seed: u32::MAX });
            map.pool(id).is_some_and(|p| {
                p.pg_num == p.pg_num_target
                    && p.pgp_num == p.pgp_num_target
                    && p.pgp_num == p.pg_num
            }) && groups.clone().count() > 0
                && groups.into_iter().all(|(_, s)| s.state.0 & whole == whole)
        };
        let proposals = commands::proposals(&state, &map, self.goals());
        autoscaler.look(&proposals, settled).map(|(p, next)| (p.name.clone(), p.pg_num, next))
    }
}
