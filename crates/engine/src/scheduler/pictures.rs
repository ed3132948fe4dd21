//! The pictures of a sequence: where its chunks end, and what they need.

use std::ops::Range;
use std::sync::Arc;

use vision::Seen;

use crate::grid::{SeenRows, StepGrid};
use crate::sight::{Placed, PlacedGrid};
use crate::step::Step;

#[derive(Debug)]
pub(super) struct Pictures {
    all: Vec<Placed>,
    /// The index of the picture that the next chunk waits for.
    wanted: Option<usize>,
}

impl Pictures {
    pub fn new(all: Vec<Placed>) -> Self {
        Self { all, wanted: None }
    }

    /// The picture that the next chunk waits for.
    pub fn wanted(&self) -> Option<&Placed> {
        self.wanted.map(|at| &self.all[at])
    }

    /// Stores the rows of that picture.
    pub fn show(&mut self, seen: Arc<Seen>) {
        if let Some(at) = self.wanted.take() {
            self.all[at].seen = Some(seen);
        }
    }

    fn grids(&self) -> impl Iterator<Item = &PlacedGrid> {
        self.all.iter().flat_map(|placed| &placed.grids)
    }

    /// The grid that must be whole, with tokens on both sides of the border before token `at`.
    fn cut(&self, at: usize) -> Option<&PlacedGrid> {
        self.grids().find(|grid| grid.whole && grid.at < at && at < grid.end())
    }

    /// Whether the border before token `at` would cut a picture that must be whole.
    pub fn is_cut(&self, at: usize) -> bool {
        self.cut(at).is_some()
    }

    /// The rows, of `rows` from token `first` on, that end before a picture which they would cut.
    pub fn uncut(&self, first: usize, rows: usize) -> usize {
        self.cut(first + rows).map_or(rows, |grid| grid.at.saturating_sub(first))
    }

    /// The rows of a chunk from token `first` on: `rows`, fewer in front of a picture that is not
    /// seen or would be cut, or as many as that needs up to `most`.
    pub fn chunk(&mut self, first: usize, rows: usize, most: usize) -> usize {
        self.wanted = None;
        let mut rows = rows;
        if let Some(grid) = self.cut(first + rows) {
            let whole = grid.end() - first;
            rows = match grid.at.saturating_sub(first) {
                0 if whole <= most => whole,
                before => before,
            };
        }
        let unseen = |placed: &Placed| placed.seen.is_none() && placed.end() > first;
        let Some(at) = self.all.iter().position(unseen) else { return rows };
        let before = self.all[at].start().saturating_sub(first);
        if rows > before {
            self.wanted = Some(at);
            rows = before;
        }
        rows
    }

    /// The rotary position of token `at`; of a row of a grid with places, that of the grid.
    pub fn rotation(&self, at: usize) -> usize {
        let mut rotation = at;
        for grid in self.grids().take_while(|grid| grid.at <= at) {
            rotation -= match at < grid.end() {
                true if grid.turns < grid.rows() => at - grid.at,
                true => 0,
                false => grid.rows() - grid.turns,
            };
        }
        rotation
    }

    /// Adds the rows of pictures among these tokens to a step that they are about to join.
    pub fn plan(&self, tokens: Range<usize>, step: &mut Step) {
        for placed in &self.all {
            for grid in &placed.grids {
                let (start, end) = (grid.at.max(tokens.start), grid.end().min(tokens.end));
                let Some(seen) = placed.seen.as_ref().filter(|_| start < end) else { continue };
                let (first, rows) = (start - grid.at, end - start);
                step.grids.push(StepGrid {
                    row: step.tokens.len() + start - tokens.start,
                    rows,
                    first,
                    columns: grid.columns,
                    lines: grid.lines,
                    time: self.rotation(grid.at),
                });
                let (seen, first) = (seen.clone(), grid.first + first);
                step.seen.push(SeenRows { seen, first, rows });
            }
        }
    }

    /// Forgets the rows of pictures before token `end`.
    pub fn forget(&mut self, end: usize) {
        let done = self.all.iter_mut().filter(|placed| placed.end() <= end);
        done.for_each(|placed| placed.seen = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pictures: tokens 4 to 9 as two lines of three, and 12 to 15 as one of four.
    fn pictures(whole: bool, turns: bool, seen: usize) -> Pictures {
        let placed = |at, columns: usize, lines: usize, is_seen| {
            let turns = if turns { columns.max(lines) } else { columns * lines };
            let grid = PlacedGrid { at, columns, lines, first: 0, turns, whole };
            let plan = vision::Plan::default();
            let seen = Seen { rows: vec![0.5; 12], width: 2, deepstack: 0, plan };
            Placed {
                number: 1,
                file: b"any"[..].into(),
                detail: Default::default(),
                grids: vec![grid],
                seen: if is_seen { Some(Arc::new(seen)) } else { None },
            }
        };
        Pictures::new(vec![placed(4, 3, 2, seen > 0), placed(12, 4, 1, seen > 1)])
    }

    #[test]
    fn chunks_end_before_what_is_not_seen() {
        for whole in [false, true] {
            let mut pictures = pictures(whole, true, 1);
            assert_eq!((pictures.chunk(0, 4, 99), pictures.wanted), (4, None));
            assert_eq!((pictures.chunk(0, 16, 99), pictures.wanted), (12, Some(1)));
            assert_eq!((pictures.chunk(12, 8, 99), pictures.wanted), (0, Some(1)));
            let seen = pictures.all[0].seen.clone().unwrap();
            pictures.show(seen);
            assert_eq!((pictures.chunk(12, 8, 99), pictures.wanted), (8, None));
            pictures.forget(15);
            assert_eq!(
                pictures.all.iter().map(|one| one.seen.is_some()).collect::<Vec<_>>(),
                [false, true]
            );
        }
    }

    #[test]
    fn what_must_be_whole_is_not_cut() {
        let mut any = pictures(false, true, 2);
        assert_eq!((any.chunk(0, 6, 99), any.is_cut(6)), (6, false));
        let mut whole = pictures(true, true, 2);
        assert_eq!(whole.chunk(0, 6, 99), 4, "it ends before the picture");
        assert_eq!(whole.chunk(4, 2, 99), 6, "more rows than there is room for text");
        assert_eq!(whole.chunk(4, 2, 5), 0, "and no more than there is room");
        assert_eq!(whole.chunk(0, 10, 99), 10);
        assert_eq!([4, 5, 9, 10].map(|at| whole.is_cut(at)), [false, true, true, false]);
        assert_eq!([whole.uncut(0, 9), whole.uncut(0, 10), whole.uncut(4, 3)], [4, 10, 0]);
    }

    #[test]
    fn rotations_go_on_behind_the_longer_side() {
        let rotations =
            |pictures: &Pictures| [0, 4, 7, 10, 11, 12, 16, 17].map(|at| pictures.rotation(at));
        assert_eq!(rotations(&pictures(false, true, 2)), [0, 4, 4, 7, 8, 9, 13, 14]);
        let plain = rotations(&pictures(false, false, 2));
        assert_eq!(plain, [0, 4, 7, 10, 11, 12, 16, 17], "every row takes one");
    }

    #[test]
    fn a_step_gets_the_rows_of_its_tokens() {
        let mut step = Step { tokens: vec![0; 5], ..Step::default() };
        pictures(false, true, 2).plan(6..14, &mut step);
        let grid = |row, rows, first, columns, lines, time| StepGrid {
            row,
            rows,
            first,
            columns,
            lines,
            time,
        };
        assert_eq!(step.grids, [grid(5, 4, 2, 3, 2, 4), grid(11, 2, 0, 4, 1, 9)]);
        let seen: Vec<_> = step.seen.iter().map(|seen| (seen.first, seen.rows)).collect();
        assert_eq!(seen, [(2, 4), (0, 2)]);
        assert_eq!(step.seen[0].iter().count(), 4);
    }
}
