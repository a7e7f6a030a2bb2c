//! When a PG is scrubbed without being told to (Ceph: `OSDService::ScrubJob`, `OSD::sched_scrub`,
//! `PG::sched_scrub`).

use types::Utime;

use crate::info::PgHistory;
use crate::scrub::ScrubKind;

/// Options, with what the pool says put in their place already. Seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// `osd_scrub_min_interval`: not before.
    pub min_interval: f64,
    /// `osd_scrub_max_interval`: whatever the hour; 0 for never.
    pub max_interval: f64,
    /// `osd_deep_scrub_interval`: data is read again after this.
    pub deep_interval: f64,
    /// `osd_scrub_interval_randomize_ratio`: by so much of the least interval scrubs are put off,
    /// at random.
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

/// What should be done now, if anything. `random` are numbers from 0 to 1 that stay the same for as
/// long as the PG is not scrubbed: by the first the scrub is put off, the second may make it a deep
/// one.
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

/// By which part of its interval a PG's scrub is overdue; 0 if it is not. The smaller scrub is when
/// `osd_scrub_max_interval` is over; the deep one when a scrub has had its time since it was due.
pub fn lateness(now: Utime, history: &PgHistory, rules: &Rules) -> f64 {
    let age = |stamp: Utime| now.as_secs_f64() - stamp.as_secs_f64();
    let late = |age: f64, interval: f64, forbidden: bool| {
        if interval > 0.0 && !forbidden { (age / interval - 1.0).max(0.0) } else { 0.0 }
    };
    let wait = rules.min_interval * (1.0 + rules.randomize.max(0.0));
    let shallow = late(age(history.last_scrub_stamp), rules.max_interval, rules.no_scrub);
    shallow.max(late(
        age(history.last_deep_scrub_stamp) - wait,
        rules.deep_interval,
        rules.no_deep_scrub,
    ))
}

/// From this part of its interval on, what is late has every turn that there is. Managers warn at
/// twice that (`mon_warn_pg_not_scrubbed_ratio`).
const LATE: f64 = 0.25;

/// In how many scrubs an OSD takes part at the same time that has `most` turns (`osd_max_scrubs`)
/// and a latest PG that is late by this part of its interval: up to `factor` times as many. Those
/// beyond `most` are for what is late alone, so that an OSD goes back by itself when nothing is.
pub fn turns(most: usize, factor: f64, lateness: f64) -> usize {
    let most = most.max(1);
    let more = (most as f64 * (factor - 1.0).max(0.0)).floor();
    let part = (lateness / LATE).clamp(0.0, 1.0);
    most.saturating_add((more * part).ceil() as usize)
}

/// Whether the hour and the day of the week are among those in which scrubs begin. `begin` and
/// `end` are `(hour, day)`, days counted from Sunday; a span may go over midnight or the end of the
/// week, and one that begins where it ends is everything.
pub fn permitted((hour, day): (u32, u32), begin: (u32, u32), end: (u32, u32)) -> bool {
    let within =
        |x, from, to| if from < to { (from..to).contains(&x) } else { x >= from || x < to };
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
        let history = PgHistory {
            last_scrub_stamp: stamp(days),
            last_deep_scrub_stamp: stamp(deep_days),
            ..PgHistory::default()
        };
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
        assert_eq!(
            after(9.0, 9.0, no, [0.0, 0.0]),
            Some(true),
            "a deep scrub that is due is something else"
        );
        let no_deep = Rules { no_deep_scrub: true, ..rules() };
        assert_eq!(after(9.0, 9.0, no_deep, [0.0, 0.0]), Some(false));
        assert_eq!(after(9.0, 9.0, Rules { no_scrub: true, ..no_deep }, [0.0, 0.0]), None);
    }

    #[test]
    fn the_later_the_more_turns() {
        let history = |days: f64, deep: f64| {
            let stamp = |d: f64| Utime { sec: 1_000_000_000 - (d * DAY) as u32, nsec: 0 };
            PgHistory {
                last_scrub_stamp: stamp(days),
                last_deep_scrub_stamp: stamp(deep),
                ..PgHistory::default()
            }
        };
        let late = |days, deep, rules: &Rules| {
            (lateness(Utime { sec: 1_000_000_000, nsec: 0 }, &history(days, deep), rules) * 100.0)
                .round()
        };
        let r = rules();
        assert_eq!(
            (late(7.0, 1.0, &r), late(8.4, 1.0, &r), late(14.0, 1.0, &r)),
            (0.0, 20.0, 100.0)
        );
        assert_eq!(
            (late(1.0, 8.5, &r), late(1.0, 12.0, &r)),
            (0.0, 50.0),
            "a scrub has a day and a half to become a deep one"
        );
        assert_eq!(late(14.0, 1.0, &Rules { no_scrub: true, ..r }), 0.0);
        assert_eq!(late(14.0, 14.0, &Rules { no_scrub: true, no_deep_scrub: true, ..r }), 0.0);
        assert_eq!(late(99.0, 1.0, &Rules { max_interval: 0.0, ..r }), 0.0, "it is never late");
        let of =
            |most, factor| [0.0, 0.001, 0.125, 0.13, 0.25, 9.0].map(|l| turns(most, factor, l));
        assert_eq!(of(1, 3.0), [1, 2, 2, 3, 3, 3]);
        assert_eq!(of(4, 3.0), [4, 5, 8, 9, 12, 12]);
        assert_eq!(of(3, 1.5), [3, 4, 4, 4, 4, 4]);
        assert_eq!((of(2, 1.0), of(0, 3.0)[5]), ([2; 6], 3), "switched off; one turn at least");
    }

    /// Sixty PGs of one OSD with scrubs of `hours` each; `factor` as the option. Returns the
    /// greatest lateness and the most scrubs at a time of the second half of `days`.
    fn weeks(factor: f64, days: u32, hours: impl Fn(u32) -> u32) -> (f64, usize) {
        let r = Rules { deep_randomize: 0.0, ..rules() };
        let begin = 1_000_000_000u32;
        let mut groups = vec![PgHistory::default(); 60];
        for (i, g) in groups.iter_mut().enumerate() {
            g.last_scrub_stamp = Utime::new(begin - i as u32 * 8_640, 0);
            g.last_deep_scrub_stamp = g.last_scrub_stamp;
        }
        // By group: when its scrub ends, and whether it is a deep one.
        let mut running: std::collections::BTreeMap<usize, (u32, bool)> = Default::default();
        let (mut worst, mut most) = (0.0f64, 0);
        for t in (0..days * 86_400).step_by(600) {
            let now = Utime::new(begin + t, 0);
            running.retain(|i, (end, deep)| {
                if *end <= t {
                    groups[*i].last_scrub_stamp = now;
                    if *deep {
                        groups[*i].last_deep_scrub_stamp = now;
                    }
                }
                *end > t
            });
            let late: Vec<f64> = groups.iter().map(|g| lateness(now, g, &r)).collect();
            let latest = late.iter().copied().fold(0.0, f64::max);
            let turns = turns(1, factor, latest);
            let mut order: Vec<usize> =
                (0..groups.len()).filter(|i| !running.contains_key(i)).collect();
            order.sort_by(|a, b| {
                late[*b]
                    .total_cmp(&late[*a])
                    .then(groups[*a].last_scrub_stamp.cmp(&groups[*b].last_scrub_stamp))
            });
            for i in order {
                let allowed = if late[i] > 0.0 { turns } else { 1 };
                if running.len() < allowed
                    && let Some(kind) = due(now, &groups[i], &r, [(i % 10) as f64 / 10.0, 1.0])
                {
                    running.insert(i, (t + hours(t) * 3_600, kind.deep));
                }
            }
            if t >= days / 2 * 86_400 {
                worst = worst.max(latest);
                most = most.max(running.len());
            }
        }
        (worst, most)
    }

    #[test]
    fn an_osd_that_is_behind_catches_up_and_goes_back() {
        // One at a time needs fifteen days for all, and they should be done within seven.
        let (worst, most) = weeks(1.0, 100, |_| 6);
        assert!(worst > 1.0 && most == 1, "{worst} {most}");
        let (worst, most) = weeks(3.0, 100, |_| 6);
        assert!(worst < 0.3 && most == 3, "{worst} {most}");
        // Much too much work is bounded.
        let (worst, most) = weeks(3.0, 100, |_| 24);
        assert!(worst > 0.5 && most == 3, "{worst} {most}");
        // The work becomes less: nothing is late any more, and one at a time will do.
        let (worst, most) = weeks(3.0, 100, |t| if t < 25 * 86_400 { 12 } else { 1 });
        assert_eq!((worst, most), (0.0, 1));
    }

    #[test]
    fn hours_go_over_midnight() {
        assert!(permitted((3, 2), (0, 0), (0, 0)));
        assert!(permitted((23, 2), (22, 0), (6, 0)) && permitted((5, 2), (22, 0), (6, 0)));
        assert!(!permitted((6, 2), (22, 0), (6, 0)));
        assert!(
            !permitted((3, 2), (0, 5), (0, 1))
                && permitted((3, 6), (0, 5), (0, 1))
                && permitted((3, 0), (0, 5), (0, 1))
        );
    }
}
