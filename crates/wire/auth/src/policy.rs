//! Which methods and connection modes are offered to whom.

use types::EntityType;

/// How an entity proves its name (`CEPH_AUTH_*`, `src/include/ceph_fs.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum AuthMethod {
    /// It does not.
    None = 1,
    /// With a shared secret.
    Cephx = 2,
}

impl AuthMethod {
    /// Of the number on the wire; `None` for methods that are not implemented.
    pub fn from_wire(n: u32) -> Option<Self> {
        match n {
            1 => Some(AuthMethod::None),
            2 => Some(AuthMethod::Cephx),
            _ => None,
        }
    }
}

/// How frames are protected once the peer is known (`CEPH_CON_MODE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum ConMode {
    /// Against accidents.
    Crc = 1,
    /// Against the network: encrypted and authenticated.
    Secure = 2,
}

impl ConMode {
    /// Of the number on the wire; `None` for unknown modes.
    pub fn from_wire(n: u32) -> Option<Self> {
        match n {
            1 => Some(ConMode::Crc),
            2 => Some(ConMode::Secure),
            _ => None,
        }
    }

    /// Bytes of key material that both ends need (`get_connection_secret_length`).
    pub fn secret_len(self) -> usize {
        match self {
            ConMode::Crc => 0,
            ConMode::Secure => 64,
        }
    }
}

/// The `auth_*_required` and `ms_*_mode` options, and the rules of which applies when
/// (`AuthRegistry`, `src/auth/AuthRegistry.cc`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthPolicy {
    /// What kind of entity we are.
    pub me: EntityType,
    /// `auth_cluster_required`.
    pub cluster_methods: Vec<AuthMethod>,
    /// `auth_service_required`.
    pub service_methods: Vec<AuthMethod>,
    /// `auth_client_required`.
    pub client_methods: Vec<AuthMethod>,
    /// `ms_mon_cluster_mode`.
    pub mon_cluster_modes: Vec<ConMode>,
    /// `ms_mon_service_mode`.
    pub mon_service_modes: Vec<ConMode>,
    /// `ms_mon_client_mode`.
    pub mon_client_modes: Vec<ConMode>,
    /// `ms_cluster_mode`.
    pub cluster_modes: Vec<ConMode>,
    /// `ms_service_mode`.
    pub service_modes: Vec<ConMode>,
    /// `ms_client_mode`.
    pub client_modes: Vec<ConMode>,
}

impl AuthPolicy {
    /// Ceph's defaults: cephx everywhere; monitors prefer secure connections, others crc.
    pub fn new(me: EntityType) -> Self {
        let secure = vec![ConMode::Secure, ConMode::Crc];
        let crc = vec![ConMode::Crc, ConMode::Secure];
        let cephx = vec![AuthMethod::Cephx];
        AuthPolicy {
            me,
            cluster_methods: cephx.clone(),
            service_methods: cephx.clone(),
            client_methods: cephx,
            mon_cluster_modes: secure.clone(),
            mon_service_modes: secure.clone(),
            mon_client_modes: secure,
            cluster_modes: crc.clone(),
            service_modes: crc.clone(),
            client_modes: crc,
        }
    }

    /// Parses a list of modes as in `ms_client_mode`. Unknown words are skipped, as Ceph does.
    pub fn parse_modes(text: &str) -> Vec<ConMode> {
        let known = |w: &str| match w {
            "crc" => Some(ConMode::Crc),
            "secure" => Some(ConMode::Secure),
            _ => None,
        };
        text.split([' ', ',', ';', '\t', '=']).filter_map(known).collect()
    }

    /// Parses a list of methods as in `auth_client_required`. Unknown words are skipped.
    pub fn parse_methods(text: &str) -> Vec<AuthMethod> {
        let known = |w: &str| match w {
            "none" => Some(AuthMethod::None),
            "cephx" => Some(AuthMethod::Cephx),
            _ => None,
        };
        text.split([' ', ',', ';', '\t', '=']).filter_map(known).collect()
    }

    fn is_mon_like(kind: EntityType) -> bool {
        kind == EntityType::MON || kind == EntityType::MGR
    }

    /// The methods for connections with peers of a kind, most wanted first.
    pub fn methods(&self, peer: EntityType) -> &[AuthMethod] {
        if self.me == EntityType::CLIENT {
            return &self.client_methods;
        }
        let peer_is_daemon = Self::is_mon_like(peer)
            || (!Self::is_mon_like(self.me)
                && (peer == EntityType::OSD || peer == EntityType::MDS));
        if peer_is_daemon { &self.cluster_methods } else { &self.service_methods }
    }

    /// The modes for connections with peers of a kind, most wanted first. An entity that proved
    /// nothing shares no secret, so there is nothing to encrypt with.
    pub fn modes(&self, peer: EntityType, method: AuthMethod) -> Vec<ConMode> {
        let modes = if self.me == EntityType::CLIENT {
            if Self::is_mon_like(peer) { &self.mon_client_modes } else { &self.client_modes }
        } else if Self::is_mon_like(self.me) {
            if Self::is_mon_like(peer) { &self.mon_cluster_modes } else { &self.mon_service_modes }
        } else if Self::is_mon_like(peer) {
            &self.mon_cluster_modes
        } else if peer == EntityType::OSD || peer == EntityType::MDS {
            &self.cluster_modes
        } else {
            &self.service_modes
        };
        modes.iter().copied().filter(|m| method != AuthMethod::None || *m == ConMode::Crc).collect()
    }

    /// The first mode of the peer's list that we allow.
    pub fn pick_mode(
        &self,
        peer: EntityType,
        method: AuthMethod,
        preferred: &[u32],
    ) -> Option<ConMode> {
        let allowed = self.modes(peer, method);
        preferred.iter().filter_map(|n| ConMode::from_wire(*n)).find(|m| allowed.contains(m))
    }
}
