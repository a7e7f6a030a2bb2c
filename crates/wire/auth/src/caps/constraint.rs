//! Conditions on a command's arguments.

use super::Quoted;
use regex::bytes::{Regex, RegexBuilder};
use std::collections::BTreeMap;
use std::fmt;

/// Conditions by argument name. All must hold, and every argument named must be there.
pub type Arguments = BTreeMap<String, Constraint>;

/// A condition on one argument (`StringConstraint`, `MgrCapGrantConstraint`).
#[derive(Clone, Debug)]
pub enum Constraint {
    /// The argument is this.
    Equal(String),
    /// The argument starts with this.
    Prefix(String),
    /// The whole argument matches this POSIX extended expression. One that does not compile matches
    /// nothing.
    Regex(String, Option<Regex>),
}

/// A compiled expression must fit into this; caps are not programs.
const REGEX_SIZE_MAX: usize = 256 << 10;

impl Constraint {
    /// A condition by expression.
    pub fn regex(text: String) -> Self {
        let whole = format!("^(?:{text})$");
        let compiled = RegexBuilder::new(&whole).unicode(false).size_limit(REGEX_SIZE_MAX).build();
        Constraint::Regex(text, compiled.ok())
    }

    fn holds(&self, value: &str) -> bool {
        match self {
            Constraint::Equal(want) => value == want,
            Constraint::Prefix(want) => value.starts_with(want.as_str()),
            Constraint::Regex(_, compiled) => {
                compiled.as_ref().is_some_and(|r| r.is_match(value.as_bytes()))
            }
        }
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Constraint::Equal(a), Constraint::Equal(b))
            | (Constraint::Prefix(a), Constraint::Prefix(b))
            | (Constraint::Regex(a, _), Constraint::Regex(b, _)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Constraint {}

/// Whether `given` satisfies all of `wanted`.
pub(super) fn hold(wanted: &Arguments, given: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, c)| given.get(key).is_some_and(|v| c.holds(v)))
}

/// ` key=value key prefix value ...`, each with a space in front.
pub(super) fn print(args: &Arguments, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (key, constraint) in args {
        write!(f, " {}", Quoted(key))?;
        match constraint {
            Constraint::Equal(v) => write!(f, "={}", Quoted(v))?,
            Constraint::Prefix(v) => write!(f, " prefix {}", Quoted(v))?,
            Constraint::Regex(v, _) => write!(f, " regex {}", Quoted(v))?,
        }
    }
    Ok(())
}
