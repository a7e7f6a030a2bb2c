//! What is done to pools and images on time: schedules are kept in the pools and with the monitors
//! in Ceph's form, and acted upon.

use super::schedule::{Level, LevelName, Schedule, Schedules};
use super::{Pools, RbdSupport, image, mirror, refusal};
use bytes::Bytes;
use client::{ClientError, wall_clock};
use cls::rbd::types::TrashImageSource;
use command::Refusal;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use types::PoolId;
use types::errno::Errno;

/// How often pools, namespaces and images are looked at (Ceph: `REFRESH_DELAY_SECONDS`).
const PERIOD: Duration = Duration::from_secs(60);
/// Snapshots that are made at a time (Ceph: `max_concurrent_snap_create`).
const CONCURRENT: usize = 10;

/// What a schedule is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The trash of a namespace is emptied.
    TrashPurge,
    /// A snapshot of a mirrored image is made.
    MirrorSnapshot,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::TrashPurge, Kind::MirrorSnapshot];

    /// The object of each pool with its schedules, and those of its namespaces and images.
    fn object(self) -> &'static str {
        match self {
            Kind::TrashPurge => "rbd_trash_purge_schedule",
            Kind::MirrorSnapshot => "rbd_mirror_snapshot_schedule",
        }
    }

    /// Where the schedule for everything is kept with the monitors.
    fn global_key(self) -> &'static str {
        match self {
            Kind::TrashPurge => "mgr/rbd_support/trash_purge_schedule",
            Kind::MirrorSnapshot => "mgr/rbd_support/mirror_snapshot_schedule",
        }
    }
}

fn minutes() -> u64 {
    u64::from(wall_clock().sec) / 60
}

impl RbdSupport {
    /// The schedules of a kind.
    pub fn schedules(&self, kind: Kind) -> &RefCell<Schedules> {
        &self.schedules[&kind]
    }

    /// Reads the schedules of all pools.
    pub(super) async fn load_schedules(&self) -> Result<(), ClientError> {
        for kind in Kind::ALL {
            let mut found = Schedules::default();
            let key = json!({"prefix": "config-key get", "key": kind.global_key()}).to_string();
            let global = self.rados.mon_command(&key, Bytes::new()).await?;
            if global.code >= 0
                && let Some(s) = Schedule::from_json(&String::from_utf8_lossy(&global.output))
            {
                found.load(Level::Global, s);
            }
            for pool in self.rbd_pools() {
                let rows = self.rows(&self.ioctx_of(pool, ""), kind.object()).await?;
                for (id, text) in rows {
                    let level = Level::from_id(&String::from_utf8_lossy(&id));
                    let schedule = Schedule::from_json(&String::from_utf8_lossy(&text));
                    // A schedule holds for the pool that it is kept in.
                    if let (Some(level), Some(s)) = (level, schedule)
                        && level.pool() == Some(pool)
                    {
                        found.load(level, s);
                    }
                }
            }
            *self.schedules(kind).borrow_mut() = found;
        }
        Ok(())
    }

    /// The level that a command means.
    pub async fn level(&self, kind: Kind, text: &str) -> Result<Level, Refusal> {
        let invalid = |why: String| Refusal::invalid(format!("Invalid level spec {text}: {why}"));
        let name =
            LevelName::parse(text).ok_or_else(|| invalid(format!("failed to parse {text}")))?;
        let (pool, namespace, image) = match name {
            LevelName::Global => return Ok(Level::Global),
            LevelName::Image(..) if kind == Kind::TrashPurge => {
                return Err(invalid(format!("invalid name {text}: image level is not allowed")));
            }
            LevelName::Image(pool, namespace, image) => (pool, Some(namespace), Some(image)),
            LevelName::Pool(pool) => (pool, None, None),
            LevelName::Namespace(pool, namespace) => (pool, Some(namespace), None),
        };
        let id = self
            .rados
            .pool(&pool)
            .await
            .map_err(|_| invalid(format!("pool {pool} does not exist")))?;
        if self.pools()?.name(id).is_none() {
            return Err(invalid(format!("{pool} is not an RBD pool")));
        }
        let Some(namespace) = namespace else { return Ok(Level::Pool(id)) };
        if !namespace.is_empty() {
            let there = image::namespaces(&self.ioctx_of(id, "")).await.map_err(refusal)?;
            if !there.contains(&namespace) {
                return Err(invalid(format!("namespace {namespace} does not exist")));
            }
            let by_image = kind == Kind::TrashPurge
                || mirror::is_by_image(&self.ioctx_of(id, &namespace)).await.map_err(refusal)?;
            if !by_image {
                return Err(invalid(format!("namespace {namespace} is not in mirror image mode")));
            }
        }
        let Some(image) = image else { return Ok(Level::Namespace(id, namespace)) };
        let ctx = self.ioctx_of(id, &namespace);
        let absent = || invalid(format!("image {image} does not exist"));
        let image_id = image::id_of(&ctx, &image).await.map_err(refusal)?.ok_or_else(absent)?;
        // As in Ceph: an image that is not mirrored is told as one that does not exist.
        let state = mirror::mirrored(&ctx, &image_id).await.map_err(refusal)?.ok_or_else(absent)?;
        if !mirror::by_snapshots(&state) {
            return Err(invalid(format!("image {image} is not in snapshot mirror mode")));
        }
        Ok(Level::Image(id, namespace, image_id))
    }

    /// Stores a level's schedule after a change.
    pub async fn save_schedule(
        &self,
        kind: Kind,
        level: &Level,
        schedule: Option<Schedule>,
    ) -> Result<(), Refusal> {
        let text = schedule.map(|s| s.to_json().to_string());
        let Some(pool) = level.pool() else {
            let key = kind.global_key();
            let command = match &text {
                Some(text) => json!({"prefix": "config-key set", "key": key, "val": text}),
                None => json!({"prefix": "config-key rm", "key": key}),
            };
            let answer = self
                .rados
                .mon_command(&command.to_string(), Bytes::new())
                .await
                .map_err(refusal)?;
            return answer.ok().map(|_| ()).map_err(refusal);
        };
        let (ctx, key) = (self.ioctx_of(pool, ""), Bytes::from(level.id()));
        let done = match text {
            Some(text) => ctx.omap_set(kind.object(), &BTreeMap::from([(key, text.into())])).await,
            None => ctx.omap_remove(kind.object(), &BTreeSet::from([key])).await,
        };
        match done {
            Err(e) if e.errno() != Errno::ENOENT => Err(refusal(e)),
            _ => Ok(()),
        }
    }

    /// Plans the next runs; with `anew`, because a schedule changed.
    pub async fn plan(&self, kind: Kind, anew: bool) {
        let mut places = BTreeSet::new();
        for pool in self.rbd_pools() {
            if !self.schedules(kind).borrow().concern(pool) {
                continue;
            }
            let mut namespaces = vec![String::new()];
            match image::namespaces(&self.ioctx_of(pool, "")).await {
                Ok(names) => namespaces.extend(names),
                Err(e) => tracing::warn!("namespaces of pool {}: {e}", pool.0),
            }
            for namespace in namespaces {
                if kind == Kind::TrashPurge {
                    places.insert(Level::Namespace(pool, namespace));
                    continue;
                }
                match mirror::primaries(&self.ioctx_of(pool, &namespace)).await {
                    Ok(ids) => places
                        .extend(ids.into_iter().map(|i| Level::Image(pool, namespace.clone(), i))),
                    Err(e) => tracing::warn!("mirrored images of pool {}: {e}", pool.0),
                }
            }
        }
        self.schedules(kind).borrow_mut().plan(&places, minutes(), anew);
    }

    /// The names of levels that there are, among these.
    async fn names(&self, levels: Vec<Level>) -> Result<BTreeMap<Level, String>, Refusal> {
        let pools = self.pools()?;
        let mut images: BTreeMap<(PoolId, String), BTreeMap<String, String>> = BTreeMap::new();
        let mut names = BTreeMap::new();
        for level in levels {
            let pool = match level.pool().map(|p| pools.name(p)) {
                Some(None) => continue,
                Some(Some(name)) => name,
                None => String::new(),
            };
            let mut own = String::new();
            if let Level::Image(pool, namespace, id) = &level {
                let place = (*pool, namespace.clone());
                if !images.contains_key(&place) {
                    let ctx = self.ioctx_of(*pool, namespace);
                    let found = image::names(&ctx).await.map_err(refusal)?;
                    images.insert(place.clone(), found);
                }
                let Some(name) = images.get(&place).and_then(|i| i.get(id)) else { continue };
                own.clone_from(name);
            }
            names.insert(level.clone(), level.name(&pool, &own));
        }
        Ok(names)
    }

    /// What `list` shows.
    pub async fn schedule_list(&self, kind: Kind, level: &Level) -> Result<Value, Refusal> {
        let levels = self.schedules(kind).borrow().levels().cloned().collect();
        let names = self.names(levels).await?;
        Ok(self.schedules(kind).borrow().list(level, &|l| names.get(l).cloned()))
    }

    /// What `status` shows.
    pub async fn schedule_status(&self, kind: Kind, level: &Level) -> Result<Value, Refusal> {
        let planned: Vec<(Level, String)> = {
            let schedules = self.schedules(kind).borrow();
            schedules.planned(level).into_iter().map(|(l, at)| (l.clone(), at)).collect()
        };
        if kind == Kind::MirrorSnapshot {
            let names = self.names(planned.iter().map(|(l, _)| l.clone()).collect()).await?;
            let row = |(l, at): &(Level, String)| {
                names.get(l).map(|name| json!({"schedule_time": at, "image": name}))
            };
            return Ok(
                json!({"scheduled_images": planned.iter().filter_map(row).collect::<Vec<_>>()}),
            );
        }
        let pools = self.pools()?;
        let row = |(level, at): &(Level, String)| {
            let Level::Namespace(pool, namespace) = level else { return None };
            Some(json!({
                "schedule_time": at,
                "pool_id": pool.0.to_string(),
                "pool_name": pools.name(*pool)?,
                "namespace": namespace,
            }))
        };
        Ok(json!({"scheduled": planned.iter().filter_map(row).collect::<Vec<_>>()}))
    }

    /// Schedules of images that are gone go, too.
    async fn forget_images(&self, kind: Kind) {
        let levels: Vec<Level> = self.schedules(kind).borrow().levels().cloned().collect();
        for level in levels {
            let Level::Image(pool, namespace, id) = &level else { continue };
            let there = mirror::mirrored(&self.ioctx_of(*pool, namespace), id).await;
            if matches!(&there, Ok(state) if !state.as_ref().is_some_and(mirror::by_snapshots)) {
                self.schedules(kind).borrow_mut().remove(&level, None);
                if let Err(e) = self.save_schedule(kind, &level, None).await {
                    tracing::warn!("the schedule of an image that is gone: {e}");
                }
            }
        }
    }

    /// Does what is due.
    async fn act(self: &Rc<Self>, kind: Kind) {
        let mut running = JoinSet::new();
        loop {
            let due = self.schedules(kind).borrow_mut().due(minutes());
            let Some(place) = due.filter(|_| !self.stopping.get()) else { break };
            match place {
                Level::Namespace(pool, namespace) => self.purge(pool, &namespace).await,
                Level::Image(pool, namespace, id) => {
                    if running.len() >= CONCURRENT {
                        running.join_next().await;
                    }
                    let this = self.clone();
                    running.spawn_local(async move {
                        let ctx = this.ioctx_of(pool, &namespace);
                        let most = this.conf.borrow().u64("rbd_mirroring_max_mirroring_snapshots");
                        if let Err(e) = mirror::snapshot(&ctx, &id, most as usize).await {
                            tracing::warn!(
                                "snapshot of mirrored image {id} in pool {}: {e}",
                                pool.0
                            );
                        }
                    });
                }
                Level::Global | Level::Pool(_) => {}
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// Removes from the trash what users put there and what is due.
    async fn purge(&self, pool: PoolId, namespace: &str) {
        let ctx = self.ioctx_of(pool, namespace);
        let images = match image::trash(&ctx).await {
            Ok(images) => images,
            Err(e) => return tracing::warn!("trash of pool {}: {e}", pool.0),
        };
        let now = wall_clock();
        for (id, spec) in images {
            if spec.source != TrashImageSource::USER
                || spec.deferment_end_time > now
                || self.stopping.get()
            {
                continue;
            }
            if let Err(e) =
                image::remove_from_trash(&ctx, &id, now, &|_| !self.stopping.get()).await
            {
                tracing::info!("image {id} stays in the trash of pool {}: {e}", pool.0);
            }
        }
    }
}

/// Acts on the schedules of a kind when it is time.
pub(super) async fn run(rbd: Weak<RbdSupport>, kind: Kind) {
    loop {
        let Some(this) = rbd.upgrade().filter(|t| !t.stopping.get()) else { return };
        if this.ready().await.is_ok() && !this.schedules(kind).borrow().is_empty() {
            this.forget_images(kind).await;
            this.plan(kind, false).await;
            this.act(kind).await;
        }
        drop(this);
        // To the next full minute: that is when schedules run.
        let into = Duration::from_secs(u64::from(wall_clock().sec) % 60);
        tokio::time::sleep(PERIOD.saturating_sub(into)).await;
    }
}
