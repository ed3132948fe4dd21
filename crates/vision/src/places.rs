//! Where patches are: learned positions, which are added to them, and rotations of queries and
//! keys.

use kernels::{RopeStyle, RopeTable};

use crate::config::Config;
use crate::patches::Grid;
use crate::projector::{Filter, Projector, Turns};

/// Learned positions.
pub(crate) enum Positions {
    /// A table `[rows, columns, width]`, resampled to the patches' grid.
    Grid { rows: usize, columns: usize, filter: Filter, table: Vec<f32> },
    /// A table `[2, places, width]`: the rows of a patch's column and row are added.
    Axes { places: usize, table: Vec<f32> },
}

impl Positions {
    /// Adds the position of the patch in `row` and `column` of `grid` to `x`, `[width]`.
    pub fn add(&self, grid: Grid, (row, column): (usize, usize), x: &mut [f32]) {
        let width = x.len();
        let mut add = |entry: usize, table: &[f32], weight: f32| {
            let entry = &table[entry * width..][..width];
            x.iter_mut().zip(entry).for_each(|(x, entry)| *x += weight * entry);
        };
        match self {
            Self::Axes { places, table } => {
                add(column.min(places - 1), table, 1.0);
                add(places + row.min(places - 1), table, 1.0);
            }
            Self::Grid { rows, columns, filter, table } => {
                let down = taps(*filter, row, grid.rows * grid.merge, *rows);
                let across = taps(*filter, column, grid.columns * grid.merge, *columns);
                for (y, down) in &down {
                    for (x, across) in across.iter().filter(|(_, across)| across * down != 0.0) {
                        add(y * columns + x, table, across * down);
                    }
                }
            }
        }
    }
}

/// The entries of an axis of `side` for place `at` of `size`, with their weights. Those beyond an
/// end are the end's. Source: `interpolate` of PyTorch.
fn taps(filter: Filter, at: usize, size: usize, side: usize) -> Vec<(usize, f32)> {
    let (at, last) = (at as f64, (side - 1) as f64);
    let (source, offsets) = match filter {
        Filter::Linear => (at * last / size.saturating_sub(1).max(1) as f64, 0..=1),
        Filter::Cubic => ((at + 0.5) * side as f64 / size as f64 - 0.5, -1..=2),
    };
    let floor = source.floor();
    let tap = |offset: i32| {
        let place = floor + f64::from(offset);
        (place.clamp(0.0, last) as usize, weight(filter, (source - place).abs()) as f32)
    };
    offsets.map(tap).collect()
}

fn weight(filter: Filter, x: f64) -> f64 {
    const A: f64 = -0.75;
    match filter {
        Filter::Linear => (1.0 - x).max(0.0),
        Filter::Cubic if x <= 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        Filter::Cubic => ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A,
    }
}

/// Axes of a place: row and column.
const ROW: u8 = 0;
const COLUMN: u8 = 1;

/// How heads rotate: each table, and the first number of a head that it rotates.
pub(crate) struct Rotation {
    pub tables: Vec<(RopeTable, usize)>,
    pub style: RopeStyle,
}

impl Rotation {
    /// `None` for towers without.
    pub fn new(config: &Config) -> Option<Self> {
        let (base, turns) = config.projector.rope?;
        let base = f64::from(base);
        let head = config.head_dim();
        // Half of the pairs turn by one axis, half by the other.
        let half = head / 4;
        let power = |step: usize| base.powf(-(step as f64) / head as f64) as f32;
        let alike: Vec<f32> = (0..half).map(|pair| power(4 * pair)).collect();
        let both = |frequencies: Vec<f32>, first: u8, second: u8| {
            let axes = [vec![first; half], vec![second; half]].concat();
            vec![(RopeTable::from_frequencies(frequencies, 1.0).with_axes(axes), 0)]
        };
        let twice = [alike.clone(), alike.clone()].concat();
        let one =
            |axis: u8| RopeTable::from_frequencies(alike.clone(), 1.0).with_axes(vec![axis; half]);
        let (tables, style) = match turns {
            Turns::RowsFirst => (both(twice, ROW, COLUMN), RopeStyle::Neox),
            Turns::HalvesApart => (vec![(one(COLUMN), 0), (one(ROW), head / 2)], RopeStyle::Neox),
            Turns::OddAndEven => {
                let odd = (0..half).map(|pair| power(4 * pair + 2)).collect();
                (both([alike.clone(), odd].concat(), ROW, COLUMN), RopeStyle::Interleaved)
            }
            Turns::ColumnsFirst => (both(twice, COLUMN, ROW), RopeStyle::Interleaved),
        };
        Some(Self { tables, style })
    }

    /// The place of the patch in `row` and `column`; of towers with a class, counted from 1.
    pub fn place(projector: Projector, (row, column): (usize, usize)) -> [u32; 3] {
        let first = u32::from(projector.has_class);
        [row as u32 + first, column as u32 + first, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_the_grids_size_is_taken_as_it_is() {
        for filter in [Filter::Linear, Filter::Cubic] {
            for at in 0..5 {
                let taps = taps(filter, at, 5, 5);
                let there: Vec<_> = taps.into_iter().filter(|(_, weight)| *weight != 0.0).collect();
                assert_eq!(there, [(at, 1.0)], "{filter:?}");
            }
        }
    }

    #[test]
    fn linear_ends_meet_and_weights_add_up_to_one() {
        assert_eq!(taps(Filter::Linear, 6, 7, 4)[0], (3, 1.0));
        assert_eq!(taps(Filter::Linear, 1, 3, 4), [(1, 0.5), (2, 0.5)]);
        assert_eq!(taps(Filter::Linear, 0, 1, 4)[0], (0, 1.0));
        for filter in [Filter::Linear, Filter::Cubic] {
            for at in 0..11 {
                let sum: f32 = taps(filter, at, 11, 4).iter().map(|(_, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-6, "{filter:?}, {at}: {sum}");
            }
        }
    }
}
