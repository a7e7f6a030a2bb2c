//! Parameters of a request (16.2 `src/rgw/rgw_rest.cc`, `RESTArgs`). A flag that makes no sense
//! counts as not given, as there; a number or a date is refused.

use crate::refusal::{Refusal, Result};
use s3::uri::Query;

/// The parameters.
pub(crate) struct Params<'a>(pub &'a Query);

impl Params<'_> {
    /// Whether the parameter is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.has(name)
    }

    /// A text; empty if it is not there.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_default()
    }

    /// A text that is there and not empty.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.0.get(name).filter(|v| !v.is_empty())
    }

    /// `true`, `1` and nothing after the name are true; `false` and `0` false.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        match self.0.get(name) {
            None => default,
            Some(v) if v.is_empty() || v == "1" || v.eq_ignore_ascii_case("true") => true,
            Some(v) if v == "0" || v.eq_ignore_ascii_case("false") => false,
            Some(_) => default,
        }
    }

    /// A number; `None` if it is not there.
    pub fn number(&self, name: &str) -> Result<Option<i64>> {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        let wrong = || Refusal::ARGUMENT.because(format!("{name}: a number was expected"));
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// A time in seconds since 1970: `YYYY-MM-DD[ HH:MM:SS]`, with a `T` in place of the blank, a
    /// fraction and a `Z` allowed, or a number of seconds.
    pub fn epoch(&self, name: &str, default: u64) -> Result<u64> {
        let Some(text) = self.0.get(name) else { return Ok(default) };
        let wrong = || Refusal::ARGUMENT.because(format!("{name}: a date was expected"));
        date(text).ok_or_else(wrong)
    }
}

fn date(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let (day, time) = text.split_once(['T', ' ']).unwrap_or((text, ""));
    let numbers = |text: &str, by: char, count: usize| -> Option<Vec<u32>> {
        let found: Option<Vec<u32>> = text.split(by).map(|n| n.parse().ok()).collect();
        found.filter(|f| f.len() == count)
    };
    let day = numbers(day, '-', 3)?;
    let time = time.strip_suffix('Z').unwrap_or(time);
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    let time = if time.is_empty() { vec![0; 3] } else { numbers(time, ':', 3)? };
    let civil = s3::date::Civil {
        year: day[0].into(),
        month: day[1],
        day: day[2],
        hour: time[0],
        minute: time[1],
        second: time[2],
    };
    civil.seconds()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_numbers_and_dates() {
        let query =
            Query::parse("a&b=0&c=x&n=-5&m=x&d=2012-09-25&e=2012-09-25+16:00:00&s=77&w=9-9")
                .unwrap();
        let p = Params(&query);
        assert!(p.flag("a", false) && !p.flag("b", true) && p.flag("c", true));
        assert_eq!(p.number("n"), Ok(Some(-5)));
        assert_eq!(p.number("absent"), Ok(None));
        assert!(p.number("m").is_err() && p.epoch("w", 0).is_err());
        assert_eq!(p.epoch("d", 0), Ok(1_348_531_200));
        assert_eq!(p.epoch("e", 0), Ok(1_348_531_200 + 16 * 3600));
        assert_eq!(p.epoch("s", 0), Ok(77));
        assert_eq!(p.epoch("absent", 7), Ok(7));
    }
}
