//! Lost PGs that are made anew because an operator gave up their data.
//!
//! As a new pool's PGs, such a PG is born in one epoch, on the OSDs that act there: the first
//! epoch, from the operator's command on, in which any OSD acts. An OSD that hears of it later
//! makes it as of that epoch and feeds it the maps since, so that it knows of every interval in
//! which others may have served it. OSDs that act later alone get their copies from those.

use super::Core;
use crate::coding::Kept;
use crate::osd_map::MapAt;
use crate::superblock;
use client::wall_clock;
use pg::{Event, MapRef, MapView, Pg};
use std::rc::Rc;
use types::{Epoch, PgId, SpgId};

impl Core {
    /// Makes PGs that are not here; tells the monitors of those that are served from here.
    pub(crate) fn force_create(&self, pgs: Vec<(PgId, Epoch)>) {
        for (pgid, since) in pgs {
            match self.pgs.any(pgid) {
                Some(host) => {
                    if host.with_pg(|pg| pg.is_primary() && pg.is_active()) {
                        self.links.mon.pg_created(pgid);
                    }
                }
                None => {
                    let core = self.rc();
                    tokio::task::spawn_local(async move { core.recreate(pgid, since).await });
                }
            }
        }
    }

    /// Makes a PG as of the epoch of its birth. If a map comes meanwhile, nothing is done: the
    /// monitors ask again.
    async fn recreate(self: Rc<Self>, pgid: PgId, since: Epoch) {
        let newest = self.epoch();
        let mut made: Option<Pg> = None;
        for epoch in since.0..=newest.0 {
            let map = match superblock::load_map(&self.store, Epoch(epoch)).await {
                Ok(Some(map)) => MapAt::new(Rc::new(map)),
                Ok(None) => {
                    return tracing::warn!(osd = self.whoami.0, pg = %pgid, "is not made anew: map {epoch} is not here");
                }
                Err(e) => {
                    return tracing::error!(osd = self.whoami.0, pg = %pgid, "is not made anew: {e}");
                }
            };
            let view: MapRef = map.clone();
            match &mut made {
                Some(pg) => pg.handle(Event::AdvanceMap(view), wall_clock()),
                None => {
                    let acting = map.mapping(pgid).acting;
                    if acting.is_empty() {
                        continue;
                    }
                    let Some(copy) = acting.on(self.whoami) else { return };
                    let conf = self.settings().pg.clone();
                    let id = SpgId { pgid, shard: copy.shard };
                    made = Pg::create(self.whoami, id, view, conf, wall_clock());
                    if made.is_none() {
                        return;
                    }
                }
            }
        }
        let Some(pg) = made else { return };
        if self.epoch() != newest || self.pgs.any(pgid).is_some() || self.failed().is_some() {
            return;
        }
        tracing::warn!(osd = self.whoami.0, pg = %pgid, epoch = since.0, "made anew, empty");
        self.add_host(pg, Kept::new()).handle(Event::ActivateMap);
    }
}
