//! Commands of the admin socket. Whoever can open it may do everything.

use super::{Inner, Monitor, now};
use crate::command::{Args, Format, Refusal, Reply};
use crate::commands::{self, Answer, Caller, Env, Read, Run};
use crate::version;
use auth::AuthName;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use types::errno::Errno;
use types::{EntityAddr, EntityType};

/// The commands that only the socket has, with their help.
const OWN: &[(&str, &str)] = &[
    ("config diff", "show what differs from the defaults"),
    ("config get", "show one option"),
    ("config show", "show all options"),
    ("get_command_descriptions", "list the commands"),
    ("help", "list the commands"),
    ("perf dump", "show counters"),
];

impl Monitor {
    /// Runs a command given as JSON text: return code, status, output.
    pub async fn admin_command(&self, json: &str) -> (i32, String, Vec<u8>) {
        match self.inner.admin(json) {
            Ok(Reply { status, data }) => (0, status, data.to_vec()),
            Err(Refusal { errno, message, data }) => (-errno.0, message, data.to_vec()),
        }
    }
}

impl Inner {
    fn admin(&self, text: &str) -> Answer {
        let args = Args::parse(&[text])?;
        let format = if Format::of(&args) == Format::Plain { Format::JsonPretty } else { Format::of(&args) };
        let conf = self.conf.borrow();
        let value = match args.prefix() {
            "help" | "get_command_descriptions" => {
                let own = OWN.iter().map(|(n, h)| (n.to_string(), Value::from(*h)));
                let all = commands::FAMILIES.iter().flat_map(|f| f.iter()).filter(|c| matches!(c.handler, Run::Read(_)));
                own.chain(all.map(|c| (c.prefix().to_string(), Value::from(c.help)))).collect::<Map<_, _>>().into()
            }
            "version" => json!({"version": version::short(), "release": version::RELEASE, "release_type": "stable"}),
            "config show" => conf::schema::all().iter().map(|o| (o.name.to_string(), Value::from(conf.str(o.name)))).collect::<Map<_, _>>().into(),
            "config diff" => conf
                .changed()
                .map(|(n, source, v)| (n.to_string(), json!({source.name(): v})))
                .collect::<Map<_, _>>()
                .into(),
            "config get" => {
                let name = args.str("var").or(args.str("key")).unwrap_or_default();
                let (v, _) = conf.lookup(name).map_err(|e| Refusal::new(Errno::ENOENT, e.to_string()))?;
                json!({name: v.to_string()})
            }
            "perf dump" => json!({"mon": {
                "num_sessions": self.sessions.borrow().len(),
                "election_win": 1,
                "osdmap_epoch": self.committed().osd.map().epoch.0,
            }}),
            _ => {
                drop(conf);
                return self.admin_read(&args);
            }
        };
        Ok(Reply::data(format.json(&value)))
    }

    /// A reading command of the table. Changes go through a session, where the log names who made them.
    fn admin_read(&self, args: &Args) -> Answer {
        let entry = commands::find(args)?;
        let Run::Read(handler) = entry.handler else {
            return Err(Refusal::unsupported(format!("'{}' changes the cluster: use `ceph {}`", entry.prefix(), entry.prefix())));
        };
        let status = self.status();
        let caller = Caller { name: AuthName::new(EntityType::CLIENT, "admin"), addr: EntityAddr::default(), features: u64::MAX };
        let sessions = || self.session_infos();
        let stats = self.stats.borrow().clone();
        let input = Bytes::new();
        let env = Env { now: now(), conf: &self.conf, mon: &status, caller: &caller, input: &input, stats: &stats, sessions: &sessions };
        let state = self.committed();
        handler(&Read { state: &state, env: &env, args })
    }
}
