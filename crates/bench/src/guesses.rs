//! `sinew bench guesses`: what guessed tokens gain in answers to questions, one at a time and drawn
//! greedily: without guesses, with lookup in the text, and with what else guesses: the model's own
//! MTP block, or a draft model. The ways alternate, and must give the same answers.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use engine::AnyLocal;
use gguf::{Directory, File, Source};
use placement::Plan;
use protocol::{GenerateRequest, Generation, Guesses, Speculation, Token, WorkerEvent};
use serde::Serialize;
use text::{ChatTemplate, Message, Render, Tokenizer};

use crate::args::{GuessesArgs, LocalArgs, Output};
use crate::error::{Doing, Error};
use crate::progress::Shown;
use crate::statistics::statistics;
use crate::{json, local};

/// Of a file of questions.
const QUESTIONS_BYTES_MAX: u64 = 1 << 20;

/// What a way gave, over all questions.
#[derive(Debug, Serialize)]
struct Row {
    way: &'static str,
    nodes: usize,
    link_latency_us: u64,
    questions: usize,
    /// After the first token of each answer; the median of the rounds, and all of them.
    tokens_per_sec: f64,
    samples: Vec<f64>,
    /// Relative to the way without guesses, in the same round; the median.
    ratio: f64,
    tried: u64,
    right: u64,
}

/// A way to guess, on ranks of its own. Rank 0 is a thread apart, since a rank pins its thread.
struct Way {
    name: &'static str,
    ask: Sender<Vec<GenerateRequest>>,
    answers: Receiver<Result<Vec<Answered>, Error>>,
    samples: Vec<f64>,
    guesses: Guesses,
}

/// An answer, and what it took.
struct Answered {
    tokens: Vec<Token>,
    secs: f64,
    guesses: Guesses,
}

/// Measures the ways to guess that the options allow.
///
/// # Errors
/// The model or the questions cannot be used, a step failed, or guesses changed an answer.
pub fn run(args: &GuessesArgs, progress: Shown) -> Result<String, Error> {
    if args.n_gen < 2 || args.repetitions == 0 {
        return Err(Error::Usage("-n must be at least 2, and -r at least 1".to_owned()));
    }
    let file = checkpoint::open(&args.model)?;
    let requests = requests(args, file.directory())?;
    let longest = requests.iter().map(|request| request.prompt.len()).max().unwrap_or(0);
    let mut ways = ways(args, &file, longest + args.n_gen + 1, progress)?;
    for way in &mut ways {
        // Caches, pages, and measured costs.
        way.ask(&requests[..1])?;
    }
    for round in 0..args.repetitions {
        compare(&mut ways, &requests, round)?;
    }
    let rows = rows(args, &ways, requests.len());
    match args.output {
        Output::Md => Ok(markdown(&rows)),
        Output::Json => json(&rows),
    }
}

/// The questions, a line each, as the model's chats.
fn requests(args: &GuessesArgs, directory: &Directory) -> Result<Vec<GenerateRequest>, Error> {
    let tokenizer = Tokenizer::from_gguf(directory)?;
    let template = ChatTemplate::from_gguf(directory, &tokenizer);
    let request = |question: &str| {
        let render = Render { add_generation_prompt: true, ..Render::default() };
        let prompt = template.prompt(&tokenizer, &[Message::new("user", question)], &render)?;
        Ok(GenerateRequest {
            prompt: prompt.tokens,
            max_tokens: args.n_gen,
            end_tokens: tokenizer.end_ids().to_vec(),
            ..GenerateRequest::default()
        })
    };
    let text = questions(&args.questions)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let requests = lines.map(request).collect::<Result<Vec<_>, Error>>()?;
    match requests.is_empty() {
        true => Err(Error::Usage(format!("{} has no question", args.questions.display()))),
        false => Ok(requests),
    }
}

fn questions(path: &Path) -> Result<String, Error> {
    let what = || format!("cannot read {}", path.display());
    let bytes = std::fs::metadata(path).doing(what())?.len();
    if bytes > QUESTIONS_BYTES_MAX {
        let what =
            format!("{} has {bytes} bytes, of at most {QUESTIONS_BYTES_MAX}", path.display());
        return Err(Error::Usage(what));
    }
    std::fs::read_to_string(path).doing(what())
}

/// The ways, the one without guesses first.
fn ways(
    args: &GuessesArgs,
    file: &File,
    context: usize,
    progress: Shown,
) -> Result<Vec<Way>, Error> {
    let plan = local::plan(file.directory(), &args.local)?;
    let options = &args.local.options;
    let further = match (&options.draft, plan.split.mtp) {
        (Some(_), _) => Some("lookup and draft"),
        (None, true) => Some("lookup and MTP block"),
        (None, false) => None,
    };
    let way = |name, speculation, has_more: bool| {
        let mut plan: Plan = plan.clone();
        let mut local: LocalArgs = args.local.clone();
        plan.split.mtp &= has_more;
        local.options.speculation = speculation;
        local.options.draft = local.options.draft.filter(|_| has_more);
        let model = args.model.clone();
        Way::start(name, move || {
            let file = checkpoint::open(&model)?;
            local::start_on(None, file, plan, &local, (context, 1), progress)
        })
    };
    let both = [("none", Speculation::Off, false), ("lookup", Speculation::Prompt, false)];
    let all = both.into_iter().chain(further.map(|name| (name, Speculation::Prompt, true)));
    Ok(all.map(|(name, speculation, has_more)| way(name, speculation, has_more)).collect())
}

/// One round: every way answers all questions, in turns that differ from round to round.
fn compare(ways: &mut [Way], requests: &[GenerateRequest], round: usize) -> Result<(), Error> {
    let mut due: Option<Vec<Vec<Token>>> = None;
    for turn in 0..ways.len() {
        let at = (turn + round) % ways.len();
        let way = &mut ways[at];
        let answers = way.ask(requests)?;
        // The first token of an answer is the prompt's.
        let tokens: usize = answers.iter().map(|one| one.tokens.len().saturating_sub(1)).sum();
        let secs: f64 = answers.iter().map(|one| one.secs).sum();
        way.samples.push(tokens as f64 / secs);
        let guesses = answers.iter().map(|one| one.guesses);
        way.guesses = guesses.fold(way.guesses, Guesses::plus);
        let texts: Vec<Vec<Token>> = answers.into_iter().map(|one| one.tokens).collect();
        let due = due.get_or_insert_with(|| texts.clone());
        if let Some(other) = (0..texts.len()).find(|other| texts[*other] != due[*other]) {
            let what = format!("question {} has another answer with {}", other + 1, way.name);
            return Err(Error::Failed(what));
        }
    }
    Ok(())
}

impl Way {
    fn start(
        name: &'static str,
        load: impl FnOnce() -> Result<Box<dyn AnyLocal>, Error> + Send + 'static,
    ) -> Self {
        let ((ask, asked), (answer, answers)) = (channel(), channel());
        thread::spawn(move || {
            let mut local = match load() {
                Ok(local) => local,
                // The other end waits for an answer.
                Err(error) => return drop(answer.send(Err(error))),
            };
            for requests in asked {
                let _ = answer.send(answered(&mut *local, requests));
            }
        });
        Self { name, ask, answers, samples: Vec::new(), guesses: Guesses::default() }
    }

    fn ask(&mut self, requests: &[GenerateRequest]) -> Result<Vec<Answered>, Error> {
        // A thread that has ended has said why.
        let _ = self.ask.send(requests.to_vec());
        let gone = || Error::Failed("a rank ended".to_owned());
        self.answers.recv().unwrap_or_else(|_| Err(gone()))
    }
}

/// The ranks have room for one request, so the others wait.
fn answered(
    local: &mut dyn AnyLocal,
    requests: Vec<GenerateRequest>,
) -> Result<Vec<Answered>, Error> {
    let none = || Answered { tokens: Vec::new(), secs: 0.0, guesses: Guesses::default() };
    let mut answers: Vec<Answered> = requests.iter().map(|_| none()).collect();
    local.run(requests, &mut |event| match event {
        WorkerEvent::Token { request, answer } => {
            answers[request as usize].tokens.push(answer.token);
        }
        WorkerEvent::Done(Generation { request, decode_us, guesses, .. }) => {
            let answer = &mut answers[request as usize];
            (answer.secs, answer.guesses) = (decode_us as f64 * 1e-6, guesses);
        }
        _ => {}
    })?;
    Ok(answers)
}

fn rows(args: &GuessesArgs, ways: &[Way], questions: usize) -> Vec<Row> {
    let row = |way: &Way| {
        let ratios = way.samples.iter().zip(&ways[0].samples).map(|(own, none)| own / none);
        Row {
            way: way.name,
            nodes: args.local.local_nodes,
            link_latency_us: args.local.link_latency,
            questions,
            tokens_per_sec: statistics(&way.samples).2,
            samples: way.samples.clone(),
            ratio: statistics(&ratios.collect::<Vec<_>>()).2,
            tried: way.guesses.tried,
            right: way.guesses.right,
        }
    };
    ways.iter().map(row).collect()
}

fn markdown(rows: &[Row]) -> String {
    let mut lines = vec![
        "| guesses | tokens/s | of none | right of tried |".to_owned(),
        "|---|---:|---:|---:|".to_owned(),
    ];
    lines.extend(rows.iter().map(|row| {
        let Row { way, tokens_per_sec, ratio, tried, right, .. } = row;
        let least = row.samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = row.samples.iter().copied().fold(0.0, f64::max);
        let part = match tried {
            0 => "-".to_owned(),
            _ => format!("{right} of {tried} ({:.0} %)", *right as f64 / *tried as f64 * 100.0),
        };
        format!("| {way} | {tokens_per_sec:.0} ({least:.0} to {most:.0}) | {ratio:.2} | {part} |")
    }));
    lines.join("\n")
}
