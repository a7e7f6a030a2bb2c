//! The structs of the cephx exchange (`src/auth/cephx/CephxProtocol.h`, `src/auth/Auth.h`).
//!
//! They carry a `struct_v` byte but neither compat nor length.

use crate::{AuthName, CryptoKey, KeyError, seal};
use bytes::{Bytes, BytesMut};
use denc::{BufMut, Decode, Encode, Features, Reader};
use std::time::Duration;
use types::{EntityType, Utime};

/// `CEPHX_GET_AUTH_SESSION_KEY`: proves possession of the key, gets the auth ticket.
pub(crate) const GET_AUTH_SESSION_KEY: u16 = 0x0100;
/// `CEPHX_GET_PRINCIPAL_SESSION_KEY`: shows the auth ticket, gets service tickets.
pub(crate) const GET_PRINCIPAL_SESSION_KEY: u16 = 0x0200;
/// `CEPHX_GET_ROTATING_KEY`: a service gets its rotating secrets.
pub(crate) const GET_ROTATING_KEY: u16 = 0x0400;

/// A struct with a version byte in front of plain fields. Fields with `>= N` are present from that
/// version on.
macro_rules! versioned {
    ($(#[$doc:meta])* $vis:vis struct $name:ident = $v:literal { $($(#[$fdoc:meta])* $fvis:vis $field:ident: $t:ty $(; since $since:literal)?),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name { $($(#[$fdoc])* $fvis $field: $t),* }
        impl Encode for $name {
            fn encode(&self, out: &mut BytesMut, f: Features) {
                out.put_u8($v);
                $(self.$field.encode(out, f);)*
            }
        }
        impl Decode for $name {
            fn decode(r: &mut Reader) -> denc::Result<Self> {
                let struct_v: u8 = r.get()?;
                let _ = struct_v;
                Ok($name { $($field: versioned!(@get r struct_v $t $(, $since)?)),* })
            }
        }
    };
    (@get $r:ident $v:ident $t:ty) => { <$t>::decode($r)? };
    (@get $r:ident $v:ident $t:ty, $since:literal) => {
        if $v >= $since { <$t>::decode($r)? } else { <$t>::default() }
    };
}

versioned! {
    /// `CephXServerChallenge` and `CephXAuthorizeChallenge`.
    pub struct Challenge = 1 {
        /// Never zero.
        pub server_challenge: u64,
    }
}

versioned! {
    /// `CephXTicketBlob`: a ticket as its holder sees it.
    pub struct TicketBlob = 1 {
        /// Which secret of the service opens it.
        pub secret_id: u64,
        /// A sealed [`ServiceTicketInfo`]; empty if there is no ticket.
        pub blob: Bytes,
    }
}

impl Default for TicketBlob {
    fn default() -> Self {
        TicketBlob { secret_id: 0, blob: Bytes::new() }
    }
}

/// `CephXAuthenticate`, struct_v 3: the answer to the monitor's challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticate {
    /// 1 has no `other_keys`; below 3 a client that reclaims its global id may lack the old ticket.
    pub struct_v: u8,
    /// The client's half of the challenge.
    pub client_challenge: u64,
    /// Both halves under the client's key, folded to 64 bits.
    pub key: u64,
    /// The auth ticket that proves the global id, if there is one.
    pub old_ticket: TicketBlob,
    /// Bits of the services that tickets are wanted for at the same time.
    pub other_keys: u32,
}

impl Encode for Authenticate {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(self.struct_v);
        out.put_u64_le(self.client_challenge);
        out.put_u64_le(self.key);
        self.old_ticket.encode(out, f);
        if self.struct_v >= 2 {
            out.put_u32_le(self.other_keys);
        }
    }
}
impl Decode for Authenticate {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let struct_v: u8 = r.get()?;
        Ok(Authenticate {
            struct_v,
            client_challenge: r.get()?,
            key: r.get()?,
            old_ticket: r.get()?,
            other_keys: if struct_v >= 2 { r.get()? } else { 0 },
        })
    }
}

versioned! {
    /// `CephXServiceTicketRequest`.
    pub struct ServiceTicketRequest = 1 {
        /// Bits of the services.
        pub keys: u32,
    }
}

/// `CephXResponseHeader` (plain).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// Repeats the request's type.
    pub request_type: u16,
    /// Zero or a negative errno.
    pub status: i32,
}
impl Encode for ResponseHeader {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        out.put_u16_le(self.request_type);
        out.put_i32_le(self.status);
    }
}
impl Decode for ResponseHeader {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(ResponseHeader { request_type: r.get()?, status: r.get()? })
    }
}

/// `AuthCapsInfo`, struct_v 1. The caps are a buffer that holds an encoded string, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthCaps {
    /// Set by method `none` only: the text does not matter.
    pub allow_all: bool,
    /// The capability text for the service that the ticket is for.
    pub text: String,
}
impl Encode for AuthCaps {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(1);
        self.allow_all.encode(out, f);
        denc::with_length(out, |out| {
            if !self.text.is_empty() {
                self.text.encode(out, f);
            }
        });
    }
}
impl Decode for AuthCaps {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        r.get::<u8>()?;
        let allow_all = r.get()?;
        let caps = Bytes::decode(r)?;
        let text = if caps.is_empty() { String::new() } else { Reader::new(caps).get()? };
        Ok(AuthCaps { allow_all, text })
    }
}

/// `AuthTicket`, `src/auth/Auth.h`, struct_v 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthTicket {
    /// The holder of the ticket.
    pub name: AuthName,
    /// The number of the client instance, unique in the cluster.
    pub global_id: u64,
    /// When it was made.
    pub created: Utime,
    /// Until when it is good.
    pub expires: Utime,
    /// What the holder may do at the service.
    pub caps: AuthCaps,
    /// Unused.
    pub flags: u32,
}

impl AuthTicket {
    /// A ticket without caps that starts now.
    pub fn new(name: AuthName, global_id: u64, now: Utime, ttl: Duration) -> Self {
        AuthTicket {
            name,
            global_id,
            created: now,
            expires: now + ttl,
            caps: AuthCaps::default(),
            flags: 0,
        }
    }
}
impl Encode for AuthTicket {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(2);
        self.name.encode(out, f);
        out.put_u64_le(self.global_id);
        out.put_u64_le(u64::MAX); // CEPH_AUTH_UID_DEFAULT
        self.created.encode(out, f);
        self.expires.encode(out, f);
        self.caps.encode(out, f);
        out.put_u32_le(self.flags);
    }
}
impl Decode for AuthTicket {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let struct_v: u8 = r.get()?;
        let (name, global_id) = r.get()?;
        if struct_v >= 2 {
            r.get::<u64>()?;
        }
        Ok(AuthTicket {
            name,
            global_id,
            created: r.get()?,
            expires: r.get()?,
            caps: r.get()?,
            flags: r.get()?,
        })
    }
}

versioned! {
    /// `CephXServiceTicket`: the holder's half of a ticket.
    pub struct ServiceTicket = 1 {
        /// Shared by the holder and the service.
        pub session_key: CryptoKey,
        /// How long the ticket lasts, in the holder's time.
        pub validity: Utime,
    }
}

versioned! {
    /// `CephXServiceTicketInfo`: the service's half of a ticket.
    pub struct ServiceTicketInfo = 1 {
        /// The holder, and what it may do.
        pub ticket: AuthTicket,
        /// Shared by the holder and the service.
        pub session_key: CryptoKey,
    }
}

versioned! {
    /// `CephXAuthorize`, struct_v 2.
    pub struct Authorize = 2 {
        /// Repeated plus one by the service.
        pub nonce: u64,
        /// Whether the next field answers a challenge.
        pub have_challenge: bool; since 2,
        /// The service's challenge plus one.
        pub server_challenge_plus_one: u64; since 2,
    }
}

/// `CephXAuthorizeReply`: struct_v 2 if there is a connection secret, else 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizeReply {
    /// Proves that the service could open the ticket.
    pub nonce_plus_one: u64,
    /// Key material of the connection; empty in crc mode.
    pub connection_secret: Bytes,
}
impl Encode for AuthorizeReply {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(if self.connection_secret.is_empty() { 1 } else { 2 });
        out.put_u64_le(self.nonce_plus_one);
        if !self.connection_secret.is_empty() {
            self.connection_secret.encode(out, f);
        }
    }
}
impl Decode for AuthorizeReply {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let struct_v: u8 = r.get()?;
        Ok(AuthorizeReply {
            nonce_plus_one: r.get()?,
            connection_secret: if struct_v >= 2 { r.get()? } else { Bytes::new() },
        })
    }
}

/// `CephXSessionAuthInfo`: what the monitor makes a ticket from.
#[derive(Clone, Debug)]
pub(crate) struct SessionAuthInfo {
    pub service: EntityType,
    pub secret_id: u64,
    pub ticket: AuthTicket,
    pub session_key: CryptoKey,
    pub service_secret: CryptoKey,
    pub validity: Utime,
}

/// Writes tickets, each in two halves: one sealed for the principal, one for the service
/// (`cephx_build_service_ticket_reply`). With `ticket_key` the service's half is sealed once more.
pub(crate) fn put_tickets(
    out: &mut BytesMut,
    principal: &CryptoKey,
    infos: &[SessionAuthInfo],
    ticket_key: Option<&CryptoKey>,
) -> Result<(), KeyError> {
    out.put_u8(1);
    out.put_u32_le(infos.len() as u32);
    for info in infos {
        out.put_u32_le(info.service.0);
        out.put_u8(1);
        let theirs =
            ServiceTicket { session_key: info.session_key.clone(), validity: info.validity };
        seal(principal, &theirs)?.encode(out, Features::ALL);
        let ours = ServiceTicketInfo {
            ticket: info.ticket.clone(),
            session_key: info.session_key.clone(),
        };
        let blob =
            TicketBlob { secret_id: info.secret_id, blob: seal(&info.service_secret, &ours)? };
        let blob = blob.to_bytes(Features::ALL);
        out.put_u8(u8::from(ticket_key.is_some()));
        match ticket_key {
            Some(key) => seal(key, &blob)?.encode(out, Features::ALL),
            None => blob.encode(out, Features::ALL),
        }
    }
    Ok(())
}

/// Both halves of the challenge under the principal's key, folded by exclusive or
/// (`cephx_calc_client_server_challenge`). The fold covers the length field, as in Ceph.
pub(crate) fn fold_challenge(
    secret: &CryptoKey,
    server: u64,
    client: u64,
) -> Result<u64, KeyError> {
    let mut buf = BytesMut::new();
    seal(secret, &(server, client))?.encode(&mut buf, Features::ALL);
    Ok(buf
        .chunks_exact(8)
        .filter_map(|c| c.first_chunk().map(|c| u64::from_le_bytes(*c)))
        .fold(0, |a, b| a ^ b))
}
