//! The tensors and buffers of heads, each with queries of its own, and keys and values of its own
//! or of a group.

use crate::arch::{Fused, GatedAttention, QkNorm, Values};
use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::Heads;
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct HeadAttention;

impl Wiring for HeadAttention {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        let is_plain = config.latent.is_none() && config.compressed.is_none();
        if !config.attends(layer.layer) || !is_plain {
            return Ok(());
        }
        layer.attention(config)?;
        attention_output(layer, config, "attn_output")
    }

    /// All kinds of attention have these: the queries, keys and values that meet.
    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Share { config, shard, .. } = share;
        if config.arch.reads_token {
            buffers.add([("joined", config.attention_width())]);
        }
        // The other ranks do not know of an assistant on rank 0.
        let kinds = config.heads().iter().enumerate();
        for (kind, heads) in kinds.filter(|(_, heads)| shard.rank == 0 || !heads.whole_on_first) {
            let own = &shard.attention[kind];
            let (queries, keys) = (own.queries.len(), own.keys.len());
            let (key, _) = config.cached_dims(heads);
            let whole = config.arch.qk_norm == QkNorm::Whole;
            let all = |heads: usize, dim: usize| if whole { heads * dim } else { 0 };
            // Otherwise the values are the keys.
            let has_values = config.latent.is_none() && config.compressed.is_none();
            let attended = queries * heads.v_dim;
            let gate = match config.arch.gated_attention {
                GatedAttention::Never => share.has("head_gate").then_some(queries),
                GatedAttention::InQueries | GatedAttention::Apart => Some(attended),
            };
            let all = [
                ("heads.q", Some(queries * key)),
                ("heads.k", Some(keys * key)),
                ("heads.v", Some(if has_values { keys * heads.v_dim } else { 0 })),
                ("heads.all_q", Some(all(heads.queries, heads.k_dim))),
                ("heads.all_k", Some(all(heads.keys, heads.k_dim))),
                ("heads.attended", Some(attended)),
                ("heads.gate", gate),
            ];
            for (name, width) in all {
                width.into_iter().for_each(|width| buffers.add_at(kind, name, width));
            }
        }
    }
}

/// The matrix from a layer's heads, or groups of them, to the residual stream.
pub(crate) fn attention_output(
    layer: &mut Layer<'_>,
    config: &Config,
    name: &str,
) -> Result<(), Error> {
    let (at, width) = (layer.layer, config.width);
    let (columns, kind) = (config.heads_of(at).columns(), config.heads_kind(at));
    let (all, own) = (Part::Of(0..width), Part::Attention { kind });
    layer.add("attn_output", &names::layer(at, name), [columns, width], all.clone(), own)?;
    layer.find_bias("attn_output.bias", "attn_output", width, all)
}

impl Layer<'_> {
    /// Queries, and the layer's keys and values for each head or group of heads, unless it reads
    /// another layer's.
    fn attention(&mut self, config: &Config) -> Result<(), Error> {
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
    pub fn head_gate(&mut self, config: &Config) -> Result<(), Error> {
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
}
