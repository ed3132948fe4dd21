//! What comes back of the steps in flight: the parts of all ranks with an output head, put
//! together.

use std::collections::VecDeque;
use std::ops::Range;

use crate::logits::{Candidate, Logits, Wanted};

/// Rank 0's view of the steps it has begun. Keeps its buffers.
#[derive(Debug)]
pub(crate) struct Results {
    /// The vocabulary rows of every part of the output head.
    vocab_of_head: Vec<Range<usize>>,
    vocab: usize,
    /// What is wanted of each step in flight, the oldest first.
    in_flight: VecDeque<Vec<Wanted>>,
    /// Lists to use again.
    spare: Vec<Vec<Wanted>>,
    /// What was wanted of the step that came back last.
    wanted: Vec<Wanted>,
    /// The numbers of that step, rank by rank, output by output.
    pub numbers: Vec<f32>,
    /// In the step's order: all logits of an output, or a run of `candidates`.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
    outputs: Vec<Place>,
}

/// Where an output's result is.
#[derive(Debug, Clone)]
enum Place {
    Logits(Range<usize>),
    Candidates(Range<usize>),
}

impl Results {
    pub fn new(vocab_of_head: Vec<Range<usize>>) -> Self {
        let vocab = vocab_of_head.iter().map(|slice| slice.end).max().unwrap_or(0);
        Self {
            vocab_of_head,
            vocab,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            wanted: Vec::new(),
            numbers: Vec::new(),
            logits: Vec::new(),
            candidates: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// A step was begun.
    pub fn push(&mut self, wanted: impl Iterator<Item = Wanted>) {
        let mut list = self.spare.pop().unwrap_or_default();
        list.clear();
        list.extend(wanted.filter(|wanted| *wanted != Wanted::Nothing));
        self.in_flight.push_back(list);
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub fn clear(&mut self) {
        self.spare.extend(self.in_flight.drain(..));
    }

    /// What is wanted of the oldest step in flight.
    pub fn oldest(&self) -> &[Wanted] {
        self.in_flight.front().map_or(&[], Vec::as_slice)
    }

    /// The oldest step comes back: `false` if there is none. `numbers` must hold what it gave when
    /// [`assemble`](Self::assemble) is called.
    pub fn pop(&mut self) -> bool {
        let Some(oldest) = self.in_flight.pop_front() else { return false };
        self.spare.push(std::mem::replace(&mut self.wanted, oldest));
        true
    }

    /// How many numbers the rank with the `head`th part of the output head sends.
    pub fn due(&self, head: usize) -> usize {
        due(&self.wanted, self.vocab_of_head[head].len())
    }

    /// Puts `numbers` in order.
    pub fn assemble(&mut self) {
        let Self { vocab_of_head, wanted, numbers, logits, candidates, outputs, .. } = self;
        logits.clear();
        candidates.clear();
        outputs.clear();
        for (at, want) in wanted.iter().enumerate() {
            let (first_logit, first_candidate) = (logits.len(), candidates.len());
            let mut start = 0;
            for slice in vocab_of_head.iter() {
                let from = start + due(&wanted[..at], slice.len());
                let own = &numbers[from..from + want.numbers(slice.len())];
                start += due(wanted, slice.len());
                match want {
                    Wanted::All => logits.extend_from_slice(own),
                    _ => {
                        candidates.extend(own.as_chunks::<2>().0.iter().map(|[token, logit]| {
                            Candidate { token: token.to_bits(), logit: *logit }
                        }))
                    }
                }
            }
            outputs.push(match want {
                Wanted::Top(count) => {
                    let own = &mut candidates[first_candidate..];
                    own.sort_unstable_by(Candidate::order);
                    let kept = own.len().min(*count as usize);
                    candidates.truncate(first_candidate + kept);
                    Place::Candidates(first_candidate..candidates.len())
                }
                _ => Place::Logits(first_logit..logits.len()),
            });
        }
        debug_assert!(logits.len().is_multiple_of(self.vocab.max(1)));
    }

    /// The results of the step that came back last, in its order.
    pub fn outputs(&self) -> impl Iterator<Item = Logits<'_>> {
        self.outputs.iter().map(|place| match place {
            Place::Logits(range) => Logits::All(&self.logits[range.clone()]),
            Place::Candidates(range) => Logits::Top(&self.candidates[range.clone()]),
        })
    }
}

/// How many numbers a rank with `len` tokens of the vocabulary sends.
pub(crate) fn due(wanted: &[Wanted], len: usize) -> usize {
    wanted.iter().map(|wanted| wanted.numbers(len)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logits::pick;

    #[test]
    fn parts_are_put_together_as_if_one_rank_had_all() {
        let vocab = 11;
        let rows: Vec<Vec<f32>> = (0..3)
            .map(|row| (0..vocab).map(|at| ((at * 7 + row * 3) % 11) as f32).collect())
            .collect();
        let wanted = [Wanted::Top(3), Wanted::All, Wanted::Top(1)];
        let run = |cuts: &[usize]| {
            let slices: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            let mut results = Results::new(slices.clone());
            results.push([Wanted::Nothing].into_iter().chain(wanted));
            assert!(results.pop() && !results.pop());
            results.push(wanted.into_iter());
            assert!(results.pop());
            let mut numbers = Vec::new();
            for (head, slice) in slices.iter().enumerate() {
                let before = numbers.len();
                for (wanted, row) in wanted.iter().zip(&rows) {
                    let own = &row[slice.clone()];
                    pick(*wanted, own, slice.start, &mut Vec::new(), &mut numbers);
                }
                assert_eq!(numbers.len() - before, results.due(head));
            }
            results.numbers = numbers;
            results.assemble();
            results.outputs().map(|logits| format!("{logits:?}")).collect::<Vec<_>>()
        };
        let whole = run(&[0, 11]);
        assert_eq!(whole.len(), 3);
        for cuts in [&[0, 5, 11][..], &[0, 0, 1, 11], &[0, 2, 2, 4, 9, 11, 11]] {
            assert_eq!(run(cuts), whole, "{cuts:?}");
        }
    }
}
