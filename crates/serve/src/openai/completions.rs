//! `POST /v1/completions`: continues a text, without a conversation.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use protocol::InvalidRequest;
use serde::Serialize;

use super::answers::{Answers, Gathered, Write};
use super::error::at;
use super::fields::Fields;
use super::format::format;
use super::logprobs::TextLogprobs;
use super::prompts::prompts;
use super::response::{Chunk, Completion, FinishReason, Head, SoFar, Timings, Usage};
use super::sampling::{Streaming, TOP_LOGPROBS_MAX, answers, bounds, model, sampling, streaming};
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{
    CompletionError, CompletionRequest, Fill, Outcome, Part, Prompt, TextModel, TokenLogprobs,
};
use crate::http::error::ApiError;
use crate::http::stream::Item;
use crate::known::Endpoint;

/// Prompts per request; each takes a place in the queue.
const PROMPTS_MAX: usize = 128;
/// Answers per request over all of its prompts, less than the number a node runs at once.
const ANSWERS_MAX: usize = 128;
/// OpenAI's default.
const MAX_TOKENS_DEFAULT: usize = 16;

/// The validated body.
#[derive(Debug)]
struct TextRequest {
    /// The request without its prompt.
    completion: CompletionRequest,
    prompts: Vec<Prompt>,
    /// Answers per prompt.
    answers: usize,
    streaming: Streaming,
    echo: bool,
}

impl TextRequest {
    fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let fields = &mut fields;
        fields.settle(Endpoint::Text)?;
        let answers = answers(fields)?;
        // If `best_of` equals `n`, all answers are returned.
        if fields.count("best_of", 0..=128)?.is_some_and(|best| best > 1 && best != answers) {
            let message = "best_of: answers are not ranked. Ask for n and choose yourself";
            return Err(ApiError::unsupported("best_of", message));
        }
        // There is one tier, and a completion has no field that reports it.
        fields.read::<String>("service_tier")?;
        let sampling = sampling(fields)?;
        let bounds = bounds(fields, &["max_tokens", "n_predict"])?;
        let (format, format_field) = format(fields)?;
        let logprobs = fields.count("logprobs", 0..=TOP_LOGPROBS_MAX)?;
        let echo = fields.flag("echo")?;
        if echo && logprobs.is_some() {
            let message = "echo: there are no log-probabilities of prompts. Send one of the two";
            return Err(ApiError::unsupported("echo", message));
        }
        let streaming = streaming(fields)?;
        let model = model(fields)?;
        let max_tokens = bounds.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT);
        let prompts = prompts("prompt", fields.take("prompt"), PROMPTS_MAX)?;
        let suffix = fields.read::<String>("suffix")?.filter(|suffix| !suffix.is_empty());
        let prompts = match suffix {
            Some(suffix) => fills(prompts, &suffix, max_tokens)?,
            None => prompts,
        };
        let all = prompts.len() * answers;
        if all > ANSWERS_MAX {
            let message = format!("n answers to each prompt are {all}; {ANSWERS_MAX} are the most");
            return Err(ApiError::invalid_value("n", message));
        }
        std::mem::take(fields).finish();
        let completion = CompletionRequest {
            model,
            sampling,
            max_tokens: Some(max_tokens),
            min_tokens: bounds.min_tokens,
            ignore_eos: bounds.ignore_eos,
            stops: bounds.stops,
            logprobs,
            format,
            format_field,
            ..CompletionRequest::default()
        };
        Ok(Self { completion, prompts, answers, streaming, echo })
    }
}

/// The prompts as prefixes of a text with this suffix.
fn fills(prompts: Vec<Prompt>, suffix: &str, max_tokens: usize) -> Result<Vec<Prompt>, ApiError> {
    let fill = |prompt| match prompt {
        Prompt::Text(prefix) => Ok(Prompt::Fill(Fill {
            prefix,
            suffix: suffix.to_owned(),
            answer_tokens: Some(max_tokens),
            field: "suffix",
            ..Fill::default()
        })),
        _ => {
            let message = "suffix: the prompt before it must be text, not tokens";
            Err(ApiError::invalid_value("suffix", message))
        }
    };
    prompts.into_iter().map(fill).collect()
}

pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let mut asked = app.intake.read_as(request, TextRequest::read).await?;
    asked.completion = caller.asks(&app, asked.completion).await?;
    let head = Head::new("cmpl-", "text_completion", asked.completion.model.clone());
    let wants_logprobs = asked.completion.logprobs.is_some();
    let echoes = echoes(&app, &asked).await.map_err(at("prompt"))?;
    let per_prompt = asked.answers;
    let mut started = Vec::new();
    for prompt in asked.prompts {
        let one = CompletionRequest { prompt, ..asked.completion.clone() };
        let answers = app.completer.start_several(one, per_prompt).await;
        started.extend(answers.map_err(|error| refusal(error, &asked.completion))?);
    }
    let echo = move |index: usize| echoes.get(index / per_prompt).cloned().unwrap_or_default();
    if asked.streaming.stream {
        let offsets = (0..started.len()).map(|index| echo(index).chars().count()).collect();
        let begins = (0..started.len()).map(echo).collect();
        let include_usage = asked.streaming.include_usage;
        let so_far = SoFar::new(asked.streaming, started.len());
        let chunks = Chunks { head, include_usage, wants_logprobs, begins, offsets, so_far };
        let answers = Answers::new(started, per_prompt);
        return Ok(answers.respond(chunks, app.config.limits.keep_alive).await?);
    }
    let (answers, total) = Answers::new(started, per_prompt).gather().await?;
    let choices = answers.iter().enumerate();
    let choices: Vec<Choice> = choices
        .map(|(index, answer)| Choice::whole(index, echo(index), answer, wants_logprobs))
        .collect();
    let (usage, timings) = (Usage::from(&total), Timings::from(&total));
    Ok(Json(Completion { head, choices, usage, timings }).into_response())
}

/// An unknown token that is not among the biases must be in the prompt.
fn refusal(error: CompletionError, asked: &CompletionRequest) -> ApiError {
    match &error {
        CompletionError::Invalid(InvalidRequest::UnknownToken { token, .. })
            if asked.sampling.logit_bias.iter().all(|(biased, _)| biased != token) =>
        {
            ApiError::invalid_value("prompt", error.to_string())
        }
        _ => at("prompt")(error),
    }
}

/// The texts of the prompts, if `echo` is set.
async fn echoes(app: &App, asked: &TextRequest) -> Result<Vec<String>, CompletionError> {
    if !asked.echo {
        return Ok(Vec::new());
    }
    let model = app.completer.model(&asked.completion.model).await?;
    Ok(asked.prompts.iter().map(|prompt| text_of(prompt, &model)).collect())
}

fn text_of(prompt: &Prompt, model: &TextModel) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => {
            let mut stream = text::TextStream::continuing(Arc::clone(&model.tokenizer));
            // An unknown token is refused when the answer starts.
            let known = tokens.iter().filter(|token| (**token as usize) < model.tokenizer.len());
            let mut text: String = known.map(|token| stream.push(*token)).collect();
            text.push_str(&stream.finish());
            text
        }
        Prompt::Fill(fill) => fill.prefix.clone(),
        Prompt::Mixed(_) | Prompt::Chat(_) => String::new(),
    }
}

/// An answer or a piece of one.
#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<FinishReason>,
}

impl Choice {
    fn whole(index: usize, echo: String, answer: &Gathered, wants_logprobs: bool) -> Self {
        let tokens = answer.logprobs();
        Self {
            index,
            logprobs: wants_logprobs.then(|| logprobs(&tokens, 0).0),
            text: echo + &answer.text(),
            finish_reason: Some(FinishReason::new(&answer.outcome.finish, false)),
        }
    }
}

fn logprobs(tokens: &[TokenLogprobs], offset: usize) -> (TextLogprobs, usize) {
    let mut lists = TextLogprobs::default();
    let offset = lists.push(tokens, offset);
    (lists, offset)
}

/// Writes answers as chunks.
struct Chunks {
    head: Head,
    include_usage: bool,
    wants_logprobs: bool,
    /// The text that each answer starts with.
    begins: Vec<String>,
    /// The offset of each answer's next token, in characters.
    offsets: Vec<usize>,
    so_far: SoFar,
}

impl Chunks {
    fn push(
        &self,
        choices: Vec<Choice>,
        usage: Option<Option<Usage>>,
        timings: Option<Timings>,
        out: &mut VecDeque<Item>,
    ) {
        let head = self.head.clone();
        let prompt_progress = None;
        out.push_back(Item::json(&Chunk { head, choices, usage, timings, prompt_progress }));
    }

    fn choice(&self, choice: Choice, timings: Option<Timings>, out: &mut VecDeque<Item>) {
        self.push(vec![choice], self.include_usage.then_some(None), timings, out);
    }
}

impl Write for Chunks {
    fn so_far(&mut self, index: usize, figures: Outcome, out: &mut VecDeque<Item>) {
        for report in self.so_far.note(index, figures) {
            let (head, prompt_progress) = (self.head.clone(), Some(report));
            let choice = Choice { index, text: String::new(), logprobs: None, finish_reason: None };
            let (choices, usage, timings) = (vec![choice], None, None);
            out.push_back(Item::json(&Chunk { head, choices, usage, timings, prompt_progress }));
        }
    }

    fn begin(&mut self, out: &mut VecDeque<Item>) {
        for (index, text) in std::mem::take(&mut self.begins).into_iter().enumerate() {
            if !text.is_empty() {
                self.choice(Choice { index, text, logprobs: None, finish_reason: None }, None, out);
            }
        }
    }

    fn part(&mut self, index: usize, part: Part, out: &mut VecDeque<Item>) {
        // Without a conversation, all parts are text.
        let Part::Text(piece) = part else { return };
        let logprobs = self.wants_logprobs.then(|| {
            let (lists, offset) = logprobs(&piece.logprobs, self.offsets[index]);
            self.offsets[index] = offset;
            lists
        });
        let timings = self.so_far.timings(index);
        let choice = Choice { index, text: piece.text, logprobs, finish_reason: None };
        self.choice(choice, timings, out);
    }

    fn done(&mut self, index: usize, outcome: &Outcome, out: &mut VecDeque<Item>) {
        let finish_reason = Some(FinishReason::new(&outcome.finish, false));
        let timings = (!self.include_usage).then(|| Timings::from(outcome));
        let choice = Choice { index, text: String::new(), logprobs: None, finish_reason };
        self.choice(choice, timings, out);
    }

    fn end(&mut self, outcome: &Outcome, out: &mut VecDeque<Item>) {
        if self.include_usage {
            let (usage, timings) = (Usage::from(outcome), Timings::from(outcome));
            self.push(Vec::new(), Some(Some(usage)), Some(timings), out);
        }
        out.push_back(Item::Data("[DONE]".to_owned()));
    }

    fn fail(&mut self, error: ApiError, out: &mut VecDeque<Item>) {
        out.push_back(Item::Fail(error.body().to_string()));
    }
}
