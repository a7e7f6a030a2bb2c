//! Commands about subvolumes and their groups (Ceph: module `volumes`, 16.2.15).

use super::fs::{Ask, Later, pools, short};
use super::{Answer, Entry, Run, unsupported};
use crate::volumes::{Result, Volume, access, group, json_text, subvolume};
use command::{Args, Command, Refusal, Reply, flags};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use types::errno::Errno;

const fn ask(
    signature: &'static str,
    help: &'static str,
    perm: &'static str,
    handler: fn(Ask) -> Later,
) -> Entry {
    Command {
        signature,
        help,
        module: "volumes",
        perm,
        flags: flags::MGR,
        handler: Run::Fs(handler),
    }
}

const SNAPSHOTS: &str = "snapshots of subvolumes are not there yet";
const CLONES: &str = "clones of subvolumes are not there yet";

/// Runs a function on the file system that the command names.
async fn run(a: Ask, f: impl AsyncFnOnce(&Volume<'_>, &Args) -> Result<String>) -> Answer {
    let Some(volumes) = a.volumes.clone() else {
        return Err(Refusal::new(Errno::EAGAIN, "this manager does not serve file systems yet"));
    };
    let volume = volumes.open(a.args.req("vol_name")).await?;
    f(&volume, &a.args).await.map(Reply::data)
}

/// Addresses of the monitors, for clients that mount a subvolume.
async fn monitors(a: &Ask) -> Result<Value> {
    let reply = (a.monitors)(json!({"prefix": "mon dump", "format": "json"})).await?;
    let map: Value = serde_json::from_slice(&reply.data).unwrap_or_default();
    let addr = |m: &Value| {
        let text = m["addr"].as_str().unwrap_or_default();
        Value::from(text.split('/').next().unwrap_or_default())
    };
    Ok(map["mons"].as_array().into_iter().flatten().map(addr).collect())
}

/// The same for what is shown with the monitors' addresses.
async fn show(a: Ask, f: impl AsyncFnOnce(&Volume<'_>, &Args) -> Result<Value>) -> Answer {
    let addrs = monitors(&a).await?;
    run(a, async |v, args| {
        let mut value = f(v, args).await?;
        value["mon_addrs"] = addrs;
        Ok(json_text(&value))
    })
    .await
}

/// `fs volume info`: the pools, and what is below all subvolumes and in the trash.
async fn volume_info(a: Ask) -> Answer {
    let people = a.args.flag("human_readable");
    let bytes = move |n: u64| match people {
        true => Value::from(short(n as f64, 1024.0, 5)),
        false => n.into(),
    };
    let mut lines: BTreeMap<&str, Vec<Value>> =
        ["metadata", "data"].map(|kind| (kind, Vec::new())).into();
    let fs = a.fs.by_name(a.args.req("vol_name"));
    for (id, kind) in fs.into_iter().flat_map(pools) {
        let pool = a.pools.get(&id).cloned().unwrap_or_default();
        let (used, avail) = (bytes(pool.used), bytes(pool.avail));
        let line = json!({"name": pool.name, "used": used, "avail": avail});
        lines.entry(kind).or_default().push(line);
    }
    show(a, async |v, _| {
        let mut value = json!({"pools": lines});
        if let Some((used, pending)) = v.use_of_subvolumes().await? {
            value["used_size"] = bytes(used);
            value["pending_subvolume_deletions"] = pending.into();
        }
        Ok(value)
    })
    .await
}

/// The same for what changes the rights of users.
async fn grant(
    mut a: Ask,
    f: impl AsyncFnOnce(&Volume<'_>, &super::fs::AskMonitors, &Args) -> Result<String>,
) -> Answer {
    let none: super::fs::AskMonitors = Box::new(|_| Box::pin(async { Ok(Reply::empty()) }));
    let monitors = std::mem::replace(&mut a.monitors, none);
    run(a, async |v, args| f(v, &monitors, args).await).await
}

macro_rules! on_volume {
    ($f:path) => {
        |a| Box::pin(run(a, async |v, args| $f(v, args).await))
    };
}

pub(super) const COMMANDS: &[Entry] = &[
    ask(
        "fs volume info name=vol_name,type=CephString name=human_readable,type=CephBool,req=false",
        "Get the information of a CephFS volume",
        "r",
        |a| Box::pin(volume_info(a)),
    ),
    ask(
        "fs subvolumegroup ls name=vol_name,type=CephString",
        "List subvolumegroups",
        "r",
        on_volume!(group::list),
    ),
    ask(
        "fs subvolumegroup create name=vol_name,type=CephString name=group_name,type=CephString,goodchars=[A-Za-z0-9-_.] name=size,type=CephInt,req=false name=pool_layout,type=CephString,req=false name=uid,type=CephInt,req=false name=gid,type=CephInt,req=false name=mode,type=CephString,req=false",
        "Create a CephFS subvolume group in a volume, and optionally, with a specific data pool layout, and a specific numeric mode",
        "rw",
        on_volume!(group::create),
    ),
    ask(
        "fs subvolumegroup rm name=vol_name,type=CephString name=group_name,type=CephString name=force,type=CephBool,req=false",
        "Delete a CephFS subvolume group in a volume",
        "rw",
        on_volume!(group::remove),
    ),
    ask(
        "fs subvolumegroup info name=vol_name,type=CephString name=group_name,type=CephString",
        "Get the metadata of a CephFS subvolume group in a volume, ",
        "r",
        |a| Box::pin(show(a, async |v, args| group::info(v, args).await)),
    ),
    ask(
        "fs subvolumegroup resize name=vol_name,type=CephString name=group_name,type=CephString name=new_size,type=CephString,req=true name=no_shrink,type=CephBool,req=false",
        "Resize a CephFS subvolume group",
        "rw",
        on_volume!(group::resize),
    ),
    ask(
        "fs subvolumegroup exist name=vol_name,type=CephString",
        "Check a volume for the existence of subvolumegroup",
        "r",
        on_volume!(group::exist),
    ),
    ask(
        "fs subvolumegroup getpath name=vol_name,type=CephString name=group_name,type=CephString",
        "Get the mountpath of a CephFS subvolume group in a volume",
        "r",
        on_volume!(group::path_of),
    ),
    ask(
        "fs subvolumegroup pin name=vol_name,type=CephString name=group_name,type=CephString,req=true name=pin_type,type=CephChoices,strings=export|distributed|random name=pin_setting,type=CephString,req=true",
        "Set MDS pinning policy for subvolumegroup",
        "rw",
        on_volume!(group::pin),
    ),
    ask(
        "fs subvolume ls name=vol_name,type=CephString name=group_name,type=CephString,req=false",
        "List subvolumes",
        "r",
        on_volume!(subvolume::list),
    ),
    ask(
        "fs subvolume create name=vol_name,type=CephString name=sub_name,type=CephString,goodchars=[A-Za-z0-9-_.] name=size,type=CephInt,req=false name=group_name,type=CephString,req=false name=pool_layout,type=CephString,req=false name=uid,type=CephInt,req=false name=gid,type=CephInt,req=false name=mode,type=CephString,req=false name=namespace_isolated,type=CephBool,req=false",
        "Create a CephFS subvolume in a volume, and optionally, with a specific size (in bytes), a specific data pool layout, a specific mode, in a specific subvolume group and in separate RADOS namespace",
        "rw",
        on_volume!(subvolume::create),
    ),
    ask(
        "fs subvolume rm name=vol_name,type=CephString name=sub_name,type=CephString name=group_name,type=CephString,req=false name=force,type=CephBool,req=false name=retain_snapshots,type=CephBool,req=false",
        "Delete a CephFS subvolume in a volume, and optionally, in a specific subvolume group, force deleting a cancelled or failed clone, and retaining existing subvolume snapshots",
        "rw",
        on_volume!(subvolume::remove),
    ),
    ask(
        "fs subvolume authorize name=vol_name,type=CephString name=sub_name,type=CephString name=auth_id,type=CephString name=group_name,type=CephString,req=false name=access_level,type=CephString,req=false name=tenant_id,type=CephString,req=false name=allow_existing_id,type=CephBool,req=false",
        "Allow a cephx auth ID access to a subvolume",
        "rw",
        |a| Box::pin(grant(a, async |v, m, args| access::authorize(v, m, args).await)),
    ),
    ask(
        "fs subvolume deauthorize name=vol_name,type=CephString name=sub_name,type=CephString name=auth_id,type=CephString name=group_name,type=CephString,req=false",
        "Deny a cephx auth ID access to a subvolume",
        "rw",
        |a| Box::pin(grant(a, async |v, m, args| access::deauthorize(v, m, args).await)),
    ),
    ask(
        "fs subvolume authorized_list name=vol_name,type=CephString name=sub_name,type=CephString name=group_name,type=CephString,req=false",
        "List auth IDs that have access to a subvolume",
        "r",
        on_volume!(access::users),
    ),
    ask(
        "fs subvolume getpath name=vol_name,type=CephString name=sub_name,type=CephString name=group_name,type=CephString,req=false",
        "Get the mountpath of a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "rw",
        on_volume!(subvolume::path_of),
    ),
    ask(
        "fs subvolume info name=vol_name,type=CephString name=sub_name,type=CephString name=group_name,type=CephString,req=false",
        "Get the information of a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "r",
        |a| Box::pin(show(a, async |v, args| subvolume::info(v, args).await)),
    ),
    ask(
        "fs subvolume exist name=vol_name,type=CephString name=group_name,type=CephString,req=false",
        "Check a volume for the existence of a subvolume, optionally in a specified subvolume group",
        "r",
        on_volume!(subvolume::exist),
    ),
    ask(
        "fs subvolume metadata set name=vol_name,type=CephString name=sub_name,type=CephString name=key_name,type=CephString name=value,type=CephString name=group_name,type=CephString,req=false",
        "Set custom metadata (key-value) for a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "rw",
        on_volume!(subvolume::meta_set),
    ),
    ask(
        "fs subvolume metadata get name=vol_name,type=CephString name=sub_name,type=CephString name=key_name,type=CephString name=group_name,type=CephString,req=false",
        "Get custom metadata associated with the key of a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "r",
        on_volume!(subvolume::meta_get),
    ),
    ask(
        "fs subvolume metadata ls name=vol_name,type=CephString name=sub_name,type=CephString name=group_name,type=CephString,req=false",
        "List custom metadata (key-value pairs) of a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "r",
        on_volume!(subvolume::meta_list),
    ),
    ask(
        "fs subvolume metadata rm name=vol_name,type=CephString name=sub_name,type=CephString name=key_name,type=CephString name=group_name,type=CephString,req=false name=force,type=CephBool,req=false",
        "Remove custom metadata (key-value) associated with the key of a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "rw",
        on_volume!(subvolume::meta_remove),
    ),
    ask(
        "fs subvolume resize name=vol_name,type=CephString name=sub_name,type=CephString name=new_size,type=CephString,req=true name=group_name,type=CephString,req=false name=no_shrink,type=CephBool,req=false",
        "Resize a CephFS subvolume",
        "rw",
        on_volume!(subvolume::resize),
    ),
    ask(
        "fs subvolume pin name=vol_name,type=CephString name=sub_name,type=CephString name=pin_type,type=CephChoices,strings=export|distributed|random name=pin_setting,type=CephString,req=true name=group_name,type=CephString,req=false",
        "Set MDS pinning policy for subvolume",
        "rw",
        on_volume!(subvolume::pin),
    ),
    unsupported(
        "fs subvolume evict name=vol_name,type=CephString name=sub_name,type=CephString name=auth_id,type=CephString name=group_name,type=CephString,req=false",
        "Evict clients based on auth IDs and subvolume mounted",
        "volumes",
        "use `ceph tell mds.NAME session evict` with filters",
    ),
    unsupported(
        "fs subvolumegroup snapshot ls name=vol_name,type=CephString name=group_name,type=CephString",
        "List subvolumegroup snapshots",
        "volumes",
        SNAPSHOTS,
    ),
    unsupported(
        "fs subvolumegroup snapshot create name=vol_name,type=CephString name=group_name,type=CephString name=snap_name,type=CephString",
        "Create a snapshot of a CephFS subvolume group in a volume",
        "volumes",
        SNAPSHOTS,
    ),
    unsupported(
        "fs subvolumegroup snapshot rm name=vol_name,type=CephString name=group_name,type=CephString name=snap_name,type=CephString name=force,type=CephBool,req=false",
        "Delete a snapshot of a CephFS subvolume group in a volume",
        "volumes",
        SNAPSHOTS,
    ),
    unsupported(
        "fs subvolume snapshot ls name=vol_name,type=CephString name=sub_name,type=CephString name=group_name,type=CephString,req=false",
        "List subvolume snapshots",
        "volumes",
        SNAPSHOTS,
    ),
    unsupported(
        "fs subvolume snapshot create name=vol_name,type=CephString name=sub_name,type=CephString name=snap_name,type=CephString name=group_name,type=CephString,req=false",
        "Create a snapshot of a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "volumes",
        SNAPSHOTS,
    ),
    unsupported(
        "fs subvolume snapshot info name=vol_name,type=CephString name=sub_name,type=CephString name=snap_name,type=CephString name=group_name,type=CephString,req=false",
        "Get the information of a CephFS subvolume snapshot and optionally, in a specific subvolume group",
        "volumes",
        SNAPSHOTS,
    ),
    unsupported(
        "fs subvolume snapshot rm name=vol_name,type=CephString name=sub_name,type=CephString name=snap_name,type=CephString name=group_name,type=CephString,req=false name=force,type=CephBool,req=false",
        "Delete a snapshot of a CephFS subvolume in a volume, and optionally, in a specific subvolume group",
        "volumes",
        SNAPSHOTS,
    ),
    unsupported(
        "fs subvolume snapshot clone name=vol_name,type=CephString name=sub_name,type=CephString name=snap_name,type=CephString name=target_sub_name,type=CephString name=pool_layout,type=CephString,req=false name=group_name,type=CephString,req=false name=target_group_name,type=CephString,req=false",
        "Clone a snapshot to target subvolume",
        "volumes",
        CLONES,
    ),
    unsupported(
        "fs clone status name=vol_name,type=CephString name=clone_name,type=CephString name=group_name,type=CephString,req=false",
        "Get status on a cloned subvolume.",
        "volumes",
        CLONES,
    ),
    unsupported(
        "fs clone cancel name=vol_name,type=CephString name=clone_name,type=CephString name=group_name,type=CephString,req=false",
        "Cancel an pending or ongoing clone operation.",
        "volumes",
        CLONES,
    ),
];
