//! References to objects by tag; the object goes with the last one (Ceph: `cls/refcount`).

use crate::context::Object;
use crate::method::{Class, RD, RD_WR, decode, encode, method};
use bytes::Bytes;
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "refcount",
    methods: &[
        method!("get", RD_WR, get),
        method!("put", RD_WR, put),
        method!("set", RD_WR, set),
        method!("read", RD, read),
    ],
};

const ATTR: &[u8] = b"refcount";
/// The tag of the reference that an object without any stands for.
const WILDCARD: &[u8] = b"";

/// What is stored (Ceph: `obj_refcount`, `cls/refcount/cls_refcount_ops.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ObjRefcount {
    /// Tags that refer to the object; the value is always true.
    pub refs: BTreeMap<Bytes, bool>,
    /// Tags that did: one that was put stays put, however often it is sent.
    #[denc(since = 2)]
    pub retired_refs: BTreeSet<Bytes>,
}

/// Input of `get` and `put` (Ceph: `cls_refcount_get_op`, `cls_refcount_put_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct RefOp {
    /// The object that refers.
    pub tag: Bytes,
    /// An object without references has one: from before they were counted.
    pub implicit_ref: bool,
}

/// Input of `set` (Ceph: `cls_refcount_set_op`, version 1), output of `read`
/// (`cls_refcount_read_ret`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Refs {
    /// Tags.
    pub refs: Vec<Bytes>,
}

/// Input of `read` (Ceph: `cls_refcount_read_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReadOp {
    /// See [`RefOp::implicit_ref`].
    pub implicit_ref: bool,
}

async fn load(object: Object<'_>, implicit_ref: bool) -> Result<ObjRefcount, Errno> {
    match object.getxattr(ATTR).await {
        Ok(stored) => decode(stored, Errno::EIO),
        Err(Errno::ENODATA) => {
            let refs =
                implicit_ref.then(|| (Bytes::from_static(WILDCARD), true)).into_iter().collect();
            Ok(ObjRefcount { refs, ..ObjRefcount::default() })
        }
        Err(e) => Err(e),
    }
}

async fn store(object: Object<'_>, refs: &ObjRefcount) -> Result<(), Errno> {
    object.setxattr(ATTR, encode(refs)).await
}

async fn get(object: Object<'_>, op: RefOp) -> Result<(), Errno> {
    let mut found = load(object, op.implicit_ref).await?;
    found.refs.insert(op.tag, true);
    store(object, &found).await
}

async fn put(object: Object<'_>, op: RefOp) -> Result<(), Errno> {
    let mut found = load(object, op.implicit_ref).await?;
    if found.refs.is_empty() {
        return Err(Errno::EINVAL);
    }
    let tag: &[u8] = match found.refs.contains_key(&op.tag) {
        true => &op.tag,
        false if op.implicit_ref && found.refs.contains_key(WILDCARD) => WILDCARD,
        false => return Ok(()),
    };
    if found.retired_refs.contains(&op.tag) {
        return Ok(());
    }
    found.refs.remove(tag);
    found.retired_refs.insert(op.tag);
    if found.refs.is_empty() {
        return object.remove().await;
    }
    store(object, &found).await
}

async fn set(object: Object<'_>, op: Refs) -> Result<(), Errno> {
    if op.refs.is_empty() {
        return object.remove().await;
    }
    let refs = op.refs.into_iter().map(|tag| (tag, true)).collect();
    store(object, &ObjRefcount { refs, ..ObjRefcount::default() }).await
}

async fn read(object: Object<'_>, op: ReadOp) -> Result<Bytes, Errno> {
    let found = load(object, op.implicit_ref).await?;
    Ok(encode(&Refs { refs: found.refs.into_keys().collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn with_object() -> TestObject {
        let mut o = TestObject::new();
        o.stored.exists = true;
        o
    }

    fn op(tag: &'static str, implicit_ref: bool) -> RefOp {
        RefOp { tag: Bytes::from_static(tag.as_bytes()), implicit_ref }
    }

    fn tags(o: &mut TestObject, implicit_ref: bool) -> Vec<Bytes> {
        o.query::<_, Refs>("refcount", "read", &ReadOp { implicit_ref }).unwrap().refs
    }

    #[test]
    fn the_last_reference_takes_the_object_along() {
        let mut o = with_object();
        assert_eq!(o.exec("refcount", "put", &op("a", false)), Err(Errno::EINVAL));
        o.exec("refcount", "get", &op("a", false)).unwrap();
        o.exec("refcount", "get", &op("b", false)).unwrap();
        o.exec("refcount", "get", &op("b", false)).unwrap();
        assert_eq!(tags(&mut o, false), ["a", "b"]);
        o.exec("refcount", "put", &op("b", false)).unwrap();
        o.exec("refcount", "put", &op("b", false)).unwrap();
        o.exec("refcount", "put", &op("unknown", false)).unwrap();
        assert_eq!(tags(&mut o, false), ["a"]);
        o.exec("refcount", "put", &op("a", false)).unwrap();
        assert!(!o.stored.exists);
        assert_eq!(o.exec("refcount", "get", &op("a", false)), Err(Errno::ENOENT));
    }

    #[test]
    fn an_implicit_reference_counts_once() {
        let mut o = with_object();
        assert_eq!(tags(&mut o, true), [""]);
        assert!(tags(&mut o, false).is_empty());
        o.exec("refcount", "get", &op("a", true)).unwrap();
        assert_eq!(tags(&mut o, true), ["", "a"]);
        // Any tag releases the implicit one, and is then known to have done so.
        o.exec("refcount", "put", &op("x", true)).unwrap();
        assert_eq!(tags(&mut o, true), ["a"]);
        o.exec("refcount", "put", &op("x", true)).unwrap();
        assert_eq!(tags(&mut o, true), ["a"]);
        o.exec("refcount", "put", &op("a", true)).unwrap();
        assert!(!o.stored.exists);
        let mut o = with_object();
        o.exec("refcount", "put", &op("x", true)).unwrap();
        assert!(!o.stored.exists);
    }

    #[test]
    fn a_retired_tag_cannot_be_put_again() {
        let mut o = with_object();
        o.exec("refcount", "get", &op("a", false)).unwrap();
        o.exec("refcount", "get", &op("b", false)).unwrap();
        o.exec("refcount", "put", &op("a", false)).unwrap();
        o.exec("refcount", "get", &op("a", false)).unwrap();
        o.exec("refcount", "put", &op("a", false)).unwrap();
        assert_eq!(tags(&mut o, false), ["a", "b"]);
    }

    #[test]
    fn setting_replaces_all() {
        let mut o = with_object();
        o.exec("refcount", "get", &op("a", false)).unwrap();
        o.exec("refcount", "set", &Refs { refs: vec!["y".into(), "x".into()] }).unwrap();
        assert_eq!(tags(&mut o, false), ["x", "y"]);
        o.exec("refcount", "set", &Refs::default()).unwrap();
        assert!(!o.stored.exists);
    }
}
