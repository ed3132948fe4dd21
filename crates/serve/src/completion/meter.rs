use std::time::{Duration, Instant};

use cluster::GenerateDone;
use protocol::Guesses;

/// The counts and times of a finished answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub finish: Finish,
    pub prompt_tokens: usize,
    /// Prompt tokens that were already in the cache.
    pub cached_tokens: usize,
    pub guesses: Guesses,
    pub generated_tokens: usize,
    /// Generated tokens that were thoughts.
    pub reasoning_tokens: usize,
    /// From the request's arrival to its first step.
    pub queue: Duration,
    /// From its first step to its first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// How long rank 0 waited for each rank during prefill and during decode, by rank; empty if
    /// unknown.
    pub prefill_waits: Vec<Duration>,
    pub decode_waits: Vec<Duration>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended it.
    Stop,
    /// The answer contained this stop string.
    StopString(String),
    /// A token limit was reached.
    Length,
    /// The model ended it and waits for tool results.
    ToolCalls,
}

/// This server's own counts, for answers that end here at a stop string or a call. The node reports
/// the figures up to the first token early, and the rest only when its own generation ends.
pub(super) struct Meter {
    began: Option<GenerateDone>,
    start: Instant,
    first: Option<Instant>,
    last: Instant,
    prompt_tokens: usize,
    generated_tokens: usize,
}

impl Meter {
    pub fn start(prompt_tokens: usize) -> Self {
        let start = Instant::now();
        Self { began: None, start, first: None, last: start, prompt_tokens, generated_tokens: 0 }
    }

    /// Restarts the clock, so that waiting for a model does not count as prefill.
    pub fn restart(&mut self) {
        if self.first.is_none() {
            self.start = Instant::now();
            self.last = self.start;
        }
    }

    pub fn began(&mut self, began: &GenerateDone) {
        self.began = Some(began.clone());
    }

    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    pub fn count(&mut self, tokens: usize) {
        self.last = Instant::now();
        self.first.get_or_insert(self.last);
        self.generated_tokens += tokens;
    }

    /// The time since the first token.
    pub fn since_first(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| self.last - first)
    }

    /// Splits the waits of the whole answer into those of prefill and decode. If `whole` is empty,
    /// only the prefill waits are returned, if the node has reported them.
    pub fn waits(&self, whole: &[Duration]) -> (Vec<Duration>, Vec<Duration>) {
        let Some(began) = &self.began else { return (whole.to_vec(), Vec::new()) };
        let parted = whole.iter().zip(&began.waits);
        let decode = parted.map(|(whole, before)| whole.saturating_sub(*before)).collect();
        (began.waits.clone(), decode)
    }

    pub fn outcome(&self, finish: Finish, reasoning_tokens: usize) -> Outcome {
        let first = self.first.unwrap_or(self.last);
        let (prefill_waits, decode_waits) = self.waits(&[]);
        Outcome {
            finish,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.began.as_ref().map_or(0, |began| began.cached_tokens),
            guesses: Guesses::default(),
            generated_tokens: self.generated_tokens,
            reasoning_tokens,
            queue: self.began.as_ref().map_or(Duration::ZERO, |began| began.queue),
            prefill: self.began.as_ref().map_or(first - self.start, |began| began.prefill),
            decode: self.last - first,
            prefill_waits,
            decode_waits,
        }
    }
}
