//! The keyring file.

use crate::key_server::EntityAuth;
use crate::{AuthName, CryptoKey, KeyError};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Keys and caps by entity, as in a keyring file (`KeyRing`, `src/auth/KeyRing.cc`).
///
/// Parsing and printing are Ceph's: sections in order of the entity's type number, caps in
/// alphabetical order, quotes inside caps escaped with a backslash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    entries: BTreeMap<AuthName, EntityAuth>,
}

/// Why a text is no keyring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// A line that is neither a section, a setting nor a comment.
    #[error("line {line}: expected '[TYPE.ID]', 'key = ...' or 'caps SERVICE = ...'")]
    Syntax {
        /// Counted from one.
        line: usize,
    },
    /// A setting before the first section.
    #[error("line {line}: no [TYPE.ID] section before it")]
    NoSection {
        /// Counted from one.
        line: usize,
    },
    /// The section's name.
    #[error("line {line}: {source}")]
    Name {
        /// Counted from one.
        line: usize,
        /// What is wrong with it.
        source: crate::name::BadName,
    },
    /// The key's value.
    #[error("line {line}: {source}")]
    Key {
        /// Counted from one.
        line: usize,
        /// What is wrong with it.
        source: KeyError,
    },
    /// A setting that keyrings do not have.
    #[error("line {line}: unknown setting '{setting}'")]
    Unknown {
        /// Counted from one.
        line: usize,
        /// Its name.
        setting: String,
    },
}

impl Keyring {
    /// The entry of an entity.
    pub fn get(&self, name: &AuthName) -> Option<&EntityAuth> {
        self.entries.get(name)
    }

    /// Adds or replaces an entry.
    pub fn insert(&mut self, name: AuthName, auth: EntityAuth) {
        self.entries.insert(name, auth);
    }

    /// Removes an entry.
    pub fn remove(&mut self, name: &AuthName) -> Option<EntityAuth> {
        self.entries.remove(name)
    }

    /// All entries in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&AuthName, &EntityAuth)> {
        self.entries.iter()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl FromIterator<(AuthName, EntityAuth)> for Keyring {
    fn from_iter<I: IntoIterator<Item = (AuthName, EntityAuth)>>(iter: I) -> Self {
        Keyring { entries: iter.into_iter().collect() }
    }
}

impl fmt::Display for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, auth) in &self.entries {
            writeln!(f, "[{name}]")?;
            writeln!(f, "\tkey = {}", auth.key.to_base64())?;
            for (service, caps) in &auth.caps {
                writeln!(f, "\tcaps {service} = \"{}\"", caps.replace('"', "\\\""))?;
            }
        }
        Ok(())
    }
}

impl FromStr for Keyring {
    type Err = KeyringError;

    fn from_str(text: &str) -> Result<Self, KeyringError> {
        let mut entries = BTreeMap::<AuthName, EntityAuth>::new();
        let mut section = Section::Before;
        for (line, text) in logical_lines(text) {
            let text = text.trim();
            if text.is_empty() || text.starts_with(['#', ';']) {
                continue;
            }
            if let Some(rest) = text.strip_prefix('[') {
                let (name, rest) = rest.split_once(']').ok_or(KeyringError::Syntax { line })?;
                if !rest.trim().is_empty() && !rest.trim_start().starts_with(['#', ';']) {
                    return Err(KeyringError::Syntax { line });
                }
                let name = name.trim();
                section = if name == "global" {
                    Section::Ignored
                } else {
                    let name = AuthName::from_str(name)
                        .map_err(|source| KeyringError::Name { line, source })?;
                    entries.entry(name.clone()).or_default();
                    Section::Of(name)
                };
                continue;
            }
            let (setting, value) = text.split_once('=').ok_or(KeyringError::Syntax { line })?;
            let name = match &section {
                Section::Before => return Err(KeyringError::NoSection { line }),
                Section::Ignored => continue,
                Section::Of(name) => name,
            };
            // `caps_mon` and `caps  mon` are `caps mon`.
            let setting = setting.replace('_', " ");
            let words: Vec<&str> = setting.split_whitespace().collect();
            let value = unquote(value.trim());
            let auth = entries.entry(name.clone()).or_default();
            match words[..] {
                ["key"] => {
                    auth.key = CryptoKey::from_base64(&value)
                        .map_err(|source| KeyringError::Key { line, source })?;
                }
                ["caps", service] => {
                    auth.caps.insert(service.to_owned(), value);
                }
                ["auid"] => {}
                _ => {
                    return Err(KeyringError::Unknown { line, setting: setting.trim().to_owned() });
                }
            }
        }
        Ok(Keyring { entries })
    }
}

enum Section {
    Before,
    Ignored,
    Of(AuthName),
}

/// Lines with their number, those that end in a backslash joined with the next.
fn logical_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (n, first) = lines.next()?;
        let mut whole = first.to_owned();
        while whole.ends_with('\\') {
            whole.pop();
            match lines.next() {
                Some((_, more)) => whole.push_str(more),
                None => break,
            }
        }
        Some((n + 1, whole))
    })
}

/// Takes quotes off and unescapes; without quotes a comment ends the value.
fn unquote(value: &str) -> String {
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    let mut out = String::new();
    let mut chars = value.chars().skip(usize::from(quote.is_some()));
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c if Some(c) == quote => return out,
            '#' | ';' if quote.is_none() => break,
            c => out.push(c),
        }
    }
    if quote.is_none() { out.trim_end().to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[mon.]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps mon = \"allow *\"\n\
        [client.admin]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps mon = \"allow command \\\"osd new\\\"\"\n\tcaps osd = \"allow *\"\n";

    #[test]
    fn prints_what_it_parsed() {
        let k: Keyring = TEXT.parse().unwrap();
        assert_eq!(k.to_string(), TEXT);
        let admin = k.get(&"client.admin".parse().unwrap()).unwrap();
        assert_eq!(admin.caps["mon"], "allow command \"osd new\"");
    }

    #[test]
    fn tolerates_what_ceph_tolerates() {
        let text = "# a comment\n\n[ client.a ]\n key=AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\nauid = 5\ncaps_mon = allow r ; why\n caps  osd = 'allow \\\n rw'\n";
        let k: Keyring = text.parse().unwrap();
        let a = k.get(&"client.a".parse().unwrap()).unwrap();
        assert_eq!(a.caps["mon"], "allow r");
        assert_eq!(a.caps["osd"], "allow  rw");
    }

    #[test]
    fn errors_name_the_line() {
        for (text, want) in [
            ("key = x", "line 1: no [TYPE.ID] section before it"),
            ("[client.a]\nkey = x", "line 2: not a base64 encoded key"),
            (
                "[nobody]",
                "line 1: 'nobody' is not an entity name: expected TYPE.ID with a type of auth, mon, osd, mds, mgr, client",
            ),
            ("[client.a]\n\ncolour = red", "line 3: unknown setting 'colour'"),
            ("[client.a", "line 1: expected '[TYPE.ID]', 'key = ...' or 'caps SERVICE = ...'"),
        ] {
            assert_eq!(text.parse::<Keyring>().unwrap_err().to_string(), want);
        }
    }
}
