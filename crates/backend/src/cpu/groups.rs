//! Norms over groups of heads. Other ranks may hold some heads of a group.

use super::Rows;
use crate::GroupNorm;

/// The squares of the heads of `x` in the first of `parts` of `out`; zeros in the others.
pub(super) fn squares(x: &Rows, norm: &GroupNorm, parts: usize, out: &mut Rows) {
    out.set_rows(parts * x.rows);
    out.values_mut().fill(0.0);
    let rows = out.values_mut().chunks_exact_mut(norm.heads_all);
    for (row, out) in rows.take(x.rows).enumerate() {
        norm.squares(&x.values()[row * x.width..][..x.width], out);
    }
}

/// Scales each group by the `squares` of all heads.
pub(super) fn normalise(x: &mut Rows, squares: &Rows, norm: &GroupNorm, gain: &[f32], eps: f32) {
    if x.width == 0 {
        return;
    }
    let width = x.width;
    let rows = x.values_mut().chunks_exact_mut(width);
    for (x, squares) in rows.zip(squares.values().chunks_exact(norm.heads_all)) {
        norm.normalise(x, squares, gain, eps);
    }
}
