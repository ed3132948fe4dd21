//! The answers of chat completions, in the format of the client libraries.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use text::ToolCall;

use super::custom::{Customs, input_of};
use super::logprobs::ChatLogprobs;
use super::sampling::Streaming;
use crate::clock::unix_secs;
use crate::completion::{Finish, Outcome, random_seed};

/// Fields shared by all chunks of one answer.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Head {
    pub id: String,
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: &'static str,
    /// There is one tier, which is reported if the client requested any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
}

impl Head {
    pub fn new(prefix: &str, object: &'static str, model: String) -> Self {
        Self {
            id: new_id(prefix),
            object,
            created: unix_secs(),
            model,
            system_fingerprint: FINGERPRINT,
            service_tier: None,
        }
    }
}

/// The version of the server.
const FINGERPRINT: &str = concat!("sinew-", env!("CARGO_PKG_VERSION"));

/// A unique id.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random_seed(), random_seed())
}

/// A complete answer; `C` is a choice.
#[derive(Debug, Serialize)]
pub(super) struct Completion<C> {
    #[serde(flatten)]
    pub head: Head,
    pub choices: Vec<C>,
    pub usage: Usage,
    pub timings: Timings,
}

#[derive(Debug, Serialize)]
pub(super) struct Choice {
    pub index: usize,
    pub message: Reply,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: FinishReason,
}

#[derive(Debug, Serialize)]
pub(super) struct Reply {
    pub role: &'static str,
    /// Null if the model only called tools.
    pub content: Option<String>,
    pub refusal: Option<()>,
    /// The model's thoughts, under the name that most clients of open models read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Call>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<Function>,
}

/// A tool call or a piece of one.
#[derive(Debug, Serialize)]
pub(super) struct Call {
    /// Only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<Custom>,
}

/// A call of a custom tool, or a piece of one.
#[derive(Debug, Default, Serialize)]
pub(super) struct Custom {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub input: String,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON as text.
    pub arguments: String,
}

impl Call {
    /// A call in a complete answer.
    pub fn whole(call: &ToolCall, customs: &Customs) -> Self {
        let (name, text) = (Some(call.name.clone()), call.arguments_text());
        let is_custom = customs.has(&call.name);
        let input = if is_custom { input_of(&text) } else { text };
        Self { id: Some(call.id.clone()), ..Self::piece(is_custom, None, name, input) }
    }

    /// A piece of a call: at its beginning it has a name.
    pub fn piece(
        is_custom: bool,
        index: Option<usize>,
        name: Option<String>,
        text: String,
    ) -> Self {
        let kind = name.is_some().then_some(if is_custom { "custom" } else { "function" });
        let (mut function, mut custom) = (None, None);
        match is_custom {
            true => custom = Some(Custom { name, input: text }),
            false => function = Some(Function { name, arguments: text }),
        }
        Self { index, id: None, kind, function, custom }
    }
}

impl Function {
    pub fn whole(call: &ToolCall) -> Self {
        Self { name: Some(call.name.clone()), arguments: call.arguments_text() }
    }
}

/// A piece of an answer; `C` is a piece of a choice.
#[derive(Debug, Serialize)]
pub(super) struct Chunk<C> {
    #[serde(flatten)]
    pub head: Head,
    /// Empty in the chunk that carries the usage.
    pub choices: Vec<C>,
    /// Absent unless requested; then null in every chunk but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// Only in the last chunk, unless each is to have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<Value>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChunkChoice {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<FinishReason>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[Call; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<Function>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    FunctionCall,
}

impl FinishReason {
    pub fn new(finish: &Finish, as_functions: bool) -> Self {
        match finish {
            Finish::Stop | Finish::StopString(_) => Self::Stop,
            Finish::Length => Self::Length,
            Finish::ToolCalls if as_functions => Self::FunctionCall,
            Finish::ToolCalls => Self::ToolCalls,
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptDetails,
    pub completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct PromptDetails {
    pub cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CompletionDetails {
    pub reasoning_tokens: usize,
}

impl From<&Outcome> for Usage {
    fn from(outcome: &Outcome) -> Self {
        let (prompt_tokens, completion_tokens) = (outcome.prompt_tokens, outcome.generated_tokens);
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: outcome.cached_tokens },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: outcome.reasoning_tokens,
            },
        }
    }
}

/// Timings under llama-server's names.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Timings {
    /// Tokens of the prompt that were in the cache, and those that were computed.
    pub cache_n: usize,
    pub prompt_n: usize,
    #[serde(serialize_with = "thousandths")]
    pub prompt_ms: f64,
    #[serde(serialize_with = "thousandths")]
    pub prompt_per_token_ms: f64,
    #[serde(serialize_with = "thousandths")]
    pub prompt_per_second: f64,
    pub predicted_n: usize,
    #[serde(serialize_with = "thousandths")]
    pub predicted_ms: f64,
    #[serde(serialize_with = "thousandths")]
    pub predicted_per_token_ms: f64,
    /// Over the tokens after the first one, which counts towards the prompt's time.
    #[serde(serialize_with = "thousandths")]
    pub predicted_per_second: f64,
    /// Guessed tokens that were compared with the model's own, and those that were right; absent
    /// without guesses.
    #[serde(flatten)]
    pub guesses: Option<GuessTimings>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct GuessTimings {
    pub draft_n: u64,
    pub draft_n_accepted: u64,
}

impl From<&Outcome> for Timings {
    fn from(outcome: &Outcome) -> Self {
        let rate = |tokens: usize, secs: f64| if secs > 0.0 { tokens as f64 / secs } else { 0.0 };
        let each = |secs: f64, tokens: usize| secs * 1e3 / tokens.max(1) as f64;
        let prompt_n = outcome.prompt_tokens.saturating_sub(outcome.cached_tokens);
        let predicted = outcome.generated_tokens.saturating_sub(1);
        let (prefill, decode) = (outcome.prefill.as_secs_f64(), outcome.decode.as_secs_f64());
        Self {
            cache_n: outcome.cached_tokens,
            prompt_n,
            prompt_ms: prefill * 1e3,
            prompt_per_token_ms: each(prefill, prompt_n),
            prompt_per_second: rate(prompt_n, prefill),
            predicted_n: outcome.generated_tokens,
            predicted_ms: decode * 1e3,
            predicted_per_token_ms: each(decode, predicted),
            predicted_per_second: rate(predicted, decode),
            guesses: (outcome.guesses.tried > 0).then_some(GuessTimings {
                draft_n: outcome.guesses.tried,
                draft_n_accepted: outcome.guesses.right,
            }),
        }
    }
}

/// The figures of a stream's answers while they are written.
#[derive(Debug, Default)]
pub(super) struct SoFar {
    streaming: Streaming,
    /// By answer; `None` before its first part.
    figures: Vec<Option<Outcome>>,
}

impl SoFar {
    pub fn new(streaming: Streaming, answers: usize) -> Self {
        Self { streaming, figures: vec![None; answers] }
    }

    /// Takes an answer's figures. Returns the reports on its prompt before its first part, if the
    /// client wants them.
    pub fn note(&mut self, index: usize, figures: Outcome) -> Vec<Value> {
        let is_first = self.figures[index].is_none() && self.streaming.return_progress;
        let reports = is_first.then(|| progress(&figures).to_vec());
        self.figures[index] = Some(figures);
        reports.unwrap_or_default()
    }

    /// The timings for a chunk before the last, if the client wants them.
    pub fn timings(&self, index: usize) -> Option<Timings> {
        let figures = self.figures[index].as_ref();
        figures.filter(|_| self.streaming.timings_per_token).map(Timings::from)
    }
}

/// Two reports on a prompt, as llama-server's first and last: what the cache had, and that all is
/// computed. There are none between, because a node reports no sooner than with its first token.
pub(crate) fn progress(figures: &Outcome) -> [Value; 2] {
    let (total, cache) = (figures.prompt_tokens, figures.cached_tokens);
    let report = |processed: usize, time_ms: u64| json!({ "total": total, "cache": cache, "processed": processed, "time_ms": time_ms });
    [report(cache, 0), report(total, figures.prefill.as_millis() as u64)]
}

/// Microseconds and thousandths of a token are precise enough.
fn thousandths<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((value * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_count_what_their_time_paid_for() {
        let outcome = |generated_tokens, prefill, decode| Outcome {
            finish: Finish::Stop,
            prompt_tokens: 100,
            cached_tokens: 0,
            guesses: Default::default(),
            reasoning_tokens: 0,
            queue: Duration::ZERO,
            generated_tokens,
            prefill: Duration::from_millis(prefill),
            decode: Duration::from_millis(decode),
            prefill_waits: Vec::new(),
            decode_waits: Vec::new(),
        };
        for (generated, prefill_ms, decode_ms, prompt_rate, rate) in
            [(11, 500, 1000, 200.0, 10.0), (1, 500, 0, 200.0, 0.0), (0, 0, 0, 0.0, 0.0)]
        {
            let timings = Timings::from(&outcome(generated, prefill_ms, decode_ms));
            assert_eq!(timings.prompt_per_second, prompt_rate);
            assert_eq!(timings.predicted_per_second, rate);
            assert_eq!(timings.predicted_ms, decode_ms as f64);
        }
    }
}
