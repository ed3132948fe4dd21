//! How the rows of an MTP block begin: from a token's embedding and the model's state before it.

use std::convert::Infallible;

use backend::{Backend, BackendError};
use layout::{Config, Slices};

use super::norm::Norm;
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct Entry<B: Backend> {
    width: usize,
    /// Residual streams: each begins with the token's embedding and its own state.
    streams: usize,
    token_norm: Norm<B>,
    state_norm: Norm<B>,
    matrix: B::Matrix,
    /// The two inputs, normalised ones, those joined, and the result: a row for each stream.
    inputs: [B::Rows; 2],
    normed: [B::Rows; 2],
    joined: B::Rows,
    entered: B::Rows,
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
        let streams = config.stream_count();
        let mut rows = |width| loader.backend.rows(rows_max * streams, width);
        Ok(Some(Self {
            width,
            streams,
            token_norm,
            state_norm,
            matrix,
            inputs: [rows(width), rows(width)],
            normed: [rows(width), rows(width)],
            joined: rows(2 * width),
            entered: rows(width),
        }))
    }

    /// Bytes of its buffers on the device.
    pub fn buffer_bytes(&self, backend: &B) -> u64 {
        let rows = self.inputs.iter().chain(&self.normed).chain([&self.joined, &self.entered]);
        rows.map(|rows| backend.rows_bytes(rows) as u64).sum()
    }

    /// `x` = the block's input, from rows of an embedding and a state in each stream,
    /// `[rows, (1 + streams) * width]` f32.
    ///
    /// # Errors
    /// The device failed.
    pub fn enter(
        &mut self,
        backend: &mut B,
        rows: usize,
        input: &[f32],
        x: &mut B::Rows,
    ) -> Result<(), BackendError> {
        let (width, streams) = (self.width, self.streams);
        for (place, is_state) in self.inputs.iter_mut().zip([false, true]) {
            let fill = |out: &mut [f32]| {
                let lines = input.chunks_exact((1 + streams) * width);
                for (out, line) in out.chunks_exact_mut(streams * width).zip(lines) {
                    let (token, states) = line.split_at(width);
                    match is_state {
                        true => out.copy_from_slice(states),
                        false => out.chunks_exact_mut(width).for_each(|x| x.copy_from_slice(token)),
                    }
                }
                Ok::<_, Infallible>(())
            };
            let Ok(()) = backend.write(place, rows * streams, fill);
        }
        let [token, state] = &mut self.normed;
        self.token_norm.apply(backend, &self.inputs[0], token);
        self.state_norm.apply(backend, &self.inputs[1], state);
        backend.join_heads((token, width), (state, width), &mut self.joined);
        backend.linear(&self.joined, &mut [(&self.matrix, &mut self.entered)]);
        // A row of all streams is their rows one after the other.
        let entered = backend.host(&mut self.entered)?;
        let fill = |x: &mut [f32]| {
            x.copy_from_slice(entered);
            Ok::<_, Infallible>(())
        };
        let Ok(()) = backend.write(x, rows, fill);
        Ok(())
    }
}
