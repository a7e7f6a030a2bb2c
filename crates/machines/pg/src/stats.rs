//! Totals over the objects of a PG.

use denc::{BufMut, BytesMut, Decode, DecodeError, Encode, Features, Reader};

macro_rules! sums {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Totals over the objects of a PG, or a change of them (the part of Ceph's
        /// `object_stat_sum_t` that operations change; what depends on peers is worked out when it
        /// is asked for).
        ///
        /// Encoded sparsely, because most operations change few of them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct StatSum {
            $($(#[$doc])* pub $field: i64,)*
        }

        impl StatSum {
            /// Adds a change.
            pub fn add(&mut self, delta: &StatSum) {
                $(self.$field = self.$field.wrapping_add(delta.$field);)*
            }

            /// One of `n` equal parts, and what they leave in the first.
            pub fn part(&self, n: i64, first: bool) -> StatSum {
                let share = |v: i64| v / n + if first { v % n } else { 0 };
                StatSum { $($field: share(self.$field),)* }
            }

            fn each(&self, mut f: impl FnMut(i64)) {
                $(f(self.$field);)*
            }

            fn each_mut(&mut self, mut f: impl FnMut(&mut i64) -> denc::Result<()>) -> denc::Result<()> {
                $(f(&mut self.$field)?;)*
                Ok(())
            }
        }
    };
}

sums! {
    /// Logical bytes.
    num_bytes,
    /// Objects, clones included.
    num_objects,
    /// Clones.
    num_object_clones,
    /// Objects changed since they were last flushed to a base pool.
    num_objects_dirty,
    /// Heads that exist only because they have clones.
    num_whiteouts,
    /// Objects with omap rows.
    num_objects_omap,
    /// Bytes in omap rows.
    num_omap_bytes,
    /// Omap rows.
    num_omap_keys,
    /// Read operations.
    num_rd,
    /// KiB read.
    num_rd_kb,
    /// Write operations.
    num_wr,
    /// KiB written.
    num_wr_kb,
    /// Objects recovered.
    num_objects_recovered,
    /// Bytes recovered.
    num_bytes_recovered,
    /// Omap rows recovered.
    num_keys_recovered,
}

impl Encode for StatSum {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        let at = out.len();
        out.put_u32_le(0);
        let (mut mask, mut bit) = (0u32, 1u32);
        self.each(|v| {
            if v != 0 {
                mask |= bit;
                out.put_i64_le(v);
            }
            bit <<= 1;
        });
        out[at..at + 4].copy_from_slice(&mask.to_le_bytes());
    }
}

impl Decode for StatSum {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let mut mask: u32 = r.get()?;
        let mut sum = Self::default();
        sum.each_mut(|v| {
            if mask & 1 != 0 {
                *v = r.get()?;
            }
            mask >>= 1;
            Ok(())
        })?;
        if mask != 0 {
            return Err(DecodeError::Invalid { what: "StatSum mask", found: mask.into() });
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_zero_is_written() {
        let s = StatSum { num_bytes: -3, num_keys_recovered: 7, ..StatSum::default() };
        let bytes = s.to_bytes(Features::ALL);
        assert_eq!(bytes.len(), 4 + 16);
        assert_eq!(StatSum::from_bytes(&bytes), Ok(s));
        assert!(StatSum::from_bytes(&[0, 0, 0, 128].to_vec().into()).is_err());
    }
}
