//! Objects of a pool.

use crate::clock::wall_clock;
use crate::error::{ClientError, Result};
use crate::listing::{ALL_NAMESPACES, ListCursor, decode_listing, list_op};
use crate::objecter::{NotifyOutcome, OpOutcome, Request, Watch, WatchEvent};
use crate::operation::{OmapPage, Operation, Stat};
use crate::rados::Rados;
use crate::scope::Scope;
use bytes::Bytes;
use messages::{PoolOp, PoolOpCode, PoolOpReply};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use types::rados::OsdFlags;
use types::{Epoch, ListObject, ObjectLocator, PgId, PoolId, SnapContext, SnapId};

/// A pool, with where in it and which snapshot. Cheap to clone; setters make a changed copy.
#[derive(Clone)]
pub struct IoCtx {
    rados: Rados,
    pool: PoolId,
    namespace: Bytes,
    key: Bytes,
    snapid: SnapId,
    snapc: SnapContext,
    flags: OsdFlags,
    limit: Option<Duration>,
}

impl IoCtx {
    pub(crate) fn new(rados: Rados, pool: PoolId) -> Self {
        let limit = rados.objecter().options().op_timeout;
        IoCtx {
            rados,
            pool,
            namespace: Bytes::new(),
            key: Bytes::new(),
            snapid: SnapId::NOSNAP,
            snapc: SnapContext::default(),
            flags: OsdFlags::default(),
            limit: (!limit.is_zero()).then_some(limit),
        }
    }

    /// The pool's number.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The connection with the cluster.
    pub fn rados(&self) -> &Rados {
        &self.rados
    }

    /// The namespace.
    pub fn namespace(&self) -> &Bytes {
        &self.namespace
    }

    /// In another pool.
    pub fn with_pool(mut self, pool: PoolId) -> Self {
        self.pool = pool;
        self
    }

    /// In another namespace.
    pub fn with_namespace(mut self, namespace: impl AsRef<[u8]>) -> Self {
        self.namespace = Bytes::copy_from_slice(namespace.as_ref());
        self
    }

    /// Placed by a key instead of the object's name.
    pub fn with_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key = Bytes::copy_from_slice(key.as_ref());
        self
    }

    /// Reads from a snapshot.
    pub fn with_read_snapshot(mut self, snapid: SnapId) -> Self {
        self.snapid = snapid;
        self
    }

    /// Preserves snapshots when it writes.
    pub fn with_snap_context(mut self, snapc: SnapContext) -> Self {
        self.snapc = snapc;
        self
    }

    /// Sets flags of all requests.
    pub fn with_flags(mut self, flags: OsdFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// Gives up on an answer after so long (`rados_osd_op_timeout`). Notifications and the
    /// registration of watches have times of their own.
    pub fn with_timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Where an object of this name is.
    pub fn scope(&self, name: impl AsRef<[u8]>) -> Scope {
        Scope::Object {
            pool: self.pool,
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            name: Bytes::copy_from_slice(name.as_ref()),
        }
    }

    /// Pool, namespace and key, as operations name other objects.
    pub fn locator(&self) -> ObjectLocator {
        ObjectLocator {
            pool: self.pool,
            key: self.key.clone(),
            namespace: self.namespace.clone(),
            ..ObjectLocator::default()
        }
    }

    /// A request on an object, for [`Objecter::submit`](crate::Objecter::submit).
    pub fn request(&self, name: impl AsRef<[u8]>, operation: Operation) -> Request {
        let flags = operation.request_flags();
        self.request_on(self.scope(name), operation.ops, flags)
    }

    fn request_on(&self, scope: Scope, ops: Vec<messages::Op>, flags: OsdFlags) -> Request {
        Request {
            scope,
            ops,
            flags: flags | self.flags,
            snapid: self.snapid,
            // A pool with snapshots of its own has the OSD fill them in.
            snapc: self.snapc.clone(),
            mtime: wall_clock(),
        }
    }

    /// Runs a sequence of operations on an object. The outcome may be an error of the object's;
    /// other failures are errors here. Dropping the future forgets the request.
    pub async fn run(&self, name: impl AsRef<[u8]>, operation: Operation) -> Result<OpOutcome> {
        self.submit(self.request(name, operation)).await
    }

    async fn submit(&self, request: Request) -> Result<OpOutcome> {
        let answer = self.rados.objecter().submit(request);
        match self.limit {
            None => answer.await,
            Some(limit) => tokio::time::timeout(limit, answer)
                .await
                .unwrap_or(Err(ClientError::Timeout("waiting for an OSD"))),
        }
    }

    async fn done(&self, name: impl AsRef<[u8]>, operation: Operation) -> Result<()> {
        self.run(name, operation).await?.ok().map(|_| ())
    }

    /// Of an operation that reads data.
    async fn data(&self, name: impl AsRef<[u8]>, operation: Operation) -> Result<Bytes> {
        self.run(name, operation).await?.data(0)
    }

    /// Reads a range; shorter if the object ends before.
    pub async fn read(&self, name: impl AsRef<[u8]>, offset: u64, length: u64) -> Result<Bytes> {
        self.data(name, Operation::new().read(offset, length)).await
    }

    /// Writes a range.
    pub async fn write(&self, name: impl AsRef<[u8]>, offset: u64, data: Bytes) -> Result<()> {
        self.done(name, Operation::new().write(offset, data)).await
    }

    /// Replaces the object's data.
    pub async fn write_full(&self, name: impl AsRef<[u8]>, data: Bytes) -> Result<()> {
        self.done(name, Operation::new().write_full(data)).await
    }

    /// Appends.
    pub async fn append(&self, name: impl AsRef<[u8]>, data: Bytes) -> Result<()> {
        self.done(name, Operation::new().append(data)).await
    }

    /// Size and time.
    pub async fn stat(&self, name: impl AsRef<[u8]>) -> Result<Stat> {
        self.run(name, Operation::new().stat()).await?.stat(0)
    }

    /// Removes the object.
    pub async fn remove(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.done(name, Operation::new().remove()).await
    }

    /// Reads an attribute.
    pub async fn get_xattr(&self, name: impl AsRef<[u8]>, attr: impl AsRef<[u8]>) -> Result<Bytes> {
        self.data(name, Operation::new().get_xattr(attr)).await
    }

    /// Reads all attributes.
    pub async fn get_xattrs(&self, name: impl AsRef<[u8]>) -> Result<BTreeMap<Bytes, Bytes>> {
        self.run(name, Operation::new().get_xattrs()).await?.xattrs(0)
    }

    /// Sets an attribute.
    pub async fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        attr: impl AsRef<[u8]>,
        value: &[u8],
    ) -> Result<()> {
        self.done(name, Operation::new().set_xattr(attr, value)).await
    }

    /// Removes an attribute.
    pub async fn remove_xattr(&self, name: impl AsRef<[u8]>, attr: impl AsRef<[u8]>) -> Result<()> {
        self.done(name, Operation::new().remove_xattr(attr)).await
    }

    /// Lists keys with values after `after`, at most `max`.
    pub async fn omap(
        &self,
        name: impl AsRef<[u8]>,
        after: &[u8],
        max: u64,
    ) -> Result<OmapPage<BTreeMap<Bytes, Bytes>>> {
        self.run(name, Operation::new().omap_values(after, max, b"")).await?.omap(0)
    }

    /// Sets keys.
    pub async fn omap_set(
        &self,
        name: impl AsRef<[u8]>,
        values: &BTreeMap<Bytes, Bytes>,
    ) -> Result<()> {
        self.done(name, Operation::new().omap_set(values)).await
    }

    /// Removes keys.
    pub async fn omap_remove(&self, name: impl AsRef<[u8]>, keys: &BTreeSet<Bytes>) -> Result<()> {
        self.done(name, Operation::new().omap_remove(keys)).await
    }

    /// Makes a self managed snapshot: its id. It takes effect on writes with a snapshot context
    /// that has it.
    pub async fn create_snapshot(&self) -> Result<SnapId> {
        let reply = self.pool_op(PoolOpCode::CREATE_UNMANAGED_SNAP, SnapId(0)).await?;
        let id =
            reply.response_data.ok_or(ClientError::Invalid("the monitors sent no snapshot id"))?;
        Ok(denc::Decode::from_bytes(&id)?)
    }

    /// Removes a self managed snapshot; the OSDs trim it later.
    pub async fn remove_snapshot(&self, snapid: SnapId) -> Result<()> {
        self.pool_op(PoolOpCode::DELETE_UNMANAGED_SNAP, snapid).await.map(|_| ())
    }

    /// Returns when the map has the result.
    async fn pool_op(&self, op: PoolOpCode, snapid: SnapId) -> Result<PoolOpReply> {
        let pool = u32::try_from(self.pool.0).map_err(|_| ClientError::NoPool)?;
        let fsid = self.rados.mon().fsid().unwrap_or_default();
        let request = PoolOp { fsid, pool, op, snapid, ..PoolOp::default() };
        let reply: PoolOpReply = self.rados.mon().request(&request).await?;
        if let Some(e) = ClientError::from_code(reply.reply_code) {
            return Err(e);
        }
        self.rados.objecter().wait_epoch(reply.epoch).await?;
        Ok(reply)
    }

    /// Calls a class method; `writes` if it may change the object.
    pub async fn exec(
        &self,
        name: impl AsRef<[u8]>,
        class: &str,
        method: &str,
        input: &[u8],
        writes: bool,
    ) -> Result<Bytes> {
        self.data(name, Operation::new().exec(class, method, input, writes)?).await
    }

    /// Watches an object: `handler` hears of notifications, and of the end of the watch. The watch
    /// survives sessions and moves with its PG. The OSD drops it when it has heard nothing for
    /// `timeout` (0: as long as the OSD says).
    pub async fn watch(
        &self,
        name: impl AsRef<[u8]>,
        timeout: Duration,
        handler: impl Fn(WatchEvent) + 'static,
    ) -> Result<Watch> {
        let on = self.request(name, Operation::new());
        self.rados.objecter().watch(on, timeout, Rc::new(handler)).await
    }

    /// Notifies an object's watchers, and waits for their replies for `timeout` at most (0: as long
    /// as the OSD says).
    pub async fn notify(
        &self,
        name: impl AsRef<[u8]>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<NotifyOutcome> {
        let on = self.request(name, Operation::new());
        self.rados.objecter().notify(on, payload, timeout).await
    }

    /// Lists some of the namespace's objects, of all namespaces with `all_namespaces`. Go on with
    /// the returned cursor until it is at the end; a page may be empty before that.
    pub async fn list(
        &self,
        cursor: &ListCursor,
        max: u64,
        all_namespaces: bool,
    ) -> Result<(ListCursor, Vec<ListObject>)> {
        if cursor.is_end() {
            return Ok((cursor.clone(), Vec::new()));
        }
        let map = self.rados.objecter().wait_epoch(Epoch(1)).await?;
        let pool = map.pool(self.pool).ok_or(ClientError::NoPool)?;
        let namespace = if all_namespaces { ALL_NAMESPACES } else { self.namespace.clone() };
        let pgid = pool.raw_pg_to_pg(PgId::new(self.pool, cursor.0.hash));
        let flags = OsdFlags::READ | OsdFlags::PGOP | OsdFlags::IGNORE_OVERLAY;
        let op = list_op(cursor, max, map.epoch);
        let request = self.request_on(Scope::Pg { pgid, namespace }, vec![op], flags);
        let outcome = self.submit(request).await?.ok()?;
        decode_listing(outcome.output(0))
    }

    /// Lists all of the namespace's objects.
    pub async fn list_all(&self) -> Result<Vec<ListObject>> {
        let mut objects = Vec::new();
        let mut cursor = ListCursor::START;
        while !cursor.is_end() {
            let (next, page) = self.list(&cursor, 1024, false).await?;
            objects.extend(page);
            cursor = next;
        }
        Ok(objects)
    }
}
