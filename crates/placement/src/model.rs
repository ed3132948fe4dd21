use gguf::{Directory, Error};

use crate::{Cache, Weights};

/// What placement needs to know of a model. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub weight_bytes: u64,
    /// Those that one token reads: all layers and the head, of experts as many as are used.
    pub read_bytes: u64,
    /// Of each layer and of the output head.
    pub weights: Weights,
    pub cache: Cache,
    /// Numbers of the residual stream.
    pub width: usize,
    /// How many experts a layer has, and into how many parts their columns can be cut, if any.
    pub experts: Option<(usize, usize)>,
    /// Positions the model was trained for.
    pub context_tokens_max: usize,
    /// The most ranks that one product can be split over.
    pub ranks_max: usize,
}

impl Model {
    /// Reads a model's sizes from its file's directory.
    ///
    /// # Errors
    /// A key that every model has is missing.
    pub fn of(directory: &Directory) -> Result<Self, Error> {
        const RANKS_MAX: usize = 16;
        let arch = directory.str("general.architecture")?;
        let key = |name: &str| format!("{arch}.{name}");
        let layers = directory.u64(&key("block_count"))?;
        // A lying count must not cost memory: no layer is without a tensor.
        let layers_weighed = layers.min(directory.tensors().len() as u64) as usize;
        let lengths = directory.tensors().iter().map(|t| t.range.end - t.range.start);
        let weights = Weights::of(directory, layers_weighed);
        let used = directory.find_u64(&key("expert_used_count"))?;
        Ok(Self {
            weight_bytes: lengths.sum(),
            read_bytes: read_bytes(directory, &weights, used),
            weights,
            cache: Cache::of(directory, layers)?,
            width: directory.u64(&key("embedding_length"))? as usize,
            experts: experts(directory),
            context_tokens_max: directory.u64(&key("context_length"))? as usize,
            ranks_max: RANKS_MAX,
        })
    }
}

/// What one token reads, of which each layer of experts uses `used`.
fn read_bytes(directory: &Directory, weights: &Weights, used: Option<u64>) -> u64 {
    let all = weights.layers.iter().fold(weights.head, |sum, bytes| sum.saturating_add(*bytes));
    let resting = directory.tensors().iter().filter(|t| t.name.contains("_exps.")).map(|tensor| {
        let experts = tensor.dims.get(2).copied().unwrap_or(1).max(1);
        let used = used.unwrap_or(experts).min(experts);
        let bytes = u128::from(tensor.range.end - tensor.range.start);
        (bytes * u128::from(experts - used) / u128::from(experts)) as u64
    });
    resting.fold(all, u64::saturating_sub)
}

/// Experts of a layer, and the fewest parts that any down matrix's columns can be cut into: whole
/// blocks of its type, and of at least 32 columns.
fn experts(directory: &Directory) -> Option<(usize, usize)> {
    const UNIT_MIN: usize = 32;
    let tensors = directory.tensors().iter();
    let down = tensors.filter(|tensor| tensor.name.ends_with("ffn_down_exps.weight"));
    let sizes = down.map(|tensor| {
        let experts = tensor.dims.get(2).map_or(1, |count| *count as usize);
        (experts, tensor.columns().div_ceil(tensor.ty.block_len().max(UNIT_MIN)))
    });
    sizes.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))
}
