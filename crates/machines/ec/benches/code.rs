//! Gigabytes of data a second on one core: each kernel at the shapes in use, beside `memcpy` of the
//! same bytes in the same run. Data in a small buffer stays in caches; data in a large one comes
//! from memory, whose bandwidth is the floor.

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

fn encode(c: &mut Criterion) {
    for (shard, name) in [(4096, "4K"), (16384, "16K"), (1 << 20, "1M"), (32 << 20, "32M")] {
        let mut group = c.benchmark_group(format!("encode/{name}-shards"));
        let (from, mut to) = (buffers(4, shard), buffers(4, shard));
        group.throughput(Throughput::Bytes(4 * shard as u64));
        group.bench_function("memcpy", |b| {
            b.iter(|| from.iter().zip(&mut to).for_each(|(f, t)| t.copy_from_slice(f)))
        });
        for (k, m) in [(2, 1), (2, 2), (4, 2), (8, 3)] {
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
