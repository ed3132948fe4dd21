//! Speculates an answer's next tokens: if its last few tokens occurred before, in the prompt or in
//! the answer itself, it may continue the same way.
//!
//! A guess is an additional row of the next step. The token drawn there equals the one drawn
//! without it, so guesses change only the time: right ones save a step each, wrong ones cost a row.
//! The hit rate is tracked even while no guesses are made.

use layout::GUESSES_MAX;
use protocol::Token;

use super::costs::Price;

/// The number of consecutive tokens that must have occurred before.
const RUN: usize = 3;

/// Weight of the newest outcome in the hit rate.
const NEWEST: f32 = 1.0 / 8.0;

/// Weight of an answer's hit rate in that of recent answers.
const TAUGHT: f32 = 1.0 / 4.0;

/// How fast a draft's hit rate fades with each token that it does not speculate.
const FADING: f32 = 1.0 / 64.0;

/// Speculation for one sequence.
#[derive(Debug)]
pub(super) struct Guesser {
    /// By a run's hash: the position after its last occurrence; 0 for none.
    next: Vec<u32>,
    /// Runs that end before this position are indexed.
    learned: usize,
    pub rate: HitRate,
}

/// The fraction of right guesses.
#[derive(Debug, Clone, Copy)]
pub(super) struct HitRate(f32);

/// The tokens speculated by a draft model.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// The number of tokens of prompt and answer before them.
    pub after: usize,
    pub offered: Vec<Token>,
    /// Whether the guesses in the step in flight come from the draft.
    pub are_tried: bool,
    pub rate: HitRate,
    /// The number of tried ones.
    tried: usize,
}

impl Drafts {
    /// Records whether one was right.
    pub fn note(&mut self, is_right: bool) {
        self.rate.note(is_right);
        self.tried += 1;
    }

    /// Moves the rate of recent answers towards this answer's, if it has tried some.
    pub fn teach(&self, recent: &mut HitRate) {
        if self.tried > 0 {
            recent.0 += (self.rate.0 - recent.0) * TAUGHT;
        }
    }
}

impl Default for HitRate {
    fn default() -> Self {
        Self(0.5)
    }
}

impl HitRate {
    /// The number of guesses with the most tokens for a step's time at this price.
    pub fn worth(&self, price: Price) -> usize {
        let rate = |guesses: usize| {
            let tokens: f64 = (0..=guesses).map(|at| f64::from(self.0).powi(at as i32)).sum();
            let any = if guesses > 0 { price.any } else { 0.0 };
            tokens / (1.0 + any + price.each * guesses as f64)
        };
        let better = |a: &usize, b: &usize| rate(*a).total_cmp(&rate(*b));
        // Of equals, the fewest.
        (0..=GUESSES_MAX).rev().max_by(better).unwrap_or(0)
    }

    /// Records whether a guess was right.
    pub fn note(&mut self, is_right: bool) {
        let outcome = if is_right { 1.0 } else { 0.0 };
        self.0 += (outcome - self.0) * NEWEST;
    }

    /// Fades the rate while there is nothing to track.
    pub fn forget(&mut self, fades: bool) {
        if fades {
            self.0 += (0.5 - self.0) * FADING;
        }
    }
}

impl Guesser {
    /// For a text of up to `tokens` tokens.
    pub fn new(tokens: usize) -> Self {
        Self { next: vec![0; tokens.next_power_of_two()], learned: 0, rate: HitRate::default() }
    }

    /// Puts up to `count` guesses after `text` into `guesses`, which is empty.
    pub fn guess(&mut self, text: &[Token], count: usize, guesses: &mut Vec<Token>) {
        self.learn(text);
        let len = text.len();
        let Some(start) = self.find(text) else { return };
        let known = len.min(start + count);
        guesses.extend(&text[start..known]);
        // Beyond its own end the text repeats itself.
        for at in 0..start + count - known {
            guesses.push(guesses[at]);
        }
    }

    /// The token after `text`, if there is a guess.
    pub fn first_guess(&mut self, text: &[Token]) -> Option<Token> {
        self.learn(text);
        self.find(text).map(|start| text[start])
    }

    /// The position after the last earlier occurrence of the text's end.
    fn find(&self, text: &[Token]) -> Option<usize> {
        let run = text.last_chunk()?;
        let found = self.next[self.slot(run)] as usize;
        (found > 0 && text[..found].ends_with(run)).then_some(found)
    }

    fn learn(&mut self, text: &[Token]) {
        while self.learned < text.len() {
            if let Some(run) = text[..self.learned].last_chunk() {
                let slot = self.slot(run);
                self.next[slot] = self.learned as u32;
            }
            self.learned += 1;
        }
    }

    fn slot(&self, run: &[Token; RUN]) -> usize {
        // FNV-1a over the tokens; all of them affect the upper bits.
        let mix =
            |hash: u64, token: &Token| (hash ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3);
        let hash = run.iter().fold(0xcbf2_9ce4_8422_2325, mix);
        (hash ^ hash >> 32) as usize & (self.next.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses(text: &[Token], count: usize) -> Vec<Token> {
        let mut guesses = Vec::new();
        Guesser::new(64).guess(text, count, &mut guesses);
        guesses
    }

    #[test]
    fn a_text_goes_on_as_it_did_before() {
        assert_eq!(guesses(&[1, 2, 3, 4, 5, 6, 7, 9, 2, 3, 4], 3), [5, 6, 7]);
        assert!(guesses(&[1, 2, 3, 4, 5, 6, 7, 9, 2, 3], 3).is_empty(), "two tokens are no run");
        let last_time = guesses(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1);
        assert_eq!(last_time, [5], "the last time counts");
        assert!(guesses(&[1, 2], 3).is_empty());
    }

    #[test]
    fn a_text_that_repeats_itself_goes_round() {
        assert_eq!(guesses(&[1, 2, 3, 4, 1, 2, 3], 7), [4, 1, 2, 3, 4, 1, 2]);
        assert_eq!(guesses(&[8, 8, 8, 8], 4), [8, 8, 8, 8]);
    }

    #[test]
    fn what_is_learned_bit_by_bit_is_what_is_learned_at_once() {
        let text: Vec<Token> = (0..60).map(|at| (at * at / 7 + at) % 4).collect();
        let mut guesser = Guesser::new(64);
        for len in 1..text.len() {
            let expected = guesses(&text[..len], 1).first().copied();
            assert_eq!(guesser.first_guess(&text[..len]), expected, "{len}");
        }
    }

    #[test]
    fn guesses_are_made_while_they_pay() {
        let each = |each: f64| Price { any: 0.0, each };
        let mut rate = HitRate::default();
        (0..50).for_each(|_| rate.note(true));
        assert_eq!(rate.worth(each(0.1)), GUESSES_MAX);
        assert_eq!(rate.worth(each(1.6)), 0, "the others would wait longer than one gains");
        let dear = Price { any: 6.5, each: 0.1 };
        assert_eq!(rate.worth(dear), 0, "no number pays for the first one");
        (0..50).for_each(|_| rate.note(false));
        assert_eq!(rate.worth(each(0.05)), 0);
        (0..50).for_each(|_| rate.forget(true));
        assert!(rate.worth(each(0.05)) > 0, "it is tried again");
        let sometimes = HitRate(0.6);
        // 1.6 / 1.2, 1.96 / 1.4, 2.18 / 1.6.
        assert_eq!(sometimes.worth(each(0.2)), 2);
        // 1.6 / 1.7, 1.96 / 1.9, 2.18 / 2.1, 2.31 / 2.3.
        assert_eq!(sometimes.worth(Price { any: 0.5, each: 0.2 }), 3);
    }
}
