//! Commands of the manager that clients send to a monitor (Ceph: `C_MgrProxyCommand`,
//! `mon/Monitor.cc`, 16.2). The leader hands them on over the session that the active manager has
//! with the monitors, and hands the answer back.
//!
//! A command is sent again when the manager begins a new session or another manager takes over,
//! because the first copy may not have arrived. The manager may thus execute it twice, as with
//! stock monitors.

use super::asked::{Asked, Open, Way};
use super::session::{Link, Session};
use crate::command::{Refusal, Reply};
use bytes::Bytes;
use messages::{MgrCommand, MgrCommandReply};
use std::rc::Rc;
use types::errno::Errno;

/// Bytes of commands that may wait for the manager (Ceph: `mon_client_bytes` times
/// `mon_mgr_proxy_client_bytes_ratio`).
const WAITING_BYTES_MAX: usize = 30 << 20;
/// Commands that may wait for the manager.
const WAITING_MAX: usize = 10_000;

impl super::Inner {
    /// Hands a command to the manager. The answer goes out when the manager has given it.
    pub(super) fn hand_to_manager(
        &self,
        session: &Rc<Session>,
        cmd: &[String],
        input: Bytes,
        asked: Asked,
        tid: u64,
    ) {
        let open = Open { asked, session: session.clone(), tid, cmd: cmd.to_vec(), input };
        let mut all = self.mgr_commands.borrow_mut();
        all.tidy();
        if all.bytes + open.bytes() > WAITING_BYTES_MAX || all.open.len() >= WAITING_MAX {
            let refusal = Refusal::new(
                Errno::EAGAIN,
                format!("hit limit {WAITING_BYTES_MAX} on proxied mgr commands; try again"),
            );
            return open.asked.reply(Err(refusal), session, tid);
        }
        // Answers to an earlier leader must not be taken for those to this one.
        let first = self.part.borrow().term << 32;
        all.last = all.last.max(first) + 1;
        let number = all.last;
        self.send_to_manager(all.way.as_ref(), number, &open);
        all.bytes += open.bytes();
        all.open.insert(number, open);
    }

    fn send_to_manager(&self, way: Option<&Way>, number: u64, open: &Open) {
        let Some(way) = way.filter(|w| !w.link.is_down()) else { return };
        let (cmd, input) = (open.cmd.clone(), open.input.clone());
        self.send(&way.link, &MgrCommand { fsid: self.fsid(), cmd, input }, number);
    }

    /// The active manager has sent a digest: this is the way to it.
    pub(super) fn manager_is_at(&self, gid: u64, manager_session: u64, link: &Link) {
        let mut all = self.mgr_commands.borrow_mut();
        let known = all
            .way
            .as_ref()
            .is_some_and(|w| (w.gid, w.session) == (gid, manager_session) && !w.link.is_down());
        let way = Way { gid, session: manager_session, link: link.clone() };
        all.tidy();
        if !known {
            for (number, open) in &all.open {
                self.send_to_manager(Some(&way), *number, open);
            }
        }
        all.way = Some(way);
    }

    /// The manager has answered a command.
    pub(super) fn mgr_command_reply(&self, session: &Session, m: MgrCommandReply, tid: u64) {
        let active = self.mgr_commands.borrow().way.as_ref().map(|w| w.link.global_id());
        if session.name.kind != types::EntityType::MGR || active != Some(session.conn.global_id()) {
            return tracing::warn!(peer = %session.name, "an answer of another than the manager");
        }
        let Some(open) = self.mgr_commands.borrow_mut().remove(tid) else { return };
        let answer = match m.result {
            0.. => Ok(Reply { status: m.status, data: m.output }),
            code => Err(Refusal {
                errno: Errno(code.saturating_neg()),
                message: m.status,
                data: m.output,
            }),
        };
        open.asked.reply(answer, &open.session, open.tid);
    }

    /// This monitor does not lead any more: clients ask the next leader.
    pub(super) fn forget_manager(&self) {
        let all = std::mem::take(&mut *self.mgr_commands.borrow_mut());
        for open in all.open.into_values() {
            // Followers pass what was not answered on to the next leader by themselves.
            if open.session.conn.is_direct() {
                open.session.conn.lose();
            }
        }
    }
}
