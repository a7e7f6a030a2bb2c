//! Where the cluster is and who we are.

use crate::mon_host::{MonHost, ParseMonHostError, parse_mon_host};
use auth::{AuthMethod, AuthName, AuthPolicy, CryptoKey, Keyring, KeyringError};
use conf::file::ConfFile;
use std::path::{Path, PathBuf};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A keyring makes no sense.
    #[error("{path}")]
    Keyring {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: KeyringError,
    },
    /// No keyring has the entity's key.
    #[error("no keyring has a key for {0}")]
    NoKey(AuthName),
    /// `mon_host` makes no sense.
    #[error("mon_host: {0}")]
    MonHost(#[from] ParseMonHostError),
    /// There is no `mon_host`.
    #[error("mon_host is not set")]
    NoMonHost,
}

/// What is needed to reach a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Who we are.
    pub name: AuthName,
    /// Our secret; empty if authentication is off.
    pub key: CryptoKey,
    /// Where monitors may be.
    pub mon_hosts: Vec<MonHost>,
    /// Methods and connection modes.
    pub policy: AuthPolicy,
}

impl ClusterConfig {
    /// Reads `ceph.conf` at `path` for the entity `name`, and the entity's key from `key`,
    /// `keyfile` or the first keyring that exists.
    pub fn read(path: &Path, name: AuthName) -> Result<Self, ConfigError> {
        let file = ConfFile::read(path)
            .map_err(|source| ConfigError::Io { path: path.to_owned(), source })?;
        Self::from_file(&file, name)
    }

    /// The same with a parsed file.
    pub fn from_file(file: &ConfFile, name: AuthName) -> Result<Self, ConfigError> {
        let full = name.to_string();
        let sections = [full.as_str(), name.kind.name(), "global"];
        let get = |option: &str| file.get(&sections, option);
        let hosts = get("mon_host").ok_or(ConfigError::NoMonHost)?;
        let mut policy = AuthPolicy::new(name.kind);
        let both = get("auth_supported");
        for (option, methods) in [
            ("auth_cluster_required", &mut policy.cluster_methods),
            ("auth_service_required", &mut policy.service_methods),
            ("auth_client_required", &mut policy.client_methods),
        ] {
            if let Some(text) = both.or(get(option)) {
                *methods = AuthPolicy::parse_methods(text);
            }
        }
        for (option, modes) in [
            ("ms_mon_cluster_mode", &mut policy.mon_cluster_modes),
            ("ms_mon_service_mode", &mut policy.mon_service_modes),
            ("ms_mon_client_mode", &mut policy.mon_client_modes),
            ("ms_cluster_mode", &mut policy.cluster_modes),
            ("ms_service_mode", &mut policy.service_modes),
            ("ms_client_mode", &mut policy.client_modes),
        ] {
            if let Some(text) = get(option) {
                *modes = AuthPolicy::parse_modes(text);
            }
        }
        let needs_key = policy.client_methods.contains(&AuthMethod::Cephx);
        let key = match find_key(&get, &name)? {
            Some(key) => key,
            None if needs_key => return Err(ConfigError::NoKey(name)),
            None => CryptoKey::default(),
        };
        Ok(ClusterConfig { key, mon_hosts: parse_mon_host(hosts)?, policy, name })
    }
}

fn find_key<'a>(
    get: &impl Fn(&str) -> Option<&'a str>,
    name: &AuthName,
) -> Result<Option<CryptoKey>, ConfigError> {
    let expand = |text: &str| {
        text.replace("$cluster", "ceph")
            .replace("$name", &name.to_string())
            .replace("$type", name.kind.name())
            .replace("$id", &name.id)
    };
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Io { path: path.into(), source })
    };
    if let Some(key) = get("key") {
        return CryptoKey::from_base64(key.trim())
            .map(Some)
            .map_err(|_| ConfigError::NoKey(name.clone()));
    }
    if let Some(path) = get("keyfile") {
        let text = read(&expand(path))?;
        return CryptoKey::from_base64(text.trim())
            .map(Some)
            .map_err(|_| ConfigError::NoKey(name.clone()));
    }
    let default = "/etc/ceph/$cluster.$name.keyring,/etc/ceph/$cluster.keyring,/etc/ceph/keyring,/etc/ceph/keyring.bin";
    for path in expand(get("keyring").unwrap_or(default)).split([',', ';']).map(str::trim) {
        if !Path::new(path).exists() {
            continue;
        }
        let keyring: Keyring = read(path)?
            .parse()
            .map_err(|source| ConfigError::Keyring { path: path.into(), source })?;
        if let Some(entity) = keyring.get(name) {
            return Ok(Some(entity.key.clone()));
        }
    }
    Ok(None)
}
