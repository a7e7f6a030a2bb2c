//! The command line.

use clap::{Args, Parser, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A storage cluster that stock Ceph clients use unchanged.
#[derive(Parser)]
#[command(name = "siphon", version, about, long_about = None)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a whole cluster in this process: a monitor, the manager and OSDs. Creates what is
    /// missing and opens what is there.
    Up(Up),
    /// Make a new cluster's data directory on its first host, for daemons that are processes of
    /// their own.
    Init(Init),
    /// Make a data directory on a further host, from the file `join` of the first.
    Join(Join),
    /// Add a daemon to a data directory.
    Add(Add),
    /// Run a monitor of a data directory.
    Mon(MonRole),
    /// Let a monitor go on alone when a majority of the monitors is lost for good. It must not be
    /// running.
    Rescue(Rescue),
    /// Run one OSD of a data directory.
    Osd(OsdRole),
    /// Run a manager of a data directory.
    Mgr(MgrRole),
    /// Run a metadata server of a data directory, for file systems.
    Mds(MdsRole),
    /// Run a gateway for S3 in front of a cluster, ours or another of Ceph's.
    S3(S3),
    /// Show the state of the cluster of a data directory.
    Status(Status),
    /// Decode wire types: show them as JSON, or encode them again.
    Dencode(Dencode),
    /// Look into an OSD's store, or check it. The OSD must not be running.
    Store(Store),
    /// Say what tenants are promised, and look at what they get.
    Qos(Qos),
    /// Move data as a job: plan, start, pause, undo.
    Move(Move),
    /// Say what on this host costs performance or endangers data. Ends with 1 if something does
    /// the latter.
    Doctor(Doctor),
    /// Write one archive with what a report of a fault needs, without secrets.
    Report(Report),
    /// Print the page of commands, operations and classes that are supported.
    #[command(hide = true)]
    Compatibility,
}

#[derive(Args, Clone)]
pub struct Up {
    /// Home of the cluster.
    #[arg(long, default_value = "./siphon-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// How many OSDs. A cluster that has fewer gets more; one that has more keeps them.
    #[arg(long, value_name = "N")]
    pub osds: Option<u32>,
    /// Where the monitor listens; the other daemons take free ports of the same address from 6800
    /// on.
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_bind)]
    pub bind: Option<SocketAddr>,
    /// Size of a new OSD's file, which is created sparse: bytes, or with K, M, G, T.
    #[arg(long, default_value = "100G", value_name = "SIZE", value_parser = parse_size)]
    pub osd_size: u64,
    /// Block device for a new OSD instead of a file; once for each OSD, in their order.
    #[arg(long = "device", value_name = "PATH")]
    pub devices: Vec<PathBuf>,
    /// Threads that run OSDs; 0 is one for each core, but no more than there are OSDs.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub shards: usize,
    /// How many monitors a new cluster has; the second and third listen on the ports after the
    /// first.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=7))]
    pub mons: u16,
    /// Serve S3, too, on this port of 127.0.0.1. The keys of a first user are in DIR/s3.env.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "7480")]
    pub s3: Option<u16>,
    /// Serve a file system, too: `cephfs`, with an active metadata server and a standby. The key of
    /// a user that may mount it is in DIR/client.fs.keyring.
    #[arg(long)]
    pub fs: bool,
}

#[derive(Args, Clone)]
pub struct S3 {
    #[command(flatten)]
    pub role: Role,
    /// The configuration file of another cluster, in place of a data directory.
    #[arg(long, value_name = "PATH")]
    pub conf: Option<PathBuf>,
    /// The user of the cluster. It needs the rights that `radosgw` needs.
    #[arg(long, default_value = "client.admin", value_name = "client.NAME")]
    pub name: String,
    /// Where to listen. Without --tls-cert requests and answers are readable on the network.
    #[arg(long, default_value = "127.0.0.1:7480", value_name = "ADDR:PORT")]
    pub bind: SocketAddr,
    /// Serve the gateway's own counters for Prometheus here, at /metrics.
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Serve with TLS: a PEM file with the certificate and those that lead to a root. It is read
    /// again when it was changed, and on SIGHUP.
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The PEM file with the certificate's private key.
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Threads; 0 is one for each core.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub threads: usize,
    /// A name of the gateway under which buckets stand in host names (BUCKET.NAME).
    #[arg(long = "domain", value_name = "NAME")]
    pub domains: Vec<String>,
    /// Take signatures of version 2, too.
    #[arg(long)]
    pub allow_v2: bool,
    /// The first part of paths of the admin operations API; empty switches it off. By default
    /// what `rgw_admin_entry` in the configuration file says, or admin.
    #[arg(long, value_name = "NAME")]
    pub admin_entry: Option<String>,
    /// Note requests in the usage log, as with `rgw_enable_usage_log` in the configuration file.
    #[arg(long)]
    pub usage_log: bool,
    /// Names of new buckets may have capitals and underscores, as with
    /// `rgw_relaxed_s3_bucket_names`.
    #[arg(long)]
    pub relaxed_bucket_names: bool,
    /// For tests: a day of lifecycle rules lasts so many seconds, as with `rgw_lc_debug_interval`.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub lc_debug_interval: Option<u64>,
}

#[derive(Args, Clone)]
pub struct Doctor {
    /// Where data is, or is to be. The time of a flush is measured there.
    #[arg(default_value = ".", value_name = "DIR")]
    pub directory: PathBuf,
    /// Measure nothing: write no file.
    #[arg(long)]
    pub no_write: bool,
    /// How to print it.
    #[arg(long, default_value = "plain", value_enum)]
    pub format: TextFormat,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// For people.
    Plain,
    /// For programs.
    Json,
}

#[derive(Args, Clone)]
pub struct Report {
    /// The archive to make.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The cluster's configuration file.
    #[arg(short, long, default_value = "./siphon-data/ceph.conf", value_name = "PATH")]
    pub conf: PathBuf,
    /// Replace addresses and the names of hosts, pools, users, images and file systems.
    #[arg(long)]
    pub redact: bool,
    /// A log, or a directory of logs (*.log): the ends are taken. May be given several times.
    #[arg(long = "log", value_name = "PATH")]
    pub logs: Vec<PathBuf>,
}

#[derive(Args, Clone)]
pub struct Role {
    /// Home of the node.
    #[arg(long, default_value = "./siphon-data", value_name = "DIR")]
    pub data_dir: PathBuf,
}

#[derive(Args, Clone)]
pub struct MonRole {
    #[command(flatten)]
    pub role: Role,
    /// Name of the monitor.
    #[arg(long, default_value = "a", value_name = "NAME", value_parser = parse_name)]
    pub name: String,
}

#[derive(Args, Clone)]
pub struct Rescue {
    #[command(flatten)]
    pub mon: MonRole,
    /// The file or block device of an OSD that does not run and has newer OSD maps than the
    /// monitor: they are learned from it.
    #[arg(long, value_name = "PATH")]
    pub osd_maps: Option<PathBuf>,
    /// Do it; without this it is only said what would be done. No monitor but this one may have
    /// been rescued, or be alive.
    #[arg(long)]
    pub yes_i_really_mean_it: bool,
}

#[derive(Args, Clone)]
pub struct MgrRole {
    #[command(flatten)]
    pub role: Role,
    /// Name of the manager.
    #[arg(long, default_value = "x", value_name = "NAME", value_parser = parse_name)]
    pub name: String,
}

#[derive(Args, Clone)]
pub struct MdsRole {
    #[command(flatten)]
    pub role: Role,
    /// Name of the metadata server.
    #[arg(long, default_value = "a", value_name = "NAME", value_parser = parse_name)]
    pub name: String,
}

#[derive(Args, Clone)]
pub struct Init {
    #[command(flatten)]
    pub role: Role,
    /// An initial monitor and where it listens; once for each. The first one's store is made here.
    #[arg(long = "mon", required = true, value_name = "NAME=ADDR[:PORT]", value_parser = parse_mon)]
    pub mons: Vec<(String, SocketAddr)>,
    /// What must differ between the copies of an object: `host`, or `osd` for tests on one machine.
    #[arg(long, default_value = "host", value_name = "TYPE", value_parser = ["host", "osd"])]
    pub failure_domain: String,
    #[command(flatten)]
    pub networks: Networks,
}

#[derive(Args, Clone)]
pub struct Networks {
    /// Address of this host in a network of OSDs alone: on it they replicate and recover. Without
    /// one they use that of clients.
    #[arg(long, value_name = "ADDR")]
    pub cluster_ip: Option<IpAddr>,
}

#[derive(Args, Clone)]
pub struct Join {
    #[command(flatten)]
    pub role: Role,
    /// The file `join` from the data directory of the cluster's first host. It holds keys.
    pub file: PathBuf,
    /// Address of this host, on which its OSDs and managers listen.
    #[arg(long, value_name = "ADDR")]
    pub ip: IpAddr,
    #[command(flatten)]
    pub networks: Networks,
}

#[derive(Args, Clone)]
pub struct Add {
    #[command(subcommand)]
    pub what: AddWhat,
}

#[derive(Subcommand, Clone)]
pub enum AddWhat {
    /// Make the store of a monitor. When it runs, the others take it in.
    Mon(AddMon),
    /// Register a new OSD with the monitors, and print its number. Its store is made when it
    /// starts.
    Osd(AddOsd),
    /// Register a manager with the monitors.
    Mgr(MgrRole),
    /// Register a metadata server with the monitors.
    Mds(MdsRole),
}

#[derive(Args, Clone)]
pub struct AddMon {
    #[command(flatten)]
    pub role: Role,
    /// Its name.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: String,
    /// Where it listens; not needed for an initial monitor of the cluster, or one that is in its
    /// map.
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_bind)]
    pub bind: Option<SocketAddr>,
}

#[derive(Args, Clone)]
pub struct AddOsd {
    #[command(flatten)]
    pub role: Role,
    /// Number of an OSD that was destroyed and gets a new store (`ceph osd destroy`); the lowest
    /// free one if there is none.
    #[arg(long, value_name = "N")]
    pub id: Option<i32>,
    /// Size of its file, which is created sparse: bytes, or with K, M, G, T.
    #[arg(long, default_value = "100G", value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// Block device instead of a file.
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Host in the CRUSH map; this machine's name if there is none.
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Weight in the CRUSH map; its size in TiB if there is none. With 0 no data comes before
    /// `siphon move start grow`.
    #[arg(long, value_name = "W")]
    pub crush_weight: Option<f64>,
}

#[derive(Args, Clone)]
pub struct OsdRole {
    #[command(flatten)]
    pub role: Role,
    /// Number of the OSD.
    #[arg(long, value_name = "N")]
    pub id: i32,
}

#[derive(Args)]
pub struct Status {
    /// Home of the cluster.
    #[arg(long, default_value = "./siphon-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Dencode {
    #[command(subcommand)]
    pub action: DencodeAction,
}

#[derive(Subcommand)]
pub enum DencodeAction {
    /// List the types that are known, one a line.
    List,
    /// Decode a file and print it as JSON.
    Dump {
        /// The type, as `ceph-dencoder` names it.
        name: String,
        /// The file; `-` is standard input.
        file: PathBuf,
    },
    /// Decode a file, encode it again and write the bytes to standard output.
    Encode {
        /// The type, as `ceph-dencoder` names it.
        name: String,
        /// The file; `-` is standard input.
        file: PathBuf,
        /// Feature bits of the reader that the bytes are for.
        #[arg(long, default_value_t = u64::MAX)]
        features: u64,
    },
}

#[derive(Args)]
pub struct Store {
    #[command(subcommand)]
    pub action: StoreAction,
}

#[derive(Subcommand)]
pub enum StoreAction {
    /// Check a store's structure; with --deep, also read all data and verify its checksums.
    Fsck {
        /// The OSD's file or block device.
        device: PathBuf,
        /// Read and verify all data.
        #[arg(long)]
        deep: bool,
    },
    /// Print what is in a store as JSON.
    Dump {
        /// The OSD's file or block device.
        device: PathBuf,
    },
    /// Change one object in this store alone: the last resort for a copy that nothing else can
    /// mend, and for trying out what a scrub finds. The other copies, and what the group knows of
    /// the object, stay as they are.
    Edit {
        /// The OSD's file or block device.
        device: PathBuf,
        /// The object's name. Its head is meant, not a clone.
        object: String,
        /// The number of its pool.
        #[arg(long)]
        pool: i64,
        /// Its namespace.
        #[arg(long, default_value = "")]
        namespace: String,
        #[command(flatten)]
        edit: StoreEdit,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct StoreEdit {
    /// Remove the object.
    #[arg(long)]
    pub remove: bool,
    /// Make the data this long.
    #[arg(long, value_name = "BYTES")]
    pub truncate: Option<u64>,
    /// Replace the data by the content of this file.
    #[arg(long, value_name = "FILE")]
    pub set_bytes: Option<PathBuf>,
    /// Remove the omap row with this key.
    #[arg(long, value_name = "KEY")]
    pub rm_omap: Option<String>,
    /// Remove the attribute of this name; attributes of clients begin with an underscore.
    #[arg(long, value_name = "NAME")]
    pub rm_attr: Option<String>,
}

#[derive(Args)]
pub struct Move {
    /// The cluster's configuration; its keyring must have the key of client.admin.
    #[arg(
        short,
        long,
        default_value = "./siphon-data/ceph.conf",
        value_name = "FILE",
        global = true
    )]
    pub conf: PathBuf,
    /// Answer as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub action: MoveAction,
}

#[derive(Subcommand)]
pub enum MoveAction {
    /// Say what a job would do: bytes, maps, the fullest OSD.
    Plan(MoveJob),
    /// Begin a job.
    Start(MoveJob),
    /// List the jobs.
    Ls,
    /// Show a job, the last one without a number.
    Status {
        /// Its number.
        id: Option<u64>,
    },
    /// Begin nothing more; what is on its way arrives.
    Pause {
        /// The job's number.
        id: u64,
    },
    /// Go on.
    Resume {
        /// The job's number.
        id: u64,
    },
    /// Bring everything back to where it was, from any state.
    Undo {
        /// The job's number.
        id: u64,
    },
    /// Forget a job that has ended.
    Rm {
        /// The job's number.
        id: u64,
    },
}

#[derive(Args)]
pub struct MoveJob {
    /// What to do.
    #[arg(value_parser = ["drain", "grow", "rule", "replace", "balance"])]
    pub verb: String,
    /// OSDs or buckets (drain, grow, replace); POOL RULE (rule); pgs or bytes (balance).
    pub what: Vec<String>,
    /// PGs that move at a time.
    #[arg(long)]
    pub pgs: Option<u32>,
    /// PGs that move from or to one OSD at a time.
    #[arg(long)]
    pub per_osd: Option<u32>,
    /// Bytes a second, as 100M.
    #[arg(long)]
    pub rate: Option<String>,
    /// Hours of the day in UTC, as 22:00-06:00.
    #[arg(long)]
    pub hours: Option<String>,
    /// What 99 of 100 operations of clients may take, as 10ms; while they take longer, less
    /// begins to move, and then nothing.
    #[arg(long)]
    pub p99: Option<String>,
    /// Weight in CRUSH of each OSD to grow onto; its size in TiB without it.
    #[arg(long)]
    pub weight: Option<f64>,
}

#[derive(Args)]
pub struct Qos {
    /// The cluster's configuration; its keyring must have the key of client.admin.
    #[arg(
        short,
        long,
        default_value = "./siphon-data/ceph.conf",
        value_name = "FILE",
        global = true
    )]
    pub conf: PathBuf,
    #[command(subcommand)]
    pub action: QosAction,
}

#[derive(Subcommand)]
pub enum QosAction {
    /// Make a specification, instead of the one that the selector has.
    Set(Box<QosSet>),
    /// List the specifications.
    Ls,
    /// Print a specification as JSON.
    Get {
        /// POOL, POOL/NAMESPACE, POOL/NAMESPACE/IMAGE, client.NAME, fs:NAME[/GROUP[/SUBVOLUME]] or
        /// @TEMPLATE.
        selector: String,
    },
    /// Remove a specification.
    Rm {
        /// See `get`.
        selector: String,
    },
    /// Say where the time of a tenant's operations goes, what is promised to it on each OSD, and
    /// why it is as slow as it is.
    Explain {
        /// See `get`; or a tenant without a specification, as `top` names it.
        selector: String,
        /// Seconds that are looked at.
        #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
        period: f64,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what tenants ask for and get.
    Top {
        /// One table, instead of a new one again and again.
        #[arg(long)]
        once: bool,
        /// Seconds between two looks.
        #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
        period: f64,
        /// What comes first. While tables follow each other, the letter in brackets changes it:
        /// served (s), offered (o), bytes (b), throttled (t), held at ceilings (h), waiting
        /// (w), p99 of waiting (l), name (n); q ends.
        #[arg(long, value_enum, default_value_t = TopSort::Served)]
        sort: TopSort,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// By what `siphon qos top` sorts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum TopSort {
    Served,
    Offered,
    Bytes,
    Throttled,
    Held,
    Waiting,
    Latency,
    Name,
}

#[derive(Args)]
pub struct QosSet {
    /// POOL, POOL/NAMESPACE, POOL/NAMESPACE/IMAGE (patterns with * and ? for images), client.NAME,
    /// bucket.NAME, bucket.TENANT/NAME, user.ID (all buckets of a user of gateways for S3),
    /// fs:NAME[/GROUP[/SUBVOLUME]] (each subvolume there: requests to the metadata server) or
    /// @TEMPLATE.
    pub selector: String,
    /// What is not said is as in this template.
    #[arg(long, value_name = "TEMPLATE")]
    pub like: Option<String>,
    /// Share of what floors leave, from 1 to 10000; 100 is usual.
    #[arg(long)]
    pub weight: Option<u32>,
    /// Operations each second at least.
    #[arg(long, value_name = "N")]
    pub floor_iops: Option<u64>,
    /// Bytes each second at least.
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub floor_bps: Option<u64>,
    /// Operations each second at most.
    #[arg(long, value_name = "N")]
    pub ceiling_iops: Option<u64>,
    /// Bytes each second at most.
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub ceiling_bps: Option<u64>,
    /// The floor for each GiB of an image.
    #[arg(long, value_name = "N")]
    pub floor_iops_per_gib: Option<u64>,
    /// The ceiling for each GiB of an image.
    #[arg(long, value_name = "N")]
    pub ceiling_iops_per_gib: Option<u64>,
    /// Operations each second for a while, after less than the ceiling.
    #[arg(long, value_name = "N")]
    pub burst_iops: Option<u64>,
    /// Bytes each second for a while.
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub burst_bps: Option<u64>,
    /// How long a burst lasts.
    #[arg(long, value_name = "N")]
    pub burst_seconds: Option<u64>,
    /// Even if the floors are more than the OSDs can do.
    #[arg(long)]
    pub force: bool,
}

fn parse_rate(text: &str) -> Result<u64, String> {
    match conf::value::parse(conf::Kind::Size, text)? {
        conf::Value::Uint(v) => Ok(v),
        _ => Err(format!("{text} is no number of bytes")),
    }
}

/// The monitors' standard port (`v2`).
const MON_PORT: u16 = 3300;

fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    match text.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(ip) => Ok(SocketAddr::new(ip, MON_PORT)),
        Err(_) => {
            Err(format!("expected an address such as 127.0.0.1 or 10.0.0.5:3300, found {text:?}"))
        }
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let good = !text.is_empty()
        && text.len() < 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    good.then(|| text.to_string())
        .ok_or_else(|| format!("expected letters, digits, - and _, found {text:?}"))
}

fn parse_mon(text: &str) -> Result<(String, SocketAddr), String> {
    let (name, addr) =
        text.split_once('=').ok_or_else(|| format!("expected NAME=ADDR, found {text:?}"))?;
    Ok((parse_name(name)?, parse_bind(addr)?))
}

fn parse_size(text: &str) -> Result<u64, String> {
    match conf::value::parse(conf::Kind::Size, text)? {
        conf::Value::Uint(v) if v >= 1 << 30 => Ok(v),
        _ => Err("an OSD needs at least 1G".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn is_consistent() {
        Cli::command().debug_assert();
        assert_eq!(parse_bind("127.0.0.1").unwrap().port(), 3300);
        assert_eq!(parse_bind("[::1]:99").unwrap().port(), 99);
        assert_eq!(parse_bind("::1").unwrap().port(), 3300);
        assert!(parse_bind("localhost:1").is_err());
        assert_eq!(
            parse_mon("b=10.0.0.2").unwrap(),
            ("b".into(), "10.0.0.2:3300".parse().unwrap())
        );
        assert!(parse_mon("b").is_err() && parse_mon("b/c=10.0.0.2").is_err());
        assert!(parse_size("100M").is_err());
        assert_eq!(parse_size("20G").unwrap(), 20 << 30);
    }
}
