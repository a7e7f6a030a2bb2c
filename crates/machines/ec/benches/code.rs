//! Gigabytes of data a second on one core: each kernel at the shapes in use, beside `memcpy` of the
//! same bytes in the same run. Data in a small buffer stays in caches; data in a large one comes
//! from memory, whose bandwidth is the floor: `floor/k+m` reads and writes as many bytes as
//! encoding does, and computes next to nothing.

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use criterion::{criterion_group, criterion_main};
use ec::{Code, Kernel, Matrix, Prepared, ShardSet, Technique, multiply_with};

fn buffers(n: usize, length: usize) -> Vec<Vec<u8>> {
    (0..n).map(|s| (0..length).map(|i| (i * 31 + s * 7) as u8).collect()).collect()
}

fn slices(v: &[Vec<u8>]) -> Vec<&[u8]> {
    v.iter().map(Vec::as_slice).collect()
}

/// Multiplies over and over. `data` bytes of sources count, as in what others publish.
fn run(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    kernel: Kernel,
    matrix: &Matrix,
    length: usize,
    add: bool,
) {
    let matrix = Prepared::new(matrix);
    let sources = buffers(matrix.columns(), length);
    let mut out = buffers(matrix.rows(), length);
    group.throughput(Throughput::Bytes((length * matrix.columns()) as u64));
    group.bench_function(id, |b| {
        let sources = slices(&sources);
        let mut out: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
        b.iter(|| multiply_with(kernel, &matrix, &sources, &mut out, add));
    });
}

/// Reads `k` shards once and writes `m`: each of these is the XOR of a part of those. It goes a
/// page at a time, so that what is written leaves the nearest cache once.
fn touch(sources: &[&[u8]], out: &mut [&mut [u8]]) {
    let m = out.len();
    for (i, to) in out.iter_mut().enumerate() {
        for (n, page) in to.chunks_mut(4096).enumerate() {
            let part = n * 4096..n * 4096 + page.len();
            let mut mine = sources.iter().skip(i).step_by(m).map(|s| &s[part.clone()]);
            page.copy_from_slice(mine.next().expect("no more parity than data"));
            for s in mine {
                page.iter_mut().zip(s).for_each(|(t, s)| *t ^= s);
            }
        }
    }
}

fn encode(c: &mut Criterion) {
    for (shard, name) in [(4096, "4K"), (16384, "16K"), (1 << 20, "1M"), (32 << 20, "32M")] {
        let mut group = c.benchmark_group(format!("encode/{name}-shards"));
        let (from, mut to) = (buffers(4, shard), buffers(4, shard));
        group.throughput(Throughput::Bytes(4 * shard as u64));
        group.bench_function("memcpy", |b| {
            b.iter(|| from.iter().zip(&mut to).for_each(|(f, t)| t.copy_from_slice(f)))
        });
        for (k, m) in [(2, 1), (2, 2), (4, 2), (8, 3)] {
            let (sources, mut out) = (buffers(k, shard), buffers(m, shard));
            group.throughput(Throughput::Bytes((k * shard) as u64));
            group.bench_function(BenchmarkId::new("floor", format!("{k}+{m}")), |b| {
                let sources = slices(&sources);
                let mut out: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
                b.iter(|| touch(&sources, &mut out));
            });
            let code = Matrix::jerasure_reed_sol_van(k, m).select(k..k + m);
            for kernel in Kernel::available() {
                if kernel == Kernel::Scalar && shard != 16384 {
                    continue;
                }
                let id = BenchmarkId::new(format!("{k}+{m}"), format!("{kernel:?}"));
                run(&mut group, id, kernel, &code, shard, false);
            }
        }
    }
}

fn delta(c: &mut Criterion) {
    let mut group = c.benchmark_group("delta/4K");
    for kernel in Kernel::available() {
        let factor = Matrix::from_fn(1, 1, |_, _| 70);
        run(
            &mut group,
            BenchmarkId::from_parameter(format!("{kernel:?}")),
            kernel,
            &factor,
            4096,
            true,
        );
    }
}

fn rebuild(c: &mut Criterion) {
    let code = Code::new(Technique::JerasureReedSolVan, 4, 2).expect("a code");
    let mut group = c.benchmark_group("rebuild/4+2");
    let lost = ShardSet::first(2);
    let have = code.shards().without(lost);
    group.bench_function("invert", |b| b.iter(|| code.recipe(have, lost).expect("enough shards")));
    for (length, name) in [(4096, "4K"), (1 << 20, "1M")] {
        let recipe = code.recipe(have, lost).expect("enough shards");
        let (sources, mut out) = (buffers(4, length), buffers(2, length));
        group.throughput(Throughput::Bytes(4 * length as u64));
        group.bench_function(name, |b| {
            let sources = slices(&sources);
            let mut out: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
            b.iter(|| recipe.apply(&sources, &mut out));
        });
    }
}

criterion_group!(benches, encode, delta, rebuild);
criterion_main!(benches);
