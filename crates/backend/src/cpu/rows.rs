/// Activations in host memory.
pub struct Rows {
    pub(super) values: Vec<f32>,
    pub(super) width: usize,
    pub(super) rows_max: usize,
    /// Rows in use.
    pub(super) rows: usize,
}

impl Rows {
    pub(super) fn new(rows_max: usize, width: usize) -> Self {
        Self { values: vec![0.0; rows_max * width], width, rows_max, rows: 0 }
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values[..self.rows * self.width]
    }

    /// Makes `rows` rows the ones in use.
    pub(super) fn values_mut(&mut self, rows: usize) -> &mut [f32] {
        assert!(rows <= self.rows_max, "{rows} rows where {} fit", self.rows_max);
        self.rows = rows;
        &mut self.values[..rows * self.width]
    }
}
