//! How the rows of an MTP block or an EAGLE-3 head begin: from a token's embedding and a state
//! before it.

use std::convert::Infallible;

use backend::{Backend, BackendError};
use layout::{Config, Eagle3, Slices};

use super::norm::Norm;
use super::scratch::Scratch;
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct Entry<B: Backend> {
    width: usize,
    /// Residual streams: each begins with the token's embedding and its own state.
    streams: usize,
    token_norm: Norm<B>,
    state_norm: Norm<B>,
    /// The two inputs, and normalised ones: a row for each stream.
    inputs: [B::Rows; 2],
    normed: [B::Rows; 2],
    way: Way<B>,
}

enum Way<B: Backend> {
    /// A matrix makes the residual stream of both.
    Projected { matrix: B::Matrix, joined: B::Rows, entered: B::Rows },
    /// Attention reads both, and the residual stream begins with the state.
    Beside { fusion: Fusion<B>, normed_residual: bool },
}

/// Makes a head's state of a model's.
struct Fusion<B: Backend> {
    norm: Option<B::Vector>,
    eps: f32,
    matrix: B::Matrix,
    /// Elements of a model's state.
    width: usize,
    states: B::Rows,
    fused: B::Rows,
}

impl<B: Backend> Entry<B> {
    /// The entry of a block or a head; `None` for any other model.
    pub fn find(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        rows_max: usize,
    ) -> Result<Option<Self>, ModelError> {
        let (width, streams) = (config.width, config.stream_count());
        let way = if let Some(eagle3) = &config.eagle3 {
            let fusion = Fusion::load(loader, (config, eagle3), slices, rows_max)?;
            Way::Beside { fusion, normed_residual: eagle3.normed_residual }
        } else {
            let Some(matrix) = slices.find("entry") else { return Ok(None) };
            let matrix = loader.matrix(&matrix)?;
            let mut rows = |width| loader.backend.rows(rows_max * streams, width);
            Way::Projected { matrix, joined: rows(2 * width), entered: rows(width) }
        };
        let mut norm = |role| {
            let gain = loader.vector(&slices.get(role))?;
            Ok::<_, ModelError>(Norm::root_mean_square(config, gain))
        };
        let (token_norm, state_norm) = (norm("entry_token_norm")?, norm("entry_state_norm")?);
        let mut rows = || loader.backend.rows(rows_max * streams, width);
        let (inputs, normed) = ([rows(), rows()], [rows(), rows()]);
        Ok(Some(Self { width, streams, token_norm, state_norm, inputs, normed, way }))
    }

    /// Bytes of its buffers on the device.
    pub fn buffer_bytes(&self, backend: &B) -> u64 {
        let own = match &self.way {
            Way::Projected { joined, entered, .. } => [joined, entered],
            Way::Beside { fusion, .. } => [&fusion.states, &fusion.fused],
        };
        let rows = self.inputs.iter().chain(&self.normed).chain(own);
        rows.map(|rows| backend.rows_bytes(rows) as u64).sum()
    }

    /// Sets the input of the layer, from rows of an embedding and a state in each stream, `[rows,
    /// (1 + streams) * width]` f32.
    ///
    /// # Errors
    /// The device failed.
    pub fn enter(
        &mut self,
        backend: &mut B,
        rows: usize,
        input: &[f32],
        s: &mut Scratch<B>,
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
        match &mut self.way {
            Way::Projected { matrix, joined, entered } => {
                backend.join_heads((token, width), (state, width), joined);
                backend.linear(joined, &mut [(matrix, &mut *entered)]);
                // A row of all streams is their rows one after the other.
                let entered = backend.host(entered)?;
                let fill = |x: &mut [f32]| {
                    x.copy_from_slice(entered);
                    Ok::<_, Infallible>(())
                };
                let Ok(()) = backend.write(&mut s.x, rows, fill);
            }
            Way::Beside { normed_residual, .. } => {
                let joined = s.joined.as_mut().expect("made for heads that read a token");
                backend.join_heads((token, width), (state, width), joined);
                let begins = if *normed_residual { state } else { &self.inputs[1] };
                backend.columns(begins, 0..width, &mut s.x);
            }
        }
        Ok(())
    }

    /// A head's states from a model's: see [`Model::fuse`](super::Model::fuse).
    pub fn fuse(&mut self, backend: &mut B, states: &[f32]) -> Result<&[f32], BackendError> {
        match &mut self.way {
            Way::Beside { fusion, .. } => fusion.apply(backend, states),
            Way::Projected { .. } => Ok(&[]),
        }
    }
}

impl<B: Backend> Fusion<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        (config, eagle3): (&Config, &Eagle3),
        slices: &Slices<'_>,
        rows_max: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            norm: loader.find_vector(slices.find("fusion_norm"))?,
            eps: config.rms_eps,
            matrix: loader.matrix(&slices.get("fusion"))?,
            width: eagle3.state_width(),
            states: loader.backend.rows(rows_max, eagle3.state_width()),
            fused: loader.backend.rows(rows_max, config.width),
        })
    }

    fn apply(&mut self, backend: &mut B, states: &[f32]) -> Result<&[f32], BackendError> {
        let Self { norm, eps, matrix, width, states: place, fused } = self;
        let fill = |out: &mut [f32]| {
            out.copy_from_slice(states);
            Ok::<_, Infallible>(())
        };
        let Ok(()) = backend.write(place, states.len() / *width, fill);
        if let Some(norm) = norm {
            backend.rms_norm_in_place(place, norm, *eps);
        }
        backend.linear(place, &mut [(matrix, &mut *fused)]);
        backend.host(fused)
    }
}
