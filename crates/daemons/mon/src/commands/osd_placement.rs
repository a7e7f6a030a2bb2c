//! Where objects are: `osd map`, temporary and hand-made placements.

use super::frame::{Answer, Entry, Read, Write, osd_id, read, write};
use crate::command::{Refusal, Reply};
use crate::osd_state::{self as rules, OsdMapExt};
use crate::state::Change;
use serde_json::json;
use types::errno::Errno;
use types::osdmap::RuleWeights;
use types::pool::flag;
use types::{OsdId, OsdMap, PgId, PgPool, Release};

pub(super) static COMMANDS: &[Entry] = &[
    read(
        "osd map name=pool,type=CephPoolname name=object,type=CephObjectname name=nspace,type=CephString,req=false",
        "Show where an object is, or would be.",
        "osd",
        "r",
        osd_map,
    ),
    write(
        "osd pg-temp name=pgid,type=CephPgid name=id,type=CephOsdName,n=N,req=false",
        "Set a group's temporary acting set; none removes it.",
        "osd",
        "rw",
        pg_temp,
    ),
    write(
        "osd primary-temp name=pgid,type=CephPgid name=id,type=CephOsdName",
        "Set a group's temporary primary; -1 removes it.",
        "osd",
        "rw",
        primary_temp,
    ),
    write(
        "osd pg-upmap name=pgid,type=CephPgid name=id,type=CephOsdName,n=N",
        "Place a group by hand.",
        "osd",
        "rw",
        upmap,
    ),
    write("osd rm-pg-upmap name=pgid,type=CephPgid", "Undo pg-upmap.", "osd", "rw", rm_upmap),
    write(
        "osd pg-upmap-items name=pgid,type=CephPgid name=id,type=CephOsdName,n=N",
        "Replace single OSDs in a group's placement: pairs of from and to.",
        "osd",
        "rw",
        upmap_items,
    ),
    write(
        "osd rm-pg-upmap-items name=pgid,type=CephPgid",
        "Undo pg-upmap-items.",
        "osd",
        "rw",
        rm_upmap_items,
    ),
    write(
        "osd pg-upmap-primary name=pgid,type=CephPgid name=id,type=CephOsdName",
        "Let another OSD of a group's up set lead it.",
        "osd",
        "rw",
        upmap_primary,
    ),
    write(
        "osd rm-pg-upmap-primary name=pgid,type=CephPgid",
        "Undo pg-upmap-primary.",
        "osd",
        "rw",
        rm_upmap_primary,
    ),
    write(
        "osd rm-pg-upmap-primary-all",
        "Undo pg-upmap-primary for all groups.",
        "osd",
        "rw",
        rm_upmap_primary_all,
    ),
    write(
        "osd force-create-pg name=pgid,type=CephPgid name=yes_i_really_mean_it,type=CephBool,req=false",
        "Make a group anew, empty, when all its copies are lost.",
        "osd",
        "rw",
        force_create,
    ),
    write("pg repeer name=pgid,type=CephPgid", "Make a group peer anew.", "osd", "rw", repeer),
];

/// `[1,2,0]`.
fn list(osds: &[OsdId]) -> String {
    let ids: Vec<String> =
        osds.iter().map(|o| if o.is_some() { o.to_string() } else { "NONE".into() }).collect();
    format!("[{}]", ids.join(","))
}

/// An OSD in JSON, where none is -1 for a primary and `2147483647` in a set.
fn ids(osds: &[OsdId]) -> Vec<i32> {
    osds.iter().map(|o| o.0).collect()
}

fn osd_map(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let pool_name = c.args.req("pool");
    let Some((id, pool)) = map.pool_id(pool_name).and_then(|id| Some((id, map.pools.get(&id)?)))
    else {
        return Err(Refusal::new(Errno::ENOENT, format!("pool {pool_name} does not exist")));
    };
    let object = c.args.req("object").to_owned();
    let namespace = c.args.str("nspace").unwrap_or_default().to_owned();
    let hash = pool.hash_key(object.as_bytes(), namespace.as_bytes());
    let raw = PgId::new(id, hash);
    let pg = pool.raw_pg_to_pg(raw);
    let m = map.pg_to_up_acting(pg);
    let full_name = match namespace.is_empty() {
        true => object.clone(),
        false => format!("{namespace}/{object}"),
    };
    Ok(c.format().reply(
        || {
            json!({
                "epoch": map.epoch,
                "pool": pool_name,
                "pool_id": id.0,
                "objname": object,
                "raw_pgid": raw.to_string(),
                "pgid": pg.to_string(),
                "up": ids(&m.up),
                "up_primary": m.up_primary.0,
                "acting": ids(&m.acting),
                "acting_primary": m.acting_primary.0,
            })
        },
        || {
            format!(
                "osdmap e{} pool '{pool_name}' ({id}) object '{full_name}' -> pg {raw} ({pg}) -> up ({}, p{}) acting ({}, p{})",
                map.epoch,
                list(&m.up),
                m.up_primary,
                list(&m.acting),
                m.acting_primary
            )
        },
    ))
}

fn pgid(text: &str) -> Result<PgId, Refusal> {
    text.parse().map_err(|_| Refusal::invalid(format!("invalid pgid '{text}'")))
}

/// The PG that a command is about, if its pool has it.
fn group<'a>(map: &'a OsdMap, text: &str) -> Result<(PgId, &'a PgPool), Refusal> {
    let pg = pgid(text)?;
    map.pools
        .get(&pg.pool)
        .filter(|p| pg.seed < p.pg_num)
        .map(|p| (pg, p))
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("pg {pg} does not exist")))
}

/// The OSDs that a command names, all of which exist.
fn osds(c: &Write<'_>, map: &OsdMap) -> Result<Vec<OsdId>, Refusal> {
    c.args
        .strs("id")
        .iter()
        .map(|w| {
            let osd = osd_id(w)?;
            match map.exists(osd) {
                true => Ok(osd),
                false => Err(Refusal::new(Errno::ENOENT, format!("osd.{osd} does not exist"))),
            }
        })
        .collect()
}

/// Gives up what a PG held. The OSDs that act now make it anew; the pool counts as being created
/// until one of them serves it, so that `pg_num` stays meanwhile.
fn force_create(c: &mut Write<'_>) -> Answer {
    let pg = pgid(c.args.req("pgid"))?;
    let known = c.pending.osd().pools.get(&pg.pool).is_some_and(|p| pg.seed < p.pg_num);
    if !known {
        return Err(Refusal::new(Errno::ENOENT, format!("pg {pg} should not exist")));
    }
    if !c.args.flag("yes_i_really_mean_it") {
        return Err(Refusal::new(
            Errno::EPERM,
            "all copies of the PG must be lost: its data is given up for good, and the PG begins \
             anew, empty. Pass --yes-i-really-mean-it to proceed.",
        ));
    }
    if c.pending.state().is_creating(pg) {
        // OSDs that were to make it may be gone by now.
        if c.pending.state().is_recreating(pg) {
            let epoch = c.pending.osd_before().epoch;
            c.pending.put(Change::ForceCreate(vec![pg], epoch));
        }
        return Ok(Reply::status(format!("pg {pg} already creating")));
    }
    let epoch = c.pending.osd_before().epoch;
    c.pending.put(Change::ForceCreate(vec![pg], epoch));
    if let Some(pool) = c.pending.osd_mut().pools.get_mut(&pg.pool) {
        pool.flags |= flag::CREATING;
    }
    Ok(Reply::status(format!("pg {pg} now creating, ok")))
}

fn pg_temp(c: &mut Write<'_>) -> Answer {
    let (pg, pool) = group(c.pending.osd(), c.args.req("pgid"))?;
    let wanted = osds(c, c.pending.osd())?;
    if wanted.len() > usize::from(pool.size) {
        return Err(Refusal::invalid(format!(
            "num of osds ({}) > pool size ({})",
            wanted.len(),
            pool.size
        )));
    }
    if !wanted.is_empty() && wanted.len() < usize::from(pool.min_size) {
        return Err(Refusal::invalid(format!(
            "num of osds ({}) < pool min size ({})",
            wanted.len(),
            pool.min_size
        )));
    }
    rules::set_pg_temp(c.pending, pg, &wanted);
    Ok(Reply::status(format!("set {pg} pg_temp mapping to {}", list(&wanted))))
}

fn primary_temp(c: &mut Write<'_>) -> Answer {
    let (pg, _) = group(c.pending.osd(), c.args.req("pgid"))?;
    let word = c.args.strs("id").join(" ");
    if word == "-1" {
        if c.pending.osd().primary_temp.contains_key(&pg) {
            c.pending.osd_mut().primary_temp.remove(&pg);
        }
        return Ok(Reply::status(format!("set {pg} primary_temp mapping to -1")));
    }
    let osd = osd_id(&word)?;
    if !c.pending.osd().exists(osd) {
        return Err(Refusal::new(Errno::ENOENT, format!("osd.{osd} does not exist")));
    }
    c.pending.osd_mut().primary_temp.insert(pg, osd);
    Ok(Reply::status(format!("set {pg} primary_temp mapping to {osd}")))
}

/// Whether clients must be of a release that understands an upmap.
fn may_upmap(map: &OsdMap, release: Release, command: &str) -> Result<(), Refusal> {
    if map.require_min_compat_client >= release {
        return Ok(());
    }
    let message = format!(
        "min_compat_client {} < {release}, which is required for {command}. Try 'ceph osd \
         set-require-min-compat-client {release}' before using the new interface",
        map.require_min_compat_client
    );
    Err(Refusal::new(Errno::EPERM, message))
}

/// The map with a PG's placement changed, if what its pool's rule promises holds then.
fn sound(map: &OsdMap, pg: PgId, change: impl FnOnce(&mut OsdMap)) -> Result<(), Refusal> {
    let mut after = map.clone();
    change(&mut after);
    after.check_upmap(pg, &mut RuleWeights::default()).map_err(|fault| {
        Refusal::invalid(format!("the placement of pg {pg} would be wrong: {fault}"))
    })
}

fn upmap(c: &mut Write<'_>) -> Answer {
    may_upmap(c.pending.osd(), Release::LUMINOUS, "pg-upmap")?;
    let (pg, pool) = group(c.pending.osd(), c.args.req("pgid"))?;
    let mut notes = String::new();
    let mut wanted = Vec::new();
    let named = osds(c, c.pending.osd())?;
    if named.len() < usize::from(pool.min_size) {
        return Err(Refusal::invalid(format!(
            "num of osds ({}) < pool min size ({})",
            named.len(),
            pool.min_size
        )));
    }
    if named.len() > usize::from(pool.size) {
        return Err(Refusal::invalid(format!(
            "num of osds ({}) > pool size ({})",
            named.len(),
            pool.size
        )));
    }
    for osd in named {
        match wanted.contains(&osd) {
            true => notes.push_str(&format!("osd.{osd} already exists, ")),
            false => wanted.push(osd),
        }
    }
    if wanted.is_empty() {
        return Err(Refusal::invalid("no valid upmap items(pairs) is specified"));
    }
    sound(c.pending.osd(), pg, |m| drop(m.pg_upmap.insert(pg, wanted.clone())))?;
    let text = format!("{notes}set {pg} pg_upmap mapping to {}", list(&wanted));
    c.pending.osd_mut().pg_upmap.insert(pg, wanted);
    Ok(Reply::status(text))
}

fn rm_upmap(c: &mut Write<'_>) -> Answer {
    let (pg, _) = group(c.pending.osd(), c.args.req("pgid"))?;
    if c.pending.osd().pg_upmap.contains_key(&pg) {
        c.pending.osd_mut().pg_upmap.remove(&pg);
    }
    Ok(Reply::status(format!("clear {pg} pg_upmap mapping")))
}

fn upmap_items(c: &mut Write<'_>) -> Answer {
    may_upmap(c.pending.osd(), Release::LUMINOUS, "pg-upmap")?;
    let (pg, pool) = group(c.pending.osd(), c.args.req("pgid"))?;
    let named = osds(c, c.pending.osd())?;
    let (pairs, []) = named.as_chunks::<2>() else {
        return Err(Refusal::invalid("you must specify pairs of osd ids to be remapped"));
    };
    if pairs.len() > usize::from(pool.size) {
        return Err(Refusal::invalid(format!(
            "num of osd pairs ({}) > pool size ({})",
            pairs.len(),
            pool.size
        )));
    }
    let mut notes = String::new();
    let mut items: Vec<(OsdId, OsdId)> = Vec::new();
    for [from, to] in pairs.iter().copied() {
        if from == to {
            notes.push_str(&format!("from osd.{from} == to osd.{to}, "));
        } else if items.contains(&(from, to)) {
            notes.push_str(&format!("osd.{from} -> osd.{to} already exists, "));
        } else {
            items.push((from, to));
        }
    }
    if items.is_empty() {
        return Err(Refusal::invalid(format!("{notes}no valid upmap items(pairs) is specified")));
    }
    sound(c.pending.osd(), pg, |m| drop(m.pg_upmap_items.insert(pg, items.clone())))?;
    let shown: Vec<String> = items.iter().map(|(from, to)| format!("{from}->{to}")).collect();
    let text = format!("{notes}set {pg} pg_upmap_items mapping to [{}]", shown.join(","));
    c.pending.osd_mut().pg_upmap_items.insert(pg, items);
    Ok(Reply::status(text))
}

fn rm_upmap_items(c: &mut Write<'_>) -> Answer {
    let (pg, _) = group(c.pending.osd(), c.args.req("pgid"))?;
    if c.pending.osd().pg_upmap_items.contains_key(&pg) {
        c.pending.osd_mut().pg_upmap_items.remove(&pg);
    }
    Ok(Reply::status(format!("clear {pg} pg_upmap_items mapping")))
}

fn upmap_primary(c: &mut Write<'_>) -> Answer {
    may_upmap(c.pending.osd(), Release::REEF, "pg-upmap-primary")?;
    let (pg, pool) = group(c.pending.osd(), c.args.req("pgid"))?;
    if !pool.is_replicated() {
        return Err(Refusal::invalid("pg-upmap-primary is only supported for replicated pools"));
    }
    let named = osds(c, c.pending.osd())?;
    let [osd] = named[..] else {
        return Err(Refusal::invalid("one OSD is expected"));
    };
    let placed = c.pending.osd().pg_to_raw_upmap(pg);
    if !placed.contains(&osd) {
        return Err(Refusal::invalid(format!(
            "osd.{osd} is not in the up set of pg {pg}: {}",
            list(&placed)
        )));
    }
    // Without an earlier one: that would say which OSD is primary otherwise.
    let mut plain = c.pending.osd().clone();
    plain.pg_upmap_primaries.remove(&pg);
    if plain.pg_to_raw_upmap(pg).first() == Some(&osd) {
        if c.pending.osd().pg_upmap_primaries.contains_key(&pg) {
            c.pending.osd_mut().pg_upmap_primaries.remove(&pg);
            return Ok(Reply::status(format!("osd.{osd} leads pg {pg} without pg-upmap-primary")));
        }
        return Err(Refusal::invalid(format!("osd.{osd} is already primary for pg {pg}")));
    }
    sound(c.pending.osd(), pg, |m| {
        m.pg_upmap_primaries.insert(pg, osd);
    })?;
    c.pending.osd_mut().pg_upmap_primaries.insert(pg, osd);
    Ok(Reply::status(format!("change primary for pg {pg} to osd.{osd}")))
}

fn rm_upmap_primary(c: &mut Write<'_>) -> Answer {
    let (pg, _) = group(c.pending.osd(), c.args.req("pgid"))?;
    if c.pending.osd().pg_upmap_primaries.contains_key(&pg) {
        c.pending.osd_mut().pg_upmap_primaries.remove(&pg);
    }
    Ok(Reply::status(format!("clear {pg} pg_upmap_primary mapping")))
}

fn rm_upmap_primary_all(c: &mut Write<'_>) -> Answer {
    if !c.pending.osd().pg_upmap_primaries.is_empty() {
        c.pending.osd_mut().pg_upmap_primaries.clear();
    }
    Ok(Reply::status("cleared all pg_upmap_primary mappings"))
}

/// A temporary acting set that only changes the order is a new interval, and soon goes away.
fn repeer(c: &mut Write<'_>) -> Answer {
    let (pg, _) = group(c.pending.osd(), c.args.req("pgid"))?;
    let m = c.pending.osd().pg_to_up_acting(pg);
    if m.acting.len() < 2 {
        return Err(Refusal::unsupported(
            "a PG with fewer than two OSDs acting cannot be made to peer this way",
        ));
    }
    let mut acting = m.acting.clone();
    acting.rotate_left(1);
    rules::set_pg_temp(c.pending, pg, &acting);
    Ok(Reply::empty())
}
