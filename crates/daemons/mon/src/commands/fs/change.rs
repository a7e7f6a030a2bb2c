//! File systems: creation, removal, pools, mirroring.

use super::super::frame::{Answer, Write};
use super::find::{finish, named};
use crate::command::{Refusal, Reply};
use crate::mds_map::Edit;
use crate::state::Pending;
use types::errno::Errno;
use types::fsmap::{MdsMap, MirrorPeer, MirrorRemote, flag};
use types::pool::{PoolOptValue, PoolType, flag as pool_flag};
use types::{OsdMap, PoolId};

/// The name by which the application is known to pools.
const APPLICATION: &str = "cephfs";

/// The use of a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Metadata,
    DataDefault,
    DataExtra,
}

/// Whether a file system may use a pool.
fn check_pool(map: &OsdMap, id: PoolId, wanted: Use, force: bool) -> Result<(), Refusal> {
    let Some(pool) = map.pools.get(&id) else {
        return Err(Refusal::new(Errno::ENOENT, format!("pool id '{id}' does not exist")));
    };
    let name = map.pool_names.get(&id).cloned().unwrap_or_default();
    let others = pool.application_metadata.keys().any(|a| a != APPLICATION);
    if !force && others && !pool.application_metadata.contains_key(APPLICATION) {
        return Err(Refusal::invalid(format!(
            "pool '{name}' (id '{id}') has a non-CephFS application enabled."
        )));
    }
    if pool.kind == PoolType::Erasure {
        let refused = match wanted {
            Use::Metadata => "Use of an EC pool for metadata is not supported.",
            Use::DataDefault if !force => {
                "Use of an EC pool for the default data pool is discouraged; see the online CephFS \
                 documentation for more information. Use --force to override."
            }
            _ if !pool.has_flag(pool_flag::EC_OVERWRITES) => "It has no overwrite support.",
            _ => return Ok(()),
        };
        let text = format!("pool '{name}' (id '{id}') is an erasure-coded pool. {refused}");
        return Err(Refusal::invalid(text));
    }
    Ok(())
}

/// The pool of a name.
fn pool(map: &OsdMap, name: &str) -> Result<PoolId, Refusal> {
    let found = map.pool_names.iter().find(|(_, n)| *n == name).map(|(id, _)| *id);
    found.ok_or_else(|| Refusal::new(Errno::ENOENT, format!("pool '{name}' does not exist")))
}

/// The pool of a name or a number.
fn pool_or_id(map: &OsdMap, text: &str) -> Result<PoolId, Refusal> {
    pool(map, text).or_else(|refusal| match text.parse::<i64>() {
        Ok(id) if id >= 0 => Ok(PoolId(id)),
        Ok(id) => Err(Refusal::invalid(format!("invalid pool id '{id}'"))),
        Err(_) => Err(refusal),
    })
}

/// Says in a pool's application metadata which file system it is of. Capabilities go by that.
fn tag(p: &mut Pending, id: PoolId, key: &str, fs: &str) {
    if let Some(pool) = p.osd_mut().pools.get_mut(&id) {
        let tags = pool.application_metadata.entry(APPLICATION.to_owned()).or_default();
        tags.insert(key.to_owned(), fs.to_owned());
    }
}

pub(super) fn new(c: &mut Write<'_>) -> Answer {
    let (name, force) = (c.args.req("fs_name").to_owned(), c.args.flag("force"));
    let metadata_name = c.args.req("metadata").to_owned();
    let metadata = pool(c.pending.osd(), &metadata_name)?;
    let data_name = c.args.req("data");
    let data = pool(c.pending.osd(), data_name)?;
    if data.0 == 0 {
        return Err(Refusal::invalid(format!(
            "pool '{data_name}' has id 0, which CephFS does not allow. Use another pool or recreate \
             it to get a non-zero pool id."
        )));
    }
    if name.is_empty() {
        return Err(Refusal::invalid("Filesystem name may not be empty"));
    }
    let fs = c.pending.state().fs.clone();
    if let Some(same) = fs.by_name(&name) {
        let equal =
            same.map.data_pools.first() == Some(&data.0) && same.map.metadata_pool == metadata.0;
        return match equal {
            true => Ok(Reply::status(format!("filesystem '{name}' already exists"))),
            false => Err(Refusal::invalid(format!("filesystem already exists with name '{name}'"))),
        };
    }
    let objects = c.env.stats.digest.as_ref().and_then(|d| Some(d.pool_sum(metadata)?.num_objects));
    if !force && objects.is_some_and(|n| n > 0) {
        return Err(Refusal::invalid(format!(
            "pool '{metadata_name}' already contains some objects. Use an empty pool instead."
        )));
    }
    if !fs.filesystems.is_empty() && !fs.enable_multiple {
        return Err(Refusal::invalid(
            "Creation of multiple filesystems is disabled.  To enable this experimental feature, use \
             'ceph fs flag set enable_multiple true'",
        ));
    }
    let used = |m: &MdsMap| m.data_pools.contains(&data.0) || m.metadata_pool == metadata.0;
    if let Some(other) = fs.filesystems.values().find(|fs| used(&fs.map))
        && !c.args.flag("allow_dangerous_metadata_overlay")
    {
        let text = format!(
            "Filesystem '{}' is already using one of the specified RADOS pools. This should ONLY be \
             done in emergencies and after careful reading of the documentation. Pass \
             --allow-dangerous-metadata-overlay to permit this.",
            other.map.fs_name
        );
        return Err(Refusal::new(Errno::EEXIST, text));
    }
    let number = c.args.int("fscid");
    if let Some(n) = number {
        if !force {
            return Err(Refusal::invalid(
                "Pass --force to create a file system with a specific ID",
            ));
        }
        let taken = i32::try_from(n).map_or(true, |n| fs.filesystems.contains_key(&n));
        if taken {
            return Err(Refusal::invalid(format!("filesystem already exists with id '{n}'")));
        }
    }
    check_pool(c.pending.osd(), data, Use::DataDefault, force)?;
    check_pool(c.pending.osd(), metadata, Use::Metadata, force)?;
    tag(c.pending, data, "data", &name);
    tag(c.pending, metadata, "metadata", &name);
    if let Some(pool) = c.pending.osd_mut().pools.get_mut(&metadata) {
        pool.opts.set("recovery_priority", PoolOptValue::Int(5));
        pool.opts.set("pg_num_min", PoolOptValue::Int(16));
        pool.opts.set("pg_autoscale_bias", PoolOptValue::Double(4.0));
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    e.create(&name, metadata.0, data.0, number.and_then(|n| i32::try_from(n).ok()));
    e.settle();
    finish(e);
    Ok(Reply::status(format!("new fs with metadata pool {metadata} and data pool {data}")))
}

pub(super) fn remove(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("fs_name");
    let fs = c.pending.state().fs.clone();
    let Some(fs) = fs.by_name(name) else {
        return Ok(Reply::status(format!("filesystem '{name}' does not exist")));
    };
    if !fs.map.up.is_empty() {
        return Err(Refusal::invalid(
            "all MDS daemons must be inactive/failed before removing filesystem. See `ceph fs fail`.",
        ));
    }
    if !c.args.flag("yes_i_really_mean_it") {
        return Err(Refusal::new(
            Errno::EPERM,
            "this is a DESTRUCTIVE operation and will make data in your filesystem permanently \
             inaccessible.  Add --yes-i-really-mean-it if you are sure you wish to continue.",
        ));
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    e.remove(fs.id);
    finish(e);
    Ok(Reply::empty())
}

pub(super) fn reset(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("fs_name");
    let fs = c.pending.state().fs.clone();
    let Some(fs) = fs.by_name(name) else {
        let text = format!("filesystem '{name}' does not exist");
        return Err(Refusal::new(Errno::ENOENT, text));
    };
    if !fs.map.up.is_empty() {
        return Err(Refusal::invalid(
            "all MDS daemons must be inactive before resetting filesystem: set the cluster_down flag \
             and use `ceph mds fail` to make this so",
        ));
    }
    if !c.args.flag("yes_i_really_mean_it") {
        return Err(Refusal::new(
            Errno::EPERM,
            "this is a potentially destructive operation, only for use by experts in disaster \
             recovery.  Add --yes-i-really-mean-it if you are sure you wish to continue.",
        ));
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        let old = std::mem::take(&mut fs.map);
        fs.map = MdsMap {
            fs_name: old.fs_name,
            data_pools: old.data_pools,
            metadata_pool: old.metadata_pool,
            cas_pool: old.cas_pool,
            compat: old.compat,
            created: old.created,
            inline_data_enabled: old.inline_data_enabled,
            // The first rank exists and has to be replayed.
            ranks_in: [0].into(),
            failed: [0].into(),
            enabled: true,
            ..MdsMap::default()
        };
    }
    e.settle();
    finish(e);
    Ok(Reply::empty())
}

pub(super) fn fail(c: &mut Write<'_>) -> Answer {
    let fs = c.pending.state().fs.clone();
    let fs = named(&fs, c.args.req("fs_name"))?;
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        fs.map.set(flag::NOT_JOINABLE, true);
    }
    for gid in fs.map.mds_info.keys() {
        e.fail(*gid);
    }
    finish(e);
    Ok(Reply::status(format!(
        "{} marked not joinable; MDS cannot join the cluster. All MDS ranks marked failed.",
        fs.map.fs_name
    )))
}

pub(super) fn add_data_pool(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("fs_name").to_owned();
    let id = pool_or_id(c.pending.osd(), c.args.req("pool"))?;
    check_pool(c.pending.osd(), id, Use::DataExtra, false)?;
    let fs = c.pending.state().fs.clone();
    let fs = named(&fs, &name)?;
    if fs.map.data_pools.contains(&id.0) {
        return Ok(Reply::status(format!("data pool {id} is already on fs {name}")));
    }
    tag(c.pending, id, "data", &name);
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        fs.map.data_pools.push(id.0);
    }
    finish(e);
    Ok(Reply::status(format!("added data pool {id} to fsmap")))
}

pub(super) fn remove_data_pool(c: &mut Write<'_>) -> Answer {
    let id = pool_or_id(c.pending.osd(), c.args.req("pool"))?;
    let fs = c.pending.state().fs.clone();
    let fs = named(&fs, c.args.req("fs_name"))?;
    if fs.map.data_pools.first() == Some(&id.0) {
        return Err(Refusal::invalid("cannot remove default data pool"));
    }
    if !fs.map.data_pools.contains(&id.0) {
        return Ok(Reply::empty());
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        fs.map.data_pools.retain(|p| *p != id.0);
    }
    finish(e);
    Ok(Reply::status(format!("removed data pool {id} from fsmap")))
}

pub(super) fn set_default(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("fs_name");
    let fs = c.pending.state().fs.clone();
    let Some(fs) = fs.by_name(name) else {
        let text = format!("filesystem '{name}' does not exist");
        return Err(Refusal::new(Errno::ENOENT, text));
    };
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    e.map.legacy_client_fscid = fs.id;
    finish(e);
    Ok(Reply::empty())
}

/// The file system that a command about mirroring names; its messages are others than elsewhere.
fn mirrored(c: &Write<'_>) -> Result<types::fsmap::Filesystem, Refusal> {
    let name = c.args.req("fs_name");
    c.pending
        .state()
        .fs
        .by_name(name)
        .cloned()
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("Filesystem '{name}' not found")))
}

fn mirror(c: &mut Write<'_>, on: bool) -> Answer {
    let fs = mirrored(c)?;
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if fs.mirror.mirrored != on
        && let Some(fs) = e.fs(fs.id)
    {
        fs.mirror.mirrored = on;
        fs.mirror.peers.clear();
    }
    finish(e);
    Ok(Reply::empty())
}

pub(super) fn mirror_enable(c: &mut Write<'_>) -> Answer {
    mirror(c, true)
}

pub(super) fn mirror_disable(c: &mut Write<'_>) -> Answer {
    mirror(c, false)
}

pub(super) fn mirror_peer_add(c: &mut Write<'_>) -> Answer {
    let fs = mirrored(c)?;
    if !fs.mirror.mirrored {
        return Err(Refusal::invalid(format!(
            "Mirroring not enabled for filesystem '{}'",
            fs.map.fs_name
        )));
    }
    let Some((client, cluster)) = c.args.req("remote_cluster_spec").split_once('@') else {
        return Err(Refusal::invalid(
            "invalid remote cluster spec -- should be <client>@<cluster>",
        ));
    };
    let peer = MirrorPeer {
        uuid: c.args.req("uuid").to_owned(),
        remote: MirrorRemote {
            client_name: client.to_owned(),
            cluster_name: cluster.to_owned(),
            fs_name: c.args.req("remote_fs_name").to_owned(),
        },
    };
    if fs.mirror.peers.iter().any(|p| p.uuid == peer.uuid || p.remote == peer.remote) {
        return Ok(Reply::status("peer already exists"));
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        fs.mirror.peers.insert(peer);
    }
    finish(e);
    Ok(Reply::empty())
}

pub(super) fn mirror_peer_remove(c: &mut Write<'_>) -> Answer {
    let fs = mirrored(c)?;
    if !fs.mirror.mirrored {
        return Err(Refusal::invalid(format!(
            "Mirroring not enabled for filesystem '{}'",
            fs.map.fs_name
        )));
    }
    let uuid = c.args.req("uuid").to_owned();
    if !fs.mirror.peers.iter().any(|p| p.uuid == uuid) {
        return Ok(Reply::status(format!("cannot find peer with uuid: {uuid}")));
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        fs.mirror.peers.retain(|p| p.uuid != uuid);
    }
    finish(e);
    Ok(Reply::empty())
}
