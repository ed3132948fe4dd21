//! Measures what guesses cost, as fractions of the time of a step without any.
//!
//! A step with guesses takes longer by an amount for having any, and an amount for each row: both
//! are fitted to recent steps. From time to time a step has none, so that its own time stays known.

/// Weight of a measurement relative to the one after it.
const OLDER: f64 = 0.95;

/// The assumed cost of a row, and of a draft's token.
const FIRST: f64 = 0.15;

/// Steps with guesses between two without.
const STEPS_MAX: usize = 100;

/// The variance of the numbers of guesses from which two amounts can be told apart.
const VARIANCE_MIN: f64 = 0.5;

/// The price of guesses for one answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Price {
    /// Of having any in the step.
    pub any: f64,
    pub each: f64,
}

#[derive(Debug)]
pub(super) struct GuessCosts {
    /// The time of a draft's pass.
    draft: f64,
    /// Steps with guesses since the last one without.
    steps: usize,
    /// Weighted sums over recent steps with guesses: of 1, their guesses, these squared, the
    /// additional times, and guesses times additional times.
    sums: [f64; 5],
}

impl Default for GuessCosts {
    fn default() -> Self {
        Self { draft: FIRST, steps: 0, sums: [1.0, 1.0, 1.0, FIRST, FIRST] }
    }
}

impl GuessCosts {
    /// Whether the next step should have no guesses.
    pub fn is_plain_due(&self) -> bool {
        self.steps >= STEPS_MAX
    }

    /// The price of guesses beside `answers` answers, each of which waits for all rows.
    pub fn of_rows(&self, answers: usize) -> Price {
        let Price { any, each } = self.fitted();
        Price { any, each: each * answers as f64 }
    }

    /// The same of a draft's guesses, for at most `most` answers a pass.
    pub fn of_drafts(&self, answers: usize, most: usize) -> Price {
        let Price { any, each } = self.of_rows(answers);
        let passes = answers as f64 / answers.clamp(1, most) as f64;
        Price { any, each: each + self.draft * passes }
    }

    fn fitted(&self) -> Price {
        let [weight, guesses, squares, more, both] = self.sums;
        let (mean, mean_more) = (guesses / weight, more / weight);
        let variance = squares / weight - mean * mean;
        let slope = (both / weight - mean * mean_more) / variance;
        let any = mean_more - slope * mean;
        if variance < VARIANCE_MIN || any < 0.0 || slope < 0.0 {
            return Price { any: 0.0, each: (mean_more / mean).max(0.0) };
        }
        Price { any, each: slope }
    }

    /// Learns from a step with guesses, which took `more` of a step without in addition.
    pub fn learn(&mut self, guesses: usize, more: f64) {
        self.steps += 1;
        let (guesses, more) = (guesses as f64, more.clamp(0.0, guesses as f64));
        let new = [1.0, guesses, guesses * guesses, more, guesses * more];
        self.sums.iter_mut().zip(new).for_each(|(sum, new)| *sum = *sum * OLDER + new);
    }

    /// Learns from a step without guesses.
    pub fn learn_plain(&mut self) {
        self.steps = 0;
    }

    /// Learns from a draft's pass.
    pub fn learn_draft(&mut self, took: f64) {
        self.draft = self.draft * OLDER + took.clamp(0.0, 1.0) * (1.0 - OLDER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_amounts_are_found() {
        let mut costs = GuessCosts::default();
        assert_eq!(costs.of_rows(1), Price { any: 0.0, each: FIRST });
        for at in 0..200 {
            let guesses = 1 + at % 7;
            costs.learn(guesses, 0.5 + 0.1 * guesses as f64);
        }
        let Price { any, each } = costs.of_rows(1);
        assert!((any - 0.5).abs() < 0.01 && (each - 0.1).abs() < 0.01, "{any} and {each}");
        let four = costs.of_rows(4);
        assert!((four.each - 4.0 * each).abs() < 1e-9 && four.any == any);
    }

    #[test]
    fn one_number_of_guesses_gives_one_amount() {
        let mut costs = GuessCosts::default();
        (0..200).for_each(|_| costs.learn(7, 1.4));
        let Price { any, each } = costs.of_rows(1);
        assert!(any == 0.0 && (each - 0.2).abs() < 1e-3, "{any} and {each}");
        assert!(costs.is_plain_due());
        costs.learn_plain();
        assert!(!costs.is_plain_due());
    }

    #[test]
    fn a_pass_of_a_draft_is_shared() {
        let mut costs = GuessCosts::default();
        (0..200).for_each(|_| costs.learn_draft(0.3));
        let added = |answers| costs.of_drafts(answers, 4).each - costs.of_rows(answers).each;
        assert!((added(1) - 0.3).abs() < 1e-3 && (added(4) - 0.3).abs() < 1e-3);
        assert!((added(8) - 0.6).abs() < 1e-3, "two passes");
    }
}
