//! What the scheduler costs: one operation in and one out, with many tenants waiting.
//! `cargo bench -p qos --bench tenants`
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use qos::{
    Access, ClassSpec, CostModel, Dequeued, Mclock, MclockSpec, Op, OpClass, Pace, Scheduler, Seen,
    TenantSpec,
};
use std::hint::black_box;

const CLASS: OpClass = OpClass::Client;

fn scheduler(tenants: u64, promises: bool) -> Mclock<u64> {
    let class = ClassSpec { reservation: 0, weight: 1, limit: 0 };
    let mut s = Mclock::new(MclockSpec {
        client: class,
        background_recovery: class,
        background_best_effort: class,
        cost_per_io: 4096,
    });
    for t in (0..tenants).filter(|_| promises) {
        let floor = Pace { iops_milli: 1000, bps: 0 };
        s.set_tenant(
            CLASS,
            t,
            TenantSpec { floor, weight: 50 + (t % 100) as u32, ceiling: Pace::default() },
            0,
        );
    }
    s
}

fn op(i: u64, tenants: u64) -> Op<u64> {
    // Neighbours in time are far apart in memory.
    let tenant = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % tenants;
    Op {
        item: i,
        class: CLASS,
        tenant,
        session: tenant,
        cost: 4096 + (i % 7) as u32 * 8192,
        charge: 0,
        priority: 63,
    }
}

/// Every tenant has two operations waiting, and each one that was served comes back.
fn closed_loop(c: &mut Criterion) {
    for promises in [false, true] {
        let mut group = c.benchmark_group(if promises { "with a floor each" } else { "by share" });
        for tenants in [1u64, 100, 10_000, 100_000] {
            group.bench_function(BenchmarkId::from_parameter(tenants), |b| {
                let mut s = scheduler(tenants, promises);
                (0..2 * tenants)
                    .for_each(|i| s.enqueue(Op { tenant: i % tenants, ..op(i, tenants) }, 0));
                let mut now = 0;
                b.iter(|| {
                    now += 1000;
                    let Dequeued::Item(o, _) = s.dequeue(now) else { panic!("operations wait") };
                    s.enqueue(black_box(o), now);
                });
            });
        }
        group.finish();
    }
}

/// A few operations wait, each of another of many tenants: tenants become idle with every
/// operation.
fn coming_and_going(c: &mut Criterion) {
    let mut group = c.benchmark_group("coming and going");
    for tenants in [1u64, 100, 10_000, 100_000] {
        group.bench_function(BenchmarkId::from_parameter(tenants), |b| {
            let mut s = scheduler(tenants, false);
            (0..64).for_each(|i| s.enqueue(op(i, tenants), 0));
            let mut i = 64;
            b.iter(|| {
                i += 1;
                s.enqueue(op(i, tenants), i * 1000);
                black_box(s.dequeue(i * 1000))
            });
        });
    }
    group.finish();
}

/// What learning adds to an operation: its charge, and what it took; and what it costs to end a
/// period.
fn costs(c: &mut Criterion) {
    let mut group = c.benchmark_group("costs");
    let mut model = CostModel::default();
    let mut seen = Seen::default();
    let mut i = 0u64;
    group.bench_function("charge and sample", |b| {
        b.iter(|| {
            i += 1;
            let bytes = 4096 + (i % 7) * 8192;
            seen.cpu[(i & 1) as usize].add(bytes, black_box(20_000));
            black_box(
                model
                    .charges()
                    .charge(if i & 1 == 0 { Access::Read } else { Access::Write }, bytes),
            )
        });
    });
    seen.device = seen.cpu;
    group.bench_function("end of a period", |b| b.iter(|| model.learn(black_box(&seen))));
    group.finish();
}

criterion_group!(benches, closed_loop, coming_and_going, costs);
criterion_main!(benches);
