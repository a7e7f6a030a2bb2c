//! Connections to the other monitors: requests, and the answers to them.
//!
//! A monitor asks on a connection that it opened itself, and gets the answers on the same. Requests
//! are the Raft library's, and a few of our own ([`Ask`]).

use super::ops::Op;
use super::part::View;
use super::session::Session;
use crate::replica::{Call, HEARTBEAT, NodeId, Peers};
use auth::{AuthPolicy, CryptoKey, MonPeerAuth};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use messages::{MonRoute, Payload, RaftMessage};
use msgr::{
    Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, Policy, PolicySet,
    ReceiveGuard,
};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use types::{EntityAddrVec, EntityName, EntityType};

/// `RaftMessage.kind` of a request of the Raft library.
pub(super) const RAFT: u8 = 1;
/// Of an [`Ask`], as JSON.
pub(super) const ASK: u8 = 2;
/// Added to the kind of an answer.
pub(super) const ANSWER: u8 = 0x80;

/// How long a monitor waits for the answer to an [`Ask`].
const ASK_PATIENCE: Duration = Duration::from_secs(5);

/// What monitors ask each other beside what the Raft library does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Do you belong to a group, and do I?
    Probe { fsid: String, id: NodeId },
    /// Take me in.
    Join { fsid: String, name: String, id: NodeId, addr: String },
    /// Global ids, for clients that connect to me.
    Ids,
    /// The identity of the sender.
    Hello { name: String, addr: String, metadata: BTreeMap<String, String> },
    /// From the leader: the quorum, and since when it stands.
    View(View),
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// To a probe: whether the answering monitor belongs to a group, leads or follows a leader in
    /// it, and whether the asking one belongs to it.
    Probed {
        grouped: bool,
        in_quorum: bool,
        yours: bool,
        /// Which group this is ([`crate::state::ClusterState::rescued`]).
        #[serde(default)]
        rescued: u64,
    },
    /// Done, or begun.
    Yes,
    /// To a view of a group that was given up: the number of the group that goes on.
    Rescued(u64),
    /// To a view: the time.
    Clock {
        sec: u32,
        nsec: u32,
        /// Percent of the space below its data that is free, if it knows.
        #[serde(default)]
        free: Option<u8>,
    },
    /// Global ids from the first to before the second.
    Ids(u64, u64),
    /// Ask the leader; these are the monitors.
    NotLeader { mons: BTreeMap<String, String> },
    /// Not possible.
    No(String),
}

/// An address as [`Ask`] carries it.
pub(super) fn addr_text(addrs: &EntityAddrVec) -> String {
    addrs.msgr2().addr.map(|a| a.to_string()).unwrap_or_default()
}

/// The address of such a text.
pub(super) fn addr_of(text: &str) -> Option<EntityAddrVec> {
    Some(EntityAddrVec::one(types::EntityAddr::msgr2(text.parse().ok()?, 0)))
}

/// One request of the Raft library on its way from the library's tasks to the monitor's thread.
type Outgoing = (String, Bytes, oneshot::Sender<std::io::Result<Bytes>>);

/// The Raft library's end of the connections.
pub(crate) struct Carrier(pub mpsc::UnboundedSender<Outgoing>);

impl Peers for Carrier {
    fn call(&self, to: NodeId, name: &str, request: Bytes) -> Call<'_> {
        let (tell, told) = oneshot::channel();
        let sent = self.0.send((name.to_owned(), addressed(to, &request), tell));
        Box::pin(async move {
            let gone = || std::io::Error::other("the monitor is stopping");
            sent.map_err(|_| gone())?;
            told.await.map_err(|_| gone())?
        })
    }
}

/// A request of the Raft library with the number of the member that it is for. Under a member's
/// name and address there may be another member by now, with a new store, that must not answer in
/// its place.
fn addressed(to: NodeId, request: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(request.len() + 8);
    out.put_u64_le(to);
    out.put_slice(request);
    out.freeze()
}

/// The request of some bytes, if it is for the member `me`.
pub(super) fn addressed_to(me: NodeId, mut bytes: Bytes) -> Option<Bytes> {
    (bytes.len() >= 8 && bytes.get_u64_le() == me).then_some(bytes)
}

/// The connections.
pub(crate) struct PeerLinks {
    messenger: Rc<Messenger>,
    conns: RefCell<BTreeMap<String, Rc<Connection>>>,
    waiting: RefCell<BTreeMap<u64, (u64, oneshot::Sender<Bytes>)>>,
    seq: Cell<u64>,
    addrs: RefCell<BTreeMap<String, EntityAddrVec>>,
    /// Nothing of the Raft library goes out or comes in: this monitor was told to leave the quorum.
    cut: Cell<bool>,
}

/// Takes an answer of the leader.
type Routed = Box<dyn Fn(MonRoute)>;

struct Calls {
    links: RefCell<Weak<PeerLinks>>,
    /// Takes what the leader answers to messages that were passed on.
    routed: RefCell<Option<Routed>>,
}

impl Dispatcher for Calls {
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        drop(guard);
        let Some(links) = self.links.borrow().upgrade() else { return };
        match message.msg_type {
            RaftMessage::TYPE => {
                let Ok(m) = RaftMessage::decode(&message) else { return };
                if let Some((at, tell)) = links.waiting.borrow_mut().remove(&m.seq)
                    && at == conn.id()
                {
                    let _ = tell.send(m.payload);
                }
            }
            MonRoute::TYPE => {
                if let (Ok(m), Some(routed)) = (MonRoute::decode(&message), &*self.routed.borrow())
                {
                    routed(m);
                }
            }
            _ => {}
        }
    }

    fn on_reset(&self, conn: &Rc<Connection>) {
        if let Some(links) = self.links.borrow().upgrade() {
            links.lost(conn);
        }
    }

    fn on_refused(&self, conn: &Rc<Connection>) {
        conn.mark_down();
        self.on_reset(conn);
    }
}

impl PeerLinks {
    /// The connections of a monitor with the key of `mon.`. The second part attaches the monitor.
    pub fn new(key: CryptoKey, policy: AuthPolicy) -> (Rc<Self>, impl FnOnce(Routed)) {
        let calls = Rc::new(Calls { links: RefCell::default(), routed: RefCell::default() });
        let limits = Limits {
            handshake_time: Duration::from_secs(3),
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(1),
            ..Limits::default()
        };
        let config = MessengerConfig {
            name: EntityName::new(EntityType::MON, 0),
            nonce: rand::random(),
            policies: PolicySet::new(Policy::lossy_client()),
            limits,
            server_auth: None,
            client_auth: MonPeerAuth::new(policy, crate::mkfs::mon_name(), key),
        };
        let links = Rc::new(PeerLinks {
            messenger: Messenger::new(config, calls.clone()),
            conns: RefCell::default(),
            waiting: RefCell::default(),
            seq: Cell::new(0),
            addrs: RefCell::default(),
            cut: Cell::new(false),
        });
        *calls.links.borrow_mut() = Rc::downgrade(&links);
        (links, move |routed| *calls.routed.borrow_mut() = Some(routed))
    }

    /// Where monitors are; a connection to one that moved ends.
    pub fn learn(&self, name: &str, addrs: &EntityAddrVec) {
        if self
            .addrs
            .borrow_mut()
            .insert(name.to_owned(), addrs.clone())
            .is_some_and(|old| old != *addrs)
            && let Some(conn) = self.conns.borrow_mut().remove(name)
        {
            conn.mark_down();
        }
    }

    /// Every monitor with a known address.
    pub fn known(&self) -> BTreeMap<String, EntityAddrVec> {
        self.addrs.borrow().clone()
    }

    /// Lets the Raft library talk with the other members, or not.
    pub fn cut(&self, cut: bool) {
        self.cut.set(cut);
    }

    /// Whether it does not.
    pub fn is_cut(&self) -> bool {
        self.cut.get()
    }

    fn lost(&self, conn: &Rc<Connection>) {
        self.conns.borrow_mut().retain(|_, c| !Rc::ptr_eq(c, conn));
        // Dropping the senders wakes the waiting tasks.
        self.waiting.borrow_mut().retain(|_, (at, _)| *at != conn.id());
    }

    /// The connection to a monitor, opened if there is none.
    pub fn connection(&self, name: &str) -> Option<Rc<Connection>> {
        if let Some(conn) = self.conns.borrow().get(name).filter(|c| !c.is_down()) {
            return Some(conn.clone());
        }
        let addrs = self.addrs.borrow().get(name).cloned()?;
        let conn = self.messenger.connect(EntityType::MON, addrs);
        self.conns.borrow_mut().insert(name.to_owned(), conn.clone());
        Some(conn)
    }

    async fn exchange(&self, name: &str, kind: u8, payload: Bytes) -> std::io::Result<Bytes> {
        if kind == RAFT && self.is_cut() {
            return Err(std::io::Error::other("this monitor was told to leave the quorum"));
        }
        let conn = self
            .connection(name)
            .ok_or_else(|| std::io::Error::other("the address of the monitor is not known"))?;
        let seq = self.seq.get() + 1;
        self.seq.set(seq);
        let (tell, told) = oneshot::channel();
        self.waiting.borrow_mut().insert(seq, (conn.id(), tell));
        // A task that gives up waiting leaves nothing behind.
        let _forget = Forget(self, seq);
        conn.send(
            RaftMessage { kind, seq, payload, ..RaftMessage::default() }.encode(conn.features()),
        );
        told.await.map_err(|_| std::io::Error::other("the connection to the monitor was lost"))
    }

    /// Asks a monitor; none if it does not answer.
    pub async fn ask(&self, name: &str, ask: &Ask) -> Option<Told> {
        let payload = serde_json::to_vec(ask).ok()?;
        let answer = tokio::time::timeout(ASK_PATIENCE, self.exchange(name, ASK, payload.into()))
            .await
            .ok()?
            .ok()?;
        serde_json::from_slice(&answer).ok()
    }

    /// Sends requests of the Raft library until it has no more.
    pub async fn carry(self: Rc<Self>, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) {
        while let Some((name, request, mut tell)) = outgoing.recv().await {
            let this = self.clone();
            tokio::task::spawn_local(async move {
                // The library waits for the receiver with a limit of its own.
                let answer = tokio::select! {
                    a = this.exchange(&name, RAFT, request) => a,
                    () = tell.closed() => return,
                    () = tokio::time::sleep(HEARTBEAT * 50) => return,
                };
                let answer = answer.and_then(|a| match a.is_empty() {
                    true => Err(std::io::Error::other("the member is not there any more")),
                    false => Ok(a),
                });
                let _ = tell.send(answer);
            });
        }
    }

    pub fn shutdown(&self) {
        self.messenger.shutdown();
        self.conns.borrow_mut().clear();
        self.waiting.borrow_mut().clear();
    }
}

struct Forget<'a>(&'a PeerLinks, u64);
impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().remove(&self.1);
    }
}

/// Messages of sessions that the leader has not dealt with yet.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By our number.
    pub requests: BTreeMap<u64, Passed>,
    /// Answers from the leader, until this monitor has applied what they tell of.
    pub answers: VecDeque<MonRoute>,
    pub last: u64,
}

/// One message for the leader.
pub(crate) struct Passed {
    pub session: Rc<Session>,
    pub message: Message,
    /// The connection that it was sent on, and the term.
    pub sent: Option<(u64, u64)>,
    /// As operators see it, if it is of the kinds that they want to see.
    pub op: Option<Op>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_for_one_member() {
        let sent = addressed(5, &Bytes::from_static(b"append"));
        assert_eq!(addressed_to(5, sent.clone()).as_deref(), Some(&b"append"[..]));
        assert_eq!(addressed_to(6, sent.clone()), None);
        assert_eq!(addressed_to(5, sent.slice(..7)), None);
    }

    #[test]
    fn addresses_survive_their_text() {
        for text in ["127.0.0.1:3300", "[fd00::1]:3300"] {
            assert_eq!(addr_text(&addr_of(text).unwrap()), text);
        }
        assert!(addr_of("nowhere").is_none());
    }
}
