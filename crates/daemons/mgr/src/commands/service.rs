//! Commands about the manager's own services and modules.

use super::{Answer, Context, Entry, Ordered, Run, json, read, text};
use crate::health_history::KEY;
use command::{Command, Refusal, Reply, flags};
use pgmap::jobs;
use pgmap::units::bytes;
use serde_json::json;

pub(super) const COMMANDS: &[Entry] = &[
    read("service dump", "Dump service map", "service", service_dump),
    read("service status", "dump service state", "service", service_status),
    read("progress", "Show progress of recovery operations", "mgr", progress),
    read("progress json", "Show machine readable progress information", "mgr", progress_json),
    order("progress clear", "Reset progress tracking", |cx| {
        cx.state.progress.cleared.set(cx.now);
        Ok(Ordered::default())
    }),
    order("progress on", "Enable progress tracking", |cx| switch(cx, true)),
    order("progress off", "Disable progress tracking", |cx| switch(cx, false)),
    read(
        "healthcheck history ls",
        "List all the healthchecks being tracked",
        "prometheus",
        history_ls,
    ),
    order("healthcheck history clear", "Clear the healthcheck history", |cx| {
        cx.state.health_history.borrow_mut().clear();
        Ok(Ordered {
            orders: vec![json!({"prefix": "config-key rm", "key": KEY})],
            reply: Reply::data("healthcheck history cleared"),
        })
    }),
];

const fn order(
    signature: &'static str,
    help: &'static str,
    handler: fn(&Context<'_>) -> Result<Ordered, Refusal>,
) -> Entry {
    Command {
        signature,
        help,
        module: "mgr",
        perm: "rw",
        flags: flags::MGR,
        handler: Run::Order(handler),
    }
}

/// Says whether it is to be shown what goes on.
fn switch(cx: &Context<'_>, on: bool) -> Result<Ordered, Refusal> {
    let word = if on { "enabled" } else { "disabled" };
    if cx.state.progress.on == on {
        let reply = Reply::status(format!("progress already {word}!"));
        return Ok(Ordered { reply, ..Ordered::default() });
    }
    if !on {
        cx.state.progress.cleared.set(cx.now);
    }
    let set = json!({"prefix": "config set", "who": "mgr", "name": "mgr/progress/enabled", "value": on.to_string()});
    Ok(Ordered { orders: vec![set], reply: Reply::status(format!("progress {word}")) })
}

fn history_ls(cx: &Context<'_>) -> Answer {
    let history = cx.state.health_history.borrow();
    Ok(cx.format.reply(|| history.json(), || history.text()))
}

/// What is over and still shown.
fn completed<'a>(cx: &'a Context<'_>) -> impl Iterator<Item = &'a jobs::Completed> {
    let since = cx.state.progress.cleared.get();
    cx.state.pg_map.jobs.completed().filter(move |c| c.finished > since)
}

fn service_dump(cx: &Context<'_>) -> Answer {
    json(cx, &cx.state.services.dump())
}

fn service_status(cx: &Context<'_>) -> Answer {
    json(cx, &cx.state.services.status())
}

fn progress(cx: &Context<'_>) -> Answer {
    if !cx.state.progress.on {
        return text("Nothing in progress\n");
    }
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
    let mut over = completed(cx).peekable();
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
    if !cx.state.progress.on {
        return json(cx, &json!({"events": [], "completed": [], "jobs": {}}));
    }
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
    let completed: Vec<_> = completed(cx).map(jobs::Completed::dump).collect();
    let jobs: serde_json::Map<_, _> =
        all.iter().map(|(name, j)| (name.clone(), j.dump())).collect();
    json(cx, &json!({"events": events, "completed": completed, "jobs": jobs}))
}
