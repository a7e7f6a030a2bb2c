//! Whether OSDs can keep the floors that are promised.

use serde_json::Value;

/// Where it is known from what an OSD can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// It has learned it.
    Learned,
    /// An operator has set `osd_mclock_max_capacity_iops_ssd`, to less than it has learned.
    Set,
    /// It has learned nothing: the option's default.
    Default,
    /// It did not answer: what the monitors have for the option.
    Silent,
}

impl Source {
    const ALL: [Source; 4] = [Source::Learned, Source::Set, Source::Default, Source::Silent];

    fn said(self) -> &'static str {
        match self {
            Source::Learned => "learned",
            Source::Set => "osd_mclock_max_capacity_iops_ssd as it is set",
            Source::Default => {
                "nothing learned yet, the default of osd_mclock_max_capacity_iops_ssd"
            }
            Source::Silent => "no answer, osd_mclock_max_capacity_iops_ssd of the configuration",
        }
    }
}

/// What an OSD can do, from `capacity` of its `dump_qos`. Of what is set and what was learned the
/// less counts: a floor is not kept above either.
pub fn capacity(said: &Value) -> Option<(f64, Source)> {
    let learned = said["learned_iops"]
        .as_f64()
        .filter(|_| said["trusted"] == true)
        .map(|iops| (iops, Source::Learned));
    let set = said["set_iops"].as_f64().map(|iops| (iops, Source::Set));
    let known = learned.into_iter().chain(set).min_by(|a, b| a.0.total_cmp(&b.0));
    known.or_else(|| Some((said["iops"].as_f64()?, Source::Default)))
}

/// The verdict on floors.
#[derive(Debug, PartialEq)]
pub enum Judgement {
    /// Nothing.
    Fits,
    /// They fit if nothing else happens.
    Tight(String),
    /// They do not fit.
    TooMuch(String),
}

/// So many tenants and OSDs are named.
const NAMED: usize = 4;

/// Judges floors of tenants, each with operations a second, by what each OSD can do.
pub fn judge(promised: &[(String, u64)], there: &[(i32, f64, Source)]) -> Judgement {
    let floors = promised.iter().fold(0u64, |sum, (_, floor)| sum.saturating_add(*floor));
    let capacity: f64 = there.iter().map(|(_, iops, _)| iops).sum();
    let mut most: Vec<&(String, u64)> = promised.iter().collect();
    most.sort_by_key(|(_, floor)| std::cmp::Reverse(*floor));
    let tenants = listed(most.iter().map(|(name, floor)| format!("{name} {floor}")));
    let from = Source::ALL.iter().filter_map(|source| {
        let of: Vec<String> = there
            .iter()
            .filter(|(.., s)| s == source)
            .map(|(osd, iops, _)| format!("osd.{osd} {iops:.0}"))
            .collect();
        (!of.is_empty()).then(|| format!("{}: {}", source.said(), listed(of.into_iter())))
    });
    let from = from.collect::<Vec<_>>().join("; ");
    let floors_of = format!("floors of {floors} operations each second together ({tenants})");
    let there = format!("{capacity:.0} random writes of 4 KiB ({from})");
    if floors as f64 > capacity {
        Judgement::TooMuch(format!("{floors_of} are more than the OSDs' capacity of {there}"))
    } else if floors as f64 > capacity / 2.0 {
        Judgement::Tight(format!(
            "{floors_of} are more than half of the OSDs' capacity of {there}: writes count once for each replica, and recovery has floors, too"
        ))
    } else {
        Judgement::Fits
    }
}

fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(NAMED);
    let mut text = items.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(", {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_an_osd_can_do() {
        let of = |learned: f64, trusted: bool, set: Option<f64>| {
            capacity(
                &json!({"iops": set.unwrap_or(if trusted { learned } else { 21_500.0 }), "learned_iops": learned, "trusted": trusted, "set_iops": set}),
            )
        };
        assert_eq!(of(800.0, true, None), Some((800.0, Source::Learned)));
        assert_eq!(
            of(800.0, false, None),
            Some((21_500.0, Source::Default)),
            "an estimate that cannot be trusted is none"
        );
        assert_eq!(of(800.0, true, Some(200.0)), Some((200.0, Source::Set)));
        assert_eq!(
            of(800.0, true, Some(5000.0)),
            Some((800.0, Source::Learned)),
            "nobody can do more because it is set"
        );
        assert_eq!(of(0.0, false, Some(5000.0)), Some((5000.0, Source::Set)));
        assert_eq!(capacity(&json!(null)), None);
    }

    #[test]
    fn floors_are_judged_and_the_reason_is_said() {
        let there = [
            (0, 900.0, Source::Learned),
            (1, 21_500.0, Source::Default),
            (2, 600.0, Source::Learned),
            (3, 500.0, Source::Silent),
        ];
        let floors =
            |n: u64| -> Vec<(String, u64)> { (1..=6).map(|i| (format!("t{i}"), n * i)).collect() };
        assert_eq!(judge(&floors(100), &there), Judgement::Fits);
        assert!(
            matches!(judge(&floors(600), &there), Judgement::Tight(why) if why.contains("more than half"))
        );
        let Judgement::TooMuch(why) = judge(&floors(1200), &there) else {
            panic!("25200 are more than 23500")
        };
        let expected = "floors of 25200 operations each second together (t6 7200, t5 6000, t4 4800, t3 3600, 2 more) are more than the OSDs' capacity of \
                        23500 random writes of 4 KiB (learned: osd.0 900, osd.2 600; nothing learned yet, the default of osd_mclock_max_capacity_iops_ssd: \
                        osd.1 21500; no answer, osd_mclock_max_capacity_iops_ssd of the configuration: osd.3 500)";
        assert_eq!(why, expected);
    }
}
