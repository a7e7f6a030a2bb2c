//! A connection with a cluster.

use crate::config::ClusterConfig;
use crate::error::{ClientError, Result};
use crate::ioctx::IoCtx;
use crate::mon::{CommandOutput, MonClient, MonConfig};
use crate::objecter::{Objecter, Options};
use crate::shared_map::SharedMap;
use bytes::Bytes;
use std::time::Duration;
use types::{Epoch, OsdId, PoolId};

/// A connection with a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Rados {
    mon: MonClient,
    objecter: Objecter,
}

impl Rados {
    /// Connects: waits for a session with a monitor and for an OSD map. Must be called within a
    /// `LocalSet`.
    pub async fn connect(cluster: &ClusterConfig, limit: Duration) -> Result<Self> {
        Self::connect_shared(cluster, SharedMap::new(), limit).await
    }

    /// The same with a map that other threads of the process use as well.
    pub async fn connect_shared(
        cluster: &ClusterConfig,
        map: SharedMap,
        limit: Duration,
    ) -> Result<Self> {
        Self::connect_with(MonConfig::new(cluster), map, cluster.objecter, limit).await
    }

    /// The same with more to choose.
    pub async fn connect_with(
        config: MonConfig,
        map: SharedMap,
        options: Options,
        limit: Duration,
    ) -> Result<Self> {
        let mon = MonClient::new(config);
        let objecter = Objecter::with_map(mon.clone(), map, options);
        mon.set_events(objecter.events());
        let rados = Rados { mon, objecter };
        let ready = async {
            rados.mon.wait_ready(limit).await?;
            rados.objecter.wait_epoch(Epoch(1)).await
        };
        match tokio::time::timeout(limit, ready).await {
            Ok(Ok(_)) => Ok(rados),
            Ok(Err(error)) => {
                rados.shutdown();
                Err(error)
            }
            Err(_) => {
                rados.shutdown();
                Err(ClientError::Timeout("connecting to the cluster"))
            }
        }
    }

    /// Objects over a monitor client and an objecter that are there already, as a daemon has them.
    pub fn over(mon: MonClient, objecter: Objecter) -> Self {
        Rados { mon, objecter }
    }

    /// The monitor client.
    pub fn mon(&self) -> &MonClient {
        &self.mon
    }

    /// The part that sends requests.
    pub fn objecter(&self) -> &Objecter {
        &self.objecter
    }

    /// Runs a command on the monitors: a JSON object with `prefix`.
    pub async fn mon_command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.mon.command(json, input).await
    }

    /// Runs a command on the active mgr.
    pub async fn mgr_command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.objecter.mgr_command(json, input).await
    }

    /// Runs a command on a metadata server, which has this global id.
    pub async fn mds_command(&self, gid: u64, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.objecter.mds_command(gid, json, input).await
    }

    /// Runs a command on an OSD.
    pub async fn osd_command(&self, osd: OsdId, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.objecter.osd_command(osd, json, input).await
    }

    /// The number of a pool. A name that the map does not have is looked for in the newest map.
    pub async fn pool(&self, name: &str) -> Result<PoolId> {
        let find = |map: &types::OsdMap| map.pool_by_name(name);
        if let Some(id) = self.objecter.map().and_then(|m| find(&m)) {
            return Ok(id);
        }
        let latest = self.objecter.wait_latest().await?;
        find(&latest).ok_or(ClientError::NoPool)
    }

    /// A pool by name.
    pub async fn ioctx(&self, pool: &str) -> Result<IoCtx> {
        Ok(self.ioctx_of(self.pool(pool).await?))
    }

    /// A pool by number.
    pub fn ioctx_of(&self, pool: PoolId) -> IoCtx {
        IoCtx::new(self.clone(), pool)
    }

    /// Ends the connection. Waiting requests fail.
    pub fn shutdown(&self) {
        self.objecter.shutdown();
        self.mon.shutdown();
    }
}
