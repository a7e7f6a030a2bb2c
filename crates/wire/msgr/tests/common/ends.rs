//! Two state machines and the bytes between them, without sockets.

use super::*;
use msgr::protocol::{Event, GlobalSeq, Local, Protocol, ProtocolError};
use msgr::session::{Existing, Opening, Session, decide};
use msgr::*;
use types::{EntityAddr, EntityAddrVec, EntityName};

pub fn addr(s: &str) -> EntityAddr {
    s.parse().unwrap()
}

pub fn local(name: EntityName, at: &str) -> Local {
    Local { name, addrs: EntityAddrVec::one(addr(at)), nonce: 0, global_seq: GlobalSeq::default() }
}

pub struct End {
    pub p: Protocol,
    pub s: Session,
    pub rng: StdRng,
    pub now: Utime,
    pub got: Vec<Message>,
    pub ready: bool,
    pub remote_reset: bool,
    pub failed: Option<ProtocolError>,
    /// On the accepting end: what is registered for the peer.
    pub existing: Option<Existing>,
    pub resetcheck: bool,
}

pub const SERVER: &str = "v2:10.0.0.1:3300/0";

impl End {
    pub fn new(p: Protocol, s: Session, seed: u64) -> Self {
        End {
            p,
            s,
            rng: rng(seed),
            now: NOW,
            got: Vec::new(),
            ready: false,
            remote_reset: false,
            failed: None,
            existing: None,
            resetcheck: true,
        }
    }

    pub fn client(
        auth: Rc<dyn ClientAuth>,
        me: EntityName,
        peer: EntityType,
        policy: Policy,
        mut s: Session,
    ) -> Self {
        let limits = Rc::new(Limits::default());
        let p = Protocol::client(
            auth,
            peer,
            addr(SERVER),
            local(me, "v2:10.0.0.2:0/77"),
            limits,
            policy,
            &mut s,
        );
        End::new(p, s, 2)
    }

    pub fn server(auth: Rc<dyn ServerAuth>, me: EntityName, policy: Policy, s: Session) -> Self {
        let limits = Rc::new(Limits::default());
        let p = Protocol::server(
            Some(auth),
            addr("v2:10.0.0.2:50000/0"),
            local(me, SERVER),
            limits,
            PolicySet::new(policy),
        );
        End::new(p, s, 3)
    }

    /// Takes received bytes and handles what comes of them.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.p.receive(bytes);
            self.run();
        }
    }

    fn run(&mut self) {
        loop {
            let event =
                self.p.poll(&mut self.s, &mut Context { now: self.now, rng: &mut self.rng });
            match event {
                Ok(None) => return,
                Ok(Some(Event::Asked(opening))) => self.answer(opening),
                Ok(Some(Event::Ready)) => self.ready = true,
                Ok(Some(Event::Message(m))) => self.got.push(m),
                Ok(Some(Event::RemoteReset)) => self.remote_reset = true,
                Ok(Some(Event::Learned(_))) => {}
                Err(e) => {
                    self.failed = Some(e);
                    return;
                }
            }
            if self.failed.is_some() {
                return;
            }
        }
    }

    fn answer(&mut self, opening: Opening) {
        let verdict = decide(&opening, self.existing.as_ref(), self.resetcheck, true);
        let mut cx = Context { now: self.now, rng: &mut self.rng };
        match self.p.answer(&opening, verdict, &mut self.s, &mut cx) {
            Ok(event) => self.ready |= event.is_some(),
            Err(e) => self.failed = Some(e),
        }
    }

    /// Everything that wants to leave.
    pub fn take(&mut self) -> Bytes {
        if self.failed.is_some() {
            return Bytes::new();
        }
        self.p.fill(&mut self.s, self.now, usize::MAX).unwrap();
        self.p.out().take()
    }
}

/// Moves bytes in pieces that `cut` makes until nothing moves any more.
pub fn pump(a: &mut End, b: &mut End, mut cut: impl FnMut(usize) -> usize) {
    loop {
        let (ab, ba) = (a.take(), b.take());
        if ab.is_empty() && ba.is_empty() {
            return;
        }
        for (bytes, to) in [(ab, &mut *b), (ba, &mut *a)] {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(cut(rest.len()).clamp(1, rest.len()));
                to.receive(now);
                rest = later;
            }
        }
    }
}

pub const MON: EntityName = EntityName::new(EntityType::MON, 0);
pub const CLIENT: EntityName = EntityName::new(EntityType::CLIENT, -1);

/// client.admin and a monitor, not yet talking.
pub fn admin_and_mon(s: &Secrets, mode: ConMode) -> (End, End) {
    admin_and_mon_as(s, admin(s, mode))
}

pub fn admin_and_mon_as(s: &Secrets, client: Rc<RefCell<CephxClient>>) -> (End, End) {
    let client =
        End::client(client, CLIENT, EntityType::MON, Policy::lossy_client(), Session::default());
    let server =
        End::server(s.mon.clone(), MON, Policy::stateless_registered_server(), Session::default());
    (client, server)
}

pub fn message(n: u64, front: usize, data: usize) -> Message {
    let mut m = Message::new(1000 + n as u16 % 1000, payload(front, n));
    m.tid = n;
    m.middle = payload(n as usize % 3 * 5, n + 1);
    if data > 0 {
        let data = payload(data, n + 2);
        m.data.push(data.slice(..data.len() / 3));
        m.data.push(data.slice(data.len() / 3..));
    }
    m
}

/// A message as the other end should see it.
pub fn flat(m: &Message, seq: u64) -> Message {
    let data: Vec<u8> = m.data.concat();
    let data = if data.is_empty() {
        Default::default()
    } else {
        std::iter::once(Bytes::from(data)).collect()
    };
    Message { seq, data, ..m.clone() }
}
