//! What a command sees, and what it answers.

use crate::state::MgrState;
use bytes::Bytes;
use command::{Args, Format, Refusal, Reply};
use serde_json::Value;
use std::sync::Arc;
use types::{OsdMap, Utime};

/// What a handler sees.
pub struct Context<'a> {
    /// The manager's state.
    pub state: &'a MgrState,
    /// The OSD map.
    pub map: &'a Arc<OsdMap>,
    /// The arguments.
    pub args: &'a Args,
    /// How the client wants its data.
    pub format: Format,
    /// The time.
    pub now: Utime,
    /// Data that came with the command.
    pub input: &'a Bytes,
}

/// What a command answers.
pub type Answer = Result<Reply, Refusal>;

/// JSON text as a reply, whatever the format: commands without a form for people.
pub(super) fn json(cx: &Context<'_>, value: &Value) -> Answer {
    Ok(Reply::data(cx.format.json(value)))
}

/// Text without a form for programs.
pub(super) fn text(t: impl Into<Bytes>) -> Answer {
    Ok(Reply::data(t))
}
