//! Listing the objects of a PG (`PGNLS`, `PGLS`).
//!
//! The cursor of a listing is a place in the order of objects, so that it stays valid while objects
//! come and go, and across splits of the PG.

use crate::code::{Op, OpArgs};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use types::ObjectId;
use types::errno::Errno;

/// The namespace that stands for all (`LIBRADOS_ALL_NSPACES`).
pub const ALL_NAMESPACES: &[u8] = b"\x01";

/// A condition on objects that are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The attribute has this value (Ceph: `PGLSPlainFilter`, and the filter `hello.hello`).
    Plain {
        /// The attribute as stored, with its leading underscore.
        attr: Bytes,
        /// Its value.
        value: Bytes,
    },
}

/// A listing that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Where to begin.
    pub start: ObjectId,
    /// At most so many entries.
    pub max: usize,
    /// Which objects.
    pub filter: Option<Filter>,
    /// The answer names namespaces (`PGNLS`).
    pub with_namespace: bool,
}

/// Reads a listing's input.
///
/// # Errors
/// EINVAL if it cannot be read, or for a filter that does not exist; EPERM for one of a class that
/// may not be loaded.
pub fn parse(op: &Op, max: u64, classes: &cls::Registry) -> Result<Listing, Errno> {
    use crate::code::OpCode;
    let invalid = |_| Errno::EINVAL;
    let OpArgs::Pgls { count, .. } = op.args else { return Err(Errno::EINVAL) };
    let mut r = Reader::new(op.indata.clone());
    let mut filter = None;
    if matches!(op.code, OpCode::PGNLS_FILTER | OpCode::PGLS_FILTER) {
        let _class: Bytes = r.get().map_err(invalid)?;
        let _method: Bytes = r.get().map_err(invalid)?;
        let kind: Bytes = r.get().map_err(invalid)?;
        if kind != "plain" {
            classes.listing_filter(&kind)?;
        }
        let attr = r.get().map_err(invalid)?;
        let value = r.get().map_err(invalid)?;
        filter = Some(Filter::Plain { attr, value });
    }
    Ok(Listing {
        start: r.get().map_err(invalid)?,
        max: count.min(max) as usize,
        filter,
        with_namespace: matches!(op.code, OpCode::PGNLS | OpCode::PGNLS_FILTER),
    })
}

/// Whether an object is in the namespace that is listed.
pub fn in_namespace(oid: &ObjectId, namespace: &[u8], with_namespace: bool) -> bool {
    oid.namespace == namespace || (with_namespace && namespace == ALL_NAMESPACES)
}

/// Writes the answer: `pg_nls_response_t` or `pg_ls_response_t` (both version 1).
pub fn encode(next: &ObjectId, entries: &[ObjectId], with_namespace: bool) -> Bytes {
    let f = Features::ALL;
    let mut out = BytesMut::with_capacity(64 + entries.len() * 48);
    if with_namespace {
        denc::envelope(&mut out, 1, 1, |b| {
            next.encode(b, f);
            b.put_u32_le(entries.len() as u32);
            for e in entries {
                e.namespace.encode(b, f);
                e.name.encode(b, f);
                e.key.encode(b, f);
            }
        });
    } else {
        out.put_u8(1);
        next.encode(&mut out, f);
        out.put_u32_le(entries.len() as u32);
        for e in entries {
            e.name.encode(&mut out, f);
            e.key.encode(&mut out, f);
        }
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpCode;

    #[test]
    fn input_and_filter_are_read() {
        let args = OpArgs::Pgls { count: 5000, start_epoch: 0 };
        let plain = Op::with_input(OpCode::PGNLS, args, ObjectId::MIN.to_bytes(Features::ALL));
        let classes = cls::Registry::builtin();
        let l = parse(&plain, 1024, &classes).unwrap();
        assert_eq!((l.max, l.filter, l.with_namespace), (1024, None, true));
        assert!(parse(&Op::new(OpCode::PGNLS, args), 10, &classes).is_err());

        let b = |s: &'static str| Bytes::from_static(s.as_bytes());
        let with = |kind| {
            let mut input = BytesMut::new();
            for s in ["", "", kind, "_tag", "v"] {
                b(s).encode(&mut input, Features::ALL);
            }
            ObjectId::MIN.encode(&mut input, Features::ALL);
            parse(&Op::with_input(OpCode::PGNLS_FILTER, args, input.freeze()), 10, &classes)
        };
        for kind in ["plain", "hello.hello"] {
            assert_eq!(
                with(kind).unwrap().filter,
                Some(Filter::Plain { attr: b("_tag"), value: b("v") })
            );
        }
        assert_eq!(with("hello.other"), Err(Errno::EINVAL));
    }

    #[test]
    fn all_namespaces_are_one_name() {
        let o = ObjectId::new(types::PoolId(1), "ns", "o", "", types::SnapId::NOSNAP);
        assert!(in_namespace(&o, b"ns", true) && in_namespace(&o, ALL_NAMESPACES, true));
        assert!(!in_namespace(&o, b"", true) && !in_namespace(&o, ALL_NAMESPACES, false));
    }
}
