//! Erasure codes: profiles, rules for them, and what a pool takes from a profile.

use super::frame::{Answer, Entry, Read, Write, read, write};
use super::osd_crush_edit::edit;
use crate::command::{Refusal, Reply};
use crate::osd_state::OsdMapExt;
use crate::state::{ClusterState, Pending};
use conf::Config;
use crush::{CrushError, CrushMap, RuleMode, Workspace, op};
use ec::{Layout, Profile, ProfileError, Settings};
use serde_json::json;
use types::errno::Errno;
use types::{OsdId, OsdMap};

pub(super) static COMMANDS: &[Entry] = &[
    read("osd erasure-code-profile ls", "List erasure code profiles.", "osd", "r", |c| {
        let names: Vec<&String> = c.state.osd.map().erasure_code_profiles.keys().collect();
        Ok(super::osd_crush::names(c, &names))
    }),
    read(
        "osd erasure-code-profile get name=name,type=CephString,goodchars=[A-Za-z0-9-_.]",
        "Show an erasure code profile.",
        "osd",
        "r",
        profile_get,
    ),
    write(
        "osd erasure-code-profile set name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=profile,type=CephString,n=N,req=false name=force,type=CephBool,req=false",
        "Define an erasure code profile.",
        "osd",
        "rw",
        profile_set,
    ),
    write(
        "osd erasure-code-profile rm name=name,type=CephString,goodchars=[A-Za-z0-9-_.]",
        "Remove an erasure code profile.",
        "osd",
        "rw",
        profile_rm,
    ),
    write(
        "osd crush rule create-erasure name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=profile,type=CephString,req=false,goodchars=[A-Za-z0-9-_.=]",
        "Add a rule for an erasure code profile.",
        "osd",
        "rw",
        rule_create,
    ),
];

/// The name of the profile that is taken where none is named.
pub(super) const DEFAULT_PROFILE: &str = "default";

/// OSDs that serve erasure-coded pools have this in their metadata, with the value `1`.
pub const SERVED_KEY: &str = "erasure_coded_pools";

fn refused(e: ProfileError) -> Refusal {
    let errno = match e {
        ProfileError::Invalid(_) => Errno::EINVAL,
        ProfileError::NoTechnique(_) => Errno::ENOENT,
        ProfileError::NoPlugin(_) => Errno::EIO,
        ProfileError::Unsupported(_) => Errno::EOPNOTSUPP,
    };
    Refusal::new(errno, e.to_string())
}

/// `{k=2,m=1}`, as Ceph prints maps.
fn shown(settings: &Settings) -> String {
    let inner: Vec<String> = settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{{{}}}", inner.join(","))
}

/// The settings of a profile without a named setting (`osd_pool_default_erasure_code_profile`:
/// words of the form name=value).
pub fn default_settings(conf: &Config) -> Settings {
    conf.str("osd_pool_default_erasure_code_profile")
        .split_whitespace()
        .map(|word| word.split_once('=').unwrap_or((word, "")))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// The settings that a command names, on top of the defaults if the plugin is theirs (Ceph:
/// `OSDMonitor::parse_erasure_code_profile`).
fn parse(words: &[String], conf: &Config) -> Result<Settings, Refusal> {
    let defaults = default_settings(conf);
    let mut named = Settings::new();
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        if let Some(rest) = key.strip_prefix("ruleset-") {
            return Err(Refusal::invalid(format!(
                "property '{key}' is no longer supported; try 'crush-{rest}' instead"
            )));
        }
        named.insert(key.to_owned(), value.to_owned());
    }
    if named.get("plugin").is_some_and(|p| defaults.get("plugin") != Some(p)) {
        return Ok(named);
    }
    let mut settings = defaults;
    settings.extend(named);
    Ok(settings)
}

/// A profile that pools and rules can use, and whether it has to be put into the map first: the
/// default one is made when it is used (Ceph does so for pools and rules).
pub(super) struct Found {
    pub profile: Profile,
    make: Option<Settings>,
}

/// The profile of that name.
pub(super) fn by_name(map: &OsdMap, conf: &Config, name: &str) -> Result<Found, Refusal> {
    let known = map.erasure_code_profiles.get(name).cloned();
    let make = known.is_none() && name == DEFAULT_PROFILE;
    let mut settings = match known {
        None if make => default_settings(conf),
        known => known.unwrap_or_default(),
    };
    let profile = Profile::normalize(&mut settings).map_err(refused)?;
    Ok(Found { profile, make: make.then_some(settings) })
}

impl Found {
    /// Puts the profile into the map, if need be.
    pub fn make(&self, pending: &mut Pending) {
        if let Some(settings) = &self.make {
            let profiles = &mut pending.osd_mut().erasure_code_profiles;
            profiles.insert(DEFAULT_PROFILE.to_owned(), settings.clone());
        }
    }
}

/// Names of pools that use a profile.
fn users<'a>(map: &'a OsdMap, profile: &str) -> Vec<&'a str> {
    map.pools
        .iter()
        .filter(|(_, p)| !p.is_replicated() && p.erasure_code_profile == profile)
        .filter_map(|(id, _)| map.pool_names.get(id).map(String::as_str))
        .collect()
}

fn profile_get(c: &Read<'_>) -> Answer {
    let name = c.args.req("name");
    match c.state.osd.map().erasure_code_profiles.get(name) {
        Some(p) => Ok(c
            .format()
            .reply(|| json!(p), || p.iter().map(|(k, v)| format!("{k}={v}\n")).collect())),
        None => Err(Refusal::new(Errno::ENOENT, format!("unknown erasure code profile '{name}'"))),
    }
}

fn profile_set(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let mut settings = parse(&c.args.strs("profile"), &c.env.conf.borrow())?;
    let map = c.pending.osd();
    if let Some(domain) = settings.get("crush-failure-domain").filter(|d| !d.is_empty())
        && map.crush.types.id(domain).is_none()
    {
        return Err(Refusal::invalid(format!(
            "erasure-code-profile {} contains an invalid failure-domain \"{domain}\"",
            shown(&settings)
        )));
    }
    Profile::normalize(&mut settings).map_err(refused)?;
    if let Some(old) = map.erasure_code_profiles.get(name) {
        let mut old = old.clone();
        // What was stored by hands other than these may be refused today.
        let readable = Profile::normalize(&mut old).is_ok();
        if readable && old == settings {
            return Ok(Reply::empty());
        }
        if !c.args.flag("force") {
            return Err(Refusal::new(
                Errno::EPERM,
                format!(
                    "will not override erasure code profile {name} because the existing profile \
                     {} is different from the proposed profile {}",
                    shown(&old),
                    shown(&settings)
                ),
            ));
        }
        let users = users(map, name);
        if !users.is_empty() {
            return Err(Refusal::new(
                Errno::EBUSY,
                format!(
                    "{} pool(s) are using the erasure code profile '{name}': what they hold was \
                     written by it; make another profile, and a pool with it",
                    users.join(" ")
                ),
            ));
        }
    }
    c.pending.osd_mut().erasure_code_profiles.insert(name.to_owned(), settings);
    Ok(Reply::empty())
}

fn profile_rm(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let map = c.pending.osd();
    let users = users(map, name);
    if !users.is_empty() {
        let users = users.join(" ");
        return Err(Refusal::new(
            Errno::EBUSY,
            format!("{users} pool(s) are using the erasure code profile '{name}'"),
        ));
    }
    if !map.erasure_code_profiles.contains_key(name) {
        return Ok(Reply::status(format!("erasure-code-profile {name} does not exist")));
    }
    c.pending.osd_mut().erasure_code_profiles.remove(name);
    Ok(Reply::empty())
}

/// Adds the rule of a profile: one shard in each failure domain, positions kept (Ceph:
/// `ErasureCode::create_rule`). Returns its number.
pub(super) fn add_rule(
    crush: &mut CrushMap,
    name: &str,
    profile: &Profile,
) -> Result<i32, CrushError> {
    let (root, domain, class) = (&profile.root, &profile.failure_domain, &profile.device_class);
    let id = crush.add_simple_rule(name, root, domain, class, RuleMode::Indep, 3, None)?;
    // A profile has at most 127 shards.
    crush.set_rule_max_size(id, profile.size() as u8)?;
    Ok(id)
}

fn rule_create(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let profile = c.args.str("profile").filter(|p| !p.is_empty()).unwrap_or(DEFAULT_PROFILE);
    if c.pending.osd().crush.rule_names.id(name).is_some() {
        return Ok(Reply::status(format!("rule {name} already exists")));
    }
    let found = by_name(c.pending.osd(), &c.env.conf.borrow(), profile)?;
    let id = edit(c.pending, |map| Ok(add_rule(map, name, &found.profile)?))?;
    found.make(c.pending);
    Ok(Reply::status(format!("created rule {name} at {id}")))
}

/// The properties that a pool takes from its profile.
pub(super) struct OfPool {
    pub size: u8,
    pub min_size: u8,
    pub layout: Layout,
}

/// The properties of a pool with a profile.
pub(super) fn of_pool(profile: &Profile, conf: &Config) -> Result<OfPool, Refusal> {
    let layout = profile
        .layout(conf.u64("osd_pool_erasure_code_stripe_unit"))
        .map_err(|e| Refusal::invalid(e.to_string()))?;
    let number = |n: usize| u8::try_from(n).map_err(|_| Refusal::invalid("too many shards"));
    if u32::try_from(layout.stripe_width()).is_err() {
        return Err(Refusal::invalid(format!(
            "a stripe of {} bytes: expected less than 4 GiB; set a smaller stripe_unit",
            layout.stripe_width()
        )));
    }
    Ok(OfPool { size: number(profile.size())?, min_size: number(profile.min_size())?, layout })
}

/// Refuses an erasure-coded pool as long as an OSD that is up has not said that it serves such
/// pools.
pub(super) fn check_served(state: &ClusterState, map: &OsdMap) -> Result<(), Refusal> {
    let serves = |o: &OsdId| {
        state.osd_metadata.get(o).and_then(|m| m.get(SERVED_KEY)).is_some_and(|v| v == "1")
    };
    let up: Vec<OsdId> = map.osds().filter(|o| map.is_up(*o)).collect();
    let lacking: Vec<String> =
        up.iter().filter(|o| !serves(o)).take(10).map(|o| format!("osd.{o}")).collect();
    if up.is_empty() {
        return Err(Refusal::unsupported(
            "erasure-coded pools: no OSD is up that could say whether it serves them",
        ));
    }
    if !lacking.is_empty() {
        return Err(Refusal::unsupported(format!(
            "erasure-coded pools are not supported by {}: each OSD that is up must serve them",
            lacking.join(", ")
        )));
    }
    Ok(())
}

/// Inputs of CRUSH that are tried.
const TRIES: i32 = 64;

/// Refuses a rule that finds no OSDs for all shards: no placement group would ever be clean.
pub(super) fn check_domains(
    map: &OsdMap,
    crush: &CrushMap,
    rule: i32,
    size: u8,
) -> Result<(), Refusal> {
    let wanted = usize::from(size);
    let (mut workspace, mut out) = (Workspace::default(), Vec::new());
    let mut best = 0;
    for x in 0..TRIES {
        crush.do_rule(rule, x, wanted, &map.weights, None, &mut workspace, &mut out);
        let found = out.iter().filter(|o| map.exists(OsdId(**o))).count();
        best = best.max(found);
        if best >= wanted {
            return Ok(());
        }
    }
    let name = crush.rule_names.name(rule).unwrap_or_default();
    let (kind, there) = domains(map, crush, rule);
    Err(Refusal::invalid(format!(
        "crush rule {name} places {best} of {wanted} shards: expected at least {wanted} failure \
         domains of type {kind} with an OSD that is in, found {there}. Add {kind}s, or use a \
         profile with a smaller k+m or with another crush-failure-domain (osd needs {wanted} OSDs, \
         and then one {kind} may take several shards with it). With --yes-i-really-mean-it the pool \
         is created all the same, and its placement groups stay undersized or incomplete"
    )))
}

/// The type of failure domain of a rule, and how many there are with an OSD that takes data.
fn domains(map: &OsdMap, crush: &CrushMap, rule: i32) -> (String, usize) {
    let steps = crush.rule(rule).map(|r| r.steps.as_slice()).unwrap_or_default();
    let root = steps.iter().find(|s| s.op == op::TAKE).map_or(0, |s| s.arg1);
    let chooses =
        [op::CHOOSELEAF_INDEP, op::CHOOSELEAF_FIRSTN, op::CHOOSE_INDEP, op::CHOOSE_FIRSTN];
    let kind = steps.iter().rfind(|s| chooses.contains(&s.op)).map_or(0, |s| s.arg2);
    let name = crush.types.name(kind).unwrap_or("osd").to_owned();
    let takes_data = |osd: &i32| map.is_in(OsdId(*osd));
    let there = match u16::try_from(kind) {
        Ok(0) | Err(_) => crush.leaves(root).iter().filter(|o| takes_data(o)).count(),
        Ok(kind) => crush
            .children_of_type(root, kind)
            .into_iter()
            .filter(|b| crush.leaves(*b).iter().any(takes_data))
            .count(),
    };
    (name, there)
}
