//! The client's end: gets tickets from the monitor and shows them to services.

use crate::rotating::{RotatingKeyRing, RotatingSecrets};
use crate::server::none_authorizer;
use crate::ticket::*;
use crate::{
    AuthError, AuthMethod, AuthName, AuthPolicy, AuthRequest, ClientAuth, ClientDone, ConMode,
    Context, CryptoKey, KeyError, seal, unseal,
};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{EntityType, Utime};

/// `AUTH_MODE_MON`, `src/auth/Auth.h`.
const MODE_MON: u8 = 10;

/// State of one connection's exchange on the client.
#[derive(Debug)]
pub struct ClientConn {
    /// What the server is.
    pub peer: EntityType,
    method: Option<AuthMethod>,
    modes: Vec<ConMode>,
    state: State,
}

#[derive(Debug)]
enum State {
    Fresh,
    /// With a monitor; its challenge is kept for renewals.
    Mon {
        challenge: Option<u64>,
    },
    Authorizer {
        base: Bytes,
        nonce: u64,
        session_key: CryptoKey,
    },
    None,
}

impl ClientConn {
    /// A connection that has not sent a payload.
    pub fn new(peer: EntityType) -> Self {
        ClientConn { peer, method: None, modes: Vec::new(), state: State::Fresh }
    }
}

/// A ticket and when to think of the next (`CephXTicketHandler`).
#[derive(Clone, Debug, Default)]
struct Ticket {
    blob: TicketBlob,
    session_key: CryptoKey,
    /// Zero: does not expire.
    expires: Utime,
    renew_after: Utime,
    valid: bool,
}

impl Ticket {
    fn usable(&self, now: Utime) -> bool {
        self.valid && (self.expires.is_zero() || now < self.expires)
    }

    fn due(&self, now: Utime) -> bool {
        !self.usable(now) || (!self.expires.is_zero() && now >= self.renew_after)
    }
}

/// What a reply in an `MAuthReply` message brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MauthOutcome {
    /// New tickets.
    Tickets,
    /// New rotating secrets for [`CephxClient::rotating`].
    RotatingKeys,
}

/// An entity's tickets (`CephxClientHandler`, `CephXTicketManager`). Shared by all connections of
/// the entity as `Rc<RefCell<CephxClient>>`, which is a [`ClientAuth`].
pub struct CephxClient {
    policy: AuthPolicy,
    name: AuthName,
    key: CryptoKey,
    want: u32,
    global_id: u64,
    tickets: BTreeMap<u32, Ticket>,
    rotating: Option<Rc<RefCell<RotatingKeyRing>>>,
}

impl CephxClient {
    /// An entity without tickets. `want` lists the services that it will talk to besides monitors.
    pub fn new(policy: AuthPolicy, name: AuthName, key: CryptoKey, want: &[EntityType]) -> Self {
        let want = want.iter().fold(EntityType::AUTH.0, |bits, s| bits | s.0);
        CephxClient {
            policy,
            name,
            key,
            want,
            global_id: 0,
            tickets: BTreeMap::new(),
            rotating: None,
        }
    }

    /// Lets [`Self::handle_mauth_reply`] deliver rotating secrets there.
    pub fn set_rotating(&mut self, keys: Rc<RefCell<RotatingKeyRing>>) {
        self.rotating = Some(keys);
    }

    /// The rotating secrets of this daemon, if it is one.
    pub fn rotating(&self) -> Option<&Rc<RefCell<RotatingKeyRing>>> {
        self.rotating.as_ref()
    }

    /// The entity's name.
    pub fn name(&self) -> &AuthName {
        &self.name
    }

    /// The number of this instance; zero before the first session.
    pub fn global_id(&self) -> u64 {
        self.global_id
    }

    /// Forgets the session with the cluster, so that the next one starts with a new global id. The
    /// way out when a monitor refuses the old ticket.
    pub fn forget_session(&mut self) {
        self.global_id = 0;
        self.tickets.clear();
    }

    /// Whether there is a usable ticket for a service.
    pub fn has_ticket(&self, service: EntityType, now: Utime) -> bool {
        self.tickets.get(&service.0).is_some_and(|t| t.usable(now))
    }

    /// Throws a ticket away: the service did not accept it, a new one is due.
    pub fn invalidate_ticket(&mut self, service: EntityType) {
        if let Some(t) = self.tickets.get_mut(&service.0) {
            t.valid = false;
        }
    }

    /// Bits of the services with tickets that are missing or due for renewal.
    pub fn need(&self, now: Utime) -> u32 {
        (0..u32::BITS)
            .map(|bit| 1 << bit)
            .filter(|s| self.want & s != 0)
            .filter(|s| self.tickets.get(s).is_none_or(|t| t.due(now)))
            .fold(0, |bits, s| bits | s)
    }

    /// When [`Self::need`] will change by itself; `None` if never.
    pub fn renew_at(&self) -> Option<Utime> {
        self.tickets
            .values()
            .filter(|t| t.valid && !t.expires.is_zero())
            .map(|t| t.renew_after)
            .min()
    }

    /// The payload of an `MAuth` message that renews what is due, if anything is.
    pub fn mauth_request(
        &mut self,
        cx: &mut Context<'_>,
        conn: &ClientConn,
    ) -> Result<Option<Bytes>, AuthError> {
        let State::Mon { challenge: Some(challenge) } = conn.state else {
            return Ok(None);
        };
        let need = self.need(cx.now);
        if need == 0 {
            return Ok(None);
        }
        if need & EntityType::AUTH.0 != 0 {
            return self.authenticate(cx, challenge, need).map(Some);
        }
        let mut out = BytesMut::new();
        out.put_u16_le(GET_PRINCIPAL_SESSION_KEY);
        let (base, nonce, session_key) = self.authorizer(cx, EntityType::AUTH)?;
        out.put_slice(&base);
        put_authorize(&mut out, &session_key, nonce, None)?;
        ServiceTicketRequest { keys: need }.encode(&mut out, Features::ALL);
        Ok(Some(out.freeze()))
    }

    /// The payload of an `MAuth` message that asks for rotating secrets, if they are due.
    pub fn rotating_request(&self, now: Utime) -> Option<Bytes> {
        let keys = self.rotating.as_ref()?;
        keys.borrow().need_new_secrets(now).then(|| GET_ROTATING_KEY.to_bytes(Features::ALL))
    }

    /// Takes the result and payload of an `MAuthReply` message.
    pub fn handle_mauth_reply(
        &mut self,
        cx: &mut Context<'_>,
        result: i32,
        payload: Bytes,
    ) -> Result<MauthOutcome, AuthError> {
        if result < 0 {
            return Err(AuthError::Refused(result.saturating_neg()));
        }
        let mut r = Reader::new(payload);
        let header: ResponseHeader = r.get()?;
        match header.request_type {
            GET_AUTH_SESSION_KEY => {
                self.take_auth_reply(cx.now, &mut r)?;
                Ok(MauthOutcome::Tickets)
            }
            GET_PRINCIPAL_SESSION_KEY => {
                if header.status < 0 {
                    return Err(AuthError::Refused(header.status.saturating_neg()));
                }
                let key = self.ticket(EntityType::AUTH)?.session_key.clone();
                self.take_tickets(cx.now, &key, &mut r)?;
                Ok(MauthOutcome::Tickets)
            }
            GET_ROTATING_KEY => {
                let sealed: Bytes = r.get()?;
                let secrets: RotatingSecrets = unseal(&self.key, &sealed)?;
                if let Some(keys) = &self.rotating {
                    keys.borrow_mut().set_secrets(secrets);
                }
                Ok(MauthOutcome::RotatingKeys)
            }
            _ => Err(AuthError::Unexpected("a reply to no request")),
        }
    }

    fn ticket(&self, service: EntityType) -> Result<&Ticket, AuthError> {
        self.tickets
            .get(&service.0)
            .filter(|t| t.valid)
            .ok_or(AuthError::Denied("no ticket for this service"))
    }

    /// The answer to a monitor's challenge.
    fn authenticate(
        &self,
        cx: &mut Context<'_>,
        challenge: u64,
        need: u32,
    ) -> Result<Bytes, AuthError> {
        let client_challenge = cx.rng.next_u64();
        let req = Authenticate {
            struct_v: 3,
            client_challenge,
            key: fold_challenge(&self.key, challenge, client_challenge)?,
            old_ticket: match self.global_id {
                0 => TicketBlob::default(),
                _ => self
                    .tickets
                    .get(&EntityType::AUTH.0)
                    .map(|t| t.blob.clone())
                    .unwrap_or_default(),
            },
            other_keys: need,
        };
        let mut out = BytesMut::new();
        out.put_u16_le(GET_AUTH_SESSION_KEY);
        req.encode(&mut out, Features::ALL);
        Ok(out.freeze())
    }

    /// Takes the reply to [`Self::authenticate`]. Returns the connection secret, if there is one.
    fn take_auth_reply(&mut self, now: Utime, r: &mut Reader) -> Result<Bytes, AuthError> {
        let key = self.key.clone();
        self.take_tickets(now, &key, r)?;
        if r.left() == 0 {
            return Ok(Bytes::new());
        }
        let (sealed, extra): (Bytes, Bytes) = r.get()?;
        let session_key = self.ticket(EntityType::AUTH)?.session_key.clone();
        let mut secret = Bytes::new();
        if !sealed.is_empty() {
            let sealed = Bytes::from_bytes(&sealed)?;
            secret = unseal(&session_key, &sealed)?;
        }
        if !extra.is_empty() {
            self.take_tickets(now, &session_key, &mut Reader::new(extra))?;
        }
        Ok(secret)
    }

    /// Reads tickets whose holder's halves are sealed with `principal`.
    fn take_tickets(
        &mut self,
        now: Utime,
        principal: &CryptoKey,
        r: &mut Reader,
    ) -> Result<(), AuthError> {
        r.get::<u8>()?;
        for _ in 0..r.count("tickets", 4 + 1 + 4 + 1 + 4)? {
            let service: u32 = r.get()?;
            r.get::<u8>()?;
            let sealed: Bytes = r.get()?;
            let ours: ServiceTicket = unseal(principal, &sealed)?;
            let encrypted: bool = r.get()?;
            let blob: Bytes = r.get()?;
            let blob = if encrypted {
                // With the session key of the ticket that this one replaces.
                let old = self.tickets.get(&service).ok_or(AuthError::Key(KeyError::Sealed))?;
                unseal::<Bytes>(&old.session_key, &blob)?
            } else {
                blob
            };
            let ticket = self.tickets.entry(service).or_default();
            ticket.blob = TicketBlob::decode(&mut Reader::new(blob))?;
            ticket.session_key = ours.session_key;
            ticket.valid = true;
            if !ours.validity.is_zero() {
                let life = ours.validity.as_duration();
                ticket.expires = now + life;
                ticket.renew_after = now + (life - life / 4);
            }
        }
        Ok(())
    }

    /// The part of an authorizer that does not depend on the challenge, its nonce and session key.
    fn authorizer(
        &self,
        cx: &mut Context<'_>,
        service: EntityType,
    ) -> Result<(Bytes, u64, CryptoKey), AuthError> {
        let ticket = self.ticket(service)?;
        let mut out = BytesMut::new();
        out.put_u8(1);
        out.put_u64_le(self.global_id);
        out.put_u32_le(service.0);
        ticket.blob.encode(&mut out, Features::ALL);
        Ok((out.freeze(), cx.rng.next_u64(), ticket.session_key.clone()))
    }
}

impl CephxClient {
    /// Makes itself a ticket for `service`, whose permanent secret is this entity's own: monitors
    /// prove their identity to each other so, without one that hands out tickets.
    fn issue_own(&mut self, cx: &mut Context<'_>, service: EntityType) -> Result<(), AuthError> {
        let mut ticket =
            AuthTicket::new(self.name.clone(), self.global_id, cx.now, OWN_TICKET_LIFE);
        ticket.caps = AuthCaps { allow_all: true, text: String::new() };
        let session_key = CryptoKey::generate(cx.now, cx.rng);
        let info = ServiceTicketInfo { ticket, session_key: session_key.clone() };
        let blob = TicketBlob { secret_id: u64::MAX, blob: seal(&self.key, &info)? };
        self.tickets
            .insert(service.0, Ticket { blob, session_key, valid: true, ..Ticket::default() });
        Ok(())
    }
}

/// How long a monitor's ticket for itself is good. It is made for one connection.
const OWN_TICKET_LIFE: std::time::Duration = std::time::Duration::from_secs(3600);

/// A monitor's client end towards other monitors: they share the secret of `mon.`.
pub struct MonPeerAuth(RefCell<CephxClient>);

impl MonPeerAuth {
    /// The end of a monitor with this secret.
    pub fn new(policy: AuthPolicy, name: AuthName, key: CryptoKey) -> Rc<Self> {
        Rc::new(MonPeerAuth(RefCell::new(CephxClient::new(policy, name, key, &[]))))
    }
}

impl ClientAuth for MonPeerAuth {
    fn start(&self, cx: &mut Context<'_>, conn: &mut ClientConn) -> Result<AuthRequest, AuthError> {
        let mut this = self.0.borrow_mut();
        this.issue_own(cx, conn.peer)?;
        let method = AuthMethod::Cephx;
        let modes = this.policy.modes(conn.peer, method);
        if modes.is_empty() {
            return Err(AuthError::Unsupported);
        }
        conn.method = Some(method);
        conn.modes.clone_from(&modes);
        let (base, nonce, session_key) = this.authorizer(cx, conn.peer)?;
        let mut out = BytesMut::from(&base[..]);
        put_authorize(&mut out, &session_key, nonce, None)?;
        conn.state = State::Authorizer { base, nonce, session_key };
        Ok(AuthRequest { method, modes, payload: out.freeze() })
    }

    fn bad_method(
        &self,
        _: &mut ClientConn,
        result: i32,
        _: &[u32],
        _: &[u32],
    ) -> Result<(), AuthError> {
        Err(AuthError::Refused(result.saturating_neg()))
    }

    fn more(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ClientConn,
        payload: Bytes,
    ) -> Result<Bytes, AuthError> {
        self.0.more(cx, conn, payload)
    }

    fn done(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ClientConn,
        global_id: u64,
        con_mode: ConMode,
        payload: Bytes,
    ) -> Result<ClientDone, AuthError> {
        self.0.done(cx, conn, global_id, con_mode, payload)
    }
}

fn put_authorize(
    out: &mut BytesMut,
    key: &CryptoKey,
    nonce: u64,
    challenge: Option<u64>,
) -> Result<(), KeyError> {
    let authorize = Authorize {
        nonce,
        have_challenge: challenge.is_some(),
        server_challenge_plus_one: challenge.map_or(0, |c| c.wrapping_add(1)),
    };
    seal(key, &authorize)?.encode(out, Features::ALL);
    Ok(())
}

impl ClientAuth for RefCell<CephxClient> {
    fn start(&self, cx: &mut Context<'_>, conn: &mut ClientConn) -> Result<AuthRequest, AuthError> {
        let this = self.borrow();
        let methods = this.policy.methods(conn.peer);
        let method = conn.method.or(methods.first().copied()).ok_or(AuthError::Unsupported)?;
        let modes = this.policy.modes(conn.peer, method);
        if modes.is_empty() {
            return Err(AuthError::Unsupported);
        }
        conn.method = Some(method);
        conn.modes.clone_from(&modes);
        let mut out = BytesMut::new();
        if conn.peer == EntityType::MON {
            out.put_u8(MODE_MON);
            this.name.encode(&mut out, Features::ALL);
            out.put_u64_le(this.global_id);
            conn.state = match method {
                AuthMethod::Cephx => State::Mon { challenge: None },
                AuthMethod::None => State::None,
            };
        } else if method == AuthMethod::None {
            out.put_slice(&none_authorizer(&this.name, this.global_id));
            conn.state = State::None;
        } else {
            let (base, nonce, session_key) = this.authorizer(cx, conn.peer)?;
            out.put_slice(&base);
            put_authorize(&mut out, &session_key, nonce, None)?;
            conn.state = State::Authorizer { base, nonce, session_key };
        }
        Ok(AuthRequest { method, modes, payload: out.freeze() })
    }

    fn bad_method(
        &self,
        conn: &mut ClientConn,
        result: i32,
        allowed_methods: &[u32],
        _allowed_modes: &[u32],
    ) -> Result<(), AuthError> {
        let this = self.borrow();
        let methods = this.policy.methods(conn.peer);
        let tried = methods.iter().position(|m| Some(*m) == conn.method).map_or(0, |at| at + 1);
        let next = methods.iter().skip(tried).find(|m| allowed_methods.contains(&(**m as u32)));
        conn.method = Some(*next.ok_or(AuthError::Refused(result.saturating_neg()))?);
        conn.state = State::Fresh;
        Ok(())
    }

    fn more(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ClientConn,
        payload: Bytes,
    ) -> Result<Bytes, AuthError> {
        let this = self.borrow();
        match &mut conn.state {
            State::Mon { challenge } => {
                let ch = Challenge::decode(&mut Reader::new(payload))?;
                *challenge = Some(ch.server_challenge);
                // All of them: another monitor may have given this instance another global id.
                this.authenticate(cx, ch.server_challenge, this.want)
            }
            State::Authorizer { base, nonce, session_key } => {
                let ch: Challenge = unseal(session_key, &payload)?;
                let mut out = BytesMut::from(&base[..]);
                put_authorize(&mut out, session_key, *nonce, Some(ch.server_challenge))?;
                Ok(out.freeze())
            }
            State::Fresh | State::None => Err(AuthError::Unexpected("a challenge")),
        }
    }

    fn done(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ClientConn,
        global_id: u64,
        con_mode: ConMode,
        payload: Bytes,
    ) -> Result<ClientDone, AuthError> {
        if !conn.modes.contains(&con_mode) {
            return Err(AuthError::Denied("the server chose a mode that was not offered"));
        }
        let mut this = self.borrow_mut();
        let mut r = Reader::new(payload);
        let done = match &conn.state {
            State::Mon { challenge: Some(_) } => {
                let header: ResponseHeader = r.get()?;
                if header.request_type != GET_AUTH_SESSION_KEY {
                    return Err(AuthError::Unexpected("a reply to another request"));
                }
                if this.global_id != global_id {
                    // Service tickets of another instance are of no use with this one's
                    // authorizers.
                    this.tickets.retain(|s, _| *s == EntityType::AUTH.0);
                }
                let connection_secret = this.take_auth_reply(cx.now, &mut r)?;
                this.global_id = global_id;
                let session_key = this.ticket(EntityType::AUTH)?.session_key.clone();
                ClientDone { session_key, connection_secret }
            }
            State::Authorizer { nonce, session_key, .. } => {
                let sealed: Bytes = r.get()?;
                let reply: AuthorizeReply = unseal(session_key, &sealed)?;
                if reply.nonce_plus_one != nonce.wrapping_add(1) {
                    return Err(AuthError::Denied("the service could not open the ticket"));
                }
                ClientDone {
                    session_key: session_key.clone(),
                    connection_secret: reply.connection_secret,
                }
            }
            State::None => {
                if conn.peer == EntityType::MON {
                    this.global_id = global_id;
                }
                ClientDone { session_key: CryptoKey::default(), connection_secret: Bytes::new() }
            }
            _ => return Err(AuthError::Unexpected("done before it began")),
        };
        if done.connection_secret.len() < con_mode.secret_len() {
            return Err(AuthError::Denied("the server sent no connection secret"));
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EntityAuth, KeyServer, Keyring, MonAuth, ServerAuth, ServerConn, ServerStep};
    use rand::SeedableRng;

    fn key(n: u64) -> CryptoKey {
        CryptoKey::generate(Utime::new(1, 0), &mut rand::rngs::StdRng::seed_from_u64(n))
    }

    /// Lets a monitor with one key prove itself to a monitor with another. No clients are let in
    /// meanwhile, and there are no rotating secrets yet.
    fn meet(ours: CryptoKey, theirs: CryptoKey) -> Result<AuthName, AuthError> {
        let mut rng = rand::rngs::StdRng::seed_from_u64(7);
        let mut cx = Context { now: Utime::new(1000, 0), rng: &mut rng };
        let me = AuthName::new(EntityType::MON, "");
        let client = MonPeerAuth::new(AuthPolicy::new(EntityType::MON), me.clone(), ours);
        let mut mon = MonAuth::new(Box::new(|| None));
        mon.ready = false;
        let keyring: Keyring =
            [(me, EntityAuth { key: theirs, ..EntityAuth::default() })].into_iter().collect();
        mon.keys = KeyServer::default();
        mon.keys.set_extra(keyring);
        let mon = RefCell::new(mon);

        let mut conn = ClientConn::new(EntityType::MON);
        let request = client.start(&mut cx, &mut conn)?;
        let mode = *request.modes.first().ok_or(AuthError::Unsupported)?;
        let mut server = ServerConn::new(EntityType::MON, request.method, mode);
        let challenge = match mon.request(&mut cx, &mut server, request.payload, false)? {
            ServerStep::More(challenge) => challenge,
            ServerStep::Done(..) => panic!("nobody is let in without a challenge"),
        };
        let answer = client.more(&mut cx, &mut conn, challenge)?;
        let ServerStep::Done(payload, who) = mon.request(&mut cx, &mut server, answer, true)?
        else {
            panic!("a second challenge");
        };
        let done = client.done(&mut cx, &mut conn, who.global_id, mode, payload)?;
        assert_eq!(done.connection_secret, who.connection_secret);
        assert!(who.caps.allow_all);
        Ok(who.name)
    }

    #[test]
    fn monitors_prove_themselves_with_their_common_key() {
        assert_eq!(meet(key(1), key(1)).unwrap().to_string(), "mon.");
        assert!(matches!(meet(key(1), key(2)), Err(AuthError::Denied(_))));
    }
}
