//! Reports of crashes that were posted (Ceph: manager module `crash`, 16.2). The monitors keep them
//! under `mgr/crash/crash/ID`; this is what is decided about them, without I/O.

use messages::HealthCheck;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use types::Utime;

/// The prefix of the reports in the monitors' key store.
pub const PREFIX: &str = "mgr/crash/crash/";
/// Reports that a warning names.
const NAMED_MAX: usize = 30;
const DAY: u64 = 86_400;

/// A report that is to be kept, or (`None`) forgotten.
pub type Saved = (String, Option<Value>);

/// Why a report is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed crash metadata: {0}")]
pub struct Malformed(String);

/// The reports by id; none until they were read from the monitors.
#[derive(Clone, Debug, Default)]
pub struct Crashes(pub Option<BTreeMap<String, Value>>);

/// Seconds since 1970 of `2026-11-26T18:31:09.058818Z`, as reports have it; old ones have a blank
/// instead of the `T`.
pub fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.trim_end_matches('Z').split_once(['T', ' '])?;
    let mut parts = date.splitn(3, '-').map(str::parse::<u64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let mut parts = time.split('.').next()?.splitn(3, ':').map(str::parse::<u64>);
    let (hour, minute, second) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let sound = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !sound {
        return None;
    }
    // Days of the proleptic calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    Some((days.checked_sub(719_468)?) * DAY + hour * 3600 + minute * 60 + second)
}

fn field<'a>(report: &'a Value, name: &str, otherwise: &'a str) -> &'a str {
    report[name].as_str().unwrap_or(otherwise)
}

fn is_new(report: &Value) -> bool {
    report.get("archived").is_none_or(Value::is_null)
}

fn age(report: &Value, now: Utime) -> u64 {
    let at = report["timestamp"].as_str().and_then(seconds).unwrap_or(0);
    u64::from(now.sec).saturating_sub(at)
}

impl Crashes {
    fn all(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().flatten()
    }

    /// A report.
    pub fn get(&self, id: &str) -> Option<&Value> {
        self.0.as_ref()?.get(id)
    }

    /// Reports in the order of their ids, the archived ones only if `all`.
    pub fn list(&self, all: bool) -> Vec<&Value> {
        self.all().map(|(_, r)| r).filter(|r| all || is_new(r)).collect()
    }

    /// The table of `crash ls` and `crash ls-new`.
    pub fn table(&self, all: bool) -> String {
        let mut t = pgmap::table::Table::new();
        for head in ["ID", "ENTITY", "NEW"] {
            t.column(head, pgmap::table::Align::Left, pgmap::table::Align::Left);
        }
        for r in self.list(all) {
            let mark = if is_new(r) { "*" } else { "" };
            t.row([
                field(r, "crash_id", "").to_owned(),
                field(r, "entity_name", "unknown").to_owned(),
                mark.to_owned(),
            ]);
        }
        t.to_string()
    }

    /// Reads a report that a client posts; nothing if it is known already.
    pub fn post(&self, input: &[u8]) -> Result<Option<Saved>, Malformed> {
        let report: Value = serde_json::from_slice(input).map_err(|e| Malformed(e.to_string()))?;
        let need = |name: &str| {
            let text = report[name].as_str().filter(|t| !t.is_empty());
            text.ok_or_else(|| Malformed(format!("missing '{name}' field")))
        };
        let (id, stamp) = (need("crash_id")?.to_owned(), need("timestamp")?);
        if seconds(stamp).is_none() {
            return Err(Malformed(format!(
                "'{stamp}' is no time like 2026-11-26T18:31:09.058818Z"
            )));
        }
        Ok(self.get(&id).is_none().then_some((id, Some(report))))
    }

    /// Archives the report with this id, or all that are new.
    pub fn archive(&self, id: Option<&str>, now: Utime) -> Vec<Saved> {
        let wanted = |known: &str| id.is_none_or(|id| id == known);
        let new = self.all().filter(|(known, r)| wanted(known) && is_new(r));
        new.map(|(id, r)| {
            let mut r = r.clone();
            r["archived"] = json!(now.to_string());
            (id.clone(), Some(r))
        })
        .collect()
    }

    /// Forgets reports that are older than so many seconds.
    pub fn prune(&self, seconds: u64, now: Utime) -> Vec<Saved> {
        let old = self.all().filter(|(_, r)| age(r, now) >= seconds);
        old.map(|(id, _)| (id.clone(), None)).collect()
    }

    /// How many there are, and which are old.
    pub fn stat(&self, now: Utime) -> String {
        let mut out = format!("{} crashes recorded\n", self.all().count());
        for days in [1, 3, 7] {
            let old: Vec<&str> = self
                .all()
                .filter(|(_, r)| age(r, now) >= days * DAY)
                .map(|(id, _)| id.as_str())
                .collect();
            if !old.is_empty() {
                out += &format!("{} older than {days} days old:\n{}\n", old.len(), old.join("\n"));
            }
        }
        out
    }

    /// Reports of the last hours by the process that crashed.
    pub fn by_process(&self, hours: u64, now: Utime) -> Value {
        let mut counts = Map::new();
        for (_, r) in self.all().filter(|(_, r)| age(r, now) <= hours * 3600) {
            let name = Some(field(r, "process_name", "unknown")).filter(|n| !n.is_empty());
            let count = counts.entry(name.unwrap_or("unknown")).or_insert(json!(0));
            *count = json!(count.as_u64().unwrap_or(0) + 1);
        }
        Value::Object(counts)
    }

    /// Takes over what the monitors keep.
    pub fn apply(&mut self, (id, report): Saved) {
        let all = self.0.get_or_insert_default();
        match report {
            Some(report) => all.insert(id, report),
            None => all.remove(&id),
        };
    }

    /// `RECENT_CRASH`: reports of so many seconds that were not archived.
    pub fn check(&self, recent: u64, now: Utime) -> Option<(String, HealthCheck)> {
        let new: Vec<&Value> =
            self.all().map(|(_, r)| r).filter(|r| is_new(r) && age(r, now) < recent).collect();
        if new.is_empty() {
            return None;
        }
        let line = |r: &&Value| {
            format!(
                "{} crashed on host {} at {}",
                field(r, "entity_name", "unidentified daemon"),
                field(r, "utsname_hostname", "(unknown)"),
                field(r, "timestamp", "unknown time")
            )
        };
        let mut detail: Vec<String> = new.iter().take(NAMED_MAX).map(line).collect();
        if new.len() > NAMED_MAX {
            detail.push(format!("and {} more", new.len() - NAMED_MAX));
        }
        let check = HealthCheck {
            severity: HealthCheck::WARN,
            summary: format!("{} daemons have recently crashed", new.len()),
            detail,
            count: new.len() as i64,
        };
        Some(("RECENT_CRASH".to_owned(), check))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(id: &str, stamp: &str) -> Vec<u8> {
        json!({"crash_id": id, "timestamp": stamp, "entity_name": "osd.1", "utsname_hostname": "h"})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn times() {
        assert_eq!(seconds("1970-01-01T00:00:00.0Z"), Some(0));
        assert_eq!(seconds("2018-06-22T20:35:38.058818Z"), Some(1_529_699_738));
        assert_eq!(seconds("2018-06-22 20:35:38.058818Z"), Some(1_529_699_738));
        assert_eq!(seconds("2024-02-29T23:59:59Z"), Some(1_709_251_199));
        for bad in [
            "",
            "yesterday",
            "2018-13-01T00:00:00Z",
            "2018-01-01",
            "2018-01-01T25:00:00Z",
            "1-2-3T4:5",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_report_is_posted_seen_and_forgotten() {
        let mut c = Crashes(Some(BTreeMap::new()));
        let now = Utime::new(seconds("2026-11-26T12:00:00Z").unwrap() as u32, 0);
        for (id, stamp) in [("a", "2026-11-26T11:00:00Z"), ("b", "2026-11-20T11:00:00Z")] {
            let saved = c.post(&report(id, stamp)).unwrap().unwrap();
            c.apply(saved);
            assert_eq!(c.post(&report(id, stamp)), Ok(None), "it is known");
        }
        let (code, check) = c.check(14 * DAY, now).unwrap();
        assert_eq!((code.as_str(), check.count), ("RECENT_CRASH", 2));
        assert_eq!(check.detail[0], "osd.1 crashed on host h at 2026-11-26T11:00:00Z");
        assert_eq!(c.check(DAY, now).unwrap().1.count, 1);
        assert!(c.stat(now).starts_with("2 crashes recorded\n1 older than 1 days old:\nb\n"));
        for saved in c.archive(Some("a"), now) {
            c.apply(saved);
        }
        assert_eq!((c.list(false).len(), c.list(true).len()), (1, 2));
        assert_eq!(c.check(DAY, now), None);
        for saved in c.prune(2 * DAY, now) {
            c.apply(saved);
        }
        assert_eq!(c.list(true).len(), 1);
        for bad in [&b"no JSON"[..], b"{}", b"[1]", br#"{"crash_id":"x","timestamp":"never"}"#] {
            assert!(c.post(bad).is_err());
        }
    }
}
