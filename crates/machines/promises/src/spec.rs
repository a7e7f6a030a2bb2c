//! Specifications of quality of service: what operators write, and what it means.
//!
//! A specification is kept with the monitors under `qos/spec/SELECTOR`, as JSON. The selector says
//! which tenant it is of:
//!
//! | selector | tenant |
//! | --- | --- |
//! | `POOL` | a pool with all its namespaces |
//! | `POOL/NAMESPACE` | a namespace |
//! | `POOL/NAMESPACE/IMAGE` | images that a pattern with `*` or `?` fits; no `NAMESPACE` is one |
//! | `client.NAME` | a client, whatever it uses |
//! | `bucket.NAME`, `bucket.TENANT/NAME` | a bucket of gateways for S3, with its index |
//! | `user.ID`, `user.TENANT$ID` | the buckets that a user of gateways owns, together |
//! | `@NAME` | none: a template for `like` |

use qos::{Limits, Rate, TenantSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Where specifications are kept (`config-key`).
pub const PREFIX: &str = "qos/spec/";
/// The largest weight.
pub const MOST_WEIGHT: u32 = 10_000;

/// Why a specification is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The selector.
    #[error(
        "'{0}' is none of POOL, POOL/NAMESPACE, POOL/NAMESPACE/IMAGE, client.NAME, bucket.[TENANT/]NAME, user.ID, @TEMPLATE"
    )]
    Selector(String),
    /// The JSON.
    #[error("it cannot be read: {0}")]
    Json(String),
    /// A value, or a combination.
    #[error("{0}")]
    Value(&'static str),
    /// Its template.
    #[error("there is no template @{0}")]
    Template(String),
}

/// The tenant of a specification.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// A template.
    Template(String),
    /// A client, with `client.`.
    Client(String),
    /// A bucket: the tenant, which may be empty, and the name there.
    Bucket(String, String),
    /// The buckets that a user of gateways owns: the user's id, with its tenant.
    User(String),
    /// A pool.
    Pool(String),
    /// A pool and a namespace of it.
    Namespace(String, String),
    /// A pool, a namespace and a pattern for names of images.
    Image(String, String, String),
}

impl Selector {
    /// Reads it.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let bad = || SpecError::Selector(text.to_owned());
        let parts: Vec<&str> = text.split('/').collect();
        let plain = text.len() <= 512 && !text.chars().any(|c| c.is_control() || c.is_whitespace());
        let own = |s: &&str| (*s).to_owned();
        match &parts[..] {
            _ if !plain => Err(bad()),
            [one] if one.starts_with('@') && one.len() > 1 => {
                Ok(Selector::Template(one[1..].to_owned()))
            }
            [one] if one.strip_prefix("client.").is_some_and(|n| !n.is_empty()) => {
                Ok(Selector::Client(own(one)))
            }
            [first, ..] if first.starts_with(BUCKET) || first.starts_with(USER) => {
                Selector::of_gateway(&parts).ok_or_else(bad)
            }
            [pool] if !pool.is_empty() && !pool.starts_with('@') => Ok(Selector::Pool(own(pool))),
            [pool, namespace] if !pool.is_empty() && !namespace.is_empty() => {
                Ok(Selector::Namespace(own(pool), own(namespace)))
            }
            [pool, namespace, image] if !pool.is_empty() && !image.is_empty() => {
                Ok(Selector::Image(own(pool), own(namespace), own(image)))
            }
            _ => Err(bad()),
        }
    }

    fn of_gateway(parts: &[&str]) -> Option<Self> {
        let (first, rest) = parts.split_first()?;
        match (first.strip_prefix(BUCKET), first.strip_prefix(USER), rest) {
            (Some(name), _, []) if !name.is_empty() => {
                Some(Selector::Bucket(String::new(), name.to_owned()))
            }
            (Some(tenant), _, [name]) if !tenant.is_empty() && !name.is_empty() => {
                Some(Selector::Bucket(tenant.to_owned(), (*name).to_owned()))
            }
            (_, Some(user), []) if !user.is_empty() => Some(Selector::User(user.to_owned())),
            _ => None,
        }
    }
}

/// How selectors of buckets and of users of gateways begin.
const BUCKET: &str = "bucket.";
const USER: &str = "user.";

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Template(name) => write!(f, "@{name}"),
            Selector::Client(name) => f.write_str(name),
            Selector::Bucket(tenant, name) if tenant.is_empty() => write!(f, "{BUCKET}{name}"),
            Selector::Bucket(tenant, name) => write!(f, "{BUCKET}{tenant}/{name}"),
            Selector::User(id) => write!(f, "{USER}{id}"),
            Selector::Pool(pool) => f.write_str(pool),
            Selector::Namespace(pool, namespace) => write!(f, "{pool}/{namespace}"),
            Selector::Image(pool, namespace, image) => write!(f, "{pool}/{namespace}/{image}"),
        }
    }
}

/// Whether a name fits a pattern: `*` is anything, `?` one character.
pub fn fits(pattern: &str, name: &str) -> bool {
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut i, mut j, mut star) = (0, 0, None);
    while j < n.len() {
        if p.get(i) == Some(&'*') {
            star = Some((i, j));
            i += 1;
        } else if p.get(i).is_some_and(|c| *c == '?' || *c == n[j]) {
            (i, j) = (i + 1, j + 1);
        } else if let Some((at, from)) = star {
            // The star takes one character more.
            (i, j) = (at + 1, from + 1);
            star = Some((at, from + 1));
        } else {
            return false;
        }
    }
    p[i..].iter().all(|c| *c == '*')
}

/// What is promised. What is not said is as the template has it, or else nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// A template, without `@`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// Share of what floors leave; 100 is usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Operations each second at least, if they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_iops: Option<u64>,
    /// Bytes each second at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_bps: Option<u64>,
    /// Operations each second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_iops: Option<u64>,
    /// Bytes each second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_bps: Option<u64>,
    /// The same for each GiB of an image, instead of `floor_iops`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_iops_per_gib: Option<u64>,
    /// The same for each GiB of an image, instead of `ceiling_iops`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_iops_per_gib: Option<u64>,
    /// Operations each second above the ceiling, after a time below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_iops: Option<u64>,
    /// Bytes each second above the ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bps: Option<u64>,
    /// How long a burst may last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_seconds: Option<u64>,
}

/// What a tenant is promised over all OSDs together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promise {
    /// Share of what floors leave.
    pub weight: u32,
    /// Operations and bytes each second, in thousandths; 0 for no floor.
    pub floors: [u64; 2],
    /// Ceilings.
    pub ceilings: Limits,
}

impl Spec {
    /// Reads it.
    pub fn parse(json: &str) -> Result<Self, SpecError> {
        serde_json::from_str(json).map_err(|e| SpecError::Json(e.to_string()))
    }

    /// As it is kept.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// With what a template says that this does not.
    pub fn over(&self, template: &Spec) -> Spec {
        Spec {
            like: None,
            weight: self.weight.or(template.weight),
            floor_iops: self.floor_iops.or(template.floor_iops),
            floor_bps: self.floor_bps.or(template.floor_bps),
            ceiling_iops: self.ceiling_iops.or(template.ceiling_iops),
            ceiling_bps: self.ceiling_bps.or(template.ceiling_bps),
            floor_iops_per_gib: self.floor_iops_per_gib.or(template.floor_iops_per_gib),
            ceiling_iops_per_gib: self.ceiling_iops_per_gib.or(template.ceiling_iops_per_gib),
            burst_iops: self.burst_iops.or(template.burst_iops),
            burst_bps: self.burst_bps.or(template.burst_bps),
            burst_seconds: self.burst_seconds.or(template.burst_seconds),
        }
    }

    /// With its template, out of all specifications by selector.
    pub fn effective(&self, all: &BTreeMap<Selector, Spec>) -> Result<Spec, SpecError> {
        match &self.like {
            None => Ok(self.clone()),
            Some(name) => match all.get(&Selector::Template(name.clone())) {
                Some(template) => Ok(self.over(template)),
                None => Err(SpecError::Template(name.clone())),
            },
        }
    }

    /// Whether it can hold, for this selector. Templates must have been applied.
    pub fn validate(&self, selector: &Selector) -> Result<(), SpecError> {
        let bad = |what| Err(SpecError::Value(what));
        let above =
            |a: Option<u64>, b: Option<u64>| matches!((a, b), (Some(a), Some(b)) if b > 0 && a > b);
        let image = matches!(selector, Selector::Image(..) | Selector::Template(_));
        if matches!(selector, Selector::Template(_)) && self.like.is_some() {
            return bad("a template cannot be like another");
        }
        if self.weight.is_some_and(|w| w == 0 || w > MOST_WEIGHT) {
            return bad("a weight is from 1 to 10000");
        }
        if !image && (self.floor_iops_per_gib.is_some() || self.ceiling_iops_per_gib.is_some()) {
            return bad("only images have a size for rates per GiB");
        }
        if above(self.floor_iops, self.ceiling_iops)
            || above(self.floor_bps, self.ceiling_bps)
            || above(self.floor_iops_per_gib, self.ceiling_iops_per_gib)
        {
            return bad("the floor is above the ceiling");
        }
        if (self.burst_iops.is_some()
            && self.ceiling_iops.is_none()
            && self.ceiling_iops_per_gib.is_none())
            || (self.burst_bps.is_some() && self.ceiling_bps.is_none())
        {
            return bad("a burst needs a ceiling");
        }
        if above(self.ceiling_iops, self.burst_iops) || above(self.ceiling_bps, self.burst_bps) {
            return bad("the burst is below the ceiling");
        }
        if *self == Spec::default() {
            return bad("it says nothing");
        }
        Ok(())
    }

    /// What it means, for an image of some bytes or for what has no size.
    pub fn promise(&self, size: Option<u64>) -> Promise {
        let per_gib = |rate: Option<u64>| {
            let bytes = u128::from(rate?) * u128::from(size?);
            // Small images get something, too.
            Some(u64::try_from(bytes >> 30).unwrap_or(u64::MAX).max(1))
        };
        let floor = per_gib(self.floor_iops_per_gib).or(self.floor_iops).unwrap_or(0);
        let ceiling = per_gib(self.ceiling_iops_per_gib).or(self.ceiling_iops).unwrap_or(0);
        let seconds = self.burst_seconds.unwrap_or(1);
        let rate = |limit: u64, burst: Option<u64>| Rate::new(limit, burst.unwrap_or(0), seconds);
        let iops = rate(ceiling, self.burst_iops);
        let bps = rate(self.ceiling_bps.unwrap_or(0), self.burst_bps);
        Promise {
            weight: self.weight.unwrap_or(TenantSpec::WEIGHT),
            floors: [floor, self.floor_bps.unwrap_or(0)].map(|f| f.saturating_mul(1000)),
            ceilings: Limits { iops, bps, ..Limits::default() },
        }
    }
}

/// Reads everything that is kept under [`PREFIX`]; and what could not be read, with the reason.
pub fn read_all<'a>(
    rows: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> (BTreeMap<Selector, Spec>, Vec<(String, SpecError)>) {
    let (mut all, mut bad) = (BTreeMap::new(), Vec::new());
    for (key, value) in rows {
        let Some(name) = key.strip_prefix(PREFIX) else { continue };
        match Selector::parse(name).and_then(|s| Ok((s, Spec::parse(value)?))) {
            Ok((selector, spec)) => {
                all.insert(selector, spec);
            }
            Err(e) => bad.push((name.to_owned(), e)),
        }
    }
    // What was valid when it was written may not be with the template of today.
    let check = |s: &Selector, spec: &Spec| spec.effective(&all).and_then(|e| e.validate(s)).err();
    let broken: Vec<(Selector, SpecError)> =
        all.iter().filter_map(|(s, spec)| Some((s.clone(), check(s, spec)?))).collect();
    for (selector, e) in broken {
        all.remove(&selector);
        bad.push((selector.to_string(), e));
    }
    (all, bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        for text in [
            "a",
            "a/b",
            "a/b/c",
            "a//c*",
            "client.x",
            "@gold",
            "bucket.b.c",
            "bucket.t/b",
            "user.ann",
            "user.t$ann",
        ] {
            assert_eq!(Selector::parse(text).unwrap().to_string(), text);
        }
        for text in ["bucket.", "bucket./b", "bucket.t/", "bucket.t/b/c", "user.", "user.a/b"] {
            assert!(Selector::parse(text).is_err(), "{text:?}");
        }
        for text in ["", "/", "a/", "a//", "/b", "@", "client.", "a/b/c/d", "a b", "a\n"] {
            let parsed = Selector::parse(text);
            assert!(parsed.is_err() || text == "client.", "{text:?}: {parsed:?}");
        }
        assert_eq!(Selector::parse("client.x"), Ok(Selector::Client("client.x".into())));
    }

    #[test]
    fn patterns() {
        for (pattern, name, fit) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("a*c", "abcbc", true),
            ("a*d", "abc", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("", "a", false),
            ("*b*", "abc", true),
            ("**x", "yyx", true),
        ] {
            assert_eq!(fits(pattern, name), fit, "{pattern} {name}");
        }
    }

    #[test]
    fn what_is_not_valid_is_refused() {
        let check = |selector: &str, json: &str| {
            Spec::parse(json).and_then(|s| s.validate(&Selector::parse(selector)?))
        };
        assert!(check("a", r#"{"weight": 200, "floor_iops": 10, "ceiling_iops": 10}"#).is_ok());
        for (selector, json) in [
            ("a", "{}"),
            ("a", r#"{"weight": 0}"#),
            ("a", r#"{"weight": 10001}"#),
            ("a", r#"{"floor_iops": 11, "ceiling_iops": 10}"#),
            ("a", r#"{"burst_iops": 5}"#),
            ("a", r#"{"ceiling_iops": 10, "burst_iops": 5}"#),
            ("a", r#"{"flor_iops": 5}"#),
            ("a", r#"{"floor_iops": -5}"#),
            ("a", r#"{"floor_iops_per_gib": 5}"#),
            ("a", "[]"),
            ("a", "x"),
        ] {
            assert!(check(selector, json).is_err(), "{selector} {json}");
        }
        assert!(check("a//x", r#"{"floor_iops_per_gib": 5}"#).is_ok());
    }

    #[test]
    fn templates_fill_what_is_not_said() {
        let rows = [
            ("qos/spec/@gold", r#"{"weight": 300, "ceiling_iops_per_gib": 10}"#),
            ("qos/spec/p//vm", r#"{"like": "gold", "weight": 400}"#),
            ("qos/spec/p", r#"{"like": "gold"}"#),
            ("qos/spec/q", r#"{"like": "silver"}"#),
            ("qos/spec/r", "?"),
            ("other", "?"),
        ];
        let (all, bad) = read_all(rows);
        assert_eq!(all.keys().map(|s| s.to_string()).collect::<Vec<_>>(), ["@gold", "p//vm"]);
        assert_eq!(bad.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["r", "p", "q"]);
        let vm = Selector::parse("p//vm").unwrap();
        let promise = all[&vm].effective(&all).unwrap().promise(Some(3 << 29));
        assert_eq!(
            (promise.weight, promise.ceilings.iops, promise.floors),
            (400, Rate::new(15, 0, 1), [0, 0])
        );
        assert_eq!(
            all[&vm].effective(&all).unwrap().promise(Some(1)).ceilings.iops,
            Rate::new(1, 0, 1)
        );
    }
}
