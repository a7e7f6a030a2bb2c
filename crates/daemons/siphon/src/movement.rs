//! `siphon move`: the monitors' movement jobs.

use crate::cli::{Move, MoveAction, MoveJob};
use anyhow::{Context, Result, bail};
use auth::AuthName;
use bytes::Bytes;
use client::{ClusterConfig, Rados};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::Duration;

/// How long the monitors have to answer: a plan of a large cluster takes a while.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command.
pub fn run(args: Move) -> Result<()> {
    let config = ClusterConfig::read(&args.conf, AuthName::new(types::EntityType::CLIENT, "admin"))
        .with_context(|| {
            format!("{} cannot be used: -c names a cluster's ceph.conf", args.conf.display())
        })?;
    let format = if args.json { "json-pretty" } else { "plain" };
    let command = command(args.action, format).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let rados = Rados::connect(&config, PATIENCE)
            .await
            .context("no answer from the monitors: is the cluster running?")?;
        let answer = rados.mon_command(&command, Bytes::new());
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        rados.shutdown();
        let answer = answer.context("the monitors did not answer")??;
        if answer.code < 0 {
            bail!("{}", answer.status);
        }
        std::io::stdout().write_all(&answer.output)?;
        if !answer.status.is_empty() {
            eprintln!("{}", answer.status);
        }
        Ok(())
    })
}

fn command(action: MoveAction, format: &str) -> Value {
    let of_job = |what: &str, id: u64| json!({"prefix": format!("move {what}"), "id": id});
    let mut command = match action {
        MoveAction::Plan(job) => of("move plan", job),
        MoveAction::Start(job) => of("move start", job),
        MoveAction::Ls => json!({"prefix": "move ls"}),
        MoveAction::Status { id: None } => json!({"prefix": "move status"}),
        MoveAction::Status { id: Some(id) } => of_job("status", id),
        MoveAction::Pause { id } => of_job("pause", id),
        MoveAction::Resume { id } => of_job("resume", id),
        MoveAction::Undo { id } => of_job("undo", id),
        MoveAction::Rm { id } => of_job("rm", id),
    };
    command["format"] = format.into();
    command
}

fn of(prefix: &str, job: MoveJob) -> Value {
    let given = [
        ("prefix", Some(json!(prefix))),
        ("verb", Some(json!(job.verb))),
        ("what", (!job.what.is_empty()).then(|| json!(job.what))),
        ("pgs", job.pgs.map(Value::from)),
        ("per_osd", job.per_osd.map(Value::from)),
        ("rate", job.rate.map(Value::from)),
        ("hours", job.hours.map(Value::from)),
        ("p99", job.p99.map(Value::from)),
        ("weight", job.weight.map(Value::from)),
    ];
    let given = given.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?)));
    Value::Object(given.collect::<Map<_, _>>())
}
