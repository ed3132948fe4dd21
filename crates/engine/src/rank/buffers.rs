//! Buffers of a step, and the batch that they make.

use backend::{Segment, StateSegment};
use layout::Config;
use model::{Batch, BatchPictures, Outputs};

use crate::grid;
use crate::logits::Candidate;
use crate::step::{Limits, Save, StateStep, Step, StepSegment};
use crate::tables::Tables;

/// Buffers reused by every step.
#[derive(Default)]
pub(super) struct Buffers {
    pub message: Vec<u8>,
    /// Input of this rank's first layer, `[rows, width]`.
    pub input: Vec<f32>,
    segments: Vec<Segment>,
    /// The same in layers with a window.
    windows: Vec<Segment>,
    positions: Vec<u32>,
    /// Of a step with pictures: the place of every row, and the rows of pictures.
    places: Vec<[u32; 3]>,
    of_pictures: Vec<usize>,
    states: Vec<StateSegment>,
    /// The rows that need logits, also as segments.
    outputs: Vec<usize>,
    output_segments: Vec<Segment>,
    output_windows: Vec<Segment>,
    /// The values selected from this rank's logits, and scratch.
    pub picked: Vec<f32>,
    pub candidates: Vec<Candidate>,
    pub hidden: Vec<f32>,
    /// The number of values from each rank.
    pub lens: Vec<usize>,
    /// The rows from the last stage, for rank 0's part of the output head.
    pub rows: Vec<f32>,
}

impl Buffers {
    /// Lets go of the tables, so that they can change without a copy.
    pub fn release(&mut self) {
        let Self { segments, windows, output_segments, output_windows, .. } = self;
        for segments in [segments, windows, output_segments, output_windows] {
            segments.clear();
        }
    }

    /// Takes in a step, which the tables include.
    pub fn fill(&mut self, step: &Step, tables: &Tables, limits: &Limits, config: &Config) {
        let Self { positions, places, of_pictures, states, outputs, .. } = self;
        positions.clear();
        places.clear();
        of_pictures.clear();
        states.clear();
        outputs.clear();
        of_pictures.extend(step.grids.iter().flat_map(|grid| grid.row..grid.row + grid.rows));
        let mut row = 0;
        for segment in &step.segments {
            self.add(
                segment,
                tables,
                limits.is_encoder,
                [false, true].map(|windows| {
                    let whole = config.sees_pictures_whole(windows);
                    let grids = if whole { &step.grids[..] } else { &[] };
                    let runs = grid::runs(grids, segment.rows, row);
                    runs.map(|(rows, mutual)| (rows, mutual || limits.is_encoder))
                }),
            );
            let StepSegment { slot, rows, first_rotation, state, .. } = *segment;
            if config.rope.axes.is_some() && !step.grids.is_empty() {
                grid::places(&step.grids, segment, row, &mut self.places);
            }
            self.positions.extend(first_rotation as u32..(first_rotation + rows) as u32);
            if limits.has_states {
                self.states.push(state_segment(slot, rows, state));
            }
            let first_output = row + segment.first_output();
            self.outputs.extend(first_output..first_output + segment.outputs);
            row += rows;
        }
    }

    /// Adds a segment's runs, in layers without a window and in those with one.
    fn add(
        &mut self,
        segment: &StepSegment,
        tables: &Tables,
        is_encoder: bool,
        [all, in_windows]: [impl Iterator<Item = (usize, bool)>; 2],
    ) {
        let StepSegment { slot, first_position, rows, outputs, .. } = *segment;
        let (table, window) = (tables.get(slot), tables.window(slot));
        let mut first_pos = first_position;
        for (rows, mutual) in all {
            let sees_to = mutual.then_some(first_pos + rows);
            self.segments.push(Segment { table: table.clone(), first_pos, rows, sees_to });
            first_pos += rows;
        }
        let mut first_pos = first_position;
        for (rows, mutual) in in_windows {
            let sees_to = mutual.then_some(first_pos + rows);
            self.windows.push(Segment { table: window.clone(), first_pos, rows, sees_to });
            first_pos += rows;
        }
        if outputs > 0 {
            let first_pos = first_position + segment.first_output();
            let sees_to = is_encoder.then_some(first_position + rows);
            let of = |table| Segment { table, first_pos, rows: outputs, sees_to };
            self.output_segments.push(of(table));
            self.output_windows.push(of(window));
        }
    }

    /// The batch, for a model with `deepstack` layers with additions.
    pub fn batch<'a>(&'a self, step: &'a Step, deepstack: usize) -> Batch<'a> {
        Batch {
            segments: &self.segments,
            windows: &self.windows,
            positions: &self.positions,
            pictures: BatchPictures {
                places: (!self.places.is_empty()).then_some(&self.places),
                rows: &self.of_pictures,
                layers: if step.additions.is_empty() { 0 } else { deepstack },
                additions: &step.additions,
            },
            states: &self.states,
            outputs: Outputs {
                rows: &self.outputs,
                segments: &self.output_segments,
                windows: &self.output_windows,
            },
        }
    }
}

fn state_segment(slot: usize, rows: usize, state: StateStep) -> StateSegment {
    let StateStep { begin, guesses, save } = state;
    let save = save.map(|Save { after, checkpoint }| (after, checkpoint));
    StateSegment { slot, rows, begin, guesses, save }
}
