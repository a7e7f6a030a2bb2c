//! The command line of `s3-load`, and what it keeps between two commands.

use super::keys::Plan;
use super::mix::{Shares, Sizes};
use super::wire::{Connection, Target};
use super::work::{self, Load, Task, Worker};
use crate::lines::{self, Answers};
use anyhow::{Context, Result, bail};
use clap::Parser;
use s3::sig::v4::Signer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::time::Duration;

/// A load generator for S3 that compares every answer with what was acknowledged before.
///
/// Commands stand behind the options, separated by `,`, or are lines of the standard input:
///
///   plan NAME --objects N --sizes 4K|small|generic [--buckets N] [--scale X] [--filled]
///   fill NAME
///   load NAME --ops mixed|get|put|list|delete|44/36/15/5 --seconds S [--rate R] [--count N]
///   delete-many NAME --batch N [--count N]
///   check NAME
///
/// Each is answered with a line of JSON; latencies are microseconds.
#[derive(Parser, Clone, Debug)]
#[command(name = "s3-load", verbatim_doc_comment)]
pub struct Options {
    /// The endpoint, http://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// The access key.
    #[arg(long, value_name = "KEY")]
    pub access: String,
    /// Its secret.
    #[arg(long, value_name = "SECRET")]
    pub secret: String,
    /// The region that signatures name.
    #[arg(long, default_value = "us-east-1", value_name = "NAME")]
    pub region: String,
    /// Workers; each has a connection and keys of its own.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub connections: usize,
    /// Threads that run them.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub threads: usize,
    /// Signatures do not cover bodies. They do with SDKs, unless there is TLS.
    #[arg(long)]
    pub unsigned_bodies: bool,
    /// Seconds that a request may take.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u64,
    /// The same seed gives the same operations.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Commands.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub commands: Vec<String>,
}

/// A command.
#[derive(Parser, Clone, Debug)]
#[command(no_binary_name = true)]
enum Command {
    /// Makes buckets, and says which objects they are to have.
    Plan {
        name: String,
        /// Buckets that are read, and as many that are written; 0 is one for both.
        #[arg(long, default_value_t = 0)]
        buckets: usize,
        #[arg(long)]
        objects: usize,
        #[arg(long)]
        sizes: Sizes,
        /// Sizes from 1 MiB on are multiplied by this.
        #[arg(long, default_value_t = 1.0)]
        scale: f64,
        /// Another run with as many connections has filled it.
        #[arg(long)]
        filled: bool,
    },
    Fill {
        name: String,
    },
    Load {
        name: String,
        #[arg(long)]
        ops: Shares,
        #[arg(long, default_value_t = 86_400.0)]
        seconds: f64,
        /// Operations of all workers.
        #[arg(long)]
        count: Option<u64>,
        /// Operations of all workers a second, whatever the server does.
        #[arg(long)]
        rate: Option<f64>,
    },
    DeleteMany {
        name: String,
        #[arg(long, default_value_t = 1000)]
        batch: usize,
        /// Requests of all workers.
        #[arg(long)]
        count: Option<u64>,
    },
    Check {
        name: String,
    },
}

struct Space {
    plan: Plan,
    workers: Vec<Worker>,
}

/// What is kept between two commands.
pub struct Session {
    options: Options,
    target: Target,
    spaces: BTreeMap<String, Space>,
}

impl Session {
    /// Finds the endpoint.
    pub fn new(options: Options) -> Result<Session> {
        let host = options.endpoint.strip_prefix("http://").map(|h| h.trim_end_matches('/'));
        let host = host.filter(|h| !h.contains('/')).with_context(|| {
            format!("an endpoint http://HOST:PORT was expected, found {}", options.endpoint)
        })?;
        let with_port = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
        let address = with_port
            .to_socket_addrs()
            .with_context(|| format!("{host} has no address"))?
            .next()
            .with_context(|| format!("{host} has no address"))?;
        if options.connections == 0 || options.timeout == 0 {
            bail!("--connections and --timeout must not be 0");
        }
        let signer = Signer {
            access_key: options.access.clone(),
            secret: options.secret.clone(),
            region: options.region.clone(),
        };
        let target = Target {
            address,
            host: host.to_owned(),
            signer,
            signed_bodies: !options.unsigned_bodies,
            timeout: Duration::from_secs(options.timeout),
        };
        Ok(Session { options, target, spaces: BTreeMap::new() })
    }

    /// Runs the commands of the options, or those of the standard input.
    pub fn run(mut self) -> Result<()> {
        let mut commands = lines::commands(&self.options.commands);
        let mut answers = Answers::default();
        while let Some(words) = commands.blocking_recv() {
            let words = words?;
            if !words.is_empty() {
                answers.give(&words, self.command(&words))?;
            }
        }
        answers.end()
    }

    /// Runs one command. The answer's `wrong` counts answers that were not right.
    pub fn command(&mut self, words: &[String]) -> Result<Value> {
        let shared = |all: u64, workers: usize| all.div_ceil(workers as u64);
        let workers = self.options.connections;
        match Command::try_parse_from(words)? {
            Command::Plan { name, buckets, objects, sizes, scale, filled } => {
                if scale.is_nan() || scale <= 0.0 {
                    bail!("--scale {scale}: a number above 0 was expected");
                }
                let plan = Plan::new(&name, buckets, objects, workers, sizes.scaled(scale));
                self.plan(name, plan, filled)
            }
            Command::Fill { name } => self.task(&name, &Task::Fill),
            Command::Load { name, ops, seconds, count, rate } => {
                if rate.is_some_and(|r| r.is_nan() || r <= 0.0) {
                    bail!("--rate: a number above 0 was expected");
                }
                let load = Load {
                    shares: ops,
                    length: Duration::try_from_secs_f64(seconds)
                        .with_context(|| format!("--seconds {seconds}"))?,
                    count: count.map_or(u64::MAX, |n| shared(n, workers)),
                    rate: rate.map(|r| r / workers as f64),
                };
                self.task(&name, &Task::Load(load))
            }
            Command::DeleteMany { name, batch, count } => {
                let most = s3::xml::multi::DELETE_OBJECTS_MAX;
                if batch == 0 || batch > most {
                    bail!("--batch {batch}: 1 to {most} were expected");
                }
                let count = count.map_or(u64::MAX, |n| shared(n, workers));
                self.task(&name, &Task::DeleteMany { batch, count })
            }
            Command::Check { name } => self.task(&name, &Task::Check),
        }
    }

    fn plan(&mut self, name: String, plan: Plan, filled: bool) -> Result<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut connection = Connection::new(self.target.clone());
            for bucket in &plan.buckets {
                let made = connection.create_bucket(bucket).await;
                made.with_context(|| format!("the bucket {bucket} cannot be made"))?;
            }
            anyhow::Ok(())
        })?;
        let mut workers: Vec<Worker> = (0..self.options.connections)
            .map(|number| Worker::new(&plan, number, self.options.seed))
            .collect();
        if filled {
            workers.iter_mut().for_each(|w| w.part.assume_filled());
        }
        let objects = plan.keys * plan.buckets.len() * workers.len();
        let said = json!({"buckets": plan.buckets, "objects": objects});
        self.spaces.insert(name, Space { plan, workers });
        Ok(said)
    }

    fn task(&mut self, name: &str, task: &Task) -> Result<Value> {
        let space = self.spaces.get_mut(name).with_context(|| {
            format!("there is no plan {name}: `plan {name}` was expected first")
        })?;
        let threads = self.options.threads;
        let (measure, took) =
            work::run(&mut space.workers, threads, &self.target, &space.plan, task)?;
        Ok(measure.json(took))
    }
}
