//! What all messages share: the [`Payload`] trait, its error, and the macro that declares a
//! message.

use bytes::{Bytes, BytesMut};
use denc::crc::Sum;
use denc::{Decode, DecodeError, Encode, Features, Reader};
use types::message::Message;

/// Why a message could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is of another type than the one asked for: a mistake of the caller.
    #[error("expected {expected} (type {expected_type}), got type {found}")]
    OtherType {
        /// The name of the message asked for.
        expected: &'static str,
        /// Its number.
        expected_type: u16,
        /// The number in the header.
        found: u16,
    },
    /// The sender says that readers below `compat` must not try.
    #[error("{name}: sent with compat version {compat}, this reader knows up to {supported}")]
    Incompatible {
        /// The message's name.
        name: &'static str,
        /// `compat_version` of its header.
        compat: u16,
        /// The newest version that this reader knows.
        supported: u16,
    },
    /// The header version is older than any that a supported peer sends.
    #[error("{name}: version {version} is older than any supported")]
    TooOld {
        /// The message's name.
        name: &'static str,
        /// `version` of its header.
        version: u16,
    },
    /// The bytes are not what the type says.
    #[error("{name}")]
    Malformed {
        /// The message's name.
        name: &'static str,
        /// What is wrong with them.
        #[source]
        source: DecodeError,
    },
}

/// A message's content as it goes into the segments of a frame.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Header version that the front is written in.
    pub version: u16,
    /// Oldest header version with readers that understand it.
    pub compat: u16,
    /// Front segment.
    pub front: Bytes,
    /// Middle segment.
    pub middle: Bytes,
    /// Data segment, in pieces.
    pub data: Vec<Bytes>,
    /// Checksum of the data segment, if it is known.
    pub data_sum: Option<Sum>,
}

/// A message's segments as they came.
#[derive(Clone, Debug)]
pub struct Received {
    /// Header version that the front is written in.
    pub version: u16,
    /// Front segment.
    pub front: Reader,
    /// Middle segment.
    pub middle: Bytes,
    /// Data segment.
    pub data: Bytes,
}

/// A message: Ceph's `Message` subclass.
pub trait Payload: Sized {
    /// Its number in the header (`CEPH_MSG_*`, `MSG_*`).
    const TYPE: u16;
    /// Its name in logs, as Ceph prints it.
    const NAME: &'static str;
    /// The newest header version that is written.
    const HEAD_VERSION: u16;
    /// The oldest header version with readers that understand what is written.
    const COMPAT_VERSION: u16;

    /// Writes the content for a peer with `features`.
    fn encode_parts(&self, features: Features) -> Parts;

    /// Reads the content.
    fn decode_parts(r: Received) -> denc::Result<Self>;

    /// The whole message; the caller sets `tid` and, if needed, the priority.
    fn encode(&self, features: Features) -> Message {
        let parts = self.encode_parts(features);
        let mut m = Message::new(Self::TYPE, parts.front);
        m.version = parts.version;
        m.compat_version = parts.compat;
        m.middle = parts.middle;
        m.data = parts.data.into_iter().collect();
        m.data_sum = parts.data_sum;
        m
    }

    /// Reads a message that must be of this type.
    fn decode(m: &Message) -> Result<Self, MessageError> {
        if m.msg_type != Self::TYPE {
            return Err(MessageError::OtherType {
                expected: Self::NAME,
                expected_type: Self::TYPE,
                found: m.msg_type,
            });
        }
        if m.compat_version > Self::HEAD_VERSION {
            return Err(MessageError::Incompatible {
                name: Self::NAME,
                compat: m.compat_version,
                supported: Self::HEAD_VERSION,
            });
        }
        Self::decode_parts(Received {
            version: m.version,
            front: Reader::new(m.front.clone()),
            middle: m.middle.clone(),
            data: whole(&m.data),
        })
        .map_err(|source| MessageError::Malformed { name: Self::NAME, source })
    }
}

/// A data segment in one piece. What comes from a peer is one piece already; only a message that is
/// handed over inside the process may have several.
fn whole(pieces: &[Bytes]) -> Bytes {
    match pieces {
        [] => Bytes::new(),
        [one] => one.clone(),
        many => {
            let mut all = BytesMut::with_capacity(many.iter().map(Bytes::len).sum());
            many.iter().for_each(|b| all.extend_from_slice(b));
            all.freeze()
        }
    }
}

/// The header of messages that go through a monitor service (Ceph: `PaxosServiceMessage`): the map
/// version that the sender has. The two fields after it are from before the monitors kept sessions;
/// they are written as empty and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paxos(pub u64);

impl Encode for Paxos {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.0.encode(out, f);
        (-1i16).encode(out, f);
        0u64.encode(out, f);
    }
}
impl Decode for Paxos {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let version = r.get()?;
        r.skip("PaxosServiceMessage", 10)?;
        Ok(Paxos(version))
    }
}

/// The rest of the front segment, whatever it is. Used for maps, which their owner encodes once and
/// keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rest(pub Bytes);

impl Encode for Rest {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        out.extend_from_slice(&self.0);
    }
}
impl Decode for Rest {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(Rest(r.rest()))
    }
}

/// Declares messages with a front of their fields, one after the other.
///
/// ```text
/// message! {
///     /// What it is for.
///     MonCommand = 50, "mon_command", version 1, compat 1 {
///         /// ...
///         cmd: Vec<String>,
///         /// absent before header version 2
///         extra: u32 = since 2,
///     }, data input       // the data segment becomes the field `input`
/// }
/// ```
macro_rules! message {
    ($(
        $(#[$meta:meta])*
        $name:ident = $ty:literal, $wire:literal, version $head:literal, compat $compat:literal {
            $( $(#[$fmeta:meta])* $field:ident : $fty:ty $(= since $since:literal)? ),* $(,)?
        } $(, data $data:ident)?
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $fty, )*
            $( /// The data segment.
               pub $data: ::bytes::Bytes, )?
        }

        impl $crate::Payload for $name {
            const TYPE: u16 = $ty;
            const NAME: &'static str = $wire;
            const HEAD_VERSION: u16 = $head;
            const COMPAT_VERSION: u16 = $compat;

            #[allow(unused_variables, unused_mut)]
            fn encode_parts(&self, features: ::denc::Features) -> $crate::Parts {
                let mut front = ::bytes::BytesMut::new();
                $( ::denc::Encode::encode(&self.$field, &mut front, features); )*
                let mut data = Vec::new();
                $( if !self.$data.is_empty() { data.push(self.$data.clone()); } )?
                $crate::Parts {
                    version: $head,
                    compat: $compat,
                    front: front.freeze(),
                    data,
                    ..$crate::Parts::default()
                }
            }

            #[allow(unused_mut, unused_variables)]
            fn decode_parts(mut r: $crate::Received) -> ::denc::Result<Self> {
                Ok($name {
                    $( $field: $crate::payload::message!(@read r, $fty $(, $since)?), )*
                    $( $data: r.data.clone(), )?
                })
            }
        }

        #[cfg(test)]
        impl $crate::sample::Sample for $name {
            #[allow(unused_variables)]
            fn sample(g: &mut $crate::sample::Gen) -> Self {
                $name {
                    $( $field: $crate::sample::Sample::sample(g), )*
                    $( $data: $crate::sample::Sample::sample(g), )?
                }
            }
        }
    )*};
    (@read $r:ident, $fty:ty) => { <$fty as ::denc::Decode>::decode(&mut $r.front)? };
    (@read $r:ident, $fty:ty, $since:literal) => {
        if $r.version >= $since { <$fty as ::denc::Decode>::decode(&mut $r.front)? } else { Default::default() }
    };
}
pub(crate) use message;
