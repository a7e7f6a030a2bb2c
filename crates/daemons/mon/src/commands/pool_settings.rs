//! `osd pool get|set` and quotas.

use super::erasure;
use super::frame::{Answer, Entry, Read, Write, read, write};
use super::pool::{by_name, change, check_pg_num, check_rule, min_size_for};
use crate::command::{Refusal, Reply};
use serde_json::{Map, Value, json};
use types::errno::Errno;
use types::pool::{AutoscaleMode, PgPool, PoolOptType, PoolOptValue, PoolOpts, PoolType, flag};
use types::{OsdMap, PoolId};

pub(super) static COMMANDS: &[Entry] = &[
    read(
        "osd pool get name=pool,type=CephPoolname \
         name=var,type=CephChoices,strings=size|min_size|pg_num|pgp_num|crush_rule|hashpspool|nodelete|nopgchange|\
nosizechange|write_fadvise_dontneed|noscrub|nodeep-scrub|hit_set_type|hit_set_period|hit_set_count|hit_set_fpp|\
use_gmt_hitset|target_max_objects|target_max_bytes|cache_target_dirty_ratio|cache_target_dirty_high_ratio|\
cache_target_full_ratio|cache_min_flush_age|cache_min_evict_age|erasure_code_profile|min_read_recency_for_promote|\
all|min_write_recency_for_promote|fast_read|hit_set_grade_decay_rate|hit_set_search_last_n|scrub_min_interval|\
scrub_max_interval|deep_scrub_interval|recovery_priority|recovery_op_priority|scrub_priority|compression_mode|\
compression_algorithm|compression_required_ratio|compression_max_blob_size|compression_min_blob_size|csum_type|\
csum_min_block|csum_max_block|allow_ec_overwrites|allow_ec_optimizations|fingerprint_algorithm|pg_autoscale_mode|pg_autoscale_bias|\
pg_num_min|target_size_bytes|target_size_ratio|dedup_tier|dedup_chunk_algorithm|dedup_cdc_chunk_size|eio|bulk|\
pg_num_max|read_ratio|read_lease_interval",
        "Show a setting of a pool, or all.",
        "osd",
        "r",
        get,
    ),
    write(
        "osd pool set name=pool,type=CephPoolname \
         name=var,type=CephChoices,strings=size|min_size|pg_num|pgp_num|pgp_num_actual|crush_rule|hashpspool|\
nodelete|nopgchange|nosizechange|write_fadvise_dontneed|noscrub|nodeep-scrub|hit_set_type|hit_set_period|\
hit_set_count|hit_set_fpp|use_gmt_hitset|target_max_bytes|target_max_objects|cache_target_dirty_ratio|\
cache_target_dirty_high_ratio|cache_target_full_ratio|cache_min_flush_age|cache_min_evict_age|\
min_read_recency_for_promote|min_write_recency_for_promote|fast_read|hit_set_grade_decay_rate|\
hit_set_search_last_n|scrub_min_interval|scrub_max_interval|deep_scrub_interval|recovery_priority|\
recovery_op_priority|scrub_priority|compression_mode|compression_algorithm|compression_required_ratio|\
compression_max_blob_size|compression_min_blob_size|csum_type|csum_min_block|csum_max_block|allow_ec_overwrites|\
allow_ec_optimizations|fingerprint_algorithm|pg_autoscale_mode|pg_autoscale_bias|pg_num_min|target_size_bytes|target_size_ratio|\
dedup_tier|dedup_chunk_algorithm|dedup_cdc_chunk_size|eio|bulk|pg_num_max|read_ratio|read_lease_interval \
         name=val,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false",
        "Change a setting of a pool.",
        "osd",
        "rw",
        set,
    ),
    read(
        "osd pool get-quota name=pool,type=CephPoolname",
        "Show the quotas of a pool.",
        "osd",
        "r",
        get_quota,
    ),
    write(
        "osd pool set-quota name=pool,type=CephPoolname name=field,type=CephChoices,strings=max_objects|max_bytes \
         name=val,type=CephString",
        "Set a quota of a pool; 0 removes it.",
        "osd",
        "rw",
        set_quota,
    ),
];

/// Settings that only a cache tier has, in the order of Ceph's `osd_pool_get_choices`.
const TIER_ONLY: [&str; 15] = [
    "hit_set_type",
    "hit_set_period",
    "hit_set_count",
    "hit_set_fpp",
    "target_max_objects",
    "target_max_bytes",
    "cache_target_dirty_ratio",
    "cache_target_dirty_high_ratio",
    "cache_target_full_ratio",
    "cache_min_flush_age",
    "cache_min_evict_age",
    "min_read_recency_for_promote",
    "min_write_recency_for_promote",
    "hit_set_grade_decay_rate",
    "hit_set_search_last_n",
];
const ERASURE_ONLY: [&str; 3] =
    ["allow_ec_overwrites", "erasure_code_profile", "allow_ec_optimizations"];

/// What `get all` shows of a replicated pool, in its order.
const ALL: [&str; 15] = [
    "size",
    "min_size",
    "pg_num",
    "pgp_num",
    "crush_rule",
    "hashpspool",
    "nodelete",
    "nopgchange",
    "nosizechange",
    "write_fadvise_dontneed",
    "noscrub",
    "nodeep-scrub",
    "use_gmt_hitset",
    "fast_read",
    "pg_autoscale_mode",
];

fn value_of(map: &OsdMap, p: &PgPool, var: &str) -> Option<Value> {
    Some(match var {
        "size" => json!(p.size),
        "min_size" => json!(p.min_size),
        "pg_num" => json!(p.pg_num),
        "pgp_num" => json!(p.pgp_num),
        "crush_rule" => {
            let rule = i32::from(p.crush_rule);
            json!(map.crush.rule_names.name(rule).map_or_else(|| rule.to_string(), str::to_owned))
        }
        "pg_autoscale_mode" => json!(p.pg_autoscale_mode.name()),
        "use_gmt_hitset" => json!(p.use_gmt_hitset),
        "fast_read" => json!(u8::from(p.fast_read)),
        "allow_ec_overwrites" => json!(p.has_flag(flag::EC_OVERWRITES)),
        "allow_ec_optimizations" => json!(p.kind == PoolType::Erasure),
        "erasure_code_profile" => json!(p.erasure_code_profile),
        "hit_set_type" => json!(p.hit_set_params.name()),
        "csum_type" => match p.opts.get(var)? {
            PoolOptValue::Int(n) => {
                json!(CSUM_TYPES.iter().find(|(_, i)| i == n).map(|(name, _)| *name)?)
            }
            _ => return None,
        },
        flag_name if flag::by_name(flag_name).is_some() => {
            json!(p.has_flag(flag::by_name(flag_name)?))
        }
        option => match p.opts.get(option)? {
            PoolOptValue::Str(s) => json!(s),
            PoolOptValue::Int(n) => json!(n),
            PoolOptValue::Double(d) => crush::float(*d),
        },
    })
}

fn get(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let pool = c.args.req("pool");
    let (id, p) = by_name(map, pool)?;
    let var = c.args.req("var");
    let not_applicable = |what: &str| {
        Refusal::new(
            Errno::EACCES,
            format!("pool '{pool}' is not a {what} pool: variable not applicable"),
        )
    };
    let names: Vec<&str> = if var == "all" {
        let erasure = ERASURE_ONLY.into_iter().filter(|_| p.kind == PoolType::Erasure);
        let options = PoolOpts::names().map(|(n, _)| n);
        ALL.into_iter().chain(erasure).chain(options).collect()
    } else if TIER_ONLY.contains(&var) {
        return Err(not_applicable("tier"));
    } else if ERASURE_ONLY.contains(&var) && p.kind != PoolType::Erasure {
        return Err(not_applicable("erasure"));
    } else {
        if PoolOpts::by_name(var).is_some() && p.opts.get(var).is_none() {
            let message = format!("option '{var}' is not set on pool '{pool}'");
            return Err(Refusal::new(Errno::ENOENT, message));
        }
        vec![var]
    };
    let values: Vec<(&str, Value)> =
        names.into_iter().filter_map(|n| Some((n, value_of(map, p, n)?))).collect();
    Ok(c.format().reply(
        || {
            let mut o = Map::new();
            o.insert("pool".into(), json!(pool));
            o.insert("pool_id".into(), json!(id.0));
            o.extend(values.iter().map(|(n, v)| (n.to_string(), v.clone())));
            Value::Object(o)
        },
        || {
            let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
            values
                .iter()
                .map(|(n, v)| match (*n, v) {
                    ("use_gmt_hitset", Value::Bool(b)) => format!("{n}: {}\n", u8::from(*b)),
                    _ => format!("{n}: {}\n", text(v)),
                })
                .collect()
        },
    ))
}

const CSUM_TYPES: [(&str, i64); 6] = [
    ("none", 1),
    ("xxhash32", 2),
    ("xxhash64", 3),
    ("crc32c", 4),
    ("crc32c_16", 5),
    ("crc32c_8", 6),
];

/// A whole number (Ceph: `strict_strtoll`).
fn integer(text: &str) -> Result<i64, Refusal> {
    text.parse().map_err(|_| {
        Refusal::invalid(format!(
            "error parsing integer value '{text}': Expected option value to be integer, got '{text}'"
        ))
    })
}

fn fraction(text: &str) -> Result<f64, Refusal> {
    text.parse::<f64>().ok().filter(|f| f.is_finite()).ok_or_else(|| {
        Refusal::invalid(format!(
            "error parsing floating point value '{text}': strict_strtod: value '{text}' invalid"
        ))
    })
}

/// A number with an optional unit: decimal for counts, binary for bytes.
fn with_unit(text: &str, base: u64) -> Result<i64, Refusal> {
    let bad = || {
        Refusal::invalid(format!(
            "error parsing value '{text}': strict_iecstrtoll: illegal unit prefix"
        ))
    };
    let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.trim().get(digits.len()..).unwrap_or_default();
    let unit = if base == 1024 { unit.trim_end_matches('B').trim_end_matches('i') } else { unit };
    let power = match unit {
        "" => 0,
        "K" | "k" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        "E" => 6,
        _ => return Err(bad()),
    };
    let n: u64 = digits.parse().map_err(|_| bad())?;
    let n = base.checked_pow(power).and_then(|f| f.checked_mul(n)).ok_or_else(bad)?;
    i64::try_from(n).map_err(|_| bad())
}

fn boolean(text: &str) -> Result<bool, Refusal> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Refusal::invalid("expecting value 'true', 'false', '0', or '1'")),
    }
}

fn denied(message: &str) -> Refusal {
    Refusal::new(Errno::EPERM, message)
}

fn set(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("pool");
    let (id, old) = by_name(c.pending.osd(), name)?;
    let (var, val) = (c.args.req("var"), c.args.req("val"));
    if TIER_ONLY.contains(&var) || var == "use_gmt_hitset" {
        return Err(Refusal::new(
            Errno::EACCES,
            format!("pool '{name}' is not a tier pool: variable not applicable"),
        ));
    }
    let new = with_setting(c, id, old, var, val)?;
    if let Some(p) = new
        && p != *old
    {
        change(c.pending, id, |slot| *slot = p);
    }
    let verb = if val == "unset" {
        format!("unset pool {id} {var}")
    } else {
        format!("set pool {id} {var} to {val}")
    };
    Ok(Reply::status(verb))
}

/// The pool with one setting changed; `None` if it is as wanted already.
fn with_setting(
    c: &Write<'_>,
    id: PoolId,
    old: &PgPool,
    var: &str,
    val: &str,
) -> Result<Option<PgPool>, Refusal> {
    let conf = c.env.conf.borrow();
    let map = c.pending.osd();
    let sure = c.args.flag("yes_i_really_mean_it");
    let mut p = old.clone();
    match var {
        "size" => {
            if p.has_flag(flag::NOSIZECHANGE) {
                return Err(denied(
                    "pool size change is disabled; you must unset nosizechange flag for the pool first",
                ));
            }
            if p.kind == PoolType::Erasure {
                return Err(Refusal::unsupported(
                    "can not change the size of an erasure-coded pool",
                ));
            }
            let n = integer(val)?;
            if !(1..=10).contains(&n) {
                return Err(Refusal::invalid("pool size must be between 1 and 10"));
            }
            if n == 1 {
                if !conf.bool("mon_allow_pool_size_one") {
                    return Err(denied("configuring pool size as 1 is disabled by default."));
                }
                if !sure {
                    return Err(denied(
                        "WARNING: setting pool size 1 could lead to data loss without recovery. If you are \
                         *ABSOLUTELY CERTAIN* that is what you want, pass the flag --yes-i-really-mean-it.",
                    ));
                }
            }
            let n = n as u64;
            check_rule(&map.crush, p.kind, i32::from(p.crush_rule), n)?;
            check_pg_num(map, &conf, Some(id), p.pg_num.into(), n)?;
            p.size = n as u8;
            p.min_size = min_size_for(&conf, n);
        }
        "min_size" => {
            if p.has_flag(flag::NOSIZECHANGE) {
                return Err(denied(
                    "pool min size change is disabled; you must unset nosizechange flag for the pool first",
                ));
            }
            let n = integer(val)?;
            // Fewer than k shards hold nothing that could be read.
            let least = match p.kind {
                PoolType::Erasure => {
                    erasure::by_name(map, &conf, &p.erasure_code_profile)?.profile.k as i64
                }
                _ => 1,
            };
            if n < least || n > i64::from(p.size) {
                let message = format!(
                    "pool min_size must be between {least} and size, which is set to {}",
                    p.size
                );
                return Err(Refusal::invalid(message));
            }
            p.min_size = n as u8;
        }
        "pg_num" | "pgp_num" | "pgp_num_actual" => {
            if p.has_flag(flag::NOPGCHANGE) {
                let message = format!(
                    "pool {var} change is disabled; you must unset nopgchange flag for the pool first"
                );
                return Err(denied(&message));
            }
            let n = integer(val)?;
            if var == "pg_num" {
                let max = conf.u64("mon_max_pool_pg_num");
                if n == i64::from(p.pg_num_target) {
                    return Ok(None);
                }
                if n <= 0 || n as u64 > max {
                    let message = format!(
                        "'pg_num' must be greater than 0 and less than or equal to {max} (you may adjust 'mon max \
                         pool pg num' for higher values)"
                    );
                    return Err(Refusal::new(Errno::ERANGE, message));
                }
                if n > i64::from(p.pg_num_target) {
                    check_pg_num(map, &conf, Some(id), n as u64, p.size.into())?;
                }
                let limit = |name| match p.opts.get(name) {
                    Some(PoolOptValue::Int(limit)) if *limit > 0 => Some(*limit),
                    _ => None,
                };
                if let Some(min) = limit("pg_num_min").filter(|min| n < *min) {
                    return Err(Refusal::invalid(format!(
                        "specified pg_num {n} < pg_num_min {min}"
                    )));
                }
                if let Some(max) = limit("pg_num_max").filter(|max| n > *max) {
                    return Err(Refusal::invalid(format!(
                        "specified pg_num {n} > pg_num_max {max}"
                    )));
                }
                // Placement follows, unless it was chosen to be different.
                if p.pg_num_target == p.pgp_num_target {
                    p.pgp_num_target = n as u32;
                }
                p.pg_num_target = n as u32;
                return Ok(Some(p));
            }
            if n <= 0 {
                return Err(Refusal::invalid(format!(
                    "specified pgp_num must > 0, but you set to {n}"
                )));
            }
            if n > i64::from(p.pg_num_target) {
                return Err(Refusal::invalid(format!(
                    "specified pgp_num {n} > pg_num {}",
                    p.pg_num_target
                )));
            }
            if var == "pgp_num_actual" {
                if n > i64::from(p.pg_num) {
                    return Err(Refusal::invalid(format!(
                        "specified pgp_num {n} > pg_num {}",
                        p.pg_num
                    )));
                }
                p.pgp_num = n as u32;
            } else {
                p.pgp_num_target = n as u32;
            }
        }
        "pg_autoscale_mode" => {
            p.pg_autoscale_mode = AutoscaleMode::from_name(val)
                .ok_or_else(|| Refusal::invalid(format!("specified invalid mode {val}")))?;
        }
        "crush_rule" => {
            let rule = map.crush.rule_names.id(val).ok_or_else(|| {
                Refusal::new(Errno::ENOENT, format!("crush rule {val} does not exist"))
            })?;
            check_rule(&map.crush, p.kind, rule, p.size.into())?;
            p.crush_rule = u8::try_from(rule)
                .map_err(|_| Refusal::invalid(format!("rule {rule} is out of range")))?;
        }
        "nodelete"
        | "nopgchange"
        | "nosizechange"
        | "write_fadvise_dontneed"
        | "noscrub"
        | "nodeep-scrub"
        | "eio"
        | "bulk"
        | "hashpspool" => {
            if var == "hashpspool" && !sure {
                return Err(denied(
                    "are you SURE?  this will remap all placement groups in this pool, this triggers large data \
                     movement, pass --yes-i-really-mean-it if you really do.",
                ));
            }
            let bit = flag::by_name(var).unwrap_or(0);
            if boolean(val)? {
                p.flags |= bit;
            } else {
                p.flags &= !bit;
            }
        }
        "allow_ec_overwrites" if p.kind != PoolType::Erasure => {
            return Err(Refusal::invalid(
                "ec overwrites can only be enabled for an erasure coded pool",
            ));
        }
        "allow_ec_overwrites" => {
            if !boolean(val)? {
                return Err(Refusal::invalid("ec overwrites cannot be disabled once enabled"));
            }
            p.flags |= flag::EC_OVERWRITES;
        }
        "allow_ec_optimizations" if p.kind != PoolType::Erasure => {
            return Err(Refusal::invalid(
                "ec optimizations can only be enabled for an erasure coded pool",
            ));
        }
        // Reads and writes of single shards are how these pools work.
        "allow_ec_optimizations" => {
            if !boolean(val)? {
                return Err(Refusal::invalid("ec optimizations cannot be disabled once enabled"));
            }
        }
        "fast_read" if p.kind != PoolType::Erasure => {
            return Err(Refusal::invalid("fast read is not supported in replication pool"));
        }
        "fast_read" => p.fast_read = boolean(val)?,
        _ => set_option(&mut p, var, val)?,
    }
    Ok(Some(p))
}

/// The settings of `pool_opts_t`.
fn set_option(p: &mut PgPool, var: &str, val: &str) -> Result<(), Refusal> {
    let Some((_, kind)) = PoolOpts::by_name(var) else {
        return Err(Refusal::invalid(format!("unrecognized variable '{var}'")));
    };
    if val == "unset" {
        p.opts.unset(var);
        return Ok(());
    }
    let bounds = |n: i64, low: i64, high: i64, what: &str| match (low..=high).contains(&n) {
        true => Ok(n),
        false => Err(Refusal::invalid(format!("pool {what} must be between {low} and {high}"))),
    };
    let value = match var {
        "compression_mode" if !["none", "passive", "aggressive", "force"].contains(&val) => {
            return Err(Refusal::invalid(format!("unrecognized compression mode '{val}'")));
        }
        "compression_algorithm"
            if !["none", "", "snappy", "zlib", "zstd", "lz4"].contains(&val) =>
        {
            return Err(Refusal::invalid(format!("unrecognized compression_algorithm '{val}'")));
        }
        "compression_required_ratio" => {
            let f = fraction(val)?;
            if !(0.0..=1.0).contains(&f) {
                return Err(Refusal::invalid(format!(
                    "compression_required_ratio is out of range (0-1): '{val}'"
                )));
            }
            PoolOptValue::Double(f)
        }
        "csum_type" => match CSUM_TYPES.iter().find(|(n, _)| *n == val) {
            Some((_, n)) => PoolOptValue::Int(*n),
            None => return Err(Refusal::invalid(format!("unrecognized csum_type '{val}'"))),
        },
        "target_size_bytes"
        | "compression_max_blob_size"
        | "compression_min_blob_size"
        | "csum_max_block"
        | "csum_min_block" => PoolOptValue::Int(with_unit(val, 1024)?),
        "pg_num_min" => {
            let n = integer(val)?;
            if n > i64::from(p.pg_num_target) {
                return Err(Refusal::invalid(format!(
                    "specified pg_num_min {n} > pg_num {}",
                    p.pg_num_target
                )));
            }
            PoolOptValue::Int(n)
        }
        "pg_num_max" => {
            let n = integer(val)?;
            if n != 0 && n < i64::from(p.pg_num_target) {
                return Err(Refusal::invalid(format!(
                    "specified pg_num_max {n} < pg_num {}",
                    p.pg_num_target
                )));
            }
            PoolOptValue::Int(n)
        }
        "recovery_priority" => PoolOptValue::Int(bounds(integer(val)?, -10, 10, var)?),
        "target_size_ratio" => match fraction(val)? {
            f if f >= 0.0 => PoolOptValue::Double(f),
            _ => return Err(Refusal::invalid("target_size_ratio cannot be negative")),
        },
        "pg_autoscale_bias" => match fraction(val)? {
            f if (0.0..=1000.0).contains(&f) => PoolOptValue::Double(f),
            _ => return Err(Refusal::invalid("pg_autoscale_bias must be between 0 and 1000")),
        },
        "dedup_tier"
        | "dedup_chunk_algorithm"
        | "dedup_cdc_chunk_size"
        | "fingerprint_algorithm" => {
            return Err(Refusal::unsupported("deduplication is not supported"));
        }
        _ => match kind {
            PoolOptType::Str => PoolOptValue::Str(val.to_owned()),
            PoolOptType::Int => PoolOptValue::Int(integer(val)?),
            PoolOptType::Double => PoolOptValue::Double(fraction(val)?),
        },
    };
    // Zero is how Ceph's operators take a number back.
    match value {
        PoolOptValue::Int(0) if var != "csum_type" => {
            p.opts.unset(var);
        }
        PoolOptValue::Double(0.0) => {
            p.opts.unset(var);
        }
        value => {
            p.opts.set(var, value);
        }
    }
    Ok(())
}

fn get_quota(c: &Read<'_>) -> Answer {
    let name = c.args.req("pool");
    let (id, p) = by_name(c.state.osd.map(), name)?;
    let sum = c.env.stats.digest.as_ref().and_then(|d| d.pool_sum(id));
    let (objects, bytes) = sum.map_or((0, 0), |s| (s.num_objects, s.num_bytes));
    Ok(c.format().reply(
        || {
            json!({
                "pool_name": name,
                "pool_id": id.0,
                "quota_max_objects": p.quota_max_objects,
                "current_num_objects": objects,
                "quota_max_bytes": p.quota_max_bytes,
                "current_num_bytes": bytes,
            })
        },
        || {
            let limit = |max: u64, shown: String, current: i64, unit: &str| match max {
                0 => "N/A".to_owned(),
                _ => format!("{shown}  (current num {unit}: {current} {unit})"),
            };
            format!(
                "quotas for pool '{name}':\n  max objects: {}\n  max bytes  : {}\n",
                limit(
                    p.quota_max_objects,
                    format!("{} objects", si(p.quota_max_objects)),
                    objects,
                    "objects"
                ),
                limit(p.quota_max_bytes, iec(p.quota_max_bytes), bytes, "bytes"),
            )
        },
    ))
}

fn scaled(n: u64, base: u64) -> (String, usize) {
    let (mut whole, mut power) = (n, 0usize);
    while whole >= base && power < 6 {
        whole /= base;
        power += 1;
    }
    let unit = (base as f64).powi(power as i32);
    let exact = n.is_multiple_of(base.pow(power as u32));
    if power == 0 || exact {
        return (whole.to_string(), power);
    }
    let v = n as f64 / unit;
    let digits = if v >= 100.0 {
        0
    } else if v >= 10.0 {
        1
    } else {
        2
    };
    (format!("{v:.digits$}"), power)
}

/// A count with a decimal unit (Ceph: `si_u_t`).
pub fn si(n: u64) -> String {
    let (text, power) = scaled(n, 1000);
    format!("{text}{}", ["", "k", "M", "G", "T", "P", "E"][power])
}

/// Bytes with a binary unit (Ceph: `byte_u_t`).
pub fn iec(n: u64) -> String {
    let (text, power) = scaled(n, 1024);
    format!("{text} {}", ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][power])
}

fn set_quota(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("pool");
    let (id, old) = by_name(c.pending.osd(), name)?;
    let (field, val) = (c.args.req("field"), c.args.req("val"));
    let value = with_unit(val, if field == "max_bytes" { 1024 } else { 1000 })?;
    let mut p = old.clone();
    match field {
        "max_objects" => p.quota_max_objects = value as u64,
        _ => p.quota_max_bytes = value as u64,
    }
    if p != *old {
        change(c.pending, id, |slot| *slot = p);
    }
    Ok(Reply::status(format!("set-quota {field} = {value} for pool {name}")))
}
