//! A shard of an OSD as the daemon and the admin socket see it: messages go in, values come out.
//!
//! The daemon knows a [`Shard`] and nothing behind it. What it tells a shard is a [`ShardMsg`];
//! what it wants to know is a [`Question`], whose contents and answer may go to another thread. An
//! OSD has one shard, on the daemon's thread; [`Shard::send`] handles a message at once, in the
//! order of the calls.

use crate::client_op::{ReplySink, Request};
use crate::core::scheduling::run_queued;
use crate::core::{Core, Parts};
use crate::host::PgHost;
use crate::map::ClusterMapRef;
use crate::peer_net::Envelope;
use crate::settings;
use crate::stats;
use admission::ignored::Ignored;
use admission::meter::Learned;
use conf::Config;
use messages::{ImageCounters, OsdBackoff, QosDemand, QosSeen, QosShares};
use pg::creation::UnbornPgs;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use store::Transaction;
use types::stats::OsdStat;
use types::{Epoch, PgId, PgStat};

/// What a shard is told.
pub(crate) enum ShardMsg {
    /// A message of another OSD.
    Peer(Box<Envelope>),
    /// A request of a client.
    Request { request: Request, sink: Rc<dyn ReplySink>, guard: Option<msgr::ReceiveGuard> },
    /// A client's answer to a backoff.
    Backoff { session: u64, m: OsdBackoff },
    /// A client's connection is gone.
    SessionGone(u64),
    /// The next map. With `first`, maps before it are not known.
    Map { map: ClusterMapRef, first: bool },
    /// The last map is the newest, and the OSD is up in it.
    Activate,
    /// The OSD is not up in the newest map: what others serve now is dropped.
    DropVoid,
    /// Maps came, with so many epochs that were new.
    MapsCame { epochs: u64 },
    /// Stores something of the OSD's own, behind all that was told before. If that fails, the OSD
    /// stops with these words.
    Keep { txn: Transaction, or_else: &'static str },
    /// An operator wants PGs scrubbed.
    Scrub { pgs: Vec<PgId>, deep: bool, repair: bool },
    /// An operator wants PGs recovered or filled before others, or takes that back.
    ForceRecovery { pgs: Vec<PgId>, backfill: bool, on: bool },
    /// Lost PGs are to be made anew, each as of the first epoch from one on in which an OSD acts.
    ForceCreate(Vec<(PgId, Epoch)>),
    /// The manager's answer to demand.
    Shares(QosShares),
    /// The manager may have lost what it was told.
    ForgetTold,
    /// The configuration has changed. Before the OSD has booted it may still choose a scheduler.
    Configure { conf: Box<Config>, booted: bool },
    /// From which used part of the store on clients' writes wait, and no copies are taken.
    Full { failsafe: f64, backfillfull: f64 },
    /// Time passes; with `scrubs`, scrubs may begin.
    Tick { now: Instant, scrubs: bool },
    /// The OSD cannot go on.
    Fail(String),
    /// Nothing is answered any more.
    Seal,
    /// Everything is forgotten, so that nothing keeps the store open.
    Clear,
}

/// Something that a shard can be asked.
#[allow(async_fn_in_trait, reason = "a shard answers on its own thread")]
pub(crate) trait Question: Send + 'static {
    /// What it answers.
    type Answer: Send + 'static;

    /// Answers, on the shard's thread.
    async fn answer(self, core: &Rc<Core>) -> Self::Answer;
}

/// A shard. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Shard(Rc<Core>);

/// A shard that may be gone.
#[derive(Clone)]
pub(crate) struct WeakShard(Weak<Core>);

impl WeakShard {
    /// The shard, if it is there.
    pub(crate) fn upgrade(&self) -> Option<Shard> {
        self.0.upgrade().map(Shard)
    }
}

/// How far a shard has come with maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// PGs that are not born yet, to be stored with the epoch.
    pub(crate) unborn: UnbornPgs,
    /// The oldest epoch that a PG has not stored its successor of; `None` without PGs.
    pub(crate) needed: Option<Epoch>,
}

impl From<Rc<Core>> for Shard {
    fn from(core: Rc<Core>) -> Self {
        Shard(core)
    }
}

impl Shard {
    /// A shard without PGs and without a map.
    pub(crate) fn new(parts: Parts) -> Self {
        Core::new(parts).into()
    }

    /// A handle that does not keep it alive.
    pub(crate) fn downgrade(&self) -> WeakShard {
        WeakShard(Rc::downgrade(&self.0))
    }

    /// What is behind it, while the OSD starts.
    pub(crate) fn starting(&self) -> &Rc<Core> {
        &self.0
    }

    /// Lets queued work in, as long as the shard is there.
    pub(crate) fn run(&self) -> impl Future<Output = ()> + use<> {
        run_queued(&self.0)
    }

    /// Asks something.
    pub(crate) async fn ask<Q: Question>(&self, question: Q) -> Q::Answer {
        question.answer(&self.0).await
    }

    /// How far it has come with the maps that it was sent.
    pub(crate) fn progress(&self) -> Progress {
        let hosts = self.0.hosts();
        Progress {
            unborn: self.0.unborn(),
            needed: hosts.iter().map(|h| h.with_pg(|p| p.persisted_epoch())).min(),
        }
    }

    /// The PGs that it has copies of.
    pub(crate) fn pgs(&self) -> Vec<PgId> {
        self.0.hosts().iter().map(|h| h.pgid).collect()
    }

    /// The error that stopped it, if one did.
    pub(crate) fn failed(&self) -> Option<String> {
        self.0.failed()
    }

    /// Waits for the error that stops it.
    pub(crate) async fn failure(&self) -> String {
        self.0.failure().await
    }

    /// Waits until PGs have become active, or stopped being it.
    pub(crate) async fn pgs_change(&self) {
        self.0.pgs.changed.notified().await;
    }

    /// Waits until clients must hear of the newest map: their connections, the map that each has at
    /// least, and whether one that is far behind must hear of it, too.
    pub(crate) async fn clients_to_tell(&self) -> Vec<(Rc<dyn ReplySink>, Epoch, bool)> {
        self.0.maps.tell_clients.notified().await;
        self.0.maps.clients_to_tell()
    }

    /// Tells it something.
    pub(crate) fn send(&self, message: ShardMsg) {
        let core = &self.0;
        match message {
            ShardMsg::Peer(e) => core.handle_peer(*e),
            ShardMsg::Request { request, sink, guard } => core.handle_request(request, sink, guard),
            ShardMsg::Backoff { session, m } => core.backoff_acknowledged(session, &m),
            ShardMsg::SessionGone(session) => core.session_gone(session),
            ShardMsg::Map { map, first } => core.advance_map(map, first),
            ShardMsg::Activate => {
                core.activate_map();
                core.check_scrub_flags();
            }
            ShardMsg::DropVoid => core.drop_void(),
            ShardMsg::MapsCame { epochs } => {
                core.perf.map_messages.inc();
                core.perf.map_message_epochs.add(epochs);
                if epochs == 0 {
                    core.perf.map_message_epoch_dups.inc();
                }
            }
            ShardMsg::Keep { txn, or_else } => {
                let health = core.health.clone();
                core.backlog.submit(txn, move |done| {
                    if let Err(e) = done {
                        health.fail(format!("{or_else}: {e}"));
                    }
                });
            }
            ShardMsg::Scrub { pgs, deep, repair } => core.want_scrub(pgs, deep, repair),
            ShardMsg::ForceRecovery { pgs, backfill, on } => core.force_recovery(pgs, backfill, on),
            ShardMsg::ForceCreate(pgs) => core.force_create(pgs),
            ShardMsg::Shares(shares) => {
                core.with_queue(|q| q.take_shares(shares, Instant::now()));
                core.dispatch();
            }
            ShardMsg::ForgetTold => core.with_queue(|q| q.forget_told()),
            ShardMsg::Configure { conf, booted } => configure(core, &conf, booted),
            ShardMsg::Full { failsafe, backfillfull } => {
                core.set_failsafe(failsafe);
                core.set_backfillfull(backfillfull);
                core.retry_waiting_for_room();
            }
            ShardMsg::Tick { now, scrubs } => {
                core.measure(now);
                if scrubs {
                    core.next_scrubs();
                }
            }
            ShardMsg::Fail(why) => core.health.fail(why),
            ShardMsg::Seal => core.seal(),
            ShardMsg::Clear => core.clear(),
        }
    }
}

fn configure(core: &Core, conf: &Config, booted: bool) {
    let mclock = core.with_queue(|q| {
        if !booted {
            // The monitors' configuration comes when the OSD has begun to start.
            q.choose(conf);
        }
        q.configure(conf, Instant::now());
        q.overrides_limits()
    });
    core.set_settings(settings::settings_under(conf, mclock));
    core.tracker.set_limits(settings::history(conf));
}

/// Whether demand is to be told regularly.
pub(crate) struct HasLimited;

impl Question for HasLimited {
    type Answer = bool;

    async fn answer(self, core: &Rc<Core>) -> bool {
        core.with_queue(|q| q.has_limited())
    }
}

/// What images and tenants are asked for, for the manager. Counting begins anew.
pub(crate) struct Demand;

impl Question for Demand {
    type Answer = QosDemand;

    async fn answer(self, core: &Rc<Core>) -> QosDemand {
        let demand = core.with_queue(|q| q.demand(Instant::now()));
        // Without the manager, limits may have changed.
        core.dispatch();
        demand
    }
}

/// What is set in a configuration and does not hold under the scheduler that there is.
pub(crate) struct NotHonoured(pub(crate) Box<Config>);

impl Question for NotHonoured {
    type Answer = Vec<Ignored>;

    async fn answer(self, core: &Rc<Core>) -> Vec<Ignored> {
        core.with_queue(|q| q.ignored(&self.0))
    }
}

/// The PGs that are led here, and the epoch since which one of them is not clean.
pub(crate) struct LastEpochClean;

impl Question for LastEpochClean {
    type Answer = (Vec<PgId>, Epoch);

    async fn answer(self, core: &Rc<Core>) -> (Vec<PgId>, Epoch) {
        core.last_epoch_clean()
    }
}

/// How many copies of PGs are here.
pub(crate) struct NumPgs;

impl Question for NumPgs {
    type Answer = usize;

    async fn answer(self, core: &Rc<Core>) -> usize {
        core.num_hosts()
    }
}

/// What was learned of costs and capacity, if anything was; and a number that grows with news.
pub(crate) struct WhatWasLearned;

impl Question for WhatWasLearned {
    type Answer = Option<(Learned, u64)>;

    async fn answer(self, core: &Rc<Core>) -> Option<(Learned, u64)> {
        core.admission.with_meter(|m| m.save())
    }
}

/// The state of the PGs that are led here. Other work goes on while they are looked at, so what is
/// told of them may be of different moments.
pub(crate) struct Led {
    /// Of the report.
    pub(crate) seq: u64,
    /// The state is told. PGs are told the time anyway.
    pub(crate) stats: bool,
}

/// See [`Led`].
#[derive(Default)]
pub(crate) struct LedPgs {
    pub(crate) pgs: Vec<(PgId, PgStat)>,
    /// Removed snapshots that PGs here have not trimmed.
    pub(crate) snap_trim_queues: u64,
}

impl Question for Led {
    type Answer = LedPgs;

    async fn answer(self, core: &Rc<Core>) -> LedPgs {
        let mut led = LedPgs::default();
        let each = |host: &PgHost| {
            host.tell_time();
            if !self.stats {
                return;
            }
            led.snap_trim_queues += host.with_pg(|p| p.snap_trim_queue().size());
            let stat = host
                .with_pg(|pg| pg.is_primary().then(|| stats::pg_stat(pg, &host.reads(), self.seq)));
            led.pgs.extend(stat.map(|stat| (host.pgid, stat)));
        };
        core.for_each_host(each).await;
        led
    }
}

/// Counters of a report to the manager. Those of images begin anew.
pub(crate) struct Counters {
    pub(crate) up_from: Epoch,
    pub(crate) seq: u64,
    pub(crate) snap_trim_queues: u64,
    /// What tenants and classes got is told as well, and counting begins anew.
    pub(crate) qos: bool,
}

/// See [`Counters`].
pub(crate) struct Counted {
    /// Slow operations by where they are, and how old the oldest one is.
    pub(crate) slow: (BTreeMap<String, u64>, Duration),
    pub(crate) qos: Option<QosSeen>,
    pub(crate) osd_stat: OsdStat,
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) images: Vec<ImageCounters>,
}

impl Question for Counters {
    type Answer = Counted;

    async fn answer(self, core: &Rc<Core>) -> Counted {
        let qos = self.qos.then(|| {
            let map = core.map();
            let pool_name = |id| Some(map.as_ref()?.pool_ops(id)?.name.clone());
            core.with_queue(|q| q.take_seen(&pool_name))
        });
        let perf = &core.perf;
        let own = [
            ("op", perf.op.get()),
            ("op_r", perf.op_r.get()),
            ("op_w", perf.op_w.get()),
            ("op_in_bytes", perf.op_in_bytes.get()),
            ("op_out_bytes", perf.op_out_bytes.get()),
            ("op_r_out_bytes", perf.op_r_out_bytes.get()),
            ("op_w_in_bytes", perf.op_w_in_bytes.get()),
            ("op_r_latency_count", perf.op_r_latency.count()),
            ("op_r_latency_ns", perf.op_r_latency.nanos()),
            ("op_w_latency_count", perf.op_w_latency.count()),
            ("op_w_latency_ns", perf.op_w_latency.nanos()),
            ("recovery_ops", perf.recovery_ops.get()),
        ];
        let scheduler = core.with_queue(|q| q.counters());
        let named = own.into_iter().chain(scheduler).map(|(name, n)| (name.to_owned(), n));
        Counted {
            slow: core.tracker.slow_now(),
            qos,
            osd_stat: stats::osd_stat(core, self.up_from, self.seq, self.snap_trim_queues),
            counters: named.chain(core.job_counters()).collect(),
            images: core.images.take(),
        }
    }
}
