//! Residual streams before some layers, for a head that guesses from them.

/// Copies of a step's outputs in the residual stream before each of some layers.
#[derive(Default)]
pub(super) struct Taps {
    layers: Vec<usize>,
    width: usize,
    /// `[outputs, layers * width]` f32.
    rows: Vec<f32>,
}

impl Taps {
    pub fn new(layers: Vec<usize>, width: usize) -> Self {
        Self { layers, width, rows: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    pub fn has(&self, layer: usize) -> bool {
        self.layers.contains(&layer)
    }

    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Makes room for the outputs of a step.
    pub fn begin(&mut self, outputs: usize) {
        self.rows.clear();
        self.rows.resize(outputs * self.layers.len() * self.width, 0.0);
    }

    /// Copies the outputs before a layer from `x`, `[rows, width]` f32. `outputs`: their rows;
    /// `None` for the first ones.
    pub fn take(&mut self, layer: usize, x: &[f32], outputs: Option<&[usize]>) {
        let (width, line) = (self.width, self.layers.len() * self.width);
        for at in (0..self.layers.len()).filter(|at| self.layers[*at] == layer) {
            for (output, out) in self.rows.chunks_exact_mut(line).enumerate() {
                let row = outputs.map_or(output, |rows| rows[output]);
                out[at * width..][..width].copy_from_slice(&x[row * width..][..width]);
            }
        }
    }
}
