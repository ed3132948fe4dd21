//! `sinew bench model`: prefill and decode speed, in the rows and under the keys of llama-bench, so
//! that scripts for one read the other; also the time and memory of loading.

use std::time::{Duration, Instant};

use backend::CacheKind;
use engine::AnyLocal;
use gguf::{Directory, File, ReadError, Source, Strided};
use placement::Plan;
use protocol::{ExpertStats, WorkerDevice};
use serde::Serialize;

use crate::args::{LocalArgs, LocalModelArgs, ModelArgs, Output};
use crate::error::{Doing, Error};
use crate::local_model::{self, Device};
use crate::progress::Shown;
use crate::statistics::statistics;
use crate::{json, local};

/// One measured test. The first keys are those of llama-bench.
#[derive(Debug, Serialize)]
struct Row {
    build_number: &'static str,
    backends: String,
    gpu_info: String,
    model_filename: String,
    model_type: String,
    model_size: u64,
    model_n_params: u64,
    n_threads: usize,
    type_k: String,
    type_v: String,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    avg_ns: f64,
    stddev_ns: f64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
    median_ts: f64,
    test: String,
    nodes: usize,
    /// With the layers of each stage.
    strategy: String,
    transport: &'static str,
    wire_type: protocol::WireType,
    link_latency_us: u64,
    load: Load,
    /// Of rank 0, if it reads some from disk.
    experts: Option<Experts>,
}

/// Experts from disk, in the counted runs of a test.
#[derive(Debug, Clone, Copy, Serialize)]
struct Experts {
    hits: u64,
    misses: u64,
    read_bytes: u64,
    /// The part of the time in which the disk had work, and of that in which ranks waited for it.
    disk_part: f64,
    wait_part: f64,
    memory_bytes: u64,
}

/// Time and memory of loading.
#[derive(Debug, Clone, Copy, Serialize)]
struct Load {
    load_ns: u64,
    /// A plain read of the file just before, if requested.
    read_ns: Option<u64>,
    /// Weights and cache of rank 0, in bytes.
    weight_bytes: u64,
    kv_bytes: u64,
    /// Peak memory of this process with all its ranks, in bytes; Linux only.
    peak_bytes: Option<u64>,
}

/// The shared settings of a loaded model's tests.
#[derive(Debug, Clone, Copy)]
struct Setup {
    threads: usize,
    cache: CacheKind,
    load: Load,
}

/// One test, run after the context holds `depth` tokens.
#[derive(Debug, Clone, Copy)]
struct Test {
    kind: Kind,
    tokens: usize,
    depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prompt,
    Generate,
}

/// Measures a model on the CPU, or on a device of ggml's libraries.
///
/// # Errors
/// The file, the split or the device cannot be used, or a step failed.
pub fn run(
    args: &ModelArgs,
    device: Option<&WorkerDevice>,
    progress: Shown,
) -> Result<String, Error> {
    local_model::measure(&args.model, device, |file, plan, device| {
        let rows = rows((args, progress), &file, &plan, &device)?;
        match args.output {
            Output::Md => Ok(markdown(&rows)),
            Output::Json => json(&rows),
        }
    })
}

fn rows(
    (args, progress): (&ModelArgs, Shown),
    file: &File,
    plan: &Plan,
    device: &Device<'_>,
) -> Result<Vec<Row>, Error> {
    let tests = tests(args);
    if args.made_up && plan.ranks.len() > 1 {
        let what = "--made-up works on one rank only; this plan has";
        return Err(Error::Usage(format!("{what} {}", plan.ranks.len())));
    }
    let context = tests.iter().map(|test| test.depth + test.tokens + 1).max().unwrap_or(1);
    let directory = file.directory();
    let mut rows = Vec::new();
    let path = &args.model.path;
    for threads in &args.model.local.threads {
        let read_ns = args.read.then(|| read(file)).transpose();
        let read_ns = read_ns.doing(format!("cannot read {}", path.display()))?;
        let local_args = LocalArgs { threads: vec![*threads], ..args.model.local.clone() };
        let started = Instant::now();
        let (file, of, context) = (checkpoint::open(path)?, device.device, (context, 1));
        let mut local = local::start_on(of, file, plan.clone(), &local_args, context, progress)?;
        let load = Load {
            load_ns: started.elapsed().as_nanos() as u64,
            read_ns,
            weight_bytes: local.weight_bytes(),
            kv_bytes: local.kv_bytes(),
            peak_bytes: peak_bytes(),
        };
        let setup = Setup { threads: *threads, cache: local.cache_kind(), load };
        for test in &tests {
            let (times, before) = measure(&mut *local, *test, args)?;
            let took_us = times.iter().sum::<Duration>().as_micros() as f64;
            let after = local.expert_stats().zip(before);
            let experts = after.map(|(after, before)| experts(&after.since(&before), took_us));
            let row = row(args, directory, device, plan, *test, times, setup);
            rows.push(Row { experts, ..row });
        }
    }
    Ok(rows)
}

fn experts(stats: &ExpertStats, took_us: f64) -> Experts {
    Experts {
        hits: stats.hits,
        misses: stats.misses,
        read_bytes: stats.read_bytes,
        disk_part: stats.read_us as f64 / took_us,
        wait_part: stats.wait_us as f64 / took_us,
        memory_bytes: stats.memory_bytes,
    }
}

/// All tests at each depth, in sequence.
fn tests(args: &ModelArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for depth in args.n_depth.iter().copied() {
        let prompts = args.n_prompt.iter().map(|tokens| (Kind::Prompt, *tokens));
        let answers = args.n_gen.iter().map(|tokens| (Kind::Generate, *tokens));
        let wanted = prompts.chain(answers).filter(|(_, tokens)| *tokens > 0);
        tests.extend(wanted.map(|(kind, tokens)| Test { kind, tokens, depth }));
    }
    tests
}

/// The time of reading the whole file, from disk or from the system's cache.
fn read(file: &File) -> std::io::Result<u64> {
    const STEP_BYTES: u64 = 2 << 20;
    let mut buffer = vec![0; STEP_BYTES as usize];
    let started = Instant::now();
    for tensor in file.directory().tensors() {
        for start in tensor.range.clone().step_by(STEP_BYTES as usize) {
            let piece = STEP_BYTES.min(tensor.range.end - start);
            let pieces = Strided { start, piece, stride: piece, count: 1 };
            let read = file.read(pieces, &mut buffer[..piece as usize]);
            read.map_err(|error| match error {
                ReadError::File(source) | ReadError::Peer(source) => source,
                other => std::io::Error::other(other),
            })?;
        }
    }
    Ok(started.elapsed().as_nanos() as u64)
}

/// The high-water mark of this process's resident memory, if the system reports it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The time of every counted run, and what experts on disk had cost before them: one run before
/// them warms caches and pages.
fn measure(
    local: &mut dyn AnyLocal,
    test: Test,
    args: &ModelArgs,
) -> Result<(Vec<Duration>, Option<ExpertStats>), Error> {
    let vocab = local.config().vocab as u32;
    let tokens = |first: usize, count: usize| -> Vec<u32> {
        // Any tokens will do; neighbours should differ, and so should runs: experts that one has
        // used are in memory.
        let places = first as u32..(first + count) as u32;
        places.map(|at| at.wrapping_mul(2_654_435_761) % vocab).collect()
    };
    local.truncate(0);
    let (mut times, mut before) = (Vec::new(), None);
    for run in 0..=args.repetitions {
        if run == 1 {
            before = local.expert_stats();
        }
        if local.truncate(test.depth) < test.depth {
            match args.made_up {
                true => local.make_up(test.depth)?,
                false => drop(local.feed_and_keep(&tokens(0, test.depth))?),
            }
        }
        let input = tokens(test.depth + run * test.tokens, test.tokens);
        let started = Instant::now();
        match test.kind {
            Kind::Prompt => drop(local.feed(&input)?),
            Kind::Generate => {
                for token in input {
                    local.feed(&[token])?;
                }
            }
        }
        if run > 0 {
            times.push(started.elapsed());
        }
    }
    Ok((times, before))
}

fn row(
    args: &ModelArgs,
    directory: &Directory,
    device: &Device<'_>,
    plan: &Plan,
    test: Test,
    times: Vec<Duration>,
    setup: Setup,
) -> Row {
    let tensors = directory.tensors();
    let LocalModelArgs { path, local, .. } = &args.model;
    let nodes = plan.ranks.len();
    let label = if test.kind == Kind::Prompt { "pp" } else { "tg" };
    let depth = if test.depth > 0 { format!(" @ d{}", test.depth) } else { String::new() };
    let of = |kind| if test.kind == kind { test.tokens } else { 0 };
    let samples_ns: Vec<u64> = times.iter().map(|time| time.as_nanos() as u64).collect();
    let rate = |time: &Duration| test.tokens as f64 / time.as_secs_f64();
    let samples_ts: Vec<f64> = times.iter().map(rate).collect();
    let in_ns: Vec<f64> = samples_ns.iter().map(|ns| *ns as f64).collect();
    let (avg_ns, stddev_ns, _) = statistics(&in_ns);
    let (avg_ts, stddev_ts, median_ts) = statistics(&samples_ts);
    Row {
        build_number: env!("CARGO_PKG_VERSION"),
        backends: device.backends.clone(),
        gpu_info: device.gpu_info.clone(),
        model_filename: path.display().to_string(),
        model_type: local_model::name(directory, path),
        model_size: tensors.iter().map(|tensor| tensor.range.end - tensor.range.start).sum(),
        model_n_params: tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum(),
        n_threads: setup.threads,
        type_k: setup.cache.to_string(),
        type_v: setup.cache.to_string(),
        n_prompt: of(Kind::Prompt),
        n_gen: of(Kind::Generate),
        n_depth: test.depth,
        avg_ns,
        stddev_ns,
        avg_ts,
        stddev_ts,
        samples_ns,
        samples_ts,
        median_ts,
        test: format!("{label}{}{depth}", test.tokens),
        nodes,
        strategy: local_model::strategy(plan),
        transport: local_model::transport(plan, local),
        wire_type: local.options.wire_type,
        link_latency_us: local.link_latency,
        load: setup.load,
        experts: None,
    }
}

fn markdown(rows: &[Row]) -> String {
    let heading = "| model | size | params | backend | threads | type_k | type_v | nodes | strategy | transport | test | t/s | median |";
    let under =
        "| --- | ---: | ---: | --- | ---: | --- | --- | ---: | --- | --- | ---: | ---: | ---: |";
    let mut lines = vec![heading.to_owned(), under.to_owned()];
    lines.extend(rows.iter().map(markdown_row));
    lines.extend(rows.iter().filter_map(|row| Some(describe_experts(&row.test, row.experts?))));
    let mut loads = rows.iter().map(|row| (row.n_threads, row.load)).collect::<Vec<_>>();
    loads.dedup_by_key(|(threads, _)| *threads);
    lines.extend(loads.into_iter().map(|(threads, load)| describe_load(threads, &load)));
    lines.join("\n")
}

fn markdown_row(row: &Row) -> String {
    let size = crate::size(row.model_size);
    let params = row.model_n_params as f64 / 1e6;
    let Row {
        model_type,
        backends,
        n_threads,
        type_k,
        type_v,
        nodes,
        strategy,
        transport,
        wire_type,
        test,
        ..
    } = row;
    let wire = if *wire_type == protocol::WireType::Q8 { " q8" } else { "" };
    let (mean, stddev, median) = (row.avg_ts, row.stddev_ts, row.median_ts);
    format!(
        "| {model_type} | {size} | {params:.2} M | {backends} | {n_threads} | {type_k} | {type_v} | {nodes} | {strategy} | {transport}{wire} | {test} | {mean:.2} ± {stddev:.2} | {median:.2} |"
    )
}

fn describe_experts(test: &str, experts: Experts) -> String {
    let uses = (experts.hits + experts.misses).max(1);
    format!(
        "\n{test}: {:.1} % of experts' uses found them in memory ({} of it), {} were read from disk, \
         which had work for {:.0} % of the time and was waited for in {:.0} %",
        100.0 * experts.hits as f64 / uses as f64,
        crate::size(experts.memory_bytes),
        crate::size(experts.read_bytes),
        100.0 * experts.disk_part,
        100.0 * experts.wait_part
    )
}

fn describe_load(threads: usize, load: &Load) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let s = if threads == 1 { "" } else { "s" };
    let mut text = format!("\nloaded in {:.2} s with {threads} thread{s}", seconds(load.load_ns));
    if let Some(read_ns) = load.read_ns {
        text += &format!("; a plain read of the file took {:.2} s", seconds(read_ns));
    }
    if let Some(bytes) = load.peak_bytes {
        text += &format!("; most memory so far {}", crate::size(bytes));
    }
    text
}
