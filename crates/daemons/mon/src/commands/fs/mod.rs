//! `fs` and `mds`: file systems, and the metadata servers (MDS) that serve them.

mod authorize;
mod change;
mod daemons;
mod find;
mod health;
mod read;
mod set;

use super::frame::{Entry, flagged, read as reading, write};
use crate::command::flags;

pub(super) use health::checks as health_checks;
pub(super) use read::{by_rank_json, daemon_summary, fs_summary};

pub(super) static COMMANDS: &[Entry] = &[
    reading("fs ls", "List file systems.", "fs", "r", read::ls),
    reading(
        "fs dump name=epoch,type=CephInt,req=false,range=0",
        "Show the file system map.",
        "mds",
        "r",
        read::dump,
    ),
    reading("fs get name=fs_name,type=CephString", "Show one file system.", "fs", "r", read::get),
    reading(
        "fs feature ls",
        "List features that clients may be required to have.",
        "mds",
        "r",
        read::features,
    ),
    reading(
        "fs compat show name=fs_name,type=CephString",
        "Show what metadata servers of a file system must know.",
        "mds",
        "r",
        read::fs_compat,
    ),
    flagged(
        reading("mds stat", "Summarise metadata servers.", "mds", "r", read::stat),
        flags::HIDDEN,
    ),
    flagged(
        reading(
            "mds compat show",
            "Show what metadata servers of new file systems must know.",
            "mds",
            "r",
            read::compat,
        ),
        flags::DEPRECATED,
    ),
    reading(
        "mds metadata name=who,type=CephString,req=false",
        "Show what metadata servers told about themselves.",
        "mds",
        "r",
        daemons::metadata,
    ),
    reading("mds versions", "Count metadata servers by version.", "mds", "r", daemons::versions),
    reading(
        "mds count-metadata name=property,type=CephString",
        "Count metadata servers by a field of their metadata.",
        "mds",
        "r",
        daemons::count_metadata,
    ),
    reading(
        "mds ok-to-stop name=ids,type=CephString,n=N",
        "Say whether metadata servers can be stopped without a file system going down.",
        "mds",
        "r",
        daemons::ok_to_stop,
    ),
    write(
        "mds fail name=role_or_gid,type=CephString",
        "Take a rank from its metadata server; another one gets it if one waits.",
        "mds",
        "rw",
        daemons::fail,
    ),
    write(
        "mds repaired name=role,type=CephString",
        "Let metadata servers try a damaged rank again.",
        "mds",
        "rw",
        daemons::repaired,
    ),
    write(
        "mds rm name=gid,type=CephInt,range=0",
        "Remove a metadata server that holds no rank.",
        "mds",
        "rw",
        daemons::remove,
    ),
    flagged(
        write(
            "mds rmfailed name=role,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false",
            "Forget that a rank is failed.",
            "mds",
            "rw",
            daemons::remove_failed,
        ),
        flags::HIDDEN,
    ),
    flagged(
        write(
            "mds freeze name=role_or_gid,type=CephString name=val,type=CephString",
            "Leave a metadata server alone, whatever happens to it.",
            "mds",
            "rw",
            daemons::freeze,
        ),
        flags::HIDDEN,
    ),
    flagged(
        write(
            "mds set_state name=gid,type=CephInt,range=0 name=state,type=CephInt,range=0|20",
            "Set the state of a metadata server by number.",
            "mds",
            "rw",
            daemons::set_state,
        ),
        flags::HIDDEN,
    ),
    write(
        "fs new name=fs_name,type=CephString,goodchars=[A-Za-z0-9-_.] name=metadata,type=CephString \
         name=data,type=CephString name=force,type=CephBool,req=false \
         name=allow_dangerous_metadata_overlay,type=CephBool,req=false name=fscid,type=CephInt,range=0,req=false",
        "Create a file system.",
        "fs",
        "rw",
        change::new,
    ),
    write(
        "fs rm name=fs_name,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false",
        "Remove a file system.",
        "fs",
        "rw",
        change::remove,
    ),
    write(
        "fs reset name=fs_name,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false",
        "Begin a file system's map anew with one rank; for recovery from disasters.",
        "fs",
        "rw",
        change::reset,
    ),
    write(
        "fs fail name=fs_name,type=CephString",
        "Take a file system down with all of its ranks.",
        "fs",
        "rw",
        change::fail,
    ),
    write(
        "fs set name=fs_name,type=CephString name=var,type=CephChoices,strings=max_mds|max_file_size|\
         allow_new_snaps|inline_data|cluster_down|allow_dirfrags|balancer|standby_count_wanted|session_timeout|\
         session_autoclose|allow_standby_replay|down|joinable|min_compat_client|allow_multimds|\
         allow_multimds_snaps name=val,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false \
         name=yes_i_really_really_mean_it,type=CephBool,req=false name=confirm,type=CephString,req=false",
        "Change a setting of a file system.",
        "mds",
        "rw",
        set::set,
    ),
    write(
        "fs flag set name=flag_name,type=CephChoices,strings=enable_multiple name=val,type=CephString \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Change a setting of all file systems.",
        "fs",
        "rw",
        set::flag_set,
    ),
    write(
        "fs compat name=fs_name,type=CephString name=subop,type=CephChoices,strings=rm_compat|rm_incompat|\
         add_compat|add_incompat name=feature,type=CephInt name=feature_str,type=CephString,req=false \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Change what metadata servers of a file system must know.",
        "fs",
        "rw",
        set::compat,
    ),
    write(
        "fs required_client_features name=fs_name,type=CephString name=subop,type=CephChoices,strings=add|rm \
         name=val,type=CephString",
        "Change what clients of a file system must know.",
        "mds",
        "rw",
        set::required_client_features,
    ),
    write(
        "fs add_data_pool name=fs_name,type=CephString name=pool,type=CephString",
        "Add a pool for data.",
        "mds",
        "rw",
        change::add_data_pool,
    ),
    write(
        "fs rm_data_pool name=fs_name,type=CephString name=pool,type=CephString",
        "Remove a pool for data.",
        "mds",
        "rw",
        change::remove_data_pool,
    ),
    write(
        "fs set-default name=fs_name,type=CephString",
        "Choose the file system of clients that name none.",
        "fs",
        "rw",
        change::set_default,
    ),
    flagged(
        write(
            "fs set_default name=fs_name,type=CephString",
            "Choose the file system of clients that name none.",
            "fs",
            "rw",
            change::set_default,
        ),
        flags::DEPRECATED,
    ),
    write(
        "fs mirror enable name=fs_name,type=CephString",
        "Let a file system be mirrored.",
        "mds",
        "rw",
        change::mirror_enable,
    ),
    write(
        "fs mirror disable name=fs_name,type=CephString",
        "Let a file system be mirrored no more.",
        "mds",
        "rw",
        change::mirror_disable,
    ),
    write(
        "fs mirror peer_add name=fs_name,type=CephString name=uuid,type=CephString \
         name=remote_cluster_spec,type=CephString name=remote_fs_name,type=CephString",
        "Add a cluster that a file system is mirrored to.",
        "mds",
        "rw",
        change::mirror_peer_add,
    ),
    write(
        "fs mirror peer_remove name=fs_name,type=CephString name=uuid,type=CephString",
        "Remove a cluster that a file system is mirrored to.",
        "mds",
        "rw",
        change::mirror_peer_remove,
    ),
    write(
        "fs authorize name=filesystem,type=CephString name=entity,type=CephString name=caps,type=CephString,n=N",
        "Give a client capabilities for paths of a file system.",
        "auth",
        "rwx",
        authorize::authorize,
    ),
];
