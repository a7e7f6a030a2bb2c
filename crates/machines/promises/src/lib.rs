//! Promises to tenants ([`spec`]), divided here over the OSDs that serve them.
//!
//! Nothing here does I/O: the manager reads specifications and looks for images.
//!
//! With many tenants on many OSDs, what is done and said must not grow with the product of both.
//! OSDs are told once what tenants there are. Parts are worked out only for OSDs that are asked for
//! something (`Member`); the others have a standing part, which they know by themselves. Only
//! tenants of whom an OSD told something are looked at, and only parts that became others are told.

#![forbid(unsafe_code)]

mod group;
pub mod spec;
mod tenant;

pub use group::Serving;
pub use tenant::Resolved;

use group::Group;
use messages::{QosShares, TenantDemand, TenantNumber, TenantPart};
use qos::Fraction;
use std::collections::{BTreeMap, BTreeSet};
use tenant::Tenant;
use types::{OsdId, PoolId};

/// An OSD is told something at least so often, in seconds, while anything of it is limited: without
/// a word from the manager its parts become even.
pub const SIGN_OF_LIFE: f64 = 2.0;
/// Specifications are read again after so many seconds.
const FRESH: f64 = 2.0;
/// Seconds after which the primaries of PGs are looked up again.
const SERVING: f64 = 1.0;
/// OSDs report their demand at least once a second. After so many seconds of silence an OSD counts
/// as one without demand.
const STALE: f64 = 2.5;
/// A manager that has just begun listens for so long: parts that OSDs have from another one hold
/// meanwhile, and those that were heard first do not get everything.
const LISTEN: f64 = 1.3;
/// Once all OSDs that are up are there, they have told what they are asked for within so long, and
/// it need not listen for longer.
const HEARD: f64 = 0.3;
/// What OSDs tell before specifications were read is remembered, for so many tenants of OSDs.
const EARLY: usize = 1 << 18;
/// A part is told at once if it differs by more than so many thousandths from what was told last,
const NEWS: u64 = 50;
/// and within a second if it differs by more than so many.
const SAME: u64 = 5;
/// So many tenants that are gone are remembered for OSDs that were not told.
const GONE: usize = 1024;

/// What a tenant is promised, to be shown: rates in thousandths, operations and bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Its share.
    pub weight: u32,
    /// At least; 0 for none.
    pub floors: [u64; 2],
    /// At most; 0 for none.
    pub ceilings: [u64; 2],
}

/// The number of a tenant, from its name (FNV-1a).
pub fn number_of(name: &str) -> TenantNumber {
    TenantNumber(
        name.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)),
    )
}

/// The manager's division of promises over OSDs. Times are seconds.
#[derive(Default)]
pub struct Tenants {
    tenants: BTreeMap<TenantNumber, Tenant>,
    groups: BTreeMap<Option<PoolId>, Group>,
    /// Counts changes of what tenants are promised.
    version: u64,
    /// What of each PG an OSD knows.
    known: BTreeMap<OsdId, BTreeMap<Option<PoolId>, u64>>,
    /// OSDs with new connections: what was sent on the former may be lost.
    anew: BTreeSet<OsdId>,
    spoken: BTreeMap<OsdId, f64>,
    /// Tenants of whom something was told since parts were last worked out.
    touched: BTreeSet<TenantNumber>,
    /// Those with parts that differ a little from what was told.
    unsettled: BTreeSet<TenantNumber>,
    here: BTreeSet<OsdId>,
    /// OSDs may have to be told of tenants.
    news: bool,
    /// When everything was looked at.
    looked: f64,
    /// OSDs that are up.
    up: BTreeSet<OsdId>,
    /// When the first OSD was there, and since when all that are up are.
    begun: Option<f64>,
    complete: Option<f64>,
    /// What was heard since is enough to divide promises by.
    listened: bool,
    due: f64,
    reading: bool,
    /// Specifications were read once.
    known_to_me: bool,
    /// What was told before that, and when; and whether it was too much.
    early: BTreeMap<(OsdId, TenantNumber), (TenantDemand, f64)>,
    missed_some: bool,
}

impl Tenants {
    /// Whether specifications are to be read now; then that is answered with [`Tenants::take`].
    pub fn due(&mut self, now: f64) -> bool {
        let due = !self.reading && now >= self.due;
        self.reading |= due;
        due
    }

    /// Takes what was read, or nothing if it could not be: then what was known holds. True if it is
    /// news.
    pub fn take(&mut self, resolved: Option<Vec<Resolved>>, now: f64) -> bool {
        self.reading = false;
        self.due = now + FRESH;
        let Some(resolved) = resolved else { return false };
        self.news |= !self.known_to_me;
        self.known_to_me = true;
        let before = self.version;
        let mut old = std::mem::take(&mut self.tenants);
        for r in resolved {
            let mut number = number_of(&r.whose.name);
            while self.tenants.get(&number).is_some_and(|t| t.resolved.whose.name != r.whose.name) {
                // Two names with one number: never, but then the second one has the next.
                number.0 = number.0.wrapping_add(1);
            }
            let tenant = match old.remove(&number) {
                Some(t) if t.resolved == r => t,
                other => {
                    self.version += 1;
                    let members = match other {
                        Some(t) if t.resolved.whose.pool == r.whose.pool => t.members,
                        Some(t) => {
                            self.leave(t.resolved.whose.pool, number);
                            BTreeMap::new()
                        }
                        None => BTreeMap::new(),
                    };
                    self.touched.insert(number);
                    Tenant { resolved: r, version: self.version, members, left: BTreeSet::new() }
                }
            };
            let group = self.groups.entry(tenant.resolved.whose.pool).or_default();
            group.version = group.version.max(tenant.version);
            group.tenants.insert(number);
            self.tenants.insert(number, tenant);
        }
        for (number, t) in old {
            self.version += 1;
            self.leave(t.resolved.whose.pool, number);
        }
        let news = self.version != before;
        self.news |= news;
        if news {
            // The OSDs that serve new pools are looked up at once.
            self.looked = 0.0;
        }
        for ((osd, _), (demand, at)) in std::mem::take(&mut self.early) {
            self.handle_demand(osd, &[demand], at);
        }
        news
    }

    fn leave(&mut self, pool: Option<PoolId>, number: TenantNumber) {
        let Some(group) = self.groups.get_mut(&pool) else { return };
        group.tenants.remove(&number);
        group.version = self.version;
        group.gone.push_back((self.version, number));
        if group.gone.len() > GONE
            && let Some((version, _)) = group.gone.pop_front()
        {
            group.since = version;
        }
    }

    /// What all tenants are promised.
    pub fn promised(&self) -> Vec<Shown> {
        let shown = self.tenants.values().map(|t| {
            let p = &t.resolved.promise;
            let ceilings = [p.ceilings.iops.each_second, p.ceilings.bps.each_second];
            Shown {
                name: t.resolved.whose.name.clone(),
                weight: p.weight,
                floors: p.floors,
                ceilings,
            }
        });
        shown.collect()
    }

    /// Takes what an OSD was asked for. True if the next round should be now.
    pub fn handle_demand(&mut self, osd: OsdId, demand: &[TenantDemand], now: f64) -> bool {
        if !self.known_to_me {
            // OSDs come while a new manager reads what tenants there are, and tell each thing once.
            for d in demand {
                if self.early.len() < EARLY {
                    self.early.insert((osd, d.number), (*d, now));
                } else {
                    self.missed_some = true;
                }
            }
            return false;
        }
        let mut urgent = false;
        for d in demand {
            let Some(t) = self.tenants.get_mut(&d.number) else { continue };
            if d.ops == 0 && d.waiting_ops == 0 && d.queued_ops == 0 {
                // A client with one operation at a time goes from OSD to OSD: the next one needs
                // the part at once.
                t.fade(now);
                if t.rest(osd, now) {
                    urgent |= t.members.values().any(|m| !m.rests && m.waits[0] > 0.0);
                }
            } else {
                t.fade(now);
                let member = t.members.entry(osd).or_default();
                urgent |= d.waiting_ops > 0 && (member.told.is_none() || member.rests);
                member.take(d, now);
            }
            self.touched.insert(d.number);
        }
        urgent
    }

    /// The OSD map is another one: these OSDs are up, and others may lead PGs now.
    pub fn map_changed(&mut self, up: BTreeSet<OsdId>) {
        self.up = up;
        self.looked = 0.0;
    }

    /// Whether enough was heard to divide anything.
    fn has_listened(&mut self, now: f64) -> bool {
        let all_there = self.known_to_me
            && !self.missed_some
            && !self.up.is_empty()
            && self.up.is_subset(&self.here);
        self.complete = if all_there { self.complete.or(Some(now)) } else { None };
        self.listened |= self.begun.is_some_and(|begun| now - begun >= LISTEN)
            || self.complete.is_some_and(|at| now - at >= HEARD);
        self.listened
    }

    /// Whether nothing is specified.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// An OSD has another connection: what was sent on the former may be lost.
    pub fn forget_told(&mut self, osd: OsdId) {
        self.anew.insert(osd);
    }

    /// Looks at everything: which OSDs serve, and which are silent.
    fn look<S: Into<Serving>>(&mut self, now: f64, mut serving: impl FnMut(PoolId) -> S) {
        self.looked = now;
        let (here, up) = (&self.here, &self.up);
        let is_there = |osd: &OsdId| here.contains(osd) && (up.is_empty() || up.contains(osd));
        for (pool, group) in &mut self.groups {
            let changed = match pool {
                Some(pool) => group.serve(serving(*pool).into(), is_there, now),
                None => {
                    // All that are up are divided over, connected or not: after a failover they
                    // come one after the other, and with each other number of them all would have
                    // to be told anew.
                    let leads = if up.is_empty() { here } else { up };
                    let all = Serving { leads: leads.clone(), acts: here | leads };
                    let changed = all != group.serving;
                    group.serving = all;
                    changed
                }
            };
            if changed {
                self.news = true;
                if group.count() {
                    self.version += 1;
                    group.version = self.version;
                    for number in &group.tenants {
                        if let Some(t) = self.tenants.get_mut(number) {
                            t.version = self.version;
                            self.touched.insert(*number);
                        }
                    }
                }
            }
        }
        // An OSD that knew of tenants of a pool without serving OSDs is told all anew.
        self.groups.retain(|_, g| !g.tenants.is_empty() || !g.serving.acts.is_empty());
        for (number, t) in &mut self.tenants {
            let silent: Vec<OsdId> = t
                .members
                .iter()
                .filter(|(_, m)| !m.rests && now - m.heard >= STALE)
                .map(|(osd, _)| *osd)
                .collect();
            for osd in &silent {
                t.rest(*osd, now);
            }
            // An OSD that is gone comes back with nothing.
            let (before, here) = (t.members.len(), &self.here);
            t.members.retain(|osd, m| !m.rests || here.contains(osd));
            if t.members.len() != before || !silent.is_empty() {
                self.touched.insert(*number);
            }
        }
        self.touched.append(&mut self.unsettled);
    }

    /// Tells OSDs of tenants that they do not know as they are.
    fn tell_tenants(&mut self, tell: &mut BTreeMap<OsdId, QosShares>) {
        self.news = false;
        for osd in &self.here {
            let wanted: BTreeMap<Option<PoolId>, u64> = self
                .groups
                .iter()
                .filter(|(_, g)| g.serving.acts.contains(osd))
                .map(|(pool, g)| (*pool, g.version))
                .collect();
            let known = self.known.get(osd);
            if known == Some(&wanted) {
                continue;
            }
            let all = known.is_none_or(|k| {
                k.iter().any(|(pool, version)| {
                    !wanted.contains_key(pool)
                        || self.groups.get(pool).is_some_and(|g| g.since > *version)
                })
            });
            let message = tell.entry(*osd).or_default();
            message.all_tenants = all;
            for (pool, version) in &wanted {
                let Some(group) = self.groups.get(pool) else { continue };
                let from =
                    if all { 0 } else { known.and_then(|k| k.get(pool)).copied().unwrap_or(0) };
                if from >= *version {
                    continue;
                }
                let changed = group
                    .tenants
                    .iter()
                    .filter_map(|n| Some((*n, self.tenants.get(n)?)))
                    .filter(|(_, t)| t.version > from);
                message.tenants.extend(changed.map(|(number, t)| t.share(number, group.members)));
                if !all {
                    // One that is there again is not gone.
                    let gone = group
                        .gone
                        .iter()
                        .filter(|(v, n)| *v > from && !self.tenants.contains_key(n));
                    message.gone.extend(gone.map(|(_, n)| *n));
                }
            }
            self.known.insert(*osd, wanted);
        }
    }

    /// Works out parts of the tenants that were touched.
    fn tell_parts(&mut self, settle: bool, now: f64, tell: &mut BTreeMap<OsdId, QosShares>) {
        let differs = if settle { SAME } else { NEWS };
        for number in std::mem::take(&mut self.touched) {
            let Some(t) = self.tenants.get_mut(&number) else { continue };
            if !t.is_divided() {
                continue;
            }
            let Some(group) = self.groups.get(&t.resolved.whose.pool) else { continue };
            // An OSD that does not serve but had demand counts, too.
            let members = group.members.max(t.members.len() as u32);
            let standing = Fraction::standing(members);
            t.fade(now);
            for osd in std::mem::take(&mut t.left) {
                if self.here.contains(&osd) {
                    let floor = Fraction::even(members).0;
                    tell.entry(osd).or_default().parts.push(TenantPart {
                        number,
                        ops: standing.0,
                        bytes: standing.0,
                        floor,
                    });
                }
            }
            // An OSD that is gone may still be there for clients, so of ceilings it keeps its part
            // for a while. A floor without demand takes nothing from others, which have it at once.
            // Requests that wait on an OSD that is not the primary any more are sent elsewhere.
            let counts = |osd: &OsdId| self.here.contains(osd) && group.serving.leads.contains(osd);
            let missed = t.missed(counts);
            let all = t.members.iter().fold([0.0; 3], |[ops, bytes, floor], (osd, m)| {
                let asked = m.asked(missed);
                [ops + asked[0], bytes + asked[1], floor + if counts(osd) { asked[2] } else { 0.0 }]
            });
            let divided =
                t.members.iter().filter(|(osd, _)| self.here.contains(osd)).map(|(osd, m)| {
                    let asked = m.asked(missed);
                    let [ops, bytes] =
                        [0, 1].map(|i| Fraction::of_demand(members, asked[i], all[i]));
                    let part = [ops, bytes, Fraction::of_floor(members, asked[2], all[2])];
                    let news = m.told.is_none_or(|told| {
                        part.iter().zip(told).any(|(p, t)| p.differs(t, differs))
                    });
                    (*osd, part, news)
                });
            let parts: Vec<(OsdId, [Fraction; 3], bool)> = divided.collect();
            // An OSD that gets more has it from others. Those must know, or all have more than the
            // ceiling together.
            let exceed =
                [0, 1].map(|i| {
                    let told =
                        |osd: &OsdId| t.members.get(osd).and_then(|m| m.told).map(|told| told[i]);
                    Fraction::exceed(parts.iter().filter_map(|(osd, part, news)| {
                        if *news { Some(part[i]) } else { told(osd) }
                    }))
                });
            for (osd, part, news) in parts {
                let Some(m) = t.members.get_mut(&osd) else { continue };
                let gives = |i: usize| exceed[i] && m.told.is_some_and(|told| told[i] > part[i]);
                match m.told {
                    Some(told) if told == part => {}
                    // A part without demand may be old.
                    Some(told) if !settle && m.rests && told[..2] == part[..2] => {
                        self.unsettled.insert(number);
                    }
                    Some(_) if !news && !gives(0) && !gives(1) => {
                        self.unsettled.insert(number);
                    }
                    _ => {
                        m.told = Some(part);
                        let [ops, bytes, floor] = part.map(|p| p.0);
                        tell.entry(osd).or_default().parts.push(TenantPart {
                            number,
                            ops,
                            bytes,
                            floor,
                        });
                    }
                }
            }
        }
    }

    /// Divides anew; what there is to tell the OSDs that can be told. `serving` says which OSDs
    /// serve a pool.
    pub fn round<S: Into<Serving>>(
        &mut self,
        now: f64,
        here: &BTreeSet<OsdId>,
        serving: impl FnMut(PoolId) -> S,
    ) -> BTreeMap<OsdId, QosShares> {
        let mut tell = BTreeMap::new();
        if self.here != *here {
            let gone: Vec<OsdId> = self.here.difference(here).copied().collect();
            let affected = self
                .tenants
                .iter()
                .filter(|(_, t)| gone.iter().any(|osd| t.members.contains_key(osd)));
            self.touched.extend(affected.map(|(number, _)| *number));
            self.here.clone_from(here);
            self.known.retain(|o, _| here.contains(o));
            self.spoken.retain(|o, _| here.contains(o));
            self.news = true;
            self.looked = 0.0;
        }
        if !here.is_empty() {
            self.begun.get_or_insert(now);
        }
        if !self.anew.is_empty() {
            let anew = std::mem::take(&mut self.anew);
            self.known.retain(|o, _| !anew.contains(o));
            self.news = true;
            for (number, t) in &mut self.tenants {
                for (_, m) in t.members.iter_mut().filter(|(o, _)| anew.contains(o)) {
                    m.told = None;
                    self.touched.insert(*number);
                }
            }
        }
        let settle = now - self.looked >= SERVING;
        if settle {
            self.look(now, serving);
        }
        // Before it has read anything, a manager knows nothing better than the one before it told.
        if self.news && self.known_to_me {
            self.tell_tenants(&mut tell);
        }
        if self.has_listened(now) {
            self.tell_parts(settle, now, &mut tell);
        }
        for osd in here {
            let knows = self.known.get(osd).is_some_and(|k| !k.is_empty());
            if tell.contains_key(osd)
                || (knows && self.spoken.get(osd).is_none_or(|at| now - at >= SIGN_OF_LIFE))
            {
                tell.entry(*osd).or_default();
                self.spoken.insert(*osd, now);
            }
        }
        tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::BACK;
    use messages::TenantShare;
    use spec::Spec;

    fn resolved(name: &str, json: &str) -> Resolved {
        let whose =
            TenantShare { name: name.into(), pool: Some(PoolId(3)), ..TenantShare::default() };
        Resolved { whose, promise: Spec::parse(json).unwrap().promise(None) }
    }

    fn osds(_: PoolId) -> BTreeSet<OsdId> {
        [0, 1, 2].map(OsdId).into()
    }

    fn asked(name: &str, ops: u32) -> TenantDemand {
        TenantDemand {
            number: number_of(name),
            millis: 100,
            ops,
            bytes: u64::from(ops) * 4096,
            ..TenantDemand::default()
        }
    }

    /// What part of a thousand an OSD was told of operations.
    fn part(told: &BTreeMap<OsdId, QosShares>, osd: i32) -> Option<u64> {
        told.get(&OsdId(osd))?.parts.first().map(|p| Fraction(p.ops).of(1000))
    }

    #[test]
    fn a_manager_that_has_read_nothing_takes_nothing_away() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1].map(OsdId).into();
        assert!(t.due(1.0) && t.round(1.0, &here, osds).is_empty());
        t.take(None, 3.0);
        assert!(t.due(5.0) && t.round(5.0, &here, osds).is_empty(), "it could not be read");
        t.take(Some(vec![resolved("a", r#"{"weight": 7}"#)]), 6.0);
        let told = t.round(6.0, &here, osds);
        assert!(here.iter().all(|o| told[o].all_tenants && told[o].tenants.len() == 1), "{told:?}");
        // That there are none is news, too.
        let mut t = Tenants::default();
        assert!(t.due(1.0) && !t.take(Some(Vec::new()), 1.0));
        let told = t.round(1.0, &here, osds);
        assert!(here.iter().all(|o| told[o].all_tenants && told[o].tenants.is_empty()), "{told:?}");
    }

    #[test]
    fn tenants_are_told_once_and_parts_follow_demand_and_stay_whole() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2, 3].map(OsdId).into();
        assert!(t.due(1.0) && !t.due(1.0));
        assert!(t.take(
            Some(vec![resolved("a", r#"{"weight": 7, "floor_iops": 90, "ceiling_iops": 300}"#)]),
            1.0
        ));
        let told = t.round(1.0, &here, osds);
        assert_eq!(told.len(), 4);
        assert!(
            told[&OsdId(3)].tenants.is_empty() && told[&OsdId(3)].all_tenants,
            "it is told that there is nothing for it"
        );
        let a = &told[&OsdId(0)].tenants[0];
        assert_eq!(
            (a.weight, a.osds, a.ceilings[0].each_second, a.floors[0].each_second),
            (7, 3, 300_000, 90_000)
        );
        assert!(t.round(1.1, &here, osds).is_empty());
        // At first it listens.
        t.handle_demand(OsdId(1), &[asked("a", 10)], 1.2);
        assert!(t.round(1.2, &here, osds).is_empty());
        let told = t.round(2.4, &here, osds);
        assert_eq!(
            (part(&told, 1), part(&told, 0)),
            (Some(956), None),
            "whoever is not asked has a standing part"
        );
        // Another one is asked for as much.
        t.handle_demand(OsdId(0), &[asked("a", 10)], 2.5);
        let told = t.round(2.5, &here, osds);
        assert_eq!((part(&told, 0), part(&told, 1)), (Some(486), Some(486)));
        // Small differences wait for the second to end.
        t.handle_demand(OsdId(0), &[TenantDemand { millis: 1000, ..asked("a", 104) }], 2.6);
        assert!(t.round(2.6, &here, osds).is_empty());
        assert!(part(&t.round(3.5, &here, osds), 0).is_some_and(|p| (487..515).contains(&p)));
        // An OSD that reports no demand gives its part back at once, and a silent one soon.
        t.handle_demand(OsdId(1), &[asked("a", 0)], 3.6);
        let told = t.round(3.6, &here, osds);
        assert_eq!((part(&told, 0), part(&told, 1)), (Some(956), Some(16)));
        let told = t.round(6.0, &here, osds);
        assert_eq!(
            (part(&told, 0), told[&OsdId(1)].parts.len()),
            (Some(16), 0),
            "and a sign of life for the others"
        );
    }

    #[test]
    fn parts_of_a_ceiling_are_never_more_than_the_whole_together() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2].map(OsdId).into();
        t.take(Some(vec![resolved("a", r#"{"ceiling_iops": 300}"#)]), 1.0);
        t.round(1.0, &here, osds);
        let (mut now, mut last, mut told) = (2.5, BTreeMap::from([(0, 16), (1, 16), (2, 16)]), 0);
        // What comes moves to one OSD, less and less from the others: what each of them has less is
        // small news, what it has more is not.
        for turn in 0..200u32 {
            now += 0.1;
            let more = (turn % 50) * 10;
            for (osd, ops) in [(0, 100 + more), (1, 1000 - more / 2), (2, 1000 - more / 2)] {
                t.handle_demand(OsdId(osd), &[asked("a", ops)], now);
            }
            for (osd, s) in t.round(now, &here, osds) {
                told += s.parts.len();
                last.extend(s.parts.iter().map(|p| (osd.0, Fraction(p.ops).of(1000))));
            }
            let all: u64 = last.values().sum();
            assert!(all <= 1000, "in turn {turn} they have {last:?}, {all} together");
        }
        assert!(told < 450, "few are told: {told}");
    }

    #[test]
    fn a_manager_listens_until_all_that_are_up_have_told_or_some_may_be_lost() {
        let begins = |up: &[i32], comes: f64| {
            let mut t = Tenants::default();
            t.map_changed(up.iter().copied().map(OsdId).collect());
            let mut told = (10..40).map(|tenth| f64::from(tenth) / 10.0).filter(|now| {
                let here: BTreeSet<OsdId> = if *now < comes {
                    [0, 1].map(OsdId).into()
                } else {
                    [0, 1, 2].map(OsdId).into()
                };
                // It is told once, and knows of tenants a little later.
                if *now == 1.0 {
                    t.handle_demand(OsdId(0), &[asked("a", 10)], *now);
                }
                if *now == 1.1 {
                    t.take(Some(vec![resolved("a", r#"{"ceiling_iops": 300}"#)]), *now);
                }
                part(&t.round(*now, &here, osds), 0).is_some()
            });
            told.next()
        };
        assert_eq!(begins(&[0, 1, 2], 1.2), Some(1.5));
        assert_eq!(begins(&[0, 1], 9.0), Some(1.5));
        // One of them does not come, and it is not known yet which OSDs are up.
        assert_eq!([begins(&[0, 1, 2], 9.0), begins(&[], 1.0)], [Some(2.4), Some(2.4)]);
    }

    #[test]
    fn who_begins_again_finds_the_floor_where_it_was() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2].map(OsdId).into();
        t.take(Some(vec![resolved("a", r#"{"floor_iops": 300, "ceiling_iops": 900}"#)]), 1.0);
        t.round(1.0, &here, osds);
        let mut now = 2.5;
        let mut all = [(0, 60), (1, 30), (2, 10)];
        let mut last = BTreeMap::new();
        let mut turn =
            |t: &mut Tenants, last: &mut BTreeMap<i32, (u64, u64)>, all: &[(i32, u32)]| {
                now += 0.1;
                for (osd, ops) in all {
                    t.handle_demand(OsdId(*osd), &[asked("a", *ops)], now);
                }
                for (osd, s) in t.round(now, &here, osds) {
                    for p in s.parts {
                        last.insert(osd.0, (Fraction(p.floor).of(1000), Fraction(p.ops).of(1000)));
                    }
                }
            };
        for _ in 0..30 {
            turn(&mut t, &mut last, &all);
        }
        assert_eq!(last.values().map(|p| p.0).collect::<Vec<_>>(), [599, 299, 99]);
        // One after the other has nothing to do any more, and then none has for a long time.
        for i in 0..3 {
            all[i].1 = 0;
            turn(&mut t, &mut last, &all[i..=i]);
        }
        for _ in 0..100 {
            turn(&mut t, &mut last, &[]);
        }
        for (at, (floor, ops)) in &last {
            let was = [600, 300, 100][*at as usize];
            assert!(
                (was * 3 / 4..=was * 4 / 3).contains(floor),
                "osd.{at} has {floor} of its floor, had {was}"
            );
            assert_eq!(*ops, 16, "of ceilings it has its standing part");
        }
        assert!((980..=1000).contains(&last.values().map(|p| p.0).sum::<u64>()));
        // It begins elsewhere: what it had fades within seconds, and parts are whole.
        for _ in 0..40 {
            turn(&mut t, &mut last, &[(2, 50)]);
        }
        assert!(last[&2].0 >= 995, "{last:?}");
        // The floor of an OSD without demand takes nothing from others; it begins with an even
        // part.
        assert_eq!((last[&0].0, last[&1].0), (333, 333));
    }

    /// What parts of a thousand OSDs were told of a floor.
    fn floors(told: &BTreeMap<OsdId, QosShares>) -> BTreeMap<i32, u64> {
        told.iter()
            .flat_map(|(osd, s)| s.parts.iter().map(|p| (osd.0, Fraction(p.floor).of(1000))))
            .collect()
    }

    #[test]
    fn what_waits_moves_a_floor_only_where_it_is_missed() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2].map(OsdId).into();
        t.take(Some(vec![resolved("a", r#"{"floor_iops": 300}"#)]), 1.0);
        t.round(1.0, &here, osds);
        let turn = |t: &mut Tenants, now: f64, ops: [u32; 3], queued: [u32; 3]| {
            for (osd, (ops, queued_ops)) in ops.into_iter().zip(queued).enumerate() {
                t.handle_demand(
                    OsdId(osd as i32),
                    &[TenantDemand { queued_ops, ..asked("a", ops) }],
                    now,
                );
            }
            floors(&t.round(now, &here, osds))
        };
        // It gets more than its floor, although most of what its clients have under way lies on one
        // OSD.
        let told = turn(&mut t, 3.0, [20, 10, 10], [100, 0, 0]);
        assert_eq!(told.values().copied().collect::<Vec<_>>(), [500, 250, 250]);
        // It gets half of it: what waits counts.
        let (mut last, mut now) = (told, 3.0);
        for _ in 0..40 {
            now += 0.1;
            last.extend(turn(&mut t, now, [8, 4, 4], [100, 0, 0]));
        }
        assert!(last[&0] > 800 && last.values().sum::<u64>() <= 1000, "{last:?}");
    }

    #[test]
    fn the_floor_of_an_osd_that_is_gone_goes_to_the_others_and_comes_back_with_it() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2].map(OsdId).into();
        t.take(Some(vec![resolved("a", r#"{"floor_iops": 300, "ceiling_iops": 600}"#)]), 1.0);
        t.round(1.0, &here, osds);
        for osd in 0..3 {
            t.handle_demand(OsdId(osd), &[asked("a", 10)], 2.9);
        }
        let told = t.round(3.0, &here, osds);
        assert_eq!(floors(&told), [(0, 333), (1, 333), (2, 333)].into());
        let others: BTreeSet<OsdId> = [0, 2].map(OsdId).into();
        let leads = |_| BTreeSet::from([0, 2].map(OsdId));
        let told = t.round(3.1, &others, leads);
        assert_eq!(floors(&told), [(0, 500), (2, 500)].into());
        assert!(
            told.values().all(|s| s.parts.iter().all(|p| Fraction(p.ops).of(1000) < 340)),
            "clients may still reach it: {told:?}"
        );
        // It is told of the tenant before it has said that it leads anything, ...
        t.round(4.2, &others, leads);
        let told = t.round(5.0, &here, leads);
        assert!(told[&OsdId(1)].all_tenants && told[&OsdId(1)].tenants.len() == 1, "{told:?}");
        // ... and no more if it does not.
        let told = t.round(5.1 + BACK, &here, leads);
        assert!(told[&OsdId(1)].all_tenants && told[&OsdId(1)].tenants.is_empty(), "{told:?}");
    }

    #[test]
    fn who_may_lead_in_a_moment_knows_the_tenants_and_has_the_whole_floor() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2, 3].map(OsdId).into();
        t.take(Some(vec![resolved("a", r#"{"floor_iops": 300}"#)]), 1.0);
        let told = t.round(1.0, &here, |_| Serving {
            leads: [OsdId(2)].into(),
            acts: [0, 1, 2].map(OsdId).into(),
        });
        for osd in [0, 1, 2] {
            assert_eq!(
                told[&OsdId(osd)].tenants.iter().map(|t| t.osds).collect::<Vec<_>>(),
                [1],
                "osd.{osd}"
            );
        }
        assert!(told[&OsdId(3)].tenants.is_empty());
        // Another OSD is primary: there is nothing to tell.
        let told = t.round(2.5, &here, |_| Serving {
            leads: [OsdId(1)].into(),
            acts: [0, 1, 2].map(OsdId).into(),
        });
        assert!(told.values().all(|s| !s.all_tenants && s.tenants.is_empty()), "{told:?}");
    }

    #[test]
    fn an_osd_that_stops_in_order_is_told_of_tenants_when_it_comes_back() {
        let mut t = Tenants::default();
        let (all, others) = ([0, 1, 2].map(OsdId), [0, 2].map(OsdId));
        let (here, without): (BTreeSet<OsdId>, BTreeSet<OsdId>) = (all.into(), others.into());
        t.map_changed(here.clone());
        t.take(Some(vec![resolved("a", r#"{"floor_iops": 300}"#)]), 1.0);
        t.round(1.0, &here, osds);
        let leads = |_| BTreeSet::from(others);
        // It says that it goes, and is there for a moment longer; then it is away for longer than
        // it has to lead again when it is back.
        t.map_changed(without.clone());
        for now in [2.0, 2.1] {
            let told = t.round(now, &here, leads);
            assert!(told.get(&OsdId(1)).is_none_or(|s| !s.all_tenants), "{told:?}");
        }
        t.round(2.5, &without, leads);
        t.round(40.0, &without, leads);
        // It is there before it is up.
        let told = t.round(50.0, &here, leads);
        assert!(told[&OsdId(1)].all_tenants && told[&OsdId(1)].tenants.len() == 1, "{told:?}");
        let told = t.round(51.5 + BACK, &here, leads);
        assert!(told.get(&OsdId(1)).is_none_or(|s| !s.all_tenants), "it is not up yet: {told:?}");
        t.map_changed(here.clone());
        t.round(70.0, &here, leads);
        let told = t.round(70.1 + BACK, &here, leads);
        assert!(told[&OsdId(1)].all_tenants && told[&OsdId(1)].tenants.is_empty(), "{told:?}");
    }

    #[test]
    fn changes_are_told_and_nothing_else() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2].map(OsdId).into();
        let spec =
            |n: u64, weight: u64| resolved(&format!("t{n}"), &format!(r#"{{"weight": {weight}}}"#));
        t.take(Some((0..100).map(|n| spec(n, 10)).collect()), 1.0);
        assert!(t.round(1.0, &here, osds).values().all(|s| s.tenants.len() == 100));
        // One changes, one goes, one comes.
        let next: Vec<Resolved> =
            (1..101).map(|n| spec(n, if n == 50 { 11 } else { 10 })).collect();
        assert!(t.take(Some(next.clone()), 3.0) && !t.take(Some(next), 4.0));
        let told = t.round(4.0, &here, osds);
        let s = &told[&OsdId(2)];
        let names: BTreeSet<&str> = s.tenants.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(
            (names, &s.gone[..], s.all_tenants),
            (["t50", "t100"].into(), &[number_of("t0")][..], false)
        );
        // What cannot be read leaves all as it was.
        assert!(!t.take(None, 5.0) && !t.is_empty());
        // An OSD that has begun anew is told everything.
        t.forget_told(OsdId(1));
        let told = t.round(5.0, &here, osds);
        assert!(
            told.len() == 1 && told[&OsdId(1)].tenants.len() == 100 && told[&OsdId(1)].all_tenants
        );
        // A pool that is served elsewhere now.
        let told = t.round(7.0, &here, |_| BTreeSet::from([0, 1].map(OsdId)));
        assert!(told[&OsdId(2)].all_tenants && told[&OsdId(2)].tenants.is_empty());
        assert!(
            told[&OsdId(0)].tenants.iter().all(|t| t.osds == 2),
            "there are fewer, and rates are divided anew"
        );
        assert!(t.take(Some(Vec::new()), 9.0));
        assert_eq!(
            t.round(9.0, &here, |_| BTreeSet::from([0, 1].map(OsdId)))[&OsdId(0)].gone.len(),
            100
        );
    }

    #[test]
    fn each_osd_is_told_once_of_tenants_that_may_be_anywhere_while_they_come() {
        let mut t = Tenants::default();
        t.map_changed((0..100).map(OsdId).collect());
        let whose = TenantShare {
            name: "client.a".into(),
            client: Some("client.a".into()),
            ..TenantShare::default()
        };
        t.take(
            Some(vec![Resolved {
                whose,
                promise: Spec::parse(r#"{"weight": 7}"#).unwrap().promise(None),
            }]),
            1.0,
        );
        let mut told = 0;
        for n in 1..=100 {
            let here: BTreeSet<OsdId> = (0..n).map(OsdId).collect();
            let tell = t.round(1.0 + f64::from(n) / 100.0, &here, |_| BTreeSet::new());
            assert!(tell[&OsdId(n - 1)].tenants.iter().all(|t| t.osds == 112), "{tell:?}");
            told += tell.values().map(|s| s.tenants.len()).sum::<usize>();
        }
        assert_eq!(told, 100);
    }

    #[test]
    fn many_osds_may_come_and_go_without_a_word() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = (0..100).map(OsdId).collect();
        t.take(Some(vec![resolved("a", r#"{"ceiling_iops": 300}"#)]), 1.0);
        let serving = |n: i32| move |_: PoolId| (0..n).map(OsdId).collect::<BTreeSet<_>>();
        assert!(t.round(1.0, &here, serving(100)).values().all(|s| s.tenants[0].osds == 112));
        let told = t.round(2.0, &here, serving(99));
        assert!(told.len() == 1 && told[&OsdId(99)].all_tenants, "{told:?}");
        let told = t.round(2.5, &here, serving(99));
        assert!(told.values().all(|s| *s == QosShares::default()));
        let told = t.round(3.5, &here, serving(100));
        assert!(told.values().filter(|s| **s != QosShares::default()).count() == 1);
    }
}
