//! `config-key`: small values that daemons and tools keep with the monitors.

use super::frame::{Answer, Entry, Read, Write, flagged, read, write};
use crate::command::{Format, Refusal, Reply, flags};
use crate::state::Change;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use types::errno::Errno;

pub(super) static COMMANDS: &[Entry] = &[
    read("config-key get name=key,type=CephString", "Read a value.", "config-key", "r", get),
    write(
        "config-key set name=key,type=CephString name=val,type=CephString,req=false",
        "Store a value, from the command line or from the input.",
        "config-key",
        "rw",
        set,
    ),
    flagged(
        write(
            "config-key put name=key,type=CephString name=val,type=CephString,req=false",
            "Store a value.",
            "config-key",
            "rw",
            set,
        ),
        flags::DEPRECATED,
    ),
    flagged(
        write(
            "config-key del name=key,type=CephString",
            "Remove a value.",
            "config-key",
            "rw",
            remove,
        ),
        flags::DEPRECATED,
    ),
    write("config-key rm name=key,type=CephString", "Remove a value.", "config-key", "rw", remove),
    read(
        "config-key exists name=key,type=CephString",
        "Say whether a key exists.",
        "config-key",
        "r",
        exists,
    ),
    flagged(read("config-key list", "List the keys.", "config-key", "r", list), flags::DEPRECATED),
    read("config-key ls", "List the keys.", "config-key", "r", list),
    read(
        "config-key dump name=key,type=CephString,req=false",
        "Show keys and values, optionally of one prefix.",
        "config-key",
        "r",
        dump,
    ),
];

fn get(c: &Read<'_>) -> Answer {
    match c.state.kv.get(c.args.req("key")) {
        Some(value) => Ok(Reply::data(value.clone())),
        None => Err(Refusal::new(Errno::ENOENT, "")),
    }
}

fn exists(c: &Read<'_>) -> Answer {
    let key = c.args.req("key");
    match c.state.kv.contains_key(key) {
        true => Ok(Reply::status(format!("key '{key}' exists"))),
        false => Err(Refusal::new(Errno::ENOENT, format!("key '{key}' doesn't exist"))),
    }
}

fn set(c: &mut Write<'_>) -> Answer {
    let key = c.args.req("key").to_owned();
    let value = match c.args.str("val") {
        Some(text) => Bytes::copy_from_slice(text.as_bytes()),
        None => c.env.input.clone(),
    };
    let limit = c.env.conf.borrow().u64("mon_config_key_max_entry_size");
    if value.len() as u64 > limit {
        let message = format!(
            "error: entry size limited to {limit} bytes. Use 'mon config key max entry size' to manually adjust"
        );
        return Err(Refusal::new(Errno::EFBIG, message));
    }
    if c.pending.state().kv.get(&key) != Some(&value) {
        c.pending.put(Change::Kv(key.clone(), Some(value)));
    }
    Ok(Reply::status(format!("set {key}")))
}

fn remove(c: &mut Write<'_>) -> Answer {
    let key = c.args.req("key").to_owned();
    if c.pending.state().kv.contains_key(&key) {
        c.pending.put(Change::Kv(key, None));
    }
    Ok(Reply::status("key deleted"))
}

/// Commands without a form for people answer JSON in the plain format too.
fn as_json(c: &Read<'_>, value: &Value) -> Reply {
    match c.format() {
        Format::Json => Reply::data(Format::Json.json(value)),
        _ => Reply::data(Format::JsonPretty.json(value)),
    }
}

fn list(c: &Read<'_>) -> Answer {
    Ok(as_json(c, &c.state.kv.keys().map(|k| json!(k)).collect()))
}

fn dump(c: &Read<'_>) -> Answer {
    let prefix = c.args.str("key").unwrap_or_default();
    let values: Map<String, Value> = c
        .state
        .kv
        .range(prefix.to_owned()..)
        .take_while(|(k, _)| k.starts_with(prefix))
        .map(|(k, v)| {
            let printable = |t: &&str| t.chars().all(|c| !c.is_control() || c.is_whitespace());
            let text = match std::str::from_utf8(v).ok().filter(printable) {
                Some(t) => t.to_owned(),
                None => format!("<<< binary blob of length {} >>>", v.len()),
            };
            (k.clone(), json!(text))
        })
        .collect();
    Ok(as_json(c, &Value::Object(values)))
}
