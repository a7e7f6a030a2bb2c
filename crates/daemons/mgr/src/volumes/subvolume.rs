//! Subvolumes (Ceph 16.2: `operations/versions/subvolume_base.py`, `subvolume_v1.py`,
//! `subvolume_v2.py`).

use super::group::{self, Group};
use super::ini::{Ini, IniError};
use super::{LEGACY, Result, TRASH, Volume, check_name, json_text, mode_of, refusal};
use bytes::Bytes;
use command::{Args, Refusal};
use fs_client::{FsError, Stat};
use md5::{Digest, Md5};
use serde_json::{Value, json};
use types::errno::Errno;

/// Permissions of the record.
const META_MODE: u32 = 0o640;
/// Permissions of the file with users.
const USERS_MODE: u32 = 0o755;
/// The namespace of a subvolume that has one of its own begins with this.
const NAMESPACE: &str = "fsvolumens_";
const GLOBAL: &str = "GLOBAL";
const USER: &str = "USER_METADATA";
/// The version of new subvolumes.
const VERSION: u32 = 2;

/// What is done with a subvolume, as errors name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `create`.
    Create,
    /// `rm`.
    Remove,
    /// `rm --force`.
    RemoveForce,
    /// `pin`.
    Pin,
    /// `getpath`.
    Path,
    /// `info`.
    Info,
    /// `resize`.
    Resize,
    /// `authorize`.
    Allow,
    /// `deauthorize`.
    Deny,
    /// `authorized_list`.
    Users,
    /// `metadata set`.
    MetaSet,
    /// `metadata get`.
    MetaGet,
    /// `metadata ls`.
    MetaList,
    /// `metadata rm`.
    MetaRemove,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Create => "create",
            Op::Remove => "rm",
            Op::RemoveForce => "rm-force",
            Op::Pin => "pin",
            Op::Path => "getpath",
            Op::Info => "info",
            Op::Resize => "resize",
            Op::Allow => "allow-access",
            Op::Deny => "deny-access",
            Op::Users => "auth-list",
            Op::MetaSet => "user-metadata-set",
            Op::MetaGet => "user-metadata-get",
            Op::MetaList => "user-metadata-ls",
            Op::MetaRemove => "user-metadata-rm",
        }
    }
}

/// A subvolume.
pub struct Subvolume {
    /// Its group.
    pub group: Group,
    /// Its name.
    pub name: String,
    meta: Ini,
    /// Its record is not in its directory.
    legacy: bool,
    version: u32,
    /// Its data, unless only snapshots of it are kept.
    pub stat: Option<Stat>,
}

fn base_of(group: &Group, name: &str) -> String {
    format!("{}/{name}", group.path())
}

/// Where the record is of a directory that has none in it.
fn legacy_path(base: &str) -> String {
    let digest = Md5::digest(base.as_bytes());
    let digits: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    format!("{LEGACY}/{digits}.meta")
}

fn broken() -> Refusal {
    Refusal::invalid("error accessing subvolume metadata")
}

fn in_metadata(e: IniError) -> Refusal {
    Refusal::invalid(e.to_string())
}

/// A record; none if there is no file, or one that cannot be read.
async fn read_meta(v: &Volume<'_>, path: &str) -> Result<Option<Ini>> {
    match v.mount.read_file(&fs_client::path(path)).await {
        Ok(data) => Ok(std::str::from_utf8(&data).ok().and_then(|text| Ini::parse(text).ok())),
        Err(e) if e.is(Errno::ENOENT) => Ok(None),
        Err(FsError::TooLarge { .. }) => Ok(None),
        Err(e) => Err(refusal(e)),
    }
}

impl Subvolume {
    /// Where it is.
    pub fn base(&self) -> String {
        base_of(&self.group, &self.name)
    }

    fn global(&self, key: &str) -> Result<String> {
        self.meta.get(GLOBAL, key).ok_or_else(broken)
    }

    /// Where its data is.
    pub fn path(&self) -> Result<String> {
        self.global("path")
    }

    fn meta_path(&self) -> String {
        let base = self.base();
        if self.legacy { legacy_path(&base) } else { format!("{base}/.meta") }
    }

    async fn write_meta(&self, v: &Volume<'_>) -> Result<()> {
        let text = Bytes::from(self.meta.text());
        let path = fs_client::path(self.meta_path());
        v.mount.replace_file(&path, text, META_MODE).await.map_err(refusal)
    }

    /// Finds a subvolume, and checks that this may be done with it.
    pub async fn open(v: &Volume<'_>, group: Group, name: &str, op: Op) -> Result<Subvolume> {
        check_name("subvolume", name)?;
        let base = base_of(&group, name);
        match v.mount.stat(&fs_client::path(&base)).await {
            Ok(_) => {}
            Err(e) if e.is(Errno::ENOENT) => {
                return Err(Refusal::new(
                    Errno::ENOENT,
                    format!("subvolume '{name}' does not exist"),
                ));
            }
            Err(e) => {
                let message = format!("error accessing subvolume '{name}'");
                return Err(Refusal::new(e.errno(), message));
            }
        }
        let mut this = Subvolume {
            group,
            name: name.to_owned(),
            meta: Ini::default(),
            legacy: false,
            version: VERSION,
            stat: None,
        };
        this.load(v, &base).await?;
        this.check(v, op).await?;
        Ok(this)
    }

    async fn load(&mut self, v: &Volume<'_>, base: &str) -> Result<()> {
        let own = read_meta(v, &format!("{base}/.meta")).await?;
        let belongs = |meta: &Ini| {
            let retained = meta.get(GLOBAL, "state").is_some_and(|s| s == "snapshot-retained");
            let path = meta.get(GLOBAL, "path").unwrap_or_default();
            // A user may have written any file of this name into a directory without a record.
            retained || path.trim_end_matches('/').rsplit_once('/').is_some_and(|(p, _)| p == base)
        };
        match own.filter(belongs) {
            Some(meta) => self.meta = meta,
            None => {
                self.legacy = true;
                match read_meta(v, &legacy_path(base)).await? {
                    Some(meta) => self.meta = meta,
                    None => {
                        // A directory of a version without records.
                        let made = v.mount.mkdir_all(&fs_client::path(LEGACY), 0o700).await;
                        made.map_err(|e| Refusal::new(e.errno(), "error accessing subvolume"))?;
                        self.record(1, base)?;
                        self.write_meta(v).await?;
                    }
                }
            }
        }
        let version = self.global("version")?.parse();
        self.version = version.ok().filter(|v| (1..=VERSION).contains(v)).ok_or_else(broken)?;
        Ok(())
    }

    fn record(&mut self, version: u32, path: &str) -> Result<()> {
        let version = version.to_string();
        let values = [
            ("version", version.as_str()),
            ("type", "subvolume"),
            ("path", path),
            ("state", "complete"),
        ];
        for (key, value) in values {
            self.meta.set(GLOBAL, key, &value.replace('%', "%%")).map_err(in_metadata)?;
        }
        Ok(())
    }

    async fn check(&mut self, v: &Volume<'_>, op: Op) -> Result<()> {
        let (kind, state) = (self.global("type")?, self.global("state")?);
        if kind != "subvolume" && kind != "clone" {
            return Err(Refusal::invalid(format!("invalid subvolume type '{kind}'")));
        }
        let name = &self.name;
        let retained = state == "snapshot-retained" && self.version >= 2;
        let allowed = match state.as_str() {
            "complete" => true,
            _ if retained => matches!(op, Op::Remove | Op::RemoveForce | Op::Info),
            "init" | "pending" | "in-progress" | "failed" | "canceled" | "snapshot-retained" => {
                op == Op::RemoveForce
            }
            _ => return Err(Refusal::invalid(format!("invalid state '{state}'"))),
        };
        if !allowed && retained {
            let message = format!("subvolume '{name}' is removed and has only snapshots retained");
            return Err(Refusal::new(Errno::ENOENT, message));
        }
        if !allowed {
            let message = format!("subvolume '{name}' is not ready for operation {}", op.name());
            return Err(Refusal::new(Errno::EAGAIN, message));
        }
        if retained {
            return Ok(());
        }
        match v.mount.stat(&fs_client::path(self.path()?)).await {
            Ok(stat) => self.stat = Some(stat),
            Err(e) if e.is(Errno::ENOENT) => {
                let message = format!("mount path missing for subvolume '{name}'");
                return Err(Refusal::new(Errno::ENOENT, message));
            }
            Err(e) => return Err(refusal(e)),
        }
        Ok(())
    }

    fn features(&self) -> &'static [&'static str] {
        let all = &["snapshot-clone", "snapshot-autoprotect", "snapshot-retention"];
        if self.version >= 2 { all } else { &all[..2] }
    }
}

/// What is to be true of a subvolume's directory.
struct Attributes<'a> {
    quota: Option<i64>,
    pool: Option<&'a str>,
    namespace: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

async fn set_attributes(
    v: &Volume<'_>,
    path: &str,
    group: &Group,
    a: Attributes<'_>,
) -> Result<()> {
    let at = fs_client::path(path);
    if let Some(bytes) = a.quota {
        v.set_quota(path, bytes).await?;
    }
    if let Some(pool) = a.pool {
        let refused = format!("invalid pool layout '{pool}' -- need a valid data pool");
        v.set_pool(path, pool, refused).await?;
    }
    if let Some(namespace) = &a.namespace {
        let set = v.mount.set_xattr(&at, "ceph.dir.layout.pool_namespace", namespace).await;
        set.map_err(refusal)?;
    } else if a.pool.is_none() {
        // Otherwise the layout of a directory above would count, whatever becomes of it.
        let stat = v.mount.stat(&at).await.map_err(refusal)?;
        if stat.layout.is_none() {
            let pool = v.pool_above(path).await?;
            v.set_pool(path, &pool, format!("invalid pool layout '{pool}'")).await?;
        }
    }
    let owner = group.stat.as_ref().map(|s| (s.uid, s.gid));
    let (uid, gid) = (a.uid.or(owner.map(|o| o.0)), a.gid.or(owner.map(|o| o.1)));
    if let (Some(uid), Some(gid)) = (uid, gid) {
        v.mount.chown(&at, uid, gid).await.map_err(refusal)?;
    }
    match a.mode {
        Some(mode) => v.mount.chmod(&at, mode).await.map_err(refusal),
        None => Ok(()),
    }
}

/// The file with the users of a subvolume.
pub fn users_path(group: &Group, name: &str) -> String {
    let group = if group.is_default() { "" } else { &group.name };
    format!("{}/_{group}:{name}.meta", super::BASE)
}

/// `subvolume create`.
pub async fn create(v: &Volume<'_>, args: &Args) -> Result<String> {
    let name = args.req("sub_name");
    check_name("subvolume", name)?;
    let mode = mode_of(args.str("mode"))?;
    let (uid, gid) = (group::owner(args, "uid")?, group::owner(args, "gid")?);
    let isolated = args.flag("namespace_isolated");
    let mut attributes = Attributes {
        quota: args.int("size"),
        pool: args.str("pool_layout").filter(|p| !p.is_empty()),
        namespace: isolated.then(|| format!("{NAMESPACE}{name}")),
        uid,
        gid,
        mode: None,
    };
    let group = Group::open(v, args.str("group_name")).await?;
    let open = Group { name: group.name.clone(), stat: group.stat.clone() };
    match Subvolume::open(v, open, name, Op::Create).await {
        Ok(there) => {
            let stat = there.stat.as_ref();
            attributes.uid = uid.filter(|u| *u != 0).or(stat.map(|s| s.uid));
            attributes.gid = gid.filter(|g| *g != 0).or(stat.map(|s| s.gid));
            attributes.mode = Some(mode);
            set_attributes(v, &there.path()?, &there.group, attributes).await?;
        }
        Err(e) if e.errno == Errno::ENOENT => make(v, group, name, mode, attributes).await?,
        Err(e) => return Err(e),
    }
    Ok(String::new())
}

async fn make(
    v: &Volume<'_>,
    group: Group,
    name: &str,
    mode: u32,
    attributes: Attributes<'_>,
) -> Result<()> {
    v.base_dir(&group.path()).await?;
    let base = base_of(&group, name);
    let path = format!("{base}/{}", uuid::Uuid::new_v4());
    let users = users_path(&group, name);
    let mut this = Subvolume {
        group,
        name: name.to_owned(),
        meta: Ini::default(),
        legacy: false,
        version: VERSION,
        stat: None,
    };
    let made = async {
        let at = fs_client::path(&base);
        v.mount.mkdir_all(&at, mode).await.map_err(refusal)?;
        // While it is empty: names do not leave it, and a server may number what is below anew.
        v.mount.set_xattr(&at, "ceph.dir.subvolume", "1").await.map_err(refusal)?;
        v.mount.mkdir(&fs_client::path(&path), mode).await.map_err(refusal)?;
        set_attributes(v, &path, &this.group, attributes).await?;
        this.record(VERSION, &path)?;
        this.write_meta(v).await?;
        v.mount.create_file(&fs_client::path(&users), USERS_MODE).await.map_err(refusal)
    };
    let outcome = made.await;
    if outcome.is_err()
        && let Err(e) = discard(v, &base).await
    {
        tracing::warn!("{base} was not made, and cannot be moved to the trash: {}", e.message);
    }
    outcome
}

/// Moves a directory to the trash.
async fn discard(v: &Volume<'_>, path: &str) -> Result<()> {
    v.mount.mkdir_all(&fs_client::path(TRASH), 0o700).await.map_err(refusal)?;
    let to = fs_client::path(format!("{TRASH}/{}", uuid::Uuid::new_v4()));
    v.mount.rename(&fs_client::path(path), &to).await.map_err(refusal)?;
    v.trashed();
    Ok(())
}

fn absent_is_well(force: bool, outcome: Result<String>) -> Result<String> {
    match outcome {
        Err(e) if e.errno == Errno::ENOENT && force => Ok(String::new()),
        other => other,
    }
}

/// `subvolume rm`.
pub async fn remove(v: &Volume<'_>, args: &Args) -> Result<String> {
    let force = args.flag("force");
    let outcome = match remove_now(v, args, force).await {
        Err(e) if e.errno == Errno::EAGAIN && !force => {
            Err(Refusal { message: format!("{} (use --force to override)", e.message), ..e })
        }
        other => other,
    };
    absent_is_well(force, outcome)
}

async fn remove_now(v: &Volume<'_>, args: &Args, force: bool) -> Result<String> {
    let op = if force { Op::RemoveForce } else { Op::Remove };
    let this = open(v, args, op).await?;
    let snapshots = if this.version >= 2 { this.base() } else { this.path()? };
    let own = v.mount.snapshots(&fs_client::path(snapshots)).await.map_err(refusal)?;
    // Names of snapshots of directories above begin so.
    if own.iter().any(|name| !name.starts_with(b"_")) {
        if args.flag("retain_snapshots") {
            return Err(Refusal::unsupported(
                "snapshots of a removed subvolume cannot be kept yet: remove them first",
            ));
        }
        let message = format!("subvolume '{}' has snapshots", this.name);
        return Err(Refusal::new(Errno::ENOTEMPTY, message));
    }
    let state = this.global("state")?;
    if this.version >= 2 && matches!(state.as_str(), "pending" | "in-progress" | "init") {
        let message =
            format!("{} clone in-progress -- please cancel the clone and retry", this.name);
        return Err(Refusal::new(Errno::EAGAIN, message));
    }
    if this.legacy {
        match v.mount.unlink(&fs_client::path(this.meta_path())).await {
            Err(e) if !e.is(Errno::ENOENT) => return Err(refusal(e)),
            _ => {}
        }
    }
    discard(v, &this.base()).await?;
    match v.mount.unlink(&fs_client::path(users_path(&this.group, &this.name))).await {
        Err(e) if !e.is(Errno::ENOENT) => Err(refusal(e)),
        _ => Ok(String::new()),
    }
}

/// The subvolume that arguments name.
pub async fn open(v: &Volume<'_>, args: &Args, op: Op) -> Result<Subvolume> {
    let group = Group::open(v, args.str("group_name")).await?;
    Subvolume::open(v, group, args.req("sub_name"), op).await
}

/// `subvolume ls`.
pub async fn list(v: &Volume<'_>, args: &Args) -> Result<String> {
    let group = Group::open(v, args.str("group_name")).await?;
    Ok(group::names_text(&group.subvolumes(v).await?))
}

/// `subvolume exist`.
pub async fn exist(v: &Volume<'_>, args: &Args) -> Result<String> {
    let none = match Group::open(v, args.str("group_name")).await {
        Ok(group) => group.subvolumes(v).await?.is_empty(),
        Err(e) if e.errno == Errno::ENOENT => true,
        Err(e) => return Err(e),
    };
    Ok(if none { "no subvolume exists" } else { "subvolume exists" }.to_owned())
}

/// `subvolume getpath`.
pub async fn path_of(v: &Volume<'_>, args: &Args) -> Result<String> {
    open(v, args, Op::Path).await?.path()
}

/// `subvolume info`, without the monitors' addresses.
pub async fn info(v: &Volume<'_>, args: &Args) -> Result<Value> {
    let this = open(v, args, Op::Info).await?;
    let Some(stat) = &this.stat else {
        return Ok(json!({
            "type": this.global("type")?,
            "features": this.features(),
            "state": this.global("state")?,
        }));
    };
    let mut all = group::describe(v, stat)?;
    all["path"] = this.path()?.into();
    all["type"] = this.global("type")?.into();
    let namespace = stat.layout.as_ref().map(|l| l.namespace.clone());
    all["pool_namespace"] = namespace.unwrap_or_default().into();
    all["features"] = json!(this.features());
    all["state"] = this.global("state")?.into();
    Ok(all)
}

/// `subvolume resize`.
pub async fn resize(v: &Volume<'_>, args: &Args) -> Result<String> {
    let this = open(v, args, Op::Resize).await?;
    group::resize_at(v, &this.path()?, args, "subvolume").await
}

/// `subvolume pin`.
pub async fn pin(v: &Volume<'_>, args: &Args) -> Result<String> {
    let this = open(v, args, Op::Pin).await?;
    group::pin_at(v, &this.base(), args).await
}

fn no_key(key: &str) -> Refusal {
    Refusal::new(Errno::ENOENT, format!("key '{key}' does not exist."))
}

/// `subvolume metadata set`.
pub async fn meta_set(v: &Volume<'_>, args: &Args) -> Result<String> {
    let mut this = open(v, args, Op::MetaSet).await?;
    this.meta.set(USER, args.req("key_name"), args.req("value")).map_err(in_metadata)?;
    this.write_meta(v).await?;
    Ok(String::new())
}

/// `subvolume metadata get`.
pub async fn meta_get(v: &Volume<'_>, args: &Args) -> Result<String> {
    let this = open(v, args, Op::MetaGet).await?;
    let key = args.req("key_name");
    this.meta.get(USER, key).ok_or_else(|| no_key(key))
}

/// `subvolume metadata ls`.
pub async fn meta_list(v: &Volume<'_>, args: &Args) -> Result<String> {
    let this = open(v, args, Op::MetaList).await?;
    let all = this.meta.all(USER).map(|(k, value)| (k.to_owned(), value.into()));
    Ok(json_text(&Value::Object(all.collect())))
}

/// `subvolume metadata rm`.
pub async fn meta_remove(v: &Volume<'_>, args: &Args) -> Result<String> {
    let removed = async {
        let mut this = open(v, args, Op::MetaRemove).await?;
        if !this.meta.has(USER) {
            let message = "subvolume metadata does not exist";
            return Err(Refusal::new(Errno::ENOENT, message));
        }
        let key = args.req("key_name");
        if !this.meta.remove(USER, key) {
            return Err(no_key(key));
        }
        this.write_meta(v).await?;
        Ok(String::new())
    };
    absent_is_well(args.flag("force"), removed.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_where_stock_has_them() {
        let group = |name: &str| Group { name: name.into(), stat: None };
        assert_eq!(users_path(&group("_nogroup"), "s"), "/volumes/_:s.meta");
        assert_eq!(users_path(&group("g"), "s"), "/volumes/_g:s.meta");
        assert_eq!(base_of(&group("g"), "s"), "/volumes/g/s");
        let legacy = "/volumes/_legacy/ea2ec9136659aa1664bfd926e5598982.meta";
        assert_eq!(legacy_path("/volumes/g/s"), legacy);
    }

    #[test]
    fn a_record_is_that_of_stock() {
        let mut s = Subvolume {
            group: Group { name: "g".into(), stat: None },
            name: "s".into(),
            meta: Ini::default(),
            legacy: false,
            version: 2,
            stat: None,
        };
        s.record(2, "/volumes/g/s/u").unwrap();
        let text =
            "[GLOBAL]\nversion = 2\ntype = subvolume\npath = /volumes/g/s/u\nstate = complete\n\n";
        assert_eq!(s.meta.text(), text);
        assert_eq!(s.features().len(), 3);
    }
}
