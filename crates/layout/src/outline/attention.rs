//! The tensors of layers that attend.

use super::Layer;
use crate::arch::{Fused, GatedAttention, QkNorm, Values};
use crate::tensors::Part;
use crate::{Config, Error, Heads, Indexer, Latent, names};

impl Layer<'_> {
    /// Queries, and the layer's keys and values for each head or group of heads, unless it reads
    /// another layer's.
    pub(super) fn attention(&mut self, config: &Config) -> Result<(), Error> {
        let (width, kind) = (config.attention_width(), config.heads_kind(self.layer));
        let Heads { queries, keys, k_dim, v_dim, .. } = *config.heads_of(self.layer);
        let sizes = [queries * k_dim, keys * k_dim, keys * v_dim];
        // MiMo 2 has fused ones in some layers.
        let is_fused = self.has(&names::layer(self.layer, "attn_qkv"));
        let fused = config.arch.fused == Fused::All || is_fused;
        // If all heads are normalised as one vector, half of the sum of squares would be on another
        // rank, so every rank has all queries and keys.
        let whole = config.arch.qk_norm == QkNorm::Whole;
        let mut first = 0;
        let in_queries = config.arch.gated_attention == GatedAttention::InQueries;
        if in_queries {
            for (role, rows) in [("attn_q", 0..k_dim), ("attn_gate", k_dim..k_dim + v_dim)] {
                let of_heads = self.several(role, "attn_q", queries, [width, k_dim + v_dim])?;
                of_heads.matrices = Part::Queries { kind, first: 0, dim: 1 };
                (of_heads.rows, of_heads.apart) = (Part::Of(rows), false);
            }
        }
        if config.arch.gated_attention == GatedAttention::Apart {
            let rows = Part::Queries { kind, first: 0, dim: v_dim };
            self.matrix("attn_gate", [width, queries * v_dim], rows, Part::Of(0..width))?;
        }
        let skipped = usize::from(in_queries);
        for (at, role) in ["attn_q", "attn_k", "attn_v"].into_iter().enumerate().skip(skipped) {
            if at > 0 && !config.keeps(self.layer) {
                break;
            }
            let name = if fused { "attn_qkv" } else { role };
            let rows = match at {
                0 | 1 if whole => Part::Of(first..first + sizes[at]),
                0 => Part::Queries { kind, first, dim: k_dim },
                1 => Part::Keys { kind, first, dim: k_dim },
                _ => Part::Keys { kind, first, dim: v_dim },
            };
            if at == 2 && self.values_from_keys(config)? {
                break;
            }
            let all = if fused { sizes.iter().sum() } else { sizes[at] };
            let bias = ["attn_q.bias", "attn_k.bias", "attn_v.bias"][at];
            let tensor = names::layer(self.layer, name);
            self.add(role, &tensor, [width, all], rows.clone(), Part::Of(0..width))?;
            self.find_bias(bias, name, all, rows)?;
            first += if fused { sizes[at] } else { 0 };
        }
        self.head_gate(config)?;
        if let Some(indexer) = config.indexer_of(self.layer) {
            let (dim, all) = (indexer.dim, Part::Of(0..width));
            let rows = match indexer.blocks {
                Some(_) => Part::Keys { kind, first: 0, dim },
                None => Part::Of(0..indexer.heads * dim),
            };
            self.matrix("indexer.q_proj", [width, indexer.heads * dim], rows, all.clone())?;
            self.matrix("indexer.k_proj", [width, dim], Part::Of(0..dim), all)?;
            self.vector("indexer.q_norm", "indexer.q_norm", dim)?;
            self.vector("indexer.k_norm", "indexer.k_norm", dim)?;
        }
        let present = self.has(&names::layer(self.layer, "attn_q_norm"));
        let norms = match config.arch.qk_norm {
            QkNorm::Never | QkNorm::L2AfterRotation => None,
            QkNorm::HeadsIfPresent if !present => None,
            QkNorm::HeadsIfPresent | QkNorm::Heads | QkNorm::HeadsAfterRotation => Some([k_dim; 2]),
            QkNorm::Whole => Some([sizes[0], sizes[1]]),
        };
        if let Some([q, k]) = norms {
            self.vector("attn_q_norm", "attn_q_norm", q)?;
            if config.keeps(self.layer) {
                self.vector("attn_k_norm", "attn_k_norm", k)?;
            }
        }
        let sinks = names::layer(self.layer, "attn_sinks");
        if self.has(&sinks) {
            let rows = Part::Queries { kind, first: 0, dim: 1 };
            self.add_vector("attn_sinks", &sinks, 1, queries)?.rows = rows;
        }
        Ok(())
    }

    /// Whether a layer uses its keys as values.
    fn values_from_keys(&self, config: &Config) -> Result<bool, Error> {
        let Heads { k_dim, v_dim, .. } = *config.heads_of(self.layer);
        let own = self.has(&names::layer(self.layer, "attn_v"));
        if config.arch.values == Values::Plain || own {
            return Ok(false);
        }
        if k_dim != v_dim {
            let what = format!("values of {v_dim} numbers from keys of {k_dim}");
            return Err(Error::Impossible { what });
        }
        Ok(true)
    }

    /// A gate for each head, if the file has one.
    fn head_gate(&mut self, config: &Config) -> Result<(), Error> {
        let (name, kind) = (names::layer(self.layer, "attn_gate"), config.heads_kind(self.layer));
        if !self.has(&name) || config.arch.gated_attention != GatedAttention::Never {
            return Ok(());
        }
        let (shape, rows) = (
            [config.width, config.heads_of(self.layer).queries],
            Part::Queries { kind, first: 0, dim: 1 },
        );
        self.add("head_gate", &name, shape, rows, Part::Of(0..config.width)).map(drop)
    }

    /// Keys and values from one compressed vector.
    pub(super) fn latent_attention(
        &mut self,
        config: &Config,
        latent: &Latent,
    ) -> Result<(), Error> {
        let (width, kind) = (config.width, config.heads_kind(self.layer));
        let Heads { queries: heads, k_dim, v_dim, .. } = *config.heads_of(self.layer);
        let Latent { q_rank, kv_rank, plain_dim, rope_dim } = *latent;
        if let Some(Indexer { heads, dim, pool, .. }) = config.indexer_of(self.layer).copied() {
            let Some(rank) = q_rank else {
                let what = "an indexer without compressed queries".to_owned();
                return Err(Error::Unsupported { what });
            };
            let (all, of_heads) = (Part::Of(0..width), Part::Of(0..heads * dim));
            self.matrix("indexer.attn_q_b", [rank, heads * dim], of_heads, Part::Of(0..rank))?;
            self.matrix("indexer.attn_k", [width, dim], Part::Of(0..dim), all.clone())?;
            self.matrix("indexer.proj", [width, heads], Part::Of(0..heads), all)?;
            self.vector("indexer.k_norm", "indexer.k_norm", dim)?;
            let bias = names::bias(self.layer, "indexer.k_norm");
            self.add_vector("indexer.k_norm.bias", &bias, 1, dim)?;
            if let Some(pool) = pool {
                let (gate, all) = ("indexer_compressor_gate", Part::Of(0..width));
                self.matrix(gate, [width, dim], Part::Of(0..dim), all)?;
                let by_place = "indexer_compressor_ape";
                self.table(by_place, &names::layer(self.layer, by_place), [dim, pool])?;
            }
        }
        let (q, q_cols) = match q_rank {
            Some(rank) => {
                self.matrix("attn_q_a", [width, rank], Part::Of(0..rank), Part::Of(0..width))?;
                self.vector("attn_q_a_norm", "attn_q_a_norm", rank)?;
                ("attn_q_b", rank)
            }
            None => ("attn_q", width),
        };
        // The plain and the rotated parts of a head's query.
        for (role, rows) in [("q_plain", 0..plain_dim), ("q_rope", plain_dim..k_dim)] {
            let of_heads = self.several(role, q, heads, [q_cols, k_dim])?;
            of_heads.matrices = Part::Queries { kind, first: 0, dim: 1 };
            (of_heads.rows, of_heads.apart) = (Part::Of(rows), false);
        }
        let kv_rows = kv_rank + rope_dim;
        for (role, rows) in [("kv_down", 0..kv_rank), ("k_rope", kv_rank..kv_rows)] {
            let name = names::layer(self.layer, "attn_kv_a_mqa");
            self.add(role, &name, [width, kv_rows], Part::Of(rows), Part::Of(0..width))?;
        }
        self.vector("attn_kv_a_norm", "attn_kv_a_norm", kv_rank)?;
        for (name, shape) in [("attn_k_b", [plain_dim, kv_rank]), ("attn_v_b", [kv_rank, v_dim])] {
            let of_heads = self.several(name, name, heads, shape)?;
            of_heads.matrices = Part::Queries { kind, first: 0, dim: 1 };
        }
        let gated = config.arch.gated_attention == GatedAttention::Apart;
        if gated && self.has(&names::layer(self.layer, "attn_gate")) {
            let rows = Part::Queries { kind, first: 0, dim: v_dim };
            self.matrix("attn_gate", [width, heads * v_dim], rows, Part::Of(0..width))?;
        }
        Ok(())
    }
}
