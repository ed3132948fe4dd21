//! The tensors of layers that compress the positions before their window, and of residual streams.

use super::Layer;
use crate::compressed::Compressed;
use crate::tensors::Part;
use crate::{Config, Error, Heads, Indexer, Streams, names};

impl Layer<'_> {
    pub(super) fn compressed_attention(
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
        self.compressor(width, own, [k_dim, blocks.parts(), blocks.positions])?;
        let Some(Indexer { heads, dim, .. }) = config.indexer_of(self.layer).copied() else {
            return Ok(());
        };
        let (all, of_heads) = (Part::Of(0..width), Part::Of(0..heads * dim));
        self.matrix("indexer.attn_q_b", [q_rank, heads * dim], of_heads, Part::Of(0..q_rank))?;
        self.matrix("indexer.proj", [width, heads], Part::Of(0..heads), all)?;
        let own = [
            "indexer_compressor_kv",
            "indexer_compressor_gate",
            "indexer_compressor_ape",
            "indexer_compressor_norm",
        ];
        self.compressor(width, own, [dim, blocks.parts(), blocks.positions])
    }

    /// The tensors that make entries of `dim` elements from `parts` blocks of `positions`.
    fn compressor(
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

    /// The tensors that mix the residual streams in a layer's halves.
    pub(super) fn streams(&mut self, width: usize, streams: &Streams) -> Result<(), Error> {
        if let Some(rank) = streams.rank() {
            return self.gated_streams(width * streams.count, streams.count, rank);
        }
        let (all, weights) = (width * streams.count, streams.weights());
        for [matrix, base, scale] in [
            ["hc_attn_fn", "hc_attn_base", "hc_attn_scale"],
            ["hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale"],
        ] {
            self.matrix(matrix, [all, weights], Part::Of(0..weights), Part::Of(0..all))?;
            self.vector(base, base, weights)?;
            self.vector(scale, scale, 3)?;
        }
        Ok(())
    }

    /// The same with gates, for `all` elements of `count` streams.
    fn gated_streams(&mut self, all: usize, count: usize, rank: usize) -> Result<(), Error> {
        for (roles, inject) in [
            (["hc_attn_norm", "hc_attn_down", "hc_attn_up"], "hc_attn_inject"),
            (["hc_ffn_norm", "hc_ffn_down", "hc_ffn_up"], "hc_ffn_inject"),
        ] {
            let names = roles.map(|role| names::layer(self.layer, role));
            self.gates(roles, names, all, rank)?;
            self.matrix(inject, [all, count], Part::Of(0..count), Part::Of(0..all))?;
        }
        Ok(())
    }

    /// A norm of all streams, and the two matrices that compute gates from it.
    fn gates(
        &mut self,
        [norm, down, up]: [&'static str; 3],
        names: [String; 3],
        all: usize,
        rank: usize,
    ) -> Result<(), Error> {
        self.add_vector(norm, &names[0], 1, all)?;
        let (narrow, wide) = (Part::Of(0..rank), Part::Of(0..all));
        self.add(down, &names[1], [all, rank], narrow.clone(), wide.clone())?;
        self.add(up, &names[2], [rank, all], wide, narrow).map(drop)
    }

    /// The tensors of n-gram embeddings, in the layer that reads them.
    pub(super) fn ngrams(&mut self, config: &Config) -> Result<(), Error> {
        let found = config.ngrams.as_ref().filter(|ngrams| ngrams.layer == self.layer);
        let Some(ngrams) = found else { return Ok(()) };
        let (width, all, own) = (config.width, config.stream_width(), ngrams.width());
        self.matrix("ple_key", [own, all], Part::Of(0..all), Part::Of(0..own))?;
        self.matrix("ple_value", [own, width], Part::Of(0..width), Part::Of(0..own))?;
        for role in ["ple_norm_key", "ple_norm_query", "ple_norm_conv"] {
            self.vector(role, role, all)?;
        }
        let name = names::layer(self.layer, "ple_conv1d");
        self.table("ple_conv1d", &name, [ngrams.taps, all])
    }

    /// The tensors that mix the streams for the head: their mean, if the file has none.
    pub(super) fn head_streams(&mut self, width: usize, streams: &Streams) -> Result<(), Error> {
        if let Some(rank) = streams.rank() {
            let names = names::OUTPUT_GATES.map(str::to_owned);
            let roles = ["streams_norm", "streams_down", "streams_up"];
            return self.gates(roles, names, width * streams.count, rank);
        }
        let names =
            [names::OUTPUT_STREAMS, names::OUTPUT_STREAMS_BASE, names::OUTPUT_STREAMS_SCALE];
        if !names.iter().any(|name| self.has(name)) {
            return Ok(());
        }
        let (all, count) = (width * streams.count, streams.count);
        let (rows, cols) = (Part::Of(0..count), Part::Of(0..all));
        self.add("streams", names::OUTPUT_STREAMS, [all, count], rows, cols)?;
        self.add_vector("streams_base", names::OUTPUT_STREAMS_BASE, 1, count)?;
        self.add_vector("streams_scale", names::OUTPUT_STREAMS_SCALE, 1, 1).map(drop)
    }
}
