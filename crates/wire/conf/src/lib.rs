//! Configuration options: what exists, what values it takes, and which value holds for whom.
//!
//! * [`schema`]: every option with its type, default, bounds and the daemons that read it. An
//!   option that is not in the table does not exist: setting it is refused.
//! * [`value`]: Ceph's notation of numbers, sizes, durations and booleans.
//! * [`sections`]: `global`, `osd`, `osd.3`, `client.admin`, with masks (`osd/class:ssd`), and the
//!   rule for which of several settings wins.
//! * [`mod@file`]: the `ceph.conf` format.
//! * [`mclock`]: what options of mClock mean together.
//! * [`effective`]: the values that hold in one running daemon, with change notification.

#![forbid(unsafe_code)]

pub mod effective;
pub mod file;
pub mod mclock;
pub mod schema;
pub mod sections;
pub mod value;

pub use effective::Config;
pub use schema::{Level, OptionSpec, find};
pub use sections::{Section, Who};
pub use value::{Kind, Value};

/// Why a setting was refused. The text names the option, what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// No option of that name. Of one that Ceph has it is said why.
    #[error("unrecognized config option '{0}'{why}", why = schema::why_not(.0).map_or(String::new(), |why| format!(": {why}")))]
    Unknown(String),
    /// The value is not of the option's type.
    #[error("error parsing value: '{value}' for '{name}': {why}")]
    Parse {
        /// The option.
        name: String,
        /// What was given.
        value: String,
        /// What was expected.
        why: String,
    },
    /// The value is of the right type, but not allowed.
    #[error("value '{value}' for '{name}' is not allowed: {why}")]
    Range {
        /// The option.
        name: String,
        /// What was given.
        value: String,
        /// Which values are allowed.
        why: String,
    },
    /// Not the name of a section.
    #[error(
        "unrecognized config target '{0}': expected global, mon, mgr, osd, mds, client or TYPE.ID, with masks host:NAME, class:NAME or LOCATION:NAME"
    )]
    Section(String),
    /// A line of a configuration file that cannot be read.
    #[error("line {line}: {why}")]
    File {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A word of `injectargs` that makes no sense.
    #[error("'{0}' {1}")]
    Argument(String, String),
}
