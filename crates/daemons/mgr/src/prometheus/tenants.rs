//! What classes and tenants are promised and get, summed over OSDs.
//!
//! There may be very many tenants, and each has a dozen numbers. Only some are shown by name; what
//! the others get is added up in one that is called `others`. A tenant that is shown stays so for a
//! while, and one that goes takes its numbers to the others: counters never go down.

use super::text::{Kind, Text};
use messages::{ClassSeen, ClassWork, QosSeen, TenantSeen};
use promises::Shown;
use std::collections::BTreeMap;
use types::OsdId;

/// Classes of an OSD; there are three.
const MOST_CLASSES: usize = 8;
/// So many tenants that are not shown are known.
const MOST_CANDIDATES: usize = 8192;
/// Seconds between two choices of the tenants to show.
const CHOOSE: f64 = 60.0;
/// The name for all that are not shown.
const OTHERS: &str = "others";
/// Quantiles of waiting times.
const QUANTILES: [(f64, &str); 3] = [(0.5, "0.5"), (0.9, "0.9"), (0.99, "0.99")];

/// Waiting times of late: half of them are forgotten again and again. Bucket n ends at 2^n
/// microseconds.
#[derive(Clone, Debug, Default)]
struct Recent(Vec<f64>);

impl Recent {
    fn add(&mut self, waits: &[u32]) {
        let buckets = self.0.len().max(waits.len()).min(64);
        self.0.resize(buckets, 0.0);
        self.0.iter_mut().zip(waits).for_each(|(sum, n)| *sum += f64::from(*n));
    }

    fn forget_half(&mut self) {
        self.0.iter_mut().for_each(|n| *n /= 2.0);
    }

    /// Below how many seconds so many of them waited.
    fn quantile(&self, q: f64) -> f64 {
        let all: f64 = self.0.iter().sum();
        if all <= 0.0 {
            return f64::NAN;
        }
        let mut below = 0.0;
        for (n, count) in self.0.iter().enumerate() {
            if below + count >= q * all {
                let (from, to) =
                    (if n == 0 { 0.0 } else { 2f64.powi(n as i32 - 1) }, 2f64.powi(n as i32));
                return (from + (to - from) * (q * all - below) / count.max(1e-9)) / 1e6;
            }
            below += count;
        }
        2f64.powi(self.0.len() as i32) / 1e6
    }
}

/// How long operations of a class waited, over all OSDs.
#[derive(Clone, Debug, Default)]
struct ClassWaits {
    recent: Recent,
    /// All of them, ...
    count: u64,
    /// ... and how long they waited together, in nanoseconds. OSDs say it since they started.
    sum: u64,
}

/// Counts of a tenant.
#[derive(Clone, Debug, Default)]
struct Counts {
    sum: TenantSeen,
    recent: Recent,
    /// Recent demand.
    activity: f64,
}

impl Counts {
    fn add(&mut self, t: &TenantSeen) {
        let s = &mut self.sum;
        for (sum, n) in [
            (&mut s.offered, t.offered),
            (&mut s.offered_bytes, t.offered_bytes),
            (&mut s.served, t.served),
            (&mut s.served_bytes, t.served_bytes),
            (&mut s.by_floor, t.by_floor),
            (&mut s.throttled, t.throttled),
            (&mut s.throttled_time, t.throttled_time),
            (&mut s.waited, t.waited),
        ] {
            *sum = sum.saturating_add(n);
        }
        self.recent.add(&t.waits);
        self.activity += t.offered as f64;
    }
}

/// Counters of tenants, some by name and the others as one.
#[derive(Default)]
pub struct Tenants {
    classes: BTreeMap<OsdId, Vec<(ClassSeen, ClassWork)>>,
    waits: BTreeMap<String, ClassWaits>,
    shown: BTreeMap<String, Counts>,
    others: Counts,
    /// What came of late for tenants that are not shown.
    candidates: BTreeMap<String, f64>,
    chosen: f64,
}

impl Tenants {
    /// Takes what an OSD told. At most so many tenants are shown.
    pub fn take(&mut self, osd: OsdId, seen: QosSeen, most: usize, now: f64) {
        self.take_classes(osd, seen.classes, seen.work);
        for t in seen.tenants {
            if !t.name.is_empty() && t.name != OTHERS {
                if !self.shown.contains_key(&t.name) && self.shown.len() < most {
                    self.candidates.remove(&t.name);
                    self.shown.insert(t.name.clone(), Counts::default());
                }
                if let Some(counts) = self.shown.get_mut(&t.name) {
                    counts.add(&t);
                    continue;
                }
                if self.candidates.len() < MOST_CANDIDATES || self.candidates.contains_key(&t.name)
                {
                    *self.candidates.entry(t.name.clone()).or_default() += t.offered as f64;
                }
            }
            self.others.add(&t);
        }
        if now - self.chosen >= CHOOSE {
            self.chosen = now;
            self.choose(most);
        }
    }

    fn take_classes(&mut self, osd: OsdId, classes: Vec<ClassSeen>, work: Vec<ClassWork>) {
        // One of the release before tells less.
        let work = work.into_iter().chain(std::iter::repeat_with(ClassWork::default));
        let classes: Vec<(ClassSeen, ClassWork)> =
            classes.into_iter().zip(work).take(MOST_CLASSES).collect();
        let before = self.classes.insert(osd, classes);
        for (c, work) in self.classes.get(&osd).into_iter().flatten() {
            if self.waits.len() >= MOST_CLASSES && !self.waits.contains_key(&c.name) {
                continue;
            }
            let waits = self.waits.entry(c.name.clone()).or_default();
            waits.recent.add(&work.waits);
            // What was before this manager heard of the OSD is not of its time.
            let Some(before) = &before else { continue };
            let was = before.iter().find(|(b, _)| b.name == c.name).map_or(0, |(_, b)| b.waited);
            waits.count += work.waits.iter().map(|n| u64::from(*n)).sum::<u64>();
            // It has started again if it says less than before.
            waits.sum = waits.sum.saturating_add(if work.waited < was {
                work.waited
            } else {
                work.waited - was
            });
        }
    }

    /// A tenant that has gone is forgotten.
    pub fn retain_osds(&mut self, exists: impl Fn(OsdId) -> bool) {
        self.classes.retain(|osd, _| exists(*osd));
    }

    /// Shows a tenant that is far busier than one that is shown, in its place.
    fn choose(&mut self, most: usize) {
        let mut busiest: Vec<(String, f64)> =
            std::mem::take(&mut self.candidates).into_iter().collect();
        busiest.sort_by(|a, b| a.1.total_cmp(&b.1));
        while let Some((name, activity)) = busiest.pop() {
            let idlest = self
                .shown
                .iter()
                .min_by(|a, b| a.1.activity.total_cmp(&b.1.activity))
                .map(|(n, c)| (n.clone(), c.activity));
            match idlest {
                _ if self.shown.len() < most => {}
                Some((idle, than)) if self.shown.len() == most && activity > 2.0 * than => {
                    self.hide(&idle)
                }
                _ => {
                    busiest.push((name, activity));
                    break;
                }
            }
            self.shown.insert(name, Counts { activity, ..Counts::default() });
        }
        while self.shown.len() > most {
            let Some(name) = self.shown.keys().next_back().cloned() else { break };
            self.hide(&name);
        }
        self.waits.values_mut().for_each(|w| w.recent.forget_half());
        self.candidates =
            busiest.into_iter().map(|(n, a)| (n, a / 2.0)).filter(|(_, a)| *a >= 1.0).collect();
        for c in self.shown.values_mut().chain([&mut self.others]) {
            c.activity /= 2.0;
            c.recent.forget_half();
        }
    }

    fn hide(&mut self, name: &str) {
        if let Some(c) = self.shown.remove(name) {
            self.others.add(&c.sum);
        }
    }

    /// Writes everything. `promised` are those with specifications.
    pub fn write(&self, promised: &[Shown], out: &mut Text) {
        self.write_class_work(out);
        self.write_class_settings(out);
        self.write_class_waits(out);
        self.write_tenant_counters(out);
        self.write_tenant_waits(out);
        self.write_promised(promised, out);
    }

    /// Classes with their OSDs.
    fn of_osds(&self) -> impl Iterator<Item = (String, &ClassSeen, &ClassWork)> {
        self.classes.iter().flat_map(|(osd, classes)| {
            classes.iter().map(move |(c, work)| (format!("osd.{}", osd.0), c, work))
        })
    }

    fn write_class_work(&self, out: &mut Text) {
        let name = "siphon_qos_class_waiting";
        out.metric(name, Kind::Gauge, "Operations that wait in the scheduler");
        for (osd, c, _) in self.of_osds() {
            out.value(name, &[("ceph_daemon", &osd), ("class", &c.name)], c.waiting as f64);
        }
        let name = "siphon_qos_class_served_total";
        out.metric(name, Kind::Counter, "Operations that the scheduler let in: for the class's reservation, for a tenant's floor, by weight");
        for (osd, c, _) in self.of_osds() {
            let by_weight = c.served.saturating_sub(c.by_reservation + c.by_floor);
            for (phase, n) in
                [("reservation", c.by_reservation), ("floor", c.by_floor), ("weight", by_weight)]
            {
                let labels = [("ceph_daemon", &*osd), ("class", c.name.as_str()), ("phase", phase)];
                out.value(name, &labels, n as f64);
            }
        }
        let name = "siphon_qos_class_served_bytes_total";
        out.metric(name, Kind::Counter, "Their bytes");
        for (osd, c, _) in self.of_osds() {
            out.value(name, &[("ceph_daemon", &osd), ("class", &c.name)], c.served_bytes as f64);
        }
        let more: [(&str, &str, OfClass); 5] = [
            ("offered_total", "Operations that came", |w| w.offered as f64),
            ("offered_bytes_total", "Their bytes", |w| w.offered_bytes as f64),
            (
                "throttled_total",
                "Operations held back in front of the scheduler: by limits of images, ceilings of tenants, or clients",
                |w| w.throttled as f64,
            ),
            ("throttled_seconds_total", "How long they were together", |w| {
                w.throttled_time as f64 / 1e9
            }),
            ("at_ceiling_seconds_total", "How long the class waited at its own ceiling", |w| {
                w.at_ceiling as f64 / 1e9
            }),
        ];
        for (name, help, of) in more {
            let name = format!("siphon_qos_class_{name}");
            out.metric(&name, Kind::Counter, help);
            for (osd, c, work) in self.of_osds() {
                out.value(&name, &[("ceph_daemon", &osd), ("class", &c.name)], of(work));
            }
        }
    }

    fn write_class_settings(&self, out: &mut Text) {
        let settings: [(&str, &str, OfClass); 3] = [
            (
                "reservation_iops",
                "What the class is promised at least, in random writes of 4 KiB each second",
                |w| w.reservation as f64 / 1000.0,
            ),
            ("limit_iops", "What it gets at most, in the same", |w| w.limit as f64 / 1000.0),
            ("weight", "Its share of the rest", |w| f64::from(w.weight)),
        ];
        for (name, help, of) in settings {
            let name = format!("siphon_qos_class_{name}");
            out.metric(&name, Kind::Gauge, help);
            for (osd, c, work) in self.of_osds().filter(|(.., work)| of(work) > 0.0) {
                out.value(&name, &[("ceph_daemon", &osd), ("class", &c.name)], of(work));
            }
        }
    }

    fn write_class_waits(&self, out: &mut Text) {
        let help =
            "How long operations waited in the schedulers; quantiles of about the last minutes";
        let waits = self.waits.iter().map(|(class, w)| Waits {
            of: class,
            recent: &w.recent,
            sum: w.sum,
            count: w.count,
        });
        write_waits("siphon_qos_class_wait_seconds", "class", help, waits, out);
    }

    /// Tenants that are shown by name, and the others as one.
    fn tenants(&self) -> impl Iterator<Item = (&str, &Counts)> {
        self.shown.iter().map(|(n, c)| (n.as_str(), c)).chain([(OTHERS, &self.others)])
    }

    fn write_tenant_counters(&self, out: &mut Text) {
        let counters: [(&str, &str, OfTenant); 5] = [
            ("offered_total", "Operations that came", |s| s.offered as f64),
            ("offered_bytes_total", "Bytes of operations that came", |s| s.offered_bytes as f64),
            ("served_bytes_total", "Bytes of operations that were let in", |s| {
                s.served_bytes as f64
            }),
            ("throttled_total", "Operations that waited for the tenant's ceiling", |s| {
                s.throttled as f64
            }),
            (
                "throttled_seconds_total",
                "How long operations waited for the tenant's ceiling",
                |s| s.throttled_time as f64 / 1e9,
            ),
        ];
        for (name, help, of) in counters {
            let name = format!("siphon_qos_tenant_{name}");
            out.metric(&name, Kind::Counter, help);
            for (tenant, c) in self.tenants() {
                out.value(&name, &[("tenant", tenant)], of(&c.sum));
            }
        }
        let name = "siphon_qos_tenant_served_total";
        let help = "Operations that were let in: for the tenant's floor, by weight";
        out.metric(name, Kind::Counter, help);
        for (tenant, c) in self.tenants() {
            let by_weight = c.sum.served.saturating_sub(c.sum.by_floor);
            for (phase, n) in [("floor", c.sum.by_floor), ("weight", by_weight)] {
                out.value(name, &[("tenant", tenant), ("phase", phase)], n as f64);
            }
        }
    }

    fn write_tenant_waits(&self, out: &mut Text) {
        let help =
            "How long operations waited in the scheduler; quantiles of about the last minutes";
        let waits = self.tenants().map(|(tenant, c)| Waits {
            of: tenant,
            recent: &c.recent,
            sum: c.sum.waited,
            count: c.sum.served,
        });
        write_waits("siphon_qos_tenant_wait_seconds", "tenant", help, waits, out);
    }

    /// What tenants that are shown are promised.
    fn write_promised(&self, promised: &[Shown], out: &mut Text) {
        let promised: Vec<&Shown> =
            promised.iter().filter(|p| self.shown.contains_key(&p.name)).collect();
        let name = "siphon_qos_tenant_weight";
        out.metric(name, Kind::Gauge, "The tenant's weight, from its specification");
        for p in &promised {
            out.value(name, &[("tenant", &p.name)], f64::from(p.weight));
        }
        let mut rates = |name: &str, help: &str, of: &dyn Fn(&Shown) -> [u64; 2]| {
            for (i, unit) in ["iops", "bps"].into_iter().enumerate() {
                let name = format!("{name}_{unit}");
                out.metric(&name, Kind::Gauge, help);
                for p in promised.iter().filter(|p| of(p)[i] > 0) {
                    out.value(&name, &[("tenant", &p.name)], of(p)[i] as f64 / 1000.0);
                }
            }
        };
        rates(
            "siphon_qos_tenant_floor",
            "What the tenant is promised at least, by all OSDs together, each second",
            &|p| p.floors,
        );
        rates(
            "siphon_qos_tenant_ceiling",
            "What the tenant gets at most, from all OSDs together, each second",
            &|p| p.ceilings,
        );
    }
}

/// How a metric follows from what OSDs tell.
type OfClass = fn(&ClassWork) -> f64;
type OfTenant = fn(&TenantSeen) -> f64;

/// How long operations of a class or tenant waited.
struct Waits<'a> {
    of: &'a str,
    recent: &'a Recent,
    /// In nanoseconds.
    sum: u64,
    count: u64,
}

fn write_waits<'a>(
    name: &str,
    label: &str,
    help: &str,
    waits: impl Iterator<Item = Waits<'a>>,
    out: &mut Text,
) {
    out.metric(name, Kind::Summary, help);
    for w in waits {
        for (q, quantile) in QUANTILES {
            let labels = [(label, w.of), ("quantile", quantile)];
            out.value(name, &labels, w.recent.quantile(q));
        }
        out.value(&format!("{name}_sum"), &[(label, w.of)], w.sum as f64 / 1e9);
        out.value(&format!("{name}_count"), &[(label, w.of)], w.count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(tenants: &[(&str, u64)]) -> QosSeen {
        let tenant = |(name, n): &(&str, u64)| TenantSeen {
            name: (*name).to_owned(),
            offered: *n,
            served: *n,
            by_floor: *n / 2,
            waits: vec![0, 0, 0, *n as u32],
            ..TenantSeen::default()
        };
        let client =
            ClassSeen { name: "client".into(), served: 9, by_floor: 4, ..ClassSeen::default() };
        QosSeen {
            classes: vec![client],
            tenants: tenants.iter().map(tenant).collect(),
            ..QosSeen::default()
        }
    }

    fn text(t: &Tenants) -> String {
        let mut out = Text::default();
        let promised = Shown { name: "a".into(), weight: 7, floors: [5000, 0], ceilings: [0, 0] };
        t.write(&[promised], &mut out);
        out.finish()
    }

    #[test]
    fn classes_show_promises_and_waits_over_all_osds() {
        let mut t = Tenants::default();
        let of = |waited, n| QosSeen {
            work: vec![ClassWork {
                reservation: 10_750_000,
                weight: 2,
                offered: 20,
                throttled: 3,
                throttled_time: 1_500_000_000,
                at_ceiling: 250_000_000,
                waited,
                waits: vec![0, 0, 0, n],
                ..ClassWork::default()
            }],
            ..seen(&[])
        };
        t.take(OsdId(1), of(3_000_000_000, 10), 2, 1.0);
        t.take(OsdId(2), of(1_000_000_000, 10), 2, 1.0);
        t.take(OsdId(1), of(4_000_000_000, 20), 2, 2.0);
        // It has started again; another is of the release before.
        t.take(OsdId(2), of(500_000_000, 0), 2, 2.0);
        t.take(OsdId(3), seen(&[]), 2, 2.0);
        let out = text(&t);
        for line in [
            r#"siphon_qos_class_reservation_iops{ceph_daemon="osd.1",class="client"} 10750.0"#,
            r#"siphon_qos_class_weight{ceph_daemon="osd.2",class="client"} 2.0"#,
            r#"siphon_qos_class_offered_total{ceph_daemon="osd.1",class="client"} 20.0"#,
            r#"siphon_qos_class_offered_total{ceph_daemon="osd.3",class="client"} 0.0"#,
            r#"siphon_qos_class_throttled_total{ceph_daemon="osd.1",class="client"} 3.0"#,
            r#"siphon_qos_class_throttled_seconds_total{ceph_daemon="osd.1",class="client"} 1.5"#,
            r#"siphon_qos_class_at_ceiling_seconds_total{ceph_daemon="osd.1",class="client"} 0.25"#,
            r#"siphon_qos_class_wait_seconds{class="client",quantile="0.5"} 0.000006"#,
            r#"siphon_qos_class_wait_seconds_sum{class="client"} 1.5"#,
            r#"siphon_qos_class_wait_seconds_count{class="client"} 20.0"#,
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is not in\n{out}");
        }
        // No ceiling is no number.
        assert!(!out.contains("siphon_qos_class_limit_iops{"), "{out}");
        t.retain_osds(|osd| osd == OsdId(1));
        assert!(!text(&t).contains("osd.2"));
    }

    #[test]
    fn names_are_bounded_and_nothing_is_lost() {
        let mut t = Tenants::default();
        t.take(OsdId(1), seen(&[("a", 10), ("b", 20), ("c", 30), ("", 5)]), 2, 1.0);
        let out = text(&t);
        for line in [
            r#"siphon_qos_tenant_offered_total{tenant="a"} 10.0"#,
            r#"siphon_qos_tenant_offered_total{tenant="others"} 35.0"#,
            r#"siphon_qos_tenant_served_total{tenant="b",phase="floor"} 10.0"#,
            r#"siphon_qos_tenant_floor_iops{tenant="a"} 5.0"#,
            r#"siphon_qos_class_served_total{ceph_daemon="osd.1",class="client",phase="weight"} 5.0"#,
            r#"siphon_qos_tenant_wait_seconds{tenant="a",quantile="0.5"} 0.000006"#,
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is not in\n{out}");
        }
        // One that is far busier takes the place of another, which goes to the others.
        for n in 0..5 {
            t.take(
                OsdId(1),
                seen(&[("a", 10), ("b", 1), ("c", 300)]),
                2,
                70.0 + f64::from(n) * CHOOSE,
            );
        }
        let out = text(&t);
        assert!(
            out.contains(r#"offered_total{tenant="c"}"#) && !out.contains(r#"tenant="b""#),
            "{out}"
        );
        let sum: f64 = out
            .lines()
            .filter(|l| l.starts_with("siphon_qos_tenant_offered_total"))
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        assert_eq!(sum, 65.0 + 5.0 * 311.0);
        assert!(t.shown.len() == 2);
        t.choose(1);
        assert!(t.shown.len() == 1);
    }
}
