//! A client's session: its capabilities, parsed once and asked with every request.

use crate::client_op::{ReplySink, Request};
use crate::map::PoolOps;
use auth::caps::{ClassCall, OsdCap, OsdOp as CapOp};
use messages::{OsdBackoff, OsdMapMsg, OsdOpReply, Payload, WatchNotify};
use objops::OpInfo;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use types::{Epoch, PoolId};

/// A client's session: its name, capabilities, and the map that it was sent.
pub struct Session {
    caps: OsdCap,
    /// `allow *`, the usual case, needs no look at the request.
    all: bool,
    /// The last plain request that was allowed: pool, read, write. Most clients send the same kind
    /// again and again; a cap that depends on object or namespace is never answered from here.
    last: RefCell<Option<(PoolId, bool, bool)>>,
    simple: bool,
    /// The name that the peer has a key for.
    name: String,
    /// The newest map that was sent to the client.
    pub(crate) shared: Cell<Epoch>,
}

impl Session {
    /// From what the peer's ticket says. Caps that cannot be read allow nothing.
    pub fn new(caps: &auth::AuthCaps, name: String) -> Rc<Self> {
        let parsed = if caps.allow_all {
            OsdCap::allow_all()
        } else {
            caps.text.parse().unwrap_or_else(|e| {
                tracing::warn!("capabilities that cannot be read allow nothing: {e}");
                OsdCap::default()
            })
        };
        let all = parsed.is_allow_all();
        let text = &caps.text;
        // Conservative: any word that could make the answer depend on more than the pool.
        let simple = !["namespace", "object_prefix", "network", "profile", "class"]
            .iter()
            .any(|w| text.contains(w));
        Rc::new(Session {
            caps: parsed,
            all,
            last: RefCell::new(None),
            simple,
            name,
            shared: Cell::default(),
        })
    }

    /// Whether the request is allowed (Ceph: `op_has_sufficient_caps`).
    pub fn allows(&self, request: &Request, info: &OpInfo, pool: &PoolOps) -> bool {
        if self.all {
            return true;
        }
        let m = &request.m;
        let (read, write) = (info.need_read_cap(), info.need_write_cap());
        let plain = self.simple && info.classes.is_empty();
        let id = m.pgid.pgid.pool;
        if plain && *self.last.borrow() == Some((id, read, write)) {
            return true;
        }
        let names: Vec<(String, String)> = info
            .classes
            .iter()
            .map(|c| {
                (
                    String::from_utf8_lossy(&c.class).into_owned(),
                    String::from_utf8_lossy(&c.method).into_owned(),
                )
            })
            .collect();
        let classes: Vec<ClassCall<'_>> = info
            .classes
            .iter()
            .zip(&names)
            .map(|(c, (class, method))| ClassCall {
                class,
                method,
                read: c.read,
                write: c.write,
                allowed: c.allowed_by_default,
            })
            .collect();
        // With a locator key, that is the name that counts.
        let object = if m.locator.key.is_empty() { &m.object } else { &m.locator.key };
        let allowed = self.caps.is_capable(&CapOp {
            pool: &pool.name,
            namespace: &m.locator.namespace,
            metadata: &pool.applications,
            object,
            read,
            write,
            classes: &classes,
            addr: request.addr.addr.map(|a| a.ip()),
        });
        if allowed && plain {
            *self.last.borrow_mut() = Some((id, read, write));
        }
        allowed
    }

    /// Whether the peer may run commands (`allow *`, as `ceph tell osd.N` needs).
    pub fn is_admin(&self) -> bool {
        self.all
    }
}

/// Answers go out on the connection that the request came in on.
pub struct ConnectionSink(pub Rc<msgr::Connection>, pub Rc<Session>);

impl ReplySink for ConnectionSink {
    fn reply(&self, reply: OsdOpReply, tid: u64, data_off: u16) {
        let mut m = reply.encode(self.0.features());
        m.tid = tid;
        m.data_off = data_off;
        self.0.send(m);
    }

    fn backoff(&self, b: OsdBackoff) -> bool {
        let features = self.0.features();
        let understood = features.has(types::features::RADOS_BACKOFF);
        if understood {
            self.0.send(b.encode(features));
        }
        understood
    }

    fn watch_event(&self, event: WatchNotify) {
        self.0.send(event.encode(self.0.features()));
    }

    fn is_open(&self) -> bool {
        !self.0.is_down()
    }

    fn shared_map(&self) -> Option<&Cell<Epoch>> {
        Some(&self.1.shared)
    }

    fn maps(&self, m: OsdMapMsg) {
        self.0.send(m.encode(self.0.features()));
    }

    fn allows(&self, request: &Request, info: &OpInfo, pool: &PoolOps) -> bool {
        self.1.allows(request, info, pool)
    }

    fn session(&self) -> u64 {
        self.0.id()
    }

    fn entity(&self) -> &str {
        &self.1.name
    }
}
