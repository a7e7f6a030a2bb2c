//! `siphon report`: one archive with what a report of a fault needs.

use crate::cli::Report;
use crate::redact::{Redactor, SECRET, is_secret};
use anyhow::{Context, Result, bail};
use auth::AuthName;
use bytes::Bytes;
use client::{ClusterConfig, Rados};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use types::{EntityType, PoolId};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of the end of each log.
const TAIL: u64 = 1 << 20;
/// Bytes of one answer.
const ANSWER_MAX: usize = 256 << 20;
/// Logs that are taken.
const LOGS_MAX: usize = 64;

/// What is asked, and whether the manager is.
const ASKED: &[(&str, &str, bool)] = &[
    ("versions.json", "versions", false),
    ("status.json", "status", false),
    ("health-detail.json", "health", false),
    ("mon-dump.json", "mon dump", false),
    ("mon-metadata.json", "mon metadata", false),
    ("mgr-dump.json", "mgr dump", false),
    ("osd-dump.json", "osd dump", false),
    ("osd-tree.json", "osd tree", false),
    ("osd-metadata.json", "osd metadata", false),
    ("osd-crush-dump.json", "osd crush dump", false),
    ("fs-dump.json", "fs dump", false),
    ("config-dump.json", "config dump", false),
    ("log-last.json", "log last", false),
    ("df.json", "df", false),
    ("osd-df.json", "osd df", true),
    ("osd-perf.json", "osd perf", true),
    ("pg-stat.json", "pg stat", true),
    ("pg-dump-pgs-brief.json", "pg dump_json", true),
    ("crash-ls.json", "crash ls", true),
    ("progress.json", "progress json", true),
    ("service-dump.json", "service dump", true),
];

/// Runs the command.
pub fn run(args: &Report) -> Result<()> {
    let config = ClusterConfig::read(&args.conf, AuthName::new(EntityType::CLIENT, "admin"))
        .with_context(|| {
            format!("{} cannot be used: -c names a cluster's ceph.conf", args.conf.display())
        })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (files, mut redactor) = tokio::task::LocalSet::new().block_on(&runtime, async {
        let rados = Rados::connect(&config, PATIENCE)
            .await
            .context("no answer from the monitors: is the cluster running?")?;
        let mut redactor = Redactor::new(args.redact);
        let files = gather(&rados, &mut redactor).await;
        rados.shutdown();
        files.map(|files| (files, redactor))
    })?;
    let mut files = files;
    for log in &args.logs {
        files.extend(logs(log)?);
    }
    let written = write(&args.file, &files, &mut redactor)?;
    println!(
        "{}: {written} files, {} names replaced; read it before you pass it on",
        args.file.display(),
        redactor.names()
    );
    Ok(())
}

async fn ask(rados: &Rados, prefix: &str, manager: bool) -> Result<Bytes> {
    let mut command = json!({"prefix": prefix, "format": "json"});
    match prefix {
        "health" => command["detail"] = "detail".into(),
        "log last" => command["num"] = 1000.into(),
        _ => {}
    }
    let command = command.to_string();
    let asked = async {
        match manager {
            true => rados.mgr_command(&command, Bytes::new()).await,
            false => rados.mon_command(&command, Bytes::new()).await,
        }
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await.context("no answer in time")??;
    let output = answer.ok()?;
    if output.len() > ANSWER_MAX {
        bail!("{} bytes are too many", output.len());
    }
    Ok(output)
}

/// The files of the archive, by name. What has no answer says why.
async fn gather(rados: &Rados, redactor: &mut Redactor) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    let mut parsed = std::collections::BTreeMap::new();
    for (file, prefix, manager) in ASKED {
        let text = match ask(rados, prefix, *manager).await {
            Ok(bytes) => match serde_json::from_slice::<Value>(&bytes) {
                Ok(value) => {
                    let value = trimmed(prefix, value);
                    let text = format!("{value:#}\n");
                    parsed.insert(*prefix, value);
                    text
                }
                Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
            },
            Err(e) => format!("'{prefix}' has no answer: {e:#}\n"),
        };
        files.push(((*file).to_owned(), text));
    }
    let users = ask(rados, "auth ls", false).await.ok();
    let users: Value = users.and_then(|u| serde_json::from_slice(&u).ok()).unwrap_or_default();
    collect_names(&parsed, &users, redactor);
    collect_images(rados, &parsed, redactor).await;
    Ok(files)
}

/// What an archive does not need, or must not have, is left out.
fn trimmed(prefix: &str, mut value: Value) -> Value {
    match prefix {
        "config dump" => {
            for option in value.as_array_mut().into_iter().flatten() {
                if option["name"].as_str().is_some_and(is_secret) {
                    option["value"] = SECRET.into();
                }
            }
        }
        // Of groups the state and the place, without statistics.
        "pg dump_json" => {
            let groups = match value.get("pg_map") {
                Some(map) => map["pg_stats"].clone(),
                None => value["pg_stats"].clone(),
            };
            let keys = [
                "pgid",
                "state",
                "up",
                "acting",
                "up_primary",
                "acting_primary",
                "version",
                "last_scrub_stamp",
                "last_deep_scrub_stamp",
            ];
            let brief = |g: &Value| -> Value {
                keys.iter()
                    .map(|k| ((*k).to_owned(), g[*k].clone()))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            };
            value = groups.as_array().into_iter().flatten().map(brief).collect();
        }
        _ => {}
    }
    value
}

/// Names of hosts, pools, users and the cluster.
fn collect_names(
    parsed: &std::collections::BTreeMap<&str, Value>,
    users: &Value,
    redactor: &mut Redactor,
) {
    let rows = |prefix: &str, at: &str| -> Vec<Value> {
        let of = parsed.get(prefix).cloned().unwrap_or_default();
        let of = if at.is_empty() { of } else { of[at].clone() };
        of.as_array().cloned().unwrap_or_default()
    };
    let texts = |all: Vec<Value>, key: &str| -> BTreeSet<String> {
        all.iter().filter_map(|v| v[key].as_str().map(str::to_owned)).collect()
    };
    let mut hosts = texts(rows("osd metadata", ""), "hostname");
    hosts.extend(texts(rows("mon metadata", ""), "hostname"));
    hosts.extend(texts(rows("osd crush dump", "buckets"), "name"));
    let common = ["default", "localhost"];
    // A shadow of a bucket is named after it, with a class.
    let plain = |h: String| h.split('~').next().unwrap_or_default().to_owned();
    for host in hosts.into_iter().map(plain).filter(|h| !common.contains(&h.as_str())) {
        redactor.add("host", &host);
        if let Some((short, _)) = host.split_once('.') {
            redactor.add("host", short);
        }
    }
    for pool in texts(rows("osd dump", "pools"), "pool_name") {
        redactor.add("pool", &pool);
    }
    for name in texts(users["auth_dump"].as_array().cloned().unwrap_or_default(), "entity") {
        // Daemons are named by number or place, which the archive is about.
        if let Some(id) = name
            .strip_prefix("client.")
            .filter(|id| *id != "admin" && !id.starts_with("bootstrap-"))
        {
            redactor.add("user", id);
        }
    }
    for place in ["name", "fs_name"] {
        for fs in rows("fs dump", "filesystems") {
            if let Some(name) = fs["mdsmap"][place].as_str() {
                redactor.add("filesystem", name);
            }
        }
    }
    if let Some(fsid) = parsed.get("status").and_then(|s| s["fsid"].as_str()) {
        redactor.add("cluster", fsid);
    }
}

/// Names of images and namespaces, of pools for block devices.
async fn collect_images(
    rados: &Rados,
    parsed: &std::collections::BTreeMap<&str, Value>,
    redactor: &mut Redactor,
) {
    let pools = parsed.get("osd dump").map(|d| d["pools"].clone()).unwrap_or_default();
    let of_rbd = |p: &&Value| p["application_metadata"].get("rbd").is_some();
    for pool in pools.as_array().into_iter().flatten().filter(of_rbd) {
        let Some(id) = pool["pool"].as_i64() else { continue };
        let ctx = rados.ioctx_of(PoolId(id)).with_timeout(PATIENCE);
        let mut spaces = vec![String::new()];
        spaces.extend(mgr::rbd::image::namespaces(&ctx).await.unwrap_or_default());
        for space in spaces {
            redactor.add("namespace", &space);
            let ctx = ctx.clone().with_namespace(&space);
            for name in mgr::rbd::image::names(&ctx).await.unwrap_or_default().into_values() {
                redactor.add("image", &name);
            }
        }
    }
}

/// The ends of the logs of a directory, or of a file.
fn logs(path: &Path) -> Result<Vec<(String, String)>> {
    let mut paths = vec![path.to_owned()];
    if path.is_dir() {
        let entries =
            fs::read_dir(path).with_context(|| format!("{} cannot be read", path.display()))?;
        paths = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        paths.retain(|p| p.is_file() && p.extension().is_some_and(|e| e == "log"));
        paths.sort();
        paths.truncate(LOGS_MAX);
    }
    paths
        .iter()
        .map(|p| {
            let end = tail(p).with_context(|| format!("{} cannot be read", p.display()))?;
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((format!("logs/{name}"), end))
        })
        .collect()
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut end = Vec::new();
    file.take(TAIL).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

/// Writes the archive, which only its owner may read. Names of files may be names of hosts.
fn write(path: &Path, files: &[(String, String)], redactor: &mut Redactor) -> Result<usize> {
    let open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut archive =
        tar::Builder::new(open.with_context(|| format!("{} cannot be made", path.display()))?);
    for (name, text) in files {
        let text = redactor.text(text);
        let name = redactor.text(name);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("siphon-report/{name}"), text.as_bytes())?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.sync_all()?;
    Ok(files.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_options_are_left_out() {
        let dump = json!([
            {"name": "mgr/x/password", "value": "hunter2"},
            {"name": "osd_max_backfills", "value": "3"},
        ]);
        let text = trimmed("config dump", dump).to_string();
        assert!(!text.contains("hunter2") && text.contains("\"3\""), "{text}");
    }

    #[test]
    fn of_groups_state_and_place_stay() {
        let dump = json!({"pg_map": {"pg_stats": [{"pgid": "1.0", "state": "active+clean", "stat_sum": {"num_bytes": 7}}]}});
        let brief = trimmed("pg dump_json", dump);
        assert_eq!(brief[0]["state"], "active+clean");
        assert!(brief[0].get("stat_sum").is_none());
    }

    #[test]
    fn an_archive_is_for_its_owner_and_never_overwrites() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.tar");
        let mut r = Redactor::new(true);
        r.add("host", "node7");
        let files = [("logs/osd.node7.log".to_owned(), "on node7\n".to_owned())];
        assert_eq!(write(&path, &files, &mut r).unwrap(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write(&path, &files, &mut r).is_err());
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!(
            (name.as_str(), text.as_str()),
            ("siphon-report/logs/osd.host-1.log", "on host-1\n")
        );
    }

    #[test]
    fn of_a_long_log_the_end_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("osd.0.log");
        fs::write(&path, [vec![b'a'; 10], vec![b'b'; TAIL as usize]].concat()).unwrap();
        fs::write(dir.path().join("keyring"), "secret").unwrap();
        let all = logs(dir.path()).unwrap();
        assert_eq!(
            (all.len(), all[0].0.as_str(), all[0].1.len()),
            (1, "logs/osd.0.log", TAIL as usize)
        );
        assert!(!all[0].1.contains('a'));
    }
}
