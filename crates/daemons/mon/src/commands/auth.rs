//! `auth`: entities, their keys and their caps.

use super::frame::{Answer, Entry, Read, Write, flagged, read, write};
use crate::command::{Format, Refusal, Reply, flags};
use crate::state::Change;
use ::auth::caps::{MdsCap, MgrCap, MonCap, OsdCap};
use ::auth::{AuthName, CryptoKey, EntityAuth, Keyring};
use conf::Config;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use types::errno::Errno;

pub(super) static COMMANDS: &[Entry] = &[
    read(
        "auth export name=entity,type=CephString,req=false",
        "Print the keyring of an entity, or of all.",
        "auth",
        "rx",
        export,
    ),
    read("auth get name=entity,type=CephString", "Print an entity's keyring.", "auth", "rx", get),
    read(
        "auth get-key name=entity,type=CephString",
        "Print an entity's key.",
        "auth",
        "rx",
        get_key,
    ),
    read(
        "auth print-key name=entity,type=CephString",
        "Print an entity's key.",
        "auth",
        "rx",
        get_key,
    ),
    read(
        "auth print_key name=entity,type=CephString",
        "Print an entity's key.",
        "auth",
        "rx",
        get_key,
    ),
    flagged(
        read("auth list", "List entities, keys and caps.", "auth", "rx", list),
        flags::DEPRECATED,
    ),
    read("auth ls", "List entities, keys and caps.", "auth", "rx", list),
    write(
        "auth import",
        "Add or replace the entities of the keyring given as input.",
        "auth",
        "rwx",
        import,
    ),
    write(
        "auth add name=entity,type=CephString name=caps,type=CephString,n=N,req=false",
        "Add an entity, with the key from the input or a new one.",
        "auth",
        "rwx",
        add,
    ),
    write(
        "auth get-or-create-key name=entity,type=CephString name=caps,type=CephString,n=N,req=false",
        "Print an entity's key; add the entity if it does not exist.",
        "auth",
        "rwx",
        get_or_create,
    ),
    write(
        "auth get-or-create name=entity,type=CephString name=caps,type=CephString,n=N,req=false",
        "Print an entity's keyring; add the entity if it does not exist.",
        "auth",
        "rwx",
        get_or_create,
    ),
    write(
        "auth caps name=entity,type=CephString name=caps,type=CephString,n=N",
        "Replace an entity's caps.",
        "auth",
        "rwx",
        caps,
    ),
    read("auth dump-keys", "Dump entities with their keys and caps.", "auth", "rx", dump_keys),
    write(
        "auth rotate name=entity,type=CephString",
        "Give an entity a new key, and print its keyring.",
        "auth",
        "rwx",
        rotate,
    ),
    flagged(
        write("auth del name=entity,type=CephString", "Remove an entity.", "auth", "rwx", remove),
        flags::DEPRECATED,
    ),
    write("auth rm name=entity,type=CephString", "Remove an entity.", "auth", "rwx", remove),
];

pub(super) fn entity(text: &str, what: &str) -> Result<AuthName, Refusal> {
    text.parse().map_err(|_| Refusal::invalid(what.to_owned()))
}

fn asked(c: &Read<'_>) -> Result<AuthName, Refusal> {
    let text = c.args.req("entity");
    entity(text, &format!("invalid entity_auth {text}"))
}

/// One entity as JSON (Ceph: `KeyRing::encode_formatted`).
fn formatted(name: &AuthName, auth: &EntityAuth) -> Value {
    let caps: Map<String, Value> = auth.caps.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    json!({ "entity": name.to_string(), "key": auth.key.to_base64(), "caps": caps })
}

pub(super) fn keyring(format: Format, entries: &[(AuthName, EntityAuth)]) -> Reply {
    match format {
        Format::Plain => Reply::data(entries.iter().cloned().collect::<Keyring>().to_string()),
        f => Reply::data(f.json(&entries.iter().map(|(n, a)| formatted(n, a)).collect::<Value>())),
    }
}

fn export(c: &Read<'_>) -> Answer {
    if !c.args.has("entity") {
        let all: Vec<_> = c.state.auth.iter().map(|(n, a)| (n.clone(), a.clone())).collect();
        return Ok(keyring(c.format(), &all).with_status("exported master keyring"));
    }
    let name = asked(c)?;
    match c.state.auth.get(&name) {
        Some(auth) => {
            let status = format!("export auth(key={})", auth.key.to_base64());
            Ok(keyring(c.format(), &[(name, auth.clone())]).with_status(status))
        }
        None => Err(Refusal::new(Errno::ENOENT, format!("no key for {name}"))),
    }
}

fn get(c: &Read<'_>) -> Answer {
    let name = asked(c)?;
    match c.state.auth.get(&name) {
        Some(auth) => {
            let status = format!("exported keyring for {name}");
            Ok(keyring(c.format(), &[(name, auth.clone())]).with_status(status))
        }
        None => Err(Refusal::new(Errno::ENOENT, format!("failed to find {name} in keyring"))),
    }
}

fn key_reply(format: Format, key: &CryptoKey) -> Reply {
    format.reply(|| json!({ "key": key.to_base64() }), || key.to_base64())
}

fn get_key(c: &Read<'_>) -> Answer {
    let name = asked(c)?;
    match c.state.auth.get(&name) {
        Some(auth) => Ok(key_reply(c.format(), &auth.key)),
        None => Err(Refusal::new(Errno::ENOENT, format!("don't have {name}"))),
    }
}

fn list(c: &Read<'_>) -> Answer {
    let keys = &c.state.auth;
    Ok(match c.format() {
        Format::Plain => {
            let mut text = String::new();
            for (name, auth) in keys.iter() {
                text.push_str(&format!("{name}\n\tkey: {}\n", auth.key.to_base64()));
                for (service, caps) in &auth.caps {
                    text.push_str(&format!("\tcaps: [{service}] {caps}\n"));
                }
            }
            let status = if text.is_empty() {
                "no installed auth entries!\n"
            } else {
                "installed auth entries:\n"
            };
            Reply::data(text).with_status(status)
        }
        f => Reply::data(f.json(&json!({
            "auth_dump": keys.iter().map(|(n, a)| formatted(n, a)).collect::<Vec<_>>()
        }))),
    })
}

/// Whether the text is one of the service's grammar, and the service one that there is.
pub(super) fn valid(conf: &Config, service: &str, text: &str) -> Result<(), Refusal> {
    let all = conf.bool("mon_auth_validate_all_caps");
    let parsed = match service {
        "mon" => text.parse::<MonCap>().map(drop),
        _ if !all => Ok(()),
        "osd" => text.parse::<OsdCap>().map(drop),
        "mgr" => text.parse::<MgrCap>().map(drop),
        "mds" => text.parse::<MdsCap>().map(drop),
        _ => return Err(Refusal::invalid(format!("unknown cap type '{service}'"))),
    };
    parsed.map_err(|e| Refusal::invalid(e.to_string()))
}

/// The caps of the command: pairs of service and capability text.
fn caps_arg(c: &Write<'_>) -> Result<BTreeMap<String, String>, Refusal> {
    let words = c.args.strs("caps");
    let (pairs, []) = words.as_chunks::<2>() else {
        return Err(Refusal::invalid("bad capabilities request; odd number of arguments"));
    };
    for [service, text] in pairs {
        valid(&c.env.conf.borrow(), service, text)?;
    }
    Ok(pairs.iter().map(|[service, text]| (service.clone(), text.clone())).collect())
}

fn target(c: &Write<'_>) -> Result<AuthName, Refusal> {
    entity(c.args.req("entity"), "bad entity name")
}

fn input_keyring(c: &Write<'_>) -> Result<Option<Keyring>, Refusal> {
    if c.env.input.is_empty() {
        return Ok(None);
    }
    let text =
        std::str::from_utf8(c.env.input).map_err(|_| Refusal::invalid("error decoding keyring"))?;
    text.parse().map(Some).map_err(|e| Refusal::invalid(format!("error decoding keyring: {e}")))
}

fn import(c: &mut Write<'_>) -> Answer {
    let Some(keyring) = input_keyring(c)? else {
        return Err(Refusal::invalid("auth import: no data supplied"));
    };
    if keyring.iter().any(|(_, a)| a.caps.is_empty()) {
        return Err(Refusal::invalid("auth import: no caps supplied"));
    }
    for (name, auth) in keyring.iter() {
        for (service, text) in &auth.caps {
            valid(&c.env.conf.borrow(), service, text)
                .map_err(|e| Refusal::invalid(format!("{name}: {}", e.message)))?;
        }
    }
    for (name, auth) in keyring.iter() {
        c.pending.put(Change::Auth(name.clone(), Some(auth.clone())));
    }
    Ok(Reply::status("imported keyring"))
}

fn add(c: &mut Write<'_>) -> Answer {
    let name = target(c)?;
    let mut caps = caps_arg(c)?;
    let given = input_keyring(c)?;
    let mut key = None;
    if let Some(keyring) = &given {
        let Some(auth) = keyring.get(&name) else {
            return Err(Refusal::invalid(format!("key for {name} not found in provided keyring")));
        };
        if !caps.is_empty() && !auth.caps.is_empty() {
            return Err(Refusal::invalid(
                "caps cannot be specified both in keyring and in command",
            ));
        }
        if caps.is_empty() {
            caps = auth.caps.clone();
        }
        key = Some(auth.key.clone());
    }
    if let Some(old) = c.pending.state().auth.get(&name) {
        // Adding what is there already is fine, so that the command can be repeated.
        if key.as_ref().is_some_and(|k| *k != old.key) {
            let message = format!("entity {name} exists but key does not match");
            return Err(Refusal::new(Errno::EEXIST, message));
        }
        if caps.len() != old.caps.len() {
            return Err(Refusal::invalid(format!("entity {name} exists but caps do not match")));
        }
        if let Some(service) =
            caps.iter().find(|(s, t)| old.caps.get(*s) != Some(t)).map(|(s, _)| s)
        {
            return Err(Refusal::invalid(format!(
                "entity {name} exists but cap {service} does not match"
            )));
        }
        return Ok(Reply::empty());
    }
    let key = key.unwrap_or_else(|| CryptoKey::generate(c.env.now, &mut rand::rng()));
    c.pending.put(Change::Auth(name.clone(), Some(EntityAuth { key, caps })));
    Ok(Reply::status(format!("added key for {name}")))
}

fn get_or_create(c: &mut Write<'_>) -> Answer {
    let name = target(c)?;
    let caps = caps_arg(c)?;
    let auth = match c.pending.state().auth.get(&name) {
        Some(old) => {
            if let Some(service) =
                caps.iter().find(|(s, t)| old.caps.get(*s) != Some(t)).map(|(s, _)| s)
            {
                return Err(Refusal::invalid(format!(
                    "key for {name} exists but cap {service} does not match"
                )));
            }
            old.clone()
        }
        None => {
            let auth = EntityAuth { key: CryptoKey::generate(c.env.now, &mut rand::rng()), caps };
            c.pending.put(Change::Auth(name.clone(), Some(auth.clone())));
            auth
        }
    };
    Ok(match (c.args.prefix(), c.format()) {
        ("auth get-or-create-key", format) => key_reply(format, &auth.key),
        // For people the caps are left out: they know them, they typed them.
        (_, Format::Plain) => {
            keyring(Format::Plain, &[(name, EntityAuth { key: auth.key, caps: BTreeMap::new() })])
        }
        (_, format) => keyring(format, &[(name, auth)]),
    })
}

fn caps(c: &mut Write<'_>) -> Answer {
    let name = target(c)?;
    let caps = caps_arg(c)?;
    let Some(old) = c.pending.state().auth.get(&name) else {
        return Err(Refusal::new(Errno::ENOENT, format!("couldn't find entry {name}")));
    };
    let auth = EntityAuth { key: old.key.clone(), caps };
    c.pending.put(Change::Auth(name.clone(), Some(auth)));
    Ok(Reply::status(format!("updated caps for {name}")))
}

/// Sessions and tickets of the old key go on; new ones need the new key.
fn rotate(c: &mut Write<'_>) -> Answer {
    let name = target(c)?;
    let Some(old) = c.pending.state().auth.get(&name) else {
        return Err(Refusal::new(Errno::ENOENT, "entity does not exist"));
    };
    let key = CryptoKey::generate(c.env.now, &mut rand::rng());
    let auth = EntityAuth { key, caps: old.caps.clone() };
    c.pending.put(Change::Auth(name.clone(), Some(auth.clone())));
    Ok(keyring(c.format(), &[(name, auth)]))
}

fn dump_keys(c: &Read<'_>) -> Answer {
    let secret = |(name, auth): (&AuthName, &EntityAuth)| {
        let caps: Map<String, Value> =
            auth.caps.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        json!({
            "entity": {"type": name.kind.0, "type_str": name.kind.name(), "id": name.id},
            "auth": {"key": {"type": 1, "type_str": "aes", "key": auth.key.to_base64()}, "caps": caps},
        })
    };
    let format = if c.format() == Format::Plain { Format::JsonPretty } else { c.format() };
    let secrets: Vec<Value> = c.state.auth.iter().map(secret).collect();
    Ok(Reply::data(
        format.json(&json!({"data": {"version": c.state.auth.version(), "secrets": secrets}})),
    ))
}

fn remove(c: &mut Write<'_>) -> Answer {
    let name = target(c)?;
    if c.pending.state().auth.get(&name).is_none() {
        return Ok(Reply::status(format!("entity {name} does not exist")));
    }
    c.pending.put(Change::Auth(name, None));
    Ok(Reply::status("updated"))
}
