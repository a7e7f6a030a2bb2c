//! What `siphon qos` asks a cluster: specifications of the monitors, and what OSDs say of tenants.

use anyhow::{Context, Result};
use bytes::Bytes;
use client::Rados;
use promises::spec::{PREFIX, Selector, Spec, read_all};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use types::OsdId;

/// What each OSD says of its tenants (`dump_qos`).
pub type Dumps = BTreeMap<OsdId, Value>;

/// How long the cluster has to answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// OSDs that are asked at a time.
const AT_A_TIME: usize = 64;

/// A cluster that is asked.
pub struct Cluster {
    /// The client.
    pub rados: Rados,
}

impl Cluster {
    /// The answer of the monitors to a command.
    pub async fn mon(&self, command: Value) -> Result<Bytes> {
        let command = command.to_string();
        let answer = self.rados.mon_command(&command, Bytes::new());
        Ok(tokio::time::timeout(PATIENCE, answer)
            .await
            .context("the monitors did not answer")??
            .ok()?)
    }

    /// All specifications; what cannot be read is said.
    pub async fn all(&self) -> Result<BTreeMap<Selector, Spec>> {
        let rows =
            self.mon(json!({"prefix": "config-key dump", "key": PREFIX, "format": "json"})).await?;
        let rows: BTreeMap<String, String> = serde_json::from_slice(&rows)?;
        let (all, bad) = read_all(rows.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        for (name, why) in bad {
            eprintln!("siphon: the specification {name} does not hold: {why}");
        }
        Ok(all)
    }

    /// What each OSD that is up says of its tenants. Many are asked at a time.
    pub async fn dumps(&self) -> Result<Dumps> {
        let up = self.rados.objecter().wait_latest().await?.up_osds();
        let mut dumps = Dumps::new();
        for some in up.chunks(AT_A_TIME) {
            let mut asked = tokio::task::JoinSet::new();
            for osd in some.iter().copied() {
                let rados = self.rados.clone();
                asked.spawn_local(async move {
                    let answer = rados.osd_command(
                        osd,
                        r#"{"prefix": "dump_qos", "format": "json"}"#,
                        Bytes::new(),
                    );
                    (osd, tokio::time::timeout(PATIENCE, answer).await)
                });
            }
            while let Some(done) = asked.join_next().await {
                // One that went down meanwhile has nothing to say.
                if let (osd, Ok(Ok(answer))) = done? {
                    dumps.insert(osd, serde_json::from_slice(&answer.ok()?)?);
                }
            }
        }
        Ok(dumps)
    }
}
