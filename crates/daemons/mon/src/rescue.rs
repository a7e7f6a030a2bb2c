//! A monitor goes on alone because a majority of the monitors is lost for good.

use crate::mkfs::{Layout, LayoutError, new_member};
use crate::replica::{self, RescueError as StoreError, Survey};
use crate::state::ClusterState;
use std::path::{Path, PathBuf};
use types::{Epoch, Fsid, OsdMap, Utime};

/// Why a monitor cannot go on alone.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    /// The data directory is not one of a monitor.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Its store.
    #[error("{path} {source}")]
    Store {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: StoreError,
    },
    /// The store could not be copied.
    #[error("{path}: {source}")]
    Backup {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// The store of a monitor that is left and does not run.
pub struct Survivor {
    layout: Layout,
    store: replica::Survivor<ClusterState>,
    /// Rows of OSD maps that were learned.
    learned: Vec<replica::Row>,
}

impl Survivor {
    /// Reads the data directory of a monitor, and changes nothing.
    pub fn open(dir: &Path) -> Result<Survivor, RescueError> {
        let layout = Layout::read(dir)?;
        let store = replica::Survivor::open(&layout.store())
            .map_err(|source| RescueError::Store { path: layout.store(), source })?;
        let this = Survivor { layout, store, learned: Vec::new() };
        // Whether it can be done is known before anything is done.
        this.alone(Utime::default())?;
        Ok(this)
    }

    /// The monitor's name.
    pub fn name(&self) -> &str {
        &self.layout.name
    }

    /// The group as its store has it.
    pub fn survey(&self) -> &Survey {
        self.store.survey()
    }

    /// The monitors that would be taken out of the monitor map.
    pub fn lost(&self) -> Vec<String> {
        self.store
            .machine
            .monmap
            .mon_info
            .keys()
            .filter(|n| **n != self.layout.name)
            .cloned()
            .collect()
    }

    /// The newest OSD map in the store.
    pub fn osd_map(&self) -> Epoch {
        self.store.machine.osd.last()
    }

    /// Learns the next OSD map, from the store of an OSD that got it before the monitors were lost.
    pub fn learn_osd_map(&mut self, map: &OsdMap, now: Utime) -> Result<(), RescueError> {
        let learned = self.store.machine.learn_osd_map(map, now);
        self.learned.extend(learned.map_err(|e| self.of_store(StoreError::State(e)))?);
        Ok(())
    }

    /// The cluster's id.
    pub fn fsid(&self) -> Fsid {
        self.store.machine.monmap.fsid
    }

    fn of_store(&self, source: StoreError) -> RescueError {
        RescueError::Store { path: self.layout.store(), source }
    }

    fn alone(&self, now: Utime) -> Result<Vec<replica::Row>, RescueError> {
        let mut state = self.store.machine.clone();
        let state = state.rescue(&self.layout.name, now);
        state.map_err(|e| self.of_store(StoreError::State(e)))
    }

    /// Makes this monitor the only one. Returns where the store as it was is kept.
    pub fn rescue(self, now: Utime) -> Result<PathBuf, RescueError> {
        let mut rows = self.alone(now)?;
        rows.splice(0..0, self.learned);
        let path = self.layout.store();
        let backup = path.with_extension(format!("db.before-{}", now.sec));
        let copy = || -> std::io::Result<()> {
            let mut to =
                modes::options(modes::SECRET).write(true).create_new(true).open(&backup)?;
            std::io::copy(&mut std::fs::File::open(&path)?, &mut to)?;
            to.sync_all()
        };
        copy().map_err(|source| RescueError::Backup { path: backup.clone(), source })?;
        let done = self.store.rescue(new_member(), &self.layout.name, rows);
        done.map_err(|source| RescueError::Store { path, source })?;
        Ok(backup)
    }
}
