//! `sinew bench splits`: the ways to split a model over local nodes, at several delays of their
//! links, measured beside what the cost model says; so that it shows where one overtakes the other.

use std::time::Instant;

use engine::Local;
use gguf::{File, Source};
use layout::Outline;
use placement::{Load, Speed};
use protocol::{GenerateRequest, SplitOptions, Strategy, WireType};
use serde::Serialize;

use crate::args::{BenchOutput, BenchSplitsArgs, LocalArgs};
use crate::commands::bench::statistics;
use crate::commands::{dev, query};
use crate::error::CliError;

/// Tokens per second; the predictions are missing where one node is measured.
#[derive(Debug, Serialize)]
struct Row {
    link_latency_us: u64,
    nodes: usize,
    threads: usize,
    strategy: String,
    prefill: f64,
    prefill_predicted: Option<f64>,
    decode: f64,
    decode_predicted: Option<f64>,
    /// Of all requests together.
    parallel: f64,
}

/// Medians of one configuration.
struct Measured {
    prefill: f64,
    decode: f64,
    parallel: f64,
}

pub fn run(args: &BenchSplitsArgs) -> Result<(), CliError> {
    if [args.n_prompt, args.n_gen, args.parallel, args.repetitions].contains(&0) {
        let text = "-p, -n, --parallel and -r must be at least 1".to_owned();
        return Err(CliError::Usage(text));
    }
    let file = File::open(&args.model)?;
    let nodes = args.local_nodes;
    let one = measure(args, &local_args(args, Strategy::Tensor, 1, 1, 0))?;
    let all = measure(args, &local_args(args, Strategy::Tensor, 1, nodes, 0))?;
    let mut rows = vec![row("one node", (1, 1, 0), &one, None)];
    rows.push(row("one node, all threads", (1, nodes, 0), &all, None));
    let speed = speed(&Outline::read(file.directory())?, &one, &all);
    let load = Load { users: 1, prompt_tokens: args.n_prompt, answer_tokens: args.n_gen };
    for latency in &args.link_latency {
        for strategy in &args.strategy {
            let mut local = local_args(args, *strategy, nodes, 1, *latency);
            let plan = dev::plan_for(file.directory(), &local, Some(speed), Some(load))?;
            // The same cut is predicted and measured.
            let stages = &plan.split.stages;
            local.options.stages = Some(stages.iter().map(|stage| stage.ranks).collect());
            local.options.stage_layers = Some(stages.iter().map(|stage| stage.layers).collect());
            if stages.is_empty() {
                (local.options.stages, local.options.stage_layers) = (None, None);
            }
            // Answers are measured after a prompt of one token.
            let short = Load { prompt_tokens: 1, ..load };
            let answer = dev::plan_for(file.directory(), &local, Some(speed), Some(short))?;
            let predicted = plan.prediction.zip(answer.prediction);
            let predicted = predicted.map(|(prompt, answer)| {
                (prompt.prefill_tokens_per_sec, answer.decode_tokens_per_sec)
            });
            let found = measure(args, &local)?;
            let name = super::bench::strategy(&plan);
            rows.push(row(&name, (nodes, 1, *latency), &found, predicted));
        }
    }
    match args.output {
        BenchOutput::Md => print_markdown(&rows, args),
        BenchOutput::Json => query::print_json(&rows)?,
    }
    Ok(())
}

fn local_args(
    args: &BenchSplitsArgs,
    strategy: Strategy,
    nodes: usize,
    threads: usize,
    link_latency: u64,
) -> LocalArgs {
    // A single node has no stages to cut.
    let stage_layers = args.stage_layers.clone().filter(|_| strategy == Strategy::Pipeline);
    let shares_layers = nodes > 1 && strategy != Strategy::Pipeline;
    LocalArgs {
        local_nodes: nodes,
        options: SplitOptions {
            strategy,
            stage_layers,
            cache_type: args.cache_type,
            wire_type: if shares_layers { args.wire_type } else { WireType::F32 },
            transport: args.transport,
            ..SplitOptions::default()
        },
        link_latency,
        ring: false,
        threads: vec![threads],
    }
}

fn measure(args: &BenchSplitsArgs, local: &LocalArgs) -> Result<Measured, CliError> {
    let (prompt, answer, parallel) = (args.n_prompt, args.n_gen, args.parallel);
    let context = prompt.max(answer) + 2;
    let mut local = dev::start_for(&args.model, local, context, parallel)?;
    let vocab = local.rank().config().vocab as u32;
    let tokens: Vec<u32> =
        (0..prompt as u32).map(|at| at.wrapping_mul(2_654_435_761) % vocab).collect();
    let request = |at: usize| GenerateRequest {
        prompt: vec![tokens[at % tokens.len()]],
        max_tokens: answer,
        ..GenerateRequest::default()
    };
    let requests = || (0..parallel).map(request).collect::<Vec<_>>();
    let mut rates = |count: usize, work: &mut dyn FnMut(&mut Local) -> Result<(), CliError>| {
        let mut samples = Vec::new();
        // The first run warms caches and pages.
        for run in 0..=args.repetitions {
            local.truncate(0);
            let started = Instant::now();
            work(&mut local)?;
            if run > 0 {
                samples.push(count as f64 / started.elapsed().as_secs_f64());
            }
        }
        Ok::<f64, CliError>(statistics(&samples).2)
    };
    Ok(Measured {
        prefill: rates(prompt, &mut |local| Ok(local.next(&tokens).map(drop)?))?,
        decode: rates(answer, &mut |local| Ok(local.generate(&tokens[..1], answer).map(drop)?))?,
        parallel: rates(parallel * answer, &mut |local| Ok(local.serve(requests()).map(drop)?))?,
    })
}

/// What one thread does, and all of them together, by what was measured of the model on one node.
fn speed(model: &Outline, one: &Measured, all: &Measured) -> Speed {
    let of = |measured: &Measured| placement::Measured {
        decode_secs: 1.0 / measured.decode,
        prefill_secs: 1.0 / measured.prefill,
    };
    Speed::calibrated(model, of(one), of(all), crate::speed::measure(1).operation_secs)
}

fn row(
    strategy: &str,
    (nodes, threads, link_latency_us): (usize, usize, u64),
    found: &Measured,
    predicted: Option<(f64, f64)>,
) -> Row {
    Row {
        link_latency_us,
        nodes,
        threads,
        strategy: strategy.to_owned(),
        prefill: found.prefill,
        prefill_predicted: predicted.map(|(prefill, _)| prefill),
        decode: found.decode,
        decode_predicted: predicted.map(|(_, decode)| decode),
        parallel: found.parallel,
    }
}

fn print_markdown(rows: &[Row], args: &BenchSplitsArgs) {
    let BenchSplitsArgs { n_prompt, n_gen, parallel, .. } = args;
    say!(
        "| link, us | split | pp{n_prompt}, t/s | predicted | tg{n_gen}, t/s | predicted | {parallel} x tg{n_gen}, t/s |"
    );
    say!("| ---: | --- | ---: | ---: | ---: | ---: | ---: |");
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    for row in rows {
        let latency = if row.nodes == 1 { "-".to_owned() } else { row.link_latency_us.to_string() };
        say!(
            "| {latency} | {} | {:.1} | {} | {:.1} | {} | {:.1} |",
            row.strategy,
            row.prefill,
            number(row.prefill_predicted),
            row.decode,
            number(row.decode_predicted),
            row.parallel,
        );
    }
}
