//! From patches to rows of the model: patches of a token are joined or averaged, and some steps
//! follow, which differ by projector.

use kernels::{Activation, activate, gated};

use crate::TowerError;
use crate::config::Config;
use crate::linear::{CHUNK, Linear, Work, for_all_rows};
use crate::norm::Norm;
use crate::projector::Projector;
use crate::weights::Weights;

/// The epsilon of `torch.nn.LayerNorm`, where a model's configuration has none.
const TORCH_EPS: f32 = 1e-5;

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
    /// The projection after the last layer.
    pub fn load(weights: &Weights<'_>, config: &Config) -> Result<Self, TowerError> {
        let (width, patches) = (config.width, config.merge * config.merge);
        let joined = width * patches;
        let linear = |name: &str, cols| by_columns(weights, name, cols).map(Step::Linear);
        let (merge, patch_norm, steps) = match config.projector {
            Projector::Qwen3Vl => (Merge::Join, None, mlp(weights, ["mm.0", "mm.2"], joined)?),
            Projector::KimiK25 => {
                let norm = weights.norm("mm.input_norm", width, false, TORCH_EPS)?;
                (Merge::Join, Some(norm), mlp(weights, ["mm.1", "mm.2"], joined)?)
            }
            Projector::Gemma4 => {
                let norm = Step::Norm(Norm::plain(width, config.eps));
                let steps =
                    vec![standard(weights, width)?, norm, linear("mm.input_projection", width)?];
                (Merge::Mean, None, steps)
            }
            Projector::Gemma3 => {
                let norm = weights.norm("mm.soft_emb_norm", width, true, config.eps)?;
                let linear = Step::Linear(transposed(weights, "mm.input_projection", width)?);
                (Merge::Mean, None, vec![Step::Norm(norm), linear])
            }
            Projector::Pixtral => {
                let norm = weights.find_norm("mm.input_norm", width, true, config.eps)?;
                let mut steps = Vec::new();
                if weights.has("mm.patch_merger.weight") {
                    steps.push(Step::Linear(of_kernels(
                        weights,
                        "mm.patch_merger",
                        width,
                        patches,
                    )?));
                } else if patches > 1 {
                    let what = format!("{patches} patches a token without mm.patch_merger.weight");
                    return Err(TowerError::impossible(what));
                }
                steps.extend(mlp(weights, ["mm.1", "mm.2"], width)?);
                // The break between rows is a token of the model's vocabulary.
                weights.leave("v.token_embd.img_break");
                (Merge::Join, norm, steps)
            }
            Projector::Llama4 => {
                let mut steps = mlp(weights, ["mm.model.mlp.1", "mm.model.mlp.2"], joined)?;
                let cols = outputs(&steps).expect("they end with a product");
                steps.push(Step::Activate(Activation::ExactGelu));
                steps.push(linear("mm.model.fc", cols)?);
                (Merge::Join, None, steps)
            }
            Projector::Glm4v => {
                let down = of_kernels(weights, "mm.patch_merger", width, patches)?;
                let out = down.outputs();
                let norm = weights.norm("mm.post_norm", out, false, TORCH_EPS)?;
                let gate = by_columns(weights, "mm.gate", out)?;
                let hidden = gate.outputs();
                let steps = vec![
                    Step::Linear(down),
                    linear("mm.model.fc", out)?,
                    Step::Norm(norm),
                    Step::Activate(Activation::ExactGelu),
                    Step::Gated { gate, up: weights.linear("mm.up", hidden, out)? },
                    linear("mm.down", hidden)?,
                ];
                (Merge::Join, None, steps)
            }
        };
        Self { patch_norm, merge, patches, width, steps }.checked()
    }

    /// The features that a layer gives to the model's own layers.
    pub fn of_layer(
        weights: &Weights<'_>,
        config: &Config,
        layer: usize,
    ) -> Result<Self, TowerError> {
        let name = |part: &str| format!("v.deepstack.{layer}.{part}");
        let (width, patches) = (config.width, config.merge * config.merge);
        let joined = width * patches;
        let norm = weights.norm(&name("norm"), joined, false, config.eps)?;
        let mut steps = vec![Step::Norm(norm)];
        steps.extend(mlp(weights, [&name("fc1"), &name("fc2")], joined)?);
        Self { patch_norm: None, merge: Merge::Join, patches, width, steps }.checked()
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

/// Two products with an exact GELU between them.
fn mlp(
    weights: &Weights<'_>,
    [first, second]: [&str; 2],
    cols: usize,
) -> Result<Vec<Step>, TowerError> {
    let first = by_columns(weights, first, cols)?;
    let second = by_columns(weights, second, first.outputs())?;
    Ok(vec![Step::Linear(first), Step::Activate(Activation::ExactGelu), Step::Linear(second)])
}

/// A matrix of `cols` columns, and as many rows as it has.
fn by_columns(weights: &Weights<'_>, name: &str, cols: usize) -> Result<Linear, TowerError> {
    let rows = weights.rows_of(&format!("{name}.weight"), cols)?;
    weights.linear(name, rows, cols)
}

/// The transpose of a tensor with `rows` rows, as Gemma 3's files have it.
fn transposed(weights: &Weights<'_>, name: &str, rows: usize) -> Result<Linear, TowerError> {
    let tensor = format!("{name}.weight");
    let outputs = weights.rows_of(&tensor, rows)?;
    let stored = weights.numbers(&tensor, rows * outputs)?;
    let turned: Vec<f32> =
        (0..outputs * rows).map(|at| stored[at % rows * outputs + at / rows]).collect();
    weights.linear_of(name, outputs, &turned)
}

/// A convolution over the patches of a token: its kernels are `[outputs, width, patches]`, and here
/// patches come first.
fn of_kernels(
    weights: &Weights<'_>,
    name: &str,
    width: usize,
    patches: usize,
) -> Result<Linear, TowerError> {
    let tensor = format!("{name}.weight");
    let cols = width * patches;
    let outputs = weights.rows_of(&tensor, cols)?;
    let stored = weights.numbers(&tensor, outputs * cols)?;
    let place = |at: usize| at / cols * cols + at % width * patches + at % cols / width;
    let ordered: Vec<f32> = (0..stored.len()).map(|at| stored[place(at)]).collect();
    weights.linear_of(name, outputs, &ordered)
}

/// Gemma 4's scale and standardisation; files of small models have none.
fn standard(weights: &Weights<'_>, width: usize) -> Result<Step, TowerError> {
    let bias = weights.find_vector("v.std_bias", width)?;
    let gain = weights.find_vector("v.std_scale", width)?;
    Ok(Step::Standardise {
        scale: (width as f32).sqrt(),
        bias: bias.unwrap_or_else(|| vec![0.0; width]),
        gain: gain.unwrap_or_else(|| vec![1.0; width]),
    })
}
