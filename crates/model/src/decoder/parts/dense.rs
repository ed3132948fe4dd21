//! A dense feed-forward block.

use backend::{Activation, Backend, Parts};
use layout::{Config, Shard, Slices};

use crate::ModelError;
use crate::decoder::projection::Projection;
use crate::decoder::scratch::HiddenScratch;
use crate::loader::Loader;
use crate::operations::{activation, parts};

/// `down(activation(gate(x)) * up(x))`, without a gate `down(activation(up(x)))`; the bias of
/// `down`, if there is one, is added to the total.
pub(crate) struct DenseBlock<B: Backend> {
    gate: Option<Projection<B>>,
    up: Projection<B>,
    down: B::Matrix,
    parts: Option<Parts>,
    activation: Activation,
    /// The index of its width among those of the model's dense blocks, or the one after them.
    kind: usize,
}

impl<B: Backend> DenseBlock<B> {
    /// The dense block of layer `layer`.
    pub fn of_layer(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let kind = config.feed_forward_kind(layer);
        let parts = parts(&shard.feed_forward[kind], shard.rank);
        let roles = ["ffn_gate", "ffn_up", "ffn_down"];
        // Dense blocks have the limits of shared experts.
        let [_, limit] = config.clamps(layer);
        Self::load(loader, slices, roles, (parts, kind), activation(config, limit))
    }

    /// Loads the block with these roles for gate, up and down; `kind`: the index of its hidden
    /// buffers.
    pub fn load(
        loader: &mut Loader<'_, B>,
        slices: &Slices<'_>,
        [gate, up, down]: [&str; 3],
        (parts, kind): (Option<Parts>, usize),
        activation: Activation,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            gate: match slices.find(gate) {
                Some(_) => Some(Projection::load(loader, slices, gate)?),
                None => None,
            },
            up: Projection::load(loader, slices, up)?,
            down: loader.matrix(&slices.get(down))?,
            parts,
            activation,
            kind,
        })
    }

    /// `sums = block(h)`, this rank's part. `hidden`: the hidden buffers, by width.
    pub fn forward(
        &self,
        backend: &mut B,
        h: &B::Rows,
        hidden: &mut [HiddenScratch<B>],
        sums: &mut B::Rows,
    ) {
        self.expand(backend, h, hidden);
        self.contract(backend, hidden, sums);
    }

    /// Computes this rank's hidden elements.
    pub fn expand(&self, backend: &mut B, h: &B::Rows, hidden: &mut [HiddenScratch<B>]) {
        let HiddenScratch { gate: gates, up: ups } = &mut hidden[self.kind];
        match &self.gate {
            Some(gate) => {
                let up = (&self.up.matrix, &mut *ups);
                backend.linear(h, &mut [(&gate.matrix, &mut *gates), up]);
                gate.add_bias(backend, gates);
                self.up.add_bias(backend, ups);
                backend.gated(self.activation, gates, ups);
            }
            None => {
                backend.linear(h, &mut [(&self.up.matrix, &mut *ups)]);
                self.up.add_bias(backend, ups);
                backend.activate(self.activation, ups);
            }
        }
    }

    /// `sums = down(hidden elements)`, this rank's part.
    pub fn contract(&self, backend: &mut B, hidden: &[HiddenScratch<B>], sums: &mut B::Rows) {
        let HiddenScratch { gate, up } = &hidden[self.kind];
        let hidden = if self.gate.is_some() { gate } else { up };
        backend.linear_parts(hidden, &self.down, self.parts.as_ref(), sums);
    }
}
