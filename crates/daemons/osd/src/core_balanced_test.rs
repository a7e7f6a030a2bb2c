//! Reads that a client lets any replica serve: each has an answer, whatever the replica is about.
//!
//! Their client sends them again when the acting set changes, and only then. An OSD that is in the
//! acting set and leaves one alone leaves it alone for ever.

use crate::core_test::{Cluster, POOL, run};
use messages::OsdOpReply;
use objops::code::on_extent;
use objops::{OpCode, OsdFlags};
use tokio::sync::oneshot;
use types::{Errno, OsdId, PgId, SnapId};

const BALANCED: [OsdFlags; 2] = [OsdFlags::BALANCE_READS, OsdFlags::LOCALIZE_READS];
type Sent = (OsdId, oneshot::Receiver<OsdOpReply>);

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

impl Cluster {
    /// Sends a read of an object to every OSD that is up and does not lead its PG.
    fn read_on_replicas(&mut self, name: &str, flags: OsdFlags) -> Vec<Sent> {
        let up: Vec<OsdId> = self.map.up.keys().map(|osd| OsdId(*osd)).collect();
        let mut answers = Vec::new();
        for osd in up {
            let (mut request, leader) =
                self.message(name, SnapId::NOSNAP, vec![on_extent(OpCode::READ, 0, 0)]);
            request.m.flags = flags | OsdFlags::READ;
            if osd != leader {
                answers.push((osd, self.send(request, osd)));
            }
        }
        answers
    }
}

/// Each has an answer: what is there, or that the primary is to be asked.
async fn answered(c: &mut Cluster, answers: Vec<Sent>, what: &str) {
    c.settle().await;
    for (osd, mut answer) in answers {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let reply = answer.try_recv().unwrap_or_else(|e| panic!("{what}: osd.{osd}: {e}"));
        match reply.result {
            0 => assert_eq!(reply.ops[0].outdata, "data", "{what}"),
            result => assert_eq!(result, Errno::EAGAIN.as_result(), "{what}"),
        }
    }
}

async fn with_objects() -> Cluster {
    let mut c = Cluster::new();
    c.publish();
    c.settle().await;
    for name in NAMES {
        c.put(name, "data").await;
    }
    c
}

#[test]
fn ordered_ones_are_sent_to_the_primary() {
    run(async || {
        let mut c = with_objects().await;
        for name in NAMES {
            for flag in BALANCED {
                for (_, answer) in c.read_on_replicas(name, flag | OsdFlags::RWORDERED) {
                    assert_eq!(answer.await.unwrap().result, Errno::EAGAIN.as_result(), "{name}");
                }
            }
        }
    });
}

#[test]
fn a_replica_that_is_not_active_yet_answers() {
    run(async || {
        for down in 0..3 {
            for ordered in [OsdFlags(0), OsdFlags::RWORDERED] {
                let mut c = with_objects().await;
                c.down.borrow_mut().push(OsdId(down));
                c.next_map(|m| {
                    m.up.remove(&down);
                });
                let mut answers = Vec::new();
                for (name, flag) in NAMES.into_iter().zip(BALANCED.into_iter().cycle()) {
                    answers.extend(c.read_on_replicas(name, flag | ordered));
                }
                answered(&mut c, answers, &format!("without osd.{down}")).await;
                // It comes back, and is asked before it has heard of the others.
                c.down.borrow_mut().clear();
                let epoch = c.map.epoch + 1;
                c.next_map(|m| {
                    m.up.insert(down, epoch);
                });
                let mut answers = Vec::new();
                for name in NAMES {
                    answers.extend(c.read_on_replicas(name, OsdFlags::BALANCE_READS | ordered));
                }
                answered(&mut c, answers, &format!("with osd.{down} again")).await;
            }
        }
    });
}

#[test]
fn an_osd_without_the_copy_answers() {
    run(async || {
        let mut c = with_objects().await;
        for core in &c.cores {
            for seed in 0..4 {
                let pgid = PgId { pool: POOL, seed };
                if core.host(pgid.into()).is_some_and(|h| h.with_pg(|pg| !pg.is_primary())) {
                    core.forget_host(pgid.into());
                }
            }
        }
        let mut answers = Vec::new();
        for name in NAMES {
            answers.extend(c.read_on_replicas(name, OsdFlags::BALANCE_READS));
        }
        answered(&mut c, answers, "without a copy").await;
    });
}

/// One that waits for its turn while an interval ends.
#[test]
fn what_an_interval_finds_in_the_scheduler_is_answered() {
    run(async || {
        for ordered in [OsdFlags(0), OsdFlags::RWORDERED] {
            let mut c = with_objects().await;
            let full = crate::settings::Settings { window: 1, ..Default::default() };
            for core in &c.cores {
                core.set_settings(full.clone());
                core.admission.running.set(core.admission.running.get() + 1);
            }
            let mut answers = Vec::new();
            for name in NAMES {
                let sent = c.read_on_replicas(name, OsdFlags::BALANCE_READS | ordered);
                answers.extend(sent.into_iter().map(|sent| (name, sent)));
            }
            c.down.borrow_mut().push(OsdId(1));
            c.next_map(|m| {
                m.up.remove(&1);
            });
            for core in &c.cores {
                core.admission.running.set(core.admission.running.get() - 1);
                core.dispatch();
            }
            // A client sends a read again when another OSD leads its PG.
            let mut left = Vec::new();
            for (name, sent) in answers {
                if c.message(name, SnapId::NOSNAP, vec![]).1 != sent.0 {
                    left.push(sent);
                }
            }
            answered(&mut c, left, "in the scheduler").await;
        }
    });
}
