//! Objects of RADOS as the layout uses them: pools by name, records with versions, class calls,
//! notifications of caches.

use super::backend::{Backend, Io};
use crate::api::{Error, Result};
use ::rgw::bucket::Pool;
use ::rgw::cache::{self, CacheNotify, RawObject};
use bytes::Bytes;
use client::{ClientError, OpOutcome, Operation};
use cls::version::{Cond, CondsOp, ObjVersion, ObjVersionCond, VersionOp};
use denc::{Decode, Encode, Features};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;
use types::{Errno, PoolId, Utime};

/// Attributes by name.
pub(super) type Attrs = BTreeMap<Bytes, Bytes>;

/// The attribute with a record's version.
const VERSION_ATTR: &[u8] = b"ceph.objclass.version";
/// The longest record that is read.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// How long caches of other gateways may take to answer a notification.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(10);

impl From<ClientError> for Error {
    fn from(e: ClientError) -> Self {
        match e {
            ClientError::Timeout(_) => Error::Unavailable(e.to_string()),
            ClientError::Errno(Errno::ENOSPC | Errno::EDQUOT) => {
                Error::Unavailable(format!("there is no room: {e}"))
            }
            e => Error::Internal(format!("a request to the cluster failed: {e}")),
        }
    }
}

/// A value's bytes.
pub(super) fn encoded(value: &impl Encode) -> Bytes {
    value.to_bytes(Features::ALL)
}

/// A value from its bytes. What follows it is of a later release.
pub(super) fn decoded<T: Decode>(what: &str, bytes: &Bytes) -> Result<T> {
    denc::Reader::new(bytes.clone())
        .get()
        .map_err(|e| Error::Internal(format!("{what} cannot be read: {e}")))
}

/// Nanoseconds since 1970.
pub(super) fn nanoseconds(time: Utime) -> u64 {
    u64::from(time.sec) * 1_000_000_000 + u64::from(time.nsec)
}

/// Random text of letters and digits.
pub(super) fn random_text(length: usize) -> String {
    const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    (0..length).map(|_| LETTERS[rand::random_range(0..LETTERS.len())] as char).collect()
}

/// Random text of small letters and digits.
pub(super) fn random_lower(length: usize) -> String {
    (0..length).map(|_| char::from_digit(rand::random_range(0..36), 36).unwrap_or('0')).collect()
}

/// A class call within an operation.
pub(super) fn call(
    op: Operation,
    class: &str,
    method: &str,
    input: &impl Encode,
    writes: bool,
) -> Operation {
    // Fails for names of classes that are too long; ours are constants.
    op.clone().exec(class, method, &encoded(input), writes).unwrap_or(op)
}

/// Runs an operation; `mtime` is the time that the object carries afterwards.
pub(super) async fn submit(
    io: &Io,
    name: impl AsRef<[u8]>,
    op: Operation,
    mtime: Option<Utime>,
) -> client::Result<OpOutcome> {
    io.submit(name, op, mtime).await
}

/// A record: an object with data, attributes and a version.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) data: Bytes,
    pub(super) attrs: Attrs,
    pub(super) version: ObjVersion,
}

/// How a record is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Write<'a> {
    /// There must be none; it begins with a version of its own.
    New,
    /// There must be none; it has no version.
    NewPlain,
    /// It must have this version.
    Over(&'a ObjVersion),
}

/// The connection, and the pools that were opened.
pub(super) struct Cluster {
    backend: Rc<dyn Backend>,
    pools: RefCell<HashMap<Bytes, PoolId>>,
    control: RefCell<Option<Pool>>,
}

impl Cluster {
    pub(super) fn new(backend: Rc<dyn Backend>) -> Self {
        Cluster { backend, pools: RefCell::default(), control: RefCell::default() }
    }

    /// A number that no other gateway at work has.
    pub(super) fn instance(&self) -> u64 {
        self.backend.instance()
    }

    /// The time of day.
    pub(super) fn now(&self) -> Utime {
        self.backend.now()
    }

    /// From now on changes of records are told to caches through this pool.
    pub(super) fn notify_through(&self, control: &Pool) {
        *self.control.borrow_mut() = Some(control.clone());
    }

    /// A pool, which is made if it is not there.
    pub(super) async fn io(&self, pool: &Pool) -> Result<Io> {
        let known = self.pools.borrow().get(&pool.name).copied();
        let id = match known {
            Some(id) => id,
            None => {
                let name = std::str::from_utf8(&pool.name)
                    .ok()
                    .filter(|n| !n.is_empty())
                    .ok_or_else(|| Error::Internal("a zone names a pool without a name".into()))?;
                let id = match self.backend.pool(name).await {
                    Ok(id) => id,
                    Err(ClientError::NoPool) => self.backend.create_pool(name).await?,
                    Err(e) => return Err(e.into()),
                };
                self.pools.borrow_mut().insert(pool.name.clone(), id);
                id
            }
        };
        Ok(Io::new(self.backend.clone(), id, pool.ns.clone()))
    }

    /// Reads a record; `None` if there is none.
    pub(super) async fn read(&self, pool: &Pool, name: impl AsRef<[u8]>) -> Result<Option<Record>> {
        let io = self.io(pool).await?;
        let op = Operation::new().get_xattrs().read(0, RECORD_BYTES_MAX);
        let outcome = match submit(&io, name, op, None).await {
            Err(ClientError::Errno(Errno::ENOENT)) => return Ok(None),
            other => other?,
        };
        let mut attrs = outcome.xattrs(0)?;
        let version = match attrs.remove(VERSION_ATTR) {
            Some(bytes) => decoded("the version of a record", &bytes)?,
            None => ObjVersion::default(),
        };
        Ok(Some(Record { data: outcome.data(1)?, attrs, version }))
    }

    /// Writes a record; `attrs` are set, those in `removed` are removed. Returns the version, or
    /// `None` if the record is not as it must be.
    pub(super) async fn write(
        &self,
        pool: &Pool,
        name: impl AsRef<[u8]>,
        how: Write<'_>,
        data: Bytes,
        attrs: &Attrs,
        removed: &[&[u8]],
    ) -> Result<Option<ObjVersion>> {
        let io = self.io(pool).await?;
        let mut op = Operation::new();
        let version = match how {
            Write::New | Write::NewPlain => {
                op = op.create(true);
                ObjVersion { ver: 1, tag: format!("_{}", random_text(23)).into() }
            }
            Write::Over(old) => {
                op = check_version(op, old);
                ObjVersion { ver: old.ver + 1, tag: old.tag.clone() }
            }
        };
        op = op.write_full(data);
        for (attr, value) in attrs {
            op = op.set_xattr(attr, value);
        }
        for attr in removed {
            op = op.remove_xattr(attr);
        }
        if !matches!(how, Write::NewPlain) {
            let set = VersionOp { objv: version.clone() };
            op = call(op, "version", "set", &set, true);
        }
        match submit(&io, name.as_ref(), op, None).await {
            Err(ClientError::Errno(Errno::EEXIST | Errno::ECANCELED | Errno::ENOENT)) => Ok(None),
            Err(e) => Err(e.into()),
            Ok(_) => {
                self.notify(pool, name.as_ref()).await;
                Ok(Some(version))
            }
        }
    }

    /// Removes a record, which must have the version if one is given. `false` if it is not there,
    /// or has another one.
    pub(super) async fn remove(
        &self,
        pool: &Pool,
        name: impl AsRef<[u8]>,
        version: Option<&ObjVersion>,
    ) -> Result<bool> {
        let io = self.io(pool).await?;
        let mut op = Operation::new();
        if let Some(version) = version.filter(|v| v.ver > 0) {
            op = check_version(op, version);
        }
        match submit(&io, name.as_ref(), op.remove(), None).await {
            Err(ClientError::Errno(Errno::ECANCELED | Errno::ENOENT)) => Ok(false),
            Err(e) => Err(e.into()),
            Ok(_) => {
                self.notify(pool, name.as_ref()).await;
                Ok(true)
            }
        }
    }

    /// Tells the caches of all gateways that a record is no longer as it was. Caches that do not
    /// answer keep it until it expires there.
    pub(super) async fn notify(&self, pool: &Pool, name: &[u8]) {
        let Some(control) = self.control.borrow().clone() else { return };
        let Ok(io) = self.io(&control).await else { return };
        let object = RawObject {
            pool: pool.clone(),
            oid: Bytes::copy_from_slice(name),
            ..Default::default()
        };
        let what = CacheNotify { op: cache::REMOVE, object, ..CacheNotify::default() };
        let on = types::hash::linux(name) % cache::CONTROL_OBJECTS;
        match io.notify(format!("notify.{on}"), encoded(&what), NOTIFY_TIMEOUT).await {
            Ok(true) => {}
            // Without a gateway that watches there is nothing to tell.
            Err(ClientError::Errno(Errno::ENOENT)) => {}
            Ok(false) => {
                tracing::warn!("a gateway did not answer that {} changed", name.escape_ascii())
            }
            Err(e) => {
                tracing::warn!("gateways were not told that {} changed: {e}", name.escape_ascii());
            }
        }
    }
}

fn check_version(op: Operation, version: &ObjVersion) -> Operation {
    let cond = ObjVersionCond { ver: version.clone(), cond: Cond::EQ };
    let check = CondsOp { objv: ObjVersion::default(), conds: vec![cond] };
    call(op, "version", "check_conds", &check, false)
}
