//! `fs authorize`: a client's capabilities for paths of a file system.

use super::super::auth::{entity, keyring, valid};
use super::super::frame::{Answer, Write};
use crate::command::{Format, Refusal};
use crate::state::Change;
use ::auth::{CryptoKey, EntityAuth};
use std::collections::BTreeMap;

pub(super) fn authorize(c: &mut Write<'_>) -> Answer {
    let name = entity(c.args.req("entity"), "bad entity name")?;
    let filesystem = c.args.req("filesystem");
    let every = filesystem == "*" || filesystem == "all";
    if !every && c.pending.state().fs.by_name(filesystem).is_none() {
        return Err(Refusal::invalid(format!("filesystem {filesystem} does not exist.")));
    }
    let of_fs = if every { String::new() } else { format!(" fsname={filesystem}") };
    let (mds, writes) = mds_caps(&c.args.strs("caps"), &of_fs)?;
    let osd = format!("allow {} tag cephfs data={filesystem}", if writes { "rw" } else { "r" });
    let caps: BTreeMap<String, String> = [
        ("mds".to_owned(), mds),
        ("mon".to_owned(), format!("allow r{of_fs}")),
        ("osd".to_owned(), osd),
    ]
    .into();
    for (service, text) in &caps {
        valid(&c.env.conf.borrow(), service, text)?;
    }
    let auth = match c.pending.state().auth.get(&name) {
        Some(old) if old.caps == caps => old.clone(),
        Some(_) => {
            return Err(Refusal::invalid(format!(
                "{name} already has fs capabilities that differ from those supplied. To generate a \
                 new auth key for {name}, first remove {name} from configuration files, execute \
                 'ceph auth rm {name}', then execute this command again."
            )));
        }
        None => {
            let key = CryptoKey::generate(c.env.now, &mut rand::rng());
            let auth = EntityAuth { key, caps };
            c.pending.put(Change::Auth(name.clone(), Some(auth.clone())));
            auth
        }
    };
    Ok(match c.format() {
        Format::Plain => {
            let bare = EntityAuth { key: auth.key, caps: BTreeMap::new() };
            keyring(Format::Plain, &[(name, bare)])
        }
        format => keyring(format, &[(name, auth)]),
    })
}

/// The text of MDS capabilities for pairs of a path and flags (`/ rw /a rps root_squash`), and
/// whether they allow writes.
fn mds_caps(pairs: &[String], of_fs: &str) -> Result<(String, bool), Refusal> {
    let mut all = Vec::new();
    let mut writes = false;
    let mut words = pairs.iter().map(String::as_str).peekable();
    while let (Some(path), Some(flags)) = (words.next(), words.next()) {
        let squash = words.next_if(|w| *w == "root_squash").is_some();
        if flags != "r" && !flags.starts_with("rw") {
            return Err(Refusal::invalid("Permission flags must start with 'r' or 'rw'."));
        }
        writes |= flags.starts_with("rw");
        let mut last = '\0';
        for flag in flags.chars().skip(2) {
            if last >= flag {
                return Err(Refusal::invalid(
                    "Permission flags (except 'rw') must be specified in alphabetical order.",
                ));
            }
            if !matches!(flag, 'p' | 's') {
                return Err(Refusal::invalid(format!("Unknown permission flag '{flag}'.")));
            }
            last = flag;
        }
        let of_path = if path == "/" { String::new() } else { format!(" path={path}") };
        let squash = if squash { " root_squash" } else { "" };
        all.push(format!("allow {flags}{of_fs}{of_path}{squash}"));
    }
    Ok((all.join(", "), writes))
}

#[cfg(test)]
mod tests {
    use super::mds_caps;

    #[test]
    fn pairs_become_caps() {
        let caps = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            mds_caps(&words, " fsname=f").map_err(|e| e.message.to_string())
        };
        assert_eq!(caps("/ rw").unwrap(), ("allow rw fsname=f".into(), true));
        assert_eq!(
            caps("/a r root_squash /b rwps").unwrap(),
            ("allow r fsname=f path=/a root_squash, allow rwps fsname=f path=/b".into(), true)
        );
        for bad in ["/ w", "/ rwsp", "/ rwx", "/ rp"] {
            assert!(caps(bad).is_err(), "{bad}");
        }
    }
}
