//! The part of a running daemon that all kinds have.

use auth::{Keyring, RotatingKeyRing, ServiceAuth};
use client::{MonClient, MonConfig};
use conf::Config;
use messages::Payload;
use msgr::{
    BindError, Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, PolicySet,
};
use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use types::{EntityAddr, EntityName};

/// A daemon's configuration, its session with the monitors, and how it admits others.
pub struct Frame {
    /// Its name without the kind: `x` of `mgr.x`.
    pub name: String,
    /// Its configuration, with what the monitors have for it.
    pub conf: Rc<RefCell<Config>>,
    /// Its session with the monitors.
    pub mon: MonClient,
    /// Checks what peers prove, by secrets that the monitors renew.
    pub auth: Rc<ServiceAuth>,
    /// Tells this start from others at the same address.
    pub nonce: u32,
}

impl Frame {
    /// Begins a session with the monitors, on the current `LocalSet`. `keyring` has the daemon's
    /// key, for as long as there is no rotating secret yet.
    pub fn new(conf: Rc<RefCell<Config>>, keyring: Keyring, mut config: MonConfig) -> Frame {
        let keys = Rc::new(RefCell::new(RotatingKeyRing::new(config.entity.kind, keyring)));
        config.rotating = Some(keys.clone());
        let (name, nonce) = (config.name.id.clone(), config.nonce);
        let auth = ServiceAuth::new(config.policy.clone(), keys);
        Frame { name, conf, mon: MonClient::new(config), auth, nonce }
    }

    /// Listens for peers, on the first free port.
    pub fn listen(
        &self,
        name: EntityName,
        policies: PolicySet,
        limits: Limits,
        dispatcher: Rc<dyn Dispatcher>,
        ip: IpAddr,
        ports: RangeInclusive<u16>,
    ) -> Result<(Rc<Messenger>, EntityAddr), BindError> {
        let messenger = Messenger::new(
            MessengerConfig {
                name,
                nonce: self.nonce,
                policies,
                limits,
                server_auth: Some(self.auth.clone()),
                client_auth: self.mon.auth().clone(),
            },
            dispatcher,
        );
        let addr = messenger.bind(ip, ports)?;
        Ok((messenger, addr))
    }

    /// Takes the configuration that the monitors have for this daemon. False for any other
    /// message.
    pub fn configure(&self, message: &Message) -> bool {
        if message.msg_type != messages::Config::TYPE {
            return false;
        }
        let Ok(config) = messages::Config::decode(message) else { return false };
        let settings = config.config.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        for refused in self.conf.borrow_mut().set_from_mon(settings) {
            tracing::debug!("setting from the monitors: {refused}");
        }
        self.apply_auth_settings();
        true
    }

    /// Takes over the options that the admission of peers depends on.
    pub fn apply_auth_settings(&self) {
        let conf = self.conf.borrow();
        self.auth.set_service_modes(&conf.str("ms_service_mode"), &conf.str("ms_mon_service_mode"));
    }
}

/// Sends a message with the number of the one that it answers, or 0.
pub fn send(conn: &Connection, payload: &impl Payload, tid: u64) {
    let mut message = payload.encode(conn.features());
    message.tid = tid;
    conn.send(message);
}
