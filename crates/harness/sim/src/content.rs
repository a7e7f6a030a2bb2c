//! What is in objects: values that are told from torn ones.

use bytes::Bytes;
use denc::{Decode, Encode, Features};
use pg::ScrubObject;
use pg::scrub::shards;
use types::object_info::flag;
use types::{Eversion, ObjectId, ObjectInfo, PoolId, SnapId, SnapSet};

use crate::object::{Cut, Lead, Object};

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
    if object.cut == Cut::Data {
        let version = shards::shard_attr(object.version);
        return vec![(Bytes::from_static(shards::SHARD_ATTR), version)];
    }
    let info = ObjectInfo {
        version: object.version,
        size: object.lead().map_or(object.data.len() as u64, |l| l.size),
        flags,
        ..ObjectInfo::default()
    };
    let mut attrs = vec![
        (Bytes::from_static(b"_"), info.to_bytes(Features::ALL)),
        (Bytes::from_static(b"_attr"), Bytes::copy_from_slice(&object.attr.to_be_bytes())),
    ];
    if let Cut::Lead(lead) = &object.cut {
        let versions = shards::shards_attr(&lead.shards);
        attrs.push((Bytes::from_static(shards::SHARDS_ATTR), versions));
    }
    if object.snapset != SnapSet::default() {
        attrs.push((Bytes::from_static(b"snapset"), object.snapset.to_bytes(Features::ALL)));
    }
    attrs
}

/// Gives an object its attributes.
pub fn set_attrs(object: &mut Object, attrs: &[(Bytes, Bytes)]) {
    let mut size = 0;
    for (name, value) in attrs {
        match &name[..] {
            shards::SHARD_ATTR => {
                object.version = Eversion::from_bytes(value).expect("written by this model");
                object.cut = Cut::Data;
            }
            shards::SHARDS_ATTR => {
                let shards = shards::shard_versions(Some(value)).expect("written by this model");
                object.cut = Cut::Lead(Lead { size, shards });
            }
            b"_" => {
                let info = ObjectInfo::from_bytes(value).expect("written by this model");
                (object.version, object.whiteout) =
                    (info.version, info.flags & flag::WHITEOUT != 0);
                size = info.size;
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
    let mut fold = [0; shards::FOLD_BYTES];
    if object.cut != Cut::Whole {
        shards::fold(&mut fold, 0, &object.data);
    }
    ScrubObject {
        fold: (!bad && object.cut != Cut::Whole).then(|| Bytes::copy_from_slice(&fold)),
        size: object.data.len() as u64,
        attrs: attrs_of(object).into_iter().collect(),
        read_error: bad,
        data_digest: (!bad).then(|| denc::crc::crc32c(u32::MAX, &object.data)),
        omap_digest: (!bad).then(|| denc::crc::crc32c(u32::MAX, &rows)),
        ..ScrubObject::default()
    }
}
