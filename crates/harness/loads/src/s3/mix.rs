//! Which sizes and which operations a load has.

use anyhow::{Context, Result, bail};
use std::str::FromStr;

/// Sizes of this many bytes and more are scaled; smaller ones are the point of their mix.
const SCALED_BYTES: u64 = 1 << 20;
/// A scaled size has so many bytes at least.
const SCALED_BYTES_MIN: u64 = 64 << 10;

const KB: u64 = 1 << 10;
const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// A part of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    /// Percent of the objects.
    percent: u32,
    /// Bytes at least, and at most.
    range: (u64, u64),
}

/// Sizes of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<Class>);

impl Sizes {
    fn of(classes: &[(u32, u64, u64)]) -> Sizes {
        let class = |(percent, least, most): &(u32, u64, u64)| Class {
            percent: *percent,
            range: (*least, *most),
        };
        Sizes(classes.iter().map(class).collect())
    }

    /// Objects of any kind, as in the published study 'Quincy @ Scale'.
    pub fn generic() -> Sizes {
        Sizes::of(&[
            (50, KB, KB),
            (15, 64 * KB, 64 * KB),
            (15, 8 * MB, 8 * MB),
            (15, 64 * MB, 64 * MB),
            (5, GB, GB),
        ])
    }

    /// Small objects, as in the same study.
    pub fn small() -> Sizes {
        Sizes::of(&[
            (25, KB, 2 * KB),
            (40, 2 * KB, 4 * KB),
            (25, 4 * KB, 8 * KB),
            (10, 8 * KB, 256 * KB),
        ])
    }

    /// One size for all.
    pub fn fixed(bytes: u64) -> Sizes {
        Sizes::of(&[(100, bytes, bytes)])
    }

    /// With sizes from 1 MiB on multiplied by `scale`; they stay at 64 KiB or above.
    pub fn scaled(mut self, scale: f64) -> Sizes {
        let scaled = |bytes: u64| match bytes {
            bytes if bytes < SCALED_BYTES => bytes,
            bytes => ((bytes as f64 * scale) as u64).max(SCALED_BYTES_MIN),
        };
        for class in &mut self.0 {
            class.range = (scaled(class.range.0), scaled(class.range.1));
        }
        self
    }

    /// The size of the object that has this random number.
    pub fn pick(&self, random: u64) -> u64 {
        let mut percent = (random % 100) as u32;
        let within = random / 100;
        for class in &self.0 {
            if percent < class.percent {
                let (least, most) = class.range;
                return least + within % (most - least + 1);
            }
            percent -= class.percent;
        }
        unreachable!("the parts of a mix are 100 percent")
    }
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Sizes> {
        match text {
            "generic" => Ok(Sizes::generic()),
            "small" => Ok(Sizes::small()),
            bytes => Ok(Sizes::fixed(parse_bytes(bytes)?)),
        }
    }
}

/// Bytes, with K, M or G behind the number.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, KB),
        Some(digits) if text.ends_with('M') => (digits, MB),
        Some(digits) => (digits, GB),
        None => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    bytes.with_context(|| {
        format!(
            "`generic`, `small`, or bytes such as 4096, 64K or 4M were expected, found `{text}`"
        )
    })
}

/// An operation of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads an object.
    Get,
    /// Writes an object.
    Put,
    /// Lists up to 1,000 keys.
    List,
    /// Deletes an object.
    Delete,
}

impl Op {
    /// All, in the order of [`Shares`].
    pub const ALL: [Op; 4] = [Op::Get, Op::Put, Op::List, Op::Delete];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Put => "put",
            Op::List => "list",
            Op::Delete => "delete",
        }
    }
}

/// Percent of reads, writes, lists and deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares([u32; 4]);

impl Shares {
    /// The operations of the published study.
    pub const MIXED: Shares = Shares([44, 36, 15, 5]);

    /// Operations of one kind.
    pub fn only(op: Op) -> Shares {
        Shares(Op::ALL.map(|o| if o == op { 100 } else { 0 }))
    }

    /// The operation that has this random number.
    pub fn pick(&self, random: u64) -> Op {
        let mut percent = (random % 100) as u32;
        for (op, share) in Op::ALL.into_iter().zip(self.0) {
            if percent < share {
                return op;
            }
            percent -= share;
        }
        unreachable!("the parts of a mix are 100 percent")
    }
}

impl FromStr for Shares {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Shares> {
        if text == "mixed" {
            return Ok(Shares::MIXED);
        }
        if let Some(op) = Op::ALL.into_iter().find(|op| op.name() == text) {
            return Ok(Shares::only(op));
        }
        let parts: Vec<u32> = text.split('/').filter_map(|p| p.parse().ok()).collect();
        match parts[..] {
            [get, put, list, delete] if text.split('/').count() == 4 => {
                let shares = [get, put, list, delete];
                let sum: u64 = shares.iter().map(|n| u64::from(*n)).sum();
                if sum != 100 {
                    bail!("the parts of `{text}` are {sum} percent; 100 were expected");
                }
                Ok(Shares(shares))
            }
            _ => bail!(
                "`mixed`, an operation (get, put, list, delete), or percents of the four such as \
                 44/36/15/5 were expected, found `{text}`"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    const DRAWS: usize = 200_000;

    fn draws() -> impl Iterator<Item = u64> {
        let mut random = StdRng::seed_from_u64(1);
        (0..DRAWS).map(move |_| random.random())
    }

    fn percent(n: usize) -> f64 {
        n as f64 * 100.0 / DRAWS as f64
    }

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 0.5, "{found} %, {expected} % were expected");
    }

    #[test]
    fn mixes_have_the_published_parts() {
        let sizes: Vec<u64> = draws().map(|n| Sizes::small().pick(n)).collect();
        let part =
            |least, most| percent(sizes.iter().filter(|n| (least..most).contains(*n)).count());
        near(part(KB, 2 * KB), 25.0);
        near(part(2 * KB, 4 * KB), 40.0);
        near(part(4 * KB, 8 * KB), 25.0);
        near(part(8 * KB, 256 * KB + 1), 10.0);
        let mean = sizes.iter().sum::<u64>() as f64 / DRAWS as f64;
        assert!((15e3..18e3).contains(&mean), "16 KB as published, {mean} found");
        let sizes: Vec<u64> = draws().map(|n| Sizes::generic().pick(n)).collect();
        let part = |size| percent(sizes.iter().filter(|n| **n == size).count());
        for (size, expected) in
            [(KB, 50.0), (64 * KB, 15.0), (8 * MB, 15.0), (64 * MB, 15.0), (GB, 5.0)]
        {
            near(part(size), expected);
        }
        let ops: Vec<Op> = draws().map(|n| Shares::MIXED.pick(n)).collect();
        for (op, expected) in Op::ALL.into_iter().zip([44.0, 36.0, 15.0, 5.0]) {
            near(percent(ops.iter().filter(|o| **o == op).count()), expected);
        }
    }

    #[test]
    fn a_scale_is_for_large_sizes() {
        let all = |sizes: &Sizes| sizes.0.iter().map(|c| c.range.0).collect::<Vec<_>>();
        let scaled = Sizes::generic().scaled(1.0 / 64.0);
        assert_eq!(all(&scaled), [KB, 64 * KB, 128 * KB, MB, 16 * MB]);
        assert_eq!(all(&Sizes::generic().scaled(1e-9))[4], 64 * KB);
        assert_eq!(Sizes::small().scaled(0.1), Sizes::small());
    }

    #[test]
    fn texts_are_read_or_refused() {
        assert_eq!("4K".parse::<Sizes>().unwrap(), Sizes::fixed(4096));
        assert_eq!("4M".parse::<Sizes>().unwrap(), Sizes::fixed(4 << 20));
        assert_eq!("0".parse::<Sizes>().unwrap().pick(77), 0);
        assert_eq!("44/36/15/5".parse::<Shares>().unwrap(), Shares::MIXED);
        assert_eq!("list".parse::<Shares>().unwrap(), Shares::only(Op::List));
        for bad in ["", "K", "4T", "-1", "99999999999999999999", "18446744073709551615K"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
        for bad in ["", "gets", "44/36/15", "44/36/15/6", "x/50/50/0", "100/0/0/0/0"] {
            assert!(bad.parse::<Shares>().is_err(), "{bad}");
        }
    }
}
