//! Log-probabilities of the model's own distribution.

use protocol::{Logprobs, Token};

use crate::logits::{Candidate, likeliest};

/// The log-probabilities of the drawn token and of the `count` likeliest. `logits`: `[vocab]`, as
/// computed by the model. `candidates` is scratch.
pub(super) fn logprobs(
    logits: &[f32],
    drawn: Token,
    count: usize,
    candidates: &mut Vec<Candidate>,
) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    let total = max + sum.ln() as f32;
    candidates.clear();
    likeliest(logits, 0, count, candidates);
    candidates.sort_unstable_by(Candidate::order);
    Logprobs {
        drawn: logits[drawn as usize] - total,
        top: candidates
            .iter()
            .map(|candidate| (candidate.token, candidate.logit - total))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_logarithms_of_the_softmax() {
        // A common offset of all logits does not change probabilities.
        let probabilities = [0.1f32, 0.5, 0.1, 0.3];
        let logits = probabilities.map(|probability| probability.ln() + 50.0);
        let found = logprobs(&logits, 0, 3, &mut Vec::new());
        assert!((found.drawn - 0.1f32.ln()).abs() < 1e-5, "{found:?}");
        let tokens: Vec<Token> = found.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 3, 0], "of equals the lower token");
        for (token, logprob) in found.top {
            assert!((logprob - probabilities[token as usize].ln()).abs() < 1e-5);
        }
        assert_eq!(logprobs(&logits, 0, 0, &mut Vec::new()).top, []);
        assert_eq!(logprobs(&logits, 0, 20, &mut Vec::new()).top.len(), 4);
    }
}
