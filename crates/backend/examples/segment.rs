//! What one cut costs on a device of ggml's, whatever is computed: 16 KiB in, 30 nodes, 16 KiB out
//! and the wait for it, as at every sum of ranks.
//! `cargo run --release -p backend --example segment -- LIBRARIES DEVICE [threads]`.
//!
//! Times are the wall's, so the machine should have nothing else to do.

use std::convert::Infallible;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use backend::{Backend, Ggml, Half, SegmentKey};

/// 16 KiB of f32.
const WIDTH: usize = 4096;
/// A norm is two nodes: the norm itself, and the product with its gain.
const NORMS: usize = 15;
/// The first ones compile kernels and grow buffers.
const WARM_UP: usize = 20;
const RUNS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [libraries, name, threads @ ..] = &args[..] else {
        return Err("give ggml's libraries and a device: sinew doctor gpu lists them".into());
    };
    let threads = threads.first().map_or(Ok(1), |threads| threads.parse())?;
    let mut device = Ggml::open(Path::new(libraries), name, threads)?;
    let gain = device.vector(&[1.0; WIDTH]);
    let mut x = device.rows(1, WIDTH);
    let mut times_us = Vec::with_capacity(RUNS);
    for run in 0..WARM_UP + RUNS {
        let begun = Instant::now();
        let fill = |x: &mut [f32]| -> Result<(), Infallible> {
            x.fill(1.0);
            Ok(())
        };
        device.write(&mut x, 1, fill)?;
        for _ in 0..NORMS {
            device.rms_norm_in_place(&mut x, &gain, 1e-6);
        }
        device.end_segment(SegmentKey { layer: 0, half: Half::Attention, rows: 1, outputs: 1 });
        device.host(&mut x)?;
        if run >= WARM_UP {
            times_us.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    times_us.sort_by(f64::total_cmp);
    let [best, median] = [times_us[0], times_us[RUNS / 2]];
    println!("{name}: best {best:.0} us, median {median:.0} us of {RUNS} runs");
    Ok(())
}
