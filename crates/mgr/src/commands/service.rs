//! Commands about the manager's own services and modules.

use super::{Answer, Context, Entry, json, read, text, unsupported};
use serde_json::json;

pub(super) const COMMANDS: &[Entry] = &[
    read("service dump", "Dump service map", "service", service_dump),
    read("service status", "dump service state", "service", service_status),
    read("progress", "Show progress of recovery operations", "mgr", progress),
    read("progress json", "Show machine readable progress information", "mgr", progress_json),
    read("balancer status name=detail,type=CephChoices,strings=detail,req=false", "Show balancer status", "mgr", balancer_status),
    read("crash ls", "Show new and archived crash dumps", "mgr", crash_ls),
    read("crash stat", "Summarize recorded crashes", "mgr", crash_stat),
    unsupported("balancer on", "Enable automatic balancing", "mgr", "balancing is not there yet"),
    unsupported("orch status name=detail,type=CephBool,req=false", "Report configured backend and its status", "mgr", "no orchestrator is configured"),
    unsupported("telemetry on", "Enable telemetry reports from this cluster", "mgr", "telemetry is not there yet"),
    unsupported("device ls", "Show devices", "mgr", "device tracking is not there yet"),
];

fn service_dump(cx: &Context<'_>) -> Answer {
    json(cx, &json!({"epoch": 1, "modified": cx.state.pg_map.stamp.to_string(), "services": {}}))
}

fn service_status(cx: &Context<'_>) -> Answer {
    json(cx, &json!({}))
}

fn progress(_: &Context<'_>) -> Answer {
    text("Nothing in progress\n")
}

fn progress_json(cx: &Context<'_>) -> Answer {
    json(cx, &json!({"events": [], "completed": []}))
}

fn balancer_status(cx: &Context<'_>) -> Answer {
    json(
        cx,
        &json!({"active": false, "last_optimize_duration": "", "last_optimize_started": "", "mode": "none", "optimize_result": "", "plans": []}),
    )
}

fn crash_ls(cx: &Context<'_>) -> Answer {
    Ok(cx.format.reply(|| json!([]), String::new))
}

fn crash_stat(_: &Context<'_>) -> Answer {
    text("0 crashes recorded\n")
}
