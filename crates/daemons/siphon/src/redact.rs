//! Names and addresses in a text are replaced, the same ones by the same words; secrets are taken
//! out. No I/O.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// What stands in the place of a secret.
pub const SECRET: &str = "[secret]";
/// A key of Ceph in base64.
const KEY_LEN: usize = 40;

/// What is known of names, and what stands in their place.
#[derive(Debug, Default)]
pub struct Redactor {
    names: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
    addresses: BTreeMap<IpAddr, String>,
    hides: bool,
}

/// What belongs to a name, a word or an address.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')
}

impl Redactor {
    /// One that takes out secrets; with `hides`, names and addresses as well.
    pub fn new(hides: bool) -> Self {
        Redactor { hides, ..Redactor::default() }
    }

    /// A name that is to be replaced by `kind` and a number.
    pub fn add(&mut self, kind: &'static str, name: &str) {
        if !self.hides || name.is_empty() || self.names.contains_key(name) {
            return;
        }
        let n = self.counts.entry(kind).or_default();
        *n += 1;
        self.names.insert(name.to_owned(), format!("{kind}-{n}"));
    }

    /// How many names are known.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// The text without what it must not tell.
    pub fn text(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let end = rest.find(|c: char| !self.belongs(c)).unwrap_or(rest.len());
            if end == 0 {
                out.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            }
            let quoted = out.ends_with('"') && rest[end..].starts_with('"');
            out += &self.word(&rest[..end], quoted);
            rest = &rest[end..];
        }
        out
    }

    fn belongs(&self, c: char) -> bool {
        // Base64 has these beside what names have.
        is_part(c) || matches!(c, '+' | '=')
    }

    fn word(&mut self, word: &str, quoted: bool) -> String {
        if is_key(word) {
            return SECRET.to_owned();
        }
        if !self.hides {
            return word.to_owned();
        }
        if let Some(name) = self.name(word, quoted) {
            return name;
        }
        if let Some(address) = self.address(word) {
            return address;
        }
        self.parts(word)
    }

    /// A number is a name only where it stands by itself in quotes.
    fn name(&self, word: &str, quoted: bool) -> Option<String> {
        let number = word.bytes().all(|b| b.is_ascii_digit());
        self.names.get(word).filter(|_| quoted || !number).cloned()
    }

    fn address(&mut self, word: &str) -> Option<String> {
        let trimmed = word.trim_end_matches(['.', ':']);
        let tail = &word[trimmed.len()..];
        let (ip, port) = match (trimmed.parse::<SocketAddr>(), trimmed.parse::<IpAddr>()) {
            (Ok(a), _) => (a.ip(), format!(":{}", a.port())),
            // A lone `::` is more often a part of a program's names.
            (_, Ok(ip)) if trimmed != "::" => (ip, String::new()),
            // As in `v2:10.0.0.1:3300`.
            _ => {
                let (kind, addr) =
                    trimmed.split_once(':').filter(|(k, _)| matches!(*k, "v1" | "v2" | "any"))?;
                return Some(format!("{kind}:{}{tail}", self.address(addr)?));
            }
        };
        if ip.is_unspecified() {
            return Some(word.to_owned());
        }
        let n = self.addresses.len() + 1;
        let known = self.addresses.entry(ip).or_insert_with(|| format!("address-{n}"));
        Some(format!("{known}{port}{tail}"))
    }

    /// A word such as `client.NAME`, `HOST:sda` or `NAME.`: the longest part that is a name.
    fn parts(&self, word: &str) -> String {
        let bounds: Vec<usize> = std::iter::once(0)
            .chain(
                word.char_indices()
                    .filter(|(_, c)| matches!(c, '.' | ':' | '=' | '+'))
                    .flat_map(|(i, c)| [i, i + c.len_utf8()]),
            )
            .chain(std::iter::once(word.len()))
            .collect();
        let mut out = String::new();
        let mut at = 0;
        'next: while at < word.len() {
            for end in bounds.iter().rev().copied().filter(|e| *e > at) {
                let part = &word[at..end];
                if bounds.contains(&at)
                    && let Some(name) = self.name(part, false)
                {
                    out += &name;
                    at = end;
                    continue 'next;
                }
            }
            let Some(c) = word[at..].chars().next() else { break };
            out.push(c);
            at += c.len_utf8();
        }
        out
    }
}

/// Whether a word looks like a key of Ceph: base64 of a type, a time, a length and 16 bytes.
fn is_key(word: &str) -> bool {
    word.split(['=', ':']).any(|w| w.len() >= KEY_LEN - 2 && w.starts_with("AQ"))
        && word.len() >= KEY_LEN
}

/// Whether the value of an option is to be taken out.
pub fn is_secret(option: &str) -> bool {
    let name = option.to_ascii_lowercase();
    let words = ["password", "passwd", "secret", "token", "credential"];
    words.iter().any(|w| name.contains(w))
        || name == "key"
        || name.ends_with("_key")
        || name.ends_with("/key")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let mut r = Redactor::new(true);
        for (kind, name) in [
            ("host", "node7"),
            ("host", "node7.example.com"),
            ("pool", "customers"),
            ("pool", "12"),
            ("pool", ".mgr"),
            ("user", "alice"),
            ("image", "vm-1"),
        ] {
            r.add(kind, name);
        }
        r
    }

    #[test]
    fn names_are_replaced_the_same_everywhere() {
        let mut r = redactor();
        assert_eq!(r.text("pool 'customers' of node7"), "pool 'pool-1' of host-1");
        assert_eq!(
            r.text(r#"{"hostname":"node7.example.com","h":"node7"}"#),
            r#"{"hostname":"host-2","h":"host-1"}"#
        );
        assert_eq!(
            r.text("client.alice from client.alicebob"),
            "client.user-1 from client.alicebob"
        );
        assert_eq!(r.text("node7:sda, customers/vm-1@s"), "host-1:sda, pool-1/image-1@s");
        assert_eq!(r.text("the pool customers."), "the pool pool-1.");
        assert_eq!(r.text("mgr .mgr"), "mgr pool-3");
        assert_eq!(r.text("node77 mynode7"), "node77 mynode7", "other names");
    }

    #[test]
    fn numbers_stay_unless_they_are_names_in_quotes() {
        let mut r = redactor();
        assert_eq!(
            r.text(r#"{"size":12,"pool_name":"12"}"#),
            r#"{"size":12,"pool_name":"pool-2"}"#
        );
        assert_eq!(r.text("12.1f active"), "12.1f active");
    }

    #[test]
    fn addresses_are_replaced_and_ports_stay() {
        let mut r = redactor();
        assert_eq!(
            r.text("[v2:10.1.2.3:6800/77,v1:10.1.2.3:6801/77] 10.1.2.4"),
            "[v2:address-1:6800/77,v1:address-1:6801/77] address-2"
        );
        assert_eq!(r.text("[fd00::12]:3300"), "[address-3]:3300");
        assert_eq!(
            r.text("at 10:20:30 in osd::core, 0.0.0.0:0"),
            "at 10:20:30 in osd::core, 0.0.0.0:0"
        );
    }

    #[test]
    fn keys_never_stay() {
        let key = "AQBSdFVeKOLgChAAZ+AFTkaVBDsLDQ6KRgcsbA==";
        for hides in [true, false] {
            let mut r = Redactor::new(hides);
            for text in [format!("key = {key}"), format!("key={key}"), format!("\"{key}\"")] {
                let out = r.text(&text);
                assert!(out.contains(SECRET) && !out.contains("KOLgChAA"), "{out}");
            }
        }
        assert!(is_secret("rgw_keystone_admin_password") && is_secret("mgr/x/api_key"));
        assert!(!is_secret("osd_max_backfills") && !is_secret("mon_config_key_max_entry_size"));
    }
}
