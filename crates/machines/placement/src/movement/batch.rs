//! One step of a job: the PGs that move together.

use super::record::{Limits, Moving, Stop};
use crate::Stats;
use crate::pace::ClientLatency;
use crate::scan::scan;
use crate::upmap::{Refused, Trial, Upmap, same_place};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{Epoch, OsdId, OsdMap, PgId, PoolId, Utime};

/// What a step is chosen from.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// The map.
    pub map: &'a OsdMap,
    /// What is known of data.
    pub stats: &'a Stats,
    /// PGs that are not active and clean.
    pub unclean: &'a BTreeSet<PgId>,
    /// Objects lack copies.
    pub degraded: bool,
    /// How many PGs each OSD acts for.
    pub acting: &'a BTreeMap<OsdId, u32>,
    /// All OSDs that are up have told what they have with this map or a later one.
    pub told: Epoch,
    /// The epoch that the next map gets.
    pub next: Epoch,
    /// The time.
    pub now: Utime,
    /// How long clients' operations took.
    pub clients: ClientLatency,
    /// Model and serial number of devices that have one OSD.
    pub serials: &'a BTreeMap<OsdId, String>,
}

/// Upmaps that keep all data where the old map has it when the new one takes its place.
pub fn hold(old: &OsdMap, new: OsdMap) -> Result<BTreeMap<PgId, Upmap>, Stop> {
    let other = differing(old, &new, &BTreeSet::new());
    hold_these(old, new, other)
}

/// The PGs that the new map may place otherwise, and those that the old one has on some OSDs. Those
/// with upmaps are among them. A PG of which no draw of CRUSH falls otherwise is mapped once.
pub(super) fn differing(old: &OsdMap, new: &OsdMap, on: &BTreeSet<OsdId>) -> Vec<PgId> {
    let by_hand: BTreeSet<PgId> = old.upmapped().into_iter().chain(new.upmapped()).collect();
    let shifts = old.shifts(new).map(Arc::new);
    let alike = |pool: PoolId| {
        let of = |m: &OsdMap| {
            m.pool(pool).map(|p| (p.crush_rule, p.size, p.kind, p.flags, p.pg_num, p.pgp_num))
        };
        of(old) == of(new)
    };
    let alike: BTreeSet<PoolId> = old.pools.keys().copied().filter(|p| alike(*p)).collect();
    let nothing = on.is_empty() && shifts.as_ref().is_some_and(|s| s.is_empty());
    let on: Vec<i32> = on.iter().map(|o| o.0).collect();
    scan(old, || {
        let mut was = match &shifts {
            Some(shifts) => old.placer_beside(shifts.clone()),
            None => old.placer(),
        };
        let mut is = new.placer();
        let (by_hand, alike, on, shifts) = (&by_hand, &alike, &on, &shifts);
        move |pg| {
            let alike = shifts.is_some() && alike.contains(&pg.pool);
            if by_hand.contains(&pg) {
                return true;
            }
            if alike && nothing {
                return false;
            }
            if was.raw_upmap(pg).iter().any(|o| on.binary_search(o).is_ok()) {
                return true;
            }
            if alike && !was.shifted() {
                return false;
            }
            !same_place(is_replicated(old, pg), is.raw_upmap(pg), was.raw_upmap(pg))
        }
    })
}

/// As [`hold`], of PGs among which are all that are placed otherwise.
pub(super) fn hold_these(
    old: &OsdMap,
    new: OsdMap,
    these: Vec<PgId>,
) -> Result<BTreeMap<PgId, Upmap>, Stop> {
    let mut trial = Trial::new(new);
    for pg in these {
        let was = old.pg_to_raw_upmap(pg);
        let same = same_place(is_replicated(old, pg), &trial.map.pg_to_raw_upmap(pg), &was);
        if same && trial.is_sound(pg) {
            continue;
        }
        let why = |e: Refused| Stop(format!("pg {pg} cannot stay on {}: {e}", show(&was)));
        trial.place(pg, &was).map_err(why)?;
    }
    trial.map.clean_upmaps();
    let touched: BTreeSet<PgId> = old.upmapped().into_iter().chain(trial.map.upmapped()).collect();
    let mut upmaps = BTreeMap::new();
    for pg in touched {
        let was = old.pg_to_raw_upmap(pg);
        if !same_place(is_replicated(old, pg), &trial.map.pg_to_raw_upmap(pg), &was) {
            return Err(Stop(format!("pg {pg} cannot stay on {}", show(&was))));
        }
        let upmap = Upmap::of(&trial.map, pg);
        if upmap != Upmap::of(old, pg) {
            upmaps.insert(pg, upmap);
        }
    }
    Ok(upmaps)
}

pub(super) fn is_replicated(map: &OsdMap, pg: PgId) -> bool {
    map.pool(pg.pool).is_some_and(|p| p.is_replicated())
}

/// Which OSDs leave a PG's placement, and which come.
pub(crate) fn shift(replicated: bool, was: &[OsdId], is: &[OsdId]) -> (Vec<OsdId>, Vec<OsdId>) {
    if replicated {
        let not_in = |a: &[OsdId], b: &[OsdId]| {
            a.iter().filter(|o| o.is_some() && !b.contains(o)).copied().collect()
        };
        return (not_in(was, is), not_in(is, was));
    }
    let pairs = || was.iter().zip(is).filter(|(a, b)| a != b);
    (
        pairs().map(|(a, _)| *a).filter(|o| o.is_some()).collect(),
        pairs().map(|(_, b)| *b).filter(|o| o.is_some()).collect(),
    )
}

/// How one step fills up: what is chosen, and what bounds the rest.
pub(super) struct Batch<'a> {
    pub(super) look: Look<'a>,
    pub(super) trial: Trial,
    pub(super) limits: Limits,
    /// PGs that may move at a time.
    pub(super) most: u32,
    /// PGs that move, by OSD, and bytes that come.
    pub(super) busy: BTreeMap<OsdId, (u32, u64)>,
    pub(super) count: u32,
    pub(super) chosen: BTreeMap<PgId, (Upmap, Moving)>,
    /// Why something does not move now.
    pub(super) blocked: BTreeSet<String>,
    /// The PGs that weights of zero for the OSDs that are left may place otherwise, if all PGs were
    /// looked at.
    pub(super) differing: Option<Vec<PgId>>,
}

impl Batch<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.most
    }

    /// Whether a PG may go now. An OSD that it comes to must be up, and have room for all that
    /// comes.
    pub(super) fn may(&mut self, pg: PgId, from: &[OsdId], to: &[OsdId]) -> bool {
        let bytes = self.look.stats.copy_bytes(self.look.map, pg);
        for osd in to {
            let coming = self.busy.get(osd).map_or(0, |b| b.1);
            let why = if !self.look.map.is_up(*osd) {
                format!("osd.{osd} is down")
            } else if !self.look.stats.has_room(self.look.map, *osd, coming + bytes) {
                format!("osd.{osd} has no room below backfillfull")
            } else {
                continue;
            };
            self.blocked.insert(why);
            return false;
        }
        !from.iter().chain(to).any(|o| self.is_busy(*o))
    }

    fn is_busy(&self, osd: OsdId) -> bool {
        self.busy.get(&osd).is_some_and(|b| b.0 >= self.limits.per_osd)
    }

    /// A PG is on its way already.
    pub(super) fn note(&mut self, m: &Moving) {
        for osd in m.from.iter().chain(&m.to) {
            self.busy.entry(*osd).or_default().0 += 1;
        }
        for osd in &m.to {
            self.busy.entry(*osd).or_default().1 += m.bytes;
        }
        self.count += 1;
    }

    /// It is not any more.
    pub(super) fn forget(&mut self, m: &Moving) {
        for osd in m.from.iter().chain(&m.to) {
            let busy = self.busy.entry(*osd).or_default();
            busy.0 = busy.0.saturating_sub(1);
        }
        for osd in &m.to {
            let busy = self.busy.entry(*osd).or_default();
            busy.1 = busy.1.saturating_sub(m.bytes);
        }
        self.count = self.count.saturating_sub(1);
    }

    pub(super) fn take(&mut self, pg: PgId, upmap: Upmap, from: Vec<OsdId>, to: Vec<OsdId>) {
        let bytes = self.look.stats.copy_bytes(self.look.map, pg);
        for osd in from.iter().chain(&to) {
            self.busy.entry(*osd).or_default().0 += 1;
        }
        for osd in &to {
            self.busy.entry(*osd).or_default().1 += bytes;
        }
        self.count += u32::from(!to.is_empty());
        self.chosen.insert(pg, (upmap, Moving { epoch: self.look.next, bytes, from, to }));
    }

    /// Gives a PG this upmap, if it may go now. An error if it never may.
    pub(super) fn put(&mut self, pg: PgId, upmap: &Upmap) -> Result<bool, Refused> {
        let was = self.trial.map.pg_to_raw_upmap(pg);
        let before = Upmap::of(&self.trial.map, pg);
        self.trial.put(pg, upmap)?;
        let is = self.trial.map.pg_to_raw_upmap(pg);
        let (from, to) = shift(is_replicated(self.look.map, pg), &was, &is);
        if !to.is_empty() && !self.may(pg, &from, &to) {
            before.put(&mut self.trial.map, pg);
            return Ok(false);
        }
        self.take(pg, upmap.clone(), from, to);
        Ok(true)
    }

    /// Brings a PG away from OSDs: to where CRUSH has it without them, if that is allowed, or else
    /// to the emptiest OSDs that are. False if it is not there.
    pub(super) fn leave(&mut self, pg: PgId, leaving: &BTreeSet<OsdId>, without: &OsdMap) -> bool {
        let was = self.trial.map.pg_to_raw_upmap(pg);
        if !was.iter().any(|o| leaving.contains(o)) {
            return false;
        }
        if was.iter().any(|o| leaving.contains(o) && self.is_busy(*o)) {
            // Wherever to: it cannot leave now.
            return true;
        }
        let map = self.look.map;
        let crush: Vec<OsdId> =
            without.pg_to_raw_osds(pg).into_iter().filter(|o| o.is_some()).collect();
        let found = self.replace(pg, was.clone(), leaving, &crush).or_else(|| {
            let others = self.emptiest(pg, without);
            self.replace(pg, was.clone(), leaving, &others)
        });
        let Some((upmap, is)) = found else {
            if self.blocked.is_empty() {
                self.blocked.insert(format!("no OSD can take pg {pg}"));
            }
            return true;
        };
        let (from, to) = shift(is_replicated(map, pg), &was, &is);
        self.take(pg, upmap, from, to);
        true
    }

    /// The OSDs that a PG's rule may choose, the emptiest first.
    fn emptiest(&self, pg: PgId, without: &OsdMap) -> Vec<OsdId> {
        let (map, stats) = (self.look.map, self.look.stats);
        let rule = map.pool(pg.pool).map_or(0, |p| p.crush_rule);
        let fill = |o: &OsdId| {
            let coming = self.busy.get(o).map_or(0, |b| b.1);
            stats.usage.get(o).map_or(2.0, |u| (u.used + coming) as f64 / u.total.max(1) as f64)
        };
        let mut found: Vec<(f64, OsdId)> = without
            .crush
            .rule_weights(rule.into())
            .into_iter()
            .filter(|(o, w)| *w > 0.0 && map.is_in(OsdId(*o)) && map.is_up(OsdId(*o)))
            .map(|(o, _)| (fill(&OsdId(o)), OsdId(o)))
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        found.into_iter().map(|o| o.1).collect()
    }

    /// Replaces one leaving OSD after the other; each by the first candidate that may.
    pub(super) fn replace(
        &mut self,
        pg: PgId,
        set: Vec<OsdId>,
        leaving: &BTreeSet<OsdId>,
        candidates: &[OsdId],
    ) -> Option<(Upmap, Vec<OsdId>)> {
        let Some(at) = set.iter().position(|o| leaving.contains(o)) else {
            let before = Upmap::of(&self.trial.map, pg);
            let was = self.trial.map.pg_to_raw_upmap(pg);
            let upmap = self.trial.place(pg, &set).ok()?;
            let (from, to) = shift(is_replicated(self.look.map, pg), &was, &set);
            if self.may(pg, &from, &to) {
                return Some((upmap, set));
            }
            before.put(&mut self.trial.map, pg);
            return None;
        };
        for new in candidates {
            if set.contains(new) || leaving.contains(new) || !self.may(pg, &[], &[*new]) {
                continue;
            }
            let mut next = set.clone();
            next[at] = *new;
            if let Some(found) = self.replace(pg, next, leaving, candidates) {
                return Some(found);
            }
        }
        None
    }
}

/// OSDs as people read them.
pub(super) fn show(osds: &[OsdId]) -> String {
    let names: Vec<String> = osds.iter().map(|o| o.to_string()).collect();
    format!("[{}]", names.join(","))
}
