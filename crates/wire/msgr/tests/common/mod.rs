//! A little cluster's worth of secrets.
#![allow(dead_code, reason = "every test uses a part of it")]

pub mod ends;

use auth::*;
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use types::{EntityType, Utime};

pub const NOW: Utime = Utime { sec: 1_700_000_000, nsec: 0 };

pub struct Secrets {
    pub mon: Rc<RefCell<MonAuth>>,
    pub admin_key: CryptoKey,
    pub osd_key: CryptoKey,
}

pub fn name(s: &str) -> AuthName {
    s.parse().unwrap()
}

/// A monitor's keys as of `now`, with client.admin and osd.0.
pub fn secrets(now: Utime, rng: &mut StdRng) -> Secrets {
    let next = Cell::new(4100);
    let mut mon = MonAuth::new(Box::new(move || {
        next.set(next.get() + 1);
        Some(next.get())
    }));
    let entity = |key: &CryptoKey, caps: &[(&str, &str)]| EntityAuth {
        key: key.clone(),
        caps: caps.iter().map(|(s, c)| (s.to_string(), c.to_string())).collect(),
    };
    let admin_key = CryptoKey::generate(now, rng);
    let osd_key = CryptoKey::generate(now, rng);
    let all = [("mon", "allow *"), ("osd", "allow *"), ("mgr", "allow *"), ("mds", "allow *")];
    mon.keys.insert(name("client.admin"), entity(&admin_key, &all));
    mon.keys.insert(
        name("osd.0"),
        entity(&osd_key, &[("mon", "allow profile osd"), ("osd", "allow *")]),
    );
    let rotation = mon.keys.prepare_rotation(mon.ttl, now, rng).unwrap();
    assert!(mon.keys.apply_rotation(rotation));
    Secrets { mon: Rc::new(RefCell::new(mon)), admin_key, osd_key }
}

pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Only this mode, on all kinds of connections.
pub fn only(mut policy: AuthPolicy, mode: ConMode) -> AuthPolicy {
    for modes in [
        &mut policy.mon_cluster_modes,
        &mut policy.mon_service_modes,
        &mut policy.mon_client_modes,
        &mut policy.cluster_modes,
        &mut policy.service_modes,
        &mut policy.client_modes,
    ] {
        *modes = vec![mode];
    }
    policy
}

pub fn admin(s: &Secrets, mode: ConMode) -> Rc<RefCell<CephxClient>> {
    let policy = only(AuthPolicy::new(EntityType::CLIENT), mode);
    let want = [EntityType::MON, EntityType::OSD, EntityType::MGR];
    Rc::new(RefCell::new(CephxClient::new(
        policy,
        name("client.admin"),
        s.admin_key.clone(),
        &want,
    )))
}

/// osd.0 as a client of the monitor, and its service end.
pub fn osd(s: &Secrets) -> (Rc<RefCell<CephxClient>>, Rc<ServiceAuth>) {
    let keys = Rc::new(RefCell::new(RotatingKeyRing::new(EntityType::OSD, Keyring::default())));
    let want = [EntityType::MON, EntityType::OSD, EntityType::MGR];
    let mut client =
        CephxClient::new(AuthPolicy::new(EntityType::OSD), name("osd.0"), s.osd_key.clone(), &want);
    client.set_rotating(keys.clone());
    (Rc::new(RefCell::new(client)), ServiceAuth::new(AuthPolicy::new(EntityType::OSD), keys))
}

pub fn payload(len: usize, seed: u64) -> Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut all = Vec::with_capacity(len + 8);
    while all.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        all.extend_from_slice(&x.to_le_bytes());
    }
    all.truncate(len);
    all.into()
}
