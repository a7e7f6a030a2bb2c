//! Bounds on what peers can make the gateway hold.

use s3::{ErrorCode, S3Error};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds of one gateway thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections. Further ones are closed at once.
    pub connections: usize,
    /// Requests under way. Further ones wait.
    pub requests: usize,
    /// Requests under way of one tenant: a bucket, or a user where there is no bucket.
    pub requests_of_tenant: usize,
    /// Requests that wait. Further ones are answered `SlowDown`.
    pub waiting: usize,
    /// How long a request waits before it is answered `SlowDown`.
    pub patience: Duration,
    /// Memory for bodies and documents, in bytes.
    pub memory_bytes: usize,
    /// The head of a request, in bytes. Of this size are the buffers of a busy connection, too.
    pub head_bytes: usize,
    /// How long a peer may take for the head of a request, may send nothing of a body that is
    /// waited for, and may take nothing of an answer.
    pub idle: Duration,
    /// Handshakes of TLS under way. Further ones wait.
    pub handshakes: usize,
    /// How long a handshake may take, with its wait.
    pub handshake: Duration,
    /// A body that brings less than so many bytes while it is waited for as long as `idle` says is
    /// given up.
    pub pace_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 16_384,
            requests: 512,
            requests_of_tenant: 256,
            waiting: 8_192,
            patience: Duration::from_secs(30),
            memory_bytes: 256 << 20,
            head_bytes: 128 << 10,
            idle: Duration::from_secs(60),
            handshakes: 256,
            handshake: Duration::from_secs(10),
            pace_bytes: 4 << 10,
        }
    }
}

/// At most so much of a body is in memory: what is received, hashed and on its way to OSDs.
pub(crate) const BODY_BYTES: u64 = 8 << 20;

/// The largest object of one PUT, and the largest part, in bytes.
pub(crate) const PUT_BYTES_MAX: u64 = 5 << 30;

/// The refusal of an object or a part of so many bytes.
pub(crate) fn too_large(bytes: u64) -> S3Error {
    S3Error::from(ErrorCode::EntityTooLarge)
        .with("ProposedSize", bytes.to_string())
        .with("MaxSizeAllowed", PUT_BYTES_MAX.to_string())
}

/// The unit in which memory is counted.
const UNIT_BYTES: usize = 1 << 10;

/// A right to be under way; it ends when it is dropped.
#[derive(Default)]
pub(crate) struct Held(Vec<OwnedSemaphorePermit>);

impl Held {
    pub fn add(&mut self, more: Held) {
        self.0.extend(more.0);
    }
}

/// Lets requests in while the bounds allow it, in the order in which they came.
pub(crate) struct Gate {
    limits: Limits,
    requests: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    tenants: RefCell<HashMap<String, Arc<Semaphore>>>,
    waiting: Cell<usize>,
}

/// Counts one waiting request while it exists.
struct Waits<'a>(&'a Cell<usize>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Above so many tenants, those without requests are forgotten.
const TENANTS_KEPT: usize = 1024;

impl Gate {
    pub fn new(limits: Limits) -> Gate {
        Gate {
            requests: Arc::new(Semaphore::new(limits.requests.max(1))),
            memory: Arc::new(Semaphore::new((limits.memory_bytes / UNIT_BYTES).max(1))),
            tenants: RefCell::default(),
            waiting: Cell::new(0),
            limits,
        }
    }

    fn tenant(&self, name: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.borrow_mut();
        if let Some(t) = tenants.get(name) {
            return t.clone();
        }
        if tenants.len() >= TENANTS_KEPT {
            tenants.retain(|_, t| Arc::strong_count(t) > 1);
        }
        let t = Arc::new(Semaphore::new(self.limits.requests_of_tenant.max(1)));
        tenants.insert(name.to_owned(), t.clone());
        t
    }

    /// Waits until a request of this tenant that needs so much memory may begin.
    pub async fn enter(&self, tenant: &str, bytes: u64) -> Result<Held, S3Error> {
        let of_tenant = self.tenant(tenant);
        self.wait(async {
            Ok(Held(vec![
                of_tenant.acquire_owned().await?,
                self.requests.clone().acquire_owned().await?,
                self.memory.clone().acquire_many_owned(self.units(bytes)).await?,
            ]))
        })
        .await
    }

    /// Waits for more memory for a request that is under way.
    pub async fn more(&self, bytes: u64) -> Result<Held, S3Error> {
        let units = self.units(bytes);
        self.wait(async { Ok(Held(vec![self.memory.clone().acquire_many_owned(units).await?])) })
            .await
    }

    /// No request may ask for more than a quarter of the memory, so that it can never wait for
    /// ever.
    fn units(&self, bytes: u64) -> u32 {
        let most = (self.limits.memory_bytes / UNIT_BYTES / 4).max(1);
        let units = usize::try_from(bytes / UNIT_BYTES as u64).unwrap_or(usize::MAX);
        u32::try_from(units.clamp(1, most)).unwrap_or(u32::MAX)
    }

    async fn wait(
        &self,
        rights: impl Future<Output = Result<Held, tokio::sync::AcquireError>>,
    ) -> Result<Held, S3Error> {
        let slow_down = || S3Error::from(ErrorCode::SlowDown);
        let mut rights = std::pin::pin!(rights);
        // What may go on at once does not count as waiting.
        let now = std::future::poll_fn(|cx| std::task::Poll::Ready(rights.as_mut().poll(cx))).await;
        if let std::task::Poll::Ready(held) = now {
            return held.map_err(|_| slow_down());
        }
        if self.waiting.get() >= self.limits.waiting {
            return Err(slow_down());
        }
        self.waiting.set(self.waiting.get() + 1);
        let _waits = Waits(&self.waiting);
        match tokio::time::timeout(self.limits.patience, rights).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(_)) | Err(_) => Err(slow_down()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(limits: Limits) -> Gate {
        Gate::new(limits)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_tenant_cannot_take_all_and_waits_are_bounded() {
        let g =
            gate(Limits { requests: 3, requests_of_tenant: 2, waiting: 1, ..Limits::default() });
        let a1 = g.enter("a", 1).await.unwrap();
        let _a2 = g.enter("a", 1).await.unwrap();
        {
            let third = g.enter("a", 1);
            let mut third = std::pin::pin!(third);
            let blocked =
                tokio::time::timeout(Duration::from_millis(1), third.as_mut()).await.is_err();
            assert!(blocked);
            // One waits already.
            assert_eq!(g.enter("a", 1).await.map(drop).unwrap_err().code, ErrorCode::SlowDown);
            // Another tenant does not wait.
            let b = g.enter("b", 1).await.unwrap();
            drop(b);
            drop(a1);
            third.await.unwrap();
        }
        assert_eq!(g.waiting.get(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn memory_is_bounded_and_no_request_waits_for_ever() {
        let patience = Duration::from_millis(20);
        let g = gate(Limits { memory_bytes: 8 << 10, patience, ..Limits::default() });
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(g.enter("a", u64::MAX).await.unwrap());
        }
        assert_eq!(g.more(1).await.map(drop).unwrap_err().code, ErrorCode::SlowDown);
        held.pop();
        g.more(2 << 10).await.unwrap();
        drop(held);
    }
}
