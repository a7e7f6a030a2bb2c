//! `siphon qos top`: what tenants and classes ask for and get, over all OSDs.

use crate::cli::TopSort;
use crate::qos_cluster::Cluster;
use crate::qos_fs;
use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Read, Write};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Counters of a tenant or a class, over all OSDs.
#[derive(Clone, Default)]
struct Counters {
    numbers: BTreeMap<&'static str, u64>,
    /// By powers of two of microseconds.
    waits: Vec<u64>,
    waiting: u64,
    weight: u64,
}

/// What there is of both.
#[derive(Clone, Default)]
struct All {
    tenants: BTreeMap<String, Counters>,
    classes: BTreeMap<String, Counters>,
}

const NUMBERS: [&str; 8] = [
    "offered",
    "served",
    "served_bytes",
    "served_by_floor",
    "served_by_reservation",
    "throttled",
    "throttled_ns",
    "waited_ns",
];

impl Counters {
    fn add(&mut self, said: &Value) {
        for n in NUMBERS {
            *self.numbers.entry(n).or_default() += said[n].as_u64().unwrap_or(0);
        }
        self.waiting +=
            said["waiting"].as_u64().unwrap_or(0) + said["over_ceiling"].as_u64().unwrap_or(0);
        self.weight = said["weight"].as_u64().unwrap_or(0);
        for (i, n) in said["waits_log2_us"].as_array().into_iter().flatten().enumerate() {
            if self.waits.len() <= i {
                self.waits.resize(i + 1, 0);
            }
            self.waits[i] += n.as_u64().unwrap_or(0);
        }
    }

    /// The difference to an earlier reading.
    fn since(&self, before: Option<&Counters>) -> Counters {
        let mut d = self.clone();
        let Some(before) = before else { return d };
        for (name, n) in &mut d.numbers {
            *n = since(*n, before.numbers.get(name).copied().unwrap_or(0));
        }
        for (i, n) in d.waits.iter_mut().enumerate() {
            *n = since(*n, before.waits.get(i).copied().unwrap_or(0));
        }
        d
    }

    fn get(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }

    /// A percentile of the waiting times, in microseconds.
    fn percentile(&self, part: f64) -> u64 {
        percentile(&self.waits, part)
    }

    fn is_active(&self) -> bool {
        self.get("offered") > 0 || self.get("served") > 0 || self.waiting > 0
    }
}

/// What a counter has counted since it was something. Of an OSD that began anew, everything is new.
pub fn since(after: u64, before: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

/// A percentile of times by powers of two of microseconds: the upper end of its bucket.
pub fn percentile(buckets: &[u64], part: f64) -> u64 {
    let wanted = (buckets.iter().sum::<u64>() as f64 * part).ceil() as u64;
    let mut seen = 0;
    let bucket = buckets.iter().position(|n| {
        seen += n;
        seen >= wanted && wanted > 0
    });
    bucket.map_or(0, |b| 1 << b)
}

impl All {
    /// Adds what an OSD says. Each OSD counts for itself since it started.
    fn add(&mut self, dump: &Value) {
        for t in dump["tenants"].as_array().into_iter().flatten() {
            let Some(name) = t["tenant"].as_str() else { continue };
            self.tenants.entry(name.to_owned()).or_default().add(t);
        }
        for (name, class) in dump["classes"].as_object().into_iter().flatten() {
            self.classes.entry(name.clone()).or_default().add(class);
        }
    }

    fn since(&self, before: &All) -> All {
        let of = |after: &BTreeMap<String, Counters>, before: &BTreeMap<String, Counters>| {
            after.iter().map(|(name, c)| (name.clone(), c.since(before.get(name)))).collect()
        };
        All {
            tenants: of(&self.tenants, &before.tenants),
            classes: of(&self.classes, &before.classes),
        }
    }
}

/// The tenants of whom there is something to say, in this order.
fn sorted(tenants: &BTreeMap<String, Counters>, by: TopSort) -> Vec<(&String, &Counters)> {
    let mut rows: Vec<_> = tenants.iter().filter(|(_, c)| c.is_active()).collect();
    let most = |c: &Counters| match by {
        TopSort::Served => c.get("served"),
        TopSort::Offered => c.get("offered"),
        TopSort::Bytes => c.get("served_bytes"),
        TopSort::Throttled => c.get("throttled"),
        TopSort::Held => c.get("throttled_ns"),
        TopSort::Waiting => c.waiting,
        TopSort::Latency => c.percentile(0.99),
        TopSort::Name => 0,
    };
    // Those with equal numbers are by name.
    rows.sort_by_key(|(_, c)| std::cmp::Reverse(most(c)));
    rows
}

/// What a key asks for while tables follow each other.
#[derive(Debug, PartialEq)]
enum Key {
    Sort(TopSort),
    Quit,
}

fn key(byte: u8) -> Option<Key> {
    match byte {
        b'q' => Some(Key::Quit),
        _ => TopSort::value_variants()
            .iter()
            .find(|by| letter(**by) == byte)
            .map(|by| Key::Sort(*by)),
    }
}

fn letter(by: TopSort) -> u8 {
    match by {
        TopSort::Served => b's',
        TopSort::Offered => b'o',
        TopSort::Bytes => b'b',
        TopSort::Throttled => b't',
        TopSort::Held => b'h',
        TopSort::Waiting => b'w',
        TopSort::Latency => b'l',
        TopSort::Name => b'n',
    }
}

/// A terminal that gives each key at once. Dropping it makes the terminal what it was.
struct Keys {
    before: libc::termios,
}

impl Keys {
    /// If standard input is a terminal: the keys that are pressed, until this is dropped.
    fn begin() -> Option<(Self, mpsc::UnboundedReceiver<Key>)> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let mut before = std::mem::MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the pointer is to room for a `termios`.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, before.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call above has filled it.
        let before = unsafe { before.assume_init() };
        let mut raw = before;
        // Control-C stays what it is.
        raw.c_lflag &= !(libc::ICANON | libc::ECHO);
        (raw.c_cc[libc::VMIN], raw.c_cc[libc::VTIME]) = (1, 0);
        // SAFETY: the pointer is to a live `termios`.
        if unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw) } != 0 {
            return None;
        }
        let (send, keys) = mpsc::unbounded_channel();
        // Reading cannot be ended; the process ends while this waits.
        std::thread::spawn(move || {
            for byte in std::io::stdin().lock().bytes() {
                let Ok(byte) = byte else { break };
                if key(byte).is_some_and(|k| send.send(k).is_err()) {
                    break;
                }
            }
        });
        Some((Keys { before }, keys))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a live `termios`.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &self.before) };
    }
}

/// Rows in columns; the first row is the heading.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(i, (cell, w))| {
            if i == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Prints rows in columns; the first row is the heading.
pub fn print<const N: usize>(rows: &[[String; N]]) {
    print!("{}", table(rows));
}

async fn counters(cluster: &Cluster) -> Result<All> {
    let mut all = All::default();
    cluster.dumps().await?.values().for_each(|dump| all.add(dump));
    qos_fs::dumps(&cluster.rados).await?.iter().for_each(|dump| all.add(dump));
    Ok(all)
}

/// Operations of OSDs, or requests to metadata servers: one is no share of the other.
fn kind(tenant: &str) -> usize {
    usize::from(tenant.starts_with(qos_fs::PREFIX))
}

fn served_in_all<'a>(tenants: impl Iterator<Item = (&'a String, &'a Counters)>) -> [u64; 2] {
    let mut all = [0; 2];
    tenants.for_each(|(name, c)| all[kind(name)] += c.get("served"));
    all
}

/// Counters of so many seconds.
struct Period {
    seconds: f64,
    all: All,
}

impl Period {
    fn each(&self, n: u64) -> f64 {
        n as f64 / self.seconds
    }

    fn part(n: u64, of: u64) -> f64 {
        if of == 0 { 0.0 } else { 100.0 * n as f64 / of as f64 }
    }

    /// Milliseconds that an operation was held by a ceiling, of those that were.
    fn held_ms(c: &Counters) -> f64 {
        c.get("throttled_ns") as f64 / 1e6 / c.get("throttled").max(1) as f64
    }

    fn to_json(&self, by: TopSort) -> Value {
        let served = served_in_all(self.all.tenants.iter());
        let rows = sorted(&self.all.tenants, by).into_iter().map(|(name, c)| {
            json!({
                "tenant": name, "weight": c.weight, "waiting": c.waiting,
                "offered_iops": self.each(c.get("offered")), "served_iops": self.each(c.get("served")), "served_bps": self.each(c.get("served_bytes")),
                "throttled_iops": self.each(c.get("throttled")), "throttled_seconds": c.get("throttled_ns") as f64 / 1e9,
                "by_floor": Self::part(c.get("served_by_floor"), c.get("served")) / 100.0,
                "share": Self::part(c.get("served"), served[kind(name)]) / 100.0,
                "wait_us": {"mean": c.get("waited_ns") / c.get("served").max(1) / 1000, "p50": c.percentile(0.5), "p99": c.percentile(0.99)},
            })
        });
        let classes = self.all.classes.iter().map(|(name, c)| {
            json!({
                "class": name, "waiting": c.waiting, "served_iops": self.each(c.get("served")), "served_bps": self.each(c.get("served_bytes")),
                "by_reservation": Self::part(c.get("served_by_reservation"), c.get("served")) / 100.0,
                "by_floor": Self::part(c.get("served_by_floor"), c.get("served")) / 100.0,
            })
        });
        json!({"seconds": self.seconds, "tenants": rows.collect::<Vec<_>>(), "classes": classes.collect::<Vec<_>>()})
    }

    fn text(&self, by: TopSort) -> String {
        let rows = sorted(&self.all.tenants, by);
        let served = served_in_all(rows.iter().copied());
        let mib =
            |c: &Counters| format!("{:.1}", self.each(c.get("served_bytes")) / f64::from(1 << 20));
        let heading = [
            "TENANT",
            "WEIGHT",
            "OFFERED/s",
            "SERVED/s",
            "MiB/s",
            "SHARE %",
            "BY FLOOR %",
            "THROTTLED/s",
            "HELD ms",
            "WAITING",
            "WAIT p50 us",
            "p99 us",
        ];
        let mut tenants = vec![heading.map(str::to_owned)];
        for (name, c) in rows {
            tenants.push([
                name.clone(),
                c.weight.to_string(),
                format!("{:.0}", self.each(c.get("offered"))),
                format!("{:.0}", self.each(c.get("served"))),
                mib(c),
                format!("{:.1}", Self::part(c.get("served"), served[kind(name)])),
                format!("{:.1}", Self::part(c.get("served_by_floor"), c.get("served"))),
                format!("{:.0}", self.each(c.get("throttled"))),
                format!("{:.1}", Self::held_ms(c)),
                c.waiting.to_string(),
                c.percentile(0.5).to_string(),
                c.percentile(0.99).to_string(),
            ]);
        }
        let mut classes = vec![
            ["CLASS", "SERVED/s", "MiB/s", "BY RESERVATION %", "BY FLOOR %", "WAITING"]
                .map(str::to_owned),
        ];
        for (name, c) in &self.all.classes {
            let part = |what: &str| format!("{:.1}", Self::part(c.get(what), c.get("served")));
            let served = format!("{:.0}", self.each(c.get("served")));
            classes.push([
                name.clone(),
                served,
                mib(c),
                part("served_by_reservation"),
                part("served_by_floor"),
                c.waiting.to_string(),
            ]);
        }
        format!("{}\n{}", table(&tenants), table(&classes))
    }
}

fn show(period: &Period, by: TopSort, as_json: bool, live: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", period.to_json(by))?;
    } else if live {
        let name = by.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
        // Clears the terminal.
        writeln!(out, "\x1b[H\x1b[2J{}\nsorted by {name}; {KEYS}", period.text(by))?;
    } else {
        write!(out, "{}", period.text(by))?;
    }
    Ok(out.flush()?)
}

/// Says what keys do.
const KEYS: &str =
    "s served, o offered, b bytes, t throttled, h held, w waiting, l latency, n name, q quit";

/// Runs the command.
pub async fn run(
    cluster: &Cluster,
    once: bool,
    period: f64,
    by: TopSort,
    as_json: bool,
) -> Result<()> {
    let period = Duration::try_from_secs_f64(period.max(0.1))?;
    let live = !once && !as_json && std::io::stdout().is_terminal();
    if !live {
        return follow(cluster, once, period, by, as_json, None).await;
    }
    // Whatever ends this, the terminal is made what it was.
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (_terminal, keys) = Keys::begin().unzip();
    tokio::select! {
        done = follow(cluster, once, period, by, as_json, Some(keys)) => done,
        _ = interrupted.recv() => Ok(()),
        _ = terminated.recv() => Ok(()),
    }
}

type Pressed = Option<mpsc::UnboundedReceiver<Key>>;

/// Shows one period after the other. On a terminal, `live` has the keys that are pressed, if there
/// are any.
async fn follow(
    cluster: &Cluster,
    once: bool,
    period: Duration,
    mut by: TopSort,
    as_json: bool,
    live: Option<Pressed>,
) -> Result<()> {
    let (is_live, mut keys) = (live.is_some(), live.flatten());
    let (mut before, mut at) = (counters(cluster).await?, Instant::now());
    let mut shown: Option<Period> = None;
    loop {
        let mut due = std::pin::pin!(tokio::time::sleep(period));
        loop {
            let pressed = async {
                match &mut keys {
                    Some(keys) => keys.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut due => break,
                pressed = pressed => match pressed {
                    Some(Key::Sort(wanted)) => by = wanted,
                    Some(Key::Quit) => return Ok(()),
                    // The terminal is gone.
                    None => keys = None,
                },
            }
            if let Some(shown) = &shown {
                show(shown, by, as_json, is_live)?;
            }
        }
        let (after, now) = (counters(cluster).await?, Instant::now());
        let period = Period { seconds: (now - at).as_secs_f64(), all: after.since(&before) };
        show(&period, by, as_json, is_live)?;
        if once {
            return Ok(());
        }
        shown = Some(period);
        (before, at) = (after, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_percentiles_are_of_what_came_since() {
        let dump = |served: u64, waits: &[u64]| json!({"tenants": [{"tenant": "a", "weight": 100, "served": served, "waiting": 1, "waits_log2_us": waits}]});
        let (mut before, mut after) = (All::default(), All::default());
        before.add(&dump(10, &[10]));
        for _ in 0..2 {
            after.add(&dump(60, &[10, 0, 48, 2]));
        }
        let d = &after.since(&before).tenants["a"];
        assert_eq!((d.get("served"), d.waiting), (110, 2));
        assert_eq!(
            (d.percentile(0.5), d.percentile(0.99), Counters::default().percentile(0.5)),
            (4, 8, 0)
        );
    }

    #[test]
    fn rows_are_sorted_by_what_is_asked_for() {
        let t = |name: &str,
                 served: u64,
                 held: u64,
                 throttled: u64,
                 waiting: u64,
                 waits: &[u64]| {
            json!({"tenant": name, "offered": 100 - served, "served": served, "served_bytes": served % 3, "throttled": throttled, "throttled_ns": held,
                   "over_ceiling": waiting, "waits_log2_us": waits})
        };
        let idle = json!({"tenant": "idle"});
        let mut all = All::default();
        all.add(&json!({"tenants": [t("b", 5, 70, 1, 9, &[5]), t("a", 5, 0, 0, 0, &[0, 0, 5]), t("c", 7, 10, 9, 1, &[0, 7]), idle]}));
        let names =
            |by| sorted(&all.tenants, by).iter().map(|(name, _)| name.as_str()).collect::<String>();
        let orders = TopSort::value_variants().iter().map(|by| names(*by)).collect::<Vec<_>>();
        assert_eq!(orders, ["cab", "abc", "abc", "cba", "bca", "bca", "acb", "abc"]);
        // Every order has a key of its own, and the line on the screen says it.
        for by in TopSort::value_variants() {
            assert_eq!(key(letter(*by)), Some(Key::Sort(*by)));
            let said =
                format!("{} {}", letter(*by) as char, by.to_possible_value().unwrap().get_name());
            assert!(KEYS.contains(&said), "{said}");
        }
        assert_eq!((key(b'q'), key(b'x')), (Some(Key::Quit), None));
    }

    #[test]
    fn classes_and_times_at_ceilings_are_shown() {
        let dump = json!({
            "tenants": [{"tenant": "a", "offered": 40, "served": 20, "throttled": 10, "throttled_ns": 250_000_000, "over_ceiling": 3}],
            "classes": {"client": {"served": 20}, "background_recovery": {"served": 8, "served_by_reservation": 2, "served_bytes": 4 << 20, "waiting": 5}},
        });
        let mut all = All::default();
        all.add(&dump);
        let period = Period { seconds: 2.0, all };
        let text = period.text(TopSort::Held);
        let line = |name: &str| {
            text.lines()
                .find(|l| l.starts_with(name))
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
        };
        assert_eq!(line("a ")[2..10], ["20", "10", "0.0", "100.0", "0.0", "5", "25.0", "3"]);
        assert_eq!(line("background_recovery")[1..], ["4", "2.0", "25.0", "0.0", "5"]);
        let v = period.to_json(TopSort::Name);
        assert_eq!(
            (&v["tenants"][0]["throttled_seconds"], &v["classes"][0]["served_iops"]),
            (&json!(0.25), &json!(4.0))
        );
    }
}
