//! `crash`: reports of crashes that were posted.

use super::{Answer, Context, Entry, Kept, Run, read};
use crate::crash::{Crashes, Saved};
use command::{Command, Format, Refusal, Reply, flags};
use serde_json::json;
use types::errno::Errno;

const fn keeping(
    signature: &'static str,
    help: &'static str,
    handler: fn(&Context<'_>) -> Result<Kept, Refusal>,
) -> Entry {
    Command {
        signature,
        help,
        module: "mgr",
        perm: "rw",
        flags: flags::MGR,
        handler: Run::Keep(handler),
    }
}

pub(super) const COMMANDS: &[Entry] = &[
    read("crash info name=id,type=CephString", "show crash dump metadata", "mgr", info),
    read("crash ls", "Show new and archived crash dumps", "mgr", |cx| list(cx, true)),
    read("crash ls-new", "Show new crash dumps", "mgr", |cx| list(cx, false)),
    read("crash stat", "Summarize recorded crashes", "mgr", |cx| {
        Ok(Reply::data(known(cx)?.stat(cx.now)))
    }),
    read(
        "crash json_report name=hours,type=CephInt,range=0",
        "Crashes in the last <hours> hours",
        "mgr",
        |cx| {
            let hours = u64::try_from(cx.args.int("hours").unwrap_or(0)).unwrap_or(0);
            Ok(Reply::data(Format::Json.json(&known(cx)?.by_process(hours, cx.now))))
        },
    ),
    keeping("crash post", "Add a crash dump (use -i <jsonfile>)", |cx| {
        let saved = known(cx)?.post(cx.input).map_err(|e| Refusal::invalid(e.to_string()))?;
        kept(saved.into_iter().collect())
    }),
    keeping(
        "crash archive name=id,type=CephString",
        "Acknowledge a crash and silence health warning(s)",
        |cx| {
            let id = cx.args.req("id");
            let crashes = known(cx)?;
            found(crashes, id)?;
            kept(crashes.archive(Some(id), cx.now))
        },
    ),
    keeping(
        "crash archive-all",
        "Acknowledge all new crashes and silence health warning(s)",
        |cx| kept(known(cx)?.archive(None, cx.now)),
    ),
    keeping("crash rm name=id,type=CephString", "Remove a saved crash <id>", |cx| {
        let id = cx.args.req("id");
        let there = known(cx)?.get(id).is_some();
        kept(there.then(|| (id.to_owned(), None)).into_iter().collect())
    }),
    keeping(
        "crash prune name=keep,type=CephInt,range=0",
        "Remove crashes older than <keep> days",
        |cx| {
            let days = u64::try_from(cx.args.int("keep").unwrap_or(0)).unwrap_or(0);
            kept(known(cx)?.prune(days.saturating_mul(86_400), cx.now))
        },
    ),
];

fn kept(saved: Vec<Saved>) -> Result<Kept, Refusal> {
    Ok(Kept { reply: Reply::empty(), saved })
}

fn known<'a>(cx: &Context<'a>) -> Result<&'a Crashes, Refusal> {
    let crashes = &cx.state.crashes;
    match crashes.0 {
        Some(_) => Ok(crashes),
        None => Err(Refusal::new(Errno::EAGAIN, "the reports were not read from the monitors yet")),
    }
}

fn found<'a>(crashes: &'a Crashes, id: &str) -> Result<&'a serde_json::Value, Refusal> {
    crashes.get(id).ok_or_else(|| Refusal::invalid(format!("crash info: {id} not found")))
}

fn info(cx: &Context<'_>) -> Answer {
    Ok(Reply::data(Format::JsonPretty.json(found(known(cx)?, cx.args.req("id"))?)))
}

fn list(cx: &Context<'_>, all: bool) -> Answer {
    let crashes = known(cx)?;
    Ok(cx.format.reply(|| json!(crashes.list(all)), || crashes.table(all)))
}
