//! One draw: its parameters, its random number, and why there is none.

use protocol::{GenerateRequest, Token, is_of_picture, split_mix};

/// The parameters of one draw.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// A request that has passed [`GenerateRequest::check`].
    pub request: &'a GenerateRequest,
    /// The answer so far.
    pub answer: &'a [Token],
    /// The position that the token will have.
    pub position: usize,
    /// The tokens that the request's grammar allows next: a bit for each.
    pub allowed: Option<&'a [u32]>,
}

/// The logits contain NaN or infinity: the model's weights or a kernel are broken. An earlier bad
/// number becomes NaN and stays NaN: `kernels` preserves it in every function that would hide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model computed a logit that is not a number. Its file is probably damaged; fetch it again"
)]
pub struct NotFinite;

/// The tokens of prompt and answer, newest first, but for those of pictures.
pub(super) fn newest<'a>(draw: &Draw<'a>) -> impl Iterator<Item = Token> + Clone + use<'a> {
    let prompt = draw.request.prompt.iter().rev().filter(|token| !is_of_picture(**token));
    draw.answer.iter().rev().chain(prompt).copied()
}

/// A window of tokens; a negative one has no end.
pub(super) fn window(tokens: i32) -> usize {
    usize::try_from(tokens).unwrap_or(usize::MAX)
}

/// Checks that all numbers are finite, as an undamaged model computes them.
///
/// # Errors
/// One is infinite or not a number.
pub(crate) fn check_finite(numbers: &[f32]) -> Result<(), NotFinite> {
    let is_finite = numbers.iter().fold(true, |finite, number| finite & number.is_finite());
    is_finite.then_some(()).ok_or(NotFinite)
}

/// The place where the running sum of probabilities passes `draw`, from 0 to 1.
pub(super) fn pick_by(probabilities: &[f32], draw: f32) -> usize {
    let mut left = draw;
    let passes = |probability: &f32| {
        left -= probability;
        left < 0.0
    };
    // Rounding may leave a tiny probability, which goes to the likeliest.
    probabilities.iter().position(passes).unwrap_or(0)
}

/// A number in [0, 1) that depends only on its arguments.
pub(super) fn uniform(seed: u64, position: u64) -> f32 {
    let bits = split_mix(seed, position.wrapping_add(1)) >> 40;
    bits as f32 / (1u64 << 24) as f32
}
