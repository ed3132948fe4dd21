//! `sinew bench quality`: how well a model predicts a text, in the terms of llama-perplexity; and
//! with a base, which has another run's probabilities for the same tokens, the distance between the
//! two.
//!
//! The text's tokens are cut into chunks as in llama-perplexity. Each begins with the model's
//! beginning-of-sequence token if it has one, its first half is context, and the tokens of its
//! second half are scored.

mod base;
mod scores;

use std::ops::ControlFlow;
use std::path::Path;

use gguf::{Directory, File, Source};
use layout::Outline;
use placement::Plan;
use protocol::{Token, WireType, WorkerDevice};
use serde::Serialize;

use self::base::{Base, BaseWriter, CONTEXT_MAX, Header, MIN_CONTEXT};
use self::scores::{Compared, Comparison, Estimate, Scores, Softmax};
use crate::args::{Output, QualityArgs};
use crate::error::{Doing, Error};
use crate::local_model::{self, Device};
use crate::progress::Shown;
use crate::{json, local};

/// Of a text: more would take days.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// The run and its figures.
#[derive(Debug, Serialize)]
struct Row {
    build_number: &'static str,
    backends: String,
    gpu_info: String,
    model_filename: String,
    model_type: String,
    n_threads: usize,
    type_k: String,
    type_v: String,
    nodes: usize,
    strategy: String,
    transport: &'static str,
    wire_type: WireType,
    n_ctx: usize,
    chunks: usize,
    scored_tokens: usize,
    perplexity: Estimate,
    /// `None` without a base.
    comparison: Option<Comparison>,
}

/// Scores a text with a model on the CPU, or on a device of ggml's libraries.
///
/// # Errors
/// The model, the text or the base cannot be used, or a step failed.
pub fn run(
    args: &QualityArgs,
    device: Option<&WorkerDevice>,
    progress: Shown,
) -> Result<String, Error> {
    local_model::measure(&args.model, device, |file, plan, device| {
        score(args, progress, (file, plan, device))
    })
}

fn score(
    args: &QualityArgs,
    progress: Shown,
    (file, plan, device): (File, Plan, Device<'_>),
) -> Result<String, Error> {
    let directory = file.directory().clone();
    let vocab = Outline::read(&directory)?.config.vocab;
    let mut chunks = chunks(args, &directory, vocab)?;
    let mut scoring = Scoring::new(args, vocab, &mut chunks)?;
    let local_args = &args.model.local;
    let (context, half) = ((args.ctx, 1), args.ctx / 2);
    let mut local =
        local::start_on(device.device, file, plan.clone(), local_args, context, progress)?;
    for (number, chunk) in (1..).zip(&chunks) {
        progress.say(&format!("chunk {number} of {}", chunks.len()));
        scoring.begin(chunk)?;
        local.truncate(0);
        local.feed(&chunk[..half])?;
        let mut next = chunk[half + 1..].iter();
        let mut scored = Ok(());
        local.feed_each(&chunk[half..args.ctx - 1], &mut |logits| {
            let Some(next) = next.next() else { return ControlFlow::Continue(()) };
            scored = scoring.score(logits, *next);
            if scored.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        scored?;
    }
    progress.clear();
    let cache = local.cache_kind().to_string();
    let scores = scoring.finish()?;
    let row = Row {
        build_number: env!("CARGO_PKG_VERSION"),
        backends: device.backends,
        gpu_info: device.gpu_info,
        model_filename: args.model.path.display().to_string(),
        model_type: local_model::name(&directory, &args.model.path),
        n_threads: local_args.threads[0],
        type_k: cache.clone(),
        type_v: cache,
        nodes: plan.ranks.len(),
        strategy: local_model::strategy(&plan),
        transport: local_model::transport(&plan, local_args),
        wire_type: local_args.options.wire_type,
        n_ctx: args.ctx,
        chunks: chunks.len(),
        scored_tokens: scores.len(),
        perplexity: scores.perplexity(),
        comparison: scores.comparison(),
    };
    match args.output {
        Output::Md => Ok(markdown(&row)),
        Output::Json => json(&row),
    }
}

/// The chunks of the text to score, for a model with logits for `vocab` tokens.
fn chunks(
    args: &QualityArgs,
    directory: &Directory,
    vocab: usize,
) -> Result<Vec<Vec<Token>>, Error> {
    let context = args.ctx;
    if !(MIN_CONTEXT..=CONTEXT_MAX).contains(&context) || args.chunks == Some(0) || args.top == 0 {
        return Err(Error::Usage(format!(
            "--ctx must be {MIN_CONTEXT} to {CONTEXT_MAX}, --chunks and --top at least 1"
        )));
    }
    let tokenizer = text::Tokenizer::from_gguf(directory)?;
    let tokens = tokenizer.encode(&read(&args.file)?, text::Special::Plain, true);
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(Error::Usage(format!(
            "the file's tokenizer gives token {token}, and its model ends at {vocab}. The file is broken"
        )));
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let whole = tokens.chunks_exact(context).map(|chunk| {
        let mut chunk = chunk.to_vec();
        chunk[0] = bos.unwrap_or(chunk[0]);
        chunk
    });
    let chunks: Vec<_> = whole.take(args.chunks.unwrap_or(usize::MAX)).collect();
    if chunks.is_empty() {
        return Err(Error::Usage(format!(
            "{} has {} tokens, and a chunk takes {context}. Take a longer text or a smaller --ctx",
            args.file.display(),
            tokens.len()
        )));
    }
    Ok(chunks)
}

fn read(path: &Path) -> Result<String, Error> {
    let doing = || format!("cannot read {}", path.display());
    let bytes = std::fs::metadata(path).doing(doing())?.len();
    if bytes > TEXT_BYTES_MAX {
        return Err(Error::Usage(format!(
            "{} has {bytes} bytes; the most that is read is {TEXT_BYTES_MAX}",
            path.display()
        )));
    }
    std::fs::read_to_string(path).doing(doing())
}

/// Processes the logits, position by position.
struct Scoring {
    softmax: Softmax,
    scores: Scores,
    base: Option<Base>,
    writer: Option<(BaseWriter, usize)>,
}

impl Scoring {
    /// Opens the base and truncates `chunks` to those that it has.
    fn new(args: &QualityArgs, vocab: usize, chunks: &mut Vec<Vec<Token>>) -> Result<Self, Error> {
        let context = args.ctx;
        let base = args.base.as_ref().map(|path| Base::open(path, vocab, context)).transpose()?;
        if let Some(base) = &base {
            chunks.truncate(base.chunks());
        }
        let top = args.top.min(vocab);
        let header = Header { vocab, context, top, chunks: chunks.len() };
        let writer = args.save_base.as_ref().map(|path| BaseWriter::create(path, header));
        let writer = writer.transpose()?.map(|writer| (writer, top));
        Ok(Self { softmax: Softmax::default(), scores: Scores::default(), base, writer })
    }

    fn begin(&mut self, chunk: &[Token]) -> Result<(), Error> {
        if let Some((writer, _)) = &mut self.writer {
            writer.chunk(chunk)?;
        }
        self.base.as_mut().map_or(Ok(()), |base| base.chunk(chunk))
    }

    /// `logits`: `[vocab]`; `next`: the text's next token.
    fn score(&mut self, logits: &[f32], next: Token) -> Result<(), Error> {
        let Self { softmax, scores, base, writer } = self;
        softmax.set(logits);
        let surprise = -softmax.ln(next);
        let mut compared = None;
        if let Some(base) = base {
            let position = base.position()?;
            compared = Some(Compared {
                base_surprise: -f64::from(position.next),
                is_same_top: softmax.best() == position.top[0].0,
                divergence: softmax.divergence(position),
            });
        }
        if let Some((writer, top)) = writer {
            writer.position(&softmax.position(next, *top))?;
        }
        scores.add(surprise, compared);
        Ok(())
    }

    fn finish(self) -> Result<Scores, Error> {
        self.writer.map_or(Ok(()), |(writer, _)| writer.finish())?;
        Ok(self.scores)
    }
}

fn markdown(row: &Row) -> String {
    let Row { model_type, backends, type_k, nodes, strategy, transport, scored_tokens, .. } = row;
    let wire = if row.wire_type == WireType::Q8 { " q8" } else { "" };
    let mut cells = vec![
        ("model", model_type.clone()),
        ("backend", backends.clone()),
        ("cache", type_k.clone()),
        ("nodes", nodes.to_string()),
        ("strategy", strategy.clone()),
        ("transport", format!("{transport}{wire}")),
        ("tokens", scored_tokens.to_string()),
        ("perplexity", plus_minus(row.perplexity, 4)),
    ];
    if let Some(comparison) = &row.comparison {
        let Comparison { ratio, kl_mean, kl_median, kl_99, kl_max, same_top, .. } = *comparison;
        let percent = |part: f64| part * 100.0;
        let same_top = Estimate { value: percent(same_top.value), error: percent(same_top.error) };
        cells.extend([
            ("base", plus_minus(comparison.base_perplexity, 4)),
            ("ratio", plus_minus(ratio, 5)),
            ("KL mean", plus_minus(kl_mean, 6)),
            ("median", format!("{kl_median:.6}")),
            ("99 %", format!("{kl_99:.6}")),
            ("maximum", format!("{kl_max:.6}")),
            ("same top, %", plus_minus(same_top, 2)),
        ]);
    }
    let line = |of: fn(&(&str, String)) -> String| {
        format!("| {} |", cells.iter().map(of).collect::<Vec<_>>().join(" | "))
    };
    let heading = line(|(heading, _)| (*heading).to_owned());
    let under = line(|_| "---".to_owned());
    [heading, under, line(|(_, cell)| cell.clone())].join("\n")
}

fn plus_minus(estimate: Estimate, digits: usize) -> String {
    let Estimate { value, error } = estimate;
    format!("{value:.digits$} ± {error:.digits$}")
}
