//! What all ranks compute next, and the message in which rank 0 tells the others.
//!
//! ```text
//! n_segments u32 | n_pages u32
//! | { slot, first_position, rows, outputs, wanted, first_page, pages: u32 } ... | page u32 ...
//! | input f32 ...
//! ```
//!
//! Little-endian. Of a sequence's table of pages, only what is new goes with a segment. The input
//! is what the receiver's first layer reads, `[rows, width]`: in the first stage the embeddings of
//! the segments' tokens, so that the other ranks need neither the tokens nor the embedding matrix;
//! in later stages the residual stream.

use std::time::Instant;

use layout::PAGE_POSITIONS;
use protocol::{RequestId, Token};

use crate::logits::Wanted;
use crate::results::OutputPart;

/// One run of consecutive positions of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSegment {
    /// The sequence's place among those that run.
    pub slot: usize,
    pub first_position: usize,
    pub rows: usize,
    /// So many of its last rows have logits that are needed.
    pub outputs: usize,
    /// Which logits of these rows; `Nothing` if there are none.
    pub wanted: Wanted,
    /// The sequence's table is the one it had up to here, and then so many of [`Step::pages`], of
    /// which each segment takes its own in turn.
    pub first_page: usize,
    pub pages: usize,
}

/// One step of the model: the next rows of some sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    pub segments: Vec<StepSegment>,
    /// Pages of the cache that are new in the sequences' tables, segment by segment.
    pub pages: Vec<u32>,
    /// The token of each row; on rank 0 alone.
    pub tokens: Vec<Token>,
    /// Whom the logits are for, one for each row whose logits are needed; on rank 0 alone.
    pub outputs: Vec<Output>,
    /// What rank 0 notes for its account of the step.
    pub note: StepNote,
}

/// What a step is, for who measures it; on rank 0 alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepNote {
    pub begun: Option<Instant>,
    pub prompt_rows: usize,
    /// A row for each answer, and those of guesses at its further tokens.
    pub answer_rows: usize,
    pub guess_rows: usize,
    /// Rows of prompts that it has to go behind: its own, and those of steps in flight before it.
    pub prompt_rows_ahead: usize,
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
    /// Pages of the cache.
    pub pages: usize,
    pub rows_max: usize,
    pub outputs_max: usize,
    pub width: usize,
}

/// Why a step message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank 0 sent an impossible step: {what}")]
pub struct BadStep {
    pub(crate) what: &'static str,
}

const HEADER_WORDS: usize = 2;
const SEGMENT_WORDS: usize = 7;

impl Limits {
    /// Pages of one sequence's table.
    pub fn pages_per_sequence(&self) -> usize {
        self.context_tokens.div_ceil(PAGE_POSITIONS)
    }

    /// New pages of one step.
    fn new_pages_max(&self) -> usize {
        self.slots * self.pages_per_sequence()
    }

    /// Bytes of the largest step message.
    pub fn message_bytes_max(&self) -> usize {
        let tables = self.slots * SEGMENT_WORDS + self.new_pages_max();
        let words = HEADER_WORDS + tables + self.rows_max * self.width;
        words * size_of::<u32>()
    }
}

impl Step {
    pub fn clear(&mut self) {
        self.segments.clear();
        self.pages.clear();
        self.tokens.clear();
        self.outputs.clear();
        self.note = StepNote::default();
    }

    pub fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// The logits that are needed, output by output.
    pub fn wanted(&self) -> impl Iterator<Item = Wanted> {
        self.segments.iter().flat_map(|s| std::iter::repeat_n(s.wanted, s.outputs))
    }

    /// How many numbers a rank with `tokens` of the vocabulary's tokens sends to rank 0.
    pub fn numbers(&self, part: &OutputPart) -> usize {
        self.wanted().map(|wanted| wanted.numbers(part)).sum()
    }

    /// Writes the message into `out`, replacing what it held.
    pub fn encode(&self, input: &[f32], out: &mut Vec<u8>) {
        out.clear();
        let mut put = |word: u32| out.extend(word.to_le_bytes());
        put(self.segments.len() as u32);
        put(self.pages.len() as u32);
        for segment in &self.segments {
            let StepSegment { slot, first_position, rows, outputs, wanted, first_page, pages } =
                *segment;
            [slot, first_position, rows, outputs].iter().for_each(|word| put(*word as u32));
            put(wanted.encode());
            [first_page, pages].iter().for_each(|word| put(*word as u32));
        }
        self.pages.iter().for_each(|page| put(*page));
        input.iter().for_each(|value| put(value.to_bits()));
    }

    /// Reads a message into this step and `input`, replacing what they held.
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
        let (words, []) = message.as_chunks::<4>() else {
            return bad("its length is not a multiple of 4");
        };
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let (Some(segments), Some(pages)) = (words.next(), words.next()) else {
            return bad("it has no header");
        };
        let (segments, pages) = (segments as usize, pages as usize);
        if segments > limits.slots || pages > limits.new_pages_max() {
            return bad("it has more segments than slots, or more pages than tables");
        }
        if words.len() < segments * SEGMENT_WORDS + pages {
            return bad("it ends early");
        }
        self.segments.clear();
        for _ in 0..segments {
            let segment = self.segment(std::array::from_fn(|_| words.next()), limits)?;
            self.segments.push(segment);
        }
        self.pages.clear();
        self.pages.extend(words.by_ref().take(pages));
        let sum = |of: fn(&StepSegment) -> usize| self.segments.iter().map(of).sum::<usize>();
        if sum(|s| s.rows) > limits.rows_max || sum(|s| s.outputs) > limits.outputs_max {
            return bad("it has too many rows or outputs");
        }
        if sum(|s| s.pages) != pages || self.pages.iter().any(|page| *page as usize >= limits.pages)
        {
            return bad("a page does not exist, or is nobody's");
        }
        input.clear();
        input.extend(words.map(f32::from_bits));
        if input.len() != self.rows() * limits.width {
            return bad("its input does not match its rows");
        }
        Ok(())
    }

    /// The next segment of a message, each number within `limits`.
    fn segment(
        &self,
        words: [Option<u32>; SEGMENT_WORDS],
        limits: &Limits,
    ) -> Result<StepSegment, BadStep> {
        let bad = |what| Err(BadStep { what });
        let [slot, first_position, rows, outputs, _, first_page, pages] =
            words.map(|word| word.unwrap_or(0) as usize);
        let Some(wanted) = Wanted::decode(words[4].unwrap_or(0)) else {
            return bad("it needs logits that no sampler asks for");
        };
        if slot >= limits.slots || self.segments.iter().any(|other| other.slot == slot) {
            return bad("a slot does not exist or is used twice");
        }
        if rows == 0 || rows > limits.rows_max || outputs > rows {
            return bad("a segment is empty or too long");
        }
        if (outputs == 0) != (wanted == Wanted::Nothing) {
            return bad("what is needed of no row, or no logits of some");
        }
        if first_position > limits.context_tokens || first_position + rows > limits.context_tokens {
            return bad("a segment ends after the context");
        }
        let pages_max = limits.pages_per_sequence();
        if first_page > pages_max || pages > pages_max - first_page {
            return bad("a table is longer than the context");
        }
        Ok(StepSegment { slot, first_position, rows, outputs, wanted, first_page, pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { slots: 3, context_tokens: 100, pages: 4, rows_max: 8, outputs_max: 4, width: 2 };

    fn segment(slot: usize, first_position: usize, rows: usize) -> StepSegment {
        let (wanted, outputs) = (Wanted::Top(40), 1);
        StepSegment { slot, first_position, rows, outputs, wanted, first_page: 0, pages: 0 }
    }

    fn message(segments: &[StepSegment], pages: &[u32]) -> Vec<u8> {
        let (segments, pages) = (segments.to_vec(), pages.to_vec());
        let step = Step { segments, pages, ..Step::default() };
        let mut out = Vec::new();
        step.encode(&vec![0.5; step.rows() * LIMITS.width], &mut out);
        out
    }

    #[test]
    fn a_step_comes_back_as_it_went() {
        let pages = vec![3, 0, 1];
        let segments = vec![
            StepSegment { pages: 2, outputs: 3, ..segment(2, 90, 5) },
            StepSegment { first_page: 1, pages: 1, ..segment(1, 0, 1) },
            StepSegment { outputs: 0, wanted: Wanted::Nothing, ..segment(0, 0, 2) },
        ];
        let (mut found, mut input) = (Step::default(), Vec::new());
        let bytes = message(&segments, &pages);
        assert!(bytes.len() <= LIMITS.message_bytes_max());
        found.decode(&bytes, &LIMITS, &mut input).unwrap();
        assert_eq!((found.segments.as_slice(), &found.pages), (segments.as_slice(), &pages));
        assert_eq!(found.wanted().collect::<Vec<_>>(), [Wanted::Top(40); 4]);
        assert_eq!(input, [0.5; 16]);
    }

    #[test]
    fn impossible_steps_are_refused() {
        let huge = u32::MAX as usize;
        let one = segment(0, 0, 1);
        for (segments, pages) in [
            (vec![segment(3, 0, 1)], vec![]),
            (vec![segment(huge, 0, 1)], vec![]),
            (vec![segment(0, 0, 1), segment(0, 1, 1)], vec![]),
            (vec![segment(0, 0, 9)], vec![]),
            (vec![segment(0, 0, 0)], vec![]),
            (vec![segment(0, 96, 5)], vec![]),
            (vec![segment(0, huge, 1)], vec![]),
            (vec![segment(0, 0, 5), segment(1, 0, 5)], vec![]),
            (vec![StepSegment { outputs: 2, ..one }], vec![]),
            (vec![StepSegment { outputs: 0, ..one }], vec![]),
            (vec![StepSegment { wanted: Wanted::Nothing, ..one }], vec![]),
            (vec![StepSegment { outputs: 5, ..segment(0, 0, 8) }], vec![]),
            (vec![StepSegment { pages: 1, ..one }], vec![]),
            (vec![StepSegment { pages: 1, ..one }], vec![4]),
            (vec![one], vec![0]),
            (vec![StepSegment { pages: 3, ..one }], vec![0, 1, 2]),
            (vec![StepSegment { first_page: 2, pages: 1, ..one }], vec![0]),
            (vec![StepSegment { first_page: huge, ..one }], vec![]),
            (vec![StepSegment { pages: huge, ..one }], vec![]),
        ] {
            let (mut step, mut input) = (Step::default(), Vec::new());
            let result = step.decode(&message(&segments, &pages), &LIMITS, &mut input);
            assert!(result.is_err(), "{segments:?} {pages:?}");
        }
    }

    #[test]
    fn every_torn_message_is_refused() {
        let whole = message(&[StepSegment { pages: 2, ..segment(1, 4, 3) }], &[2, 3]);
        for len in 0..whole.len() {
            let (mut step, mut input) = (Step::default(), Vec::new());
            let result = step.decode(&whole[..len], &LIMITS, &mut input);
            assert!(result.is_err(), "{len} of {} bytes", whole.len());
        }
    }
}
