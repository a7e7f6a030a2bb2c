//! The history of health checks: what the monitors say now and then, kept with them.

use super::{Inner, ask};
use crate::commands::Done;
use crate::health_history::{HealthHistory, KEY};
use client::wall_clock;
use command::Refusal;
use serde_json::{Value, json};
use std::rc::Weak;
use std::time::Duration;

/// How often the monitors are asked.
const LOOK: Duration = Duration::from_secs(5);

impl Inner {
    /// Takes what the monitors say (`ceph health -f json`). True if that is news.
    pub(super) fn take_health(&self, health: &Value) -> bool {
        let checks = &health["checks"];
        checks.is_object()
            && self.state.borrow().health_history.borrow_mut().take(checks, wall_clock())
    }

    async fn read_history(&self) -> Result<(), Refusal> {
        let command = json!({"prefix": "config-key dump", "key": KEY, "format": "json"});
        let reply = ask(&self.frame.mon, Ok(Done::AskMon(command))).await?;
        let rows: Value = serde_json::from_slice(&reply.data)
            .map_err(|e| Refusal::invalid(format!("history of health: {e}")))?;
        let text = rows[KEY].as_str().unwrap_or_default();
        self.state.borrow().health_history.replace(HealthHistory::read(text));
        Ok(())
    }

    async fn look_at_health(&self) -> Result<(), Refusal> {
        let command = json!({"prefix": "health", "format": "json"});
        let reply = ask(&self.frame.mon, Ok(Done::AskMon(command))).await?;
        let health = serde_json::from_slice(&reply.data)
            .map_err(|e| Refusal::invalid(format!("health: {e}")))?;
        if !self.take_health(&health) {
            return Ok(());
        }
        let text = self.state.borrow().health_history.borrow().write();
        let command = json!({"prefix": "config-key set", "key": KEY, "val": text});
        ask(&self.frame.mon, Ok(Done::AskMon(command))).await.map(drop)
    }
}

/// Follows the cluster's health while this manager serves.
pub(super) async fn follow_health(inner: Weak<Inner>) {
    let mut read = false;
    loop {
        let Some(m) = inner.upgrade() else { return };
        if m.stopping.get() || !m.serves() {
            return;
        }
        let done = match read {
            true => m.look_at_health().await,
            false => m.read_history().await,
        };
        let begins = !read && done.is_ok();
        read |= begins;
        if let Err(e) = &done {
            tracing::debug!("history of health: {}", e.message);
        }
        drop(m);
        if !begins {
            tokio::time::sleep(LOOK).await;
        }
    }
}
