//! The same random RADOS operations against two clusters, one of them a stock Ceph: results, error
//! numbers and output must be equal, operation by operation.
//!
//! After a difference the object goes out of use (its name gets a suffix), so that one run shows
//! many differences and not the consequences of the first.

mod cluster;
mod compare;
mod generate;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use cluster::{Cluster, Pools, Sort};
use generate::{Action, Generator, Place, Step};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use types::SnapId;

#[derive(Parser)]
#[command(about = "Random RADOS operations on two clusters must give equal results")]
struct Args {
    /// ceph.conf of the reference, a stock cluster.
    #[arg(long)]
    reference: PathBuf,
    /// ceph.conf of the cluster under test.
    #[arg(long)]
    subject: PathBuf,
    /// Operations per seed.
    #[arg(long, default_value_t = 20_000)]
    ops: usize,
    /// Seeds, one run each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// How the pools keep objects. OSDs of the subject need `osd_ec_stock_refusals` for others than
    /// replicated ones.
    #[arg(long, value_enum, default_value = "replicated")]
    pools: Sort,
    /// End a seed after so many differences.
    #[arg(long, default_value_t = 10)]
    differences: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let different = tokio::task::LocalSet::new().block_on(&runtime, async {
        let a = Cluster::connect(&args.reference).await.context("the reference")?;
        let b = Cluster::connect(&args.subject).await.context("the subject")?;
        let mut different = 0;
        for seed in &args.seeds {
            let mut run = Run::new(&a, &b, *seed, args.pools, args.differences).await?;
            let begun = Instant::now();
            run.all(args.ops).await.with_context(|| format!("seed {seed}"))?;
            let verdict = if run.differences == 0 {
                "equal".to_string()
            } else {
                format!("{} differences", run.differences)
            };
            println!("seed {seed}: {} operations, {verdict}, {:?}", run.done, begun.elapsed());
            different += run.differences;
            run.end().await?;
        }
        a.shutdown();
        b.shutdown();
        Ok::<_, anyhow::Error>(different)
    })?;
    ensure!(different == 0, "{different} differences");
    Ok(())
}

/// Removed snapshots must be trimmed by then.
const TRIM_LIMIT: Duration = Duration::from_secs(120);

/// One sequence on both clusters.
struct Run<'a> {
    a: Pools<'a>,
    b: Pools<'a>,
    generator: Generator,
    /// Times that an object of this place went out of use.
    retired: BTreeMap<Place, u32>,
    /// Objects that are compared.
    places: BTreeSet<Place>,
    /// What was done last with each object.
    history: BTreeMap<Place, VecDeque<String>>,
    sort: Sort,
    done: usize,
    differences: usize,
    allowed: usize,
}

impl<'a> Run<'a> {
    async fn new(
        a: &'a Cluster,
        b: &'a Cluster,
        seed: u64,
        sort: Sort,
        allowed: usize,
    ) -> Result<Self> {
        let name = format!("differential-{seed}-{:08x}", std::process::id());
        Ok(Run {
            a: a.make_pools(&name, sort).await.context("the reference's pools")?,
            b: b.make_pools(&name, sort).await.context("the subject's pools")?,
            generator: Generator::new(seed),
            retired: BTreeMap::new(),
            places: BTreeSet::new(),
            history: BTreeMap::new(),
            sort,
            done: 0,
            differences: 0,
            allowed,
        })
    }

    async fn all(&mut self, ops: usize) -> Result<()> {
        while self.done < ops && self.differences < self.allowed {
            match self.generator.action() {
                Action::Step(mut step) => {
                    if self.sort != Sort::Replicated {
                        step.for_shards();
                    }
                    self.step(*step).await?;
                }
                Action::MakeSnapshot { pool_snaps } => {
                    let (a, b) = tokio::try_join!(
                        self.a.make_snapshot(pool_snaps),
                        self.b.make_snapshot(pool_snaps)
                    )?;
                    ensure!(
                        a == b,
                        "the new snapshot is {} on the reference and {} on the subject",
                        a.0,
                        b.0
                    );
                    self.generator.snapshot_made(pool_snaps, a);
                }
                Action::RemoveSnapshot { snapid } => self.remove_snapshot(snapid).await?,
                Action::List { pool_snaps, namespace, page, filter } => {
                    self.compare_listings(pool_snaps, namespace.as_deref(), page, filter.as_ref())
                        .await?;
                }
            }
            self.done += 1;
        }
        self.final_state().await
    }

    /// The object in use at a place.
    fn current(&self, place: &Place) -> Place {
        match self.retired.get(place) {
            Some(n) => Place { name: format!("{}.{n}", place.name), ..place.clone() },
            None => place.clone(),
        }
    }

    async fn step(&mut self, mut step: Step) -> Result<()> {
        let asked = step.place.clone();
        step.place = self.current(&asked);
        for part in &mut step.parts {
            if let generate::Part::CopyFrom { from, .. } = part {
                *from = self.current(from);
            }
        }
        let n = self.done;
        let (ra, rb) = tokio::join!(self.a.perform(&step, n), self.b.perform(&step, n));
        let (ra, rb) = match (ra, rb) {
            (Ok(x), Ok(y)) => (x, y),
            (x, y) => bail!("operation {n}, {step:?}: the reference gave {x:?}, the subject {y:?}"),
        };
        let parts: Vec<String> = step.parts.iter().map(cluster::describe).collect();
        let history = self.history.entry(step.place.clone()).or_default();
        let said = format!(
            "{n}: at {:x} snapc {:x} {:?} {:?} {parts:?} => {}",
            step.read_at.0, step.snapc.seq.0, step.snapc.snaps, step.flags, ra.result
        );
        history.push_back(said);
        if history.len() > 60 {
            history.pop_front();
        }
        self.places.insert(step.place.clone());
        if ra != rb {
            self.differ(&asked, &format!("operation {n}\n  reference {ra:?}\n  subject   {rb:?}"));
        }
        Ok(())
    }

    /// Reports a difference and takes the object out of use.
    fn differ(&mut self, asked: &Place, what: &str) {
        let place = self.current(asked);
        println!("DIFFERENCE at {place:?}: {what}\n  history:");
        for line in self.history.get(&place).into_iter().flatten() {
            println!("    {line}");
        }
        self.retire(asked);
        self.differences += 1;
    }

    /// Takes the object out of use.
    fn retire(&mut self, asked: &Place) {
        let place = self.current(asked);
        self.places.remove(&place);
        *self.retired.entry(asked.clone()).or_default() += 1;
    }

    /// The place that an object in use was asked for as.
    fn asked(&self, place: &Place) -> Place {
        self.retired
            .keys()
            .find(|p| self.current(p) == *place)
            .cloned()
            .unwrap_or_else(|| place.clone())
    }

    /// Removes a snapshot and waits until both clusters have trimmed it: a client cannot tell a
    /// snapshot that waits to be trimmed from one that is trimmed, except in the list of clones.
    ///
    /// An object that was deleted and goes with its last clone goes out of use: an OSD of release
    /// 16.2 remembers its snapshots for some time (src/osd/PrimaryLogPG.cc, `trim_object` leaves
    /// `ssc` as it is), gives them to an object that is made there, and rolls one back to them.
    async fn remove_snapshot(&mut self, snapid: SnapId) -> Result<()> {
        let places: Vec<Place> = self.places.iter().filter(|p| !p.pool_snaps).cloned().collect();
        let mut there = Vec::new();
        for place in &places {
            there.push(self.b.snapshots(place).await?.0 >= 0);
        }
        tokio::try_join!(self.a.remove_snapshot(snapid), self.b.remove_snapshot(snapid))?;
        let deadline = Instant::now() + TRIM_LIMIT;
        let (a, b) = tokio::join!(
            self.a.wait_trimmed(&places, snapid, deadline),
            self.b.wait_trimmed(&places, snapid, deadline)
        );
        a.context("the reference")?;
        b.context("the subject")?;
        let n = self.done;
        for (place, there) in places.iter().zip(there) {
            let (a, b) = tokio::try_join!(self.a.snapshots(place), self.b.snapshots(place))?;
            let gone = there && b.0 < 0;
            if a == b && gone {
                self.retire(&self.asked(place));
            }
            if a != b {
                self.differ(&self.asked(place), &format!("operation {n}, snapshot {} was removed\n  reference {a:?}\n  subject   {b:?}", snapid.0));
            }
        }
        Ok(())
    }

    async fn compare_listings(
        &mut self,
        pool_snaps: bool,
        namespace: Option<&str>,
        page: u64,
        filter: Option<&(String, bytes::Bytes)>,
    ) -> Result<()> {
        let (la, lb) = tokio::try_join!(
            self.a.list(pool_snaps, namespace, page, filter),
            self.b.list(pool_snaps, namespace, page, filter)
        )?;
        if la == lb {
            return Ok(());
        }
        // An object that went out of use may exist on one side only.
        let used =
            |o: &&(String, String, String)| !self.retired.keys().any(|p| o.1.starts_with(&p.name));
        let (la, lb): (Vec<_>, Vec<_>) =
            (la.iter().filter(used).collect(), lb.iter().filter(used).collect());
        if la == lb {
            return Ok(());
        }
        let missing: Vec<_> = la.iter().filter(|o| !lb.contains(o)).collect();
        let extra: Vec<_> = lb.iter().filter(|o| !la.contains(o)).collect();
        let n = self.done;
        println!(
            "DIFFERENCE at operation {n}: listing of {namespace:?} by {page}, filter {filter:?}: missing {missing:?}, extra {extra:?}; the order differs if both are empty"
        );
        self.differences += 1;
        Ok(())
    }

    /// Everything about every object, and the listings.
    async fn final_state(&mut self) -> Result<()> {
        let places: Vec<Place> = self.places.iter().cloned().collect();
        for place in &places {
            let (a, b) = tokio::try_join!(self.a.everything(place), self.b.everything(place))?;
            if a != b {
                self.differ(
                    &self.asked(place),
                    &format!("at the end\n  reference {a:?}\n  subject   {b:?}"),
                );
            }
        }
        for pool_snaps in [false, true] {
            for namespace in [None, Some(""), Some("space")] {
                self.compare_listings(pool_snaps, namespace, 1000, None).await?;
            }
        }
        Ok(())
    }

    async fn end(self) -> Result<()> {
        self.a.drop_pools().await?;
        self.b.drop_pools().await
    }
}
