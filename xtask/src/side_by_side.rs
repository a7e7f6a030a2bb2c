//! Work in a few workers, and a second chance alone for what failed.
//!
//! The tests are of real processes and real threads, on a machine that may be busy with other work.
//! What failed is therefore run once more, with the machine to itself; the output of the first run
//! is shown all the same, and the summary names it. If much fails, the machine is not the reason,
//! and nothing is run again. Several kinds of work may go on beside each other: what is to be alone
//! waits until all of them have had their first run.

use crate::timing::Timing;
use anyhow::{Result, bail};
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Mutex, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// If more than these failed, none is run again.
const AGAIN_AT_MOST: usize = 3;

/// How much of a reason is told: lines, and characters of each.
const REASON_LINES: usize = 8;
const REASON_WIDTH: usize = 300;

/// Held for reading by work that others may be beside, for writing by work that is alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// As long as this is held, no work runs alone.
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().expect("no panics in workers")
}

/// Which run of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// Beside others.
    First,
    /// Alone.
    Again,
}

/// How a piece of work ended.
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not so: the few lines of its output that say most.
    Failed(String),
}

impl Outcome {
    /// Of work that prints `output`, in which the lines that say why it failed are one that begins
    /// with `mark` and the `more` after it.
    pub fn of(passed: bool, output: &str, mark: &str, more: usize) -> Outcome {
        if passed {
            return Outcome::Passed;
        }
        let (mut said, mut follow) = (Vec::new(), 0);
        for line in output.lines() {
            if line.trim_start().starts_with(mark) {
                follow = more + 1;
            }
            if follow > 0 && said.len() < REASON_LINES {
                follow -= 1;
                said.push(line.chars().take(REASON_WIDTH).collect::<String>());
            }
        }
        Outcome::Failed(said.join("\n"))
    }
}

/// Pieces of work and how to do them.
pub struct SideBySide<'a> {
    /// Name in messages and in the table of times.
    pub what: &'a str,
    /// How many at the same time.
    pub jobs: usize,
    /// A piece that fails once has failed.
    pub strict: bool,
    /// How many rows of the table of times at most, the longest first.
    pub rows: usize,
}

impl SideBySide<'_> {
    /// Runs every item, in this order; an error names those that failed, with their reasons. `one`
    /// prints what there is to see.
    pub fn run<T: Display + Send>(
        &self,
        items: Vec<T>,
        timing: &mut Timing,
        one: impl Fn(&T, Run) -> Result<Outcome> + Sync,
    ) -> Result<()> {
        let started = Instant::now();
        let beside = beside_others();
        let count = items.len();
        let waiting = Mutex::new(VecDeque::from(items));
        let failed = Mutex::new(Vec::new());
        let took = Mutex::new(Vec::new());
        let result: Result<()> = std::thread::scope(|scope| {
            let work = || -> Result<()> {
                loop {
                    let Some(item) = waiting.lock().expect("no panics in workers").pop_front()
                    else {
                        return Ok(());
                    };
                    let began = Instant::now();
                    let outcome = one(&item, Run::First)?;
                    took.lock()
                        .expect("no panics in workers")
                        .push((item.to_string(), began.elapsed()));
                    if let Outcome::Failed(reason) = outcome {
                        failed.lock().expect("no panics in workers").push((item, reason));
                    }
                }
            };
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|w| w.join().expect("no panics in workers"))
        });
        timing.add(self.what, started.elapsed());
        self.note(took.into_inner().expect("no panics in workers"), timing);
        drop(beside);
        result?;
        self.again(failed.into_inner().expect("no panics in workers"), count, one)
    }

    fn note(&self, mut took: Vec<(String, Duration)>, timing: &mut Timing) {
        took.sort_by_key(|(_, t)| std::cmp::Reverse(*t));
        took.iter().take(self.rows).for_each(|(item, t)| timing.add(&format!("  {item}"), *t));
    }

    fn again<T: Display>(
        &self,
        failed: Vec<(T, String)>,
        count: usize,
        one: impl Fn(&T, Run) -> Result<Outcome>,
    ) -> Result<()> {
        let first = reasons(&failed);
        let mut still = Vec::new();
        if self.strict || failed.len() > AGAIN_AT_MOST {
            still = failed;
        } else {
            for (item, _) in failed {
                let _alone = MACHINE.write().expect("no panics in workers");
                eprintln!("== once more, alone: {item}");
                if let Outcome::Failed(reason) = one(&item, Run::Again)? {
                    still.push((item, reason));
                }
            }
        }
        if !still.is_empty() {
            bail!("{}: {} of {count} failed:{}", self.what, still.len(), reasons(&still));
        }
        if !first.is_empty() {
            eprintln!("== {}: passed only when run alone:{first}", self.what);
        }
        Ok(())
    }
}

/// The items that failed, one a line, each with its reason below it.
fn reasons<T: Display>(failed: &[(T, String)]) -> String {
    let mut lines: Vec<_> = failed
        .iter()
        .map(|(item, reason)| format!("\n  {item}\n      {}", reason.replace('\n', "\n      ")))
        .collect();
    lines.sort();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Runs items that fail as often as `fails` says; the result, and how often each was run.
    fn run(strict: bool, fails: &[(&'static str, u32)]) -> (Result<()>, BTreeMap<String, u32>) {
        let runs = Mutex::new(BTreeMap::new());
        let all = SideBySide { what: "items", jobs: 2, strict, rows: 1 };
        let fails: BTreeMap<_, _> = fails.iter().copied().collect();
        let result =
            all.run(fails.keys().copied().collect(), &mut Timing::default(), |item, which| {
                let mut runs = runs.lock().unwrap();
                let run: &mut u32 = runs.entry((*item).to_owned()).or_default();
                assert_eq!(which, if *run == 0 { Run::First } else { Run::Again });
                *run += 1;
                let said = format!("{item} begins\nE    run {run}\nends");
                Ok(Outcome::of(*run > fails[item], &said, "E ", 0))
            });
        (result, runs.into_inner().unwrap())
    }

    #[test]
    fn an_item_that_fails_has_a_second_run_and_no_third() {
        let (result, runs) = run(false, &[("good", 0), ("flaky", 1)]);
        result.unwrap();
        assert_eq!(runs["good"], 1);
        assert_eq!(runs["flaky"], 2);
        let (result, runs) = run(false, &[("good", 0), ("bad", 2)]);
        let told = "items: 1 of 2 failed:\n  bad\n      E    run 2";
        assert_eq!(result.unwrap_err().to_string(), told);
        assert_eq!(runs["bad"], 2);
    }

    #[test]
    fn many_failures_or_strictness_leave_no_second_run() {
        let (result, _) = run(true, &[("flaky", 1)]);
        result.unwrap_err();
        let many = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
        let (result, runs) = run(false, &many);
        let told: String =
            ["a", "b", "c", "d"].map(|n| format!("\n  {n}\n      E    run 1")).concat();
        assert_eq!(result.unwrap_err().to_string(), format!("items: 4 of 4 failed:{told}"));
        assert!(runs.values().all(|n| *n == 1));
    }
}
