//! What the monitors have been asked and have not answered.

use crate::error::{ClientError, Result};
use bytes::Bytes;
use msgr::Message;
use tokio::sync::oneshot;

/// Answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// 0 or positive, or a negative errno.
    pub code: i32,
    /// Status, for people.
    pub status: String,
    /// Output, often JSON.
    pub output: Bytes,
}

impl CommandOutput {
    /// The output, or the error that the code stands for.
    pub fn ok(self) -> Result<Bytes> {
        match ClientError::from_code(self.code) {
            Some(e) => Err(e),
            None => Ok(self.output),
        }
    }
}

pub(super) struct PendingCommand {
    pub cmd: Vec<String>,
    pub input: Bytes,
    pub reply: oneshot::Sender<Result<CommandOutput>>,
}

pub(super) struct PendingRequest {
    pub message: Message,
    /// Number of the answer's message.
    pub answer: u16,
    pub reply: oneshot::Sender<Result<Message>>,
}

pub(super) struct PendingVersion {
    pub what: String,
    pub reply: oneshot::Sender<Result<(u64, u64)>>,
}
