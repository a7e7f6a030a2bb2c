//! Carrying out what the core wants: reads, writes, the log.

use super::Rank;
use super::damage::Damage;
use crate::log::{Log, LogWork};
use crate::peers::Word;
use crate::store::StoreError;
use mds::{Action, Event};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use types::Errno;

/// What failed is tried again after this pause.
const RETRY: Duration = Duration::from_secs(1);

/// Does the work on the log until the rank goes.
pub async fn log(rank: Weak<Rank>, mut log: Log, mut work: mpsc::UnboundedReceiver<LogWork>) {
    while let Some(work) = work.recv().await {
        let work = match work {
            LogWork::Claim { end, empty } => {
                let is = log.is_empty();
                let _ = empty.send(is);
                if is && end {
                    return;
                }
                if is && let Some(server) = rank.upgrade().and_then(|r| r.server()) {
                    server.say_log_is_empty();
                }
                continue;
            }
            work => work,
        };
        if matches!(work, LogWork::Append(..)) {
            // The monitors may let a stock server have the rank.
            let Some(server) = rank.upgrade().and_then(|r| r.server()) else { return };
            if !server.may_use_log().await {
                return;
            }
        }
        loop {
            let done = match &work {
                LogWork::Claim { .. } => Ok(()),
                LogWork::Append(batch, bytes) => log.append(*batch, bytes).await,
                LogWork::Trim(below) => log.trim(*below).await,
                LogWork::Tables(_, tables) => {
                    let Some(r) = rank.upgrade() else { return };
                    r.write_tables(&mut log, tables).await
                }
            };
            let Some(r) = rank.upgrade() else { return };
            match done {
                Ok(()) => break,
                Err(e) => {
                    if r.fails("the log cannot be written", &e) {
                        return;
                    }
                }
            }
            drop(r);
            tokio::time::sleep(RETRY).await;
        }
        let Some(r) = rank.upgrade() else { return };
        match work {
            LogWork::Append(batch, _) => r.appended(batch),
            LogWork::Trim(_) | LogWork::Claim { .. } => {}
            LogWork::Tables(token, _) => r.done(token),
        }
    }
}

impl Rank {
    /// Whether the rank cannot go on: the OSDs refuse the server, or it stops.
    fn fails(&self, what: &str, e: &StoreError) -> bool {
        let Some(server) = self.server() else { return true };
        match e {
            StoreError::Client(e) if e.is_blocklisted() => {
                server.end("the OSDs refuse the server: it has lost its rank".to_owned());
                true
            }
            StoreError::Client(client::ClientError::Shutdown) => true,
            e => {
                tracing::warn!("mds.{}: {what}: {e}; trying again", server.frame.name);
                false
            }
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        drop(tokio::task::spawn_local(work));
    }

    pub(super) fn log_work(&self, work: LogWork) {
        if let Some(log) = &*self.log.borrow() {
            let _ = log.send(work);
        }
    }

    /// Carries an action out.
    pub(super) fn act(&self, action: Action) {
        let Some(me) = self.me.upgrade() else { return };
        match action {
            Action::Reply(client, reply) => self.reply(client, &reply),
            Action::Caps(client, message) => self.caps(client, &message),
            Action::Lease(client, end) => self.lease_ends(client, &end),
            Action::Session(client, message) => self.session_message(client, message),
            Action::Append(batch, bytes) => self.log_work(LogWork::Append(batch, bytes)),
            Action::TrimLog(below) => self.log_work(LogWork::Trim(below)),
            Action::WriteTables { token, tables } => {
                self.log_work(LogWork::Tables(token, tables));
            }
            Action::WakeAt(at) => {
                if self.alarm.get().is_none_or(|a| at < a) {
                    self.alarm.set(Some(at));
                    self.alarm_set.notify_one();
                }
            }
            Action::Flushed => self.flushed(),
            Action::Emptied => self.emptied(),
            Action::Left | Action::Ended => {
                self.left.set(true);
                self.left_set.notify_waiters();
            }
            Action::Peer(to, message) => {
                if let Some(server) = self.server() {
                    server.tell_rank(to, &Word::Owner(*message));
                }
            }
            Action::Forward(client, to, request) => self.forward(client, to, &request),
            Action::Blocklist { token, client } => {
                self.spawn(async move { me.blocklist(token, client).await });
            }
            Action::ReadPage { .. }
            | Action::ReadEntry { .. }
            | Action::ReadBase { .. }
            | Action::ReadBacktrace { .. } => self.spawn(async move {
                let event = me.read(&action).await;
                me.event(event);
            }),
            Action::Probe { token, inode, max } => self.spawn(async move {
                let found = loop {
                    match me.store.probe(&inode, max).await {
                        Ok(found) => break Ok(found),
                        Err(e) if pool_is_gone(&e) => break Err(Errno::ENOENT.0),
                        Err(e) if me.fails("the size of a file cannot be found out", &e) => return,
                        Err(_) => tokio::time::sleep(RETRY).await,
                    }
                };
                me.event(Event::Probed(token, found));
            }),
            action => self.spawn(async move { me.write(action).await }),
        }
    }

    async fn read(&self, action: &Action) -> Event {
        match action {
            Action::ReadPage { token, dir, after, max } => {
                match self.store.read_page(*dir, after.as_ref(), *max).await {
                    Err(StoreError::Split(_)) => Event::Split(*token),
                    page => Event::Page(*token, self.answer("dir_frag", dir.ino, page)),
                }
            }
            Action::ReadEntry { token, dir, name } => {
                match self.store.read_entry(*dir, name).await {
                    Err(StoreError::Split(_)) => Event::Split(*token),
                    entry => Event::Entry(*token, self.answer("dentry", dir.ino, entry)),
                }
            }
            Action::ReadBase { token, ino } => {
                let inode = self.store.read_base(*ino).await.map(Box::new);
                Event::Base(*token, self.answer("dentry", *ino, inode))
            }
            Action::ReadBacktrace { token, ino } => {
                let pools = self.server().map(|s| s.map().data_pools.clone()).unwrap_or_default();
                let place = self.store.read_backtrace(*ino, &pools).await;
                Event::Backtrace(*token, self.answer("backtrace", *ino, place))
            }
            _ => Event::Wake,
        }
    }

    /// A read's result for the core. What is damaged is noted.
    fn answer<T>(
        &self,
        kind: &'static str,
        ino: mds::Ino,
        result: Result<T, StoreError>,
    ) -> Result<T, i32> {
        result.map_err(|e| {
            if let Some(server) = self.server() {
                if matches!(&e, StoreError::Client(c) if c.is_blocklisted()) {
                    server.end("the OSDs refuse the server: it has lost its rank".to_owned());
                }
                tracing::warn!("mds.{}: inode {:#x} cannot be read: {e}", server.frame.name, ino.0);
            }
            if !matches!(e, StoreError::Client(_)) {
                let why = e.to_string();
                self.damage.borrow_mut().add(Damage { kind, ino, path: None, why });
            }
            e.errno()
        })
    }

    async fn write(self: Rc<Self>, action: Action) {
        loop {
            let (token, done) = match &action {
                Action::WriteDir { token, dir, set, remove, head } => {
                    (*token, self.store.write_dir(*dir, set, remove, head).await)
                }
                Action::WriteBase { token, inode } => (*token, self.store.write_base(inode).await),
                Action::WriteBacktrace { token, ino, is_dir, layout, ancestors } => {
                    let layout = layout.clone().unwrap_or_else(|| self.conf().layout);
                    let write = self.store.write_backtrace(*ino, *is_dir, Some(&layout), ancestors);
                    (*token, write.await)
                }
                Action::Join { token, inode } => (*token, self.store.join(inode).await),
                Action::Purge { token, inode } => (*token, self.store.purge(inode).await),
                Action::Truncate { token, inode } => (*token, self.store.truncate(inode).await),
                _ => return,
            };
            match done {
                Ok(()) => return self.done(token),
                // Nothing is left of what was in it.
                Err(e) if pool_is_gone(&e) => return self.done(token),
                Err(e) if self.fails("what has changed cannot be written", &e) => return,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

fn pool_is_gone(e: &StoreError) -> bool {
    matches!(e, StoreError::Client(client::ClientError::NoPool))
}
