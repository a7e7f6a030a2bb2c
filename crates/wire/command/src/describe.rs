//! The table told to others: to the stock tool as JSON, to readers as a page.

use crate::{Command, Signature, Word, flags};
use serde_json::{Map, Value, json};

/// One entry as any daemon describes it: signature, help, module, permissions, flags.
pub struct Description<'a> {
    signature: &'a Signature,
    help: &'a str,
    module: &'a str,
    perm: &'a str,
    flags: u64,
}

/// `get_command_descriptions` (Ceph: `dump_cmddesc_to_json`, `src/common/cmdparse.cc`): an object
/// of `cmdNNN` entries. Peers older than Nautilus do not know `CephBool`: they are told of a choice
/// with the single value `--the-name`.
pub fn descriptions<'a, H: 'static>(
    tables: impl IntoIterator<Item = &'a [Command<H>]>,
    peer_knows_bool: bool,
) -> Value {
    numbered(tables.into_iter().flatten(), peer_knows_bool)
}

/// The same for commands that are not in tables, told to a peer of today.
pub fn describe_all<'a, H: 'static>(commands: impl IntoIterator<Item = &'a Command<H>>) -> Value {
    numbered(commands, true)
}

fn numbered<'a, H: 'static>(
    commands: impl IntoIterator<Item = &'a Command<H>>,
    peer_knows_bool: bool,
) -> Value {
    let mut out = Map::new();
    for (n, c) in commands.into_iter().enumerate() {
        let signature = Signature::parse(c.signature);
        let d = Description {
            signature: &signature,
            help: c.help,
            module: c.module,
            perm: c.perm,
            flags: c.flags,
        };
        out.insert(format!("cmd{n:03}"), describe(&d, peer_knows_bool));
    }
    Value::Object(out)
}

fn describe(d: &Description<'_>, peer_knows_bool: bool) -> Value {
    let sig: Vec<Value> = d
        .signature
        .0
        .iter()
        .map(|w| match w {
            Word::Literal(w) => json!(w),
            Word::Arg(a) => {
                let mut pairs: Map<String, Value> =
                    a.pairs.iter().map(|(k, v)| (k.to_string(), json!(v))).collect();
                if !peer_knows_bool && a.kind() == "CephBool" {
                    pairs.insert("type".into(), json!("CephChoices"));
                    pairs.insert(
                        "strings".into(),
                        json!(format!("--{}", a.name().replace('_', "-"))),
                    );
                }
                Value::Object(pairs)
            }
        })
        .collect();
    json!({ "sig": sig, "help": d.help, "module": d.module, "perm": d.perm, "flags": d.flags })
}

/// The reference page: a Markdown table of every command that is shown to operators.
pub fn markdown<'a, H: 'static>(tables: impl IntoIterator<Item = &'a [Command<H>]>) -> String {
    let mut out = String::from("| Command | Needs | What it does |\n| --- | --- | --- |\n");
    let mut rows: Vec<_> =
        tables.into_iter().flatten().filter(|c| c.flags & flags::OBSOLETE == 0).collect();
    rows.sort_by_key(|c| c.signature);
    for c in rows {
        let mut usage = String::new();
        for w in Signature::parse(c.signature).0 {
            let word = match w {
                Word::Literal(w) => w.to_owned(),
                Word::Arg(a) => {
                    let name = match a.kind() {
                        "CephBool" => format!("--{}", a.name().replace('_', "-")),
                        "CephChoices" if a.choices().count() == 1 => a.choices().collect(),
                        _ => format!("<{}>", a.name()),
                    };
                    let name = if a.many() { name + "..." } else { name };
                    if a.optional() { format!("[{name}]") } else { name }
                }
            };
            if !usage.is_empty() {
                usage.push(' ');
            }
            usage.push_str(&word);
        }
        out.push_str(&format!(
            "| `{usage}` | {} {} | {} |\n",
            c.module,
            c.perm,
            c.help.replace('|', "\\|")
        ));
    }
    out
}
