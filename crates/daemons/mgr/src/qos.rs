//! Reads specifications, and finds what they are about: pools, the data of images, and buckets.

mod buckets;

use crate::rbd::image::{self, Image, ImageError};
use bytes::Bytes;
use client::{ClientError, IoCtx, Rados};
use messages::TenantShare;
use promises::Resolved;
use promises::spec::{PREFIX, Selector, Spec, fits, read_all};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use types::PoolId;

/// How long an OSD may take to answer.
const OSD_TIMEOUT: Duration = Duration::from_secs(10);
/// Images that are looked for at a time.
const AT_A_TIME: usize = 16;
/// Images that a pattern may fit; more have no promise.
const MOST_IMAGES: usize = 4096;
/// Names and sizes of images are looked at again after so many readings.
const IMAGES_EVERY: u32 = 5;

/// Finds what specifications mean: pools, images and their sizes, buckets. Remembers what images
/// and buckets are until it is time to look again.
pub struct Resolver {
    rados: Rados,
    images: RefCell<BTreeMap<Selector, Vec<ImagePlace>>>,
    /// Ids of buckets.
    buckets: RefCell<BTreeMap<Selector, Vec<Bytes>>>,
    since: Cell<u32>,
    complained: RefCell<Vec<String>>,
}

#[derive(Clone)]
struct ImagePlace {
    name: String,
    pool: PoolId,
    prefix: String,
    size: u64,
}

impl Resolver {
    /// Asks through this client.
    pub fn new(rados: Rados) -> Self {
        Resolver {
            rados,
            images: RefCell::default(),
            buckets: RefCell::default(),
            since: Cell::new(0),
            complained: RefCell::default(),
        }
    }

    /// All tenants that specifications describe now.
    pub async fn read(&self) -> Result<Vec<Resolved>, ClientError> {
        let command =
            serde_json::json!({"prefix": "config-key dump", "key": PREFIX, "format": "json"})
                .to_string();
        let output = self.rados.mon_command(&command, Bytes::new()).await?.ok()?;
        let rows: BTreeMap<String, String> = serde_json::from_slice(&output).unwrap_or_default();
        let (all, bad) = read_all(rows.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let bad: Vec<String> = bad.into_iter().map(|(name, e)| format!("{name}: {e}")).collect();
        if *self.complained.borrow() != bad {
            bad.iter().for_each(|b| tracing::warn!("specification {b}"));
            *self.complained.borrow_mut() = bad;
        }
        self.resolve(&all).await
    }

    /// The tenants that these specifications describe.
    pub async fn resolve(
        &self,
        all: &BTreeMap<Selector, Spec>,
    ) -> Result<Vec<Resolved>, ClientError> {
        self.since.set(self.since.get() + 1);
        if self.since.get() >= IMAGES_EVERY {
            self.since.set(0);
            self.images.borrow_mut().clear();
            self.buckets.borrow_mut().clear();
        }
        self.images.borrow_mut().retain(|s, _| all.contains_key(s));
        self.buckets.borrow_mut().retain(|s, _| all.contains_key(s));
        // Without a map there are no pools: that would be no promises.
        self.rados.objecter().map().ok_or(ClientError::Timeout("waiting for the map of OSDs"))?;
        self.find_images(all.keys()).await?;
        self.find_buckets(all.keys()).await?;
        let mut resolved = Vec::new();
        for (selector, spec) in all {
            let Ok(spec) = spec.effective(all) else { continue };
            self.tenants(selector, &spec, &mut resolved);
        }
        Ok(resolved)
    }

    /// Finds buckets of selectors that have not been looked for.
    async fn find_buckets(
        &self,
        selectors: impl Iterator<Item = &Selector>,
    ) -> Result<(), ClientError> {
        let known = |s: &Selector| self.buckets.borrow().contains_key(s);
        let of_gateway = |s: &&Selector| matches!(s, Selector::Bucket(..) | Selector::User(_));
        let wanted: Vec<Selector> =
            selectors.filter(of_gateway).filter(|s| !known(s)).cloned().collect();
        if wanted.is_empty() {
            return Ok(());
        }
        // Without a zone there are no buckets.
        let Some(zone) = buckets::Zone::of(&self.rados).await? else { return Ok(()) };
        let zone = Rc::new(zone);
        for some in wanted.chunks(AT_A_TIME) {
            let mut under_way = tokio::task::JoinSet::new();
            for selector in some.iter().cloned() {
                let zone = zone.clone();
                under_way.spawn_local(async move {
                    let found = match &selector {
                        Selector::Bucket(tenant, name) => zone.bucket(tenant, name).await,
                        Selector::User(id) => zone.buckets_of(id).await,
                        _ => Ok(Vec::new()),
                    };
                    (selector, found)
                });
            }
            while let Some(done) = under_way.join_next().await {
                let Ok((selector, found)) = done else { return Err(ClientError::Shutdown) };
                self.buckets.borrow_mut().insert(selector, found?);
            }
        }
        Ok(())
    }

    /// Finds images of selectors that have not been looked for, several at a time: on a busy
    /// cluster each takes a while.
    async fn find_images(
        &self,
        selectors: impl Iterator<Item = &Selector>,
    ) -> Result<(), ClientError> {
        let known = |s: &Selector| self.images.borrow().contains_key(s);
        let wanted: Vec<Selector> =
            selectors.filter(|s| matches!(s, Selector::Image(..)) && !known(s)).cloned().collect();
        for some in wanted.chunks(AT_A_TIME) {
            let mut under_way = tokio::task::JoinSet::new();
            for selector in some {
                let Selector::Image(pool, namespace, pattern) = selector.clone() else { continue };
                let Some(id) = self.pool(&pool) else { continue };
                let ctx =
                    self.rados.ioctx_of(id).with_namespace(&namespace).with_timeout(OSD_TIMEOUT);
                let selector = selector.clone();
                under_way.spawn_local(async move { (selector, images_like(&ctx, &pattern).await) });
            }
            while let Some(done) = under_way.join_next().await {
                let Ok((selector, found)) = done else { return Err(ClientError::Shutdown) };
                self.images.borrow_mut().insert(selector, found?);
            }
        }
        Ok(())
    }

    fn pool(&self, name: &str) -> Option<PoolId> {
        self.rados.objecter().map()?.pool_by_name(name)
    }

    /// What does not exist yet has no tenants.
    fn tenants(&self, selector: &Selector, spec: &Spec, out: &mut Vec<Resolved>) {
        let whose = TenantShare { name: selector.to_string(), ..TenantShare::default() };
        let promise = spec.promise(None);
        match selector {
            Selector::Template(_) => {}
            Selector::Client(name) => out.push(Resolved {
                whose: TenantShare { client: Some(name.clone()), ..whose },
                promise,
            }),
            Selector::Bucket(..) | Selector::User(_) => {
                let known = self.buckets.borrow();
                let mut ids = known.get(selector).cloned().unwrap_or_default();
                if matches!(selector, Selector::User(_)) {
                    // A bucket's own specification comes first.
                    let own = |s: &&Selector| matches!(s, Selector::Bucket(..));
                    let apart: BTreeSet<&Bytes> =
                        known.iter().filter(|(s, _)| own(s)).flat_map(|(_, ids)| ids).collect();
                    ids.retain(|id| !apart.contains(id));
                }
                if !ids.is_empty() {
                    let prefix = Some(ids.join(&b","[..]).into());
                    out.push(Resolved { whose: TenantShare { prefix, ..whose }, promise });
                }
            }
            Selector::Pool(pool) => {
                let Some(pool) = self.pool(pool) else { return };
                out.push(Resolved { whose: TenantShare { pool: Some(pool), ..whose }, promise });
            }
            Selector::Namespace(pool, namespace) => {
                let Some(pool) = self.pool(pool) else { return };
                let namespace = Some(Bytes::copy_from_slice(namespace.as_bytes()));
                out.push(Resolved {
                    whose: TenantShare { pool: Some(pool), namespace, ..whose },
                    promise,
                });
            }
            Selector::Image(pool, namespace, _) => {
                let places = self.images.borrow().get(selector).cloned().unwrap_or_default();
                for i in places {
                    let whose = TenantShare {
                        name: format!("{pool}/{namespace}/{}", i.name),
                        pool: Some(i.pool),
                        namespace: Some(Bytes::copy_from_slice(namespace.as_bytes())),
                        prefix: Some(i.prefix.into()),
                        ..TenantShare::default()
                    };
                    // An image's own specification, without a pattern, comes first.
                    if whose.name == selector.to_string() {
                        out.retain(|r| r.whose.name != whose.name);
                    } else if out.iter().any(|r| r.whose.name == whose.name) {
                        continue;
                    }
                    out.push(Resolved { whose, promise: spec.promise(Some(i.size)) });
                }
            }
        }
    }
}

/// The images of a pool and namespace that a pattern fits. One that cannot be read has no promise;
/// one that could not be read in time is an error: what was promised to it holds.
async fn images_like(ctx: &IoCtx, pattern: &str) -> Result<Vec<ImagePlace>, ClientError> {
    let found: Vec<(String, String)> = if pattern.contains(['*', '?']) {
        let names = image::names(ctx).await?;
        names.into_iter().filter(|(_, name)| fits(pattern, name)).take(MOST_IMAGES).collect()
    } else {
        image::id_of(ctx, pattern).await?.into_iter().map(|id| (id, pattern.to_owned())).collect()
    };
    let mut places = Vec::new();
    for some in found.chunks(AT_A_TIME) {
        let mut under_way = tokio::task::JoinSet::new();
        for (id, name) in some.iter().cloned() {
            let ctx = ctx.clone();
            under_way.spawn_local(async move { (name, Image::open(&ctx, &id).await) });
        }
        while let Some(done) = under_way.join_next().await {
            match done {
                Ok((name, Ok(Some(image)))) => {
                    let (pool, prefix, size) = image.place();
                    places.push(ImagePlace { name, pool, prefix: prefix.to_owned(), size });
                }
                Ok((
                    _,
                    Err(ImageError::Cluster(e @ (ClientError::Timeout(_) | ClientError::Shutdown))),
                )) => return Err(e),
                Ok((_, Ok(None))) => {}
                Ok((name, Err(e))) => tracing::debug!("image {name} has no promise: {e}"),
                Err(_) => return Err(ClientError::Shutdown),
            }
        }
    }
    places.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(places)
}
