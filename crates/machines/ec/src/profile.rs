//! What an erasure code profile says: the settings that Ceph's plugins take, with their defaults,
//! checks and messages (`ceph:src/erasure-code` 16.2.7: `ErasureCode.cc`,
//! `jerasure/ErasureCodeJerasure.cc`, `isa/ErasureCodeIsa.cc`; `OSDMonitor::normalize_profile`).

use crate::code::{Code, CodeError, Technique};
use crate::layout::{Layout, LayoutError, UNIT_ALIGN_BYTES};
use crate::shards::ShardSet;
use std::collections::BTreeMap;
use thiserror::Error;

/// Names and values of a profile, as the OSD map keeps them.
pub type Settings = BTreeMap<String, String>;

/// Why a profile is refused. The text is for operators.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProfileError {
    /// A value is not what it must be (`EINVAL`).
    #[error("{0}")]
    Invalid(String),
    /// The plugin has no such technique (`ENOENT`).
    #[error("{0}")]
    NoTechnique(String),
    /// There is no such plugin (`EIO`, as when Ceph cannot load one).
    #[error("{0}")]
    NoPlugin(String),
    /// Ceph has it, and Siphon does not (`EOPNOTSUPP`).
    #[error("{0}")]
    Unsupported(String),
}

/// A profile that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The library that gave the matrix.
    pub technique: Technique,
    /// Data shards.
    pub k: usize,
    /// Parity shards.
    pub m: usize,
    /// Bytes of a stripe on one shard, if the profile says so.
    pub stripe_unit: Option<u64>,
    /// The bucket that a rule begins at (`crush-root`).
    pub root: String,
    /// The type of bucket over which shards are spread (`crush-failure-domain`).
    pub failure_domain: String,
    /// The class of devices, or empty for all (`crush-device-class`).
    pub device_class: String,
}

impl Profile {
    /// Reads a profile and fills in what it does not say, as Ceph's plugins do. What is filled in
    /// stays when it is read again.
    pub fn normalize(settings: &mut Settings) -> Result<Profile, ProfileError> {
        let plugin = settings.get("plugin").cloned().unwrap_or_default();
        let (technique, k, m) = match plugin.as_str() {
            "jerasure" => jerasure(settings)?,
            "isa" => isa(settings)?,
            "lrc" | "shec" | "clay" => {
                return Err(ProfileError::Unsupported(format!(
                    "plugin={plugin} is not supported: its shards are not those of a \
                     Reed-Solomon code; use plugin=jerasure or plugin=isa"
                )));
            }
            "jerasure_generic" | "jerasure_sse3" | "jerasure_sse4" | "jerasure_neon" => {
                return Err(ProfileError::Invalid(format!(
                    "plugin={plugin} is a name of old releases; use plugin=jerasure, which chooses \
                     the processor's instructions itself"
                )));
            }
            "" => {
                return Err(ProfileError::Invalid(
                    "cannot determine the erasure code plugin because there is no 'plugin' entry \
                     in the erasure_code_profile"
                        .into(),
                ));
            }
            _ => {
                return Err(ProfileError::NoPlugin(format!(
                    "load {plugin}: there is no such plugin; use plugin=jerasure or plugin=isa"
                )));
            }
        };
        for (name, what) in [
            ("mapping", "shards are in the order of the code"),
            ("crush-num-failure-domains", "shards are spread one by one"),
            ("crush-osds-per-failure-domain", "shards are spread one by one"),
        ] {
            if settings.contains_key(name) {
                return Err(ProfileError::Unsupported(format!("{name} is not supported: {what}")));
            }
        }
        match Code::new(technique, k, m) {
            Ok(_) => (),
            Err(CodeError::NotSeparable { .. }) => return Err(isa_limits(k, m)),
            Err(e) => return Err(ProfileError::Invalid(e.to_string())),
        }
        let mut text = |name: &str, default: &str| filled(settings, name, default).to_owned();
        let root = text("crush-root", "default");
        let failure_domain = text("crush-failure-domain", "host");
        let device_class = text("crush-device-class", "");
        let stripe_unit = match settings.get("stripe_unit") {
            Some(unit) => Some(stripe_unit(unit)?),
            None => None,
        };
        Ok(Profile { technique, k, m, stripe_unit, root, failure_domain, device_class })
    }

    /// How objects are cut, with `default_unit` bytes if the profile does not say it.
    pub fn layout(&self, default_unit: u64) -> Result<Layout, LayoutError> {
        Layout::new(self.k, self.m, self.stripe_unit.unwrap_or(default_unit))
    }

    /// The code.
    pub fn code(&self) -> Result<Code, CodeError> {
        Code::new(self.technique, self.k, self.m)
    }

    /// How many shards an object has: the pool's `size`.
    pub fn size(&self) -> usize {
        self.k + self.m
    }

    /// How many shards there must be to serve: one more than needed to read, so that what is
    /// acknowledged outlives another loss; `k` if there is only one of parity (Ceph:
    /// `OSDMonitor::prepare_pool_size`).
    pub fn min_size(&self) -> usize {
        self.k + (self.m - 1).min(1)
    }
}

/// The value of a setting, which is set to the default if it is missing or empty.
fn filled<'a>(settings: &'a mut Settings, name: &str, default: &str) -> &'a str {
    let value = settings.entry(name.to_owned()).or_default();
    if value.is_empty() {
        *value = default.to_owned();
    }
    value
}

fn integer(settings: &mut Settings, name: &str, default: &str) -> Result<i32, String> {
    let value = filled(settings, name, default);
    value.parse().map_err(|_| {
        format!(
            "could not convert {name}={value} to int because Expected option value to be \
             integer, got '{value}', set to default {default}"
        )
    })
}

/// `k` and `m`.
fn shape(settings: &mut Settings, k: &str, m: &str) -> Result<(usize, usize), ProfileError> {
    let (k, m) = (integer(settings, "k", k), integer(settings, "m", m));
    let mut wrong: Vec<String> =
        [&k, &m].iter().filter_map(|n| n.as_ref().err().cloned()).collect();
    match k {
        Ok(k) if k < 2 => wrong.push(format!("k={k} must be >= 2")),
        _ => (),
    }
    match m {
        Ok(m) if m < 1 => wrong.push(format!("m={m} must be >= 1")),
        _ => (),
    }
    match (k, m) {
        (Ok(k), Ok(m)) if wrong.is_empty() => {
            let (k, m) = (k as usize, m as usize);
            if k + m > ShardSet::SHARDS_MAX {
                return Err(ProfileError::Invalid(format!(
                    "k={k} m={m}: expected at most {} shards",
                    ShardSet::SHARDS_MAX
                )));
            }
            Ok((k, m))
        }
        _ => Err(ProfileError::Invalid(wrong.join("\n"))),
    }
}

fn jerasure(settings: &mut Settings) -> Result<(Technique, usize, usize), ProfileError> {
    let technique = settings.get("technique").cloned().unwrap_or_default();
    match technique.as_str() {
        "reed_sol_van" => (),
        "reed_sol_r6_op" | "cauchy_orig" | "cauchy_good" | "liberation" | "blaum_roth"
        | "liber8tion" => {
            return Err(ProfileError::Unsupported(format!(
                "technique={technique} is not supported: it computes with bits of packets and not \
                 with bytes, or is a case of another; use technique=reed_sol_van"
            )));
        }
        _ => {
            return Err(ProfileError::NoTechnique(format!(
                "technique={technique} is not a valid coding technique.  Choose one of the \
                 following: reed_sol_van"
            )));
        }
    }
    let (k, m) = shape(settings, "7", "3")?;
    match integer(settings, "w", "8").map_err(ProfileError::Invalid)? {
        8 => (),
        w @ (16 | 32) => {
            return Err(ProfileError::Unsupported(format!(
                "w={w} is not supported: up to {} shards need no larger field than that of w=8",
                ShardSet::SHARDS_MAX
            )));
        }
        w => {
            return Err(ProfileError::Invalid(format!(
                "ReedSolomonVandermonde: w={w} must be one of {{8, 16, 32}} : revert to 8"
            )));
        }
    }
    filled(settings, "jerasure-per-chunk-alignment", "false");
    Ok((Technique::JerasureReedSolVan, k, m))
}

fn isa(settings: &mut Settings) -> Result<(Technique, usize, usize), ProfileError> {
    let given = settings.entry("technique".to_owned()).or_insert_with(|| "reed_sol_van".to_owned());
    let technique = match given.as_str() {
        "reed_sol_van" => Technique::IsaReedSolVan,
        "cauchy" => Technique::IsaCauchy,
        other => {
            return Err(ProfileError::NoTechnique(format!(
                "technique={other} is not a valid coding technique.  Choose one of the following: \
                 reed_sol_van,cauchy"
            )));
        }
    };
    let (k, m) = shape(settings, "7", "3")?;
    Ok((technique, k, m))
}

/// Ceph's words for what isa's `reed_sol_van` cannot do.
fn isa_limits(k: usize, m: usize) -> ProfileError {
    ProfileError::Invalid(if k > 32 {
        format!("Vandermonde: k={k} should be less/equal than 32 : revert to k=32")
    } else if m > 4 {
        format!("Vandermonde: m={m} should be less than 5 to guarantee an MDS codec: revert to m=4")
    } else {
        format!(
            "Vandermonde: k={k} should be less than 22 to guarantee an MDS codec with m=4: revert \
             to k=21"
        )
    })
}

/// A number of bytes with a binary unit, as Ceph's `strict_iecstrtoll` reads it.
fn stripe_unit(text: &str) -> Result<u64, ProfileError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => Some(0),
        "K" | "Ki" => Some(10),
        "M" | "Mi" => Some(20),
        "G" | "Gi" => Some(30),
        _ => None,
    };
    let bytes = digits
        .parse::<u64>()
        .ok()
        .zip(shift)
        .and_then(|(n, shift)| n.checked_mul(1 << shift).filter(|n| u32::try_from(*n).is_ok()));
    let Some(bytes) = bytes else {
        return Err(ProfileError::Invalid(format!(
            "could not parse stripe_unit '{text}': expected bytes below 4 GiB, as in 4096, 16K or 1M"
        )));
    };
    if bytes == 0 || !bytes.is_multiple_of(UNIT_ALIGN_BYTES) {
        return Err(ProfileError::Invalid(format!(
            "stripe_unit {bytes} is not a multiple of {UNIT_ALIGN_BYTES} bytes, the unit of \
             checksums; --force does not change that"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        text.split_whitespace()
            .filter_map(|w| w.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    }

    fn refused(text: &str) -> ProfileError {
        Profile::normalize(&mut settings(text)).unwrap_err()
    }

    #[test]
    fn what_is_not_said_is_filled_in() {
        let mut s = settings("plugin=jerasure technique=reed_sol_van k=2 m=1");
        let p = Profile::normalize(&mut s).unwrap();
        assert_eq!((p.k, p.m, p.size(), p.min_size()), (2, 1, 3, 2));
        assert_eq!(p.layout(4096).unwrap().stripe_width(), 8192);
        let expected = "crush-device-class= crush-failure-domain=host crush-root=default \
                        jerasure-per-chunk-alignment=false k=2 m=1 plugin=jerasure \
                        technique=reed_sol_van w=8";
        assert_eq!(s, settings(expected));
        let again = Profile::normalize(&mut s).unwrap();
        assert_eq!((again, s), (p, settings(expected)));

        let mut s = settings("plugin=isa");
        let p = Profile::normalize(&mut s).unwrap();
        assert_eq!((p.technique, p.k, p.m, p.min_size()), (Technique::IsaReedSolVan, 7, 3, 8));
        let text = "crush-device-class= crush-failure-domain=host crush-root=default k=7 m=3 \
                    plugin=isa technique=reed_sol_van";
        assert_eq!(s, settings(text));
        let mut s = settings("plugin=isa technique=cauchy k=40 m=6 stripe_unit=16K");
        let p = Profile::normalize(&mut s).unwrap();
        assert_eq!((p.technique, p.stripe_unit), (Technique::IsaCauchy, Some(16384)));
        assert_eq!(p.layout(4096).unwrap().stripe_width(), 40 * 16384);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let j = "plugin=jerasure technique=reed_sol_van";
        for (text, reason) in [
            (format!("{j} k=1 m=1"), "k=1 must be >= 2"),
            (format!("{j} k=2 m=0"), "m=0 must be >= 1"),
            (format!("{j} k=-4 m=2"), "k=-4 must be >= 2"),
            (format!("{j} k=x m=1"), "could not convert k=x to int"),
            (format!("{j} k=200 m=100"), "at most 127 shards"),
            (format!("{j} k=2147483647 m=2147483647"), "at most 127 shards"),
            (format!("{j} k=2 m=1 w=7"), "must be one of {8, 16, 32}"),
            (format!("{j} k=2 m=1 stripe_unit=5000"), "stripe_unit 5000"),
            (format!("{j} k=2 m=1 stripe_unit=0"), "stripe_unit 0"),
            (format!("{j} k=2 m=1 stripe_unit=4G"), "could not parse stripe_unit '4G'"),
            (format!("{j} k=2 m=1 stripe_unit=4é"), "could not parse stripe_unit"),
            ("plugin=isa k=33 m=2".into(), "k=33 should be less/equal than 32"),
            ("plugin=isa k=2 m=5".into(), "m=5 should be less than 5"),
            ("plugin=isa k=22 m=4".into(), "k=22 should be less than 22"),
            ("plugin=jerasure_sse4 k=2 m=1".into(), "use plugin=jerasure"),
            ("k=2 m=1".into(), "there is no 'plugin' entry"),
        ] {
            match refused(&text) {
                ProfileError::Invalid(why) => assert!(why.contains(reason), "{text}: {why}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in [
            "plugin=lrc k=4 m=2 l=3",
            "plugin=shec k=4 m=3 c=2",
            "plugin=clay k=4 m=2",
            "plugin=jerasure technique=cauchy_good k=4 m=2",
            "plugin=jerasure technique=liberation k=2 m=2",
            "plugin=jerasure technique=reed_sol_van k=2 m=1 w=16",
            "plugin=jerasure technique=reed_sol_van k=2 m=1 mapping=DD_",
        ] {
            assert!(matches!(refused(text), ProfileError::Unsupported(_)), "{text}");
        }
        assert!(matches!(refused("plugin=none"), ProfileError::NoPlugin(_)));
        for text in ["plugin=jerasure technique=x", "plugin=isa technique=x", "plugin=jerasure"] {
            assert!(matches!(refused(text), ProfileError::NoTechnique(_)), "{text}");
        }
    }
}
