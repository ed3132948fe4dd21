use gguf::{Directory, Error};

use crate::Weights;

/// What placement needs to know of a model. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub weight_bytes: u64,
    /// Of each layer and of the output head.
    pub weights: Weights,
    /// Keys and values of one position over all layers, as 16-bit floats.
    pub kv_bytes_per_token: u64,
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
        let heads = directory.u64(&key("attention.head_count"))?.max(1);
        let kv_heads = directory.find_u64(&key("attention.head_count_kv"))?.unwrap_or(heads);
        let width = directory.u64(&key("embedding_length"))?;
        let k_dim = directory.find_u64(&key("attention.key_length"))?.unwrap_or(width / heads);
        let v_dim = directory.find_u64(&key("attention.value_length"))?.unwrap_or(k_dim);

        // A cache holds what quantised weights make in half precision, what float ones make in f32.
        let filled_by = ["attn_k", "attn_qkv", "attn_kv_a_mqa"]
            .iter()
            .find_map(|name| directory.find_tensor(&format!("blk.0.{name}.weight")));
        let floats = filled_by.is_some_and(|tensor| tensor.ty.block_len() == 1);
        let kv_bytes = if floats { 4 } else { 2 };
        let lengths = directory.tensors().iter().map(|t| t.range.end - t.range.start);
        let kv_bytes_per_token = [layers, kv_heads, k_dim.saturating_add(v_dim), kv_bytes]
            .into_iter()
            .fold(1u64, u64::saturating_mul);
        Ok(Self {
            weight_bytes: lengths.sum(),
            weights: Weights::of(directory, layers_weighed),
            kv_bytes_per_token,
            width: width as usize,
            experts: experts(directory),
            context_tokens_max: directory.u64(&key("context_length"))? as usize,
            ranks_max: RANKS_MAX,
        })
    }
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
