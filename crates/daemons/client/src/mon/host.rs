//! The `mon_host` option: `[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0] 10.0.0.2 mon3:3300`.

use std::net::SocketAddr;
use types::{AddrType, EntityAddr};

/// The port of monitors for messenger v2.
const V2_PORT: u16 = 3300;
/// The port of monitors for messenger v1.
const V1_PORT: u16 = 6789;

/// An address, or name, of one monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonHost {
    /// A literal address; always of messenger v2.
    Addr(EntityAddr),
    /// A name to look up, and the port.
    Name(String, u16),
}

/// The text is not a list of monitors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address or name of a monitor")]
pub struct ParseMonHostError(pub String);

/// Parses `mon_host`. Elements are separated by commas, semicolons or white space; the addresses of
/// one monitor may be grouped with brackets. Addresses of messenger v1 are left out, unless a group
/// has no other: then the monitor is expected at the v2 port of the same host.
pub fn parse_mon_host(text: &str) -> Result<Vec<MonHost>, ParseMonHostError> {
    let mut hosts = Vec::new();
    for group in groups(text) {
        let mut v2 = Vec::new();
        let mut v1 = Vec::new();
        for element in group {
            let (kind, host) = parse_one(&element).ok_or(ParseMonHostError(element))?;
            if kind == AddrType::LEGACY { v1.push(at_port(host, V2_PORT)) } else { v2.push(host) }
        }
        hosts.extend(if v2.is_empty() { v1 } else { v2 });
    }
    let mut unique: Vec<MonHost> = Vec::with_capacity(hosts.len());
    for host in hosts {
        if !unique.contains(&host) {
            unique.push(host);
        }
    }
    Ok(unique)
}

/// Splits at separators; a bracket that holds several addresses makes a group. The brackets of an
/// IPv6 address stay with it.
fn groups(text: &str) -> Vec<Vec<String>> {
    let separator = |c: char| c == ',' || c == ';' || c.is_whitespace();
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches(separator);
    while !rest.is_empty() {
        let grouped = rest
            .strip_prefix('[')
            .filter(|r| r.starts_with("v1:") || r.starts_with("v2:") || r.starts_with("any:"));
        if let Some(inner) = grouped {
            let end = group_end(inner);
            out.push(
                inner[..end]
                    .split(separator)
                    .filter(|e| !e.is_empty())
                    .map(str::to_owned)
                    .collect(),
            );
            rest = inner[end..].trim_start_matches(']');
        } else {
            let end = rest.find(separator).unwrap_or(rest.len());
            out.push(vec![rest[..end].to_owned()]);
            rest = &rest[end..];
        }
        rest = rest.trim_start_matches(separator);
    }
    out
}

/// Where the bracket that began before `inner` closes.
fn group_end(inner: &str) -> usize {
    let mut depth = 1;
    for (i, c) in inner.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    inner.len()
}

fn parse_one(element: &str) -> Option<(AddrType, MonHost)> {
    let (kind, place) = match element.split_once(':') {
        Some(("v1", rest)) => (Some(AddrType::LEGACY), rest),
        Some(("v2", rest)) => (Some(AddrType::MSGR2), rest),
        Some(("any", rest)) => (None, rest),
        _ => (None, element),
    };
    let place = place.split_once('/').map_or(place, |(place, _nonce)| place);
    // Without a protocol, the well-known port of the old one tells it.
    let kind_for = |port: u16| {
        kind.unwrap_or(if port == V1_PORT { AddrType::LEGACY } else { AddrType::MSGR2 })
    };
    let bare = place.strip_prefix('[').and_then(|p| p.strip_suffix(']')).unwrap_or(place);
    if let Ok(ip) = bare.parse() {
        return Some((kind_for(V2_PORT), MonHost::Addr(v2(SocketAddr::new(ip, V2_PORT)))));
    }
    if let Ok(addr) = place.parse::<SocketAddr>() {
        return Some((kind_for(addr.port()), MonHost::Addr(v2(addr))));
    }
    let (name, port) = match place.split_once(':') {
        Some((name, port)) => (name, port.parse().ok()?),
        None => (place, V2_PORT),
    };
    let valid = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    valid.then(|| (kind_for(port), MonHost::Name(name.to_owned(), port)))
}

fn v2(addr: SocketAddr) -> EntityAddr {
    EntityAddr::msgr2(addr, 0)
}

fn at_port(host: MonHost, port: u16) -> MonHost {
    match host {
        MonHost::Addr(a) => MonHost::Addr(match a.addr {
            Some(addr) => v2(SocketAddr::new(addr.ip(), port)),
            None => a,
        }),
        MonHost::Name(name, _) => MonHost::Name(name, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str) -> String {
        let hosts = parse_mon_host(text).unwrap();
        let show = |h: &MonHost| match h {
            MonHost::Addr(a) => a.to_string(),
            MonHost::Name(n, p) => format!("{n}:{p}"),
        };
        hosts.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn forms_of_mon_host() {
        assert_eq!(show("[v2:127.0.0.1:40000/0,v1:127.0.0.1:40001/0]"), "v2:127.0.0.1:40000/0");
        assert_eq!(
            show("[v2:10.0.0.1:3300,v1:10.0.0.1:6789],[v2:10.0.0.2:3300,v1:10.0.0.2:6789]"),
            "v2:10.0.0.1:3300/0 v2:10.0.0.2:3300/0"
        );
        assert_eq!(
            show("10.0.0.1, 10.0.0.2:3301;v2:10.0.0.3"),
            "v2:10.0.0.1:3300/0 v2:10.0.0.2:3301/0 v2:10.0.0.3:3300/0"
        );
        assert_eq!(show("v1:10.0.0.1:6789"), "v2:10.0.0.1:3300/0");
        assert_eq!(show("10.0.0.1:6789"), "v2:10.0.0.1:3300/0");
        assert_eq!(
            show("[v2:[::1]:3300/0,v1:[::1]:6789/0] [fd00::2]:3300 [fd00::3]"),
            "v2:[::1]:3300/0 v2:[fd00::2]:3300/0 v2:[fd00::3]:3300/0"
        );
        assert_eq!(show("mon-a.example mon-b:3301"), "mon-a.example:3300 mon-b:3301");
        assert_eq!(show(" ,; "), "");
        assert_eq!(show("10.0.0.1 10.0.0.1"), "v2:10.0.0.1:3300/0");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["v2:", "host:port", "10.0.0.1:99999", "a b!c"] {
            assert!(parse_mon_host(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_answered(text in "[\\[\\]v12:.,/ a0-9-]{0,40}") {
            let _ = parse_mon_host(&text);
        }
    }
}
