//! The file `.meta` of a subvolume: sections of keys and values, as Python's `configparser` writes
//! and reads them (Ceph 16.2: `operations/versions/metadata_manager.py`). Without I/O.

use std::fmt::Write;

/// A file in memory. Sections and keys keep their order; keys are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ini(Vec<(String, Vec<(String, String)>)>);

/// What is wrong with a file, or with a key or value that is to be put into one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IniError {
    /// A line that is neither a section, a key nor a continued value.
    #[error("line {0}: a section, a key with a value, or a comment was expected")]
    Line(usize),
    /// The same section or key twice.
    #[error("line {0}: a section or key that is there already")]
    Twice(usize),
    /// The file would not say the same when it is read.
    #[error("{0:?} cannot be a key: use letters, digits and signs other than : = [ # ;")]
    Key(String),
    /// A lone percent sign.
    #[error("{0:?} cannot be a value: write %% for a percent sign")]
    Value(String),
}

fn is_comment(line: &str) -> bool {
    line.starts_with(['#', ';'])
}

impl Ini {
    /// Reads a file.
    pub fn parse(text: &str) -> Result<Ini, IniError> {
        let mut ini = Ini::default();
        // Of the key that a value may be continued for.
        let mut indent = 0;
        let mut open = false;
        for (number, raw) in text.lines().enumerate() {
            let line = raw.trim();
            if is_comment(line) {
                continue;
            }
            let last = ini.0.last_mut();
            if line.is_empty() {
                if let Some((_, value)) =
                    last.filter(|_| open).and_then(|(_, keys)| keys.last_mut())
                {
                    value.push('\n');
                }
                continue;
            }
            let depth = raw.len() - raw.trim_start().len();
            if open
                && depth > indent
                && let Some((_, value)) = last.and_then(|(_, keys)| keys.last_mut())
            {
                value.push('\n');
                value.push_str(line);
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.split_once(']')) {
                open = false;
                if ini.has(name.0) {
                    return Err(IniError::Twice(number + 1));
                }
                ini.0.push((name.0.to_owned(), Vec::new()));
                continue;
            }
            let Some(at) = line.find(['=', ':']).filter(|at| *at > 0) else {
                return Err(IniError::Line(number + 1));
            };
            let (key, value) = (line[..at].trim().to_lowercase(), line[at + 1..].trim().to_owned());
            let Some((_, keys)) = ini.0.last_mut() else { return Err(IniError::Line(number + 1)) };
            if keys.iter().any(|(k, _)| *k == key) {
                return Err(IniError::Twice(number + 1));
            }
            keys.push((key, value));
            (indent, open) = (depth, true);
        }
        for (_, value) in ini.0.iter_mut().flat_map(|(_, keys)| keys) {
            value.truncate(value.trim_end().len());
        }
        Ok(ini)
    }

    /// The file's text. Empty sections are left out.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (section, keys) in self.0.iter().filter(|(_, keys)| !keys.is_empty()) {
            let _ = writeln!(out, "[{section}]");
            for (key, value) in keys {
                let _ = writeln!(out, "{key} = {}", value.replace('\n', "\n\t"));
            }
            out.push('\n');
        }
        out
    }

    /// Whether there is a section.
    pub fn has(&self, section: &str) -> bool {
        self.0.iter().any(|(name, _)| name == section)
    }

    /// A section's keys and values, as they are meant.
    pub fn all(&self, section: &str) -> impl Iterator<Item = (&str, String)> {
        let keys = self.0.iter().filter(move |(name, _)| name == section).flat_map(|(_, k)| k);
        keys.map(|(key, value)| (key.as_str(), value.replace("%%", "%")))
    }

    /// A value.
    pub fn get(&self, section: &str, key: &str) -> Option<String> {
        let key = key.to_lowercase();
        self.all(section).find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// Sets a value; the section is made if it is not there.
    pub fn set(&mut self, section: &str, key: &str, value: &str) -> Result<(), IniError> {
        let key = key.trim().to_lowercase();
        let odd = |c: char| matches!(c, '=' | ':') || c.is_control();
        if key.is_empty() || key.contains(odd) || key.starts_with('[') || is_comment(&key) {
            return Err(IniError::Key(key));
        }
        if value.replace("%%", "").contains('%') || value.contains(['\0', '\r']) {
            return Err(IniError::Value(value.to_owned()));
        }
        if !self.has(section) {
            self.0.push((section.to_owned(), Vec::new()));
        }
        let keys = self.0.iter_mut().find(|(name, _)| name == section).map(|(_, keys)| keys);
        let Some(keys) = keys else { return Ok(()) };
        match keys.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value.to_owned(),
            None => keys.push((key, value.to_owned())),
        }
        Ok(())
    }

    /// Removes a key; whether it was there.
    pub fn remove(&mut self, section: &str, key: &str) -> bool {
        let key = key.to_lowercase();
        let keys = self.0.iter_mut().find(|(name, _)| name == section).map(|(_, keys)| keys);
        let Some(keys) = keys else { return false };
        let before = keys.len();
        keys.retain(|(k, _)| *k != key);
        keys.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_is_that_of_python() {
        let mut ini = Ini::default();
        ini.set("GLOBAL", "version", "2").unwrap();
        ini.set("GLOBAL", "Path", "/volumes/_nogroup/a/u").unwrap();
        ini.set("USER_METADATA", "Key", "two\nlines 100%%").unwrap();
        let text = "[GLOBAL]\nversion = 2\npath = /volumes/_nogroup/a/u\n\n[USER_METADATA]\nkey = two\n\tlines 100%%\n\n";
        assert_eq!(ini.text(), text);
        let read = Ini::parse(text).unwrap();
        assert_eq!(read, ini);
        assert_eq!(read.get("USER_METADATA", "KEY").unwrap(), "two\nlines 100%");
        assert!(ini.remove("USER_METADATA", "key") && !ini.remove("USER_METADATA", "key"));
        assert!(!ini.text().contains("USER_METADATA"));
    }

    #[test]
    fn files_of_others_are_read() {
        let text = "# comment\n[a]\nk: v\n  more\n\n  last\n; comment\nnext=1\nempty =\n[b]\n";
        let ini = Ini::parse(text).unwrap();
        assert_eq!(ini.get("a", "k").unwrap(), "v\nmore\n\nlast");
        assert_eq!(ini.get("a", "next").unwrap(), "1");
        assert_eq!(ini.get("a", "empty").unwrap(), "");
        assert!(ini.has("b") && !ini.has("c"));
        for bad in ["k = v\n", "[a]\nk\n", "[a]\n= v\n", "[a]\nk=1\nK=2\n", "[a]\n[a]\n"] {
            assert!(Ini::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_key_or_value_makes_another_one() {
        let mut ini = Ini::default();
        for key in ["", " ", "a=b", "a:b", "[x]", "#a", "a\n[GLOBAL]\nstate"] {
            assert!(ini.set("s", key, "v").is_err(), "{key:?}");
        }
        assert!(ini.set("s", "k", "50%").is_err());
        ini.set("s", "k", "v\n[GLOBAL]\nstate = x\n\n# no comment").unwrap();
        let read = Ini::parse(&ini.text()).unwrap();
        assert!(!read.has("GLOBAL"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]a-c=:#; \n\t%]{0,40}") {
            if let Ok(ini) = Ini::parse(&text) {
                let again = Ini::parse(&ini.text());
                prop_assert!(again.is_ok() || ini.text().contains("\n\t["));
            }
        }
    }
}
