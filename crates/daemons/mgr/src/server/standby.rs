//! Several managers: one serves, the others wait for its place.

use super::{Inner, Role, serve_metrics, split_limits};
use crate::qos::Resolver;
use crate::rbd::RbdSupport;
use crate::volumes::Volumes;
use client::{Rados, wall_clock};
use messages::MgrBeacon;
use std::rc::Rc;
use types::MgrMap;

impl Inner {
    /// Takes up or lays down the service, as the monitors' map says.
    pub(super) fn follow_managers(self: &Rc<Self>, map: &MgrMap) {
        let gid = self.frame.mon.global_id();
        let chosen = gid != 0 && map.active_gid == gid;
        match self.role.get() {
            Role::Waits if chosen => self.serve(gid),
            Role::Serves(_) if !chosen => self.lay_down(),
            _ => {}
        }
    }

    /// Begins to serve. Nothing is known but the OSD map: OSDs tell everything when they connect.
    fn serve(self: &Rc<Self>, gid: u64) {
        tracing::info!("this manager is the active one now");
        self.role.set(Role::Serves(gid));
        *self.tenants.borrow_mut() = Default::default();
        // Maps of the monitors come once, and perhaps came already.
        let fs_map = self.state.borrow().fs_map.clone();
        *self.state.borrow_mut() = crate::state::MgrState { fs_map, ..Default::default() };
        self.apply_balancer_settings();
        if let Some(map) = self.service_map.borrow().clone() {
            self.state.borrow_mut().services.learn(map, wall_clock());
        }
        self.follow_map();
        let rados = || Rados::over(self.frame.mon.clone(), self.objecter.clone());
        *self.resolver.borrow_mut() = Some(Rc::new(Resolver::new(rados())));
        *self.rbd.borrow_mut() = Some(RbdSupport::start(rados(), self.frame.conf.clone()));
        *self.volumes.borrow_mut() =
            Some(Volumes::start(rados(), self.frame.nonce, &self.frame.name));
        self.follow_file_systems();
        tokio::task::spawn_local(split_limits(Rc::downgrade(self)));
        tokio::task::spawn_local(super::health::follow_health(Rc::downgrade(self)));
        tokio::task::spawn_local(super::crashes::look_after_crashes(Rc::downgrade(self)));
        tokio::task::spawn_local(super::autoscale::autoscale(Rc::downgrade(self)));
        tokio::task::spawn_local(super::balance::balance(Rc::downgrade(self)));
        tokio::task::spawn_local(serve_metrics(Rc::downgrade(self)));
        tokio::task::spawn_local(super::clients::follow_questions(Rc::downgrade(self)));
        self.news.notify_one();
    }

    /// Tells what uses file systems of the newest map of them.
    pub(super) fn follow_file_systems(&self) {
        let map = self.state.borrow().fs_map.clone();
        if let Some(volumes) = &*self.volumes.borrow() {
            volumes.follow(&map);
        }
        self.clients.stats.borrow_mut().follow(&map);
        if self.clients.stats.borrow_mut().is_wanted(wall_clock()) {
            self.ask_about_clients();
        }
    }

    /// A metadata server that evicts the manager's client shuts the manager out with it: OSDs
    /// refuse everything that it does for images, subvolumes and promises.
    pub(super) fn follow_blocklist(&self) {
        if self.objecter.is_blocklisted() && self.role.get() != Role::Replaced {
            self.lay_down();
        }
    }

    /// Another manager serves, or is to, or OSDs refuse this one. What it has under way the OSDs
    /// refuse; it can only begin anew.
    fn lay_down(&self) {
        tracing::warn!("this manager is not the active one any more");
        self.role.set(Role::Replaced);
        if let Some(volumes) = self.volumes.borrow_mut().take() {
            volumes.shutdown();
        }
        self.replaced.notify_one();
    }

    /// Tells the monitors, which choose a manager, that this one lives.
    pub(super) fn send_beacon(&self) {
        let (Some(messenger), Some(fsid)) =
            (self.messenger.borrow().clone(), self.frame.mon.fsid())
        else {
            return;
        };
        let beacon = MgrBeacon {
            addrs: messenger.addrs(),
            gid: self.frame.mon.global_id(),
            name: self.frame.name.clone(),
            fsid,
            metadata: self.metadata.clone(),
            ..MgrBeacon::default()
        };
        self.frame.mon.send_payload(&beacon);
    }

    /// Whether it serves. After a new session a manager is another one for the monitors.
    pub(super) fn serves(&self) -> bool {
        let Role::Serves(gid) = self.role.get() else { return false };
        let same = self.frame.mon.global_id() == gid;
        if !same {
            self.lay_down();
        }
        same
    }
}
