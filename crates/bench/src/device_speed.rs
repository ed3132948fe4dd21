//! Measures a ggml device through the code that runs models on it.
//!
//! Products are recorded in sequence, with one wait for all of them: the cost of waiting is
//! measured separately.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};

use backend::{Backend, BackendError, Ggml, Half, SegmentKey};
use cluster::{ClassRates, Classes, Rates, Speed};
use ggml::{Device, Kind};
use gguf::TensorType;

/// The size of a multiplication.
struct Size {
    /// Of a matrix, as large as a layer's.
    width: usize,
    /// Of a step of a prompt.
    rows: usize,
    /// Of all matrices that are read in sequence: more than any cache holds.
    read_bytes: usize,
}

const SMALL: Size = Size { width: 2048, rows: 128, read_bytes: 128 << 20 };
/// Has work for all cores of a large GPU. For devices that exceed `LARGE_OPS_PER_SEC` operations a
/// second with the small size.
const LARGE: Size = Size { width: 8192, rows: 512, read_bytes: 512 << 20 };
const LARGE_OPS_PER_SEC: f64 = 1e12;
/// Matrices take at most this part of the free memory.
const MEMORY_PART: usize = 4;
/// A timed run should take `WORTH`, with at most `REPEATS_MAX` repetitions.
const WORTH: Duration = Duration::from_millis(20);
const REPEATS_MAX: usize = 64;
/// The fastest of `ROUNDS` runs counts; a run longer than `TOO_LONG` is not repeated.
const ROUNDS: usize = 2;
const TOO_LONG: Duration = Duration::from_secs(1);

/// A sum that ranks exchange: 16 KiB of f32, with 30 nodes of a graph between two sums. A norm is
/// two nodes: the norm itself, and the product with its gain.
const SEGMENT_WIDTH: usize = 4096;
pub const SEGMENT_NORMS: usize = 15;
const SEGMENTS: usize = 32;

/// Types that represent a class; the first one with products on the device is measured.
const FEW_BITS: [TensorType; 2] = [TensorType::Q4_K, TensorType::Q4_0];
const EIGHT_BITS: [TensorType; 1] = [TensorType::Q8_0];
const FLOATS: [TensorType; 2] = [TensorType::F16, TensorType::F32];

/// Measures the device that the libraries in `dir` call `name`; `threads`: of this machine, for a
/// device that computes with them.
///
/// # Errors
/// There is no such device, or it fails.
pub fn measure(dir: &Path, name: &str, threads: usize) -> Result<Speed, BackendError> {
    let device = Ggml::find(dir, name)?;
    let (operation_secs, cut_secs) = Bench::start(device, threads)?.segment()?;
    let of = |types: &[TensorType], threads| class(device, types, threads, operation_secs);
    let eight_bits = of(&EIGHT_BITS, threads)?;
    let few_bits = of(&FEW_BITS, threads)?.or(eight_bits);
    let floats = of(&FLOATS, threads)?;
    let (Some(few_bits), Some(floats)) = (few_bits.or(floats), floats.or(few_bits)) else {
        let what = "any of the common types of weights".to_owned();
        return Err(BackendError::Unsupported { device: name.to_owned(), what });
    };
    let eight_bits = eight_bits.unwrap_or(few_bits);
    let rates = Rates {
        read_bytes_per_sec: eight_bits.read_bytes_per_sec,
        quantised_ops_per_sec: eight_bits.ops_per_sec,
        float_ops_per_sec: floats.ops_per_sec,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = match device.kind() {
        Kind::Cpu if threads < cores => of(&EIGHT_BITS, cores)?.map_or(rates, |all| Rates {
            read_bytes_per_sec: all.read_bytes_per_sec,
            quantised_ops_per_sec: all.ops_per_sec,
            float_ops_per_sec: floats.ops_per_sec * all.ops_per_sec / eight_bits.ops_per_sec,
        }),
        _ => rates,
    };
    let classes = Some(Classes { few_bits, eight_bits, floats });
    let disk_bytes_per_sec = None;
    Ok(Speed { rates, machine, operation_secs, cut_secs, classes, disk_bytes_per_sec })
}

/// Rates with weights of the first of `types` that the device has products for.
fn class(
    device: &Device,
    types: &[TensorType],
    threads: usize,
    operation_secs: f64,
) -> Result<Option<ClassRates>, BackendError> {
    let width = SMALL.width;
    let mut bench = Bench::start(device, threads)?;
    let has = |ty: &&TensorType| bench.device.check_matrix(**ty, width, width).is_ok();
    let Some(ty) = types.iter().find(has).copied() else { return Ok(None) };
    let rates = bench.rates(ty, &SMALL, operation_secs)?;
    if rates.ops_per_sec < LARGE_OPS_PER_SEC {
        return Ok(Some(rates));
    }
    // Frees the memory first.
    bench = Bench::start(device, threads)?;
    bench.rates(ty, &LARGE, operation_secs).map(Some)
}

type Matrix = <Ggml as Backend>::Matrix;
type Rows = <Ggml as Backend>::Rows;

struct Bench {
    device: Ggml,
    /// Bytes available for matrices.
    room: usize,
}

impl Bench {
    fn start(device: &Device, threads: usize) -> Result<Self, BackendError> {
        let room = device.memory().0 / MEMORY_PART;
        Ok(Self { device: Ggml::new(device, threads)?, room })
    }

    fn rates(
        &mut self,
        ty: TensorType,
        Size { width, rows, read_bytes }: &Size,
        operation_secs: f64,
    ) -> Result<ClassRates, BackendError> {
        let bytes = width * ty.row_bytes(*width);
        let matrices = self.matrices(ty, (self.room.min(*read_bytes) / bytes).max(1), *width)?;
        let (one, many) = (self.rows(1, *width), self.rows(*rows, *width));
        let read_secs = self.products(&matrices, one)?;
        let fixed = matrices.len() as f64 * operation_secs;
        // Reading is at least half of the time: an overestimated fixed cost must not hide that.
        let read_secs = (read_secs - fixed).max(read_secs / 2.0);
        let multiply_secs = self.products(&matrices[..1], many)?;
        Ok(ClassRates {
            read_bytes_per_sec: (matrices.len() * bytes) as f64 / read_secs,
            ops_per_sec: 2.0 * (width * width * rows) as f64 / multiply_secs,
        })
    }

    fn matrices(
        &mut self,
        ty: TensorType,
        count: usize,
        width: usize,
    ) -> Result<Vec<Matrix>, BackendError> {
        let mut loader = self.device.start_matrices(ty, count, width, width)?;
        // Small numbers in all types, but not zeros, with which a device may idle.
        let bytes = vec![0x11; width * ty.row_bytes(width)];
        for _ in 0..count {
            self.device.push_rows(&mut loader, &bytes)?;
        }
        self.device.finish_matrices(loader)
    }

    /// A filled input, and the output of its products.
    fn rows(&mut self, rows: usize, width: usize) -> [Rows; 2] {
        let mut x = self.device.rows(rows, width);
        self.write(&mut x, rows);
        [x, self.device.rows(rows, width)]
    }

    fn write(&mut self, x: &mut Rows, rows: usize) {
        let fill = |x: &mut [f32]| -> Result<(), Infallible> {
            x.fill(1.0);
            Ok(())
        };
        let Ok(()) = self.device.write(x, rows, fill);
    }

    /// Seconds of a product of the rows with each matrix.
    fn products(
        &mut self,
        matrices: &[Matrix],
        [x, mut out]: [Rows; 2],
    ) -> Result<f64, BackendError> {
        let mut run = |passes: usize| {
            let begun = Instant::now();
            for _ in 0..passes {
                for matrix in matrices {
                    self.device.linear(&x, &mut [(matrix, &mut out)]);
                }
                self.device.end_segment(SEGMENT);
            }
            self.device.synchronise()?;
            Ok(begun.elapsed().as_secs_f64())
        };
        repeated(&mut run)
    }

    /// The cost of an operation and of a cut, in seconds.
    fn segment(&mut self) -> Result<(f64, f64), BackendError> {
        let gain = self.device.vector(&[1.0; SEGMENT_WIDTH]);
        let mut x = self.device.rows(1, SEGMENT_WIDTH);
        self.write(&mut x, 1);
        let mut run = |segments: usize, norms: usize, is_cut: bool| {
            let begun = Instant::now();
            for _ in 0..segments {
                if is_cut {
                    self.write(&mut x, 1);
                }
                for _ in 0..norms {
                    self.device.rms_norm_in_place(&mut x, &gain, 1e-6);
                }
                self.device.end_segment(SEGMENT);
                if is_cut {
                    self.device.host(&mut x)?;
                }
            }
            self.device.synchronise()?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let whole = repeated(&mut |segments| run(segments, SEGMENT_NORMS, false))?;
        let mut each = |norms| -> Result<f64, BackendError> {
            run(1, norms, true)?;
            Ok(fastest(ROUNDS, &mut || run(SEGMENTS, norms, true))? / SEGMENTS as f64)
        };
        // With slow computation, noise may hide the difference: a cut takes at least the time of
        // the copies and the wait without computation.
        let cut = (each(SEGMENT_NORMS)? - whole).max(each(0)?);
        Ok((whole / SEGMENT_NORMS as f64, cut))
    }
}

/// Any key: a replayed graph is recognised by its operations.
const SEGMENT: SegmentKey = SegmentKey { layer: 0, half: Half::Attention, rows: 1, outputs: 1 };

/// Seconds of one repetition, with enough repetitions that the final wait is negligible.
fn repeated(run: &mut dyn FnMut(usize) -> Result<f64, BackendError>) -> Result<f64, BackendError> {
    // The first run also compiles kernels and grows buffers.
    let first = run(1)?;
    if first > TOO_LONG.as_secs_f64() {
        return Ok(first);
    }
    let times = ((WORTH.as_secs_f64() / run(1)?) as usize).clamp(1, REPEATS_MAX);
    Ok(fastest(ROUNDS, &mut || run(times))? / times as f64)
}

fn fastest(
    rounds: usize,
    run: &mut dyn FnMut() -> Result<f64, BackendError>,
) -> Result<f64, BackendError> {
    let mut times = (0..rounds).map(|_| run());
    times.try_fold(f64::MAX, |fastest, secs| Ok(fastest.min(secs?)))
}
