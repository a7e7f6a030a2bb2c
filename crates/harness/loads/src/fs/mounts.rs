//! Mounts of one file system by clients of their own.

use anyhow::{Context, Result, bail};
use auth::AuthName;
use client::{ClusterConfig, MonClient, MonConfig, MonEvents, Objecter, Rados, SharedMap};
use denc::Decode;
use fs_client::{Mount, Options};
use messages::{FsMapMsg, Payload};
use msgr::Message;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use types::FsMap;
use types::fsmap::MdsMap;

/// How long monitors may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the monitors told one client.
#[derive(Default)]
struct Told {
    map: RefCell<Option<Arc<FsMap>>>,
    mount: RefCell<Option<Mount>>,
    changed: Notify,
}

struct FromMon {
    told: Rc<Told>,
    file_system: String,
    mon: MonClient,
    osd_maps: Rc<dyn MonEvents>,
}

fn of_name<'a>(map: &'a FsMap, name: &str) -> Option<&'a MdsMap> {
    map.filesystems.values().map(|fs| &fs.map).find(|m| m.fs_name == name)
}

impl MonEvents for FromMon {
    fn on_message(&self, message: Message) {
        if message.msg_type == FsMapMsg::TYPE
            && let Ok(Ok(map)) = FsMapMsg::decode(&message).map(|m| FsMap::from_bytes(&m.map.0))
        {
            self.mon.got("fsmap", map.epoch.0.into());
            if let (Some(mount), Some(map)) =
                (&*self.told.mount.borrow(), of_name(&map, &self.file_system))
            {
                mount.follow(map);
            }
            *self.told.map.borrow_mut() = Some(Arc::new(map));
            self.told.changed.notify_waiters();
        }
        self.osd_maps.on_message(message);
    }
}

/// A client and its mount.
pub struct Client {
    /// The file system.
    pub mount: Mount,
    rados: Rados,
}

impl Client {
    /// Ends the session.
    pub async fn close(self) {
        // The client goes, whether or not all servers have said that its sessions ended.
        self.mount.close().await;
        self.mount.abort();
        self.rados.shutdown();
    }
}

/// Where clients come from.
pub struct Clients {
    config: ClusterConfig,
    map: SharedMap,
    file_system: String,
}

impl Clients {
    /// Of the cluster and the user that a `ceph.conf` and a keyring name.
    pub fn new(conf: &Path, name: &str, file_system: &str) -> Result<Clients> {
        let name: AuthName = name
            .parse()
            .ok()
            .with_context(|| format!("client.NAME was expected, found {name:?}"))?;
        let config = ClusterConfig::read(conf, name)?;
        Ok(Clients { config, map: SharedMap::new(), file_system: file_system.to_owned() })
    }

    /// One more client. Must be called within a `LocalSet`.
    pub async fn connect(&self, number: usize) -> Result<Client> {
        let config = MonConfig::new(&self.config);
        let nonce = config.nonce;
        let mon = MonClient::new(config);
        let objecter = Objecter::with_map(mon.clone(), self.map.clone(), self.config.objecter);
        let told = Rc::new(Told::default());
        mon.set_events(Rc::new(FromMon {
            told: told.clone(),
            file_system: self.file_system.clone(),
            mon: mon.clone(),
            osd_maps: objecter.events(),
        }));
        mon.subscribe("osdmap", 0, false);
        mon.subscribe("fsmap", 0, false);
        mon.wait_ready(PATIENCE).await.context("no monitor answers")?;
        let map = tokio::time::timeout(PATIENCE, async {
            loop {
                let changed = told.changed.notified();
                if let Some(map) = told.map.borrow().clone() {
                    return map;
                }
                changed.await;
            }
        })
        .await
        .context("the monitors send no map of file systems: may the user read it?")?;
        let Some(map) = of_name(&map, &self.file_system) else {
            bail!("there is no file system {}", self.file_system);
        };
        let rados = Rados::over(mon, objecter);
        let texts = [("entity_id", "load".to_owned()), ("hostname", format!("load-{number}"))];
        let metadata = texts.map(|(k, v)| (k.to_owned(), v)).into();
        let mount = Mount::new(rados.clone(), Options { nonce, metadata });
        mount.follow(map);
        *told.mount.borrow_mut() = Some(mount.clone());
        Ok(Client { mount, rados })
    }
}
