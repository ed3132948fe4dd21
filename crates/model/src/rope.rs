//! The tables that a model's rotations are computed from.

use backend::RopeTable;
use layout::Rope;

/// For models with compressing layers: the tables of those layers, and of the others, each with its
/// reverse.
pub(crate) const STRETCHED: [usize; 2] = [0, 2];
pub(crate) const PLAIN: [usize; 2] = [1, 3];

/// The first table is for layers with full attention, the second, if there is one, for those with a
/// window or without compression; for models with compressing layers, the reverse of both follow.
/// `factors`: as in [`Rope::frequencies`].
pub(crate) fn tables(rope: &Rope, factors: Option<&[f32]>) -> Vec<RopeTable> {
    let frequencies = rope.frequencies(factors);
    let table = RopeTable::from_frequencies(frequencies, rope.magnitude);
    let mut tables = vec![match &rope.axes {
        Some(axes) => table.with_axes(axes.clone()),
        None => table,
    }];
    if let Some(local) = rope.local {
        tables.push(RopeTable::new(local.dims, local.base, None, 1.0));
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{LocalRotation, RopeStyle, Scaling};

    #[test]
    fn layers_with_a_window_may_have_a_base_of_their_own() {
        let rope = Rope {
            style: RopeStyle::Neox,
            dims: 8,
            base: 10_000.0,
            scaling: Scaling::Linear { factor: 8.0 },
            magnitude: 1.0,
            score_scale: 1.0,
            local: Some(LocalRotation { base: 100.0, dims: 8 }),
            original_context: 4096,
            axes: None,
            short_context: None,
        };
        let tables = tables(&rope, None);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[1], RopeTable::new(8, 100.0, None, 1.0));
        assert_eq!(tables[0], RopeTable::new(8, 10_000.0, Some(&[8.0; 4]), 1.0));
    }
}
