//! One socket's worth of msgr v2.1, as a state machine (`ProtocolV2`,
//! `src/msg/async/ProtocolV2.cc`).
//!
//! ```text
//!  client                                     server
//!  Banner ── banner ──►                ◄── banner ── Banner
//!  Hello  ── HELLO ──►                  ◄── HELLO ── Hello
//!  Auth   ── AUTH_REQUEST ──►                        Auth
//!         ◄── AUTH_REPLY_MORE, ── AUTH_REQUEST_MORE ──► ...
//!         ◄── AUTH_DONE ──
//!  Sign   ── AUTH_SIGNATURE ──►  ◄── AUTH_SIGNATURE  Sign
//!  Ident  ── CLIENT_IDENT or SESSION_RECONNECT ──►   Ident, then Asked until `answer` is called
//!         ◄── SERVER_IDENT or SESSION_RECONNECT_OK
//!  Ready  ◄──────────── messages, acks, keepalives ────────────►  Ready
//! ```
//!
//! Bytes go in through [`Protocol::read_slot`], events come out of [`Protocol::poll`], bytes come
//! out of [`Protocol::out`]. The [`Session`] is passed in, because it outlives the socket.

use crate::frame::{Decoder, Encoder, Frame, FrameError, Gcm, Head, Progress, ReadSlot, Tag};
use crate::out::OutBuf;
use crate::session::{Opening, Session, Verdict};
use crate::{Limits, Message, Policy, PolicySet};
use auth::{
    AuthError, AuthMethod, Authenticated, ClientAuth, ClientConn, ConMode, Context, CryptoKey,
    ServerAuth, ServerConn, ServerStep,
};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{DecodeError, Encode, Features, Reader};
use std::cell::Cell;
use std::rc::Rc;
use types::{AddrType, EntityAddr, EntityAddrVec, EntityName, EntityType, Utime, features};

/// Both ends send this first (`CEPH_BANNER_V2_PREFIX`), then a length and two sets of features.
const BANNER: &[u8] = b"ceph v2\n";
/// `CEPH_MSGR2_FEATURE_REVISION_1`. Offered and required: version 2.0 had flaws that 2.1 was made
/// for.
const REVISION_1: u64 = 1;
/// No real banner is longer than its 16 bytes; later releases may append.
const BANNER_PAYLOAD_MAX: usize = 1024;
/// Addresses in frames are written for any peer that knows v2 at all (`msgr2_frame_assumed`).
const FRAME_FEATURES: Features = Features(features::MSG_ADDR2 | features::SERVER_NAUTILUS);
/// `CEPH_MSG_CONNECT_LOSSY`.
const FLAG_LOSSY: u64 = 1;
/// `CEPH_MSG_FOOTER_COMPLETE | CEPH_MSG_FOOTER_NOCRC`: the frame has the checksums.
const FOOTER_FLAGS: u8 = 3;
const HEADER_LEN: usize = 41;
/// A peer that keeps getting its method wrong is not a client.
const AUTH_ATTEMPTS: u32 = 5;
/// How many addresses a process may claim to have.
const ADDRS_MAX: usize = 16;

/// Why a socket must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Not frames.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Frames with senseless contents.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Not msgr v2, or without a feature that is required of all peers.
    #[error("bad banner: {0}")]
    Banner(&'static str),
    /// A frame that is not allowed now.
    #[error("unexpected {0:?} frame")]
    Unexpected(Tag),
    /// A frame larger than allowed.
    #[error("{0:?} frame of {1} bytes is too large")]
    TooLarge(Tag, usize),
    /// Authentication failed, on this end or the other.
    #[error("authentication: {0}")]
    Auth(#[from] AuthError),
    /// The handshake was tampered with.
    #[error("the peer saw another handshake than we did")]
    Signature,
    /// The peer has another name than it should have.
    #[error("wrong peer: {0}")]
    WrongPeer(&'static str),
    /// The peer asks for features that we lack.
    #[error("the peer requires features {0:#x} that we lack")]
    MissingFeatures(u64),
    /// The peer's own attempt to connect wins; ours comes to nothing.
    #[error("the peer is connecting to us")]
    Wait,
    /// A session that is over.
    #[error("delayed attempt to connect")]
    Stale,
}

impl ProtocolError {
    /// Whether trying again cannot help without a change on either side.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            ProtocolError::Auth(
                AuthError::Refused(_) | AuthError::Denied(_) | AuthError::Unsupported
            )
        )
    }
}

/// Our name, as peers are told.
#[derive(Clone, Debug)]
pub struct Local {
    /// Type and number.
    pub name: EntityName,
    /// Addresses; blank ones are learnt from the peer.
    pub addrs: EntityAddrVec,
    /// Goes into learnt addresses.
    pub nonce: u32,
    /// Counts connection attempts of this process.
    pub global_seq: GlobalSeq,
}

/// A counter that never falls behind what peers have seen of it.
#[derive(Clone, Debug, Default)]
pub struct GlobalSeq(Rc<Cell<u64>>);

impl GlobalSeq {
    /// A number larger than all before and than `seen`.
    pub fn next(&self, seen: u64) -> u64 {
        self.0.set(self.0.get().max(seen) + 1);
        self.0.get()
    }
}

/// Something that the driver must know or do.
#[derive(Debug)]
pub enum Event {
    /// The peer sees us at this address, and ours was blank.
    Learned(EntityAddr),
    /// The peer is authenticated and wants a session: [`Protocol::answer`] before anything else
    /// happens.
    Asked(Opening),
    /// Messages can flow.
    Ready,
    /// A message.
    Message(Message),
    /// The peer has lost the session, and now so have we.
    RemoteReset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Banner,
    Hello,
    Auth,
    AuthMore,
    Sign,
    Ident,
    Asked,
    Ready,
}

enum Side {
    Client { auth: Rc<dyn ClientAuth>, conn: ClientConn, target: EntityAddr },
    Server { auth: Option<Rc<dyn ServerAuth>>, conn: Option<ServerConn>, policies: PolicySet },
}

/// See the module's description.
pub struct Protocol {
    side: Side,
    state: State,
    local: Local,
    limits: Rc<Limits>,
    policy: Policy,
    /// Where the socket's other end is, as HELLO tells it.
    peer_socket: EntityAddr,
    dec: Decoder,
    enc: Encoder,
    out: OutBuf,
    /// What we sent in the handshake, until the peer has signed it.
    sent_transcript: Option<BytesMut>,
    session_key: CryptoKey,
    con_mode: ConMode,
    auth_attempts: u32,
    /// Ciphers that take effect when the peer's last plain frame was handled.
    who: Option<Authenticated>,
    peer_type: EntityType,
    peer_num: i64,
    peer_addrs: EntityAddrVec,
    features: Features,
    head: Option<Head>,
    keepalive_due: bool,
    last_keepalive: Option<Utime>,
    last_keepalive_ack: Option<Utime>,
}

impl Protocol {
    fn new(
        side: Side,
        local: Local,
        limits: Rc<Limits>,
        policy: Policy,
        peer_socket: EntityAddr,
    ) -> Self {
        let mut this = Protocol {
            side,
            state: State::Banner,
            local,
            limits,
            policy,
            peer_socket,
            dec: Decoder::default(),
            enc: Encoder::default(),
            out: OutBuf::default(),
            sent_transcript: Some(BytesMut::new()),
            session_key: CryptoKey::default(),
            con_mode: ConMode::Crc,
            auth_attempts: 0,
            who: None,
            peer_type: EntityType(0),
            peer_num: -1,
            peer_addrs: EntityAddrVec::default(),
            features: Features(0),
            head: None,
            keepalive_due: false,
            last_keepalive: None,
            last_keepalive_ack: None,
        };
        let mut banner = BytesMut::new();
        banner.put_slice(BANNER);
        banner.put_u16_le(16);
        banner.put_u64_le(REVISION_1);
        banner.put_u64_le(REVISION_1);
        this.out.put_slice(&banner);
        this.note_sent(0);
        this
    }

    /// The end that connected, to a peer of a known type at `target`.
    pub fn client(
        auth: Rc<dyn ClientAuth>,
        peer: EntityType,
        target: EntityAddr,
        local: Local,
        limits: Rc<Limits>,
        policy: Policy,
        session: &mut Session,
    ) -> Self {
        session.global_seq = local.global_seq.next(0);
        let side = Side::Client { auth, conn: ClientConn::new(peer), target };
        let mut this = Protocol::new(side, local, limits, policy, target);
        this.peer_type = peer;
        this
    }

    /// The end that accepted. The policy follows from what the peer says it is.
    pub fn server(
        auth: Option<Rc<dyn ServerAuth>>,
        peer_socket: EntityAddr,
        local: Local,
        limits: Rc<Limits>,
        policies: PolicySet,
    ) -> Self {
        let policy = policies.get(EntityType(0));
        Protocol::new(
            Side::Server { auth, conn: None, policies },
            local,
            limits,
            policy,
            peer_socket,
        )
    }

    /// Whether messages can flow.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Whether the peer has proved its name.
    pub fn is_authenticated(&self) -> bool {
        matches!(self.state, State::Ident | State::Asked | State::Ready)
    }

    /// The policy in force; final when [`Self::is_authenticated`], except that a server may decide
    /// that the connection is lossy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// How frames are protected.
    pub fn con_mode(&self) -> ConMode {
        self.con_mode
    }

    /// What both ends support.
    pub fn features(&self) -> Features {
        self.features
    }

    /// The peer's name; its number is -1 until it said so.
    pub fn peer_name(&self) -> EntityName {
        EntityName { kind: self.peer_type, num: self.peer_num }
    }

    /// What the peer says about where it is.
    pub fn peer_addrs(&self) -> &EntityAddrVec {
        &self.peer_addrs
    }

    /// The name that the peer has proved, on the end that accepted.
    pub fn authenticated(&self) -> Option<&Authenticated> {
        self.who.as_ref()
    }

    /// The state of authentication, on the end that accepted.
    pub fn server_auth(&mut self) -> Option<&mut ServerConn> {
        match &mut self.side {
            Side::Server { conn, .. } => conn.as_mut(),
            Side::Client { .. } => None,
        }
    }

    /// The state of authentication, on the end that connected.
    pub fn client_auth(&mut self) -> Option<&mut ClientConn> {
        match &mut self.side {
            Side::Client { conn, .. } => Some(conn),
            Side::Server { .. } => None,
        }
    }

    /// When the peer's last keepalive came.
    pub fn last_keepalive(&self) -> Option<Utime> {
        self.last_keepalive
    }

    /// When we sent the last keepalive that was answered.
    pub fn last_keepalive_ack(&self) -> Option<Utime> {
        self.last_keepalive_ack
    }

    /// Where to put received bytes.
    pub fn read_slot(&mut self) -> ReadSlot<'_> {
        self.dec.read_slot()
    }

    /// Takes received bytes by copying them. What the transport does with [`Self::read_slot`].
    pub fn receive(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let mut slot = self.dec.read_slot();
            let n = slot.remaining_mut().min(data.len());
            let (now, later) = data.split_at(n);
            slot.put_slice(now);
            data = later;
        }
    }

    /// What is to be sent.
    pub fn out(&mut self) -> &mut OutBuf {
        &mut self.out
    }

    /// Sends a keepalive as soon as the connection is ready.
    pub fn keepalive(&mut self) {
        self.keepalive_due = true;
    }

    /// Moves what is queued into [`Self::out`] until that holds `budget` bytes. Messages wait in
    /// their queues as long as possible, so that urgent ones can overtake.
    pub fn fill(
        &mut self,
        session: &mut Session,
        now: Utime,
        budget: usize,
    ) -> Result<(), ProtocolError> {
        if self.state != State::Ready {
            return Ok(());
        }
        if std::mem::take(&mut self.keepalive_due) {
            self.send(Tag::Keepalive2, &now)?;
        }
        while self.out.len() < budget {
            let Some(message) = session.pop(!self.policy.lossy) else {
                break;
            };
            session.unacked_in = 0;
            self.put_message(&message, session.in_seq)?;
        }
        if session.unacked_in > 0 && !self.policy.lossy && self.out.len() < budget {
            session.unacked_in = 0;
            self.send(Tag::Ack, &session.in_seq)?;
        }
        Ok(())
    }

    /// `ceph_msg_header2`, `src/include/msgr.h`, then the payloads.
    fn put_message(&mut self, m: &Message, ack_seq: u64) -> Result<(), ProtocolError> {
        let mut header = [0u8; HEADER_LEN];
        let mut at = &mut header[..];
        at.put_u64_le(m.seq);
        at.put_u64_le(m.tid);
        at.put_u16_le(m.msg_type);
        at.put_u16_le(m.priority);
        at.put_u16_le(m.version);
        at.put_u32_le(0);
        at.put_u16_le(m.data_off);
        at.put_u64_le(ack_seq);
        at.put_u8(FOOTER_FLAGS);
        at.put_u16_le(m.compat_version);
        at.put_u16_le(0);
        let (front, middle) = (std::slice::from_ref(&m.front), std::slice::from_ref(&m.middle));
        Ok(self.enc.frame(
            Tag::Message,
            &header,
            &[front, middle, &m.data],
            m.data_sum,
            &mut self.out,
        )?)
    }

    fn send(&mut self, tag: Tag, payload: &dyn EncodeDyn) -> Result<(), ProtocolError> {
        let mut buf = BytesMut::new();
        payload.put(&mut buf);
        let from = self.out.len();
        self.enc.control(tag, &buf, &mut self.out)?;
        self.note_sent(from);
        Ok(())
    }

    /// Appends what was just put out to the transcript.
    fn note_sent(&mut self, from: usize) {
        if let Some(t) = &mut self.sent_transcript {
            self.out.copy_from(from, t);
        }
    }

    /// The next event, as far as the received bytes go. After an error the socket is to be closed.
    pub fn poll(
        &mut self,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<Option<Event>, ProtocolError> {
        loop {
            match self.state {
                State::Asked => return Ok(None),
                State::Banner => {
                    if !self.banner()? {
                        return Ok(None);
                    }
                    self.state = State::Hello;
                    let kind = self.local.name.kind.0 as u8;
                    let peer = self.peer_socket;
                    self.send(Tag::Hello, &(kind, peer))?;
                }
                _ => match self.dec.poll()? {
                    Progress::Starved => return Ok(None),
                    Progress::Head(head) => {
                        self.check_head(&head)?;
                        self.head = Some(head);
                    }
                    Progress::Frame(frame) => {
                        if frame.aborted {
                            continue;
                        }
                        if let Some(event) = self.handle(frame, session, cx)? {
                            return Ok(Some(event));
                        }
                    }
                },
            }
        }
    }

    /// Reads the peer's banner; false if it is not complete.
    fn banner(&mut self) -> Result<bool, ProtocolError> {
        let have = self.dec.peek_raw();
        let compared = have.len().min(BANNER.len());
        if have[..compared] != BANNER[..compared] {
            return Err(ProtocolError::Banner(if have.starts_with(b"ceph v0") {
                "the peer speaks messenger v1"
            } else {
                "not a Ceph peer"
            }));
        }
        let Some(len) = have.get(BANNER.len()..BANNER.len() + 2) else {
            return Ok(false);
        };
        let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
        if len > BANNER_PAYLOAD_MAX {
            return Err(ProtocolError::Banner("too long"));
        }
        let Some(raw) = self.dec.take_raw(BANNER.len() + 2 + len) else {
            return Ok(false);
        };
        let (supported, required): (u64, u64) = Reader::new(raw.slice(BANNER.len() + 2..)).get()?;
        if supported & REVISION_1 == 0 {
            return Err(ProtocolError::Banner("the peer does not support msgr v2.1"));
        }
        if required & !REVISION_1 != 0 {
            return Err(ProtocolError::Banner("the peer requires messenger features that we lack"));
        }
        Ok(true)
    }

    /// Refuses frames by their size before there is room made for them.
    fn check_head(&self, head: &Head) -> Result<(), ProtocolError> {
        let too_large = Err(ProtocolError::TooLarge(head.tag, head.total()));
        if head.tag == Tag::Message {
            if self.state != State::Ready {
                return Err(ProtocolError::Unexpected(head.tag));
            }
            let l = &*self.limits;
            let fits = head.len(0) == HEADER_LEN
                && head.len(1) <= l.front
                && head.len(2) <= l.middle
                && head.len(3) <= l.data;
            return if fits { Ok(()) } else { too_large };
        }
        if head.segments() > 1 {
            return Err(ProtocolError::Frame(FrameError::Segments));
        }
        let limit = if self.is_authenticated() {
            self.limits.control_frame
        } else {
            self.limits
                .handshake_frame
                .min(self.limits.handshake_total.saturating_sub(self.dec.transcript_len()))
        };
        if head.total() > limit { too_large } else { Ok(()) }
    }

    fn handle(
        &mut self,
        frame: Frame,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<Option<Event>, ProtocolError> {
        let unexpected = Err(ProtocolError::Unexpected(frame.tag));
        let is_client = matches!(self.side, Side::Client { .. });
        let [payload, front, middle, data] = frame.segments;
        let mut r = Reader::new(payload);
        match (frame.tag, self.state, is_client) {
            (Tag::Message, State::Ready, _) => {
                return self.on_message(r, front, middle, data, session);
            }
            (Tag::Ack, State::Ready, _) => session.acked(r.get()?),
            (Tag::Keepalive2, State::Ready, _) => {
                let stamp: Utime = r.get()?;
                self.last_keepalive = Some(cx.now);
                self.send(Tag::Keepalive2Ack, &stamp)?;
            }
            (Tag::Keepalive2Ack, State::Ready, _) => self.last_keepalive_ack = Some(r.get()?),
            (Tag::Hello, State::Hello, _) => return self.on_hello(r, cx),

            (Tag::AuthRequest, State::Auth, false) => self.on_auth_request(r, cx)?,
            (Tag::AuthRequestMore, State::AuthMore, false) => {
                let payload = r.get()?;
                self.authenticate(payload, true, cx)?;
            }
            (Tag::AuthBadMethod, State::Auth, true) => self.on_bad_method(r, cx)?,
            (Tag::AuthReplyMore, State::Auth, true) => {
                let payload: Bytes = r.get()?;
                let Side::Client { auth, conn, .. } = &mut self.side else {
                    return unexpected;
                };
                let reply = auth.more(cx, conn, payload)?;
                self.send(Tag::AuthRequestMore, &reply)?;
            }
            (Tag::AuthDone, State::Auth, true) => self.on_auth_done(r, cx)?,
            (Tag::AuthSignature, State::Sign, _) => {
                let theirs: [u8; 32] = r.get()?;
                let sent = self.sent_transcript.take().unwrap_or_default();
                if theirs != self.session_key.hmac_sha256(&sent) {
                    return Err(ProtocolError::Signature);
                }
                self.state = State::Ident;
                if is_client {
                    self.open_session(session, cx)?;
                }
            }

            (Tag::ServerIdent, State::Ident, true) => return self.on_server_ident(r, session),
            (Tag::IdentMissingFeatures, State::Ident, true) => {
                return Err(ProtocolError::MissingFeatures(r.get()?));
            }
            (Tag::SessionReconnectOk, State::Ident, true) if session.server_cookie != 0 => {
                session.resumed(r.get()?);
                self.state = State::Ready;
                return Ok(Some(Event::Ready));
            }
            (Tag::SessionReset, State::Ident, true) if session.server_cookie != 0 => {
                let full: bool = r.get()?;
                if full {
                    session.reset();
                } else {
                    session.restart();
                }
                self.open_session(session, cx)?;
                return Ok(full.then_some(Event::RemoteReset));
            }
            (Tag::SessionRetry, State::Ident, true) if session.server_cookie != 0 => {
                session.connect_seq = r.get::<u64>()?.wrapping_add(1);
                self.open_session(session, cx)?;
            }
            (Tag::SessionRetryGlobal, State::Ident, true) if session.server_cookie != 0 => {
                // A peer must not be able to use the counter up.
                let seen = r.get::<u64>()?.min(u64::MAX / 2);
                session.global_seq = self.local.global_seq.next(seen);
                self.open_session(session, cx)?;
            }
            (Tag::Wait, State::Ident, true) => return Err(ProtocolError::Wait),

            (Tag::ClientIdent, State::Ident, false) => return self.on_client_ident(r, session),
            (Tag::SessionReconnect, State::Ident, false) => {
                let addrs: EntityAddrVec = r.get()?;
                self.check_addrs(&addrs)?;
                self.peer_addrs = addrs;
                let (client_cookie, _server_cookie): (u64, u64) = r.get()?;
                let (global_seq, connect_seq, msg_seq) = r.get()?;
                session.peer_global_seq = global_seq;
                self.state = State::Asked;
                return Ok(Some(Event::Asked(Opening::Resume {
                    client_cookie,
                    global_seq,
                    connect_seq,
                    msg_seq,
                })));
            }
            _ => return unexpected,
        }
        Ok(None)
    }

    fn on_hello(
        &mut self,
        mut r: Reader,
        cx: &mut Context<'_>,
    ) -> Result<Option<Event>, ProtocolError> {
        let kind = EntityType(u32::from(r.get::<u8>()?));
        let seen_as: EntityAddr = r.get()?;
        let mut event = None;
        if self.local.addrs.0.first().is_none_or(EntityAddr::is_blank_ip)
            && let Some(mut addr) = seen_as.addr
        {
            // Keep the port that we listen on, if we do: the peer sees that of this socket.
            addr.set_port(self.local.addrs.0.first().map_or(0, EntityAddr::port));
            let learned =
                EntityAddr { kind: AddrType::MSGR2, nonce: self.local.nonce, addr: Some(addr) };
            self.local.addrs = EntityAddrVec::one(learned);
            event = Some(Event::Learned(learned));
        }
        match &mut self.side {
            Side::Client { .. } => {
                if kind != self.peer_type {
                    return Err(ProtocolError::WrongPeer("it is of another type"));
                }
                self.state = State::Auth;
                self.request_auth(cx)?;
            }
            Side::Server { policies, .. } => {
                self.peer_type = kind;
                self.policy = policies.get(kind);
                self.state = State::Auth;
            }
        }
        Ok(event)
    }

    fn request_auth(&mut self, cx: &mut Context<'_>) -> Result<(), ProtocolError> {
        let Side::Client { auth, conn, .. } = &mut self.side else {
            return Ok(());
        };
        let req = auth.start(cx, conn)?;
        let modes: Vec<u32> = req.modes.iter().map(|m| *m as u32).collect();
        self.send(Tag::AuthRequest, &(req.method as u32, modes, req.payload))
    }

    fn on_bad_method(&mut self, mut r: Reader, cx: &mut Context<'_>) -> Result<(), ProtocolError> {
        let (_method, result): (u32, i32) = r.get()?;
        let (methods, modes): (Vec<u32>, Vec<u32>) = r.get()?;
        let Side::Client { auth, conn, .. } = &mut self.side else {
            return Ok(());
        };
        auth.bad_method(conn, result, &methods, &modes)?;
        self.request_auth(cx)
    }

    fn on_auth_request(
        &mut self,
        mut r: Reader,
        cx: &mut Context<'_>,
    ) -> Result<(), ProtocolError> {
        let (method, modes, payload): (u32, Vec<u32>, Bytes) = r.get()?;
        self.auth_attempts += 1;
        let Side::Server { auth: Some(auth), conn, .. } = &mut self.side else {
            return Err(AuthError::Unsupported.into());
        };
        let peer = self.peer_type;
        let known = AuthMethod::from_wire(method).filter(|m| auth.methods(peer).contains(m));
        let mode = known.and_then(|m| auth.pick_mode(peer, m, &modes));
        match (known, mode) {
            (Some(m), Some(mode)) => {
                self.con_mode = mode;
                *conn = Some(ServerConn::new(peer, m, mode));
                self.authenticate(payload, false, cx)
            }
            _ => self.refuse_auth(method, AuthError::Unsupported),
        }
    }

    fn refuse_auth(&mut self, method: u32, why: AuthError) -> Result<(), ProtocolError> {
        // Busy is for the peer to try again, elsewhere or later: closing says so.
        if matches!(why, AuthError::Busy(_)) || self.auth_attempts >= AUTH_ATTEMPTS {
            return Err(why.into());
        }
        let Side::Server { auth: Some(auth), .. } = &self.side else {
            return Err(why.into());
        };
        let methods: Vec<u32> = auth.methods(self.peer_type).iter().map(|m| *m as u32).collect();
        let modes: Vec<u32> = auth.modes(self.peer_type).iter().map(|m| *m as u32).collect();
        tracing::debug!(peer = %self.peer_socket, %why, "authentication refused");
        self.state = State::Auth;
        self.send(Tag::AuthBadMethod, &((method, -why.errno()), (methods, modes)))
    }

    fn authenticate(
        &mut self,
        payload: Bytes,
        more: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), ProtocolError> {
        let Side::Server { auth: Some(auth), conn: Some(conn), .. } = &mut self.side else {
            return Err(AuthError::Unsupported.into());
        };
        match auth.request(cx, conn, payload, more) {
            Ok(ServerStep::More(reply)) => {
                self.state = State::AuthMore;
                self.send(Tag::AuthReplyMore, &reply)
            }
            Ok(ServerStep::Done(reply, who)) => {
                let (global_id, mode) = (who.global_id, self.con_mode as u32);
                self.send(Tag::AuthDone, &(global_id, mode, reply))?;
                self.session_key = who.session_key.clone();
                let secret = who.connection_secret.clone();
                self.who = Some(*who);
                self.sign(&secret, true)
            }
            Err(why) => {
                let method = conn.method as u32;
                self.refuse_auth(method, why)
            }
        }
    }

    fn on_auth_done(&mut self, mut r: Reader, cx: &mut Context<'_>) -> Result<(), ProtocolError> {
        let (global_id, mode, payload): (u64, u32, Bytes) = r.get()?;
        let mode = ConMode::from_wire(mode).ok_or(AuthError::Unsupported)?;
        let Side::Client { auth, conn, .. } = &mut self.side else {
            return Ok(());
        };
        let done = auth.done(cx, conn, global_id, mode, payload)?;
        self.con_mode = mode;
        self.session_key = done.session_key;
        self.sign(&done.connection_secret, false)
    }

    /// Switches to the negotiated mode and signs what was received so far.
    fn sign(&mut self, secret: &[u8], server: bool) -> Result<(), ProtocolError> {
        if self.con_mode == ConMode::Secure {
            let (rx, tx) = Gcm::pair(secret, server)
                .ok_or(AuthError::Denied("the connection secret is too short"))?;
            self.dec.secure(rx);
            self.enc.secure(tx);
        }
        let signature = self.session_key.hmac_sha256(&self.dec.take_transcript());
        self.state = State::Sign;
        // The signature itself is not part of what is signed.
        let transcript = self.sent_transcript.take();
        self.send(Tag::AuthSignature, &signature)?;
        self.sent_transcript = transcript;
        Ok(())
    }

    /// On the client: asks for a session, a new one or the one that there was.
    fn open_session(
        &mut self,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<(), ProtocolError> {
        let addrs = self.local.addrs.clone();
        if session.server_cookie != 0 {
            let cookies = (session.client_cookie, session.server_cookie);
            let seqs = (session.global_seq, session.connect_seq, session.in_seq);
            return self.send(Tag::SessionReconnect, &(addrs, cookies, seqs));
        }
        if !self.policy.lossy && session.client_cookie == 0 {
            session.client_cookie = cx.nonzero();
        }
        let Side::Client { target, .. } = self.side else {
            return Ok(());
        };
        let flags = if self.policy.lossy { FLAG_LOSSY } else { 0 };
        let required = self.policy.required.0 | features::MSG_ADDR2;
        self.send(
            Tag::ClientIdent,
            &(
                (addrs, target, self.local.name.num),
                (session.global_seq, self.policy.supported.0, required),
                (flags, session.client_cookie),
            ),
        )
    }

    fn check_addrs(&self, addrs: &EntityAddrVec) -> Result<(), ProtocolError> {
        match addrs.0.first() {
            None => Err(ProtocolError::WrongPeer("it has no address")),
            Some(first) if *first == EntityAddr::default() => {
                Err(ProtocolError::WrongPeer("its address is blank"))
            }
            Some(_) if addrs.0.len() > ADDRS_MAX => {
                Err(ProtocolError::WrongPeer("it has too many addresses"))
            }
            Some(_) => Ok(()),
        }
    }

    fn on_server_ident(
        &mut self,
        mut r: Reader,
        session: &mut Session,
    ) -> Result<Option<Event>, ProtocolError> {
        if session.server_cookie != 0 {
            return Err(ProtocolError::Unexpected(Tag::ServerIdent));
        }
        let (addrs, num, global_seq): (EntityAddrVec, i64, u64) = r.get()?;
        let (supported, required): (u64, u64) = r.get()?;
        let (flags, cookie): (u64, u64) = r.get()?;
        let Side::Client { target, .. } = &self.side else {
            return Ok(None);
        };
        if !addrs.contains(target) {
            return Err(ProtocolError::WrongPeer(
                "it has other addresses than the one connected to",
            ));
        }
        self.check_addrs(&addrs)?;
        let missing = required & !self.policy.supported.0;
        if missing != 0 {
            return Err(ProtocolError::MissingFeatures(missing));
        }
        self.peer_addrs = addrs;
        self.peer_num = num;
        self.features = Features(supported & self.policy.supported.0);
        self.policy.lossy = flags & FLAG_LOSSY != 0;
        session.server_cookie = cookie;
        session.peer_global_seq = global_seq;
        self.state = State::Ready;
        Ok(Some(Event::Ready))
    }

    fn on_client_ident(
        &mut self,
        mut r: Reader,
        session: &mut Session,
    ) -> Result<Option<Event>, ProtocolError> {
        let (addrs, target, num): (EntityAddrVec, EntityAddr, i64) = r.get()?;
        let (global_seq, supported, _required): (u64, u64, u64) = r.get()?;
        let (flags, client_cookie): (u64, u64) = r.get()?;
        self.check_addrs(&addrs)?;
        if flags & FLAG_LOSSY != 0 && !self.policy.lossy {
            self.policy = self.policy.for_lossy_client();
        }
        if !self.local.addrs.contains(&target) {
            return Err(ProtocolError::WrongPeer("it wants to reach somebody else"));
        }
        let missing = (self.policy.required.0 | features::MSG_ADDR2) & !supported;
        if missing != 0 {
            self.send(Tag::IdentMissingFeatures, &missing)?;
            return Ok(None);
        }
        self.peer_addrs = addrs;
        self.peer_num = num;
        self.features = Features(supported & self.policy.supported.0);
        session.client_cookie = client_cookie;
        session.peer_global_seq = global_seq;
        self.state = State::Asked;
        Ok(Some(Event::Asked(Opening::New { client_cookie, global_seq })))
    }

    /// Answers [`Event::Asked`]. For [`Verdict::Adopt`] and [`Verdict::Resume`] `session` is that
    /// of the registered connection, whose sent messages were requeued. Returns [`Event::Ready`] if
    /// that is what the answer makes of the connection.
    pub fn answer(
        &mut self,
        opening: &Opening,
        verdict: Verdict,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<Option<Event>, ProtocolError> {
        if self.state != State::Asked {
            return Ok(None);
        }
        self.state = State::Ident;
        match (verdict, opening) {
            (
                Verdict::Accept | Verdict::Replace | Verdict::Adopt { .. },
                Opening::New { client_cookie, global_seq },
            ) => {
                if verdict == (Verdict::Adopt { reset: true }) {
                    session.reset();
                }
                session.client_cookie = *client_cookie;
                session.peer_global_seq = *global_seq;
                session.in_seq = 0;
                session.unacked_in = 0;
                if !self.policy.lossy {
                    session.server_cookie = cx.nonzero();
                }
                let flags = if self.policy.lossy { FLAG_LOSSY } else { 0 };
                let required = self.policy.required.0 | features::MSG_ADDR2;
                let ours =
                    (self.local.addrs.clone(), self.local.name.num, self.local.global_seq.next(0));
                let rest = ((self.policy.supported.0, required), (flags, session.server_cookie));
                self.send(Tag::ServerIdent, &(ours, rest.0, rest.1))?;
            }
            (Verdict::Resume, Opening::Resume { global_seq, connect_seq, msg_seq, .. }) => {
                session.peer_global_seq = *global_seq;
                session.connect_seq = *connect_seq;
                session.resumed(*msg_seq);
                session.unacked_in = 0;
                self.send(Tag::SessionReconnectOk, &session.in_seq)?;
            }
            (Verdict::Wait, _) => {
                self.send(Tag::Wait, &())?;
                return Ok(None);
            }
            (Verdict::Reset { full }, _) => {
                self.send(Tag::SessionReset, &full)?;
                return Ok(None);
            }
            (Verdict::Retry { connect_seq }, _) => {
                self.send(Tag::SessionRetry, &connect_seq)?;
                return Ok(None);
            }
            (Verdict::RetryGlobal { global_seq }, _) => {
                self.send(Tag::SessionRetryGlobal, &global_seq)?;
                return Ok(None);
            }
            (Verdict::Stale, _) | (_, _) => return Err(ProtocolError::Stale),
        }
        self.state = State::Ready;
        Ok(Some(Event::Ready))
    }

    /// A socket that takes over a connection keeps what that connection knew of its peer: a peer
    /// that resumes does not repeat it.
    pub fn inherit(&mut self, peer: EntityName, features: Features) {
        self.peer_num = peer.num;
        self.features = features;
    }

    fn on_message(
        &mut self,
        mut r: Reader,
        front: Bytes,
        middle: Bytes,
        data: Bytes,
        session: &mut Session,
    ) -> Result<Option<Event>, ProtocolError> {
        let (seq, tid): (u64, u64) = r.get()?;
        let (msg_type, priority, version): (u16, u16, u16) = r.get()?;
        let _data_pre_padding_len: u32 = r.get()?;
        let (data_off, ack_seq): (u16, u64) = r.get()?;
        let (_flags, compat_version): (u8, u16) = r.get()?;
        if !self.policy.lossy {
            session.acked(ack_seq);
        }
        if seq <= session.in_seq {
            // Sent again although we had it: our acknowledgement was lost.
            return Ok(None);
        }
        session.in_seq = seq;
        session.unacked_in += 1;
        // A frame with much data has a buffer of its own. Names and keys are slices of the front,
        // and live longer than the request: they must not hold the data.
        let front =
            if data.len() > FRONT_APART_ABOVE { Bytes::copy_from_slice(&front) } else { front };
        let data =
            if data.is_empty() { Default::default() } else { std::iter::once(data).collect() };
        let message = Message {
            msg_type,
            priority,
            version,
            compat_version,
            tid,
            data_off,
            seq,
            front,
            middle,
            data,
            data_sum: None,
        };
        Ok(Some(Event::Message(message)))
    }
}

/// From so many bytes of data on, the front gets a buffer of its own.
const FRONT_APART_ABOVE: usize = 16 << 10;

/// Payloads of control frames; all written for [`FRAME_FEATURES`].
trait EncodeDyn {
    fn put(&self, out: &mut BytesMut);
}

impl<T: Encode> EncodeDyn for T {
    fn put(&self, out: &mut BytesMut) {
        self.encode(out, FRAME_FEATURES);
    }
}
