//! Commands that all daemons have: `ceph tell` and `ceph daemon`.

use bytes::Bytes;
use command::{Refusal, Reply};
use conf::Config;
use serde_json::{Map, Value, json};
use types::{Errno, version};

/// The answer to a command.
pub type Answer = Result<Reply, Refusal>;

/// An answer as it travels: return code (0 or a negative errno), status text, output.
pub type AnswerParts = (i32, String, Bytes);

/// An answer as it travels.
pub fn parts(answer: Answer) -> AnswerParts {
    match answer {
        Ok(r) => (0, r.status, r.data),
        Err(r) => (r.errno.as_result(), r.message, r.data),
    }
}

/// `version`.
pub fn version() -> Value {
    json!({
        "version": version::SHORT,
        "release": version::RELEASE,
        "release_type": "stable",
    })
}

/// `config show`: the value of each option.
pub fn config_show(conf: &Config) -> Value {
    let all = conf::schema::all();
    all.iter().map(|o| (o.name.to_owned(), conf.str(o.name).into())).collect::<Map<_, _>>().into()
}

/// `config get`: the value of one option.
pub fn config_get(conf: &Config, name: &str) -> Result<Value, Refusal> {
    let (value, _) = conf.lookup(name).map_err(|e| Refusal::new(Errno::ENOENT, e.to_string()))?;
    Ok(json!({name: value.to_string()}))
}

/// A number that a daemon keeps about itself.
pub struct Counter {
    /// Its name.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// It only grows while the daemon lives.
    pub grows: bool,
    /// Its value.
    pub value: u64,
}

/// `perf dump`.
pub fn perf_dump(section: &str, counters: &[Counter]) -> Value {
    let values = counters.iter().map(|c| (c.name.to_owned(), c.value.into()));
    json!({section: values.collect::<Map<_, _>>()})
}

/// `perf schema`.
pub fn perf_schema(section: &str, counters: &[Counter]) -> Value {
    let schema = |c: &Counter| {
        // Bits of Ceph 16.2 (`perfcounter_type_d`): 2 an integer, 8 a counter.
        let (bits, word) = if c.grows { (10, "counter") } else { (2, "gauge") };
        json!({
            "type": bits, "metric_type": word, "value_type": "integer",
            "description": c.help, "nick": "", "priority": 5, "units": "none",
        })
    };
    let each = counters.iter().map(|c| (c.name.to_owned(), schema(c)));
    json!({section: each.collect::<Map<_, _>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_say_whether_they_grow() {
        let counters = [
            Counter { name: "reply", help: "Answers", grows: true, value: 7 },
            Counter { name: "sessions", help: "Open ones", grows: false, value: 2 },
        ];
        assert_eq!(perf_dump("mds", &counters), json!({"mds": {"reply": 7, "sessions": 2}}));
        let schema = perf_schema("mds", &counters);
        assert_eq!(
            (&schema["mds"]["reply"]["type"], &schema["mds"]["sessions"]["type"]),
            (&json!(10), &json!(2))
        );
        assert_eq!(schema["mds"]["reply"]["description"], "Answers");
    }

    #[test]
    fn an_unknown_option_is_no_entry() {
        let refused = config_get(&Config::new(), "no_such_option").unwrap_err();
        assert_eq!(refused.errno, Errno::ENOENT);
        assert_eq!(parts(Err(refused)).0, -2);
    }
}
