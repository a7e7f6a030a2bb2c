//! What arrives, by kind.

use super::clock::now;
use super::session::{Link, Session, Subscription};
use super::{Inner, log_watch};
use crate::osd_state::OsdMapExt;
use crate::state::Change;
use messages::{AnyMessage, LogAck, MonGetVersionReply, MonMapMsg, Payload, Ping, StatfsReply};
use msgr::Connection;
use std::rc::Rc;
use types::EntityType;

/// How many lines of the cluster log one message may bring.
const LOG_LINES_MAX: usize = 1000;

impl Inner {
    /// Starts the session of an authenticated peer. False if it may not have one.
    pub(super) fn open_session(&self, conn: &Rc<Connection>) -> bool {
        let Some(name) = conn.auth_name() else { return false };
        match Session::new(Link::Direct(conn.clone()), name, conn.auth_caps()) {
            Some(session) => {
                self.sessions.borrow_mut().insert(conn.id(), Rc::new(session));
                true
            }
            None => false,
        }
    }

    /// The session of a connection.
    pub(super) fn session(&self, conn: &Rc<Connection>) -> Option<Rc<Session>> {
        self.sessions.borrow().get(&conn.id()).cloned()
    }

    pub(super) fn dispatch(&self, conn: &Rc<Connection>, message: msgr::Message) {
        let Some(session) = self.session(conn) else { return };
        let tid = message.tid;
        // What this monitor knows itself, or what is about itself, it answers itself.
        let own = [
            messages::MonGetMap::TYPE,
            messages::MonSubscribe::TYPE,
            messages::MonGetOsdMap::TYPE,
            messages::GetConfig::TYPE,
            messages::Command::TYPE,
            messages::Auth::TYPE,
            Ping::TYPE,
        ];
        if !own.contains(&message.msg_type) {
            return match self.leads() {
                true => self.decide(&session, message),
                false => self.postpone(&session, message),
            };
        }
        match AnyMessage::decode(&message) {
            Ok(AnyMessage::MonGetMap(_)) => self.send_monmap(&session),
            Ok(AnyMessage::MonSubscribe(m)) => self.subscribe(&session, m),
            Ok(AnyMessage::MonGetOsdMap(m)) => self.get_osd_map(&session, m, tid),
            Ok(AnyMessage::GetConfig(m)) => self.get_config(&session, m, tid),
            Ok(AnyMessage::Command(m)) => self.tell(&session, m, tid),
            Ok(AnyMessage::Auth(m)) => self.auth_message(&session, m, tid),
            Ok(AnyMessage::Ping(_)) => self.ping(&session, tid),
            Ok(_) => {}
            Err(e) => self.unreadable(&session, &e),
        }
    }

    /// What was wanted cannot be known; a session that goes on would wait for ever.
    fn unreadable(&self, session: &Session, why: &messages::MessageError) {
        tracing::warn!(peer = %session.name, "unreadable message: {why}");
        session.conn.end();
        if let Link::Direct(conn) = &session.conn {
            self.sessions.borrow_mut().remove(&conn.id());
            self.forget_requests(conn.id());
        }
    }

    /// The leader's part of a session's messages.
    pub(super) fn decide(&self, session: &Rc<Session>, message: msgr::Message) {
        let tid = message.tid;
        let decoded = match AnyMessage::decode(&message) {
            Ok(m) => m,
            Err(e) => return self.unreadable(session, &e),
        };
        match decoded {
            AnyMessage::MonGetVersion(m) => self.get_version(session, m, tid),
            AnyMessage::MonCommand(m) => self.mon_command(session, m, tid),
            AnyMessage::Statfs(m) => self.statfs(session, m, tid),
            AnyMessage::GetPoolStats(m) => self.get_pool_stats(session, m, tid),
            AnyMessage::PoolOp(m) => self.pool_op(session, m, tid),
            AnyMessage::Log(m) => self.log_lines(session, m, tid),
            AnyMessage::OsdBoot(m) => self.osd_boot(session, m),
            AnyMessage::OsdBeacon(m) => self.osd_beacon(session, m),
            AnyMessage::OsdAlive(m) => self.osd_alive(session, m),
            AnyMessage::OsdFailure(m) => self.osd_failure(session, m),
            AnyMessage::OsdMarkMeDown(m) => self.osd_mark_me_down(session, m, tid),
            AnyMessage::OsdMarkMeDead(m) => self.osd_mark_me_dead(session, m),
            AnyMessage::OsdPgTemp(m) => self.osd_pg_temp(session, m),
            AnyMessage::OsdPgCreated(m) => self.osd_pg_created(session, m),
            AnyMessage::OsdFull(m) => self.osd_full(session, m),
            AnyMessage::MgrDigest(m) => self.mgr_digest(session, m),
            AnyMessage::MgrBeacon(m) => self.mgr_beacon(session, m),
            AnyMessage::MgrCommandReply(m) => self.mgr_command_reply(session, m, tid),
            AnyMessage::MdsBeacon(m) => self.mds_beacon(session, m, tid),
            AnyMessage::MdsLoadTargets(m) => self.mds_load_targets(session, &m),
            AnyMessage::RemoveSnaps(m) => self.remove_snaps(session, m, tid),
            other => {
                tracing::debug!(peer = %session.name, "ignored: message type {}", kind(&other, &message))
            }
        }
    }

    /// Proves that the monitor lives, with what it thinks of itself (an encoded string of JSON).
    fn ping(&self, session: &Session, tid: u64) {
        let mon = self.status();
        let health = match self.admin(r#"{"prefix": "health", "format": "json"}"#) {
            Ok(reply) => serde_json::from_slice(&reply.data).unwrap_or_default(),
            Err(_) => serde_json::Value::Null,
        };
        let text = serde_json::json!({
            "health": health,
            "mon_status": {
                "name": mon.name,
                "rank": mon.rank,
                "state": mon.state,
                "election_epoch": mon.election_epoch,
                "quorum": mon.quorum,
            },
        })
        .to_string();
        let body = denc::Encode::to_bytes(&text, denc::Features::ALL);
        self.send(&session.conn, &Ping { body: messages::Rest(body) }, tid);
    }

    pub(super) fn send_monmap(&self, session: &Session) {
        let map = denc::Encode::to_bytes(&*self.committed().monmap, session.conn.features());
        self.send(&session.conn, &MonMapMsg { map }, 0);
    }

    fn get_version(&self, session: &Session, m: messages::MonGetVersion, tid: u64) {
        let state = self.committed();
        let (version, oldest_version) = match m.what.as_str() {
            "osdmap" => (state.osd.last().0.into(), state.osd.first().0.into()),
            "monmap" => (state.monmap.epoch.0.into(), 1),
            "mgrmap" => (state.mgr.epoch.0.into(), 1),
            "mdsmap" | "fsmap" => (state.fs.epoch.0.into(), 1),
            other => {
                tracing::debug!(peer = %session.name, "version of unknown map {other}");
                return;
            }
        };
        self.send(
            &session.conn,
            &MonGetVersionReply { handle: m.handle, version, oldest_version },
            tid,
        );
    }

    fn statfs(&self, session: &Session, m: messages::Statfs, tid: u64) {
        if !session.may("pg", "r") {
            return;
        }
        let state = self.committed();
        if m.fsid != state.monmap.fsid {
            return;
        }
        let stats = self.stats.borrow();
        let (kb, kb_used, kb_avail, num_objects) =
            stats.digest.as_ref().map_or((0, 0, 0, 0), |d| d.statfs(state.osd.map(), m.data_pool));
        let reply = StatfsReply { fsid: m.fsid, version: 0, kb, kb_used, kb_avail, num_objects };
        self.send(&session.conn, &reply, tid);
    }

    fn get_pool_stats(&self, session: &Session, m: messages::GetPoolStats, tid: u64) {
        if !session.may("pg", "r") {
            return;
        }
        let state = self.committed();
        if m.fsid != state.monmap.fsid {
            return;
        }
        let stats = self.stats.borrow();
        let map = state.osd.map();
        let mut pool_stats = std::collections::BTreeMap::new();
        for name in &m.pools {
            let Some(id) = map.pool_id(name) else { continue };
            let stat =
                stats.digest.as_ref().and_then(|d| d.pool_stat(id)).copied().unwrap_or_default();
            pool_stats.insert(name.clone(), stat);
        }
        let reply = messages::GetPoolStatsReply {
            paxos: m.paxos,
            fsid: m.fsid,
            pool_stats,
            per_pool: true,
        };
        self.send(&session.conn, &reply, tid);
    }

    fn log_lines(&self, session: &Rc<Session>, m: messages::Log, tid: u64) {
        if !session.may("log", "w") || m.fsid != self.committed().monmap.fsid {
            return;
        }
        let Some(last) = m.entries.iter().map(|e| e.seq).max() else { return };
        let channel = m.entries.first().map(|e| e.channel.clone()).unwrap_or_default();
        let mut entries = m.entries;
        entries.truncate(LOG_LINES_MAX);
        let (conn, fsid) = (session.conn.clone(), m.fsid);
        let ack = LogAck { fsid, last, channel: messages::OrDefault(channel) };
        self.change(
            move |p| p.put(Change::Log(entries)),
            move |r| {
                if r.is_ok() {
                    let mut m = ack.encode(conn.features());
                    m.tid = tid;
                    conn.send(m);
                }
            },
        );
    }

    fn subscribe(&self, session: &Rc<Session>, m: messages::MonSubscribe) {
        if !m.hostname.is_empty() {
            *session.hostname.borrow_mut() = m.hostname;
        }
        for (what, item) in m.what {
            let allowed = match what.as_str() {
                "osdmap" | "osd_pg_creates" => session.may("osd", "r"),
                "mgrdigest" => session.name.kind == EntityType::MGR,
                w if w.starts_with("kv:") => {
                    let key = w.trim_start_matches("kv:").to_owned();
                    session.allows(
                        "config-key",
                        "config-key get",
                        &[("key".to_owned(), key)].into(),
                        "r",
                    )
                }
                w if w == "mdsmap" || w.starts_with("mdsmap.") || w.starts_with("fsmap") => {
                    session.may("mds", "r")
                }
                // A client that may not read the monitors' state learns only where they are, and
                // its settings.
                "monmap" | "config" => true,
                _ => session.may("mon", "r"),
            };
            if !allowed {
                tracing::debug!(peer = %session.name, "may not subscribe to {what}");
                continue;
            }
            let sub = Subscription { next: item.start, onetime: item.onetime() };
            if log_watch::level(&what).is_some() {
                // A peer watches the log at one level; the newest request holds.
                session.subs.borrow_mut().retain(|other, _| log_watch::level(other).is_none());
            }
            session.subs.borrow_mut().insert(what.clone(), sub);
            self.publish_one(session, &what);
        }
    }
}

fn kind(m: &AnyMessage, raw: &msgr::Message) -> u16 {
    match m {
        AnyMessage::Unknown(n) => *n,
        _ => raw.msg_type,
    }
}

impl Inner {
    /// The monitor's own line in the cluster log.
    pub(super) fn log_line(
        &self,
        pending: &mut crate::state::Pending,
        prio: types::log::LogPriority,
        text: String,
    ) {
        self.log_to(pending, "cluster", prio, text);
    }

    /// The monitor's own line in a channel of the log.
    pub(super) fn log_to(
        &self,
        pending: &mut crate::state::Pending,
        channel: &str,
        prio: types::log::LogPriority,
        text: String,
    ) {
        let line = types::LogEntry {
            name: types::log::LogName { kind: EntityType::MON, id: self.name.clone() },
            rank: types::EntityName::new(EntityType::MON, self.rank().into()),
            addrs: self.messenger.borrow().as_ref().map(|m| m.addrs()).unwrap_or_default(),
            stamp: now(),
            seq: pending.state().log.next(),
            prio,
            msg: text,
            channel: channel.into(),
        };
        pending.put(Change::Log(vec![line]));
    }
}
