//! The gates of gated feed-forward layers: `out = f(gate) * up`, element by element.

use crate::isa::{Isa, Kernel, run};
use crate::math::{normal_tail, sigmoid, tainted, tanh};
use crate::norm::{load_padded, store_part};
use crate::pool::Pool;
use crate::rows::for_each_run;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};

/// Elements of one task.
const RUN: usize = 4096;

/// The gating function of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `gate * sigmoid(gate) * up` (SwiGLU; Shazeer, "GLU Variants Improve Transformer", 2020).
    Silu,
    /// `gelu(gate) * up`, with the tanh approximation of the Gaussian error unit (Hendrycks and
    /// Gimpel, 2016), as in Gemma.
    Gelu,
    /// `gelu(gate) * up`, with the Gaussian error unit as it is defined: `x * (1 + erf(x / √2)) /
    /// 2`, as in the projectors of Qwen 3 VL and Kimi K2.5.
    ExactGelu,
    /// `g * sigmoid(alpha * g) * (u + 1)` with `g = min(gate, limit)` and `u = clamp(up, -limit,
    /// limit)`, as in gpt-oss (alpha 1.702, limit 7).
    ClampedSwiglu { alpha: f32, limit: f32 },
    /// `sigmoid(gate) * up`.
    Sigmoid,
    /// `min(gate * sigmoid(gate), limit) * clamp(up, -limit, limit)`, as in Step 3.5.
    LimitedSilu { limit: f32 },
    /// `g * sigmoid(g) * clamp(up, -limit, limit)` with `g = min(gate, limit)`, as in DeepSeek V4.
    SiluOfLimited { limit: f32 },
    /// `limited(gate, beta) * sigmoid(gate) * limited(up, linear_beta)` with `limited(x, beta) =
    /// beta * tanh(x / beta)`, as in Kimi K3; without `linear_beta`, `up` is not limited.
    Situ { beta: f32, linear_beta: Option<f32> },
    /// `max(gate, 0)² * up` (So et al., "Primer", 2021), as in Nemotron-H, without an `up`.
    SquaredRelu,
}

/// `x = cap * tanh(x / cap)`: Gemma's soft limit on logits.
pub fn soft_cap(x: &mut [f32], cap: f32) {
    run(Isa::chosen(), SoftCap { x, cap });
}

struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for SoftCap<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(LANES) {
            let v = limited(s, load_padded(s, x), self.cap);
            store_part(s, x, v);
        }
    }
}

/// `gate = activation(gate) * up`, element by element.
///
/// # Panics
/// If their sizes differ.
pub fn gated(pool: &Pool, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert!(gate.len() == up.len(), "both must have the same size");
    let (len, isa) = (gate.len(), Isa::chosen());
    let target = SharedMut::new(gate.as_mut_ptr());
    for_each_run(pool, len.div_ceil(RUN), RUN, |index| {
        let range = index * RUN..len.min((index + 1) * RUN);
        // SAFETY: the run lies inside `gate`, and belongs to this task only.
        let gate =
            unsafe { std::slice::from_raw_parts_mut(target.ptr().add(range.start), range.len()) };
        run(isa, Gated { activation, gate, up: &up[range] });
    });
}

/// `x = activation(x)`, element by element: a feed-forward block without a gate.
pub fn activate(pool: &Pool, activation: Activation, x: &mut [f32]) {
    let (len, isa) = (x.len(), Isa::chosen());
    let target = SharedMut::new(x.as_mut_ptr());
    for_each_run(pool, len.div_ceil(RUN), RUN, |index| {
        let range = index * RUN..len.min((index + 1) * RUN);
        // SAFETY: the run lies inside `x`, and belongs to this task only.
        let x =
            unsafe { std::slice::from_raw_parts_mut(target.ptr().add(range.start), range.len()) };
        run(isa, Activated { activation, x });
    });
}

/// The same of a few numbers with [`Activation::ExactGelu`], on this thread.
pub fn exact_gelu(x: &mut [f32]) {
    run(Isa::chosen(), Activated { activation: Activation::ExactGelu, x });
}

struct Activated<'a> {
    activation: Activation,
    x: &'a mut [f32],
}

impl Kernel for Activated<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(LANES) {
            let v = self.activation.of(s, load_padded(s, x), s.splat(1.0));
            store_part(s, x, v);
        }
    }
}

struct Gated<'a> {
    activation: Activation,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Gated<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (gate, up) in self.gate.chunks_mut(LANES).zip(self.up.chunks(LANES)) {
            let v = self.activation.of(s, load_padded(s, gate), load_padded(s, up));
            store_part(s, gate, v);
        }
    }
}

impl Activation {
    /// `activation(gate) * up`, which is finite only if both inputs are: the result of a bad weight
    /// must not vanish in a saturating function.
    #[inline(always)]
    pub(crate) fn of<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F {
        match self {
            Self::Silu => s.mul(s.mul(gate, sigmoid(s, gate)), up),
            Self::Gelu => s.mul(gelu(s, gate), up),
            Self::ExactGelu => s.mul(gelu_by_definition(s, gate), up),
            Self::Sigmoid => s.mul(tainted(s, sigmoid(s, gate), gate), up),
            Self::SquaredRelu => {
                let positive = tainted(s, s.max(gate, s.splat(0.0)), gate);
                s.mul(s.mul(positive, positive), up)
            }
            Self::LimitedSilu { limit } => {
                let gate = at_most(s, s.mul(gate, sigmoid(s, gate)), limit);
                s.mul(gate, clamped(s, up, limit))
            }
            Self::SiluOfLimited { limit } => {
                let gate = at_most(s, gate, limit);
                s.mul(s.mul(gate, sigmoid(s, gate)), clamped(s, up, limit))
            }
            Self::Situ { beta, linear_beta } => {
                let gate = s.mul(limited(s, gate, beta), sigmoid(s, gate));
                s.mul(gate, linear_beta.map_or(up, |beta| limited(s, up, beta)))
            }
            Self::ClampedSwiglu { alpha, limit } => {
                let gate = at_most(s, gate, limit);
                let gate = s.mul(gate, sigmoid(s, s.mul(gate, s.splat(alpha))));
                s.mul(gate, s.add(clamped(s, up, limit), s.splat(1.0)))
            }
        }
    }
}

/// `min(x, limit)`; NaN for infinity, as in the two functions below.
#[inline(always)]
fn at_most<S: Simd>(s: S, x: S::F, limit: f32) -> S::F {
    tainted(s, s.min(x, s.splat(limit)), x)
}

/// `clamp(x, -limit, limit)`.
#[inline(always)]
fn clamped<S: Simd>(s: S, x: S::F, limit: f32) -> S::F {
    let (top, bottom) = (s.splat(limit), s.splat(-limit));
    tainted(s, s.max(s.min(x, top), bottom), x)
}

/// `beta * tanh(x / beta)`.
#[inline(always)]
fn limited<S: Simd>(s: S, x: S::F, beta: f32) -> S::F {
    tainted(s, s.mul(tanh(s, s.mul(x, s.splat(1.0 / beta))), s.splat(beta)), x)
}

/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))).
#[inline(always)]
fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let cube = s.mul(s.mul(x, x), x);
    let inner = s.mul(s.fma(cube, s.splat(0.044_715), x), s.splat(SQRT_2_OVER_PI));
    s.mul(s.mul(s.splat(0.5), x), s.add(s.splat(1.0), tanh(s, inner)))
}

/// x Φ(x), as max(x, 0) - |x| Φ(-|x|): small results keep their digits.
#[inline(always)]
fn gelu_by_definition<S: Simd>(s: S, x: S::F) -> S::F {
    let tail = s.mul(s.abs(x), normal_tail(s, x));
    s.sub(s.max(x, s.splat(0.0)), tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(activation: Activation, gate: f64, up: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match activation {
            Activation::Silu => gate * sigmoid(gate) * up,
            Activation::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
                0.5 * gate * (1.0 + inner.tanh()) * up
            }
            Activation::ExactGelu => gate * crate::math::normal(gate) * up,
            Activation::Sigmoid => sigmoid(gate) * up,
            Activation::SquaredRelu => gate.max(0.0).powi(2) * up,
            Activation::LimitedSilu { limit } => {
                let limit = f64::from(limit);
                (gate * sigmoid(gate)).min(limit) * up.clamp(-limit, limit)
            }
            Activation::SiluOfLimited { limit } => {
                let limit = f64::from(limit);
                let gate = gate.min(limit);
                gate * sigmoid(gate) * up.clamp(-limit, limit)
            }
            Activation::Situ { beta, linear_beta } => {
                let limited = |x: f64, beta: f32| f64::from(beta) * (x / f64::from(beta)).tanh();
                let up = linear_beta.map_or(up, |beta| limited(up, beta));
                limited(gate, beta) * sigmoid(gate) * up
            }
            Activation::ClampedSwiglu { alpha, limit } => {
                let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                let gate = gate.min(limit);
                gate * sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1.0)
            }
        }
    }

    #[test]
    fn gates_are_close_to_their_formulas_and_alike_everywhere() {
        let gate: Vec<f32> = (-2000..2007).map(|i| i as f32 * 0.05).collect();
        let up: Vec<f32> = (0..gate.len()).map(|i| ((i % 41) as f32 - 20.0) * 0.5).collect();
        let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
        let limited = Activation::LimitedSilu { limit: 2.5 };
        let first = Activation::SiluOfLimited { limit: 2.5 };
        let situ = |linear_beta| Activation::Situ { beta: 1.5, linear_beta };
        let exact_gelu = Activation::ExactGelu;
        let others = [Activation::Sigmoid, Activation::SquaredRelu, limited, first, exact_gelu];
        let others = others.into_iter().chain([situ(Some(2.0)), situ(None)]);
        for activation in [Activation::Silu, Activation::Gelu, clamped].into_iter().chain(others) {
            let of = |isa| {
                let mut gate = gate.clone();
                run(isa, Gated { activation, gate: &mut gate, up: &up });
                gate
            };
            let expected = of(Isa::Scalar);
            for isa in Isa::available() {
                let same = of(isa).iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{}", isa.name());
            }
            for ((&gate, &up), &got) in gate.iter().zip(&up).zip(&expected) {
                let exact = exact(activation, f64::from(gate), f64::from(up));
                let limit = 1e-5 * exact.abs() + 1e-6 * f64::from((gate * up).abs()) + 1e-30;
                assert!((f64::from(got) - exact).abs() <= limit, "{gate}, {up}: {exact}, {got}");
            }
        }
    }

    #[test]
    fn caps_are_close_to_their_formula_and_alike_everywhere() {
        let logits: Vec<f32> = (-2000..2007).map(|i| i as f32 * 0.07).collect();
        let cap = 30.0;
        for isa in Isa::available() {
            let mut x = logits.clone();
            run(isa, SoftCap { x: &mut x, cap });
            for (&logit, &got) in logits.iter().zip(&x) {
                let exact = f64::from(cap) * (f64::from(logit) / f64::from(cap)).tanh();
                assert!((f64::from(got) - exact).abs() <= 1.5e-5, "{logit}: {exact}, {got}");
            }
            let mut scalar = logits.clone();
            run(Isa::Scalar, SoftCap { x: &mut scalar, cap });
            assert!(x.iter().zip(&scalar).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn what_is_not_finite_is_not_finite_after_any_gate() {
        let (alpha, limit) = (1.702, 7.0);
        let activations = [
            Activation::Silu,
            Activation::Gelu,
            Activation::ExactGelu,
            Activation::ClampedSwiglu { alpha, limit },
            Activation::Sigmoid,
            Activation::LimitedSilu { limit },
            Activation::SiluOfLimited { limit },
            Activation::Situ { beta: 1.5, linear_beta: None },
            Activation::Situ { beta: 1.5, linear_beta: Some(2.0) },
            Activation::SquaredRelu,
        ];
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for isa in Isa::available() {
                for activation in activations {
                    for (gate, up) in [(bad, 0.5), (0.5, bad)] {
                        let mut gate = [gate; 19];
                        run(isa, Gated { activation, gate: &mut gate, up: &[up; 19] });
                        let vanished = gate.iter().any(|x| x.is_finite());
                        assert!(!vanished, "{activation:?} of {bad} on {}", isa.name());
                    }
                }
                let mut logits = [bad; 19];
                run(isa, SoftCap { x: &mut logits, cap: 30.0 });
                assert!(logits.iter().all(|x| x.is_nan()), "{bad} on {}", isa.name());
            }
        }
    }

    #[test]
    fn any_length_is_covered() {
        let pool = Pool::new(2).unwrap();
        for len in [0, 1, 17, RUN, 9 * RUN + 3] {
            let (mut gate, up) = (vec![1.0; len], vec![2.0; len]);
            gated(&pool, Activation::Silu, &mut gate, &up);
            assert!(gate.iter().all(|x| (x - 1.462_117).abs() < 1e-5));
            let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
            for activation in [Activation::Gelu, clamped] {
                let mut gate = vec![0.0; len];
                gated(&pool, activation, &mut gate, &up);
                assert!(gate.iter().all(|x| *x == 0.0));
            }
        }
    }
}
