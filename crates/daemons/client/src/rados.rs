//! Pools and objects.

use crate::config::ClusterConfig;
use crate::error::{ClientError, Result};
use crate::listing::{ALL_NAMESPACES, ListCursor, decode_listing, list_op};
use crate::mon_client::{CommandOutput, MonClient, MonConfig};
use crate::objecter::{Objecter, OpOutcome, Request, Scope};
use crate::operation::{Operation, Stat, decode_omap};
use bytes::Bytes;
use messages::{PoolOp, PoolOpCode, PoolOpReply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::rados::OsdFlags;
use types::{Epoch, ListObject, OsdId, PgId, PoolId, SnapContext, SnapId, Utime};

/// A connection with a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Rados {
    mon: MonClient,
    objecter: Objecter,
}

impl Rados {
    /// Connects: waits for a session with a monitor and for an OSD map. Must be called within a
    /// `LocalSet`.
    pub async fn connect(cluster: &ClusterConfig, limit: Duration) -> Result<Self> {
        Self::connect_with(MonConfig::new(cluster), limit).await
    }

    /// The same with more to choose.
    pub async fn connect_with(config: MonConfig, limit: Duration) -> Result<Self> {
        let mon = MonClient::new(config);
        let objecter = Objecter::new(mon.clone());
        mon.set_events(objecter.events());
        let rados = Rados { mon, objecter };
        let ready = async {
            rados.mon.wait_ready(limit).await?;
            rados.objecter.wait_epoch(Epoch(1)).await
        };
        match tokio::time::timeout(limit, ready).await {
            Ok(Ok(_)) => Ok(rados),
            Ok(Err(error)) => {
                rados.shutdown();
                Err(error)
            }
            Err(_) => {
                rados.shutdown();
                Err(ClientError::Timeout("connecting to the cluster"))
            }
        }
    }

    /// Objects over a monitor client and an objecter that are there already, as a daemon has them.
    pub fn over(mon: MonClient, objecter: Objecter) -> Self {
        Rados { mon, objecter }
    }

    /// The monitor client.
    pub fn mon(&self) -> &MonClient {
        &self.mon
    }

    /// What sends requests.
    pub fn objecter(&self) -> &Objecter {
        &self.objecter
    }

    /// Runs a command on the monitors: a JSON object with `prefix`.
    pub async fn mon_command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.mon.command(json, input).await
    }

    /// Runs a command on the active mgr.
    pub async fn mgr_command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.objecter.mgr_command(json, input).await
    }

    /// Runs a command on an OSD.
    pub async fn osd_command(&self, osd: OsdId, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.objecter.osd_command(osd, json, input).await
    }

    /// The number of a pool. A name that the map does not have is looked for in the newest map.
    pub async fn pool(&self, name: &str) -> Result<PoolId> {
        let find = |map: &types::OsdMap| map.pool_by_name(name);
        if let Some(id) = self.objecter.map().and_then(|m| find(&m)) {
            return Ok(id);
        }
        let latest = self.objecter.wait_latest().await?;
        find(&latest).ok_or(ClientError::NoPool)
    }

    /// A pool by name.
    pub async fn ioctx(&self, pool: &str) -> Result<IoCtx> {
        Ok(self.ioctx_of(self.pool(pool).await?))
    }

    /// A pool by number.
    pub fn ioctx_of(&self, pool: PoolId) -> IoCtx {
        IoCtx {
            rados: self.clone(),
            pool,
            namespace: Bytes::new(),
            key: Bytes::new(),
            snapid: SnapId::NOSNAP,
            snapc: SnapContext::default(),
            limit: None,
        }
    }

    /// Ends the connection. Waiting requests fail.
    pub fn shutdown(&self) {
        self.objecter.shutdown();
        self.mon.shutdown();
    }
}

/// A pool, with where in it and which snapshot. Cheap to clone; setters make a changed copy.
#[derive(Clone)]
pub struct IoCtx {
    rados: Rados,
    pool: PoolId,
    namespace: Bytes,
    key: Bytes,
    snapid: SnapId,
    snapc: SnapContext,
    limit: Option<Duration>,
}

fn wall_clock() -> Utime {
    Utime::from_duration(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default(),
    )
}

impl IoCtx {
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
    pub fn with_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Bytes::copy_from_slice(namespace.as_bytes());
        self
    }

    /// Placed by a key instead of the object's name.
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Bytes::copy_from_slice(key.as_bytes());
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

    /// Gives up on an answer after so long.
    pub fn with_timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Runs a sequence of operations on an object. The outcome may be an error of the object's;
    /// other failures are errors here.
    pub async fn run(&self, name: &str, operation: Operation) -> Result<OpOutcome> {
        let flags = operation.request_flags();
        let scope = Scope::Object {
            pool: self.pool,
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            name: Bytes::copy_from_slice(name.as_bytes()),
        };
        self.submit(scope, operation.ops, flags).await
    }

    async fn submit(
        &self,
        scope: Scope,
        ops: Vec<messages::Op>,
        flags: OsdFlags,
    ) -> Result<OpOutcome> {
        let request = Request {
            scope,
            ops,
            flags,
            snapid: self.snapid,
            // A pool with snapshots of its own has the OSD fill them in.
            snapc: self.snapc.clone(),
            mtime: wall_clock(),
        };
        let answer = self.rados.objecter.submit(request);
        match self.limit {
            None => answer.await,
            Some(limit) => tokio::time::timeout(limit, answer)
                .await
                .unwrap_or(Err(ClientError::Timeout("waiting for an OSD"))),
        }
    }

    async fn done(&self, name: &str, operation: Operation) -> Result<()> {
        self.run(name, operation).await?.ok().map(|_| ())
    }

    async fn output(&self, name: &str, operation: Operation) -> Result<Bytes> {
        Ok(self.run(name, operation).await?.ok()?.output(0))
    }

    /// Reads a range; shorter if the object ends before.
    pub async fn read(&self, name: &str, offset: u64, length: u64) -> Result<Bytes> {
        self.output(name, Operation::new().read(offset, length)).await
    }

    /// Writes a range.
    pub async fn write(&self, name: &str, offset: u64, data: Bytes) -> Result<()> {
        self.done(name, Operation::new().write(offset, data)).await
    }

    /// Replaces the object's data.
    pub async fn write_full(&self, name: &str, data: Bytes) -> Result<()> {
        self.done(name, Operation::new().write_full(data)).await
    }

    /// Appends.
    pub async fn append(&self, name: &str, data: Bytes) -> Result<()> {
        self.done(name, Operation::new().append(data)).await
    }

    /// Size and time.
    pub async fn stat(&self, name: &str) -> Result<Stat> {
        Stat::decode(self.output(name, Operation::new().stat()).await?)
    }

    /// Removes the object.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.done(name, Operation::new().remove()).await
    }

    /// Reads an attribute.
    pub async fn get_xattr(&self, name: &str, attr: &str) -> Result<Bytes> {
        self.output(name, Operation::new().get_xattr(attr)).await
    }

    /// Reads all attributes.
    pub async fn get_xattrs(&self, name: &str) -> Result<BTreeMap<Bytes, Bytes>> {
        let output = self.output(name, Operation::new().get_xattrs()).await?;
        Ok(denc::Decode::from_bytes(&output)?)
    }

    /// Sets an attribute.
    pub async fn set_xattr(&self, name: &str, attr: &str, value: &[u8]) -> Result<()> {
        self.done(name, Operation::new().set_xattr(attr, value)).await
    }

    /// Removes an attribute.
    pub async fn remove_xattr(&self, name: &str, attr: &str) -> Result<()> {
        self.done(name, Operation::new().remove_xattr(attr)).await
    }

    /// Lists keys with values after `after`, at most `max`; and whether there are more.
    pub async fn omap(
        &self,
        name: &str,
        after: &[u8],
        max: u64,
    ) -> Result<(BTreeMap<Bytes, Bytes>, bool)> {
        decode_omap(self.output(name, Operation::new().omap_values(after, max, b"")).await?)
    }

    /// Sets keys.
    pub async fn omap_set(&self, name: &str, values: &BTreeMap<Bytes, Bytes>) -> Result<()> {
        self.done(name, Operation::new().omap_set(values)).await
    }

    /// Removes keys.
    pub async fn omap_remove(&self, name: &str, keys: &BTreeSet<Bytes>) -> Result<()> {
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
        let fsid = self.rados.mon.fsid().unwrap_or_default();
        let request = PoolOp { fsid, pool, op, snapid, ..PoolOp::default() };
        let reply: PoolOpReply = self.rados.mon.request(&request).await?;
        if let Some(e) = ClientError::from_code(reply.reply_code) {
            return Err(e);
        }
        self.rados.objecter.wait_epoch(reply.epoch).await?;
        Ok(reply)
    }

    /// Calls a class method; `writes` if it may change the object.
    pub async fn exec(
        &self,
        name: &str,
        class: &str,
        method: &str,
        input: &[u8],
        writes: bool,
    ) -> Result<Bytes> {
        self.output(name, Operation::new().exec(class, method, input, writes)?).await
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
        let map = self.rados.objecter.wait_epoch(Epoch(1)).await?;
        let pool = map.pool(self.pool).ok_or(ClientError::NoPool)?;
        let namespace = if all_namespaces { ALL_NAMESPACES } else { self.namespace.clone() };
        let pgid = pool.raw_pg_to_pg(PgId::new(self.pool, cursor.0.hash));
        let flags = OsdFlags::READ | OsdFlags::PGOP | OsdFlags::IGNORE_OVERLAY;
        let op = list_op(cursor, max, map.epoch);
        let outcome = self.submit(Scope::Pg { pgid, namespace }, vec![op], flags).await?.ok()?;
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
