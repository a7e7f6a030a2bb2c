//! Admin sockets: how `ceph daemon NAME COMMAND` reaches a daemon.
//!
//! A client connects to the Unix socket, sends a JSON object and a zero byte, and reads a
//! big-endian `u32` length and that many bytes (Ceph 16.2: `src/common/admin_socket.cc`). An answer
//! has no error code, so a failed command's text is its answer, prefixed by `ERROR: `.

use crate::commands::AnswerParts;
use anyhow::{Context, Result};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Longest command that is read, in bytes.
const COMMAND_BYTES_MAX: usize = 1 << 20;
/// How many clients are served at the same time.
const CLIENTS_MAX: usize = 32;
/// How long a client may take for its command and for reading the answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command given as JSON text.
pub type Handler = Rc<dyn Fn(String) -> Pin<Box<dyn Future<Output = AnswerParts>>>>;

/// A listening socket; its file is removed when this is dropped.
pub struct AdminSocket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl AdminSocket {
    /// Listens at `path` on the current `LocalSet`. A file left by a dead process is replaced: the
    /// data directory's lock guarantees that no living one uses it.
    pub fn serve(path: &Path, handler: Handler) -> Result<AdminSocket> {
        let _ = std::fs::remove_file(path);
        let listen = || {
            let listener = modes::listen(path)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        let listener = listen().with_context(|| format!("cannot listen at {}", path.display()))?;
        let slots = Rc::new(tokio::sync::Semaphore::new(CLIENTS_MAX));
        let task = tokio::task::spawn_local(async move {
            while let Ok(permit) = slots.clone().acquire_owned_local().await {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let handler = handler.clone();
                tokio::task::spawn_local(async move {
                    if let Ok(Err(e)) =
                        tokio::time::timeout(PATIENCE, answer(stream, handler)).await
                    {
                        tracing::debug!("admin socket: {e}");
                    }
                    drop(permit);
                });
            }
        });
        Ok(AdminSocket { path: path.to_path_buf(), task })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// `Semaphore::acquire_owned` needs an `Arc`; on one thread an `Rc` and a borrowed permit are
/// enough.
trait AcquireLocal {
    /// Waits for a slot; dropping the guard gives it back.
    async fn acquire_owned_local(self) -> Result<SlotGuard, tokio::sync::AcquireError>;
}

/// One slot in use.
struct SlotGuard(Rc<tokio::sync::Semaphore>);

impl AcquireLocal for Rc<tokio::sync::Semaphore> {
    async fn acquire_owned_local(self) -> Result<SlotGuard, tokio::sync::AcquireError> {
        self.acquire().await?.forget();
        Ok(SlotGuard(self))
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

async fn answer(mut stream: UnixStream, handler: Handler) -> Result<()> {
    let mut command = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        if let Some(end) = command.iter().position(|b| *b == 0 || *b == b'\n') {
            break end;
        }
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            break command.len();
        }
        command.extend_from_slice(&buffer[..n]);
        anyhow::ensure!(
            command.len() <= COMMAND_BYTES_MAX,
            "a command of over {COMMAND_BYTES_MAX} bytes"
        );
    };
    command.truncate(end);
    let text = String::from_utf8_lossy(&command).into_owned();
    // Old clients send a bare word.
    let text = if text.trim_start().starts_with('{') {
        text
    } else {
        serde_json::json!({ "prefix": text.trim() }).to_string()
    };
    let (code, status, mut output) = handler(text).await;
    if code < 0 && output.is_empty() {
        output = format!("ERROR: {status}\n").into();
    } else if output.is_empty() {
        output = status.into();
    }
    stream.write_all(&u32::try_from(output.len())?.to_be_bytes()).await?;
    stream.write_all(&output).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speaks_the_protocol() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.asok");
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&rt, async {
            let handler: Handler = Rc::new(|c| {
                Box::pin(async move {
                    if c.contains("fail") {
                        (-22, "no".into(), bytes::Bytes::new())
                    } else {
                        (0, String::new(), c.into())
                    }
                })
            });
            let socket = AdminSocket::serve(&path, handler).unwrap();
            for (command, expected) in [
                (&b"{\"prefix\": \"version\"}\0"[..], "{\"prefix\": \"version\"}"),
                (b"version\0", "{\"prefix\":\"version\"}"),
                (b"fail\0", "ERROR: no\n"),
            ] {
                let mut s = UnixStream::connect(&path).await.unwrap();
                s.write_all(command).await.unwrap();
                let n = s.read_u32().await.unwrap() as usize;
                let mut out = vec![0; n];
                s.read_exact(&mut out).await.unwrap();
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
            drop(socket);
            assert!(!path.exists());
        });
    }
}
