//! What a command answers.

use crate::Args;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use types::errno::Errno;

/// A successful answer: a status line (which `ceph` prints to standard error) and data (standard
/// output).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The status line.
    pub status: String,
    /// The data.
    pub data: Bytes,
}

impl Reply {
    /// Nothing to say.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Only a status line.
    pub fn status(text: impl Into<String>) -> Self {
        Reply { status: text.into(), data: Bytes::new() }
    }

    /// Only data.
    pub fn data(data: impl Into<Bytes>) -> Self {
        Reply { status: String::new(), data: data.into() }
    }

    /// Adds a status line.
    pub fn with_status(mut self, text: impl Into<String>) -> Self {
        self.status = text.into();
        self
    }
}

/// A refusal: an error number, a status line, and rarely data as well.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The error number (positive).
    pub errno: Errno,
    /// The status line.
    pub message: String,
    /// Data that goes with it.
    pub data: Bytes,
}

impl Refusal {
    /// A refusal with its reason.
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Refusal { errno, message: message.into(), data: Bytes::new() }
    }

    /// Shorthand for the most common error.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Errno::EINVAL, message)
    }

    /// Something that this system does not do.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Errno::EOPNOTSUPP, message)
    }
}

/// How the client wants its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Plain,
    /// One line of JSON.
    Json,
    /// Indented JSON.
    JsonPretty,
}

impl Format {
    /// The format in which a handler is to write for these arguments. What clients want as XML is
    /// written as JSON and turned at the end ([`crate::Shape`]), which refuses what is not known.
    pub fn of(args: &Args) -> Format {
        match args.str("format") {
            None | Some("plain" | "") => Format::Plain,
            Some("json" | "json-compact" | "xml" | "xml-pretty") => Format::Json,
            Some(_) => Format::JsonPretty,
        }
    }

    /// The JSON text of `value`; in the plain format, the indented one (what Ceph falls back to for
    /// commands without a form for people).
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Bytes {
        let mut out = Vec::new();
        let done = match self {
            Format::Json => serde_json::to_writer(&mut out, value),
            _ => {
                let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
                let done =
                    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, indent));
                out.push(b'\n');
                done
            }
        };
        done.expect("values of commands have string keys");
        out.into()
    }

    /// A reply with `value` as JSON, or what `plain` writes.
    pub fn reply(self, value: impl FnOnce() -> Value, plain: impl FnOnce() -> String) -> Reply {
        match self {
            Format::Plain => Reply::data(plain()),
            f => Reply::data(f.json(&value())),
        }
    }
}
