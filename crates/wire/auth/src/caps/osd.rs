//! What an entity may do at an OSD.

use super::parser::{Parser, TEXT_MAX};
use super::{CapsError, Network, Quoted};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Permissions on objects (`osd_rwxa_t`, `src/osd/OSDCap.h`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OsdPerm(u8);

impl OsdPerm {
    /// Nothing.
    pub const NONE: OsdPerm = OsdPerm(0);
    /// Read.
    pub const R: OsdPerm = OsdPerm(1 << 1);
    /// Write.
    pub const W: OsdPerm = OsdPerm(1 << 2);
    /// Call class methods that read.
    pub const CLASS_READ: OsdPerm = OsdPerm(1 << 3);
    /// Call class methods that write.
    pub const CLASS_WRITE: OsdPerm = OsdPerm(1 << 4);
    /// Call class methods.
    pub const X: OsdPerm = OsdPerm(Self::CLASS_READ.0 | Self::CLASS_WRITE.0);
    /// `*`.
    pub const ANY: OsdPerm = OsdPerm(0xff);

    const fn has(self, other: OsdPerm) -> bool {
        self.0 & other.0 == other.0
    }

    const fn or(self, other: OsdPerm) -> OsdPerm {
        OsdPerm(self.0 | other.0)
    }
}

impl fmt::Display for OsdPerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == OsdPerm::ANY {
            return f.write_str("*");
        }
        let mut words = Vec::new();
        let letters: String = [(OsdPerm::R, 'r'), (OsdPerm::W, 'w'), (OsdPerm::X, 'x')]
            .iter()
            .filter(|(bit, _)| self.has(*bit))
            .map(|(_, l)| l)
            .collect();
        if !letters.is_empty() {
            words.push(letters.as_str());
        }
        if !self.has(OsdPerm::X) {
            words.extend(self.has(OsdPerm::CLASS_READ).then_some("class-read"));
            words.extend(self.has(OsdPerm::CLASS_WRITE).then_some("class-write"));
        }
        f.write_str(&words.join(" "))
    }
}

/// What a grant permits (`OSDCapSpec`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OsdSpec {
    /// `rwx`.
    Perm(OsdPerm),
    /// `class NAME [METHOD]`: calls, nothing else.
    Class(String, Option<String>),
}

/// `tag APPLICATION KEY=VALUE` (`OSDCapPoolTag`). `*` stands for any key or value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTag {
    /// The pool's application.
    pub application: String,
    /// A key of its metadata.
    pub key: String,
    /// The value that it must have.
    pub value: String,
}

/// A pool's metadata: application, key, value (`pg_pool_t::application_metadata`).
pub type AppMetadata = BTreeMap<String, BTreeMap<String, String>>;

/// Which objects a grant is about (`OSDCapMatch`). Conditions that are absent hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsdMatch {
    /// The pool's name.
    pub pool: Option<String>,
    /// The object's namespace; with a `*` at its end, how it begins.
    pub namespace: Option<String>,
    /// What the pool is for.
    pub tag: Option<PoolTag>,
    /// How the object's name begins.
    pub object_prefix: Option<String>,
}

/// `profile NAME [pool=P] [namespace=N]` (`OSDCapProfile`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdProfile {
    /// Its name. Unknown ones grant nothing.
    pub name: String,
    /// Restricts it to a pool.
    pub pool: Option<String>,
    /// Restricts it to a namespace.
    pub namespace: Option<String>,
}

/// One grant (`OSDCapGrant`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdGrant {
    kind: Kind,
    network: Option<Network>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Allow(OsdMatch, OsdSpec),
    /// With what it stands for: caps are parsed once a session and asked with every operation.
    Profile(OsdProfile, Vec<(OsdMatch, OsdSpec)>),
}

/// The `osd` caps of an entity (`OSDCap`, `src/osd/OSDCap.h`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsdCap {
    /// In the order of the text.
    pub grants: Vec<OsdGrant>,
}

/// A call of a class method in an operation (`OpInfo::ClassInfo`).
#[derive(Clone, Copy, Debug)]
pub struct ClassCall<'a> {
    /// The class.
    pub class: &'a str,
    /// The method.
    pub method: &'a str,
    /// The method reads.
    pub read: bool,
    /// The method writes.
    pub write: bool,
    /// The class is one that `x` covers (`osd_class_default_list`).
    pub allowed: bool,
}

/// An operation on an object.
#[derive(Clone, Copy, Debug)]
pub struct OsdOp<'a> {
    /// The pool's name.
    pub pool: &'a str,
    /// The object's namespace.
    pub namespace: &'a [u8],
    /// The pool's application metadata.
    pub metadata: &'a AppMetadata,
    /// The object's name, or its locator key if it has one.
    pub object: &'a [u8],
    /// It reads, apart from what classes do.
    pub read: bool,
    /// It writes, apart from what classes do.
    pub write: bool,
    /// The class methods that it calls.
    pub classes: &'a [ClassCall<'a>],
    /// Where it comes from.
    pub addr: Option<IpAddr>,
}

impl OsdCap {
    /// `allow *`.
    pub fn allow_all() -> Self {
        let kind = Kind::Allow(OsdMatch::default(), OsdSpec::Perm(OsdPerm::ANY));
        OsdCap { grants: vec![OsdGrant { kind, network: None }] }
    }

    /// Whether any grant is `allow *` for all objects, wherever it may be used from.
    pub fn is_allow_all(&self) -> bool {
        self.grants.iter().any(|g| g.rules().any(|(m, s)| m.is_all() && s.is_any()))
    }

    /// Whether the entity may number snapshots of a pool, as the monitors judge it (16.2
    /// `src/mon/OSDMonitor.cc`, `is_unmanaged_snap_op_permitted`): some grant lets it write in that
    /// pool by name, be it in one namespace only, or everywhere. What pools are tagged with does
    /// not count, nor where the grant may be used from.
    pub fn may_number_snapshots(&self, pool: Option<&str>) -> bool {
        self.grants.iter().flat_map(OsdGrant::rules).any(|(of, spec)| {
            let writes = matches!(spec, OsdSpec::Perm(p) if p.has(OsdPerm::W));
            let here = of.pool.is_some() && of.pool.as_deref() == pool;
            writes && (of.is_all() || here)
        })
    }

    /// Whether `op` is allowed (`OSDCap::is_capable`). One grant must cover its reads and writes;
    /// class calls may each be covered by another one.
    pub fn is_capable(&self, op: &OsdOp<'_>) -> bool {
        let mut class_allowed = vec![false; op.classes.len()];
        self.grants
            .iter()
            .filter(|g| Network::admits(&g.network, op.addr))
            .flat_map(OsdGrant::rules)
            .any(|(m, s)| m.matches(op) && s.covers(op, &mut class_allowed))
    }
}

impl OsdGrant {
    fn rules(&self) -> Box<dyn Iterator<Item = (&OsdMatch, &OsdSpec)> + '_> {
        match &self.kind {
            Kind::Allow(m, s) => Box::new(std::iter::once((m, s))),
            Kind::Profile(_, rules) => Box::new(rules.iter().map(|(m, s)| (m, s))),
        }
    }
}

impl OsdSpec {
    fn is_any(&self) -> bool {
        *self == OsdSpec::Perm(OsdPerm::ANY)
    }

    fn covers(&self, op: &OsdOp<'_>, class_allowed: &mut [bool]) -> bool {
        let perm = match self {
            OsdSpec::Perm(p) => *p,
            OsdSpec::Class(..) => OsdPerm::NONE,
        };
        if (op.read && !perm.has(OsdPerm::R)) || (op.write && !perm.has(OsdPerm::W)) {
            return false;
        }
        if self.is_any() {
            return true;
        }
        for (allowed, call) in class_allowed.iter_mut().zip(op.classes) {
            let named = match self {
                OsdSpec::Class(class, method) => {
                    class == call.class && method.as_deref().is_none_or(|m| m == call.method)
                }
                OsdSpec::Perm(_) => false,
            };
            let by_perm = call.allowed
                && (!call.read || perm.has(OsdPerm::CLASS_READ))
                && (!call.write || perm.has(OsdPerm::CLASS_WRITE));
            *allowed |= named || by_perm;
        }
        class_allowed.iter().all(|a| *a)
    }
}

impl OsdMatch {
    fn is_all(&self) -> bool {
        *self == OsdMatch::default()
    }

    fn matches(&self, op: &OsdOp<'_>) -> bool {
        self.pool.as_deref().is_none_or(|p| p == op.pool)
            && self.namespace.as_deref().is_none_or(|n| match n.strip_suffix('*') {
                Some(begin) => {
                    op.namespace.starts_with(begin.as_bytes()) || n.as_bytes() == op.namespace
                }
                None => n.as_bytes() == op.namespace,
            })
            && self.tag.as_ref().is_none_or(|t| t.matches(op.metadata))
            && self.object_prefix.as_deref().is_none_or(|p| op.object.starts_with(p.as_bytes()))
    }
}

impl PoolTag {
    fn matches(&self, metadata: &AppMetadata) -> bool {
        let Some(kv) = metadata.get(&self.application) else {
            return false;
        };
        match (self.key.as_str(), self.value.as_str()) {
            ("*", "*") => true,
            ("*", value) => kv.values().any(|v| v == value),
            (key, "*") => kv.contains_key(key),
            (key, value) => kv.get(key).is_some_and(|v| v == value),
        }
    }
}

impl OsdProfile {
    /// `OSDCapGrant::expand_profile`.
    fn expand(&self) -> Vec<(OsdMatch, OsdSpec)> {
        let here = OsdMatch {
            pool: self.pool.clone(),
            namespace: self.namespace.clone(),
            ..OsdMatch::default()
        };
        let named = |prefix: &str| OsdMatch {
            object_prefix: Some(prefix.to_owned()),
            ..OsdMatch::default()
        };
        let header = OsdMatch { object_prefix: Some("rbd_header.".to_owned()), ..here.clone() };
        let class = |method: &str| OsdSpec::Class("rbd".to_owned(), Some(method.to_owned()));
        let rw = OsdPerm::R.or(OsdPerm::W);
        match self.name.as_str() {
            "read-only" => vec![(here, OsdSpec::Perm(OsdPerm::R))],
            "read-write" => vec![(here, OsdSpec::Perm(rw))],
            "rbd" => vec![
                (named("rbd_info"), OsdSpec::Perm(OsdPerm::R)),
                (named("rbd_children"), OsdSpec::Perm(OsdPerm::CLASS_READ)),
                (named("rbd_mirroring"), OsdSpec::Perm(OsdPerm::CLASS_READ)),
                // The pool's metadata is in the default namespace whatever the grant is restricted
                // to.
                (
                    OsdMatch { pool: self.pool.clone(), ..OsdMatch::default() },
                    class("metadata_list"),
                ),
                (here, OsdSpec::Perm(rw.or(OsdPerm::X))),
            ],
            "rbd-read-only" => vec![
                (here, OsdSpec::Perm(OsdPerm::R.or(OsdPerm::CLASS_READ))),
                (header.clone(), class("child_attach")),
                (header, class("child_detach")),
            ],
            _ => Vec::new(),
        }
    }
}

impl FromStr for OsdCap {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        let mut p = Parser::new(text);
        let grants = if text.len() > TEXT_MAX { Vec::new() } else { p.grants(false, grant) };
        p.skip(is_space);
        if grants.is_empty() || !p.rest.is_empty() {
            return Err(CapsError::at("osd", text, p.rest));
        }
        Ok(OsdCap { grants })
    }
}

/// C's `isspace`, which this grammar uses and the others do not.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

fn spaces(p: &mut Parser<'_>) -> Option<()> {
    p.run(is_space).map(drop)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

/// ` word=` or ` word `.
fn keyword(p: &mut Parser<'_>, word: &str) -> Option<()> {
    spaces(p)?;
    p.lit(word)?;
    p.lit("=").or_else(|| spaces(p))
}

fn grant(p: &mut Parser<'_>) -> Option<OsdGrant> {
    p.attempt(|p| {
        p.skip(is_blank);
        let kind = p
            .attempt(|p| {
                p.lit("allow")?;
                let spec = spec(p)?;
                Some(Kind::Allow(object_match(p), spec))
            })
            .or_else(|| {
                p.attempt(|p| {
                    p.lit("allow")?;
                    let m = object_match(p);
                    Some(Kind::Allow(m, spec(p)?))
                })
            })
            .or_else(|| p.attempt(profile))?;
        let network = p.network().map(Network::new);
        p.skip(is_blank);
        Some(OsdGrant { kind, network })
    })
}

fn profile(p: &mut Parser<'_>) -> Option<Kind> {
    p.lit("profile")?;
    p.lit("=").or_else(|| spaces(p))?;
    let name = p.string()?;
    let profile = OsdProfile { name, pool: p.attempt(pool), namespace: p.attempt(namespace) };
    let rules = profile.expand();
    Some(Kind::Profile(profile, rules))
}

fn pool(p: &mut Parser<'_>) -> Option<String> {
    keyword(p, "pool")?;
    p.string()
}

fn namespace(p: &mut Parser<'_>) -> Option<String> {
    keyword(p, "namespace")?;
    let mut name = p.string_or_empty()?;
    if p.lit("*").is_some() {
        name.push('*');
    }
    Some(name)
}

fn wildcard_or_string(p: &mut Parser<'_>) -> Option<String> {
    if p.lit("*").or_else(|| p.lit("all")).is_some() {
        return Some("*".to_owned());
    }
    p.string()
}

fn tag(p: &mut Parser<'_>) -> Option<PoolTag> {
    spaces(p)?;
    p.lit("tag")?;
    spaces(p)?;
    let application = p.string()?;
    spaces(p)?;
    let key = wildcard_or_string(p)?;
    p.skip(is_space);
    p.lit("=")?;
    p.skip(is_space);
    Some(PoolTag { application, key, value: wildcard_or_string(p)? })
}

/// Never fails: everything is optional.
fn object_match(p: &mut Parser<'_>) -> OsdMatch {
    if let Some(tag) = p.attempt(tag) {
        return OsdMatch { tag: Some(tag), ..OsdMatch::default() };
    }
    let both = p.attempt(|p| {
        let namespace = namespace(p)?;
        Some(OsdMatch { namespace: Some(namespace), tag: Some(tag(p)?), ..OsdMatch::default() })
    });
    if let Some(both) = both {
        return both;
    }
    OsdMatch {
        pool: p.attempt(pool),
        namespace: p.attempt(namespace),
        tag: None,
        object_prefix: p.attempt(|p| {
            spaces(p)?;
            p.lit("object_prefix")?;
            spaces(p)?;
            p.string()
        }),
    }
}

fn spec(p: &mut Parser<'_>) -> Option<OsdSpec> {
    if let Some(perm) = p.attempt(perm) {
        return Some(OsdSpec::Perm(perm));
    }
    p.attempt(|p| {
        spaces(p)?;
        p.lit("class")?;
        spaces(p)?;
        let class = p.string()?;
        let method = p.attempt(|p| {
            spaces(p)?;
            p.string()
        });
        Some(OsdSpec::Class(class, method))
    })
}

/// ` *`, or letters in this order, then the class permissions; at least one.
fn perm(p: &mut Parser<'_>) -> Option<OsdPerm> {
    let any = p.attempt(|p| {
        spaces(p)?;
        p.lit("*").or_else(|| p.lit("all"))
    });
    if any.is_some() {
        return Some(OsdPerm::ANY);
    }
    let letters = p.attempt(|p| {
        spaces(p)?;
        let mut perm = OsdPerm::NONE;
        for (letter, bit) in [("r", OsdPerm::R), ("w", OsdPerm::W), ("x", OsdPerm::X)] {
            if p.lit(letter).is_some() {
                perm = perm.or(bit);
            }
        }
        (perm != OsdPerm::NONE).then_some(perm)
    });
    let mut perm = letters.unwrap_or_default();
    for (word, bit) in [("class-read", OsdPerm::CLASS_READ), ("class-write", OsdPerm::CLASS_WRITE)]
    {
        let found = p.attempt(|p| {
            spaces(p)?;
            p.lit(word)
        });
        if found.is_some() {
            perm = perm.or(bit);
        }
    }
    (perm != OsdPerm::NONE).then_some(perm)
}

/// A namespace, its wildcard outside of the quotes.
fn print_namespace(n: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match n.strip_suffix('*') {
        Some(begin) => write!(f, " namespace {}*", Quoted(begin)),
        None => write!(f, " namespace {}", Quoted(n)),
    }
}

impl fmt::Display for OsdGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = |s: &str| {
            if s == "*" { s.to_owned() } else { format!("\"{s}\"") }
        };
        let star = |s: &str| {
            if s.contains('"') { format!("'{s}'") } else { star(s) }
        };
        match &self.kind {
            Kind::Allow(m, spec) => {
                f.write_str("allow")?;
                if let Some(pool) = &m.pool {
                    write!(f, " pool {}", Quoted(pool))?;
                }
                if let Some(n) = &m.namespace {
                    print_namespace(n, f)?;
                }
                if let Some(t) = &m.tag {
                    write!(
                        f,
                        " tag {} {}={}",
                        Quoted(&t.application),
                        star(&t.key),
                        star(&t.value)
                    )?;
                }
                if let Some(prefix) = &m.object_prefix {
                    write!(f, " object_prefix {}", Quoted(prefix))?;
                }
                match spec {
                    OsdSpec::Perm(perm) => write!(f, " {perm}")?,
                    OsdSpec::Class(class, method) => {
                        write!(f, " class {}", Quoted(class))?;
                        if let Some(method) = method {
                            write!(f, " {}", Quoted(method))?;
                        }
                    }
                }
            }
            Kind::Profile(p, _) => {
                write!(f, "profile {}", Quoted(&p.name))?;
                if let Some(pool) = &p.pool {
                    write!(f, " pool {}", Quoted(pool))?;
                }
                if let Some(n) = &p.namespace {
                    print_namespace(n, f)?;
                }
            }
        }
        match &self.network {
            Some(n) => write!(f, " network {n}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for OsdCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, grant) in self.grants.iter().enumerate() {
            write!(f, "{}{grant}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
