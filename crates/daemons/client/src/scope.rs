//! The target of a request: an object, or a placement group.

use bytes::Bytes;
use types::{ObjectId, ObjectLocator, PgId, PgPool, PoolId, SnapId};

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One object.
    Object {
        /// Its pool.
        pool: PoolId,
        /// Its namespace.
        namespace: Bytes,
        /// Its locator key, or empty.
        key: Bytes,
        /// Its name.
        name: Bytes,
    },
    /// A placement group.
    Pg {
        /// The group that has this hash.
        pgid: PgId,
        /// Namespace that a listing is restricted to.
        namespace: Bytes,
    },
}

impl Scope {
    /// The pool.
    pub fn pool(&self) -> PoolId {
        match self {
            Scope::Object { pool, .. } => *pool,
            Scope::Pg { pgid, .. } => pgid.pool,
        }
    }

    pub(crate) fn locator(&self) -> ObjectLocator {
        match self {
            Scope::Object { pool, namespace, key, .. } => ObjectLocator {
                pool: *pool,
                key: key.clone(),
                namespace: namespace.clone(),
                hash: -1,
            },
            Scope::Pg { pgid, namespace } => ObjectLocator {
                pool: pgid.pool,
                namespace: namespace.clone(),
                hash: pgid.seed.into(),
                ..ObjectLocator::default()
            },
        }
    }

    pub(crate) fn object_name(&self) -> Bytes {
        match self {
            Scope::Object { name, .. } => name.clone(),
            Scope::Pg { .. } => Bytes::new(),
        }
    }

    /// The raw PG: the pool and the whole hash.
    pub(crate) fn raw_pg(&self, pool: &PgPool) -> PgId {
        match self {
            Scope::Object { pool: id, namespace, key, name } => {
                let named = if key.is_empty() { name } else { key };
                PgId::new(*id, pool.hash_key(named, namespace))
            }
            Scope::Pg { pgid, .. } => *pgid,
        }
    }

    /// The object as backoffs see it; `hash` is that of [`Self::raw_pg`].
    pub(crate) fn object(&self, snapid: SnapId, hash: u32) -> ObjectId {
        match self {
            Scope::Object { pool, namespace, key, name } => ObjectId::with_hash(
                *pool,
                namespace.clone(),
                name.clone(),
                key.clone(),
                snapid,
                hash,
            ),
            Scope::Pg { pgid, .. } => ObjectId { pool: pgid.pool, hash, ..ObjectId::MIN },
        }
    }
}
