/// Activations in host memory.
pub struct Rows {
    /// `[rows_max, width]`, from `first` on.
    buffer: Vec<f32>,
    /// The first element at the start of a cache line, so that products can write whole lines.
    first: usize,
    pub(super) width: usize,
    pub(super) rows_max: usize,
    /// Rows in use.
    pub(super) rows: usize,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Rows {
    pub(super) fn new(rows_max: usize, width: usize) -> Self {
        let buffer = vec![0.0; rows_max * width + LINE / size_of::<f32>()];
        let first = buffer.as_ptr().align_offset(LINE);
        Self { buffer, first, width, rows_max, rows: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.capacity() * size_of::<f32>()
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.buffer[self.first..][..self.rows * self.width]
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[self.first..][..self.rows * self.width]
    }

    /// Appends head `h` of `b` to head `h` of `a`, for heads of `a_dim` and `b_dim` elements.
    pub(super) fn join_heads(&mut self, (a, a_dim): (&Self, usize), (b, b_dim): (&Self, usize)) {
        self.set_rows(a.rows);
        let out = self.values_mut();
        if b_dim == 0 {
            // A rank without heads has no columns.
            return out.copy_from_slice(&a.values()[..out.len()]);
        }
        let parts = a.values().chunks_exact(a_dim).zip(b.values().chunks_exact(b_dim));
        for (head, (a, b)) in out.chunks_exact_mut(a_dim + b_dim).zip(parts) {
            head[..a_dim].copy_from_slice(a);
            head[a_dim..].copy_from_slice(b);
        }
    }

    /// Sets the number of rows in use.
    pub(super) fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.rows_max, "{rows} rows where {} fit", self.rows_max);
        self.rows = rows;
    }
}
