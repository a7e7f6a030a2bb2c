//! What every tenant got, against what is fair and what was promised.

use crate::scenario::{PHASES, Phase, Plan, SECOND, Scenario};
use std::fmt;
use std::time::Duration;

/// So many times in a second it is looked how near rates are to what is fair.
const TICKS: u64 = 4;

/// What was counted while a scenario ran. Times are since its beginning, in nanoseconds.
#[derive(Default)]
pub struct Seen {
    /// Of each tick, of each tenant.
    asked: Vec<Vec<u32>>,
    served: Vec<Vec<u32>>,
    /// Of each second, of each OSD: bytes to the manager, and from it.
    bytes: [Vec<Vec<u64>>; 2],
    messages: [Vec<u64>; 2],
    /// Of each second.
    worked: Vec<Duration>,
    /// How long it ran.
    pub took: Duration,
}

impl Seen {
    /// For so many tenants, OSDs and seconds.
    pub fn new(tenants: usize, osds: usize, seconds: usize) -> Self {
        let ticks = || vec![vec![0; tenants]; seconds * TICKS as usize];
        let bytes = || vec![vec![0; osds]; seconds];
        Seen {
            asked: ticks(),
            served: ticks(),
            bytes: [bytes(), bytes()],
            messages: [vec![0; seconds], vec![0; seconds]],
            worked: vec![Duration::ZERO; seconds],
            took: Duration::ZERO,
        }
    }

    fn tick(at: u64) -> usize {
        (at * TICKS / SECOND) as usize
    }

    /// A client wants something.
    pub fn asked(&mut self, at: u64, tenant: usize) {
        self.asked[Seen::tick(at)][tenant] += 1;
    }

    /// A scheduler let it in.
    pub fn served(&mut self, at: u64, tenant: usize) {
        self.served[Seen::tick(at)][tenant] += 1;
    }

    /// A message went to the manager, or from it.
    pub fn sent(&mut self, at: u64, osd: usize, bytes: usize, to_manager: bool) {
        let (way, second) = (usize::from(!to_manager), (at / SECOND) as usize);
        self.bytes[way][second][osd] += bytes as u64;
        self.messages[way][second] += 1;
    }

    /// The coordinator needed so much of this machine's processor.
    pub fn worked(&mut self, at: u64, took: Duration) {
        self.worked[(at / SECOND) as usize] += took;
    }

    fn sum(ticks: &[Vec<u32>], tenant: usize) -> f64 {
        ticks.iter().map(|t| f64::from(t[tenant])).sum()
    }
}

/// A tenant that got something else than is fair.
#[derive(Clone, Copy, Debug)]
pub struct Odd {
    /// Its number.
    pub tenant: usize,
    /// Operations each second.
    pub got: f64,
    /// What is fair.
    pub fair: f64,
    /// What it asked for.
    pub asks: f64,
    /// Its floor and ceiling.
    pub promised: [f64; 2],
    /// On so many OSDs.
    pub osds: usize,
}

/// A phase of a run.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    /// Which.
    pub phase: Phase,
    /// Jain's index of what tenants got by what is fair for them, over the second half.
    pub jain: f64,
    /// All that was served in the second half, by all that is fair.
    pub served: f64,
    /// Tenants and seconds in which less than the floor was asked for, or the floor was kept, in
    /// parts of all.
    pub floors: f64,
    /// Tenants and seconds in which the ceiling was kept, in parts of all.
    pub ceilings: f64,
    /// Tenants that were kept below their ceiling over the second half together.
    pub ceilings_together: f64,
    /// The coordinator's time for a second.
    pub cpu: Duration,
    /// Bytes from an OSD to the manager and back, each second, on average.
    pub bytes: [f64; 2],
    /// The most of an OSD in a second.
    pub most_bytes: [u64; 2],
    /// The tenant that is furthest from what is fair.
    pub odd: Vec<Odd>,
}

/// What tenants asked for, got and should have got in a run.
pub struct Report {
    /// By phase.
    pub phases: Vec<PhaseReport>,
    /// How long after the shift rates were as near to what is fair as they were at its end; nothing
    /// if they never were.
    pub converged: Option<f64>,
    /// Operations.
    pub operations: u64,
    /// How long it took.
    pub took: Duration,
    /// Tenants with a floor that fits, with one that does not because others' floors are on the
    /// same OSDs, with a ceiling.
    pub promised: [usize; 3],
}

/// Jain's index.
pub fn jain(x: &[f64]) -> f64 {
    let (sum, squares) = x.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    if squares > 0.0 { sum * sum / (x.len() as f64 * squares) } else { 1.0 }
}

/// Sums streams by tenant.
fn by_tenant(plan: &Plan, after: bool, rates: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; plan.tenants.len()];
    for (s, rate) in plan.streams[usize::from(after)].iter().zip(rates) {
        sums[s.tenant] += rate;
    }
    sums
}

impl Report {
    /// From what was seen.
    pub fn new(s: &Scenario, plan: &Plan, fair: &[Vec<f64>; 2], seen: Seen) -> Self {
        let fair = [by_tenant(plan, false, &fair[0]), by_tenant(plan, true, &fair[1])];
        let asks = |after: bool| {
            let rates: Vec<f64> = plan.streams[usize::from(after)].iter().map(|s| s.rate).collect();
            by_tenant(plan, after, &rates)
        };
        let asks = [asks(false), asks(true)];
        let fits =
            |t: usize| (0..2).all(|i| fair[i][t] >= 0.98 * plan.tenants[t].floor.min(asks[i][t]));
        let mut phases = Vec::new();
        let ticks = (s.phase * TICKS) as usize;
        for (at, phase) in PHASES.into_iter().enumerate() {
            let fair = &fair[usize::from(at > 0)];
            let all = at * ticks..(at + 1) * ticks;
            let half = all.start + ticks / 2..all.end;
            let span = half.len() as f64 / TICKS as f64;
            let got: Vec<f64> =
                (0..s.tenants).map(|t| Seen::sum(&seen.served[half.clone()], t)).collect();
            let wanted: Vec<f64> = fair.iter().map(|f| f * span).collect();
            // Of tenants that are due a few operations chance decides.
            let x: Vec<f64> =
                got.iter().zip(&wanted).filter(|(_, w)| **w >= 20.0).map(|(g, w)| g / w).collect();
            let (mut floors, mut ceilings, mut together) = ([0u64; 2], [0u64; 2], [0u64; 2]);
            // The first seconds of a start or a shift are what convergence is about.
            let from = if at < 2 { half.start } else { all.start };
            for t in 0..s.tenants {
                let tenant = &plan.tenants[t];
                for second in (from..all.end).step_by(TICKS as usize) {
                    let second = second..second + TICKS as usize;
                    let served = Seen::sum(&seen.served[second.clone()], t);
                    // What came is asked for, and so is what has come before and waits.
                    let asked = Seen::sum(&seen.asked[second.clone()], t).max(
                        Seen::sum(&seen.asked[second.start - TICKS as usize..second.start], t)
                            .min(asks[usize::from(at > 0)][t]),
                    );
                    if tenant.floor > 0.0 && fits(t) {
                        floors[0] += 1;
                        floors[1] += u64::from(served >= 0.95 * tenant.floor.min(asked) - 2.0);
                    }
                    if tenant.ceiling > 0.0 {
                        ceilings[0] += 1;
                        // The slack of a fifth of a second, and operations are whole.
                        ceilings[1] += u64::from(served <= 1.2 * tenant.ceiling + 2.0);
                    }
                }
                if tenant.ceiling > 0.0 {
                    together[0] += 1;
                    together[1] += u64::from(got[t] <= tenant.ceiling * (span + 0.2) + 2.0);
                }
            }
            let part =
                |[all, kept]: [u64; 2]| if all == 0 { 1.0 } else { kept as f64 / all as f64 };
            let seconds = at * s.phase as usize..(at + 1) * s.phase as usize;
            let late = seconds.start + s.phase as usize / 2..seconds.end;
            let mean = |way: usize| {
                seen.bytes[way][late.clone()].iter().flatten().sum::<u64>() as f64
                    / (late.len() * s.osds) as f64
            };
            let most = |way: usize| {
                seen.bytes[way][seconds.clone()].iter().flatten().copied().max().unwrap_or(0)
            };
            phases.push(PhaseReport {
                phase,
                jain: jain(&x),
                served: got.iter().sum::<f64>() / wanted.iter().sum::<f64>(),
                floors: part(floors),
                ceilings: part(ceilings),
                ceilings_together: part(together),
                cpu: seen.worked[late.clone()].iter().sum::<Duration>() / late.len() as u32,
                bytes: [mean(0), mean(1)],
                most_bytes: [most(0), most(1)],
                odd: odd(plan, at > 0, &asks[usize::from(at > 0)], fair, &got, span),
            });
        }
        let count = |f: &dyn Fn(usize) -> bool| (0..s.tenants).filter(|t| f(*t)).count();
        let floor = |t: usize| plan.tenants[t].floor > 0.0;
        Report {
            phases,
            converged: converged(s, &fair[1], &seen),
            operations: seen.served.iter().flatten().map(|n| u64::from(*n)).sum(),
            took: seen.took,
            promised: [
                count(&|t| floor(t) && fits(t)),
                count(&|t| floor(t) && !fits(t)),
                count(&|t| plan.tenants[t].ceiling > 0.0),
            ],
        }
    }
}

/// The ten tenants that are furthest from what is fair.
fn odd(plan: &Plan, after: bool, asks: &[f64], fair: &[f64], got: &[f64], span: f64) -> Vec<Odd> {
    let all = (0..fair.len()).filter(|t| fair[*t] * span >= 20.0).map(|t| Odd {
        tenant: t,
        got: got[t] / span,
        fair: fair[t],
        asks: asks[t],
        promised: [plan.tenants[t].floor, plan.tenants[t].ceiling],
        osds: plan.streams[usize::from(after)].iter().filter(|s| s.tenant == t).count(),
    });
    let mut all: Vec<Odd> = all.collect();
    let far = |o: &Odd| (o.got / o.fair).max(1e-6).ln().abs();
    all.sort_by(|a, b| far(b).total_cmp(&far(a)));
    all.truncate(10);
    all
}

/// Seconds after the shift.
fn converged(s: &Scenario, fair: &[f64], seen: &Seen) -> Option<f64> {
    let ticks = (s.phase * TICKS) as usize;
    let error = |tick: usize| -> f64 {
        let served = &seen.served[tick];
        fair.iter().zip(served).map(|(f, s)| (f / TICKS as f64 - f64::from(*s)).abs()).sum()
    };
    let errors: Vec<f64> = (ticks..2 * ticks).map(error).collect();
    let end = &errors[ticks / 2..];
    let usual = end.iter().sum::<f64>() / end.len() as f64;
    errors.iter().position(|e| *e <= 1.25 * usual).map(|at| at as f64 / TICKS as f64)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [fits, not, ceilings] = self.promised;
        writeln!(
            f,
            "{} operations in {:.1} s; {fits} floors that fit, {not} that do not, {ceilings} ceilings",
            self.operations,
            self.took.as_secs_f64()
        )?;
        writeln!(
            f,
            "| phase | Jain | served/fair | floors kept | ceilings kept, each second | together | coordinator ms/s | to manager B/s per OSD (most) | from manager |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
        for p in &self.phases {
            writeln!(
                f,
                "| {} | {:.4} | {:.3} | {:.4} | {:.4} | {:.4} | {:.1} | {:.0} ({}) | {:.0} ({}) |",
                p.phase.name(),
                p.jain,
                p.served,
                p.floors,
                p.ceilings,
                p.ceilings_together,
                p.cpu.as_secs_f64() * 1000.0,
                p.bytes[0],
                p.most_bytes[0],
                p.bytes[1],
                p.most_bytes[1]
            )?;
        }
        match self.converged {
            Some(s) => writeln!(f, "rates were fair again {s:.2} s after the shift"),
            None => writeln!(f, "rates were not fair again after the shift"),
        }
    }
}
