//! The tensors and buffers of layers with a state. Whether a file has one matrix or several, they
//! get the same roles: queries, keys, values, decays, betas and gates.

use crate::arch::RecurrenceKind;
use crate::buffers::{BufferRows, Buffers};
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::Recurrence;
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct States;

impl Wiring for States {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        match config.recurrence_of(layer.layer) {
            Some(sizes) => layer.recurrence(config, sizes),
            None => Ok(()),
        }
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Some(sizes) = share.config.recurrence else { return };
        let heads = &share.shard.recurrent_heads;
        let widths = sizes.widths(heads.keys.len(), heads.value_heads());
        buffers.add([
            ("recurrent.q", widths.k),
            ("recurrent.k", widths.k),
            ("recurrent.v", widths.v),
            ("recurrent.decay", widths.decay),
            ("recurrent.beta", widths.beta),
            ("recurrent.gate", widths.gate),
            ("recurrent.out", widths.v),
            ("recurrent.low_rank", widths.low_rank),
        ]);
        // The squares of all heads, as parts of a sum, and their sums.
        if widths.squares > 0 {
            buffers.add([("recurrent.squares", widths.squares)]);
            buffers.add_rows(BufferRows::Parts, "recurrent.square_parts", widths.squares);
        }
    }
}

impl Layer<'_> {
    fn recurrence(&mut self, config: &Config, sizes: &Recurrence) -> Result<(), Error> {
        match sizes.kind {
            RecurrenceKind::GatedDelta(_) => self.gated_delta(config.width, sizes),
            RecurrenceKind::KimiDelta => self.kimi_delta(config.width, sizes),
            RecurrenceKind::Mamba => self.mamba(config.width, sizes),
            RecurrenceKind::ShortConvolution => self.short_convolution(config.width, sizes),
        }
    }

    fn gated_delta(&mut self, width: usize, sizes: &Recurrence) -> Result<(), Error> {
        let Recurrence { k_heads, v_heads, k_dim, v_dim, .. } = *sizes;
        let (k, v, group) = (k_heads * k_dim, v_heads * v_dim, sizes.group());
        if self.has(&names::layer(self.layer, "ssm_in")) {
            // Older files: a key head's query, key, values and gates, one after the other.
            let stride = 2 * k_dim + 2 * group * v_dim;
            let (all, first) = ([width, k_heads * stride], 2 * k_dim);
            let keys = |first| Part::RecurrentKeys { first, dim: k_dim, stride };
            let values = |first| Part::RecurrentValues { first, dim: v_dim, group, stride };
            self.rows("recurrent_q", "ssm_in", all, keys(0))?;
            self.rows("recurrent_k", "ssm_in", all, keys(k_dim))?;
            self.rows("recurrent_v", "ssm_in", all, values(first))?;
            self.rows("recurrent_gate", "ssm_in", all, values(first + group * v_dim))?;
        } else {
            let all = 2 * k + v;
            self.rows("recurrent_q", "attn_qkv", [width, all], Part::keys(0, k_dim))?;
            self.rows("recurrent_k", "attn_qkv", [width, all], Part::keys(k, k_dim))?;
            self.rows("recurrent_v", "attn_qkv", [width, all], Part::values(2 * k, v_dim))?;
            self.rows("recurrent_gate", "attn_gate", [width, v], Part::values(0, v_dim))?;
        }
        let apart = sizes.is_tiled() || self.has(&names::layer(self.layer, "ssm_beta"));
        if apart {
            self.rows("recurrent_beta", "ssm_beta", [width, v_heads], Part::values(0, 1))?;
            self.rows("recurrent_decay", "ssm_alpha", [width, v_heads], Part::values(0, 1))?;
        } else {
            let (all, stride) = ([width, 2 * v_heads], 2 * group);
            let values = |first| Part::RecurrentValues { first, dim: 1, group, stride };
            self.rows("recurrent_beta", "ssm_ba", all, values(0))?;
            self.rows("recurrent_decay", "ssm_ba", all, values(group))?;
        }
        self.convolution(sizes, [0, k, 2 * k])?;
        self.decays(v_heads, Part::values(0, 1), v_heads)?;
        self.vector("recurrent_norm", "ssm_norm", v_dim)?;
        self.recurrent_output("ssm_out", width, sizes)
    }

    fn kimi_delta(&mut self, width: usize, sizes: &Recurrence) -> Result<(), Error> {
        let Recurrence { v_heads, k_dim, v_dim, taps, .. } = *sizes;
        let (k, v) = (v_heads * k_dim, v_heads * v_dim);
        self.rows("recurrent_q", "attn_q", [width, k], Part::keys(0, k_dim))?;
        self.rows("recurrent_k", "attn_k", [width, k], Part::keys(0, k_dim))?;
        self.rows("recurrent_v", "attn_v", [width, v], Part::values(0, v_dim))?;
        let has = |name: &str| self.has(&names::layer(self.layer, name));
        // Ling 3 has one matrix, under the name of the first of two.
        let first = self.directory.find_tensor(&names::layer(self.layer, "ssm_f_a"));
        let is_one = !has("ssm_f_b") && first.is_some_and(|first| first.rows() == k);
        let gate = match has("ssm_g_a") || has("ssm_g_b") {
            _ if is_one => Some("ssm_g_a"),
            true => None,
            false => Some("ssm_g"),
        };
        if is_one {
            self.rows("recurrent_decay", "ssm_f_a", [width, k], Part::values(0, k_dim))?;
        } else {
            self.rows("recurrent_decay_a", "ssm_f_a", [width, k_dim], Part::Of(0..k_dim))?;
            self.rows("recurrent_decay", "ssm_f_b", [k_dim, k], Part::values(0, k_dim))?;
        }
        if let Some(gate) = gate {
            self.rows("recurrent_gate", gate, [width, v], Part::values(0, v_dim))?;
        } else {
            self.rows("recurrent_gate_a", "ssm_g_a", [width, k_dim], Part::Of(0..k_dim))?;
            self.rows("recurrent_gate", "ssm_g_b", [k_dim, v], Part::values(0, v_dim))?;
        }
        self.rows("recurrent_beta", "ssm_beta", [width, v_heads], Part::values(0, 1))?;
        for (role, name, len, part) in [
            ("conv_q", "ssm_conv1d_q", k, Part::keys(0, k_dim * taps)),
            ("conv_k", "ssm_conv1d_k", k, Part::keys(0, k_dim * taps)),
            ("conv_v", "ssm_conv1d_v", v, Part::values(0, v_dim * taps)),
        ] {
            self.flat(role, &names::layer(self.layer, name), len * taps, part)?;
        }
        self.decays(v_heads, Part::values(0, k_dim), k)?;
        self.vector("recurrent_norm", "ssm_norm", v_dim)?;
        self.recurrent_output("attn_output", width, sizes)
    }

    fn mamba(&mut self, width: usize, sizes: &Recurrence) -> Result<(), Error> {
        let Recurrence { k_heads, v_heads, k_dim, v_dim, .. } = *sizes;
        let (k, v) = (k_heads * k_dim, v_heads * v_dim);
        let all = [width, 2 * v + 2 * k + v_heads];
        self.rows("recurrent_gate", "ssm_in", all, Part::values(0, v_dim))?;
        self.rows("recurrent_v", "ssm_in", all, Part::values(v, v_dim))?;
        self.rows("recurrent_k", "ssm_in", all, Part::keys(2 * v, k_dim))?;
        self.rows("recurrent_q", "ssm_in", all, Part::keys(2 * v + k, k_dim))?;
        self.rows("recurrent_decay", "ssm_in", all, Part::values(2 * v + 2 * k, 1))?;
        self.convolution(sizes, [v + k, v, 0])?;
        self.decays(v_heads, Part::values(0, 1), v_heads)?;
        let skip = names::bare(self.layer, "ssm_d");
        self.flat("recurrent_skip", &skip, v_heads, Part::values(0, 1))?;
        let norm = names::layer(self.layer, "ssm_norm");
        self.flat("recurrent_norm", &norm, v, Part::values(0, v_dim))?;
        self.recurrent_output("ssm_out", width, sizes)
    }

    fn short_convolution(&mut self, width: usize, sizes: &Recurrence) -> Result<(), Error> {
        let taps = sizes.taps;
        for (role, at) in [("recurrent_k", 0), ("recurrent_q", 1), ("recurrent_v", 2)] {
            let rows = Part::values(at * width, 1);
            self.rows(role, "shortconv.in_proj", [width, 3 * width], rows)?;
        }
        let name = names::layer(self.layer, "shortconv.conv");
        self.flat("conv_v", &name, width * taps, Part::values(0, taps))?;
        self.recurrent_output("shortconv.out_proj", width, sizes)
    }

    /// One convolution for queries, keys and values, with channels from `first` on, and its bias,
    /// if the file has one.
    fn convolution(&mut self, sizes: &Recurrence, first: [usize; 3]) -> Result<(), Error> {
        let Recurrence { k_heads, v_heads, k_dim, v_dim, taps, .. } = *sizes;
        let channels = 2 * k_heads * k_dim + v_heads * v_dim;
        let [q, k, v] = first;
        let name = names::layer(self.layer, "ssm_conv1d");
        for (role, first) in [("conv_q", q), ("conv_k", k)] {
            self.flat(role, &name, channels * taps, Part::keys(first * taps, k_dim * taps))?;
        }
        self.flat("conv_v", &name, channels * taps, Part::values(v * taps, v_dim * taps))?;
        let bias = names::bias(self.layer, "ssm_conv1d");
        if self.has(&bias) {
            self.flat("conv_q.bias", &bias, channels, Part::keys(q, k_dim))?;
            self.flat("conv_k.bias", &bias, channels, Part::keys(k, k_dim))?;
            self.flat("conv_v.bias", &bias, channels, Part::values(v, v_dim))?;
        }
        Ok(())
    }

    /// The decay rate of each head, and the bias of the row's own decay.
    fn decays(&mut self, heads: usize, part: Part, len: usize) -> Result<(), Error> {
        let name = names::bare(self.layer, "ssm_a");
        self.flat("recurrent_a", &name, heads, Part::values(0, 1))?;
        self.flat("recurrent_dt", &names::bias(self.layer, "ssm_dt"), len, part)
    }

    fn recurrent_output(
        &mut self,
        name: &str,
        width: usize,
        sizes: &Recurrence,
    ) -> Result<(), Error> {
        let name = names::layer(self.layer, name);
        let (shape, cols) = ([sizes.v_heads * sizes.v_dim, width], Part::values(0, sizes.v_dim));
        self.add("recurrent_output", &name, shape, Part::Of(0..width), cols).map(drop)
    }

    /// Rows `part` of a matrix `[cols, rows]`.
    fn rows(
        &mut self,
        role: &'static str,
        name: &str,
        shape: [usize; 2],
        part: Part,
    ) -> Result<(), Error> {
        let name = names::layer(self.layer, name);
        self.add(role, &name, shape, part, Part::Of(0..shape[0])).map(drop)
    }
}
