//! Maps, peers and the copies of PGs that follow from them: which are born, joined and adopted.

use super::Core;
use crate::coding::Kept;
use crate::host::PgHost;
use crate::map::ClusterMapRef;
use crate::peer_net::Envelope;
use crate::waits::{Reason, Waiter};
use client::wall_clock;
use pg::{MapRef, PeerMsg, Pg, creation};
use std::rc::Rc;
use types::{Epoch, PgId, PgShard, SpgId};

impl Core {
    /// The state of unborn PGs, to be stored with the epoch processed.
    pub fn unborn(&self) -> creation::UnbornPgs {
        self.pgs.unborn.borrow().clone()
    }

    /// Adds a PG that was loaded from the store. Later maps follow with [`Core::advance_map`].
    pub(crate) fn add_loaded(&self, pg: Pg, kept: Kept) -> Rc<PgHost> {
        let host = PgHost::new(self.rc(), pg, kept);
        self.pgs.insert(host.clone());
        host
    }

    /// Takes the next map. With `first`, maps before it are not known: PGs are not born in it.
    pub fn advance_map(&self, map: ClusterMapRef, first: bool) {
        let view: MapRef = map.clone();
        let born = {
            let mut unborn = self.pgs.unborn.borrow_mut();
            let pools = map.pools();
            if first {
                unborn.skip(&*view, &pools);
                Vec::new()
            } else {
                unborn.advance(self.whoami, &*view, &pools)
            }
        };
        self.end_lives(&*map);
        self.join_groups(&view);
        for host in self.hosts() {
            self.next_map_of(&host, &view);
        }
        self.maps.set(map);
        for pgid in born {
            if self.host(pgid).is_none() {
                let conf = self.settings().pg.clone();
                if let Some(pg) = Pg::create(self.whoami, pgid, view.clone(), conf, wall_clock()) {
                    self.add_host(pg, Kept::new());
                }
            }
        }
    }

    /// The last map given is the newest, and this OSD is up in it: PGs may peer, and what waited
    /// for maps goes on.
    pub fn activate_map(&self) {
        self.drop_void();
        for host in self.hosts() {
            host.handle(pg::Event::ActivateMap);
            host.end_watches_of_blocked();
        }
        self.count_leaders();
        let epoch = self.epoch();
        let ready =
            self.pgs.waits.borrow_mut().take_range(Reason::Map(Epoch(0)), Reason::Map(epoch));
        for w in ready {
            match w {
                Waiter::Op(op) | Waiter::Resent(op, _) => self.route(op),
                Waiter::Peer(e) => self.handle_peer(*e),
            }
        }
        let waited_for = self.pgs.waits.borrow().pgs();
        for pgid in waited_for {
            self.requeue_waiting_pg(pgid);
        }
    }

    pub(crate) fn add_host(&self, pg: Pg, kept: Kept) -> Rc<PgHost> {
        let host = PgHost::new(self.rc(), pg, kept);
        self.pgs.insert(host.clone());
        host.pump();
        self.requeue_waiting_pg(host.id);
        host
    }

    pub(crate) fn forget_host(&self, id: SpgId) {
        self.pgs.remove(id);
    }

    fn requeue_waiting_pg(&self, id: SpgId) {
        let ops = self.pgs.waits.borrow_mut().take_ops(&Reason::Pg(id));
        for op in ops {
            self.route(op);
        }
    }

    /// Takes a message from another OSD.
    pub fn handle_peer(&self, e: Envelope) {
        let Some(mut e) = self.take_note(e) else { return };
        if matches!(e.msg, PeerMsg::Activate { .. } | PeerMsg::StartBackfill { .. }) {
            self.rooms.leads(e.from);
        }
        if let Some(host) = self.host(e.header.receiver()) {
            match &e.msg {
                PeerMsg::RepOp(_) => {
                    self.perf.subop.inc();
                    self.perf.subop_w.inc();
                }
                PeerMsg::RepOpReply { version } => host.replica_has(e.from, *version),
                PeerMsg::Push(_) => self.check_backfillfull(),
                _ => {}
            }
            host.arrives(self.rooms.stored(e.arrived));
            host.handle(pg::Event::Peer { from: e.from, header: e.header, msg: e.msg });
            return;
        }
        let Some(map) = self.map() else {
            self.wait_map(e.header.sent, Waiter::Peer(Box::new(e)));
            return;
        };
        let _dropped = self.rooms.stored(std::mem::take(&mut e.arrived));
        let view: MapRef = map;
        match creation::stranger(self.whoami, e.from, &e.header, &e.msg, &*view) {
            creation::Stranger::Adopt => {
                let conf = self.settings().pg.clone();
                let pg = Pg::adopt(self.whoami, view, conf, &e.header, &e.msg, wall_clock());
                if let Some(pg) = pg {
                    let host = self.add_host(pg, Kept::new());
                    host.handle(pg::Event::Peer { from: e.from, header: e.header, msg: e.msg });
                }
            }
            creation::Stranger::Answer(header, msg) => {
                let to = PgShard { osd: e.from, shard: header.to };
                self.send(&[to], header, msg)
            }
            creation::Stranger::Drop => {}
            creation::Stranger::WaitForMap => {
                self.wait_map(e.header.sent, Waiter::Peer(Box::new(e)))
            }
        }
    }

    pub(super) fn wait_map(&self, epoch: Epoch, what: Waiter) {
        self.perf.messages_delayed_for_map.inc();
        self.pgs.waits.borrow_mut().add(Reason::Map(epoch), what);
        self.links.mon.want_map(epoch);
    }

    /// Takes the map and the state of unborn PGs that the store knew, before loaded PGs are added.
    pub fn restore(&self, map: ClusterMapRef, unborn: creation::UnbornPgs) {
        self.maps.set(map);
        *self.pgs.unborn.borrow_mut() = unborn;
    }

    /// The PGs that this OSD leads, and the epoch since which one of them is not clean: maps from
    /// then on are needed. This OSD's epoch if all are clean.
    pub fn last_epoch_clean(&self) -> (Vec<PgId>, Epoch) {
        let mut least = self.epoch();
        let mut leads = Vec::new();
        for host in self.hosts() {
            host.with_pg(|pg| {
                if pg.is_primary() {
                    leads.push(host.pgid);
                    least = least.min(if pg.is_clean() {
                        pg.epoch()
                    } else {
                        pg.info().history.last_epoch_clean
                    });
                }
            });
        }
        (leads, least)
    }
}
