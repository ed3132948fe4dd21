//! Compares the speed of answers with the plan's prediction, and finds the likely cause of a
//! difference.

use std::collections::VecDeque;
use std::fmt;

use placement::Prediction;
use protocol::{Generation, RankStats};

use super::rank::RankPace;

/// A warning needs `ANSWERS` answers in a row that are off by more than `ERROR_MAX`: a single one
/// may have met a busy moment.
const ANSWERS: usize = 3;
const ERROR_MAX: f64 = 0.25;
/// Shorter answers give no rate, and predictions do not cover longer prompts.
const TOKENS_MIN: usize = 16;
const PROMPT_TOKENS_MAX: usize = 2048;
/// Ranks wait for links if their waits exceed the prediction by this part of their time; they wait
/// for one rank if their waits exceed that rank's by as much.
const WAIT_MIN: f64 = 0.15;

/// A rank is starved by its machine if its threads were runnable but not running for this part of
/// the time: waiting threads are runnable too.
const STARVED_MIN: f64 = 0.3;

/// The last answers that ran without other requests.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Tokens per second.
    rates: VecDeque<f64>,
    /// The ranks' reports at each answer, and at the one before the first.
    told: VecDeque<Vec<RankStats>>,
}

/// The most likely cause of slow answers.
#[derive(Debug, Clone, PartialEq)]
enum Cause<'a> {
    /// The others wait for a node, which gets `gets` of the processor time that it requests.
    Starved {
        node: &'a str,
        gets: f64,
    },
    /// The others wait for a node for `most` of their time, and it for `least` of its own.
    Slow {
        node: &'a str,
        most: f64,
        least: f64,
    },
    /// All wait for messages for `waits` of their time, instead of `predicted`.
    Links {
        waits: f64,
        predicted: f64,
    },
    Nodes,
}

impl Pace {
    pub(super) fn note(
        &mut self,
        generation: &Generation,
        rate: Option<f64>,
        told: Vec<RankStats>,
    ) {
        let is_typical = generation.generated_tokens - generation.answered_tokens >= TOKENS_MIN
            && generation.prompt_tokens <= PROMPT_TOKENS_MAX;
        if let Some(rate) = rate.filter(|_| is_typical) {
            self.rates.push_back(rate);
            self.told.push_back(told);
            if self.rates.len() > ANSWERS {
                self.rates.pop_front();
            }
            if self.told.len() > ANSWERS + 1 {
                self.told.pop_front();
            }
        }
    }

    /// Drops the figures, which do not apply to other ranks and links.
    pub(super) fn clear(&mut self) {
        self.rates.clear();
        self.told.clear();
    }

    /// Whether links are the most likely cause of slow answers.
    pub(super) fn blames_links(&self, prediction: &Prediction, ranks: &[RankPace<'_>]) -> bool {
        let cause = self.is_slow(prediction).then(|| self.cause(prediction, ranks));
        matches!(cause, Some(Cause::Links { .. }))
    }

    fn is_slow(&self, prediction: &Prediction) -> bool {
        let error = |rate: &f64| rate / prediction.decode_tokens_per_sec - 1.0;
        self.rates.len() >= ANSWERS && self.rates.iter().all(|rate| error(rate) < -ERROR_MAX)
    }

    /// A warning for the user: the difference, its likely cause, and a remedy. `ranks` is empty
    /// with several stages, which wait for each other by design.
    pub(crate) fn warning(
        &self,
        prediction: &Prediction,
        ranks: &[RankPace<'_>],
        guesses: bool,
    ) -> Option<String> {
        let predicted = prediction.decode_tokens_per_sec;
        let error = |rate: &f64| rate / predicted - 1.0;
        let slower = self.is_slow(prediction);
        // Predictions do not include speculative tokens.
        let faster = !guesses && self.rates.iter().all(|rate| error(rate) > ERROR_MAX);
        if self.rates.len() < ANSWERS || !(slower || faster) {
            return None;
        }
        let last = self.rates.back()?;
        let percent = (error(last) * 100.0).abs();
        let side = if slower { "less" } else { "more" };
        let cause = match slower {
            true => self.cause(prediction, ranks).to_string(),
            false => "A node was probably busy when it measured itself. It does so again when it \
                      has nothing to do: stop the model for two minutes, and serve it again"
                .to_owned(),
        };
        Some(format!(
            "answers come at {last:.1} tokens/s, {percent:.0} % {side} than the {predicted:.1} \
             predicted. {cause}"
        ))
    }
}

impl Pace {
    fn cause<'a>(&self, prediction: &Prediction, ranks: &[RankPace<'a>]) -> Cause<'a> {
        let lately: Vec<_> =
            ranks.iter().enumerate().map(|(at, rank)| self.lately(at, rank)).collect();
        let mut starved: Vec<_> =
            lately.iter().flatten().map(|(node, stats)| (starved(stats), *node)).collect();
        starved.sort_by(|a, b| a.0.total_cmp(&b.0));
        let are_all_starved = match starved[..] {
            [(least, _), .., (most, node)] if most > STARVED_MIN && most - least > WAIT_MIN => {
                return Cause::Starved { node, gets: 1.0 - most };
            }
            [(least, _), ..] => least > STARVED_MIN,
            [] => false,
        };
        let waits = lately
            .iter()
            .map(|rank| rank.as_ref().and_then(|(node, stats)| Some((wait(stats)?, *node))));
        let mut waits = waits.collect::<Option<Vec<_>>>().unwrap_or_default();
        waits.sort_by(|a, b| a.0.total_cmp(&b.0));
        let token = &prediction.token;
        let predicted = (token.message_secs + token.wire_secs) / token.secs();
        match waits[..] {
            [(least, node), .., (most, _)] if most - least > WAIT_MIN => {
                Cause::Slow { node, most, least }
            }
            // Not if all ranks are starved: their counted waits include waits for a processor.
            [(waits, _), .., _] if waits - predicted > WAIT_MIN && !are_all_starved => {
                Cause::Links { waits, predicted }
            }
            _ => Cause::Nodes,
        }
    }

    /// A rank's counts over the last answers. Earlier counts do not reflect later changes.
    fn lately<'a>(&self, at: usize, rank: &RankPace<'a>) -> Option<(&'a str, RankStats)> {
        let before = self.told.front().filter(|_| self.told.len() > ANSWERS);
        let earlier = before.and_then(|told| told.get(at)).cloned().unwrap_or_default();
        Some((rank.node, rank.stats?.since(&earlier)))
    }
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: f64| (part * 100.0).round();
        match *self {
            Cause::Starved { node, gets } => write!(
                f,
                "The others wait for {node}: it gets {} % of the processor time that it asks for. \
                 Other programs use it, or its processor time is limited (by a container's quota, \
                 say): look at it with `top`, and with `sinew nodes -v`",
                percent(gets)
            ),
            Cause::Slow { node, most, least } => write!(
                f,
                "The others wait for {node}: {} % of their time, and it {} %. Other programs may \
                 use it, or it is too hot: look at it with `top`, and with `sinew nodes -v`",
                percent(most),
                percent(least)
            ),
            Cause::Links { waits, predicted } => write!(
                f,
                "Its nodes wait for messages in {} % of their time, where {} % was predicted: a \
                 link is slower than it was measured. `sinew nodes -v` shows all",
                percent(waits),
                percent(predicted)
            ),
            Cause::Nodes => f.write_str(
                "Its nodes compute more slowly than they measured: other programs may use them. \
                 Look at them with `top`",
            ),
        }
    }
}

/// The part of the time in which its threads were runnable but not running.
fn starved(stats: &RankStats) -> f64 {
    let wanted = stats.ran_us.saturating_add(stats.starved_us);
    if wanted > 0 { stats.starved_us as f64 / wanted as f64 } else { 0.0 }
}

/// The part of its steps in which a rank waits for others.
fn wait(stats: &RankStats) -> Option<f64> {
    let all = stats.compute_us.saturating_add(stats.exchange_wait_us);
    (all > 0).then(|| stats.exchange_wait_us as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use placement::{Load, TokenTime};
    use protocol::FinishReason;

    use super::*;

    /// A hundred tokens per second, with a tenth of the time in links.
    fn prediction() -> Prediction {
        Prediction {
            decode_tokens_per_sec: 100.0,
            prefill_tokens_per_sec: 1000.0,
            first_token_secs: 0.5,
            load: Load { users: 1, prompt_tokens: 512, answer_tokens: 256 },
            total_tokens_per_sec: 100.0,
            token: TokenTime { read_secs: 0.009, message_secs: 0.001, ..TokenTime::default() },
            guessed: None,
        }
    }

    fn answer(generated_tokens: usize, prompt_tokens: usize) -> Generation {
        Generation {
            request: 1,
            reason: FinishReason::Length,
            prompt_tokens,
            generated_tokens,
            answered_tokens: 0,
            cached_tokens: 0,
            guesses: protocol::Guesses::default(),
            queue_us: 0,
            prefill_us: 1,
            decode_us: 1,
            waits_us: Vec::new(),
            embedding: None,
        }
    }

    fn pace(rates: &[f64]) -> Pace {
        let mut pace = Pace::default();
        rates.iter().for_each(|rate| pace.note(&answer(100, 10), Some(*rate), Vec::new()));
        pace
    }

    fn waiting(part: u64) -> RankStats {
        RankStats { compute_us: 100 - part, exchange_wait_us: part, ..RankStats::default() }
    }

    #[test]
    fn only_what_lasts_is_a_warning() {
        let warns = |rates: &[f64]| pace(rates).warning(&prediction(), &[], false).is_some();
        assert!(!warns(&[]) && !warns(&[50.0, 50.0]) && !warns(&[50.0, 76.0, 50.0]));
        assert!(warns(&[50.0, 60.0, 74.0]) && warns(&[90.0, 50.0, 50.0, 50.0]));
        assert!(!warns(&[50.0, 130.0, 50.0]) && warns(&[130.0, 140.0, 150.0]));
        assert_eq!(pace(&[150.0; 3]).warning(&prediction(), &[], true), None);
        let mut cleared = pace(&[50.0; 3]);
        cleared.clear();
        assert_eq!(cleared.warning(&prediction(), &[], false), None);
    }

    #[test]
    fn answers_that_tell_nothing_do_not_count() {
        let mut pace = Pace::default();
        for answer in [answer(15, 10), answer(100, 2049)] {
            (0..ANSWERS).for_each(|_| pace.note(&answer, Some(1.0), Vec::new()));
        }
        (0..ANSWERS).for_each(|_| pace.note(&answer(100, 10), None, Vec::new()));
        assert_eq!(pace.warning(&prediction(), &[], false), None);
    }

    #[test]
    fn the_warning_names_the_likely_cause() {
        let says = |parts: [u64; 2]| {
            let stats = parts.map(waiting);
            let ranks =
                [("a", 0), ("b", 1)].map(|(node, at)| RankPace { node, stats: Some(&stats[at]) });
            pace(&[50.0; 3]).warning(&prediction(), &ranks, false).unwrap()
        };
        assert!(says([40, 5]).contains("wait for b: 40 % of their time, and it 5 %"));
        assert!(says([60, 50]).contains("for messages in 50 % of their time, where 10 %"));
        assert!(says([12, 9]).contains("compute more slowly"));
        assert!(
            says([40, 5]).starts_with("answers come at 50.0 tokens/s, 50 % less than the 100.0")
        );
    }

    #[test]
    fn a_rank_that_gets_no_processor_is_named_whatever_it_counts_as_waiting() {
        let starved = |part: u64| RankStats { ran_us: 100 - part, starved_us: part, ..waiting(50) };
        for (parts, expected) in [
            ([20, 80], "wait for b: it gets 20 % of the processor time"),
            ([80, 75], "compute more slowly"),
            ([20, 20], "for messages in 50 % of their time"),
        ] {
            let told = parts.map(starved);
            let ranks =
                [("a", 0), ("b", 1)].map(|(node, at)| RankPace { node, stats: Some(&told[at]) });
            let slow = pace(&[50.0; 3]);
            let says = slow.warning(&prediction(), &ranks, false).unwrap();
            assert!(says.contains(expected), "{parts:?}: {says}");
            assert_eq!(slow.blames_links(&prediction(), &ranks), parts == [20, 20]);
        }
    }

    #[test]
    fn only_the_time_of_the_last_answers_counts() {
        let mut pace = Pace::default();
        // A long time without waits, then three answers that only wait.
        let before = RankStats { compute_us: 1_000_000, ..RankStats::default() };
        let after = RankStats { exchange_wait_us: 1000, ..before.clone() };
        for told in [&before, &before, &before, &after] {
            pace.note(&answer(100, 10), Some(50.0), vec![told.clone(); 2]);
        }
        let ranks = ["a", "b"].map(|node| RankPace { node, stats: Some(&after) });
        assert!(pace.blames_links(&prediction(), &ranks));
        let none = ["a", "b"].map(|node| RankPace { node, stats: Some(&before) });
        assert!(!pace.blames_links(&prediction(), &none));
    }
}
