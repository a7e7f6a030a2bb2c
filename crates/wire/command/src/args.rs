//! The arguments of a command, as a client sent them: a JSON object (Ceph: `cmdmap_t`,
//! `src/common/cmdparse.cc`).

use crate::Signature;
use crate::signature::Arg;
use serde_json::{Map, Value};
use types::errno::Errno;

/// Why arguments were refused; the text goes to the operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ArgsError {
    /// Not JSON, or not an object of simple values.
    #[error("{0}")]
    Malformed(String),
    /// A parameter that must be there is not.
    #[error("missing required parameter: '{0}'")]
    Missing(String),
    /// A number out of its range.
    #[error("'{value}' out of range: {range}")]
    Range {
        /// What was given.
        value: String,
        /// The bounds, as declared.
        range: String,
    },
    /// Not one of the choices.
    #[error("'{value}' not belong to '{choices}'")]
    Choice {
        /// What was given.
        value: String,
        /// The choices, as declared.
        choices: String,
    },
    /// A character that the parameter does not allow.
    #[error("invalid chars {chars} in {value}")]
    Chars {
        /// The offending characters.
        chars: String,
        /// What was given.
        value: String,
    },
    /// A value of another type.
    #[error("parameter '{name}' is not of type {kind}")]
    Type {
        /// The parameter.
        name: String,
        /// The declared type.
        kind: String,
    },
}

impl From<ArgsError> for crate::Refusal {
    fn from(e: ArgsError) -> Self {
        crate::Refusal::new(Errno::EINVAL, e.to_string())
    }
}

/// The arguments of one command. Values are strings, numbers, booleans, and arrays of strings or
/// numbers.
#[derive(Clone, Debug, Default)]
pub struct Args(Map<String, Value>);

/// JSON nests as deep as its sender likes, the arguments of a command do not.
const TEXT_BYTES_MAX: usize = 64 << 20;

impl Args {
    /// Parses the pieces of a command, which are one JSON object when joined.
    pub fn parse<S: AsRef<str>>(pieces: &[S]) -> Result<Self, ArgsError> {
        let text: String = pieces.iter().map(AsRef::as_ref).collect();
        if text.len() > TEXT_BYTES_MAX {
            return Err(ArgsError::Malformed("the command is too long".into()));
        }
        // What follows the object is not looked at: the `rbd` tool sends a quote too many.
        let Some(Ok(value)) = serde_json::Deserializer::from_str(&text).into_iter::<Value>().next()
        else {
            return Err(ArgsError::Malformed(format!("unparseable JSON {text}")));
        };
        let Value::Object(map) = value else {
            return Err(ArgsError::Malformed(format!("not JSON object {text}")));
        };
        for v in map.values() {
            let simple = |v: &Value| v.is_string() || v.is_number();
            let ok = match v {
                Value::Array(items) => items.iter().all(simple),
                Value::Bool(_) => true,
                v => simple(v),
            };
            if !ok {
                return Err(ArgsError::Malformed(format!("JSON array/object not allowed {text}")));
            }
        }
        Ok(Args(map))
    }

    /// From pairs, for the commands that the program gives itself.
    pub fn from_pairs(pairs: &[(&str, Value)]) -> Self {
        Args(pairs.iter().map(|(k, v)| (k.to_string(), v.clone())).collect())
    }

    /// The command's literal words.
    pub fn prefix(&self) -> &str {
        self.str("prefix").unwrap_or_default()
    }

    /// Whether the parameter was given.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The raw value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A string.
    pub fn str(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// A string that validation has shown to be there; empty if not.
    pub fn req(&self, name: &str) -> &str {
        self.str(name).unwrap_or_default()
    }

    /// An integer; also one that was sent as text.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.0.get(name)? {
            Value::Number(n) => n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)),
            Value::String(s) => s.parse().ok(),
            _ => None,
        }
    }

    /// A number; also one that was sent as text.
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.0.get(name)? {
            Value::Number(n) => n.as_f64(),
            Value::String(s) => s.parse().ok(),
            _ => None,
        }
    }

    /// A flag. Clients older than Nautilus send the text `--the-flag` instead of `true`.
    pub fn flag(&self, name: &str) -> bool {
        match self.0.get(name) {
            Some(Value::Bool(b)) => *b,
            Some(Value::String(s)) => {
                s.strip_prefix("--").is_some_and(|s| s.replace('-', "_") == name)
            }
            _ => false,
        }
    }

    /// A repeated parameter as strings; empty if it was not given. A single value counts as one.
    pub fn strs(&self, name: &str) -> Vec<String> {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        match self.0.get(name) {
            None => Vec::new(),
            Some(Value::Array(items)) => items.iter().map(text).collect(),
            Some(v) => vec![text(v)],
        }
    }

    /// A repeated number.
    pub fn floats(&self, name: &str) -> Vec<f64> {
        self.strs(name).iter().filter_map(|s| s.parse().ok()).collect()
    }

    /// Parameters as text, for capability checks (Ceph: `Monitor::_generate_command_map`): the
    /// `prefix` and `caps` are left out.
    pub fn text_map(&self) -> std::collections::BTreeMap<String, String> {
        self.0
            .iter()
            .filter(|(k, _)| *k != "prefix" && *k != "caps")
            .filter_map(|(k, v)| match v {
                Value::String(s) => Some((k.clone(), s.clone())),
                Value::Array(_) => Some((k.clone(), self.strs(k).join(" "))),
                Value::Number(n) => Some((k.clone(), n.to_string())),
                Value::Bool(b) => Some((k.clone(), b.to_string())),
                _ => None,
            })
            .collect()
    }

    /// Checks the characters of names against those that a signature allows (`goodchars`). The
    /// stock tool does so with everything that is typed; servers only where a name is to be kept
    /// free of other characters.
    pub fn check_chars(&self, signature: &Signature) -> Result<(), ArgsError> {
        for arg in signature.args() {
            let Some(good) = arg.pairs.get("goodchars") else { continue };
            for value in self.strs(arg.name()) {
                let chars: String = value.chars().filter(|c| !in_class(good, *c)).collect();
                if !chars.is_empty() {
                    return Err(ArgsError::Chars { chars, value });
                }
            }
        }
        Ok(())
    }

    /// Checks the arguments against a signature: what must be there, types, ranges and choices.
    pub fn validate(&self, signature: &Signature) -> Result<(), ArgsError> {
        for arg in signature.args() {
            match self.0.get(arg.name()) {
                None if arg.optional() || arg.many() => {}
                None => return Err(ArgsError::Missing(arg.name().to_owned())),
                Some(Value::Array(items)) if arg.many() => {
                    items.iter().try_for_each(|v| check(arg, v))?
                }
                Some(v) => check(arg, v)?,
            }
        }
        Ok(())
    }
}

fn check(arg: &Arg, value: &Value) -> Result<(), ArgsError> {
    let type_error =
        || ArgsError::Type { name: arg.name().to_owned(), kind: arg.kind().to_owned() };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match arg.kind() {
        "CephInt" | "CephFloat" => {
            let n: f64 = text.parse().map_err(|_| type_error())?;
            if arg.kind() == "CephInt" && n.fract() != 0.0 || !n.is_finite() {
                return Err(type_error());
            }
            if let Some((low, high)) = arg.range()
                && !(low..=high).contains(&n)
            {
                let range = arg.pairs.get("range").copied().unwrap_or_default();
                return Err(ArgsError::Range {
                    value: text,
                    range: format!("[{}]", range.replace('|', ",")),
                });
            }
            Ok(())
        }
        "CephBool" => match value {
            Value::Bool(_) | Value::String(_) => Ok(()),
            _ => Err(type_error()),
        },
        "CephChoices" => match arg.choices().any(|c| c == text) {
            true => Ok(()),
            false => Err(ArgsError::Choice {
                value: text,
                choices: arg.pairs.get("strings").copied().unwrap_or_default().to_owned(),
            }),
        },
        // An OSD's id comes as a number from the stock tool, as `osd.3` from a person's own
        // program.
        "CephOsdName" => Ok(()),
        _ => {
            if value.is_boolean() {
                return Err(type_error());
            }
            Ok(())
        }
    }
}

/// Whether `c` is in a bracketed class such as `[A-Za-z0-9-_.]`.
fn in_class(class: &str, c: char) -> bool {
    let inner: Vec<char> = class.trim_start_matches('[').trim_end_matches(']').chars().collect();
    let mut i = 0;
    while let Some(&low) = inner.get(i) {
        match (inner.get(i + 1), inner.get(i + 2)) {
            (Some('-'), Some(&high))
                if low <= high && low.is_alphanumeric() && high.is_alphanumeric() =>
            {
                if (low..=high).contains(&c) {
                    return true;
                }
                i += 3;
            }
            _ => {
                if low == c {
                    return true;
                }
                i += 1;
            }
        }
    }
    false
}
