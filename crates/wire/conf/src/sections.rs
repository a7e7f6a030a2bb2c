//! The daemons and clients that a setting is for, and which of several settings wins.
//!
//! A more specific section beats a more general one: `global` < `osd` < `osd.3`; among settings for
//! the same section, one with a mask beats one without (Ceph 16.2: `src/mon/ConfigMap.cc`).

use crate::ConfError;
use std::collections::BTreeMap;
use std::fmt;

/// Daemon and client types that have a section of their own.
const TYPES: &[&str] = &["mon", "mgr", "osd", "mds", "client"];

/// A section with its masks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Section {
    /// `global`, a type, or `type.id`.
    pub name: String,
    /// `class:` mask.
    pub device_class: Option<String>,
    /// Location mask, such as (`host`, `a`).
    pub location: Option<(String, String)>,
}

/// The entity with the configuration that is asked for.
#[derive(Clone, Debug, Default)]
pub struct Who {
    /// `osd`, `client`, ...
    pub entity_type: String,
    /// `3`, `admin`, ...
    pub id: String,
    /// Its CRUSH location, `host` included.
    pub location: BTreeMap<String, String>,
    /// Its device class.
    pub device_class: Option<String>,
}

impl Section {
    /// Reads `osd`, `osd.3`, `osd/class:ssd`, `client.a/host:b`, `global/rack:r1`.
    pub fn parse(text: &str) -> Result<Section, ConfError> {
        let err = || ConfError::Section(text.to_string());
        let mut parts = text.split('/');
        let first = parts.next().unwrap_or_default();
        let mut s = Section { name: first.to_string(), device_class: None, location: None };
        let rest: Vec<&str> = if first.contains(':') {
            s.name = "global".into();
            text.split('/').collect()
        } else {
            parts.collect()
        };
        for mask in rest {
            let (k, v) = mask
                .split_once(':')
                .filter(|(k, v)| !k.is_empty() && !v.is_empty())
                .ok_or_else(err)?;
            let taken = if k == "class" {
                s.device_class.replace(v.into()).is_some()
            } else {
                s.location.replace((k.into(), v.into())).is_some()
            };
            if taken {
                return Err(err());
            }
        }
        let known = s.name == "global"
            || TYPES.contains(&s.name.as_str())
            || s.name.split_once('.').is_some_and(|(t, id)| TYPES.contains(&t) && !id.is_empty());
        if known { Ok(s) } else { Err(err()) }
    }

    /// Whether the setting is for `who`.
    pub fn applies(&self, who: &Who) -> bool {
        let named = self.name == "global"
            || self.name == who.entity_type
            || self
                .name
                .strip_prefix(&who.entity_type)
                .and_then(|r| r.strip_prefix('.'))
                .is_some_and(|id| self.id_matches(id, &who.id));
        named
            && self.device_class.as_ref().is_none_or(|c| who.device_class.as_ref() == Some(c))
            && self.location.as_ref().is_none_or(|(k, v)| who.location.get(k) == Some(v))
    }

    /// `client.rgw` also holds for `client.rgw.a`, as in Ceph.
    fn id_matches(&self, id: &str, whole: &str) -> bool {
        whole == id || whole.strip_prefix(id).is_some_and(|r| r.starts_with('.'))
    }

    /// The larger wins.
    fn precedence(&self) -> (usize, usize, bool, bool) {
        let depth = if self.name == "global" { 0 } else { 1 + self.name.matches('.').count() };
        (depth, self.name.len(), self.location.is_some(), self.device_class.is_some())
    }

    /// The masks as Ceph prints them in `config dump`.
    pub fn mask(&self) -> String {
        let mut m = Vec::new();
        if let Some((k, v)) = &self.location {
            m.push(format!("{k}:{v}"));
        }
        if let Some(c) = &self.device_class {
            m.push(format!("class:{c}"));
        }
        m.join("/")
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let mask = self.mask();
        if !mask.is_empty() {
            write!(f, "/{mask}")?;
        }
        Ok(())
    }
}

/// The settings of `all` that hold for `who`: option name to (value, the section it came from).
pub fn resolve<'a>(
    all: impl Iterator<Item = (&'a Section, &'a str, &'a str)>,
    who: &Who,
) -> BTreeMap<&'a str, (&'a str, &'a Section)> {
    let mut out: BTreeMap<&str, (&str, &Section)> = BTreeMap::new();
    for (section, name, value) in all {
        if !section.applies(who) {
            continue;
        }
        match out.get(name) {
            Some((_, s)) if s.precedence() > section.precedence() => {}
            _ => {
                out.insert(name, (value, section));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(t: &str, id: &str) -> Who {
        Who {
            entity_type: t.into(),
            id: id.into(),
            location: [("host".into(), "a".into())].into(),
            device_class: Some("ssd".into()),
        }
    }

    #[test]
    fn parses_and_prints() {
        for t in [
            "global",
            "osd",
            "osd.3",
            "osd/class:ssd",
            "client.admin/host:b",
            "osd/rack:x/class:hdd",
        ] {
            assert_eq!(Section::parse(t).unwrap().to_string(), t);
        }
        for t in ["", "osb", "osd.", "osd/class", "osd/class:", "osd/class:a/class:b", "3"] {
            assert!(Section::parse(t).is_err(), "{t}");
        }
    }

    #[test]
    fn the_specific_wins() {
        let s: Vec<(Section, &str)> = [
            ("osd.3", "e"),
            ("global", "a"),
            ("osd", "b"),
            ("osd/host:a", "d"),
            ("osd/class:ssd", "c"),
            ("osd/class:hdd", "z"),
            ("mon", "y"),
        ]
        .into_iter()
        .map(|(s, v)| (Section::parse(s).unwrap(), v))
        .collect();
        let get = |skip: usize, w: &Who| {
            resolve(s.iter().skip(skip).map(|(s, v)| (s, "o", *v)), w)
                .get("o")
                .map(|v| v.0.to_string())
        };
        assert_eq!(get(0, &who("osd", "3")).as_deref(), Some("e"));
        assert_eq!(get(0, &who("osd", "4")).as_deref(), Some("d"));
        assert_eq!(get(4, &who("osd", "4")).as_deref(), Some("c"));
        assert_eq!(get(0, &who("client", "x")).as_deref(), Some("a"));
        assert!(Section::parse("client.rgw").unwrap().applies(&who("client", "rgw.a")));
        assert!(!Section::parse("client.rg").unwrap().applies(&who("client", "rgw.a")));
    }
}
