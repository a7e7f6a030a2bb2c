//! Service secrets that change while they are in use.

use crate::{AuthName, CryptoKey, KeyStore, Keyring};
use bytes::BytesMut;
use denc::{BufMut, Decode, Encode, Features, Reader};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{EntityType, Utime};

/// Previous, current and next (`KEY_ROTATE_NUM`, `src/auth/Auth.h`).
const WINDOW: usize = 3;

/// `ExpiringCryptoKey`, `src/auth/Auth.h`, struct_v 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiringKey {
    /// The secret.
    pub key: CryptoKey,
    /// From when on it must not be handed out any more.
    pub expiration: Utime,
}

/// `RotatingSecrets`, `src/auth/Auth.h`, struct_v 1. Up to three secrets of one service, by an
/// ever-increasing id: tickets are made with the middle one, so that a service which has not yet
/// heard of the newest can still open them, and those made with the oldest stay good until they
/// expire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotatingSecrets {
    /// At most three, in order of their ids.
    pub secrets: BTreeMap<u64, ExpiringKey>,
    /// The largest id ever given out.
    pub max_ver: u64,
}

impl RotatingSecrets {
    fn current(&self) -> Option<&ExpiringKey> {
        self.secrets.values().nth(1)
    }

    /// Whether a secret is missing or the current one has expired.
    pub fn need_new(&self, now: Utime) -> bool {
        self.secrets.len() < WINDOW || self.current().is_none_or(|k| k.expiration <= now)
    }

    /// Adds secrets until none is needed; says how many. At the first call the three expire at one,
    /// two and three times `ttl` from now.
    pub(crate) fn rotate(
        &mut self,
        ttl: Duration,
        now: Utime,
        rng: &mut dyn rand::CryptoRng,
    ) -> usize {
        // A ttl of zero would make every secret expired when it is born.
        let ttl = ttl.max(Duration::from_secs(1));
        let mut added = 0;
        while self.need_new(now) {
            let newest = self.secrets.values().next_back().map(|k| k.expiration);
            let from = newest.map_or(now, |e| e.max(now + ttl));
            let key = CryptoKey::generate(now, rng);
            self.max_ver += 1;
            self.secrets.insert(self.max_ver, ExpiringKey { key, expiration: from + ttl });
            while self.secrets.len() > WINDOW {
                self.secrets.pop_first();
            }
            added += 1;
            // The end of representable time: nothing can be made to expire later.
            if self.secrets.len() == WINDOW && (now + ttl) <= now {
                break;
            }
        }
        added
    }

    /// The secret to make a ticket with, its id, and how long the ticket may last: no longer than
    /// the newest secret, in case `ttl` was raised meanwhile.
    pub fn for_ticket(&self, ttl: Duration, now: Utime) -> Option<(u64, &CryptoKey, Duration)> {
        let mut secrets = self.secrets.iter();
        let first = secrets.next()?;
        let mut pick = secrets.next().unwrap_or(first);
        if pick.1.expiration < now {
            // Rotation is late. The next one will do if there is any.
            pick = secrets.next()?;
        }
        let (_, newest) = self.secrets.last_key_value()?;
        let life = ttl.min(newest.expiration.since(now));
        // A ticket of no validity would be taken for one that never expires.
        (!life.is_zero()).then_some((*pick.0, &pick.1.key, life))
    }
}

impl Encode for ExpiringKey {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(1);
        self.key.encode(out, f);
        self.expiration.encode(out, f);
    }
}
impl Decode for ExpiringKey {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        r.get::<u8>()?;
        Ok(ExpiringKey { key: r.get()?, expiration: r.get()? })
    }
}
impl Encode for RotatingSecrets {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(1);
        self.secrets.encode(out, f);
        out.put_u64_le(self.max_ver);
    }
}
impl Decode for RotatingSecrets {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        r.get::<u8>()?;
        Ok(RotatingSecrets { secrets: r.get()?, max_ver: r.get()? })
    }
}

/// What a service verifies authorizers with: its own rotating secrets, learnt from the monitor, and
/// its keyring (`RotatingKeyRing`, `src/auth/RotatingKeyRing.h`).
#[derive(Clone, Debug)]
pub struct RotatingKeyRing {
    service: EntityType,
    secrets: RotatingSecrets,
    keyring: Keyring,
}

impl RotatingKeyRing {
    /// Without secrets yet: every authorizer is refused until [`Self::set_secrets`].
    pub fn new(service: EntityType, keyring: Keyring) -> Self {
        RotatingKeyRing { service, secrets: RotatingSecrets::default(), keyring }
    }

    /// Takes the secrets that the monitor sent.
    pub fn set_secrets(&mut self, secrets: RotatingSecrets) {
        self.secrets = secrets;
    }

    /// Whether it is time to ask the monitor.
    pub fn need_new_secrets(&self, now: Utime) -> bool {
        self.secrets.need_new(now)
    }

    /// Which service the secrets are of.
    pub fn service(&self) -> EntityType {
        self.service
    }
}

impl KeyStore for RotatingKeyRing {
    fn secret(&self, name: &AuthName) -> Option<CryptoKey> {
        self.keyring.get(name).map(|a| a.key.clone())
    }

    fn service_secret(&self, service: EntityType, id: u64) -> Option<CryptoKey> {
        if service != self.service {
            return None;
        }
        self.secrets.secrets.get(&id).map(|k| k.key.clone())
    }
}
