//! Noise in the caches, for measurements with long contexts.

use std::convert::Infallible;

use backend::Backend;

use super::context::Context;
use super::{Batch, Model, kept_at};

/// Pseudo-random numbers from -1 to 1; the same seed gives the same numbers.
struct Noise(u64);

impl Noise {
    /// Knuth's linear congruential generator (MMIX).
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

impl<B: Backend> Model<B> {
    /// Caches a step's positions as rows of noise in every layer, and computes nothing else: a long
    /// context for measurements, in the time of a short one.
    pub fn keep_noise(&mut self, backend: &mut B, batch: &Batch<'_>) {
        let (rows, first) = (batch.positions.len(), self.first_layer());
        backend.set_positions(&self.rope, batch.positions);
        for layer in &self.layers {
            let mut noise = Noise(layer.index as u64 + (u64::from(batch.positions[0]) << 16));
            let fill = |h: &mut [f32]| {
                h.fill_with(|| noise.next());
                Ok::<_, Infallible>(())
            };
            let Ok(()) = backend.write(&mut self.scratch.h, rows, fill);
            let has_window = self.config.windows[layer.index].is_some();
            layer.take_in(&mut Context {
                backend,
                config: &self.config,
                scratch: &mut self.scratch,
                kept: &mut self.kept[kept_at(&self.config, layer.index, first)],
                layer: layer.index,
                step_rows: rows,
                rows,
                segments: if has_window { batch.windows } else { batch.segments },
                all_segments: batch.segments,
                states: batch.states,
                outputs: None,
            });
        }
        self.set_residual(
            backend,
            &vec![0.5; batch.outputs.rows.len() * self.config.stream_width()],
        );
    }
}
