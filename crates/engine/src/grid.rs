//! Rows of pictures in a step.

use std::sync::Arc;

use vision::Seen;

use crate::step::{BadStep, Limits, StepSegment};

/// Words of a message.
pub(crate) const WORDS: usize = 6;

/// Consecutive rows of a picture's grid, row by row from the top left, in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepGrid {
    /// The first one's index in the step.
    pub row: usize,
    pub rows: usize,
    /// The first one's index in the grid.
    pub first: usize,
    /// Columns and lines of the whole grid.
    pub columns: usize,
    pub lines: usize,
    /// The rotary position of the grid.
    pub time: usize,
}

/// Consecutive rows of what was seen of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenRows {
    pub seen: Arc<Seen>,
    pub first: usize,
    pub rows: usize,
}

impl SeenRows {
    /// Each row: the embedding, and what is added after the first layers.
    pub fn iter(&self) -> impl Iterator<Item = (&[f32], &[f32])> {
        let Seen { rows, width, deepstack, .. } = &*self.seen;
        let lines = rows.chunks_exact(width * (1 + deepstack)).skip(self.first).take(self.rows);
        lines.map(|line| line.split_at(*width))
    }
}

impl StepGrid {
    pub(crate) fn encode(&self) -> [u32; WORDS] {
        let Self { row, rows, first, columns, lines, time } = *self;
        [row, rows, first, columns, lines, time].map(|word| word as u32)
    }

    pub(crate) fn decode(words: [usize; WORDS]) -> Self {
        let [row, rows, first, columns, lines, time] = words;
        Self { row, rows, first, columns, lines, time }
    }

    /// The place of each of its rows: time, line and column.
    fn places(&self) -> impl Iterator<Item = [u32; 3]> {
        let Self { rows, first, columns, time, .. } = *self;
        let place = move |at| [time, time + at / columns, time + at % columns].map(|x| x as u32);
        (first..first + rows).map(place)
    }

    /// The rotary position after the grid.
    fn end(&self) -> usize {
        self.time + self.columns.max(self.lines)
    }
}

/// Checks the grids of a message: in order, each inside one segment and one grid.
pub(crate) fn check(
    grids: &[StepGrid],
    segments: &[StepSegment],
    limits: &Limits,
) -> Result<(), BadStep> {
    let bad = |what| Err(BadStep { what });
    let context = limits.context_tokens;
    let mut before = 0;
    for grid in grids {
        let StepGrid { row, rows, first, columns, lines, time } = *grid;
        if [row, rows, first, columns, lines, time].iter().any(|number| *number > context) {
            return bad("a picture has numbers beyond the context");
        }
        if rows == 0 || first + rows > columns * lines || row < before {
            return bad("rows of a picture lie outside of it, or twice in the step");
        }
        let mut start = 0;
        let own = segments.iter().find(|segment| {
            start += segment.rows;
            row < start
        });
        if own.is_none() || row + rows > start {
            return bad("rows of a picture lie outside of their segment");
        }
        before = row + rows;
    }
    Ok(())
}

/// Appends the places of a segment's rows, which begin at `row` in the step: text turns by one
/// position a row, and goes on behind a picture after its longer side.
pub(crate) fn places(
    grids: &[StepGrid],
    segment: &StepSegment,
    row: usize,
    out: &mut Vec<[u32; 3]>,
) {
    let end = row + segment.rows;
    let (mut at, mut rotation) = (row, segment.first_rotation);
    let text = |from: usize, rows: usize| (from..from + rows).map(|position| [position as u32; 3]);
    for grid in of_rows(grids, row, end) {
        out.extend(text(rotation, grid.row - at));
        out.extend(grid.places());
        (at, rotation) = (grid.row + grid.rows, grid.end());
    }
    out.extend(text(rotation, end - at));
}

/// The runs of a segment's rows, which begin at `row` in the step: their number, and whether they
/// are of a picture.
pub(crate) fn runs(
    grids: &[StepGrid],
    rows: usize,
    row: usize,
) -> impl Iterator<Item = (usize, bool)> {
    let end = row + rows;
    let mut at = row;
    let cut = of_rows(grids, row, end).flat_map(move |grid| {
        let text = grid.row - at;
        at = grid.row + grid.rows;
        [(text, false), (grid.rows, true)]
    });
    let last = of_rows(grids, row, end).last().map_or(row, |grid| grid.row + grid.rows);
    cut.chain([(end - last, false)]).filter(|(rows, _)| *rows > 0)
}

fn of_rows(grids: &[StepGrid], row: usize, end: usize) -> impl Iterator<Item = &StepGrid> {
    grids.iter().filter(move |grid| row <= grid.row && grid.row < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(row: usize, rows: usize, first: usize, time: usize) -> StepGrid {
        StepGrid { row, rows, first, columns: 3, lines: 2, time }
    }

    #[test]
    fn text_goes_on_behind_the_longer_side() {
        let segment = StepSegment { first_rotation: 10, ..StepSegment::new(0, 20, 9) };
        let mut found = Vec::new();
        places(&[grid(1, 4, 0, 0), grid(6, 6, 0, 12)], &segment, 4, &mut found);
        let expected = [
            [10, 10, 10],
            [11, 11, 11],
            [12, 12, 12],
            [12, 12, 13],
            [12, 12, 14],
            [12, 13, 12],
            [12, 13, 13],
            [12, 13, 14],
            [15, 15, 15],
        ];
        assert_eq!(found, expected);
        let cut: Vec<_> = runs(&[grid(1, 3, 0, 0), grid(6, 6, 0, 12)], 9, 4).collect();
        assert_eq!(cut, [(2, false), (6, true), (1, false)]);
        // A chunk that begins in a picture.
        let segment = StepSegment { first_rotation: 5, ..StepSegment::new(0, 20, 3) };
        found.clear();
        places(&[grid(0, 2, 4, 5)], &segment, 0, &mut found);
        assert_eq!(found, [[5, 6, 6], [5, 6, 7], [8, 8, 8]]);
    }

    #[test]
    fn rows_outside_are_refused() {
        let limits = Limits { context_tokens: 100, ..crate::step::tests::LIMITS };
        let segments = [StepSegment::new(0, 0, 5), StepSegment::new(1, 0, 6)];
        let is_good = |grids: &[StepGrid]| check(grids, &segments, &limits).is_ok();
        assert!(is_good(&[grid(0, 5, 1, 0), grid(5, 6, 0, 0)]));
        assert!(!is_good(&[grid(0, 6, 0, 0)]), "over the end of a segment");
        assert!(!is_good(&[grid(10, 2, 0, 0)]), "over the end of the step");
        assert!(!is_good(&[grid(12, 1, 0, 0)]));
        assert!(!is_good(&[grid(5, 3, 4, 0)]), "over the end of the grid");
        assert!(!is_good(&[grid(1, 2, 0, 0), grid(2, 2, 0, 0)]), "twice");
        assert!(!is_good(&[grid(0, 0, 0, 0)]));
        assert!(!is_good(&[grid(0, 1, 0, 101)]));
    }
}
