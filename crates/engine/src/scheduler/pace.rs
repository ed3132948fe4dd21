//! Decides the rows of prompts beside answers.
//!
//! While a prompt is computed, the next token of every running answer is delayed, since the step
//! has more rows. That delay is measured, and the number of rows is chosen so that a step takes at
//! most about twice its time without them. The latter is measured again from time to time: answers
//! grow, and their number changes.

use std::time::Duration;

use super::costs::GuessCosts;
use crate::step::StepNote;

/// The target duration of a step with rows of prompts, relative to one without: somewhat below two,
/// because measurements scatter.
const STEPS: f64 = 1.8;

/// The initial number of rows.
const ROWS_FIRST: f64 = 8.0;

/// After this many steps with rows of prompts, one without them is made for a measurement; about 6
/// % of them.
const MIXED_STEPS: usize = 16;

/// Weight of a new measurement relative to the earlier ones.
const NEW: f64 = 0.2;

/// A step longer than this many plain steps was delayed by something else as well.
const LATE: f64 = 4.0;

/// A step of fewer rows of a prompt mostly reads weights.
const PROMPT_ROWS_MIN: usize = 32;
/// What a row of a longer one takes of that: less on most devices, more where each row has experts
/// of its own.
const ROW_OF_FEW: f64 = 1.0 / 3.0;

/// The largest changes of the number of rows at once, as factors.
const SLOWER: f64 = 0.5;
const FASTER: f64 = 1.25;

/// Steps are classified by their number of answers up to the next power of two.
const SIZES: usize = usize::BITS as usize + 1;

/// A finished step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub note: StepNote,
    pub took: Duration,
}

#[derive(Debug)]
pub(super) struct Pace {
    /// Steps in flight at once.
    depth: usize,
    rows_max: usize,
    /// Seconds of a step without rows of prompts, by the number of answers.
    alone: [Option<f64>; SIZES],
    rows: f64,
    guess_costs: GuessCosts,
    /// Recent rows of prompts in a step, and their additional seconds.
    usual_rows: f64,
    usual_more: f64,
    /// Steps with rows of prompts since the last measurement without.
    mixed: usize,
    /// Seconds of a row of a prompt, in steps of prompts alone; and of a step of few such rows.
    prompt_row: Option<f64>,
    few_rows: Option<f64>,
}

impl Pace {
    pub fn new(rows_max: usize, depth: usize) -> Self {
        Self {
            depth,
            rows_max,
            alone: [None; SIZES],
            rows: ROWS_FIRST,
            usual_rows: 0.0,
            usual_more: 0.0,
            guess_costs: GuessCosts::default(),
            mixed: 0,
            prompt_row: None,
            few_rows: None,
        }
    }

    /// The rows of prompts for the next step, with `answers` answers.
    pub fn rows(&self, answers: usize) -> usize {
        if self.alone(answers).is_none() || self.mixed >= MIXED_STEPS * self.depth {
            return 0;
        }
        (self.rows.round() as usize).clamp(1, self.rows_max)
    }

    /// How many seconds a row of a long prompt takes. Before any was measured: a part of a step of
    /// few rows, which mostly reads weights.
    pub fn prompt_row(&self) -> Option<f64> {
        let few = || Some(ROW_OF_FEW * self.few_rows.or_else(|| self.alone(1))?);
        self.prompt_row.or_else(few)
    }

    /// Seconds of a step with only these answers, or with the nearest measured number.
    fn alone(&self, answers: usize) -> Option<f64> {
        let (fewer, more) = self.alone.split_at(size(answers) + 1);
        fewer.iter().rev().chain(more).copied().flatten().next()
    }

    /// What guesses cost beside `answers` answers; `None` if the next step should have none.
    pub fn guess_costs(&self, answers: usize) -> Option<&GuessCosts> {
        let is_due = self.alone(answers).is_none() || self.guess_costs.is_plain_due();
        (!is_due).then_some(&self.guess_costs)
    }

    /// Learns from a draft model's `passes`, before a step with this number of answers.
    pub fn learn_draft_cost(&mut self, answers: usize, took: Duration, passes: usize) {
        if let Some(alone) = self.alone(answers).filter(|alone| *alone > 0.0 && passes > 0) {
            self.guess_costs.learn_draft(took.as_secs_f64() / passes as f64 / alone);
        }
    }

    /// Learns from a step.
    pub fn learn(&mut self, step: Measured) {
        let StepNote { answer_rows, guess_rows, prompt_rows_ahead: prompt_rows, .. } = step.note;
        let took = step.took.as_secs_f64();
        if answer_rows == 0 {
            if prompt_rows < PROMPT_ROWS_MIN {
                self.few_rows = Some(self.few_rows.map_or(took, |before| before.min(took)));
            } else {
                let row = took / prompt_rows as f64;
                self.prompt_row = Some(self.prompt_row.map_or(row, |old| old + NEW * (row - old)));
            }
            return;
        }
        if guess_rows > 0 && prompt_rows > 0 {
            return;
        }
        if guess_rows > 0 {
            let alone = self.alone(answer_rows).filter(|alone| *alone > 0.0);
            return alone
                .into_iter()
                .for_each(|alone| self.guess_costs.learn(guess_rows, took / alone - 1.0));
        }
        if prompt_rows == 0 {
            let alone = &mut self.alone[size(answer_rows)];
            *alone = Some(alone.map_or(took, |before| before + NEW * (took - before)));
            self.mixed = 0;
            self.guess_costs.learn_plain();
            return;
        }
        self.mixed += 1;
        let Some(alone) = self.alone(answer_rows) else { return };
        // Ratio of sums: averaging before the division reduces the scatter.
        let new = if self.usual_rows > 0.0 { NEW } else { 1.0 };
        self.usual_rows += new * (prompt_rows as f64 - self.usual_rows);
        self.usual_more += new * (took.min(LATE * alone) - alone - self.usual_more);
        let row = (self.usual_more / self.usual_rows).max(f64::MIN_POSITIVE);
        let rows = (STEPS - 1.0) * alone / row;
        let rows = rows.clamp(self.rows * SLOWER, self.rows * FASTER);
        self.rows = rows.clamp(1.0, self.rows_max as f64);
    }
}

fn size(answers: usize) -> usize {
    (usize::BITS - answers.saturating_sub(1).leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds of a step on a machine where all answers take 30 together.
    fn took(prompt_rows: usize, row_ms: f64) -> Duration {
        Duration::from_secs_f64((30.0 + row_ms * prompt_rows as f64) * 1e-3)
    }

    fn measured(
        answer_rows: usize,
        prompt_rows: usize,
        guess_rows: usize,
        took: Duration,
    ) -> Measured {
        let prompt_rows_ahead = prompt_rows;
        let note =
            StepNote { answer_rows, prompt_rows, guess_rows, prompt_rows_ahead, begun: None };
        Measured { note, took }
    }

    #[test]
    fn what_a_guess_costs_is_measured() {
        let mut pace = Pace::new(512, 1);
        assert!(pace.guess_costs(1).is_none(), "a step without guesses comes first");
        for _ in 0..100 {
            pace.learn(measured(1, 0, 0, took(0, 1.5)));
            pace.learn(measured(1, 0, 4, took(4, 1.5)));
        }
        let each = pace.guess_costs(1).unwrap().of_rows(1).each;
        assert!((each - 1.5 / 30.0).abs() < 1e-3, "{each}");
        assert!((pace.alone(1).unwrap() - 0.03).abs() < 1e-6, "steps with guesses do not count");
    }

    /// The steps of a prompt with `prompt` rows beside `answers`: rows and times.
    fn run(pace: &mut Pace, answers: usize, prompt: usize, row_ms: f64) -> Vec<(usize, Duration)> {
        let (mut left, mut steps) = (prompt, Vec::new());
        while left > 0 {
            let prompt_rows = pace.rows(answers).min(left);
            let took = took(prompt_rows, row_ms);
            pace.learn(measured(answers, prompt_rows, 0, took));
            left -= prompt_rows;
            steps.push((prompt_rows, took));
        }
        steps
    }

    #[test]
    fn a_step_beside_a_long_prompt_takes_at_most_twice_as_long() {
        for row_ms in [0.01, 0.2, 1.0, 4.0, 20.0] {
            let steps = run(&mut Pace::new(512, 1), 3, 16_000, row_ms);
            let limit = took(0, row_ms).max(took(1, row_ms)).as_secs_f64();
            // Except the first steps, with their initial number of rows.
            let slow = steps.iter().filter(|(_, took)| took.as_secs_f64() > 2.0 * limit);
            assert!(slow.count() <= 4, "{row_ms} ms a row");
            let rows = steps.iter().map(|(rows, _)| *rows).max().unwrap();
            let most = (0.8 * 30.0 / row_ms).clamp(ROWS_FIRST, 512.0);
            assert!(rows as f64 <= 1.1 * most, "{rows} rows of {row_ms} ms");
            // And not more of that time is unused than the measurements need.
            let usual = (0.8 * 30.0 / row_ms).clamp(1.0, 512.0).floor();
            let least = 16_000.0 / usual;
            assert!((steps.len() as f64) < 1.25 * least + 30.0, "{} of {least}", steps.len());
        }
    }

    #[test]
    fn what_a_prompts_row_takes_is_measured_without_answers() {
        let mut pace = Pace::new(512, 1);
        assert_eq!(pace.prompt_row(), None);
        pace.learn(measured(1, 0, 0, took(0, 1.0)));
        let is = |pace: &Pace, row: f64| (pace.prompt_row().unwrap() - row).abs() < 1e-9;
        assert!(is(&pace, 0.01), "a third of a step of one answer");
        pace.learn(measured(0, 1, 0, took(0, 0.0) / 2));
        pace.learn(measured(0, 8, 0, took(8, 1.0)));
        assert!(is(&pace, 0.005), "a third of the shortest of few rows");
        (0..50).for_each(|_| pace.learn(measured(0, 300, 0, took(300, 1.0))));
        assert!((pace.prompt_row().unwrap() - 1.1e-3).abs() < 1e-4);
    }

    #[test]
    fn times_that_scatter_do_not_hold_a_prompt_up() {
        let (mut pace, mut rng) = (Pace::new(512, 1), fastrand::Rng::with_seed(7));
        let (mut steps, mut rows, mut seconds) = (0, 0, 0.0);
        while steps < 5000 {
            let prompt_rows = pace.rows(1);
            // Half to one and a half times as long, and sometimes ten times.
            let scatter = if rng.u32(..50) == 0 { 10.0 } else { 0.5 + rng.f64() };
            let exact = took(prompt_rows, 4.0);
            pace.learn(measured(1, prompt_rows, 0, exact.mul_f64(scatter)));
            (steps, rows, seconds) = (steps + 1, rows + prompt_rows, seconds + exact.as_secs_f64());
        }
        // Six rows of 4 ms would fit into each.
        let (rows, took) = (rows as f64 / f64::from(steps), seconds / f64::from(steps));
        assert!(rows > 3.5 && took < 0.07, "{rows} rows a step of {took} s");
    }

    #[test]
    fn rows_that_become_dearer_become_fewer() {
        let mut pace = Pace::new(512, 1);
        run(&mut pace, 1, 3000, 0.1);
        let cheap = pace.rows(1);
        run(&mut pace, 1, 1000, 1.0);
        let dear = pace.rows(1).max(1);
        assert!(cheap > 200 && dear < 40, "{cheap} and {dear}");
    }

    #[test]
    fn nothing_goes_beside_answers_until_their_own_time_is_known() {
        let mut pace = Pace::new(512, 1);
        assert_eq!(pace.rows(3), 0);
        pace.learn(measured(3, 0, 0, took(0, 0.0)));
        assert!(pace.rows(3) > 0 && pace.rows(1) > 0 && pace.rows(9) > 0);
    }
}
