//! How large a cluster is simulated, how long, what goes wrong, and what each tenant wants.

use crate::fair::{Fair, Want};
use crate::random::Random;
use messages::TenantShare;
use promises::Resolved;
use promises::spec::Spec;
use types::PoolId;

/// A second, in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// Cost of the smallest operation, in bytes: devices move as much in its time.
pub const SMALLEST: u32 = 16 << 10;

/// A cluster, its tenants and their requests over time, drawn from a seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Everything follows from it.
    pub seed: u64,
    /// OSDs.
    pub osds: usize,
    /// Tenants, each with a specification.
    pub tenants: usize,
    /// Pools. Their groups are led by some of the OSDs, from few to all.
    pub pools: usize,
    /// What the fastest devices do each second.
    pub iops: f64,
    /// What is asked for, in parts of what all devices can do.
    pub load: f64,
    /// Virtual seconds of each of the phases.
    pub phase: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario { seed: 1, osds: 20, tenants: 100, pools: 6, iops: 300.0, load: 1.1, phase: 4 }
    }
}

/// What a phase is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Everything is new.
    Start,
    /// Half of the tenants go elsewhere, and ask for more or less.
    Shift,
    /// The manager is gone in the first half; in the second there is another.
    Failover,
    /// OSDs restart, connections are lost, messages are late.
    Faults,
}

/// The phases in their order.
pub const PHASES: [Phase; 4] = [Phase::Start, Phase::Shift, Phase::Failover, Phase::Faults];

impl Phase {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Start => "start",
            Phase::Shift => "shift",
            Phase::Failover => "failover",
            Phase::Faults => "faults",
        }
    }
}

/// What one tenant asks one OSD for.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its tenant.
    pub tenant: usize,
    /// Where.
    pub osd: usize,
    /// Operations each second.
    pub rate: f64,
}

/// A tenant.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// What the coordinator knows of it.
    pub resolved: Resolved,
    /// Its pool.
    pub pool: usize,
    /// Bytes of its operations.
    pub bytes: u32,
    /// Share.
    pub weight: f64,
    /// Operations each second; 0 for none.
    pub floor: f64,
    /// Operations each second; 0 for none.
    pub ceiling: f64,
}

impl Tenant {
    /// What an operation of it costs a device.
    pub fn cost(&self) -> f64 {
        f64::from(self.bytes.max(SMALLEST))
    }
}

/// A device.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Smallest operations each second.
    pub iops: f64,
    /// How long an operation takes beside that, in nanoseconds.
    pub latency: u64,
    /// Of so many operations one takes a pause of its own.
    pub hiccup: usize,
}

/// A scenario with everything that chance decides.
pub struct Plan {
    /// The devices of OSDs.
    pub devices: Vec<Device>,
    /// The OSDs that lead groups of a pool.
    pub serving: Vec<Vec<usize>>,
    /// Tenants.
    pub tenants: Vec<Tenant>,
    /// Streams before, and after the shift.
    pub streams: [Vec<Stream>; 2],
}

/// Half of all tenants stay on a few OSDs, some are on all that serve their pool.
fn spread(r: &mut Random, serving: &[usize]) -> Vec<usize> {
    let n = match r.below(20) {
        0..12 => 1 + r.below(4),
        12..19 => 5 + r.below(28),
        _ => serving.len().min(128),
    };
    r.some(n.min(serving.len()), serving.len()).into_iter().map(|i| serving[i]).collect()
}

fn stream(r: &mut Random, tenant: usize, osds: Vec<usize>, rate: f64) -> Vec<Stream> {
    // Some objects are hotter than others.
    let heat: Vec<f64> = osds.iter().map(|_| r.log(1.0, 8.0)).collect();
    let all: f64 = heat.iter().sum();
    osds.into_iter()
        .zip(heat)
        .map(|(osd, h)| Stream { tenant, osd, rate: rate * h / all })
        .collect()
}

/// Makes what is asked for a part of what there is.
fn scale(streams: &mut [Stream], tenants: &[Tenant], devices: &[Device], load: f64) {
    let can: f64 = devices.iter().map(|d| d.iops * f64::from(SMALLEST)).sum();
    let asked: f64 = streams.iter().map(|s| s.rate * tenants[s.tenant].cost()).sum();
    streams.iter_mut().for_each(|s| s.rate *= load * can / asked);
}

impl Plan {
    /// Lets chance decide.
    pub fn new(s: &Scenario) -> Self {
        let mut r = Random::new(s.seed);
        let device = |r: &mut Random| match r.below(10) {
            0 => Device { iops: s.iops / 2.0, latency: 4_000_000, hiccup: 400 },
            1..4 => Device { iops: s.iops * 0.8, latency: 1_000_000, hiccup: 4000 },
            _ => Device { iops: s.iops, latency: 300_000, hiccup: usize::MAX },
        };
        let devices: Vec<Device> = (0..s.osds).map(|_| device(&mut r)).collect();
        // One pool on all, others on fewer.
        let serving: Vec<Vec<usize>> = (0..s.pools)
            .map(|pool| {
                let n = if pool == 0 {
                    s.osds
                } else {
                    (r.log(0.04, 0.5) * s.osds as f64).max(3.0) as usize
                };
                r.some(n, s.osds)
            })
            .collect();
        let mut tenants = Vec::new();
        let mut streams = [Vec::new(), Vec::new()];
        for at in 0..s.tenants {
            // Few are in the pool that is on all OSDs.
            let pool = if at % 20 == 0 { 0 } else { r.below(s.pools) };
            let name = match at % 4 {
                0 => format!("client.tenant-{at}"),
                1 => format!("pool-{pool}/namespace-{at}"),
                _ => format!("pool-{pool}//image-{at}"),
            };
            let mut whose = TenantShare { name, ..TenantShare::default() };
            match at % 4 {
                0 => whose.client = Some(whose.name.clone()),
                1 => {
                    (whose.pool, whose.namespace) =
                        (Some(PoolId(pool as i64)), Some(format!("namespace-{at}").into()))
                }
                _ => {
                    whose.pool = Some(PoolId(pool as i64));
                    whose.namespace = Some("".into());
                    whose.prefix = Some(format!("rbd_data.{at:x}").into());
                }
            }
            let bytes = [4 << 10, 4 << 10, 16 << 10, 64 << 10][r.below(4)];
            let weight = [50.0, 100.0, 100.0, 200.0, 400.0][r.below(5)];
            let rate = r.log(1.0, 16.0) * f64::from(SMALLEST) / f64::from(bytes.max(SMALLEST));
            let promise = Spec { weight: Some(weight as u32), ..Spec::default() }.promise(None);
            tenants.push(Tenant {
                resolved: Resolved { whose, promise },
                pool,
                bytes,
                weight,
                floor: 0.0,
                ceiling: 0.0,
            });
            let osds = spread(&mut r, &serving[pool]);
            let before = stream(&mut r, at, osds, rate);
            let after = match r.below(2) {
                0 => before.clone(),
                _ => {
                    let osds = spread(&mut r, &serving[pool]);
                    let rate = rate * r.log(0.25, 4.0);
                    stream(&mut r, at, osds, rate)
                }
            };
            streams[0].extend(before);
            streams[1].extend(after);
        }
        for streams in &mut streams {
            scale(streams, &tenants, &devices, s.load);
        }
        let mut asked = vec![f64::MAX; s.tenants];
        for streams in &streams {
            let mut here = vec![0.0; s.tenants];
            streams.iter().for_each(|s| here[s.tenant] += s.rate);
            asked.iter_mut().zip(here).for_each(|(a, h)| *a = a.min(h));
        }
        for (t, asked) in tenants.iter_mut().zip(asked) {
            // Floors for some, ceilings for some, both for some.
            let kind = r.below(10);
            if kind < 4 {
                t.floor = (asked * (0.2 + 0.4 * r.unit())).round();
            }
            if (2..6).contains(&kind) {
                t.ceiling = (asked * (0.6 + 0.6 * r.unit())).round().max(1.0);
            }
            let some = |rate: f64| (rate > 0.0).then_some(rate as u64);
            let spec = Spec {
                weight: Some(t.weight as u32),
                floor_iops: some(t.floor),
                ceiling_iops: some(t.ceiling),
                ..Spec::default()
            };
            t.resolved.promise = spec.promise(None);
        }
        Plan { devices, serving, tenants, streams }
    }

    /// What is fair for each of the streams, in operations each second.
    pub fn fair(&self, after: bool) -> Vec<f64> {
        let streams = &self.streams[usize::from(after)];
        let wants = streams.iter().map(|s| {
            let t = &self.tenants[s.tenant];
            Want { osd: s.osd, tenant: s.tenant, rate: s.rate, cost: t.cost(), weight: t.weight }
        });
        let can: Vec<f64> = self.devices.iter().map(|d| d.iops * f64::from(SMALLEST)).collect();
        let promises: Vec<(f64, f64)> = self.tenants.iter().map(|t| (t.floor, t.ceiling)).collect();
        Fair::new(wants.collect(), &can, &promises).rates()
    }
}
