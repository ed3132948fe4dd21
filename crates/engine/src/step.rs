//! What all ranks compute next, and the message in which rank 0 tells the others.
//!
//! ```text
//! n_segments u32 | { slot u32, first_position u32, rows u32, wanted u32 } ... | input f32 ...
//! ```
//!
//! Little-endian. The input is what the receiver's first layer reads, `[rows, width]`: in the first
//! stage the embeddings of the segments' tokens, so that the other ranks need neither the tokens
//! nor the embedding matrix; in later stages the residual stream.

use protocol::{RequestId, Token};

use crate::logits::Wanted;

/// One run of consecutive positions of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSegment {
    /// The sequence's slot in the key/value cache.
    pub slot: usize,
    pub first_position: usize,
    pub rows: usize,
    /// Which logits of the last row are needed.
    pub wanted: Wanted,
}

/// One step of the model: the next rows of some sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    pub segments: Vec<StepSegment>,
    /// The token of each row; on rank 0 alone.
    pub tokens: Vec<Token>,
    /// Whom the logits are for, one for each segment whose logits are needed; on rank 0 alone.
    pub outputs: Vec<Output>,
}

/// A token that a step will give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    pub request: RequestId,
    /// The position that the token will have.
    pub position: usize,
}

/// The largest step; a message that asks for more is an error, not an index out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub slots: usize,
    pub context_tokens: usize,
    pub rows_max: usize,
    pub width: usize,
}

/// Why a step message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank 0 sent an impossible step: {what}")]
pub struct BadStep {
    what: &'static str,
}

const SEGMENT_WORDS: usize = 4;

impl Limits {
    /// Bytes of the largest step message.
    pub fn message_bytes_max(&self) -> usize {
        let words = 1 + self.slots * SEGMENT_WORDS + self.rows_max * self.width;
        words * size_of::<u32>()
    }
}

impl Step {
    pub fn clear(&mut self) {
        self.segments.clear();
        self.tokens.clear();
        self.outputs.clear();
    }

    pub fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// The logits that are needed, output by output.
    pub fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let wanted = self.segments.iter().map(|segment| segment.wanted);
        wanted.filter(|wanted| *wanted != Wanted::Nothing)
    }

    /// How many numbers a rank with `tokens` of the vocabulary's tokens sends to rank 0.
    pub fn numbers(&self, tokens: usize) -> usize {
        self.wanted().map(|wanted| wanted.numbers(tokens)).sum()
    }

    /// Writes the message into `out`, replacing what it held.
    pub fn encode(&self, input: &[f32], out: &mut Vec<u8>) {
        out.clear();
        out.extend((self.segments.len() as u32).to_le_bytes());
        for segment in &self.segments {
            let StepSegment { slot, first_position, rows, wanted } = *segment;
            for word in [slot as u32, first_position as u32, rows as u32, wanted.encode()] {
                out.extend(word.to_le_bytes());
            }
        }
        for value in input {
            out.extend(value.to_le_bytes());
        }
    }

    /// Reads a message into `segments` and `input`, replacing what they held.
    ///
    /// # Errors
    /// The message is not a step within `limits`.
    pub fn decode(
        &mut self,
        message: &[u8],
        limits: &Limits,
        input: &mut Vec<f32>,
    ) -> Result<(), BadStep> {
        let bad = |what| Err(BadStep { what });
        if !message.len().is_multiple_of(size_of::<u32>()) || message.is_empty() {
            return bad("its length is not a multiple of 4");
        }
        let mut words = message.chunks_exact(size_of::<u32>());
        let mut word = || words.next().map(|w| u32::from_le_bytes(w.try_into().expect("4 bytes")));
        let count = word().unwrap_or(0) as usize;
        if count > limits.slots || message.len() / size_of::<u32>() < 1 + count * SEGMENT_WORDS {
            return bad("it has more segments than slots or bytes");
        }
        self.segments.clear();
        for _ in 0..count {
            let mut field = || word().unwrap_or(0) as usize;
            let (slot, first_position, rows) = (field(), field(), field());
            let Some(wanted) = Wanted::decode(word().unwrap_or(0)) else {
                return bad("it needs logits that no sampler asks for");
            };
            let segment = StepSegment { slot, first_position, rows, wanted };
            if slot >= limits.slots || self.segments.iter().any(|other| other.slot == slot) {
                return bad("a slot does not exist or is used twice");
            }
            if rows == 0 || rows > limits.rows_max {
                return bad("a segment is empty or too long");
            }
            if first_position + rows > limits.context_tokens {
                return bad("a segment ends after the context");
            }
            self.segments.push(segment);
        }
        let rows = self.rows();
        if rows > limits.rows_max {
            return bad("it has too many rows");
        }
        input.clear();
        input.extend(words.map(|w| f32::from_le_bytes(w.try_into().expect("4 bytes"))));
        if input.len() != rows * limits.width {
            return bad("its input does not match its rows");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { slots: 3, context_tokens: 100, rows_max: 8, width: 2 };

    fn segment(slot: usize, first_position: usize, rows: usize) -> StepSegment {
        StepSegment { slot, first_position, rows, wanted: Wanted::Top(40) }
    }

    fn message(segments: &[StepSegment]) -> Vec<u8> {
        let step = Step { segments: segments.to_vec(), ..Step::default() };
        let mut out = Vec::new();
        step.encode(&vec![0.5; step.rows() * LIMITS.width], &mut out);
        out
    }

    #[test]
    fn a_step_comes_back_as_it_went() {
        let segments = vec![segment(2, 90, 5), segment(0, 0, 3)];
        let (mut found, mut input) = (Step::default(), Vec::new());
        let bytes = message(&segments);
        assert!(bytes.len() <= LIMITS.message_bytes_max());
        found.decode(&bytes, &LIMITS, &mut input).unwrap();
        assert_eq!(found.segments, segments);
        assert_eq!(input, [0.5; 16]);
    }

    #[test]
    fn impossible_steps_are_refused() {
        let huge = u32::MAX as usize;
        for segments in [
            vec![segment(3, 0, 1)],
            vec![segment(huge, 0, 1)],
            vec![segment(0, 0, 1), segment(0, 1, 1)],
            vec![segment(0, 0, 9)],
            vec![segment(0, 0, 0)],
            vec![segment(0, 96, 5)],
            vec![segment(0, huge, 1)],
            vec![segment(0, 0, 5), segment(1, 0, 5)],
        ] {
            let (mut step, mut input) = (Step::default(), Vec::new());
            let result = step.decode(&message(&segments), &LIMITS, &mut input);
            assert!(result.is_err(), "{segments:?}");
        }
    }

    #[test]
    fn every_torn_message_is_refused() {
        let whole = message(&[segment(1, 4, 3)]);
        for len in 0..whole.len() {
            let (mut step, mut input) = (Step::default(), Vec::new());
            let result = step.decode(&whole[..len], &LIMITS, &mut input);
            assert!(result.is_err(), "{len} of {} bytes", whole.len());
        }
    }
}
