//! Gates on the outputs of heads, applied as sigmoids.

use backend::{Activation, Backend};
use layout::Slices;

use crate::ModelError;
use crate::loader::Loader;

pub(super) enum Gate<B: Backend> {
    /// One for every element.
    OfNumbers(B::Matrix),
    /// One for every head, of this many elements.
    OfHeads(B::Matrix, usize),
}

impl<B: Backend> Gate<B> {
    /// The gate of a layer, if it has one. `v_dim`: elements of a head's value.
    pub fn load(
        loader: &mut Loader<'_, B>,
        slices: &Slices<'_>,
        v_dim: usize,
    ) -> Result<Option<Self>, ModelError> {
        Ok(match (slices.find("attn_gate"), slices.find("head_gate")) {
            (Some(slice), _) => Some(Self::OfNumbers(loader.matrix(&slice)?)),
            (None, Some(slice)) => Some(Self::OfHeads(loader.matrix(&slice)?, v_dim)),
            (None, None) => None,
        })
    }

    /// The gated outputs, in one of the two buffers. `h`: the layer's input; `room`: for the gates.
    pub fn apply<'a>(
        &self,
        backend: &mut B,
        h: &B::Rows,
        room: &'a mut B::Rows,
        attended: &'a mut B::Rows,
    ) -> &'a B::Rows {
        match self {
            Self::OfNumbers(matrix) => {
                backend.linear(h, &mut [(matrix, &mut *room)]);
                backend.gated(Activation::Sigmoid, room, attended);
                room
            }
            Self::OfHeads(matrix, v_dim) => {
                backend.linear(h, &mut [(matrix, &mut *room)]);
                backend.gate_heads(attended, room, *v_dim);
                attended
            }
        }
    }
}
