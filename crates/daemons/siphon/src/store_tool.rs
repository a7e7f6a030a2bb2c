//! `siphon store fsck|dump|edit`.

use crate::cli::{Store, StoreAction, StoreEdit};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::Path;
use store::{Device, Engine, Options};
use types::ObjectId;

/// Objects that a dump lists at most.
const DUMP_OBJECTS_MAX: usize = 100_000;

/// Runs the command.
pub fn run(args: Store) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        match args.action {
            StoreAction::Fsck { device, deep } => fsck(&device, deep).await,
            StoreAction::Dump { device } => dump(&device).await,
            StoreAction::Edit { device, object, pool, namespace, edit: e } => {
                edit(&device, &object, pool, &namespace, e).await
            }
        }
    })
}

/// Opens the store of an OSD that does not run.
pub async fn open(path: &Path) -> Result<store::Store> {
    if !path.exists() {
        bail!("{}: no such file or device", path.display());
    }
    let device = Device::open(path, Engine::Auto, None)
        .with_context(|| format!("cannot open {}", path.display()))?;
    store::Store::open(device, Options::default())
        .await
        .with_context(|| format!("{}", path.display()))
}

async fn fsck(path: &Path, deep: bool) -> Result<()> {
    let store = open(path).await?;
    let report = store.fsck(deep).await?;
    println!(
        "{}: {} collections, {} objects, {} omap rows, {} data blocks ({} shared), {} metadata blocks",
        path.display(),
        report.collections,
        report.objects,
        report.omap_rows,
        report.data_blocks,
        report.shared_blocks,
        report.tree_blocks
    );
    if deep {
        println!("{} bytes of data verified", report.verified);
    }
    for p in &report.problems {
        println!("problem: {p}");
    }
    store.close().await?;
    if !report.problems.is_empty() {
        bail!("{} has {} problems", path.display(), report.problems.len());
    }
    println!("no problems");
    Ok(())
}

async fn dump(path: &Path) -> Result<()> {
    let store = open(path).await?;
    let report = store.dump(None, DUMP_OBJECTS_MAX).await?;
    let objects: Vec<Value> = report
        .objects
        .iter()
        .map(|o| {
            json!({
                "collection": o.coll.to_string(),
                "key": o.key.escape_ascii().to_string(),
                "size": o.stat.size,
                "attrs": o.attrs.iter().map(|(n, l)| json!({"name": String::from_utf8_lossy(n), "bytes": l})).collect::<Vec<_>>(),
                "omap_rows": o.omap_rows,
                "extents": o.extents.iter().map(|(l, p, n, s)| json!({"logical_block": l, "physical_block": p, "blocks": n, "shared": s})).collect::<Vec<_>>(),
            })
        })
        .collect();
    let facts: serde_json::Map<String, Value> =
        report.facts.into_iter().map(|(k, v)| (k, v.into())).collect();
    let collections: Vec<String> = report.collections.iter().map(|c| c.to_string()).collect();
    println!(
        "{}",
        serde_json::to_string_pretty(
            &json!({"store": facts, "collections": collections, "objects": objects})
        )?
    );
    store.close().await?;
    Ok(())
}

/// Keys that are looked at together.
const PAGE: usize = 1024;

/// Where the head of that name is.
async fn find(
    store: &store::Store,
    name: &str,
    pool: i64,
    namespace: &str,
) -> Result<(store::Coll, store::Key)> {
    for coll in store.collections() {
        if osd::collections::id_of(coll).is_none_or(|id| id.pgid.pool.0 != pool) {
            continue;
        }
        let mut start = store::Key::new();
        loop {
            let page = store.list(coll, &start, None, PAGE).await?;
            let wanted = page.keys.into_iter().find(|key| {
                let oid = ObjectId::from_key(key);
                oid.is_ok_and(|o| {
                    o.is_head() && o.name == name.as_bytes() && o.namespace == namespace.as_bytes()
                })
            });
            match (wanted, page.next) {
                (Some(key), _) => return Ok((coll, key)),
                (None, Some(next)) => start = next,
                (None, None) => break,
            }
        }
    }
    bail!("there is no object {name} of pool {pool} here")
}

async fn edit(path: &Path, name: &str, pool: i64, namespace: &str, edit: StoreEdit) -> Result<()> {
    let store = open(path).await?;
    let (coll, key) = find(&store, name, pool, namespace).await?;
    let mut t = store::Transaction::new();
    if edit.remove {
        t.remove(coll, &key);
    }
    if let Some(size) = edit.truncate {
        t.truncate(coll, &key, size);
    }
    if let Some(file) = edit.set_bytes {
        let data =
            std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        t.truncate(coll, &key, 0);
        t.write(coll, &key, 0, bytes::Bytes::from(data), store::WriteHint::Normal);
    }
    if let Some(row) = edit.rm_omap {
        t.omap_rm(coll, &key, vec![row.into()]);
    }
    if let Some(attr) = edit.rm_attr {
        t.rm_attr(coll, &key, attr);
    }
    store.submit(t)?.await?;
    store.close().await?;
    Ok(())
}
