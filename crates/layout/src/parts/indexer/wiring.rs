//! The tensors and buffers of an indexer.

use crate::buffers::{Buffers, Choices};
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::Indexer;
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct Choice;

impl Wiring for Choice {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        let at = layer.layer;
        let Some(indexer) = config.indexer_of(at).filter(|_| config.attends(at)) else {
            return Ok(());
        };
        match (&config.latent, &config.compressed) {
            (Some(latent), _) => {
                let Some(rank) = latent.q_rank else {
                    let what = "an indexer without compressed queries".to_owned();
                    return Err(Error::Unsupported { what });
                };
                layer.indexer_of_latent(config.width, indexer, rank)
            }
            (None, Some(compressed)) => {
                let Some(blocks) = compressed.blocks(at) else { return Ok(()) };
                layer.weighed_queries(config.width, indexer, compressed.q_rank)?;
                let own = [
                    "indexer_compressor_kv",
                    "indexer_compressor_gate",
                    "indexer_compressor_ape",
                    "indexer_compressor_norm",
                ];
                let sizes = [indexer.dim, blocks.parts(), blocks.positions];
                layer.compressor(config.width, own, sizes)
            }
            (None, None) => layer.indexer_of_heads(config, indexer),
        }
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Some(indexer) = share.config.indexer else { return };
        let keys = share.shard.attention[0].keys.len();
        let heads = indexer.own_heads(keys);
        buffers.add([
            ("indexer.q", heads * indexer.dim),
            // The product of a key, and the key.
            ("indexer.product", indexer.dim),
            ("indexer.k", indexer.dim),
            ("indexer.weights", heads),
            // The values of its cache: it has none.
            ("indexer.none", 0),
        ]);
        let pages = share.capacity.pages_per_sequence();
        buffers.choices = Some(Choices { groups: indexer.groups(keys), pages });
    }
}

impl Layer<'_> {
    /// From the residual stream.
    fn indexer_of_heads(&mut self, config: &Config, indexer: &Indexer) -> Result<(), Error> {
        let (width, kind) = (config.attention_width(), config.heads_kind(self.layer));
        let (dim, all) = (indexer.dim, Part::Of(0..width));
        let rows = match indexer.blocks {
            Some(_) => Part::Keys { kind, first: 0, dim },
            None => Part::Of(0..indexer.heads * dim),
        };
        self.matrix("indexer.q_proj", [width, indexer.heads * dim], rows, all.clone())?;
        self.matrix("indexer.k_proj", [width, dim], Part::Of(0..dim), all)?;
        self.vector("indexer.q_norm", "indexer.q_norm", dim)?;
        self.vector("indexer.k_norm", "indexer.k_norm", dim)
    }

    /// Queries from compressed ones of `rank` elements, and the weights of heads.
    fn weighed_queries(
        &mut self,
        width: usize,
        Indexer { heads, dim, .. }: &Indexer,
        rank: usize,
    ) -> Result<(), Error> {
        let all = heads * dim;
        self.matrix("indexer.attn_q_b", [rank, all], Part::Of(0..all), Part::Of(0..rank))?;
        self.matrix("indexer.proj", [width, *heads], Part::Of(0..*heads), Part::Of(0..width))
    }

    fn indexer_of_latent(
        &mut self,
        width: usize,
        indexer: &Indexer,
        rank: usize,
    ) -> Result<(), Error> {
        let (dim, all) = (indexer.dim, Part::Of(0..width));
        self.weighed_queries(width, indexer, rank)?;
        self.matrix("indexer.attn_k", [width, dim], Part::Of(0..dim), all.clone())?;
        self.vector("indexer.k_norm", "indexer.k_norm", dim)?;
        let bias = names::bias(self.layer, "indexer.k_norm");
        self.add_vector("indexer.k_norm.bias", &bias, 1, dim)?;
        if let Some(pool) = indexer.pool {
            self.matrix("indexer_compressor_gate", [width, dim], Part::Of(0..dim), all)?;
            let by_place = "indexer_compressor_ape";
            self.table(by_place, &names::layer(self.layer, by_place), [dim, pool])?;
        }
        Ok(())
    }
}
