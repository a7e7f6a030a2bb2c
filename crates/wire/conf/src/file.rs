//! The `ceph.conf` format: INI sections, `;` and `#` comments, continuation lines ending in `\`,
//! quotes, and option names in which spaces, dashes and underscores are the same.

use crate::ConfError;
use std::path::Path;

/// A parsed file: settings in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfFile {
    /// (section, option name with underscores, value).
    pub entries: Vec<(String, String, String)>,
}

impl ConfFile {
    /// Parses a file's text.
    pub fn parse(text: &str) -> Result<ConfFile, ConfError> {
        let mut entries = Vec::new();
        let mut section = String::from("global");
        let mut lines = text.lines().enumerate();
        while let Some((i, first)) = lines.next() {
            let mut line = first.to_string();
            while line.ends_with('\\') {
                line.pop();
                match lines.next() {
                    Some((_, next)) => line.push_str(next.trim_start()),
                    None => break,
                }
            }
            let err = |why: &str| ConfError::File { line: i + 1, why: why.into() };
            let body = strip_comment(&line).trim();
            if body.is_empty() {
                continue;
            }
            if let Some(rest) = body.strip_prefix('[') {
                let name = rest
                    .strip_suffix(']')
                    .ok_or_else(|| err("a section header must end with ]"))?;
                section = name.trim().to_string();
                if section.is_empty() {
                    return Err(err("a section needs a name"));
                }
                continue;
            }
            let (name, value) = body.split_once('=').ok_or_else(|| err("expected NAME = VALUE"))?;
            let name = normalize(name);
            if name.is_empty() {
                return Err(err("an option needs a name"));
            }
            entries.push((section.clone(), name, unquote(value.trim()).to_string()));
        }
        Ok(ConfFile { entries })
    }

    /// Reads and parses a file.
    pub fn read(path: &Path) -> std::io::Result<ConfFile> {
        let text = std::fs::read_to_string(path)?;
        Self::parse(&text).map_err(|e| {
            std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{}: {e}", path.display()))
        })
    }

    /// The last value of `name` in the first of `sections` that has it.
    pub fn get(&self, sections: &[&str], name: &str) -> Option<&str> {
        sections.iter().find_map(|s| {
            self.entries
                .iter()
                .rev()
                .find(|(es, en, _)| es == s && en == name)
                .map(|e| e.2.as_str())
        })
    }
}

/// An option's name with spaces and dashes as underscores.
pub fn normalize(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join("_").replace('-', "_")
}

fn strip_comment(line: &str) -> &str {
    let mut quote = None;
    for (i, c) in line.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(q), _) if q == c => quote = None,
            (None, ';' | '#') => return &line[..i],
            _ => {}
        }
    }
    line
}

fn unquote(v: &str) -> &str {
    for q in ['"', '\''] {
        if v.len() >= 2 && v.starts_with(q) && v.ends_with(q) {
            return &v[1..v.len() - 1];
        }
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let f = ConfFile::parse(
            "# c\n[global]\nmon host = [v2:127.0.0.1:3300/0] ; here\nfsid=abc\n[client.admin]\n keyring = \"/a b/#k\"\nlog file = x\\\n  y\n",
        )
        .unwrap();
        assert_eq!(f.get(&["client.admin", "global"], "mon_host"), Some("[v2:127.0.0.1:3300/0]"));
        assert_eq!(f.get(&["client.admin"], "keyring"), Some("/a b/#k"));
        assert_eq!(f.get(&["client.admin"], "log_file"), Some("xy"));
        assert!(ConfFile::parse("[x\n").is_err());
        assert!(ConfFile::parse("nonsense\n").is_err());
    }
}
