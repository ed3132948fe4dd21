//! `sinew bench model`: prefill and decode speed, in the rows that llama-bench prints.

use std::time::Instant;

use engine::Local;
use gguf::{Directory, File, Source};
use placement::Plan;
use serde::Serialize;

use crate::args::{BenchModelArgs, BenchOutput, Transport};
use crate::commands::{dev, query};
use crate::error::CliError;

/// One measured test.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    size_bytes: u64,
    params: u64,
    backend: String,
    threads: usize,
    nodes: usize,
    /// With the layers of each stage.
    strategy: String,
    transport: &'static str,
    link_latency_us: u64,
    test: String,
    tokens_per_sec: Vec<f64>,
    mean: f64,
    stddev: f64,
    median: f64,
}

/// What one test does after the context holds `depth` tokens.
#[derive(Clone, Copy)]
enum Test {
    Prompt(usize),
    Generate(usize),
}

pub fn model(args: &BenchModelArgs) -> Result<(), CliError> {
    let file = File::open(&args.model)?;
    let context = args.n_depth + args.n_prompt.max(args.n_gen) + 1;
    let plan = dev::plan(file.directory(), &args.local)?;
    let mut local = dev::start(&args.model, &args.local, context)?;
    let tests = [Test::Prompt(args.n_prompt), Test::Generate(args.n_gen)];
    let mut rows = Vec::new();
    for test in tests.into_iter().filter(|test| test.tokens() > 0) {
        let rates = measure(&mut local, test, args)?;
        rows.push(row(args, file.directory(), &plan, test, rates));
    }
    match args.output {
        BenchOutput::Md => print_markdown(&rows),
        BenchOutput::Json => query::print_json(&rows)?,
    }
    Ok(())
}

impl Test {
    fn tokens(self) -> usize {
        let (Self::Prompt(tokens) | Self::Generate(tokens)) = self;
        tokens
    }
}

/// Tokens per second of every counted run; one run before them warms caches and pages.
fn measure(local: &mut Local, test: Test, args: &BenchModelArgs) -> Result<Vec<f64>, CliError> {
    let vocab = local.rank().config().vocab as u32;
    let tokens = |count: usize| -> Vec<u32> {
        // Any tokens will do; neighbours should differ.
        (0..count as u32).map(|at| at.wrapping_mul(2_654_435_761) % vocab).collect()
    };
    local.truncate(0);
    if args.n_depth > 0 {
        local.feed(&tokens(args.n_depth))?;
    }
    let mut rates = Vec::new();
    for run in 0..=args.repetitions {
        local.truncate(args.n_depth);
        let input = tokens(test.tokens());
        let started = Instant::now();
        match test {
            Test::Prompt(_) => drop(local.feed(&input)?),
            Test::Generate(_) => {
                for token in input {
                    local.feed(&[token])?;
                }
            }
        }
        if run > 0 {
            rates.push(test.tokens() as f64 / started.elapsed().as_secs_f64());
        }
    }
    Ok(rates)
}

fn row(
    args: &BenchModelArgs,
    directory: &Directory,
    plan: &Plan,
    test: Test,
    rates: Vec<f64>,
) -> Row {
    let tensors = directory.tensors();
    let name = directory.find_str("general.name").ok().flatten().map(str::to_owned);
    let stem = args.model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let nodes = plan.ranks.len();
    let label = match test {
        Test::Prompt(tokens) => format!("pp{tokens}"),
        Test::Generate(tokens) => format!("tg{tokens}"),
    };
    let depth = if args.n_depth > 0 { format!(" @ d{}", args.n_depth) } else { String::new() };
    let (mean, stddev, median) = statistics(&rates);
    Row {
        model: name.unwrap_or(stem),
        size_bytes: tensors.iter().map(|tensor| tensor.range.end - tensor.range.start).sum(),
        params: tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum(),
        backend: format!("CPU {}", backend::isa()),
        threads: args.local.threads,
        nodes,
        strategy: strategy(plan),
        transport: match (nodes, args.local.split.transport) {
            (1, _) => "none",
            (_, Transport::Tcp) => "tcp",
            (_, Transport::Rdma) => "rdma",
            (_, Transport::Auto | Transport::Shm) => "shm",
        },
        link_latency_us: args.local.link_latency,
        test: format!("{label}{depth}"),
        tokens_per_sec: rates,
        mean,
        stddev,
        median,
    }
}

/// The strategy's name, with the layers and ranks of its stages.
fn strategy(plan: &Plan) -> String {
    let list = |stage: fn(&protocol::Stage) -> usize| {
        let numbers = plan.stages.iter().map(|at| stage(at).to_string());
        numbers.collect::<Vec<_>>().join("+")
    };
    let layers = list(|stage| stage.layers);
    match (plan.ranks.len(), plan.stages.as_slice()) {
        (1, _) => "none".to_owned(),
        (_, []) => "tensor".to_owned(),
        (ranks, stages) if ranks == stages.len() => format!("pipeline {layers}"),
        _ => format!("hybrid {layers} ({} nodes)", list(|stage| stage.ranks)),
    }
}

/// Mean, sample standard deviation and median.
fn statistics(values: &[f64]) -> (f64, f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0, 0.0);
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let stddev = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    };
    (mean, stddev, median)
}

fn print_markdown(rows: &[Row]) {
    say!(
        "| model | size | params | backend | threads | nodes | strategy | transport | test | t/s | median |"
    );
    say!("| --- | ---: | ---: | --- | ---: | ---: | --- | --- | ---: | ---: | ---: |");
    for row in rows {
        let size = crate::table::bytes(row.size_bytes);
        let params = row.params as f64 / 1e6;
        let Row { model, backend, threads, nodes, strategy, transport, test, .. } = row;
        let (mean, stddev, median) = (row.mean, row.stddev, row.median);
        say!(
            "| {model} | {size} | {params:.2} M | {backend} | {threads} | {nodes} | {strategy} | {transport} | {test} | {mean:.2} ± {stddev:.2} | {median:.2} |"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_the_usual_ones() {
        assert_eq!(statistics(&[]), (0.0, 0.0, 0.0));
        assert_eq!(statistics(&[2.0]), (2.0, 0.0, 2.0));
        assert_eq!(statistics(&[1.0, 3.0]), (2.0, std::f64::consts::SQRT_2, 2.0));
        assert_eq!(statistics(&[9.0, 1.0, 2.0]).2, 2.0);
    }
}
