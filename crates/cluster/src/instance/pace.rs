//! Whether answers come as fast as the plan predicted, and if not, what is likely to hold them up.

use std::collections::VecDeque;

use placement::Prediction;
use protocol::{Generation, RankStats};

/// So many answers in a row must be off by more than so much: one may have met a busy moment.
const ANSWERS: usize = 3;
const ERROR_MAX: f64 = 0.25;
/// Shorter answers tell no rate, and longer prompts are not what was predicted.
const TOKENS_MIN: usize = 16;
const PROMPT_TOKENS_MAX: usize = 2048;
/// Ranks wait for messages, or for one of them, if they wait for so much more of their time than
/// was predicted, or than that one does.
const WAIT_MIN: f64 = 0.15;

/// The rates of the last answers that had all ranks for themselves, tokens a second.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    rates: VecDeque<f64>,
}

/// A rank of an instance of one stage: its node, and what it told last.
pub(crate) struct RankPace<'a> {
    pub node: &'a str,
    pub stats: Option<&'a RankStats>,
}

impl Pace {
    pub(super) fn note(&mut self, generation: &Generation, rate: Option<f64>) {
        let is_typical = generation.generated_tokens - generation.answered_tokens >= TOKENS_MIN
            && generation.prompt_tokens <= PROMPT_TOKENS_MAX;
        if let Some(rate) = rate.filter(|_| is_typical) {
            self.rates.push_back(rate);
            if self.rates.len() > ANSWERS {
                self.rates.pop_front();
            }
        }
    }

    /// Other ranks, other links: what was measured says nothing about them.
    pub(super) fn clear(&mut self) {
        self.rates.clear();
    }

    /// For a person: by how much, why probably, and what to do. `ranks` are empty where there are
    /// several stages, as those wait for each other by design.
    pub(crate) fn warning(
        &self,
        prediction: &Prediction,
        ranks: &[RankPace<'_>],
        guesses: bool,
    ) -> Option<String> {
        let predicted = prediction.decode_tokens_per_sec;
        let error = |rate: &f64| rate / predicted - 1.0;
        let slower = self.rates.iter().all(|rate| error(rate) < -ERROR_MAX);
        // Guesses at next tokens are no part of a prediction.
        let faster = !guesses && self.rates.iter().all(|rate| error(rate) > ERROR_MAX);
        if self.rates.len() < ANSWERS || !(slower || faster) {
            return None;
        }
        let last = self.rates.back()?;
        let percent = (error(last) * 100.0).abs();
        let side = if slower { "less" } else { "more" };
        let cause = match slower {
            true => cause(prediction, ranks),
            false => "A node was probably busy when it measured itself at its start: start it \
                      again, and serve the model again"
                .to_owned(),
        };
        Some(format!(
            "answers come at {last:.1} tokens/s, {percent:.0} % {side} than the {predicted:.1} \
             predicted. {cause}"
        ))
    }
}

/// Why answers are slow, most probably.
fn cause(prediction: &Prediction, ranks: &[RankPace<'_>]) -> String {
    let waits: Option<Vec<(f64, &str)>> =
        ranks.iter().map(|rank| Some((wait(rank.stats?)?, rank.node))).collect();
    let mut waits = waits.unwrap_or_default();
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let percent = |part: f64| (part * 100.0).round();
    let token = &prediction.token;
    let in_links = (token.message_secs + token.wire_secs) / token.secs();
    match waits[..] {
        [(least, node), .., (most, _)] if most - least > WAIT_MIN => format!(
            "The others wait for {node}: {} % of their time, and it {} %. Other programs may use \
             it, or it is too hot: look at it with `top`, and with `sinew nodes -v`",
            percent(most),
            percent(least)
        ),
        [(least, _), .., _] if least - in_links > WAIT_MIN => format!(
            "Its nodes wait for messages in {} % of their time, where {} % was predicted: a link \
             is slower than it was measured. `sinew nodes -v` shows all",
            percent(least),
            percent(in_links)
        ),
        _ => "Its nodes compute more slowly than they measured at their start: other programs may \
              use them. Look at them with `top`"
            .to_owned(),
    }
}

/// The part of its steps in which a rank waits for others.
fn wait(stats: &RankStats) -> Option<f64> {
    let all = stats.compute_us + stats.exchange_wait_us;
    (all > 0).then(|| stats.exchange_wait_us as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use placement::{Load, TokenTime};
    use protocol::FinishReason;

    use super::*;

    /// Of a hundred tokens a second, a tenth of the time in links.
    fn prediction() -> Prediction {
        Prediction {
            decode_tokens_per_sec: 100.0,
            prefill_tokens_per_sec: 1000.0,
            first_token_secs: 0.5,
            load: Load { users: 1, prompt_tokens: 512, answer_tokens: 256 },
            total_tokens_per_sec: 100.0,
            token: TokenTime { read_secs: 0.009, message_secs: 0.001, ..TokenTime::default() },
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
            queue_us: 0,
            prefill_us: 1,
            decode_us: 1,
            waits_us: Vec::new(),
            embedding: None,
        }
    }

    fn pace(rates: &[f64]) -> Pace {
        let mut pace = Pace::default();
        rates.iter().for_each(|rate| pace.note(&answer(100, 10), Some(*rate)));
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
            (0..ANSWERS).for_each(|_| pace.note(&answer, Some(1.0)));
        }
        (0..ANSWERS).for_each(|_| pace.note(&answer(100, 10), None));
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
}
