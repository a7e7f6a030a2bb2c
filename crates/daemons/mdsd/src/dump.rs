//! What `dump inode`, `dump tree`, `get subtrees` and `cache drop` show, under Ceph's names
//! (16.2: `CInode::dump`, `MDSRank::command_get_subtrees`, `C_Drop_Cache`).

use crate::at_rest;
use command::{Args, Refusal};
use mds::{DirStat, Mds, Memory, NestStat, ShownInode};
use serde_json::{Value, json};
use std::time::Duration;
use types::Errno;

/// So many inodes are shown at most: all of a large cache would take a multiple of its memory.
const SHOWN_MAX: usize = 100_000;

/// One inode, by its number.
pub fn inode(core: &Mds, args: &Args) -> Result<Value, Refusal> {
    let number = args.int("number").unwrap_or(0).cast_unsigned();
    let shown = core.shown_inode(mds::Ino(number)).ok_or_else(|| {
        Refusal::new(Errno::ENOENT, format!("inode {number:#x} is not in the cache"))
    })?;
    Ok(show(core, &shown))
}

/// All that is in memory below a path.
pub fn tree(core: &Mds, args: &Args) -> Result<Value, Refusal> {
    let root = args.req("root");
    // A negative depth is none.
    let depth = args.int("depth").and_then(|depth| u32::try_from(depth).ok());
    let Some(top) = core.in_memory(root.as_bytes()) else {
        return Err(Refusal::new(Errno::ENOENT, format!("{root:?} is not in the cache")));
    };
    let found = core.shown_below(top, depth, SHOWN_MAX).ok_or_else(|| {
        Refusal::new(
            Errno::E2BIG,
            format!("more than {SHOWN_MAX} inodes are in the cache below {root:?}: give a depth"),
        )
    })?;
    Ok(found.iter().map(|s| show(core, s)).collect())
}

/// Parts of the file system: the rank's own, and those of others that it names.
pub fn subtrees(core: &Mds, rank_of: impl Fn(mds::Rank) -> Option<i32>) -> Value {
    let shown = core.shown_parts();
    let each = shown.iter().map(|s| {
        json!({
            "is_auth": core.is_own(s),
            "auth_first": rank_of(s.owner).unwrap_or(-1),
            "auth_second": -2,
            "export_pin": s.inode.pinned(),
            "distributed_ephemeral_pin": s.inode.distributed,
            "random_ephemeral_pin": s.inode.random.get() > 0.0,
            "export_pin_target": s.inode.pinned(),
            "dir": {
                "path": path(s),
                "dirfrag": format!("{:#x}", s.inode.ino.0),
                "is_auth": core.is_own(s),
                "fragstat": dirstat(&s.inode.dirstat, s.inode.version),
                "rstat": rstat(&s.inode.rstat, s.inode.version),
            },
        })
    });
    each.collect()
}

/// What became of a cache that was to be emptied (16.2: `C_Drop_Cache`).
pub fn dropped(before: &Memory, after: &Memory, emptied: bool, took: Duration) -> Value {
    let (code, message) = match emptied {
        true => (0, "(0) Success"),
        false => (-Errno::ETIMEDOUT.0, "(110) Connection timed out"),
    };
    json!({
        "client_recall": {
            "return_code": code,
            "message": message,
            "recalled": before.caps.saturating_sub(after.caps),
        },
        "flush_journal": {"return_code": 0, "message": ""},
        "trim_cache": {"trimmed": before.entries.saturating_sub(after.entries)},
        "pool": {"items": after.items, "bytes": after.bytes},
        "duration": took.as_secs_f64(),
    })
}

fn path(s: &ShownInode) -> String {
    match &s.path {
        Some(names) => {
            let names = names.iter().map(|n| String::from_utf8_lossy(n));
            names.fold(String::new(), |all, name| all + "/" + &name)
        }
        None => format!("#{:x}", s.inode.ino.0),
    }
}

fn dirstat(s: &DirStat, version: u64) -> Value {
    json!({
        "version": version,
        "mtime": s.mtime.gmtime(),
        "num_files": s.files,
        "num_subdirs": s.subdirs,
        "change_attr": s.change_attr,
    })
}

fn rstat(s: &NestStat, version: u64) -> Value {
    json!({
        "version": version,
        "rbytes": s.rbytes,
        "rfiles": s.rfiles,
        "rsubdirs": s.rsubdirs,
        "rsnaps": 0,
        "rctime": s.rctime.gmtime(),
    })
}

fn show(core: &Mds, s: &ShownInode) -> Value {
    let i = &s.inode;
    let layout = i.layout.as_ref().map(at_rest::layout_out).unwrap_or_default();
    let path = match path(s) {
        path if path.is_empty() => "/".to_owned(),
        path => path,
    };
    let ranges = i.ranges.iter().map(|(client, last)| {
        json!({"client": client.0, "byte_range": {"first": 0, "last": last}, "follows": 1})
    });
    let xattrs = i.xattrs.iter().map(|(name, value)| {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        json!({"key": text(name), "val": text(value)})
    });
    let caps = s.caps.iter().map(|c| {
        json!({
            "client_id": c.client.0,
            "pending": cephfs::caps::show(c.pending),
            "issued": cephfs::caps::show(c.issued),
            "wanted": cephfs::caps::show(c.wanted),
            "last_sent": c.last_sent,
        })
    });
    let dirs = s.dir.iter().map(|d| {
        json!({
            "path": path,
            "dirfrag": format!("{:#x}", i.ino.0),
            "complete": d.complete,
            "num_entries": d.entries,
            "num_dirty": d.dirty,
        })
    });
    let mut all = json!({
        "path": path,
        "ino": i.ino.0,
        "rdev": i.rdev,
        "ctime": i.ctime.gmtime(),
        "btime": i.btime.gmtime(),
        "mode": i.mode,
        "uid": i.uid,
        "gid": i.gid,
        "nlink": i.nlink,
        "layout": {
            "stripe_unit": layout.stripe_unit,
            "stripe_count": layout.stripe_count,
            "object_size": layout.object_size,
            "pool_id": layout.pool,
            "pool_ns": layout.namespace,
        },
        "size": i.size,
        "truncate_seq": i.truncate_seq,
        "truncate_size": i.truncate_size,
        "truncate_from": i.truncate_from,
        "truncate_pending": i.truncate_pending,
        "mtime": i.mtime.gmtime(),
        "atime": i.atime.gmtime(),
        "time_warp_seq": i.time_warp_seq,
        "change_attr": i.change_attr,
        "export_pin": i.pinned(),
        "export_ephemeral_random_pin": i.random.get(),
        "export_ephemeral_distributed_pin": i.distributed,
    });
    let rest = json!({
        "client_ranges": ranges.collect::<Value>(),
        "dirstat": dirstat(&i.dirstat, i.version),
        "rstat": rstat(&i.rstat, i.version),
        "version": i.version,
        "xattr_version": i.xattr_version,
        "backtrace_version": i.backtrace_version,
        "symlink": String::from_utf8_lossy(&i.symlink),
        "xattrs": xattrs.collect::<Value>(),
        "is_auth": core.is_own(s),
        "client_caps": caps.collect::<Value>(),
        "dirfrags": dirs.collect::<Value>(),
    });
    if let (Value::Object(all), Value::Object(rest)) = (&mut all, rest) {
        all.extend(rest);
    }
    all
}
