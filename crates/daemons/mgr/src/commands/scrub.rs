//! Scrubs that operators ask for: the manager finds the primaries, and tells them.

use super::Context;
use command::{Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;
use types::{OsdId, OsdMap, PgId, PoolId};

/// What is asked of which OSDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// `scrub`, `deep-scrub` or `repair`.
    pub what: String,
    /// PGs by their primaries.
    pub groups: BTreeMap<OsdId, Vec<PgId>>,
    whose: Whose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Group(PgId),
    Osds,
    Pools,
}

fn what(cx: &Context<'_>) -> String {
    cx.args.prefix().rsplit(' ').next().unwrap_or_default().to_owned()
}

fn again(text: String) -> Refusal {
    Refusal::new(Errno::EAGAIN, text)
}

/// PGs of these pools by their primaries.
fn by_primary(map: &OsdMap, pools: impl IntoIterator<Item = PoolId>) -> BTreeMap<OsdId, Vec<PgId>> {
    let mut groups: BTreeMap<OsdId, Vec<PgId>> = BTreeMap::new();
    for pool in pools {
        for seed in 0..map.pool(pool).map_or(0, |p| p.pg_num) {
            let pgid = PgId { pool, seed };
            let primary = map.pg_to_up_acting(pgid).acting_primary;
            if primary.is_some() {
                groups.entry(primary).or_default().push(pgid);
            }
        }
    }
    groups
}

/// `pg scrub`, `pg deep-scrub`, `pg repair`.
pub fn group(cx: &Context<'_>) -> Result<Order, Refusal> {
    let text = cx.args.req("pgid");
    let pgid: PgId =
        text.parse().map_err(|_| Refusal::invalid(format!("invalid pgid '{text}'")))?;
    if cx.map.pool(pgid.pool).is_none_or(|p| pgid.seed >= p.pg_num) {
        return Err(Refusal::new(Errno::ENOENT, format!("pg {pgid} does not exist")));
    }
    let primary = cx.map.pg_to_up_acting(pgid).acting_primary;
    if !primary.is_some() {
        return Err(again(format!("pg {pgid} has no primary osd")));
    }
    Ok(Order { what: what(cx), groups: [(primary, vec![pgid])].into(), whose: Whose::Group(pgid) })
}

/// `osd scrub`, `osd deep-scrub`, `osd repair`: what these OSDs lead.
pub fn osds(cx: &Context<'_>) -> Result<Order, Refusal> {
    let who = cx.args.req("who");
    let mut groups = by_primary(cx.map, cx.map.pools.keys().copied());
    if !matches!(who, "*" | "all" | "any") {
        let id = who.strip_prefix("osd.").unwrap_or(who).parse::<i32>().ok().filter(|n| *n >= 0);
        let osd = OsdId(id.ok_or_else(|| Refusal::invalid(format!("invalid osd '{who}'")))?);
        if !cx.map.is_up(osd) {
            return Err(again(format!("osd.{} is not up", osd.0)));
        }
        groups.retain(|o, _| *o == osd);
        groups.entry(osd).or_default();
    }
    Ok(Order { what: what(cx), groups, whose: Whose::Osds })
}

/// `osd pool scrub`, `osd pool deep-scrub`, `osd pool repair`.
pub fn pools(cx: &Context<'_>) -> Result<Order, Refusal> {
    let mut pools = BTreeSet::new();
    for name in cx.args.strs("who") {
        let found = cx.map.pool_names.iter().find(|(_, n)| **n == name).map(|(id, _)| *id);
        pools.insert(
            found.ok_or_else(|| {
                Refusal::new(Errno::ENOENT, format!("unrecognized pool '{name}'"))
            })?,
        );
    }
    if pools.is_empty() {
        return Err(Refusal::invalid("must specify one or more pool names".to_string()));
    }
    Ok(Order { what: what(cx), groups: by_primary(cx.map, pools), whose: Whose::Pools })
}

fn list(osds: &BTreeSet<OsdId>) -> String {
    osds.iter().map(|o| o.0.to_string()).collect::<Vec<_>>().join(",")
}

impl Order {
    /// What the caller is told, given the OSDs that could not be reached.
    pub fn answer(&self, unreached: &BTreeSet<OsdId>) -> Result<Reply, Refusal> {
        let what = &self.what;
        let first = self.groups.keys().next().copied().unwrap_or(OsdId(-1));
        match self.whose {
            Whose::Group(pgid) if unreached.contains(&first) => {
                Err(again(format!("pg {pgid} primary osd.{} is not currently connected", first.0)))
            }
            Whose::Group(pgid) => {
                Ok(Reply::status(format!("instructing pg {pgid} on osd.{} to {what}", first.0)))
            }
            Whose::Osds => {
                let reached: BTreeSet<OsdId> =
                    self.groups.keys().copied().filter(|o| !unreached.contains(o)).collect();
                if reached.is_empty() {
                    return Err(again(format!(
                        "failed to instruct osd(s) {} to {what} (not connected)",
                        list(unreached)
                    )));
                }
                let mut text = format!("instructed osd(s) {} to {what}", list(&reached));
                if !unreached.is_empty() {
                    text += &format!("; osd(s) {} were not connected", list(unreached));
                }
                Ok(Reply::status(text))
            }
            Whose::Pools => match unreached.first() {
                Some(osd) => Err(again(format!("osd.{} is not currently connected", osd.0))),
                None => Ok(Reply::status(String::new())),
            },
        }
    }
}
