//! A file's block of multi-token prediction (MTP), read as a model of one layer.
//!
//! The block predicts the token after the next one, from the next token's embedding and the model's
//! state before it: both are normalised, joined, and projected to the width of the residual stream.
//! One layer like the model's own follows, then a norm and the output head. Files keep it behind
//! the model's layers, as `blk.N.nextn.*` and `blk.N.*`.

use gguf::{Directory, TensorInfo, Value};

use crate::capacity::{DRAFTS_MAX, PAGE_POSITIONS, full_cache_tokens};
use crate::config::Config;
use crate::file::{BlockCounts, Error, names};
use crate::outline::Outline;
use crate::parts::Assistant;
use crate::{Capacity, Device, Footprint, Holding, Layout};

/// The model's own tensors with another name in a block, which uses them unless it has its own.
const SHARED: [(&str, &str); 3] = [
    ("shared_head_norm", names::OUTPUT_NORM),
    ("shared_head_head", names::OUTPUT),
    ("embed_tokens", names::EMBEDDING),
];

/// The most rows of an answer that an MTP block sees.
const MTP_POSITIONS: usize = 4096;

/// A file's first MTP block as a model of its own.
#[derive(Debug, Clone)]
pub struct MtpBlock {
    pub directory: Directory,
    pub outline: Outline,
}

impl MtpBlock {
    /// The block of a file, or `None` if there is none.
    ///
    /// # Errors
    /// It is incomplete, or of a kind that is not supported.
    pub fn read(file: &Directory) -> Result<Option<Self>, Error> {
        header(file)?.map(Self::of).transpose()
    }

    /// The block with this header.
    pub(crate) fn of(directory: Directory) -> Result<Self, Error> {
        let outline = Outline::read_block(&directory)?;
        let config = &outline.config;
        let is_compressed = config.compressed.as_ref().is_some_and(|c| c.blocks(0).is_some());
        let keeps_streams = config.streams.is_none() || config.arch.mtp_reads_residual;
        let has_more = [
            ("residual streams", config.banks.is_some() || !keeps_streams),
            ("further embeddings", config.by_layer.is_some() || config.ngrams.is_some()),
            ("a state", config.recurrence.is_some()),
            ("compressed keys", is_compressed),
        ];
        match has_more.iter().find(|(_, has)| *has) {
            Some((what, _)) => Err(Error::Unsupported {
                what: format!("a block that guesses tokens, with {what}"),
            }),
            None => Ok(Self { directory, outline }),
        }
    }
}

impl Capacity {
    /// The capacity of an MTP block: it sees the last rows of an answer, within its window.
    /// Gemma 4's assistant has one row for each sequence. It sees the model's cache, whose length
    /// is estimated here.
    pub fn of_mtp(block: &Config, context_tokens: usize) -> Self {
        if block.assistant.is_some() {
            let seen = context_tokens.min(block.context_max);
            let cache_tokens = full_cache_tokens(seen, DRAFTS_MAX);
            return Self { context_tokens: 1, cache_tokens, ..Self::of_draft(1, 1) };
        }
        // A page is the least, so layers with a window need no pages of their own.
        let seen = block.window().map_or(MTP_POSITIONS, |window| window.max(PAGE_POSITIONS));
        let context_tokens = context_tokens.min(seen).min(MTP_POSITIONS);
        Self {
            context_tokens,
            sequences_max: DRAFTS_MAX,
            cache_tokens: full_cache_tokens(context_tokens, DRAFTS_MAX),
            cache_type: protocol::CacheType::Auto,
            whole_rows: 0,
            is_encoder: false,
            checkpoints: 0,
        }
    }
}

impl Outline {
    /// The memory of the MTP block on the rank that has it, if there is one that can run.
    pub fn mtp_footprint(&self, context_tokens: usize, device: Device) -> Option<Footprint> {
        Some(self.mtp.as_deref()?.block_footprint(context_tokens, device))
    }

    /// The memory of an MTP block or a block of a file of this outline.
    pub(crate) fn block_footprint(&self, context_tokens: usize, device: Device) -> Footprint {
        let whole = Layout::new(&[1], &[], self.config.layers).expect("one rank has all layers");
        let capacity = Capacity::of_mtp(&self.config, context_tokens);
        let held = Holding::new(self, &whole, 0).footprint(&capacity, device);
        let Config { width, .. } = self.config;
        let rows = capacity.rows_max(1) * self.config.stream_count();
        // The two inputs of a row in each stream: as they come, normalised, and joined.
        let inputs = [width; 4];
        let entry = match (&self.config.eagle3, self.config.assistant) {
            // The joined ones, and the states after its layers.
            (_, Some(Assistant { model_width, .. })) => vec![2 * model_width, model_width],
            // Attention reads the joined ones.
            (Some(eagle3), _) => [&inputs[..], &[eagle3.state_width(), width]].concat(),
            (None, None) => [&inputs[..], &[2 * width, width]].concat(),
        };
        let entry = entry.into_iter().map(|width| device.rows_bytes(rows, width));
        let buffer_bytes = entry.fold(held.buffer_bytes, u64::saturating_add);
        Footprint { buffer_bytes, ..held }
    }
}

/// Whether a file has an MTP block and not the first layer of its model.
pub(crate) fn is_alone(file: &Directory) -> bool {
    let has_block = || BlockCounts::read(file).is_ok_and(|counts| counts.layers < counts.all);
    let mut names = file.tensors().iter().map(|tensor| &tensor.name);
    !names.any(|name| names::layer_of(name) == Some(0)) && has_block()
}

/// The header of the block.
pub(crate) fn header(directory: &Directory) -> Result<Option<Directory>, Error> {
    let counts = BlockCounts::read(directory)?;
    let at = counts.layers;
    if at == counts.all || directory.find_tensor(&names::bare(at, names::MTP_ENTRY)).is_none() {
        return Ok(None);
    }
    let metadata = directory.metadata().filter_map(|(key, value)| {
        let name = key.split_once('.').map_or(key, |(_, name)| name);
        let value = match (name, value) {
            ("nextn_predict_layers" | "leading_dense_block_count" | "hash_layer_count", _) => {
                return None;
            }
            ("block_count" | "full_attention_interval", _) => Value::U32(1),
            ("rope.dimension_sections", _) => value.clone(),
            // A value for each layer.
            (_, Value::Array(array)) if array.len() == counts.all => Value::Array(array.only(at)?),
            _ => value.clone(),
        };
        Some((key.to_owned(), value))
    });
    let own = |name: &str| directory.find_tensor(&names::layer(at, &format!("nextn.{name}")));
    let has_own = |name: &str| SHARED.iter().any(|(of, known)| *known == name && own(of).is_some());
    let tensors = directory.tensors().iter().filter_map(|tensor| {
        let name = match names::layer_of(&tensor.name) {
            None if has_own(&tensor.name) => return None,
            None => tensor.name.clone(),
            Some(layer) if layer == at => block_name(&tensor.name, at)?,
            Some(_) => return None,
        };
        Some(TensorInfo { name, ..tensor.clone() })
    });
    Ok(Some(directory.with(metadata.collect(), tensors.collect())))
}

/// The name of a tensor of block `at` in the block's own model.
fn block_name(name: &str, at: usize) -> Option<String> {
    let inside = name.strip_prefix(&names::bare(at, ""))?;
    let Some(own) = inside.strip_prefix(names::MTP) else { return Some(names::bare(0, inside)) };
    let of_model = SHARED.iter().find(|(role, _)| own == format!("{role}.weight"));
    Some(of_model.map_or_else(|| inside.to_owned(), |(_, known)| (*known).to_owned()))
}
