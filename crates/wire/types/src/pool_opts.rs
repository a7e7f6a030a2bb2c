//! Options of a pool, and the hit sets of cache tiers.

use crate::dump::{Dump, float};
use crate::features;
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Value of a pool option.
#[derive(Clone, PartialEq, Debug)]
pub enum PoolOptValue {
    /// Text.
    Str(String),
    /// A whole number.
    Int(i64),
    /// A fraction, or a duration in seconds.
    Double(f64),
}

/// Type of a pool option's value (Ceph: `pool_opts_t::type_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolOptType {
    /// Text.
    Str = 0,
    /// A whole number.
    Int = 1,
    /// A fraction.
    Double = 2,
}

/// Options of a pool that override the cluster's (Ceph: `pool_opts_t`, version 2). Keys are kept by
/// number, so that those of newer releases survive.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PoolOpts(pub BTreeMap<i32, PoolOptValue>);

use PoolOptType::{Double, Int, Str};

/// Names and types by key (Ceph: `pool_opts_t::key_t`).
const POOL_OPTS: [(&str, PoolOptType); 25] = [
    ("scrub_min_interval", Double),
    ("scrub_max_interval", Double),
    ("deep_scrub_interval", Double),
    ("recovery_priority", Int),
    ("recovery_op_priority", Int),
    ("scrub_priority", Int),
    ("compression_mode", Str),
    ("compression_algorithm", Str),
    ("compression_required_ratio", Double),
    ("compression_max_blob_size", Int),
    ("compression_min_blob_size", Int),
    ("csum_type", Int),
    ("csum_max_block", Int),
    ("csum_min_block", Int),
    ("fingerprint_algorithm", Str),
    ("pg_num_min", Int),
    ("target_size_bytes", Int),
    ("target_size_ratio", Double),
    ("pg_autoscale_bias", Double),
    ("read_lease_interval", Double),
    ("dedup_tier", Int),
    ("dedup_chunk_algorithm", Str),
    ("dedup_cdc_chunk_size", Int),
    ("pg_num_max", Int),
    ("read_ratio", Int),
];

impl PoolOpts {
    /// Key and type of the option with this name.
    pub fn by_name(name: &str) -> Option<(i32, PoolOptType)> {
        let key = POOL_OPTS.iter().position(|(n, _)| *n == name)?;
        Some((key as i32, POOL_OPTS.get(key)?.1))
    }

    /// All names and types.
    pub fn names() -> impl Iterator<Item = (&'static str, PoolOptType)> {
        POOL_OPTS.iter().copied()
    }

    /// The option with this name, if set.
    pub fn get(&self, name: &str) -> Option<&PoolOptValue> {
        self.0.get(&Self::by_name(name)?.0)
    }

    /// Sets an option. False if there is none of this name and type.
    pub fn set(&mut self, name: &str, value: PoolOptValue) -> bool {
        let fits = |kind| {
            matches!(
                (kind, &value),
                (Str, PoolOptValue::Str(_))
                    | (Int, PoolOptValue::Int(_))
                    | (Double, PoolOptValue::Double(_))
            )
        };
        match Self::by_name(name) {
            Some((key, kind)) if fits(kind) => {
                self.0.insert(key, value);
                true
            }
            _ => false,
        }
    }

    /// Goes back to the cluster's value. False if it was not set.
    pub fn unset(&mut self, name: &str) -> bool {
        Self::by_name(name).is_some_and(|(key, _)| self.0.remove(&key).is_some())
    }
}

impl Encode for PoolOpts {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let wide = f.has(features::SERVER_NAUTILUS);
        envelope(out, if wide { 2 } else { 1 }, 1, |out| {
            (self.0.len() as u32).encode(out, f);
            for (key, value) in &self.0 {
                key.encode(out, f);
                match value {
                    PoolOptValue::Str(s) => {
                        (Str as i32).encode(out, f);
                        s.encode(out, f);
                    }
                    PoolOptValue::Int(n) => {
                        (Int as i32).encode(out, f);
                        match wide {
                            true => n.encode(out, f),
                            false => (*n as i32).encode(out, f),
                        }
                    }
                    PoolOptValue::Double(d) => {
                        (Double as i32).encode(out, f);
                        d.encode(out, f);
                    }
                }
            }
        });
    }
}
impl Decode for PoolOpts {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("pool_opts_t", 2)?;
        let n = r.count("pool_opts_t", 12)?;
        let mut opts = BTreeMap::new();
        for _ in 0..n {
            let key: i32 = r.get()?;
            let value = match r.get::<i32>()? {
                0 => PoolOptValue::Str(r.get()?),
                1 if struct_v >= 2 => PoolOptValue::Int(r.get()?),
                1 => PoolOptValue::Int(r.get::<i32>()?.into()),
                2 => PoolOptValue::Double(r.get()?),
                other => {
                    return Err(DecodeError::Invalid {
                        what: "pool option type",
                        found: other as u64,
                    });
                }
            };
            opts.insert(key, value);
        }
        Ok(PoolOpts(opts))
    }
}
impl Dump for PoolOpts {
    /// Sorted by name, as in Ceph.
    fn dump(&self) -> Value {
        let mut sorted = BTreeMap::new();
        for (key, value) in &self.0 {
            let Some((name, _)) = usize::try_from(*key).ok().and_then(|k| POOL_OPTS.get(k)) else {
                continue;
            };
            let value = match value {
                PoolOptValue::Str(s) => json!(s),
                PoolOptValue::Int(n) => json!(n),
                PoolOptValue::Double(d) => float(*d),
            };
            sorted.insert((*name).to_owned(), value);
        }
        Value::Object(sorted.into_iter().collect())
    }
}

/// How a cache tier remembers what was used (Ceph: `HitSet::Params`, `osd/HitSet.h`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum HitSetParams {
    /// It does not.
    #[default]
    None,
    /// By hash.
    ExplicitHash,
    /// By object.
    ExplicitObject,
    /// In a Bloom filter.
    Bloom {
        /// Probability of a false positive, in millionths.
        fpp_micro: u32,
        /// Expected insertions.
        target_size: u64,
        /// Seed of the filter.
        seed: u64,
    },
}

impl HitSetParams {
    /// Ceph's name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ExplicitHash => "explicit_hash",
            Self::ExplicitObject => "explicit_object",
            Self::Bloom { .. } => "bloom",
        }
    }
}

impl Encode for HitSetParams {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 1, 1, |out| match self {
            Self::None => 0u8.encode(out, f),
            Self::ExplicitHash => 1u8.encode(out, f),
            Self::ExplicitObject => 2u8.encode(out, f),
            Self::Bloom { fpp_micro, target_size, seed } => {
                3u8.encode(out, f);
                envelope(out, 1, 1, |out| {
                    fpp_micro.encode(out, f);
                    target_size.encode(out, f);
                    seed.encode(out, f);
                });
            }
        });
    }
}
impl Decode for HitSetParams {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (_, mut r) = r.envelope("HitSet::Params", 1)?;
        Ok(match r.get::<u8>()? {
            0 => Self::None,
            1 => Self::ExplicitHash,
            2 => Self::ExplicitObject,
            3 => {
                let (_, mut r) = r.envelope("BloomHitSet::Params", 1)?;
                Self::Bloom { fpp_micro: r.get()?, target_size: r.get()?, seed: r.get()? }
            }
            other => {
                return Err(DecodeError::Invalid { what: "hit set type", found: other.into() });
            }
        })
    }
}
impl Dump for HitSetParams {
    fn dump(&self) -> Value {
        match self {
            Self::Bloom { fpp_micro, target_size, seed } => json!({
                "type": self.name(),
                "false_positive_probability": float(f64::from(*fpp_micro) / 1e6),
                "target_size": target_size,
                "seed": seed,
            }),
            _ => json!({"type": self.name()}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_types() {
        let mut opts = PoolOpts::default();
        assert!(opts.set("compression_mode", PoolOptValue::Str("force".into())));
        assert!(!opts.set("compression_mode", PoolOptValue::Int(1)));
        assert!(!opts.set("no_such", PoolOptValue::Int(1)));
        assert_eq!(opts.dump(), json!({"compression_mode": "force"}));
        assert!(opts.unset("compression_mode") && !opts.unset("compression_mode"));
    }
}
