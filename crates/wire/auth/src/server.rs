//! The server's end: the monitor, which makes tickets, and services, which accept them.

use crate::rotating::RotatingKeyRing;
use crate::ticket::*;
use crate::{
    AuthError, AuthMethod, AuthName, AuthPolicy, Authenticated, ConMode, Context, CryptoKey,
    KeyServer, KeyStore, ServerAuth, ServerStep, TicketTtl, seal, unseal,
};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use std::cell::RefCell;
use std::rc::Rc;
use types::{EntityType, Utime};

/// First payload byte: which kind of exchange (`AUTH_MODE_*`, `src/auth/Auth.h`).
const MODE_AUTHORIZER: std::ops::RangeInclusive<u8> = 1..=9;
const MODE_MON: std::ops::RangeInclusive<u8> = 10..=19;

/// State of one connection's exchange on the server.
#[derive(Debug)]
pub struct ServerConn {
    /// What the peer says it is.
    pub peer: EntityType,
    /// The method in use.
    pub method: AuthMethod,
    /// The mode that was negotiated.
    pub con_mode: ConMode,
    state: State,
}

#[derive(Debug)]
enum State {
    Fresh,
    /// On a monitor: the session handler, kept for renewals.
    Mon(Box<CephxServer>),
    /// An authorizer was answered with this challenge.
    Challenged(u64),
}

impl ServerConn {
    /// A connection that has not seen a payload.
    pub fn new(peer: EntityType, method: AuthMethod, con_mode: ConMode) -> Self {
        ServerConn { peer, method, con_mode, state: State::Fresh }
    }

    /// The monitor's handler of this session, for requests that come in `MAuth` messages.
    pub fn mon_session(&mut self) -> Option<&mut CephxServer> {
        match &mut self.state {
            State::Mon(s) => Some(s),
            _ => None,
        }
    }
}

/// How much to believe the global id of a session (`global_id_status_t`,
/// `src/auth/AuthServiceHandler.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GlobalIdStatus {
    NewPending,
    NewOk,
    ReclaimPending,
    ReclaimOk,
    ReclaimInsecure,
}

/// A reply of the monitor.
#[derive(Clone, Debug)]
pub struct CephxReply {
    /// Goes to the client.
    pub payload: Bytes,
    /// Set when the request was one for a session: the peer, and the secrets of the session.
    pub done: Option<Box<Authenticated>>,
}

/// The monitor's handler of one client session (`CephxServiceHandler`).
#[derive(Debug)]
pub struct CephxServer {
    name: AuthName,
    global_id: u64,
    challenge: u64,
    status: GlobalIdStatus,
}

impl CephxServer {
    /// Starts a session and makes the challenge that it opens with.
    pub fn start(
        cx: &mut Context<'_>,
        name: AuthName,
        global_id: u64,
        is_new: bool,
    ) -> (Self, Bytes) {
        let challenge = cx.nonzero();
        let status =
            if is_new { GlobalIdStatus::NewPending } else { GlobalIdStatus::ReclaimPending };
        let payload = Challenge { server_challenge: challenge }.to_bytes(Features::ALL);
        (CephxServer { name, global_id, challenge, status }, payload)
    }

    /// The name that the session claims; proved once a reply was `done`.
    pub fn name(&self) -> &AuthName {
        &self.name
    }

    /// Whether the client got away with reclaiming its global id without proof, which the monitor
    /// reports as `AUTH_INSECURE_GLOBAL_ID_RECLAIM`.
    pub fn reclaimed_insecurely(&self) -> bool {
        self.status == GlobalIdStatus::ReclaimInsecure
    }

    /// Handles a request. `secret_len` is the length of the connection secret to make, `None` for a
    /// renewal inside an established session.
    pub fn handle_request(
        &mut self,
        cx: &mut Context<'_>,
        mon: &MonAuth,
        payload: Bytes,
        secret_len: Option<usize>,
    ) -> Result<CephxReply, AuthError> {
        let mut r = Reader::new(payload);
        match r.get::<u16>()? {
            GET_AUTH_SESSION_KEY => self.auth_session_key(cx, mon, r, secret_len),
            GET_PRINCIPAL_SESSION_KEY => self.principal_session_key(cx, mon, r),
            GET_ROTATING_KEY => {
                let keys = mon.keys.rotating_sealed(&self.name);
                let keys = keys.ok_or(AuthError::Denied("no rotating keys for this entity"))?;
                let mut out = header(GET_ROTATING_KEY, 0);
                keys.encode(&mut out, Features::ALL);
                Ok(CephxReply { payload: out.freeze(), done: None })
            }
            _ => Err(AuthError::Unexpected("unknown cephx request")),
        }
    }

    fn auth_session_key(
        &mut self,
        cx: &mut Context<'_>,
        mon: &MonAuth,
        mut r: Reader,
        secret_len: Option<usize>,
    ) -> Result<CephxReply, AuthError> {
        let req: Authenticate = r.get()?;
        let auth = mon.keys.lookup(&self.name).ok_or(AuthError::Denied("no such entity"))?;
        if req.key != fold_challenge(&auth.key, self.challenge, req.client_challenge)? {
            return Err(AuthError::Denied("wrong key"));
        }
        let old_session = self.verify_old_ticket(mon, &req)?;

        let (secret_id, secret, life) = mon
            .keys
            .ticket_secret(EntityType::AUTH, mon.ttl, cx.now)
            .ok_or(AuthError::Busy("no rotating secrets yet"))?;
        let info = SessionAuthInfo {
            service: EntityType::AUTH,
            secret_id,
            ticket: AuthTicket::new(self.name.clone(), self.global_id, cx.now, life),
            session_key: CryptoKey::generate(cx.now, cx.rng),
            service_secret: secret.clone(),
            validity: Utime::from_duration(life),
        };
        let mut out = header(GET_AUTH_SESSION_KEY, 0);
        put_tickets(&mut out, &auth.key, std::slice::from_ref(&info), old_session.as_ref())?;

        let caps = mon.keys.caps(&self.name, EntityType::MON).unwrap_or_default();
        if caps.text.is_empty() {
            return Err(AuthError::Denied("the entity has no mon caps"));
        }
        let mut connection_secret = Bytes::new();
        if req.other_keys != 0 {
            let mut sealed = Bytes::new();
            if let Some(len) = secret_len {
                connection_secret = random_bytes(cx, len);
                let mut buf = BytesMut::new();
                seal(&info.session_key, &connection_secret)?.encode(&mut buf, Features::ALL);
                sealed = buf.freeze();
            }
            sealed.encode(&mut out, Features::ALL);
            let extra = self.service_tickets(cx, mon, &info.ticket, req.other_keys);
            denc::with_length(&mut out, |out| {
                if !extra.is_empty() {
                    // Fails only with an unusable key, and this one was just generated.
                    let _ = put_tickets(out, &info.session_key, &extra, None);
                }
            });
        } else if secret_len.is_some_and(|len| len > 0) {
            // A request without `other_keys` has no field to carry the secret in.
            return Err(AuthError::Unsupported);
        }
        let done = Authenticated {
            name: self.name.clone(),
            global_id: self.global_id,
            caps,
            session_key: info.session_key,
            connection_secret,
        };
        Ok(CephxReply { payload: out.freeze(), done: Some(Box::new(done)) })
    }

    fn service_tickets(
        &self,
        cx: &mut Context<'_>,
        mon: &MonAuth,
        parent: &AuthTicket,
        wanted: u32,
    ) -> Vec<SessionAuthInfo> {
        (0..u32::BITS)
            .map(|bit| EntityType(1 << bit))
            .filter(|s| wanted & s.0 != 0 && *s != EntityType::AUTH)
            .filter_map(|s| mon.keys.session_for(s, parent, mon.ttl, cx.now, cx.rng))
            .collect()
    }

    /// Decides whether the session may have its global id. Returns the session key of the ticket
    /// that proves it, under which the new ticket is sealed once more.
    fn verify_old_ticket(
        &mut self,
        mon: &MonAuth,
        req: &Authenticate,
    ) -> Result<Option<CryptoKey>, AuthError> {
        let presented = !req.old_ticket.blob.is_empty();
        if self.status == GlobalIdStatus::NewPending {
            if presented {
                return Err(AuthError::Unexpected("an old ticket for a new global id"));
            }
            self.status = GlobalIdStatus::NewOk;
            return Ok(None);
        }
        let proof = presented
            .then(|| open_ticket(&mon.keys, EntityType::AUTH, &req.old_ticket).ok())
            .flatten()
            .filter(|info| info.ticket.global_id == self.global_id);
        match proof {
            Some(info) => {
                self.status = GlobalIdStatus::ReclaimOk;
                Ok(Some(info.session_key))
            }
            None if mon.allow_insecure_global_id_reclaim && req.struct_v < 3 => {
                self.status = GlobalIdStatus::ReclaimInsecure;
                Ok(None)
            }
            None => Err(AuthError::Denied("reclaims a global id without its ticket")),
        }
    }

    fn principal_session_key(
        &mut self,
        cx: &mut Context<'_>,
        mon: &MonAuth,
        mut r: Reader,
    ) -> Result<CephxReply, AuthError> {
        let presented = Presented::decode(&mut r, &mon.keys)?;
        if presented.service != EntityType::AUTH {
            return Err(AuthError::Denied("tickets are renewed with the auth ticket only"));
        }
        let req: ServiceTicketRequest = r.get()?;
        let infos = self.service_tickets(cx, mon, &presented.info.ticket, req.keys);
        let wanted = req.keys & !EntityType::AUTH.0;
        let status = if infos.is_empty() && wanted != 0 { -13 } else { 0 };
        let mut out = header(GET_PRINCIPAL_SESSION_KEY, status);
        put_tickets(&mut out, &presented.info.session_key, &infos, None)?;
        Ok(CephxReply { payload: out.freeze(), done: None })
    }
}

fn header(request_type: u16, status: i32) -> BytesMut {
    let mut out = BytesMut::new();
    ResponseHeader { request_type, status }.encode(&mut out, Features::ALL);
    out
}

fn random_bytes(cx: &mut Context<'_>, len: usize) -> Bytes {
    let mut secret = BytesMut::zeroed(len);
    cx.rng.fill_bytes(&mut secret);
    secret.freeze()
}

/// Opens a ticket with the secret that it names (`cephx_decode_ticket`).
fn open_ticket(
    keys: &dyn KeyStore,
    service: EntityType,
    blob: &TicketBlob,
) -> Result<ServiceTicketInfo, AuthError> {
    let secret = if blob.secret_id == u64::MAX {
        keys.secret(&AuthName::new(service, ""))
    } else {
        keys.service_secret(service, blob.secret_id)
    };
    let secret = secret.ok_or(AuthError::Denied("the ticket's secret is not known here"))?;
    unseal(&secret, &blob.blob).map_err(|_| AuthError::Denied("the ticket does not open"))
}

/// An authorizer with a ticket that could be opened; its holder knows the session key.
struct Presented {
    service: EntityType,
    info: ServiceTicketInfo,
    authorize: Authorize,
}

impl Presented {
    fn decode(r: &mut Reader, keys: &dyn KeyStore) -> Result<Self, AuthError> {
        r.get::<u8>()?;
        let global_id: u64 = r.get()?;
        let service = EntityType(r.get()?);
        let blob: TicketBlob = r.get()?;
        let info = open_ticket(keys, service, &blob)?;
        if info.ticket.global_id != global_id {
            return Err(AuthError::Denied("the ticket is of another global id"));
        }
        let sealed: Bytes = r.get()?;
        let authorize = unseal(&info.session_key, &sealed)
            .map_err(|_| AuthError::Denied("the authorizer is not sealed with the session key"))?;
        Ok(Presented { service, info, authorize })
    }
}

/// Verifies an authorizer (`cephx_verify_authorizer`). The first one of a connection is answered
/// with a challenge, so that a recorded one is worth nothing (CVE-2018-1128).
fn verify_authorizer(
    cx: &mut Context<'_>,
    keys: &dyn KeyStore,
    conn: &mut ServerConn,
    payload: Bytes,
    more: bool,
) -> Result<ServerStep, AuthError> {
    let presented = Presented::decode(&mut Reader::new(payload), keys)?;
    let Presented { info, authorize, .. } = presented;
    let challenge = match std::mem::replace(&mut conn.state, State::Fresh) {
        State::Challenged(c) if more && authorize.have_challenge => c,
        _ if more => return Err(AuthError::Denied("the challenge was not answered")),
        _ => {
            let challenge = cx.nonzero();
            conn.state = State::Challenged(challenge);
            // Sealed without a length in front, unlike everything else.
            return Ok(ServerStep::More(seal(
                &info.session_key,
                &Challenge { server_challenge: challenge },
            )?));
        }
    };
    if challenge.wrapping_add(1) != authorize.server_challenge_plus_one {
        return Err(AuthError::Denied("wrong answer to the challenge"));
    }
    let connection_secret = random_bytes(cx, conn.con_mode.secret_len());
    let reply = AuthorizeReply {
        nonce_plus_one: authorize.nonce.wrapping_add(1),
        connection_secret: connection_secret.clone(),
    };
    let mut out = BytesMut::new();
    seal(&info.session_key, &reply)?.encode(&mut out, Features::ALL);
    let who = Authenticated {
        name: info.ticket.name,
        global_id: info.ticket.global_id,
        caps: info.ticket.caps,
        session_key: info.session_key,
        connection_secret,
    };
    Ok(ServerStep::Done(out.freeze(), Box::new(who)))
}

/// Method `none`: believes the name (`AuthNoneAuthorizeHandler`). Reached only where the policy
/// lists the method.
fn believe(name: AuthName, global_id: u64) -> ServerStep {
    let who = Authenticated {
        name,
        global_id,
        caps: AuthCaps { allow_all: true, text: String::new() },
        session_key: CryptoKey::default(),
        connection_secret: Bytes::new(),
    };
    ServerStep::Done(Bytes::new(), Box::new(who))
}

fn mode_byte(payload: &Bytes) -> Result<u8, AuthError> {
    payload.first().copied().ok_or(AuthError::Denied("no payload"))
}

/// The monitor's server. Shared as `Rc<RefCell<MonAuth>>`; the monitor refreshes `keys` whenever
/// its replicated state changes.
pub struct MonAuth {
    /// What is offered to whom.
    pub policy: AuthPolicy,
    /// The secrets.
    pub keys: KeyServer,
    /// How long tickets last.
    pub ttl: TicketTtl,
    /// `auth_allow_insecure_global_id_reclaim`.
    pub allow_insecure_global_id_reclaim: bool,
    /// False while there is no quorum that ever committed keys: clients are told to come back.
    pub ready: bool,
    /// Makes global ids that no monitor of the cluster ever gave out; `None` if it cannot right
    /// now.
    pub next_global_id: Box<dyn FnMut() -> Option<u64>>,
}

impl MonAuth {
    /// A monitor's server without keys.
    pub fn new(next_global_id: Box<dyn FnMut() -> Option<u64>>) -> Self {
        MonAuth {
            policy: AuthPolicy::new(EntityType::MON),
            keys: KeyServer::default(),
            ttl: TicketTtl::default(),
            allow_insecure_global_id_reclaim: false,
            ready: true,
            next_global_id,
        }
    }

    fn start(
        &mut self,
        cx: &mut Context<'_>,
        conn: &mut ServerConn,
        payload: Bytes,
    ) -> Result<ServerStep, AuthError> {
        if !self.ready {
            return Err(AuthError::Busy("no quorum yet"));
        }
        let mut r = Reader::new(payload);
        r.get::<u8>()?;
        let name: AuthName = r.get()?;
        let mut global_id: u64 = r.get()?;
        // The kind that a peer says it is when it connects decides nothing here: the name does.
        let methods = if name.is_daemon() {
            &self.policy.cluster_methods
        } else {
            &self.policy.service_methods
        };
        if !methods.contains(&conn.method) {
            return Err(AuthError::Unsupported);
        }
        let is_new = global_id == 0;
        if is_new {
            global_id = (self.next_global_id)().ok_or(AuthError::Busy("no global ids"))?;
        }
        if conn.method == AuthMethod::None {
            return Ok(believe(name, global_id));
        }
        let (session, challenge) = CephxServer::start(cx, name, global_id, is_new);
        conn.state = State::Mon(Box::new(session));
        Ok(ServerStep::More(challenge))
    }

    /// Handles the payload of an `MAuth` message inside an established session: renewals and
    /// rotating keys. Returns the payload of the reply.
    pub fn handle_mauth(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ServerConn,
        payload: Bytes,
    ) -> Result<CephxReply, AuthError> {
        let session = conn.mon_session().ok_or(AuthError::Unexpected("no cephx session"))?;
        session.handle_request(cx, self, payload, None)
    }
}

impl ServerAuth for RefCell<MonAuth> {
    fn methods(&self, peer: EntityType) -> Vec<AuthMethod> {
        self.borrow().policy.methods(peer).to_vec()
    }

    fn modes(&self, peer: EntityType) -> Vec<ConMode> {
        self.borrow().policy.modes(peer, AuthMethod::Cephx)
    }

    fn pick_mode(
        &self,
        peer: EntityType,
        method: AuthMethod,
        preferred: &[u32],
    ) -> Option<ConMode> {
        self.borrow().policy.pick_mode(peer, method, preferred)
    }

    fn request(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ServerConn,
        payload: Bytes,
        more: bool,
    ) -> Result<ServerStep, AuthError> {
        let mut mon = self.borrow_mut();
        if more && let State::Mon(session) = &mut conn.state {
            let reply =
                session.handle_request(cx, &mon, payload, Some(conn.con_mode.secret_len()))?;
            return Ok(match reply.done {
                Some(who) => ServerStep::Done(reply.payload, who),
                None => ServerStep::More(reply.payload),
            });
        }
        match mode_byte(&payload)? {
            m if MODE_MON.contains(&m) && !more => mon.start(cx, conn, payload),
            m if MODE_AUTHORIZER.contains(&m) && conn.method == AuthMethod::Cephx => {
                verify_authorizer(cx, &mon.keys, conn, payload, more)
            }
            _ => Err(AuthError::Denied("unknown mode of authentication")),
        }
    }
}

/// The server of an OSD, MDS or manager: accepts tickets that open with its rotating secrets.
pub struct ServiceAuth {
    /// What is offered to whom; see [`ServiceAuth::set_service_modes`].
    pub policy: RefCell<AuthPolicy>,
    /// Kept up to date by the daemon's client end; see [`crate::CephxClient::rotating`].
    pub keys: Rc<RefCell<RotatingKeyRing>>,
}

impl ServiceAuth {
    /// A server with these rules and keys.
    pub fn new(policy: AuthPolicy, keys: Rc<RefCell<RotatingKeyRing>>) -> Rc<Self> {
        Rc::new(ServiceAuth { policy: RefCell::new(policy), keys })
    }

    /// Takes over `ms_service_mode`, and `ms_mon_service_mode` for a manager. It holds for
    /// connections that are made from now on. A list without any mode that we know changes nothing:
    /// no peer could connect any more.
    pub fn set_service_modes(&self, service: &str, mon_service: &str) {
        let mut policy = self.policy.borrow_mut();
        let AuthPolicy { service_modes, mon_service_modes, .. } = &mut *policy;
        for (modes, text) in [(service_modes, service), (mon_service_modes, mon_service)] {
            let wanted = AuthPolicy::parse_modes(text);
            if !wanted.is_empty() {
                *modes = wanted;
            }
        }
    }
}

impl ServerAuth for ServiceAuth {
    fn methods(&self, peer: EntityType) -> Vec<AuthMethod> {
        self.policy.borrow().methods(peer).to_vec()
    }

    fn modes(&self, peer: EntityType) -> Vec<ConMode> {
        self.policy.borrow().modes(peer, AuthMethod::Cephx)
    }

    fn pick_mode(
        &self,
        peer: EntityType,
        method: AuthMethod,
        preferred: &[u32],
    ) -> Option<ConMode> {
        self.policy.borrow().pick_mode(peer, method, preferred)
    }

    fn request(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ServerConn,
        payload: Bytes,
        more: bool,
    ) -> Result<ServerStep, AuthError> {
        if !MODE_AUTHORIZER.contains(&mode_byte(&payload)?) {
            return Err(AuthError::Denied("unknown mode of authentication"));
        }
        if !self.policy.borrow().methods(conn.peer).contains(&conn.method) {
            return Err(AuthError::Unsupported);
        }
        match conn.method {
            AuthMethod::Cephx => verify_authorizer(cx, &*self.keys.borrow(), conn, payload, more),
            AuthMethod::None => {
                let mut r = Reader::new(payload);
                r.get::<u8>()?;
                let (name, global_id): (AuthName, u64) = r.get()?;
                // The policy was asked about the kind that the peer says it is. The name must not
                // be of a more trusted kind.
                if !self.policy.borrow().methods(name.kind).contains(&AuthMethod::None) {
                    return Err(AuthError::Unsupported);
                }
                Ok(believe(name, global_id))
            }
        }
    }
}

/// The bytes that open a `none` exchange with a service.
pub(crate) fn none_authorizer(name: &AuthName, global_id: u64) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(1);
    name.encode(&mut out, Features::ALL);
    out.put_u64_le(global_id);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_a_service_follow_its_settings() {
        let keys = || {
            Rc::new(RefCell::new(RotatingKeyRing::new(EntityType::OSD, crate::Keyring::default())))
        };
        let osd = ServiceAuth::new(AuthPolicy::new(EntityType::OSD), keys());
        assert_eq!(osd.modes(EntityType::CLIENT), [ConMode::Crc, ConMode::Secure]);
        osd.set_service_modes("secure", "crc");
        assert_eq!(osd.modes(EntityType::CLIENT), [ConMode::Secure]);
        assert_eq!(osd.pick_mode(EntityType::CLIENT, AuthMethod::Cephx, &[1]), None);
        assert_eq!(
            osd.modes(EntityType::OSD),
            [ConMode::Crc, ConMode::Secure],
            "that is ms_cluster_mode"
        );
        osd.set_service_modes("", "nonsense");
        assert_eq!(osd.modes(EntityType::CLIENT), [ConMode::Secure]);

        let mgr = ServiceAuth::new(AuthPolicy::new(EntityType::MGR), keys());
        mgr.set_service_modes("secure", "crc");
        assert_eq!(mgr.modes(EntityType::CLIENT), [ConMode::Crc]);
    }
}
