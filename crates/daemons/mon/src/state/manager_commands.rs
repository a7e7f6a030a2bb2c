//! The commands that the manager serves, as it described them last (Ceph: `MgrMonitor`'s
//! `mgr_command_descs`, 16.2, which its monitors store, too). A monitor that has just begun to lead
//! knows them before the manager has spoken to it: the `ceph` command refuses by itself what is not
//! described.

use bytes::Bytes;
use serde_json::{Map, Value};

/// The longest description that is kept, in bytes.
pub const JSON_MAX: usize = 4 << 20;

/// Descriptions of the commands that the manager serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagerCommands {
    json: Bytes,
    all: Map<String, Value>,
}

/// A command that the manager serves: where a client needs which permission for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfManager<'a> {
    /// The capability service that it belongs to.
    pub module: &'a str,
    /// The permissions needed there.
    pub perm: &'a str,
}

impl ManagerCommands {
    /// Reads what a manager sent: an object with a description for each command, by any key.
    pub fn read(json: Bytes) -> Result<ManagerCommands, String> {
        if json.len() > JSON_MAX {
            return Err(format!("{} bytes; at most {JSON_MAX} are expected", json.len()));
        }
        let all = serde_json::from_slice(&json).map_err(|e| e.to_string())?;
        Ok(ManagerCommands { json, all })
    }

    /// What the manager sent.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// The descriptions.
    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.all.values()
    }

    /// The command with these literal words.
    pub fn find(&self, prefix: &str) -> Option<OfManager<'_>> {
        let words: Vec<&str> = prefix.split_ascii_whitespace().collect();
        let is = |sig: &Value| {
            let literals = sig.as_array()?.iter().map_while(Value::as_str);
            Some(!words.is_empty() && literals.eq(words.iter().copied()))
        };
        let entry = self.all().find(|c| is(&c["sig"]) == Some(true))?;
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        Some(OfManager { module: text("module"), perm: text("perm") })
    }
}
