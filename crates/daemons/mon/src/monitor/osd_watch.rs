//! What the leader remembers of OSDs between messages. None of it is replicated: a new leader
//! learns it again within a beacon's interval, and until then decides nothing that depends on it.

use super::clean::LastEpochClean;
use crate::lag::Lag;
use crate::osd_state::{self, OsdMapExt};
use conf::Config;
use std::collections::{BTreeMap, BTreeSet};
use types::{Epoch, OsdId, OsdMap, Utime};

/// Reports that an OSD does not answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure {
    /// By reporter: since when, as the reporter says.
    pub reporters: BTreeMap<OsdId, Utime>,
}

/// When OSDs that others call silent are marked down.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// `osd_heartbeat_grace`.
    grace: f64,
    /// `mon_osd_min_down_reporters`.
    reporters: u64,
    /// `mon_osd_reporter_subtree_level`.
    level: String,
    /// `mon_osd_adjust_heartbeat_grace`.
    lag: Option<Lag>,
}

impl Rules {
    /// What the configuration says.
    pub fn from_conf(conf: &Config) -> Rules {
        Rules {
            grace: conf.u64("osd_heartbeat_grace") as f64,
            reporters: conf.u64("mon_osd_min_down_reporters"),
            level: conf.str("mon_osd_reporter_subtree_level"),
            lag: Lag::from_conf(conf, "mon_osd_adjust_heartbeat_grace"),
        }
    }

    /// The type of bucket that reporters must not share.
    pub fn level(&self) -> &str {
        &self.level
    }

    /// Seconds of silence that are borne: more if this OSD was only slow lately, or the reporters
    /// were: they are perhaps in the same trouble.
    fn grace_for(
        &self,
        map: &OsdMap,
        target: OsdId,
        silent: f64,
        now: Utime,
        failure: &Failure,
    ) -> f64 {
        let Some(lag) = self.lag else { return self.grace };
        let xinfo = |osd: OsdId| map.osd(osd).map(|o| o.xinfo).unwrap_or_default();
        let of_reporter = |osd: &OsdId| {
            let x = xinfo(*osd);
            lag.seconds(&x, now.since(x.down_stamp).as_secs_f64())
        };
        let reporters = failure.reporters.keys().map(of_reporter).sum::<f64>()
            / failure.reporters.len().max(1) as f64;
        self.grace + lag.seconds(&xinfo(target), silent) + reporters
    }
}

/// Why an OSD is marked down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conviction {
    /// Reporters that count.
    pub subtrees: usize,
    /// Seconds without an answer.
    pub silent: f64,
    /// Seconds that would have been borne.
    pub grace: f64,
}

/// When OSDs that are down are marked out.
#[derive(Clone, Debug)]
pub(crate) struct OutRules {
    /// `mon_osd_down_out_interval`.
    interval: u64,
    /// `mon_osd_min_in_ratio`.
    min_in: f64,
    /// `mon_osd_down_out_subtree_limit`.
    subtree_limit: String,
    /// `mon_osd_adjust_down_out_interval`.
    lag: Option<Lag>,
}

impl OutRules {
    /// What the configuration says.
    pub fn from_conf(conf: &Config) -> OutRules {
        OutRules {
            interval: conf.u64("mon_osd_down_out_interval"),
            min_in: conf.f64("mon_osd_min_in_ratio"),
            subtree_limit: conf.str("mon_osd_down_out_subtree_limit"),
            lag: Lag::from_conf(conf, "mon_osd_adjust_down_out_interval"),
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct OsdWatch {
    /// When an OSD was last heard of, and how often it means to report, in seconds.
    pub last_report: BTreeMap<OsdId, (Utime, u64)>,
    /// OSDs that others call silent.
    pub failures: BTreeMap<OsdId, Failure>,
    /// By OSD: the map that it had when it last reported.
    pub has_map: BTreeMap<OsdId, Epoch>,
    /// Up to when PGs were clean.
    pub last_epoch_clean: LastEpochClean,
    /// Down OSDs, since when this leader knows of it.
    pub down_since: BTreeMap<OsdId, Utime>,
    /// OSDs that have newer maps than the monitors, which the log says once.
    pub ahead: BTreeSet<OsdId>,
}

impl OsdWatch {
    /// Whether the reports against `target` are enough to mark it down. Reporters in the same
    /// subtree count once, as one broken host would convict all others. Where there are fewer
    /// subtrees with other OSDs than the rules want, all of them must agree: a cluster on one host
    /// could otherwise never mark an OSD down.
    pub fn convicts(
        &mut self,
        map: &OsdMap,
        target: OsdId,
        now: Utime,
        rules: &Rules,
    ) -> Option<Conviction> {
        let failure = self.failures.get_mut(&target)?;
        failure.reporters.retain(|r, _| map.is_up(*r));
        let subtree = |osd: OsdId| {
            map.crush
                .full_location(osd.0)
                .into_iter()
                .find(|(kind, _)| *kind == rules.level)
                .map_or_else(|| format!("osd.{osd}"), |(_, name)| name)
        };
        let Some(since) = failure.reporters.values().max().copied() else {
            self.failures.remove(&target);
            return None;
        };
        let agree: BTreeSet<String> = failure.reporters.keys().map(|r| subtree(*r)).collect();
        let possible: BTreeSet<String> =
            map.osds().filter(|o| *o != target && map.is_up(*o)).map(subtree).collect();
        let needed = (rules.reporters as usize).min(possible.len()).max(1);
        let silent = now.since(since).as_secs_f64();
        let grace = rules.grace_for(map, target, silent, now, failure);
        (agree.len() >= needed && silent >= grace).then_some(Conviction {
            subtrees: agree.len(),
            silent,
            grace,
        })
    }

    /// OSDs that have been down long enough to be marked out, and for how many seconds. Those in a
    /// subtree that is down as a whole begin to wait anew: something else is wrong there, which is
    /// repaired sooner than data is copied.
    pub fn due_out(&mut self, map: &OsdMap, now: Utime, rules: &OutRules) -> Vec<(OsdId, u64)> {
        let down: Vec<OsdId> = map.osds().filter(|o| map.is_down(*o) && map.is_in(*o)).collect();
        self.down_since.retain(|o, _| down.contains(o));
        let all = map.osds().count().max(1) as f64;
        let mut num_in = map.num_in() as f64;
        let limit = map
            .crush
            .types
            .id(&rules.subtree_limit)
            .and_then(|t| u16::try_from(t).ok())
            .filter(|t| *t > 0);
        let mut due = Vec::new();
        for osd in down {
            let since = self.down_since.entry(osd).or_insert(now);
            let waited = now.since(*since);
            if rules.interval == 0
                || !osd_state::may_mark_out(map, osd)
                || (num_in - 1.0) / all < rules.min_in
            {
                continue;
            }
            if limit.is_some_and(|kind| osd_state::subtree_is_down(map, osd, kind)) {
                *since = now;
                continue;
            }
            let lag = rules
                .lag
                .zip(map.osd(osd))
                .map_or(0.0, |(l, o)| l.seconds(&o.xinfo, waited.as_secs_f64()));
            if waited.as_secs_f64() >= rules.interval as f64 + lag {
                due.push((osd, waited.as_secs()));
                num_in -= 1.0;
            }
        }
        due
    }

    /// Forgets what belongs to an OSD's previous life.
    pub fn booted(&mut self, osd: OsdId, now: Utime) {
        self.failures.remove(&osd);
        self.down_since.remove(&osd);
        let interval = self.last_report.get(&osd).map_or(0, |(_, i)| *i);
        self.last_report.insert(osd, (now, interval));
    }

    /// Forgets an OSD that is down.
    pub fn went_down(&mut self, osd: OsdId) {
        self.failures.remove(&osd);
        self.last_report.remove(&osd);
        for f in self.failures.values_mut() {
            f.reporters.remove(&osd);
        }
        self.failures.retain(|_, f| !f.reporters.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conf::effective::Source;
    use std::sync::Arc;
    use types::rados::{OSD_IN, osd_state as bits, osdmap_flag as flag};

    fn at(s: u32) -> Utime {
        Utime::new(1_000_000_000 + s, 0)
    }

    /// Two OSDs on each host, two hosts in each rack; all are up and in.
    fn cluster(osds: i32) -> OsdMap {
        let mut map = osd_state::blank_map(&Config::new());
        let mut crush = crush::CrushMap::with_default_types();
        for osd in 0..osds {
            let at = [("osd", osd), ("host", osd / 2), ("rack", osd / 4)]
                .map(|(k, n)| (k.to_owned(), format!("{k}{n}")));
            let mut loc: BTreeMap<String, String> = at.into_iter().skip(1).collect();
            loc.insert("root".to_owned(), "default".to_owned());
            crush.insert_item(osd, 0x10000, &format!("osd.{osd}"), &loc, true).unwrap();
        }
        map.crush = Arc::new(crush);
        let up = types::osdmap::Osd { state: bits::EXISTS | bits::UP, ..Default::default() };
        map.osds = vec![up; osds as usize];
        map.weights = vec![OSD_IN; osds as usize];
        map
    }

    fn down(map: &mut OsdMap, osds: &[i32]) {
        for osd in osds {
            map.osds[*osd as usize].state &= !bits::UP;
        }
    }

    fn laggy(map: &mut OsdMap, osd: usize, probability: f32, interval: u32, down: Utime) {
        let x = &mut map.osds[osd].xinfo;
        x.set_laggy_probability(probability);
        (x.laggy_interval, x.down_stamp) = (interval, down);
    }

    fn conf(options: &[(&str, &str)]) -> Config {
        let mut conf = Config::new();
        for (name, value) in options {
            conf.set(Source::CommandLine, name, value).unwrap();
        }
        conf
    }

    /// The OSDs that call osd.0 silent, and since when.
    fn reported(by: &[(i32, u32)]) -> OsdWatch {
        let reporters = by.iter().map(|(osd, since)| (OsdId(*osd), at(*since))).collect();
        OsdWatch { failures: [(OsdId(0), Failure { reporters })].into(), ..OsdWatch::default() }
    }

    fn convicted(w: &mut OsdWatch, map: &OsdMap, now: u32) -> bool {
        w.convicts(map, OsdId(0), at(now), &Rules::from_conf(&Config::new())).is_some()
    }

    #[test]
    fn reporters_of_one_host_count_once() {
        let map = cluster(8);
        assert!(!convicted(&mut reported(&[(2, 0), (3, 0)]), &map, 100), "both on one host");
        assert!(convicted(&mut reported(&[(2, 0), (4, 0)]), &map, 20));
        assert!(
            !convicted(&mut reported(&[(2, 0), (4, 1)]), &map, 20),
            "the second says so for 19 seconds"
        );
        assert!(!convicted(&mut reported(&[(2, 0)]), &map, 100));
        assert!(!convicted(&mut reported(&[]), &map, 100));
        // By racks.
        let rules = Rules::from_conf(&conf(&[("mon_osd_reporter_subtree_level", "rack")]));
        assert_eq!(reported(&[(2, 0), (3, 0)]).convicts(&map, OsdId(0), at(50), &rules), None);
        let c = reported(&[(2, 0), (4, 10)]).convicts(&map, OsdId(0), at(50), &rules).unwrap();
        assert_eq!((c.subtrees, c.silent, c.grace), (2, 40.0, 20.0));
    }

    #[test]
    fn reporters_that_are_down_do_not_count_and_few_hosts_must_agree() {
        let mut map = cluster(8);
        down(&mut map, &[4]);
        let mut w = reported(&[(2, 0), (4, 0)]);
        assert!(!convicted(&mut w, &map, 100));
        assert_eq!(w.failures[&OsdId(0)].reporters.len(), 1, "what it said is forgotten");
        // Only osd.1, on the same host, is left.
        down(&mut map, &[2, 3, 5, 6, 7]);
        assert!(convicted(&mut reported(&[(1, 0)]), &map, 20));
        down(&mut map, &[1]);
        let mut w = reported(&[(1, 0)]);
        assert!(!convicted(&mut w, &map, 20) && w.failures.is_empty());
    }

    #[test]
    fn the_grace_grows_with_what_was_only_slow_and_shrinks_again() {
        let mut map = cluster(8);
        let by = [(2, 0), (4, 0)];
        // A quarter of 80 seconds more, less what 40 seconds of silence take of it.
        laggy(&mut map, 0, 0.25, 80, at(0));
        assert!(
            !convicted(&mut reported(&by), &map, 20) && !convicted(&mut reported(&by), &map, 39)
        );
        assert!(convicted(&mut reported(&by), &map, 40));
        // One of two reporters was slow itself just now: half of its 60 seconds.
        laggy(&mut map, 2, 1.0, 60, at(0));
        assert!(
            !convicted(&mut reported(&by), &map, 65) && convicted(&mut reported(&by), &map, 70)
        );
        // Ten half-lives ago.
        let later = [(2, 36_000), (4, 36_000)];
        assert!(
            !convicted(&mut reported(&later), &map, 36_039),
            "what is known of the target fades with its silence"
        );
        assert!(convicted(&mut reported(&later), &map, 36_040));
        let fixed = Rules::from_conf(&conf(&[("mon_osd_adjust_heartbeat_grace", "false")]));
        let c = reported(&by).convicts(&map, OsdId(0), at(20), &fixed);
        assert_eq!(c, Some(Conviction { subtrees: 2, silent: 20.0, grace: 20.0 }));
    }

    fn out(w: &mut OsdWatch, map: &OsdMap, now: u32, options: &[(&str, &str)]) -> Vec<(i32, u64)> {
        w.due_out(map, at(now), &OutRules::from_conf(&conf(options)))
            .into_iter()
            .map(|(o, s)| (o.0, s))
            .collect()
    }

    #[test]
    fn an_osd_is_out_after_its_time() {
        let (mut map, mut w) = (cluster(8), OsdWatch::default());
        down(&mut map, &[0]);
        assert_eq!(out(&mut w, &map, 0, &[]), []);
        assert_eq!(out(&mut w, &map, 599, &[]), []);
        assert_eq!(out(&mut w, &map, 600, &[]), [(0, 600)]);
        assert_eq!(out(&mut w, &map, 9_000, &[("mon_osd_down_out_interval", "0")]), [], "never");
        // Up between: the time counts anew.
        map.osds[0].state |= bits::UP;
        assert_eq!(out(&mut w, &map, 700, &[]), []);
        down(&mut map, &[0]);
        assert_eq!(out(&mut w, &map, 800, &[]), []);
        map.flags |= flag::NOOUT;
        assert_eq!(out(&mut w, &map, 1_400, &[]), []);
        map.flags &= !flag::NOOUT;
        assert_eq!(out(&mut w, &map, 1_400, &[]), [(0, 600)]);
        // It lived the last times.
        laggy(&mut map, 0, 1.0, 300, at(800));
        assert_eq!(out(&mut w, &map, 1_650, &[]), [], "about 254 seconds more");
        assert_eq!(
            out(&mut w, &map, 1_650, &[("mon_osd_adjust_down_out_interval", "false")]),
            [(0, 850)]
        );
        assert_eq!(out(&mut w, &map, 1_660, &[]), [(0, 860)]);
    }

    #[test]
    fn a_whole_subtree_that_is_down_stays_in() {
        let (mut map, mut w) = (cluster(12), OsdWatch::default());
        down(&mut map, &[0, 1, 2, 3]);
        assert_eq!(out(&mut w, &map, 0, &[]), []);
        assert_eq!(out(&mut w, &map, 600, &[]), [], "a rack");
        // One of its OSDs is up again: the others' time begins with that.
        map.osds[3].state |= bits::UP;
        assert_eq!(out(&mut w, &map, 1_199, &[]), []);
        assert_eq!(out(&mut w, &map, 1_200, &[]), [(0, 600), (1, 600), (2, 600)]);
        assert_eq!(
            out(&mut w, &map, 1_200, &[("mon_osd_down_out_subtree_limit", "host")]),
            [(2, 600)],
            "osd.0 and osd.1 are a host"
        );
        // The least part of all that must be in.
        assert_eq!(
            out(&mut w, &map, 2_000, &[("mon_osd_min_in_ratio", "0.9")]),
            [(0, 800)],
            "one may go"
        );
    }
}
