//! `fs perf stats` (Ceph: module `stats`, 16.2).

use super::fs::Ask;
use super::{Answer, Entry, Run};
use crate::client_stats::{Filter, MODULE};
use command::{Command, Format, Refusal, Reply, flags};
use serde_json::json;
use std::time::Duration;
use types::errno::Errno;

/// How long servers may take for their first answer: stock ones report every `mgr_stats_period`.
const FIRST_ANSWER: Duration = Duration::from_secs(6);

pub(super) const COMMANDS: &[Entry] = &[Command {
    signature: "fs perf stats name=mds_rank,type=CephString,req=false name=client_id,type=CephString,req=false name=client_ip,type=CephString,req=false",
    help: "retrieve ceph fs performance stats",
    module: MODULE,
    perm: "r",
    flags: flags::MGR,
    handler: Run::Fs(|a| Box::pin(perf_stats(a))),
}];

async fn perf_stats(a: Ask) -> Answer {
    if !a.clients.enabled {
        return Err(Refusal::new(
            Errno::ENOTSUP,
            format!(
                "Module '{MODULE}' is not enabled (required by command 'fs perf stats'): use `ceph mgr module enable {MODULE}` to enable it"
            ),
        ));
    }
    let filter = Filter::of(&a.args).map_err(Refusal::invalid)?;
    let kept = &a.clients.kept;
    let waited = kept.stats.borrow_mut().ask(a.now);
    kept.asked.notify_one();
    let complete = async {
        loop {
            let told = kept.told.notified();
            if kept.stats.borrow().is_complete(&a.fs) {
                return;
            }
            told.await;
        }
    };
    let _ = tokio::time::timeout(FIRST_ANSWER.saturating_sub(waited), complete).await;
    describe(&a, &filter).await;
    let shown = kept.stats.borrow().show(&a.fs, &filter, a.now);
    let format = if a.format == Format::Plain { Format::Json } else { a.format };
    Ok(Reply::data(format.json(&shown)))
}

/// Asks servers for the descriptions of clients, until all that are to be shown have one. A client
/// that no server describes is shown without.
async fn describe(a: &Ask, filter: &Filter) {
    let stats = &a.clients.kept.stats;
    let servers = stats.borrow().undescribed(&a.fs, filter);
    for (fs, gid) in servers {
        if !stats.borrow().undescribed(&a.fs, filter).contains(&(fs, gid)) {
            continue;
        }
        let command = json!({"prefix": "client ls", "format": "json"});
        match (a.clients.server)(gid, command).await {
            Ok(reply) => {
                let sessions = serde_json::from_slice(&reply.data).unwrap_or_default();
                stats.borrow_mut().describe(&a.fs, fs, &sessions);
            }
            Err(e) => tracing::debug!("clients of the server {gid}: {}", e.message),
        }
    }
}
