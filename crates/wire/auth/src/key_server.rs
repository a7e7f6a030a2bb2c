//! The monitor's store of secrets.

use crate::rotating::RotatingSecrets;
use crate::ticket::{AuthCaps, AuthTicket, SessionAuthInfo};
use crate::{AuthName, CryptoKey, Keyring, seal};
use bytes::{Bytes, BytesMut};
use denc::{BufMut, Decode, Encode, Features, Reader};
use rand::CryptoRng;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{EntityType, Utime};

/// Where an authorizer's verifier finds secrets (`KeyStore`, `src/auth/Auth.h`).
pub trait KeyStore {
    /// The long-lived secret of an entity.
    fn secret(&self, name: &AuthName) -> Option<CryptoKey>;
    /// One of the rotating secrets of a service.
    fn service_secret(&self, service: EntityType, id: u64) -> Option<CryptoKey>;
}

/// An entity's key and its caps by service (`EntityAuth`, `src/auth/Auth.h`, struct_v 2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntityAuth {
    /// The secret shared with the entity.
    pub key: CryptoKey,
    /// Service name to capability text.
    pub caps: BTreeMap<String, String>,
}

impl Encode for EntityAuth {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(2);
        out.put_u64_le(u64::MAX); // CEPH_AUTH_UID_DEFAULT
        self.key.encode(out, f);
        out.put_u32_le(self.caps.len() as u32);
        for (service, text) in &self.caps {
            service.encode(out, f);
            // The value is a buffer that holds an encoded string.
            denc::with_length(out, |out| text.encode(out, f));
        }
    }
}

impl Decode for EntityAuth {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let struct_v: u8 = r.get()?;
        if struct_v >= 2 {
            r.get::<u64>()?;
        }
        let key = r.get()?;
        let mut caps = BTreeMap::new();
        for _ in 0..r.count("EntityAuth caps", 8)? {
            let service = r.get()?;
            let text = Bytes::decode(r)?;
            caps.insert(
                service,
                if text.is_empty() { String::new() } else { Reader::new(text).get()? },
            );
        }
        Ok(EntityAuth { key, caps })
    }
}

/// How long tickets last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketTtl {
    /// `auth_mon_ticket_ttl`: of the ticket that renews others.
    pub auth: Duration,
    /// `auth_service_ticket_ttl`: of all others.
    pub service: Duration,
}

impl Default for TicketTtl {
    fn default() -> Self {
        TicketTtl { auth: Duration::from_secs(72 * 3600), service: Duration::from_secs(3600) }
    }
}

impl TicketTtl {
    fn of(self, service: EntityType) -> Duration {
        if service == EntityType::AUTH { self.auth } else { self.service }
    }
}

/// A change of the rotating secrets, made by one monitor and applied by all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The version that the change leads to; one more than the version that it was made from.
    pub version: u64,
    /// The complete new set.
    pub secrets: BTreeMap<u32, RotatingSecrets>,
}

/// Everything that cephx keeps secret (`KeyServerData`, `src/auth/cephx/CephxKeyServer.h`). Part of
/// the monitors' replicated state: changing it takes no clock and no randomness except in
/// [`Self::prepare_rotation`], whose result is what gets replicated.
#[derive(Clone, Debug, Default)]
pub struct KeyServer {
    version: u64,
    rotating_version: u64,
    secrets: BTreeMap<AuthName, EntityAuth>,
    rotating: BTreeMap<u32, RotatingSecrets>,
    /// Entities known from the local keyring only, above all `mon.`. Not replicated.
    extra: Keyring,
}

/// The services that tickets are made for.
const ROTATING: [EntityType; 5] =
    [EntityType::AUTH, EntityType::MON, EntityType::OSD, EntityType::MDS, EntityType::MGR];

impl KeyServer {
    /// Sets the entities that are known from the local keyring only.
    pub fn set_extra(&mut self, extra: Keyring) {
        self.extra = extra;
    }

    /// Incremented by every change of an entity.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Incremented by every rotation.
    pub fn rotating_version(&self) -> u64 {
        self.rotating_version
    }

    /// Adds or replaces an entity.
    pub fn insert(&mut self, name: AuthName, auth: EntityAuth) {
        self.version += 1;
        self.secrets.insert(name, auth);
    }

    /// Removes an entity. Tickets that it holds stay valid until they expire.
    pub fn remove(&mut self, name: &AuthName) -> Option<EntityAuth> {
        let old = self.secrets.remove(name)?;
        self.version += 1;
        Some(old)
    }

    /// A replicated entity.
    pub fn get(&self, name: &AuthName) -> Option<&EntityAuth> {
        self.secrets.get(name)
    }

    /// An entity, replicated or from the local keyring.
    pub fn lookup(&self, name: &AuthName) -> Option<&EntityAuth> {
        self.secrets.get(name).or_else(|| self.extra.get(name))
    }

    /// All replicated entities, in the order of `ceph auth ls`.
    pub fn iter(&self) -> impl Iterator<Item = (&AuthName, &EntityAuth)> {
        self.secrets.iter()
    }

    /// How many entities are replicated.
    pub fn len(&self) -> usize {
        self.secrets.len()
    }

    /// Whether no entity is replicated.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The caps of an entity for a service; `None` if there is no such entity.
    pub fn caps(&self, name: &AuthName, service: EntityType) -> Option<AuthCaps> {
        let auth = self.lookup(name)?;
        Some(AuthCaps {
            allow_all: false,
            text: auth.caps.get(service.name()).cloned().unwrap_or_default(),
        })
    }

    /// The rotating secrets if any of them must be renewed now.
    pub fn prepare_rotation(
        &self,
        ttl: TicketTtl,
        now: Utime,
        rng: &mut dyn CryptoRng,
    ) -> Option<Rotation> {
        let mut secrets = self.rotating.clone();
        let added: usize = ROTATING
            .iter()
            .map(|s| secrets.entry(s.0).or_default().rotate(ttl.of(*s), now, rng))
            .sum();
        (added > 0).then(|| Rotation { version: self.rotating_version + 1, secrets })
    }

    /// Applies a rotation. One that was made from an outdated state is ignored.
    pub fn apply_rotation(&mut self, rotation: Rotation) -> bool {
        if rotation.version != self.rotating_version + 1 {
            return false;
        }
        self.rotating_version = rotation.version;
        self.rotating = rotation.secrets;
        true
    }

    /// The rotating secrets as they are, with numbers of future ones that are greater by `by`:
    /// those in between may have been given to secrets that are not known here.
    pub fn skip_secret_ids(&self, by: u64) -> Rotation {
        let mut secrets = self.rotating.clone();
        for s in secrets.values_mut() {
            s.max_ver += by;
        }
        Rotation { version: self.rotating_version + 1, secrets }
    }

    /// Throws the rotating secrets of one service away (`ceph auth wipe-rotating-service-keys`).
    pub fn wipe_rotating(&mut self, service: EntityType) {
        if self.rotating.remove(&service.0).is_some() {
            self.rotating_version += 1;
        }
    }

    /// The secrets that the daemon `name` verifies tickets with, sealed with its own key.
    pub fn rotating_sealed(&self, name: &AuthName) -> Option<Bytes> {
        let auth = self.secrets.get(name)?;
        seal(&auth.key, self.rotating.get(&name.kind.0)?).ok()
    }

    /// The secret of `service` to make a ticket with; see [`RotatingSecrets::for_ticket`].
    pub(crate) fn ticket_secret(
        &self,
        service: EntityType,
        ttl: TicketTtl,
        now: Utime,
    ) -> Option<(u64, &CryptoKey, Duration)> {
        self.rotating.get(&service.0)?.for_ticket(ttl.of(service), now)
    }

    /// A ticket for `service` on behalf of the holder of `parent`.
    pub(crate) fn session_for(
        &self,
        service: EntityType,
        parent: &AuthTicket,
        ttl: TicketTtl,
        now: Utime,
        rng: &mut dyn CryptoRng,
    ) -> Option<SessionAuthInfo> {
        let (secret_id, secret, ttl) = self.ticket_secret(service, ttl, now)?;
        let mut ticket = AuthTicket::new(parent.name.clone(), parent.global_id, now, ttl);
        // The monitor looks caps up by itself.
        if service != EntityType::MON {
            ticket.caps = self.caps(&parent.name, service)?;
        }
        Some(SessionAuthInfo {
            service,
            secret_id,
            ticket,
            session_key: CryptoKey::generate(now, rng),
            service_secret: secret.clone(),
            validity: Utime::from_duration(ttl),
        })
    }
}

impl KeyStore for KeyServer {
    fn secret(&self, name: &AuthName) -> Option<CryptoKey> {
        self.lookup(name).map(|a| a.key.clone())
    }

    fn service_secret(&self, service: EntityType, id: u64) -> Option<CryptoKey> {
        self.rotating.get(&service.0)?.secrets.get(&id).map(|k| k.key.clone())
    }
}

/// `KeyServerData`, struct_v 1. [`KeyServer::set_extra`] is not part of it.
impl Encode for KeyServer {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(1);
        out.put_u64_le(self.version);
        out.put_u64_le(self.rotating_version);
        self.secrets.encode(out, f);
        self.rotating.encode(out, f);
    }
}
impl Decode for KeyServer {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        r.get::<u8>()?;
        Ok(KeyServer {
            version: r.get()?,
            rotating_version: r.get()?,
            secrets: r.get()?,
            rotating: r.get()?,
            extra: Keyring::default(),
        })
    }
}
impl Encode for Rotation {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(1);
        out.put_u64_le(self.version);
        self.secrets.encode(out, f);
    }
}
impl Decode for Rotation {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        r.get::<u8>()?;
        Ok(Rotation { version: r.get()?, secrets: r.get()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn rotation_keeps_a_window_of_three() {
        let mut rng = rand::rngs::StdRng::seed_from_u64(1);
        let ttl = TicketTtl::default();
        let mut now = Utime { sec: 1_000_000, nsec: 0 };
        let mut keys = KeyServer::default();
        let first = keys.prepare_rotation(ttl, now, &mut rng).unwrap();
        assert!(keys.apply_rotation(first.clone()));
        assert!(!keys.apply_rotation(first), "the same rotation twice");
        assert_eq!(keys.prepare_rotation(ttl, now, &mut rng), None);
        let (id, secret, life) = keys.ticket_secret(EntityType::OSD, ttl, now).unwrap();
        assert_eq!((id, life), (2, Duration::from_secs(3600)));
        let secret = secret.clone();

        // The current secret (the second) expires after two periods.
        now.sec += 2 * 3600;
        let next = keys.prepare_rotation(ttl, now, &mut rng).unwrap();
        assert_eq!(
            next.secrets[&EntityType::OSD.0].secrets.keys().copied().collect::<Vec<_>>(),
            [2, 3, 4]
        );
        assert_eq!(
            next.secrets[&EntityType::AUTH.0].secrets.keys().copied().collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert!(keys.apply_rotation(next));
        assert_eq!(keys.ticket_secret(EntityType::OSD, ttl, now).unwrap().0, 3);
        assert_eq!(keys.service_secret(EntityType::OSD, 2), Some(secret), "old tickets stay good");

        let again = KeyServer::from_bytes(&keys.to_bytes(Features::ALL)).unwrap();
        assert_eq!(again.to_bytes(Features::ALL), keys.to_bytes(Features::ALL));
    }
}
