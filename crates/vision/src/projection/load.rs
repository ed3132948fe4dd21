//! The projections of each kind of tower, from the tensors of its file.

use kernels::Activation;

use super::{Projection, Step, outputs};
use crate::TowerError;
use crate::config::Config;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::projector::Steps;
use crate::weights::Weights;

/// The epsilon of `torch.nn.LayerNorm`, where a model's configuration has none.
const TORCH_EPS: f32 = 1e-5;

impl Projection {
    /// The projection after the last layer.
    pub fn load(weights: &Weights<'_>, config: &Config) -> Result<Self, TowerError> {
        let load = match config.projector.steps {
            Steps::Qwen3Vl => qwen3vl,
            Steps::Gemma4 => gemma4,
            Steps::Kimi => kimi,
            Steps::Gemma3 => gemma3,
            Steps::Pixtral => pixtral,
            Steps::Llama4 => llama4,
            Steps::Glm4v => glm4v,
        };
        load(weights, config)?.checked()
    }

    /// The features that a layer gives to the model's own layers.
    pub fn of_layer(
        weights: &Weights<'_>,
        config: &Config,
        layer: usize,
    ) -> Result<Self, TowerError> {
        let name = |part: &str| format!("v.deepstack.{layer}.{part}");
        let norm = weights.norm(&name("norm"), joined(config), false, config.eps)?;
        let mut steps = vec![Step::Norm(norm)];
        steps.extend(mlp(weights, [&name("fc1"), &name("fc2")], joined(config))?);
        Self::joined(config, steps).checked()
    }
}

/// Numbers of a token's patches.
fn joined(config: &Config) -> usize {
    config.width * config.merge * config.merge
}

fn qwen3vl(weights: &Weights<'_>, config: &Config) -> Result<Projection, TowerError> {
    Ok(Projection::joined(config, mlp(weights, ["mm.0", "mm.2"], joined(config))?))
}

fn kimi(weights: &Weights<'_>, config: &Config) -> Result<Projection, TowerError> {
    let norm = weights.norm("mm.input_norm", config.width, false, TORCH_EPS)?;
    let steps = mlp(weights, ["mm.1", "mm.2"], joined(config))?;
    Ok(Projection::joined(config, steps).with_patch_norm(Some(norm)))
}

fn gemma4(weights: &Weights<'_>, config: &Config) -> Result<Projection, TowerError> {
    let norm = Norm::plain(config.width, config.eps);
    let linear = by_columns(weights, "mm.input_projection", config.width)?;
    let steps = vec![standard(weights, config.width)?, Step::Norm(norm), Step::Linear(linear)];
    Ok(Projection::averaged(config, steps))
}

fn gemma3(weights: &Weights<'_>, config: &Config) -> Result<Projection, TowerError> {
    let norm = weights.norm("mm.soft_emb_norm", config.width, true, config.eps)?;
    let linear = transposed(weights, "mm.input_projection", config.width)?;
    Ok(Projection::averaged(config, vec![Step::Norm(norm), Step::Linear(linear)]))
}

/// Mistral 3 merges patches, the first Pixtral does not.
fn pixtral(weights: &Weights<'_>, config: &Config) -> Result<Projection, TowerError> {
    const MERGER: &str = "mm.patch_merger";
    let norm = weights.find_norm("mm.input_norm", config.width, true, config.eps)?;
    let mut steps = Vec::new();
    if config.merge > 1 || weights.has(&format!("{MERGER}.weight")) {
        steps.push(Step::Linear(of_kernels(weights, MERGER, config)?));
    }
    steps.extend(mlp(weights, ["mm.1", "mm.2"], config.width)?);
    // The break between rows is a token of the model's vocabulary.
    weights.leave("v.token_embd.img_break");
    Ok(Projection::joined(config, steps).with_patch_norm(norm))
}

fn llama4(weights: &Weights<'_>, config: &Config) -> Result<Projection, TowerError> {
    let mut steps = mlp(weights, ["mm.model.mlp.1", "mm.model.mlp.2"], joined(config))?;
    let cols = outputs(&steps).expect("it ends with a product");
    steps.push(Step::Activate(Activation::ExactGelu));
    steps.push(Step::Linear(by_columns(weights, "mm.model.fc", cols)?));
    Ok(Projection::joined(config, steps))
}

fn glm4v(weights: &Weights<'_>, config: &Config) -> Result<Projection, TowerError> {
    let merger = of_kernels(weights, "mm.patch_merger", config)?;
    let width = merger.outputs();
    let gate = by_columns(weights, "mm.gate", width)?;
    let hidden = gate.outputs();
    let steps = vec![
        Step::Linear(merger),
        Step::Linear(weights.linear("mm.model.fc", width, width)?),
        Step::Norm(weights.norm("mm.post_norm", width, false, TORCH_EPS)?),
        Step::Activate(Activation::ExactGelu),
        Step::Gated { gate, up: weights.linear("mm.up", hidden, width)? },
        Step::Linear(by_columns(weights, "mm.down", hidden)?),
    ];
    Ok(Projection::joined(config, steps))
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
fn of_kernels(weights: &Weights<'_>, name: &str, config: &Config) -> Result<Linear, TowerError> {
    let tensor = format!("{name}.weight");
    let (width, cols) = (config.width, joined(config));
    let patches = cols / width;
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
