//! Costs and capacity of a device in virtual time, which becomes slow and fast while it is used;
//! and properties of what is learned, whatever is seen.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use qos::{Access, CapacityEstimator, CostModel, Line, Period, REFERENCE, Samples, Seen, Taken};

const SECOND: u64 = 1_000_000_000;

/// A small generator of numbers below `n`.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

/// A device that commits what waits together, and reads one after the other; a processor beside it.
/// Times in nanoseconds.
struct Device {
    commit: u64,
    write_byte: u64,
    read: u64,
    read_byte: u64,
    /// Of a hundred reads, so many are answered from memory.
    hits: u64,
    now: u64,
}

/// What operations need of the processor.
const CPU: [u64; 2] = [8_000, 20_000];

struct World {
    device: Device,
    model: CostModel,
    capacity: CapacityEstimator,
    rng: Rng,
    /// Of a thousand commits, so many take a hundred times as long.
    odd: u64,
}

impl World {
    fn new(device: Device) -> Self {
        World {
            device,
            model: CostModel::default(),
            capacity: CapacityEstimator::default(),
            rng: Rng(7),
            odd: 0,
        }
    }

    /// Runs a mix of operations, `batch` writes committed together, for a time; with `pause` after
    /// each round nothing waits.
    fn run(&mut self, seconds: u64, batch: u64, sizes: &[u64], pause: u64) {
        let end = self.device.now + seconds * SECOND;
        while self.device.now < end {
            let (begun, mut seen, mut busy, mut cpu) = (self.device.now, Seen::default(), 0, 0);
            while self.device.now - begun < SECOND / 10 {
                let (mut bytes, mut took) = (0, 0);
                // What comes together is now more, now less.
                for _ in 0..1 + self.rng.below(2 * batch - 1) {
                    let size = sizes[self.rng.below(sizes.len() as u64) as usize];
                    bytes += size;
                    seen.ops[1].add(Taken { count: 1, bytes: size, nanos: 0 });
                    seen.cpu[1].add(size, CPU[1]);
                    cpu += CPU[1];
                    let size = sizes[self.rng.below(sizes.len() as u64) as usize];
                    seen.ops[0].add(Taken { count: 1, bytes: size, nanos: 0 });
                    seen.cpu[0].add(size, CPU[0]);
                    cpu += CPU[0];
                    if self.rng.below(100) >= self.device.hits {
                        let read = self.device.read + size * self.device.read_byte / 1000;
                        seen.device[0].add(size, read);
                        took += read;
                    }
                }
                let odd = if self.rng.below(1000) < self.odd { 100 } else { 1 };
                let commit = (self.device.commit + bytes * self.device.write_byte / 1000) * odd;
                seen.device[1].add(bytes, commit);
                took += commit;
                busy += took;
                self.device.now += took + pause;
            }
            seen.thread = (cpu * 2, cpu);
            self.model.learn(&seen);
            let nanos = self.device.now - begun;
            let work = self.model.charges().work(&seen.ops);
            let cost_nanos = (work as f64 * self.model.charges().reference_nanos()
                / f64::from(REFERENCE)) as u64;
            self.capacity.observe(&Period {
                nanos,
                work,
                cost_nanos,
                device: busy,
                cpu: cpu * 2,
                backlogged: pause == 0,
            });
        }
    }

    /// The true cost of reads and writes in nanoseconds, with so many writes in a commit.
    fn truth(&self, access: Access, bytes: u64, batch: u64) -> f64 {
        let d = &self.device;
        match access {
            Access::Read => {
                (d.read + bytes * d.read_byte / 1000) as f64 * (100 - d.hits) as f64 / 100.0
                    + 2.0 * CPU[0] as f64
            }
            Access::Write => {
                d.commit as f64 / batch as f64
                    + (bytes * d.write_byte) as f64 / 1000.0
                    + 2.0 * CPU[1] as f64
            }
        }
    }

    fn check(&self, batch: u64, what: &str) {
        for (access, bytes) in [
            (Access::Read, 4096),
            (Access::Read, 65536),
            (Access::Write, 4096),
            (Access::Write, 65536),
        ] {
            let (fixed, per_byte) = self.model.line(access);
            let (found, truth) =
                (fixed + per_byte * bytes as f64, self.truth(access, bytes, batch));
            assert!(
                (0.8..1.25).contains(&(found / truth)),
                "{what}: {access:?} of {bytes}: {found} is not {truth}"
            );
        }
    }
}

fn ssd() -> Device {
    Device { commit: 400_000, write_byte: 1500, read: 90_000, read_byte: 700, hits: 50, now: 0 }
}

const MIX: [u64; 3] = [4096, 16384, 65536];

#[test]
fn costs_and_capacity_follow_a_device_that_becomes_slow_and_fast() {
    let mut w = World::new(ssd());
    w.run(10, 16, &MIX, 0);
    w.check(16, "at first");
    let fast = w.capacity.trusted().unwrap();
    // What there is to do in a second, by what it costs: the processor works beside the device.
    let pair = |w: &World| {
        MIX.iter()
            .map(|b| w.truth(Access::Read, *b, 16) + w.truth(Access::Write, *b, 16))
            .sum::<f64>()
            / 3.0
    };
    let device = |w: &World| pair(w) - 2.0 * (CPU[0] + CPU[1]) as f64;
    let expected =
        |w: &World| SECOND as f64 * pair(w) / device(w) / w.truth(Access::Write, 4096, 16);
    assert!((0.85..1.15).contains(&(fast / expected(&w))), "{fast} {}", expected(&w));
    // Twenty times slower under load: within three seconds both are right again.
    let (commit, read) = (w.device.commit, w.device.read);
    (w.device.commit, w.device.read) = (20 * commit, 20 * read);
    w.run(3, 16, &MIX, 0);
    w.check(16, "slow");
    let slow = w.capacity.trusted().unwrap();
    assert!((0.85..1.15).contains(&(slow / expected(&w))), "{slow} {}", expected(&w));
    assert!(slow < fast / 4.0, "{slow} {fast}");
    // And as quickly in the other direction.
    (w.device.commit, w.device.read) = (commit, read);
    w.run(3, 16, &MIX, 0);
    w.check(16, "fast again");
    let again = w.capacity.trusted().unwrap();
    assert!((0.85..1.15).contains(&(again / fast)), "{again} {fast}");
}

#[test]
fn a_device_without_load_teaches_nothing_and_outliers_little() {
    let mut w = World::new(ssd());
    w.run(5, 4, &MIX, 10_000_000);
    assert_eq!(w.capacity.trusted(), None, "nothing ever waited");
    let mut w = World::new(ssd());
    w.run(10, 16, &MIX, 0);
    let before = w.capacity.trusted().unwrap();
    w.odd = 3;
    w.run(20, 16, &MIX, 0);
    let after = w.capacity.trusted().unwrap();
    assert!((0.6..1.3).contains(&(after / before)), "{before} {after}");
}

#[test]
fn of_one_size_alone_a_byte_costs_what_was_expected() {
    let mut l = Line::new(10_000.0, 2.0);
    let mut s = Samples::default();
    (0..100).for_each(|_| s.add(4096, 54_576));
    for _ in 0..100 {
        l.learn(&s);
        let whole = l.nanos(1.0, 4096.0);
        assert!((53_000.0..55_000.0).contains(&whole), "{whole}");
    }
    assert!((1.9..2.5).contains(&l.per_byte()), "{l:?}");
    // A device that becomes slow to flush: the fixed part is what rises.
    let mut slow = Samples::default();
    (0..100).for_each(|_| slow.add(4096, 10_000_000));
    (0..100).for_each(|_| l.learn(&slow));
    assert!((1.9..40.0).contains(&l.per_byte()) && l.nanos(1.0, 4096.0) > 9_500_000.0, "{l:?}");
}

fn taken() -> impl Strategy<Value = Taken> {
    let wild = prop_oneof![0..10u64, 0..1_000_000u64, Just(u64::MAX), any::<u64>()];
    (wild.clone(), wild.clone(), wild).prop_map(|(count, bytes, nanos)| Taken {
        count,
        bytes,
        nanos,
    })
}

proptest! {
    /// Whatever is seen, costs are finite, above nothing, within their bounds, and rise with the
    /// size.
    #[test]
    fn whatever_is_seen_costs_make_sense(all in proptest::collection::vec((taken(), taken(), taken(), taken(), any::<(u64, u64)>()), 1..40)) {
        let mut m = CostModel::default();
        for (a, b, c, d, thread) in all {
            let mut seen = Seen { ops: [c, d], thread, ..Seen::default() };
            for (i, t) in [a, b].into_iter().enumerate() {
                seen.device[i].add_all(t);
                seen.cpu[i].add_all(t);
            }
            m.learn(&seen);
            for access in [Access::Read, Access::Write] {
                let (fixed, per_byte) = m.line(access);
                prop_assert!(fixed.is_finite() && per_byte.is_finite() && fixed > 0.0 && per_byte >= 0.0);
                let charges = [0, 1, 4096, 1 << 20, 1 << 32, u64::MAX].map(|b| m.charges().charge(access, b));
                prop_assert!(charges[0] >= REFERENCE / 64 && charges.windows(2).all(|w| w[0] <= w[1]), "{:?}", charges);
            }
            prop_assert!(CostModel::restore(&m.save()).is_none_or(|r| r.charges().charge(Access::Write, 4096) > 0));
        }
    }

    /// Whatever periods there are, an estimate is within what stores can do.
    #[test]
    fn whatever_is_seen_a_capacity_makes_sense(all in proptest::collection::vec((any::<[u64; 5]>(), any::<bool>(), 0..200_000_000u64), 1..80)) {
        let mut c = CapacityEstimator::default();
        for ([work, cost_nanos, device, cpu, shift], backlogged, nanos) in all {
            let small = |n: u64| n >> (shift % 64);
            c.observe(&Period { nanos, work: small(work), cost_nanos: small(cost_nanos), device: small(device), cpu: small(cpu), backlogged });
            if let Some(iops) = c.trusted() {
                prop_assert!((1.0..=1e8).contains(&iops));
            }
            let again = CapacityEstimator::restore(c.save());
            prop_assert!(again.trusted().is_none() || c.trusted().is_some());
        }
    }
}
