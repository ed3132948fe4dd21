//! Layers with a state passed from row to row: gated delta nets, Mamba-2, short convolutions.
//!
//! All of them project a row to queries, keys and values, update the state of its sequence and read
//! an output from it (`Backend::recur`), to which a norm and a gate are applied before the output
//! matrix. A rank has some value heads and the key heads that they need; no rank needs another's
//! state. Only Mamba-2 has a norm that may span several ranks' heads.

use backend::{
    Activation, Backend, GroupNorm, Parts, RecurrentInputs, RecurrentShape, RecurrentWeights, Rule,
};
use layout::{Config, RecurrenceKind, Shard, Slices};

use crate::ModelError;
use crate::decoder::context::Context;
use crate::decoder::reduce::{Product, Reduce};
use crate::decoder::scratch::RecurrentScratch;
use crate::loader::Loader;
use crate::operations::parts;

pub(crate) struct Recurrence<B: Backend> {
    q: B::Matrix,
    k: B::Matrix,
    v: B::Matrix,
    decay: Option<Gate<B>>,
    beta: Option<B::Matrix>,
    gate: Option<Gate<B>>,
    layer: B::Recurrent,
    finish: Finish<B>,
    output: B::Matrix,
    parts: Option<Parts>,
}

/// A projection of a row; with two matrices, through a narrow one.
struct Gate<B: Backend> {
    narrow: Option<B::Matrix>,
    wide: B::Matrix,
}

/// The operations between a state's output and the output matrix.
enum Finish<B: Backend> {
    /// `norm(out) * activation(gate)`, head by head (gated delta nets).
    HeadNorm(B::Vector, Activation),
    /// `norm(out * silu(gate))`, group by group (Mamba-2). `is_split`: groups span ranks.
    GroupNorm { gain: B::Vector, norm: GroupNorm, is_split: bool },
    /// None.
    Plain,
}

impl<B: Backend> Recurrence<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        (config, sizes): (&Config, &layout::Recurrence),
        shard: &Shard,
        slices: &Slices<'_>,
    ) -> Result<Self, ModelError> {
        let mut numbers = |role| match slices.find(role) {
            Some(slice) => loader.numbers(&slice),
            None => Ok(Vec::new()),
        };
        let weights = RecurrentWeights {
            conv_q: numbers("conv_q")?,
            conv_k: numbers("conv_k")?,
            conv_v: numbers("conv_v")?,
            bias_q: numbers("conv_q.bias")?,
            bias_k: numbers("conv_k.bias")?,
            bias_v: numbers("conv_v.bias")?,
            a: numbers("recurrent_a")?,
            dt: numbers("recurrent_dt")?,
            skip: numbers("recurrent_skip")?,
        };
        let mut weights = weights;
        if config.arch.positive_decays {
            weights.a.iter_mut().for_each(|rate| *rate = -*rate);
        }
        let layer = loader.backend.recurrent(recurrent_shape(sizes, shard), weights);
        let leaves = shard.recurrent.as_ref().expect("a model with such layers has leaves of them");
        Ok(Self {
            q: loader.matrix(&slices.get("recurrent_q"))?,
            k: loader.matrix(&slices.get("recurrent_k"))?,
            v: loader.matrix(&slices.get("recurrent_v"))?,
            decay: Gate::load(loader, slices, ["recurrent_decay_a", "recurrent_decay"])?,
            beta: slices.find("recurrent_beta").map(|slice| loader.matrix(&slice)).transpose()?,
            gate: Gate::load(loader, slices, ["recurrent_gate_a", "recurrent_gate"])?,
            layer,
            finish: Finish::load(loader, (config, sizes), shard, slices)?,
            output: loader.matrix(&slices.get("recurrent_output"))?,
            parts: parts(leaves, shard.rank),
        })
    }

    /// Updates the sequences' states with the rows of `h`; the outputs stay in the scratch buffers.
    pub fn recur(&self, c: &mut Context<'_, B>) {
        let Context { backend, scratch: s, .. } = c;
        let r = s.recurrent.as_mut().expect("made for models with such layers");
        let RecurrentScratch { q, k, v, decay, beta, low_rank, out, .. } = r;
        let (decays, betas) = (self.decay.as_ref(), self.beta.as_ref());
        let decays = decays.map(|gate| match &gate.narrow {
            None => (&gate.wide, &mut *decay),
            Some(narrow) => (narrow, &mut *low_rank),
        });
        let (q_out, k_out, v_out) = ((&self.q, &mut *q), (&self.k, &mut *k), (&self.v, &mut *v));
        match (decays, betas.map(|matrix| (matrix, &mut *beta))) {
            (Some(decays), Some(betas)) => {
                backend.linear(&s.h, &mut [q_out, k_out, v_out, decays, betas]);
            }
            (Some(decays), None) => backend.linear(&s.h, &mut [q_out, k_out, v_out, decays]),
            _ => backend.linear(&s.h, &mut [q_out, k_out, v_out]),
        }
        if let Some(Gate { narrow: Some(_), wide }) = &self.decay {
            backend.linear(low_rank, &mut [(wide, &mut *decay)]);
        }
        let inputs = RecurrentInputs { q: &*q, k: &*k, v: &*v, decay: &*decay, beta: &*beta };
        backend.recur(c.kept.states(), &self.layer, c.states, inputs, out);
    }

    /// `sums = output(gated and normalised outputs)`, this rank's part.
    pub fn give_out<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        let (rows, eps) = (c.rows, c.config.rms_eps);
        let Context { backend, outputs, scratch: s, .. } = c;
        let r = s.recurrent.as_mut().expect("made for models with such layers");
        if let Some(outputs) = outputs {
            backend.keep(&mut r.out, outputs.rows);
        }
        if let Some(gate) = &self.gate {
            gate.project(*backend, &s.h, &mut r.low_rank, &mut r.gate);
        }
        let finished = match &self.finish {
            Finish::Plain => &r.out,
            Finish::HeadNorm(gain, activation) => {
                backend.rms_norm_in_place(&mut r.out, gain, eps);
                backend.gated(*activation, &mut r.gate, &r.out);
                &r.gate
            }
            Finish::GroupNorm { gain, norm, is_split } => {
                backend.gated(Activation::Silu, &mut r.gate, &r.out);
                let (Some(squares), Some(total)) = (&mut r.square_parts, &mut r.squares) else {
                    panic!("made for norms over groups");
                };
                let parts = self.parts.as_ref().map_or(0, Parts::count);
                backend.group_squares(&r.gate, norm, parts, squares);
                let squares = match *is_split && reduce.has_others() {
                    // Each group is complete on some rank, with its squares in the first part.
                    false => &*squares,
                    true => {
                        let own = backend.host(squares)?;
                        backend.write(total, rows, |total| {
                            reduce.all_reduce(Product::Squares, rows, own, total)
                        })?;
                        &*total
                    }
                };
                backend.group_norm(&mut r.gate, squares, norm, gain, eps);
                &r.gate
            }
        };
        backend.linear_parts(finished, &self.output, self.parts.as_ref(), &mut s.sums);
        Ok(())
    }
}

impl<B: Backend> Gate<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        slices: &Slices<'_>,
        [narrow, wide]: [&str; 2],
    ) -> Result<Option<Self>, ModelError> {
        let Some(wide) = slices.find(wide) else { return Ok(None) };
        let narrow = slices.find(narrow).map(|slice| loader.matrix(&slice)).transpose()?;
        Ok(Some(Self { narrow, wide: loader.matrix(&wide)? }))
    }

    /// `out = wide(narrow(h))`.
    fn project(&self, backend: &mut B, h: &B::Rows, between: &mut B::Rows, out: &mut B::Rows) {
        match &self.narrow {
            None => backend.linear(h, &mut [(&self.wide, out)]),
            Some(narrow) => {
                backend.linear(h, &mut [(narrow, &mut *between)]);
                backend.linear(between, &mut [(&self.wide, out)]);
            }
        }
    }
}

impl<B: Backend> Finish<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        (config, sizes): (&Config, &layout::Recurrence),
        shard: &Shard,
        slices: &Slices<'_>,
    ) -> Result<Self, ModelError> {
        let Some(gain) = slices.find("recurrent_norm") else { return Ok(Self::Plain) };
        let gain = loader.vector(&gain)?;
        Ok(match sizes.kind {
            RecurrenceKind::KimiDelta => Self::HeadNorm(gain, Activation::Sigmoid),
            RecurrenceKind::Mamba => {
                let group_heads = sizes.group();
                let first = shard.recurrent_heads.values.first().map_or(0, |run| run.start);
                let norm = GroupNorm {
                    head_dim: sizes.v_dim,
                    first_head: first,
                    heads_all: sizes.v_heads,
                    group_heads,
                };
                let is_split = shard.splits_groups(group_heads * sizes.v_dim);
                Self::GroupNorm { gain, norm, is_split }
            }
            _ if config.arch.sigmoid_gates => Self::HeadNorm(gain, Activation::Sigmoid),
            _ => Self::HeadNorm(gain, Activation::Silu),
        })
    }
}

/// The heads of this rank, as a shape.
pub(crate) fn recurrent_shape(sizes: &layout::Recurrence, shard: &Shard) -> RecurrentShape {
    let heads = &shard.recurrent_heads;
    let (keys, values) = (heads.keys.len(), heads.value_heads());
    let taps = sizes.taps;
    let rule = match sizes.kind {
        RecurrenceKind::GatedDelta(_) => Rule::Delta,
        RecurrenceKind::KimiDelta => Rule::DeltaByChannel,
        RecurrenceKind::Mamba => Rule::Mamba,
        RecurrenceKind::ShortConvolution => {
            // All its channels form one head.
            let (heads, dim) = (usize::from(values > 0), values);
            return RecurrentShape {
                rule: Rule::Convolution,
                k_heads: heads,
                v_heads: heads,
                k_dim: dim,
                v_dim: dim,
                k_of_v: vec![0; heads],
                taps,
                decay_bound: None,
            };
        }
    };
    let k_of_v = sizes.keys_of(heads.values.iter().cloned().flatten(), heads.keys.start);
    RecurrentShape {
        rule,
        k_heads: keys,
        v_heads: values,
        k_dim: sizes.k_dim,
        v_dim: sizes.v_dim,
        k_of_v,
        taps,
        decay_bound: sizes.decay_bound,
    }
}
