//! Instructions that one operation in and one out take, with every tenant waiting: the same on a
//! busy machine as on a quiet one. `cargo bench -p qos --bench instructions`; it runs itself under
//! valgrind, which must be installed.
#![allow(missing_docs)]

use qos::{ClassSpec, Dequeued, Mclock, MclockSpec, Op, OpClass, Pace, Scheduler, TenantSpec};
use std::hint::black_box;
use std::process::Command;

const CLASS: OpClass = OpClass::Client;
const ROUNDS: u64 = 200_000;

/// Two operations of each tenant wait, and each tenant that was served comes back, `rounds` times.
fn closed_loop(tenants: u64, floors: bool, rounds: u64) {
    let class = ClassSpec { reservation: 0, weight: 1, limit: 0 };
    let mut s = Mclock::new(MclockSpec {
        client: class,
        background_recovery: class,
        background_best_effort: class,
        cost_per_io: 4096,
    });
    for t in (0..tenants).filter(|_| floors) {
        let floor = Pace { iops_milli: 1000, bps: 0 };
        s.set_tenant(
            CLASS,
            t,
            TenantSpec { floor, weight: 50 + (t % 100) as u32, ceiling: Pace::default() },
            0,
        );
    }
    for i in 0..2 * tenants {
        let tenant = i % tenants;
        s.enqueue(
            Op {
                item: i,
                class: CLASS,
                tenant,
                session: tenant,
                cost: 4096 + (i % 7) as u32 * 8192,
                charge: 0,
                priority: 63,
            },
            0,
        );
    }
    for i in 1..=rounds {
        let Dequeued::Item(o, _) = s.dequeue(i * 1000) else { panic!("operations wait") };
        s.enqueue(black_box(o), i * 1000);
    }
}

/// All instructions of this program with these arguments.
fn counted(tenants: u64, floors: bool, rounds: u64) -> u64 {
    let me = std::env::current_exe().expect("a program knows where it is");
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(me)
        .args(["run", &tenants.to_string(), &floors.to_string(), &rounds.to_string()])
        .output()
        .expect("valgrind is installed");
    let said = String::from_utf8_lossy(&out.stderr);
    let total = said
        .lines()
        .find_map(|l| l.split_once("Collected :"))
        .and_then(|(_, n)| n.trim().parse().ok());
    total.unwrap_or_else(|| panic!("valgrind counted nothing: {said}"))
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, run, tenants, floors, rounds] = &args[..]
        && run == "run"
    {
        return closed_loop(
            tenants.parse().expect("a number"),
            floors == "true",
            rounds.parse().expect("a number"),
        );
    }
    println!("| tenants | by share | with a floor each |\n| --- | --- | --- |");
    for tenants in [1, 100, 10_000, 100_000] {
        let each =
            |floors| (counted(tenants, floors, ROUNDS) - counted(tenants, floors, 0)) / ROUNDS;
        println!("| {tenants} | {} | {} |", each(false), each(true));
    }
}
