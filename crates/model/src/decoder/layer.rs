//! One layer: two halves, each added to the residual stream.

use backend::{Backend, Half};
use layout::{Config, Shard, Slices};

use super::context::Context;
use super::feed_forward::FeedForward;
use super::norm::Norm;
use super::parts::banks::{BankHalf, Reader};
use super::parts::by_layer::LayerEmbedding;
use super::parts::compressed::CompressedAttention;
use super::parts::heads::HeadAttention;
use super::parts::latent::LatentAttention;
use super::parts::ngrams::NgramLayer;
use super::parts::recurrence::Recurrence;
use super::reduce::{Product, Reduce};
use super::residual::Residual;
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct Layer<B: Backend> {
    /// Its index in the model.
    pub index: usize,
    /// The n-gram embeddings that it reads before its halves.
    ngrams: Option<NgramLayer<B>>,
    mixer: Option<MixerHalf<B>>,
    feed_forward: Option<FeedForwardHalf<B>>,
    by_layer: Option<LayerEmbedding<B>>,
    /// The factor of the residual stream at the end of the layer.
    scale: Option<f32>,
    /// In the last layer, the head's reader of banked residual streams.
    head: Option<BankHalf<B>>,
}

/// The half in which a row reads earlier rows.
struct MixerHalf<B: Backend> {
    norm: Option<Norm<B>>,
    mixer: Mixer<B>,
    residual: Residual<B>,
}

struct FeedForwardHalf<B: Backend> {
    norm: Option<Norm<B>>,
    /// Whether the block reads the mixer's norm instead of its own (Cohere).
    parallel: bool,
    block: FeedForward<B>,
    residual: Residual<B>,
}

enum Mixer<B: Backend> {
    Heads(HeadAttention<B>),
    Latent(LatentAttention<B>),
    Compressed(CompressedAttention<B>),
    Recurrence(Box<Recurrence<B>>),
}

impl<B: Backend> Layer<B> {
    /// `first`: the first layer of the rank's stage.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        slices: &Slices<'_>,
        (layer, first): (usize, usize),
    ) -> Result<Self, ModelError> {
        let ngrams = NgramLayer::load(loader, config, slices, layer)?;
        let mixer = Mixer::load(loader, config, shard, slices, layer)?;
        let mixer = match mixer {
            Some(mixer) => Some(MixerHalf::load(loader, config, slices, mixer, layer)?),
            None => None,
        };
        let feed_forward = match config.halves[layer].feed_forward {
            true => Some(FeedForwardHalf {
                norm: Norm::find(loader, config, slices, "feed_forward_norm")?,
                parallel: config.arch.parallel,
                residual: {
                    let roles =
                        ["ffn_down.bias", "after_feed_forward_norm", "feed_forward_sum_norm"];
                    let residual = Residual::load(loader, config, slices, roles, "ffn")?;
                    let banks = (slices, layer, Reader::FeedForward);
                    Residual {
                        beside: Residual::beside(loader, slices)?,
                        banks: BankHalf::load(loader, config, banks)?,
                        ..residual
                    }
                },
                block: FeedForward::load(loader, config, shard, slices, layer)?,
            }),
            false => None,
        };
        let by_layer = LayerEmbedding::load(loader, config, slices, layer - first)?;
        let scale = slices.find("output_scale").map(|slice| loader.numbers(&slice)).transpose()?;
        let scale = scale.map(|numbers| numbers[0]);
        let head = BankHalf::load(loader, config, (slices, layer, Reader::Head))?;
        Ok(Self { index: layer, ngrams, mixer, feed_forward, by_layer, scale, head })
    }

    /// Caches the rows of `h`.
    pub fn take_in(&self, c: &mut Context<'_, B>) {
        if let Some(MixerHalf { mixer, .. }) = &self.mixer {
            mixer.take_in(c);
        }
    }

    /// Begins to read the experts that these tokens choose by themselves, if they lie on disk.
    pub fn prefetch(&self, tokens: &[u32]) {
        if let Some(half) = &self.feed_forward {
            half.block.prefetch(tokens);
        }
    }

    /// `x += mixer(norm(x))`, then `x += feed_forward(norm(x))`, with the halves and norms of the
    /// architecture. The last caching layer caches every row, and computes the rest only for the
    /// outputs.
    ///
    /// Parallel halves read one norm. The block expands it before the mixer's sum overwrites it.
    pub fn forward<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        if let Some(ngrams) = &self.ngrams {
            ngrams.add(c);
        }
        if let Some(MixerHalf { norm, mixer, residual }) = &self.mixer {
            c.norm(norm.as_ref(), residual.input());
            mixer.take_in(c);
            if !c.keep_outputs() {
                return Ok(c.backend.synchronise()?);
            }
            mixer.give_out(c, reduce)?;
            if let Some(beside) = self.feed_forward.as_ref().filter(|half| half.parallel) {
                beside.block.expand(c);
            }
            c.end_segment(Half::Attention);
            residual.add(c, reduce, mixer.product())?;
        }
        if let Some(FeedForwardHalf { norm, parallel, block, residual }) = &self.feed_forward {
            if !parallel {
                c.norm(norm.as_ref(), residual.input());
                if self.mixer.is_none() && !c.keep_outputs() {
                    return Ok(c.backend.synchronise()?);
                }
                block.expand(c);
            }
            block.contract(c, reduce)?;
            c.end_segment(Half::FeedForward);
            residual.add(c, reduce, Product::FeedForward)?;
        }
        if let Some(by_layer) = &self.by_layer {
            by_layer.add(c);
        }
        if let Some(scale) = self.scale {
            c.backend.scale(&mut c.scratch.x, scale);
        }
        if let Some(banks) = &self.head {
            c.read_for_head(banks);
        }
        Ok(())
    }
}

impl<B: Backend> MixerHalf<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        mixer: Mixer<B>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            norm: Norm::find(loader, config, slices, "attention_norm")?,
            mixer,
            residual: {
                let roles = ["attn_output.bias", "after_attention_norm", "attention_sum_norm"];
                let residual = Residual::load(loader, config, slices, roles, "attn")?;
                let banks = BankHalf::load(loader, config, (slices, layer, Reader::Mixer))?;
                Residual { banks, ..residual }
            },
        })
    }
}

impl<B: Backend> Mixer<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Option<Self>, ModelError> {
        if let Some(sizes) = config.recurrence_of(layer) {
            let own = Recurrence::load(loader, (config, sizes), shard, slices)?;
            return Ok(Some(Self::Recurrence(Box::new(own))));
        }
        Ok(match (&config.latent, &config.compressed) {
            _ if !config.attends(layer) => None,
            (None, Some(compressed)) => {
                let own =
                    CompressedAttention::load(loader, config, compressed, shard, slices, layer)?;
                Some(Self::Compressed(own))
            }
            (Some(latent), _) => {
                let own = LatentAttention::load(loader, config, latent, shard, slices, layer)?;
                Some(Self::Latent(own))
            }
            (None, None) => {
                let own = HeadAttention::load(loader, config, shard, slices, layer)?;
                Some(Self::Heads(own))
            }
        })
    }

    fn product(&self) -> Product {
        match self {
            Self::Heads(_) | Self::Latent(_) | Self::Compressed(_) => Product::Attention,
            Self::Recurrence(_) => Product::Recurrence,
        }
    }

    /// Caches every row of `h`.
    fn take_in(&self, c: &mut Context<'_, B>) {
        match self {
            Self::Heads(attention) => attention.cache(c),
            Self::Latent(attention) => attention.cache(c),
            Self::Compressed(attention) => attention.cache(c),
            Self::Recurrence(recurrence) => recurrence.recur(c),
        }
    }

    /// `sums = mixer(h)`, this rank's part.
    fn give_out<R: Reduce>(&self, c: &mut Context<'_, B>, reduce: &mut R) -> Result<(), R::Error> {
        match self {
            Self::Heads(attention) => attention.attend(c),
            Self::Latent(attention) => attention.attend(c),
            Self::Compressed(attention) => attention.attend(c),
            Self::Recurrence(recurrence) => return recurrence.give_out(c, reduce),
        }
        Ok(())
    }
}
