//! Reads of one shard of an object.

use bytes::Bytes;
use denc::{BufMut, BytesMut, Decode, DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use types::{Eversion, ObjectId};

/// The ranges and attributes that a primary reads of a shard.
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
#[denc(version = 1, compat = 1)]
pub struct ShardQuery {
    /// The object.
    pub oid: ObjectId,
    /// The version that the shard must have: that of the last change that named it. Zero: any.
    pub version: Eversion,
    /// Ranges of the shard: offset and length in bytes.
    pub extents: Vec<(u64, u64)>,
    /// Attributes and omap header, too.
    pub attrs: bool,
    /// Omap rows, too.
    pub omap: bool,
    /// Rows behind this key.
    pub omap_after: Option<Bytes>,
    /// So many rows at most.
    pub max_omap: u64,
    /// Clients wait for it.
    pub urgent: bool,
    /// The name that the client has a key for, if it is read for a client's operation.
    pub payer: String,
}

/// Bytes and attributes that were read of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardBytes {
    /// The shard's version.
    pub version: Eversion,
    /// Bytes that are stored of it.
    pub size: u64,
    /// How many bytes there are of each range: fewer than asked for where the shard ends.
    pub lengths: Vec<u64>,
    /// The bytes of all ranges, one after the other.
    pub data: Bytes,
    /// Attributes.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// Omap header.
    pub omap_header: Bytes,
    /// Omap rows.
    pub omap: Vec<(Bytes, Bytes)>,
    /// There are more rows.
    pub omap_more: bool,
}

/// A shard's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShardAnswer {
    /// What was asked for.
    Bytes(Box<ShardBytes>),
    /// The shard does not have the object in that version.
    Lacks {
        /// The version that it has; zero if none, or none that counts.
        version: Eversion,
    },
    /// It has, and cannot read it.
    Damaged,
}

impl ShardAnswer {
    /// The bulk bytes, which travel beside the rest.
    pub(crate) fn data(&self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes.data.clone(),
            _ => Bytes::new(),
        }
    }

    /// Gives it its bulk bytes.
    pub(crate) fn with_data(mut self, data: Bytes) -> denc::Result<Self> {
        if let Self::Bytes(bytes) = &mut self {
            let total = bytes.lengths.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
            if total != data.len() as u64 {
                return Err(DecodeError::Invalid { what: "ShardBytes data", found: total });
            }
            bytes.data = data;
        }
        Ok(self)
    }
}

impl Encode for ShardAnswer {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        match self {
            Self::Bytes(bytes) => {
                out.put_u8(0);
                bytes.version.encode(out, f);
                bytes.size.encode(out, f);
                bytes.lengths.encode(out, f);
                bytes.attrs.encode(out, f);
                bytes.omap_header.encode(out, f);
                bytes.omap.encode(out, f);
                bytes.omap_more.encode(out, f);
            }
            Self::Lacks { version } => {
                out.put_u8(1);
                version.encode(out, f);
            }
            Self::Damaged => out.put_u8(2),
        }
    }
}

impl Decode for ShardAnswer {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(match r.get::<u8>()? {
            0 => Self::Bytes(Box::new(ShardBytes {
                version: r.get()?,
                size: r.get()?,
                lengths: r.get()?,
                data: Bytes::new(),
                attrs: r.get()?,
                omap_header: r.get()?,
                omap: r.get()?,
                omap_more: r.get()?,
            })),
            1 => Self::Lacks { version: r.get()? },
            2 => Self::Damaged,
            found => return Err(DecodeError::Invalid { what: "ShardAnswer", found: found.into() }),
        })
    }
}
