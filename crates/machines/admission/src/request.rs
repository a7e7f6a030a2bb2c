//! What admission knows of a request, and what it notes with it.

use crate::legs::Legs;
use crate::meter::Receipt;
use bytes::Bytes;
use qos::{Access, Demand};
use std::cell::Cell;
use types::PoolId;

/// A request of a client, as admission sees it.
pub trait Request {
    /// The pool of its object.
    fn pool(&self) -> PoolId;

    /// The namespace of its object.
    fn namespace(&self) -> &Bytes;

    /// The name of its object.
    fn object(&self) -> &[u8];

    /// Whether it is about the object as it is, and not about a snapshot of it.
    fn is_head(&self) -> bool;

    /// Tells sessions apart.
    fn session(&self) -> u64;

    /// The name that the client has a key for, as `client.NAME`.
    fn entity(&self) -> &str;

    /// Whether the client can still get an answer.
    fn is_open(&self) -> bool;

    /// Whether it changes something.
    fn access(&self) -> Access;

    /// What it asks for: what limits and ceilings count.
    fn demand(&self) -> Demand;

    /// About how many bytes it moves.
    fn cost(&self) -> u64;

    /// Whether bytes tell what it costs.
    fn is_sure(&self) -> bool;

    /// It waits for what it is promised: it is not slow for that.
    fn held(&self, why: Held);

    /// What held it lets it go.
    fn let_go(&self);

    /// What admission notes with it.
    fn tags(&self) -> &Tags;
}

/// What tells the tenant that pays: of a request, or of a shard that is read or written on an OSD
/// which does not lead the operation.
#[derive(Clone, Copy, Debug)]
pub struct Payer<'a> {
    /// The pool of the object.
    pub pool: PoolId,
    /// The namespace of the object.
    pub namespace: &'a Bytes,
    /// The name of the object.
    pub object: &'a [u8],
    /// The name that the client has a key for, as `client.NAME`.
    pub entity: &'a str,
}

impl<'a> Payer<'a> {
    /// Of a request.
    pub(crate) fn of<R: Request>(op: &'a R) -> Payer<'a> {
        Payer {
            pool: op.pool(),
            namespace: op.namespace(),
            object: op.object(),
            entity: op.entity(),
        }
    }
}

/// What a request waits for in front of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The limits of its image.
    Limits,
    /// The ceiling of its tenant.
    Ceiling,
}

/// What admission notes with a request.
#[derive(Debug, Default)]
pub struct Tags {
    /// The limits of its image have seen it.
    pub(crate) counted: Cell<bool>,
    /// It was counted as offered by its tenant.
    pub(crate) offered: Cell<bool>,
    /// It was counted as served.
    pub(crate) served: Cell<bool>,
    /// Its tenant, as the scheduler knows it.
    pub(crate) tenant: Cell<u64>,
    /// When it came to where it waits, by the scheduler's clock.
    pub(crate) queued: Cell<u64>,
    /// What the scheduler charged for it.
    pub receipt: Cell<Receipt>,
    /// What it has spent on its way, where that is noted.
    pub legs: Legs,
}
