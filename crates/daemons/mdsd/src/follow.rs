//! A server in the state `standby-replay` follows the log of the one that has the rank, so that it
//! has little to read when it takes the rank over.

use crate::log::Tail;
use crate::store::Store;
use client::Rados;
use conf::Config;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use types::PoolId;
use types::fsmap::MdsMap;

/// What follows the log.
pub struct Follower {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Tail>,
}

impl Follower {
    /// Begins with what is there.
    pub fn start(rados: Rados, conf: Rc<RefCell<Config>>, map: &MdsMap, rank: u32) -> Follower {
        let store = Store::new(rados, PoolId(map.metadata_pool), rank);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::task::spawn_local(run(conf, store, stopped));
        Follower { stop, task }
    }

    /// Ends it. What it has read may be behind; nothing is returned if it failed.
    pub async fn end(self) -> Option<Tail> {
        let _ = self.stop.send(());
        self.task.await.ok()
    }
}

async fn run(conf: Rc<RefCell<Config>>, store: Store, mut stopped: oneshot::Receiver<()>) -> Tail {
    let mut tail = Tail::new(store.clone());
    loop {
        if let Err(e) = tail.follow().await {
            tracing::warn!("the log cannot be followed: {e}");
            tail = Tail::new(store.clone());
        }
        let seconds = conf.borrow().f64("mds_replay_interval");
        let pause = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1));
        // An error says that the handle is gone.
        if tokio::time::timeout(pause, &mut stopped).await.is_ok() {
            return tail;
        }
    }
}
