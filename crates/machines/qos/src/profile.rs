//! The built-in profiles (Ceph 18 and 16.2: `osd/scheduler/mClockScheduler.cc`, options in
//! `osd.yaml.in`).

use crate::{ClassSpec, MclockSpec};

/// Which classes are favoured (`osd_mclock_profile`). Fractions are of the device's capacity.
///
/// | profile | client | background_recovery | background_best_effort |
/// | --- | --- | --- | --- |
/// | `high_client_ops` | 60 %, 2, none | 40 %, 1, none | none, 1, 70 % |
/// | `balanced` | 50 %, 1, none | 50 %, 1, none | none, 1, 90 % |
/// | `high_recovery_ops` | 30 %, 1, none | 70 %, 2, none | none, 1, none |
///
/// These hold since Reef; before ([`Allocations::Quincy`]):
///
/// | profile | client | background_recovery | background_best_effort |
/// | --- | --- | --- | --- |
/// | `high_client_ops` | 50 %, 2, none | 25 %, 1, 100 % | 25 %, 2, none |
/// | `balanced` | 40 %, 1, 100 % | 40 %, 1, 150 % | 20 %, 2, none |
/// | `high_recovery_ops` | 30 %, 1, 80 % | 60 %, 2, 200 % | none, 2, none |
///
/// The study that was published of Quincy ([`Allocations::QuincyStudy`]) has the same for clients
/// and recovery, and gives best effort a ceiling: 25 %, 1, 30 %; 20 %, 1, 50 %; 10 %, 1, 40 %.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum MclockProfile {
    /// Clients first.
    HighClientOps,
    /// Clients and recovery alike.
    #[default]
    Balanced,
    /// Recovery first.
    HighRecoveryOps,
    /// As `balanced`, but background work gets all that clients' latency leaves ([`crate::Auto`]).
    Auto,
    /// What the options `osd_mclock_scheduler_*` say.
    Custom,
}

/// Which version's allocations the profiles have (`osd_mclock_allocations`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Allocations {
    /// Those of Ceph 17.2.7 and 18.
    #[default]
    Reef,
    /// Those before: 16.2 and the first versions of 17.2.
    Quincy,
    /// Those of the study that was published of Quincy.
    QuincyStudy,
}

impl Allocations {
    /// By the option's value.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "reef" => Some(Allocations::Reef),
            "quincy" => Some(Allocations::Quincy),
            "quincy_study" => Some(Allocations::QuincyStudy),
            _ => None,
        }
    }
}

impl MclockProfile {
    /// By the option's value.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "high_client_ops" => MclockProfile::HighClientOps,
            "balanced" => MclockProfile::Balanced,
            "high_recovery_ops" => MclockProfile::HighRecoveryOps,
            "auto" => MclockProfile::Auto,
            "custom" => MclockProfile::Custom,
            _ => return None,
        })
    }

    /// The option's value.
    pub fn name(self) -> &'static str {
        match self {
            MclockProfile::HighClientOps => "high_client_ops",
            MclockProfile::Balanced => "balanced",
            MclockProfile::HighRecoveryOps => "high_recovery_ops",
            MclockProfile::Auto => "auto",
            MclockProfile::Custom => "custom",
        }
    }

    /// Values of the options `osd_mclock_scheduler_<class>_{res,wgt,lim}`, for client, recovery and
    /// best effort: fractions of the capacity (0 for none) and weights. `custom` are those of
    /// [`MclockProfile::Custom`].
    pub fn parts(self, of: Allocations, custom: [(f64, u32, f64); 3]) -> [(f64, u32, f64); 3] {
        match (self, of) {
            (MclockProfile::HighClientOps, Allocations::Reef) => {
                [(0.6, 2, 0.0), (0.4, 1, 0.0), (0.0, 1, 0.7)]
            }
            (MclockProfile::Balanced | MclockProfile::Auto, Allocations::Reef) => {
                [(0.5, 1, 0.0), (0.5, 1, 0.0), (0.0, 1, 0.9)]
            }
            (MclockProfile::HighRecoveryOps, Allocations::Reef) => {
                [(0.3, 1, 0.0), (0.7, 2, 0.0), (0.0, 1, 0.0)]
            }
            (MclockProfile::HighClientOps, Allocations::Quincy) => {
                [(0.5, 2, 0.0), (0.25, 1, 1.0), (0.25, 2, 0.0)]
            }
            (MclockProfile::Balanced | MclockProfile::Auto, Allocations::Quincy) => {
                [(0.4, 1, 1.0), (0.4, 1, 1.5), (0.2, 2, 0.0)]
            }
            (MclockProfile::HighRecoveryOps, Allocations::Quincy) => {
                [(0.3, 1, 0.8), (0.6, 2, 2.0), (0.0, 2, 0.0)]
            }
            (MclockProfile::HighClientOps, Allocations::QuincyStudy) => {
                [(0.5, 2, 0.0), (0.25, 1, 1.0), (0.25, 1, 0.3)]
            }
            (MclockProfile::Balanced | MclockProfile::Auto, Allocations::QuincyStudy) => {
                [(0.4, 1, 1.0), (0.4, 1, 1.5), (0.2, 1, 0.5)]
            }
            (MclockProfile::HighRecoveryOps, Allocations::QuincyStudy) => {
                [(0.3, 1, 0.8), (0.6, 2, 2.0), (0.1, 1, 0.4)]
            }
            (MclockProfile::Custom, _) => custom,
        }
    }

    /// The scheduler's parameters. `custom` holds the options' values for
    /// [`MclockProfile::Custom`].
    pub fn spec(self, capacity: Capacity, custom: [(f64, u32, f64); 3]) -> MclockSpec {
        capacity.spec(self.parts(Allocations::default(), custom))
    }
}

/// Which of the options `..._hdd` or `..._ssd` apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// Rotational.
    Hdd,
    /// Not rotational.
    Ssd,
}

/// What a device can do (`osd_mclock_max_capacity_iops_*`,
/// `osd_mclock_max_sequential_bandwidth_*`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Capacity {
    /// Random writes of 4 KiB each second.
    pub iops: f64,
    /// Sequential bytes each second.
    pub bandwidth: u64,
}

impl Capacity {
    /// Ceph's defaults.
    pub fn default_of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Hdd => Capacity { iops: 315.0, bandwidth: 150 << 20 },
            DeviceKind::Ssd => Capacity { iops: 21_500.0, bandwidth: 1200 << 20 },
        }
    }

    /// The scheduler's parameters with these parts of it: reservation, weight and ceiling of
    /// client, recovery and best effort.
    pub fn spec(&self, parts: [(f64, u32, f64); 3]) -> MclockSpec {
        let total = self.bytes_per_sec();
        let part = |fraction: f64| (fraction.max(0.0) * total as f64) as u64;
        let class = |(reservation, weight, limit): (f64, u32, f64)| ClassSpec {
            reservation: part(reservation.min(1.0)),
            weight,
            // No fraction means no ceiling; a tiny one must not turn into that.
            limit: if limit > 0.0 { part(limit).max(1) } else { 0 },
        };
        let [client, recovery, best_effort] = parts;
        MclockSpec {
            client: class(client),
            background_recovery: class(recovery),
            background_best_effort: class(best_effort),
            cost_per_io: self.cost_per_io(),
        }
    }

    /// Capacity in the unit of costs.
    pub fn bytes_per_sec(&self) -> u64 {
        self.bandwidth.max(1)
    }

    /// What the smallest operation costs: the bytes that could be moved in its time.
    pub fn cost_per_io(&self) -> u32 {
        let iops = if self.iops.is_finite() { self.iops.max(1.0) } else { 1.0 };
        ((self.bytes_per_sec() as f64 / iops) as u64).clamp(1, u64::from(u32::MAX)) as u32
    }
}
