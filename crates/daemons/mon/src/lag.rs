//! OSDs that were marked down and lived: how probable it is that one is only slow, and how much
//! longer to wait for it (Ceph: `osd_xinfo_t::laggy_*`, `OSDMonitor::get_grace_time`).
//!
//! Each boot tells: the process that was marked down lived on, or another one came. Probability and
//! the mean time that it was away are averages that follow by `mon_osd_laggy_weight`, and what they
//! say of the next silence fades by `mon_osd_laggy_halflife`.

use conf::Config;
use types::Utime;
use types::osdmap::OsdXinfo;

/// After so many half-lives nothing is left of the averages.
const FORGET: f64 = 48.0;

fn halflife(conf: &Config) -> f64 {
    (conf.u64("mon_osd_laggy_halflife") as f64).max(1.0)
}

/// An OSD boots; `lived`: it is the process that was marked down.
pub(crate) fn note_boot(x: &mut OsdXinfo, conf: &Config, lived: bool, now: Utime) {
    let weight = conf.f64("mon_osd_laggy_weight");
    let (mut probability, mut interval) =
        (f64::from(x.laggy_probability_f32()), f64::from(x.laggy_interval));
    probability *= 1.0 - weight;
    if lived {
        probability += weight;
        if !x.down_stamp.is_zero() {
            let most = conf.u64("mon_osd_laggy_max_interval");
            let away = now.since(x.down_stamp).as_secs();
            let away = if most > 0 { away.min(most) } else { away };
            interval = interval * (1.0 - weight) + away as f64 * weight;
        }
    } else {
        interval *= 1.0 - weight;
    }
    x.set_laggy_probability(probability.min(1.0) as f32);
    x.laggy_interval = interval as u32;
}

/// Whether an OSD that goes down now was down so long ago that its averages are worth nothing.
pub(crate) fn is_old(x: &OsdXinfo, conf: &Config, now: Utime) -> bool {
    let some = x.laggy_probability > 0 || x.laggy_interval > 0;
    some && !x.down_stamp.is_zero()
        && now.since(x.down_stamp).as_secs_f64() > FORGET * halflife(conf)
}

/// How an OSD's past lengthens what is waited for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lag {
    halflife: f64,
}

impl Lag {
    /// With the option that switches it on; `None` if it is off.
    pub fn from_conf(conf: &Config, switch: &str) -> Option<Lag> {
        conf.bool(switch).then(|| Lag { halflife: halflife(conf) })
    }

    /// Seconds more, `elapsed` seconds after what its past is a sign for began.
    pub fn seconds(self, x: &OsdXinfo, elapsed: f64) -> f64 {
        let faded = 0.5f64.powf(elapsed.max(0.0) / self.halflife);
        faded * f64::from(x.laggy_interval) * f64::from(x.laggy_probability_f32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u32 = 1_000_000_000;

    fn at(s: u32) -> Utime {
        Utime::new(START + s, 0)
    }

    #[test]
    fn an_osd_that_lives_though_marked_down_becomes_laggy_and_recovers_from_that() {
        let conf = Config::new();
        let mut x = OsdXinfo { down_stamp: at(0), ..OsdXinfo::default() };
        note_boot(&mut x, &conf, true, at(100));
        assert!((x.laggy_probability_f32() - 0.3).abs() < 1e-5 && x.laggy_interval == 30, "{x:?}");
        x.down_stamp = at(200);
        note_boot(&mut x, &conf, true, at(10_000));
        // 0.7 of what there was, and 0.3 of what counts for 300 seconds at most.
        assert!(
            (x.laggy_probability_f32() - 0.51).abs() < 1e-5 && x.laggy_interval == 111,
            "{x:?}"
        );
        note_boot(&mut x, &conf, false, at(10_100));
        assert!(
            (x.laggy_probability_f32() - 0.357).abs() < 1e-5 && x.laggy_interval == 77,
            "{x:?}"
        );
        for _ in 0..40 {
            note_boot(&mut x, &conf, false, at(10_200));
        }
        assert!(x.laggy_probability_f32() < 1e-5 && x.laggy_interval == 0, "{x:?}");
        // An OSD that lives every time is laggy for sure, and no more than that.
        for _ in 0..100 {
            note_boot(&mut x, &conf, true, at(10_300));
        }
        assert!(x.laggy_probability_f32() > 0.999 && x.laggy_probability_f32() <= 1.0);
        assert!(!is_old(&x, &conf, at(200 + 48 * 3600)) && is_old(&x, &conf, at(201 + 48 * 3600)));
        assert!(
            !is_old(&OsdXinfo { down_stamp: at(0), ..OsdXinfo::default() }, &conf, at(1_000_000)),
            "nothing to forget"
        );
    }

    #[test]
    fn what_is_waited_longer_fades() {
        let mut conf = Config::new();
        let mut x = OsdXinfo { laggy_interval: 200, ..OsdXinfo::default() };
        x.set_laggy_probability(0.5);
        let lag = Lag::from_conf(&conf, "mon_osd_adjust_heartbeat_grace").unwrap();
        for (elapsed, seconds) in [(0.0, 100.0), (3600.0, 50.0), (7200.0, 25.0)] {
            assert!((lag.seconds(&x, elapsed) - seconds).abs() < 0.01, "{elapsed}");
        }
        conf.set(conf::effective::Source::CommandLine, "mon_osd_adjust_heartbeat_grace", "false")
            .unwrap();
        assert_eq!(Lag::from_conf(&conf, "mon_osd_adjust_heartbeat_grace"), None);
    }
}
