//! PGs that come out of others, or become part of them, on this OSD.
//!
//! The collections of a pool's PGs are ranges of one space of the store, because objects are
//! ordered by their reversed hashes: a split cuts a range and moves no object. Where copies have
//! positions, each position has a space of its own. See `docs/decisions/0010-pg-num.md`.

use crate::core::Core;
use crate::host::PgHost;
use crate::waits::Reason;
use client::wall_clock;
use pg::{Event, MapRef, Pg};
use std::cell::RefMut;
use std::collections::BTreeMap;
use std::rc::Rc;
use types::SpgId;

impl Core {
    /// PGs that become part of others with the next map.
    pub(crate) fn join_groups(&self, map: &MapRef) {
        let mut joins: BTreeMap<SpgId, Vec<Rc<PgHost>>> = BTreeMap::new();
        for host in self.hosts() {
            if let Some(target) = host.with_pg(|pg| pg.target_in(&**map)) {
                joins.entry(SpgId { pgid: target, ..host.id }).or_default().push(host);
            } else if host.with_pg(|pg| pg.takes_in(&**map)) {
                joins.entry(host.id).or_default();
            }
        }
        for (target, sources) in joins {
            for source in &sources {
                // What waits there comes again: the clients see the same map.
                source.interval_changed();
                let waiting = source.st.borrow_mut().waits.take_ops(&Reason::Active);
                waiting.for_each(|op| self.drop_request(&op));
                source.leave_places();
                self.forget_host(source.id);
            }
            let host = match (self.host(target), sources.first()) {
                (Some(host), _) => host,
                (None, Some(source)) => {
                    let conf = self.settings().pg.clone();
                    let remains = source.with_pg(|pg| {
                        Pg::remains(self.whoami, target.pgid, pg, conf, wall_clock())
                    });
                    self.add_loaded(remains, Default::default())
                }
                (None, None) => continue,
            };
            // A step of a removal that is under way does not know of what is joined now.
            host.generation.set(host.generation.get() + 1);
            {
                let mut parts: Vec<RefMut<'_, _>> =
                    sources.iter().map(|s| s.st.borrow_mut()).collect();
                let mut parts: Vec<&mut Pg> = parts.iter_mut().map(|st| &mut st.pg).collect();
                host.st.borrow_mut().pg.join(&mut parts, map, wall_clock());
            }
            let usable = host.with_pg(|pg| !pg.info().removing);
            tracing::info!(osd = self.whoami.0, pg = %target, of = sources.len() + 1, usable, epoch = map.epoch().0, "joined");
            host.pump();
        }
    }

    /// Gives a PG the next map. Returns the PGs that came out of it, which have the map, too.
    pub(crate) fn next_map_of(&self, host: &Rc<PgHost>, map: &MapRef) -> Vec<Rc<PgHost>> {
        if host.with_pg(|pg| pg.children_in(&**map).is_empty()) {
            host.handle(Event::AdvanceMap(map.clone()));
            return Vec::new();
        }
        let children = host.st.borrow_mut().pg.split(map, wall_clock());
        tracing::info!(osd = self.whoami.0, pg = %host.pgid, into = children.len() + 1, epoch = map.epoch().0, "split");
        // The transaction of the whole comes first.
        host.pump();
        let mut kept = std::mem::take(&mut *host.handed_over.borrow_mut());
        let add = |pg: Pg| {
            let kept = kept.remove(&pg.spgid()).unwrap_or_default();
            self.add_host(pg, kept)
        };
        children.into_iter().map(add).collect()
    }
}
