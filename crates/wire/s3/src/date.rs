//! Dates as S3 writes them: ISO 8601 in documents, RFC 1123 in headers, the basic form in
//! signatures. All are UTC; a moment is seconds (or nanoseconds) since 1970.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A civil date and time of day, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// The year, from 1970 on.
    pub year: i64,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 59.
    pub second: u32,
}

impl Civil {
    /// The date of a moment.
    pub fn of(seconds: u64) -> Civil {
        // The era arithmetic counts years from March, so that a leap day is the last of its year.
        let days = (seconds / 86_400) as i64 + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let day = (day_of_year - (153 * shifted + 2) / 5 + 1) as u32;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 } as u32;
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let of_day = (seconds % 86_400) as u32;
        Civil {
            year,
            month,
            day,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// The moment of a date, if there is such a date at or after 1970.
    pub fn seconds(&self) -> Option<u64> {
        let valid = (1970..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && self.day >= 1
            && self.day <= days_in(self.year, self.month)
            && self.hour < 24
            && self.minute < 60
            && self.second <= 60;
        if !valid {
            return None;
        }
        let year = self.year - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let shifted = i64::from(if self.month > 2 { self.month - 3 } else { self.month + 9 });
        let day_of_year = (153 * shifted + 2) / 5 + i64::from(self.day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let days = era * 146_097 + day_of_era - 719_468;
        let of_day = i64::from(self.hour) * 3600 + i64::from(self.minute) * 60;
        u64::try_from(days * 86_400 + of_day + i64::from(self.second)).ok()
    }
}

fn days_in(year: i64, month: u32) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// `2026-11-26T18:00:00.123Z`, as documents have it.
pub fn iso8601(nanoseconds: u64) -> String {
    let c = Civil::of(nanoseconds / 1_000_000_000);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        c.year,
        c.month,
        c.day,
        c.hour,
        c.minute,
        c.second,
        nanoseconds / 1_000_000 % 1000
    )
}

/// `Thu, 26 Nov 2026 18:00:00 GMT`, as headers have it.
pub fn http_date(seconds: u64) -> String {
    let c = Civil::of(seconds);
    format!(
        "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
        DAYS[(seconds / 86_400 % 7) as usize],
        c.day,
        MONTHS[c.month as usize - 1],
        c.year,
        c.hour,
        c.minute,
        c.second
    )
}

/// `20261126T180000Z`, as signatures have it.
pub fn basic(seconds: u64) -> String {
    let c = Civil::of(seconds);
    format!("{:04}{:02}{:02}T{:02}{:02}{:02}Z", c.year, c.month, c.day, c.hour, c.minute, c.second)
}

fn digits(text: &str, from: usize, count: usize) -> Option<u32> {
    let part = text.get(from..from + count)?;
    if !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    part.parse().ok()
}

/// Reads the basic form of signatures.
pub fn parse_basic(text: &str) -> Option<u64> {
    let b = text.as_bytes();
    if b.len() != 16 || b[8] != b'T' || b[15] != b'Z' {
        return None;
    }
    Civil {
        year: digits(text, 0, 4)?.into(),
        month: digits(text, 4, 2)?,
        day: digits(text, 6, 2)?,
        hour: digits(text, 9, 2)?,
        minute: digits(text, 11, 2)?,
        second: digits(text, 13, 2)?,
    }
    .seconds()
}

/// Reads ISO 8601 in the forms of documents: a date, or a date and a time with or without a
/// fraction, in UTC.
pub fn parse_iso8601(text: &str) -> Option<u64> {
    let b = text.as_bytes();
    if b.len() < 10 || b[4] != b'-' || b[7] != b'-' {
        return None;
    }
    let mut c = Civil {
        year: digits(text, 0, 4)?.into(),
        month: digits(text, 5, 2)?,
        day: digits(text, 8, 2)?,
        hour: 0,
        minute: 0,
        second: 0,
    };
    if b.len() > 10 {
        if b.len() < 19 || b[10] != b'T' || b[13] != b':' || b[16] != b':' {
            return None;
        }
        c.hour = digits(text, 11, 2)?;
        c.minute = digits(text, 14, 2)?;
        c.second = digits(text, 17, 2)?;
        let rest = text.get(19..)?;
        let rest = match rest.strip_prefix('.') {
            Some(fraction) => fraction.trim_start_matches(|d: char| d.is_ascii_digit()),
            None => rest,
        };
        if !matches!(rest, "" | "Z" | "+00:00") {
            return None;
        }
    }
    c.seconds()
}

/// Reads a date of a header: RFC 1123, RFC 850 or asctime, as HTTP asks of servers.
pub fn parse_http(text: &str) -> Option<u64> {
    let text = text.trim();
    let words: Vec<&str> = text.split([' ', '-']).filter(|w| !w.is_empty()).take(8).collect();
    let month =
        |w: &str| MONTHS.iter().position(|m| m.eq_ignore_ascii_case(w)).map(|m| m as u32 + 1);
    let (day, mon, year, time) = match words.as_slice() {
        // Thu, 26 Nov 2026 18:00:00 GMT, and Thursday, 26-Nov-26 18:00:00 GMT
        [_, day, mon, year, time, zone] if matches!(*zone, "GMT" | "UTC" | "+0000") => {
            (*day, *mon, *year, *time)
        }
        // Thu Nov 26 18:00:00 2026
        [_, mon, day, time, year] => (*day, *mon, *year, *time),
        _ => return None,
    };
    let mut year: i64 = year.parse().ok()?;
    if (0..70).contains(&year) {
        year += 2000;
    } else if (70..100).contains(&year) {
        year += 1900;
    }
    let mut parts = time.split(':').map(|p| p.parse::<u32>().ok());
    let c = Civil {
        year,
        month: month(mon)?,
        day: day.parse().ok()?,
        hour: parts.next()??,
        minute: parts.next()??,
        second: parts.next()??,
    };
    if parts.next().is_some() { None } else { c.seconds() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_one_moment() {
        let t = 1_795_716_000; // 2026-11-26 18:00:00
        assert_eq!(http_date(t), "Thu, 26 Nov 2026 18:00:00 GMT");
        assert_eq!(basic(t), "20261126T180000Z");
        assert_eq!(iso8601(t * 1_000_000_000 + 123_456_789), "2026-11-26T18:00:00.123Z");
        assert_eq!(parse_basic("20261126T180000Z"), Some(t));
        assert_eq!(parse_iso8601("2026-11-26T18:00:00.000Z"), Some(t));
        assert_eq!(parse_iso8601("2026-11-26"), Some(t - 18 * 3600));
        for form in [
            "Thu, 26 Nov 2026 18:00:00 GMT",
            "Thursday, 26-Nov-26 18:00:00 GMT",
            "Thu Nov 26 18:00:00 2026",
            "Thu, 26 Nov 2026 18:00:00 +0000",
        ] {
            assert_eq!(parse_http(form), Some(t), "{form}");
        }
    }

    #[test]
    fn every_day_of_two_centuries_returns() {
        for day in 0..73_000u64 {
            let t = day * 86_400 + 86_399;
            assert_eq!(Civil::of(t).seconds(), Some(t));
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for bad in ["", "x", "20261326T180000Z", "2026-02-30", "2026-11-26T25:00:00Z", "äöüäöüäöüä"]
        {
            assert_eq!(parse_basic(bad), None);
            assert_eq!(parse_iso8601(bad), None);
            assert_eq!(parse_http(bad), None);
        }
    }
}
