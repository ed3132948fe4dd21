//! The decoder: one rank's weights and the forward pass.
//!
//! Top-down: [`Model`] runs a step layer by layer, each with a `Context`; what a layer is made of
//! is in `parts`; `residual` reduces the ranks' partial sums.

mod arena;
mod batch;
mod blocks;
mod content;
mod context;
mod entry;
mod feed_forward;
mod layer;
mod load;
mod noise;
mod norm;
mod part;
mod parts;
mod projection;
mod projections;
mod reduce;
mod residual;
mod row;
mod scratch;
mod taps;

use std::convert::Infallible;
use std::sync::Arc;

use backend::{Arena, Backend, BackendError, CacheKind, RopeTable};
use layout::{Config, Leaves, Row, Shard};

pub use batch::{Batch, BatchPictures, Outputs};
use context::{Context, Kept};
use entry::Entry;
use layer::Layer;
use norm::Norm;
pub use part::{Cut, Holder, LayerCache, Part, Shared};
use parts::streams::HeadStreams;
use projections::Projections;
pub use reduce::{Product, Reduce};
use scratch::Scratch;
use taps::Taps;

/// One rank of a model.
pub struct Model<B: Backend> {
    config: Config,
    shard: Shard,
    /// How rows begin, in an MTP block or an EAGLE-3 head.
    entry: Option<Entry<B>>,
    /// How rows begin and end, in an assistant.
    projections: Option<Projections<B>>,
    /// The layers of this rank's stage.
    layers: Vec<Layer<B>>,
    head: Option<Head<B>>,
    kept: Vec<Kept<B>>,
    /// The experts that are not in memory.
    arena: Option<Arc<Arena>>,
    note: Option<String>,
    rope: Vec<RopeTable>,
    scratch: Scratch<B>,
    /// The columns of a row that this stage takes, and of one that it hands on.
    row: Row,
    next_row: Row,
    handed_on: Vec<f32>,
    /// What a head for this model reads.
    taps: Taps,
    weight_bytes: u64,
    kv_bytes: u64,
    buffer_bytes: u64,
    cache_kind: CacheKind,
    rows_max: usize,
}

/// Computes logits from the residual stream after the last layer.
struct Head<B: Backend> {
    streams: Option<HeadStreams<B>>,
    norm: Option<Norm<B>>,
    /// `None` for an encoder, which has no logits.
    output: Option<B::Matrix>,
    bias: Option<B::Vector>,
}

impl<B: Backend> Model<B> {
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The leaves of a row-parallel product, for the plan of its reduction.
    pub fn leaves(&self, product: Product) -> &Leaves {
        match product {
            Product::Attention => self.shard.attention_leaves(),
            // Unused in a model without such layers.
            Product::Recurrence | Product::Squares => {
                self.shard.recurrent.as_ref().unwrap_or(self.shard.attention_leaves())
            }
            Product::FeedForward => &self.shard.feed_forward[0],
        }
    }

    /// Bytes of this rank's weights in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// What the user should know of how it was loaded, a sentence.
    pub fn note(&self) -> Option<&String> {
        self.note.as_ref()
    }

    /// The experts that are not in memory, if any are not.
    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    /// Bytes of the activations of a step.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    /// Bytes of this rank's caches: keys and values, and states.
    pub fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    pub fn cache_kind(&self) -> CacheKind {
        self.cache_kind
    }

    /// Runs one step through this rank's layers; after the model's last caching layer, only the
    /// outputs continue.
    ///
    /// `input`: the result of [`Embedding::look_up`](crate::Embedding::look_up) for the batch's
    /// tokens, or the [output](Self::hand_on) of the previous stage, `[rows, input_width]` f32; for
    /// a [block](layout::BlockFile) the embedding and the [state](Self::state) before it.
    ///
    /// # Errors
    /// An error of `reduce` or of the device.
    pub fn forward<R: Reduce>(
        &mut self,
        backend: &mut B,
        reduce: &mut R,
        batch: &Batch<'_>,
        input: &[f32],
    ) -> Result<(), R::Error> {
        self.forward_over(backend, reduce, batch, input, None)
    }

    /// The same. An assistant needs its `model`, whose caches it reads by the tables of `batch`.
    ///
    /// # Errors
    /// Those of [`Self::forward`].
    pub fn forward_over<R: Reduce>(
        &mut self,
        backend: &mut B,
        reduce: &mut R,
        batch: &Batch<'_>,
        input: &[f32],
        mut model: Option<&mut Self>,
    ) -> Result<(), R::Error> {
        let rows = batch.positions.len();
        debug_assert!(rows <= self.rows_max);
        self.take_input(backend, rows, input)?;
        match batch.pictures.places {
            Some(places) => backend.set_places(&self.rope, places),
            None => backend.set_positions(&self.rope, batch.positions),
        }
        let (first, last_keeping) = (self.first_layer(), self.config.last_keeping());
        let some = batch.outputs.rows.len() < rows;
        self.taps.begin(batch.outputs.rows.len());
        self.layers.iter().for_each(|layer| layer.prefetch(&self.scratch.tokens));
        for layer in &self.layers {
            let behind = layer.index > last_keeping && some;
            if behind && batch.outputs.rows.is_empty() {
                break;
            }
            if self.taps.has(layer.index) {
                let rows = (!behind).then_some(batch.outputs.rows);
                self.taps.take(layer.index, backend.host(&mut self.scratch.x)?, rows);
            }
            let (all_segments, windows) = match behind {
                true => (batch.outputs.segments, batch.outputs.windows),
                false => (batch.segments, batch.windows),
            };
            let has_window = self.config.windows[layer.index].is_some();
            let kept = match &mut model {
                Some(model) => model.last_kept(has_window),
                None => &mut self.kept[kept_at(&self.config, layer.index, first)],
            };
            let mut context = Context {
                backend,
                config: &self.config,
                scratch: &mut self.scratch,
                kept,
                layer: layer.index,
                step_rows: rows,
                rows: if behind { batch.outputs.rows.len() } else { rows },
                segments: if has_window { windows } else { all_segments },
                all_segments,
                states: batch.states,
                outputs: (layer.index == last_keeping && some).then_some(batch.outputs),
            };
            layer.forward(&mut context, reduce)?;
            // In the last layer that keeps positions only outputs are left, which are text.
            if !(layer.index >= last_keeping && some) {
                batch.pictures.add(backend, layer.index, &mut self.scratch.x)?;
            }
        }
        Ok(())
    }

    /// Copies pages of every layer's cache, `(from, to)`, one after the other.
    ///
    /// # Panics
    /// If a layer keeps more than pages, see [`Config::keeps_all`].
    pub fn copy_pages(&mut self, backend: &mut B, copies: &[(u32, u32)]) {
        for (from, to) in copies {
            self.kept.iter_mut().for_each(|kept| kept.copy_page(backend, *from, *to));
        }
    }

    fn first_layer(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.index)
    }

    /// The residual stream after the last step: in the last stage `[outputs, stream_width]` f32.
    ///
    /// # Errors
    /// The device failed.
    pub fn residual(&mut self, backend: &mut B) -> Result<&[f32], BackendError> {
        backend.host(&mut self.scratch.x)
    }

    /// Sets the last stage's residual stream, `[outputs, stream_width]` f32, on a rank with a part
    /// of the head, but without the last layers.
    pub fn set_residual(&mut self, backend: &mut B, rows: &[f32]) {
        let fill = |x: &mut [f32]| {
            x.copy_from_slice(rows);
            Ok::<_, Infallible>(())
        };
        let Ok(()) =
            backend.write(&mut self.scratch.x, rows.len() / self.config.stream_width(), fill);
    }

    /// The input of the logits, the last stage's residual stream after its norm: `[outputs, width]`
    /// f32; empty if this rank has no part of the head.
    ///
    /// # Errors
    /// The device failed.
    pub fn hidden(&mut self, backend: &mut B) -> Result<&[f32], BackendError> {
        let Some(head) = &self.head else { return Ok(&[]) };
        let s = &mut self.scratch;
        head.read(backend, self.config.width, s);
        backend.host(&mut s.normed)
    }

    /// This rank's slice of the logits of the last stage's residual stream, if there are outputs:
    /// `[outputs, shard.vocab.len()]` f32, row-major; empty without a part of the head, and
    /// for an encoder.
    ///
    /// # Errors
    /// The device failed.
    pub fn logits(&mut self, backend: &mut B) -> Result<&[f32], BackendError> {
        let Some(head) = &self.head else { return Ok(&[]) };
        let Some(output) = &head.output else { return Ok(&[]) };
        let s = &mut self.scratch;
        head.read(backend, self.config.width, s);
        // Every logit depends on this product, and it has few rows, so it gets 16-bit activations.
        backend.linear_int16(&s.normed, output, &mut s.logits);
        if let Some(bias) = &head.bias {
            backend.add_bias(&mut s.logits, bias);
        }
        if self.config.logit_scale != 1.0 {
            backend.scale(&mut s.logits, self.config.logit_scale);
        }
        if let Some(cap) = self.config.logit_cap {
            backend.soft_cap(&mut s.logits, cap);
        }
        backend.host(&mut s.logits)
    }
}

/// The place of layer `layer`'s cache among those of a stage that begins with `first`.
fn kept_at(config: &Config, layer: usize, first: usize) -> usize {
    if config.shares_caches() { 0 } else { config.cache_of(layer) - first }
}

impl<B: Backend> Head<B> {
    /// `normed` = the input of the logits.
    fn read(&self, backend: &mut B, width: usize, s: &mut Scratch<B>) {
        let x = match (&self.streams, &mut s.streams) {
            (Some(streams), Some(room)) => {
                streams.read(backend, &s.x, &mut s.h, room);
                &room.mixed
            }
            _ => &s.x,
        };
        match &self.norm {
            Some(norm) => norm.apply(backend, x, &mut s.normed),
            None => backend.columns(x, 0..width, &mut s.normed),
        }
    }
}
