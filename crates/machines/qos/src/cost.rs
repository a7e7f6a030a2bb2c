//! What operations cost, learned from what they took: see [`CostModel`].

use crate::Access;

/// A random write of [`REFERENCE_BYTES`] costs this many units.
pub const REFERENCE: u32 = 1 << 16;
/// See [`REFERENCE`].
pub const REFERENCE_BYTES: u64 = 4096;
/// Sizes are told apart by powers of two: nothing, less than 512, ..., from 4 MiB on.
const SIZES: usize = 16;

/// Things of about one size: how many, their bytes, and the time they took.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Taken {
    /// How many.
    pub count: u64,
    /// Of all together.
    pub bytes: u64,
    /// Of all together.
    pub nanos: u64,
}

impl Taken {
    /// Adds others.
    pub fn add(&mut self, other: Taken) {
        self.count = self.count.saturating_add(other.count);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.nanos = self.nanos.saturating_add(other.nanos);
    }
}

/// What was seen in a period, by size.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Samples([Taken; SIZES]);

impl Samples {
    /// Adds one.
    pub fn add(&mut self, bytes: u64, nanos: u64) {
        self.0[size(bytes)].add(Taken { count: 1, bytes, nanos });
    }

    /// Adds several of about one size.
    pub fn add_all(&mut self, taken: Taken) {
        if let Some(bytes) = taken.bytes.checked_div(taken.count) {
            self.0[size(bytes)].add(taken);
        }
    }

    /// All sizes together.
    pub fn total(&self) -> Taken {
        self.0.iter().fold(Taken::default(), |mut all, t| {
            all.add(*t);
            all
        })
    }
}

fn size(bytes: u64) -> usize {
    let class =
        if bytes == 0 { 0 } else { (u64::BITS - (bytes >> 9).leading_zeros()) as usize + 1 };
    class.min(SIZES - 1)
}

/// Of what was seen before, so much counts in the next period.
const KEEP: f64 = 0.75;
/// What is this many times more, or less, than expected counts as this many times.
const FAR: f64 = 8.0;
/// Periods after which expectations restrain what is seen.
const KNOWN: u32 = 3;
/// Rounds of fitting in a period. The next one goes on where this one has stopped.
const ROUNDS: u32 = 8;
/// Sizes from this class on (64 KiB) tell what a byte costs, smaller ones what a thing costs that
/// has few: how long a commit of a few small writes takes has more to do with what the device did
/// before than with its size.
const LARGE: usize = 9;
/// What is expected of a byte counts as much as so many bytes that are seen.
const EXPECTED: f64 = 524_288.0;
/// Of the time of small things, so much is not their bytes'.
const NOT_BYTES: f64 = 0.1;
/// Bounds of a line's parts, in nanoseconds, and in nanoseconds a byte.
const FIXED: (f64, f64) = (1.0, 1e11);
const PER_BYTE: (f64, f64) = (1e-6, 1e5);

/// A time that has a fixed part and one for each byte, fitted to what is seen. Old things are
/// forgotten, things far from what was expected restrained, and neither part is ever negative.
///
/// Small things tell the fixed part, large ones that of a byte. Where there are only small ones, a
/// byte costs what was expected of it, or was seen last; but never more than the small ones allow,
/// nor does a thing cost more than large ones do.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Count, bytes, time.
    sums: [[f64; 3]; SIZES],
    fixed: f64,
    per_byte: f64,
    /// What was expected of a byte before anything was seen.
    anchor: f64,
    seen: u32,
}

impl Line {
    /// What holds until something is seen, in nanoseconds.
    pub fn new(fixed: f64, per_byte: f64) -> Self {
        let per_byte = per_byte.clamp(PER_BYTE.0, PER_BYTE.1);
        Line {
            sums: [[0.0; 3]; SIZES],
            fixed: fixed.clamp(FIXED.0, FIXED.1),
            per_byte,
            anchor: per_byte,
            seen: 0,
        }
    }

    /// The fixed part, in nanoseconds.
    pub fn fixed(&self) -> f64 {
        self.fixed
    }

    /// The part of each byte, in nanoseconds.
    pub fn per_byte(&self) -> f64 {
        self.per_byte
    }

    /// How many periods it has seen.
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Nanoseconds of so many things that have so many bytes together.
    pub fn nanos(&self, count: f64, bytes: f64) -> f64 {
        self.fixed * count + self.per_byte * bytes
    }

    /// Learns from a period.
    pub fn learn(&mut self, samples: &Samples) {
        if samples.total().count == 0 {
            return;
        }
        let known = self.seen >= KNOWN;
        let (fixed, per_byte) = (self.fixed, self.per_byte);
        for (sum, new) in self.sums.iter_mut().zip(&samples.0) {
            sum.iter_mut().for_each(|s| *s *= KEEP);
            if new.count == 0 {
                // What is hardly anything any more would only make numbers small.
                if sum[0] < 1e-3 {
                    *sum = [0.0; 3];
                }
                continue;
            }
            let (count, bytes, mut nanos) = (new.count as f64, new.bytes as f64, new.nanos as f64);
            if known {
                let expected = fixed * count + per_byte * bytes;
                nanos = nanos.clamp(expected / FAR, expected * FAR);
            }
            for (s, n) in sum.iter_mut().zip([count, bytes, nanos]) {
                *s += n;
            }
        }
        self.fit();
        self.seen = self.seen.saturating_add(1);
    }

    fn fit(&mut self) {
        let sum = |of: &[[f64; 3]]| {
            of.iter()
                .fold([0.0; 3], |all: [f64; 3], s| [all[0] + s[0], all[1] + s[1], all[2] + s[2]])
        };
        let (small, large) = (sum(&self.sums[..LARGE]), sum(&self.sums[LARGE..]));
        for _ in 0..ROUNDS {
            if let [n, bytes, nanos] = large
                && n > 0.0
            {
                self.fixed = self.fixed.min(nanos / n);
                let of_bytes = (nanos - self.fixed * n).max(0.0);
                self.per_byte = (of_bytes + EXPECTED * self.anchor) / (bytes + EXPECTED);
            }
            if let [n, bytes, nanos] = small
                && n > 0.0
            {
                if bytes > 0.0 {
                    self.per_byte = self.per_byte.min((1.0 - NOT_BYTES) * nanos / bytes);
                }
                self.fixed = (nanos - self.per_byte * bytes).max(NOT_BYTES * nanos) / n;
            }
            self.fixed = self.fixed.clamp(FIXED.0, FIXED.1);
            self.per_byte = self.per_byte.clamp(PER_BYTE.0, PER_BYTE.1);
        }
    }
}

/// Of device bytes, at most so many for a byte of an operation are that byte's; what is above is
/// the operation's.
const BYTES_MOST: f64 = 4.0;
/// Thread time is at most so many times that of starting operations.
const OVERHEAD_MOST: f64 = 20.0;

/// How many requests, and bytes, a device gets for operations.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Merged {
    requests: f64,
    device_bytes: f64,
    ops: f64,
    bytes: f64,
}

impl Merged {
    /// One request for an operation, with its bytes.
    fn alone() -> Self {
        Merged { requests: 1.0, device_bytes: 4096.0, ops: 1.0, bytes: 4096.0 }
    }

    fn learn(&mut self, device: Taken, ops: Taken) {
        if ops.count == 0 {
            return;
        }
        for (sum, new) in [
            (&mut self.requests, device.count),
            (&mut self.device_bytes, device.bytes),
            (&mut self.ops, ops.count),
            (&mut self.bytes, ops.bytes),
        ] {
            *sum = *sum * KEEP + new as f64;
        }
    }

    /// What the device's line means for an operation: its fixed part, and that of a byte.
    fn apply(&self, line: &Line) -> (f64, f64) {
        let ops = self.ops.max(1e-3);
        let own = self.device_bytes.min(self.bytes * BYTES_MOST);
        let rest = (self.device_bytes - own) * line.per_byte;
        let per_byte =
            if self.bytes > 0.0 { line.per_byte * own / self.bytes } else { line.per_byte };
        ((line.fixed * self.requests + rest) / ops, per_byte)
    }
}

/// What was seen in a period; reads first where there are two.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Busy time of the device.
    pub device: [Samples; 2],
    /// Time of the processor to start operations.
    pub cpu: [Samples; 2],
    /// Operations of all clients, and their bytes; without times.
    pub ops: [Taken; 2],
    /// What the processor did on this thread, in nanoseconds, and how much of it was starting
    /// operations.
    pub thread: (u64, u64),
}

/// Of an operation, in units: the fixed part, and that of 2^20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Charge {
    fixed: u32,
    per_mib: u64,
}

/// What operations are charged, from a [`CostModel`]: small enough to be copied to where it is
/// needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Charges {
    charges: [Charge; 2],
    /// Of a reference write.
    nanos: f64,
}

impl Default for Charges {
    fn default() -> Self {
        CostModel::default().charges
    }
}

impl Charges {
    /// What an operation costs, in units.
    #[inline]
    pub fn charge(&self, access: Access, bytes: u64) -> u32 {
        let c = &self.charges[access as usize];
        (u64::from(c.fixed) + ((bytes.min(u32::MAX.into()) * c.per_mib) >> 20)).min(u32::MAX.into())
            as u32
    }

    /// The units of all those operations, reads and writes.
    pub fn work(&self, ops: &[Taken; 2]) -> u64 {
        let of = |t: &Taken, c: &Charge| {
            u128::from(t.count) * u128::from(c.fixed)
                + ((u128::from(t.bytes) * u128::from(c.per_mib)) >> 20)
        };
        let all = of(&ops[0], &self.charges[0]) + of(&ops[1], &self.charges[1]);
        all.min(u64::MAX.into()) as u64
    }

    /// The units of a time of processor or device.
    pub fn units(&self, nanos: u64) -> u32 {
        (nanos as f64 * f64::from(REFERENCE) / self.nanos) as u32
    }

    /// Nanoseconds of a reference write.
    pub fn reference_nanos(&self) -> f64 {
        self.nanos
    }
}

/// Bounds of an operation's fixed part: no tenant is starved by nonsense.
const CHARGE: (f64, f64) = (REFERENCE as f64 / 64.0, REFERENCE as f64 * 4096.0);
/// Bound of the units of a MiB; times 2^32 bytes they fit.
const PER_MIB: f64 = 4_294_967_295.0;

/// What reads and writes cost: the device's time for them, and the processor's.
///
/// Costs are relative to a write of [`REFERENCE_BYTES`], which costs [`REFERENCE`] units. Before
/// anything is learned they are as by Ceph's default options.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    device: [Line; 2],
    cpu: [Line; 2],
    merged: [Merged; 2],
    overhead: f64,
    charges: Charges,
}

impl Default for CostModel {
    fn default() -> Self {
        // Ceph: 21500 writes of 4 KiB, or 1200 MiB, each second.
        let per_byte = 1e9 / (1200u64 << 20) as f64;
        let device = Line::new(1e9 / 21_500.0 - per_byte * REFERENCE_BYTES as f64, per_byte);
        let cpu = Line::new(1.0, 0.0);
        let mut model = CostModel {
            device: [device.clone(), device],
            cpu: [cpu.clone(), cpu],
            merged: [Merged::alone(); 2],
            overhead: 1.0,
            charges: Charges { charges: [Charge { fixed: REFERENCE, per_mib: 0 }; 2], nanos: 1.0 },
        };
        model.derive();
        model
    }
}

impl CostModel {
    /// Learns from a period.
    pub fn learn(&mut self, seen: &Seen) {
        for i in 0..2 {
            self.device[i].learn(&seen.device[i]);
            self.cpu[i].learn(&seen.cpu[i]);
            self.merged[i].learn(seen.device[i].total(), seen.ops[i]);
        }
        let (all, starting) = seen.thread;
        if starting > 0 {
            let ratio = (all as f64 / starting as f64).clamp(1.0, OVERHEAD_MOST);
            self.overhead = self.overhead * KEEP + ratio * (1.0 - KEEP);
        }
        self.derive();
    }

    /// An operation's time: the fixed part and that of a byte, in nanoseconds.
    pub fn line(&self, access: Access) -> (f64, f64) {
        let i = access as usize;
        let (fixed, per_byte) = self.merged[i].apply(&self.device[i]);
        let (cpu, cpu_byte) = if self.cpu[i].seen > 0 {
            (self.cpu[i].fixed, self.cpu[i].per_byte)
        } else {
            (0.0, 0.0)
        };
        (fixed + self.overhead * cpu, per_byte + self.overhead * cpu_byte)
    }

    fn derive(&mut self) {
        let lines = [Access::Read, Access::Write].map(|a| self.line(a));
        let (fixed, per_byte) = lines[Access::Write as usize];
        let nanos = (fixed + per_byte * REFERENCE_BYTES as f64).max(1.0);
        let scale = f64::from(REFERENCE) / nanos;
        let charges = lines.map(|(fixed, per_byte)| Charge {
            fixed: (fixed * scale).clamp(CHARGE.0, CHARGE.1) as u32,
            per_mib: (per_byte * scale * 1048576.0).clamp(0.0, PER_MIB) as u64,
        });
        self.charges = Charges { charges, nanos };
    }

    /// The charges of operations.
    pub fn charges(&self) -> &Charges {
        &self.charges
    }

    /// What the processor needs to start such operations, in nanoseconds.
    pub fn start_nanos(&self, access: Access, count: u64, bytes: u64) -> u64 {
        self.cpu[access as usize].nanos(count as f64, bytes as f64) as u64
    }

    /// How many periods of reads and of writes there were.
    pub fn seen(&self) -> [u32; 2] {
        [0, 1].map(|i| self.cpu[i].seen.max(self.device[i].seen))
    }

    /// What is kept over a restart: nothing but numbers.
    pub fn save(&self) -> Vec<u64> {
        let mut all = Vec::with_capacity(SAVED);
        for i in 0..2 {
            for l in [&self.device[i], &self.cpu[i]] {
                all.extend([scaled(l.fixed), scaled(l.per_byte), l.seen.into()]);
            }
            let m = &self.merged[i];
            all.extend([m.requests, m.device_bytes, m.ops, m.bytes].map(scaled));
        }
        all.push(scaled(self.overhead));
        all
    }

    /// From what [`CostModel::save`] gave; `None` if that makes no sense.
    pub fn restore(saved: &[u64]) -> Option<Self> {
        if saved.len() != SAVED {
            return None;
        }
        let mut at = saved.iter().copied();
        let mut next = || at.next().map(|n| n as f64 / SCALE);
        let mut model = CostModel::default();
        for i in 0..2 {
            for l in [&mut model.device[i], &mut model.cpu[i]] {
                let (fixed, per_byte, seen) = (next()?, next()?, next()? * SCALE);
                if !(FIXED.0..=FIXED.1).contains(&fixed) || !(0.0..=PER_BYTE.1).contains(&per_byte)
                {
                    return None;
                }
                *l = Line {
                    seen: if seen > 0.0 { KNOWN } else { 0 },
                    anchor: l.anchor,
                    ..Line::new(fixed, per_byte)
                };
            }
            let (requests, device_bytes, ops, bytes) = (next()?, next()?, next()?, next()?);
            if ops <= 0.0 || requests > ops * 1e6 {
                return None;
            }
            model.merged[i] = Merged { requests, device_bytes, ops, bytes };
        }
        model.overhead = next()?;
        if !(1.0..=OVERHEAD_MOST).contains(&model.overhead) {
            return None;
        }
        model.derive();
        Some(model)
    }
}

/// Numbers are kept with so many parts of one.
const SCALE: f64 = 1048576.0;
const SAVED: usize = 21;

fn scaled(x: f64) -> u64 {
    (x * SCALE).min(9e18) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: &[(u64, u64, f64)]) -> Samples {
        let mut s = Samples::default();
        for (count, bytes, each) in of {
            s.add_all(Taken {
                count: *count,
                bytes: count * bytes,
                nanos: (*count as f64 * each) as u64,
            });
        }
        s
    }

    #[test]
    fn sizes_are_told_apart() {
        assert_eq!(
            [0, 1, 511, 512, 4096, 65536, 4 << 20, u64::MAX].map(size),
            [0, 1, 1, 2, 5, 9, 15, 15]
        );
    }

    #[test]
    fn a_line_is_found_from_several_sizes() {
        let mut l = Line::new(1000.0, 1.0);
        for _ in 0..60 {
            let of = [4096u64, 16384, 65536].map(|b| (50, b, 50_000.0 + 2.0 * b as f64));
            l.learn(&samples(&of));
        }
        assert!(
            (45_000.0..55_000.0).contains(&l.fixed) && (1.9..2.1).contains(&l.per_byte),
            "{l:?}"
        );
    }

    #[test]
    fn costs_before_anything_is_learned_are_cephs() {
        let m = CostModel::default();
        for access in [Access::Read, Access::Write] {
            assert!(m.charges().charge(access, 4096).abs_diff(REFERENCE) < 100, "{m:?}");
        }
        // 4 MiB at 1200 MiB/s are the time of 72 random writes.
        assert!((65..80).contains(&(m.charges().charge(Access::Write, 4 << 20) / REFERENCE)));
        assert_eq!(
            m.charges().charge(Access::Write, u64::MAX),
            m.charges().charge(Access::Write, u32::MAX.into()),
            "bounded"
        );
    }

    #[test]
    fn what_is_answered_from_memory_or_committed_together_is_cheaper() {
        let mut m = CostModel::default();
        for _ in 0..40 {
            m.learn(&Seen {
                // One commit of 32 writes takes a millisecond; nothing is read from the device.
                device: [Samples::default(), samples(&[(10, 32 * 5000, 1_000_000.0)])],
                cpu: [samples(&[(1000, 4096, 10_000.0)]), samples(&[(320, 4096, 20_000.0)])],
                ops: [
                    Taken { count: 1000, bytes: 4_096_000, nanos: 0 },
                    Taken { count: 320, bytes: 320 * 4096, nanos: 0 },
                ],
                thread: (3, 1),
            });
        }
        let (fixed, per_byte) = m.line(Access::Write);
        let each = fixed + 4096.0 * per_byte;
        assert!((1e6 / 32.0 + 55_000.0..1e6 / 32.0 + 65_000.0).contains(&each), "{each}");
        let read = f64::from(m.charges().charge(Access::Read, 4096)) / f64::from(REFERENCE);
        assert!((0.25..0.4).contains(&read), "{read}: 30 of 91 us");
        let again = CostModel::restore(&m.save()).unwrap();
        for (access, bytes) in [(Access::Read, 0), (Access::Read, 1 << 20), (Access::Write, 4096)] {
            let (a, b) = (m.charges().charge(access, bytes), again.charges().charge(access, bytes));
            assert!(a.abs_diff(b) <= a / 1000 + 1, "{a} {b}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_not_restored() {
        let good = CostModel::default().save();
        assert!(CostModel::restore(&good).is_some());
        assert!(CostModel::restore(&good[1..]).is_none() && CostModel::restore(&[]).is_none());
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] = u64::MAX;
            if let Some(m) = CostModel::restore(&bad) {
                assert!(m.charges().charge(Access::Write, 4096) > 0);
            }
        }
        let mut bad = good;
        bad[0] = 0;
        assert!(CostModel::restore(&bad).is_none());
    }
}
