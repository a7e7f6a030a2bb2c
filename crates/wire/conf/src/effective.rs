//! The values that hold in one running daemon.

use crate::schema::{self, OptionSpec};
use crate::value::Value;
use crate::{ConfError, value};
use std::collections::BTreeMap;

/// Where a value came from; the later in this list wins (Ceph: `CONF_DEFAULT` ... `CONF_OVERRIDE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The table.
    Default,
    /// The monitors' configuration database.
    Mon,
    /// `ceph.conf`.
    File,
    /// The command line.
    CommandLine,
    /// Set in the running daemon (`config set` through the admin socket, `tell`, `injectargs`).
    Override,
}

impl Source {
    /// Ceph's name of the source in `config diff` and `config show`.
    pub fn name(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::Mon => "mon",
            Source::File => "file",
            Source::CommandLine => "cmdline",
            Source::Override => "override",
        }
    }
}

/// One daemon's configuration. Reading an option that is not in the table is a bug and panics.
#[derive(Clone, Debug, Default)]
pub struct Config {
    values: BTreeMap<&'static str, Vec<(Source, Value)>>,
    revision: u64,
    /// The daemon runs: options that are read when it starts keep what they have from the monitors.
    started: bool,
}

impl Config {
    /// Only defaults.
    pub fn new() -> Config {
        Config::default()
    }

    /// Counts changes: a reader that caches values compares it with what it saw last.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn spec(name: &str) -> Result<&'static OptionSpec, ConfError> {
        schema::find(name).ok_or_else(|| ConfError::Unknown(name.to_string()))
    }

    /// Sets a value from text; refuses what the table does not allow.
    pub fn set(&mut self, source: Source, name: &str, text: &str) -> Result<(), ConfError> {
        let spec = Self::spec(name)?;
        let value = spec.parse(text)?;
        let slot = self.values.entry(spec.name).or_default();
        slot.retain(|(s, _)| *s != source);
        slot.push((source, value));
        slot.sort_by_key(|(s, _)| *s);
        self.revision += 1;
        Ok(())
    }

    /// Takes back what `source` set; false if it had set nothing.
    pub fn unset(&mut self, source: Source, name: &str) -> Result<bool, ConfError> {
        let spec = Self::spec(name)?;
        let Some(slot) = self.values.get_mut(spec.name) else { return Ok(false) };
        let before = slot.len();
        slot.retain(|(s, _)| *s != source);
        let changed = slot.len() != before;
        if slot.is_empty() {
            self.values.remove(spec.name);
        }
        self.revision += changed as u64;
        Ok(changed)
    }

    /// From now on the daemon has read the options that are read at its start: what the monitors
    /// say of these later holds for the next one (Ceph: `md_config_t::set_mon_vals`), and what is
    /// shown is what holds.
    pub fn set_started(&mut self) {
        self.started = true;
    }

    /// Replaces everything that came from the monitors. Settings that this version does not know
    /// are returned, so that the caller can log them.
    pub fn set_from_mon<'a>(
        &mut self,
        settings: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Vec<ConfError> {
        let started = self.started;
        let stays = |name: &str| started && schema::find(name).is_some_and(|spec| !spec.runtime);
        for (_, slot) in self.values.iter_mut().filter(|(name, _)| !stays(name)) {
            slot.retain(|(s, _)| *s != Source::Mon);
        }
        self.values.retain(|_, s| !s.is_empty());
        self.revision += 1;
        settings
            .filter(|(name, _)| !stays(name))
            .filter_map(|(n, v)| self.set(Source::Mon, n, v).err())
            .collect()
    }

    /// The value that holds and where it came from.
    pub fn lookup(&self, name: &str) -> Result<(Value, Source), ConfError> {
        let spec = Self::spec(name)?;
        Ok(match self.values.get(spec.name).and_then(|s| s.last()) {
            Some((s, v)) => (v.clone(), *s),
            None => (spec.default_value(), Source::Default),
        })
    }

    fn known(&self, name: &str) -> Value {
        match self.lookup(name) {
            Ok((v, _)) => v,
            Err(e) => panic!("{e}: the code reads an option that the table lacks"),
        }
    }

    /// A [`value::Kind::Uint`], size or duration option.
    pub fn u64(&self, name: &str) -> u64 {
        match self.known(name) {
            Value::Uint(v) => v,
            Value::Int(v) => v.max(0) as u64,
            v => panic!("option {name} is not a number but {v:?}"),
        }
    }

    /// A [`value::Kind::Int`] option.
    pub fn i64(&self, name: &str) -> i64 {
        match self.known(name) {
            Value::Int(v) => v,
            Value::Uint(v) => i64::try_from(v).unwrap_or(i64::MAX),
            v => panic!("option {name} is not a number but {v:?}"),
        }
    }

    /// A [`value::Kind::Float`] option, or any other number.
    pub fn f64(&self, name: &str) -> f64 {
        match self.known(name) {
            Value::Float(v) => v,
            Value::Uint(v) => v as f64,
            Value::Int(v) => v as f64,
            v => panic!("option {name} is not a number but {v:?}"),
        }
    }

    /// A [`value::Kind::Bool`] option.
    pub fn bool(&self, name: &str) -> bool {
        match self.known(name) {
            Value::Bool(v) => v,
            v => panic!("option {name} is not a boolean but {v:?}"),
        }
    }

    /// Any option as text.
    pub fn str(&self, name: &str) -> String {
        self.known(name).to_string()
    }

    /// What differs from the defaults: (name, source, value).
    pub fn changed(&self) -> impl Iterator<Item = (&'static str, Source, String)> + '_ {
        self.values.iter().filter_map(|(n, s)| s.last().map(|(src, v)| (*n, *src, v.to_string())))
    }

    /// Checks a value without setting it, and returns it in its canonical notation.
    pub fn check(name: &str, text: &str) -> Result<String, ConfError> {
        Ok(Self::spec(name)?.parse(text)?.to_string())
    }

    /// The options of `injectargs`: `--name value` or `--name=value`. Nothing is wrong with any of
    /// them.
    pub fn injected(text: &str) -> Result<Vec<(String, String)>, ConfError> {
        let mut words = text.split_whitespace();
        let mut set = Vec::new();
        while let Some(word) = words.next() {
            let bad = |why: &str| ConfError::Argument(word.to_owned(), why.to_owned());
            let option =
                word.strip_prefix("--").ok_or_else(|| bad("is not of the form --option value"))?;
            let (name, value) = match option.split_once('=') {
                Some(both) => both,
                None => (option, words.next().ok_or_else(|| bad("has no value"))?),
            };
            let name = name.replace('-', "_");
            Self::check(&name, value)?;
            set.push((name, value.to_owned()));
        }
        Ok(set)
    }
}

/// Re-exported for callers that match on kinds.
pub use value::Kind;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injected_arguments_are_options_with_values() {
        let set = |text| {
            Config::injected(text).map(|all| {
                all.into_iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(
            set("--mon-max-osd 5  --osd_max_scrubs=2").as_deref(),
            Ok("mon_max_osd=5 osd_max_scrubs=2")
        );
        assert_eq!(set("").as_deref(), Ok(""));
        for bad in [
            "mon_max_osd 5",
            "--mon_max_osd",
            "--nothing 5",
            "--mon_max_osd many",
            "--osd_max_scrubs 2 --mon_max_osd 0",
        ] {
            assert!(set(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sources_override_each_other() {
        let mut c = Config::new();
        assert_eq!(c.u64("osd_pool_default_size"), 3);
        c.set(Source::Override, "osd_pool_default_size", "5").unwrap();
        c.set(Source::Mon, "osd_pool_default_size", "2").unwrap();
        assert_eq!(c.u64("osd_pool_default_size"), 5);
        assert!(c.unset(Source::Override, "osd_pool_default_size").unwrap());
        assert_eq!(c.u64("osd_pool_default_size"), 2);
        assert!(c.set_from_mon([("no_such_option", "1")].into_iter()).len() == 1);
        assert_eq!(c.u64("osd_pool_default_size"), 3);
    }

    #[test]
    fn what_is_read_at_the_start_stays() {
        let mut c = Config::new();
        let mon = |queue, complaint| {
            [("osd_op_queue", queue), ("osd_op_complaint_time", complaint)].into_iter()
        };
        assert!(c.set_from_mon(mon("wpq", "20")).is_empty());
        c.set_started();
        assert!(c.set_from_mon(mon("mclock_scheduler", "10")).is_empty());
        assert_eq!((&*c.str("osd_op_queue"), c.f64("osd_op_complaint_time")), ("wpq", 10.0));
        assert!(c.set_from_mon([].into_iter()).is_empty());
        assert_eq!(c.str("osd_op_queue"), "wpq");
    }

    #[test]
    fn refuses_nonsense() {
        let mut c = Config::new();
        assert!(matches!(c.set(Source::Mon, "osd_nonsense", "1"), Err(ConfError::Unknown(_))));
        assert!(matches!(
            c.set(Source::Mon, "osd_pool_default_size", "x"),
            Err(ConfError::Parse { .. })
        ));
        assert!(matches!(
            c.set(Source::Mon, "osd_pool_default_size", "0"),
            Err(ConfError::Range { .. })
        ));
        assert!(matches!(
            c.set(Source::Mon, "osd_op_queue", "lottery"),
            Err(ConfError::Range { .. })
        ));
    }
}
