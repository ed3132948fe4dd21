//! Measures the recurrent layers:
//! `cargo run --release -p kernels --example recur -- [threads] [what]`.
//!
//! `what` filters by name: `delta`, `channel`, `mamba`, `short`, and by rows: `delta 512`. A line
//! gives the best and the median of many runs. Vector operations process 16 elements of the state;
//! each row takes 4 of them with the delta rules and 3 with Mamba's. Bytes are those of the state,
//! read and written once; with few rows, the layers exceed any cache.

use kernels::{
    Begin, Pool, RecurrentLayer, RecurrentRows, RecurrentScratch, RecurrentShape, RecurrentWeights,
    Rule, StateSegment, States, isa, recur,
};
use std::time::Instant;

/// Bytes of states in a measurement with few rows: many times the size of any cache.
const STATE_BYTES: usize = 256 << 20;

struct Model {
    name: &'static str,
    rule: Rule,
    k_heads: usize,
    v_heads: usize,
    k_dim: usize,
    v_dim: usize,
    taps: usize,
}

const MODELS: [Model; 4] = [
    model("delta", Rule::Delta, (16, 32), (128, 128), 4),
    model("channel", Rule::DeltaByChannel, (32, 32), (128, 128), 4),
    model("mamba", Rule::Mamba, (8, 96), (128, 64), 4),
    model("short", Rule::Convolution, (1, 1), (2048, 2048), 3),
];

const fn model(
    name: &'static str,
    rule: Rule,
    (k_heads, v_heads): (usize, usize),
    (k_dim, v_dim): (usize, usize),
    taps: usize,
) -> Model {
    Model { name, rule, k_heads, v_heads, k_dim, v_dim, taps }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().map_or(1, |arg| arg.parse().expect("a number of threads"));
    let filter = args.next().unwrap_or_default();
    let cpus: Vec<usize> = (0..threads).collect();
    let pool = Pool::pinned(&cpus).expect("a pool");
    println!("isa {}, {threads} threads", isa());
    for model in &MODELS {
        for rows in [1, 4, 512] {
            if format!("{} {rows}", model.name).contains(&filter) {
                measure(&pool, model, rows);
            }
        }
    }
}

fn waves(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.1).sin()).collect()
}

fn layer(model: &Model) -> RecurrentLayer {
    let &Model { rule, k_heads, v_heads, k_dim, v_dim, taps, .. } = model;
    let convolution = rule == Rule::Convolution;
    let k_of_v = (0..v_heads).map(|head| (head * k_heads / v_heads) as u32).collect();
    let decay_bound = None;
    let shape = RecurrentShape { rule, k_heads, v_heads, k_dim, v_dim, k_of_v, taps, decay_bound };
    let keys = if convolution { 0 } else { k_heads * k_dim };
    let gates = if convolution { 0 } else { v_heads };
    let weights = RecurrentWeights {
        conv_q: waves(keys * taps),
        conv_k: waves(keys * taps),
        conv_v: waves(v_heads * v_dim * taps),
        a: vec![-0.5; gates],
        dt: vec![0.1; if rule == Rule::DeltaByChannel { gates * k_dim } else { gates }],
        skip: vec![1.0; if rule == Rule::Mamba { gates } else { 0 }],
        ..RecurrentWeights::default()
    };
    RecurrentLayer::new(shape, weights)
}

fn measure(pool: &Pool, model: &Model, rows: usize) {
    let &Model { rule, k_heads, v_heads, k_dim, v_dim, .. } = model;
    let layer = layer(model);
    let one = States::bytes(layer.shape(), 1, 0, 0);
    let layers = if rows > 4 { 1 } else { (STATE_BYTES / one).min(256) };
    let mut states: Vec<States> =
        (0..layers).map(|_| States::new(layer.shape(), 1, 0, 0).expect("memory")).collect();
    let gates = if rule == Rule::Convolution { 0 } else { rows * v_heads };
    let decays = if rule == Rule::DeltaByChannel { gates * k_dim } else { gates };
    let betas = if rule == Rule::Mamba { 0 } else { gates };
    let (q, k) = (waves(rows * k_heads * k_dim), waves(rows * k_heads * k_dim));
    let v = waves(rows * v_heads * v_dim);
    let (decay, beta) = (waves(decays), waves(betas));
    let x = RecurrentRows { q: &q, k: &k, v: &v, decay: &decay, beta: &beta };
    let mut out = vec![0.0; v.len()];
    let mut scratch = RecurrentScratch::default();
    let begin = Begin::GoOn { accepted: 0 };
    let segment = StateSegment { slot: 0, rows, begin, guesses: 0, save: None };
    let mut run = || {
        let start = Instant::now();
        for states in &mut states {
            recur(pool, &layer, states, &[segment], &x, &mut scratch, &mut out);
        }
        start.elapsed().as_secs_f64() / layers as f64
    };
    run();
    let runs = (2.0 / (run() * layers as f64)).clamp(5.0, 500.0) as usize;
    let mut seconds: Vec<f64> = (0..runs).map(|_| run()).collect();
    seconds.sort_by(f64::total_cmp);
    let (best, median) = (seconds[0], seconds[runs / 2]);
    let name = format!("{} x {rows}", model.name);
    print!("{name:14} {:8.1} / {:8.1} us a layer", best * 1e6, median * 1e6);
    if rule == Rule::Convolution {
        println!();
        return;
    }
    let numbers = v_heads * k_dim * v_dim;
    let operations = if rule == Rule::Mamba { 3 } else { 4 };
    let giga = |seconds: f64| (numbers / 16 * rows * operations) as f64 / seconds / 1e9;
    print!(", {:5.2} / {:5.2} G vector operations a second", giga(best), giga(median));
    let rate = |seconds: f64| 8.0 * numbers as f64 / seconds / 1e9;
    println!(", {:5.1} / {:5.1} GB/s", rate(best), rate(median));
}
