//! Reads specifications, and finds what they are about: pools, and the data of images.

use super::Resolved;
use super::spec::{PREFIX, Selector, Spec, fits, read_all};
use crate::rbd::image::{self, Image};
use bytes::Bytes;
use client::{ClientError, Rados};
use messages::TenantShare;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;
use types::PoolId;

/// How long an OSD may take to answer.
const OSD_TIMEOUT: Duration = Duration::from_secs(10);
/// Images that a pattern may fit; more have no promise.
const MOST_IMAGES: usize = 4096;
/// Names and sizes of images are looked at again after so many readings.
const IMAGES_EVERY: u32 = 5;

/// See the module. Remembers what images are until it is time to look again.
pub struct Resolver {
    rados: Rados,
    images: RefCell<BTreeMap<Selector, Vec<ImagePlace>>>,
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
        Resolver { rados, images: RefCell::default(), since: Cell::new(0), complained: RefCell::default() }
    }

    /// All tenants that specifications describe now.
    pub async fn read(&self) -> Result<Vec<Resolved>, ClientError> {
        let command = serde_json::json!({"prefix": "config-key dump", "key": PREFIX, "format": "json"}).to_string();
        let output = self.rados.mon_command(&command, Bytes::new()).await?.ok()?;
        let rows: BTreeMap<String, String> = serde_json::from_slice(&output).unwrap_or_default();
        let (all, bad) = read_all(rows.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let bad: Vec<String> = bad.into_iter().map(|(name, e)| format!("{name}: {e}")).collect();
        if *self.complained.borrow() != bad {
            bad.iter().for_each(|b| tracing::warn!("specification {b}"));
            *self.complained.borrow_mut() = bad;
        }
        self.since.set(self.since.get() + 1);
        if self.since.get() >= IMAGES_EVERY {
            self.since.set(0);
            self.images.borrow_mut().clear();
        }
        self.images.borrow_mut().retain(|s, _| all.contains_key(s));
        let mut resolved = Vec::new();
        for (selector, spec) in &all {
            let Ok(spec) = spec.effective(&all) else { continue };
            self.tenants(selector, &spec, &mut resolved).await?;
        }
        Ok(resolved)
    }

    fn pool(&self, name: &str) -> Option<PoolId> {
        self.rados.objecter().map()?.pool_by_name(name)
    }

    /// What does not exist yet has no tenants.
    async fn tenants(&self, selector: &Selector, spec: &Spec, out: &mut Vec<Resolved>) -> Result<(), ClientError> {
        let whose = TenantShare { name: selector.to_string(), ..TenantShare::default() };
        let promise = spec.promise(None);
        match selector {
            Selector::Template(_) => {}
            Selector::Client(name) => out.push(Resolved { whose: TenantShare { client: Some(name.clone()), ..whose }, promise }),
            Selector::Pool(pool) => {
                let Some(pool) = self.pool(pool) else { return Ok(()) };
                out.push(Resolved { whose: TenantShare { pool: Some(pool), ..whose }, promise });
            }
            Selector::Namespace(pool, namespace) => {
                let Some(pool) = self.pool(pool) else { return Ok(()) };
                let namespace = Some(Bytes::copy_from_slice(namespace.as_bytes()));
                out.push(Resolved { whose: TenantShare { pool: Some(pool), namespace, ..whose }, promise });
            }
            Selector::Image(pool, namespace, pattern) => {
                let Some(id) = self.pool(pool) else { return Ok(()) };
                let known = self.images.borrow().get(selector).cloned();
                let places = match known {
                    Some(places) => places,
                    None => {
                        let places = self.images_like(id, namespace, pattern).await?;
                        self.images.borrow_mut().insert(selector.clone(), places.clone());
                        places
                    }
                };
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
        Ok(())
    }

    async fn images_like(&self, pool: PoolId, namespace: &str, pattern: &str) -> Result<Vec<ImagePlace>, ClientError> {
        let ctx = self.rados.ioctx_of(pool).with_namespace(namespace).with_timeout(OSD_TIMEOUT);
        let found: Vec<(String, String)> = if pattern.contains(['*', '?']) {
            let names = image::names(&ctx).await?;
            names.into_iter().filter(|(_, name)| fits(pattern, name)).take(MOST_IMAGES).collect()
        } else {
            image::id_of(&ctx, pattern).await?.into_iter().map(|id| (id, pattern.to_owned())).collect()
        };
        let mut places = Vec::new();
        for (id, name) in found {
            if let Ok(Some(image)) = Image::open(&ctx, &id).await {
                let (pool, prefix, size) = image.place();
                places.push(ImagePlace { name, pool, prefix: prefix.to_owned(), size });
            }
        }
        Ok(places)
    }
}
