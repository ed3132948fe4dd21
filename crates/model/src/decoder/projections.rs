//! The matrices around the layers of Gemma 4's assistant, which is narrower than its model.

use std::convert::Infallible;

use backend::{Backend, BackendError};
use layout::{Config, Slices};

use super::scratch::Scratch;
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct Projections<B: Backend> {
    entry: B::Matrix,
    /// An embedding and a state of the model, side by side.
    joined: B::Rows,
    exit: B::Matrix,
    states: B::Rows,
}

impl<B: Backend> Projections<B> {
    /// Those of an assistant; `None` for any other model.
    pub fn find(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        rows_max: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(assistant) = config.assistant else { return Ok(None) };
        Ok(Some(Self {
            entry: loader.matrix(&slices.get("assistant_entry"))?,
            joined: loader.backend.rows(rows_max, 2 * assistant.model_width),
            exit: loader.matrix(&slices.get("assistant_exit"))?,
            states: loader.backend.rows(rows_max, assistant.model_width),
        }))
    }

    /// Bytes of its buffers on the device.
    pub fn buffer_bytes(&self, backend: &B) -> u64 {
        [&self.joined, &self.states].map(|rows| backend.rows_bytes(rows) as u64).iter().sum()
    }

    /// Sets the input of the first layer, from `[rows, 2 * model_width]` f32.
    pub fn enter(&mut self, backend: &mut B, rows: usize, input: &[f32], s: &mut Scratch<B>) {
        let fill = |out: &mut [f32]| {
            out.copy_from_slice(input);
            Ok::<_, Infallible>(())
        };
        let Ok(()) = backend.write(&mut self.joined, rows, fill);
        backend.linear(&self.joined, &mut [(&self.entry, &mut s.x)]);
    }

    /// The states after the input of the logits, `[outputs, model_width]` f32.
    ///
    /// # Errors
    /// The device failed.
    pub fn leave(&mut self, backend: &mut B, normed: &B::Rows) -> Result<&[f32], BackendError> {
        backend.linear(normed, &mut [(&self.exit, &mut self.states)]);
        backend.host(&mut self.states)
    }
}
