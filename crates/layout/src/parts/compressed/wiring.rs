//! The tensors and buffers of layers that compress the positions before their window.

use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::heads::wiring::attention_output;
use crate::parts::{Compressed, Heads};
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct CompressedAttention;

impl Wiring for CompressedAttention {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        let attends = config.attends(layer.layer) && config.latent.is_none();
        let Some(compressed) = config.compressed.as_ref().filter(|_| attends) else {
            return Ok(());
        };
        layer.compressed_attention(config, compressed)?;
        attention_output(layer, config, "attn_output_b")
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Share { config, shard, .. } = share;
        let Some(compressed) = &config.compressed else { return };
        let layers = || (0..config.layers).filter_map(|layer| compressed.blocks(layer));
        let width = |overlap: bool, dim: usize| {
            let blocks = layers().find(|blocks| blocks.overlap == overlap);
            blocks.map_or(0, |blocks| blocks.parts() * dim)
        };
        let (dim, index_dim) = (config.heads()[0].k_dim, config.indexer.map(|i| i.dim));
        buffers.add([
            // Compressed queries, and the compressed outputs of this rank's heads.
            ("compressed.q_down", compressed.q_rank),
            ("compressed.out", shard.attention[0].groups.len() * compressed.out_rank),
        ]);
        // Inputs of entries, keys and their weights: of heads in layers without overlapping blocks,
        // of heads in layers with them, and of an indexer.
        let of_entries = [width(false, dim), width(true, dim), width(true, index_dim.unwrap_or(0))];
        for (at, width) in of_entries.into_iter().enumerate() {
            buffers.add_at(at, "entries.keys", width);
            buffers.add_at(at, "entries.weights", width);
        }
    }
}

impl Layer<'_> {
    fn compressed_attention(
        &mut self,
        config: &Config,
        compressed: &Compressed,
    ) -> Result<(), Error> {
        let (width, kind) = (config.width, config.heads_kind(self.layer));
        let Heads { queries, k_dim, out_heads, .. } = *config.heads_of(self.layer);
        let Compressed { q_rank, out_groups, out_rank, .. } = *compressed;
        let all = Part::Of(0..width);
        self.matrix("attn_q_a", [width, q_rank], Part::Of(0..q_rank), all.clone())?;
        self.vector("attn_q_a_norm", "attn_q_a_norm", q_rank)?;
        let of_heads = Part::Queries { kind, first: 0, dim: k_dim };
        self.matrix("attn_q_b", [q_rank, queries * k_dim], of_heads, Part::Of(0..q_rank))?;
        let name = names::layer(self.layer, "attn_kv");
        self.add("kv_down", &name, [width, k_dim], Part::Of(0..k_dim), all)?;
        self.vector("attn_kv_a_norm", "attn_kv_a_norm", k_dim)?;
        let sinks = names::layer(self.layer, "attn_sinks");
        self.add_vector("attn_sinks", &sinks, 1, queries)?.rows =
            Part::Queries { kind, first: 0, dim: 1 };
        let (role, shape) = ("attn_output_a", [out_heads * k_dim, out_rank]);
        let of_groups = self.several(role, role, out_groups, shape)?;
        of_groups.matrices = Part::OutputGroups { kind };
        let Some(blocks) = compressed.blocks(self.layer) else { return Ok(()) };
        let own = [
            "attn_compressor_kv",
            "attn_compressor_gate",
            "attn_compressor_ape",
            "attn_compressor_norm",
        ];
        self.compressor(width, own, [k_dim, blocks.parts(), blocks.positions])
    }

    /// The tensors that make entries of `dim` elements from `parts` blocks of `positions`.
    pub fn compressor(
        &mut self,
        width: usize,
        [kv, gate, by_position, norm]: [&'static str; 4],
        [dim, parts, positions]: [usize; 3],
    ) -> Result<(), Error> {
        let rows = dim * parts;
        for role in [kv, gate] {
            self.matrix(role, [width, rows], Part::Of(0..rows), Part::Of(0..width))?;
        }
        self.table(by_position, &names::layer(self.layer, by_position), [rows, positions])?;
        self.vector(norm, norm, dim)
    }
}
