//! `siphon status`: what `ceph -s` shows, asked with our own client.

use crate::cli::Status;
use crate::home;
use anyhow::{Context, Result, bail};
use auth::AuthName;
use bytes::Bytes;
use client::{ClusterConfig, MonClient, MonConfig};
use std::time::Duration;

/// How long the monitor has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(args: Status) -> Result<()> {
    if home::load(&args.data_dir)?.is_none() {
        bail!(
            "{} is no cluster's data directory: `siphon up --data-dir DIR` makes one",
            args.data_dir.display()
        );
    }
    let config = ClusterConfig::read(
        &args.data_dir.join("ceph.conf"),
        AuthName::new(types::EntityType::CLIENT, "admin"),
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mon = MonClient::new(MonConfig::new(&config));
        mon.wait_ready(PATIENCE).await.with_context(|| {
            format!(
                "no answer from the monitor of {}: is the cluster running?",
                args.data_dir.display()
            )
        })?;
        let format = if args.json { "json" } else { "plain" };
        let command = serde_json::json!({"prefix": "status", "format": format}).to_string();
        let output = tokio::time::timeout(PATIENCE, mon.command(&command, Bytes::new()))
            .await
            .context("the monitor did not answer")??
            .ok()?;
        println!("{}", String::from_utf8_lossy(&output).trim_end());
        mon.shutdown();
        Ok(())
    })
}
