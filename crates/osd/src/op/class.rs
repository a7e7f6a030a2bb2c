//! The seam to object classes: what an OSD asks of them, and what they may ask of the object.

use super::code::{Op, OpOutcome};
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use types::errno::Errno;

/// A future that stays on its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a class method does to its object (`CLS_METHOD_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodFlags {
    /// It reads.
    pub read: bool,
    /// It writes.
    pub write: bool,
}

/// Who calls and what the object looks like, for methods that depend on it.
#[derive(Clone, Debug)]
pub struct ClassOrigin {
    /// The client's name.
    pub entity: types::EntityName,
    /// The client's address.
    pub addr: types::EntityAddr,
    /// The object's user version before the request.
    pub user_version: u64,
    /// The newest snapshot the object knows.
    pub snap_seq: u64,
    /// The request's modification time.
    pub mtime: types::Utime,
    /// The time at the OSD.
    pub now: types::Utime,
    /// Features of the client's connection.
    pub features: denc::Features,
}

/// An object as a class method sees it. Everything a method does is an operation, executed in the
/// caller's transaction, so a method can do exactly what a client could have sent.
pub trait ClassObject {
    /// Executes one operation; its result is negative if it failed.
    fn op(&mut self, op: Op) -> LocalFuture<'_, OpOutcome>;

    /// Who called.
    fn origin(&self) -> &ClassOrigin;
}

/// The classes that this OSD can run.
pub trait ObjectClasses {
    /// What the method does, [`Errno::EOPNOTSUPP`] if the class or method is unknown, or
    /// [`Errno::EPERM`] if `osd_class_load_list` forbids the class.
    fn method(&self, class: &[u8], method: &[u8]) -> Result<MethodFlags, Errno>;

    /// Whether clients may call the class without being granted it by name
    /// (`osd_class_default_list`).
    fn allowed_by_default(&self, class: &[u8]) -> bool;

    /// Runs a method. The result is what the client gets as the operation's return value (not
    /// negative) and output.
    fn call<'a>(
        &'a self,
        class: &'a [u8],
        method: &'a [u8],
        object: &'a mut dyn ClassObject,
        input: Bytes,
    ) -> LocalFuture<'a, Result<(i32, Bytes), Errno>>;
}

/// The classes that Ceph allows to be loaded (`osd_class_load_list`, its default).
const LOADABLE: &str =
    "cephfs hello journal lock log numops otp rbd refcount rgw rgw_gc timeindex user version cas cmpomap queue 2pc_queue fifo";

/// No classes: every call is EOPNOTSUPP, or EPERM if Ceph would not load the class either.
pub struct NoClasses;

impl ObjectClasses for NoClasses {
    fn method(&self, class: &[u8], _: &[u8]) -> Result<MethodFlags, Errno> {
        match LOADABLE.split(' ').any(|name| name.as_bytes() == class) {
            true => Err(Errno::EOPNOTSUPP),
            false => Err(Errno::EPERM),
        }
    }

    fn allowed_by_default(&self, _: &[u8]) -> bool {
        false
    }

    fn call<'a>(
        &'a self,
        _: &'a [u8],
        _: &'a [u8],
        _: &'a mut dyn ClassObject,
        _: Bytes,
    ) -> LocalFuture<'a, Result<(i32, Bytes), Errno>> {
        Box::pin(async { Err(Errno::EOPNOTSUPP) })
    }
}
