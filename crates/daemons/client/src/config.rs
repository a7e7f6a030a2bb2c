//! Where the cluster is, and the client's name and key.

use crate::mon::{MonHost, ParseMonHostError, parse_mon_host};
use crate::objecter::Options;
use auth::{AuthMethod, AuthName, AuthPolicy, CryptoKey, Keyring, KeyringError};
use conf::file::ConfFile;
use conf::{Kind, Value};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// An option's value makes no sense.
    #[error("{option} = {value}: {why}")]
    Value {
        /// Which option.
        option: &'static str,
        /// The value.
        value: String,
        /// The form that was expected.
        why: String,
    },
    /// There is no `mon_host`.
    #[error("mon_host is not set")]
    NoMonHost,
}

/// The settings that reach a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The client's name.
    pub name: AuthName,
    /// Our secret; empty if authentication is off.
    pub key: CryptoKey,
    /// Addresses, or names, of monitors.
    pub mon_hosts: Vec<MonHost>,
    /// Methods and connection modes.
    pub policy: AuthPolicy,
    /// How requests to OSDs are made.
    pub objecter: Options,
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
        let objecter = objecter_options(&get)?;
        Ok(ClusterConfig { key, mon_hosts: parse_mon_host(hosts)?, policy, objecter, name })
    }
}

/// What Ceph's library reads of `ceph.conf` for its requests to OSDs.
fn objecter_options<'a>(get: &impl Fn(&str) -> Option<&'a str>) -> Result<Options, ConfigError> {
    let number = |option, kind| match get(option) {
        None => Ok(None),
        Some(text) => match conf::value::parse(kind, text) {
            Ok(Value::Uint(n)) => Ok(Some(n as f64)),
            Ok(Value::Float(n)) if n > 0.0 => Ok(Some(n)),
            Ok(_) => Err("expected a number above 0".to_owned()),
            Err(why) => Err(why),
        }
        .map_err(|why| ConfigError::Value { option, value: text.to_owned(), why }),
    };
    let mut options = Options::DEFAULT;
    if let Some(ops) = number("objecter_inflight_ops", Kind::Uint)? {
        options.limits.ops = ops as usize;
    }
    if let Some(bytes) = number("objecter_inflight_op_bytes", Kind::Size)? {
        options.limits.bytes = bytes as usize;
    }
    if let Some(tick) = number("objecter_tick_interval", Kind::Float)? {
        options.tick = Duration::try_from_secs_f64(tick).unwrap_or(Duration::MAX);
    }
    if let Some(limit) = number("rados_osd_op_timeout", Kind::Secs)? {
        options.op_timeout = Duration::from_secs(limit as u64);
    }
    Ok(options)
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

#[cfg(test)]
mod tests {
    use super::*;
    use types::EntityType;

    fn options(lines: &str) -> Result<Options, ConfigError> {
        let text = format!(
            "[global]\nmon_host = 127.0.0.1\nauth_client_required = none\n[client]\n{lines}\n"
        );
        let file = ConfFile::parse(&text).unwrap();
        let cluster = ClusterConfig::from_file(&file, AuthName::new(EntityType::CLIENT, "x"))?;
        Ok(cluster.objecter)
    }

    #[test]
    fn bounds_come_from_the_configuration() {
        assert_eq!(options("").unwrap(), Options::DEFAULT);
        let set = options(
            "objecter inflight ops = 7\nobjecter_inflight_op_bytes = 1M\n\
             objecter_tick_interval = 0.5\nrados_osd_op_timeout = 30",
        )
        .unwrap();
        assert_eq!((set.limits.ops, set.limits.bytes), (7, 1 << 20));
        assert_eq!(set.tick, Duration::from_millis(500));
        assert_eq!(set.op_timeout, Duration::from_secs(30));
        for bad in ["objecter_inflight_ops = many", "objecter_tick_interval = 0"] {
            assert!(matches!(options(bad), Err(ConfigError::Value { .. })), "{bad}");
        }
    }
}
