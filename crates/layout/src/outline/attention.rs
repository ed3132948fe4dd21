//! The tensors of layers that attend.

use super::Layer;
use crate::arch::{Fused, GatedAttention, QkNorm};
use crate::tensors::Part;
use crate::{Config, Error, Latent, names};

impl Layer<'_> {
    /// Keys and values of their own for each head or group of heads.
    pub(super) fn attention(&mut self, config: &Config) -> Result<(), Error> {
        let Config { width, heads, kv_heads, k_dim, v_dim, .. } = *config;
        let sizes = [heads * k_dim, kv_heads * k_dim, kv_heads * v_dim];
        let fused = config.arch.fused == Fused::All;
        // Where all heads are normalised as one vector, half of the sum of squares would be another
        // rank's, so every rank has all queries and keys.
        let whole = config.arch.qk_norm == QkNorm::Whole;
        let mut first = 0;
        let in_queries = config.arch.gated_attention == GatedAttention::InQueries;
        if in_queries {
            for (role, rows) in [("attn_q", 0..k_dim), ("attn_gate", k_dim..k_dim + v_dim)] {
                let of_heads = self.several(role, "attn_q", heads, [width, k_dim + v_dim])?;
                (of_heads.matrices, of_heads.apart) = (Part::Heads { first: 0, dim: 1 }, false);
                of_heads.rows = Part::Of(rows);
            }
        }
        if config.arch.gated_attention == GatedAttention::Apart {
            let rows = Part::Heads { first: 0, dim: v_dim };
            self.matrix("attn_gate", [width, heads * v_dim], rows, Part::Of(0..width))?;
        }
        let skipped = usize::from(in_queries);
        for (at, role) in ["attn_q", "attn_k", "attn_v"].into_iter().enumerate().skip(skipped) {
            let name = if fused { "attn_qkv" } else { role };
            let rows = match at {
                0 | 1 if whole => Part::Of(first..first + sizes[at]),
                0 => Part::Heads { first, dim: k_dim },
                1 => Part::KvHeads { first, dim: k_dim },
                _ => Part::KvHeads { first, dim: v_dim },
            };
            let all = if fused { sizes.iter().sum() } else { sizes[at] };
            let bias = ["attn_q.bias", "attn_k.bias", "attn_v.bias"][at];
            let tensor = names::layer(self.layer, name);
            self.add(role, &tensor, [width, all], rows.clone(), Part::Of(0..width))?;
            self.find_bias(bias, name, all, rows)?;
            first += if fused { sizes[at] } else { 0 };
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
            self.vector("attn_k_norm", "attn_k_norm", k)?;
        }
        let sinks = names::layer(self.layer, "attn_sinks");
        if self.has(&sinks) {
            self.add_vector("attn_sinks", &sinks, 1, heads)?.rows =
                Part::Heads { first: 0, dim: 1 };
        }
        Ok(())
    }

    /// Keys and values out of one compressed vector.
    pub(super) fn latent_attention(
        &mut self,
        config: &Config,
        latent: &Latent,
    ) -> Result<(), Error> {
        let Config { width, heads, k_dim, v_dim, .. } = *config;
        let Latent { q_rank, kv_rank, plain_dim, rope_dim } = *latent;
        let (q, q_cols) = match q_rank {
            Some(rank) => {
                self.matrix("attn_q_a", [width, rank], Part::Of(0..rank), Part::Of(0..width))?;
                self.vector("attn_q_a_norm", "attn_q_a_norm", rank)?;
                ("attn_q_b", rank)
            }
            None => ("attn_q", width),
        };
        // The parts of a head's query that are not rotated, and that are.
        for (role, rows) in [("q_plain", 0..plain_dim), ("q_rope", plain_dim..k_dim)] {
            let of_heads = self.several(role, q, heads, [q_cols, k_dim])?;
            (of_heads.matrices, of_heads.apart) = (Part::Heads { first: 0, dim: 1 }, false);
            of_heads.rows = Part::Of(rows);
        }
        let kv_rows = kv_rank + rope_dim;
        for (role, rows) in [("kv_down", 0..kv_rank), ("k_rope", kv_rank..kv_rows)] {
            let name = names::layer(self.layer, "attn_kv_a_mqa");
            self.add(role, &name, [width, kv_rows], Part::Of(rows), Part::Of(0..width))?;
        }
        self.vector("attn_kv_a_norm", "attn_kv_a_norm", kv_rank)?;
        for (name, shape) in [("attn_k_b", [plain_dim, kv_rank]), ("attn_v_b", [kv_rank, v_dim])] {
            self.several(name, name, heads, shape)?.matrices = Part::Heads { first: 0, dim: 1 };
        }
        Ok(())
    }
}
