use serde::{Deserialize, Serialize};

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Names a request within one instance; the daemon that owns the instance hands them out.
pub type RequestId = u64;

/// How the next token is drawn from the logits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 always takes the likeliest token.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the likeliest tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the likeliest one; 0 keeps all.
    pub min_p: f32,
    /// The same seed, prompt and options give the same answer.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// One request for tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    pub request: RequestId,
    /// At least one token.
    pub prompt: Vec<Token>,
    pub sampling: Sampling,
    /// Most tokens to generate; what the context has left is a limit as well.
    pub max_tokens: usize,
    /// Tokens that end the answer; the one met is not part of it.
    pub end_tokens: Vec<Token>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// `max_tokens` or the context's end was reached.
    Length,
    /// The client went away.
    Cancelled,
}

/// The account of a finished request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    pub request: RequestId,
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
    /// From the request's start in the worker to its first token, queueing not counted.
    pub prefill_us: u64,
    /// From its first token to its last.
    pub decode_us: u64,
}
