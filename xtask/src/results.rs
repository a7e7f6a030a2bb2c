//! The pages of results: written from the records of `bench/records`, so that pages and records
//! cannot tell different things.
//!
//! A record is one run of one command on one machine: the source of its figures, the goals that it
//! measures, and the rows of one table. Verdicts and ratios are computed here.

use crate::shell::root;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What the pages are made from, relative to the checkout.
const RECORDS: &str = "bench/records";

/// A page that is longer is a log of experiments; those belong to commits.
const PAGE_LINES_MAX: usize = 150;

/// Columns of prose, as `tidy` wants them.
const COLUMNS_MAX: usize = 100;

/// A page of results.
struct Page {
    /// Where it stands, relative to the checkout.
    path: &'static str,
    head: &'static str,
    /// Its sections, in order: the name in records, the heading.
    sections: &'static [(&'static str, &'static str)],
}

const PAGES: [Page; 3] = [
    Page {
        path: "docs/benchmarks.md",
        head: "\
# Results

Ratios of two measurements of the same run, on the same machine: the ratios are worth more than any
figure by itself, and on a shared machine a difference under a quarter in one pass says nothing. Of
latencies and processor time less is better. This page is written by `cargo xtask docs` from
[bench/records](../bench/records), which also name date and machine; the commit is the one that
brought the figures into the tree. A stock Ceph is 16.2.15 from Debian's packages, with as many
daemons on the same disk. There are pages of their own for
[erasure coding](benchmarks-erasure.md), for [S3 and file systems](benchmarks-services.md) and for
the [load study](load-study.md).
",
        sections: &[
            ("rados", "RADOS"),
            ("rbd", "RBD"),
            ("background", "Background work"),
            ("tenants", "Tenants"),
            ("failover", "Failover, start and rest"),
            ("recovery", "Recovery"),
        ],
    },
    Page {
        path: "docs/benchmarks-erasure.md",
        head: "\
# Results: erasure coding

Ratios of two measurements of the same run, on the same machine, as on the
[page for RADOS and RBD](benchmarks.md), which says how to read them. Of latencies, processor time
and bytes less is better. This page is written by `cargo xtask docs` from
[bench/records](../bench/records).
",
        sections: &[("erasure-coding", "Erasure coding")],
    },
    Page {
        path: "docs/benchmarks-services.md",
        head: "\
# Results: S3 and file systems

Ratios of two measurements of the same run, on the same machine, as on the
[page for RADOS and RBD](benchmarks.md), which says how to read them. Of latencies, processor time
and bytes less is better. This page is written by `cargo xtask docs` from
[bench/records](../bench/records).
",
        sections: &[("s3", "S3"), ("file-systems", "File systems")],
    },
];

/// A file of `bench/records`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The name of the file, without `.json`.
    #[serde(skip)]
    name: String,
    /// One of a page's sections.
    section: String,
    /// The commit that brought the figures into the tree.
    commit: String,
    /// The day of the run: `2026-11-22`.
    date: String,
    machine: String,
    command: String,
    #[serde(default)]
    goals: Vec<Goal>,
    /// Heads of the table's columns. A record without rows has goals only.
    #[serde(default)]
    columns: Vec<String>,
    /// Cells: a text, a number, or `[ours, theirs]`, of which the ratio is shown.
    #[serde(default)]
    rows: Vec<Vec<Value>>,
}

/// A bound, and what was measured: a name and a number, or two of which the ratio counts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goal {
    goal: String,
    /// With the space before it, if there is one.
    #[serde(default)]
    unit: String,
    at_most: Option<f64>,
    at_least: Option<f64>,
    measured: Map<String, Value>,
}

impl Goal {
    fn keeps(&self, measured: f64) -> bool {
        self.at_most.is_none_or(|most| measured <= most)
            && self.at_least.is_none_or(|least| measured >= least)
    }

    /// The goal with its bound: "p99, of that alone: at most 1.25".
    fn text(&self) -> String {
        let (word, bound) = match (self.at_most, self.at_least) {
            (Some(most), _) => ("at most", most),
            (None, least) => ("at least", least.unwrap_or_default()),
        };
        format!("{}: {word} {}{}", self.goal, short(bound), self.unit)
    }

    /// Measurements: all, or those that miss the goal.
    fn measured(&self, misses_only: bool) -> String {
        let mut shown = Vec::new();
        for (what, value) in &self.measured {
            let measured = number(value).unwrap_or(f64::NAN);
            if misses_only && self.keeps(measured) {
                continue;
            }
            let point = if what.is_empty() { String::new() } else { format!(" ({what})") };
            shown.push(format!("{}{}{point}", short(measured), self.unit));
        }
        shown.join(", ")
    }

    fn met(&self) -> bool {
        self.measured.values().all(|v| number(v).is_some_and(|n| self.keeps(n)))
    }
}

/// A number as it is, or the ratio of two.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Array(pair) => match &pair[..] {
            [ours, theirs] => {
                Some(ours.as_f64()? / theirs.as_f64()?).filter(|ratio| ratio.is_finite())
            }
            _ => None,
        },
        value => value.as_f64(),
    }
}

/// Three digits that count, without zeroes at the end; whole numbers are whole.
fn short(number: f64) -> String {
    let digits = match number.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        n if n >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{number:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Reads a record, or says what is wrong with it.
fn parse(name: &str, text: &str) -> Result<Record> {
    let mut record: Record = serde_json::from_str(text)?;
    name.clone_into(&mut record.name);
    let known = PAGES.iter().flat_map(|p| p.sections).map(|s| s.0).collect::<Vec<_>>();
    ensure!(
        known.contains(&record.section.as_str()),
        "no section is called `{}`; sections are {}",
        record.section,
        known.join(", ")
    );
    let hex = record.commit.bytes().all(|b| b.is_ascii_hexdigit());
    ensure!(hex && record.commit.len() >= 7, "`{}` is no commit", record.commit);
    let day = record.date.split('-').map(str::len).eq([4, 2, 2])
        && record.date.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    ensure!(day, "`{}` is no date like 2026-11-22", record.date);
    ensure!(!record.command.is_empty() && !record.machine.is_empty(), "no command, or no machine");
    ensure!(!record.goals.is_empty() || !record.rows.is_empty(), "neither goals nor rows");
    ensure!(record.rows.is_empty() || !record.columns.is_empty(), "rows, and no columns");
    for goal in &record.goals {
        let what = &goal.goal;
        ensure!(
            goal.at_most.is_some() != goal.at_least.is_some(),
            "`{what}`: expected either at_most or at_least"
        );
        ensure!(!goal.measured.is_empty(), "`{what}`: nothing was measured");
        for (point, value) in &goal.measured {
            ensure!(
                number(value).is_some(),
                "`{what}`, `{point}`: expected a number or [ours, theirs], found {value}"
            );
        }
    }
    for row in &record.rows {
        ensure!(
            row.len() == record.columns.len(),
            "a row has {} cells, and there are {} columns",
            row.len(),
            record.columns.len()
        );
        for cell in row {
            let shown = cell.is_string() || number(cell).is_some();
            ensure!(shown, "expected a text, a number or [ours, theirs], found {cell}");
        }
    }
    Ok(record)
}

/// All records of a folder, by name.
fn load(folder: &Path) -> Result<Vec<Record>> {
    let mut paths = fs::read_dir(folder)
        .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("cannot list {}", folder.display()))?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            fs::read_to_string(path)
                .map_err(anyhow::Error::from)
                .and_then(|text| parse(&name, &text))
                .with_context(|| path.display().to_string())
        })
        .collect()
}

/// The text of a page: what these records say of its sections.
fn text(of: &Page, records: &[Record]) -> String {
    let mut page = String::from(of.head);
    let in_order = || of.sections.iter().flat_map(|s| records.iter().filter(|r| r.section == s.0));
    page.push_str("\n## Goals\n\n| goal | measured | met | record |\n| --- | --- | --- | --- |\n");
    let mut misses = String::new();
    for record in in_order() {
        for goal in &record.goals {
            let met = if goal.met() { "yes" } else { "no" };
            let (name, text) = (&record.name, goal.text());
            let measured = goal.measured(false);
            let source = format!("[{name}](../{RECORDS}/{name}.json)");
            let _ = writeln!(page, "| {text} | {measured} | {met} | {source} |");
            if !goal.met() {
                let miss = format!("{name}: {}: {}", goal.goal, goal.measured(true));
                misses.push_str(&wrapped("* ", &miss));
            }
        }
    }
    page.push_str("\n## Misses\n\n");
    page.push_str(if misses.is_empty() { "None.\n" } else { &misses });
    let mut without = Vec::new();
    for (section, heading) in of.sections {
        let mut of_section = records.iter().filter(|r| r.section == *section).peekable();
        if of_section.peek().is_none() {
            without.push(*heading);
            continue;
        }
        let _ = write!(page, "\n## {heading}\n");
        for record in of_section.filter(|r| !r.rows.is_empty()) {
            page.push('\n');
            page.push_str(&table(record));
        }
    }
    if !without.is_empty() {
        page.push_str("\n## Without a record\n\n");
        without.iter().for_each(|heading| {
            let _ = writeln!(page, "* {heading}: no record.");
        });
    }
    page
}

/// A record's table. The source stands in the head of the first column.
fn table(record: &Record) -> String {
    let mut heads = record.columns.clone();
    heads[0] += &format!(" (`{}`, {})", record.command, record.commit);
    let mut table = format!("| {} |\n|", heads.join(" | "));
    table.push_str(&" --- |".repeat(record.columns.len()));
    table.push('\n');
    for row in &record.rows {
        table.push('|');
        for cell in row {
            let text = match cell {
                Value::String(text) => text.clone(),
                cell => short(number(cell).unwrap_or(f64::NAN)),
            };
            let _ = write!(table, " {text}{}|", if text.is_empty() { "" } else { " " });
        }
        table.push('\n');
    }
    table
}

/// An item of a list, in lines of [`COLUMNS_MAX`].
fn wrapped(mark: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::from(mark.trim_end());
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS_MAX {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(mark.len() - 1);
        }
        line.push(' ');
        line.push_str(word);
    }
    lines + &line + "\n"
}

/// Writes the pages, or checks them.
pub fn results(check: bool) -> Result<()> {
    let records = load(&root().join(RECORDS))?;
    for page in &PAGES {
        let (path, text) = (page.path, text(page, &records));
        let lines = text.lines().count();
        if lines > PAGE_LINES_MAX {
            bail!(
                "{path} would have {lines} lines, and {PAGE_LINES_MAX} fit: drop rows, or records \
                 that a later one replaces, from {RECORDS}"
            );
        }
        let file = root().join(path);
        if !check {
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        } else if fs::read_to_string(&file).unwrap_or_default() != text {
            bail!("{path} is not what {RECORDS} says: run `cargo xtask docs`");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{
        "section": "rbd", "commit": "0123abc", "date": "2026-11-22", "machine": "m", "command": "c",
        "goals": [{"goal": "CPU", "at_most": 0.125, "measured": {"QD 1": [1, 10], "QD 32": [1, 5]}},
                  {"goal": "part", "unit": " %", "at_least": 48, "measured": {"": 48}}],
        "columns": ["test", "IOPS"], "rows": [["write", [3, 2]], ["none", ""]]
    }"#;

    fn refused(from: &str, to: &str) -> String {
        let text = RECORD.replacen(from, to, 1);
        assert_ne!(text, RECORD, "{from}");
        parse("x", &text).err().expect(to).to_string()
    }

    #[test]
    fn a_page_shows_goals_misses_and_ratios() {
        let page = text(&PAGES[0], &[parse("x", RECORD).unwrap()]);
        for line in [
            "| CPU: at most 0.125 | 0.1 (QD 1), 0.2 (QD 32) | no | [x](../bench/records/x.json) |",
            "| part: at least 48 % | 48 % | yes | [x](../bench/records/x.json) |",
            "* x: CPU: 0.2 (QD 32)",
            "| test (`c`, 0123abc) | IOPS |",
            "| write | 1.5 |",
            "| none | |",
            "* RADOS: no record.",
        ] {
            assert!(page.lines().any(|l| l == line), "no line {line}\n{page}");
        }
        assert_eq!(page.matches("\n* x: ").count(), 1);
        assert!(!page.contains("* RBD: no record."));
        // A record stands on the page that has its section.
        let other = text(&PAGES[2], &[parse("x", RECORD).unwrap()]);
        assert!(!other.contains("x.json") && other.contains("* S3: no record."), "{other}");
    }

    #[test]
    fn a_bound_is_kept_by_what_equals_it() {
        let goal = |measured: &str| {
            let text = RECORD.replacen("[1, 10]", measured, 1).replacen("[1, 5]", "[1, 8]", 1);
            parse("x", &text).unwrap().goals[0].met()
        };
        assert!(goal("[1, 8]"));
        assert!(!goal("0.126"));
    }

    #[test]
    fn records_that_say_less_than_they_must_are_refused() {
        assert!(refused("rbd", "disks").contains("no section is called `disks`"));
        assert!(refused("0123abc", "main").contains("is no commit"));
        assert!(refused("2026-11-22", "22.11.2026").contains("is no date"));
        assert!(refused("\"at_most\": 0.125,", "").contains("either at_most or at_least"));
        assert!(refused("{\"\": 48}", "{}").contains("nothing was measured"));
        assert!(refused("[1, 10]", "[1, 0]").contains("expected a number"));
        assert!(refused("[3, 2]", "[3, 2], 4").contains("3 cells"));
        assert!(refused("[3, 2]", "[3, 2, 1]").contains("expected a text"));
        assert!(refused("\"machine\": \"m\"", "\"machine\": \"\"").contains("no machine"));
        assert!(refused("\"machine\"", "\"engine\"").contains("engine"));
    }

    #[test]
    fn numbers_have_three_digits() {
        for (number, text) in [
            (0.130_78, "0.131"),
            (0.005_263, "0.0053"),
            (4.8511, "4.85"),
            (14.624, "14.6"),
            (1000.0, "1000"),
            (300.0, "300"),
            (2.0, "2"),
            (0.0, "0"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn items_are_wrapped() {
        let text = wrapped("* ", &"word ".repeat(40));
        assert!(text.lines().all(|l| l.chars().count() <= COLUMNS_MAX), "{text}");
        assert!(text.starts_with("* word word") && text.contains("\n  word"));
    }

    #[test]
    fn the_pages_in_the_tree_are_fresh() {
        results(true).unwrap();
    }
}
