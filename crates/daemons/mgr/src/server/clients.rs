//! Asks metadata servers what their clients count, while commands ask for it.

use super::Inner;
use crate::client_stats::{ASKED_FOR, Clients, MODULE};
use crate::commands::Answer;
use crate::commands::fs::Later;
use bytes::Bytes;
use client::wall_clock;
use command::{Refusal, Reply};
use daemon_frame::send;
use messages::{ClientQuery, MgrReport};
use msgr::Connection;
use serde_json::Value;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;
use types::EntityType;
use types::errno::Errno;

/// How long a metadata server may take to list its sessions.
const PATIENCE: Duration = Duration::from_secs(5);

impl Inner {
    /// What a metadata server is asked about its clients; nothing for others.
    pub(super) fn client_queries(&self, conn: &Connection) -> Option<BTreeSet<ClientQuery>> {
        let is_mds = conn.auth_name().is_some_and(|n| n.kind == EntityType::MDS);
        is_mds.then(|| match self.clients.stats.borrow_mut().is_wanted(wall_clock()) {
            true => ClientQuery::all(),
            false => BTreeSet::new(),
        })
    }

    /// Tells all metadata servers what they are asked. A stock server forgets it with its rank.
    pub(super) fn ask_about_clients(&self) {
        let opened = self.opened.borrow();
        for conn in opened.iter().filter(|c| !c.is_down()) {
            let wanted = self.wanted_reports(conn);
            if wanted.client_queries.is_some() {
                send(conn, &wanted, 0);
            }
        }
    }

    /// Takes what a metadata server says.
    pub(super) fn clients_told(&self, m: &MgrReport) -> denc::Result<()> {
        let mut stats = self.clients.stats.borrow_mut();
        stats.report(&m.daemon_name, m.clients.as_ref(), wall_clock())?;
        self.clients.told.notify_waiters();
        Ok(())
    }

    /// What a command about clients has.
    pub(super) fn clients(&self) -> Clients {
        let objecter = self.objecter.clone();
        let server = move |gid, command: Value| -> Later {
            let objecter = objecter.clone();
            Box::pin(async move {
                let command = command.to_string();
                let asked = objecter.mds_command(gid, &command, Bytes::new());
                answer(tokio::time::timeout(PATIENCE, asked).await)
            })
        };
        Clients {
            enabled: self.modules.borrow().contains(MODULE),
            kept: self.clients.clone(),
            server: Box::new(server),
        }
    }
}

fn answer(
    outcome: Result<client::Result<client::CommandOutput>, tokio::time::error::Elapsed>,
) -> Answer {
    match outcome {
        Ok(Ok(o)) if o.code >= 0 => Ok(Reply { status: o.status, data: o.output }),
        Ok(Ok(o)) => Err(Refusal::new(Errno(o.code.saturating_neg()), o.status)),
        Ok(Err(e)) => Err(Refusal::new(Errno::ENOTCONN, e.to_string())),
        Err(_) => Err(Refusal::new(Errno::ETIMEDOUT, format!("no answer within {PATIENCE:?}"))),
    }
}

/// Tells metadata servers when they are asked, and when they are not any more.
pub(super) async fn follow_questions(inner: Weak<Inner>) {
    let mut asks = false;
    loop {
        let Some(m) = inner.upgrade() else { return };
        if m.stopping.get() || !m.serves() {
            return;
        }
        let wanted = m.clients.stats.borrow_mut().is_wanted(wall_clock());
        if std::mem::replace(&mut asks, wanted) != wanted {
            m.ask_about_clients();
        }
        let kept: Rc<_> = m.clients.clone();
        drop(m);
        match asks {
            true => drop(tokio::time::timeout(ASKED_FOR, kept.asked.notified()).await),
            false => kept.asked.notified().await,
        }
    }
}
