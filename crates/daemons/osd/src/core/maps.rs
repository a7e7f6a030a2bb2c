//! The newest map, and which clients must hear of it.

use crate::client_op::ReplySink;
use crate::map::ClusterMapRef;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;
use types::Epoch;

/// A client, the map that it has at least, and whether it must hear of the newest one even if it is
/// far behind.
type ToTell = (Rc<dyn ReplySink>, Epoch, bool);

/// The newest map, and clients that have to be told of it.
#[derive(Default)]
pub(crate) struct Maps {
    newest: RefCell<Option<ClusterMapRef>>,
    /// Clients that must see the newest map, by session: see
    /// [`Core::drop_request`](super::Core::drop_request).
    to_tell: RefCell<FxHashMap<u64, ToTell>>,
    /// There are such clients.
    pub(crate) tell_clients: Notify,
    /// Waiting requests were looked through for those that are not for this OSD any more since some
    /// PG last had another leader, in this epoch.
    void_before: Cell<Epoch>,
}

impl Maps {
    /// The newest map.
    pub(crate) fn newest(&self) -> Option<ClusterMapRef> {
        self.newest.borrow().clone()
    }

    /// Its epoch, 0 without a map.
    pub(crate) fn epoch(&self) -> Epoch {
        self.newest.borrow().as_ref().map_or(Epoch(0), |m| m.epoch())
    }

    /// Takes the next map.
    pub(crate) fn set(&self, map: ClusterMapRef) {
        *self.newest.borrow_mut() = Some(map);
    }

    /// The client of a request that was sent by the map of an epoch is to see the newest one.
    pub(crate) fn tell(&self, sink: &Rc<dyn ReplySink>, sent: Epoch, must: bool) {
        let mut clients = self.to_tell.borrow_mut();
        let (_, oldest, always) =
            clients.entry(sink.session()).or_insert_with(|| (sink.clone(), sent, must));
        *oldest = sent.min(*oldest);
        *always |= must;
        self.tell_clients.notify_one();
    }

    /// Clients that are to be told, since the last call.
    pub(crate) fn clients_to_tell(&self) -> Vec<ToTell> {
        std::mem::take(&mut *self.to_tell.borrow_mut()).into_values().collect()
    }

    /// Whether a PG has another leader since requests that wait were last looked through.
    pub(crate) fn leads_anew(&self, newest: Epoch) -> bool {
        newest > self.void_before.replace(newest)
    }

    /// Forgets those clients.
    pub(crate) fn clear(&self) {
        self.to_tell.borrow_mut().clear();
    }
}
