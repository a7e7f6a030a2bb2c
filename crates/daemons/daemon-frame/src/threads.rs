//! A daemon on a thread of its own: how it starts, starts again and stops.

use crate::admin_socket::{AdminSocket, Handler};
use crate::commands::AnswerParts;
use anyhow::Result;
use bytes::Bytes;
use std::cell::RefCell;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use types::Errno;

/// The signal to stop, shared by all threads.
#[derive(Clone, Default)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Not given yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Gives it.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Waits for it.
    pub async fn stopped(&self) {
        let mut r = self.0.subscribe();
        let _ = r.wait_for(|s| *s).await;
    }
}

/// A future that stays on its thread. The crates of daemons give these away at their borders: the
/// code of an `async fn` is compiled in each crate that awaits it, and the program awaits all of
/// them; that of a boxed future is compiled once, where it is made.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a thread runs: it gets the signal to stop, and says through the sender that it serves.
pub type Daemon =
    Box<dyn FnOnce(Stop, oneshot::Sender<()>) -> LocalFuture<'static, Result<()>> + Send>;

/// How a daemon gets what it starts with, each time that it starts.
pub type MakeOptions = Box<dyn Fn() -> Result<crate::Options> + Send>;

/// The daemons' threads. Dropping this stops and joins them.
pub struct Threads {
    stop: Stop,
    handles: Vec<std::thread::JoinHandle<()>>,
    failures: (mpsc::UnboundedSender<anyhow::Error>, mpsc::UnboundedReceiver<anyhow::Error>),
}

impl Threads {
    /// No threads yet.
    pub fn new(stop: Stop) -> Threads {
        Threads { stop, handles: vec![], failures: mpsc::unbounded_channel() }
    }

    /// Starts a daemon on a thread of its own. The future is done when it serves, or fails with why
    /// not.
    pub fn spawn(
        &mut self,
        name: &str,
        daemon: Daemon,
    ) -> impl Future<Output = Result<()>> + use<> {
        let (ready, serving) = oneshot::channel();
        let (failed, failure) = oneshot::channel();
        let (stop, failures, label) =
            (self.stop.clone(), self.failures.0.clone(), name.to_string());
        let spawned = std::thread::Builder::new().name(name.to_string()).spawn(move || {
            let result = (|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                tokio::task::LocalSet::new().block_on(&runtime, daemon(stop, ready))
            })();
            if let Err(e) = result {
                let e = e.context(label);
                if let Err(e) = failed.send(e) {
                    // The start is not waited for any more: it failed while it served.
                    let _ = failures.send(e);
                }
            }
        });
        let spawned = spawned.map(|h| self.handles.push(h));
        async move {
            spawned?;
            match serving.await {
                Ok(()) => Ok(()),
                Err(_) => Err(failure
                    .await
                    .unwrap_or_else(|_| anyhow::anyhow!("a daemon ended before it served"))),
            }
        }
    }

    /// Waits for a daemon that fails while it serves.
    pub async fn failed(&mut self) -> Result<()> {
        match self.failures.1.recv().await {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.stop();
        for h in self.handles.drain(..) {
            let _ = h.join();
        }
    }
}

/// A daemon that is started again when the monitors have given its place away.
pub trait Service: 'static {
    /// Waits until it does not serve any more, and says why.
    fn ended(&self) -> impl Future<Output = String>;
    /// Closes what is left of it at its [`Service::ended`].
    fn leave(&self);
    /// Stops it in order.
    fn shutdown(&self) -> impl Future<Output = ()>;
    /// Runs a command of the admin socket, given as JSON text.
    fn admin_command(&self, json: &str) -> impl Future<Output = AnswerParts>;
}

/// Serves until the signal to stop, with an admin socket at `socket`. A start that fails is tried
/// again, except for the first; without options there is no start.
pub async fn serve<S: Service, E>(
    daemon: &str,
    socket: &Path,
    stop: Stop,
    ready: oneshot::Sender<()>,
    options: MakeOptions,
    start: impl AsyncFn(crate::Options) -> Result<S, E>,
) -> Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let running = Rc::new(RefCell::new(Some(Rc::new(start(options()?).await?))));
    let commands = running.clone();
    let handler: Handler = Rc::new(move |command| {
        let running = commands.borrow().clone();
        Box::pin(async move {
            match running {
                Some(s) => s.admin_command(&command).await,
                None => {
                    let status = "the daemon starts again: try again".to_owned();
                    (Errno::EAGAIN.as_result(), status, Bytes::new())
                }
            }
        })
    });
    let _socket = AdminSocket::serve(socket, handler)?;
    let _ = ready.send(());
    loop {
        let Some(service) = running.borrow().clone() else { return Ok(()) };
        tokio::select! {
            () = stop.stopped() => {
                service.shutdown().await;
                return Ok(());
            }
            why = service.ended() => tracing::warn!("{daemon} starts again: {why}"),
        }
        // It comes back as another, which waits for its turn.
        service.leave();
        *running.borrow_mut() = None;
        drop(service);
        let next = loop {
            tokio::select! {
                () = stop.stopped() => break None,
                started = start(options()?) => match started {
                    Ok(next) => break Some(next),
                    Err(e) => tracing::warn!("{daemon}: {e}; trying again"),
                }
            }
        };
        *running.borrow_mut() = next.map(Rc::new);
    }
}
