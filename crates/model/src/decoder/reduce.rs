//! The sums over ranks.

use backend::BackendError;

/// The row-parallel products; their partial sums are reduced over the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    Attention,
    Recurrence,
    FeedForward,
    /// Not a product, but the sums of squares of a norm over heads of several ranks, with the
    /// leaves of `Recurrence`.
    Squares,
}

/// Reduces the ranks' partial sums.
pub trait Reduce {
    type Error: From<BackendError>;

    /// Whether other ranks have parts of the sums. If not, this rank's sum is the total.
    fn has_others(&self) -> bool;

    /// `sums` holds this rank's subtrees, `[parts, rows * width]` f32; `total` gets the sum over
    /// all ranks, `[rows * width]`, the same bits on every rank.
    ///
    /// # Errors
    /// Another rank is late or lost.
    fn all_reduce(
        &mut self,
        product: Product,
        rows: usize,
        sums: &[f32],
        total: &mut [f32],
    ) -> Result<(), Self::Error>;

    /// Reduces two such sums of `rows` rows with the same leaves in one exchange; `totals` gets one
    /// after the other.
    ///
    /// # Errors
    /// Another rank is late or lost.
    fn all_reduce_both(
        &mut self,
        product: Product,
        rows: usize,
        sums: [&[f32]; 2],
        totals: &mut [f32],
    ) -> Result<(), Self::Error>;
}
