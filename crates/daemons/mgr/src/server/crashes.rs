//! Reports of crashes: read from the monitors and kept with them.

use super::{Inner, ask};
use crate::commands::Done;
use crate::crash::PREFIX;
use client::wall_clock;
use command::Refusal;
use serde_json::{Map, Value, json};
use std::rc::Weak;
use std::time::Duration;

/// How often it is looked for reports that are too old, and tried again to read them.
const LOOK: Duration = Duration::from_secs(60);
/// The pause after a first attempt that failed.
const RETRY: Duration = Duration::from_secs(1);

impl Inner {
    /// Keeps a report, or forgets it, with the monitors and here.
    pub(super) async fn save_crash(
        &self,
        id: String,
        report: Option<Value>,
    ) -> Result<(), Refusal> {
        let key = format!("{PREFIX}{id}");
        let command = match &report {
            Some(report) => {
                json!({"prefix": "config-key set", "key": key, "val": report.to_string()})
            }
            None => json!({"prefix": "config-key rm", "key": key}),
        };
        ask(&self.frame.mon, Ok(Done::AskMon(command))).await?;
        self.state.borrow_mut().crashes.apply((id, report));
        self.news.notify_one();
        Ok(())
    }

    async fn read_crashes(&self) -> Result<(), Refusal> {
        let command = json!({"prefix": "config-key dump", "key": PREFIX, "format": "json"});
        let reply = ask(&self.frame.mon, Ok(Done::AskMon(command))).await?;
        let rows: Map<String, Value> = serde_json::from_slice(&reply.data)
            .map_err(|e| Refusal::invalid(format!("reports of crashes: {e}")))?;
        let mut state = self.state.borrow_mut();
        let all = state.crashes.0.get_or_insert_default();
        for (key, value) in rows {
            let Some(id) = key.strip_prefix(PREFIX) else { continue };
            let report = value.as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(report) = report {
                all.entry(id.to_owned()).or_insert(report);
            }
        }
        Ok(())
    }
}

/// Reads the reports, and forgets old ones, while this manager serves.
pub(super) async fn look_after_crashes(inner: Weak<Inner>) {
    loop {
        let Some(m) = inner.upgrade() else { return };
        if m.stopping.get() || !m.serves() {
            return;
        }
        let known = m.state.borrow().crashes.0.is_some();
        let done = if known {
            let retained = m.frame.conf.borrow().u64("mgr/crash/retain_interval");
            let old = m.state.borrow().crashes.prune(retained, wall_clock());
            let mut done = Ok(());
            for (id, report) in old {
                done = done.and(m.save_crash(id, report).await);
            }
            done
        } else {
            m.read_crashes().await
        };
        if let Err(e) = &done {
            tracing::debug!("reports of crashes: {e}");
        }
        drop(m);
        tokio::time::sleep(if done.is_ok() { LOOK } else { RETRY }).await;
    }
}
