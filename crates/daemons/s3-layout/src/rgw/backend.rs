//! What the layout asks of RADOS: requests on objects, pools, notifications, and the time.

use bytes::Bytes;
use client::{ClientError, Handler, ListCursor, OpOutcome, Operation, Request, Scope, Watch};
use cls::LocalFuture;
use std::rc::Rc;
use std::time::Duration;
use types::{ListObject, PoolId, SnapContext, SnapId, Utime};

/// The cluster below a layout. [`client::Rados`] is one.
pub trait Backend {
    /// Carries a request out. The outcome may be an error of the object's.
    fn submit(&self, request: Request) -> LocalFuture<'_, client::Result<OpOutcome>>;

    /// The number of a pool.
    fn pool<'a>(&'a self, name: &'a str) -> LocalFuture<'a, client::Result<PoolId>>;

    /// Makes a pool for the gateway's objects.
    fn create_pool<'a>(&'a self, name: &'a str) -> LocalFuture<'a, client::Result<PoolId>>;

    /// Watches an object.
    fn watch(&self, on: Request, handler: Handler) -> LocalFuture<'_, client::Result<Watch>>;

    /// Notifies an object's watchers: whether all of them answered in time.
    fn notify(
        &self,
        on: Request,
        payload: Bytes,
        timeout: Duration,
    ) -> LocalFuture<'_, client::Result<bool>>;

    /// Some objects of a namespace, from a cursor on, and the next one.
    fn list<'a>(
        &'a self,
        pool: PoolId,
        namespace: &'a Bytes,
        cursor: &'a ListCursor,
        max: u64,
    ) -> LocalFuture<'a, client::Result<(ListCursor, Vec<ListObject>)>>;

    /// A number that no other gateway at work has.
    fn instance(&self) -> u64;

    /// The time of day.
    fn now(&self) -> Utime;
}

impl Backend for client::Rados {
    fn submit(&self, request: Request) -> LocalFuture<'_, client::Result<OpOutcome>> {
        Box::pin(async move {
            let answer = self.objecter().submit(request);
            match self.objecter().options().op_timeout {
                Duration::ZERO => answer.await,
                limit => tokio::time::timeout(limit, answer)
                    .await
                    .unwrap_or(Err(ClientError::Timeout("waiting for an OSD"))),
            }
        })
    }

    fn pool<'a>(&'a self, name: &'a str) -> LocalFuture<'a, client::Result<PoolId>> {
        Box::pin(client::Rados::pool(self, name))
    }

    fn create_pool<'a>(&'a self, name: &'a str) -> LocalFuture<'a, client::Result<PoolId>> {
        Box::pin(async move {
            let create = serde_json::json!({"prefix": "osd pool create", "pool": name});
            self.mon_command(&create.to_string(), Bytes::new()).await?;
            let enable = serde_json::json!({
                "prefix": "osd pool application enable", "pool": name, "app": "rgw",
            });
            self.mon_command(&enable.to_string(), Bytes::new()).await?;
            client::Rados::pool(self, name).await
        })
    }

    fn watch(&self, on: Request, handler: Handler) -> LocalFuture<'_, client::Result<Watch>> {
        Box::pin(self.objecter().watch(on, Duration::ZERO, handler))
    }

    fn notify(
        &self,
        on: Request,
        payload: Bytes,
        timeout: Duration,
    ) -> LocalFuture<'_, client::Result<bool>> {
        Box::pin(async move {
            let outcome = self.objecter().notify(on, payload, timeout).await?;
            Ok(outcome.missed.is_empty())
        })
    }

    fn list<'a>(
        &'a self,
        pool: PoolId,
        namespace: &'a Bytes,
        cursor: &'a ListCursor,
        max: u64,
    ) -> LocalFuture<'a, client::Result<(ListCursor, Vec<ListObject>)>> {
        Box::pin(async move {
            let io = self.ioctx_of(pool).with_namespace(namespace);
            io.list(cursor, max, false).await
        })
    }

    fn instance(&self) -> u64 {
        self.mon().global_id()
    }

    fn now(&self) -> Utime {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Utime::from_duration(since.unwrap_or_default())
    }
}

/// A pool, with where in it. Cheap to clone; setters make a changed copy.
#[derive(Clone)]
pub(super) struct Io {
    backend: Rc<dyn Backend>,
    pool: PoolId,
    namespace: Bytes,
    key: Bytes,
}

impl Io {
    pub(super) fn new(backend: Rc<dyn Backend>, pool: PoolId, namespace: Bytes) -> Self {
        Io { backend, pool, namespace, key: Bytes::new() }
    }

    /// The time of day.
    pub(super) fn now(&self) -> Utime {
        self.backend.now()
    }

    pub(super) fn pool(&self) -> PoolId {
        self.pool
    }

    /// Placed by a key instead of the object's name.
    pub(super) fn with_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key = Bytes::copy_from_slice(key.as_ref());
        self
    }

    fn request(&self, name: impl AsRef<[u8]>, operation: Operation) -> Request {
        let flags = operation.request_flags();
        Request {
            scope: Scope::Object {
                pool: self.pool,
                namespace: self.namespace.clone(),
                key: self.key.clone(),
                name: Bytes::copy_from_slice(name.as_ref()),
            },
            ops: operation.ops,
            flags,
            snapid: SnapId::NOSNAP,
            snapc: SnapContext::default(),
            mtime: self.backend.now(),
        }
    }

    /// Runs an operation. The outcome may be an error of the object's.
    pub(super) async fn run(
        &self,
        name: impl AsRef<[u8]>,
        operation: Operation,
    ) -> client::Result<OpOutcome> {
        self.backend.submit(self.request(name, operation)).await
    }

    /// Runs an operation that succeeds; `mtime` is the time that the object carries afterwards.
    pub(super) async fn submit(
        &self,
        name: impl AsRef<[u8]>,
        operation: Operation,
        mtime: Option<Utime>,
    ) -> client::Result<OpOutcome> {
        let mut request = self.request(name, operation);
        if let Some(time) = mtime {
            request.mtime = time;
        }
        self.backend.submit(request).await?.ok()
    }

    /// Calls a class method; `writes` if it may change the object.
    pub(super) async fn exec(
        &self,
        name: impl AsRef<[u8]>,
        class: &str,
        method: &str,
        input: &[u8],
        writes: bool,
    ) -> client::Result<Bytes> {
        let op = Operation::new().exec(class, method, input, writes)?;
        self.run(name, op).await?.data(0)
    }

    pub(super) async fn read(
        &self,
        name: impl AsRef<[u8]>,
        offset: u64,
        length: u64,
    ) -> client::Result<Bytes> {
        self.run(name, Operation::new().read(offset, length)).await?.data(0)
    }

    pub(super) async fn get_xattr(
        &self,
        name: impl AsRef<[u8]>,
        attr: impl AsRef<[u8]>,
    ) -> client::Result<Bytes> {
        self.run(name, Operation::new().get_xattr(attr)).await?.data(0)
    }

    pub(super) async fn write_full(
        &self,
        name: impl AsRef<[u8]>,
        data: Bytes,
    ) -> client::Result<()> {
        self.submit(name, Operation::new().write_full(data), None).await.map(|_| ())
    }

    pub(super) async fn remove(&self, name: impl AsRef<[u8]>) -> client::Result<()> {
        self.submit(name, Operation::new().remove(), None).await.map(|_| ())
    }

    /// Some objects of the namespace, from a cursor on, and the next one.
    pub(super) async fn list(
        &self,
        cursor: &ListCursor,
        max: u64,
    ) -> client::Result<(ListCursor, Vec<ListObject>)> {
        self.backend.list(self.pool, &self.namespace, cursor, max).await
    }

    pub(super) async fn watch(
        &self,
        name: impl AsRef<[u8]>,
        handler: Handler,
    ) -> client::Result<Watch> {
        self.backend.watch(self.request(name, Operation::new()), handler).await
    }

    pub(super) async fn notify(
        &self,
        name: impl AsRef<[u8]>,
        payload: Bytes,
        timeout: Duration,
    ) -> client::Result<bool> {
        self.backend.notify(self.request(name, Operation::new()), payload, timeout).await
    }
}
