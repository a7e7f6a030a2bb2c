//! Settings that do not hold under the scheduler, the profile or the device that there is, and why.

use crate::costs::capacity_options;
use conf::Config;
use conf::effective::Source;
use qos::DeviceKind;

/// Options that say how fast background work may go. Under mClock they hold only if
/// `osd_mclock_override_recovery_settings` is true.
pub const BACKGROUND: [&str; 5] = [
    "osd_max_backfills",
    "osd_recovery_max_active",
    "osd_recovery_max_active_ssd",
    "osd_scrub_sleep",
    "osd_snap_trim_sleep",
];

/// Whether an operator's limits of background work hold under mClock.
pub fn is_overridden(c: &Config) -> bool {
    c.bool("osd_mclock_override_recovery_settings")
}

/// Options by which only WPQ goes.
const PRIORITIES: [&str; 5] = [
    "osd_op_queue_cut_off",
    "osd_client_op_priority",
    "osd_recovery_op_priority",
    "osd_snap_trim_priority",
    "osd_scrub_priority",
];

/// By what an OSD schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// mClock, on a device of this kind.
    Mclock(DeviceKind),
    /// Weighted priorities.
    Wpq,
    /// The order of arrival.
    Fifo,
}

/// Something that is set and does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ignored {
    /// The option.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// Why it does not hold, and what makes it hold.
    pub why: String,
}

/// What is set and does not hold.
pub fn ignored(c: &Config, scheme: Scheme) -> Vec<Ignored> {
    let profile = c.str("osd_mclock_profile");
    let sum = conf::mclock::overcommitted(|name| Some(c.f64(name)));
    let why = |name: &str| match scheme {
        Scheme::Wpq => name
            .starts_with("osd_mclock_")
            .then(|| "osd_op_queue is wpq; mclock_scheduler goes by it".to_owned()),
        _ if BACKGROUND.contains(&name) => (!is_overridden(c)).then(|| {
            let who = if scheme == Scheme::Fifo { "fifo" } else { "the mClock scheduler" };
            format!("{who} decides; osd_mclock_override_recovery_settings = true makes it hold")
        }),
        _ if name == "osd_mclock_override_recovery_settings" => None,
        Scheme::Fifo if name.starts_with("osd_mclock_") => {
            Some("osd_op_queue is fifo; mclock_scheduler goes by it".into())
        }
        Scheme::Fifo => PRIORITIES.contains(&name).then(|| {
            "osd_op_queue is fifo, which goes by the order of arrival; wpq goes by it".into()
        }),
        Scheme::Mclock(_) if PRIORITIES.contains(&name) => {
            Some("the mClock scheduler goes by classes; osd_op_queue = wpq goes by it".into())
        }
        Scheme::Mclock(kind) => {
            under_profile(name, &profile, sum.as_deref()).or_else(|| of_device(name, kind))
        }
    };
    let set = c.changed().filter(|(_, source, _)| *source != Source::Default);
    set.filter_map(|(name, _, value)| Some(Ignored { name, value, why: why(name)? })).collect()
}

/// Why an option does not hold with a profile.
fn under_profile(name: &str, profile: &str, overcommitted: Option<&str>) -> Option<String> {
    if name.starts_with("osd_mclock_scheduler_") {
        return match profile {
            // The monitors refuse such values; a file, or the order of several settings, can still
            // make them.
            "custom" => overcommitted
                .filter(|_| conf::mclock::reserves(name))
                .map(|sum| format!("{sum}; all of them fall behind alike")),
            _ => Some(format!(
                "the profile {profile} decides; osd_mclock_profile = custom makes it hold"
            )),
        };
    }
    match name {
        "osd_mclock_allocations" if profile == "custom" => {
            Some("the profile custom has none; a built-in one goes by it".into())
        }
        "osd_mclock_auto_latency" | "osd_mclock_auto_percentile" if profile != "auto" => {
            Some("only osd_mclock_profile = auto goes by it".into())
        }
        _ => None,
    }
}

/// Why an option does not hold on a device.
fn of_device(name: &str, kind: DeviceKind) -> Option<String> {
    let (other, what) = match kind {
        DeviceKind::Ssd => (DeviceKind::Hdd, "not rotational"),
        DeviceKind::Hdd => (DeviceKind::Ssd, "rotational"),
    };
    let at = capacity_options(other).iter().position(|o| *o == name)?;
    Some(format!("the device is {what}; {} holds", capacity_options(kind)[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MCLOCK: Scheme = Scheme::Mclock(DeviceKind::Ssd);

    fn names(c: &Config, scheme: Scheme) -> Vec<&'static str> {
        let ignored = ignored(c, scheme);
        for i in &ignored {
            assert!(i.value == c.str(i.name) && i.why.len() > 20, "{i:?}");
        }
        ignored.into_iter().map(|i| i.name).collect()
    }

    #[test]
    fn what_a_scheduler_a_profile_or_a_device_makes_no_use_of_is_told() {
        let mut c = Config::new();
        let mut set =
            |name: &str, value: &str| c.set(Source::Mon, name, value).map(|()| c.clone()).unwrap();
        let c = set("osd_mclock_scheduler_client_res", "0.5");
        assert_eq!(names(&c, MCLOCK), ["osd_mclock_scheduler_client_res"]);
        assert!(ignored(&c, MCLOCK)[0].why.contains("profile balanced decides"));
        let c = set("osd_mclock_profile", "custom");
        assert_eq!(names(&c, MCLOCK), [""; 0]);
        assert_eq!(
            names(&c, Scheme::Wpq),
            ["osd_mclock_profile", "osd_mclock_scheduler_client_res"]
        );
        assert_eq!(
            names(&c, Scheme::Fifo),
            ["osd_mclock_profile", "osd_mclock_scheduler_client_res"]
        );
        set("osd_mclock_scheduler_client_wgt", "7");
        let c = set("osd_mclock_scheduler_background_recovery_res", "0.6");
        assert_eq!(
            names(&c, MCLOCK),
            ["osd_mclock_scheduler_background_recovery_res", "osd_mclock_scheduler_client_res"]
        );
        assert!(ignored(&c, MCLOCK)[0].why.contains("add up to 110 %"));
        let c = set("osd_mclock_scheduler_background_recovery_res", "0.5");
        assert_eq!(names(&c, MCLOCK), [""; 0]);
        set("osd_mclock_allocations", "quincy");
        set("osd_mclock_auto_latency", "0.1");
        let c = set("osd_mclock_auto_percentile", "90");
        assert_eq!(
            names(&c, MCLOCK),
            ["osd_mclock_allocations", "osd_mclock_auto_latency", "osd_mclock_auto_percentile"]
        );
        let c = set("osd_mclock_profile", "auto");
        assert_eq!(names(&c, MCLOCK).len(), 3, "what custom has");
        assert!(names(&c, MCLOCK).iter().all(|n| n.starts_with("osd_mclock_scheduler_")));
    }

    #[test]
    fn priorities_are_those_of_wpq_and_capacity_is_that_of_the_device() {
        let mut c = Config::new();
        for (name, value) in PRIORITIES.into_iter().zip(["low", "5", "6", "7", "8"]) {
            c.set(Source::File, name, value).unwrap();
        }
        assert_eq!(names(&c, Scheme::Wpq), [""; 0]);
        for scheme in [MCLOCK, Scheme::Fifo] {
            let mut told = names(&c, scheme);
            told.sort_by_key(|name| PRIORITIES.iter().position(|p| p == name));
            assert_eq!(told, PRIORITIES);
        }
        let mut c = Config::new();
        for kind in [DeviceKind::Ssd, DeviceKind::Hdd] {
            for name in capacity_options(kind) {
                c.set(Source::Mon, name, "100").unwrap();
            }
        }
        for (kind, other) in
            [(DeviceKind::Ssd, DeviceKind::Hdd), (DeviceKind::Hdd, DeviceKind::Ssd)]
        {
            let (mut told, mut wanted) = (names(&c, Scheme::Mclock(kind)), capacity_options(other));
            told.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(told, wanted);
        }
        assert_eq!(names(&c, Scheme::Wpq).len(), 6);
        assert!(
            ignored(&c, MCLOCK)[0].why.starts_with(
                "the device is not rotational; osd_mclock_iops_capacity_threshold_ssd"
            )
        );
    }
}
