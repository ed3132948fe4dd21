//! The load of a burn-in on one node. Products with the kernels that run models must give equal
//! results each time; passes over memory check and invert every bit.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backend::{Backend, Cpu};
use cluster::Loaded;
use gguf::TensorType;

use crate::args::BurnInArgs;
use crate::error::Error;

/// As in a large model's matrices.
const WIDTH: usize = 2048;
const ROWS: usize = 128;
/// Arithmetic and memory take turns, each of this duration or of one pass over the memory.
const TURN: Duration = Duration::from_millis(250);
/// Words that are compared before checking whether any differed.
const CHUNK: usize = 1024;

/// Loads this machine for the requested time, and returns the figures as one line of JSON.
///
/// # Errors
/// The kernels cannot start.
pub fn run(args: &BurnInArgs) -> Result<String, Error> {
    end_with_input();
    let loaded = burn(args).map_err(Error::Failed)?;
    serde_json::to_string(&loaded).map_err(|error| Error::Failed(error.to_string()))
}

/// Ends this process with its input: the node that started it may be gone.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

fn burn(args: &BurnInArgs) -> Result<Loaded, String> {
    let threads = args.threads.max(1);
    let mut products = Products::new(threads)?;
    let mut memory = Memory::new(threads, args.memory_bytes);
    let (mut ops, mut bytes) = (Rate::default(), Rate::default());
    let (mut wrong_bits, mut wrong_results) = (0, 0);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut flip = args.flip_bits;
    loop {
        let (started, mut count) = (Instant::now(), 0);
        while count == 0 || started.elapsed() < TURN {
            wrong_results += u64::from(!products.repeat()?);
            count += 1;
        }
        ops.add(f64::from(count) * OPS, started.elapsed());
        if flip {
            memory.flip_a_bit();
            flip = false;
        }
        let (started, mut passed) = (Instant::now(), 0);
        while passed == 0 || started.elapsed() < TURN {
            wrong_bits += memory.pass();
            passed += 2 * memory.bytes();
        }
        bytes.add(passed as f64, started.elapsed());
        if Instant::now() >= end {
            break;
        }
    }
    Ok(Loaded {
        memory_bytes: memory.bytes(),
        ops_per_sec: ops.mean(),
        ops_per_sec_lowest: ops.lowest,
        bytes_per_sec: bytes.mean(),
        bytes_per_sec_lowest: bytes.lowest,
        wrong_bits,
        wrong_results,
    })
}

/// The rate over all turns, and that of the slowest turn.
#[derive(Default)]
struct Rate {
    done: f64,
    secs: f64,
    lowest: f64,
}

impl Rate {
    fn add(&mut self, done: f64, took: Duration) {
        let secs = took.as_secs_f64().max(1e-9);
        let is_first = self.secs == 0.0;
        self.lowest = if is_first { done / secs } else { self.lowest.min(done / secs) };
        (self.done, self.secs) = (self.done + done, self.secs + secs);
    }

    fn mean(&self) -> f64 {
        self.done / self.secs.max(1e-9)
    }
}

/// Multiplications and additions of one product.
const OPS: f64 = 2.0 * (WIDTH * WIDTH * ROWS) as f64;

/// One product, computed repeatedly.
struct Products {
    device: Cpu,
    matrix: <Cpu as Backend>::Matrix,
    x: <Cpu as Backend>::Rows,
    out: <Cpu as Backend>::Rows,
    /// The first result; kernels give the same bits each time.
    expected: Vec<u32>,
}

impl Products {
    fn new(threads: usize) -> Result<Self, String> {
        let text = |error: backend::BackendError| error.to_string();
        let mut device = Cpu::new(threads, &[]).map_err(text)?;
        let mut loader = device.start_matrices(TensorType::Q8_0, 1, WIDTH, WIDTH).map_err(text)?;
        device.push_rows(&mut loader, &weights()).map_err(text)?;
        let matrices = device.finish_matrices(loader).map_err(text)?;
        let matrix = matrices.into_iter().next().ok_or("no matrix was made")?;
        let (mut x, out) = (device.rows(ROWS, WIDTH), device.rows(ROWS, WIDTH));
        let fill = |numbers: &mut [f32]| {
            numbers.iter_mut().enumerate().for_each(|(at, x)| *x = ((at * 37) % 101) as f32 - 50.0);
            Ok::<(), backend::BackendError>(())
        };
        device.write(&mut x, ROWS, fill).map_err(text)?;
        let mut products = Self { device, matrix, x, out, expected: Vec::new() };
        products.expected = products.compute()?.iter().map(|number| number.to_bits()).collect();
        Ok(products)
    }

    fn compute(&mut self) -> Result<&[f32], String> {
        self.device.linear(&self.x, &mut [(&self.matrix, &mut self.out)]);
        self.device.host(&mut self.out).map_err(|error| error.to_string())
    }

    /// Whether the result equals the first one.
    fn repeat(&mut self) -> Result<bool, String> {
        let expected = std::mem::take(&mut self.expected);
        let out = self.compute()?;
        let pairs = out.iter().zip(&expected);
        let same = out.len() == expected.len()
            && pairs.fold(true, |same, (a, b)| same & (a.to_bits() == *b));
        self.expected = expected;
        Ok(same)
    }
}

/// Blocks of 32 numbers in 8 bits, with a scale of 2^-7 each.
fn weights() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..WIDTH * TensorType::Q8_0.row_bytes(WIDTH))
        .map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    for block in bytes.chunks_exact_mut(34) {
        block[..2].copy_from_slice(&0x2000_u16.to_le_bytes());
    }
    bytes
}

/// Words that contain their own index, combined with the key of the last pass.
struct Memory {
    parts: Vec<Vec<u64>>,
    key: u64,
}

impl Memory {
    fn new(threads: usize, bytes: u64) -> Self {
        let words = (bytes as usize / size_of::<u64>() / threads).max(1);
        let key = 0x5555_5555_5555_5555;
        let fill = || (0..words as u64).map(|at| at ^ key).collect();
        let parts = std::thread::scope(|scope| {
            let fillers: Vec<_> = (0..threads).map(|_| scope.spawn(fill)).collect();
            fillers.into_iter().filter_map(|filler| filler.join().ok()).collect()
        });
        Self { parts, key }
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| size_of_val(&part[..]) as u64).sum()
    }

    fn flip_a_bit(&mut self) {
        if let Some(part) = self.parts.first_mut() {
            let middle = part.len() / 2;
            part[middle] ^= 1 << 40;
        }
    }

    /// Checks and inverts every bit; returns the number of wrong ones.
    fn pass(&mut self) -> u64 {
        let (old, new) = (self.key, !self.key);
        let wrong_bits = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for part in &mut self.parts {
                scope.spawn(|| wrong_bits.fetch_add(turn_over(part, old, new), Ordering::Relaxed));
            }
        });
        self.key = new;
        wrong_bits.into_inner()
    }
}

fn turn_over(part: &mut [u64], old: u64, new: u64) -> u64 {
    let mut wrong_bits = 0;
    for (chunk, words) in part.chunks_mut(CHUNK).enumerate() {
        let first = (chunk * CHUNK) as u64;
        let indices = || first..;
        let differ =
            indices().zip(&*words).fold(0, |differ, (at, word)| differ | (word ^ at ^ old));
        if differ != 0 {
            let bits = indices().zip(&*words).map(|(at, word)| (word ^ at ^ old).count_ones());
            wrong_bits += bits.map(u64::from).sum::<u64>();
        }
        indices().zip(words).for_each(|(at, word)| *word = at ^ new);
    }
    wrong_bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_of_memory_is_found_once() {
        let mut memory = Memory::new(2, 3 * 8 * CHUNK as u64 + 40);
        assert_eq!((memory.pass(), memory.pass()), (0, 0));
        memory.flip_a_bit();
        assert_eq!((memory.pass(), memory.pass()), (1, 0));
    }

    #[test]
    fn a_wrong_result_is_found() {
        let mut products = Products::new(1).unwrap();
        assert!(products.repeat().unwrap());
        products.expected[WIDTH + 3] ^= 1;
        assert!(!products.repeat().unwrap());
    }

    #[test]
    fn a_burn_in_measures_and_finds_what_was_turned_over() {
        let args = BurnInArgs { seconds: 0, threads: 1, memory_bytes: 1 << 20, flip_bits: true };
        let loaded = burn(&args).unwrap();
        assert_eq!((loaded.wrong_bits, loaded.wrong_results), (1, 0));
        assert!(loaded.ops_per_sec >= loaded.ops_per_sec_lowest && loaded.bytes_per_sec > 0.0);
        assert_eq!(loaded.memory_bytes, 1 << 20);
    }

    #[test]
    fn rates_are_means_and_lows() {
        let mut rate = Rate::default();
        rate.add(10.0, Duration::from_secs(1));
        rate.add(2.0, Duration::from_secs(2));
        assert_eq!((rate.mean(), rate.lowest), (4.0, 1.0));
    }
}
