//! `siphon s3`, and the gateway of `siphon up --s3`: one thread a core, each with a reactor, a
//! connection to the cluster and a layout of its own. The OSD map is shared.

use crate::bootstrap;
use crate::cli;
use crate::home;
use crate::process;
use anyhow::{Context, Result, bail};
use auth::AuthName;
use client::{ClusterConfig, Rados, ServiceDaemon, SharedMap};
use conf::file::ConfFile;
use daemon_frame::metrics;
use daemon_frame::threads::{Daemon, Stop, Threads};
use rand::RngExt;
use s3_admin::AdminApi;
use s3_gateway::{Certificates, Counters, Gateway, Kind, Options, Value};
use s3_layout::Layout;
use s3_layout::api::{AccessKey, User, UserChange, UserId};
use s3_layout::rgw::Rgw;
use s3_rules::lifecycle::DAY_SECONDS;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the cluster may take to answer when the gateway starts.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first user of a cluster that `siphon up` makes.
const FIRST_USER: &str = "first";

/// The file with the first user's keys.
const ENV_FILE: &str = "s3.env";

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
/// Work that no request waits for. What concerns the cluster and not the thread is done by the
/// first one.
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
fn options_of(file: &ConfFile, name: &AuthName) -> Result<(Options, Duration)> {
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
fn daemon(shared: Shared, first: bool, key: Option<AccessKey>) -> Daemon {
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

/// Starts the threads of a gateway. The first one makes what is missing for all.
pub async fn start(
    threads: &mut Threads,
    shared: &Shared,
    count: usize,
    key: Option<AccessKey>,
) -> Result<()> {
    threads.spawn("s3-0", daemon(shared.clone(), true, key)).await?;
    for i in 1..count {
        threads.spawn(&format!("s3-{i}"), daemon(shared.clone(), false, None)).await?;
    }
    Ok(())
}

/// Threads of a gateway: as asked for, or one for each core.
fn threads_of(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
}

/// The gateway of `siphon up`. What is printed says how to use it.
pub async fn start_beside(threads: &mut Threads, dir: &Path, port: u16) -> Result<()> {
    let bind = SocketAddr::from(([127, 0, 0, 1], port));
    let path = dir.join(ENV_FILE);
    let key = match std::fs::read_to_string(&path) {
        Ok(text) => key_of(&text).with_context(|| {
            format!(
                "{} has no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: repair or remove it",
                path.display()
            )
        })?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => new_key(),
        Err(e) => return Err(home::explain(&path, e)),
    };
    // The file is there before the user: keys that stand nowhere would be no use.
    home::write_durably(&path, env_text(bind, &key).as_bytes(), modes::SECRET)?;
    let (conf, name) = (dir.join("ceph.conf"), bootstrap::admin());
    let file = ConfFile::read(&conf).map_err(|e| home::explain(&conf, e))?;
    let (options, usage_every) = options_of(&file, &name)?;
    let shared = Shared {
        conf,
        name,
        map: SharedMap::new(),
        bind,
        metrics: None,
        options,
        usage_every,
        short_day: None,
    };
    start(threads, &shared, 1, Some(key)).await?;
    println!("{}", how_to(bind, &path));
    Ok(())
}

fn how_to(bind: SocketAddr, path: &Path) -> String {
    let path = path.display();
    format!(
        "S3 is served at http://{bind}, keys of a first user are in {path}. Try:\n  . {path}\n  aws s3 mb s3://mybucket\n  s3cmd --no-ssl --host={bind} --host-bucket={bind} ls\n  rclone lsd \":s3,provider=Ceph,env_auth,endpoint='http://{bind}':\""
    )
}

fn env_text(bind: SocketAddr, key: &AccessKey) -> String {
    format!(
        "export AWS_ENDPOINT_URL=http://{bind}\nexport AWS_ACCESS_KEY_ID={}\nexport AWS_SECRET_ACCESS_KEY={}\n",
        key.id, key.secret
    )
}

fn key_of(text: &str) -> Option<AccessKey> {
    let values: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|l| l.trim().strip_prefix("export ").unwrap_or(l.trim()).split_once('='))
        .collect();
    let get = |name| values.get(name).filter(|v| !v.is_empty()).map(|v| (*v).to_owned());
    Some(AccessKey {
        id: get("AWS_ACCESS_KEY_ID")?,
        secret: get("AWS_SECRET_ACCESS_KEY")?,
        subuser: String::new(),
    })
}

/// A key as Ceph's tools make them: 20 capitals and digits, and 40 letters and digits.
fn new_key() -> AccessKey {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut rng = rand::rng();
    let mut text = |letters: &[u8], count: usize| -> String {
        (0..count).map(|_| char::from(letters[rng.random_range(0..letters.len())])).collect()
    };
    AccessKey { id: text(&LETTERS[..36], 20), secret: text(LETTERS, 40), subuser: String::new() }
}

/// How often it is looked whether certificates were replaced.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(10);

/// Reads certificates again when they were changed, and on SIGHUP. Those that cannot be used are
/// said once, and what was there before stays.
async fn renew(tls: Option<Certificates>) -> Result<()> {
    let mut asked = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let mut complained = String::new();
    loop {
        let due = tokio::select! {
            _ = asked.recv() => true,
            () = tokio::time::sleep(CERTIFICATES_EVERY) => false,
        };
        let Some(tls) = tls.as_ref().filter(|tls| due || tls.changed()) else { continue };
        match tls.reload() {
            Ok(()) => {
                complained.clear();
                tracing::info!("s3: the certificates were read again");
            }
            Err(e) if e.to_string() == complained => {}
            Err(e) => {
                complained = e.to_string();
                tracing::error!("s3: the certificates stay as they are: {e}");
            }
        }
    }
}

/// `siphon s3`.
pub fn run(args: cli::S3) -> Result<()> {
    process::raise_file_limit();
    let conf = match &args.conf {
        Some(conf) => conf.clone(),
        None => args.role.data_dir.join("ceph.conf"),
    };
    if !conf.exists() {
        bail!(
            "{} is not there: name the cluster's data directory with --data-dir, or its ceph.conf with --conf",
            conf.display()
        );
    }
    let name: AuthName = args
        .name
        .parse()
        .ok()
        .with_context(|| format!("client.NAME was expected, found {:?}", args.name))?;
    let file = ConfFile::read(&conf).map_err(|e| home::explain(&conf, e))?;
    let (mut options, usage_every) = options_of(&file, &name)?;
    options.domains = args.domains;
    options.allow_v2 = args.allow_v2;
    options.usage_log |= args.usage_log;
    if let Some(entry) = args.admin_entry {
        options.admin_entry = entry;
    }
    options.relaxed_bucket_names = args.relaxed_bucket_names;
    if let (Some(chain), Some(key)) = (&args.tls_cert, &args.tls_key) {
        options.tls = Some(Certificates::open(chain, key)?);
    }
    let tls = options.tls.clone();
    let count = threads_of(args.threads);
    let shared = Shared {
        conf,
        name,
        map: SharedMap::new(),
        bind: args.bind,
        metrics: args.metrics,
        options,
        usage_every,
        short_day: args.lc_debug_interval,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut threads = Threads::new(Stop::new());
    runtime.block_on(async {
        tokio::select! {
            r = start(&mut threads, &shared, count, None) => r?,
            r = process::interrupted() => return r,
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        println!("S3 is served at {scheme}://{} by {count} threads.", shared.bind);
        tokio::select! {
            r = threads.failed() => r,
            r = process::interrupted() => r,
            r = renew(tls) => r,
        }
    })
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

    #[test]
    fn keys_survive_their_file() {
        let key = new_key();
        assert_eq!((key.id.len(), key.secret.len()), (20, 40));
        assert_ne!(new_key().secret, key.secret);
        let text = env_text("127.0.0.1:7480".parse().unwrap(), &key);
        assert!(key_of(&text).is_some_and(|k| k == key));
        assert!(key_of(&text.replace("export ", "")).is_some_and(|k| k == key));
        assert!(key_of("AWS_ACCESS_KEY_ID=x\n").is_none());
    }

    #[test]
    fn what_is_printed_names_the_file_and_no_secret() {
        let text = how_to("127.0.0.1:1".parse().unwrap(), Path::new("/d/s3.env"));
        assert!(text.contains(". /d/s3.env") && !text.contains("SECRET"));
    }
}
