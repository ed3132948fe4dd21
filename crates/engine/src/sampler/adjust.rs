//! Changes to the logits before a token is drawn: bias, penalties, and forbidden tokens.

use protocol::{GenerateRequest, Sampler, Sampling, Token, is_of_picture};

use super::draw::Draw;

/// Whether the logits change for the token after `answered` tokens of the answer.
pub(crate) fn is_adjusted(request: &GenerateRequest, answered: usize) -> bool {
    let sampling = &request.sampling;
    sampling.has(Sampler::Penalties)
        || sampling.has(Sampler::Dry)
        || !sampling.logit_bias.is_empty()
        || request.grammar.is_some()
        || must_go_on(request, answered)
}

fn must_go_on(request: &GenerateRequest, answered: usize) -> bool {
    answered < request.min_tokens && !request.end_tokens.is_empty()
}

/// Changes `logits`, `[vocab]`. `counts` is scratch of the same length, and zero before and after.
pub(super) fn adjust(logits: &mut [f32], draw: &Draw<'_>, counts: &mut [u32]) {
    let Draw { request, answer, allowed, .. } = draw;
    for (token, bias) in &request.sampling.logit_bias {
        logits[*token as usize] += bias;
    }
    // Other samplers may come before the penalties.
    if request.sampling.is_plain() {
        penalise(logits, draw, counts);
    }
    if let Some(allowed) = allowed {
        keep_allowed(logits, allowed);
    }
    if must_go_on(request, answer.len()) {
        forbid_end(logits, &request.end_tokens);
    }
}

/// Some penalties apply once a token, however often it occurs: `counts` marks the tokens already
/// seen.
fn penalise(logits: &mut [f32], draw: &Draw<'_>, counts: &mut [u32]) {
    let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } =
        draw.request.sampling;
    let (prompt, answer) = (&draw.request.prompt, draw.answer);
    if repetition_penalty != 1.0 {
        let words = prompt.iter().filter(|token| !is_of_picture(**token));
        for &token in words.clone().chain(answer) {
            let (count, logit) = (&mut counts[token as usize], &mut logits[token as usize]);
            if *count == 0 {
                let factor =
                    if *logit > 0.0 { 1.0 / repetition_penalty } else { repetition_penalty };
                *logit *= factor;
            }
            *count = 1;
        }
        words.for_each(|token| counts[*token as usize] = 0);
        clear(counts, answer);
    }
    if frequency_penalty != 0.0 || presence_penalty != 0.0 {
        for &token in answer {
            let (count, logit) = (&mut counts[token as usize], &mut logits[token as usize]);
            if *count == 0 {
                *logit -= presence_penalty;
            }
            *logit -= frequency_penalty;
            *count = 1;
        }
        clear(counts, answer);
    }
}

fn clear(counts: &mut [u32], tokens: &[Token]) {
    tokens.iter().for_each(|token| counts[*token as usize] = 0);
}

/// Forbids the tokens without their bit in the mask, and those beyond its end.
fn keep_allowed(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (chunk, word) in logits.chunks_mut(32).zip(words) {
        for (bit, logit) in chunk.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Forbids the end tokens, unless only they are left: a grammar that has ended cannot continue.
fn forbid_end(logits: &mut [f32], end_tokens: &[Token]) {
    let is_end = |at: usize| end_tokens.contains(&(at as Token));
    let mut others = logits.iter().enumerate().filter(|(at, _)| !is_end(*at));
    if others.any(|(_, logit)| logit.is_finite()) {
        end_tokens.iter().for_each(|token| logits[*token as usize] = f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjusted(request: &GenerateRequest, answer: &[Token], allowed: Option<&[u32]>) -> Vec<f32> {
        let mut logits = vec![2.0, -2.0, 4.0, -4.0, 1.0];
        let mut counts = vec![0; logits.len()];
        assert!(is_adjusted(request, answer.len()) || allowed.is_some());
        adjust(&mut logits, &Draw { request, answer, position: 0, allowed }, &mut counts);
        assert_eq!(counts, [0; 5], "the scratch is clean again");
        logits
    }

    fn request(sampling: Sampling) -> GenerateRequest {
        // The second token stands for a picture.
        GenerateRequest { prompt: vec![0, 1 << 24, 0, 1], sampling, ..GenerateRequest::default() }
    }

    #[test]
    fn a_repetition_is_penalised_once_in_prompt_and_answer() {
        let request = request(Sampling { repetition_penalty: 2.0, ..Sampling::default() });
        assert_eq!(adjusted(&request, &[3, 3, 0], None), [1.0, -4.0, 4.0, -8.0, 1.0]);
    }

    #[test]
    fn frequency_counts_the_answer_alone_and_presence_counts_once() {
        let sampling =
            Sampling { frequency_penalty: 0.5, presence_penalty: 1.0, ..Sampling::default() };
        assert_eq!(adjusted(&request(sampling), &[2, 2, 4], None), [2.0, -2.0, 2.0, -4.0, -0.5]);
    }

    #[test]
    fn a_bias_comes_before_the_penalties() {
        let logit_bias = vec![(0, -3.0), (4, 100.0)];
        let sampling = Sampling { repetition_penalty: 2.0, logit_bias, ..Sampling::default() };
        assert_eq!(adjusted(&request(sampling), &[], None), [-2.0, -4.0, 4.0, -4.0, 101.0]);
    }

    const NEVER: f32 = f32::NEG_INFINITY;

    #[test]
    fn no_end_comes_before_the_least_length() {
        let request =
            GenerateRequest { min_tokens: 2, end_tokens: vec![0, 2], ..Default::default() };
        assert_eq!(adjusted(&request, &[4], None), [NEVER, -2.0, NEVER, -4.0, 1.0]);
        assert!(!is_adjusted(&request, 2));
        let ended = Some(&[0b101][..]);
        assert_eq!(adjusted(&request, &[4], ended), [2.0, NEVER, 4.0, NEVER, NEVER]);
    }

    #[test]
    fn what_a_mask_lacks_never_comes() {
        let request = GenerateRequest::default();
        assert_eq!(adjusted(&request, &[], Some(&[0b1010])), [NEVER, -2.0, NEVER, -4.0, NEVER]);
        assert_eq!(adjusted(&request, &[], Some(&[])), [NEVER; 5]);
    }
}
