//! What the manager does for block devices (Ceph: module `rbd_support`): statistics of images,
//! tasks that it runs in the background, trash that it empties and snapshots of mirrored images
//! that it makes on time.
//!
//! * [`perf`], [`task`], [`schedule`] and [`ceiling`] decide, without I/O; [`spec`] reads names.
//! * [`image`] and `mirror` work on images, through a native client.
//! * here and in [`schedules`] are the loops that join them.

pub mod ceiling;
pub mod image;
mod migration;
mod mirror;
pub mod perf;
pub mod schedule;
pub mod schedules;
pub mod spec;
pub mod task;

use bytes::Bytes;
use client::{ClientError, IoCtx, OmapPage, Rados, wall_clock};
use cls::rbd::types::MigrationState;
use command::Refusal;
use conf::Config;
use image::ImageError;
use perf::{Perf, Pools};
use schedule::Schedules;
use schedules::Kind;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use task::{Action, End, Queue, Refs, Stored};
use tokio::sync::Notify;
use types::errno::Errno;
use types::{OsdMap, PoolId};

/// The pool of images that are named without one.
pub const DEFAULT_POOL: &str = "rbd";

const TASKS: &str = "rbd_task";
/// How long an OSD may take to answer.
const OSD_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for a task, which no client waits for and which moves whole objects.
const TASK_OSD_TIMEOUT: Duration = Duration::from_secs(300);
/// How often tasks are looked at without a command (Ceph: `TaskHandler.run`).
const TASK_PERIOD: Duration = Duration::from_secs(5);
/// How often names of images are asked for again (Ceph: `POOL_REFRESH_INTERVAL`).
const NAMES_PERIOD: f64 = 300.0;
/// How long a command waits until stored tasks are known.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The manager's services for block devices.
pub struct RbdSupport {
    rados: Rados,
    conf: Rc<RefCell<Config>>,
    /// Statistics of images.
    pub perf: RefCell<Perf>,
    /// Limits of images.
    pub ceilings: RefCell<ceiling::Ceilings>,
    names_since: Cell<f64>,
    /// Background tasks.
    pub tasks: RefCell<Queue>,
    /// What is done on time, by kind.
    schedules: BTreeMap<Kind, RefCell<Schedules>>,
    loaded: tokio::sync::watch::Sender<bool>,
    task_added: Notify,
    stopping: Cell<bool>,
}

/// The pools of a map.
struct MapPools(Arc<OsdMap>);

impl Pools for MapPools {
    fn id(&self, name: &str) -> Option<PoolId> {
        self.0.pool_by_name(name)
    }

    fn name(&self, id: PoolId) -> Option<String> {
        let pool = self.0.pools.get(&id)?;
        pool.application_metadata
            .contains_key("rbd")
            .then(|| self.0.pool_names.get(&id).cloned())?
    }
}

/// A refusal for what the cluster answered.
pub fn refusal(e: ClientError) -> Refusal {
    Refusal::new(e.errno(), e.to_string())
}

fn image_refusal(e: ImageError) -> Refusal {
    match e {
        ImageError::Cluster(e) => refusal(e),
        other => Refusal::invalid(other.to_string()),
    }
}

fn absent(message: String) -> Refusal {
    Refusal::new(Errno::ENOENT, message)
}

impl RbdSupport {
    /// Begins to work on the current `LocalSet`.
    pub fn start(rados: Rados, conf: Rc<RefCell<Config>>) -> Rc<Self> {
        let this = Rc::new(RbdSupport {
            rados,
            conf,
            perf: RefCell::default(),
            ceilings: RefCell::default(),
            names_since: Cell::new(0.0),
            tasks: RefCell::default(),
            schedules: Kind::ALL.map(|kind| (kind, RefCell::default())).into(),
            loaded: tokio::sync::watch::Sender::new(false),
            task_added: Notify::new(),
            stopping: Cell::new(false),
        });
        tokio::task::spawn_local(run_perf(Rc::downgrade(&this)));
        tokio::task::spawn_local(run_tasks(Rc::downgrade(&this)));
        for kind in Kind::ALL {
            tokio::task::spawn_local(schedules::run(Rc::downgrade(&this), kind));
        }
        this
    }

    /// Stops working; what is being done to an image ends after its current objects.
    pub fn shutdown(&self) {
        self.stopping.set(true);
        self.task_added.notify_one();
    }

    fn map(&self) -> Option<Arc<OsdMap>> {
        self.rados.objecter().map()
    }

    fn pools(&self) -> Result<MapPools, Refusal> {
        self.map()
            .map(MapPools)
            .ok_or_else(|| Refusal::new(Errno::EAGAIN, "the manager has no OSD map yet"))
    }

    /// The pools of block devices, by number.
    fn rbd_pools(&self) -> Vec<PoolId> {
        let Some(map) = self.map() else { return Vec::new() };
        let pools = map.pools.iter().filter(|(_, p)| p.application_metadata.contains_key("rbd"));
        pools.map(|(id, _)| *id).collect()
    }

    fn ioctx_of(&self, pool: PoolId, namespace: &str) -> IoCtx {
        self.rados.ioctx_of(pool).with_namespace(namespace).with_timeout(OSD_TIMEOUT)
    }

    async fn ioctx(&self, pool: &str, namespace: &str) -> Result<IoCtx, Refusal> {
        let ctx = self.rados.ioctx(pool).await;
        let ctx =
            ctx.map_err(|e| Refusal::new(e.errno(), format!("error opening pool '{pool}'")))?;
        Ok(ctx.with_namespace(namespace).with_timeout(OSD_TIMEOUT))
    }

    // --- statistics ---

    /// Answers `rbd perf image ...`.
    pub async fn perf_report(
        &self,
        query: &spec::PoolKey,
        kind: perf::Kind,
        sort_by: &str,
    ) -> Result<serde_json::Value, Refusal> {
        if let spec::PoolKey::Pool { pool, .. } = query {
            self.rados.pool(pool).await.map_err(|_| absent(format!("Pool '{pool}' not found")))?;
        }
        let pools = self.pools()?;
        Ok(self.perf.borrow_mut().report(query, kind, sort_by, wall_clock().as_secs_f64(), &pools))
    }

    async fn perf_round(&self) {
        let now = wall_clock().as_secs_f64();
        let Ok(pools) = self.pools() else { return };
        if now - self.names_since.get() > NAMES_PERIOD {
            self.names_since.set(now);
            self.perf.borrow_mut().forget_names();
        }
        let unknown = self.perf.borrow_mut().round(now, &pools);
        for (pool, namespace) in unknown {
            match image::names(&self.ioctx_of(pool, &namespace)).await {
                Ok(names) => self.perf.borrow_mut().set_names(pool, &namespace, names),
                Err(e) => tracing::debug!("names of the images in pool {}: {e}", pool.0),
            }
        }
    }

    // --- limits ---

    /// Reads settings that are due; `changed` is called for each that is other than before.
    pub fn read_settings(self: &Rc<Self>, changed: impl Fn() + Clone + 'static) {
        let due = self.ceilings.borrow_mut().due(wall_clock().as_secs_f64());
        for source in due {
            let (this, changed) = (self.clone(), changed.clone());
            tokio::task::spawn_local(async move {
                let settings = match this.settings_of(&source).await {
                    Ok(settings) => Some(settings),
                    Err(e) => {
                        tracing::debug!("limits of {source:?}: {e}");
                        None
                    }
                };
                if this.ceilings.borrow_mut().read(&source, settings, wall_clock().as_secs_f64()) {
                    changed();
                }
            });
        }
    }

    async fn settings_of(
        &self,
        source: &ceiling::Source,
    ) -> Result<ceiling::Settings, ClientError> {
        match source {
            ceiling::Source::Global => {
                let command =
                    serde_json::json!({"prefix": "config get", "who": "client", "format": "json"})
                        .to_string();
                let output = self.rados.mon_command(&command, Bytes::new()).await?.ok()?;
                Ok(ceiling::global(&output))
            }
            ceiling::Source::Pool(pool) => {
                image::limit_settings(&self.ioctx_of(*pool, ""), "rbd_info").await
            }
            ceiling::Source::Image(data) => {
                let found = match ceiling::image_ref(data) {
                    Some(i) => {
                        let ctx = self.ioctx_of(i.pool, &String::from_utf8_lossy(&data.namespace));
                        image::limits_of(&ctx, &i, data.pool).await?
                    }
                    None => None,
                };
                Ok(found.unwrap_or_else(|| [(ceiling::NO_IMAGE.to_owned(), String::new())].into()))
            }
        }
    }

    // --- tasks ---

    /// Waits until the stored tasks and schedules are known.
    pub async fn ready(&self) -> Result<(), Refusal> {
        let mut loaded = self.loaded.subscribe();
        match tokio::time::timeout(LOAD_TIMEOUT, loaded.wait_for(|l| *l)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Refusal::new(
                Errno::EAGAIN,
                "the tasks and schedules in the pools are not known yet",
            )),
        }
    }

    /// Adds a task, unless it is there already. Its stored form is the answer.
    pub async fn add_task(&self, action: Action, spec: &spec::ImageSpec) -> Result<Bytes, Refusal> {
        self.ready().await?;
        let ctx = self.ioctx(&spec.pool, &spec.namespace).await?;
        let mut refs = Refs {
            action,
            pool_name: spec.pool.clone(),
            pool_namespace: spec.namespace.clone(),
            image_name: None,
            image_id: None,
        };
        let found = match action {
            Action::TrashRemove => {
                refs.image_id = Some(spec.image.clone());
                None
            }
            Action::MigrateExecute | Action::MigrateCommit | Action::MigrateAbort => {
                refs.image_name = Some(spec.image.clone());
                return self.add_migration_task(&ctx, refs, spec).await;
            }
            Action::Flatten | Action::Remove => {
                refs.image_name = Some(spec.image.clone());
                refs.image_id = image::id_of(&ctx, &spec.image).await.map_err(refusal)?;
                match &refs.image_id {
                    Some(id) => image::Image::open(&ctx, id).await.map_err(image_refusal)?,
                    None => None,
                }
            }
        };
        if let Some(task) = self.tasks.borrow().find(&refs) {
            return Ok(stored_text(task).into());
        }
        let message = match action {
            Action::TrashRemove => {
                let there = image::in_trash(&ctx, &spec.image).await.map_err(refusal)?;
                there.ok_or_else(|| {
                    absent(format!("error retrieving image {} from trash", spec.image))
                })?;
                format!("Removing image {spec} from trash")
            }
            _ => {
                let Some(image) = found else {
                    if image::is_first_format(&ctx, &spec.image).await.map_err(refusal)? {
                        return Err(Refusal::unsupported(format!(
                            "Image {spec} has the first format, which tasks do not support"
                        )));
                    }
                    return Err(absent(format!("Image {spec} does not exist")));
                };
                if action == Action::Remove {
                    if image.has_snapshots() {
                        return Err(Refusal::new(
                            Errno::EBUSY,
                            format!("Image {spec} has snapshots"),
                        ));
                    }
                    format!("Removing image {spec}")
                } else {
                    if !image.has_parent().await.map_err(image_refusal)? {
                        return Err(absent(format!("Image {spec} does not have a parent")));
                    }
                    format!("Flattening image {spec}")
                }
            }
        };
        self.queue_task(&ctx, message, refs).await
    }

    async fn add_migration_task(
        &self,
        ctx: &IoCtx,
        mut refs: Refs,
        spec: &spec::ImageSpec,
    ) -> Result<Bytes, Refusal> {
        let ends = migration::ends(ctx, &spec.image).await.map_err(image_refusal)?;
        refs.image_id = ends.as_ref().map(|e| e.id.clone());
        if let Some(task) = self.tasks.borrow().find(&refs) {
            return Ok(stored_text(task).into());
        }
        let Some(ends) = ends else {
            return Err(Refusal::invalid(format!("Image {spec} is not migrating")));
        };
        let ready = matches!(ends.state, MigrationState::PREPARED | MigrationState::EXECUTING);
        let message = match refs.action {
            Action::MigrateExecute if !ready => {
                return Err(Refusal::invalid(format!("Image {spec} is not in ready state")));
            }
            Action::MigrateExecute => {
                let (source, destination) =
                    (self.shown(&ends.source), self.shown(&ends.destination));
                format!("Migrating image {source} to {destination}")
            }
            Action::MigrateCommit if ends.state != MigrationState::EXECUTED => {
                return Err(Refusal::invalid(format!("Image {spec} has not completed migration")));
            }
            Action::MigrateCommit => format!("Committing image migration for {spec}"),
            _ => format!("Aborting image migration for {spec}"),
        };
        self.queue_task(ctx, message, refs).await
    }

    /// An image as people write it.
    fn shown(&self, (pool, namespace, name): &(PoolId, String, String)) -> String {
        let pool = self.map().and_then(|m| m.pool_names.get(pool).cloned());
        let pool = pool.unwrap_or_else(|| "<unknown>".into());
        spec::ImageSpec { pool, namespace: namespace.clone(), image: name.clone() }.to_string()
    }

    /// Stores a task, and has it run. Its stored form is the answer.
    async fn queue_task(&self, ctx: &IoCtx, message: String, refs: Refs) -> Result<Bytes, Refusal> {
        let id = uuid();
        let stored = self.tasks.borrow_mut().next(id, message, refs);
        let text = stored_text(&stored);
        let row = BTreeMap::from([(
            Bytes::from(task::Task::new(stored.clone()).key()),
            Bytes::from(text.clone()),
        )]);
        ctx.omap_set(TASKS, &row).await.map_err(refusal)?;
        self.tasks.borrow_mut().load(stored);
        self.task_added.notify_one();
        Ok(text.into())
    }

    /// Cancels a task.
    pub async fn cancel_task(&self, stored: &Stored) -> Result<(), Refusal> {
        self.tasks.borrow_mut().cancel(&stored.id);
        self.forget_task(stored).await.map_err(refusal)
    }

    async fn forget_task(&self, stored: &Stored) -> Result<(), ClientError> {
        let key = task::Task::new(stored.clone()).key();
        let ctx = match self.rados.ioctx(&stored.refs.pool_name).await {
            Ok(ctx) => ctx.with_namespace(&stored.refs.pool_namespace).with_timeout(OSD_TIMEOUT),
            // The task went with the pool.
            Err(ClientError::NoPool) => return Ok(()),
            Err(e) => return Err(e),
        };
        match ctx.omap_remove(TASKS, &BTreeSet::from([Bytes::from(key)])).await {
            Err(e) if e.errno() != Errno::ENOENT => Err(e),
            _ => Ok(()),
        }
    }

    async fn run_task(&self, stored: &Stored) -> End {
        let refs = &stored.refs;
        let ctx = match self.rados.ioctx(&refs.pool_name).await {
            Ok(ctx) => ctx.with_namespace(&refs.pool_namespace).with_timeout(TASK_OSD_TIMEOUT),
            Err(ClientError::NoPool) => return End::Failed,
            Err(e) => return End::Retry(e.to_string()),
        };
        let progress = |done: f64| {
            self.tasks.borrow_mut().progress(stored.sequence, done) && !self.stopping.get()
        };
        let id = refs.image_id.as_deref().unwrap_or("");
        let name = refs.image_name.as_deref().unwrap_or("");
        let result = match refs.action {
            Action::Flatten => image::flatten(&ctx, id, stored.sequence, &progress).await,
            Action::Remove => image::remove(&ctx, name, id, &progress).await,
            Action::TrashRemove => {
                image::remove_from_trash(&ctx, id, wall_clock(), &progress).await
            }
            Action::MigrateExecute => migration::execute(&ctx, name, &progress).await,
            Action::MigrateCommit => migration::commit(&ctx, name, &progress).await,
            Action::MigrateAbort => migration::abort(&ctx, name, &progress).await,
        };
        match result {
            Ok(()) => End::Done,
            Err(ImageError::Final(why)) => {
                tracing::warn!("{}: {why}", stored.message);
                End::Failed
            }
            Err(e) => End::Retry(e.to_string()),
        }
    }

    async fn rows(&self, ctx: &IoCtx, object: &str) -> Result<BTreeMap<Bytes, Bytes>, ClientError> {
        let mut all = BTreeMap::new();
        let mut after = Bytes::new();
        loop {
            let OmapPage { entries: page, more } = match ctx.omap(object, &after, 128).await {
                Ok(page) => page,
                Err(e) if e.errno() == Errno::ENOENT => return Ok(all),
                Err(e) => return Err(e),
            };
            if let Some(last) = page.keys().next_back() {
                after = last.clone();
            }
            all.extend(page);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Reads tasks and schedules of all pools.
    async fn load(&self) -> Result<(), ClientError> {
        self.rados.objecter().wait_epoch(types::Epoch(1)).await?;
        let mut queue = Queue::default();
        self.load_schedules().await?;
        for pool in self.rbd_pools() {
            let ctx = self.ioctx_of(pool, "");
            let mut namespaces = image::namespaces(&ctx).await?;
            namespaces.push(String::new());
            for namespace in namespaces {
                for text in self.rows(&self.ioctx_of(pool, &namespace), TASKS).await?.values() {
                    match serde_json::from_slice(text) {
                        Ok(stored) => queue.load(stored),
                        Err(e) => tracing::warn!("a task in pool {}: {e}", pool.0),
                    }
                }
            }
        }
        *self.tasks.borrow_mut() = queue;
        self.loaded.send_replace(true);
        Ok(())
    }
}

fn stored_text(stored: &Stored) -> String {
    serde_json::to_string(stored).expect("a task is plain data")
}

fn uuid() -> String {
    let mut id: [u8; 16] = rand::random();
    // Version 4, variant 1.
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    types::Fsid(id).to_string()
}

/// Ends rounds of the statistics.
async fn run_perf(rbd: Weak<RbdSupport>) {
    loop {
        let Some(this) = rbd.upgrade().filter(|t| !t.stopping.get()) else { return };
        let period = Duration::from_secs(this.conf.borrow().u64("mgr_stats_period").max(1));
        drop(this);
        tokio::time::sleep(period).await;
        let Some(this) = rbd.upgrade() else { return };
        this.perf_round().await;
    }
}

/// Works on tasks in their order.
async fn run_tasks(rbd: Weak<RbdSupport>) {
    loop {
        let Some(this) = rbd.upgrade().filter(|t| !t.stopping.get()) else { return };
        if !*this.loaded.borrow() {
            if let Err(e) = this.load().await {
                tracing::info!("tasks and schedules of block devices: {e}");
            }
        } else {
            let due = this.tasks.borrow().due(wall_clock());
            for sequence in due {
                let Some(stored) = this.tasks.borrow_mut().start(sequence) else { continue };
                let end = this.run_task(&stored).await;
                if this.stopping.get() {
                    return;
                }
                if this.tasks.borrow_mut().end(sequence, end, wall_clock())
                    && let Err(e) = this.forget_task(&stored).await
                {
                    tracing::warn!("{}: it is done, but stays stored: {e}", stored.message);
                }
            }
        }
        let now_loaded = *this.loaded.borrow();
        let waiting = this.tasks.borrow().due(wall_clock());
        if now_loaded && !waiting.is_empty() {
            continue;
        }
        let _ = tokio::time::timeout(TASK_PERIOD, this.task_added.notified()).await;
    }
}
