//! Background work beside clients, through the scheduler that an OSD has.

use crate::meter::Receipt;
use crate::plain::PlainRequest;
use crate::scheduler::OsdQueue;
use crate::tenants_test::{Session, request};
use crate::work::{Background, Kind, Next, Queue, ReadObject, Work};
use conf::Config;
use conf::effective::Source;
use messages::{QosShares, ShareOfRate, TenantPart, TenantShare};
use std::time::{Duration, Instant};
use types::{PgId, PoolId, SnapId};

const PG: PgId = PgId { pool: PoolId(3), seed: 0 };
const MS: Duration = Duration::from_millis(1);

fn write(_: Instant) -> Work<PlainRequest> {
    Work::Client(request(PG.pool.0, "", "o", Session("client.4", 0), 1))
}

fn job(kind: Kind) -> Work<PlainRequest> {
    Work::Background(Background {
        pgid: PG.into(),
        copy: 0,
        kind,
        cost: 65536,
        misplaced: false,
        receipt: Receipt::default(),
        queued: 0,
    })
}

struct Osd {
    q: OsdQueue<PlainRequest>,
    start: Instant,
    now: Instant,
    /// What may begin in a millisecond.
    most: usize,
    /// Background work that waits.
    waits: usize,
}

impl Osd {
    fn new(settings: &[(&str, &str)]) -> Self {
        let start = Instant::now();
        Osd {
            q: OsdQueue::starting(&config(settings), start),
            start,
            now: start,
            most: 16,
            waits: 0,
        }
    }

    /// So many milliseconds, in each of which clients send so many writes, eight trims and eight
    /// recoveries always wait, and each operation takes less than a millisecond. What began of
    /// clients, recovery and trimming.
    fn run(&mut self, ms: u64, writes: usize) -> [u64; 3] {
        let mut begun = [0; 3];
        for _ in 0..ms {
            self.now += MS;
            for _ in 0..writes {
                self.q.enqueue(write(self.now), self.now);
            }
            while self.waits < 16 {
                self.waits += 2;
                self.q.enqueue(job(Kind::Recover), self.now);
                self.q.enqueue(job(Kind::SnapTrim(SnapId(1))), self.now);
            }
            let mut clients = 0;
            for _ in 0..self.most {
                match self.q.dequeue(self.now) {
                    Next::Work(Work::Client(_), _) => clients += 1,
                    Next::Work(Work::Background(job), _) => {
                        self.waits -= 1;
                        begun[if matches!(job.kind, Kind::Recover) { 1 } else { 2 }] += 1;
                    }
                    Next::At(at) => {
                        assert!(at > self.now);
                        break;
                    }
                    Next::Empty => break,
                }
            }
            begun[0] += clients;
            for _ in 0..clients {
                self.q.answered(MS / 2, self.now);
            }
            if clients > 0 {
                self.q.clients_left(self.now + MS / 2);
            }
        }
        begun
    }
}

fn config(settings: &[(&str, &str)]) -> Config {
    let mut c = Config::new();
    for (name, value) in settings {
        c.set(Source::Override, name, value).unwrap();
    }
    c
}

#[test]
fn profiles_order_recovery_and_trimming_beside_clients() {
    for allocations in ["reef", "quincy"] {
        let of = |profile| {
            let mut osd = Osd::new(&[
                ("osd_mclock_profile", profile),
                ("osd_mclock_allocations", allocations),
            ]);
            osd.run(5000, 4)
        };
        let [low, mid, high] = ["high_client_ops", "balanced", "high_recovery_ops"].map(of);
        assert!(
            [low, mid, high].iter().all(|begun| begun[0] == 20_000),
            "clients lack nothing: {low:?} {mid:?} {high:?}"
        );
        for class in [1, 2] {
            assert!(
                low[class] > 20
                    && low[class] * 11 < mid[class] * 10
                    && mid[class] * 11 < high[class] * 10,
                "{low:?} {mid:?} {high:?}"
            );
        }
    }
}

#[test]
fn without_clients_background_work_uses_all() {
    for profile in ["high_client_ops", "balanced", "high_recovery_ops", "auto"] {
        let mut osd = Osd::new(&[("osd_mclock_profile", profile)]);
        let [_, recovery, trims] = osd.run(1000, 0);
        assert_eq!(recovery + trims, 16_000, "{profile}");
        // Clients for a while, and a pause: all of it from 20 ms on.
        osd.run(200, 4);
        osd.run(20, 0);
        let [_, recovery, trims] = osd.run(100, 0);
        assert_eq!(recovery + trims, 1600, "{profile}");
        // They come back, and find few in their way.
        let [clients, recovery, trims] = osd.run(50, 16);
        assert!(
            clients >= 500 && recovery + trims < 250,
            "{profile}: {clients} {recovery} {trims}"
        );
    }
}

#[test]
fn a_ceiling_of_a_profile_is_for_clients_and_one_of_custom_for_the_operator() {
    let custom = [
        ("osd_mclock_profile", "custom"),
        ("osd_mclock_scheduler_background_best_effort_lim", "0.01"),
    ];
    let [_, _, custom] = Osd::new(&custom).run(1000, 0);
    assert!((185..=195).contains(&custom), "{custom} of 64 KiB in a hundredth of 1200 MiB");
    let profile = [("osd_mclock_profile", "high_client_ops")];
    let (mut alone, mut never_alone) = (Osd::new(&profile), Osd::new(&profile));
    let [_, _, trims] = alone.run(1000, 0);
    assert!(trims > 7_000, "{trims}");
    // Nothing of what began beyond the ceiling is owed when clients are back, nor was anything
    // saved.
    never_alone.run(1000, 4);
    let [beside, usual] = [&mut alone, &mut never_alone].map(|osd| osd.run(1000, 4)[2]);
    assert!(beside.abs_diff(usual) < usual / 4, "{beside} {usual}");
}

#[test]
fn a_profile_holds_from_the_moment_it_is_set() {
    let mut osd = Osd::new(&[("osd_mclock_profile", "high_client_ops")]);
    let before = osd.run(2000, 4);
    osd.q.configure(&config(&[("osd_mclock_profile", "high_recovery_ops")]), osd.now);
    let after = osd.run(2000, 4);
    assert!(after[1] > 2 * before[1] && after[2] * 10 > before[2] * 15, "{before:?} {after:?}");
}

fn read(urgent: bool) -> Work<PlainRequest> {
    let read = ReadObject {
        token: pg::ReadToken(1),
        oid: types::ObjectId::MIN,
        version: types::Eversion::default(),
        from: pg::Progress::default(),
        max_bytes: 1,
        max_omap: 1,
        urgent,
    };
    job(Kind::ReadObject(Box::new(read)))
}

#[test]
fn what_clients_wait_for_does_not_wait_behind_floors() {
    for queue in ["mclock_scheduler", "wpq"] {
        let start = Instant::now();
        let mut q = OsdQueue::starting(
            &config(&[("osd_op_queue", queue), ("osd_mclock_profile", "custom")]),
            start,
        );
        // A floor that takes all there is, and its tenant always asks for more.
        let rate = ShareOfRate {
            each_second: 1_000_000_000,
            part: 1_000_000_000,
            ..ShareOfRate::default()
        };
        let share = TenantShare {
            name: "a".into(),
            pool: Some(PoolId(1)),
            weight: 1,
            osds: 1,
            floors: vec![rate, ShareOfRate::default()],
            ..TenantShare::default()
        };
        let parts = vec![TenantPart { number: share.number, ops: 0, bytes: 0, floor: u32::MAX }];
        q.take_shares(
            QosShares { tenants: vec![share], all_tenants: true, parts, ..QosShares::default() },
            start,
        );
        for tid in 0..500 {
            q.enqueue(Work::Client(request(1, "", "object", Session("client.a", 1), tid)), start);
        }
        // How many clients' operations are served before all such reads are.
        let before = |q: &mut OsdQueue<PlainRequest>, urgent: bool, now: Instant| {
            for _ in 0..4 {
                q.enqueue(read(urgent), now);
            }
            let (mut reads, mut clients) = (0, 0);
            while reads < 4 && clients < 100 {
                match q.dequeue(now + clients * MS) {
                    Next::Work(Work::Client(_), _) => clients += 1,
                    Next::Work(..) => reads += 1,
                    _ => panic!("clients wait"),
                }
            }
            clients
        };
        let urgent = before(&mut q, true, start);
        if queue == "wpq" {
            assert!(urgent < 50, "as important as clients: {urgent}");
            continue;
        }
        assert_eq!(urgent, 0);
        assert_eq!(before(&mut q, false, start + MS), 100);
        let served = &q.dump(&|_| None)["classes"]["background_recovery"]["served"];
        assert_eq!(served, 4);
    }
}

#[test]
fn parts_of_what_has_begun_are_not_held() {
    let mut osd = Osd::new(&[]);
    osd.run(100, 4);
    // No time passes, and what was allowed is used up.
    while matches!(osd.q.dequeue(osd.now), Next::Work(..)) {}
    osd.q.enqueue(read(false), osd.now);
    assert!(matches!(
        osd.q.dequeue(osd.now),
        Next::Work(Work::Background(Background { kind: Kind::ReadObject(_), .. }), _)
    ));
    assert!(matches!(osd.q.dequeue(osd.now), Next::At(_)));
}

#[test]
fn auto_gives_what_the_objective_leaves() {
    let with = |seconds| {
        let mut osd =
            Osd::new(&[("osd_mclock_profile", "auto"), ("osd_mclock_auto_latency", seconds)]);
        let begun = osd.run(10_000, 4);
        let dump = osd.q.dump(&|_| None);
        (begun[1] + begun[2], dump["background"]["auto"].clone())
    };
    // Operations take half a millisecond here, whatever runs beside them.
    let (least, dump) = with("0.0003");
    assert!(
        dump["part"].as_f64().is_some_and(|p| p < 0.02) && dump["latency_objective"] == 0.0003,
        "{dump}"
    );
    assert!(
        dump["latency_measured"].as_f64().is_some_and(|l| (0.0004..0.0006).contains(&l)),
        "{dump}"
    );
    let (most, dump) = with("0.02");
    assert!(dump["part"].is_null(), "{dump}");
    assert!(most > 20 * least && least >= 2 * 2 * 9, "{least} {most}");
}

#[test]
fn a_ceiling_of_a_movement_job_holds_with_every_profile() {
    for profile in ["balanced", "high_recovery_ops", "auto"] {
        let with = |seconds| {
            let mut osd = Osd::new(&[
                ("osd_mclock_profile", profile),
                ("osd_mclock_movement_latency", seconds),
            ]);
            let begun = osd.run(10_000, 4);
            (begun[1] + begun[2], osd.q.dump(&|_| None)["background"]["auto"].clone())
        };
        // Operations take half a millisecond here.
        let (least, dump) = with("0.0003");
        assert!(dump["part"].as_f64().is_some_and(|p| p < 0.02), "{profile} {dump}");
        assert_eq!(
            (&dump["latency_objective"], &dump["percentile"]),
            (&0.0003.into(), &99.0.into())
        );
        let (wide, dump) = with("0.01");
        assert!(wide > 5 * least, "{profile}: {wide} {least}");
        match profile {
            // The profile's own objective is wider.
            "auto" => assert!(dump["part"].is_null(), "{dump}"),
            _ => assert_eq!(dump["part"], 1.0, "{profile} gives no more than its parts"),
        }
        let (without, dump) = with("0");
        assert_eq!(dump.is_null(), profile != "auto", "{dump}");
        assert!(without * 10 > wide * 9, "{profile}: {without} {wide}");
    }
}

#[test]
fn everything_is_served_while_clients_ask_for_more_than_there_is() {
    for profile in ["high_client_ops", "balanced", "high_recovery_ops", "auto", "custom"] {
        let mut osd =
            Osd::new(&[("osd_mclock_profile", profile), ("osd_mclock_auto_latency", "0.0001")]);
        osd.most = 4;
        for _ in 0..2 {
            let [_, recovery, trims] = osd.run(1600, 5);
            assert!(
                recovery > 0 && trims > 0,
                "{profile} after {:?}: {recovery} {trims}",
                osd.now - osd.start
            );
        }
    }
}
