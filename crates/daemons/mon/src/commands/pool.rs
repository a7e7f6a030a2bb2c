//! `osd pool`: creation, removal, names, snapshots, applications. The rules are shared with the
//! pool operations that librados sends as messages.

use super::erasure;
use super::frame::{Answer, Entry, Read, Write, flagged, read, unsupported, write};
use crate::command::{Format, Refusal, Reply, flags};
use crate::osd_state::OsdMapExt;
use crate::state::Pending;
use conf::Config;
use crush::CrushMap;
use serde_json::{Map, Value, json};
use types::errno::Errno;
use types::pool::{AutoscaleMode, PgPool, PoolOptValue, PoolType, flag};
use types::{Dump, OsdMap, PoolId, SnapId};

const NO_TIERS: &str = "cache tiers are not supported";

pub(super) static COMMANDS: &[Entry] = &[
    write(
        "osd pool create name=pool,type=CephPoolname name=pg_num,type=CephInt,range=0,req=false \
         name=pgp_num,type=CephInt,range=0,req=false \
         name=pool_type,type=CephChoices,strings=replicated|erasure,req=false \
         name=erasure_code_profile,type=CephString,req=false,goodchars=[A-Za-z0-9-_.] \
         name=rule,type=CephString,req=false name=expected_num_objects,type=CephInt,range=0,req=false \
         name=size,type=CephInt,range=0,req=false name=pg_num_min,type=CephInt,range=0,req=false \
         name=pg_num_max,type=CephInt,range=0,req=false \
         name=autoscale_mode,type=CephChoices,strings=on|off|warn,req=false \
         name=bulk,type=CephBool,req=false name=target_size_bytes,type=CephInt,range=0,req=false \
         name=target_size_ratio,type=CephFloat,range=0|1,req=false \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Create a pool.",
        "osd",
        "rw",
        create,
    ),
    write(
        "osd pool rm name=pool,type=CephPoolname name=pool2,type=CephPoolname,req=false \
         name=yes_i_really_really_mean_it,type=CephBool,req=false \
         name=yes_i_really_really_mean_it_not_faking,type=CephBool,req=false",
        "Delete a pool and all its data.",
        "osd",
        "rw",
        remove,
    ),
    flagged(
        write(
            "osd pool delete name=pool,type=CephPoolname name=pool2,type=CephPoolname,req=false \
             name=yes_i_really_really_mean_it,type=CephBool,req=false \
             name=yes_i_really_really_mean_it_not_faking,type=CephBool,req=false",
            "Delete a pool and all its data.",
            "osd",
            "rw",
            remove,
        ),
        flags::DEPRECATED,
    ),
    write(
        "osd pool rename name=srcpool,type=CephPoolname name=destpool,type=CephPoolname",
        "Rename a pool.",
        "osd",
        "rw",
        rename,
    ),
    read(
        "osd pool ls name=detail,type=CephChoices,strings=detail,req=false",
        "List pools.",
        "osd",
        "r",
        ls,
    ),
    flagged(read("osd lspools", "List pools.", "osd", "r", lspools), flags::DEPRECATED),
    write(
        "osd pool mksnap name=pool,type=CephPoolname name=snap,type=CephString",
        "Take a snapshot of a pool.",
        "osd",
        "rw",
        mksnap,
    ),
    write(
        "osd pool rmsnap name=pool,type=CephPoolname name=snap,type=CephString",
        "Remove a snapshot of a pool.",
        "osd",
        "rw",
        rmsnap,
    ),
    write(
        "osd pool application enable name=pool,type=CephPoolname \
         name=app,type=CephString,goodchars=[A-Za-z0-9-_.] name=yes_i_really_mean_it,type=CephBool,req=false",
        "Say what a pool is used for (rbd, cephfs, rgw, or a name of your own).",
        "osd",
        "rw",
        application,
    ),
    write(
        "osd pool application disable name=pool,type=CephPoolname name=app,type=CephString \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Take back what a pool is used for.",
        "osd",
        "rw",
        application,
    ),
    write(
        "osd pool application set name=pool,type=CephPoolname name=app,type=CephString \
         name=key,type=CephString,goodchars=[A-Za-z0-9-_.] name=value,type=CephString,goodchars=[A-Za-z0-9-_.=]",
        "Set a value that an application keeps with a pool.",
        "osd",
        "rw",
        application,
    ),
    write(
        "osd pool application rm name=pool,type=CephPoolname name=app,type=CephString name=key,type=CephString",
        "Remove a value that an application keeps with a pool.",
        "osd",
        "rw",
        application,
    ),
    read(
        "osd pool application get name=pool,type=CephPoolname,req=false name=app,type=CephString,req=false \
         name=key,type=CephString,req=false",
        "Show what pools are used for.",
        "osd",
        "r",
        application_get,
    ),
    unsupported(
        "osd tier add name=pool,type=CephPoolname name=tierpool,type=CephPoolname \
         name=force_nonempty,type=CephChoices,strings=--force-nonempty,req=false",
        "Put a cache tier before a pool.",
        "osd",
        "rw",
        NO_TIERS,
    ),
    unsupported(
        "osd tier rm name=pool,type=CephPoolname name=tierpool,type=CephPoolname",
        "Take a cache tier away.",
        "osd",
        "rw",
        NO_TIERS,
    ),
    unsupported(
        "osd tier cache-mode name=pool,type=CephPoolname \
         name=mode,type=CephChoices,strings=writeback|readproxy|readonly|none \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Set how a cache tier works.",
        "osd",
        "rw",
        NO_TIERS,
    ),
    unsupported(
        "osd tier set-overlay name=pool,type=CephPoolname name=overlaypool,type=CephPoolname",
        "Send clients to a cache tier.",
        "osd",
        "rw",
        NO_TIERS,
    ),
    unsupported(
        "osd tier rm-overlay name=pool,type=CephPoolname",
        "Stop sending clients to a cache tier.",
        "osd",
        "rw",
        NO_TIERS,
    ),
];

/// The pool of that name.
pub(super) fn by_name<'a>(map: &'a OsdMap, name: &str) -> Result<(PoolId, &'a PgPool), Refusal> {
    map.pool_id(name)
        .and_then(|id| Some((id, map.pools.get(&id)?)))
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("unrecognized pool '{name}'")))
}

/// Changes a pool that exists.
pub fn change(pending: &mut Pending, id: PoolId, f: impl FnOnce(&mut PgPool)) {
    let epoch = pending.osd_epoch();
    if let Some(p) = pending.osd_mut().pools.get_mut(&id) {
        f(p);
        p.last_change = epoch;
    }
}

/// The properties of a new pool.
#[derive(Clone, Debug, Default)]
pub struct NewPool<'a> {
    /// Its name.
    pub name: &'a str,
    /// 0 for the default.
    pub pg_num: u64,
    /// 0 for the default.
    pub pgp_num: u64,
    /// 0 for the default.
    pub size: u64,
    /// Name of the CRUSH rule; `None` for the default.
    pub rule: Option<&'a str>,
    /// Number of the CRUSH rule, where it has no name.
    pub rule_id: Option<i32>,
    /// Objects that it is expected to hold.
    pub expected_num_objects: u64,
    /// `None` for the default.
    pub autoscale_mode: Option<&'a str>,
    /// For an erasure-coded pool, its profile; size and rule follow from it.
    pub erasure: Option<Erasure<'a>>,
}

/// What makes a new pool an erasure-coded one.
#[derive(Clone, Copy, Debug)]
pub struct Erasure<'a> {
    /// The name of its profile.
    pub profile: &'a str,
    /// It is created although OSDs for all shards are not there.
    pub anyhow: bool,
}

/// Whether the placement groups fit the OSDs (Ceph: `OSDMonitor::check_pg_num`).
pub(super) fn check_pg_num(
    map: &OsdMap,
    conf: &Config,
    pool: Option<PoolId>,
    pg_num: u64,
    size: u64,
) -> Result<(), Refusal> {
    let per_osd = conf.u64("mon_max_pg_per_osd");
    let osds = (map.num_in() as u64).max(3);
    let max = per_osd.saturating_mul(osds);
    let mut projected = pg_num.saturating_mul(size);
    for (id, p) in &map.pools {
        if Some(*id) != pool {
            projected = projected.saturating_add(u64::from(p.pg_num_target) * u64::from(p.size));
        }
    }
    if projected <= max {
        return Ok(());
    }
    let which = pool.map(|id| format!("pool id {id}")).unwrap_or_default();
    Err(Refusal::new(
        Errno::ERANGE,
        format!(
            "{which} pg_num {pg_num} size {size} would mean {projected} total pgs, which exceeds max {max} \
             (mon_max_pg_per_osd {per_osd} * num_in_osds {osds})"
        ),
    ))
}

/// Whether a rule serves pools of a kind and size (Ceph: `CrushWrapper::check_crush_rule`).
pub(super) fn check_rule(
    crush: &CrushMap,
    kind: PoolType,
    rule: i32,
    size: u64,
) -> Result<(), Refusal> {
    let Some(r) = crush.rule(rule) else {
        return Err(Refusal::invalid(format!("crush rule {rule} does not exist")));
    };
    let name = crush.rule_names.name(rule).unwrap_or_default();
    if r.kind != kind as u8 {
        let name_of = |erasure| if erasure { "erasure-coded" } else { "replicated" };
        let (wanted, found) = (kind == PoolType::Erasure, r.kind == PoolType::Erasure as u8);
        return Err(Refusal::invalid(format!(
            "crush rule {name} is for {} pools and not for {} pools",
            name_of(found),
            name_of(wanted)
        )));
    }
    if size < u64::from(r.min_size) {
        return Err(Refusal::invalid(format!(
            "pool size is smaller than the crush rule name {name} min size {}",
            r.min_size
        )));
    }
    if size > u64::from(r.max_size) {
        return Err(Refusal::invalid(format!(
            "pool size is bigger than the crush rule name {name} max size {}",
            r.max_size
        )));
    }
    Ok(())
}

fn default_min_size(conf: &Config, size: u64) -> u64 {
    match conf.u64("osd_pool_default_min_size") {
        0 => size - size / 2,
        n => n.min(size),
    }
}

pub(super) fn min_size_for(conf: &Config, size: u64) -> u8 {
    u8::try_from(default_min_size(conf, size)).unwrap_or(u8::MAX)
}

/// How many placement groups a new pool has, and how many of them are placed by themselves.
fn pg_counts(conf: &Config, new: &NewPool<'_>) -> Result<(u64, u64), Refusal> {
    let or = |n: u64, default: &str| if n == 0 { conf.u64(default) } else { n };
    let pg_num = or(new.pg_num, "osd_pool_default_pg_num");
    let pgp_num = match or(new.pgp_num, "osd_pool_default_pgp_num") {
        0 => pg_num,
        n => n,
    };
    let max = conf.u64("mon_max_pool_pg_num");
    if pg_num > max {
        let message = format!(
            "'pg_num' must be greater than 0 and less than or equal to {max} \
             (you may adjust 'mon max pool pg num' for higher values)"
        );
        return Err(Refusal::new(Errno::ERANGE, message));
    }
    if pgp_num > pg_num {
        let message = format!(
            "'pgp_num' must be greater than 0 and lower or equal than 'pg_num', which in this case is {pg_num}"
        );
        return Err(Refusal::new(Errno::ERANGE, message));
    }
    Ok((pg_num, pgp_num))
}

/// A new erasure-coded pool.
struct Coded<'a> {
    asked: Erasure<'a>,
    found: erasure::Found,
    of_pool: erasure::OfPool,
}

impl<'a> Coded<'a> {
    fn new(pending: &Pending, conf: &Config, asked: Erasure<'a>) -> Result<Coded<'a>, Refusal> {
        let map = pending.osd();
        erasure::check_served(pending.state(), map)?;
        let found = erasure::by_name(map, conf, asked.profile)?;
        let of_pool = erasure::of_pool(&found.profile, conf)?;
        Ok(Coded { asked, found, of_pool })
    }
}

fn new_flags(conf: &Config) -> u64 {
    [
        ("osd_pool_default_flag_hashpspool", flag::HASHPSPOOL),
        ("osd_pool_default_flag_nodelete", flag::NODELETE),
        ("osd_pool_default_flag_nopgchange", flag::NOPGCHANGE),
        ("osd_pool_default_flag_nosizechange", flag::NOSIZECHANGE),
    ]
    .into_iter()
    .filter(|(option, _)| conf.bool(option))
    .fold(flag::CREATING, |flags, (_, bit)| flags | bit)
}

/// Creates a pool (Ceph: `OSDMonitor::prepare_new_pool`).
pub fn create_pool(
    pending: &mut Pending,
    conf: &Config,
    new: &NewPool<'_>,
) -> Result<PoolId, Refusal> {
    if new.name.is_empty() {
        return Err(Refusal::invalid(""));
    }
    let map = pending.osd();
    if map.pool_id(new.name).is_some() {
        return Err(Refusal::new(Errno::EEXIST, format!("pool '{}' already exists", new.name)));
    }
    let (pg_num, pgp_num) = pg_counts(conf, new)?;
    let coded = new.erasure.map(|asked| Coded::new(pending, conf, asked)).transpose()?;
    let kind = if coded.is_some() { PoolType::Erasure } else { PoolType::Replicated };
    // With the pool's own rule, if it has none yet. The map changes once everything is right.
    let mut crush = (*map.crush).clone();
    let rule = match &coded {
        Some(c) => erasure_rule(&mut crush, new, c.asked.profile, &c.found.profile)?,
        None => replicated_rule(&crush, conf, new)?,
    };
    let size = match &coded {
        Some(c) => c.of_pool.size.into(),
        None => replicated_size(conf, new)?,
    };
    check_pg_num(map, conf, None, pg_num, size)?;
    check_rule(&crush, kind, rule, size)?;
    if let Some(c) = coded.as_ref().filter(|c| !c.asked.anyhow) {
        erasure::check_domains(map, &crush, rule, c.of_pool.size)?;
    }
    let default_mode = conf.str("osd_pool_default_pg_autoscale_mode");
    let mode = new.autoscale_mode.unwrap_or(&default_mode);
    let (pg_num, pgp_num) = (pg_num as u32, pgp_num as u32);
    let of_coded = coded.as_ref().map(|c| &c.of_pool);
    let pool = PgPool {
        create_time: pending.now(),
        flags: new_flags(conf),
        kind,
        size: size as u8,
        min_size: of_coded.map_or_else(|| min_size_for(conf, size), |p| p.min_size),
        stripe_width: of_coded.map_or(0, |p| p.layout.stripe_width() as u32),
        erasure_code_profile: new.erasure.map_or("", |e| e.profile).to_owned(),
        fast_read: coded.is_some() && conf.bool("osd_pool_default_ec_fast_read"),
        crush_rule: u8::try_from(rule)
            .map_err(|_| Refusal::invalid(format!("crush rule {rule} does not exist")))?,
        pg_autoscale_mode: AutoscaleMode::from_name(mode).unwrap_or(AutoscaleMode::OFF),
        pg_num,
        pgp_num,
        pg_num_pending: pg_num,
        pg_num_target: pg_num,
        pgp_num_target: pgp_num,
        last_change: pending.osd_epoch(),
        expected_num_objects: new.expected_num_objects,
        use_gmt_hitset: true,
        cache_target_dirty_ratio_micro: 400_000,
        cache_target_dirty_high_ratio_micro: 600_000,
        cache_target_full_ratio_micro: 800_000,
        ..PgPool::default()
    };
    let id = PoolId(i64::from(pending.osd().pool_max) + 1);
    if id > PoolId::LAST {
        // Numbers of removed pools are not given again.
        let message = format!("all numbers of pools are used up: the last one is {}", PoolId::LAST);
        return Err(Refusal::new(Errno::ERANGE, message));
    }
    if let Some(c) = coded {
        super::osd_crush_edit::edit(pending, |map| {
            *map = crush;
            Ok(())
        })?;
        c.found.make(pending);
    }
    let map = pending.osd_mut();
    map.pool_max += 1;
    map.pools.insert(id, pool);
    map.pool_names.insert(id, new.name.to_owned());
    Ok(id)
}

fn replicated_size(conf: &Config, new: &NewPool<'_>) -> Result<u64, Refusal> {
    let size = match new.size {
        0 => conf.u64("osd_pool_default_size"),
        n => n,
    };
    if !(1..=10).contains(&size) {
        return Err(Refusal::invalid("pool size must be between 1 and 10"));
    }
    if size == 1 && !conf.bool("mon_allow_pool_size_one") {
        return Err(Refusal::new(
            Errno::EPERM,
            "configuring pool size as 1 is disabled by default.",
        ));
    }
    Ok(size)
}

fn named_rule(crush: &CrushMap, name: &str) -> Result<i32, Refusal> {
    let id = crush.rule_names.id(name);
    id.ok_or_else(|| Refusal::new(Errno::ENOENT, format!("specified rule {name} doesn't exist")))
}

/// The rule of a new replicated pool.
fn replicated_rule(crush: &CrushMap, conf: &Config, new: &NewPool<'_>) -> Result<i32, Refusal> {
    match (new.rule, new.rule_id) {
        (Some(name), _) => named_rule(crush, name),
        (None, Some(id)) => Ok(id),
        (None, None) => match conf.i64("osd_pool_default_crush_rule") {
            n if n >= 0 => Ok(n as i32),
            _ => crush.rules().find(|(_, r)| r.kind == 1).map(|(id, _)| id).ok_or_else(|| {
                Refusal::new(
                    Errno::ENOENT,
                    "No suitable CRUSH rule exists, check 'osd pool default crush *' config options",
                )
            }),
        },
    }
}

/// The rule of a new erasure-coded pool: the one named, or one that is made from the profile and
/// named after the pool (Ceph: `OSDMonitor::prepare_pool_crush_rule`).
fn erasure_rule(
    crush: &mut CrushMap,
    new: &NewPool<'_>,
    profile_name: &str,
    profile: &ec::Profile,
) -> Result<i32, Refusal> {
    if let Some(name) = new.rule {
        return named_rule(crush, name);
    }
    let name = if profile_name == erasure::DEFAULT_PROFILE { "erasure-code" } else { new.name };
    match crush.rule_names.id(name) {
        Some(id) => Ok(id),
        None => erasure::add_rule(crush, name, profile)
            .map_err(|e| Refusal::new(Errno(e.errno()), e.to_string())),
    }
}

fn create(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("pool");
    let conf = c.env.conf.borrow();
    let kind =
        c.args.str("pool_type").map_or_else(|| conf.str("osd_pool_default_type"), str::to_owned);
    if let Some((_, p)) =
        c.pending.osd().pool_id(name).and_then(|id| Some((id, c.pending.osd().pools.get(&id)?)))
    {
        if kind != p.kind.to_string() {
            return Err(Refusal::invalid(format!("pool '{name}' cannot change to type {kind}")));
        }
        return Ok(Reply::status(format!("pool '{name}' already exists")));
    }
    let coded = kind == PoolType::Erasure.to_string();
    let number = |n: &str| c.args.int(n).and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
    // The stock tool fills positions: what it puts into `erasure_code_profile` is a replicated
    // pool's rule, and the next one the expected number of objects.
    let profile = c.args.str("erasure_code_profile").filter(|s| !s.is_empty());
    let named_rule = c.args.str("rule").filter(|s| !s.is_empty());
    let (rule, expected) = match (profile, named_rule) {
        (_, rule) if coded => (rule, number("expected_num_objects")),
        (Some(rule), Some(count)) => {
            let parsed: i64 = count
                .parse()
                .map_err(|_| Refusal::invalid(format!("error parsing integer value '{count}': Expected option value to be integer, got '{count}'")))?;
            let expected = u64::try_from(parsed)
                .map_err(|_| Refusal::invalid("'expected_num_objects' must be non-negative"))?;
            (Some(rule), expected)
        }
        (Some(rule), None) => (Some(rule), number("expected_num_objects")),
        (None, rule) => (rule, number("expected_num_objects")),
    };
    let new = NewPool {
        name,
        pg_num: number("pg_num"),
        pgp_num: number("pgp_num"),
        size: number("size"),
        rule,
        rule_id: None,
        expected_num_objects: expected,
        autoscale_mode: c.args.str("autoscale_mode"),
        erasure: coded.then_some(Erasure {
            profile: profile.unwrap_or(erasure::DEFAULT_PROFILE),
            anyhow: c.args.flag("yes_i_really_mean_it"),
        }),
    };
    let id = create_pool(c.pending, &conf, &new)?;
    if c.args.flag("bulk") {
        change(c.pending, id, |p| p.flags |= flag::BULK);
    }
    let opts = [
        ("pg_num_min", c.args.int("pg_num_min").filter(|n| *n > 0).map(PoolOptValue::Int)),
        ("pg_num_max", c.args.int("pg_num_max").filter(|n| *n > 0).map(PoolOptValue::Int)),
        (
            "target_size_bytes",
            c.args.int("target_size_bytes").filter(|n| *n > 0).map(PoolOptValue::Int),
        ),
        (
            "target_size_ratio",
            c.args.float("target_size_ratio").filter(|n| *n > 0.0).map(PoolOptValue::Double),
        ),
    ];
    for (name, value) in opts {
        if let Some(value) = value {
            change(c.pending, id, |p| {
                p.opts.set(name, value);
            });
        }
    }
    Ok(Reply::status(format!("pool '{name}' created")))
}

/// Deletes a pool if that is allowed (Ceph: `OSDMonitor::_prepare_remove_pool`). Returns the status
/// line.
pub fn remove_pool(pending: &mut Pending, conf: &Config, id: PoolId) -> Result<String, Refusal> {
    let map = pending.osd();
    let Some(pool) = map.pools.get(&id) else {
        return Err(Refusal::new(Errno::ENOENT, format!("pool {id} does not exist")));
    };
    let name = map.pool_names.get(&id).cloned().unwrap_or_default();
    if !conf.bool("mon_allow_pool_delete") {
        return Err(Refusal::new(
            Errno::EPERM,
            "pool deletion is disabled; you must first set the mon_allow_pool_delete config option to true before \
             you can destroy a pool",
        ));
    }
    if pool.has_flag(flag::NODELETE) {
        return Err(Refusal::new(
            Errno::EPERM,
            "pool deletion is disabled; you must unset nodelete flag for the pool first",
        ));
    }
    let map = pending.osd_mut();
    map.pools.remove(&id);
    map.pool_names.remove(&id);
    map.pg_temp.retain(|pg, _| pg.pool != id);
    map.primary_temp.retain(|pg, _| pg.pool != id);
    map.pg_upmap.retain(|pg, _| pg.pool != id);
    map.pg_upmap_items.retain(|pg, _| pg.pool != id);
    map.pg_upmap_primaries.retain(|pg, _| pg.pool != id);
    if map.crush.choose_args.contains_key(&id.0) {
        super::osd_crush_edit::edit(pending, |crush| {
            crush.choose_args.remove(&id.0);
            Ok(())
        })?;
    }
    Ok(format!("pool '{name}' removed"))
}

fn remove(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("pool");
    let Some(id) = c.pending.osd().pool_id(name) else {
        return Ok(Reply::status(format!("pool '{name}' does not exist")));
    };
    let sure = c.args.flag("yes_i_really_really_mean_it")
        || c.args.flag("yes_i_really_really_mean_it_not_faking");
    if c.args.str("pool2") != Some(name) || !sure {
        let message = format!(
            "WARNING: this will *PERMANENTLY DESTROY* all data stored in pool {name}.  If you are *ABSOLUTELY \
             CERTAIN* that is what you want, pass the pool name *twice*, followed by \
             --yes-i-really-really-mean-it."
        );
        return Err(Refusal::new(Errno::EPERM, message));
    }
    remove_pool(c.pending, &c.env.conf.borrow(), id).map(Reply::status)
}

fn rename(c: &mut Write<'_>) -> Answer {
    let (from, to) = (c.args.req("srcpool"), c.args.req("destpool"));
    let map = c.pending.osd();
    match (map.pool_id(from), map.pool_id(to)) {
        (None, Some(_)) => Ok(Reply::status(format!(
            "pool '{from}' does not exist; pool '{to}' does -- assuming successful rename"
        ))),
        (None, None) => Err(Refusal::new(Errno::ENOENT, format!("unrecognized pool '{from}'"))),
        (Some(_), Some(_)) => {
            Err(Refusal::new(Errno::EEXIST, format!("pool '{to}' already exists")))
        }
        (Some(id), None) => {
            c.pending.osd_mut().pool_names.insert(id, to.to_owned());
            Ok(Reply::status(format!("pool '{from}' renamed to '{to}'")))
        }
    }
}

fn ls(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let detail = c.args.str("detail") == Some("detail");
    Ok(match (c.format(), detail) {
        (Format::Plain, false) => {
            Reply::data(map.pool_names.values().map(|n| format!("{n}\n")).collect::<String>())
        }
        (Format::Plain, true) => Reply::data(print_pools(map)),
        (f, false) => Reply::data(f.json(&map.pool_names.values().collect::<Vec<_>>())),
        (f, true) => {
            let pools = map.pools.iter().map(|(id, p)| {
                let mut o = Map::new();
                o.insert("pool_id".into(), json!(id.0));
                o.insert("pool_name".into(), json!(map.pool_names.get(id)));
                if let Value::Object(fields) = p.dump() {
                    o.extend(fields);
                }
                Value::Object(o)
            });
            Reply::data(f.json(&pools.collect::<Value>()))
        }
    })
}

/// The lines about pools of `osd dump`.
fn print_pools(map: &OsdMap) -> String {
    map.print()
        .lines()
        .skip_while(|l| !l.starts_with("pool "))
        .take_while(|l| l.starts_with("pool ") || l.starts_with('\t'))
        .map(|l| format!("{l}\n"))
        .collect()
}

fn lspools(c: &Read<'_>) -> Answer {
    let names = &c.state.osd.map().pool_names;
    Ok(c.format().reply(
        || names.iter().map(|(id, name)| json!({"poolnum": id.0, "poolname": name})).collect(),
        || names.iter().map(|(id, name)| format!("{id} {name}\n")).collect(),
    ))
}

/// Takes a snapshot of a pool. `Ok(false)` if there is one of that name.
pub fn make_snap(pending: &mut Pending, id: PoolId, name: &str) -> Result<bool, Errno> {
    let pool = pending.osd().pools.get(&id).ok_or(Errno::ENOENT)?;
    if pool.is_unmanaged_snaps_mode() {
        return Err(Errno::EINVAL);
    }
    if pool.snap_by_name(name).is_some() {
        return Ok(false);
    }
    let (now, epoch) = (pending.now(), pending.osd_epoch());
    change(pending, id, |p| {
        p.add_snap(name, now);
        p.snap_epoch = epoch;
    });
    Ok(true)
}

/// Removes a snapshot of a pool. `Ok(false)` if there is none of that name.
pub fn remove_snap(pending: &mut Pending, id: PoolId, name: &str) -> Result<bool, Errno> {
    let pool = pending.osd().pools.get(&id).ok_or(Errno::ENOENT)?;
    if pool.is_unmanaged_snaps_mode() {
        return Err(Errno::EINVAL);
    }
    let Some(snap) = pool.snap_by_name(name) else { return Ok(false) };
    let epoch = pending.osd_epoch();
    change(pending, id, |p| {
        p.remove_snap(snap);
        p.snap_epoch = epoch;
    });
    pending.remove_snap(id, snap.0);
    Ok(true)
}

/// Allocates the id of a snapshot that a client manages.
pub fn make_unmanaged_snap(pending: &mut Pending, id: PoolId) -> Result<SnapId, Errno> {
    let pool = pending.osd().pools.get(&id).ok_or(Errno::ENOENT)?;
    if pool.is_pool_snaps_mode() {
        return Err(Errno::EINVAL);
    }
    let epoch = pending.osd_epoch();
    let mut snap = SnapId(0);
    change(pending, id, |p| {
        snap = p.add_unmanaged_snap();
        p.snap_epoch = epoch;
    });
    Ok(snap)
}

/// Removes a snapshot that a client manages. `Ok(false)` if it was removed before.
pub fn remove_unmanaged_snap(
    pending: &mut Pending,
    id: PoolId,
    snap: SnapId,
) -> Result<bool, Errno> {
    let pool = pending.osd().pools.get(&id).ok_or(Errno::ENOENT)?;
    if pool.is_pool_snaps_mode() {
        return Err(Errno::EINVAL);
    }
    if pending.state().snap_is_removed(id, snap) || pending.removes_snap(id, snap.0) {
        return Ok(false);
    }
    if !pool.is_unmanaged_snaps_mode() {
        return Err(Errno::EOPNOTSUPP);
    }
    if snap > pool.snap_seq {
        return Err(Errno::ENOENT);
    }
    let epoch = pending.osd_epoch();
    change(pending, id, |p| {
        p.remove_unmanaged_snap();
        p.snap_epoch = epoch;
    });
    pending.remove_snap(id, snap.0);
    Ok(true)
}

fn mksnap(c: &mut Write<'_>) -> Answer {
    let (pool, snap) = (c.args.req("pool"), c.args.req("snap"));
    let (id, _) = by_name(c.pending.osd(), pool)?;
    match make_snap(c.pending, id, snap) {
        Ok(true) => Ok(Reply::status(format!("created pool {pool} snap {snap}"))),
        Ok(false) => Ok(Reply::status(format!("pool {pool} snap {snap} already exists"))),
        Err(e) => Err(Refusal::new(e, format!("pool {pool} is in unmanaged snaps mode"))),
    }
}

fn rmsnap(c: &mut Write<'_>) -> Answer {
    let (pool, snap) = (c.args.req("pool"), c.args.req("snap"));
    let (id, _) = by_name(c.pending.osd(), pool)?;
    match remove_snap(c.pending, id, snap) {
        Ok(true) => Ok(Reply::status(format!("removed pool {pool} snap {snap}"))),
        Ok(false) => Ok(Reply::status(format!("pool {pool} snap {snap} does not exist"))),
        Err(e) => Err(Refusal::new(e, format!("pool {pool} is in unmanaged snaps mode"))),
    }
}

/// Bounds of application metadata (`ceph:src/mon/OSDMonitor.cc`).
const APPLICATIONS_MAX: usize = 4;
const APPLICATION_KEYS_MAX: usize = 64;
const APPLICATION_TEXT_MAX: usize = 128;

fn application(c: &mut Write<'_>) -> Answer {
    let pool = c.args.req("pool");
    let (id, p) = by_name(c.pending.osd(), pool)?;
    let (app, key, value) = (c.args.req("app"), c.args.req("key"), c.args.req("value"));
    let sure = c.args.flag("yes_i_really_mean_it");
    if key == "all" || value == "all" {
        let which = if key == "all" { "key" } else { "value" };
        return Err(Refusal::invalid(format!("{which} cannot be 'all'")));
    }
    let too_long = |what: &str, text: &str| {
        Refusal::invalid(format!("{what} '{text}' too long; max length {APPLICATION_TEXT_MAX}"))
    };
    let existing = p.application_metadata.get(app);
    let not_enabled = format!("application '{app}' is not enabled on pool '{pool}'");
    match c.args.prefix().rsplit(' ').next() {
        Some("enable") => {
            if app.is_empty() {
                return Err(Refusal::invalid("application name must be provided"));
            }
            if existing.is_none() {
                if !p.application_metadata.is_empty() && !sure {
                    let message = format!(
                        "Are you SURE? Pool '{pool}' already has an enabled application; pass \
                         --yes-i-really-mean-it to proceed anyway"
                    );
                    return Err(Refusal::new(Errno::EPERM, message));
                }
                if p.application_metadata.len() >= APPLICATIONS_MAX {
                    return Err(Refusal::invalid(format!(
                        "too many enabled applications on pool '{pool}'; max {APPLICATIONS_MAX}"
                    )));
                }
                if app.len() > APPLICATION_TEXT_MAX {
                    return Err(too_long("application name", app));
                }
                change(c.pending, id, |p| {
                    drop(p.application_metadata.insert(app.to_owned(), Default::default()))
                });
            }
            Ok(Reply::status(format!("enabled application '{app}' on pool '{pool}'")))
        }
        Some("disable") => {
            if !sure {
                let message = "Are you SURE? Disabling an application within a pool might result in loss of \
                               application functionality; pass --yes-i-really-mean-it to proceed anyway";
                return Err(Refusal::new(Errno::EPERM, message));
            }
            if existing.is_none() {
                return Ok(Reply::status(not_enabled));
            }
            change(c.pending, id, |p| drop(p.application_metadata.remove(app)));
            Ok(Reply::status(format!("disable application '{app}' on pool '{pool}'")))
        }
        Some("set") => {
            let Some(keys) = existing else { return Err(Refusal::new(Errno::ENOENT, not_enabled)) };
            if key.is_empty() {
                return Err(Refusal::invalid("key must be provided"));
            }
            if !keys.contains_key(key) && keys.len() >= APPLICATION_KEYS_MAX {
                return Err(Refusal::invalid(format!(
                    "too many keys set for application '{app}' on pool '{pool}'; max {APPLICATION_KEYS_MAX}"
                )));
            }
            if key.len() > APPLICATION_TEXT_MAX {
                return Err(too_long("key", app));
            }
            if value.len() > APPLICATION_TEXT_MAX {
                return Err(too_long("value", value));
            }
            if keys.get(key).map(String::as_str) != Some(value) {
                change(c.pending, id, |p| {
                    p.application_metadata
                        .entry(app.to_owned())
                        .or_default()
                        .insert(key.to_owned(), value.to_owned());
                });
            }
            Ok(Reply::status(format!(
                "set application '{app}' key '{key}' to '{value}' on pool '{pool}'"
            )))
        }
        _ => {
            let Some(keys) = existing else { return Err(Refusal::new(Errno::ENOENT, not_enabled)) };
            if !keys.contains_key(key) {
                return Ok(Reply::status(format!(
                    "application '{app}' on pool '{pool}' does not have key '{key}'"
                )));
            }
            change(c.pending, id, |p| {
                p.application_metadata.entry(app.to_owned()).or_default().remove(key);
            });
            Ok(Reply::status(format!("removed application '{app}' key '{key}' on pool '{pool}'")))
        }
    }
}

fn application_get(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let json = |v: Value| super::osd_crush::json_only(c, &v);
    let Some(pool) = c.args.str("pool").filter(|p| !p.is_empty()) else {
        let all: Map<String, Value> = map
            .pools
            .iter()
            .map(|(id, p)| {
                (map.pool_names.get(id).cloned().unwrap_or_default(), json!(p.application_metadata))
            })
            .collect();
        return Ok(json(Value::Object(all)));
    };
    let (_, p) = by_name(map, pool)?;
    let Some(app) = c.args.str("app").filter(|a| !a.is_empty()) else {
        return Ok(json(json!(p.application_metadata)));
    };
    let Some(keys) = p.application_metadata.get(app) else {
        return Err(Refusal::new(
            Errno::ENOENT,
            format!("pool '{pool}' has no application '{app}'"),
        ));
    };
    match c.args.str("key").filter(|k| !k.is_empty()) {
        None => Ok(json(json!(keys))),
        Some(key) => match keys.get(key) {
            Some(value) => Ok(Reply::data(format!("{value}\n"))),
            None => Err(Refusal::new(
                Errno::ENOENT,
                format!("application '{app}' on pool '{pool}' does not have key '{key}'"),
            )),
        },
    }
}
