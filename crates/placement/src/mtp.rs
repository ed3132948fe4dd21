//! Room for a model's MTP block, which rank 0 has whole: it speculates next tokens. What its
//! guesses gain, or those of a draft.

use layout::{GUESSES_MAX, Outline};
use protocol::Speculation;
use serde::{Deserialize, Serialize};

use crate::choice::{gib, guessed_words};
use crate::cost::{Load, Model, Rows, Stage};
use crate::{Error, Node, Options, Plan};

/// The assumed part of guesses that are right. The report on DeepSeek-V3 has 85 to 90 %
/// for the first one; later ones are worse.
const ACCEPTANCE: f64 = 0.7;

/// The predicted speed of one user's answer, if a part of the guessed tokens is right.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guessed {
    /// The assumed probability that a guess is right, if those before it are.
    pub acceptance: f64,
    /// The best number of guesses a step.
    pub depth: usize,
    pub decode_tokens_per_sec: f64,
}

/// A plan with room for the block, if the same ranks suffice for it; else one without.
pub(crate) fn plan(
    model: &Outline,
    nodes: &[Node],
    options: &Options<'_>,
    plan: impl Fn(&Outline, &[Node], &Options<'_>) -> Result<Plan, Error>,
) -> Result<Plan, Error> {
    let mut without = plan(model, nodes, options)?;
    let guessed = without.prediction.as_mut().and_then(|prediction| prediction.guessed.take());
    let asked = &options.spec.options;
    if asked.speculation == Speculation::Off {
        return Ok(without);
    }
    if asked.draft.is_some() {
        return Ok(without.with_guesses(guessed, "draft"));
    }
    let leader = nodes.first();
    let Some(leader) = leader else { return Ok(without) };
    let footprint = model.mtp_footprint(without.split.context_tokens, leader.device);
    let Some(footprint) = footprint else { return Ok(without) };
    let mut room = nodes.to_vec();
    room[0].memory_free_bytes = room[0].memory_free_bytes.saturating_sub(footprint.bytes());
    match plan(model, &room, options) {
        Ok(mut with) if with.ranks.len() == without.ranks.len() => {
            let first = &mut with.ranks[0];
            first.footprint = first.footprint.plus(&footprint);
            first.memory_bytes = first.memory_bytes.saturating_add(footprint.bytes());
            with.split.mtp = true;
            let guessed = with.prediction.and_then(|prediction| prediction.guessed);
            Ok(with.with_guesses(guessed, "MTP block"))
        }
        _ => {
            let (bytes, name) = (gib(footprint.bytes()), &leader.name);
            without.why.push(format!(
                "its block that predicts further tokens (MTP) is left out: {name} lacks the {bytes} \
                 for it"
            ));
            Ok(without)
        }
    }
}

impl Plan {
    /// The plan with what the guesses of `by` are predicted to give.
    fn with_guesses(mut self, guessed: Option<Guessed>, by: &str) -> Self {
        self.prediction.iter_mut().for_each(|prediction| prediction.guessed = guessed);
        self.why.extend(guessed.and_then(|guessed| guessed_words(&guessed, by)));
        self
    }
}

impl Model {
    /// The speed with the number of guesses a step that is best at the assumed acceptance.
    pub(super) fn guessed(&self, stages: &[Stage<'_>], load: Load) -> Option<Guessed> {
        let read = stages.first()?.ranks.first()?.speed.rates.read_bytes_per_sec;
        let draft_secs = self.guess_bytes? / read;
        if stages.len() > 1 && !self.guesses_in_stages {
            return None;
        }
        let of_depth = |depth: usize| {
            let tokens: f64 = (0..=depth).map(|at| ACCEPTANCE.powi(at as i32)).sum();
            let step = self.token(stages, Rows::with_guesses(depth, load)).secs();
            let decode_tokens_per_sec = tokens / (step + depth as f64 * draft_secs);
            Guessed { acceptance: ACCEPTANCE, depth, decode_tokens_per_sec }
        };
        let rate = |one: &Guessed| one.decode_tokens_per_sec;
        (0..=GUESSES_MAX).map(of_depth).max_by(|a, b| rate(a).total_cmp(&rate(b)))
    }
}
