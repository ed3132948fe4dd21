//! The tensors and buffers of latent attention.

use crate::arch::GatedAttention;
use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::heads::wiring::attention_output;
use crate::parts::{Heads, Latent};
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct LatentAttention;

impl Wiring for LatentAttention {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        let Some(latent) = config.latent.filter(|_| config.attends(layer.layer)) else {
            return Ok(());
        };
        layer.latent_attention(config, &latent)?;
        attention_output(layer, config, "attn_output")
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Some(Latent { q_rank, kv_rank, plain_dim, rope_dim }) = share.config.latent else {
            return;
        };
        let heads = share.shard.attention[0].queries.len();
        q_rank.into_iter().for_each(|rank| buffers.add([("latent.q_down", rank)]));
        buffers.add([
            // The plain and the rotated parts of queries, and queries in the compressed space.
            ("latent.q_plain", heads * plain_dim),
            ("latent.q_rope", heads * rope_dim),
            ("latent.q_up", heads * kv_rank),
            // The compressed keys and values, and the rotated part of the key.
            ("latent.kv", kv_rank),
            ("latent.k_rope", rope_dim),
        ]);
    }
}

impl Layer<'_> {
    /// Keys and values from one compressed vector.
    fn latent_attention(&mut self, config: &Config, latent: &Latent) -> Result<(), Error> {
        let (width, kind) = (config.width, config.heads_kind(self.layer));
        let Heads { queries: heads, k_dim, v_dim, .. } = *config.heads_of(self.layer);
        let Latent { q_rank, kv_rank, plain_dim, rope_dim } = *latent;
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
        self.head_gate(config)
    }
}
