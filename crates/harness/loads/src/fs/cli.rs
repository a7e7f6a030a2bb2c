//! The command line of `fs-load`, and what it keeps between two commands.

use super::mounts::{Client, Clients};
use super::work::{self, Files, Op};
use crate::lines::{self, Answers};
use crate::measure::Measure;
use crate::pace::Pace;
use anyhow::{Context, Result, bail};
use clap::{Args, Parser};
use fs_client::path;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

/// Clients of a file system, several in one process, that compare every answer with what they did.
///
/// Commands stand behind the options, separated by `,`, or are lines of the standard input:
///
///   dirs DIR --clients N [--shared]             directories for the commands below
///   create|stat|unlink DIR --clients N --files M [--shared] [--rate R]
///   read DIR --clients N --files M [--shared]   compares directories with the files that were made
///   alone DIR --seconds S                       one client creates
///   beside DIR --clients N --files M --shared --seconds S
///                                               the same while another reads DIR again and again
///
/// Each is answered with a line of JSON; latencies are microseconds.
#[derive(Parser, Clone, Debug)]
#[command(name = "fs-load", verbatim_doc_comment)]
pub struct Options {
    /// The configuration file of the cluster.
    #[arg(long, value_name = "PATH")]
    pub conf: PathBuf,
    /// The user. It must be allowed to read the map of file systems.
    #[arg(long, default_value = "client.admin", value_name = "client.NAME")]
    pub name: String,
    /// The file system.
    #[arg(long, default_value = "cephfs", value_name = "NAME")]
    pub fs: String,
    /// Commands.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub commands: Vec<String>,
}

/// The files of a command.
#[derive(Args, Clone, Debug)]
struct Which {
    /// The directory that has them, or the directories of clients with them.
    dir: String,
    /// Clients.
    #[arg(long)]
    clients: usize,
    /// Files of each.
    #[arg(long, default_value_t = 0)]
    files: usize,
    /// One directory for all.
    #[arg(long)]
    shared: bool,
}

impl Which {
    fn dir(&self, client: usize) -> String {
        if self.shared { self.dir.clone() } else { format!("{}/{client:03}", self.dir) }
    }

    fn files(&self, client: usize) -> Files {
        Files { dir: self.dir(client), client, count: self.files }
    }
}

/// A command.
#[derive(Parser, Clone, Debug)]
#[command(no_binary_name = true)]
enum Command {
    Dirs {
        #[command(flatten)]
        which: Which,
    },
    Create {
        #[command(flatten)]
        which: Which,
        /// Operations of all clients a second, whatever the server does.
        #[arg(long)]
        rate: Option<f64>,
    },
    Stat {
        #[command(flatten)]
        which: Which,
        #[arg(long)]
        rate: Option<f64>,
    },
    Unlink {
        #[command(flatten)]
        which: Which,
        #[arg(long)]
        rate: Option<f64>,
    },
    Read {
        #[command(flatten)]
        which: Which,
    },
    Alone {
        dir: String,
        #[arg(long)]
        seconds: f64,
    },
    Beside {
        #[command(flatten)]
        which: Which,
        #[arg(long)]
        seconds: f64,
    },
}

struct Session {
    source: Clients,
    clients: BTreeMap<usize, Client>,
}

/// Runs the commands of the options, or those of the standard input.
pub fn run(options: Options) -> Result<()> {
    let source = Clients::new(&options.conf, &options.name, &options.fs)?;
    let mut session = Session { source, clients: BTreeMap::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut commands = lines::commands(&options.commands);
        let mut answers = Answers::default();
        while let Some(words) = commands.recv().await {
            let words = words?;
            if !words.is_empty() {
                answers.give(&words, session.command(&words).await)?;
            }
        }
        for client in std::mem::take(&mut session.clients).into_values() {
            client.close().await;
        }
        answers.end()
    })
}

impl Session {
    async fn command(&mut self, words: &[String]) -> Result<Value> {
        match Command::try_parse_from(words)? {
            Command::Dirs { which } => {
                self.connect(which.clients).await?;
                for client in 0..which.clients {
                    let dir = which.dir(client);
                    let at = path(&dir);
                    let made = self.clients[&client].mount.mkdir_all(&at, 0o755).await;
                    made.with_context(|| format!("{dir} cannot be made"))?;
                }
                Ok(json!({}))
            }
            Command::Create { which, rate } => self.files(&which, Op::Create, rate).await,
            Command::Stat { which, rate } => self.files(&which, Op::Stat, rate).await,
            Command::Unlink { which, rate } => self.files(&which, Op::Unlink, rate).await,
            Command::Read { which } => self.read(&which).await,
            Command::Alone { dir, seconds } => self.creating(&dir, length(seconds)?, None).await,
            Command::Beside { which, seconds } => {
                let dir = which.dir(0);
                self.creating(&dir, length(seconds)?, Some(&which)).await
            }
        }
    }

    /// Has clients with the numbers below this one.
    async fn connect(&mut self, count: usize) -> Result<()> {
        for number in 0..count {
            if !self.clients.contains_key(&number) {
                let client = self.source.connect(number).await?;
                self.clients.insert(number, client);
            }
        }
        Ok(())
    }

    async fn files(&mut self, which: &Which, op: Op, rate: Option<f64>) -> Result<Value> {
        if rate.is_some_and(|r| r.is_nan() || r <= 0.0) {
            bail!("--rate: a number above 0 was expected");
        }
        self.connect(which.clients).await?;
        let start = Instant::now();
        let mut running = JoinSet::new();
        for client in 0..which.clients {
            let mount = self.clients[&client].mount.clone();
            let files = which.files(client);
            let pace = match rate {
                Some(rate) => Pace::open(rate / which.clients as f64, client as u64),
                None => Pace::closed(),
            };
            running
                .spawn_local(async move { work::all_files(&mount, &files, op, pace, start).await });
        }
        let mut all = Measure::default();
        running.join_all().await.iter().for_each(|m| all.merge(m));
        Ok(all.json(start.elapsed()))
    }

    async fn read(&mut self, which: &Which) -> Result<Value> {
        self.connect(which.clients).await?;
        let start = Instant::now();
        let mut all = Measure::default();
        if which.shared {
            let there: Vec<Files> = (0..which.clients).map(|c| which.files(c)).collect();
            let mount = &self.clients[&0].mount;
            all.merge(&work::read(mount, &which.dir, &there, true, start).await);
        } else {
            for client in 0..which.clients {
                let mount = &self.clients[&client].mount;
                let there = [which.files(client)];
                all.merge(&work::read(mount, &which.dir(client), &there, true, start).await);
            }
        }
        Ok(all.json(start.elapsed()))
    }

    /// A client creates in a directory, alone or while another one reads that again and again.
    async fn creating(
        &mut self,
        dir: &str,
        length: Duration,
        read: Option<&Which>,
    ) -> Result<Value> {
        // The second client reads, the first one creates.
        self.connect(2).await?;
        let mount = self.clients[&0].mount.clone();
        let made = Rc::new(Cell::new(0));
        let start = Instant::now();
        let create = work::create_for(&mount, dir, length, start, made.clone());
        let walk = async {
            let mut all = Measure::default();
            if let Some(which) = read {
                let there: Vec<Files> = (0..which.clients).map(|c| which.files(c)).collect();
                while start.elapsed() < length {
                    let mount = &self.clients[&1].mount;
                    all.merge(&work::read(mount, dir, &there, false, start).await);
                }
            }
            all
        };
        let (mut all, walked) = tokio::join!(create, walk);
        all.merge(&walked);
        let said = all.json(start.elapsed());
        work::unlink_made(&mount, dir, made.get()).await.context("what was made stays")?;
        Ok(said)
    }
}

fn length(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds).with_context(|| format!("--seconds {seconds}"))
}
