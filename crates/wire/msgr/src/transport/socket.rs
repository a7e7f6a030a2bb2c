//! The task that serves one socket.

use super::clock::now;
use super::connection::{Connection, Core, Fault, Phase};
use super::messenger::Messenger;
use crate::protocol::{Event, Protocol, ProtocolError};
use crate::session::{Opening, Verdict, decide};
use auth::Context;
use bytes::BufMut;
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;
use types::EntityAddr;

/// How much is moved from the message queues to the socket's queue at a time. Enough to keep a
/// socket busy, little enough for an urgent message to overtake the rest.
const WRITE_AHEAD: usize = 256 << 10;
/// Slices per `writev`.
const SLICES: usize = 64;

/// How serving a socket ended.
enum Ended {
    /// Another task is in charge of the connection, or none.
    Relieved,
    /// The socket failed.
    Fault(Fault),
}

impl<E: Into<Fault>> From<E> for Ended {
    fn from(e: E) -> Self {
        Ended::Fault(e.into())
    }
}

/// Opens sockets for a connection of ours until it is settled, then serves it.
pub(super) async fn drive(conn: Rc<Connection>) {
    loop {
        let generation = {
            let mut core = conn.core.borrow_mut();
            if core.phase == Phase::Down {
                return;
            }
            core.phase = Phase::Opening;
            core.generation += 1;
            core.generation
        };
        let mut at = conn.clone();
        let Ended::Fault(fault) = open(&mut at, generation).await else {
            return;
        };
        let Some(delay) = after_fault(&at, fault) else {
            return;
        };
        let generation = at.core.borrow().generation;
        tokio::time::sleep(delay).await;
        if at.core.borrow().generation != generation {
            return;
        }
    }
}

async fn open(conn: &mut Rc<Connection>, generation: u64) -> Ended {
    let Some(m) = conn.messenger.upgrade() else {
        return Ended::Relieved;
    };
    let target = match conn.peer_addrs().msgr2() {
        EntityAddr { addr: None, .. } => conn.peer_addrs().0.first().copied().unwrap_or_default(),
        v2 => v2,
    };
    let Some(addr) = target.addr else {
        return Fault::Io(ErrorKind::AddrNotAvailable.into()).into();
    };
    let limit = m.limits().handshake_time;
    drop(m);
    let connected = tokio::time::timeout(limit, TcpStream::connect(addr)).await;
    let Some(m) = conn.messenger.upgrade() else {
        return Ended::Relieved;
    };
    if conn.core.borrow().generation != generation {
        return Ended::Relieved;
    }
    let stream = match connected {
        Err(_) => return Fault::Timeout.into(),
        Ok(Err(e)) => {
            if e.kind() == ErrorKind::ConnectionRefused
                && let Some(d) = m.dispatcher()
            {
                d.on_refused(conn);
            }
            return e.into();
        }
        Ok(Ok(stream)) => stream,
    };
    {
        let mut core = conn.core.borrow_mut();
        let core = &mut *core;
        // The handshake tells again whether the server wants the connection lossy.
        let policy = m.policy(core.peer.kind);
        core.protocol = Some(Protocol::client(
            m.client_auth(),
            core.peer.kind,
            target,
            m.local(),
            m.limits().clone(),
            policy,
            &mut core.session,
        ));
        if let Some(p) = &mut core.protocol {
            p.inherit(core.peer, core.features);
        }
        core.socket_addr = Some(addr);
        core.deadline = Some(Instant::now() + limit);
    }
    drop(m);
    serve(conn, stream, generation).await
}

/// Serves a socket that a peer opened.
pub(super) async fn serve_accepted(conn: Rc<Connection>, stream: TcpStream, addr: SocketAddr) {
    let Some(m) = conn.messenger.upgrade() else {
        return;
    };
    let generation = {
        let mut core = conn.core.borrow_mut();
        if core.phase == Phase::Down {
            return;
        }
        let peer = EntityAddr::msgr2(addr, 0);
        core.protocol = Some(Protocol::server(
            m.server_auth(),
            peer,
            m.local(),
            m.limits().clone(),
            m.policies().clone(),
        ));
        core.deadline = Some(Instant::now() + m.limits().handshake_time);
        core.generation
    };
    drop(m);
    let mut at = conn;
    if let Ended::Fault(fault) = serve(&mut at, stream, generation).await
        && let Some(delay) = after_fault(&at, fault)
    {
        let generation = at.core.borrow().generation;
        tokio::time::sleep(delay).await;
        if at.core.borrow().generation == generation {
            drive(at).await;
        }
    }
}

/// Decides what becomes of a connection without its socket. A duration means: connect again after
/// it.
fn after_fault(conn: &Rc<Connection>, fault: Fault) -> Option<Duration> {
    let m = conn.messenger.upgrade()?;
    let (was, announced, delay) = {
        let mut core = conn.core.borrow_mut();
        let core = &mut *core;
        if core.phase == Phase::Down {
            return None;
        }
        tracing::debug!(?core.phase, peer = %core.peer, addr = ?core.socket_addr, %fault, "connection fault");
        let was = core.phase;
        core.protocol = None;
        core.deadline = None;
        core.kill = None;
        core.session.requeue_sent();
        let refused = matches!(&fault, Fault::Protocol(e) if e.is_final()) && !conn.is_incoming();
        let half_accepted = conn.is_incoming() && !core.announced;
        let lost = core.policy.lossy && (was == Phase::Ready || conn.is_incoming());
        if refused
            || half_accepted
            || lost
            || core.close_when_sent
            || matches!(fault, Fault::Overflow(_))
        {
            (was, core.announced, None)
        } else if core.policy.server
            || (core.policy.standby && !core.session.has_queued() && !core.keepalive_due)
        {
            core.phase = Phase::Standby;
            return None;
        } else {
            core.phase = Phase::Opening;
            core.generation += 1;
            if core.session.server_cookie != 0 {
                core.session.connect_seq += 1;
            }
            let limits = m.limits();
            core.backoff = match &fault {
                Fault::Protocol(ProtocolError::Wait) => limits.max_backoff,
                // The first attempt after a working connection is made at once.
                _ if was == Phase::Ready => Duration::ZERO,
                _ if core.backoff.is_zero() => limits.initial_backoff,
                _ => (core.backoff * 2).min(limits.max_backoff),
            };
            (was, core.announced, Some(core.backoff))
        }
    };
    if delay.is_none() {
        let dispatcher = m.dispatcher();
        conn.mark_down();
        if announced && let Some(d) = dispatcher {
            tracing::debug!(?conn, ?was, "reset");
            d.on_reset(conn);
        }
    }
    delay
}

/// Moves bytes and events until the socket fails or another socket takes the connection. `conn`
/// becomes another connection if a session that exists is resumed on this socket.
async fn serve(conn: &mut Rc<Connection>, stream: TcpStream, mut generation: u64) -> Ended {
    if let Err(e) = stream.set_nodelay(true) {
        return e.into();
    }
    loop {
        match turn(conn, &stream, &mut generation) {
            Ok(()) => {}
            Err(ended) => return ended,
        }
        // One system call per turn; the runtime's budget decides when others get theirs.
        let readable = match wait(conn, &stream, generation).await {
            Ok(readable) => readable,
            Err(e) => return e.into(),
        };
        if readable {
            let mut core = conn.core.borrow_mut();
            if core.generation != generation {
                return Ended::Relieved;
            }
            let Some(p) = &mut core.protocol else {
                return Ended::Relieved;
            };
            let mut slot = p.read_slot();
            let room = slot.chunk_mut().len();
            match stream.try_read_buf(&mut slot) {
                Ok(0) => return Fault::Eof.into(),
                Ok(n) => {
                    core.last_traffic = Instant::now();
                    if n < room {
                        // The socket is empty; without this, another system call would have to say
                        // so. What arrives from here on is a new event, and a close that was seen
                        // stays seen.
                        let empty = || Err::<(), _>(ErrorKind::WouldBlock.into());
                        let _ = stream.try_io(Interest::READABLE, empty);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return e.into(),
            }
        }
    }
}

/// Handles everything that can be handled without waiting.
fn turn(conn: &mut Rc<Connection>, stream: &TcpStream, generation: &mut u64) -> Result<(), Ended> {
    let m = conn.messenger.upgrade().ok_or(Ended::Relieved)?;
    let now = now();
    loop {
        let event = {
            let mut core = conn.core.borrow_mut();
            let core = &mut *core;
            if core.generation != *generation {
                return Err(Ended::Relieved);
            }
            if let Some(fault) = core.kill.take() {
                return Err(Ended::Fault(fault));
            }
            if !conn.throttle.is_open() {
                break;
            }
            let p = core.protocol.as_mut().ok_or(Ended::Relieved)?;
            let mut rng = rand::rng();
            p.poll(&mut core.session, &mut Context { now, rng: &mut rng })?
        };
        match event {
            None => break,
            Some(Event::Message(message)) => {
                let guard = conn.throttle.take(message.payload_len());
                if let Some(d) = m.dispatcher() {
                    d.on_message(conn, message, guard);
                }
            }
            Some(Event::Ready) => ready(&m, conn),
            Some(Event::Learned(addr)) => m.learn(addr),
            Some(Event::RemoteReset) => {
                if let Some(d) = m.dispatcher() {
                    d.on_remote_reset(conn);
                }
            }
            Some(Event::Asked(opening)) => {
                asked(&m, conn, opening)?;
                *generation = conn.core.borrow().generation;
            }
        }
    }
    write(conn, stream, *generation, now)
}

fn ready(m: &Rc<Messenger>, conn: &Rc<Connection>) {
    // A session that is resumed leaves what was known of the peer as it was.
    let is_new = conn.core.borrow().protocol.as_ref().is_some_and(|p| !p.peer_addrs().is_empty());
    if is_new {
        let addrs = conn.peer_addrs();
        conn.learn_peer();
        let told = conn.peer_addrs();
        if told != addrs && m.registered(&addrs).is_some_and(|c| c.id() == conn.id()) {
            m.register(told, conn);
        }
    }
    {
        let mut core = conn.core.borrow_mut();
        core.phase = Phase::Ready;
        core.deadline = None;
        core.backoff = Duration::ZERO;
    }
    if let Some(d) = m.dispatcher() {
        d.on_connect(conn);
    }
}

/// A peer wants a session. Afterwards `conn` is the connection that this socket belongs to.
fn asked(m: &Rc<Messenger>, conn: &mut Rc<Connection>, opening: Opening) -> Result<(), Ended> {
    m.no_longer_half_open(conn);
    conn.learn_peer();
    let (policy, addrs, who) = {
        let core = conn.core.borrow();
        (core.policy, core.peer_addrs.clone(), core.who.as_ref().map(|w| w.name.clone()))
    };
    let is_registered = !(policy.server && policy.lossy && !policy.register_lossy_clients);
    let existing = if is_registered { m.registered(&addrs) } else { None };
    let existing = existing.filter(|c| c.id() != conn.id());
    if let Some(e) = &existing {
        // Addresses are only claimed. A peer gets at no session by claiming the address of another.
        let theirs = e.auth_name();
        if e.peer_type() != conn.peer_type() || theirs.is_some_and(|n| Some(n) != who) {
            return Err(
                ProtocolError::WrongPeer("somebody else has a session under this address").into()
            );
        }
    }
    let peer_is_lower = addrs.msgr2() < m.addrs().msgr2();
    let view = existing.as_ref().map(|e| e.existing());
    let verdict = decide(&opening, view.as_ref(), policy.resetcheck, peer_is_lower);
    tracing::trace!(?conn, ?opening, ?verdict, "session asked for");

    match (verdict, existing) {
        (Verdict::Adopt { .. } | Verdict::Resume, Some(existing)) => {
            let protocol = conn.core.borrow_mut().protocol.take();
            let (socket_addr, con_mode) = {
                let core = conn.core.borrow();
                (core.socket_addr, core.con_mode)
            };
            conn.mark_down();
            {
                let mut core = existing.core.borrow_mut();
                let core = &mut *core;
                core.generation += 1;
                core.session.requeue_sent();
                core.protocol = protocol;
                core.socket_addr = socket_addr;
                core.con_mode = con_mode;
                core.kill = None;
                core.last_traffic = Instant::now();
                if let (Verdict::Resume, Some(p)) = (verdict, &mut core.protocol) {
                    p.inherit(core.peer, core.features);
                }
            }
            // Wakes the task of the old socket, which sees that it is relieved.
            existing.wake.wake();
            *conn = existing;
            if verdict == (Verdict::Adopt { reset: true })
                && let Some(d) = m.dispatcher()
            {
                d.on_remote_reset(conn);
            }
            reply(conn, &opening, verdict)?;
            if verdict != Verdict::Resume {
                conn.learn_peer();
            }
        }
        (Verdict::Accept | Verdict::Replace, existing) => {
            if let Some(e) = existing {
                e.mark_down();
                if let Some(d) = m.dispatcher() {
                    d.on_reset(&e);
                }
            }
            let accepted = m.dispatcher().is_some_and(|d| d.on_accept(conn));
            if !accepted {
                return Err(Fault::NotAccepted.into());
            }
            conn.core.borrow_mut().announced = true;
            if is_registered {
                m.register(addrs, conn);
            }
            reply(conn, &opening, verdict)?;
        }
        (verdict, _) => {
            reply(conn, &opening, verdict)?;
            return Ok(());
        }
    }
    let mut core = conn.core.borrow_mut();
    if core.phase == Phase::Down {
        return Err(Ended::Relieved);
    }
    core.phase = Phase::Ready;
    core.deadline = None;
    core.backoff = Duration::ZERO;
    Ok(())
}

fn reply(conn: &Connection, opening: &Opening, verdict: Verdict) -> Result<(), Ended> {
    let mut core = conn.core.borrow_mut();
    let core = &mut *core;
    let p = core.protocol.as_mut().ok_or(Ended::Relieved)?;
    let mut rng = rand::rng();
    p.answer(opening, verdict, &mut core.session, &mut Context { now: now(), rng: &mut rng })?;
    Ok(())
}

/// Writes until the socket takes no more or nothing is left.
fn write(
    conn: &Rc<Connection>,
    stream: &TcpStream,
    generation: u64,
    now: types::Utime,
) -> Result<(), Ended> {
    let mut core = conn.core.borrow_mut();
    let Core {
        session,
        protocol,
        keepalive_due,
        last_traffic,
        close_when_sent,
        generation: current,
        ..
    } = &mut *core;
    if *current != generation {
        return Err(Ended::Relieved);
    }
    let p = protocol.as_mut().ok_or(Ended::Relieved)?;
    if std::mem::take(keepalive_due) {
        p.keepalive();
    }
    loop {
        p.fill(session, now, WRITE_AHEAD)?;
        if p.out().is_empty() {
            if *close_when_sent && p.is_ready() && !session.has_queued() {
                return Err(Ended::Fault(Fault::Idle));
            }
            return Ok(());
        }
        let written = {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let used = p.out().slices(&mut slices);
            stream.try_write_vectored(&slices[..used])
        };
        match written {
            Ok(n) => {
                p.out().advance(n);
                *last_traffic = Instant::now();
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sleeps until there is something to do. True if the socket can be read from, and may be.
async fn wait(conn: &Rc<Connection>, stream: &TcpStream, generation: u64) -> std::io::Result<bool> {
    poll_fn(|cx| {
        // Before anything is registered: the waker belongs to the task that is in charge.
        if conn.core.borrow().generation != generation {
            return Poll::Ready(Ok(false));
        }
        let woken = conn.wake.poll(cx).is_ready();
        let mut readable = false;
        if conn.throttle.is_open()
            && let Poll::Ready(r) = stream.poll_read_ready(cx)
        {
            r?;
            readable = true;
        }
        let pending = conn.core.borrow_mut().protocol.as_mut().is_some_and(|p| !p.out().is_empty());
        let mut writable = false;
        if pending && let Poll::Ready(r) = stream.poll_write_ready(cx) {
            r?;
            writable = true;
        }
        if woken || readable || writable { Poll::Ready(Ok(readable)) } else { Poll::Pending }
    })
    .await
}
