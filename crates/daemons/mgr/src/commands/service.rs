//! Commands about the manager's own services and modules.

use super::{Answer, Context, Entry, json, read, text, unsupported};
use pgmap::jobs;
use pgmap::units::bytes;
use serde_json::json;

pub(super) const COMMANDS: &[Entry] = &[
    read("service dump", "Dump service map", "service", service_dump),
    read("service status", "dump service state", "service", service_status),
    read("progress", "Show progress of recovery operations", "mgr", progress),
    read("progress json", "Show machine readable progress information", "mgr", progress_json),
    unsupported(
        "telemetry on",
        "Enable telemetry reports from this cluster",
        "mgr",
        "telemetry is not there yet",
    ),
    unsupported("device ls", "Show devices", "mgr", "device tracking is not there yet"),
];

fn service_dump(cx: &Context<'_>) -> Answer {
    json(cx, &cx.state.services.dump())
}

fn service_status(cx: &Context<'_>) -> Answer {
    json(cx, &cx.state.services.status())
}

fn progress(cx: &Context<'_>) -> Answer {
    let now = cx.state.pg_map.stamp;
    let mut out = String::new();
    for job in &cx.state.balancer.borrow().moves {
        let (moved, all) = (bytes(job.bytes_moved), bytes(job.bytes));
        // The note says why a job does not get on; one that is paused is not meant to.
        let is_paused = job.state == "paused";
        let why = if is_paused || job.note.is_empty() { &job.state } else { &job.note };
        out += &format!(
            "Movement {}: {} ({why})\n    {:.0}%, {moved} of {all} moved\n",
            job.id,
            job.what,
            job.progress * 100.0
        );
    }
    for (name, job) in cx.state.digest.jobs.iter().filter(|(_, j)| j.is_active()) {
        out += &format!("{}\n    {}\n", job.two_lines(name, now, 4), job.numbers());
    }
    let mut over = cx.state.pg_map.jobs.completed().peekable();
    if out.is_empty() && over.peek().is_none() {
        return text("Nothing in progress\n");
    }
    if over.peek().is_some() {
        out.push('\n');
    }
    for c in over {
        let took = c.finished.since(c.started).as_secs();
        out += &format!("[Complete]: {} ({})\n", jobs::title(c.name), jobs::pretty(took));
    }
    text(out)
}

fn progress_json(cx: &Context<'_>) -> Answer {
    let now = cx.state.pg_map.stamp;
    let all = &cx.state.digest.jobs;
    let moves = cx.state.balancer.borrow();
    let moves = moves.moves.iter().map(|m| {
        json!({
            "id": format!("move-{}", m.id),
            "message": format!("Movement {}: {} ({})", m.id, m.what, m.state),
            "progress": m.progress,
            "refs": ["move"],
        })
    });
    let jobs = all.iter().filter(|(_, j)| j.is_active()).map(|(name, j)| j.event(name, now));
    let events: Vec<_> = moves.chain(jobs).collect();
    let completed: Vec<_> = cx.state.pg_map.jobs.completed().map(jobs::Completed::dump).collect();
    let jobs: serde_json::Map<_, _> =
        all.iter().map(|(name, j)| (name.clone(), j.dump())).collect();
    json(cx, &json!({"events": events, "completed": completed, "jobs": jobs}))
}
