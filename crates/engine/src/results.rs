//! The results of one step, assembled from the parts of the ranks that share the output head.

use std::ops::Range;

use crate::logits::{Candidate, Extent, Logits};
use crate::step::{Output, Step};

/// A rank's part of the output head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputPart {
    pub rank: usize,
    /// Its rows of the matrix: these tokens of the vocabulary.
    pub vocab: Range<usize>,
    /// The model's width in the one part that returns hidden states; else 0.
    pub hidden: usize,
}

/// The results of a step; the buffers are reused.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The values from the ranks: part by part, and within a part output by output.
    pub numbers: Vec<f32>,
    /// Logits `[vocab]` of each output that needs all, and hidden states `[width]` of each that
    /// needs one.
    logits: Vec<f32>,
    /// The likeliest tokens of every other output, likeliest first.
    candidates: Vec<Candidate>,
}

impl Results {
    /// Sorts `numbers` by the step's outputs.
    pub fn assemble(&mut self, step: &Step, parts: &[OutputPart]) {
        let Self { numbers, logits, candidates } = self;
        logits.clear();
        candidates.clear();
        for (at, wanted) in step.wanted().enumerate() {
            let first_candidate = candidates.len();
            let mut part_start = 0;
            for part in parts {
                let before = step.wanted().take(at).map(|other| other.numbers(part));
                let start = part_start + before.sum::<usize>();
                let own = &numbers[start..start + wanted.numbers(part)];
                part_start += step.numbers(part);
                match wanted {
                    Extent::All | Extent::Hidden | Extent::First => logits.extend_from_slice(own),
                    _ => {
                        candidates.extend(own.as_chunks().0.iter().map(|[token, logit]| {
                            Candidate { token: token.to_bits(), logit: *logit }
                        }))
                    }
                }
            }
            if let Extent::Top(count) = wanted {
                candidates[first_candidate..].sort_unstable_by(Candidate::order);
                candidates.truncate(first_candidate + count as usize);
            }
        }
    }

    /// The result of each of the step's outputs, in a model with `vocab` tokens.
    pub fn outputs<'a>(
        &'a self,
        step: &'a Step,
        vocab: usize,
        width: usize,
    ) -> impl Iterator<Item = (Output, Logits<'a>)> {
        let (mut logits, mut candidates) = (&self.logits[..], &self.candidates[..]);
        let wanted = step.wanted().map(move |wanted| match wanted {
            Extent::Top(count) => {
                let (own, rest) = candidates.split_at(vocab.min(count as usize));
                candidates = rest;
                Logits::Top(own)
            }
            Extent::Hidden | Extent::First => {
                let (own, rest) = logits.split_at(width);
                logits = rest;
                Logits::Hidden(own)
            }
            _ => {
                let (own, rest) = logits.split_at(vocab);
                logits = rest;
                Logits::All(own)
            }
        });
        step.outputs.iter().copied().zip(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logits::pick;
    use crate::step::StepSegment;

    #[test]
    fn parts_are_put_together_as_if_one_rank_had_all() {
        let vocab = 11;
        let rows: Vec<Vec<f32>> = (0..3)
            .map(|row| (0..vocab).map(|at| ((at * 7 + row * 3) % 11) as f32).collect())
            .collect();
        let mut step = Step::default();
        for wanted in [Extent::Top(3), Extent::Nothing, Extent::All, Extent::Top(1)] {
            let outputs = usize::from(wanted != Extent::Nothing);
            let segment = StepSegment { outputs, wanted, ..StepSegment::new(0, 0, 1) };
            step.segments.push(segment);
        }
        step.outputs = (0..3).map(|request| Output { request, position: 1 }).collect();
        let run = |cuts: &[usize]| {
            let parts = cuts.windows(2).enumerate();
            let parts: Vec<_> = parts
                .map(|(rank, cut)| OutputPart { rank, vocab: cut[0]..cut[1], hidden: 0 })
                .collect();
            let mut results = Results::default();
            for part in &parts {
                let before = results.numbers.len();
                for (wanted, row) in step.wanted().zip(&rows) {
                    let (own, first) = (&row[part.vocab.clone()], part.vocab.start);
                    pick(wanted, own, first, &mut Vec::new(), &mut results.numbers);
                }
                assert_eq!(results.numbers.len() - before, step.numbers(part));
            }
            results.assemble(&step, &parts);
            let outputs = results.outputs(&step, vocab, 0);
            outputs.map(|output| format!("{output:?}")).collect::<Vec<_>>()
        };
        let whole = run(&[0, 11]);
        assert_eq!(whole.len(), 3);
        for cuts in [&[0, 5, 11][..], &[0, 0, 1, 11], &[0, 2, 2, 4, 9, 11, 11]] {
            assert_eq!(run(cuts), whole, "{cuts:?}");
        }
    }
}
