//! Metrics over HTTP, for as long as they are wanted.

use super::Inner;
use crate::prometheus::cluster::FromMonitors;
use crate::prometheus::text::Text;
use crate::prometheus::{self, http};
use bytes::Bytes;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// How long it takes until it is tried again to serve metrics,
const METRICS_RETRY: Duration = Duration::from_secs(5);

/// and how often it is looked whether they are to be.
const METRICS_LOOK: Duration = Duration::from_secs(60);

/// How long the monitors may take for an answer that goes into metrics.
const METRICS_PATIENCE: Duration = Duration::from_secs(3);

/// Serves metrics while the module is enabled, where the configuration says.
pub(super) async fn serve_metrics(inner: Weak<Inner>) {
    let mut running: Option<(String, u64, tokio::task::JoinHandle<()>)> = None;
    let mut complained = None;
    loop {
        let Some(m) = inner.upgrade() else { return };
        let enabled = !m.stopping.get() && m.modules.borrow().contains(prometheus::MODULE);
        let (addr, port) = (
            m.frame.conf.borrow().str("mgr/prometheus/server_addr"),
            m.frame.conf.borrow().u64("mgr/prometheus/server_port"),
        );
        let mut failed = false;
        if !enabled || running.as_ref().is_some_and(|(a, p, _)| (a, *p) != (&addr, port)) {
            if let Some((_, _, task)) = running.take() {
                task.abort();
                // The address is free when it has ended.
                let _ = task.await;
            }
            m.metrics_url.replace(None);
        }
        if enabled && running.is_none() {
            match http::listen(&addr, port as u16) {
                Ok(listener) => {
                    let page = Rc::downgrade(&m);
                    let serve = http::serve(listener, move || metrics(page.clone()));
                    // What clients are told is where they may reach this manager.
                    let everywhere = addr == "::" || addr == "0.0.0.0";
                    let host = if everywhere { m.ip.to_string() } else { addr.clone() };
                    let host = if host.contains(':') {
                        format!("[{}]", host.trim_matches(['[', ']']))
                    } else {
                        host
                    };
                    m.metrics_url.replace(Some(format!("http://{host}:{port}/")));
                    running = Some((addr, port, tokio::task::spawn_local(serve)));
                    complained = None;
                }
                Err(e) => {
                    let complaint = format!("metrics cannot be served on {addr} port {port}: {e}");
                    if complained.as_ref() != Some(&complaint) {
                        tracing::warn!("{complaint}");
                        complained = Some(complaint);
                    }
                    failed = true;
                }
            }
        }
        m.news.notify_one();
        if m.stopping.get() {
            return;
        }
        // Waiting must not keep the manager alive; it looks again now and then.
        let again = if failed { METRICS_RETRY } else { METRICS_LOOK };
        let _ = tokio::time::timeout(again, m.settings.notified()).await;
    }
}

/// The metrics of this moment.
async fn metrics(inner: Weak<Inner>) -> String {
    let Some(m) = inner.upgrade() else { return String::new() };
    let ask = async |command: serde_json::Value| -> serde_json::Value {
        let asked = tokio::time::timeout(
            METRICS_PATIENCE,
            m.frame.mon.command(&command.to_string(), Bytes::new()),
        )
        .await;
        let output = asked.ok().and_then(Result::ok).filter(|o| o.code == 0).map(|o| o.output);
        output.and_then(|o| serde_json::from_slice(&o).ok()).unwrap_or_default()
    };
    let monitors = FromMonitors {
        health: ask(serde_json::json!({"prefix": "health", "detail": "detail", "format": "json"}))
            .await,
        quorum: ask(serde_json::json!({"prefix": "quorum_status", "format": "json"})).await,
        osds: ask(serde_json::json!({"prefix": "osd metadata", "format": "json"})).await,
        mons: ask(serde_json::json!({"prefix": "mon metadata", "format": "json"})).await,
        mgrs: ask(serde_json::json!({"prefix": "mgr metadata", "format": "json"})).await,
        mgr_map: ask(serde_json::json!({"prefix": "mgr dump", "format": "json"})).await,
    };
    let images = m.image_sums().await;
    let mut out = Text::default();
    let state = m.state.borrow();
    m.take_health(&monitors.health);
    prometheus::cluster::write(&state, &monitors, &m.frame.name, &mut out);
    prometheus::cluster::images(&images, &mut out);
    let mut seen = m.seen.borrow_mut();
    if let Some(map) = &state.osd_map {
        seen.retain_osds(|o| map.exists(o));
    }
    seen.write(&m.tenants.borrow().promised(), &mut out);
    out.finish()
}
