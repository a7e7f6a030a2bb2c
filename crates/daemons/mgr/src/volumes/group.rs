//! Groups of subvolumes: directories below `/volumes` (Ceph 16.2: `operations/group.py`).

use super::{BASE, INTERNAL, NO_GROUP, Result, Volume, check_name, json_text, mode_of, refusal};
use command::{Args, Refusal};
use fs_client::Stat;
use serde_json::{Value, json};
use types::Utime;
use types::errno::Errno;

/// A group.
pub struct Group {
    /// Its name; [`NO_GROUP`] if none was named.
    pub name: String,
    /// Its directory, if it is there.
    pub stat: Option<Stat>,
}

/// What a quota's use is, as commands show it.
pub fn percent(used: u64, quota: i64) -> String {
    match quota {
        0 => "undefined".to_owned(),
        quota => format!("{:.2}", used as f64 / quota as f64 * 100.0),
    }
}

/// A time as Python shows it: seconds in UTC.
pub fn time_text(time: Utime) -> String {
    time.to_string().chars().take(19).map(|c| if c == 'T' { ' ' } else { c }).collect()
}

/// A new size as a command gives it: bytes, or 0 for no limit.
pub fn new_size(text: &str, what: &str) -> Result<i64> {
    match text.trim().parse::<i64>() {
        Ok(n) if n > 0 => Ok(n),
        Ok(_) => Err(Refusal::invalid(format!("Invalid {what} size"))),
        Err(_) => match text.to_lowercase().as_str() {
            "inf" | "infinite" => Ok(0),
            other => Err(Refusal::invalid(format!("invalid size option '{other}'"))),
        },
    }
}

/// A number of a user or group.
pub fn owner(args: &Args, name: &str) -> Result<Option<u32>> {
    let Some(n) = args.int(name) else { return Ok(None) };
    let n = u32::try_from(n);
    n.map(Some).map_err(|_| Refusal::invalid(format!("invalid {}", name.to_uppercase())))
}

impl Group {
    /// Its path.
    pub fn path(&self) -> String {
        format!("{BASE}/{}", self.name)
    }

    /// Whether it is that of subvolumes without a group.
    pub fn is_default(&self) -> bool {
        self.name == NO_GROUP
    }

    /// The group of this name; the default one need not be there.
    pub async fn open(v: &Volume<'_>, name: Option<&str>) -> Result<Group> {
        let mut group = named(name)?;
        match v.mount.stat(&fs_client::path(group.path())).await {
            Ok(stat) => group.stat = Some(stat),
            Err(e) if e.is(Errno::ENOENT) && group.is_default() => {}
            Err(e) if e.is(Errno::ENOENT) => return Err(absent(&group.name)),
            Err(e) => return Err(refusal(e)),
        }
        Ok(group)
    }

    /// Names of its subvolumes.
    pub async fn subvolumes(&self, v: &Volume<'_>) -> Result<Vec<String>> {
        match v.directories(&self.path()).await {
            Err(e) if e.is(Errno::ENOENT) && self.is_default() => Ok(Vec::new()),
            names => names.map_err(refusal),
        }
    }
}

fn named(name: Option<&str>) -> Result<Group> {
    let name = name.filter(|n| !n.is_empty());
    if name == Some(NO_GROUP) {
        return Err(Refusal::new(
            Errno::EPERM,
            format!("Operation not permitted for group '{NO_GROUP}' as it is an internal group."),
        ));
    }
    if let Some(name) = name {
        if INTERNAL.contains(&name) {
            return Err(Refusal::invalid(format!(
                "'{name}' is an internal directory and not a valid group name."
            )));
        }
        check_name("group", name)?;
    }
    Ok(Group { name: name.unwrap_or(NO_GROUP).to_owned(), stat: None })
}

fn absent(name: &str) -> Refusal {
    Refusal::new(Errno::ENOENT, format!("subvolume group '{name}' does not exist"))
}

/// `subvolumegroup create`.
pub async fn create(v: &Volume<'_>, args: &Args) -> Result<String> {
    let name = args.req("group_name");
    check_name("group", name)?;
    let mode = mode_of(args.str("mode"))?;
    match Group::open(v, Some(name)).await {
        Ok(group) => set_attributes(v, &group.path(), args, Some(mode)).await?,
        Err(e) if e.errno == Errno::ENOENT => {
            let path = named(Some(name))?.path();
            v.base_dir(BASE).await?;
            v.mount.mkdir(&fs_client::path(&path), mode).await.map_err(refusal)?;
            if let Err(e) = set_attributes(v, &path, args, None).await {
                v.mount.rmdir(&fs_client::path(&path)).await.ok();
                return Err(e);
            }
        }
        Err(e) => return Err(e),
    }
    Ok(String::new())
}

async fn set_attributes(v: &Volume<'_>, path: &str, args: &Args, mode: Option<u32>) -> Result<()> {
    if let Some(bytes) = args.int("size") {
        v.set_quota(path, bytes).await?;
    }
    let pool = match args.str("pool_layout").filter(|p| !p.is_empty()) {
        Some(pool) => pool.to_owned(),
        None => v.pool_above(path).await?,
    };
    let refused = format!("Invalid pool layout '{pool}'. It must be a valid data pool");
    v.set_pool(path, &pool, refused).await?;
    let (uid, gid) = (owner(args, "uid")?, owner(args, "gid")?);
    let at = fs_client::path(path);
    v.mount.chown(&at, uid.unwrap_or(0), gid.unwrap_or(0)).await.map_err(refusal)?;
    match mode {
        Some(mode) => v.mount.chmod(&at, mode).await.map_err(refusal),
        None => Ok(()),
    }
}

/// `subvolumegroup rm`.
pub async fn remove(v: &Volume<'_>, args: &Args) -> Result<String> {
    let group = named(Some(args.req("group_name")))?;
    match v.mount.rmdir(&fs_client::path(group.path())).await {
        Ok(()) => Ok(String::new()),
        Err(e) if e.is(Errno::ENOENT) && args.flag("force") => Ok(String::new()),
        Err(e) if e.is(Errno::ENOENT) => Err(absent(&group.name)),
        Err(e) => Err(refusal(e)),
    }
}

/// Names of groups.
async fn groups(v: &Volume<'_>) -> Result<Vec<String>> {
    match v.directories(BASE).await {
        Ok(names) => Ok(names.into_iter().filter(|n| !INTERNAL.contains(&n.as_str())).collect()),
        Err(e) if e.is(Errno::ENOENT) => Ok(Vec::new()),
        Err(e) => Err(refusal(e)),
    }
}

/// Names as commands list them.
pub fn names_text(names: &[String]) -> String {
    json_text(&names.iter().map(|n| json!({"name": n})).collect())
}

/// `subvolumegroup ls`.
pub async fn list(v: &Volume<'_>, _: &Args) -> Result<String> {
    Ok(names_text(&groups(v).await?))
}

/// `subvolumegroup exist`.
pub async fn exist(v: &Volume<'_>, _: &Args) -> Result<String> {
    let none = groups(v).await?.is_empty();
    Ok(if none { "no subvolumegroup exists" } else { "subvolumegroup exists" }.to_owned())
}

/// `subvolumegroup getpath`.
pub async fn path_of(v: &Volume<'_>, args: &Args) -> Result<String> {
    Ok(Group::open(v, args.str("group_name")).await?.path())
}

/// What is shown of a directory: of a group, and of a subvolume.
pub fn describe(v: &Volume<'_>, s: &Stat) -> Result<Value> {
    let no_data = || Refusal::new(Errno::ENODATA, Errno::ENODATA.describe());
    let layout = s.layout.as_ref().ok_or_else(no_data)?;
    let quota = s.quota_bytes;
    Ok(json!({
        "uid": s.uid,
        "gid": s.gid,
        "atime": time_text(s.atime),
        "mtime": time_text(s.mtime),
        "ctime": time_text(s.ctime),
        "mode": s.mode,
        "data_pool": v.pool_name(layout.pool).ok_or_else(no_data)?,
        "created_at": time_text(s.btime),
        "bytes_quota": if quota == 0 { json!("infinite") } else { json!(quota) },
        "bytes_used": s.rbytes,
        "bytes_pcent": percent(s.rbytes, quota),
    }))
}

/// `subvolumegroup info`, without the monitors' addresses.
pub async fn info(v: &Volume<'_>, args: &Args) -> Result<Value> {
    let group = Group::open(v, args.str("group_name")).await?;
    let stat = group.stat.ok_or_else(|| absent(&group.name))?;
    describe(v, &stat)
}

/// Changes a quota: what is said of it.
pub async fn resize_at(v: &Volume<'_>, path: &str, args: &Args, what: &str) -> Result<String> {
    let size = new_size(args.req("new_size"), what)?;
    let stat = v.mount.stat(&fs_client::path(path)).await.map_err(refusal)?;
    if size > 0 && (size as u64) < stat.rbytes && args.flag("no_shrink") {
        return Err(Refusal::invalid(format!(
            "Can't resize the {what}. The new size '{size}' would be lesser than the current used size '{}'",
            stat.rbytes
        )));
    }
    if size != stat.quota_bytes {
        v.set_quota(path, size).await.map_err(|e| {
            let message = format!("Cannot set new size for the {what}. '{}'", e.message);
            Refusal { message, ..e }
        })?;
    }
    Ok(json_text(&json!([
        {"bytes_used": stat.rbytes},
        {"bytes_quota": size},
        {"bytes_pcent": percent(stat.rbytes, size)},
    ])))
}

/// `subvolumegroup resize`.
pub async fn resize(v: &Volume<'_>, args: &Args) -> Result<String> {
    let group = Group::open(v, args.str("group_name")).await?;
    resize_at(v, &group.path(), args, "subvolume group").await
}

/// Which rank a directory is for.
pub async fn pin_at(v: &Volume<'_>, path: &str, args: &Args) -> Result<String> {
    let setting = args.req("pin_setting");
    let wrong = || Refusal::invalid(format!("pin value wrong type: {setting}"));
    let text = setting.trim();
    let (attribute, value) = match args.req("pin_type") {
        "export" => ("ceph.dir.pin", text.parse::<i64>().map_err(|_| wrong())?.to_string()),
        "distributed" => {
            let on = match text.to_lowercase().as_str() {
                "y" | "yes" | "t" | "true" | "on" | "1" => 1,
                "n" | "no" | "f" | "false" | "off" | "0" => 0,
                _ => return Err(wrong()),
            };
            ("ceph.dir.pin.distributed", on.to_string())
        }
        _ => {
            let part = text.parse::<f64>().ok().filter(|p| p.is_finite()).ok_or_else(wrong)?;
            ("ceph.dir.pin.random", format!("{part:?}"))
        }
    };
    v.mount.set_xattr(&fs_client::path(path), attribute, &value).await.map_err(refusal)?;
    Ok("{}".to_owned())
}

/// `subvolumegroup pin`.
pub async fn pin(v: &Volume<'_>, args: &Args) -> Result<String> {
    let group = Group::open(v, args.str("group_name")).await?;
    pin_at(v, &group.path(), args).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_parts_are_as_in_stock() {
        assert_eq!(new_size("10", "subvolume").unwrap(), 10);
        assert_eq!(new_size("Infinite", "subvolume").unwrap(), 0);
        assert_eq!(new_size("0", "subvolume").unwrap_err().message, "Invalid subvolume size");
        assert_eq!(new_size("x", "subvolume").unwrap_err().message, "invalid size option 'x'");
        assert_eq!(percent(1, 3), "33.33");
        assert_eq!(percent(1, 0), "undefined");
        assert_eq!(time_text(Utime::new(1_000_000_000, 5)), "2001-09-09 01:46:40");
    }

    #[test]
    fn internal_names_are_refused() {
        assert_eq!(named(None).unwrap().path(), "/volumes/_nogroup");
        assert_eq!(named(Some("g")).unwrap().path(), "/volumes/g");
        assert_eq!(named(Some(NO_GROUP)).err().unwrap().errno, Errno::EPERM);
        assert_eq!(named(Some("_deleting")).err().unwrap().errno, Errno::EINVAL);
        assert_eq!(named(Some("../x")).err().unwrap().errno, Errno::EINVAL);
    }
}
