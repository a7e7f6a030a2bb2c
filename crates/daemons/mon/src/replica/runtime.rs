//! What the Raft library and the file run on: tokio. In tests it can also be a simulation, which
//! has its own time and one thread.

#[cfg(not(test))]
pub use openraft::TokioRuntime as Runtime;

#[cfg(test)]
pub use super::sim::Runtime;

/// Runs what blocks, while the thread goes on.
#[cfg(not(test))]
pub async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    tokio::task::spawn_blocking(f).await
}

#[cfg(test)]
pub use super::sim::blocking;
