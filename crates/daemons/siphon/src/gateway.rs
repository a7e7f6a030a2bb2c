//! `siphon s3`, and the gateway of `siphon up --s3`: one thread a core, each with a reactor, a
//! connection to the cluster and a layout of its own. The OSD map is shared.

use crate::bootstrap;
use crate::cli;
use crate::home;
use crate::process;
use anyhow::{Context, Result, bail};
use auth::AuthName;
use client::SharedMap;
use conf::file::ConfFile;
use daemon_frame::threads::{Stop, Threads};
use rand::RngExt;
use s3_gateway::Certificates;
use s3_layout::api::AccessKey;
use s3d::{Shared, daemon, options_of};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// The file with the first user's keys.
const ENV_FILE: &str = "s3.env";

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
