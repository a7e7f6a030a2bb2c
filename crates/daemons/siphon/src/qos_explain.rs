//! `siphon qos explain`: why a tenant is as slow as it is.
//!
//! OSDs count; what they have counted is read twice, and everything here is about what came in
//! between. What OSDs say is put together in [`Explanation`], and [`Explanation::verdict`] says in
//! words what that means. Neither does I/O.

use crate::qos_cluster::Dumps;
use crate::qos_top::{percentile, print, since};
use admission::legs::Leg;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use types::OsdId;

/// What no OSD can see.
pub const NOT_SEEN: &str =
    "the network between clients and OSDs, and what clients do before they send";

/// How long something took.
#[derive(Clone, Debug, Default, PartialEq)]
struct Dist {
    count: u64,
    ns: u64,
    /// By powers of two of microseconds.
    buckets: Vec<u64>,
}

impl Dist {
    fn since(count: u64, after: &Value, before: &Value) -> Self {
        let old = before["log2_us"].as_array();
        let new = after["log2_us"].as_array().into_iter().flatten().enumerate();
        let number = |v: Option<&Value>| v.and_then(Value::as_u64).unwrap_or(0);
        let buckets =
            new.map(|(i, n)| since(number(Some(n)), number(old.and_then(|o| o.get(i))))).collect();
        Dist { count, ns: counted(after, before, "ns"), buckets }
    }

    fn add(&mut self, other: &Dist) {
        self.count += other.count;
        self.ns += other.ns;
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, n)| *sum += n);
    }

    fn mean_us(&self) -> f64 {
        self.ns as f64 / 1000.0 / self.count.max(1) as f64
    }

    /// The upper end of the bucket that it is in.
    fn p99_us(&self) -> u64 {
        if self.ns == 0 { 0 } else { percentile(&self.buckets, 0.99) }
    }
}

/// The difference of a counter.
fn counted(after: &Value, before: &Value, name: &str) -> u64 {
    let of = |v: &Value| v[name].as_u64().unwrap_or(0);
    since(of(after), of(before))
}

/// The same for one that counts parts.
fn counted_parts(after: &Value, before: &Value, name: &str) -> f64 {
    let of = |v: &Value| v[name].as_f64().unwrap_or(0.0);
    let (new, old) = (of(after), of(before));
    if new < old { new } else { new - old }
}

/// What is promised, each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    iops: Option<f64>,
    bps: Option<f64>,
}

impl Rates {
    fn of(t: &Value, what: &str, which: &str) -> Self {
        let rate = |unit: &str| t[what][unit][which].as_f64();
        Rates { iops: rate("iops"), bps: rate("bps") }
    }

    fn to_json(self) -> Value {
        json!({"iops": self.iops, "bps": self.bps})
    }
}

/// An OSD that has seen the tenant.
#[derive(Clone, Debug, Default, PartialEq)]
struct OsdPart {
    osd: i32,
    /// Operations answered in all.
    total: Dist,
    legs: [Dist; Leg::COUNT],
    waiting: u64,
    over_ceiling: u64,
    throttled: u64,
    floor: Rates,
    ceiling: Rates,
    /// The part of floors that it keeps.
    floors_scaled: f64,
    /// Parts of the time.
    device_busy: Option<f64>,
    /// What the device was busy with a request.
    device_us: f64,
    /// Parts of the time in which its thread ran, and in which it waited for a processor.
    processor: Option<[f64; 2]>,
    /// Changes that it stored for other primaries.
    for_others: u64,
    /// It does as much for clients as they may have.
    clients_at_limit: bool,
}

impl OsdPart {
    fn is_held(&self) -> bool {
        self.over_ceiling > 0 || self.throttled > 0 || self.legs[Leg::Ceiling as usize].ns > 0
    }
}

/// An OSD that has copies of what the tenant writes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Replica {
    osd: i32,
    /// For this tenant.
    answered: u64,
    mean_us: f64,
    /// For all tenants.
    all: Dist,
    /// The longest mean ping of the last minute from one of the OSDs that wait for it.
    ping_us: Option<u64>,
}

/// Why a tenant is as slow as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    tenant: String,
    seconds: f64,
    specified: bool,
    weight: u64,
    offered: u64,
    served: u64,
    bytes: u64,
    throttled: u64,
    waiting: u64,
    over_ceiling: u64,
    total: Dist,
    legs: [Dist; Leg::COUNT],
    floor: Rates,
    ceiling: Rates,
    /// What was served where it waited, in parts of its cost: the others, the most first, and
    /// itself.
    others: Vec<(String, f64)>,
    own: f64,
    osds: Vec<OsdPart>,
    replicas: Vec<Replica>,
}

fn rows(dump: &Value) -> impl Iterator<Item = &Value> {
    dump["tenants"].as_array().into_iter().flatten()
}

/// A row of a dump as it was in an earlier one. Several may have one name: what was seen of a
/// tenant before it had a specification is not forgotten at once.
fn was<'a>(before: &'a Value, row: &Value) -> &'a Value {
    rows(before)
        .find(|o| o["id"] == row["id"] && o["tenant"] == row["tenant"])
        .unwrap_or(&Value::Null)
}

/// The tenants that OSDs have seen, those of whom most came first.
pub fn tenants(before: &Dumps, after: &Dumps) -> Vec<String> {
    let mut offered: BTreeMap<&str, u64> = BTreeMap::new();
    for (osd, dump) in after {
        for t in rows(dump) {
            let Some(name) = t["tenant"].as_str() else { continue };
            let old = before.get(osd).map_or(&Value::Null, |d| was(d, t));
            *offered.entry(name).or_default() += counted(t, old, "offered");
        }
    }
    let mut names: Vec<(&str, u64)> = offered.into_iter().collect();
    names.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    names.into_iter().map(|(name, _)| name.to_owned()).collect()
}

impl Explanation {
    /// Of what OSDs said of a tenant at two times.
    pub fn new(tenant: &str, before: &Dumps, after: &Dumps, seconds: f64) -> Self {
        let mut e = Explanation { tenant: tenant.to_owned(), seconds, ..Explanation::default() };
        let mut replicas: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
        // What was served where it waits, and for how long it did.
        let mut served: Vec<(f64, BTreeMap<String, f64>)> = Vec::new();
        for (osd, new) in after {
            let Some(old) = before.get(osd) else { continue };
            let mut mine = rows(new).filter(|t| t["tenant"] == tenant).peekable();
            if mine.peek().is_none() {
                continue;
            }
            let mut part = OsdPart {
                osd: osd.0,
                floors_scaled: new["capacity"]["floors_scaled"].as_f64().unwrap_or(1.0),
                for_others: counted(new, old, "replica_writes"),
                ..OsdPart::default()
            };
            let mut waited = 0.0;
            for t in mine {
                let o = was(old, t);
                e.add(&mut part, t, o);
                waited += counted(t, o, "waited_ns") as f64;
                for (replica, r) in t["times"]["replicas"].as_object().into_iter().flatten() {
                    let Ok(osd) = replica.parse() else { continue };
                    let o = &o["times"]["replicas"][replica];
                    let (count, ns) = replicas.entry(osd).or_default();
                    (*count, *ns) = (*count + counted(r, o, "answered"), *ns + counted(r, o, "ns"));
                }
            }
            let (device, earlier) = (&new["device"], &old["device"]);
            if device.is_object() {
                let requests: u64 = ["reads", "writes"]
                    .iter()
                    .map(|way| counted(&device[way], &earlier[way], "count"))
                    .sum();
                let busy = counted(device, earlier, "busy_ns");
                part.device_busy = Some((busy as f64 / 1e9 / seconds).min(1.0));
                part.device_us = busy as f64 / 1000.0 / requests.max(1) as f64;
            }
            let (thread, earlier) = (&new["thread"], &old["thread"]);
            if thread.is_object() {
                let of = |what| (counted(thread, earlier, what) as f64 / 1e9 / seconds).min(1.0);
                part.processor = Some([of("cpu_ns"), of("waited_ns")]);
            }
            let clients = (&new["classes"]["client"], &old["classes"]["client"]);
            let limit = clients.0["promised"]["limit_iops"].as_f64().unwrap_or(0.0);
            part.clients_at_limit = limit > 0.0
                && counted_parts(clients.0, clients.1, "served_cost") >= 0.9 * limit * seconds;
            e.throttled += part.throttled;
            e.waiting += part.waiting;
            e.over_ceiling += part.over_ceiling;
            e.total.add(&part.total);
            e.legs.iter_mut().zip(&part.legs).for_each(|(sum, leg)| sum.add(leg));
            let mut costs: BTreeMap<String, f64> = BTreeMap::new();
            for other in rows(new) {
                let Some(name) = other["tenant"].as_str() else { continue };
                *costs.entry(name.to_owned()).or_default() +=
                    counted_parts(other, was(old, other), "served_cost");
            }
            for (class, c) in new["classes"]
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(class, _)| *class != "client")
            {
                costs
                    .insert(class.clone(), counted_parts(c, &old["classes"][class], "served_cost"));
            }
            served.push((waited + part.waiting as f64, costs));
            e.osds.push(part);
        }
        e.compare(served);
        e.replicas = replicas
            .into_iter()
            .filter(|(_, (count, _))| *count > 0)
            .map(|(osd, of)| e.replica(osd, of, before, after))
            .collect();
        e.replicas.sort_by(|a, b| b.mean_us.total_cmp(&a.mean_us));
        e.osds.sort_by(|a, b| b.total.mean_us().total_cmp(&a.total.mean_us()));
        e
    }

    /// Adds what an OSD says in a row.
    fn add(&mut self, part: &mut OsdPart, t: &Value, o: &Value) {
        let number = |name: &str| t[name].as_u64().unwrap_or(0);
        // Without a specification it has the weight that all have.
        if t["specified"] == true || !self.specified {
            self.weight = number("weight");
            (self.floor, self.ceiling) =
                (Rates::of(t, "floor", "cluster"), Rates::of(t, "ceiling", "cluster"));
            (part.floor, part.ceiling) =
                (Rates::of(t, "floor", "here"), Rates::of(t, "ceiling", "here"));
        }
        self.specified |= t["specified"] == true;
        self.offered += counted(t, o, "offered");
        self.served += counted(t, o, "served");
        self.bytes += counted(t, o, "served_bytes");
        part.waiting += number("waiting");
        part.over_ceiling += number("over_ceiling");
        part.throttled += counted(t, o, "throttled");
        let (new, old) = (&t["times"], &o["times"]);
        let answered = counted(new, old, "answered");
        part.total.add(&Dist::since(answered, &new["total"], &old["total"]));
        for (leg, dist) in Leg::ALL.iter().zip(&mut part.legs) {
            dist.add(&Dist::since(answered, &new["legs"][leg.name()], &old["legs"][leg.name()]));
        }
    }

    /// What others got where this tenant waited; an OSD counts as much as the tenant waited there.
    fn compare(&mut self, served: Vec<(f64, BTreeMap<String, f64>)>) {
        let waited: f64 = served.iter().map(|(w, _)| w).sum();
        let even = if waited > 0.0 { 0.0 } else { 1.0 };
        let mut parts: BTreeMap<String, f64> = BTreeMap::new();
        for (waited, costs) in served {
            let all: f64 = costs.values().sum();
            if all > 0.0 {
                costs.into_iter().for_each(|(name, cost)| {
                    *parts.entry(name).or_default() += (waited + even) * cost / all
                });
            }
        }
        let all: f64 = parts.values().sum();
        self.own = parts.remove(&self.tenant).unwrap_or(0.0);
        if all > 0.0 {
            self.own /= all;
            self.others = parts
                .into_iter()
                .map(|(name, part)| (name, part / all))
                .filter(|(_, part)| *part >= 0.005)
                .collect();
            self.others.sort_by(|a, b| b.1.total_cmp(&a.1));
        }
    }

    fn replica(
        &self,
        osd: i32,
        (answered, ns): (u64, u64),
        before: &Dumps,
        after: &Dumps,
    ) -> Replica {
        let mut r = Replica {
            osd,
            answered,
            mean_us: ns as f64 / 1000.0 / answered.max(1) as f64,
            ..Replica::default()
        };
        let name = osd.to_string();
        for part in &self.osds {
            let (Some(new), Some(old)) =
                (after.get(&OsdId(part.osd)), before.get(&OsdId(part.osd)))
            else {
                continue;
            };
            let (new, old) = (&new["peers"][&name], &old["peers"][&name]);
            r.all.add(&Dist::since(counted(new, old, "answered"), new, old));
            // The first network is that of OSDs, in which copies go.
            r.ping_us = r.ping_us.max(new["ping"]["back"]["1min_us"].as_u64());
        }
        r
    }

    /// Operations of it that were on OSDs at a time, in the mean.
    fn under_way(&self) -> f64 {
        self.total.ns as f64 / 1e9 / self.seconds
    }

    fn each(&self, n: u64) -> f64 {
        n as f64 / self.seconds
    }

    fn leg(&self, leg: Leg) -> &Dist {
        &self.legs[leg as usize]
    }

    /// In words, what takes most of the time and what is known of the reason.
    pub fn verdict(&self) -> String {
        if self.total.count == 0 {
            return self.nothing_answered();
        }
        let total = self.total.mean_us();
        let mut legs = Leg::ALL;
        legs.sort_by_key(|leg| std::cmp::Reverse(self.leg(*leg).ns));
        let part = |leg: Leg| self.leg(leg).ns as f64 / self.total.ns.max(1) as f64;
        let mut said = Vec::new();
        let under_way = self.under_way();
        let [main, next, ..] = legs;
        let of = format!(
            "{} of the {} that an operation is here",
            time(self.leg(main).mean_us()),
            time(total)
        );
        if under_way < 0.5 {
            said.push(format!(
                "OSDs have something of {} for {:.0} % of the time at most: what is slow is mostly before them, with its clients or on the network to \
                 them, which OSDs do not see. While it is here it {}, {of}.",
                self.tenant,
                under_way * 100.0,
                self.clause(main)
            ));
        } else {
            said.push(format!("{} {}: {of}.", self.tenant, self.clause(main)));
        }
        if part(next) >= 0.2 {
            said.push(format!(
                "For a further {:.0} % of the time it {}.",
                part(next) * 100.0,
                self.clause(next)
            ));
        }
        said.extend(self.busy_devices());
        if matches!(main, Leg::Queue | Leg::Execute) {
            said.extend(self.processors());
        }
        if main == Leg::Queue {
            let at_limit: Vec<i32> =
                self.osds.iter().filter(|o| o.clients_at_limit).map(|o| o.osd).collect();
            if !at_limit.is_empty() {
                said.push(format!(
                    "Clients together get all that the profile and the capacity that is set (osd_mclock_max_capacity_iops_ssd) allow on {}.",
                    names(&at_limit)
                ));
            }
        }
        said.extend(self.floors());
        said.extend(self.slow_osd(main));
        if (0.5..1.5).contains(&under_way) && !matches!(main, Leg::Ceiling | Leg::Limits) {
            said.push("About one operation of it is here at a time: it does not get more because its clients wait for each before they send the next.".into());
        }
        said.join(" ")
    }

    fn nothing_answered(&self) -> String {
        let nothing = format!("Nothing was answered in these {:.1} s", self.seconds);
        if self.over_ceiling > 0 {
            return format!(
                "{nothing}: {} {}, {} operations.",
                self.tenant,
                self.clause(Leg::Ceiling),
                self.over_ceiling
            );
        }
        if self.waiting > 0 {
            return format!(
                "{nothing}: {} {}, {} operations.",
                self.tenant,
                self.clause(Leg::Queue),
                self.waiting
            );
        }
        if self.offered > 0 {
            return format!(
                "{nothing}, and {} operations came: they wait for something that is neither a promise nor a turn, or failed. \
                 `ceph tell osd.N dump_ops_in_flight` says for what.",
                self.offered
            );
        }
        format!(
            "Nothing of {} came in these {:.1} s and nothing of it waits for its turn: if it is slow, then before the OSDs, with its clients or on the \
             network to them, which OSDs do not see; or it waits here for longer already (`ceph tell osd.N dump_ops_in_flight`).",
            self.tenant, self.seconds
        )
    }

    /// What an operation does in a leg, as the rest of a sentence.
    fn clause(&self, leg: Leg) -> String {
        match leg {
            Leg::Limits => {
                let held: Vec<i32> = self.osds.iter().filter(|o| o.legs[leg as usize].ns > 0).map(|o| o.osd).collect();
                format!("is held by the limits of its images (rbd_qos_*) on {}", names(&held))
            }
            Leg::Ceiling => {
                let held: Vec<i32> = self.osds.iter().filter(|o| o.is_held()).map(|o| o.osd).collect();
                format!("is held by its own ceiling of {} on {}", self.nearest_ceiling(), names(&held))
            }
            Leg::Queue => self.behind(),
            Leg::Object => "waits for other operations on the same objects".into(),
            Leg::Execute => "is executed where its groups are led: the processor, and what has to be read from the device".into(),
            Leg::Store => {
                let slow = self.slowest(|o| o.legs[Leg::Store as usize].clone());
                match slow {
                    Some((osd, slow, others)) => format!("waits for devices: osd.{osd} has a change after {}, others after {}", time(slow), time(others)),
                    None => "waits until its changes are on the device of the OSD that leads".into(),
                }
            }
            Leg::Replicas => self.slow_replicas(),
            Leg::Other => "waits for maps, peering, recovery of its objects, a scrub or room (`ceph health detail`)".into(),
        }
    }

    /// The ceiling that it is at, or the one that it is nearest to.
    fn nearest_ceiling(&self) -> String {
        let iops = self.ceiling.iops.map(|c| (self.each(self.served) / c, format!("{c:.0} IOPS")));
        let bps =
            self.ceiling.bps.map(|c| (self.each(self.bytes) / c, format!("{} a second", bytes(c))));
        let nearest = iops.into_iter().chain(bps).max_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map_or("what it had a moment ago".into(), |(_, text)| text)
    }

    fn behind(&self) -> String {
        let most: Vec<&(String, f64)> =
            self.others.iter().filter(|(_, part)| *part >= 0.1).take(2).collect();
        let others: f64 = self.others.iter().map(|(_, part)| part).sum();
        let own = self.own * 100.0;
        if most.is_empty() || self.own > others {
            return format!(
                "waits for its turn behind its own operations, which got {own:.0} % of what was served there: it asks for more than there is"
            );
        }
        let got: Vec<String> = most
            .iter()
            .map(|(name, part)| format!("{}, which got {:.0} %", kind_of(name), part * 100.0))
            .collect();
        format!(
            "waits for its turn behind {} of what was served where it waits (it got {own:.0} % itself)",
            got.join(", and ")
        )
    }

    fn slow_replicas(&self) -> String {
        let sum = |of: &[Replica]| {
            let n: u64 = of.iter().map(|r| r.answered).sum();
            of.iter().map(|r| r.mean_us * r.answered as f64).sum::<f64>() / n.max(1) as f64
        };
        let Some((slow, others)) = self.replicas.split_first() else {
            return "waits for replicas".into();
        };
        let others_mean = sum(others);
        if others.is_empty() || slow.mean_us < 2.0 * others_mean {
            return format!("waits for replicas, which answer after {}", time(sum(&self.replicas)));
        }
        let ping = match slow.ping_us.map(|us| us as f64) {
            // Half of what is missing is on the way.
            Some(us) if us >= slow.mean_us / 2.0 => format!(
                ", and pings to it take {}: that is the network, or the whole OSD",
                time(us)
            ),
            Some(us) => format!(
                ", while pings to it take {}: that is the OSD or its device, not the network",
                time(us)
            ),
            None => String::new(),
        };
        format!(
            "waits for replicas: osd.{} answers after {}, others after {}{ping}",
            slow.osd,
            time(slow.mean_us),
            time(others_mean)
        )
    }

    /// An OSD on which something takes at least three times as long as on the others together: it,
    /// and both times.
    fn slowest(&self, of: impl Fn(&OsdPart) -> Dist) -> Option<(i32, f64, f64)> {
        // A few operations say little.
        let enough: Vec<(i32, Dist)> =
            self.osds.iter().map(|o| (o.osd, of(o))).filter(|(_, d)| d.count >= 5).collect();
        let (osd, slow) = enough.iter().max_by(|a, b| a.1.mean_us().total_cmp(&b.1.mean_us()))?;
        let mut others = Dist::default();
        enough.iter().filter(|(o, _)| o != osd).for_each(|(_, d)| others.add(d));
        (others.count > 0 && slow.mean_us() >= 3.0 * others.mean_us())
            .then(|| (*osd, slow.mean_us(), others.mean_us()))
    }

    fn slow_osd(&self, main: Leg) -> Option<String> {
        let (osd, slow, others) =
            self.slowest(|o| o.total.clone()).filter(|_| main != Leg::Store)?;
        Some(format!(
            "osd.{osd} is the slowest for it: {} an operation, others {}.",
            time(slow),
            time(others)
        ))
    }

    fn busy_devices(&self) -> Option<String> {
        let mut busy: Vec<&OsdPart> =
            self.osds.iter().filter(|o| o.device_busy.is_some_and(|b| b >= 0.8)).collect();
        busy.sort_by(|a, b| b.device_us.total_cmp(&a.device_us));
        let most = busy.first()?;
        let all: Vec<i32> = busy.iter().map(|o| o.osd).collect();
        let what = format!(
            "busy for at least 80 % of the time, with {} for a request on osd.{}",
            time(most.device_us),
            most.osd
        );
        Some(if all.len() == 1 {
            format!("The device of osd.{} is {what}.", all[0])
        } else {
            format!("The devices of {} are {what}.", names(&all))
        })
    }

    fn processors(&self) -> Option<String> {
        let busy = |o: &&OsdPart| o.processor.is_some_and(|[ran, waited]| ran + waited >= 0.8);
        let all: Vec<&OsdPart> = self.osds.iter().filter(busy).collect();
        let osds: Vec<i32> = all.iter().map(|o| o.osd).collect();
        let waited = all.iter().filter_map(|o| Some(o.processor?[1])).max_by(f64::total_cmp)?;
        let others = if waited >= 0.2 {
            format!(", for up to {:.0} % of it waiting for one that others have", waited * 100.0)
        } else {
            String::new()
        };
        Some(format!("{} needed a processor for at least 80 % of the time{others}.", names(&osds)))
    }

    fn floors(&self) -> Option<String> {
        if self.floor == Rates::default() {
            return None;
        }
        let scaled: Vec<&OsdPart> = self.osds.iter().filter(|o| o.floors_scaled < 1.0).collect();
        if let Some(least) = scaled.iter().map(|o| o.floors_scaled).min_by(f64::total_cmp) {
            let osds: Vec<i32> = scaled.iter().map(|o| o.osd).collect();
            return Some(format!(
                "Its floor is scaled to {:.0} % on {}: more is promised there than the OSDs can do.",
                least * 100.0,
                names(&osds)
            ));
        }
        let (floor, served) = (self.floor.iops?, self.each(self.served));
        let asks = self.each(self.offered) >= floor;
        (asks && served < 0.9 * floor).then(|| {
            format!("It gets {served:.0} of the {floor:.0} operations a second of its floor.")
        })
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let of = |d: &Dist| json!({"mean_us": tenth(d.mean_us()), "p99_us": d.p99_us()});
        let legs = |legs: &[Dist; Leg::COUNT], total: &Dist| {
            let rows = Leg::ALL.iter().zip(legs).map(|(leg, d)| {
                let mut v = of(d);
                v["part"] = json!(d.ns as f64 / total.ns.max(1) as f64);
                (leg.name().to_owned(), v)
            });
            rows.collect::<Map<_, _>>()
        };
        let osds = self.osds.iter().map(|o| {
            json!({
                "osd": o.osd, "answered_iops": self.each(o.total.count), "time": of(&o.total), "legs": legs(&o.legs, &o.total),
                "waiting": o.waiting, "over_ceiling": o.over_ceiling, "throttled_iops": self.each(o.throttled),
                "floor": o.floor.to_json(), "ceiling": o.ceiling.to_json(), "floors_scaled": o.floors_scaled,
                "device_busy": o.device_busy, "device_us": tenth(o.device_us),
                "processor": o.processor.map(|[ran, waited]| json!({"ran": ran, "waited": waited})), "for_other_primaries_iops": self.each(o.for_others),
                "clients_at_limit": o.clients_at_limit,
            })
        });
        let replicas = self.replicas.iter().map(|r| {
            let all = json!({"mean_us": tenth(r.all.mean_us()), "p99_us": r.all.p99_us()});
            json!({"osd": r.osd, "answered_iops": self.each(r.answered), "mean_us": tenth(r.mean_us), "all_tenants": all, "ping_1min_us": r.ping_us})
        });
        let meanwhile = self.others.iter().map(|(name, part)| json!({"name": name, "part": part}));
        json!({
            "tenant": self.tenant, "seconds": self.seconds, "specified": self.specified, "weight": self.weight,
            "offered_iops": self.each(self.offered), "served_iops": self.each(self.served), "served_bps": self.each(self.bytes),
            "answered_iops": self.each(self.total.count), "throttled_iops": self.each(self.throttled),
            "under_way": self.under_way(), "waiting": self.waiting, "over_ceiling": self.over_ceiling,
            "floor": self.floor.to_json(), "ceiling": self.ceiling.to_json(),
            "time": of(&self.total), "legs": legs(&self.legs, &self.total),
            "own_part": self.own, "meanwhile": meanwhile.collect::<Vec<_>>(),
            "osds": osds.collect::<Vec<_>>(), "replicas": replicas.collect::<Vec<_>>(),
            "not_seen": NOT_SEEN, "verdict": self.verdict(),
        })
    }

    /// For people.
    pub fn print(&self) {
        println!(
            "{}: {:.0}/s came, {:.0}/s were served ({}/s) and {:.0}/s answered in {:.1} s; {:.1} under way in the mean, {} wait for their turn, {} for the ceiling",
            self.tenant,
            self.each(self.offered),
            self.each(self.served),
            bytes(self.each(self.bytes)),
            self.each(self.total.count),
            self.seconds,
            self.under_way(),
            self.waiting,
            self.over_ceiling
        );
        if self.total.count > 0 {
            self.print_times();
        }
        if !self.others.is_empty() {
            let got =
                |(name, part): &(String, f64)| format!("{} {:.0} %", kind_of(name), part * 100.0);
            let others: Vec<String> = self.others.iter().take(5).map(got).collect();
            println!(
                "\nserved meanwhile where it waits: itself {:.0} %, {}",
                self.own * 100.0,
                others.join(", ")
            );
        }
        println!("\nnot seen: {NOT_SEEN}\n\n{}", self.verdict());
    }

    fn print_times(&self) {
        let mut table = vec![["WHERE TIME GOES", "MEAN us", "p99 us", "PART %"].map(str::to_owned)];
        let all = Leg::ALL
            .iter()
            .map(|leg| (said(*leg), self.leg(*leg)))
            .chain([("all of it", &self.total)]);
        for (name, d) in all {
            let part = d.ns as f64 * 100.0 / self.total.ns.max(1) as f64;
            table.push([
                name.to_owned(),
                format!("{:.0}", d.mean_us()),
                d.p99_us().to_string(),
                format!("{part:.1}"),
            ]);
        }
        println!();
        print(&table);
        let heading = [
            "OSD",
            "ANSWERED/s",
            "MEAN us",
            "p99 us",
            "CEILING",
            "QUEUE",
            "STORE",
            "REPLICAS",
            "DEVICE BUSY %",
            "us EACH",
            "CPU %",
            "FOR OTHERS/s",
        ];
        let mut table = vec![heading.map(str::to_owned)];
        for o in &self.osds {
            let mean = |leg: Leg| format!("{:.0}", o.legs[leg as usize].mean_us());
            table.push([
                format!("osd.{}", o.osd),
                format!("{:.0}", self.each(o.total.count)),
                format!("{:.0}", o.total.mean_us()),
                o.total.p99_us().to_string(),
                mean(Leg::Ceiling),
                mean(Leg::Queue),
                mean(Leg::Store),
                mean(Leg::Replicas),
                o.device_busy.map_or("-".into(), |b| format!("{:.0}", b * 100.0)),
                format!("{:.0}", o.device_us),
                o.processor.map_or("-".into(), |[ran, waited]| {
                    format!("{:.0}+{:.0}", ran * 100.0, waited * 100.0)
                }),
                format!("{:.0}", self.each(o.for_others)),
            ]);
        }
        println!();
        print(&table);
        if self.replicas.is_empty() {
            return;
        }
        let mut table = vec![
            ["REPLICA", "ANSWERED/s", "MEAN us", "ALL TENANTS p99 us", "PING us"]
                .map(str::to_owned),
        ];
        for r in &self.replicas {
            let ping = r.ping_us.map_or("-".into(), |us| us.to_string());
            table.push([
                format!("osd.{}", r.osd),
                format!("{:.0}", self.each(r.answered)),
                format!("{:.0}", r.mean_us),
                r.all.p99_us().to_string(),
                ping,
            ]);
        }
        println!();
        print(&table);
    }
}

/// A leg in a table.
fn said(leg: Leg) -> &'static str {
    match leg {
        Leg::Limits => "held by limits of images",
        Leg::Ceiling => "held by its ceiling",
        Leg::Queue => "waits for its turn",
        Leg::Object => "waits for its object",
        Leg::Execute => "is executed",
        Leg::Store => "store and device",
        Leg::Replicas => "waits for replicas",
        Leg::Other => "waits for other things",
    }
}

/// What a name in the dump is.
fn kind_of(name: &str) -> String {
    match name.matches('/').count() {
        _ if name.starts_with("client.") || name.starts_with("background_") || name == "others" => {
            name.to_owned()
        }
        0 => format!("pool {name}"),
        1 => format!("namespace {name}"),
        _ => format!("image {name}"),
    }
}

/// OSDs in a sentence.
fn names(osds: &[i32]) -> String {
    let osds: BTreeSet<i32> = osds.iter().copied().collect();
    match osds.len() {
        0 => "no OSD now".into(),
        1 | 2 => osds.iter().map(|o| format!("osd.{o}")).collect::<Vec<_>>().join(" and "),
        n => format!("{n} OSDs"),
    }
}

fn time(us: f64) -> String {
    match us {
        _ if us >= 9950.0 => format!("{:.0} ms", us / 1000.0),
        _ if us >= 1000.0 => format!("{:.1} ms", us / 1000.0),
        _ => format!("{us:.0} us"),
    }
}

fn bytes(n: f64) -> String {
    match n {
        _ if n >= f64::from(1 << 20) => format!("{:.1} MiB", n / f64::from(1 << 20)),
        _ if n >= 1024.0 => format!("{:.1} KiB", n / 1024.0),
        _ => format!("{n:.0} B"),
    }
}

fn tenth(n: f64) -> f64 {
    (n * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An OSD with a tenant `a`, of which 100 operations were answered that spent so many
    /// microseconds in each of these legs.
    fn osd(legs: &[(Leg, u64)], more: Value) -> Value {
        let dist = |us: u64| {
            let mut buckets = vec![0; 32];
            buckets[(u64::BITS - us.leading_zeros()) as usize] = 100;
            json!({"ns": us * 1000 * 100, "log2_us": buckets})
        };
        let all: Map<String, Value> =
            legs.iter().map(|(leg, us)| (leg.name().to_owned(), dist(*us))).collect();
        let total = legs.iter().map(|(_, us)| us).sum();
        let mut t = json!({
            "tenant": "a", "specified": true, "weight": 100, "offered": 100, "served": 100, "served_bytes": 409_600, "served_cost": 100.0, "waited_ns": 1000,
            "times": {"answered": 100, "total": dist(total), "legs": all},
        });
        let mut dump = json!({"capacity": {"floors_scaled": 1.0}, "classes": {}});
        for (key, value) in more.as_object().unwrap() {
            match key.strip_prefix("a.") {
                Some(key) => t[key] = value.clone(),
                None if key == "tenants" => {}
                None => dump[key] = value.clone(),
            }
        }
        let mut tenants = vec![t];
        tenants.extend(more["tenants"].as_array().into_iter().flatten().cloned());
        dump["tenants"] = tenants.into();
        dump
    }

    /// What is said of `a` after a second, from OSDs that began then.
    fn explain(osds: Vec<Value>) -> Explanation {
        let after: Dumps =
            osds.into_iter().enumerate().map(|(n, dump)| (OsdId(n as i32), dump)).collect();
        let before = after.keys().map(|osd| (*osd, json!({}))).collect();
        Explanation::new("a", &before, &after, 1.0)
    }

    fn verdict(osds: Vec<Value>) -> String {
        explain(osds).verdict()
    }

    #[test]
    fn held_by_its_ceiling() {
        let of = || {
            let ceiling = json!({"iops": {"cluster": 300.0, "here": 100.0}, "bps": {"cluster": 1e9, "here": 3e8}});
            osd(
                &[(Leg::Ceiling, 90_000), (Leg::Store, 10_000)],
                json!({"a.ceiling": ceiling, "a.throttled": 90}),
            )
        };
        let said = verdict(vec![of(), of(), of()]);
        assert_eq!(
            said,
            "a is held by its own ceiling of 300 IOPS on 3 OSDs: 90 ms of the 100 ms that an operation is here."
        );
        // Nothing else is known while nothing is answered.
        let waits = json!({"a.times": null, "a.over_ceiling": 7, "a.ceiling": {"bps": {"cluster": 1_048_576.0}}});
        let said = verdict(vec![osd(&[], waits)]);
        assert_eq!(
            said,
            "Nothing was answered in these 1.0 s: a is held by its own ceiling of 1.0 MiB a second on osd.0, 7 operations."
        );
        let said = verdict(vec![osd(&[(Leg::Limits, 50_000)], json!({}))]);
        assert!(
            said.starts_with("a is held by the limits of its images (rbd_qos_*) on osd.0: 50 ms"),
            "{said}"
        );
    }

    #[test]
    fn behind_others_or_itself() {
        let bulk = |cost: f64| json!({"tenants": [{"tenant": "bulk", "served_cost": cost}, {"tenant": "p/n", "served_cost": 1.0}]});
        let mut more = bulk(300.0);
        more["classes"] = json!({"client": {"served_cost": 401.0, "promised": {"limit_iops": 1000.0}}, "background_recovery": {"served_cost": 99.0}});
        let e = explain(vec![osd(&[(Leg::Queue, 40_000), (Leg::Store, 4000)], more.clone())]);
        let said = e.verdict();
        let expected = "a waits for its turn behind pool bulk, which got 60 %, and background_recovery, which got 20 % of what was served where it waits \
                        (it got 20 % itself): 40 ms of the 44 ms that an operation is here.";
        assert_eq!(said, expected);
        // Where it does not wait, others may have what they like.
        let idle = osd(
            &[(Leg::Queue, 0), (Leg::Store, 4000)],
            json!({"a.waited_ns": 0, "tenants": [{"tenant": "far", "served_cost": 1e9}]}),
        );
        assert_eq!(
            explain(vec![osd(&[(Leg::Queue, 40_000)], more.clone()), idle]).others[0].0,
            "bulk"
        );
        more["classes"]["client"]["promised"]["limit_iops"] = json!(410.0);
        assert!(
            verdict(vec![osd(&[(Leg::Queue, 40_000)], more)])
                .contains("osd_mclock_max_capacity_iops_ssd) allow on osd.0.")
        );
        let device = json!({"busy_ns": 970_000_000, "reads": {"count": 0, "ns": 0}, "writes": {"count": 97, "ns": 970_000_000}});
        let mut more = bulk(50.0);
        more["device"] = device;
        let said = verdict(vec![osd(&[(Leg::Queue, 40_000), (Leg::Store, 4000)], more)]);
        assert!(said.starts_with("a waits for its turn behind its own operations, which got 66 % of what was served there"), "{said}");
        assert!(said.ends_with("The device of osd.0 is busy for at least 80 % of the time, with 10 ms for a request on osd.0."), "{said}");
        let on = |ran: u64, waited: u64| {
            let thread = json!({"cpu_ns": ran * 10_000_000, "waited_ns": waited * 10_000_000});
            verdict(vec![osd(&[(Leg::Queue, 40_000)], json!({"thread": thread}))])
        };
        assert!(on(90, 5).ends_with("osd.0 needed a processor for at least 80 % of the time."));
        assert!(on(40, 55).ends_with("osd.0 needed a processor for at least 80 % of the time, for up to 55 % of it waiting for one that others have."));
        assert!(!on(40, 5).contains("processor"));
    }

    #[test]
    fn a_slow_replica_and_a_slow_device() {
        let with = |slow: i32, us: u64, ping: u64| {
            let replicas = json!({slow.to_string(): {"answered": 100, "ns": us * 100_000}, "9": {"answered": 100, "ns": 100_000_000}});
            let peers = json!({slow.to_string(): {"ping": {"back": {"1min_us": ping}}}});
            let mut v =
                osd(&[(Leg::Replicas, us - 1000), (Leg::Store, 1000)], json!({"peers": peers}));
            v["tenants"][0]["times"]["replicas"] = replicas;
            v
        };
        let said = verdict(vec![with(2, 12_000, 300)]);
        let expected = "a waits for replicas: osd.2 answers after 12 ms, others after 1.0 ms, while pings to it take 300 us: that is the OSD or its device, \
                        not the network: 11 ms of the 12 ms that an operation is here.";
        assert!(said.starts_with(expected), "{said}");
        assert!(
            verdict(vec![with(2, 12_000, 11_000)])
                .contains("pings to it take 11 ms: that is the network")
        );
        // Both take about as long; the store takes as long as they do.
        let said = verdict(vec![with(2, 1900, 300)]);
        assert!(said.contains("waits for replicas, which answer after 1.4 ms"), "{said}");
        assert!(
            verdict(vec![with(2, 1800, 300)])
                .contains("waits for replicas, which answer after 1.4 ms"),
            "both take about as long"
        );
        let said = verdict(vec![
            osd(&[(Leg::Store, 40_000)], json!({})),
            osd(&[(Leg::Store, 2000)], json!({})),
            osd(&[(Leg::Store, 4000)], json!({})),
        ]);
        assert!(
            said.starts_with(
                "a waits for devices: osd.0 has a change after 40 ms, others after 3.0 ms"
            ),
            "{said}"
        );
    }

    #[test]
    fn floors_that_are_scaled_or_not_kept() {
        let floor = json!({"iops": {"cluster": 200.0, "here": 200.0}});
        let of = |scaled: f64, offered: u64| {
            verdict(vec![osd(
                &[(Leg::Queue, 40_000)],
                json!({"a.floor": floor, "a.offered": offered, "capacity": {"floors_scaled": scaled}}),
            )])
        };
        assert!(of(0.45, 100).ends_with(
            "Its floor is scaled to 45 % on osd.0: more is promised there than the OSDs can do."
        ));
        assert!(of(1.0, 500).ends_with("It gets 100 of the 200 operations a second of its floor."));
        assert!(!of(1.0, 100).contains("floor"), "it does not ask for it");
    }

    #[test]
    fn who_asks_for_little_is_not_slow_here() {
        let said = verdict(vec![osd(&[(Leg::Store, 1000)], json!({}))]);
        assert!(
            said.starts_with("OSDs have something of a for 10 % of the time at most"),
            "{said}"
        );
        let said = verdict(vec![osd(&[(Leg::Store, 9000)], json!({}))]);
        assert!(said.contains("About one operation of it is here at a time"), "{said}");
        let said = verdict(vec![osd(&[], json!({"a.offered": 0, "a.served": 0, "a.times": null}))]);
        assert!(said.starts_with("Nothing of a came in these 1.0 s"), "{said}");
        assert!(verdict(vec![osd(&[], json!({"a.times": null}))]).contains("100 operations came"));
    }

    #[test]
    fn only_what_came_in_between_counts() {
        let (early, late) =
            (osd(&[(Leg::Store, 100_000)], json!({})), osd(&[(Leg::Store, 100_000)], json!({})));
        let mut late = late;
        late["tenants"][0]["times"]["answered"] = 110.into();
        late["tenants"][0]["times"]["total"]["ns"] = (100_000 * 100_000u64 + 10 * 2_000_000).into();
        late["tenants"][0]["times"]["total"]["log2_us"][11] = 10.into();
        let all = |dump| Dumps::from([(OsdId(0), dump)]);
        let e = Explanation::new("a", &all(early.clone()), &all(late), 2.0);
        assert_eq!((e.total.count, e.total.mean_us(), e.total.p99_us()), (10, 2000.0, 2048));
        assert_eq!(e.to_json()["answered_iops"], 5.0);
        // What it was before it had a specification counts, and only once.
        let mut both = early.clone();
        let mut row = both["tenants"][0].clone();
        (row["id"], row["specified"]) = (7.into(), false.into());
        both["tenants"].as_array_mut().unwrap().insert(0, row);
        let e = Explanation::new("a", &all(early.clone()), &all(both), 2.0);
        assert_eq!((e.total.count, e.specified, e.offered), (100, true, 100));
        // An OSD that was not there before says nothing of what is between.
        assert_eq!(Explanation::new("a", &Dumps::new(), &all(early), 2.0).total.count, 0);
    }
}
