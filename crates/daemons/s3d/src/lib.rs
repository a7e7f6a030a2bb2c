//! The S3 gateway as a daemon: threads with a reactor, a connection to the cluster and a layout
//! each. The OSD map is shared. Work beside requests (garbage, lifecycle) is the first thread's.
//!
//! The generic parts of `s3-gateway` and `s3-layout` meet here and are compiled here once.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use auth::AuthName;
use client::{ClusterConfig, Rados, ServiceDaemon, SharedMap};
use conf::file::ConfFile;
use daemon_frame::metrics;
use daemon_frame::threads::Daemon;
use s3_admin::AdminApi;
use s3_gateway::{Counters, Gateway, Kind, Options, Value};
use s3_layout::Layout;
use s3_layout::api::{AccessKey, User, UserChange, UserId};
use s3_layout::rgw::Rgw;
use s3_rules::lifecycle::DAY_SECONDS;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long the cluster may take to answer when the gateway starts.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first user of a cluster that `siphon up` makes.
const FIRST_USER: &str = "first";

/// What all threads of a gateway have in common.
#[derive(Clone)]
pub struct Shared {
    /// The configuration file of the cluster.
    pub conf: PathBuf,
    /// The user of the cluster.
    pub name: AuthName,
    /// The OSD map.
    pub map: SharedMap,
    /// Where the gateway listens.
    pub bind: SocketAddr,
    /// Where its counters are served, if they are.
    pub metrics: Option<SocketAddr>,
    /// How it behaves.
    pub options: Options,
    /// How often the usage log is written (Ceph: `rgw_usage_log_tick_interval`).
    pub usage_every: Duration,
    /// How many seconds a day of lifecycle rules lasts, if not a day.
    pub short_day: Option<u64>,
}

/// How often the usage log is written if the configuration does not say it, garbage is removed, and
/// lifecycle looks at buckets. Gateways share this work by locks in the cluster.
const USAGE_EVERY: Duration = Duration::from_secs(30);
const GARBAGE_EVERY: Duration = Duration::from_secs(600);
const LIFECYCLE_EVERY: Duration = Duration::from_secs(3600);
/// How often the gateway looks how far lifecycle is.
const PROGRESS_EVERY: Duration = Duration::from_secs(300);

/// Work that no request waits for. The first thread does the cluster's share of it.
async fn background(layout: Rgw, shared: Shared, first: bool) {
    let day = shared.short_day.unwrap_or(DAY_SECONDS);
    let every = shared.short_day.map_or(LIFECYCLE_EVERY, Duration::from_secs);
    let usage_every = shared.usage_every;
    let usage = async {
        loop {
            tokio::time::sleep(usage_every).await;
            if let Err(e) = layout.write_usage().await {
                tracing::warn!("s3: the usage log: {e}");
            }
        }
    };
    let garbage = async {
        loop {
            tokio::time::sleep(GARBAGE_EVERY).await;
            if let Err(e) = layout.reclaim(false).await {
                tracing::warn!("s3: garbage: {e}");
            }
        }
    };
    let lifecycle = async {
        loop {
            tokio::time::sleep(every).await;
            if let Err(e) = layout.expire(day).await {
                tracing::warn!("s3: lifecycle: {e}");
            }
        }
    };
    let progress = async {
        loop {
            match layout.admin().lifecycle_progress().await {
                Ok(found) => {
                    shared.options.counters.lifecycle_is_behind(found.behind());
                    if found.behind() > DAY_SECONDS {
                        let hours = found.behind() / 3600;
                        tracing::warn!("s3: lifecycle is {hours} hours behind");
                    }
                }
                Err(e) => tracing::warn!("s3: how far lifecycle is cannot be told: {e}"),
            }
            tokio::time::sleep(every.min(PROGRESS_EVERY)).await;
        }
    };
    if first {
        tokio::join!(usage, garbage, lifecycle, progress);
    } else {
        usage.await;
    }
}

/// What a configuration file says of a gateway: of `radosgw`'s options those that are read here.
pub fn options_of(file: &ConfFile, name: &AuthName) -> Result<(Options, Duration)> {
    let full = name.to_string();
    let sections = [full.as_str(), name.kind.name(), "global"];
    let mut options = Options::default();
    if let Some(entry) = file.get(&sections, "rgw_admin_entry") {
        options.admin_entry = entry.to_owned();
    }
    if let Some(text) = file.get(&sections, "rgw_enable_usage_log") {
        options.usage_log = match conf::value::parse(conf::Kind::Bool, text) {
            Ok(conf::Value::Bool(on)) => on,
            _ => bail!("rgw_enable_usage_log = {text}: true or false was expected"),
        };
    }
    let usage_every = match file.get(&sections, "rgw_usage_log_tick_interval") {
        None => USAGE_EVERY,
        Some(text) => match text.parse() {
            Ok(seconds @ 1..) => Duration::from_secs(seconds),
            _ => bail!("rgw_usage_log_tick_interval = {text}: a number of seconds was expected"),
        },
    };
    Ok((options, usage_every))
}

/// The gateway as the manager shows it, as a daemon of the service `rgw`.
fn service(shared: &Shared, rados: &Rados, layout: &Rgw) -> ServiceDaemon {
    let mut metadata = daemon_frame::host::facts();
    let scheme = if shared.options.tls.is_some() { "https" } else { "http" };
    let name = rgw_name(&shared.name);
    let own = [
        ("ceph_version", types::version::LONG.to_owned()),
        ("ceph_version_short", types::version::SHORT.to_owned()),
        ("frontend_config#0", format!("siphon endpoint={scheme}://{}", shared.bind)),
        ("frontend_type#0", "siphon".to_owned()),
        ("id", name.strip_prefix("rgw.").unwrap_or(&name).to_owned()),
        ("pid", std::process::id().to_string()),
    ];
    metadata.extend(own.map(|(name, value)| (name.to_owned(), value)));
    metadata.extend(layout.zone_facts());
    let counters = shared.options.counters.clone();
    let status = move || {
        let behind = counters.behind().to_string();
        BTreeMap::from([("lifecycle_behind_seconds".to_owned(), behind)])
    };
    ServiceDaemon {
        service: "rgw".to_owned(),
        daemon: rados.mon().global_id().to_string(),
        metadata,
        status: Box::new(status),
    }
}

/// A thread of the gateway. `key` is one that the first user must have.
pub fn daemon(shared: Shared, first: bool, key: Option<AccessKey>) -> Daemon {
    Box::new(move |stop, ready| {
        Box::pin(async move {
            let entity = shared.name.clone();
            let config = ClusterConfig::read(&shared.conf, shared.name.clone())?;
            let rados = Rados::connect_shared(&config, shared.map.clone(), PATIENCE)
                .await
                .context("the cluster does not answer")?;
            let layout = Rgw::open(rados.clone(), Default::default())
                .await
                .context("the pools of the gateway cannot be opened")?;
            if let Some(key) = key {
                first_user(&layout, key).await.context("the first user cannot be made")?;
            }
            let listener = s3_gateway::listen(shared.bind).with_context(|| {
                format!("cannot listen at {}: choose another address or port", shared.bind)
            })?;
            let work = tokio::task::spawn_local(background(layout.clone(), shared.clone(), first));
            let metrics = match shared.metrics.filter(|_| first) {
                Some(addr) => {
                    let listener = metrics::http::listen(&addr.ip().to_string(), addr.port());
                    let listener =
                        listener.with_context(|| format!("cannot serve metrics at {addr}"))?;
                    let (name, counters) = (rgw_name(&entity), shared.options.counters.clone());
                    let page = move || {
                        let page = metrics::page(&name, &counted(&counters));
                        async move { page }
                    };
                    Some(tokio::task::spawn_local(metrics::http::serve(listener, page)))
                }
                None => None,
            };
            if first {
                rados.objecter().register_service(service(&shared, &rados, &layout));
            }
            let fsid = rados.mon().fsid().map(|id| id.to_string()).unwrap_or_default();
            let admin = Box::new(AdminApi::new(&layout, fsid));
            let gateway = Gateway::with_admin(layout.clone(), shared.options, Some(admin));
            let _ = ready.send(());
            gateway.serve(listener, stop.stopped()).await;
            work.abort();
            if let Some(metrics) = metrics {
                metrics.abort();
            }
            if let Err(e) = layout.write_usage().await {
                tracing::warn!("s3: the usage log: {e}");
            }
            rados.objecter().leave_service().await;
            rados.shutdown();
            Ok(())
        })
    })
}

/// The gateway as metrics name it: `rgw.NAME`, with the name of its user.
fn rgw_name(name: &AuthName) -> String {
    format!("rgw.{}", name.id.strip_prefix("rgw.").unwrap_or(&name.id))
}

/// Counters in the form of `perf dump` and `perf schema`. Bits of Ceph 16.2
/// (`perfcounter_type_d`): 1 time, 2 an integer, 4 an average, 8 a counter.
fn counted(counters: &Counters) -> metrics::Counters {
    let (mut values, mut schema) = (json!({}), json!({}));
    for (name, help, value) in counters.all() {
        let (value, bits) = match value {
            Value::Number(Kind::Grows, n) => (json!(n), 10),
            Value::Number(Kind::Gauge, n) => (json!(n), 2),
            Value::Time(count, sum) => (json!({"avgcount": count, "sum": sum}), 5),
        };
        values[name] = value;
        schema[name] = json!({"type": bits, "priority": 5, "description": help});
    }
    metrics::Counters { values: json!({"rgw": values}), schema: json!({"rgw": schema}) }
}

/// Makes the user that has this key, unless it is there.
async fn first_user(layout: &impl Layout, key: AccessKey) -> Result<(), s3_layout::Error> {
    match layout.user_of_key(&key.id).await {
        Ok(_) => return Ok(()),
        Err(e) if e.code() == s3::ErrorCode::InvalidAccessKeyId => {}
        Err(e) => return Err(e),
    }
    let id = UserId { tenant: String::new(), id: FIRST_USER.to_owned() };
    match layout.user(&id).await {
        // Its file of keys is gone: it gets one more.
        Ok(user) => {
            let mut keys = user.keys.clone();
            keys.push(key);
            let change = UserChange { keys: Some(keys), ..UserChange::default() };
            layout.change_user(&id, change).await
        }
        Err(e) if e.code() == s3::ErrorCode::NoSuchUser => {
            let user = User {
                id,
                display_name: "First user".to_owned(),
                keys: vec![key],
                max_buckets: Some(1000),
                ..User::default()
            };
            layout.create_user(&user).await
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_radosgw_are_read_from_the_section_of_the_user() {
        let of = |text: &str| {
            let file = ConfFile::parse(text).unwrap();
            options_of(&file, &"client.rgw.a".parse().unwrap())
        };
        let options = of("[global]\nrgw admin entry = x\n[client.rgw.a]\nrgw_admin_entry = y\n\
                          rgw_enable_usage_log = yes\nrgw_usage_log_tick_interval = 2\n");
        let (options, every) = options.unwrap();
        assert_eq!((options.admin_entry.as_str(), options.usage_log), ("y", true));
        assert_eq!(every, Duration::from_secs(2));
        let (none, every) = of("[global]\n").unwrap();
        assert_eq!(every, USAGE_EVERY);
        assert_eq!((none.admin_entry.as_str(), none.usage_log), ("admin", false));
        assert!(of("[client]\nrgw_enable_usage_log = perhaps\n").is_err());
        assert!(of("[client]\nrgw_usage_log_tick_interval = 0\n").is_err());
    }
}
