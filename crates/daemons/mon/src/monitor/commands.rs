//! Commands of a session: the way from the message to the table and back.

use super::Inner;
use super::admin::is_slow;
use super::asked::Asked;
use super::clock::now;
use super::session::Session;
use crate::command::{Args, Refusal, Reply, Shape, flags};
use crate::commands::{self, Answer, Caller, Entry, Env, Read, Run, Write};
use crate::state::{Change, Execution, Known, Pending, RequestId, RequestKind};
use bytes::Bytes;
use std::rc::Rc;
use types::errno::Errno;
use types::log::LogPriority;
use types::{Epoch, features};

/// A command as logs show it. What operators keep under `config-key` may be secret; promises to
/// tenants are not, and their author should be seen.
fn shown(args: &Args, text: &str) -> String {
    if !args.prefix().starts_with("config-key") {
        return text.to_owned();
    }
    let key = args.str("key").unwrap_or_default();
    let mut shown = serde_json::json!({"prefix": args.prefix(), "key": key});
    if let Some(value) = args.str("val").filter(|_| key.starts_with("qos/spec/")) {
        shown["val"] = value.into();
    }
    shown.to_string()
}

/// A command as operators see it that look at requests.
pub(super) fn described(cmd: &[String]) -> String {
    let text = cmd.concat();
    let shown = Args::parse(cmd).map_or_else(|_| String::new(), |args| shown(&args, &text));
    format!("mon_command({shown} v 0)")
}

/// What the audit log says of a command that changed something.
fn audited(caller: &Caller, shown: &str) -> String {
    format!("from='client.? {}' entity='{}' cmd='[{shown}]': finished", caller.addr, caller.name)
}

/// A command that changes something, as it was given.
struct Given {
    from: String,
    shown: String,
    request: Option<RequestId>,
}

/// The entry of the table that a client may execute. The answer has the shape that is asked for.
fn entry_for(session: &Session, args: &Args, asked: &mut Asked) -> Result<&'static Entry, Refusal> {
    // Permission before arguments: no client learns anything about commands that it may not give.
    if let Some(entry) = commands::find_prefix(args.prefix())
        && !session.allows(entry.module, args.prefix(), &args.text_map(), entry.perm)
    {
        return Err(Refusal::new(Errno::EACCES, "access denied"));
    }
    let shape = Shape::of(args)?;
    if let Asked::Mon(_, _, asked) = asked {
        *asked = shape;
    }
    let entry = commands::find(args)?;
    if entry.flags & flags::OBSOLETE != 0 {
        let message = "command is obsolete; please check usage and/or man page";
        return Err(Refusal::unsupported(message));
    }
    Ok(entry)
}

/// Which request this is, for a client that can be told from others.
pub(super) fn request_id(session: &Session, kind: RequestKind, tid: u64) -> Option<RequestId> {
    let global_id = session.conn.global_id();
    (global_id != 0 && tid != 0).then_some(RequestId { global_id, kind, tid })
}

/// Executes a command that was not executed before, and remembers its answer in the same batch. An
/// error is an answer, too: what was refused then may be possible now, and is not asked for any
/// more.
fn once(
    pending: &mut Pending,
    request: Option<RequestId>,
    execute: impl FnOnce(&mut Pending) -> Answer,
) -> Answer {
    let Some(id) = request else { return execute(pending) };
    match pending.state().executed.known(id) {
        Known::New => {}
        Known::Executed(e) => {
            let (text, data) = (e.text.clone(), e.data.clone().unwrap_or_default());
            return match e.result {
                0 => Ok(Reply { status: text, data }),
                code => Err(Refusal { errno: Errno(-code), message: text, data }),
            };
        }
        Known::Late => {
            return Err(Refusal::new(
                Errno::ESTALE,
                "a later command of this client was executed before",
            ));
        }
    }
    let answer = execute(pending);
    let (result, text, data) = match &answer {
        Ok(r) => (0, r.status.clone(), r.data.clone()),
        Err(r) => (-r.errno.0, r.message.clone(), r.data.clone()),
    };
    let stamp = pending.now();
    let data = (!data.is_empty()).then_some(data);
    pending.put(Change::Executed(Box::new(Execution {
        id,
        stamp,
        result,
        text,
        data,
        epoch: Epoch(0),
    })));
    answer
}

impl Inner {
    pub(super) fn mon_command(&self, session: &Rc<Session>, m: messages::MonCommand, tid: u64) {
        let op = self.ops.begin(described(&m.cmd), session.name.to_string());
        if m.fsid != self.committed().monmap.fsid {
            return Asked::Mon(m, op, Shape::AsIs).reply(
                Err(Refusal::new(Errno::EPERM, "wrong fsid")),
                session,
                tid,
            );
        }
        let (cmd, input) = (m.cmd.clone(), m.input.clone());
        self.run(session, &cmd, input, Asked::Mon(m, op, Shape::AsIs), tid);
    }

    /// `ceph tell mon.x ...`: needs all capabilities.
    pub(super) fn tell(&self, session: &Rc<Session>, m: messages::Command, tid: u64) {
        if !session.may_all() {
            return Asked::Tell.reply(
                Err(Refusal::new(Errno::EACCES, "insufficient caps")),
                session,
                tid,
            );
        }
        let text = m.cmd.concat();
        if !is_slow(&text) {
            return Asked::Tell.reply(self.admin(&text), session, tid);
        }
        let (inner, session) = (self.me(), session.clone());
        tokio::task::spawn_local(async move {
            if let Some(inner) = inner {
                Asked::Tell.reply(inner.admin_slow(&text).await, &session, tid);
            }
        });
    }

    fn run(&self, session: &Rc<Session>, cmd: &[String], input: Bytes, mut asked: Asked, tid: u64) {
        let args = match Args::parse(cmd) {
            Ok(args) => args,
            Err(e) => return asked.reply(Err(e.into()), session, tid),
        };
        if args.prefix().trim().is_empty() {
            let refusal = Refusal::invalid("command requires a prefix to be valid");
            return asked.reply(Err(refusal), session, tid);
        }
        if args.prefix() == "get_command_descriptions" {
            let knows_bool = session.conn.features().has(features::SERVER_NAUTILUS);
            let all = commands::descriptions(knows_bool, &self.committed().manager_commands);
            return asked.reply(Ok(Reply::data(all)), session, tid);
        }
        let of_manager = self.committed().manager_commands;
        if commands::find_prefix(args.prefix()).is_none()
            && let Some(entry) = of_manager.find(args.prefix())
        {
            if !session.allows(entry.module, args.prefix(), &args.text_map(), entry.perm) {
                let refusal = Refusal::new(Errno::EACCES, "access denied");
                return asked.reply(Err(refusal), session, tid);
            }
            return self.hand_to_manager(session, cmd, input, asked, tid);
        }
        let entry = match entry_for(session, &args, &mut asked) {
            Ok(entry) => entry,
            Err(refusal) => return asked.reply(Err(refusal), session, tid),
        };
        let (status, caller) = (self.status(), session.caller());
        let sessions = || self.session_infos();
        let stats = self.stats_for_commands();
        let env = Env {
            now: now(),
            conf: &self.conf,
            mon: &status,
            caller: &caller,
            input: &input,
            stats: &stats,
            sessions: &sessions,
        };
        match entry.handler {
            Run::Read(f) => {
                let state = session.seen(self.committed());
                let answer = f(&Read { state: &state, env: &env, args: &args });
                asked.reply(answer, session, tid);
            }
            Run::Write(f) => {
                if ["fs", "mds"].contains(&entry.module)
                    && let Err(refusal) = session.may_change_fs(&self.committed().fs, &args)
                {
                    return asked.reply(Err(refusal), session, tid);
                }
                if let Asked::Mon(_, op, _) = &asked {
                    op.event("waits for the commit");
                }
                let given = Given {
                    from: session.name.to_string(),
                    shown: shown(&args, &cmd.concat()),
                    request: request_id(session, RequestKind::Command, tid),
                };
                let session = session.clone();
                self.change(
                    |pending| self.execute(pending, f, &env, &args, given),
                    move |result| match result {
                        Ok(answer) => asked.reply(answer, &session, tid),
                        // Whether it took effect is not known. The client gives it again, as it
                        // does whenever it loses a monitor.
                        Err(_) => session.conn.lose(),
                    },
                );
            }
            Run::Unsupported(why) => asked.reply(Err(Refusal::unsupported(why)), session, tid),
        }
    }

    /// Executes a command that changes something, and logs it.
    fn execute(
        &self,
        pending: &mut Pending,
        f: fn(&mut Write<'_>) -> Answer,
        env: &Env<'_>,
        args: &Args,
        given: Given,
    ) -> Answer {
        once(pending, given.request, |pending| {
            let answer = f(&mut Write { pending, env, args });
            if answer.is_ok() {
                tracing::info!(from = given.from, command = given.shown, "command");
                let audited = audited(env.caller, &given.shown);
                self.log_to(pending, "audit", LogPriority::INFO, audited);
            }
            answer
        })
    }
}
