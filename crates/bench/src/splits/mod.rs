//! `sinew bench splits`: the ways to split a model over local nodes, at several delays of their
//! links, measured and predicted by the cost model; shows where one overtakes the other.
//!
//! The prediction of each split is based on the speed of nodes with the whole model in the same
//! rounds: a machine under other load slows both alike.

mod alone;

use std::time::Instant;

use engine::AnyLocal;
use gguf::{Directory, Source};
use layout::Outline;
use placement::{Load, Measured, Prediction, Speed};
use protocol::{GenerateRequest, SplitOptions, Strategy, WireType};
use serde::Serialize;

use crate::args::{LocalArgs, Output, SplitsArgs};
use crate::error::Error;
use crate::progress::Shown;
use crate::statistics::statistics;
use crate::{json, local, local_model};
use alone::Alone;

/// One configuration; the predictions are absent for a single node.
#[derive(Debug, Serialize)]
struct Row {
    link_latency_us: u64,
    nodes: usize,
    threads: usize,
    strategy: String,
    measured: Rates,
    /// The basis of the predictions: a node with the whole model by itself, and each while all
    /// compute.
    whole: Option<[Measured; 2]>,
    operation_secs: Option<f64>,
    predicted: Option<Rates>,
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, Serialize)]
struct Rates {
    prefill: f64,
    decode: f64,
    /// Of all requests together.
    parallel: f64,
}

/// A measurement, taken once in each round.
#[derive(Debug, Clone, Copy)]
enum Test {
    /// A prompt of this many tokens.
    Prompt(usize),
    /// An answer of this many tokens, after a prompt of one.
    Answer(usize),
    /// Concurrent answers: their number, and the tokens of each.
    Together(usize, usize),
}

impl Test {
    /// Tokens per second.
    fn rate(self, local: &mut dyn AnyLocal) -> Result<f64, Error> {
        let vocab = local.config().vocab as u32;
        let token = |at: usize| (at as u32).wrapping_mul(2_654_435_761) % vocab;
        let request = |at, tokens| GenerateRequest {
            prompt: vec![token(at)],
            max_tokens: tokens,
            ..GenerateRequest::default()
        };
        local.truncate(0);
        let started = Instant::now();
        let count = match self {
            Self::Prompt(tokens) => {
                local.next(&(0..tokens).map(token).collect::<Vec<_>>())?;
                tokens
            }
            Self::Answer(tokens) => {
                local.generate(&[token(0)], tokens)?;
                tokens
            }
            Self::Together(requests, tokens) => {
                local.serve((0..requests).map(|at| request(at, tokens)).collect())?;
                requests * tokens
            }
        };
        Ok(count as f64 / started.elapsed().as_secs_f64())
    }
}

/// Measures each split at each delay.
///
/// # Errors
/// The options are invalid, the model cannot be used, or a step failed.
pub fn run(args: &SplitsArgs, progress: Shown) -> Result<String, Error> {
    if [args.n_prompt, args.n_gen, args.parallel, args.repetitions].contains(&0) {
        let text = "-p, -n, --parallel and -r must be at least 1".to_owned();
        return Err(Error::Usage(text));
    }
    let file = checkpoint::open(&args.model)?;
    let nodes = args.local_nodes;
    let mut rows = Vec::new();
    for (name, threads) in [("one node", 1), ("one node, all threads", nodes)] {
        let asked = local_args(args, Strategy::Tensor, 1, threads, 0);
        let mut local = start(args, &asked, progress)?;
        let measured = medians(args, || all(args, &mut *local))?;
        rows.push(row(name, (1, threads, 0), measured));
    }
    let one = local_args(args, Strategy::Tensor, 1, 1, 0);
    let alone = Alone::start(&args.model, &one, context(args), nodes, progress)?;
    for latency in &args.link_latency {
        for strategy in &args.strategy {
            let local = local_args(args, *strategy, nodes, 1, *latency);
            rows.push(measure(args, file.directory(), &alone, local, progress)?);
        }
    }
    match args.output {
        Output::Md => Ok(markdown(&rows, args)),
        Output::Json => json(&rows),
    }
}

fn local_args(
    args: &SplitsArgs,
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
        expert_folder: None,
        disk_limit: None,
        ring: false,
        threads: vec![threads],
    }
}

fn context(args: &SplitsArgs) -> usize {
    args.n_prompt.max(args.n_gen) + 2
}

fn start(
    args: &SplitsArgs,
    asked: &LocalArgs,
    progress: Shown,
) -> Result<Box<dyn AnyLocal>, Error> {
    local::start_for(&args.model, asked, (context(args), args.parallel), progress)
}

/// One round of all tests.
fn all(args: &SplitsArgs, local: &mut dyn AnyLocal) -> Result<Rates, Error> {
    Ok(Rates {
        prefill: Test::Prompt(args.n_prompt).rate(local)?,
        decode: Test::Answer(args.n_gen).rate(local)?,
        parallel: Test::Together(args.parallel, args.n_gen).rate(local)?,
    })
}

/// Medians over several rounds, after one that warms caches and pages.
fn medians(
    args: &SplitsArgs,
    mut round: impl FnMut() -> Result<Rates, Error>,
) -> Result<Rates, Error> {
    let rounds = (0..=args.repetitions).map(|_| round()).collect::<Result<Vec<_>, _>>()?;
    Ok(median(&rounds[1..]))
}

fn median(rounds: &[Rates]) -> Rates {
    let of = |rate: fn(&Rates) -> f64| statistics(&rounds.iter().map(rate).collect::<Vec<_>>()).2;
    Rates {
        prefill: of(|rates| rates.prefill),
        decode: of(|rates| rates.decode),
        parallel: of(|rates| rates.parallel),
    }
}

/// Measures a split and its nodes by themselves, in turns.
fn measure(
    args: &SplitsArgs,
    directory: &Directory,
    alone: &Alone,
    mut asked: LocalArgs,
    progress: Shown,
) -> Result<Row, Error> {
    let (nodes, latency) = (asked.local_nodes, asked.link_latency);
    // The same cut in every round and in the prediction, as for equal nodes.
    let plan = local::plan_for(directory, &asked, Some(equal()), None)?;
    if !plan.split.stages.is_empty() {
        let stages = &plan.split.stages;
        asked.options.stages = Some(stages.iter().map(|stage| stage.ranks).collect());
        asked.options.stage_layers = Some(stages.iter().map(|stage| stage.layers).collect());
    }
    let (prompt, answer) = (Test::Prompt(args.n_prompt), Test::Answer(args.n_gen));
    let mut local = start(args, &asked, progress)?;
    let (mut one, mut each) = (Vec::new(), Vec::new());
    let measured = medians(args, || {
        one.push(alone.one(prompt, answer)?);
        let split = all(args, &mut *local)?;
        each.push(alone.each(prompt, answer)?);
        Ok(split)
    })?;
    let whole = [&one[1..], &each[1..]].map(median_of_nodes);
    let operation_secs = crate::speed::measure(1).operation_secs;
    let model = Outline::read(directory)?;
    let together = (nodes, whole[1]);
    let speed = Speed::calibrated(&model, load(args), whole[0], together, operation_secs);
    Ok(Row {
        whole: Some(whole),
        operation_secs: Some(operation_secs),
        predicted: predict(args, directory, &asked, speed)?,
        ..row(&local_model::strategy(&plan), (nodes, 1, latency), measured)
    })
}

/// Any speed: with equal speeds, layers are cut evenly.
fn equal() -> Speed {
    let rates = placement::Rates {
        read_bytes_per_sec: 1e10,
        quantised_ops_per_sec: 1e11,
        float_ops_per_sec: 1e11,
    };
    Speed::alone(rates, 0.0)
}

fn median_of_nodes(rounds: &[Measured]) -> Measured {
    let of =
        |rate: fn(&Measured) -> f64| statistics(&rounds.iter().map(rate).collect::<Vec<_>>()).2;
    Measured { decode: of(|rates| rates.decode), prefill: of(|rates| rates.prefill) }
}

fn load(args: &SplitsArgs) -> Load {
    Load { users: 1, prompt_tokens: args.n_prompt, answer_tokens: args.n_gen }
}

fn predict(
    args: &SplitsArgs,
    directory: &Directory,
    asked: &LocalArgs,
    speed: Speed,
) -> Result<Option<Rates>, Error> {
    let of = |load| -> Result<Option<Prediction>, Error> {
        Ok(local::plan_for(directory, asked, Some(speed), Some(load))?.prediction)
    };
    // Answers are measured after a prompt of one token.
    let short = Load { prompt_tokens: 1, ..load(args) };
    let prompt = of(load(args))?;
    let answer = of(short)?;
    let together = of(Load { users: args.parallel, ..short })?;
    Ok(prompt.zip(answer).zip(together).map(|((prompt, answer), together)| Rates {
        prefill: prompt.prefill_tokens_per_sec,
        decode: answer.decode_tokens_per_sec,
        parallel: together.total_tokens_per_sec,
    }))
}

fn row(
    strategy: &str,
    (nodes, threads, link_latency_us): (usize, usize, u64),
    measured: Rates,
) -> Row {
    let (strategy, whole) = (strategy.to_owned(), None);
    let (operation_secs, predicted) = (None, None);
    Row { link_latency_us, nodes, threads, strategy, measured, whole, operation_secs, predicted }
}

fn markdown(rows: &[Row], args: &SplitsArgs) -> String {
    let SplitsArgs { n_prompt, n_gen, parallel, .. } = args;
    let heading = format!(
        "| link, us | split | pp{n_prompt}, t/s | predicted | tg{n_gen}, t/s | predicted | {parallel} x tg{n_gen}, t/s | predicted |"
    );
    let under = "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |".to_owned();
    let lines = [heading, under].into_iter().chain(rows.iter().map(markdown_row));
    lines.collect::<Vec<_>>().join("\n")
}

fn markdown_row(row: &Row) -> String {
    let latency = if row.nodes == 1 { "-".to_owned() } else { row.link_latency_us.to_string() };
    let cells = |of: fn(&Rates) -> f64| {
        let measured = of(&row.measured);
        let predicted = row.predicted.as_ref().map(|rates| {
            let rate = of(rates);
            format!("{rate:.1} ({:+.0} %)", (rate / measured - 1.0) * 100.0)
        });
        format!("{measured:.1} | {}", predicted.unwrap_or("-".to_owned()))
    };
    format!(
        "| {latency} | {} | {} | {} | {} |",
        row.strategy,
        cells(|rates| rates.prefill),
        cells(|rates| rates.decode),
        cells(|rates| rates.parallel),
    )
}
