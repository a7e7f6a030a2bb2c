//! `osd`: life and death of OSDs, the blocklist.

use super::frame::{Answer, Entry, Read, Write, flagged, osd_arg, osd_id, read, write};
use crate::command::{Refusal, Reply, flags};
use crate::osd_state as rules;
use crate::osd_state::OsdMapExt;
use crate::state::Change;
use ::auth::{AuthName, CryptoKey, EntityAuth};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use types::errno::Errno;
use types::rados::osd_state as state;
use types::{AddrType, EntityAddr, EntityType, Fsid, OsdId, OsdMap, Utime};

pub(super) static COMMANDS: &[Entry] = &[
    write(
        "osd new name=uuid,type=CephUUID,req=true name=id,type=CephOsdName,req=false",
        "Create an OSD, or find the one of that uuid; the input may have its secrets.",
        "osd",
        "rw",
        new,
    ),
    flagged(
        write(
            "osd create name=uuid,type=CephUUID,req=false name=id,type=CephOsdName,req=false",
            "Create an OSD.",
            "osd",
            "rw",
            create,
        ),
        flags::DEPRECATED,
    ),
    flagged(
        write("osd rm name=ids,type=CephString,n=N", "Remove OSDs that are down.", "osd", "rw", rm),
        flags::DEPRECATED,
    ),
    flagged(
        write(
            "osd destroy-actual name=id,type=CephOsdName name=yes_i_really_mean_it,type=CephBool,req=false",
            "Mark an OSD as destroyed: its keys go, its number stays.",
            "osd",
            "rw",
            destroy,
        ),
        flags::HIDDEN,
    ),
    flagged(
        write(
            "osd purge-actual name=id,type=CephOsdName name=yes_i_really_mean_it,type=CephBool,req=false",
            "Remove an OSD from the map, the CRUSH map and the keys.",
            "osd",
            "rw",
            purge,
        ),
        flags::HIDDEN,
    ),
    write(
        "osd purge-new name=id,type=CephOsdName name=yes_i_really_mean_it,type=CephBool,req=false",
        "Remove an OSD that was never started.",
        "osd",
        "rw",
        purge,
    ),
    write(
        "osd lost name=id,type=CephOsdName name=yes_i_really_mean_it,type=CephBool,req=false",
        "Give up an OSD's data: groups that wait for it go on without.",
        "osd",
        "rw",
        lost,
    ),
    write(
        "osd setmaxosd name=newmax,type=CephInt,range=0",
        "Set the number above the highest OSD.",
        "osd",
        "rw",
        set_max,
    ),
    write(
        "osd blocklist name=range,type=CephString,goodchars=[range],req=false name=blocklistop,type=CephChoices,strings=add|rm name=addr,type=CephEntityAddr \
         name=expire,type=CephFloat,range=0.0,req=false",
        "Refuse an address (for a time, in seconds), or accept it again.",
        "osd",
        "rw",
        blocklist,
    ),
    read("osd blocklist ls", "List refused addresses.", "osd", "r", blocklist_ls),
    write("osd blocklist clear", "Accept all addresses again.", "osd", "rw", blocklist_clear),
    flagged(
        write(
            "osd blacklist name=range,type=CephString,goodchars=[range],req=false name=blacklistop,type=CephChoices,strings=add|rm name=addr,type=CephEntityAddr \
             name=expire,type=CephFloat,range=0.0,req=false",
            "See osd blocklist.",
            "osd",
            "rw",
            blocklist,
        ),
        flags::DEPRECATED,
    ),
    flagged(
        read("osd blacklist ls", "See osd blocklist.", "osd", "r", blocklist_ls),
        flags::DEPRECATED,
    ),
    flagged(
        write("osd blacklist clear", "See osd blocklist.", "osd", "rw", blocklist_clear),
        flags::DEPRECATED,
    ),
];

fn uuid(text: &str) -> Result<Fsid, Refusal> {
    text.parse().map_err(|_| Refusal::invalid(format!("invalid uuid value '{text}'")))
}

/// Secrets that come with `osd new`.
fn secrets(c: &Write<'_>) -> Result<BTreeMap<String, String>, Refusal> {
    if c.env.input.is_empty() {
        return Ok(BTreeMap::new());
    }
    let value: Value = serde_json::from_slice(c.env.input)
        .map_err(|_| Refusal::invalid("unable to parse 'params' from input"))?;
    let fields =
        value.as_object().ok_or_else(|| Refusal::invalid("unable to parse 'params' from input"))?;
    let mut secrets = BTreeMap::new();
    for (name, value) in fields {
        // Values are secrets: no message has them.
        let Some(value) = value.as_str() else {
            return Err(Refusal::invalid(format!("the value of '{name}' is not a string")));
        };
        if !SECRETS.contains(&name.as_str()) {
            return Err(Refusal::invalid(format!(
                "unknown secret '{name}'; known are {}",
                SECRETS.join(", ")
            )));
        }
        secrets.insert(name.clone(), value.to_owned());
    }
    let has = |name| secrets.contains_key(name);
    if has("cephx_lockbox_secret") != has("dmcrypt_key") {
        return Err(Refusal::invalid("requires both a cephx lockbox secret and a dm-crypt key"));
    }
    if has("dmcrypt_key") && !has("cephx_secret") {
        return Err(Refusal::invalid("requires a cephx secret"));
    }
    Ok(secrets)
}

/// What the input of `osd new` may have.
const SECRETS: [&str; 4] =
    ["cephx_secret", "cephx_lockbox_secret", "dmcrypt_key", "crush_device_class"];

/// What the monitors keep for an OSD: keys by entity, and the key of its encrypted disk.
struct Kept {
    keys: Vec<(AuthName, EntityAuth)>,
    disk: Option<(String, Bytes)>,
}

/// The entity that an OSD's host reads the key of the disk with, before the OSD runs.
fn lockbox_name(id: Fsid) -> AuthName {
    AuthName::new(EntityType::CLIENT, format!("osd-lockbox.{id}"))
}

/// Where the key of an OSD's disk is kept.
fn disk_key(id: Fsid) -> String {
    format!("dm-crypt/osd/{id}/luks")
}

/// The secrets as they are kept (Ceph: `AuthMonitor::do_osd_new`, `ConfigKeyService::do_osd_new`).
fn kept(osd: OsdId, id: Fsid, secrets: &BTreeMap<String, String>) -> Result<Kept, Refusal> {
    let key = |name: &str| {
        let parse = |secret: &String| {
            CryptoKey::from_base64(secret).map_err(|_| {
                Refusal::invalid(format!(
                    "{name} is no key: 'ceph-authtool --gen-print-key' makes one"
                ))
            })
        };
        secrets.get(name).map(parse).transpose()
    };
    let entity = |key, caps: &[(&str, String)]| {
        let caps = caps.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        EntityAuth { key, caps }
    };
    let mut keys = Vec::new();
    if let Some(key) = key("cephx_secret")? {
        let profile = || "allow profile osd".to_owned();
        let caps = [("mon", profile()), ("mgr", profile()), ("osd", "allow *".to_owned())];
        keys.push((osd_name(osd), entity(key, &caps)));
    }
    if let Some(key) = key("cephx_lockbox_secret")? {
        let cap = format!("allow command \"config-key get\" with key=\"{}\"", disk_key(id));
        keys.push((lockbox_name(id), entity(key, &[("mon", cap)])));
    }
    let disk = secrets.get("dmcrypt_key");
    Ok(Kept { keys, disk: disk.map(|s| (disk_key(id), Bytes::copy_from_slice(s.as_bytes()))) })
}

/// Refuses secrets that differ from those that are kept already.
fn check_same(c: &Write<'_>, osd: OsdId, kept: &Kept) -> Result<(), Refusal> {
    let state = c.pending.state();
    let exists =
        |what: &str| Refusal::new(Errno::EEXIST, format!("osd.{osd} exists with another {what}"));
    for (name, entity) in &kept.keys {
        if state.auth.get(name).is_some_and(|has| has.key != entity.key) {
            return Err(exists(&format!("key of {name}")));
        }
    }
    match &kept.disk {
        Some((key, value)) if state.kv.get(key).is_some_and(|has| has != value) => {
            Err(exists("key of its disk"))
        }
        _ => Ok(()),
    }
}

fn new(c: &mut Write<'_>) -> Answer {
    let id = uuid(c.args.req("uuid"))?;
    let wanted = match c.args.has("id") {
        true => Some(osd_arg(c.args, "id")?),
        false => None,
    };
    let secrets = secrets(c)?;
    let map = c.pending.osd();
    let existing = map.osds().find(|o| map.uuid(*o) == Some(id));
    let osd = match (existing, wanted) {
        (Some(found), Some(w)) if found != w => {
            let message = format!("uuid {id} already in use for different id {found}");
            return Err(Refusal::new(Errno::EEXIST, message));
        }
        (Some(found), _) if map.state_bits(found) & state::DESTROYED == 0 => {
            // Repeating the command is fine, with the same secrets.
            check_same(c, found, &kept(found, id, &secrets)?)?;
            return Ok(new_reply(c, found));
        }
        (Some(found), _) => found,
        (None, Some(w)) => {
            if map.exists(w) && map.state_bits(w) & state::DESTROYED == 0 {
                let message = format!("osd.{w} already exists with another uuid");
                return Err(Refusal::new(Errno::EEXIST, message));
            }
            w
        }
        (None, None) => rules::free_id(c.pending),
    };
    check_gone(c, osd)?;
    let limit = c.env.conf.borrow().i64("mon_max_osd");
    if i64::from(osd.0) >= limit {
        return Err(Refusal::new(
            Errno::ERANGE,
            format!("osd id {osd} is too large (mon_max_osd {limit})"),
        ));
    }
    let kept = kept(osd, id, &secrets)?;
    for (name, entity) in kept.keys {
        c.pending.put(Change::Auth(name, Some(entity)));
    }
    if let Some((key, value)) = kept.disk {
        c.pending.put(Change::Kv(key, Some(value)));
    }
    rules::create(c.pending, osd, Some(id));
    if let Some(class) = secrets.get("crush_device_class").filter(|s| !s.is_empty()) {
        super::osd_crush_edit::edit(c.pending, |crush| {
            crush.remove_device_class(osd.0).ok();
            if crush.names.id(&format!("osd.{osd}")).is_none() {
                crush.set_item_name(osd.0, &format!("osd.{osd}"))?;
            }
            Ok(crush.set_device_class(osd.0, class).map(drop)?)
        })
        .ok();
    }
    Ok(new_reply(c, osd))
}

fn osd_name(osd: OsdId) -> AuthName {
    AuthName::new(EntityType::OSD, osd.to_string())
}

fn new_reply(c: &Write<'_>, osd: OsdId) -> Reply {
    c.format().reply(|| json!({ "osdid": osd.0 }), || format!("{osd}\n"))
}

/// Whether an OSD's number is free by now.
fn check_gone(c: &Write<'_>, osd: OsdId) -> Result<(), Refusal> {
    match rules::may_create(c.pending, osd) {
        true => Ok(()),
        false => Err(Refusal::new(Errno::EAGAIN, format!("osd.{osd} is being removed; try again"))),
    }
}

fn create(c: &mut Write<'_>) -> Answer {
    let id = c.args.str("uuid").map(uuid).transpose()?;
    let wanted = match c.args.has("id") {
        true => Some(osd_arg(c.args, "id")?),
        false => None,
    };
    let map = c.pending.osd();
    if let Some(id) = id
        && let Some(found) = map.osds().find(|o| map.uuid(*o) == Some(id))
    {
        return match wanted {
            Some(w) if w != found => {
                Err(Refusal::invalid(format!("uuid {id} already in use for different id {found}")))
            }
            _ => Ok(new_reply(c, found)),
        };
    }
    let osd = match wanted {
        Some(w) if map.exists(w) => {
            return Err(Refusal::new(Errno::EEXIST, format!("osd.{w} already exists")));
        }
        Some(w) => w,
        None => rules::free_id(c.pending),
    };
    check_gone(c, osd)?;
    rules::create(c.pending, osd, id);
    Ok(new_reply(c, osd))
}

fn rm(c: &mut Write<'_>) -> Answer {
    let mut notes = Vec::new();
    let mut busy = false;
    for word in c.args.strs("ids") {
        let osd = osd_id(&word)?;
        let map = c.pending.osd();
        if !map.exists(osd) {
            notes.push(format!("osd.{osd} does not exist. "));
        } else if map.is_up(osd) {
            busy = true;
            notes.push(format!("osd.{osd} is still up; must be down before removal. "));
        } else {
            rules::remove(c.pending, osd);
            notes.push(format!("removed osd.{osd}"));
        }
    }
    match busy {
        true => Err(Refusal::new(Errno::EBUSY, notes.concat())),
        false => Ok(Reply::status(notes.join(", "))),
    }
}

fn really(c: &Write<'_>) -> Result<(), Refusal> {
    if c.args.flag("yes_i_really_mean_it") {
        return Ok(());
    }
    Err(Refusal::new(
        Errno::EPERM,
        "Are you SURE?  Did you verify with 'ceph osd safe-to-destroy'?  This will mean real, permanent data loss, \
         as well as deletion of cephx and lockbox keys. Pass --yes-i-really-mean-it if you really do.",
    ))
}

fn destroy(c: &mut Write<'_>) -> Answer {
    let osd = osd_arg(c.args, "id")?;
    really(c)?;
    let map = c.pending.osd();
    if !map.exists(osd) {
        return Ok(Reply::status(format!("osd.{osd} does not exist")));
    }
    if map.is_up(osd) {
        return Err(Refusal::new(Errno::EBUSY, format!("osd.{osd} is not `down`.")));
    }
    if map.state_bits(osd) & state::DESTROYED == 0 {
        forget_secrets(c, osd);
        rules::destroy(c.pending, osd);
    }
    Ok(Reply::status(format!("destroyed osd.{osd}")))
}

/// Removes what [`kept`] has made and what the OSD keeps itself. The map still has its identity.
fn forget_secrets(c: &mut Write<'_>, osd: OsdId) {
    let id = c.pending.osd().uuid(osd);
    for name in [Some(osd_name(osd)), id.map(lockbox_name)].into_iter().flatten() {
        if c.pending.state().auth.get(&name).is_some() {
            c.pending.put(Change::Auth(name, None));
        }
    }
    let mut prefixes = vec![format!("daemon-private/osd.{osd}/")];
    prefixes.extend(id.map(|id| format!("dm-crypt/osd/{id}/")));
    let of_osd = |key: &&String| prefixes.iter().any(|p| key.starts_with(p));
    let keys: Vec<String> = c.pending.state().kv.keys().filter(of_osd).cloned().collect();
    for key in keys {
        c.pending.put(Change::Kv(key, None));
    }
}

fn purge(c: &mut Write<'_>) -> Answer {
    let osd = osd_arg(c.args, "id")?;
    really(c)?;
    let map = c.pending.osd();
    if !map.exists(osd) {
        return Ok(Reply::status(format!("osd.{osd} does not exist")));
    }
    if map.is_up(osd) {
        return Err(Refusal::new(Errno::EBUSY, format!("osd.{osd} is not `down`.")));
    }
    if c.args.prefix() == "osd purge-new" && map.state_bits(osd) & state::NEW == 0 {
        return Err(Refusal::new(Errno::EPERM, format!("osd.{osd} is not new")));
    }
    super::osd_crush_edit::edit(c.pending, |crush| {
        if crush.has_parent(osd.0) || crush.names.id(&format!("osd.{osd}")).is_some() {
            crush.remove_item(osd.0, false)?;
        }
        Ok(())
    })?;
    forget_secrets(c, osd);
    rules::remove(c.pending, osd);
    if c.pending.state().osd_metadata.contains_key(&osd) {
        c.pending.put(Change::OsdMetadata(osd, None));
    }
    Ok(Reply::status(format!("purged osd.{osd}")))
}

fn lost(c: &mut Write<'_>) -> Answer {
    let osd = osd_arg(c.args, "id")?;
    if !c.args.flag("yes_i_really_mean_it") {
        let message = "are you SURE?  this might mean real, permanent data loss.  pass --yes-i-really-mean-it if \
                       you really do.";
        return Err(Refusal::new(Errno::EPERM, message));
    }
    let map = c.pending.osd();
    if !map.exists(osd) {
        return Err(Refusal::new(Errno::ENOENT, format!("osd.{osd} does not exist")));
    }
    if !map.is_down(osd) {
        return Err(Refusal::new(Errno::EBUSY, format!("osd.{osd} is not down")));
    }
    let epoch = rules::mark_lost(c.pending, osd);
    Ok(Reply::status(format!("marked osd lost in epoch {epoch}")))
}

fn set_max(c: &mut Write<'_>) -> Answer {
    let new = c.args.int("newmax").and_then(|n| i32::try_from(n).ok()).unwrap_or(i32::MAX);
    let limit = c.env.conf.borrow().i64("mon_max_osd");
    if i64::from(new) > limit {
        let message = format!("cannot set max_osd to {new} which is > conf.mon_max_osd ({limit})");
        return Err(Refusal::new(Errno::ERANGE, message));
    }
    let map = c.pending.osd();
    if let Some(osd) = map.osds().find(|o| o.0 >= new) {
        let message = format!(
            "cannot shrink max_osd to {new} because osd.{osd} (and possibly others) still in use"
        );
        return Err(Refusal::new(Errno::EBUSY, message));
    }
    rules::set_max_osd(c.pending, new);
    Ok(Reply::status(format!("set new max_osd = {new}")))
}

/// An address as operators write it. The kind does not matter: entries are kept as `ANY`, as in
/// Ceph since Nautilus.
fn address(text: &str) -> Result<EntityAddr, Refusal> {
    let bad = || Refusal::invalid(format!("unable to parse address {text}"));
    let with_kind = text.starts_with("v1:") || text.starts_with("v2:") || text.starts_with("any:");
    let text = if with_kind { text.to_owned() } else { format!("any:{text}") };
    let parsed: EntityAddr =
        text.parse().or_else(|_| format!("{text}:0/0").parse()).map_err(|_| bad())?;
    Ok(EntityAddr { kind: AddrType::ANY, ..parsed })
}

fn blocklist(c: &mut Write<'_>) -> Answer {
    let range = match c.args.str("range") {
        None => false,
        Some("range") => true,
        Some(other) => {
            return Err(Refusal::invalid(format!("expected 'range' or nothing, found '{other}'")));
        }
    };
    let addr = if range { network(c.args.req("addr"))? } else { address(c.args.req("addr"))? };
    let op = c.args.str("blocklistop").or_else(|| c.args.str("blacklistop")).unwrap_or_default();
    if op == "add" {
        let seconds = c
            .args
            .float("expire")
            .filter(|s| *s > 0.0)
            .unwrap_or_else(|| c.env.conf.borrow().f64("mon_osd_blocklist_default_expire"));
        let duration = Duration::try_from_secs_f64(seconds)
            .map_err(|_| Refusal::invalid(format!("'{seconds}' seconds are too many")))?;
        let expires: Utime = c.pending.now() + duration;
        // An incremental map cannot move the end of an entry, as in Ceph: the first one holds.
        let holds = refused(c.pending.osd_before(), range).get(&addr).copied();
        refused_mut(c.pending.osd_mut(), range).entry(addr).or_insert(holds.unwrap_or(expires));
        let shown = super::frame::short_float(seconds);
        let bare = show_addr(&addr);
        return Ok(Reply::status(format!("blocklisting {bare} until {expires} ({shown} sec)")));
    }
    let bare = show_addr(&addr);
    if refused(c.pending.osd(), range).contains_key(&addr) {
        refused_mut(c.pending.osd_mut(), range).remove(&addr);
        return Ok(Reply::status(format!("un-blocklisting {bare}")));
    }
    Ok(Reply::status(format!("{bare} isn't blocklisted")))
}

/// A network as operators write it, `10.1.0.0/16` or `[fd00::]/8`. The length of its prefix is
/// kept as the nonce (Ceph 16.2.11: `entity_addr_t::TYPE_CIDR`).
fn network(text: &str) -> Result<EntityAddr, Refusal> {
    let bad = |why: &str| Refusal::invalid(format!("unable to parse network {text}: {why}"));
    let bare = text.strip_prefix("cidr:").unwrap_or(text);
    let (place, bits) = bare.split_once('/').ok_or_else(|| bad("expected ADDRESS/BITS"))?;
    let place = format!("any:{place}");
    let parsed: EntityAddr = place.parse().map_err(|_| bad("expected an IP address"))?;
    let most = if parsed.addr.is_some_and(|a| a.is_ipv4()) { 32 } else { 128 };
    let bits = bits.parse().ok().filter(|b| *b <= most);
    let bits = bits.ok_or_else(|| bad(&format!("expected 0 to {most} bits")))?;
    let addr = parsed.addr.map(|a| std::net::SocketAddr::new(a.ip(), 0));
    Ok(EntityAddr { kind: AddrType::CIDR, nonce: bits, addr })
}

/// The addresses or the networks that are refused.
fn refused(map: &OsdMap, range: bool) -> &BTreeMap<EntityAddr, Utime> {
    if range { &map.range_blocklist } else { &map.blocklist }
}

fn refused_mut(map: &mut OsdMap, range: bool) -> &mut BTreeMap<EntityAddr, Utime> {
    if range { &mut map.range_blocklist } else { &mut map.blocklist }
}

/// Networks with their kind; addresses without, which is `any` for all of them.
fn show_addr(addr: &EntityAddr) -> String {
    if addr.kind == AddrType::CIDR { addr.to_string() } else { addr.legacy_string() }
}

fn blocklist_ls(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let all = || map.blocklist.iter().chain(&map.range_blocklist);
    let entry = |(a, until): (&EntityAddr, &Utime)| {
        let what = if a.kind == AddrType::CIDR { "range" } else { "addr" };
        json!({what: a.legacy_string(), "until": until.to_string()})
    };
    let reply = c.format().reply(
        || all().map(entry).collect(),
        || all().map(|(a, until)| format!("{} {until}\n", show_addr(a))).collect(),
    );
    Ok(reply.with_status(format!("listed {} entries", all().count())))
}

fn blocklist_clear(c: &mut Write<'_>) -> Answer {
    for range in [false, true] {
        if !refused(c.pending.osd(), range).is_empty() {
            refused_mut(c.pending.osd_mut(), range).clear();
        }
    }
    Ok(Reply::status(" removed all blocklist entries"))
}
