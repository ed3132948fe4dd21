//! Measures the speed of this machine's threads with the kernels that run models.

use std::time::Instant;

use backend::{Backend, Cpu};
use cluster::{Rates, Speed};
use gguf::TensorType;

/// As in a large model's matrices: more than a core's caches hold, less than 5 MB.
const WIDTH: usize = 2048;
/// Rows of a step of a prompt: enough that weights are read once for all of them.
const ROWS: usize = 128;
const ROUNDS: usize = 3;
/// Operations over which the fixed cost of one is measured.
const SMALL: usize = 256;

/// The speed of `threads` threads, and of all this machine's cores together. Takes some tenths of a
/// second.
pub fn measure(threads: usize) -> Speed {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rates = rates(threads);
    let machine = if threads >= cores { rates } else { self::rates(cores) };
    Speed { machine, ..Speed::alone(rates, operation_secs(threads).unwrap_or(0.0)) }
}

fn rates(threads: usize) -> Rates {
    let ops = |ty| ops_per_sec(threads, ty).unwrap_or(1.0);
    Rates {
        read_bytes_per_sec: cluster::read_speed(threads),
        quantised_ops_per_sec: ops(TensorType::Q8_0),
        float_ops_per_sec: ops(TensorType::F16),
    }
}

/// Multiplications and additions per second of one product, the fastest of several.
fn ops_per_sec(threads: usize, ty: TensorType) -> Option<f64> {
    let secs = product_secs(threads, ty, WIDTH, ROWS, ROUNDS)?;
    Some(2.0 * (WIDTH * WIDTH * ROWS) as f64 / secs)
}

/// The time of a product so small that distributing it to the threads is its whole cost.
fn operation_secs(threads: usize) -> Option<f64> {
    product_secs(threads, TensorType::Q8_0, 32, 1, SMALL)
}

fn product_secs(
    threads: usize,
    ty: TensorType,
    width: usize,
    rows: usize,
    rounds: usize,
) -> Option<f64> {
    let mut device = Cpu::new(threads, &[]).ok()?;
    let mut loader = device.start_matrices(ty, 1, width, width).ok()?;
    // Zeros cost as much as other numbers.
    device.push_rows(&mut loader, &vec![0; width * ty.row_bytes(width)]).ok()?;
    let matrices = device.finish_matrices(loader).ok()?;
    let (mut x, mut out) = (device.rows(rows, width), device.rows(rows, width));
    device
        .write(&mut x, rows, |numbers| {
            numbers.fill(1.0);
            Ok::<(), ()>(())
        })
        .ok()?;
    let mut fastest = f64::MAX;
    // The first run warms threads and caches.
    for round in 0..=rounds {
        let started = Instant::now();
        device.linear(&x, &mut [(&matrices[0], &mut out)]);
        device.host(&mut out).ok()?;
        if round > 0 {
            fastest = fastest.min(started.elapsed().as_secs_f64());
        }
    }
    Some(fastest.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_speed() {
        let speed = measure(1);
        let rates = [speed.rates, speed.machine].into_iter().flat_map(|rates| {
            [rates.read_bytes_per_sec, rates.quantised_ops_per_sec, rates.float_ops_per_sec]
        });
        rates.for_each(|rate| assert!(rate > 1e6, "{speed:?}"));
        assert!(speed.operation_secs > 0.0 && speed.operation_secs < 0.1, "{speed:?}");
    }
}
