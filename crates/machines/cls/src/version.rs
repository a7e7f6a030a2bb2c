//! Versions of objects that clients count themselves (Ceph: `cls/version`).

use crate::context::Object;
use crate::method::{Class, Ignored, RD, RD_WR, decode, encode, method};
use base64::Engine;
use bytes::Bytes;
use denc_derive::Denc;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "version",
    methods: &[
        method!("set", RD_WR, set),
        method!("inc", RD_WR, inc),
        method!("inc_conds", RD_WR, inc),
        method!("read", RD, read),
        method!("check_conds", RD, check),
    ],
};

const ATTR: &[u8] = b"ceph.objclass.version";
/// Random bytes of a tag: 24 characters.
const TAG_BYTES: usize = 18;

/// A version (Ceph: `obj_version`, `cls/version/cls_version_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjVersion {
    /// Its number.
    pub ver: u64,
    /// Which sequence of numbers.
    pub tag: Bytes,
}

/// A comparison (Ceph: `VersionCond`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct Cond(pub u32);

impl Cond {
    /// Always true.
    pub const NONE: Cond = Cond(0);
    /// Number and tag are the same.
    pub const EQ: Cond = Cond(1);
    /// The object's number is greater.
    pub const GT: Cond = Cond(2);
    /// Greater or the same.
    pub const GE: Cond = Cond(3);
    /// Less.
    pub const LT: Cond = Cond(4);
    /// Less or the same.
    pub const LE: Cond = Cond(5);
    /// The tag is the same.
    pub const TAG_EQ: Cond = Cond(6);
    /// The tag is another one.
    pub const TAG_NE: Cond = Cond(7);
}

/// A condition on the object's version (Ceph: `obj_version_cond`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjVersionCond {
    /// What it is compared with.
    pub ver: ObjVersion,
    /// How.
    pub cond: Cond,
}

impl ObjVersionCond {
    fn holds(&self, found: &ObjVersion) -> bool {
        let (a, b) = (found, &self.ver);
        match self.cond {
            Cond::EQ => a == b,
            Cond::GT => a.ver > b.ver,
            Cond::GE => a.ver >= b.ver,
            Cond::LT => a.ver < b.ver,
            Cond::LE => a.ver <= b.ver,
            Cond::TAG_EQ => a.tag == b.tag,
            Cond::TAG_NE => a.tag != b.tag,
            // As in Ceph, an unknown comparison holds.
            _ => true,
        }
    }
}

/// Input of `set` (Ceph: `cls_version_set_op`), output of `read` (`cls_version_read_ret`),
/// version 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct VersionOp {
    /// The version.
    pub objv: ObjVersion,
}

/// Input of `inc`, `inc_conds` and `check_conds` (Ceph: `cls_version_inc_op`,
/// `cls_version_check_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CondsOp {
    /// Not used.
    pub objv: ObjVersion,
    /// All must hold.
    pub conds: Vec<ObjVersionCond>,
}

impl CondsOp {
    fn check(&self, found: &ObjVersion) -> Result<(), Errno> {
        if self.conds.iter().all(|c| c.holds(found)) { Ok(()) } else { Err(Errno::ECANCELED) }
    }
}

/// The stored version; `None` if there is none.
async fn load(object: Object<'_>) -> Result<Option<ObjVersion>, Errno> {
    match object.getxattr(ATTR).await {
        Ok(stored) => decode(stored, Errno::EIO).map(Some),
        Err(Errno::ENOENT | Errno::ENODATA) => Ok(None),
        Err(e) => Err(e),
    }
}

async fn store(object: Object<'_>, v: &ObjVersion) -> Result<(), Errno> {
    object.setxattr(ATTR, encode(v)).await
}

async fn set(object: Object<'_>, op: VersionOp) -> Result<(), Errno> {
    store(object, &op.objv).await
}

async fn inc(object: Object<'_>, op: CondsOp) -> Result<(), Errno> {
    let mut v = match load(object).await? {
        Some(v) => v,
        None => {
            let mut tag = [0; TAG_BYTES];
            object.random(&mut tag);
            ObjVersion { ver: 1, tag: base64::engine::general_purpose::STANDARD.encode(tag).into() }
        }
    };
    op.check(&v)?;
    v.ver = v.ver.wrapping_add(1);
    store(object, &v).await
}

async fn check(object: Object<'_>, op: CondsOp) -> Result<(), Errno> {
    op.check(&load(object).await?.unwrap_or_default())
}

async fn read(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&VersionOp { objv: load(object).await?.unwrap_or_default() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn current(o: &mut TestObject) -> ObjVersion {
        o.query::<_, VersionOp>("version", "read", &()).unwrap().objv
    }

    fn conds(list: &[(Cond, u64, &'static str)]) -> CondsOp {
        let one = |&(cond, ver, tag): &(Cond, u64, &'static str)| ObjVersionCond {
            cond,
            ver: ObjVersion { ver, tag: tag.into() },
        };
        CondsOp { conds: list.iter().map(one).collect(), ..CondsOp::default() }
    }

    #[test]
    fn counting_begins_with_a_tag_of_its_own() {
        let mut o = TestObject::new();
        assert_eq!(current(&mut o), ObjVersion::default());
        o.exec("version", "inc", &CondsOp::default()).unwrap();
        let first = current(&mut o);
        assert_eq!((first.ver, first.tag.len()), (2, 24));
        o.exec("version", "inc", &CondsOp::default()).unwrap();
        assert_eq!(current(&mut o), ObjVersion { ver: 3, tag: first.tag });
    }

    #[test]
    fn conditions_decide() {
        let mut o = TestObject::new();
        let v = ObjVersion { ver: 5, tag: "t".into() };
        o.exec("version", "set", &VersionOp { objv: v.clone() }).unwrap();
        assert_eq!(current(&mut o), v);
        for (cond, ver, tag, holds) in [
            (Cond::NONE, 9, "x", true),
            (Cond::EQ, 5, "t", true),
            (Cond::EQ, 5, "x", false),
            (Cond::EQ, 4, "t", false),
            (Cond::GT, 4, "", true),
            (Cond::GT, 5, "", false),
            (Cond::GE, 5, "", true),
            (Cond::GE, 6, "", false),
            (Cond::LT, 6, "", true),
            (Cond::LT, 5, "", false),
            (Cond::LE, 5, "", true),
            (Cond::LE, 4, "", false),
            (Cond::TAG_EQ, 0, "t", true),
            (Cond::TAG_EQ, 0, "x", false),
            (Cond::TAG_NE, 0, "x", true),
            (Cond::TAG_NE, 0, "t", false),
        ] {
            let expected = if holds { Ok(()) } else { Err(Errno::ECANCELED) };
            let op = conds(&[(cond, ver, tag)]);
            assert_eq!(
                o.exec("version", "check_conds", &op).map(drop),
                expected,
                "{cond:?} {ver} {tag}"
            );
        }
        assert_eq!(
            o.exec("version", "inc_conds", &conds(&[(Cond::GE, 1, ""), (Cond::LT, 5, "")])),
            Err(Errno::ECANCELED)
        );
        assert_eq!(current(&mut o).ver, 5);
        o.exec("version", "inc_conds", &conds(&[(Cond::EQ, 5, "t")])).unwrap();
        assert_eq!(current(&mut o).ver, 6);
    }
}
