//! `osd crush`: what changes the map. Every command works on a copy, which takes the map's place
//! only when the whole command succeeded and the result is a map that a cluster can use.

use super::frame::{Answer, Entry, Write, flagged, osd_id, short_float, write};
use crate::command::{Args, Refusal, Reply, flags};
use crate::osd_state::OsdMapExt;
use crate::state::Pending;
use crush::{CrushError, CrushMap, RuleMode};
use denc::Decode;
use std::collections::BTreeMap;
use types::OsdId;
use types::errno::Errno;

pub(super) static COMMANDS: &[Entry] = &[
    write(
        "osd setcrushmap name=prior_version,type=CephInt,req=false",
        "Replace the map.",
        "osd",
        "rw",
        set_map,
    ),
    write(
        "osd crush set name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0 \
         name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        "Set an OSD's weight and place.",
        "osd",
        "rw",
        set_item,
    ),
    write(
        "osd crush set name=prior_version,type=CephInt,req=false",
        "Replace the map.",
        "osd",
        "rw",
        set_map,
    ),
    write(
        "osd crush add name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0 \
         name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        "Add an OSD at a place.",
        "osd",
        "rw",
        set_item,
    ),
    write(
        "osd crush add-bucket name=name,type=CephString,goodchars=[A-Za-z0-9-_.] name=type,type=CephString \
         name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=],req=false",
        "Add a bucket, optionally at a place.",
        "osd",
        "rw",
        add_bucket,
    ),
    write(
        "osd crush rename-bucket name=srcname,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=dstname,type=CephString,goodchars=[A-Za-z0-9-_.]",
        "Rename a bucket.",
        "osd",
        "rw",
        rename_bucket,
    ),
    write(
        "osd crush set-all-straw-buckets-to-straw2",
        "Turn straw buckets into straw2 buckets.",
        "osd",
        "rw",
        straw_to_straw2,
    ),
    write(
        "osd crush create-or-move name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0 \
         name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        "Make sure that an OSD is at a place; the weight is for a new one only.",
        "osd",
        "rw",
        create_or_move,
    ),
    write(
        "osd crush move name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        "Move an item.",
        "osd",
        "rw",
        move_item,
    ),
    write(
        "osd crush swap-bucket name=source,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=dest,type=CephString,goodchars=[A-Za-z0-9-_.] name=yes_i_really_mean_it,type=CephBool,req=false",
        "Exchange the contents of two buckets.",
        "osd",
        "rw",
        swap_bucket,
    ),
    write(
        "osd crush link name=name,type=CephString name=args,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=]",
        "Put a bucket below a second parent.",
        "osd",
        "rw",
        link,
    ),
    write(
        "osd crush rm name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=ancestor,type=CephString,req=false,goodchars=[A-Za-z0-9-_.]",
        "Remove an item, everywhere or below an ancestor.",
        "osd",
        "rw",
        remove,
    ),
    flagged(
        write(
            "osd crush remove name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
             name=ancestor,type=CephString,req=false,goodchars=[A-Za-z0-9-_.]",
            "Remove an item.",
            "osd",
            "rw",
            remove,
        ),
        flags::DEPRECATED,
    ),
    write(
        "osd crush unlink name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=ancestor,type=CephString,req=false,goodchars=[A-Za-z0-9-_.]",
        "Take a bucket out of its parents without deleting it.",
        "osd",
        "rw",
        remove,
    ),
    write(
        "osd crush reweight-all",
        "Recompute the weights of all buckets.",
        "osd",
        "rw",
        reweight_all,
    ),
    write(
        "osd crush reweight name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=weight,type=CephFloat,range=0.0",
        "Set an OSD's weight.",
        "osd",
        "rw",
        reweight,
    ),
    write(
        "osd crush reweight-subtree name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=weight,type=CephFloat,range=0.0",
        "Set the weight of all OSDs below a bucket.",
        "osd",
        "rw",
        reweight_subtree,
    ),
    write(
        "osd crush tunables \
         name=profile,type=CephChoices,strings=legacy|argonaut|bobtail|firefly|hammer|jewel|optimal|default",
        "Set the tunables to a profile.",
        "osd",
        "rw",
        tunables,
    ),
    write(
        "osd crush set-tunable name=tunable,type=CephChoices,strings=straw_calc_version name=value,type=CephInt",
        "Set one tunable.",
        "osd",
        "rw",
        set_tunable,
    ),
    write(
        "osd crush class create name=class,type=CephString,goodchars=[A-Za-z0-9-_]",
        "Add a device class.",
        "osd",
        "rw",
        class_create,
    ),
    write(
        "osd crush class rm name=class,type=CephString,goodchars=[A-Za-z0-9-_]",
        "Remove a device class that no rule uses.",
        "osd",
        "rw",
        class_rm,
    ),
    write(
        "osd crush class rename name=srcname,type=CephString,goodchars=[A-Za-z0-9-_] \
         name=dstname,type=CephString,goodchars=[A-Za-z0-9-_]",
        "Rename a device class.",
        "osd",
        "rw",
        class_rename,
    ),
    write(
        "osd crush set-device-class name=class,type=CephString name=ids,type=CephString,n=N",
        "Put OSDs into a device class.",
        "osd",
        "rw",
        set_device_class,
    ),
    write(
        "osd crush rm-device-class name=ids,type=CephString,n=N",
        "Take OSDs out of their device classes.",
        "osd",
        "rw",
        rm_device_class,
    ),
    write(
        "osd crush rule create-simple name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=root,type=CephString,goodchars=[A-Za-z0-9-_.] name=type,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=mode,type=CephChoices,strings=firstn|indep,req=false",
        "Add a rule that spreads copies over buckets of a type.",
        "osd",
        "rw",
        rule_create,
    ),
    write(
        "osd crush rule create-replicated name=name,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=root,type=CephString,goodchars=[A-Za-z0-9-_.] name=type,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=class,type=CephString,goodchars=[A-Za-z0-9-_.],req=false",
        "Add a rule that spreads copies over buckets of a type, on devices of a class.",
        "osd",
        "rw",
        rule_create,
    ),
    write(
        "osd crush rule rm name=name,type=CephString,goodchars=[A-Za-z0-9-_.]",
        "Remove a rule that no pool uses.",
        "osd",
        "rw",
        rule_rm,
    ),
    write(
        "osd crush rule rename name=srcname,type=CephString,goodchars=[A-Za-z0-9-_.] \
         name=dstname,type=CephString,goodchars=[A-Za-z0-9-_.]",
        "Rename a rule.",
        "osd",
        "rw",
        rule_rename,
    ),
    write(
        "osd crush weight-set create-compat",
        "Create the weight set that all pools without their own use.",
        "osd",
        "rw",
        weight_set_create,
    ),
    write(
        "osd crush weight-set create name=pool,type=CephPoolname name=mode,type=CephChoices,strings=flat|positional",
        "Create a weight set for a pool.",
        "osd",
        "rw",
        weight_set_create,
    ),
    write(
        "osd crush weight-set rm-compat",
        "Remove the general weight set.",
        "osd",
        "rw",
        weight_set_rm,
    ),
    write(
        "osd crush weight-set rm name=pool,type=CephPoolname",
        "Remove a pool's weight set.",
        "osd",
        "rw",
        weight_set_rm,
    ),
    write(
        "osd crush weight-set reweight name=pool,type=CephPoolname name=item,type=CephString \
         name=weight,type=CephFloat,range=0.0,n=N",
        "Set an item's weights in a pool's weight set.",
        "osd",
        "rw",
        weight_set_reweight,
    ),
    write(
        "osd crush weight-set reweight-compat name=item,type=CephString name=weight,type=CephFloat,range=0.0,n=N",
        "Set an item's weight in the general weight set.",
        "osd",
        "rw",
        weight_set_reweight,
    ),
];

type Loc = BTreeMap<String, String>;

/// Why an edit failed.
pub struct Failed(Refusal);

impl From<CrushError> for Failed {
    fn from(e: CrushError) -> Self {
        Failed(refused(e))
    }
}

impl From<Refusal> for Failed {
    fn from(r: Refusal) -> Self {
        Failed(r)
    }
}

fn refused(e: CrushError) -> Refusal {
    Refusal::new(Errno(e.errno()), e.to_string())
}

/// Changes a copy of the CRUSH map and puts it in place if `f` succeeds.
pub fn edit<T>(
    pending: &mut Pending,
    f: impl FnOnce(&mut CrushMap) -> Result<T, Failed>,
) -> Result<T, Refusal> {
    let mut map = (*pending.osd().crush).clone();
    let done = f(&mut map).map_err(|e| e.0)?;
    map.validate().map_err(refused)?;
    if map != *pending.osd().crush {
        pending.osd_mut().crush = std::sync::Arc::new(map);
    }
    Ok(done)
}

fn location(args: &Args) -> Result<Loc, Refusal> {
    args.strs("args")
        .iter()
        .map(|w| match w.split_once('=') {
            Some((k, v)) if !k.is_empty() && !v.is_empty() => Ok((k.to_owned(), v.to_owned())),
            _ => Err(Refusal::invalid(format!("'{w}' is not of the form type=name"))),
        })
        .collect()
}

/// `{host=a,root=b}`.
fn show(loc: &Loc) -> String {
    let inner: Vec<String> = loc.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{{{}}}", inner.join(","))
}

fn weight(args: &Args) -> Result<(u32, String), Refusal> {
    let w = args.float("weight").ok_or_else(|| Refusal::invalid("unable to parse weight value"))?;
    Ok((CrushMap::weight_from_f32(w as f32).map_err(refused)?, short_float(w)))
}

fn set_map(c: &mut Write<'_>) -> Answer {
    let proposed = CrushMap::from_bytes(c.env.input)
        .map_err(|e| Refusal::invalid(format!("Failed to parse crushmap: {e}")))?;
    proposed.validate().map_err(refused)?;
    let version = c.pending.osd_before().crush_version;
    if let Some(prior) = c.args.int("prior_version")
        && prior != i64::from(version)
    {
        // A repeated command finds its own result: that is success.
        if prior == i64::from(version) - 1 && proposed == *c.pending.osd().crush {
            return Ok(Reply::status(version.to_string()));
        }
        let message = format!("prior_version {prior} != crush version {version}");
        return Err(Refusal::new(Errno::EPERM, message));
    }
    for (id, rule) in proposed.rules() {
        if i32::from(rule.ruleset) != id {
            return Err(Refusal::invalid(
                "crush maps with ruleset != ruleid are no longer allowed",
            ));
        }
    }
    let map = c.pending.osd();
    for (id, pool) in &map.pools {
        if proposed.rule(i32::from(pool.crush_rule)).is_none() {
            let name = map.pool_names.get(id).cloned().unwrap_or_default();
            return Err(Refusal::invalid(format!(
                "pool '{name}' uses rule {}, which is missing",
                pool.crush_rule
            )));
        }
    }
    if proposed.max_devices > map.max_osd() {
        let message = format!(
            "crushmap max_devices {} > osdmap max_osd {}",
            proposed.max_devices,
            map.max_osd()
        );
        if (map.max_osd()..proposed.max_devices).any(|id| proposed.has_parent(id)) {
            return Err(Refusal::invalid(message));
        }
    }
    c.pending.osd_mut().crush = std::sync::Arc::new(proposed);
    Ok(Reply::status((version + 1).to_string()))
}

fn item(c: &Write<'_>) -> Result<(i32, String), Refusal> {
    let osd = osd_id(&c.args.strs("id").join(" "))?;
    let name = format!("osd.{osd}");
    if !c.pending.osd().exists(osd) {
        let message = format!("{name} does not exist. Create it before updating the crush map");
        return Err(Refusal::new(Errno::ENOENT, message));
    }
    Ok((osd.0, name))
}

fn set_item(c: &mut Write<'_>) -> Answer {
    let (id, name) = item(c)?;
    let (w, shown) = weight(c.args)?;
    let loc = location(c.args)?;
    let adding = c.args.prefix() == "osd crush add";
    let action = if adding { "add" } else { "set" };
    let what =
        format!("{action} item id {id} name '{name}' weight {shown} at location {}", show(&loc));
    if !adding && !c.pending.osd().crush.has_parent(id) {
        let message = format!(
            "unable to set item id {id} name '{name}' weight {shown} at location {}: does not exist",
            show(&loc)
        );
        return Err(Refusal::new(Errno::ENOENT, message));
    }
    let changed = edit(c.pending, |map| {
        if adding && !map.has_parent(id) {
            map.insert_item(id, w, &name, &loc, true)?;
            return Ok(true);
        }
        Ok(map.update_item(id, w, &name, &loc)?)
    })?;
    Ok(Reply::status(if changed {
        format!("{what} to crush map")
    } else {
        format!("{what}: no change")
    }))
}

fn create_or_move(c: &mut Write<'_>) -> Answer {
    let (id, name) = item(c)?;
    let (w, shown) = weight(c.args)?;
    let loc = location(c.args)?;
    let changed = edit(c.pending, |map| Ok(map.create_or_move_item(id, w, &name, &loc, true)?))?;
    let verb = if changed { "updating" } else { "updated" };
    Ok(Reply::status(format!(
        "create-or-move {verb} item name '{name}' weight {shown} at location {} to crush map",
        show(&loc)
    )))
}

fn named(map: &CrushMap, name: &str) -> Result<i32, Refusal> {
    map.names
        .id(name)
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("item {name} does not exist")))
}

fn move_item(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let loc = location(c.args)?;
    let id = named(&c.pending.osd().crush, name)?;
    let what = format!("item id {id} name '{name}' to location {}", show(&loc));
    if c.pending.osd().crush.check_item_loc(id, &loc).is_some() {
        return Ok(Reply::status(format!("no need to move {what} in crush map")));
    }
    edit(c.pending, |map| {
        if id >= 0 {
            map.create_or_move_item(id, 0, name, &loc, true)?;
        } else {
            map.move_bucket(id, &loc)?;
        }
        Ok(())
    })?;
    Ok(Reply::status(format!("moved {what} in crush map")))
}

fn add_bucket(c: &mut Write<'_>) -> Answer {
    let (name, kind) = (c.args.req("name"), c.args.req("type"));
    let loc = location(c.args)?;
    let map = &c.pending.osd().crush;
    if map.names.id(name).is_some() {
        return Ok(Reply::status(format!("bucket '{name}' already exists")));
    }
    let type_id = match map.types.id(kind) {
        None => return Err(Refusal::invalid(format!("type '{kind}' does not exist"))),
        Some(0) => {
            return Err(Refusal::invalid(format!("type '{kind}' is for devices, not buckets")));
        }
        Some(id) => u16::try_from(id)
            .map_err(|_| Refusal::invalid(format!("type '{kind}' is out of range")))?,
    };
    edit(c.pending, |map| {
        let id = map.add_bucket(None, None, type_id, &[])?;
        map.set_item_name(id, name)?;
        if !loc.is_empty() {
            map.move_bucket(id, &loc)?;
        }
        Ok(())
    })?;
    Ok(Reply::status(match loc.is_empty() {
        true => format!("added bucket {name} type {kind} to crush map"),
        false => format!("added bucket {name} type {kind} to location {}", show(&loc)),
    }))
}

fn rename_bucket(c: &mut Write<'_>) -> Answer {
    let (from, to) = (c.args.req("srcname"), c.args.req("dstname"));
    let names = &c.pending.osd().crush.names;
    if names.id(from).is_none() && names.id(to).is_some() {
        return Ok(Reply::status(format!("already renamed to '{to}'")));
    }
    edit(c.pending, |map| Ok(map.rename_bucket(from, to)?))?;
    Ok(Reply::empty())
}

fn straw_to_straw2(c: &mut Write<'_>) -> Answer {
    if c.pending.osd().crush.buckets().any(|b| b.algorithm() == crush::Algorithm::Straw) {
        return Err(Refusal::unsupported(
            "converting straw buckets is not supported; edit the map with crushtool",
        ));
    }
    Ok(Reply::empty())
}

fn swap_bucket(c: &mut Write<'_>) -> Answer {
    let (source, dest) = (c.args.req("source"), c.args.req("dest"));
    let sure = c.args.flag("yes_i_really_mean_it");
    let map = &c.pending.osd().crush;
    let missing = |what: &str, name: &str| {
        Refusal::new(Errno::ENOENT, format!("{what} item {name} does not exist"))
    };
    let sid = map.names.id(source).ok_or_else(|| missing("source", source))?;
    let did = map.names.id(dest).ok_or_else(|| missing("dest", dest))?;
    if map.parent(sid).is_some() && !sure {
        let message = format!(
            "source item {source} is not an orphan bucket; pass --yes-i-really-mean-it to proceed anyway"
        );
        return Err(Refusal::new(Errno::EPERM, message));
    }
    if let (Some(a), Some(b)) = (map.bucket(sid), map.bucket(did))
        && a.algorithm() != b.algorithm()
        && !sure
    {
        let message = format!(
            "source bucket alg {} != dest bucket alg {}; pass --yes-i-really-mean-it to proceed anyway",
            a.algorithm().name(),
            b.algorithm().name()
        );
        return Err(Refusal::new(Errno::EPERM, message));
    }
    edit(c.pending, |map| Ok(map.swap_bucket(sid, did)?))?;
    Ok(Reply::status(format!("swapped bucket of {source} to {dest}")))
}

fn link(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let loc = location(c.args)?;
    let id = named(&c.pending.osd().crush, name)?;
    let what = format!("item id {id} name '{name}' to location {}", show(&loc));
    if c.pending.osd().crush.check_item_loc(id, &loc).is_some() {
        return Ok(Reply::status(format!("no need to move {what} in crush map")));
    }
    edit(c.pending, |map| Ok(map.link_bucket(id, &loc)?))
        .map_err(|e| Refusal::new(e.errno, format!("cannot link {what}: {}", e.message)))?;
    Ok(Reply::status(format!("linked {what} in crush map")))
}

fn remove(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let unlink = c.args.prefix() == "osd crush unlink";
    let Some(id) = c.pending.osd().crush.names.id(name) else {
        return Ok(Reply::status(format!("device '{name}' does not appear in the crush map")));
    };
    let ancestor = match c.args.str("ancestor").filter(|a| !a.is_empty()) {
        None => None,
        Some(a) => Some(c.pending.osd().crush.names.id(a).ok_or_else(|| {
            Refusal::new(
                Errno::ENOENT,
                format!("ancestor item '{a}' does not appear in the crush map"),
            )
        })?),
    };
    edit(c.pending, |map| {
        match ancestor {
            Some(a) => map.remove_item_under(id, a, unlink)?,
            None => map.remove_item(id, unlink)?,
        }
        Ok(())
    })?;
    Ok(Reply::status(format!("removed item id {id} name '{name}' from crush map")))
}

fn reweight_all(c: &mut Write<'_>) -> Answer {
    edit(c.pending, |map| Ok(map.reweight()?))?;
    Ok(Reply::status("reweighted crush hierarchy"))
}

fn in_map(map: &CrushMap, name: &str) -> Result<i32, Refusal> {
    let message = || format!("device '{name}' does not appear in the crush map");
    map.names.id(name).ok_or_else(|| Refusal::new(Errno::ENOENT, message()))
}

fn reweight(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let id = in_map(&c.pending.osd().crush, name)?;
    if id < 0 {
        return Err(Refusal::invalid(format!("device '{name}' is not a leaf in the crush map")));
    }
    let (w, shown) = weight(c.args)?;
    edit(c.pending, |map| Ok(map.adjust_item_weight(id, w, true)?))?;
    Ok(Reply::status(format!("reweighted item id {id} name '{name}' to {shown} in crush map")))
}

fn reweight_subtree(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let id = in_map(&c.pending.osd().crush, name)?;
    if id >= 0 {
        return Err(Refusal::invalid(format!("device '{name}' is not a subtree in the crush map")));
    }
    let (w, shown) = weight(c.args)?;
    edit(c.pending, |map| Ok(map.adjust_subtree_weight(id, w, true)?))?;
    Ok(Reply::status(format!("reweighted subtree id {id} name '{name}' to {shown} in crush map")))
}

fn tunables(c: &mut Write<'_>) -> Answer {
    let profile = c.args.req("profile");
    edit(c.pending, |map| {
        map.tunables = map
            .tunables
            .with_profile(profile)
            .ok_or_else(|| Refusal::invalid(format!("unrecognized profile '{profile}'")))?;
        Ok(())
    })?;
    Ok(Reply::status(format!("adjusted tunables profile to {profile}")))
}

fn set_tunable(c: &mut Write<'_>) -> Answer {
    let value = match c.args.int("value") {
        Some(v @ (0 | 1)) => v as u8,
        other => {
            return Err(Refusal::invalid(format!(
                "value must be 0 or 1; got {}",
                other.unwrap_or_default()
            )));
        }
    };
    edit(c.pending, |map| {
        map.tunables.straw_calc_version = value;
        Ok(())
    })?;
    Ok(Reply::status(format!("adjusted tunable straw_calc_version to {value}")))
}

fn class_create(c: &mut Write<'_>) -> Answer {
    let class = c.args.req("class");
    if c.pending.osd().crush.class_names.id(class).is_some() {
        return Ok(Reply::status(format!("class '{class}' already exists")));
    }
    let id = edit(c.pending, |map| Ok(map.get_or_create_class(class)?))?;
    Ok(Reply::status(format!("created class {class} with id {id} to crush map")))
}

fn class_rm(c: &mut Write<'_>) -> Answer {
    let class = c.args.req("class");
    let map = &c.pending.osd().crush;
    let Some(id) = map.class_names.id(class) else { return Ok(Reply::empty()) };
    if let Some(rule) = map.rules_by_class(class).first() {
        let rule = map.rule_names.name(*rule).unwrap_or_default();
        return Err(Refusal::new(
            Errno::EBUSY,
            format!("class '{class}' still referenced by crush_rule '{rule}'"),
        ));
    }
    let of_class =
        |p: &&BTreeMap<String, String>| p.get("crush-device-class").is_some_and(|of| of == class);
    let profiles = &c.pending.osd().erasure_code_profiles;
    let users: Vec<&str> =
        profiles.iter().filter(|(_, p)| of_class(p)).map(|(name, _)| name.as_str()).collect();
    if !users.is_empty() {
        return Err(Refusal::new(
            Errno::EBUSY,
            format!(
                "class '{class}' is still referenced by erasure-code-profile(s): {}",
                users.join(",")
            ),
        ));
    }
    let devices = map.devices_by_class(class);
    edit(c.pending, |map| {
        for d in devices {
            map.remove_device_class(d)?;
        }
        map.class_names.remove(id);
        Ok(())
    })?;
    Ok(Reply::status(format!("removed class {class} with id {id} from crush map")))
}

fn class_rename(c: &mut Write<'_>) -> Answer {
    let (from, to) = (c.args.req("srcname"), c.args.req("dstname"));
    let names = &c.pending.osd().crush.class_names;
    if names.id(from).is_none() && names.id(to).is_some() {
        return Ok(Reply::status(format!("already renamed to '{to}'")));
    }
    edit(c.pending, |map| Ok(map.rename_class(from, to)?)).map_err(|e| {
        Refusal::new(e.errno, format!("fail to rename '{from}' to '{to}' : {}", e.message))
    })?;
    Ok(Reply::status(format!("rename class '{from}' to '{to}'")))
}

/// The OSDs that a command names; `all`, `any` and `*` are every one.
fn osds(c: &Write<'_>) -> Result<Vec<OsdId>, Refusal> {
    let words = c.args.strs("ids");
    if words.first().is_some_and(|w| matches!(w.as_str(), "all" | "any" | "*")) {
        return Ok(c.pending.osd().osds().collect());
    }
    words.iter().map(|w| osd_id(w)).collect()
}

fn list_of(osds: &[OsdId]) -> String {
    osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(",")
}

fn set_device_class(c: &mut Write<'_>) -> Answer {
    let class = c.args.req("class");
    let mut updated = Vec::new();
    let mut notes = String::new();
    let ids = osds(c)?;
    let existing: Vec<OsdId> = ids
        .into_iter()
        .filter(|o| {
            let there = c.pending.osd().exists(*o);
            if !there {
                notes.push_str(&format!("osd.{o} does not exist. "));
            }
            there
        })
        .collect();
    edit(c.pending, |map| {
        for o in existing {
            if map.set_device_class(o.0, class)? {
                updated.push(o);
            }
        }
        Ok(())
    })?;
    Ok(Reply::status(format!("{notes}set osd(s) {} to class '{class}'", list_of(&updated))))
}

fn rm_device_class(c: &mut Write<'_>) -> Answer {
    let ids = osds(c)?;
    let mut updated = Vec::new();
    edit(c.pending, |map| {
        for o in ids {
            if map.remove_device_class(o.0)? {
                updated.push(o);
            }
        }
        Ok(())
    })?;
    Ok(Reply::status(format!("done removing class of osd(s): {}", list_of(&updated))))
}

fn rule_create(c: &mut Write<'_>) -> Answer {
    let (name, root, kind) = (c.args.req("name"), c.args.req("root"), c.args.req("type"));
    let class = c.args.str("class").unwrap_or_default();
    if c.pending.osd().crush.rule_names.id(name).is_some() {
        return Ok(Reply::status(format!("rule {name} already exists")));
    }
    let mode = if c.args.str("mode") == Some("indep") { RuleMode::Indep } else { RuleMode::Firstn };
    edit(c.pending, |map| Ok(map.add_simple_rule(name, root, kind, class, mode, 1, None)?))?;
    Ok(Reply::empty())
}

fn rule_rm(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let Some(id) = c.pending.osd().crush.rule_names.id(name) else {
        return Ok(Reply::status(format!("rule {name} does not exist")));
    };
    if c.pending.osd().pools.values().any(|p| i32::from(p.crush_rule) == id) {
        return Err(Refusal::new(Errno::EBUSY, format!("crush rule {name} ({id}) is in use")));
    }
    edit(c.pending, |map| Ok(map.remove_rule(id)?))?;
    Ok(Reply::empty())
}

fn rule_rename(c: &mut Write<'_>) -> Answer {
    let (from, to) = (c.args.req("srcname"), c.args.req("dstname"));
    if from == to {
        return Ok(Reply::status("destination rule name is equal to source rule name"));
    }
    let names = &c.pending.osd().crush.rule_names;
    if names.id(from).is_none() && names.id(to).is_some() {
        return Ok(Reply::status(format!("already renamed to '{to}'")));
    }
    edit(c.pending, |map| Ok(map.rename_rule(from, to)?))?;
    Ok(Reply::empty())
}

/// The weight set that a command is about: a pool's, or the general one.
fn weight_set(c: &Write<'_>) -> Result<i64, Refusal> {
    let Some(name) = c.args.str("pool") else { return Ok(crush::DEFAULT_CHOOSE_ARGS) };
    match c.pending.osd().pool_id(name) {
        Some(id) => Ok(id.0),
        None => Err(Refusal::new(Errno::ENOENT, format!("pool '{name}' not found"))),
    }
}

fn weight_set_create(c: &mut Write<'_>) -> Answer {
    let key = weight_set(c)?;
    let map = c.pending.osd();
    if map.crush.buckets().any(|b| b.algorithm() != crush::Algorithm::Straw2) {
        let message = "crush map contains one or more bucket(s) that are not straw2";
        return Err(Refusal::new(Errno::EPERM, message));
    }
    if map.crush.choose_args.contains_key(&key) {
        return Ok(Reply::status(match c.args.str("pool") {
            None => "compat weight-set already created".into(),
            Some(name) => format!("weight-set for pool '{name}' already created"),
        }));
    }
    let positions = match (c.args.str("pool"), c.args.str("mode")) {
        (Some(name), Some("positional")) => {
            map.pool_id(name).and_then(|id| map.pools.get(&id)).map_or(1, |p| p.size as usize)
        }
        _ => 1,
    };
    edit(c.pending, |map| {
        // It begins with the weights that the buckets have.
        let mut set = crush::ChooseArgs::default();
        for b in map.buckets() {
            let Ok(index) = u32::try_from(-1 - i64::from(b.id)) else { continue };
            let weights: Vec<u32> = b.weighted_items().map(|(_, w)| w).collect();
            if !weights.is_empty() {
                let arg =
                    crush::ChooseArg { weight_set: vec![weights; positions], ids: Vec::new() };
                set.args.insert(index, arg);
            }
        }
        map.choose_args.insert(key, set);
        Ok(())
    })?;
    Ok(Reply::empty())
}

fn weight_set_rm(c: &mut Write<'_>) -> Answer {
    let key = weight_set(c)?;
    edit(c.pending, |map| {
        map.choose_args.remove(&key);
        Ok(())
    })?;
    Ok(Reply::empty())
}

fn weight_set_reweight(c: &mut Write<'_>) -> Answer {
    let key = weight_set(c)?;
    let item = c.args.req("item");
    let map = &c.pending.osd().crush;
    let Some(set) = map.choose_args.get(&key) else {
        let message = match c.args.str("pool") {
            Some(name) => format!("no weight-set for pool '{name}'"),
            None => "no backward-compatible weight-set".into(),
        };
        return Err(Refusal::new(Errno::ENOENT, message));
    };
    let positions = set.args.values().map(|a| a.weight_set.len()).find(|n| *n > 0).unwrap_or(1);
    let weights = c
        .args
        .floats("weight")
        .into_iter()
        .map(|w| CrushMap::weight_from_f32(w as f32).map_err(refused))
        .collect::<Result<Vec<u32>, _>>()?;
    if weights.len() != positions {
        return Err(Refusal::invalid(format!("must specify exact {positions} weight values")));
    }
    let Some(id) = map.names.id(item) else {
        return Err(Refusal::new(Errno::ENOENT, format!("item '{item}' does not exist")));
    };
    edit(c.pending, |map| {
        map.choose_args_adjust_item_weight(key, id, &weights);
        Ok(())
    })?;
    Ok(Reply::empty())
}
