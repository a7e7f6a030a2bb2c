//! Settings that are the scheduler's business under mClock (Ceph:
//! `OSD::maybe_override_options_for_qos`).
//!
//! Limits and pauses of background work and a scheduler that weighs it against clients would work
//! against each other. Under mClock the limits are so high that an idle cluster is used, pauses are
//! none, and what an operator set of these is not honoured, unless
//! `osd_mclock_override_recovery_settings` is true.

use crate::settings::Settings;
use admission::ignored::is_overridden;
use conf::Config;
use std::time::Duration;

/// PGs that have a turn: while one ends, others go on.
const BACKFILLS: usize = 4;
/// Objects that an OSD recovers at a time. Each may have `osd_recovery_max_chunk` in memory.
const ACTIVE: usize = 16;

/// The settings under mClock.
pub fn under_mclock(c: &Config, mut s: Settings) -> Settings {
    let own = |name| {
        is_overridden(c)
            && c.lookup(name).is_ok_and(|(_, source)| source != conf::effective::Source::Default)
    };
    if !own("osd_max_backfills") {
        s.backfills = BACKFILLS;
    }
    if !own("osd_recovery_max_active") && !own("osd_recovery_max_active_ssd") {
        s.recovery_active = ACTIVE;
        s.pg.recovery_max_active = ACTIVE;
    }
    if !is_overridden(c) {
        s.trim.sleep = Duration::ZERO;
        s.scrub.sleep = Duration::ZERO;
    }
    // What is begun beside clients is bounded in front of the scheduler.
    s.trim.gently = false;
    s.scrub.gently = false;
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{settings, settings_under};
    use admission::ignored::{BACKGROUND, Scheme, ignored};
    use conf::effective::Source;
    use qos::DeviceKind;

    const MCLOCK: Scheme = Scheme::Mclock(DeviceKind::Ssd);

    fn names(c: &Config, scheme: Scheme) -> Vec<&'static str> {
        let ignored = ignored(c, scheme);
        for i in &ignored {
            assert!(i.value == c.str(i.name) && i.why.len() > 20, "{i:?}");
        }
        ignored.into_iter().map(|i| i.name).collect()
    }

    #[test]
    fn an_operators_limits_hold_under_wpq_and_with_the_override() {
        let mut c = Config::new();
        assert_eq!(names(&c, MCLOCK), [""; 0]);
        let s = settings_under(&c, true);
        assert_eq!(
            (s.backfills, s.recovery_active, s.trim.sleep),
            (BACKFILLS, ACTIVE, Duration::ZERO)
        );
        let s = settings(&c);
        assert_eq!((s.backfills, s.recovery_active, s.trim.gently), (1, 10, true));
        for (name, value) in BACKGROUND.into_iter().zip(["2", "5", "7", "0.25", "0.5"]) {
            c.set(Source::Override, name, value).unwrap();
        }
        let s = settings_under(&c, true);
        assert_eq!(
            (s.backfills, s.recovery_active, s.trim.sleep, s.scrub.sleep),
            (BACKFILLS, ACTIVE, Duration::ZERO, Duration::ZERO)
        );
        assert_eq!(names(&c, MCLOCK), BACKGROUND);
        assert_eq!(names(&c, Scheme::Fifo), BACKGROUND);
        assert_eq!(names(&c, Scheme::Wpq), [""; 0]);
        let s = settings(&c);
        assert_eq!(
            (s.backfills, s.recovery_active, s.pg.recovery_max_active, s.trim.sleep),
            (2, 5, 5, Duration::from_millis(500))
        );
        c.set(Source::Override, "osd_mclock_override_recovery_settings", "true").unwrap();
        let s = settings_under(&c, true);
        assert_eq!(
            (s.backfills, s.recovery_active, s.trim.sleep, s.scrub.sleep),
            (2, 5, Duration::from_millis(500), Duration::from_millis(250))
        );
        assert!(
            names(&c, MCLOCK).is_empty() && names(&c, Scheme::Fifo).is_empty() && !s.trim.gently
        );
        assert_eq!(names(&c, Scheme::Wpq), ["osd_mclock_override_recovery_settings"]);
        c.set(Source::Override, "osd_recovery_max_active", "0").unwrap();
        assert_eq!(settings_under(&c, true).recovery_active, 7);
    }
}
