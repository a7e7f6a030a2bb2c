//! Wall-clock time as Ceph writes it.

use denc_derive::Denc;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Seconds and nanoseconds since 1970 (Ceph: `utime_t`, `include/utime.h`; also the encoding of
/// `ceph::real_time`). Also used for spans.
///
/// Shown as ISO 8601 in UTC; below ten years it is taken for a span and shown as seconds.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc, Serialize, Deserialize,
)]
pub struct Utime {
    /// Whole seconds.
    pub sec: u32,
    /// Nanoseconds, below 10^9 when written by us.
    pub nsec: u32,
}

/// Below this many seconds a value is shown as a span.
const SPAN_BELOW_SECS: u32 = 60 * 60 * 24 * 365 * 10;

impl Utime {
    /// The beginning of time, "never".
    pub const ZERO: Utime = Utime { sec: 0, nsec: 0 };

    /// `sec` seconds and `nsec` nanoseconds.
    pub const fn new(sec: u32, nsec: u32) -> Self {
        Utime { sec, nsec }
    }

    /// A duration since 1970, saturating in 2106.
    pub fn from_duration(d: Duration) -> Self {
        match u32::try_from(d.as_secs()) {
            Ok(sec) => Utime { sec, nsec: d.subsec_nanos() },
            Err(_) => Utime { sec: u32::MAX, nsec: 999_999_999 },
        }
    }

    /// The time as a duration since 1970.
    pub fn as_duration(self) -> Duration {
        Duration::from_secs(self.sec.into()) + Duration::from_nanos(self.nsec.into())
    }

    /// Whether this is "never".
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// Seconds as a floating point number.
    pub fn as_secs_f64(self) -> f64 {
        f64::from(self.sec) + f64::from(self.nsec) / 1e9
    }

    /// The time as Ceph's `utime_t::gmtime` shows it: with a `Z`.
    pub fn gmtime(self) -> String {
        self.to_string().replace("+0000", "Z")
    }

    /// The time in UTC as C's `ctime` writes it: `Sun Sep  9 01:46:40 2001`.
    pub fn ctime(self) -> String {
        const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let days = self.sec / 86_400;
        let (year, month, day) = civil(days.into());
        let s = self.sec % 86_400;
        let week_day = DAYS[(days % 7) as usize];
        let month = MONTHS[(month - 1) as usize];
        format!(
            "{week_day} {month} {day:2} {:02}:{:02}:{:02} {year}",
            s / 3600,
            s / 60 % 60,
            s % 60
        )
    }

    /// Time from `earlier` to this, zero if it is not later.
    pub fn since(self, earlier: Utime) -> Duration {
        self.as_duration().saturating_sub(earlier.as_duration())
    }
}

impl std::ops::Add<Duration> for Utime {
    type Output = Utime;

    fn add(self, d: Duration) -> Utime {
        Utime::from_duration(self.as_duration().saturating_add(d))
    }
}

impl fmt::Display for Utime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usec = self.nsec / 1000;
        if self.sec < SPAN_BELOW_SECS {
            return write!(f, "{}.{usec:06}", self.sec);
        }
        let (year, month, day) = civil(i64::from(self.sec / 86_400));
        let s = self.sec % 86_400;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{usec:06}+0000",
            s / 3600,
            s / 60 % 60,
            s % 60
        )
    }
}

/// Date in the Gregorian calendar of a day counted from 1970-01-01, by counting 400-year eras that
/// begin on the first of March.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_spans() {
        assert_eq!(Utime::new(3, 4_000).to_string(), "3.000004");
        assert_eq!(
            Utime::new(1_600_000_000, 123_456_789).to_string(),
            "2020-09-13T12:26:40.123456+0000"
        );
        assert_eq!(Utime::new(951_827_696, 0).to_string(), "2000-02-29T12:34:56.000000+0000");
        assert_eq!(Utime::new(u32::MAX, 0).to_string(), "2106-02-07T06:28:15.000000+0000");
    }

    #[test]
    fn ctime_is_padded() {
        assert_eq!(Utime::new(1_000_000_000, 0).ctime(), "Sun Sep  9 01:46:40 2001");
    }

    #[test]
    fn durations_saturate() {
        assert_eq!(Utime::from_duration(Duration::MAX).sec, u32::MAX);
        assert_eq!(Utime::new(5, 0).since(Utime::new(7, 0)), Duration::ZERO);
        assert_eq!(
            Utime::new(5, 900_000_000) + Duration::from_millis(200),
            Utime::new(6, 100_000_000)
        );
    }
}
