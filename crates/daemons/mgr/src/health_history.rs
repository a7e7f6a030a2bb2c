//! Health checks that were raised since the history was cleared (Ceph: `HealthHistory` of the
//! module `prometheus`, 17.2). The monitors keep it under [`KEY`]. No I/O.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use types::Utime;

/// Where the monitors keep it.
pub const KEY: &str = "mgr/prometheus/health_history";
/// Checks that are remembered.
const CHECKS_MAX: usize = 1000;

/// What is known of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Its code.
    pub name: String,
    /// `HEALTH_WARN` or `HEALTH_ERR`, as it was last.
    pub severity: String,
    /// Seconds since 1970.
    pub first_seen: u64,
    /// The same of the last time.
    pub last_seen: u64,
    /// How often it was raised.
    pub count: u64,
    /// Whether it is raised.
    pub active: bool,
}

/// All checks that are remembered, by code.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthHistory(BTreeMap<String, Seen>);

impl HealthHistory {
    /// Reads what the monitors keep. Text that is none of ours counts as nothing.
    pub fn read(text: &str) -> Self {
        HealthHistory(serde_json::from_str(text).unwrap_or_default())
    }

    /// For the monitors.
    pub fn write(&self) -> String {
        json!(self.0).to_string()
    }

    /// Takes the checks that are raised (`checks` of `ceph health -f json`). True if a check was
    /// raised or went.
    pub fn take(&mut self, checks: &Value, now: Utime) -> bool {
        let now = u64::from(now.sec);
        let empty = serde_json::Map::new();
        let raised = checks.as_object().unwrap_or(&empty);
        let mut news = false;
        for (code, check) in raised {
            let severity = check["severity"].as_str().unwrap_or("HEALTH_WARN").to_owned();
            if let Some(seen) = self.0.get_mut(code) {
                news |= !seen.active || seen.severity != severity;
                seen.count += u64::from(!seen.active);
                (seen.active, seen.last_seen, seen.severity) = (true, now, severity);
            } else if self.0.len() < CHECKS_MAX {
                let seen = Seen {
                    name: code.clone(),
                    severity,
                    first_seen: now,
                    last_seen: now,
                    count: 1,
                    active: true,
                };
                self.0.insert(code.clone(), seen);
                news = true;
            }
        }
        for (code, seen) in &mut self.0 {
            if seen.active && !raised.contains_key(code) {
                seen.active = false;
                news = true;
            }
        }
        news
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The checks.
    pub fn all(&self) -> impl Iterator<Item = &Seen> {
        self.0.values()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!(self.0)
    }

    /// For people.
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "No healthchecks have been recorded".to_owned();
        }
        let time = |sec: u64| {
            let t = Utime::new(u32::try_from(sec).unwrap_or(u32::MAX), 0).gmtime();
            // As in `2021-09-16T03:17:47.000000+0000`.
            t.get(..19).unwrap_or_default().replace('-', "/").replace('T', " ")
        };
        let mut out = format!(
            "{:<24}  {:<20}  {:<20}  {:>5}  {}\n",
            "Healthcheck Name", "First Seen (UTC)", "Last seen (UTC)", "Count", "Active"
        );
        for s in self.0.values() {
            out += &format!(
                "{:<24}  {:<20}  {:<20}  {:>5}  {:>6}\n",
                s.name,
                time(s.first_seen),
                time(s.last_seen),
                s.count,
                if s.active { "Yes" } else { "No" }
            );
        }
        out + &format!("{} health check(s) listed", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_come_go_and_come_again() {
        let mut h = HealthHistory::default();
        let at = |sec: u32| Utime::new(1_600_000_000 + sec, 0);
        let down = json!({"OSD_DOWN": {"severity": "HEALTH_WARN"}});
        assert!(h.take(&down, at(10)));
        assert!(!h.take(&down, at(20)), "nothing to keep");
        assert!(h.take(&json!({}), at(30)));
        assert!(!h.take(&Value::Null, at(40)));
        assert!(h.take(&down, at(50)));
        let seen = h.all().next().unwrap().clone();
        let times = (seen.first_seen - 1_600_000_000, seen.last_seen - 1_600_000_000);
        assert_eq!((times, seen.count, seen.active), ((10, 50), 2, true));
        assert_eq!(HealthHistory::read(&h.write()), h);
        assert_eq!(HealthHistory::read("nonsense"), HealthHistory::default());
        assert!(h.text().contains("OSD_DOWN                  2020/09/13 12:26:50   2020/09/13 12:27:30       2     Yes"), "{}", h.text());
        assert!(h.text().ends_with("1 health check(s) listed"));
        h.clear();
        assert_eq!(h.text(), "No healthchecks have been recorded");
    }
}
