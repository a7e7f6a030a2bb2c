//! Changes of omap rows that depend on their values (Ceph: `cls/cmpomap`).

use crate::context::Object;
use crate::method::{Class, RD, RD_WR, decode, method};
use bytes::Bytes;
use denc_derive::Denc;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "cmpomap",
    methods: &[
        method!("cmp_vals", RD, cmp_vals),
        method!("cmp_set_vals", RD_WR, cmp_set_vals),
        method!("cmp_rm_keys", RD_WR, cmp_rm_keys),
    ],
};

/// What values are compared as (Ceph: `cls::cmpomap::Mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct Mode(pub u8);

impl Mode {
    /// Byte strings.
    pub const STRING: Mode = Mode(1);
    /// Encoded numbers; an empty value counts as 0.
    pub const U64: Mode = Mode(2);
}

/// A comparison of the given value, on the left, with the stored one (Ceph: `cls::cmpomap::Op`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct Cmp(pub u8);

impl Cmp {
    /// Equal.
    pub const EQ: Cmp = Cmp(1);
    /// Not equal.
    pub const NE: Cmp = Cmp(2);
    /// Greater.
    pub const GT: Cmp = Cmp(3);
    /// Greater or equal.
    pub const GTE: Cmp = Cmp(4);
    /// Less.
    pub const LT: Cmp = Cmp(5);
    /// Less or equal.
    pub const LTE: Cmp = Cmp(6);

    fn holds(self, order: Ordering) -> Result<bool, Errno> {
        Ok(match self {
            Cmp::EQ => order.is_eq(),
            Cmp::NE => order.is_ne(),
            Cmp::GT => order.is_gt(),
            Cmp::GTE => order.is_ge(),
            Cmp::LT => order.is_lt(),
            Cmp::LTE => order.is_le(),
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// Input of `cmp_vals` and `cmp_set_vals` (Ceph: `cmp_vals_op`, `cmp_set_vals_op`,
/// `cls/cmpomap/ops.h`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CmpOp {
    /// What the values are.
    pub mode: Mode,
    /// What must hold.
    pub comparison: Cmp,
    /// Keys, and what their values are compared with.
    pub values: BTreeMap<Bytes, Bytes>,
    /// What a key that is absent is taken to have.
    pub default_value: Option<Bytes>,
}

/// Input of `cmp_rm_keys` (Ceph: `cmp_rm_keys_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct RmOp {
    /// What the values are.
    pub mode: Mode,
    /// What must hold.
    pub comparison: Cmp,
    /// Keys, and what their values are compared with.
    pub values: BTreeMap<Bytes, Bytes>,
}

/// Whether the comparison holds. EINVAL if the given value, or the comparison, is none; EIO if the
/// stored value is none.
fn compare(mode: Mode, comparison: Cmp, given: &Bytes, stored: &Bytes) -> Result<bool, Errno> {
    let order = match mode {
        Mode::STRING => {
            // Ceph's buffers compare their bytes as signed numbers.
            let signed = |b: &u8| b.cast_signed();
            given.iter().map(signed).cmp(stored.iter().map(signed))
        }
        Mode::U64 => {
            let given: u64 = decode(given.clone(), Errno::EINVAL)?;
            let stored = if stored.is_empty() { 0 } else { decode(stored.clone(), Errno::EIO)? };
            given.cmp(&stored)
        }
        _ => return Err(Errno::EINVAL),
    };
    comparison.holds(order)
}

/// As [`compare`]; a stored value that is none does not compare.
fn matches(mode: Mode, comparison: Cmp, given: &Bytes, stored: &Bytes) -> Result<bool, Errno> {
    match compare(mode, comparison, given, stored) {
        Err(Errno::EIO) => Ok(false),
        other => other,
    }
}

async fn stored(
    object: Object<'_>,
    values: &BTreeMap<Bytes, Bytes>,
) -> Result<BTreeMap<Bytes, Bytes>, Errno> {
    let keys: BTreeSet<Bytes> = values.keys().cloned().collect();
    object.map_get_vals_by_keys(&keys).await
}

async fn cmp_vals(object: Object<'_>, op: CmpOp) -> Result<(), Errno> {
    let stored = stored(object, &op.values).await?;
    for (key, given) in &op.values {
        let value = stored.get(key).or(op.default_value.as_ref()).ok_or(Errno::ECANCELED)?;
        if !compare(op.mode, op.comparison, given, value)? {
            return Err(Errno::ECANCELED);
        }
    }
    Ok(())
}

async fn cmp_set_vals(object: Object<'_>, op: CmpOp) -> Result<(), Errno> {
    let stored = stored(object, &op.values).await?;
    let mut rows = BTreeMap::new();
    for (key, given) in op.values {
        let Some(value) = stored.get(&key).or(op.default_value.as_ref()) else { continue };
        if matches(op.mode, op.comparison, &given, value)? {
            rows.insert(key, given);
        }
    }
    if rows.is_empty() { Ok(()) } else { object.map_set_vals(rows).await }
}

async fn cmp_rm_keys(object: Object<'_>, op: RmOp) -> Result<(), Errno> {
    let stored = stored(object, &op.values).await?;
    for (key, given) in &op.values {
        let Some(value) = stored.get(key) else { continue };
        if matches(op.mode, op.comparison, given, value)? {
            object.map_remove_key(key).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::encode;
    use crate::testing::TestObject;

    fn n(v: u64) -> Bytes {
        encode(&v)
    }

    fn with(rows: &[(&'static str, Bytes)]) -> TestObject {
        let mut o = TestObject::new();
        o.stored.exists = true;
        o.stored.is_omap = true;
        o.stored.omap =
            rows.iter().map(|(k, v)| (Bytes::from_static(k.as_bytes()), v.clone())).collect();
        o
    }

    fn op(
        mode: Mode,
        comparison: Cmp,
        key: &'static str,
        value: Bytes,
        default_value: Option<Bytes>,
    ) -> CmpOp {
        CmpOp { mode, comparison, values: BTreeMap::from([(key.into(), value)]), default_value }
    }

    #[test]
    fn comparisons() {
        let mut o = with(&[
            ("s", "m".into()),
            ("u", n(300)),
            ("bad", "x".into()),
            ("none", "".into()),
            ("high", Bytes::from_static(&[0x80])),
        ]);
        let mut cmp = |mode, c, key, value, default| {
            o.exec("cmpomap", "cmp_vals", &op(mode, c, key, value, default)).map(drop)
        };
        for (c, less, same, more) in [
            (Cmp::EQ, false, true, false),
            (Cmp::NE, true, false, true),
            (Cmp::GT, false, false, true),
            (Cmp::GTE, false, true, true),
            (Cmp::LT, true, false, false),
            (Cmp::LTE, true, true, false),
        ] {
            for (string, number, holds) in [("l", 2, less), ("m", 300, same), ("ma", 301, more)] {
                let expected = if holds { Ok(()) } else { Err(Errno::ECANCELED) };
                assert_eq!(
                    cmp(Mode::STRING, c, "s", string.into(), None),
                    expected,
                    "{c:?} {string}"
                );
                assert_eq!(cmp(Mode::U64, c, "u", n(number), None), expected, "{c:?} {number}");
            }
        }
        assert_eq!(
            cmp(Mode::STRING, Cmp::GT, "high", "a".into(), None),
            Ok(()),
            "bytes are signed"
        );
        assert_eq!(cmp(Mode::U64, Cmp::EQ, "none", n(0), None), Ok(()));
        assert_eq!(cmp(Mode::U64, Cmp::EQ, "absent", n(0), None), Err(Errno::ECANCELED));
        assert_eq!(cmp(Mode::U64, Cmp::EQ, "absent", n(4), Some(n(4))), Ok(()));
        assert_eq!(cmp(Mode::U64, Cmp::EQ, "bad", n(0), None), Err(Errno::EIO));
        assert_eq!(cmp(Mode::U64, Cmp::EQ, "u", "x".into(), None), Err(Errno::EINVAL));
        assert_eq!(cmp(Mode(9), Cmp::EQ, "u", n(0), None), Err(Errno::EINVAL));
        assert_eq!(cmp(Mode::U64, Cmp(9), "u", n(0), None), Err(Errno::EINVAL));
    }

    #[test]
    fn setting_what_compares() {
        let mut o = with(&[("a", n(1)), ("b", n(5)), ("bad", "x".into())]);
        let values = ["a", "b", "bad", "new"].map(|k| (Bytes::from(k), n(3))).into();
        let op = CmpOp { mode: Mode::U64, comparison: Cmp::GT, values, default_value: None };
        o.exec("cmpomap", "cmp_set_vals", &op).unwrap();
        assert_eq!(
            o.stored.omap,
            with(&[("a", n(3)), ("b", n(5)), ("bad", "x".into())]).stored.omap
        );
        o.exec("cmpomap", "cmp_set_vals", &CmpOp { default_value: Some(Bytes::new()), ..op })
            .unwrap();
        assert_eq!(o.stored.omap[&b"new"[..]], n(3));
    }

    #[test]
    fn nothing_that_compares_changes_nothing() {
        let mut o = TestObject::new();
        o.exec("cmpomap", "cmp_set_vals", &op(Mode::U64, Cmp::EQ, "k", n(1), None)).unwrap();
        assert!(!o.stored.exists);
        o.exec("cmpomap", "cmp_set_vals", &op(Mode::U64, Cmp::GT, "k", n(1), Some(n(0)))).unwrap();
        assert_eq!(o.stored.omap[&b"k"[..]], n(1));
    }

    #[test]
    fn removing_what_compares() {
        let mut o = with(&[("a", n(1)), ("b", n(5)), ("bad", "x".into())]);
        let values = ["a", "b", "bad", "new"].map(|k| (Bytes::from(k), n(3))).into();
        o.exec("cmpomap", "cmp_rm_keys", &RmOp { mode: Mode::U64, comparison: Cmp::GT, values })
            .unwrap();
        assert_eq!(o.stored.omap.keys().collect::<Vec<_>>(), ["b", "bad"]);
    }
}
