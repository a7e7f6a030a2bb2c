//! How a class declares its methods.

use crate::context::{LocalFuture, Object};
use bytes::Bytes;
use denc::{Decode, Encode, Features};
use types::errno::Errno;

/// What a method does to its object (`CLS_METHOD_*`). What it does beyond that fails its call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodFlags {
    /// It reads.
    pub read: bool,
    /// It writes.
    pub write: bool,
    /// A cache tier would have to have the object (there are none here; kept for the table's sake).
    pub promote: bool,
}

/// It neither reads nor writes its object.
pub const NONE: MethodFlags = MethodFlags { read: false, write: false, promote: false };
/// It reads.
pub const RD: MethodFlags = MethodFlags { read: true, ..NONE };
/// It writes.
pub const WR: MethodFlags = MethodFlags { write: true, ..NONE };
/// It reads and writes.
pub const RD_WR: MethodFlags = MethodFlags { read: true, write: true, promote: false };

impl MethodFlags {
    /// With the promote flag.
    pub const fn promote(self) -> MethodFlags {
        MethodFlags { promote: true, ..self }
    }
}

impl std::fmt::Display for MethodFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.read, self.write) {
            (true, true) => "Reads and writes.",
            (true, false) => "Reads.",
            (false, true) => "Writes.",
            (false, false) => "Neither reads nor writes.",
        })
    }
}

/// What a call gives back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The operation's return value. Negative: the call failed with that error, although it has
    /// output.
    pub value: i32,
    /// The operation's output.
    pub data: Bytes,
}

impl From<Bytes> for Output {
    fn from(data: Bytes) -> Self {
        Output { value: 0, data }
    }
}

impl From<()> for Output {
    fn from((): ()) -> Self {
        Output::default()
    }
}

/// What a method is.
pub type Handler = for<'a> fn(Object<'a>, Bytes) -> LocalFuture<'a, Result<Output, Errno>>;

/// A method.
#[derive(Clone, Copy)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// What it does to its object.
    pub flags: MethodFlags,
    /// Runs it on an input.
    pub run: Handler,
}

/// Declares a [`Method`]: name, flags, and an async function of the object and its input, which is
/// a type that decodes (if it does not, the call is EINVAL), [`Raw`] or [`Ignored`]. It returns
/// `()`, [`Bytes`] or an [`Output`].
macro_rules! method {
    ($name:literal, $flags:expr, $run:path) => {
        $crate::method::Method {
            name: $name,
            flags: $flags,
            run: |object, input| {
                Box::pin(async move {
                    let input = $crate::method::Input::from_input(input)?;
                    $run(object, input).await.map(Into::into)
                })
            },
        }
    };
}
pub(crate) use method;

/// What a method takes its input as.
pub trait Input: Sized {
    /// Reads it.
    fn from_input(input: Bytes) -> Result<Self, Errno>;
}

impl<T: Decode> Input for T {
    fn from_input(input: Bytes) -> Result<Self, Errno> {
        decode(input, Errno::EINVAL)
    }
}

/// The input as it came.
pub struct Raw(pub Bytes);

impl Input for Raw {
    fn from_input(input: Bytes) -> Result<Self, Errno> {
        Ok(Raw(input))
    }
}

/// An input that is not looked at.
pub struct Ignored;

impl Input for Ignored {
    fn from_input(_: Bytes) -> Result<Self, Errno> {
        Ok(Ignored)
    }
}

/// Reads a value; bytes that do not fit are `error`. What follows the value is ignored, as in Ceph.
pub fn decode<T: Decode>(bytes: Bytes, error: Errno) -> Result<T, Errno> {
    denc::Reader::new(bytes).get().map_err(|_| error)
}

/// A value's bytes, for values that do not depend on the reader's features.
pub fn encode<T: Encode + ?Sized>(value: &T) -> Bytes {
    value.to_bytes(Features::ALL)
}

/// A class.
pub struct Class {
    /// Its name.
    pub name: &'static str,
    /// Its methods.
    pub methods: &'static [Method],
}
