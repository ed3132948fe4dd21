//! The sequences that a block guesses for, and the rows of a pass.

use std::collections::VecDeque;
use std::sync::Arc;

use backend::Segment;
use protocol::{RequestId, Token};

/// A part of the cache, for one sequence.
pub(super) struct Place {
    pub request: Option<RequestId>,
    /// When it was last used.
    pub used: u64,
    /// Of all positions, and of those in a window.
    pub tables: [Arc<[u32]>; 2],
    /// Rows in the cache whose tokens are certain. For an assistant that is its model's cache.
    pub filled: usize,
    pub waiting: VecDeque<Waiting>,
}

/// The state from which the token at `position` is drawn.
pub(super) struct Waiting {
    pub position: usize,
    pub state: Vec<f32>,
}

/// The rows of a pass.
#[derive(Default)]
pub(super) struct Rows {
    pub segments: Vec<Segment>,
    /// The same with the tables of layers with a window.
    pub windows: Vec<Segment>,
    pub positions: Vec<u32>,
    pub tokens: Vec<Token>,
    pub embeddings: Vec<f32>,
    /// `[rows, state_width]`.
    pub states: Vec<f32>,
    /// The jobs that get a token, and their last rows.
    pub drawing: Vec<usize>,
    pub outputs: Vec<usize>,
    pub output_segments: Vec<Segment>,
}

impl Place {
    pub fn new(at: usize, pages: usize) -> Self {
        let table: Arc<[u32]> = (at * pages..(at + 1) * pages).map(|page| page as u32).collect();
        let tables = [table.clone(), table];
        Self { request: None, used: 0, tables, filled: 0, waiting: VecDeque::new() }
    }

    /// Serves another sequence.
    pub fn begin(&mut self, request: RequestId) {
        self.request = Some(request);
        self.filled = 0;
        self.waiting.clear();
    }

    /// Keeps a state. Those of this position and later ones followed a wrong guess.
    pub fn wait(&mut self, position: usize, state: &[f32], waiting_max: usize) {
        while self.waiting.back().is_some_and(|last| last.position >= position) {
            self.waiting.pop_back();
        }
        if self.waiting.len() == waiting_max {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting { position, state: state.to_vec() });
    }
}

impl Rows {
    pub fn clear(&mut self) {
        let Self { segments, windows, positions, tokens, states, .. } = self;
        segments.clear();
        windows.clear();
        positions.clear();
        tokens.clear();
        states.clear();
        self.drawing.clear();
        self.outputs.clear();
        self.output_segments.clear();
    }

    pub fn push(&mut self, token: Token, position: usize, state: &[f32]) {
        self.tokens.push(token);
        self.positions.push(position as u32);
        self.states.extend_from_slice(state);
    }

    /// Ends the rows of a job, which begin at `first` in its tables.
    pub fn end(&mut self, job: usize, [table, window]: &[Arc<[u32]>; 2], first: usize) {
        let before: usize = self.segments.iter().map(|segment| segment.rows).sum();
        let rows = self.tokens.len() - before;
        let segment = |table: &Arc<[u32]>, first_pos, rows| {
            let table = table.clone();
            Segment { table, first_pos, rows, sees_to: None }
        };
        self.segments.push(segment(table, first, rows));
        self.windows.push(segment(window, first, rows));
        self.output_segments.push(segment(table, first + rows - 1, 1));
        self.outputs.push(self.tokens.len() - 1);
        self.drawing.push(job);
    }
}
