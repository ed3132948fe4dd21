//! What a model has for the blocks that guess for it, and they for themselves.

use backend::{Backend, BackendError};

use super::Model;
use super::context::Kept;
use super::taps::Taps;

impl<B: Backend> Model<B> {
    /// From now on [`Self::state`] returns the residual stream before each of these layers. This
    /// rank must have them all. The number of the model's layers stands for the stream after the
    /// last one.
    pub fn tap(&mut self, layers: &[usize]) {
        self.taps = Taps::new(layers.to_vec(), self.config.width);
    }

    /// What an MTP block or an EAGLE-3 head reads of each output: the [tapped](Self::tap) layers'
    /// inputs, `[outputs, layers * width]` f32; else the input of the logits, or in some models
    /// the residual streams, `[outputs, stream_width]` f32. Of an assistant, states as its model's.
    ///
    /// # Errors
    /// The device failed.
    pub fn state(&mut self, backend: &mut B) -> Result<&[f32], BackendError> {
        if !self.taps.is_empty() {
            if self.taps.has(self.config.layers) {
                self.taps.take(self.config.layers, backend.host(&mut self.scratch.x)?, None);
            }
            return Ok(self.taps.rows());
        }
        if self.config.arch.mtp_reads_residual {
            return self.residual(backend);
        }
        if self.projections.is_none() {
            return self.hidden(backend);
        }
        let Self { head, projections, scratch, config, .. } = self;
        let (Some(head), Some(projections)) = (head, projections) else { return Ok(&[]) };
        head.read(backend, config.width, scratch);
        projections.leave(backend, &scratch.normed)
    }

    /// An EAGLE-3 head's states, `[rows, width]` f32, of its model's, `[rows, layers * width]`;
    /// empty in any other model.
    ///
    /// # Errors
    /// The device failed.
    pub fn fuse(&mut self, backend: &mut B, states: &[f32]) -> Result<&[f32], BackendError> {
        self.entry.as_mut().map_or(Ok(&[]), |entry| entry.fuse(backend, states))
    }

    /// The cache that an assistant's layer with a window, or without one, reads.
    ///
    /// # Panics
    /// If this rank has no such layer: in a pipeline.
    pub(super) fn last_kept(&mut self, has_window: bool) -> &mut Kept<B> {
        let layer = self.config.last_cache(has_window).expect("checked with the assistant");
        let first = self.first_layer();
        &mut self.kept[layer - first]
    }
}
