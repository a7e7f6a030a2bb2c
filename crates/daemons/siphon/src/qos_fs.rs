//! `siphon qos` for file systems. The metadata server keeps what subvolumes are promised: virtual
//! attributes of their roots say it.

use crate::cli::QosSet;
use crate::qos_cluster::PATIENCE;
use crate::qos_top::{percentile, since};
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use client::Rados;
use fs_client::{FsError, Kind, Mount, Options};
use serde_json::{Map, Value, json};
use std::fmt;
use types::fsmap::{MdsMap, MdsState};
use types::{Epoch, Errno};

/// How selectors of subvolumes begin.
pub const PREFIX: &str = "fs:";
/// Below it groups are (16.2: `VolSpec`).
const BASE: &str = "volumes";
/// The virtual attributes.
const RESERVATION: &str = "ceph.dmclock.mds_reservation";
const WEIGHT: &str = "ceph.dmclock.mds_weight";
const LIMIT: &str = "ceph.dmclock.mds_limit";

/// Subvolumes of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    fs: String,
    within: Within,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Within {
    /// Each subvolume.
    All,
    /// Each subvolume of a group.
    Group(String),
    /// One.
    Sub(String, String),
    /// A directory that is the root of a subvolume, by its path.
    Dir(String),
}

impl Place {
    /// Reads `fs:NAME`, `fs:NAME/GROUP`, `fs:NAME/GROUP/SUB` and `fs:NAME//PATH`. Nothing if the
    /// text is about something else.
    pub fn parse(text: &str) -> Option<Result<Place>> {
        let rest = text.strip_prefix(PREFIX)?;
        let bad = || {
            anyhow!(
                "'{text}' is none of fs:NAME, fs:NAME/GROUP, fs:NAME/GROUP/SUBVOLUME, fs:NAME//PATH"
            )
        };
        let (fs, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let odd = |part: &str| part.is_empty() || part == "." || part == "..";
        let within = match rest.split('/').collect::<Vec<_>>().as_slice() {
            [""] if !text.ends_with('/') => Within::All,
            ["", path @ ..] if !path.is_empty() && !path.iter().any(|p| odd(p)) => {
                Within::Dir(path.join("/"))
            }
            [group] if !odd(group) => Within::Group((*group).to_owned()),
            [group, sub] if !odd(group) && !odd(sub) => {
                Within::Sub((*group).to_owned(), (*sub).to_owned())
            }
            _ => return Some(Err(bad())),
        };
        Some(if fs.is_empty() { Err(bad()) } else { Ok(Place { fs: fs.to_owned(), within }) })
    }

    /// Whether a tenant, as metadata servers name it, is in it.
    pub fn has(&self, tenant: &str) -> bool {
        let name = self.to_string();
        match self.within {
            Within::Sub(..) | Within::Dir(_) => tenant == name,
            _ => tenant.strip_prefix(&name).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || rest.starts_with(" space ")
            }),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.fs)?;
        match &self.within {
            Within::All => Ok(()),
            Within::Group(group) => write!(f, "/{group}"),
            Within::Sub(group, sub) => write!(f, "/{group}/{sub}"),
            Within::Dir(path) => write!(f, "//{path}"),
        }
    }
}

/// What a subvolume is promised, as its attributes say it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Promise {
    reservation: Option<f64>,
    weight: Option<u32>,
    limit: Option<f64>,
}

impl Promise {
    /// From the arguments of `siphon qos set`.
    pub fn of(a: &QosSet) -> Result<Promise> {
        let more = [
            ("--like", a.like.is_some()),
            ("--floor-bps", a.floor_bps.is_some()),
            ("--ceiling-bps", a.ceiling_bps.is_some()),
            ("--floor-iops-per-gib", a.floor_iops_per_gib.is_some()),
            ("--ceiling-iops-per-gib", a.ceiling_iops_per_gib.is_some()),
            ("--burst-iops", a.burst_iops.is_some()),
            ("--burst-bps", a.burst_bps.is_some()),
            ("--burst-seconds", a.burst_seconds.is_some()),
        ];
        if let Some((name, _)) = more.iter().find(|(_, given)| *given) {
            bail!(
                "{name}: subvolumes have --floor-iops, --ceiling-iops and --weight, of requests to metadata servers"
            );
        }
        let rate = |n: Option<u64>| n.filter(|n| *n != 0).map(|n| n as f64);
        let promise = Promise {
            reservation: rate(a.floor_iops),
            weight: a.weight,
            limit: rate(a.ceiling_iops),
        };
        if let (Some(floor), Some(ceiling)) = (promise.reservation, promise.limit)
            && floor > ceiling
        {
            bail!("the floor is above the ceiling");
        }
        Ok(promise)
    }

    fn is_nothing(&self) -> bool {
        *self == Promise::default()
    }

    fn to_json(&self) -> Value {
        let mut said = Map::new();
        let rate = |n: f64| if n.fract() == 0.0 { json!(n as u64) } else { json!(n) };
        if let Some(n) = self.reservation {
            said.insert("floor_iops".into(), rate(n));
        }
        if let Some(n) = self.limit {
            said.insert("ceiling_iops".into(), rate(n));
        }
        if let Some(n) = self.weight {
            said.insert("weight".into(), n.into());
        }
        said.into()
    }

    /// The attributes to be set one after the other, so that no step has a floor above its ceiling.
    fn steps(&self, before: &Promise) -> Vec<(&'static str, String)> {
        let text = |n: Option<f64>| n.unwrap_or(0.0).to_string();
        let floor = (RESERVATION, text(self.reservation));
        let ceiling = (LIMIT, text(self.limit));
        let fits = match (self.reservation, before.limit) {
            (Some(floor), Some(ceiling)) => floor <= ceiling,
            _ => true,
        };
        let weight = (WEIGHT, self.weight.unwrap_or(0).to_string());
        if fits { vec![floor, ceiling, weight] } else { vec![ceiling, floor, weight] }
    }
}

/// A file system in use.
struct Volume {
    mount: Mount,
    name: String,
}

impl Volume {
    async fn open(rados: &Rados, name: &str) -> Result<Volume> {
        let map = rados.objecter().fs_map().await?;
        let absent = || anyhow!("there is no file system {name}");
        let fs = map.by_name(name).ok_or_else(absent)?;
        let metadata = [("entity_id", "admin"), ("ceph_version", types::version::LONG)];
        let metadata = metadata.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        // Commands go to the servers from the client's own address.
        let mount = Mount::new(rados.clone(), Options { nonce: rand::random(), metadata });
        mount.follow(&fs.map);
        tokio::task::spawn_local(follow(rados.clone(), mount.clone(), fs.id, map.epoch));
        Ok(Volume { mount, name: name.to_owned() })
    }

    /// The paths of the subvolumes that a place has.
    async fn subvolumes(&self, place: &Place) -> Result<Vec<(String, String)>> {
        let sub = |group: &str, sub: &str| {
            (format!("{PREFIX}{}/{group}/{sub}", self.name), format!("/{BASE}/{group}/{sub}"))
        };
        let groups = match &place.within {
            Within::Sub(group, name) => return Ok(vec![sub(group, name)]),
            Within::Dir(path) => return Ok(vec![(place.to_string(), format!("/{path}"))]),
            Within::Group(group) => vec![group.clone()],
            Within::All => self.directories(&format!("/{BASE}")).await?,
        };
        let mut found = Vec::new();
        // What is being removed, and records of others, are no groups.
        for group in groups.iter().filter(|g| !g.starts_with('_') || *g == "_nogroup") {
            let names = self.directories(&format!("/{BASE}/{group}")).await?;
            found.extend(names.iter().map(|name| sub(group, name)));
        }
        if found.is_empty() {
            bail!("there is no subvolume in {place}");
        }
        Ok(found)
    }

    async fn directories(&self, path: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let at = fs_client::path(path);
        let mut dir = self.mount.read_dir(&at).await.with_context(|| self.at(path))?;
        while let Some(page) = dir.next().await? {
            let dirs = page.into_iter().filter(|e| e.kind == Kind::Dir);
            names.extend(dirs.map(|e| String::from_utf8_lossy(&e.name).into_owned()));
        }
        Ok(names)
    }

    fn at(&self, path: &str) -> String {
        format!("{path} of the file system {}", self.name)
    }

    async fn promise(&self, path: &str) -> Result<Promise> {
        let at = fs_client::path(path);
        let get = async |name: &str| {
            let value = self.mount.virtual_xattr(&at, name).await;
            value.map_err(|e| self.said(e, path))
        };
        let rate = |text: Option<String>| text.and_then(|t| t.parse().ok());
        Ok(Promise {
            reservation: rate(get(RESERVATION).await?),
            weight: get(WEIGHT).await?.and_then(|t| t.parse().ok()),
            limit: rate(get(LIMIT).await?),
        })
    }

    async fn set(&self, path: &str, promise: &Promise) -> Result<()> {
        let at = fs_client::path(path);
        let before = self.promise(path).await?;
        for (name, value) in promise.steps(&before) {
            let set = self.mount.set_xattr(&at, name, &value).await;
            set.map_err(|e| self.said(e, path))?;
        }
        Ok(())
    }

    fn said(&self, e: FsError, path: &str) -> anyhow::Error {
        let at = self.at(path);
        match e.errno() {
            Errno::ENOENT => anyhow!("there is no {at}"),
            Errno::EINVAL | Errno::EOPNOTSUPP => anyhow!(
                "{at} is not the root of a subvolume, or the metadata server is a stock one, which promises nothing"
            ),
            _ => anyhow!(e).context(at),
        }
    }

    /// Ends the session, whatever came of its use.
    async fn done<T>(self, result: Result<T>) -> Result<T> {
        self.mount.close().await;
        result
    }
}

/// Keeps a mount up to date, until the connection with the cluster ends.
async fn follow(rados: Rados, mount: Mount, id: i32, mut seen: Epoch) {
    while let Ok(map) = rados.objecter().wait_fs_map(Epoch(seen.0 + 1)).await {
        seen = map.epoch;
        if let Some(fs) = map.filesystems.get(&id) {
            mount.follow(&fs.map);
        }
    }
}

/// Makes promises: each subvolume of the place is promised the same.
pub async fn set(rados: &Rados, place: &Place, promise: &Promise) -> Result<()> {
    let volume = Volume::open(rados, &place.fs).await?;
    let work = async {
        for (_, path) in volume.subvolumes(place).await? {
            volume.set(&path, promise).await?;
        }
        Ok(())
    };
    let result = work.await;
    volume.done(result).await
}

/// Prints what is promised.
pub async fn get(rados: &Rados, place: &Place) -> Result<()> {
    let volume = Volume::open(rados, &place.fs).await?;
    let work = async {
        let mut found = Map::new();
        for (name, path) in volume.subvolumes(place).await? {
            let promise = volume.promise(&path).await?;
            if !promise.is_nothing() {
                found.insert(name, promise.to_json());
            }
        }
        if found.is_empty() {
            bail!("there is no specification for {place}");
        }
        let one = matches!(place.within, Within::Sub(..) | Within::Dir(_));
        let said = match found.values().next().filter(|_| one) {
            Some(promise) => promise.clone(),
            None => found.into(),
        };
        println!("{}", serde_json::to_string_pretty(&said)?);
        Ok(())
    };
    let result = work.await;
    volume.done(result).await
}

/// Takes promises back.
pub async fn rm(rados: &Rados, place: &Place) -> Result<()> {
    set(rados, place, &Promise::default()).await
}

/// The active servers of all file systems that can say what they promise: global ids.
fn active(map: &MdsMap) -> impl Iterator<Item = u64> {
    let own = types::fsmap::has_own_log(&map.compat);
    let active = map.mds_info.values().filter(move |i| own && i.state == MdsState::ACTIVE);
    active.map(|i| i.gid)
}

/// What each active metadata server says of its tenants. One that goes meanwhile says nothing.
pub async fn dumps(rados: &Rados) -> Result<Vec<Value>> {
    let map = rados.objecter().fs_map().await?;
    let mut asked = tokio::task::JoinSet::new();
    for gid in map.filesystems.values().flat_map(|fs| active(&fs.map)) {
        let rados = rados.clone();
        asked.spawn_local(async move {
            let command = r#"{"prefix": "dump_qos", "format": "json"}"#;
            let answer = rados.mds_command(gid, command, Bytes::new());
            tokio::time::timeout(PATIENCE, answer).await
        });
    }
    let mut dumps = Vec::new();
    while let Some(done) = asked.join_next().await {
        if let Ok(Ok(answer)) = done? {
            dumps.push(serde_json::from_slice(&answer.ok()?)?);
        }
    }
    Ok(dumps)
}

/// Tenants with a specification: name, weight, floor and ceiling.
pub fn promised(dumps: &[Value]) -> Vec<(String, u64, Option<f64>, Option<f64>)> {
    let tenants = dumps.iter().flat_map(|d| d["tenants"].as_array().into_iter().flatten());
    let mut all: Vec<_> = tenants
        .filter(|t| t["specified"] == true)
        .map(|t| {
            (
                t["tenant"].as_str().unwrap_or_default().to_owned(),
                t["weight"].as_u64().unwrap_or(0),
                t["reservation"].as_f64(),
                t["limit"].as_f64(),
            )
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// What was counted of a tenant between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
struct Used {
    weight: u64,
    floor: Option<f64>,
    ceiling: Option<f64>,
    specified: bool,
    offered: u64,
    served: u64,
    waiting: u64,
    waited_ns: u64,
    waits: Vec<u64>,
}

fn counted(dumps: &[Value]) -> std::collections::BTreeMap<String, Used> {
    let mut all = std::collections::BTreeMap::<String, Used>::new();
    for t in dumps.iter().flat_map(|d| d["tenants"].as_array().into_iter().flatten()) {
        let Some(name) = t["tenant"].as_str() else { continue };
        let used = all.entry(name.to_owned()).or_default();
        let n = |what: &str| t[what].as_u64().unwrap_or(0);
        (used.weight, used.specified) = (n("weight"), t["specified"] == true);
        (used.floor, used.ceiling) = (t["reservation"].as_f64(), t["limit"].as_f64());
        used.offered += n("offered");
        used.served += n("served");
        used.waiting += n("waiting");
        used.waited_ns += n("waited_ns");
        let waits = t["waits_log2_us"].as_array().into_iter().flatten();
        for (i, n) in waits.enumerate() {
            if used.waits.len() <= i {
                used.waits.resize(i + 1, 0);
            }
            used.waits[i] += n.as_u64().unwrap_or(0);
        }
    }
    all
}

impl Used {
    fn since(&self, before: Option<&Used>) -> Used {
        let mut d = self.clone();
        let Some(before) = before else { return d };
        d.offered = since(d.offered, before.offered);
        d.served = since(d.served, before.served);
        d.waited_ns = since(d.waited_ns, before.waited_ns);
        for (n, old) in d.waits.iter_mut().zip(&before.waits) {
            *n = since(*n, *old);
        }
        d
    }

    /// Why it is as slow as it is.
    fn verdict(&self, seconds: f64, others_waiting: bool) -> String {
        let (asked, got) = (self.offered as f64 / seconds, self.served as f64 / seconds);
        match self.ceiling {
            _ if self.offered == 0 && self.waiting == 0 => {
                "nothing was asked for: what clients do by their capabilities needs no server"
                    .into()
            }
            Some(limit) if self.waiting > 0 && got >= limit * 0.9 => {
                format!(
                    "it is at its ceiling of {limit} requests each second; {} wait",
                    self.waiting
                )
            }
            _ if self.waiting > 0 && others_waiting => format!(
                "the server is busy: {} requests wait beside those of others, by weight ({})",
                self.waiting, self.weight
            ),
            _ if self.waiting > 0 => {
                format!("the server is busy with its own requests: {} wait", self.waiting)
            }
            _ => format!("it got what it asked for: {asked:.0} requests each second"),
        }
    }

    fn mean_wait_us(&self) -> u64 {
        self.waited_ns / self.served.max(1) / 1_000
    }
}

/// Says where the time of requests of tenants goes.
pub fn explain(
    place: &Place,
    before: &[Value],
    after: &[Value],
    seconds: f64,
    as_json: bool,
) -> Result<()> {
    let (earlier, later) = (counted(before), counted(after));
    let found: Vec<(&String, Used)> = later
        .iter()
        .filter(|(name, _)| place.has(name))
        .map(|(name, used)| (name, used.since(earlier.get(name))))
        .collect();
    if found.is_empty() {
        let others: Vec<&str> = later.keys().take(10).map(String::as_str).collect();
        let others = if others.is_empty() { "none".into() } else { others.join(" ") };
        bail!(
            "no active metadata server has seen {place} since it began, and none is promised anything; those that were seen: {others}"
        );
    }
    let waits = |name: &str| later.iter().any(|(other, u)| other != name && u.waiting > 0);
    if as_json {
        let tenants = found.iter().map(|(name, u)| {
            json!({
                "tenant": name, "specified": u.specified, "weight": u.weight,
                "floor_iops": u.floor, "ceiling_iops": u.ceiling,
                "offered_iops": u.offered as f64 / seconds,
                "served_iops": u.served as f64 / seconds,
                "waiting": u.waiting,
                "wait_us": {
                    "mean": u.mean_wait_us(),
                    "p50": percentile(&u.waits, 0.5),
                    "p99": percentile(&u.waits, 0.99),
                },
                "verdict": u.verdict(seconds, waits(name)),
            })
        });
        let tenants: Vec<Value> = tenants.collect();
        println!(
            "{}",
            json!({"selector": place.to_string(), "seconds": seconds, "tenants": tenants})
        );
        return Ok(());
    }
    for (name, u) in &found {
        let rate = |r: Option<f64>| r.map_or("none".to_owned(), |r| r.to_string());
        println!(
            "{name}: floor {}, ceiling {}, weight {}",
            rate(u.floor),
            rate(u.ceiling),
            u.weight
        );
        println!(
            "  {:.0} requests each second asked for, {:.0} begun; {} wait",
            u.offered as f64 / seconds,
            u.served as f64 / seconds,
            u.waiting
        );
        println!(
            "  waited in the scheduler: mean {} us, p50 {} us, p99 {} us",
            u.mean_wait_us(),
            percentile(&u.waits, 0.5),
            percentile(&u.waits, 0.99)
        );
        println!("  {}", u.verdict(seconds, waits(name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        Place::parse(text).unwrap().unwrap()
    }

    #[test]
    fn places_are_read_and_written() {
        for text in ["fs:a", "fs:a/g", "fs:a/_nogroup/s", "fs:a//some/dir"] {
            assert_eq!(place(text).to_string(), text);
        }
        for text in
            ["fs:", "fs:a/", "fs:/g", "fs:a/g/", "fs:a/g/s/t", "fs:a//", "fs:a//x/../y", "fs:a/.."]
        {
            assert!(Place::parse(text).unwrap().is_err(), "{text}");
        }
        assert!(Place::parse("pool").is_none() && Place::parse("client.fs:a").is_none());
    }

    #[test]
    fn tenants_are_in_places() {
        assert!(place("fs:a").has("fs:a") && place("fs:a").has("fs:a/g/s"));
        assert!(place("fs:a").has("fs:a space 0x200") && !place("fs:a").has("fs:ab/g/s"));
        assert!(place("fs:a/g").has("fs:a/g/s") && !place("fs:a/g").has("fs:a/h/s"));
        assert!(place("fs:a/g/s").has("fs:a/g/s") && !place("fs:a/g/s").has("fs:a/g/st"));
    }

    #[test]
    fn no_step_has_a_floor_above_its_ceiling() {
        let p = |floor: u32, ceiling: u32| Promise {
            reservation: Some(f64::from(floor)).filter(|n| *n != 0.0),
            weight: None,
            limit: Some(f64::from(ceiling)).filter(|n| *n != 0.0),
        };
        let all = [p(0, 0), p(0, 10), p(10, 10), p(10, 0), p(20, 30), p(30, 0), p(5, 5)];
        for before in &all {
            for after in &all {
                let mut now = before.clone();
                for (name, value) in after.steps(before) {
                    let value = Some(value.parse::<f64>().unwrap()).filter(|n| *n != 0.0);
                    match name {
                        RESERVATION => now.reservation = value,
                        LIMIT => now.limit = value,
                        _ => {}
                    }
                    let fits = now.limit.is_none_or(|c| now.reservation.is_none_or(|f| f <= c));
                    assert!(fits, "{before:?} to {after:?}: {now:?}");
                }
                assert_eq!(now, *after);
            }
        }
    }

    #[test]
    fn reasons_are_told() {
        let dump = |served: u64, waiting: u64| {
            vec![json!({"tenants": [
                {"tenant": "fs:a/g/s", "specified": true, "weight": 100, "limit": 100.0,
                 "offered": served, "served": served, "waiting": waiting, "waited_ns": 0},
            ]})]
        };
        let said = |served, waiting, others| {
            let (before, after) = (counted(&dump(0, 0)), counted(&dump(served, waiting)));
            after["fs:a/g/s"].since(before.get("fs:a/g/s")).verdict(1.0, others)
        };
        assert!(said(100, 3, true).starts_with("it is at its ceiling of 100 "));
        assert!(said(50, 3, true).contains("beside those of others"));
        assert!(said(50, 0, true).starts_with("it got what it asked for"));
        assert!(said(0, 0, true).starts_with("nothing was asked for"));
        assert_eq!(promised(&dump(1, 1)), [("fs:a/g/s".to_owned(), 100, None, Some(100.0))]);
    }
}
