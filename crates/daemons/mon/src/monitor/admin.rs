//! Commands of the admin socket. A process that can open it may do everything.

use super::ops::{KEPT_MAX, Limits};
use super::{Inner, Monitor, now};
use crate::command::{Args, Command, Format, Refusal, Reply, Shape, flags};
use crate::commands::{self, Answer, Caller, Env, Read, Run};
use auth::AuthName;
use bytes::Bytes;
use conf::effective::Source;
use daemon_frame::commands::{
    AnswerParts, Counter, config_get, config_show, parts, perf_dump, perf_schema, version,
};
use daemon_frame::threads::LocalFuture;
use serde_json::{Map, Value, json};
use types::errno::Errno;
use types::{EntityAddr, EntityType};

const fn own(signature: &'static str, help: &'static str) -> Command<()> {
    Command { signature, help, module: "mon", perm: "r", flags: flags::NONE, handler: () }
}

const fn changing(signature: &'static str, help: &'static str) -> Command<()> {
    Command { perm: "rw", ..own(signature, help) }
}

/// The commands that only the socket has.
static OWN: &[Command<()>] = &[
    own("config diff", "show what differs from the defaults"),
    own("config get name=var,type=CephString", "show one option"),
    own("config show", "show all options"),
    own(
        "config set name=var,type=CephString name=val,type=CephString,n=N",
        "set an option until the next start",
    ),
    own("config unset name=var,type=CephString", "take back what config set has set"),
    changing("compact", "make a snapshot of the state and throw away the log before it"),
    own("connection scores dump", "show which monitors are heard, as elections see it"),
    own("dump_historic_ops", "show requests that were answered lately"),
    changing(
        "injectargs name=injected_args,type=CephString,n=N",
        "inject configuration arguments into running monitor",
    ),
    own("ops", "show requests that are not answered yet"),
    changing("quorum enter", "take part in the quorum again"),
    changing("quorum exit", "leave the quorum, and stay out of it"),
    own("get_command_descriptions", "list the commands"),
    own("help", "list the commands"),
    own("log flush", "write log entries to the log file"),
    own("perf dump", "show counters"),
    own("perf schema", "describe counters"),
];

/// What the stock tool builds its parser from: the socket's own commands and those of the table
/// that read.
fn descriptions() -> Value {
    let reading: Vec<Command<()>> = commands::FAMILIES
        .iter()
        .flat_map(|f| f.iter())
        .filter(|c| matches!(c.handler, Run::Read(_)))
        .map(|c| Command {
            signature: c.signature,
            help: c.help,
            module: c.module,
            perm: c.perm,
            flags: flags::NONE,
            handler: (),
        })
        .collect();
    crate::command::describe_all(OWN.iter().chain(&reading))
}

/// Whether a command takes more than a moment.
pub(super) fn is_slow(text: &str) -> bool {
    Args::parse(&[text]).is_ok_and(|args| args.prefix() == "compact")
}

impl Monitor {
    /// Runs a command given as JSON text: return code, status, output.
    pub fn admin_command<'a>(&'a self, json: &'a str) -> LocalFuture<'a, AnswerParts> {
        Box::pin(async move {
            parts(if is_slow(json) {
                self.inner.admin_slow(json).await
            } else {
                self.inner.admin(json)
            })
        })
    }
}

/// How much of what was answered is kept.
pub(super) fn history_limits(conf: &conf::Config) -> Limits {
    Limits {
        size: (conf.u64("mon_op_history_size") as usize).min(KEPT_MAX),
        duration: conf.u64("mon_op_history_duration"),
    }
}

impl Inner {
    /// Runs a command of the socket, or one that `ceph tell mon.ID` sends: the same set.
    pub(super) fn admin(&self, text: &str) -> Answer {
        let args = Args::parse(&[text])?;
        let shape = Shape::of(&args)?;
        self.admin_now(&args).map(|reply| shape.apply(reply))
    }

    fn admin_now(&self, args: &Args) -> Answer {
        let format =
            if Format::of(args) == Format::Plain { Format::JsonPretty } else { Format::of(args) };
        match args.prefix() {
            "config set" | "config unset" | "injectargs" => {
                let answer = self.admin_set(args, format);
                self.read_configuration();
                self.apply_auth_settings();
                return answer;
            }
            "quorum exit" | "quorum enter" => {
                let enters = args.prefix() == "quorum enter";
                self.take_part(enters);
                let what = if enters { "started" } else { "stopped" };
                return Ok(Reply::data(format!(
                    "{what} responding to quorum, initiated new election\n"
                )));
            }
            _ => {}
        }
        let conf = self.conf.borrow();
        let value = match args.prefix() {
            "get_command_descriptions" => descriptions(),
            "help" => {
                let own = OWN.iter().map(|c| (c.prefix().to_string(), Value::from(c.help)));
                let all = commands::FAMILIES
                    .iter()
                    .flat_map(|f| f.iter())
                    .filter(|c| matches!(c.handler, Run::Read(_)));
                own.chain(all.map(|c| (c.prefix().to_string(), Value::from(c.help))))
                    .collect::<Map<_, _>>()
                    .into()
            }
            "version" => version(),
            "config show" => config_show(&conf),
            "config diff" => conf
                .changed()
                .map(|(n, source, v)| (n.to_string(), json!({source.name(): v})))
                .collect::<Map<_, _>>()
                .into(),
            "config get" => {
                config_get(&conf, args.str("var").or(args.str("key")).unwrap_or_default())?
            }
            "perf dump" => perf_dump("mon", &self.counters()),
            "perf schema" => perf_schema("mon", &self.counters()),
            "connection scores dump" => self.connection_scores(),
            // Lines are written as they come.
            "log flush" => return Ok(Reply::empty()),
            "ops" => self.ops.in_flight(now()),
            "dump_historic_ops" => self.ops.historic(now(), history_limits(&conf)),
            _ => {
                drop(conf);
                return self.admin_read(args);
            }
        };
        Ok(Reply::data(format.json(&value)))
    }

    /// What this monitor knows of the others' connections, in the shape of Ceph's
    /// `ConnectionTracker`. Elections go by votes and logs, so that there are no scores of a past.
    fn connection_scores(&self) -> Value {
        let status = self.status();
        let peers = |rank: i32| -> Vec<Value> {
            let others = (0..self.committed().monmap.ranks.len() as i32).filter(|r| *r != rank);
            let peer = |r: i32| {
                let alive = status.quorum.contains(&r);
                json!({"peer_rank": r, "peer_score": f64::from(u8::from(alive)), "peer_alive": alive})
            };
            others.map(peer).collect()
        };
        let report = json!({
            "rank": status.rank,
            "epoch": status.election_epoch,
            "version": 0,
            "peer_scores": peers(status.rank),
        });
        json!({
            "rank": status.rank,
            "epoch": status.election_epoch,
            "version": 0,
            "half_life": 0.0,
            "persist_interval": 0,
            "reports": [report],
        })
    }

    /// What is served as metrics.
    pub(super) fn metrics(&self) -> daemon_frame::metrics::Counters {
        let counters = self.counters();
        daemon_frame::metrics::Counters {
            values: perf_dump("mon", &counters),
            schema: perf_schema("mon", &counters),
        }
    }

    fn counters(&self) -> [Counter; 5] {
        let (won, lost) = (self.part.borrow().won, self.part.borrow().lost);
        let sessions = self.sessions.borrow().len() as u64;
        let epoch = u64::from(self.committed().osd.map().epoch.0);
        [
            ("num_sessions", false, sessions, "Open sessions"),
            ("num_elections", true, won + lost, "Elections participated in"),
            ("election_win", true, won, "Elections won"),
            ("election_lose", true, lost, "Elections lost"),
            ("osdmap_epoch", false, epoch, "Newest OSD map"),
        ]
        .map(|(name, grows, value, help)| Counter { name, help, grows, value })
    }

    fn admin_set(&self, args: &Args, format: Format) -> Answer {
        if args.prefix() == "injectargs" {
            // All or nothing.
            let invalid = |e: conf::ConfError| Refusal::invalid(e.to_string());
            let set =
                conf::Config::injected(&args.strs("injected_args").join(" ")).map_err(invalid)?;
            let mut said = String::new();
            for (name, value) in &set {
                self.conf.borrow_mut().set(Source::Override, name, value).map_err(invalid)?;
                said.push_str(&format!("{name} = '{value}' "));
            }
            return Ok(Reply::status(said));
        }
        let name = args.str("var").unwrap_or_default();
        let mut conf = self.conf.borrow_mut();
        if args.prefix() == "config set" {
            conf.set(Source::Override, name, &args.strs("val").join(" "))
                .map_err(|e| Refusal::invalid(e.to_string()))?;
        } else {
            conf.unset(Source::Override, name).map_err(|e| Refusal::invalid(e.to_string()))?;
        }
        Ok(Reply::data(format.json(&json!({"success": format!("{name} = '{}'", conf.str(name))}))))
    }

    /// Runs one of the commands that take a while.
    pub(super) async fn admin_slow(&self, text: &str) -> Answer {
        debug_assert!(is_slow(text));
        let begun = std::time::Instant::now();
        self.replica.compact_log().await.map_err(|e| Refusal::new(Errno::EIO, e))?;
        Ok(Reply::data(format!(
            "compacted the log in {:.3} seconds\n",
            begun.elapsed().as_secs_f64()
        )))
    }

    /// A reading command of the table. Changes go through a session, where the log names their
    /// sender.
    fn admin_read(&self, args: &Args) -> Answer {
        let entry = commands::find(args)?;
        let Run::Read(handler) = entry.handler else {
            return Err(Refusal::unsupported(format!(
                "'{}' changes the cluster: use `ceph {}`",
                entry.prefix(),
                entry.prefix()
            )));
        };
        let status = self.status();
        let caller = Caller {
            name: AuthName::new(EntityType::CLIENT, "admin"),
            addr: EntityAddr::default(),
            features: u64::MAX,
            global_id: 0,
        };
        let sessions = || self.session_infos();
        let stats = self.stats_for_commands();
        let input = Bytes::new();
        let env = Env {
            now: now(),
            conf: &self.conf,
            mon: &status,
            caller: &caller,
            input: &input,
            stats: &stats,
            sessions: &sessions,
        };
        let state = self.committed();
        handler(&Read { state: &state, env: &env, args })
    }
}
