//! Lifecycle: which rules are about an object, and when it expires.

use s3::date;
use s3::xml::config::{Lifecycle, LifecycleRule, When};

/// Seconds of a day.
pub const DAY_SECONDS: u64 = 86_400;

/// The time, and how long a day of the rules lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days {
    /// Now, in seconds.
    pub now: u64,
    /// [`DAY_SECONDS`], or less in tests (Ceph: `rgw_lc_debug_interval`).
    pub seconds: u64,
}

impl Days {
    /// Whether so many days have passed. Days begin at midnight (UTC): what is due at noon goes at
    /// the next midnight (16.2, `obj_has_expired`).
    pub fn have_passed(&self, since: u64, days: u64) -> bool {
        let now = match self.seconds {
            DAY_SECONDS => self.now - self.now % DAY_SECONDS,
            _ => self.now,
        };
        since.saturating_add(days.saturating_mul(self.seconds)) <= now
    }

    /// Whether an object that was changed then expires by a rule.
    pub fn is_due(&self, rule: &LifecycleRule, modified: u64) -> bool {
        match rule.expiration {
            Some(When::Days(days)) => self.have_passed(modified, days),
            Some(When::Date(at)) => at <= self.now,
            None => false,
        }
    }
}

/// Whether a rule is about an object with this key and these tags.
pub fn is_about(rule: &LifecycleRule, key: &str, tags: &[(String, String)]) -> bool {
    rule.enabled && key.starts_with(&rule.prefix) && rule.tags.iter().all(|t| tags.contains(t))
}

/// What the header `x-amz-expiration` says of a current object: the first midnight at which one of
/// the rules lets it expire, and that rule.
pub fn expiration(
    lifecycle: &Lifecycle,
    key: &str,
    tags: &[(String, String)],
    modified: u64,
) -> Option<String> {
    let rules = lifecycle.0.iter().filter(|rule| is_about(rule, key, tags));
    let dates = rules.filter_map(|rule| {
        let at = match rule.expiration? {
            When::Date(at) => at,
            When::Days(days) => {
                let midnight = modified - modified % DAY_SECONDS;
                midnight.saturating_add(days.saturating_add(1).saturating_mul(DAY_SECONDS))
            }
        };
        Some((at, rule))
    });
    let (at, rule) = dates.min_by_key(|(at, _)| *at)?;
    Some(format!("expiry-date=\"{}\", rule-id=\"{}\"", date::http_date(at), rule.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(id: &str, days: u64) -> LifecycleRule {
        LifecycleRule {
            id: id.into(),
            enabled: true,
            expiration: Some(When::Days(days)),
            ..LifecycleRule::default()
        }
    }

    #[test]
    fn days_end_at_midnight() {
        let noon = 10 * DAY_SECONDS + DAY_SECONDS / 2;
        let days = |now| Days { now, seconds: DAY_SECONDS };
        assert!(!days(noon + DAY_SECONDS).have_passed(noon, 1));
        assert!(!days(12 * DAY_SECONDS - 1).have_passed(noon, 1));
        assert!(days(12 * DAY_SECONDS).have_passed(noon, 1));
        assert!(days(11 * DAY_SECONDS).have_passed(10 * DAY_SECONDS, 1));
        assert!(!days(u64::MAX).have_passed(1, u64::MAX));
        // Short days of tests end when they are over.
        let short = Days { now: noon + 10, seconds: 10 };
        assert!(short.have_passed(noon, 1) && !short.have_passed(noon + 1, 1));
    }

    #[test]
    fn what_is_said_is_when_it_happens() {
        let modified = 20 * DAY_SECONDS + 5;
        let at = 22 * DAY_SECONDS;
        let said = expiration(&Lifecycle(vec![rule("r", 1)]), "k", &[], modified);
        assert_eq!(said, Some(format!("expiry-date=\"{}\", rule-id=\"r\"", date::http_date(at))));
        let day = |now| Days { now, seconds: DAY_SECONDS }.is_due(&rule("r", 1), modified);
        assert!(day(at) && !day(at - 1));
        // The expression must not overflow.
        assert!(expiration(&Lifecycle(vec![rule("r", u64::MAX)]), "k", &[], modified).is_some());
    }

    #[test]
    fn the_first_rule_that_is_about_the_object_counts() {
        let tag = |v: &str| vec![("a".to_owned(), v.to_owned())];
        let life = Lifecycle(vec![
            LifecycleRule { enabled: false, ..rule("off", 1) },
            LifecycleRule { prefix: "other/".into(), ..rule("other", 1) },
            LifecycleRule { tags: tag("1"), ..rule("tagged", 2) },
            rule("late", 5),
            LifecycleRule { expiration: Some(When::Date(3)), ..rule("date", 0) },
            LifecycleRule { expiration: None, noncurrent_days: Some(1), ..rule("old", 0) },
        ]);
        let id = |life: &Lifecycle, tags: &[(String, String)]| {
            let said = expiration(life, "k", tags, 0)?;
            Some(said.rsplit('"').nth(1)?.to_owned())
        };
        assert_eq!(id(&life, &[]).as_deref(), Some("date"));
        let without = Lifecycle(life.0.iter().filter(|r| r.id != "date").cloned().collect());
        assert_eq!(id(&without, &[]).as_deref(), Some("late"));
        assert_eq!(id(&without, &tag("1")).as_deref(), Some("tagged"));
        assert_eq!(id(&without, &tag("2")).as_deref(), Some("late"));
        assert_eq!(id(&Lifecycle(life.0[5..].to_vec()), &[]), None);
    }
}
