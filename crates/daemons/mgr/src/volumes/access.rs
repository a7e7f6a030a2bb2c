//! Which users may use a subvolume (Ceph 16.2: `authorize` and `deauthorize` of `subvolume_v1.py`,
//! `auth_metadata.py`, `access.py`).
//!
//! A user's capabilities are the monitors'. Two files say what of them came from here, one for the
//! user and one for the subvolume; each is marked dirty while the capabilities are changed, so that
//! a change that was interrupted is ended by the next one.

use super::group::Group;
use super::subvolume::{self, Op, Subvolume, users_path};
use super::{BASE, Result, Volume, json_text, refusal};
use crate::commands::fs::AskMonitors;
use command::{Args, Refusal};
use serde_json::{Map, Value, json};
use types::errno::Errno;

/// The version of the files.
const VERSION: u64 = 6;
/// Permissions of the files.
const MODE: u32 = 0o755;
const LEVELS: [&str; 2] = ["r", "rw"];

fn auth_path(id: &str) -> String {
    format!("{BASE}/${id}.meta")
}

fn check_id(id: &str) -> Result<()> {
    super::check_name("user", id)
}

async fn read(v: &Volume<'_>, path: &str) -> Result<Option<Value>> {
    let data = match v.mount.read_file(&fs_client::path(path)).await {
        Ok(data) if data.is_empty() => return Ok(None),
        Ok(data) => data,
        Err(e) if e.is(Errno::ENOENT) => return Ok(None),
        Err(e) => return Err(refusal(e)),
    };
    let value: Value = serde_json::from_slice(&data).map_err(|e| {
        Refusal::invalid(format!("{path} is not the JSON text that was expected: {e}"))
    })?;
    if value["compat_version"].as_u64().is_none_or(|n| n > VERSION) {
        return Err(Refusal::invalid(format!(
            "{path} is of a newer version than {VERSION}: use the manager that wrote it"
        )));
    }
    Ok(Some(value))
}

async fn write(v: &Volume<'_>, path: &str, mut value: Value, compat: u64) -> Result<()> {
    value["compat_version"] = compat.into();
    value["version"] = VERSION.into();
    let data = value.to_string().into();
    v.mount.replace_file(&fs_client::path(path), data, MODE).await.map_err(refusal)
}

async fn forget(v: &Volume<'_>, id: &str) -> Result<()> {
    match v.mount.unlink(&fs_client::path(auth_path(id))).await {
        Err(e) if !e.is(Errno::ENOENT) => Err(refusal(e)),
        _ => Ok(()),
    }
}

/// What the monitors know of a user.
async fn user(monitors: &AskMonitors, entity: &str) -> Result<Option<Value>> {
    let get = json!({"prefix": "auth get", "entity": entity, "format": "json"});
    match monitors(get).await {
        Ok(reply) => Ok(serde_json::from_slice::<Value>(&reply.data).ok().map(|v| v[0].clone())),
        Err(e) if e.errno == Errno::ENOENT => Ok(None),
        Err(e) => Err(e),
    }
}

/// The capabilities of a subvolume's users: of the metadata servers, and of the OSDs.
fn caps(level: &str, path: &str, pool: &str, namespace: &str) -> (String, String) {
    let namespace = match namespace {
        "" => String::new(),
        name => format!(" namespace={name}"),
    };
    (format!("allow {level} path={path}"), format!("allow {level} pool={pool}{namespace}"))
}

fn tokens(text: &str) -> Vec<String> {
    text.split(',').map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()).collect()
}

fn take(tokens: &mut Vec<String>, token: &str) -> bool {
    let at = tokens.iter().position(|t| t == token);
    at.map(|at| tokens.remove(at)).is_some()
}

/// A user's capabilities with those of a subvolume at one level, and not at the other.
fn with(old: &Value, wanted: (String, String), unwanted: (String, String)) -> (String, String) {
    let text = |service: &str| old["caps"][service].as_str().unwrap_or_default().to_owned();
    let (mds, osd) = (text("mds"), text("osd"));
    if mds.is_empty() {
        return wanted;
    }
    let (mut mds_tokens, mut osd_tokens) = (tokens(&mds), tokens(&osd));
    if mds_tokens.contains(&wanted.0) {
        return (mds, osd);
    }
    if take(&mut mds_tokens, &unwanted.0) {
        take(&mut osd_tokens, &unwanted.1);
    }
    mds_tokens.push(wanted.0);
    osd_tokens.push(wanted.1);
    (mds_tokens.join(","), osd_tokens.join(","))
}

/// A user's capabilities without those of a subvolume.
fn without(old: &Value, gone: &[(String, String)]) -> (String, String) {
    let text = |service: &str| tokens(old["caps"][service].as_str().unwrap_or_default());
    let (mut mds, mut osd) = (text("mds"), text("osd"));
    for (m, o) in gone {
        if take(&mut mds, m) {
            take(&mut osd, o);
            break;
        }
    }
    (mds.join(","), osd.join(","))
}

/// All capabilities of a user, with these of the metadata servers and OSDs.
fn list(old: &Value, (mds, osd): (String, String), allow: bool) -> Vec<String> {
    let mut all = Vec::new();
    for (service, text) in old["caps"].as_object().into_iter().flatten() {
        let text = text.as_str().unwrap_or_default();
        let left = service == "mds" || service == "osd";
        if left || !allow && service == "mon" && text == "allow r" {
            continue;
        }
        all.extend([service.clone(), text.to_owned()]);
    }
    for (service, text) in [("mds", mds), ("osd", osd)] {
        if !text.is_empty() {
            all.extend([service.to_owned(), text]);
        }
    }
    if allow && !all.iter().step_by(2).any(|s| s == "mon") {
        all.extend(["mon".to_owned(), "allow r".to_owned()]);
    }
    all
}

impl Subvolume {
    /// How the files name it.
    fn id(&self) -> String {
        let group = if self.group.is_default() { "None" } else { &self.group.name };
        format!("{group}/{}", self.name)
    }

    /// Pool and namespace of its data.
    fn place(&self, v: &Volume<'_>) -> Result<(String, String)> {
        let no_data = || Refusal::new(Errno::ENODATA, Errno::ENODATA.describe());
        let layout = self.stat.as_ref().and_then(|s| s.layout.as_ref()).ok_or_else(no_data)?;
        let pool = v.pool_name(layout.pool).ok_or_else(no_data)?;
        Ok((pool, layout.namespace.clone()))
    }

    /// Lets a user in: the user's key.
    async fn allow(
        &self,
        v: &Volume<'_>,
        monitors: &AskMonitors,
        id: &str,
        level: &str,
        existing: Option<&Value>,
    ) -> Result<String> {
        let users = users_path(&self.group, &self.name);
        let mut meta = read(v, &users).await?.unwrap_or_else(|| json!({"auths": {}}));
        meta["auths"][id] = json!({"access_level": level, "dirty": true});
        write(v, &users, meta.clone(), 1).await?;
        let (path, (pool, namespace)) = (self.path()?, self.place(v)?);
        let other = if level == "rw" { "r" } else { "rw" };
        let wanted = caps(level, &path, &pool, &namespace);
        let unwanted = caps(other, &path, &pool, &namespace);
        let entity = format!("client.{id}");
        let found = match existing {
            None => {
                let all = ["mds", &wanted.0, "osd", &wanted.1, "mon", "allow r"];
                let make = json!({
                    "prefix": "auth get-or-create", "entity": entity, "caps": all, "format": "json",
                });
                let reply = monitors(make).await?;
                serde_json::from_slice::<Value>(&reply.data).ok().map(|v| v[0].clone())
            }
            Some(old) => {
                let all = list(old, with(old, wanted, unwanted), true);
                monitors(json!({"prefix": "auth caps", "entity": entity, "caps": all})).await?;
                user(monitors, &entity).await?
            }
        };
        let key = found.as_ref().and_then(|f| f["key"].as_str()).map(str::to_owned);
        let key = key.ok_or_else(|| {
            Refusal::new(Errno::EIO, format!("the monitors' answer about {entity} has no key"))
        })?;
        meta["auths"][id]["dirty"] = false.into();
        write(v, &users, meta, 1).await?;
        Ok(key)
    }

    /// Shuts a user out.
    async fn deny(&self, v: &Volume<'_>, monitors: &AskMonitors, id: &str) -> Result<()> {
        let users = users_path(&self.group, &self.name);
        let Some(mut meta) = read(v, &users).await? else { return Ok(()) };
        if meta["auths"].get(id).is_none() {
            return Ok(());
        }
        meta["auths"][id]["dirty"] = true.into();
        write(v, &users, meta.clone(), 1).await?;
        let (path, (pool, namespace)) = (self.path()?, self.place(v)?);
        let entity = format!("client.{id}");
        if let Some(old) = user(monitors, &entity).await? {
            let gone = LEVELS.map(|level| caps(level, &path, &pool, &namespace));
            let all = list(&old, without(&old, &gone), false);
            let order = match all.is_empty() {
                true => json!({"prefix": "auth rm", "entity": entity}),
                false => json!({"prefix": "auth caps", "entity": entity, "caps": all}),
            };
            monitors(order).await?;
        }
        if let Some(auths) = meta["auths"].as_object_mut() {
            auths.shift_remove(id);
        }
        write(v, &users, meta, 1).await
    }
}

/// A user's file, with the name that its part has in new versions.
async fn auth_meta(v: &Volume<'_>, id: &str) -> Result<Option<Value>> {
    let mut meta = read(v, &auth_path(id)).await?;
    if let Some(all) = meta.as_mut().and_then(Value::as_object_mut)
        && let Some(old) = all.shift_remove("volumes")
    {
        all.insert("subvolumes".into(), old);
    }
    Ok(meta)
}

/// Ends what was begun with other subvolumes of a user.
async fn recover(
    v: &Volume<'_>,
    monitors: &AskMonitors,
    id: &str,
    meta: &mut Value,
    except: &str,
) -> Result<()> {
    let known = meta["subvolumes"].as_object().cloned().unwrap_or_default();
    for (name, data) in known {
        if name == except || data["dirty"] == false {
            continue;
        }
        let (group, subvolume) = name.split_once('/').unwrap_or(("None", &name));
        let group = Some(group).filter(|g| *g != "None");
        let found = match Group::open(v, group).await {
            Ok(group) => Subvolume::open(v, group, subvolume, Op::Allow).await,
            Err(e) => Err(e),
        };
        let kept = match found {
            Ok(other) => {
                let users = read(v, &users_path(&other.group, &other.name)).await?;
                let begun = users.is_some_and(|u| u["auths"].get(id).is_some());
                if begun {
                    let level = data["access_level"].as_str().unwrap_or("rw");
                    let existing = user(monitors, &format!("client.{id}")).await?;
                    other.allow(v, monitors, id, level, existing.as_ref()).await?;
                }
                begun
            }
            Err(e) if e.errno == Errno::ENOENT => false,
            Err(e) => return Err(e),
        };
        match kept {
            true => meta["subvolumes"][&name]["dirty"] = false.into(),
            false => {
                if let Some(all) = meta["subvolumes"].as_object_mut() {
                    all.shift_remove(&name);
                }
            }
        }
    }
    Ok(())
}

/// `subvolume authorize`.
pub async fn authorize(v: &Volume<'_>, monitors: &AskMonitors, args: &Args) -> Result<String> {
    let (id, level) = (args.req("auth_id"), args.str("access_level").unwrap_or("rw"));
    check_id(id)?;
    if !LEVELS.contains(&level) {
        return Err(Refusal::invalid(format!("access level '{level}': r or rw was expected")));
    }
    let this = subvolume::open(v, args, Op::Allow).await?;
    let tenant = args.str("tenant_id").filter(|t| !t.is_empty());
    let existing = user(monitors, &format!("client.{id}")).await?;
    let mut meta = match auth_meta(v, id).await? {
        None if existing.is_some() && !args.flag("allow_existing_id") => {
            return Err(Refusal::new(
                Errno::EPERM,
                format!(
                    "auth ID: {id} exists and not created by mgr plugin. Not allowed to modify"
                ),
            ));
        }
        None => json!({"dirty": true, "tenant_id": tenant, "subvolumes": {}}),
        Some(meta) if meta["tenant_id"].as_str() != tenant => {
            let message = format!("auth ID: {id} is already in use");
            return Err(Refusal::new(Errno::EPERM, message));
        }
        Some(mut meta) => {
            if meta["dirty"] == true {
                recover(v, monitors, id, &mut meta, &this.id()).await?;
            }
            meta
        }
    };
    meta["dirty"] = true.into();
    if !meta["subvolumes"].is_object() {
        meta["subvolumes"] = Value::Object(Map::new());
    }
    meta["subvolumes"][this.id()] = json!({"access_level": level, "dirty": true});
    write(v, &auth_path(id), meta.clone(), VERSION).await?;
    let existing = user(monitors, &format!("client.{id}")).await?;
    let key = this.allow(v, monitors, id, level, existing.as_ref()).await?;
    meta["dirty"] = false.into();
    meta["subvolumes"][this.id()]["dirty"] = false.into();
    write(v, &auth_path(id), meta, VERSION).await?;
    // As stock: the key is for callers that know of tenants.
    Ok(tenant.map(|_| key).unwrap_or_default())
}

/// `subvolume deauthorize`.
pub async fn deauthorize(v: &Volume<'_>, monitors: &AskMonitors, args: &Args) -> Result<String> {
    let id = args.req("auth_id");
    check_id(id)?;
    let this = subvolume::open(v, args, Op::Deny).await?;
    let Some(mut meta) = auth_meta(v, id).await? else {
        return Err(Refusal::new(Errno::ENOENT, format!("auth ID: {id} doesn't exist")));
    };
    let known = meta["subvolumes"].as_object().cloned().unwrap_or_default();
    if known.is_empty() {
        forget(v, id).await?;
        return Ok(String::new());
    }
    if !known.contains_key(&this.id()) {
        return Ok(String::new());
    }
    if meta["dirty"] == true {
        recover(v, monitors, id, &mut meta, &this.id()).await?;
    }
    meta["dirty"] = true.into();
    meta["subvolumes"][this.id()]["dirty"] = true.into();
    write(v, &auth_path(id), meta.clone(), VERSION).await?;
    this.deny(v, monitors, id).await?;
    if let Some(all) = meta["subvolumes"].as_object_mut() {
        all.shift_remove(&this.id());
        if all.is_empty() {
            forget(v, id).await?;
            return Ok(String::new());
        }
    }
    meta["dirty"] = false.into();
    write(v, &auth_path(id), meta, VERSION).await?;
    Ok(String::new())
}

/// `subvolume authorized_list`.
pub async fn users(v: &Volume<'_>, args: &Args) -> Result<String> {
    let this = subvolume::open(v, args, Op::Users).await?;
    let meta = read(v, &users_path(&this.group, &this.name)).await?.unwrap_or_default();
    let auths = meta["auths"].as_object().cloned().unwrap_or_default();
    let clean = auths.iter().filter(|(_, data)| data["dirty"] == false);
    Ok(json_text(&clean.map(|(id, data)| json!({id: data["access_level"]})).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(level: &str) -> (String, String) {
        caps(level, "/volumes/g/s/u", "data", "")
    }

    #[test]
    fn capabilities_come_and_go() {
        assert_eq!(caps("r", "/p", "d", "ns").1, "allow r pool=d namespace=ns");
        let none = json!({"caps": {}});
        let first = with(&none, pair("rw"), pair("r"));
        assert_eq!(first, pair("rw"));
        let old = json!({"caps": {"mds": "allow r path=/x, allow r path=/volumes/g/s/u", "osd": "allow r pool=x,allow r pool=data", "mgr": "allow r"}});
        let (mds, osd) = with(&old, pair("rw"), pair("r"));
        assert_eq!(mds, "allow r path=/x,allow rw path=/volumes/g/s/u");
        assert_eq!(osd, "allow r pool=x,allow rw pool=data");
        let all = list(&old, (mds, osd), true);
        assert_eq!(all[..2], ["mgr", "allow r"]);
        assert_eq!(all[all.len() - 2..], ["mon", "allow r"]);
        let left = without(&old, &[pair("r"), pair("rw")]);
        assert_eq!(left, ("allow r path=/x".into(), "allow r pool=x".into()));
        let mine = json!({"caps": {"mds": pair("rw").0, "osd": pair("rw").1, "mon": "allow r"}});
        let left = without(&mine, &[pair("r"), pair("rw")]);
        assert!(list(&mine, left, false).is_empty(), "nothing is left of the user");
    }
}
