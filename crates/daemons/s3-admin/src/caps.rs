//! Capabilities of administrators: `users=read;buckets=*`.

use crate::refusal::{Refusal, Result};
use rgw::user::UserCaps;

/// What a request needs.
pub(crate) const READ: u32 = 1;
pub(crate) const WRITE: u32 = 2;

/// What can be granted (16.2 `src/rgw/rgw_common.cc`, `RGWUserCaps::is_valid_cap_type`, and `info`
/// of 17.2).
const KINDS: [&str; 14] = [
    "user",
    "users",
    "buckets",
    "metadata",
    "usage",
    "zone",
    "bilog",
    "mdlog",
    "datalog",
    "roles",
    "user-policy",
    "amz-cache",
    "oidc-provider",
    "info",
];

/// Adds grants, or takes them away.
pub(crate) fn change(caps: &mut UserCaps, text: &str, add: bool) -> Result<()> {
    if text.is_empty() {
        return Err(Refusal::CAPABILITY);
    }
    for grant in text.strip_suffix(';').unwrap_or(text).split(';') {
        let (kind, how) = grant.split_once('=').ok_or(Refusal::CAPABILITY)?;
        let kind = kind.trim();
        if !KINDS.contains(&kind) {
            return Err(Refusal::CAPABILITY);
        }
        let bits = mask(how);
        let key = bytes::Bytes::copy_from_slice(kind.as_bytes());
        if add {
            *caps.caps.entry(key).or_default() |= bits;
        } else if let Some(left) = caps.caps.get_mut(&key) {
            *left &= !bits;
            if *left == 0 {
                caps.caps.remove(&key);
            }
        }
    }
    Ok(())
}

fn mask(how: &str) -> u32 {
    let bit = |word: &str| match word {
        "*" => READ | WRITE,
        "read" => READ,
        "write" => WRITE,
        _ => 0,
    };
    how.split([';', ',', '=', ' ', '\t']).fold(0, |bits, word| bits | bit(word))
}

/// A mask as it is shown.
pub(crate) fn shown(bits: u32) -> &'static str {
    match bits & (READ | WRITE) {
        READ => "read",
        WRITE => "write",
        0 => "<none>",
        _ => "*",
    }
}

/// Whether these capabilities allow a request.
pub(crate) fn allow(caps: &[(String, String)], kind: &str, needs: u32) -> bool {
    caps.iter().any(|(granted, how)| granted == kind && mask(how) & needs == needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_come_and_go() {
        let mut caps = UserCaps::default();
        change(&mut caps, "users=*;buckets=read, write;usage=read;", true).unwrap();
        change(&mut caps, "buckets=write; usage=*", false).unwrap();
        let left: Vec<_> = caps.caps.iter().map(|(k, v)| (&k[..], shown(*v))).collect();
        assert_eq!(left, [(&b"buckets"[..], "read"), (b"users", "*")]);
        for wrong in ["", "users", "nothing=read", "users=read;;", "=read"] {
            assert_eq!(change(&mut caps, wrong, true), Err(Refusal::CAPABILITY), "{wrong}");
        }
    }

    #[test]
    fn a_request_needs_all_of_its_bits_of_its_kind() {
        let caps =
            [("users".to_owned(), "read".to_owned()), ("buckets".to_owned(), "*".to_owned())];
        assert!(allow(&caps, "users", READ) && allow(&caps, "buckets", WRITE));
        assert!(!allow(&caps, "users", WRITE) && !allow(&caps, "usage", READ));
    }
}
