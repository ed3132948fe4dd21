//! From patches to rows of the model: patches of a token are joined or averaged, and some steps
//! follow, which differ by projector.

mod load;

use kernels::{Activation, activate, gated};

use crate::TowerError;
use crate::config::Config;
use crate::linear::{CHUNK, Linear, Work, for_all_rows};
use crate::norm::Norm;

/// How a token is made of its patches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Merge {
    /// One after the other.
    Join,
    /// Their mean.
    Mean,
}

/// A change of a token's row.
enum Step {
    Linear(Linear),
    Norm(Norm),
    Activate(Activation),
    /// `silu(gate) * up`.
    Gated {
        gate: Linear,
        up: Linear,
    },
    /// `(x * scale - bias) * gain`.
    Standardise {
        scale: f32,
        bias: Vec<f32>,
        gain: Vec<f32>,
    },
}

/// The way from patches to rows of the model.
pub(crate) struct Projection {
    /// Of each patch.
    patch_norm: Option<Norm>,
    merge: Merge,
    /// Patches of a token.
    patches: usize,
    /// Numbers of a patch.
    width: usize,
    steps: Vec<Step>,
}

impl Projection {
    /// Tokens are their patches, one after the other.
    fn joined(config: &Config, steps: Vec<Step>) -> Self {
        let patches = config.merge * config.merge;
        Self { patch_norm: None, merge: Merge::Join, patches, width: config.width, steps }
    }

    /// Tokens are the means of their patches.
    fn averaged(config: &Config, steps: Vec<Step>) -> Self {
        Self { merge: Merge::Mean, ..Self::joined(config, steps) }
    }

    fn with_patch_norm(self, patch_norm: Option<Norm>) -> Self {
        Self { patch_norm, ..self }
    }

    /// Checks that each step takes what the one before it gives.
    fn checked(self) -> Result<Self, TowerError> {
        let mut width = self.token_width();
        for step in &self.steps {
            width = step.width_after(width).ok_or_else(|| {
                TowerError::impossible(format!("a projection with {width} numbers a token"))
            })?;
        }
        Ok(self)
    }

    /// Numbers of a token before the first step.
    fn token_width(&self) -> usize {
        match self.merge {
            Merge::Join => self.width * self.patches,
            Merge::Mean => self.width,
        }
    }

    /// Numbers of a row of the model.
    pub fn outputs(&self) -> usize {
        outputs(&self.steps).expect("each projection has a product")
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let numbers = |numbers: &[f32]| size_of_val(numbers);
        let of_step = |step: &Step| match step {
            Step::Linear(linear) => linear.bytes(),
            Step::Norm(norm) => norm.bytes(),
            Step::Activate(_) => 0,
            Step::Gated { gate, up } => gate.bytes() + up.bytes(),
            Step::Standardise { bias, gain, .. } => numbers(bias) + numbers(gain),
        };
        let norm = self.patch_norm.as_ref().map_or(0, Norm::bytes);
        norm + self.steps.iter().map(of_step).sum::<usize>()
    }

    /// Projects patches `x`, `[patches, width]`, those of a token one after the other; `take` gets
    /// a run of tokens' rows, `[tokens, outputs]`, in order.
    pub fn run(&self, work: &mut Work<'_>, x: &[f32], mut take: impl FnMut(&[f32])) {
        let token = self.patches * self.width;
        for x in x.chunks(CHUNK * token) {
            let mut patches = x.to_vec();
            if let Some(norm) = &self.patch_norm {
                norm.apply_in_place(work.pool, &mut patches);
            }
            let mut rows = match self.merge {
                Merge::Join => patches,
                Merge::Mean => self.means(work, &patches),
            };
            let mut width = self.token_width();
            for step in &self.steps {
                (rows, width) = step.run(work, rows, width);
            }
            take(&rows);
        }
    }

    /// The mean of each token's patches.
    fn means(&self, work: &Work<'_>, x: &[f32]) -> Vec<f32> {
        let (width, token) = (self.width, self.patches * self.width);
        let mut out = vec![0.0; x.len() / self.patches];
        for_all_rows(work.pool, &mut out, width, |at, out| {
            for patch in x[at * token..][..token].chunks_exact(width) {
                out.iter_mut().zip(patch).for_each(|(out, x)| *out += x);
            }
            out.iter_mut().for_each(|out| *out /= self.patches as f32);
        });
        out
    }
}

impl Step {
    /// The width of rows after it, if it takes rows of `width`.
    fn width_after(&self, width: usize) -> Option<usize> {
        let (takes, gives) = match self {
            Self::Linear(linear) => (linear.matrix.cols(), linear.outputs()),
            Self::Norm(norm) => (norm.gain.len(), width),
            Self::Activate(_) => (width, width),
            Self::Gated { gate, .. } => (gate.matrix.cols(), gate.outputs()),
            Self::Standardise { bias, .. } => (bias.len(), width),
        };
        (takes == width).then_some(gives)
    }

    /// The rows after it, and their width.
    fn run(&self, work: &mut Work<'_>, mut rows: Vec<f32>, width: usize) -> (Vec<f32>, usize) {
        match self {
            Self::Linear(linear) => return (linear.rows(work, &rows), linear.outputs()),
            Self::Norm(norm) => norm.apply_in_place(work.pool, &mut rows),
            Self::Activate(activation) => activate(work.pool, *activation, &mut rows),
            Self::Gated { gate, up } => {
                let mut hidden = gate.rows(work, &rows);
                gated(work.pool, Activation::Silu, &mut hidden, &up.rows(work, &rows));
                return (hidden, gate.outputs());
            }
            Self::Standardise { scale, bias, gain } => {
                for_all_rows(work.pool, &mut rows, width, |_, row| {
                    for ((x, bias), gain) in row.iter_mut().zip(bias).zip(gain) {
                        *x = (*x * scale - bias) * gain;
                    }
                });
            }
        }
        (rows, width)
    }
}

/// The width of rows after the last product.
fn outputs(steps: &[Step]) -> Option<usize> {
    steps.iter().rev().find_map(|step| match step {
        Step::Linear(linear) => Some(linear.outputs()),
        _ => None,
    })
}
