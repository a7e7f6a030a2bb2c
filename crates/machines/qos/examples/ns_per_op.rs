//! Prints nanoseconds per operation (one enqueue and one dequeue) at some queue depths and numbers
//! of tenants. `cargo run --release -p qos --example ns_per_op`

// It measures.
#![allow(clippy::disallowed_methods)]

use qos::{
    Capacity, Dequeued, DeviceKind, Fifo, Mclock, MclockProfile, Op, OpClass, Scheduler, Wpq,
    cut_off,
};
use std::time::Instant;

fn run(name: &str, mut s: impl Scheduler<u64>, depth: u64, tenants: u64, ops: u64) {
    let op = |i: u64| Op {
        item: i,
        class: OpClass::SHARED[(i % 3) as usize],
        tenant: (i / 3).wrapping_mul(0x9e37_79b9) % tenants,
        session: 0,
        cost: 4096 + (i % 7) as u32 * 8192,
        charge: 0,
        priority: 63,
    };
    let mut now = 0;
    (0..depth).for_each(|i| s.enqueue(op(i), now));
    let start = Instant::now();
    let mut sum = 0u64;
    for i in 0..ops {
        now += 1000;
        match s.dequeue(now) {
            Dequeued::Item(o, _) => sum = sum.wrapping_mul(31).wrapping_add(o.item),
            Dequeued::WaitUntil(at) => now = at,
            Dequeued::Empty => {}
        }
        s.enqueue(op(i), now);
    }
    let ns = start.elapsed().as_nanos() as f64 / ops as f64;
    println!("{name:8} depth {depth:6} tenants {tenants:6}: {ns:7.1} ns/op  (order {sum:016x})");
}

fn main() {
    let ops = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    for (depth, tenants) in [(64, 1), (1024, 16), (1024, 512), (65536, 10_000)] {
        let mut spec =
            MclockProfile::Balanced.spec(Capacity::default_of(DeviceKind::Ssd), [(0.0, 1, 0.0); 3]);
        spec.background_best_effort.limit = 0;
        run("fifo", Fifo::default(), depth, tenants, ops);
        run("wpq", Wpq::new(cut_off::HIGH, 1), depth, tenants, ops);
        run("mclock", Mclock::new(spec), depth, tenants, ops);
    }
}
