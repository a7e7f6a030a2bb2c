//! What is in objects: values that are told from torn ones.

use bytes::Bytes;
use denc::{Decode, Encode, Features};
use pg::ScrubObject;
use types::object_info::flag;
use types::{Eversion, ObjectId, ObjectInfo, PoolId, SnapId, SnapSet};

use crate::object::Object;

/// The identifier of an object.
pub fn object_id(pool: PoolId, object: u64) -> ObjectId {
    let name = Bytes::copy_from_slice(format!("object{object}").as_bytes());
    ObjectId::with_hash(
        pool,
        Bytes::new(),
        name,
        Bytes::new(),
        SnapId::NOSNAP,
        crate::rng::mix(object) as u32,
    )
}

/// The content that stands for a value: every word of it and every row says so.
pub fn object_with(value: u64, words: u32, version: Eversion) -> Object {
    let data = (0..words).flat_map(|_| value.to_le_bytes()).collect();
    let rows = value % 4;
    let omap = (0..rows)
        .map(|i| (Bytes::from(format!("row{i}")), Bytes::copy_from_slice(&value.to_le_bytes())))
        .collect();
    Object { version, data, omap, attr: attr_of(value), ..Object::default() }
}

/// The attribute of an object with this value.
pub fn attr_of(value: u64) -> u64 {
    crate::rng::mix(value)
}

/// The value of an object, if clients see one; all parts of it must agree.
pub fn value_of(object: &Object) -> Option<u64> {
    (!object.whiteout)
        .then(|| value_if_whole(object).unwrap_or_else(|| panic!("an object is torn: {object:?}")))
}

/// The value of an object, if all parts of it agree.
pub fn value_if_whole(object: &Object) -> Option<u64> {
    let word = |b: &[u8]| b.try_into().ok().map(u64::from_le_bytes);
    let value = word(object.data.get(..8)?)?;
    let data = object.data.chunks(8).all(|c| word(c) == Some(value));
    let rows = object.omap.len() as u64 == value % 4
        && object.omap.values().all(|v| word(v) == Some(value));
    (data && rows).then_some(value)
}

/// The number of an object.
pub fn number_of(oid: &ObjectId) -> Option<u64> {
    std::str::from_utf8(&oid.name).ok()?.strip_prefix("object")?.parse().ok()
}

/// The attributes of an object.
pub fn attrs_of(object: &Object) -> Vec<(Bytes, Bytes)> {
    let flags = if object.whiteout { flag::WHITEOUT } else { 0 };
    let info = ObjectInfo {
        version: object.version,
        size: object.data.len() as u64,
        flags,
        ..ObjectInfo::default()
    };
    let mut attrs = vec![
        (Bytes::from_static(b"_"), info.to_bytes(Features::ALL)),
        (Bytes::from_static(b"_attr"), Bytes::copy_from_slice(&object.attr.to_be_bytes())),
    ];
    if object.snapset != SnapSet::default() {
        attrs.push((Bytes::from_static(b"snapset"), object.snapset.to_bytes(Features::ALL)));
    }
    attrs
}

/// Gives an object its attributes.
pub fn set_attrs(object: &mut Object, attrs: &[(Bytes, Bytes)]) {
    for (name, value) in attrs {
        match &name[..] {
            b"_" => {
                let info = ObjectInfo::from_bytes(value).expect("written by this model");
                (object.version, object.whiteout) =
                    (info.version, info.flags & flag::WHITEOUT != 0);
            }
            b"_attr" => {
                object.attr =
                    u64::from_be_bytes(value[..].try_into().expect("written by this model"))
            }
            b"snapset" => {
                object.snapset = SnapSet::from_bytes(value).expect("written by this model")
            }
            other => unreachable!("no attribute {other:?} in this model"),
        }
    }
}

/// What a scrub sees of an object. Of one that cannot be read: its attributes.
pub fn scrubbed(object: &Object, bad: bool) -> ScrubObject {
    let rows = object.omap.to_bytes(Features::ALL);
    ScrubObject {
        size: object.data.len() as u64,
        attrs: attrs_of(object).into_iter().collect(),
        read_error: bad,
        data_digest: (!bad).then(|| denc::crc::crc32c(u32::MAX, &object.data)),
        omap_digest: (!bad).then(|| denc::crc::crc32c(u32::MAX, &rows)),
        ..ScrubObject::default()
    }
}
