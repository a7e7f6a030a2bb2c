//! `orch`: the answers of a cluster without an orchestrator (Ceph: module `orchestrator`, 16.2).
//! Tools ask it to find out whether there is one.

use super::{Entry, Run};
use command::{Command, flags};
use types::errno::Errno;

const NONE: &str = "No orchestrator configured (try `ceph orch set backend`)";

/// Whatever follows the words is taken.
const fn orch(signature: &'static str, help: &'static str) -> Entry {
    Command {
        signature,
        help,
        module: "mgr",
        perm: "rw",
        flags: flags::MGR,
        handler: Run::Refused(Errno::ENOENT, NONE),
    }
}

pub(super) const COMMANDS: &[Entry] = &[
    orch(
        "orch apply name=args,type=CephString,n=N,req=false",
        "Update the size or placement of a service, or apply a specification",
    ),
    orch("orch cancel name=args,type=CephString,n=N,req=false", "Cancel ongoing operations"),
    orch(
        "orch daemon name=args,type=CephString,n=N,req=false",
        "Start, stop, restart or reconfigure a daemon",
    ),
    orch("orch daemon add name=args,type=CephString,n=N,req=false", "Add daemons"),
    orch("orch daemon redeploy name=args,type=CephString,n=N,req=false", "Redeploy a daemon"),
    orch("orch daemon rm name=args,type=CephString,n=N,req=false", "Remove daemons"),
    orch(
        "orch device ls name=hostname,type=CephString,n=N,req=false name=refresh,type=CephBool,req=false name=wide,type=CephBool,req=false",
        "List devices on a host",
    ),
    orch(
        "orch device zap name=args,type=CephString,n=N,req=false",
        "Erase a device so that it can be used again",
    ),
    orch("orch host add name=args,type=CephString,n=N,req=false", "Add a host"),
    orch(
        "orch host drain name=args,type=CephString,n=N,req=false",
        "Drain all daemons from a host",
    ),
    orch("orch host label add name=args,type=CephString,n=N,req=false", "Add a label to a host"),
    orch(
        "orch host label rm name=args,type=CephString,n=N,req=false",
        "Remove a label from a host",
    ),
    orch("orch host ls name=args,type=CephString,n=N,req=false", "List hosts"),
    orch(
        "orch host maintenance enter name=args,type=CephString,n=N,req=false",
        "Prepare a host for maintenance",
    ),
    orch(
        "orch host maintenance exit name=args,type=CephString,n=N,req=false",
        "Return a host from maintenance",
    ),
    orch(
        "orch host ok-to-stop name=args,type=CephString,n=N,req=false",
        "Tell whether a host can be stopped without loss of availability",
    ),
    orch("orch host rm name=args,type=CephString,n=N,req=false", "Remove a host"),
    orch("orch host set-addr name=args,type=CephString,n=N,req=false", "Update a host's address"),
    orch(
        "orch ls name=service_type,type=CephString,req=false name=service_name,type=CephString,req=false name=export,type=CephBool,req=false name=refresh,type=CephBool,req=false",
        "List services",
    ),
    orch("orch osd rm name=args,type=CephString,n=N,req=false", "Remove OSDs"),
    orch("orch osd rm status name=args,type=CephString,n=N,req=false", "Show the removal of OSDs"),
    orch("orch osd rm stop name=args,type=CephString,n=N,req=false", "Cancel the removal of OSDs"),
    orch(
        "orch pause name=args,type=CephString,n=N,req=false",
        "Pause background work of the orchestrator",
    ),
    orch(
        "orch ps name=hostname,type=CephString,req=false name=service_name,type=CephString,req=false name=daemon_type,type=CephString,req=false name=daemon_id,type=CephString,req=false name=refresh,type=CephBool,req=false",
        "List daemons",
    ),
    orch("orch redeploy name=args,type=CephString,n=N,req=false", "Redeploy a service"),
    orch("orch restart name=args,type=CephString,n=N,req=false", "Restart a service"),
    orch(
        "orch resume name=args,type=CephString,n=N,req=false",
        "Resume background work of the orchestrator",
    ),
    orch("orch rm name=args,type=CephString,n=N,req=false", "Remove a service"),
    orch("orch set backend name=args,type=CephString,n=N,req=false", "Select an orchestrator"),
    orch("orch start name=args,type=CephString,n=N,req=false", "Start a service"),
    orch(
        "orch status name=detail,type=CephBool,req=false",
        "Report the configured orchestrator and its status",
    ),
    orch("orch stop name=args,type=CephString,n=N,req=false", "Stop a service"),
    orch(
        "orch upgrade check name=args,type=CephString,n=N,req=false",
        "Check whether versions of services match those to come",
    ),
    orch("orch upgrade ls name=args,type=CephString,n=N,req=false", "List versions to upgrade to"),
    orch("orch upgrade pause name=args,type=CephString,n=N,req=false", "Pause an upgrade"),
    orch("orch upgrade resume name=args,type=CephString,n=N,req=false", "Resume an upgrade"),
    orch("orch upgrade start name=args,type=CephString,n=N,req=false", "Start an upgrade"),
    orch(
        "orch upgrade status name=args,type=CephString,n=N,req=false",
        "Show the state of an upgrade",
    ),
    orch("orch upgrade stop name=args,type=CephString,n=N,req=false", "Stop an upgrade"),
];
