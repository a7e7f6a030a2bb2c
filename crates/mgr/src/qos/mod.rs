//! Promises to tenants ([`spec`]), divided here over the OSDs that serve them.
//!
//! What decides is here; reading specifications and looking for images is in [`resolve`].

pub mod resolve;
pub mod spec;

use crate::rbd::ceiling::{Rates, SIGN_OF_LIFE, SILENT};
use messages::{ShareOfRate, TenantDemand, TenantShare};
use spec::Promise;
use std::collections::{BTreeMap, BTreeSet};
use types::{OsdId, PoolId};

/// Specifications are read again after so many seconds.
const FRESH: f64 = 2.0;

/// A tenant that a specification describes, with names that OSDs know.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Name, and what makes an operation its; without rates.
    pub whose: TenantShare,
    /// What it is promised by all OSDs together.
    pub promise: Promise,
}

struct Tenant {
    resolved: Resolved,
    rates: BTreeMap<OsdId, Rates>,
    /// What OSDs were told.
    told: BTreeMap<OsdId, TenantShare>,
}

/// For an OSD: tenants, and whether those are all.
pub type Tell = (Vec<TenantShare>, bool);

/// See the module. Times are seconds.
#[derive(Default)]
pub struct Tenants {
    tenants: BTreeMap<String, Tenant>,
    /// Which tenants an OSD knows.
    known: BTreeMap<OsdId, BTreeSet<String>>,
    spoken: BTreeMap<OsdId, f64>,
    due: f64,
    reading: bool,
}

impl Tenants {
    /// Whether specifications are to be read now; then that is answered with [`Tenants::take`].
    pub fn due(&mut self, now: f64) -> bool {
        let due = !self.reading && now >= self.due;
        self.reading |= due;
        due
    }

    /// Takes what was read, or nothing if it could not be: then what was known holds. True if it is news.
    pub fn take(&mut self, resolved: Option<Vec<Resolved>>, now: f64) -> bool {
        self.reading = false;
        self.due = now + FRESH;
        let Some(resolved) = resolved else { return false };
        let mut news = resolved.len() != self.tenants.len();
        let mut before = std::mem::take(&mut self.tenants);
        for r in resolved {
            let tenant = match before.remove(&r.whose.name) {
                Some(t) => {
                    news |= t.resolved != r;
                    Tenant { resolved: r, ..t }
                }
                None => {
                    news = true;
                    Tenant { resolved: r, rates: BTreeMap::new(), told: BTreeMap::new() }
                }
            };
            self.tenants.insert(tenant.resolved.whose.name.clone(), tenant);
        }
        news
    }

    /// Takes what an OSD was asked for. True if the next round should be now.
    pub fn handle_demand(&mut self, osd: OsdId, demand: &[TenantDemand], now: f64) -> bool {
        let mut new = false;
        for d in demand {
            if let Some(t) = self.tenants.get_mut(&d.name) {
                new |= t.rates.entry(osd).or_default().take(d.millis, &d.reads, &d.writes, now);
            }
        }
        new
    }

    /// Whether nothing is specified.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// An OSD has another connection: what was sent on the former may be lost.
    pub fn forget_told(&mut self, osd: OsdId) {
        self.known.remove(&osd);
        for t in self.tenants.values_mut() {
            t.told.remove(&osd);
        }
    }

    /// Divides anew; what there is to tell the OSDs that can be told. `serving` are those that lead groups of a pool.
    pub fn round(&mut self, now: f64, here: &BTreeSet<OsdId>, mut serving: impl FnMut(PoolId) -> BTreeSet<OsdId>) -> BTreeMap<OsdId, Tell> {
        let mut wanted: BTreeMap<OsdId, BTreeSet<String>> = BTreeMap::new();
        let mut changed: BTreeMap<OsdId, Vec<TenantShare>> = BTreeMap::new();
        for (name, t) in &mut self.tenants {
            let serving = match t.resolved.whose.pool {
                Some(pool) => serving(pool),
                None => here.clone(),
            };
            t.rates.retain(|o, r| serving.contains(o) || now - r.told < SILENT);
            let osds: BTreeSet<OsdId> = serving.iter().chain(t.rates.keys()).copied().collect();
            let rates: Vec<Rates> = osds.iter().map(|o| t.rates.get(o).copied().unwrap_or_default()).collect();
            t.told.retain(|o, _| osds.contains(o));
            for (osd, share) in divide(&t.resolved, &osds, &rates, now).into_iter().filter(|(o, _)| here.contains(o)) {
                wanted.entry(osd).or_default().insert(name.clone());
                if t.told.get(&osd) != Some(&share) {
                    t.told.insert(osd, share.clone());
                    changed.entry(osd).or_default().push(share);
                }
            }
        }
        let mut tell: BTreeMap<OsdId, Tell> = BTreeMap::new();
        for osd in here {
            let names = wanted.remove(osd).unwrap_or_default();
            if self.known.get(osd).is_none_or(|k| *k != names) {
                let all = self.tenants.values().filter_map(|t| t.told.get(osd).cloned()).collect();
                tell.insert(*osd, (all, true));
                self.known.insert(*osd, names);
            } else if let Some(shares) = changed.remove(osd) {
                tell.insert(*osd, (shares, false));
            } else if !names.is_empty() && self.spoken.get(osd).is_none_or(|at| now - at >= SIGN_OF_LIFE) {
                tell.insert(*osd, Tell::default());
            }
        }
        for osd in tell.keys() {
            self.spoken.insert(*osd, now);
        }
        self.spoken.retain(|o, _| here.contains(o));
        self.known.retain(|o, _| here.contains(o));
        tell
    }
}

fn divide(r: &Resolved, osds: &BTreeSet<OsdId>, rates: &[Rates], now: f64) -> Vec<(OsdId, TenantShare)> {
    let demand: Vec<[u64; 6]> = rates.iter().map(|r| r.demand(now)).collect();
    let empty = TenantShare { weight: r.promise.weight, osds: osds.len() as u32, ..r.whose.clone() };
    let mut shares = vec![empty; osds.len()];
    let asked = |i: usize| -> Vec<u64> { demand.iter().map(|d| d[i]).collect() };
    if !r.promise.ceilings.is_unlimited() {
        for (i, rate) in r.promise.ceilings.rates().into_iter().enumerate() {
            for (share, part) in shares.iter_mut().zip(qos::split(rate.each_second, &asked(i))) {
                share.ceilings.push(ShareOfRate { each_second: rate.each_second, saved: rate.saved, peak: rate.peak, part });
            }
        }
    }
    if r.promise.floors != [0, 0] {
        for (i, floor) in r.promise.floors.into_iter().enumerate() {
            for (share, part) in shares.iter_mut().zip(qos::split(floor, &asked(i))) {
                share.floors.push(ShareOfRate { each_second: floor, part, ..ShareOfRate::default() });
            }
        }
    }
    osds.iter().copied().zip(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::DemandCount;
    use spec::Spec;

    fn resolved(name: &str, json: &str) -> Resolved {
        let whose = TenantShare { name: name.into(), pool: Some(PoolId(3)), ..TenantShare::default() };
        Resolved { whose, promise: Spec::parse(json).unwrap().promise(None) }
    }

    fn osds(_: PoolId) -> BTreeSet<OsdId> {
        [0, 1, 2].map(OsdId).into()
    }

    #[test]
    fn floors_and_ceilings_follow_demand_and_stay_whole() {
        let mut t = Tenants::default();
        let here: BTreeSet<OsdId> = [0, 1, 2, 3].map(OsdId).into();
        assert!(t.due(1.0) && !t.due(1.0));
        assert!(t.take(Some(vec![resolved("a", r#"{"weight": 7, "floor_iops": 90, "ceiling_iops": 300}"#)]), 1.0));
        let told = t.round(1.0, &here, osds);
        assert_eq!(told.len(), 4);
        assert_eq!(told[&OsdId(3)], (Vec::new(), true), "it is told that there is nothing for it");
        let part = |told: &BTreeMap<OsdId, Tell>, osd: i32| told.get(&OsdId(osd)).map(|t| (t.0[0].floors[0].part, t.0[0].ceilings[0].part, t.1));
        assert_eq!(part(&told, 0), Some((30_000, 100_000, true)));
        assert_eq!((told[&OsdId(0)].0[0].weight, told[&OsdId(0)].0[0].osds), (7, 3));
        assert!(t.round(1.1, &here, osds).is_empty());
        let writes = DemandCount { ops: 10, bytes: 40960, ..DemandCount::default() };
        t.handle_demand(OsdId(1), &[TenantDemand { name: "a".into(), millis: 100, writes, ..TenantDemand::default() }], 1.2);
        let told = t.round(1.2, &here, osds);
        assert_eq!(part(&told, 1), Some((87_000, 290_000, false)));
        assert_eq!(part(&told, 0), Some((1_500, 5_000, false)));
        // What cannot be read leaves all as it was; what is gone is told.
        assert!(!t.take(None, 3.0) && !t.is_empty());
        let signs = t.round(3.5, &here, osds);
        assert!(signs.values().any(|s| s.0.is_empty() && !s.1), "a sign of life");
        assert!(t.take(Some(Vec::new()), 4.0));
        let told = t.round(4.0, &here, osds);
        assert_eq!(told.keys().map(|o| o.0).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(told.values().all(|t| *t == (Vec::new(), true)));
        // Who has begun anew is told everything.
        t.take(Some(vec![resolved("a", r#"{"weight": 7}"#)]), 5.0);
        t.round(5.0, &here, osds);
        t.forget_told(OsdId(2));
        let told = t.round(5.1, &here, osds);
        assert!(told.len() == 1 && told[&OsdId(2)].0.len() == 1 && told[&OsdId(2)].1);
    }
}
