//! Commands about block devices (Ceph: module `rbd_support`).

use super::{Answer, Entry, Run};
use crate::rbd::perf;
use crate::rbd::schedule::{Interval, Level, StartTime};
use crate::rbd::schedules::Kind;
use crate::rbd::spec::{ImageSpec, PoolKey, pool_key};
use crate::rbd::task::Action;
use crate::rbd::{DEFAULT_POOL, RbdSupport};
use command::{Args, Command, Format, Refusal, Reply, flags};
use serde_json::Value;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use types::errno::Errno;

/// The client that asks: what it may do with a pool and a namespace.
pub type Allowed = Box<dyn Fn(&str, &str) -> bool>;

/// What is asked of the manager's block device services.
pub struct Ask {
    /// The services.
    pub rbd: Rc<RbdSupport>,
    /// The arguments.
    pub args: Args,
    /// What the client may do.
    pub allowed: Allowed,
}

/// An answer that takes time.
pub type Later = Pin<Box<dyn Future<Output = Answer>>>;

const fn ask(
    signature: &'static str,
    help: &'static str,
    perm: &'static str,
    handler: fn(Ask) -> Later,
) -> Entry {
    Command { signature, help, module: "mgr", perm, flags: flags::MGR, handler: Run::Rbd(handler) }
}

pub(super) const COMMANDS: &[Entry] = &[
    ask(
        "rbd perf image stats name=pool_spec,type=CephString,req=false name=sort_by,type=CephChoices,strings=write_ops|write_bytes|write_latency|read_ops|read_bytes|read_latency,req=false",
        "Retrieve current RBD IO performance stats",
        "r",
        |a| Box::pin(image_perf(a, perf::Kind::Stats)),
    ),
    ask(
        "rbd perf image counters name=pool_spec,type=CephString,req=false name=sort_by,type=CephChoices,strings=write_ops|write_bytes|write_latency|read_ops|read_bytes|read_latency,req=false",
        "Retrieve current RBD IO performance counters",
        "r",
        |a| Box::pin(image_perf(a, perf::Kind::Counters)),
    ),
    ask(
        "rbd task add flatten name=image_spec,type=CephString",
        "Flatten a cloned image asynchronously in the background",
        "w",
        |a| Box::pin(task_add(a, Action::Flatten)),
    ),
    ask(
        "rbd task add remove name=image_spec,type=CephString",
        "Remove an image asynchronously in the background",
        "w",
        |a| Box::pin(task_add(a, Action::Remove)),
    ),
    ask(
        "rbd task add trash remove name=image_id_spec,type=CephString",
        "Remove an image from the trash asynchronously in the background",
        "w",
        |a| Box::pin(task_add(a, Action::TrashRemove)),
    ),
    ask(
        "rbd task add migration execute name=image_spec,type=CephString",
        "Execute an image migration asynchronously in the background",
        "w",
        |a| Box::pin(task_add(a, Action::MigrateExecute)),
    ),
    ask(
        "rbd task add migration commit name=image_spec,type=CephString",
        "Commit an executed migration asynchronously in the background",
        "w",
        |a| Box::pin(task_add(a, Action::MigrateCommit)),
    ),
    ask(
        "rbd task add migration abort name=image_spec,type=CephString",
        "Abort a prepared migration asynchronously in the background",
        "w",
        |a| Box::pin(task_add(a, Action::MigrateAbort)),
    ),
    ask(
        "rbd task cancel name=task_id,type=CephString",
        "Cancel a pending or running asynchronous task",
        "r",
        |a| Box::pin(task_cancel(a)),
    ),
    ask(
        "rbd task list name=task_id,type=CephString,req=false",
        "List pending or running asynchronous tasks",
        "r",
        |a| Box::pin(task_list(a)),
    ),
    ask(
        "rbd trash purge schedule add name=level_spec,type=CephString name=interval,type=CephString name=start_time,type=CephString,req=false",
        "Add rbd trash purge schedule",
        "w",
        |a| Box::pin(schedule_add(a, Kind::TrashPurge)),
    ),
    ask(
        "rbd trash purge schedule remove name=level_spec,type=CephString name=interval,type=CephString,req=false name=start_time,type=CephString,req=false",
        "Remove rbd trash purge schedule",
        "w",
        |a| Box::pin(schedule_remove(a, Kind::TrashPurge)),
    ),
    ask(
        "rbd trash purge schedule list name=level_spec,type=CephString,req=false",
        "List rbd trash purge schedule",
        "r",
        |a| Box::pin(schedule_list(a, Kind::TrashPurge)),
    ),
    ask(
        "rbd trash purge schedule status name=level_spec,type=CephString,req=false",
        "Show rbd trash purge schedule status",
        "r",
        |a| Box::pin(schedule_status(a, Kind::TrashPurge)),
    ),
    ask(
        "rbd mirror snapshot schedule add name=level_spec,type=CephString name=interval,type=CephString name=start_time,type=CephString,req=false",
        "Add rbd mirror snapshot schedule",
        "w",
        |a| Box::pin(schedule_add(a, Kind::MirrorSnapshot)),
    ),
    ask(
        "rbd mirror snapshot schedule remove name=level_spec,type=CephString name=interval,type=CephString,req=false name=start_time,type=CephString,req=false",
        "Remove rbd mirror snapshot schedule",
        "w",
        |a| Box::pin(schedule_remove(a, Kind::MirrorSnapshot)),
    ),
    ask(
        "rbd mirror snapshot schedule list name=level_spec,type=CephString,req=false",
        "List rbd mirror snapshot schedule",
        "r",
        |a| Box::pin(schedule_list(a, Kind::MirrorSnapshot)),
    ),
    ask(
        "rbd mirror snapshot schedule status name=level_spec,type=CephString,req=false",
        "Show rbd mirror snapshot schedule status",
        "r",
        |a| Box::pin(schedule_status(a, Kind::MirrorSnapshot)),
    ),
];

impl Ask {
    fn authorize(&self, pool: &str, namespace: &str) -> Result<(), Refusal> {
        if (self.allowed)(pool, namespace) {
            return Ok(());
        }
        Err(Refusal::new(
            Errno::EACCES,
            format!("not authorized on pool={pool}, namespace={namespace}"),
        ))
    }

    /// The level that the command names.
    async fn level(&self, kind: Kind) -> Result<Level, Refusal> {
        self.rbd.ready().await?;
        self.rbd.level(kind, self.args.str("level_spec").unwrap_or("")).await
    }
}

/// Ceph indents these whatever the client asks for.
fn indented(value: &Value) -> Answer {
    Ok(Reply::data(Format::JsonPretty.json(value)))
}

async fn image_perf(a: Ask, kind: perf::Kind) -> Answer {
    let key = pool_key(a.args.str("pool_spec").unwrap_or(""))?;
    match &key {
        PoolKey::All => a.authorize("", "")?,
        PoolKey::Pool { pool, namespace } => a.authorize(pool, namespace)?,
    }
    let report =
        a.rbd.perf_report(&key, kind, a.args.str("sort_by").unwrap_or("write_ops")).await?;
    Ok(Reply::data(Format::Json.json(&report)))
}

async fn task_add(a: Ask, action: Action) -> Answer {
    let text = a.args.str("image_spec").or(a.args.str("image_id_spec")).unwrap_or("");
    let spec = ImageSpec::parse(text, DEFAULT_POOL)?;
    a.authorize(&spec.pool, &spec.namespace)?;
    a.rbd.add_task(action, &spec).await.map(Reply::data)
}

async fn task_cancel(a: Ask) -> Answer {
    a.rbd.ready().await?;
    let id = a.args.req("task_id");
    let found = a.rbd.tasks.borrow().by_id(id).map(|t| t.stored.clone());
    let Some(task) = found.filter(|t| (a.allowed)(&t.refs.pool_name, &t.refs.pool_namespace))
    else {
        return Err(Refusal::new(Errno::ENOENT, format!("No such task {id}")));
    };
    a.rbd.cancel_task(&task).await?;
    Ok(Reply::empty())
}

async fn task_list(a: Ask) -> Answer {
    a.rbd.ready().await?;
    let tasks = a.rbd.tasks.borrow();
    let allowed = |t: &&crate::rbd::task::Task| {
        (a.allowed)(&t.stored.refs.pool_name, &t.stored.refs.pool_namespace)
    };
    if let Some(id) = a.args.str("task_id").filter(|id| !id.is_empty()) {
        let task = tasks.by_id(id).filter(allowed);
        let task = task.ok_or_else(|| Refusal::new(Errno::ENOENT, format!("No such task {id}")))?;
        return indented(&task.dump());
    }
    let all: Vec<Value> = tasks.all().filter(allowed).map(|t| t.dump()).collect();
    indented(&all.into())
}

fn item(a: &Ask) -> Result<Option<(Interval, Option<StartTime>)>, Refusal> {
    let Some(text) = a.args.str("interval").filter(|t| !t.is_empty()) else { return Ok(None) };
    let interval = Interval::parse(text)
        .ok_or_else(|| Refusal::invalid(format!("Invalid interval ({text})")))?;
    let start = match a.args.str("start_time").filter(|t| !t.is_empty()) {
        Some(text) => Some(
            StartTime::parse(text)
                .ok_or_else(|| Refusal::invalid(format!("Invalid start time {text}")))?,
        ),
        None => None,
    };
    Ok(Some((interval, start)))
}

async fn schedule_add(a: Ask, kind: Kind) -> Answer {
    let level = a.level(kind).await?;
    let (interval, start) = item(&a)?.ok_or_else(|| Refusal::invalid("Invalid interval ()"))?;
    let schedule = a.rbd.schedules(kind).borrow_mut().add(&level, interval, start).clone();
    a.rbd.save_schedule(kind, &level, Some(schedule)).await?;
    a.rbd.plan(kind, true).await;
    Ok(Reply::empty())
}

async fn schedule_remove(a: Ask, kind: Kind) -> Answer {
    let level = a.level(kind).await?;
    let item = item(&a)?;
    let left = a.rbd.schedules(kind).borrow_mut().remove(&level, item).cloned();
    a.rbd.save_schedule(kind, &level, left).await?;
    a.rbd.plan(kind, true).await;
    Ok(Reply::empty())
}

async fn schedule_list(a: Ask, kind: Kind) -> Answer {
    let level = a.level(kind).await?;
    indented(&a.rbd.schedule_list(kind, &level).await?)
}

async fn schedule_status(a: Ask, kind: Kind) -> Answer {
    let level = a.level(kind).await?;
    indented(&a.rbd.schedule_status(kind, &level).await?)
}
