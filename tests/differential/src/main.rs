//! The same random RADOS operations against two clusters, one of them a stock Ceph: results, error
//! numbers and output must be equal, operation by operation.
//!
//! Versions are compared by order and not by value: a cluster may spend versions on work of its own.

mod generate;

use anyhow::{Context, Result, bail, ensure};
use auth::AuthName;
use bytes::{Bytes, BytesMut};
use clap::Parser;
use client::{ClusterConfig, IoCtx, Rados};
use generate::{Generator, Step};
use denc::{Encode, Features, Reader};
use messages::{Op, OpArgs};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use types::rados::OpCode;
use types::{ObjectLocator, SnapId};

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
}

fn main() -> Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let a = connect(&args.reference).await?;
        let b = connect(&args.subject).await?;
        for seed in &args.seeds {
            let n = run(&a, &b, *seed, args.ops).await.with_context(|| format!("seed {seed}"))?;
            println!("seed {seed}: {n} operations, equal");
        }
        a.shutdown();
        b.shutdown();
        Ok(())
    })
}

async fn connect(conf: &PathBuf) -> Result<Rados> {
    let name = AuthName::new(types::EntityType::CLIENT, "admin");
    let config = ClusterConfig::read(conf, name)?;
    Ok(Rados::connect(&config, Duration::from_secs(30)).await?)
}

async fn command(r: &Rados, json: serde_json::Value) -> Result<Bytes> {
    let out = r.mon_command(&json.to_string(), Bytes::new()).await?;
    Ok(out.ok()?)
}

async fn make_pool(r: &Rados, name: &str) -> Result<IoCtx> {
    command(r, serde_json::json!({"prefix": "osd pool create", "pool": name, "pg_num": 8, "pgp_num": 8})).await?;
    command(r, serde_json::json!({"prefix": "osd pool application enable", "pool": name, "app": "rados"})).await?;
    Ok(r.ioctx(name).await?.with_timeout(Duration::from_secs(60)))
}

async fn drop_pool(r: &Rados, name: &str) -> Result<()> {
    command(r, serde_json::json!({"prefix": "osd pool delete", "pool": name, "pool2": name, "yes_i_really_really_mean_it": true})).await?;
    Ok(())
}

/// One sequence. The pools of a failed run stay for a look.
async fn run(a: &Rados, b: &Rados, seed: u64, ops: usize) -> Result<usize> {
    let pool = format!("diff-{seed}-{:08x}", std::process::id());
    let (ia, ib) = (make_pool(a, &pool).await?, make_pool(b, &pool).await?);
    let mut g = Generator::new(seed);
    for n in 0..ops {
        let step = g.step();
        let (ra, rb) = (perform(&ia, &step).await, perform(&ib, &step).await);
        let (ra, rb) = match (ra, rb) {
            (Ok(x), Ok(y)) => (x, y),
            (x, y) => bail!("operation {n}, {step:?}: the reference gave {x:?}, the subject {y:?}"),
        };
        ensure!(ra == rb, "operation {n}, {step:?}:\n  reference {ra:?}\n  subject   {rb:?}");
        if n % 500 == 499 {
            compare_listings(&ia, &ib).await.with_context(|| format!("after operation {n}"))?;
        }
    }
    compare_listings(&ia, &ib).await?;
    drop_pool(a, &pool).await?;
    drop_pool(b, &pool).await?;
    Ok(ops)
}

/// What can be compared of an outcome.
#[derive(Debug, PartialEq)]
struct Outcome {
    result: i32,
    ops: Vec<(OpCode, i32, Bytes)>,
}

async fn perform(io: &IoCtx, step: &Step) -> Result<Outcome> {
    let io = io.clone().with_namespace(&step.namespace).with_key(&step.key).with_snap_context(step.snapc.clone()).with_read_snapshot(step.read_at);
    let mut operation = step.operation.clone();
    if let Some(source) = &step.copy_source {
        operation = operation.op(copy_from(source, &io, &step.namespace, &step.key));
    }
    let outcome = io.run(&step.object, operation).await?;
    let failed = outcome.result < 0;
    let ops = outcome
        .ops
        .iter()
        .map(|op| {
            // After a failure, what was not reached says nothing.
            let out = if failed && op.code.is_write() { Bytes::new() } else { comparable(op) };
            (op.code, op.rval, out)
        })
        .collect();
    Ok(Outcome { result: outcome.result, ops })
}

/// The output, without what a clock decides: the time in `stat`'s answer.
fn comparable(op: &Op) -> Bytes {
    match op.code {
        OpCode::STAT => op.outdata.slice(..op.outdata.len().min(8)),
        OpCode::SPARSE_READ => flatten(&op.outdata).unwrap_or_else(|_| op.outdata.clone()),
        _ => op.outdata.clone(),
    }
}

/// A sparse read's data with zeros where there is a hole: which holes a store keeps is its own affair.
fn flatten(out: &Bytes) -> denc::Result<Bytes> {
    let mut r = Reader::new(out.clone());
    let extents: BTreeMap<u64, u64> = r.get()?;
    let data: Bytes = r.get()?;
    let mut flat = Vec::new();
    let mut at = 0;
    for (offset, length) in extents {
        flat.resize(offset as usize, 0);
        flat.extend_from_slice(data.get(at..at + length as usize).unwrap_or_default());
        at += length as usize;
    }
    while flat.last() == Some(&0) {
        flat.pop();
    }
    Ok(flat.into())
}

/// The operation that copies `source`, of the same pool, namespace and locator.
fn copy_from(source: &str, io: &IoCtx, namespace: &str, key: &str) -> Op {
    let locator = ObjectLocator { pool: io.pool(), key: Bytes::copy_from_slice(key.as_bytes()), namespace: Bytes::copy_from_slice(namespace.as_bytes()), ..ObjectLocator::default() };
    let mut input = BytesMut::new();
    source.encode(&mut input, Features::ALL);
    locator.encode(&mut input, Features::ALL);
    let args = OpArgs::CopyFrom { snapid: SnapId::NOSNAP, src_version: 0, flags: 0, src_fadvise_flags: 0 };
    Op::with_input(OpCode::COPY_FROM, args, input.freeze())
}

/// Both pools must list the same objects in the same order.
async fn compare_listings(a: &IoCtx, b: &IoCtx) -> Result<()> {
    let names = |l: Vec<types::ListObject>| l.into_iter().map(|o| (o.namespace, o.name, o.locator)).collect::<Vec<_>>();
    let (la, lb) = (names(a.list_all().await?), names(b.list_all().await?));
    if la != lb {
        let missing: Vec<_> = la.iter().filter(|o| !lb.contains(o)).collect();
        let extra: Vec<_> = lb.iter().filter(|o| !la.contains(o)).collect();
        bail!("listings differ: {} and {} objects; missing {missing:?}, extra {extra:?} (same members in another order if both are empty)", la.len(), lb.len());
    }
    Ok(())
}
