//! How the rows of an MTP block begin: from a token's embedding and the model's state before it.

use std::convert::Infallible;

use backend::Backend;
use layout::{Config, Slices};

use super::norm::Norm;
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct Entry<B: Backend> {
    width: usize,
    token_norm: Norm<B>,
    state_norm: Norm<B>,
    matrix: B::Matrix,
    /// The two inputs, normalised ones, and those joined.
    inputs: [B::Rows; 2],
    normed: [B::Rows; 2],
    joined: B::Rows,
}

impl<B: Backend> Entry<B> {
    /// The entry of a block; `None` for any other model.
    pub fn find(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        rows_max: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(matrix) = slices.find("entry") else { return Ok(None) };
        let width = config.width;
        let mut norm = |role| {
            let gain = loader.vector(&slices.get(role))?;
            Ok::<_, ModelError>(Norm::root_mean_square(config, gain))
        };
        let (token_norm, state_norm) = (norm("entry_token_norm")?, norm("entry_state_norm")?);
        let matrix = loader.matrix(&matrix)?;
        let mut rows = |width| loader.backend.rows(rows_max, width);
        Ok(Some(Self {
            width,
            token_norm,
            state_norm,
            matrix,
            inputs: [rows(width), rows(width)],
            normed: [rows(width), rows(width)],
            joined: rows(2 * width),
        }))
    }

    /// Bytes of its buffers on the device.
    pub fn buffer_bytes(&self, backend: &B) -> u64 {
        let rows = self.inputs.iter().chain(&self.normed).chain([&self.joined]);
        rows.map(|rows| backend.rows_bytes(rows) as u64).sum()
    }

    /// `x` = the block's input, from rows of an embedding and a state, `[rows, 2 * width]` f32.
    pub fn enter(&mut self, backend: &mut B, rows: usize, input: &[f32], x: &mut B::Rows) {
        let width = self.width;
        for (at, place) in self.inputs.iter_mut().enumerate() {
            let fill = |out: &mut [f32]| {
                for (out, line) in out.chunks_exact_mut(width).zip(input.chunks_exact(2 * width)) {
                    out.copy_from_slice(&line[at * width..][..width]);
                }
                Ok::<_, Infallible>(())
            };
            let Ok(()) = backend.write(place, rows, fill);
        }
        let [token, state] = &mut self.normed;
        self.token_norm.apply(backend, &self.inputs[0], token);
        self.state_norm.apply(backend, &self.inputs[1], state);
        backend.join_heads((token, width), (state, width), &mut self.joined);
        backend.linear(&self.joined, &mut [(&self.matrix, x)]);
    }
}
