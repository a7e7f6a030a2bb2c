//! Work of all workers, on a few threads.

use super::keys::{Part, Place, Plan, State};
use super::mix::{Op, Shares};
use super::request::{Failure, LIST_KEYS_MAX, Result};
use super::wire::{Connection, Target};
use crate::measure::Measure;
use crate::pace::Pace;
use anyhow::Context;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::rc::Rc;
use std::sync::Barrier;
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

/// An open loop that is behind goes on for so many times its length.
const BEHIND_MAX: u32 = 2;

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Task {
    /// Write every object that is not there.
    Fill,
    /// Operations at random.
    Load(Load),
    /// Delete objects, so many with a request, until none is left or so many requests were made by
    /// each worker.
    DeleteMany {
        /// Objects of a request.
        batch: usize,
        /// Requests of a worker at most.
        count: u64,
    },
    /// Read every object, and list every key.
    Check,
}

/// Operations at random.
#[derive(Clone, Debug)]
pub struct Load {
    /// Which.
    pub shares: Shares,
    /// For how long.
    pub length: Duration,
    /// How many by each worker at most.
    pub count: u64,
    /// Operations a second of each worker; none for a closed loop.
    pub rate: Option<f64>,
}

/// A worker between two pieces of work.
pub struct Worker {
    /// Its keys.
    pub part: Part,
    random: StdRng,
}

impl Worker {
    /// A worker without objects.
    pub fn new(plan: &Plan, number: usize, seed: u64) -> Worker {
        // Seeds of workers of one run and of runs side by side are far apart.
        let random =
            StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
        Worker { part: Part::new(plan, number), random }
    }
}

/// Lets all workers do it. What they measured, and how long it took.
pub fn run(
    workers: &mut Vec<Worker>,
    threads: usize,
    target: &Target,
    plan: &Plan,
    task: &Task,
) -> anyhow::Result<(Measure, Duration)> {
    let threads = threads.clamp(1, workers.len().max(1));
    let mut dealt: Vec<Vec<Worker>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, worker) in workers.drain(..).enumerate() {
        dealt[i % threads].push(worker);
    }
    let barrier = &Barrier::new(threads);
    let done: Vec<_> = std::thread::scope(|scope| {
        let spawned: Vec<_> = dealt
            .into_iter()
            .map(|some| scope.spawn(move || on_thread(some, target, plan, task, barrier)))
            .collect();
        spawned.into_iter().map(|t| t.join().expect("no panics in workers")).collect()
    });
    let (mut all, mut took) = (Measure::default(), Duration::ZERO);
    let mut parts = Vec::new();
    for result in done {
        let (some, measure, length) = result?;
        parts.push(some.into_iter());
        all.merge(&measure);
        took = took.max(length);
    }
    // Back in their order.
    while parts.iter().any(|p| p.len() > 0) {
        workers.extend(parts.iter_mut().filter_map(Iterator::next));
    }
    Ok((all, took))
}

type Done = (Vec<Worker>, Measure, Duration);

fn on_thread(
    workers: Vec<Worker>,
    target: &Target,
    plan: &Plan,
    task: &Task,
    barrier: &Barrier,
) -> anyhow::Result<Done> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (target, plan, task) = (target.clone(), Rc::new(plan.clone()), Rc::new(task.clone()));
    let local = LocalSet::new();
    let opened = runtime.context("a reactor").and_then(|runtime| {
        let connections = local.block_on(&runtime, async {
            let mut connections = Vec::new();
            for _ in &workers {
                let mut connection = Connection::new(target.clone());
                connection.open().await.map_err(anyhow::Error::msg)?;
                connections.push(connection);
            }
            anyhow::Ok(connections)
        })?;
        Ok((runtime, connections))
    });
    // All begin together; a thread that cannot must not let the others wait.
    barrier.wait();
    let (runtime, connections) = opened?;
    local.block_on(&runtime, async {
        let start = Instant::now();
        let mut running = JoinSet::new();
        for (number, (worker, connection)) in workers.into_iter().zip(connections).enumerate() {
            let run =
                Run { worker, connection, plan: plan.clone(), start, measure: Measure::default() };
            let task = task.clone();
            running.spawn_local(async move { (number, run.all(&task).await) });
        }
        let mut ended = running.join_all().await;
        let took = start.elapsed();
        ended.sort_by_key(|(number, _)| *number);
        let mut all = Measure::default();
        let workers = ended
            .into_iter()
            .map(|(_, (worker, measure))| {
                all.merge(&measure);
                worker
            })
            .collect();
        Ok((workers, all, took))
    })
}

/// A worker at work.
struct Run {
    worker: Worker,
    connection: Connection,
    plan: Rc<Plan>,
    start: Instant,
    measure: Measure,
}

impl Run {
    async fn all(mut self, task: &Task) -> (Worker, Measure) {
        match task {
            Task::Fill => {
                let all: Vec<Place> = self.worker.part.all().collect();
                for at in all {
                    if self.worker.part.state(at) != State::Present {
                        self.put(at, Instant::now()).await;
                    }
                }
            }
            Task::Load(load) => self.load(load).await,
            Task::DeleteMany { batch, count } => {
                for _ in 0..*count {
                    let some = self.worker.part.first_present(*batch);
                    if some.is_empty() {
                        break;
                    }
                    self.delete_many(&some).await;
                }
            }
            Task::Check => self.check().await,
        }
        (self.worker, self.measure)
    }

    async fn load(&mut self, load: &Load) {
        let mut pace = match load.rate {
            Some(rate) => Pace::open(rate, self.worker.random.random()),
            None => Pace::closed(),
        };
        let end = self.start + load.length;
        for _ in 0..load.count {
            if Instant::now() >= self.start + load.length * BEHIND_MAX {
                let mut left_out = 0;
                while pace.next_beginning().is_some_and(|at| at < load.length) {
                    left_out += 1;
                }
                self.measure.left_out(left_out);
                return;
            }
            let began = pace.wait(self.start).await;
            if began >= end {
                return;
            }
            if !self.one(load.shares, began).await {
                return;
            }
        }
    }

    /// One operation at random. False if there is nothing to do it to.
    async fn one(&mut self, shares: Shares, began: Instant) -> bool {
        let (part, random) = (&self.worker.part, &mut self.worker.random);
        let read = 0..self.plan.read;
        let written = self.plan.first_written..self.plan.buckets.len();
        let op = shares.pick(random.random());
        let at = match op {
            Op::Get => part.present(random, read),
            Op::Put => part.any(random, written.clone()),
            Op::List => part.with_followers(random, read, LIST_KEYS_MAX),
            Op::Delete => part.present(random, written.clone()),
        };
        match (op, at) {
            (Op::Get, Some(at)) => self.get(at, began).await,
            (Op::Put, Some(at)) => self.put(at, began).await,
            (Op::List, Some(at)) => self.list(at, began).await.1,
            (Op::Delete, Some(at)) => self.delete(at, began).await,
            // Everything is deleted: what was written instead is deleted later.
            (Op::Delete, None) if shares != Shares::only(Op::Delete) => {
                match self.worker.part.any(&mut self.worker.random, written) {
                    Some(at) => self.put(at, began).await,
                    None => return false,
                }
            }
            (op, None) => {
                if self.measure.kind(op.name()).is_none_or(|k| k.count() == 0) {
                    self.measure.failed(op.name(), "there is no object: fill first".to_owned());
                }
                return false;
            }
        };
        true
    }

    fn note(&mut self, op: &'static str, began: Instant, bytes: u64, result: &Result<()>) {
        match result {
            Ok(()) => {
                let at = self.start.elapsed();
                self.measure.done(op, at, began.elapsed(), bytes);
            }
            Err(Failure::Wrong(why)) => self.measure.wrong(op, why.clone()),
            Err(e) => self.measure.failed(op, e.to_string()),
        }
    }

    async fn get(&mut self, at: Place, began: Instant) -> bool {
        let part = &self.worker.part;
        let (content, key) = (part.content(&self.plan, at), part.key(at.index));
        let result = self.connection.get(&self.plan.buckets[at.bucket], &key, content).await;
        self.note(Op::Get.name(), began, content.length(), &result);
        result.is_ok()
    }

    async fn put(&mut self, at: Place, began: Instant) -> bool {
        let part = &mut self.worker.part;
        part.next_version(at);
        let (content, key) = (part.content(&self.plan, at), part.key(at.index));
        let result = self.connection.put(&self.plan.buckets[at.bucket], &key, content).await;
        self.note(Op::Put.name(), began, content.length(), &result);
        if result.is_ok() {
            self.worker.part.set(at, State::Present);
        }
        result.is_ok()
    }

    async fn delete(&mut self, at: Place, began: Instant) -> bool {
        let key = self.worker.part.key(at.index);
        let result = self.connection.delete(&self.plan.buckets[at.bucket], &key).await;
        self.note(Op::Delete.name(), began, 0, &result);
        self.deleted(&[at], &result)
    }

    async fn delete_many(&mut self, some: &[Place]) {
        let began = Instant::now();
        let keys = some.iter().map(|at| self.worker.part.key(at.index)).collect();
        let bucket = &self.plan.buckets[some[0].bucket];
        let result = self.connection.delete_many(bucket, keys).await;
        self.note("delete-many", began, 0, &result);
        self.deleted(some, &result);
    }

    fn deleted(&mut self, some: &[Place], result: &Result<()>) -> bool {
        let state = match result {
            Ok(()) => State::Absent,
            Err(Failure::Refused { .. }) => State::Present,
            Err(_) => State::Unknown,
        };
        some.iter().for_each(|at| self.worker.part.set(*at, state));
        result.is_ok()
    }

    /// Lists from a key on. The number behind the last key, if more follow; and whether it is
    /// right.
    async fn list(&mut self, from: Place, began: Instant) -> (Option<usize>, bool) {
        let part = &self.worker.part;
        let (prefix, after) = (part.prefix(), part.before(from));
        let bucket = &self.plan.buckets[from.bucket];
        let listed = self.connection.list(bucket, &prefix, &after).await;
        let mut behind = None;
        let result = listed.and_then(|l| {
            behind = l.keys.last().filter(|_| l.truncated).and_then(|k| part.behind(k));
            part.check_list(from, &l.keys, l.truncated, LIST_KEYS_MAX)
                .map_err(|why| Failure::Wrong(format!("{bucket}, {prefix} after {after}: {why}")))
        });
        self.note(Op::List.name(), began, 0, &result);
        (behind.filter(|_| result.is_ok()), result.is_ok())
    }

    async fn check(&mut self) {
        let all: Vec<Place> = self.worker.part.all().collect();
        for at in all {
            if self.worker.part.state(at) == State::Present {
                self.get(at, Instant::now()).await;
            }
        }
        for bucket in 0..self.plan.buckets.len() {
            let mut from = Some(0);
            while let Some(index) = from {
                from = self.list(Place { bucket, index }, Instant::now()).await.0;
            }
        }
    }
}
