//! The omap: keys and values in order, and a header.

use super::{Comparison, Operation};
use bytes::Bytes;
use denc::{Encode, Features};
use std::collections::{BTreeMap, BTreeSet};
use types::rados::OpCode;

impl Operation {
    /// Lists keys after `after`, at most `max`. The result is
    /// [`OpOutcome::omap_keys`](crate::OpOutcome::omap_keys).
    pub fn omap_keys(self, after: &[u8], max: u64) -> Self {
        self.encoded(OpCode::OMAPGETKEYS, |out| {
            Bytes::copy_from_slice(after).encode(out, Features::ALL);
            max.encode(out, Features::ALL);
        })
    }

    /// Lists keys and values after `after` that begin with `prefix`, at most `max`:
    /// [`OpOutcome::omap`](crate::OpOutcome::omap).
    pub fn omap_values(self, after: &[u8], max: u64, prefix: &[u8]) -> Self {
        self.encoded(OpCode::OMAPGETVALS, |out| {
            Bytes::copy_from_slice(after).encode(out, Features::ALL);
            max.encode(out, Features::ALL);
            Bytes::copy_from_slice(prefix).encode(out, Features::ALL);
        })
    }

    /// Reads the values of keys: [`OpOutcome::omap_values`](crate::OpOutcome::omap_values).
    pub fn omap_values_by_keys(self, keys: &BTreeSet<Bytes>) -> Self {
        self.encoded(OpCode::OMAPGETVALSBYKEYS, |out| keys.encode(out, Features::ALL))
    }

    /// Fails with `ECANCELED` unless the values of all these keys compare so with the given ones.
    /// A key that is not there has an empty value. Only equal, greater and less exist here.
    pub fn omap_compare(self, wanted: &BTreeMap<Bytes, (Bytes, Comparison)>) -> Self {
        let wanted: BTreeMap<Bytes, (Bytes, i32)> = wanted
            .iter()
            .map(|(key, (value, how))| (key.clone(), (value.clone(), how.number().into())))
            .collect();
        self.encoded(OpCode::OMAP_CMP, |out| wanted.encode(out, Features::ALL))
    }

    /// Sets keys.
    pub fn omap_set(self, values: &BTreeMap<Bytes, Bytes>) -> Self {
        self.encoded(OpCode::OMAPSETVALS, |out| values.encode(out, Features::ALL))
    }

    /// Removes keys.
    pub fn omap_remove(self, keys: &BTreeSet<Bytes>) -> Self {
        self.encoded(OpCode::OMAPRMKEYS, |out| keys.encode(out, Features::ALL))
    }

    /// Removes the keys from `begin` on and before `end`.
    pub fn omap_remove_range(self, begin: &[u8], end: &[u8]) -> Self {
        self.encoded(OpCode::OMAPRMKEYRANGE, |out| {
            Bytes::copy_from_slice(begin).encode(out, Features::ALL);
            Bytes::copy_from_slice(end).encode(out, Features::ALL);
        })
    }

    /// Removes all keys, and the header.
    pub fn omap_clear(self) -> Self {
        self.plain(OpCode::OMAPCLEAR)
    }

    /// Reads the header.
    pub fn omap_header(self) -> Self {
        self.plain(OpCode::OMAPGETHEADER)
    }

    /// Sets the header.
    pub fn omap_set_header(self, header: Bytes) -> Self {
        self.input(OpCode::OMAPSETHEADER, 0, header)
    }
}
