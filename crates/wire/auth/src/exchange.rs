//! What a messenger asks of an authentication method.

use crate::ticket::AuthCaps;
use crate::{AuthError, AuthMethod, AuthName, ClientConn, ConMode, CryptoKey, ServerConn};
use bytes::Bytes;
use rand::CryptoRng;
use types::{EntityType, Utime};

/// Time and chance, handed to the machine that decides.
pub struct Context<'a> {
    /// Wall clock time.
    pub now: Utime,
    /// A generator fit for key material.
    pub rng: &'a mut dyn CryptoRng,
}

impl Context<'_> {
    /// A random number other than zero, which the protocol reserves for "none".
    pub fn nonzero(&mut self) -> u64 {
        loop {
            match self.rng.next_u64() {
                0 => continue,
                n => return n,
            }
        }
    }
}

/// A peer that has proved its name.
#[derive(Clone, Debug)]
pub struct Authenticated {
    /// Its name.
    pub name: AuthName,
    /// Its instance number.
    pub global_id: u64,
    /// What it may do here. On a monitor these are its `mon` caps at the time of the exchange.
    pub caps: AuthCaps,
    /// Signs the transcript of the handshake; empty with method `none`.
    pub session_key: CryptoKey,
    /// Key material of the connection; [`ConMode::secret_len`] bytes.
    pub connection_secret: Bytes,
}

/// How a server goes on after a payload.
#[derive(Clone, Debug)]
pub enum ServerStep {
    /// Sends this and waits for another payload.
    More(Bytes),
    /// Sends this; the peer is authenticated.
    Done(Bytes, Box<Authenticated>),
}

/// The server's end of an authentication exchange. State of a connection lives in [`ServerConn`],
/// so one implementation serves any number of connections.
pub trait ServerAuth {
    /// The methods that a peer of this kind may use.
    fn methods(&self, peer: EntityType) -> Vec<AuthMethod>;
    /// The modes that a peer of this kind may use.
    fn modes(&self, peer: EntityType) -> Vec<ConMode>;
    /// The mode for a peer that prefers `preferred` (numbers as on the wire), if any is acceptable.
    fn pick_mode(&self, peer: EntityType, method: AuthMethod, preferred: &[u32])
    -> Option<ConMode>;
    /// Handles the first payload of an exchange, or with `more` a later one. An error leaves the
    /// connection where it was before the exchange.
    fn request(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ServerConn,
        payload: Bytes,
        more: bool,
    ) -> Result<ServerStep, AuthError>;
}

/// How a client opens an exchange.
#[derive(Clone, Debug)]
pub struct AuthRequest {
    /// The method.
    pub method: AuthMethod,
    /// The modes it would accept, best first.
    pub modes: Vec<ConMode>,
    /// The method's first payload.
    pub payload: Bytes,
}

/// What a client knows at the end of an exchange.
#[derive(Clone, Debug)]
pub struct ClientDone {
    /// Signs the transcript of the handshake; empty with method `none`.
    pub session_key: CryptoKey,
    /// Key material of the connection.
    pub connection_secret: Bytes,
}

/// The client's end of an authentication exchange.
pub trait ClientAuth {
    /// Opens the exchange.
    fn start(&self, cx: &mut Context<'_>, conn: &mut ClientConn) -> Result<AuthRequest, AuthError>;
    /// The server refused the method. `Ok` to try again with another one.
    fn bad_method(
        &self,
        conn: &mut ClientConn,
        result: i32,
        allowed_methods: &[u32],
        allowed_modes: &[u32],
    ) -> Result<(), AuthError>;
    /// The server wants to know more.
    fn more(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ClientConn,
        payload: Bytes,
    ) -> Result<Bytes, AuthError>;
    /// The server is satisfied; now it must prove itself.
    fn done(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ClientConn,
        global_id: u64,
        con_mode: ConMode,
        payload: Bytes,
    ) -> Result<ClientDone, AuthError>;
}
