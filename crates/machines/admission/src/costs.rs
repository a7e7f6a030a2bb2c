//! What operations cost, and what there is for all: as an operator says, as it was learned, or as
//! Ceph takes a device for.

use crate::work::{Background, Kind};
use conf::{Config, find};
use qos::{Access, Allocations, Capacity, Charges, DeviceKind, MclockProfile};

/// What operations cost, and what there is for all.
pub(crate) struct Costs {
    /// What the device is.
    pub(crate) kind: DeviceKind,
    pub(crate) charges: Charges,
    /// What an operator says; then costs are as Ceph has them, too.
    pub(crate) set: Option<Capacity>,
    /// What was learned, once it can be trusted.
    pub(crate) learned: Option<f64>,
    /// More than this is not believed (`osd_mclock_iops_capacity_threshold_*`), ...
    pub(crate) threshold: f64,
    /// ... as this was not.
    pub(crate) refused: Option<f64>,
    /// What the promises to classes were last made of.
    pub(crate) applied: Capacity,
    /// The mean charge of clients' operations, times 64.
    pub(crate) mean: u64,
    /// The profile, and what it promises classes.
    pub(crate) profile: (MclockProfile, [(f64, u32, f64); 3]),
}

/// Options of devices: writes of 4 KiB each second, bytes each second, and what of the former is
/// not believed.
pub(crate) fn capacity_options(kind: DeviceKind) -> [&'static str; 3] {
    match kind {
        DeviceKind::Ssd => [
            "osd_mclock_max_capacity_iops_ssd",
            "osd_mclock_max_sequential_bandwidth_ssd",
            "osd_mclock_iops_capacity_threshold_ssd",
        ],
        DeviceKind::Hdd => [
            "osd_mclock_max_capacity_iops_hdd",
            "osd_mclock_max_sequential_bandwidth_hdd",
            "osd_mclock_iops_capacity_threshold_hdd",
        ],
    }
}

/// A capacity that is set contradicts what was learned if one is so many times the other.
const CONTRADICTS_TIMES: f64 = 2.0;

impl Costs {
    pub(crate) fn new(c: &Config, kind: DeviceKind) -> Self {
        let applied = Capacity::default_of(kind);
        let mut costs = Costs {
            kind,
            charges: Charges::default(),
            set: None,
            learned: None,
            threshold: f64::INFINITY,
            refused: None,
            applied,
            mean: 64 * u64::from(qos::REFERENCE),
            profile: (MclockProfile::Balanced, [(0.0, 1, 0.0); 3]),
        };
        costs.configure(c);
        costs
    }

    pub(crate) fn configure(&mut self, c: &Config) {
        let own = |name| {
            c.lookup(name).is_ok_and(|(_, source)| source != conf::effective::Source::Default)
        };
        let [iops, bandwidth, threshold] = capacity_options(self.kind);
        self.set = (own(iops) || own(bandwidth))
            .then(|| Capacity { iops: c.f64(iops), bandwidth: c.u64(bandwidth) });
        self.threshold = c.f64(threshold);
        if let Some(learned) = self.learned.take_if(|learned| *learned > self.threshold) {
            self.refused = Some(learned);
        }
        let profile = MclockProfile::from_name(&c.str("osd_mclock_profile")).unwrap_or_default();
        let of = Allocations::from_name(&c.str("osd_mclock_allocations")).unwrap_or_default();
        self.profile = (profile, profile.parts(of, custom(c)));
        self.applied = self.capacity();
    }

    /// Takes what was learned, if it can be: a figure that no such device reaches is one of a cache
    /// or an error, and what held before holds on. True if it is the first such figure.
    pub(crate) fn learn(&mut self, iops: Option<f64>) -> bool {
        let refused = iops.filter(|iops| *iops > self.threshold);
        if refused.is_none() {
            self.learned = iops;
        }
        std::mem::replace(&mut self.refused, refused).is_none() && refused.is_some()
    }

    /// What Ceph takes the device for.
    pub(crate) fn default(&self) -> Capacity {
        Capacity::default_of(self.kind)
    }

    /// What holds, in the unit of charges.
    pub(crate) fn capacity(&self) -> Capacity {
        self.set.unwrap_or_else(|| self.in_charges(self.learned.unwrap_or(self.default().iops)))
    }

    pub(crate) fn in_charges(&self, iops: f64) -> Capacity {
        Capacity { iops, bandwidth: (iops * f64::from(qos::REFERENCE)) as u64 }
    }

    pub(crate) fn source(&self) -> &'static str {
        match (&self.set, self.learned) {
            (Some(_), _) => "set",
            (None, Some(_)) => "learned",
            (None, None) => "default",
        }
    }

    pub(crate) fn contradicted(&self) -> bool {
        self.set.zip(self.learned).is_some_and(|(set, learned)| {
            set.iops > CONTRADICTS_TIMES * learned || learned > CONTRADICTS_TIMES * set.iops
        })
    }

    #[inline]
    pub(crate) fn charge(&self, access: Access, bytes: u64) -> u32 {
        match &self.set {
            None => self.charges.charge(access, bytes),
            Some(c) => bytes.min(u32::MAX.into()).max(c.cost_per_io().into()) as u32,
        }
    }

    /// By bytes alone, at the ratio of bytes to random writes that Ceph has by default.
    pub(crate) fn charge_bytes(&self, bytes: u64) -> u32 {
        let default = self.default().cost_per_io();
        match &self.set {
            None => (bytes.min(1 << 40) * u64::from(qos::REFERENCE) / u64::from(default))
                .clamp(1, u32::MAX.into()) as u32,
            Some(_) => self.charge(Access::Write, bytes),
        }
    }

    /// What a time of the processor is worth.
    pub(crate) fn units(&self, nanos: u64) -> u32 {
        match &self.set {
            None => self.charges.units(nanos),
            Some(c) => (u128::from(nanos) * u128::from(c.bytes_per_sec()) / 1_000_000_000)
                .min(u32::MAX.into()) as u32,
        }
    }

    /// Reservations are parts of what holds. What was learned raises ceilings, and never lowers
    /// them: a client that is alone on an idle OSD must not be slowed down because of a wrong
    /// estimate.
    pub(crate) fn spec(&self) -> qos::MclockSpec {
        let of = |capacity: Capacity| capacity.spec(self.profile.1);
        let mut spec = of(self.applied);
        let default = self.in_charges(self.default().iops);
        if self.set.is_none() && self.applied.iops < default.iops {
            let open = of(default);
            spec.client.limit = open.client.limit;
            spec.background_recovery.limit = open.background_recovery.limit;
            spec.background_best_effort.limit = open.background_best_effort.limit;
        }
        spec
    }

    /// What work costs beside clients, all that follows from it included; in time of device and
    /// processor, whatever an operator says that it is worth.
    pub(crate) fn beside(&self, job: &Background) -> u64 {
        let (read, small) = (
            |bytes| u64::from(self.charge(Access::Read, bytes)),
            u64::from(self.charge(Access::Write, 4096)),
        );
        match job.kind {
            // The object is read here or elsewhere, and written there or here. What was learned of
            // a byte says how long large requests take among others, not what they keep others
            // from: it was tens of times Ceph's ratio.
            Kind::Recover | Kind::ReadObject(_) | Kind::Rebuild(_) => {
                2 * small + u64::from(self.charge_bytes(job.cost))
            }
            // The clone's object is read, and a small change made of several rows.
            Kind::SnapTrim(_) => 2 * small,
            Kind::ReadShard(..) | Kind::Scan(_) | Kind::ListObjects(..) | Kind::CountClones => {
                read(job.cost)
            }
            // Many objects go with one change.
            Kind::RemoveObjects(objects) => small + small * objects as u64 / 8,
        }
    }

    /// What the OSD can do in a millisecond, in cost.
    pub(crate) fn per_ms(&self) -> u64 {
        u64::from(self.units(1_000_000))
    }

    /// What a random write of 4 KiB is charged.
    pub(crate) fn each(&self) -> u32 {
        self.set.map_or(qos::REFERENCE, |set| set.cost_per_io()).max(1)
    }

    /// A charge in thousandths of such writes.
    #[inline]
    pub(crate) fn in_writes(&self, charge: u32) -> u64 {
        u64::from(charge) * 1000 / u64::from(self.each())
    }

    /// What floors are measured by: what was seen, whatever an operator says.
    pub(crate) fn really(&self) -> Option<u64> {
        Some((self.learned? * f64::from(self.each())) as u64)
    }
}

fn custom(c: &Config) -> [(f64, u32, f64); 3] {
    let float =
        |name: &str, otherwise: f64| if find(name).is_some() { c.f64(name) } else { otherwise };
    ["client", "background_recovery", "background_best_effort"].map(|class| {
        let part = |what: &str, otherwise| {
            float(&format!("osd_mclock_scheduler_{class}_{what}"), otherwise)
        };
        (part("res", 0.0), part("wgt", 1.0) as u32, part("lim", 0.0))
    })
}
