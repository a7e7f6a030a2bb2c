//! What an entity may do at a manager.

use super::constraint::{self, Arguments};
use super::parser::{Parser, TEXT_MAX, is_space};
use super::{CapsError, Network, Perm, Quoted};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The `mgr` caps of an entity (`MgrCap`, `src/mgr/MgrCap.h`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MgrCap {
    /// In the order of the text.
    pub grants: Vec<MgrGrant>,
}

/// One grant (`MgrCapGrant`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MgrGrant {
    /// What it is about.
    pub kind: MgrGrantKind,
    /// Where it may be used from.
    pub network: Option<Network>,
}

/// The forms that a grant has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MgrGrantKind {
    /// `allow rw`.
    Blanket(Perm),
    /// `allow service pg rw`.
    Service(String, Perm),
    /// `allow module rbd_support with pool=p rw`.
    Module(String, Arguments, Perm),
    /// `allow command "crash post"`.
    Command(String, Arguments),
    /// `profile rbd pool=p`.
    Profile(String, Arguments),
}

/// An operation on a manager.
#[derive(Clone, Copy, Debug)]
pub struct MgrOp<'a> {
    /// The service that it belongs to; empty if to a module.
    pub service: &'a str,
    /// The module that it belongs to; empty if to a service.
    pub module: &'a str,
    /// The command's prefix; empty if it is no command.
    pub command: &'a str,
    /// The command's arguments as text.
    pub args: &'a BTreeMap<String, String>,
    /// What it needs.
    pub perm: Perm,
    /// Where it comes from.
    pub addr: Option<IpAddr>,
}

impl MgrCap {
    /// `allow *`.
    pub fn allow_all() -> Self {
        MgrCap { grants: vec![MgrGrant { kind: MgrGrantKind::Blanket(Perm::ANY), network: None }] }
    }

    /// Whether any grant is `allow *`, wherever it may be used from.
    pub fn is_allow_all(&self) -> bool {
        self.grants.iter().any(MgrGrant::is_allow_all)
    }

    /// Whether `op` is allowed (`MgrCap::is_capable`). Grants add up.
    pub fn is_capable(&self, op: &MgrOp<'_>) -> bool {
        let mut allowed = Perm::NONE;
        for grant in self.grants.iter().filter(|g| Network::admits(&g.network, op.addr)) {
            if grant.is_allow_all() {
                return true;
            }
            allowed = allowed | grant.kind.allowed(op);
            if allowed.has(op.perm) {
                return true;
            }
        }
        false
    }
}

impl MgrGrant {
    fn is_allow_all(&self) -> bool {
        self.kind == MgrGrantKind::Blanket(Perm::ANY)
    }
}

impl MgrGrantKind {
    fn allowed(&self, op: &MgrOp<'_>) -> Perm {
        match self {
            MgrGrantKind::Blanket(perm) => *perm,
            MgrGrantKind::Service(s, perm) if s == op.service => *perm,
            // Of a command the module's own conditions are not asked: they are about the module.
            MgrGrantKind::Module(m, args, perm)
                if m == op.module
                    && (!op.command.is_empty() || constraint::hold(args, op.args)) =>
            {
                *perm
            }
            MgrGrantKind::Command(c, args)
                if c == op.command && constraint::hold(args, op.args) =>
            {
                Perm::ANY
            }
            MgrGrantKind::Profile(profile, args) => match expand(profile, args) {
                Ok(Some(grant)) => grant.allowed(op),
                _ => Perm::NONE,
            },
            _ => Perm::NONE,
        }
    }
}

/// What a profile stands for (`MgrCapGrant::expand_profile`); `None` for those that stand for
/// nothing.
fn expand(profile: &str, args: &Arguments) -> Result<Option<MgrGrantKind>, String> {
    match profile {
        "read-only" => Ok(Some(MgrGrantKind::Blanket(Perm::R))),
        "read-write" => Ok(Some(MgrGrantKind::Blanket(Perm::R | Perm::W))),
        "crash" => Ok(Some(MgrGrantKind::Command("crash post".to_owned(), Arguments::new()))),
        "osd" | "mds" => Ok(None),
        "rbd" | "rbd-read-only" => {
            if let Some(key) = args.keys().find(|k| !matches!(k.as_str(), "pool" | "namespace")) {
                return Err(format!("profile '{profile}' does not recognize key '{key}'"));
            }
            let perm = if profile == "rbd" { Perm::R | Perm::W } else { Perm::R };
            Ok(Some(MgrGrantKind::Module("rbd_support".to_owned(), args.clone(), perm)))
        }
        _ => Err(format!("unrecognized profile '{profile}'")),
    }
}

impl FromStr for MgrCap {
    type Err = CapsError;

    fn from_str(text: &str) -> Result<Self, CapsError> {
        let mut p = Parser::new(text);
        let grants = if text.len() > TEXT_MAX { Vec::new() } else { p.grants(true, grant) };
        if grants.is_empty() || !p.rest.is_empty() {
            return Err(CapsError::at("mgr", text, p.rest));
        }
        for grant in &grants {
            if let MgrGrantKind::Profile(profile, args) = &grant.kind {
                expand(profile, args).map_err(CapsError::Profile)?;
            }
        }
        Ok(MgrCap { grants })
    }
}

fn grant(p: &mut Parser<'_>) -> Option<MgrGrant> {
    p.attempt(|p| {
        p.skip(is_space);
        let kind = p
            .attempt(|p| {
                p.allow()?;
                p.perm().map(MgrGrantKind::Blanket)
            })
            .or_else(|| p.attempt(profile))
            .or_else(|| p.attempt(of_service))
            .or_else(|| p.attempt(of_module))
            .or_else(|| p.attempt(of_command))?;
        let network = p.network().map(Network::new);
        p.skip(is_space);
        Some(MgrGrant { kind, network })
    })
}

fn with(p: &mut Parser<'_>) -> Option<Arguments> {
    p.attempt(|p| {
        p.spaces()?;
        p.lit("with")?;
        p.spaces()?;
        p.arguments(true)
    })
}

fn profile(p: &mut Parser<'_>) -> Option<MgrGrantKind> {
    p.allow();
    p.keyword("profile")?;
    let name = p.string()?;
    let args = p.attempt(|p| {
        p.spaces()?;
        p.arguments(true)
    });
    Some(MgrGrantKind::Profile(name, args.unwrap_or_default()))
}

fn of_service(p: &mut Parser<'_>) -> Option<MgrGrantKind> {
    p.allow()?;
    p.keyword("service")?;
    let service = p.string()?;
    p.spaces()?;
    Some(MgrGrantKind::Service(service, p.perm()?))
}

fn of_module(p: &mut Parser<'_>) -> Option<MgrGrantKind> {
    p.allow()?;
    p.keyword("module")?;
    let module = p.string()?;
    let args = with(p).unwrap_or_default();
    p.spaces()?;
    Some(MgrGrantKind::Module(module, args, p.perm()?))
}

fn of_command(p: &mut Parser<'_>) -> Option<MgrGrantKind> {
    p.allow()?;
    p.keyword("command")?;
    let command = p.string()?;
    Some(MgrGrantKind::Command(command, with(p).unwrap_or_default()))
}

impl fmt::Display for MgrGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |args: &Arguments, f: &mut fmt::Formatter<'_>| {
            if args.is_empty() {
                return Ok(());
            }
            f.write_str(" with")?;
            constraint::print(args, f)
        };
        match &self.kind {
            MgrGrantKind::Blanket(perm) => write!(f, "allow {perm}")?,
            MgrGrantKind::Service(s, perm) => write!(f, "allow service {} {perm}", Quoted(s))?,
            MgrGrantKind::Module(m, args, perm) => {
                write!(f, "allow module {}", Quoted(m))?;
                with(args, f)?;
                write!(f, " {perm}")?;
            }
            MgrGrantKind::Command(c, args) => {
                write!(f, "allow command {}", Quoted(c))?;
                with(args, f)?;
            }
            MgrGrantKind::Profile(p, args) => {
                write!(f, "profile {}", Quoted(p))?;
                constraint::print(args, f)?;
            }
        }
        match &self.network {
            Some(n) => write!(f, " network {n}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for MgrCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, grant) in self.grants.iter().enumerate() {
            write!(f, "{}{grant}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
