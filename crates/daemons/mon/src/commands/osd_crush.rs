//! `osd crush`: what shows the map.

use super::frame::{Answer, Entry, Read, flagged, osd_id, read};
use crate::command::{Format, Refusal, Reply, flags};
use crate::osd_state::OsdMapExt;
use crush::CrushMap;
use crush::tree::PoolNames;
use serde_json::{Map, Value, json};
use types::OsdMap;
use types::errno::Errno;

pub(super) static COMMANDS: &[Entry] = &[
    flagged(read("osd crush rule list", "List rules.", "osd", "r", rule_ls), flags::DEPRECATED),
    read("osd crush rule ls", "List rules.", "osd", "r", rule_ls),
    read(
        "osd crush rule ls-by-class name=class,type=CephString,goodchars=[A-Za-z0-9-_.]",
        "List rules that use a device class.",
        "osd",
        "r",
        rule_ls_by_class,
    ),
    read(
        "osd crush rule dump name=name,type=CephString,goodchars=[A-Za-z0-9-_.],req=false",
        "Show a rule, or all.",
        "osd",
        "r",
        rule_dump,
    ),
    read("osd crush dump", "Show the whole map.", "osd", "r", |c| {
        Ok(json_only(c, &c.crush().dump()))
    }),
    read(
        "osd crush tree name=shadow,type=CephChoices,strings=--show-shadow,req=false",
        "Show the hierarchy.",
        "osd",
        "r",
        tree,
    ),
    read(
        "osd crush ls name=node,type=CephString,goodchars=[A-Za-z0-9-_.]",
        "List what is directly below a bucket.",
        "osd",
        "r",
        ls,
    ),
    read("osd crush class ls", "List device classes.", "osd", "r", class_ls),
    read(
        "osd crush class ls-osd name=class,type=CephString,goodchars=[A-Za-z0-9-_]",
        "List the OSDs of a device class.",
        "osd",
        "r",
        class_ls_osd,
    ),
    read(
        "osd crush get-device-class name=ids,type=CephString,n=N",
        "Show the device classes of OSDs.",
        "osd",
        "r",
        get_device_class,
    ),
    read("osd crush weight-set ls", "List weight sets.", "osd", "r", weight_set_ls),
    read("osd crush weight-set dump", "Show weight sets.", "osd", "r", weight_set_dump),
    read("osd crush show-tunables", "Show the tunables.", "osd", "r", |c| {
        Ok(json_only(c, &c.crush().dump_tunables()))
    }),
    read(
        "osd crush get-tunable name=tunable,type=CephChoices,strings=straw_calc_version",
        "Show one tunable.",
        "osd",
        "r",
        get_tunable,
    ),
];

impl Read<'_> {
    pub(super) fn crush(&self) -> &CrushMap {
        &self.state.osd.map().crush
    }
}

/// Commands without a form for people answer JSON in the plain format too.
pub(super) fn json_only(c: &Read<'_>, value: &Value) -> Reply {
    match c.format() {
        Format::Json => Reply::data(Format::Json.json(value)),
        _ => Reply::data(Format::JsonPretty.json(value)),
    }
}

/// A list of names: an array, or one a line.
pub(super) fn names<S: AsRef<str>>(c: &Read<'_>, names: &[S]) -> Reply {
    c.format().reply(
        || names.iter().map(|n| json!(n.as_ref())).collect(),
        || names.iter().map(|n| format!("{}\n", n.as_ref())).collect(),
    )
}

/// The names of pools by number, for weight sets.
pub(super) fn pool_names(map: &OsdMap) -> PoolNames {
    map.pool_names.iter().map(|(id, name)| (id.0, name.clone())).collect()
}

fn rule_name(crush: &CrushMap, id: i32) -> String {
    crush.rule_names.name(id).unwrap_or_default().to_owned()
}

fn rule_ls(c: &Read<'_>) -> Answer {
    let rules: Vec<_> = c.crush().rules().map(|(id, _)| rule_name(c.crush(), id)).collect();
    Ok(names(c, &rules))
}

fn rule_ls_by_class(c: &Read<'_>) -> Answer {
    let class = c.args.req("class");
    if c.crush().class_names.id(class).is_none() {
        return Err(Refusal::new(Errno::ENOENT, format!("failed to get rules by class '{class}'")));
    }
    let rules: Vec<_> =
        c.crush().rules_by_class(class).into_iter().map(|id| rule_name(c.crush(), id)).collect();
    Ok(names(c, &rules))
}

fn rule_dump(c: &Read<'_>) -> Answer {
    let Some(name) = c.args.str("name").filter(|n| !n.is_empty()) else {
        return Ok(json_only(c, &c.crush().dump_rules()));
    };
    match c.crush().rule_names.id(name).and_then(|id| c.crush().dump_rule(id)) {
        Some(rule) => Ok(json_only(c, &rule)),
        None => Err(Refusal::new(Errno::ENOENT, format!("unknown crush rule '{name}'"))),
    }
}

fn tree(c: &Read<'_>) -> Answer {
    let shadow = c.args.str("shadow") == Some("--show-shadow");
    let pools = pool_names(c.state.osd.map());
    Ok(c.format()
        .reply(|| c.crush().dump_tree(&pools, shadow), || c.crush().print_tree(&pools, shadow)))
}

fn ls(c: &Read<'_>) -> Answer {
    let node = c.args.req("node");
    let Some(id) = c.crush().names.id(node) else {
        return Err(Refusal::new(Errno::ENOENT, format!("node '{node}' does not exist")));
    };
    let item_name =
        |id: i32| c.crush().names.name(id).map_or_else(|| format!("osd.{id}"), str::to_owned);
    let items: Vec<String> = match c.crush().bucket(id) {
        Some(b) => b.weighted_items().map(|(item, _)| item_name(item)).collect(),
        None => vec![item_name(id)],
    };
    Ok(names(c, &items))
}

/// Device classes that devices are in: names alone may be left over.
fn class_ls(c: &Read<'_>) -> Answer {
    let classes: Vec<&str> = c.crush().class_names.iter().map(|(_, n)| n).collect();
    Ok(json_only(c, &json!(classes)))
}

fn class_ls_osd(c: &Read<'_>) -> Answer {
    let osds = c.crush().devices_by_class(c.args.req("class"));
    Ok(c.format().reply(|| json!(osds), || osds.iter().map(|o| format!("{o}\n")).collect()))
}

fn get_device_class(c: &Read<'_>) -> Answer {
    let words = c.args.strs("ids");
    let all = words.first().is_some_and(|w| matches!(w.as_str(), "all" | "any" | "*"));
    let map = c.state.osd.map();
    let ids: Vec<i32> = if all {
        map.osds().map(|o| o.0).collect()
    } else {
        words.iter().map(|w| osd_id(w).map(|o| o.0)).collect::<Result<_, _>>()?
    };
    let mut rows = Vec::new();
    for id in ids {
        if !map.exists(types::OsdId(id)) {
            return Err(Refusal::invalid(format!("osd.{id} does not exist")));
        }
        rows.push((id, c.crush().item_class(id).unwrap_or_default().to_owned()));
    }
    Ok(c.format().reply(
        || rows.iter().map(|(id, class)| json!({"osd": id, "device_class": class})).collect(),
        || match &rows[..] {
            [(_, class)] => format!("{class}\n"),
            rows => rows.iter().map(|(id, class)| format!("osd.{id} {class}\n")).collect(),
        },
    ))
}

fn weight_set_name(c: &Read<'_>, key: i64) -> String {
    if key == crush::DEFAULT_CHOOSE_ARGS {
        return "(compat)".into();
    }
    pool_names(c.state.osd.map()).get(&key).cloned().unwrap_or_else(|| key.to_string())
}

fn weight_set_ls(c: &Read<'_>) -> Answer {
    let sets: Vec<String> = c.crush().choose_args.keys().map(|k| weight_set_name(c, *k)).collect();
    Ok(names(c, &sets))
}

fn weight_set_dump(c: &Read<'_>) -> Answer {
    let all = c.crush().dump();
    Ok(json_only(c, all.get("choose_args").unwrap_or(&Value::Object(Map::new()))))
}

fn get_tunable(c: &Read<'_>) -> Answer {
    let value = c.crush().tunables.straw_calc_version;
    Ok(c.format().reply(|| json!({"straw_calc_version": value}), || format!("{value}\n")))
}
