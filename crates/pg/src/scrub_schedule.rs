//! When a PG is scrubbed without being told to (Ceph: `OSDService::ScrubJob`, `OSD::sched_scrub`,
//! `PG::sched_scrub`).

use types::Utime;

use crate::info::PgHistory;
use crate::machine::ScrubKind;

/// Options, with what the pool says put in their place already. Seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// `osd_scrub_min_interval`: not before.
    pub min_interval: f64,
    /// `osd_scrub_max_interval`: whatever the hour; 0 for never.
    pub max_interval: f64,
    /// `osd_deep_scrub_interval`: data is read again after this.
    pub deep_interval: f64,
    /// `osd_scrub_interval_randomize_ratio`: by so much of the least interval scrubs are put off, at random.
    pub randomize: f64,
    /// `osd_deep_scrub_randomize_ratio`: so often a scrub becomes a deep one ahead of its time.
    pub deep_randomize: f64,
    /// `noscrub`.
    pub no_scrub: bool,
    /// `nodeep-scrub`.
    pub no_deep_scrub: bool,
    /// The hour and the day allow it.
    pub permitted: bool,
}

/// What should be done now, if anything. `random` are numbers from 0 to 1 that stay the same for as long as the PG is
/// not scrubbed: by the first the scrub is put off, the second may make it a deep one.
pub fn due(now: Utime, history: &PgHistory, rules: &Rules, random: [f64; 2]) -> Option<ScrubKind> {
    let age = |stamp: Utime| now.as_secs_f64() - stamp.as_secs_f64();
    let since = age(history.last_scrub_stamp);
    let overdue = rules.max_interval > 0.0 && since >= rules.max_interval;
    let wait = rules.min_interval * (1.0 + rules.randomize.max(0.0) * random[0]);
    let deep_age = age(history.last_deep_scrub_stamp);
    // With light scrubs forbidden, deep ones still come in their own time.
    let deep_due = deep_age >= rules.deep_interval;
    if !(overdue || (rules.permitted && since >= wait)) {
        return None;
    }
    let deep = !rules.no_deep_scrub && (deep_due || random[1] < rules.deep_randomize);
    if rules.no_scrub && !(deep && deep_due) {
        return None;
    }
    Some(ScrubKind { deep, ..ScrubKind::default() })
}

/// Whether the hour and the day of the week are among those in which scrubs begin. `begin` and `end` are `(hour,
/// day)`, days counted from Sunday; a span may go over midnight or the end of the week, and one that begins where it
/// ends is everything.
pub fn permitted((hour, day): (u32, u32), begin: (u32, u32), end: (u32, u32)) -> bool {
    let within = |x, from, to| if from < to { (from..to).contains(&x) } else { x >= from || x < to };
    within(day, begin.1, end.1) && within(hour, begin.0, end.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: f64 = 86400.0;

    fn rules() -> Rules {
        Rules {
            min_interval: DAY,
            max_interval: 7.0 * DAY,
            deep_interval: 7.0 * DAY,
            randomize: 0.5,
            deep_randomize: 0.15,
            no_scrub: false,
            no_deep_scrub: false,
            permitted: true,
        }
    }

    fn after(days: f64, deep_days: f64, rules: Rules, random: [f64; 2]) -> Option<bool> {
        let now = 1_000_000_000u32;
        let stamp = |d: f64| Utime { sec: now - (d * DAY) as u32, nsec: 0 };
        let history = PgHistory { last_scrub_stamp: stamp(days), last_deep_scrub_stamp: stamp(deep_days), ..PgHistory::default() };
        due(Utime { sec: now, nsec: 0 }, &history, &rules, random).map(|k| k.deep)
    }

    #[test]
    fn scrubs_come_in_their_time() {
        let r = rules();
        assert_eq!(after(0.9, 0.9, r, [0.0, 0.5]), None);
        assert_eq!(after(1.1, 1.1, r, [0.0, 0.5]), Some(false));
        assert_eq!(after(1.1, 1.1, r, [0.9, 0.5]), None, "put off");
        assert_eq!(after(1.1, 1.1, r, [0.0, 0.1]), Some(true), "drawn to be deep");
        assert_eq!(after(1.1, 7.1, r, [0.0, 0.5]), Some(true));
        let night = Rules { permitted: false, ..r };
        assert_eq!(after(6.9, 1.0, night, [0.0, 0.5]), None);
        assert_eq!(after(7.1, 1.0, night, [0.0, 0.5]), Some(false), "overdue");
        let never_late = Rules { max_interval: 0.0, ..night };
        assert_eq!(after(99.0, 99.0, never_late, [0.0, 0.0]), None);
    }

    #[test]
    fn flags_forbid() {
        let no = Rules { no_scrub: true, ..rules() };
        assert_eq!(after(2.0, 2.0, no, [0.0, 0.0]), None);
        assert_eq!(after(9.0, 9.0, no, [0.0, 0.0]), Some(true), "a deep scrub that is due is something else");
        let no_deep = Rules { no_deep_scrub: true, ..rules() };
        assert_eq!(after(9.0, 9.0, no_deep, [0.0, 0.0]), Some(false));
        assert_eq!(after(9.0, 9.0, Rules { no_scrub: true, ..no_deep }, [0.0, 0.0]), None);
    }

    #[test]
    fn hours_go_over_midnight() {
        assert!(permitted((3, 2), (0, 0), (0, 0)));
        assert!(permitted((23, 2), (22, 0), (6, 0)) && permitted((5, 2), (22, 0), (6, 0)));
        assert!(!permitted((6, 2), (22, 0), (6, 0)));
        assert!(!permitted((3, 2), (0, 5), (0, 1)) && permitted((3, 6), (0, 5), (0, 1)) && permitted((3, 0), (0, 5), (0, 1)));
    }
}
