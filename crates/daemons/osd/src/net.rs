//! Messages to other OSDs: a channel inside the process, the messenger otherwise.

use crate::map::ClusterMapRef;
use crate::peer_net::{Envelope, LocalPeer, PeerNet};
use messages::{Payload, PeerMessage};
use msgr::{Connection, Messenger};
use pg::{PeerHeader, PeerMsg};
use room_ledger::RoomNote;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::mpsc::UnboundedSender;
use types::{EntityAddrVec, EntityType, OsdId, PgShard};

enum Route {
    Local(UnboundedSender<Envelope>),
    Remote(Rc<Connection>),
}

/// Messages to other OSDs, over the messenger or within the process.
pub struct Net {
    me: OsdId,
    messenger: Rc<Messenger>,
    map: RefCell<Option<ClusterMapRef>>,
    routes: RefCell<FxHashMap<OsdId, (EntityAddrVec, Route)>>,
}

impl Net {
    /// Sends through `messenger`.
    pub fn new(me: OsdId, messenger: Rc<Messenger>) -> Rc<Self> {
        Rc::new(Net { me, messenger, map: RefCell::default(), routes: RefCell::default() })
    }

    /// Takes a new map: routes to OSDs that went down or have other addresses end.
    pub fn set_map(&self, map: ClusterMapRef) {
        self.routes.borrow_mut().retain(|osd, (addrs, route)| {
            let keep = map.is_up(*osd) && map.addrs(*osd) == *addrs;
            if let (false, Route::Remote(conn)) = (keep, route) {
                conn.mark_down();
            }
            keep
        });
        *self.map.borrow_mut() = Some(map);
    }

    /// The OSD that a connection of ours leads to.
    pub fn osd_of(&self, conn: &Rc<Connection>) -> Option<OsdId> {
        let routes = self.routes.borrow();
        routes
            .iter()
            .find(|(_, (_, r))| matches!(r, Route::Remote(c) if Rc::ptr_eq(c, conn)))
            .map(|(osd, _)| *osd)
    }

    /// Decodes a peer's message.
    pub fn decode(m: &msgr::Message) -> Option<Envelope> {
        let p = PeerMessage::decode(m).ok()?;
        let (header, msg) = PeerMsg::decode(p.payload, p.data).ok()?;
        Some(Envelope::new(p.from, header, msg, p.room))
    }

    fn route(&self, osd: OsdId) -> bool {
        if let Some((_, route)) = self.routes.borrow().get(&osd) {
            match route {
                Route::Local(tx) if !tx.is_closed() => return true,
                Route::Remote(conn) if !conn.is_down() => return true,
                _ => {}
            }
        }
        let map = self.map.borrow();
        let Some(map) = map.as_ref().filter(|m| m.is_up(osd)) else { return false };
        let addrs = map.addrs(osd);
        let route = match LocalPeer::find(&addrs) {
            Some(tx) => Route::Local(tx),
            None => Route::Remote(self.messenger.connect(EntityType::OSD, addrs.clone())),
        };
        self.routes.borrow_mut().insert(osd, (addrs, route));
        true
    }
}

impl PeerNet for Net {
    fn send(&self, to: &[PgShard], header: PeerHeader, msg: PeerMsg, notes: &[RoomNote]) {
        let mut encoded: Option<(bytes::Bytes, bytes::Bytes)> = None;
        for (osd, note) in to.iter().map(|c| c.osd).zip(notes) {
            if !self.route(osd) {
                // It is down in our map; peering deals with it.
                continue;
            }
            let routes = self.routes.borrow();
            match routes.get(&osd).map(|(_, r)| r) {
                Some(Route::Local(tx)) => {
                    let _ = tx.send(Envelope::new(self.me, header, msg.clone(), Some(*note)));
                }
                Some(Route::Remote(conn)) => {
                    let (payload, data) =
                        encoded.get_or_insert_with(|| msg.encode(&header)).clone();
                    // All messages have one priority: those of one PG must keep their order.
                    let m = PeerMessage {
                        epoch: header.sent,
                        from: self.me,
                        pgid: header.receiver(),
                        payload,
                        room: Some(*note),
                        data,
                    }
                    .encode(conn.features());
                    conn.send(m);
                }
                None => {}
            }
        }
    }
}
