//! Attributes of objects.
//!
//! A user's attribute `name` is stored as `_name`, so that it cannot clash with the OSD's own (`_`
//! and `snapset`), as in Ceph.

use crate::code::{Op, OpArgs, OpOutcome};
use crate::exec::{Exec, kib, put};
use crate::reader::ObjectReader;
use bytes::{BufMut, Bytes, BytesMut};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use store::Change;
use types::errno::Errno;

/// How a user's attribute is named in the store.
pub fn stored_name(name: &[u8]) -> Bytes {
    let mut b = BytesMut::with_capacity(name.len() + 1);
    b.put_u8(b'_');
    b.put_slice(name);
    b.freeze()
}

/// The user's name of a stored attribute; `None` for the OSD's own.
pub fn user_name(stored: &Bytes) -> Option<Bytes> {
    (stored.len() > 1 && stored[0] == b'_').then(|| stored.slice(1..))
}

/// Whether a comparison (`CEPH_OSD_CMPXATTR_OP_*`) holds, `None` if there is no such comparison.
pub(crate) fn compare(op: u8, order: Ordering) -> Option<bool> {
    Some(match op {
        1 => order.is_eq(),
        2 => order.is_ne(),
        3 => order.is_gt(),
        4 => order.is_ge(),
        5 => order.is_lt(),
        6 => order.is_le(),
        _ => return None,
    })
}

/// The number at the start of a decimal string as `strtoull` reads it.
fn leading_number(text: &[u8]) -> u64 {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text.first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let mut n: u64 = 0;
    for d in digits.iter().take_while(|b| b.is_ascii_digit()) {
        n = match n.checked_mul(10).and_then(|n| n.checked_add(u64::from(d - b'0'))) {
            Some(n) => n,
            None => return u64::MAX,
        };
    }
    if negative { n.wrapping_neg() } else { n }
}

/// Name and value in the input, and how to compare.
struct Parts {
    name: Bytes,
    rest: Bytes,
    value_len: usize,
    cmp_op: u8,
    cmp_mode: u8,
}

fn parts(op: &Op) -> Result<Parts, Errno> {
    let OpArgs::Xattr { name_len, value_len, cmp_op, cmp_mode } = op.args else {
        return Err(Errno::EINVAL);
    };
    let name_len = name_len as usize;
    if name_len > op.indata.len() {
        return Err(Errno::EINVAL);
    }
    Ok(Parts {
        name: op.indata.slice(..name_len),
        rest: op.indata.slice(name_len..),
        value_len: value_len as usize,
        cmp_op,
        cmp_mode,
    })
}

impl<R: ObjectReader> Exec<'_, R> {
    pub(crate) async fn getxattr(&mut self, op: &Op, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        self.stats.num_rd += 1;
        let name = stored_name(&parts(op)?.name);
        let value = self.env.reader.attr(&self.key, &name).await?;
        self.stats.num_rd_kb += kib(value.len());
        out.outdata.push(value);
        Ok(0)
    }

    pub(crate) async fn getxattrs(&mut self, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        self.stats.num_rd += 1;
        let all = self.user_attrs().await;
        // Also a failure has output: none of the attributes.
        put(out, all.as_ref().unwrap_or(&BTreeMap::new()));
        all?;
        self.stats.num_rd_kb += kib(out.out_len());
        Ok(0)
    }

    /// The attributes of users, under the users' names.
    pub(crate) async fn user_attrs(&self) -> Result<BTreeMap<Bytes, Bytes>, Errno> {
        let all = self.env.reader.attrs(&self.key).await?;
        Ok(all.into_iter().filter_map(|(k, v)| Some((user_name(&k)?, v))).collect())
    }

    pub(crate) async fn cmpxattr(&mut self, op: &Op) -> Result<i32, Errno> {
        self.reads += 1;
        let p = parts(op)?;
        let found = match self.env.reader.attr(&self.key, &stored_name(&p.name)).await {
            Ok(v) => v,
            // An attribute that is absent compares as an empty one.
            Err(Errno::ENODATA) => Bytes::new(),
            Err(e) => return Err(e),
        };
        self.stats.num_rd += 1;
        self.stats.num_rd_kb += kib(found.len());
        let order = match p.cmp_mode {
            1 => {
                let value = p.rest.get(..p.value_len).ok_or(Errno::EINVAL)?;
                value.cmp(&found[..])
            }
            2 => {
                let value: u64 = denc::Reader::new(p.rest).get().map_err(|_| Errno::EINVAL)?;
                value.cmp(&leading_number(&found))
            }
            _ => return Err(Errno::EINVAL),
        };
        match compare(p.cmp_op, order) {
            Some(true) => Ok(1),
            Some(false) => Err(Errno::ECANCELED),
            None => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn setxattr(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let OpArgs::Xattr { name_len, value_len, .. } = op.args else { return Err(Errno::EINVAL) };
        let limits = self.env.limits;
        if limits.attr_size > 0 && u64::from(value_len) > limits.attr_size {
            return Err(Errno::EFBIG);
        }
        if name_len as usize > limits.attr_name {
            return Err(Errno::ENAMETOOLONG);
        }
        let p = parts(op)?;
        if p.value_len > p.rest.len() {
            return Err(Errno::EINVAL);
        }
        self.maybe_create();
        let attr = (stored_name(&p.name), p.rest.slice(..p.value_len));
        self.push(Change::SetAttrs(smallvec::smallvec![attr]));
        self.stats.num_wr += 1;
        Ok(0)
    }

    pub(crate) fn rmxattr(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let p = parts(op)?;
        if !self.visible() {
            return Err(Errno::ENOENT);
        }
        self.push(Change::RmAttr(stored_name(&p.name)));
        self.stats.num_wr += 1;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_like_strtoull() {
        for (text, n) in
            [("", 0), ("12x", 12), ("  7", 7), ("-1", u64::MAX), ("99999999999999999999", u64::MAX)]
        {
            assert_eq!(leading_number(text.as_bytes()), n, "{text:?}");
        }
    }
}
