//! What an entity may do at a monitor.

use super::constraint::{self, Arguments, Constraint};
use super::parser::{Parser, TEXT_MAX, is_space};
use super::{CapsError, Network, Perm, Quoted};
use crate::AuthName;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The `mon` caps of an entity (`MonCap`, `src/mon/MonCap.h`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonCap {
    /// In the order of the text.
    pub grants: Vec<MonGrant>,
}

/// One grant (`MonCapGrant`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonGrant {
    /// What it is about.
    pub kind: MonGrantKind,
    /// Where it may be used from.
    pub network: Option<Network>,
}

/// The forms that a grant has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonGrantKind {
    /// `allow rw`: every service except `config-key`; with a file system name it restricts which
    /// file systems are shown.
    Blanket(Perm, Option<String>),
    /// `allow service osd rw`.
    Service(String, Perm),
    /// `allow command "osd blocklist" with blocklistop=add`.
    Command(String, Arguments),
    /// `profile osd`.
    Profile(String),
}

/// An operation on a monitor.
#[derive(Clone, Copy, Debug)]
pub struct MonOp<'a> {
    /// The service that it belongs to: `mon`, `osd`, `auth`, ...
    pub service: &'a str,
    /// The command's prefix; empty if it is no command.
    pub command: &'a str,
    /// The command's arguments as text.
    pub args: &'a BTreeMap<String, String>,
    /// What it needs.
    pub perm: Perm,
    /// Where it comes from.
    pub addr: Option<IpAddr>,
}

impl MonCap {
    /// `allow *`.
    pub fn allow_all() -> Self {
        MonCap {
            grants: vec![MonGrant { kind: MonGrantKind::Blanket(Perm::ANY, None), network: None }],
        }
    }

    /// Whether any grant is `allow *`, wherever it may be used from.
    pub fn is_allow_all(&self) -> bool {
        self.grants.iter().any(MonGrant::is_allow_all)
    }

    /// Whether `name` may do `op` (`MonCap::is_capable`). Grants add up.
    pub fn is_capable(&self, name: &AuthName, op: &MonOp<'_>) -> bool {
        let mut allowed = Perm::NONE;
        for grant in self.grants.iter().filter(|g| Network::admits(&g.network, op.addr)) {
            if grant.is_allow_all() {
                return true;
            }
            allowed = allowed | grant.kind.allowed(name, op);
            if allowed.has(op.perm) {
                return true;
            }
        }
        false
    }

    /// The file systems that the entity may know of; empty for all (`allowed_fs_names`).
    pub fn allowed_fs_names(&self) -> Vec<&str> {
        let names = self.grants.iter().map(|g| match &g.kind {
            MonGrantKind::Blanket(_, Some(fs)) => Some(fs.as_str()),
            _ => None,
        });
        names.collect::<Option<_>>().unwrap_or_default()
    }

    /// Whether the entity may do any of `perm` with a file system (`fs_name_capable`).
    pub fn fs_capable(&self, name: &AuthName, fs: &str, perm: Perm) -> bool {
        self.grants.iter().any(|g| {
            g.is_allow_all()
                || match &g.kind {
                    MonGrantKind::Blanket(p, only) => only.as_deref().is_none_or(|n| n == fs) && p.intersects(perm),
                    MonGrantKind::Service(_, p) => p.intersects(perm),
                    MonGrantKind::Command(..) => false,
                    MonGrantKind::Profile(profile) => expand(profile, name).iter().any(
                        |k| matches!(k, MonGrantKind::Service(s, p) if (s == "fs" || s == "mds") && p.intersects(perm)),
                    ),
                }
        })
    }
}

impl MonGrant {
    fn is_allow_all(&self) -> bool {
        self.kind == MonGrantKind::Blanket(Perm::ANY, None)
    }
}

impl MonGrantKind {
    fn allowed(&self, name: &AuthName, op: &MonOp<'_>) -> Perm {
        match self {
            // Blanket grants do not reach the key-value store, which holds secrets.
            MonGrantKind::Blanket(..) if op.service == "config-key" => Perm::NONE,
            MonGrantKind::Blanket(perm, _) => *perm,
            MonGrantKind::Service(service, perm) if service == op.service => *perm,
            MonGrantKind::Service(..) => Perm::NONE,
            MonGrantKind::Command(command, args)
                if command == op.command && constraint::hold(args, op.args) =>
            {
                Perm::RWX
            }
            MonGrantKind::Command(..) => Perm::NONE,
            MonGrantKind::Profile(profile) => {
                expand(profile, name).iter().fold(Perm::NONE, |perm, k| perm | k.allowed(name, op))
            }
        }
    }
}

fn service(service: &str, perm: Perm) -> MonGrantKind {
    MonGrantKind::Service(service.to_owned(), perm)
}

fn command(command: &str, args: &[(&str, Constraint)]) -> MonGrantKind {
    MonGrantKind::Command(
        command.to_owned(),
        args.iter().map(|(k, c)| (k.to_string(), c.clone())).collect(),
    )
}

fn equal(v: &str) -> Constraint {
    Constraint::Equal(v.to_owned())
}

fn prefix(v: &str) -> Constraint {
    Constraint::Prefix(v.to_owned())
}

/// What a profile stands for (`MonCapGrant::expand_profile`). An unknown one stands for nothing.
fn expand(profile: &str, name: &AuthName) -> Vec<MonGrantKind> {
    let (r, rw, all) = (Perm::R, Perm::R | Perm::W, Perm::RWX);
    let blocklist = |spelled: &str, op: &str| {
        command(
            spelled,
            &[(op, equal("add")), ("addr", Constraint::regex("^[^/]+/[0-9]+$".to_owned()))],
        )
    };
    let reader = |services: &[&str]| services.iter().map(|s| service(s, r)).collect::<Vec<_>>();
    let mut grants = match profile {
        "read-only" => vec![MonGrantKind::Blanket(r, None)],
        "read-write" => vec![MonGrantKind::Blanket(rw, None)],
        "mon" => vec![service("mon", all), service("log", all)],
        "osd" => vec![
            service("osd", all),
            service("mon", r),
            service("pg", rw),
            service("log", Perm::W),
            command(
                "config set",
                &[("name", Constraint::regex("osd_mclock_max_capacity_iops_(hdd|ssd)".to_owned()))],
            ),
        ],
        "mds" => vec![
            service("mds", all),
            service("mon", r),
            service("osd", r),
            command("osd pool rmsnap", &[]),
            command("osd blocklist", &[]),
            command("osd blacklist", &[]),
            service("log", Perm::W),
        ],
        "mgr" => {
            let mut v = vec![service("mgr", all), service("auth", all)];
            v.extend(
                ["log", "mon", "mds", "fs", "osd", "config-key", "config"].map(|s| service(s, rw)),
            );
            v.extend(
                ["auth get-or-create", "auth caps", "auth rm", "smart"].map(|c| command(c, &[])),
            );
            v
        }
        "bootstrap-osd" => {
            let mut v = reader(&["mon", "osd"]);
            v.extend(["mon getmap", "osd new", "osd purge-new"].map(|c| command(c, &[])));
            v
        }
        "bootstrap-mds" => {
            let mut v = reader(&["mon", "osd"]);
            v.push(command("mon getmap", &[]));
            let args = [
                ("entity", prefix("mds.")),
                ("caps_mon", equal("allow profile mds")),
                ("caps_osd", equal("allow rwx")),
                ("caps_mds", equal("allow")),
            ];
            v.push(command("auth get-or-create", &args));
            v
        }
        "bootstrap-mgr" => {
            let mut v = reader(&["mon", "osd"]);
            v.push(command("mon getmap", &[]));
            let args = [("entity", prefix("mgr.")), ("caps_mon", equal("allow profile mgr"))];
            v.push(command("auth get-or-create", &args));
            v
        }
        "bootstrap-rgw" => {
            let mut v = reader(&["mon", "osd"]);
            v.push(command("mon getmap", &[]));
            let args = [
                ("entity", prefix("client.rgw.")),
                ("caps_mon", equal("allow rw")),
                ("caps_osd", equal("allow rwx")),
            ];
            v.push(command("auth get-or-create", &args));
            v
        }
        "bootstrap-rbd" | "bootstrap-rbd-mirror" => {
            let mon = if profile == "bootstrap-rbd" { "profile rbd" } else { "profile rbd-mirror" };
            let osd = "^([ ,]*profile(=|[ ]+)['\"]?rbd[^ ,'\"]*['\"]?([ ]+pool(=|[ ]+)['\"]?[^,'\"]+['\"]?)?)+$";
            let args = [
                ("entity", prefix("client.")),
                ("caps_mon", equal(mon)),
                ("caps_osd", Constraint::regex(osd.to_owned())),
            ];
            vec![service("mon", r), command("auth get-or-create", &args)]
        }
        "fs-client" => reader(&["mon", "mds", "osd", "pg"]),
        "simple-rados-client" => reader(&["mon", "osd", "pg"]),
        "simple-rados-client-with-blocklist" => {
            let mut v = reader(&["mon", "osd", "pg"]);
            v.push(blocklist("osd blocklist", "blocklistop"));
            v
        }
        "crash" => reader(&["mon"]),
        "cephfs-mirror" => {
            let mut v = reader(&["mon", "mds", "osd", "pg"]);
            v.push(command("config-key get", &[("key", prefix("cephfs/mirror/peer/"))]));
            v
        }
        "role-definer" => vec![service("mon", r), service("auth", all)],
        rbd if rbd.starts_with("rbd") => {
            let mut v = reader(&["mon", "osd", "pg"]);
            // A client that breaks a dead one's exclusive lock must be able to fence it.
            v.push(blocklist("osd blocklist", "blocklistop"));
            v.push(blocklist("osd blacklist", "blacklistop"));
            match rbd {
                "rbd-mirror" => {
                    v.push(command("config-key get", &[("key", prefix("rbd/mirror/"))]))
                }
                "rbd-mirror-peer" => {
                    let any = Constraint::regex("rbd/mirror/[^/]+".to_owned());
                    v.push(command("config-key get", &[("key", any)]));
                    v.push(command("config-key set", &[("key", prefix("rbd/mirror/peer/"))]));
                }
                _ => {}
            }
            v
        }
        _ => Vec::new(),
    };
    if matches!(profile, "mon" | "osd" | "mds" | "mgr") {
        let own = prefix(&format!("daemon-private/{name}/"));
        let verbs = ["get", "put", "set", "exists", "delete"];
        grants.extend(verbs.map(|v| command(&format!("config-key {v}"), &[("key", own.clone())])));
    }
    grants
}

impl FromStr for MonCap {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        let mut p = Parser::new(text);
        let grants = if text.len() > TEXT_MAX { Vec::new() } else { p.grants(true, grant) };
        if grants.is_empty() || !p.rest.is_empty() {
            return Err(CapsError::at("mon", text, p.rest));
        }
        Ok(MonCap { grants })
    }
}

fn grant(p: &mut Parser<'_>) -> Option<MonGrant> {
    p.attempt(|p| {
        p.skip(is_space);
        let grant = p
            .attempt(blanket)
            .or_else(|| p.attempt(profile))
            .or_else(|| p.attempt(of_service))
            .or_else(|| p.attempt(of_command))?;
        p.skip(is_space);
        Some(grant)
    })
}

fn blanket(p: &mut Parser<'_>) -> Option<MonGrant> {
    p.allow()?;
    let perm = p.perm()?;
    let network = p.network().map(Network::new);
    let fs = p.attempt(|p| {
        p.spaces()?;
        p.keyword("fsname")?;
        p.run(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)).map(str::to_owned)
    });
    Some(MonGrant { kind: MonGrantKind::Blanket(perm, fs), network })
}

fn profile(p: &mut Parser<'_>) -> Option<MonGrant> {
    p.allow();
    p.keyword("profile")?;
    let kind = MonGrantKind::Profile(p.string()?);
    Some(MonGrant { kind, network: p.network().map(Network::new) })
}

fn of_service(p: &mut Parser<'_>) -> Option<MonGrant> {
    p.allow()?;
    p.keyword("service")?;
    let service = p.string()?;
    p.spaces()?;
    let kind = MonGrantKind::Service(service, p.perm()?);
    Some(MonGrant { kind, network: p.network().map(Network::new) })
}

fn of_command(p: &mut Parser<'_>) -> Option<MonGrant> {
    p.allow()?;
    p.keyword("command")?;
    let command = p.string()?;
    let args = p.attempt(|p| {
        p.spaces()?;
        p.lit("with")?;
        p.spaces()?;
        p.arguments(false)
    });
    let kind = MonGrantKind::Command(command, args.unwrap_or_default());
    Some(MonGrant { kind, network: p.network().map(Network::new) })
}

impl fmt::Display for MonGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fs = None;
        match &self.kind {
            MonGrantKind::Blanket(perm, only) => {
                write!(f, "allow {perm}")?;
                fs = only.as_deref();
            }
            MonGrantKind::Service(s, perm) => write!(f, "allow service {} {perm}", Quoted(s))?,
            MonGrantKind::Profile(p) => write!(f, "allow profile {}", Quoted(p))?,
            MonGrantKind::Command(c, args) => {
                write!(f, "allow command {}", Quoted(c))?;
                if !args.is_empty() {
                    f.write_str(" with")?;
                    constraint::print(args, f)?;
                }
            }
        }
        if let Some(n) = &self.network {
            write!(f, " network {n}")?;
        }
        match fs {
            Some(fs) => write!(f, " fsname {fs}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for MonCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, grant) in self.grants.iter().enumerate() {
            write!(f, "{}{grant}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
