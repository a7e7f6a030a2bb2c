//! Where the time of a command went, as a table at its end.

use anyhow::Result;
use std::time::{Duration, Instant};

/// Steps and how long they took.
#[derive(Default)]
pub struct Timing {
    steps: Vec<(String, Duration)>,
}

impl Timing {
    /// Runs a step and notes its time, whether it succeeds or not.
    pub fn time<T>(&mut self, what: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let result = step();
        self.add(what, started.elapsed());
        result
    }

    /// Notes a step that was timed elsewhere.
    pub fn add(&mut self, what: &str, took: Duration) {
        self.steps.push((what.to_owned(), took));
    }

    /// Notes the steps of another, which ran beside these.
    pub fn append(&mut self, other: Timing) {
        self.steps.extend(other.steps);
    }

    /// The table: steps in their order, and `whole`, which is less than the sum where steps ran
    /// side by side.
    pub fn table(&self, whole: Duration) -> String {
        let width = self.steps.iter().map(|(what, _)| what.len()).max().unwrap_or(0).max(5);
        let mut table = String::from("== where the time went\n");
        for (what, took) in &self.steps {
            table.push_str(&row(what, width, *took));
        }
        table + &row("whole", width, whole)
    }
}

fn row(what: &str, width: usize, took: Duration) -> String {
    let tenths = took.as_millis() / 100;
    let (minutes, seconds) = (tenths / 600, tenths % 600);
    format!("   {what:width$}  {minutes:3} min {:2}.{} s\n", seconds / 10, seconds % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_step_and_the_whole() {
        let mut timing = Timing::default();
        timing.time("build", || Ok(())).unwrap();
        assert!(timing.time("fails", || -> Result<()> { anyhow::bail!("no") }).is_err());
        let mut beside = Timing::default();
        beside.add("client tests", Duration::from_millis(754_321));
        timing.append(beside);
        let table = timing.table(Duration::from_secs(65));
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[2].starts_with("   fails "));
        assert_eq!(lines[3], "   client tests   12 min 34.3 s");
        assert_eq!(lines[4], "   whole           1 min  5.0 s");
    }
}
