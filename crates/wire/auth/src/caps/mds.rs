//! What an entity may do at a metadata server. The monitors keep such caps, and refuse what
//! no metadata server would understand.

use super::CapsError;
use super::parser::{Parser, TEXT_MAX};
use std::str::FromStr;

/// The `mds` caps of an entity (`MDSAuthCaps`, `src/mds/MDSAuthCaps.h`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MdsCap {
    /// In the order of the text.
    pub grants: Vec<MdsGrant>,
}

/// One grant (`MDSCapGrant`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MdsGrant {
    /// What is allowed: letters of `rwfps`, or `*`.
    pub spec: String,
    /// Below which path.
    pub path: Option<String>,
    /// In which file system.
    pub fs_name: Option<String>,
    /// For which user.
    pub uid: Option<u32>,
    /// For which groups of that user.
    pub gids: Vec<u32>,
    /// Not for root.
    pub root_squash: bool,
    /// From where.
    pub network: Option<String>,
}

impl FromStr for MdsCap {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        if text == "allow" {
            return Ok(MdsCap {
                grants: vec![MdsGrant { spec: "rwps".into(), ..MdsGrant::default() }],
            });
        }
        let mut p = Parser::new(text);
        let grants = if text.len() > TEXT_MAX { Vec::new() } else { p.grants(true, grant) };
        if !grants.is_empty() {
            p.skip(|c| c.is_ascii_whitespace() || c == '\x0b');
        }
        if grants.is_empty() || !p.rest.is_empty() {
            return Err(CapsError::Syntax {
                service: "mds",
                rest: p.rest.to_owned(),
                text: text.to_owned(),
            });
        }
        Ok(MdsCap { grants })
    }
}

fn grant(p: &mut Parser<'_>) -> Option<MdsGrant> {
    p.attempt(|p| {
        p.lit("allow")?;
        p.spaces()?;
        let mut grant = MdsGrant { spec: spec(p)?.to_owned(), ..MdsGrant::default() };
        matched(p, &mut grant);
        grant.network = p.network();
        Some(grant)
    })
}

/// The letters come in this order and in these combinations only; the longest counts.
fn spec(p: &mut Parser<'_>) -> Option<&'static str> {
    for all in ["*", "all"] {
        if p.lit(all).is_some() {
            return Some("*");
        }
    }
    ["rwfps", "rwps", "rwfp", "rwfs", "rwp", "rws", "rwf", "rw", "r"]
        .into_iter()
        .find(|s| p.lit(s).is_some())
}

/// ` word=`.
fn key(p: &mut Parser<'_>, word: &str) -> Option<()> {
    p.spaces()?;
    p.lit(word)?;
    p.lit("=")
}

fn fs_name(p: &mut Parser<'_>) -> Option<String> {
    p.attempt(|p| {
        key(p, "fsname")?;
        p.run(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)).map(str::to_owned)
    })
}

fn path(p: &mut Parser<'_>) -> Option<String> {
    p.attempt(|p| {
        key(p, "path")?;
        // In quotes the path may be anything, even nothing.
        p.string_or_empty()
    })
}

fn root_squash(p: &mut Parser<'_>) -> Option<()> {
    p.attempt(|p| {
        p.spaces()?;
        p.lit("root_squash")
    })
}

fn number(p: &mut Parser<'_>) -> Option<u32> {
    p.attempt(|p| p.run(|c| c.is_ascii_digit())?.parse().ok())
}

fn uid(p: &mut Parser<'_>) -> Option<u32> {
    p.attempt(|p| {
        key(p, "uid")?;
        number(p)
    })
}

fn gids(p: &mut Parser<'_>) -> Vec<u32> {
    let list = p.attempt(|p| {
        key(p, "gids")?;
        let mut all = vec![number(p)?];
        while let Some(n) = p.attempt(|p| {
            p.lit(",")?;
            number(p)
        }) {
            all.push(n);
        }
        Some(all)
    });
    list.unwrap_or_default()
}

/// Whom and what the grant is about. The order is fixed, and a user goes with a path alone.
fn matched(p: &mut Parser<'_>, grant: &mut MdsGrant) {
    grant.fs_name = fs_name(p);
    grant.path = path(p);
    grant.root_squash = root_squash(p).is_some();
    if grant.fs_name.is_none() && !grant.root_squash {
        grant.uid = uid(p);
        if grant.uid.is_some() {
            grant.gids = gids(p);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_metadata_server_understands() {
        for good in [
            "allow",
            "allow *",
            "allow all",
            "allow r",
            "allow rw path=/home/x",
            "allow rwp path=\"/a b\" uid=1000 gids=1,2,3",
            "allow rw uid=5, allow r path=''",
            "allow rwfps fsname=cephfs path=/x root_squash",
            "allow rw fsname=a root_squash network 10.0.0.0/8; allow r",
            "allow rw fsname=a ",
        ] {
            good.parse::<MdsCap>().unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        let caps: MdsCap = "allow rwp path=/p uid=7 gids=8,9 , allow r fsname=f".parse().unwrap();
        assert_eq!(
            (caps.grants[0].uid, &caps.grants[0].gids[..], caps.grants[0].spec.as_str()),
            (Some(7), &[8, 9][..], "rwp")
        );
        assert_eq!(caps.grants[1].fs_name.as_deref(), Some("f"));
    }

    #[test]
    fn what_it_does_not_understand_and_where_it_stops() {
        for (bad, rest) in [
            ("", ""),
            ("r", "r"),
            ("allow w", "allow w"),
            ("allow rwx", "x"),
            ("allow rw path", "path"),
            ("allow rw uid=99999999999", "uid=99999999999"),
            ("allow rw fsname=a uid=5", "uid=5"),
            ("allow rw, deny r", ", deny r"),
            (" allow r", " allow r"),
        ] {
            let e = bad.parse::<MdsCap>().unwrap_err();
            assert_eq!(
                e.to_string(),
                format!("mds capability parse failed, stopped at '{rest}' of '{bad}'")
            );
        }
    }
}
