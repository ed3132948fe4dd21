//! Bounds of answers, from a worker or an owner.

use protocol::{AnswerToken, Generation, Guesses, Logprobs};

use super::{Bound, COUNT_MAX, TEXT_BYTES_MAX, TIME_US_MAX, all_most, most, sizes, text, times};
use crate::members::MEMBERS_MAX;
use crate::{GenerateDone, GenerateEvent};

/// Tokens in one event; an owner sends one.
const TOKENS_MAX: usize = 4 << 10;
/// Numbers in an embedding.
const WIDTH_MAX: usize = 1 << 17;

impl Bound for Generation {
    fn bound(&mut self) {
        let Self {
            request: _,
            reason: _,
            prompt_tokens,
            generated_tokens,
            answered_tokens,
            cached_tokens,
            guesses,
            queue_us,
            prefill_us,
            decode_us,
            waits_us,
            embedding,
        } = self;
        sizes([prompt_tokens, generated_tokens, cached_tokens]);
        most(answered_tokens, *generated_tokens);
        guesses.bound();
        all_most([queue_us, prefill_us, decode_us], TIME_US_MAX);
        waits_us.truncate(MEMBERS_MAX);
        waits_us.iter_mut().for_each(|us| most(us, TIME_US_MAX));
        embedding.iter_mut().for_each(|numbers| numbers.truncate(WIDTH_MAX));
    }
}

impl Bound for Guesses {
    fn bound(&mut self) {
        let Self { tried, right } = self;
        all_most([tried, right], COUNT_MAX);
    }
}

impl Bound for GenerateEvent {
    fn bound(&mut self) {
        match self {
            Self::Waiting { reason } | Self::Failed { kind: _, reason } => {
                text(reason, TEXT_BYTES_MAX);
            }
            Self::Began(done) | Self::Done(done) => done.bound(),
            Self::Tokens(tokens) => {
                tokens.truncate(TOKENS_MAX);
                tokens.iter_mut().for_each(Bound::bound);
            }
        }
    }
}

impl Bound for AnswerToken {
    fn bound(&mut self) {
        let Self { token: _, logprobs, mirostat_mu: _ } = self;
        if let Some(Logprobs { drawn: _, top }) = logprobs {
            top.truncate(protocol::LOGPROBS_MAX);
        }
    }
}

impl Bound for GenerateDone {
    fn bound(&mut self) {
        let Self {
            reason: _,
            prompt_tokens,
            generated_tokens,
            cached_tokens,
            guesses,
            queue,
            prefill,
            decode,
            waits,
            embedding,
        } = self;
        sizes([prompt_tokens, generated_tokens, cached_tokens]);
        guesses.bound();
        times([queue, prefill, decode]);
        waits.truncate(MEMBERS_MAX);
        waits.iter_mut().for_each(|wait| times([wait]));
        embedding.iter_mut().for_each(|numbers| numbers.truncate(WIDTH_MAX));
    }
}
