//! `fs` and `mds`: there are no file systems yet, and these commands say so in the shapes that
//! tools expect.

use super::osd_crush::json_only;
use super::{Answer, Entry, Read, flagged, read, unsupported};
use crate::command::{Refusal, Reply, flags};
use serde_json::json;
use types::Dump;
use types::errno::Errno;

const NO_FS: &str = "file systems are not supported yet";

pub(super) static COMMANDS: &[Entry] = &[
    read("fs ls", "List file systems.", "fs", "r", ls),
    read(
        "fs dump name=epoch,type=CephInt,req=false,range=0",
        "Show the file system map.",
        "mds",
        "r",
        dump,
    ),
    read("fs get name=fs_name,type=CephString", "Show one file system.", "fs", "r", get),
    read("fs feature ls", "List features that clients may be required to have.", "mds", "r", |c| {
        Ok(json_only(c, &json!([])))
    }),
    flagged(read("mds stat", "Summarise metadata servers.", "mds", "r", mds_stat), flags::HIDDEN),
    read(
        "mds metadata name=who,type=CephString,req=false",
        "Show what metadata servers told about themselves.",
        "mds",
        "r",
        |c| Ok(json_only(c, &json!([]))),
    ),
    read("mds versions", "Count metadata servers by version.", "mds", "r", |c| {
        Ok(json_only(c, &json!({})))
    }),
    read(
        "mds count-metadata name=property,type=CephString",
        "Count metadata servers by a field of their metadata.",
        "mds",
        "r",
        |c| Ok(json_only(c, &json!({}))),
    ),
    unsupported(
        "fs new name=fs_name,type=CephString,goodchars=[A-Za-z0-9-_.] name=metadata,type=CephString \
         name=data,type=CephString name=force,type=CephBool,req=false \
         name=allow_dangerous_metadata_overlay,type=CephBool,req=false name=fscid,type=CephInt,range=0,req=false",
        "Create a file system.",
        "fs",
        "rw",
        NO_FS,
    ),
    unsupported(
        "fs rm name=fs_name,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false",
        "Remove a file system.",
        "fs",
        "rw",
        NO_FS,
    ),
    unsupported(
        "fs fail name=fs_name,type=CephString",
        "Take a file system down.",
        "fs",
        "rw",
        NO_FS,
    ),
    unsupported(
        "mds fail name=role_or_gid,type=CephString",
        "Replace a metadata server.",
        "mds",
        "rw",
        NO_FS,
    ),
];

fn ls(c: &Read<'_>) -> Answer {
    Ok(c.format().reply(|| json!([]), || "No filesystems enabled\n".into()))
}

fn dump(c: &Read<'_>) -> Answer {
    let map = &c.state.fs;
    match c.args.int("epoch").unwrap_or(0) {
        n if n == 0 || n == i64::from(map.epoch.0) => {}
        n => return Err(Refusal::new(Errno::ENOENT, format!("there is no map for epoch {n}"))),
    }
    let reply = c.format().reply(
        || map.dump(),
        || {
            format!(
                "e{}\nenable_multiple, ever_enabled_multiple: {},{}\nlegacy client fscid: {}\n \nNo filesystems configured\n",
                map.epoch,
                u8::from(map.enable_multiple),
                u8::from(map.ever_enabled_multiple),
                map.legacy_client_fscid
            )
        },
    );
    Ok(reply.with_status(format!("dumped fsmap epoch {}", map.epoch)))
}

fn get(c: &Read<'_>) -> Answer {
    let message = format!("filesystem '{}' not found", c.args.req("fs_name"));
    Err(Refusal::new(Errno::ENOENT, message))
}

fn mds_stat(c: &Read<'_>) -> Answer {
    Ok(match c.format() {
        crate::command::Format::Plain => Reply::data(" \n"),
        f => Reply::data(f.json(&json!({"fsmap": c.state.fs.dump(), "mdsmap_first_committed": 1, "mdsmap_last_committed": c.state.fs.epoch}))),
    })
}
