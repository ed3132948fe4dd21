//! Measures the kernels:
//! `cargo run --release -p kernels --example bench -- [threads] [what]`.
//!
//! `what` filters by name: `read`, `pool`, `load`, `pack`, `gemv`, `wide`, `int16`, `gemm`,
//! `decode`, `prefill`, or a type. A line gives the best and the median of many runs. `read` is the
//! memory throughput of a plain loop. Times are wall-clock, so the machine should be otherwise
//! idle.

use gguf::TensorType;
use kernels::{
    AttendShape, CacheKind, Forms, Input, KvCache, Matrix, PAGE_POSITIONS, Packer, Pool, Product,
    Segment, attend, isa, multiply,
};
use std::hint::black_box;
use std::time::Instant;

const TYPES: [TensorType; 24] = [
    TensorType::Q4_0,
    TensorType::Q8_0,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::MXFP4,
    TensorType::IQ4_XS,
    TensorType::Q2_K,
    TensorType::IQ1_S,
    TensorType::IQ1_M,
    TensorType::IQ2_XXS,
    TensorType::IQ2_XS,
    TensorType::IQ2_S,
    TensorType::IQ3_XXS,
    TensorType::IQ3_S,
    TensorType::NVFP4,
    TensorType::TQ1_0,
    TensorType::TQ2_0,
    TensorType::Q1_0,
    TensorType::AFFINE4_64,
    TensorType::AFFINE8_64,
    TensorType::F8_E4M3_128,
    TensorType::F16,
    TensorType::BF16,
];

/// The kinds of cache for attention measurements.
const KINDS: [CacheKind; 3] = [CacheKind::I16, CacheKind::F16, CacheKind::Q8_0];

/// Bytes of weights in a bandwidth measurement: many times the size of any cache.
const STREAM_BYTES: usize = 256 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().map_or(1, |arg| arg.parse().expect("a number of threads"));
    let filter = args.next().unwrap_or_default();
    let cpus: Vec<usize> = (0..threads).collect();
    let pool = Pool::pinned(&cpus).expect("a pool");
    println!("isa {}, {threads} threads", isa());
    let wanted = |name: &str| filter.is_empty() || name.contains(&filter);
    if wanted("read") {
        read(&pool);
    }
    if wanted("pool") {
        jobs(&pool);
    }
    for (rows, cols) in [(1, 768), (1, 2048), (1, 8192), (512, 768), (512, 2048), (512, 8192)] {
        if wanted(&format!("load {rows} x {cols}")) {
            load(&pool, rows, cols);
        }
    }
    for ty in TYPES {
        if wanted(&format!("pack {ty}")) {
            pack(&pool, ty);
        }
    }
    for ty in TYPES {
        for rows in [1, 2, 3, 4, 6, 8, 12] {
            if wanted(&format!("gemv {ty} x {rows}")) {
                stream(&pool, &format!("gemv {ty} x {rows}"), ty, &input(&pool, rows, 2048));
            }
        }
        if wanted(&format!("wide {ty}")) {
            stream(&pool, &format!("wide {ty}"), ty, &input(&pool, 1, 8192));
        }
        for rows in [1, 4] {
            let is_float = ty.block_len() == 1 || ty == TensorType::F8_E4M3_128;
            if !is_float && wanted(&format!("int16 {ty} x {rows}")) {
                stream(&pool, &format!("int16 {ty} x {rows}"), ty, &int16(&pool, rows, 2048));
            }
        }
    }
    for ty in TYPES {
        for rows in [4, 64, 512] {
            if wanted(&format!("gemm {ty} {rows}")) {
                gemm(&pool, ty, rows);
            }
        }
    }
    if wanted("decode") {
        for kind in KINDS {
            attention(&pool, "decode", 4096, 1, kind);
        }
    }
    if wanted("prefill") {
        for kind in KINDS {
            attention(&pool, "prefill", 0, 512, kind);
            attention(&pool, "prefill", 4096, 512, kind);
        }
    }
}

/// The minimum seconds of one measurement.
const SAMPLE_SECONDS: f64 = 0.15;

/// Seconds of one run: best and median of `runs`.
fn measure(runs: usize, mut work: impl FnMut()) -> (f64, f64) {
    let start = Instant::now();
    work();
    let repeats =
        (SAMPLE_SECONDS / start.elapsed().as_secs_f64().max(1e-9)).clamp(1.0, 1e5) as usize;
    let mut seconds: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            (0..repeats).for_each(|_| work());
            start.elapsed().as_secs_f64() / repeats as f64
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[runs / 2])
}

/// Plain sums over a large buffer.
fn read(pool: &Pool) {
    let data = vec![1_u64; STREAM_BYTES / 8];
    let runs = 1 << 16;
    let (best, median) = measure(7, || {
        pool.run(data.len() / runs, |task| {
            let mut sums = [0_u64; 32];
            for chunk in data[task * runs..][..runs].chunks_exact(32) {
                for (sum, x) in sums.iter_mut().zip(chunk) {
                    *sum = sum.wrapping_add(*x);
                }
            }
            black_box(sums);
        });
    });
    let rate = |seconds: f64| STREAM_BYTES as f64 / seconds / 1e9;
    println!("read                {:7.2} / {:7.2} GB/s", rate(best), rate(median));
}

fn jobs(pool: &Pool) {
    let (best, median) = measure(7, || {
        pool.run(pool.threads(), |task| {
            black_box(task);
        })
    });
    println!("pool job            {:7.2} / {:7.2} us", best * 1e6, median * 1e6);
}

/// Bytes that are valid rows of any type (small numbers if read as floats).
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 56) as u8).collect()
}

fn matrix(pool: &Pool, ty: TensorType, rows: usize, cols: usize) -> Matrix {
    let mut packer = Packer::new(ty, rows, cols).expect("memory");
    let panel = bytes(16 * ty.row_bytes(cols));
    for _ in 0..rows / 16 {
        packer.push(pool, &panel).expect("whole rows");
    }
    packer.finish().expect("all rows")
}

/// Packs a matrix from rows in a file's layout, including the system's clearing of its memory.
fn pack(pool: &Pool, ty: TensorType) {
    let cols = 2048;
    let chunk = bytes((2 << 20) / ty.row_bytes(cols) / 16 * 16 * ty.row_bytes(cols));
    let chunks = 16;
    let rows = chunks * chunk.len() / ty.row_bytes(cols);
    let (best, median) = measure(7, || {
        let mut packer = Packer::new(ty, rows, cols).expect("memory");
        for _ in 0..chunks {
            packer.push(pool, &chunk).expect("whole rows");
        }
        black_box(packer.finish().expect("all rows"));
    });
    let rate = |seconds: f64| (chunks * chunk.len()) as f64 / seconds / 1e9;
    println!("{:18} {:7.2} / {:7.2} GB/s", format!("pack {ty}"), rate(best), rate(median));
}

/// Activations as 8-bit integers.
fn load(pool: &Pool, rows: usize, cols: usize) {
    let x = waves(rows, cols);
    let mut input = Input::new(rows, cols);
    let (best, median) = measure(7, || input.load_for(pool, &x, rows, Forms::INT8));
    let tile_ns = |seconds: f64| seconds * 1e9 / (rows * cols / 32) as f64;
    let name = format!("{rows} x {cols}");
    println!("load {name:14} {:7.2} / {:7.2} ns a tile", tile_ns(best), tile_ns(median));
}

fn waves(rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| (i as f32 * 0.1).sin()).collect()
}

fn input(pool: &Pool, rows: usize, cols: usize) -> Input {
    let mut input = Input::new(rows, cols);
    input.load_for(pool, &waves(rows, cols), rows, Forms::BOTH);
    input
}

/// Like [`input`], as integers of 16 bits.
fn int16(pool: &Pool, rows: usize, cols: usize) -> Input {
    let mut input = Input::new_int16(rows, cols);
    input.load_int16(pool, &waves(rows, cols), rows);
    input
}

/// Few input rows against weights that exceed any cache.
fn stream(pool: &Pool, name: &str, ty: TensorType, input: &Input) {
    let cols = input.cols();
    let rows = STREAM_BYTES / ty.row_bytes(cols) / 64 * 64;
    let matrix = matrix(pool, ty, rows, cols);
    let mut out = vec![0.0; input.rows() * rows];
    let (best, median) = measure(7, || multiply(pool, [Product::new(input, &matrix, &mut out)]));
    let rate = |seconds: f64| matrix.bytes() as f64 / seconds / 1e9;
    println!("{name:19} {:7.2} / {:7.2} GB/s", rate(best), rate(median));
}

fn gemm(pool: &Pool, ty: TensorType, inputs: usize) {
    let (rows, cols) = (8192, 2048);
    let matrix = matrix(pool, ty, rows, cols);
    let input = input(pool, inputs, cols);
    // Aligned to a cache line, as in a backend.
    let mut room = vec![0.0; inputs * rows + 16];
    let first = room.as_ptr().align_offset(64);
    let out = &mut room[first..][..inputs * rows];
    let (best, median) = measure(7, || multiply(pool, [Product::new(&input, &matrix, out)]));
    let rate = |seconds: f64| 2.0 * (rows * cols * inputs) as f64 / seconds / 1e9;
    let name = format!("{ty} x {inputs}");
    println!("gemm {name:14} {:7.1} / {:7.1} GOP/s", rate(best), rate(median));
}

/// One layer of a Llama-3.2-1B shape: 32 heads of 64 over 8 KV heads.
fn attention(pool: &Pool, name: &str, depth: usize, rows: usize, kind: CacheKind) {
    let (heads, kv_heads, dim) = (32, 8, 64);
    let pages = (depth + rows).div_ceil(PAGE_POSITIONS);
    // Several layers, so that no cache holds all of them.
    let layers = if rows == 1 { 16 } else { 1 };
    let table: Vec<u32> = (0..pages as u32).collect();
    let caches: Vec<KvCache> = (0..layers)
        .map(|_| {
            let mut cache = KvCache::new(kv_heads, dim, dim, pages, kind).expect("memory");
            let kv = vec![0.25; (depth + rows) * kv_heads * dim];
            cache.store(pool, &table, 0, &kv, &kv);
            cache
        })
        .collect();
    let kv_of_head: Vec<u32> = (0..heads as u32).map(|head| head / 4).collect();
    let shape = AttendShape::new(&kv_of_head, dim, dim, 0.125);
    let q: Vec<f32> = (0..rows * heads * dim).map(|i| (i as f32).sin()).collect();
    let mut out = vec![0.0; q.len()];
    let segment = Segment { table: table.as_slice().into(), first_pos: depth, rows, sees_to: None };
    let (best, median) = measure(7, || {
        for cache in &caches {
            attend(pool, cache, &shape, std::slice::from_ref(&segment), None, &q, &mut out);
        }
    });
    let layer_ms = |seconds: f64| seconds * 1e3 / layers as f64;
    let gflops = |seconds: f64| {
        let pairs = rows * depth + rows * (rows + 1) / 2;
        (4 * pairs * heads * dim * layers) as f64 / seconds / 1e9
    };
    println!(
        "{name} {rows} at {depth:5} {kind:4}   {:7.3} / {:7.3} ms a layer, {:.1} GFLOP/s",
        layer_ms(best),
        layer_ms(median),
        gflops(best)
    );
}
