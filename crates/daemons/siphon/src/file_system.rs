//! The file system of `siphon up --fs`: its pools, an active metadata server and a standby, and a
//! client's key.

use crate::bootstrap;
use crate::home::{self, ClusterFile};
use crate::roles;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use client::MonClient;
use daemon_frame::threads::Threads;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Its name.
const NAME: &str = "cephfs";
const METADATA_POOL: &str = "cephfs_metadata";
const DATA_POOL: &str = "cephfs_data";
/// The servers: whichever is chosen first is active.
const SERVERS: [&str; 2] = ["a", "b"];
/// A user that may mount it.
const USER: &str = "client.fs";
const KEY_FILE: &str = "client.fs.keyring";
/// How long a server may take until it is active.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks at that.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

async fn ask(mon: &MonClient, command: Value) -> Result<Bytes> {
    bootstrap::command(mon, command, Bytes::new()).await
}

async fn ask_json(mon: &MonClient, prefix: &str) -> Result<Value> {
    let answer = ask(mon, json!({"prefix": prefix, "format": "json"})).await?;
    serde_json::from_slice(&answer).with_context(|| format!("the answer to `{prefix}`"))
}

/// Whether the file system is there.
async fn exists(mon: &MonClient) -> Result<bool> {
    let all = ask_json(mon, "fs ls").await?;
    Ok(all.as_array().into_iter().flatten().any(|fs| fs["name"] == NAME))
}

/// Makes pools and file system, unless they are there.
async fn create(mon: &MonClient) -> Result<()> {
    if exists(mon).await? {
        return Ok(());
    }
    for (pool, bulk) in [(METADATA_POOL, false), (DATA_POOL, true)] {
        let mut command = json!({"prefix": "osd pool create", "pool": pool});
        if bulk {
            command["bulk"] = true.into();
        }
        ask(mon, command).await?;
    }
    let new = json!({
        "prefix": "fs new", "fs_name": NAME, "metadata": METADATA_POOL, "data": DATA_POOL,
    });
    ask(mon, new).await.map(drop)
}

/// Makes the user that may mount it, and writes the key.
async fn authorize(dir: &Path, mon: &MonClient) -> Result<PathBuf> {
    let command = json!({
        "prefix": "fs authorize", "filesystem": NAME, "entity": USER, "caps": ["/", "rw"],
    });
    let keyring = ask(mon, command).await?;
    let path = dir.join(KEY_FILE);
    home::write_durably(&path, &keyring, modes::SECRET)?;
    Ok(path)
}

/// Waits until a server serves clients.
async fn wait_active(mon: &MonClient) -> Result<()> {
    let began = Instant::now();
    loop {
        let map = ask_json(mon, "fs dump").await?;
        let all = map["filesystems"].as_array();
        let ours = all.into_iter().flatten().find(|fs| fs["mdsmap"]["fs_name"] == NAME);
        let servers = ours.and_then(|fs| fs["mdsmap"]["info"].as_object());
        let active = |s: &Value| s["state"] == "up:active";
        if servers.is_some_and(|all| all.values().any(active)) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            let states: Vec<&Value> =
                servers.into_iter().flat_map(|all| all.values()).map(|s| &s["state"]).collect();
            bail!(
                "no metadata server of {NAME} became active within {} s (states: {states:?}): see `ceph fs status` and the log",
                PATIENCE.as_secs()
            );
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// Starts the servers of `siphon up`. The text tells how to mount the file system.
pub async fn start_beside(
    threads: &mut Threads,
    dir: &Path,
    cluster: &ClusterFile,
    mon: &MonClient,
) -> Result<String> {
    create(mon).await.with_context(|| format!("the file system {NAME} cannot be made"))?;
    let shared = Arc::new(dir.to_path_buf());
    for name in SERVERS {
        bootstrap::register_mds(dir, mon, name).await?;
        let daemon = roles::mds_daemon(shared.clone(), cluster.clone(), name.into());
        threads.spawn(&format!("mds.{name}"), daemon).await?;
    }
    let key = authorize(dir, mon).await?;
    wait_active(mon).await?;
    Ok(how_to(dir, &key))
}

fn how_to(dir: &Path, key: &Path) -> String {
    let (conf, key) = (dir.join("ceph.conf"), key.display());
    format!(
        "The file system {NAME} is served, the key of {USER} is in {key}. Try:\n  ceph-fuse -c {} -n {USER} -k {key} /mnt",
        conf.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_names_the_file_and_the_user() {
        let text = how_to(Path::new("/d"), Path::new("/d/client.fs.keyring"));
        assert!(
            text.ends_with("ceph-fuse -c /d/ceph.conf -n client.fs -k /d/client.fs.keyring /mnt")
        );
    }
}
