//! The context of a layer's computation.

use backend::{Backend, Half, IndexKeys, Segment, SegmentKey, StateSegment};
use layout::Config;

use super::batch::Outputs;
use super::norm::Norm;
use super::parts::banks::BankHalf;
use super::parts::streams::StreamHalf;
use super::scratch::Scratch;

pub(super) struct Context<'a, B: Backend> {
    pub backend: &'a mut B,
    pub config: &'a Config,
    pub scratch: &'a mut Scratch<B>,
    /// The layer's cache.
    pub kept: &'a mut Kept<B>,
    pub layer: usize,
    /// Rows of the step.
    pub step_rows: usize,
    /// The number of active rows: all, or the outputs.
    pub rows: usize,
    /// The active rows as runs of consecutive positions, with the tables of the layer's own cache,
    pub segments: &'a [Segment],
    /// and with those of layers with full attention.
    pub all_segments: &'a [Segment],
    /// The state steps of the step's sequences.
    pub states: &'a [StateSegment],
    /// In the last caching layer, the only rows that go on after their keys and values are cached;
    /// `None` if all do.
    pub outputs: Option<Outputs<'a>>,
}

/// A layer's cache of earlier positions.
pub(super) enum Kept<B: Backend> {
    Nothing,
    /// With the cache of the layer's indexer, if it has one.
    KeysAndValues(B::Kv, Option<IndexKept<B>>),
    /// Keys that are also values, and entries for heads and for an indexer, if it has them.
    Compressed(B::Kv, Vec<B::Entries>),
    /// With the states of the convolution over n-gram embeddings, in the layer that reads them.
    States(B::States, Option<B::States>),
}

/// The cache of an indexer.
pub(super) enum IndexKept<B: Backend> {
    Positions(B::Kv),
    /// Pools of positions.
    Entries(B::Entries),
}

impl<B: Backend> Kept<B> {
    pub fn keys_and_values(&mut self) -> &mut B::Kv {
        match self {
            Self::KeysAndValues(kv, _) => kv,
            _ => panic!("a layer that attends keeps keys and values"),
        }
    }

    /// Copies a page of keys and values.
    ///
    /// # Panics
    /// If it keeps anything but pages: no text continues in the middle of one there.
    pub fn copy_page(&mut self, backend: &mut B, from: u32, to: u32) {
        match self {
            Self::Nothing => {}
            Self::KeysAndValues(kv, None) => backend.copy_page(kv, from, to),
            Self::KeysAndValues(kv, Some(IndexKept::Positions(keys))) => {
                backend.copy_page(kv, from, to);
                backend.copy_page(keys, from, to);
            }
            _ => panic!("a layer that keeps more than pages"),
        }
    }

    /// The keys of the layer's indexer.
    pub fn index_keys(&self) -> IndexKeys<'_, B> {
        match self {
            Self::KeysAndValues(_, Some(IndexKept::Positions(keys))) => IndexKeys::Positions(keys),
            Self::KeysAndValues(_, Some(IndexKept::Entries(keys))) => IndexKeys::Entries(keys),
            _ => panic!("a layer with an indexer keeps its keys"),
        }
    }

    /// The keys and the entries of a layer that compresses.
    pub fn compressed(&mut self) -> (&mut B::Kv, &mut [B::Entries]) {
        match self {
            Self::Compressed(kv, entries) => (kv, entries),
            _ => panic!("a layer that compresses keeps keys"),
        }
    }

    pub fn states(&mut self) -> &mut B::States {
        match self {
            Self::States(states, _) => states,
            _ => panic!("a layer that carries a state keeps states"),
        }
    }

    pub fn ngram_states(&mut self) -> &mut B::States {
        match self {
            Self::States(_, Some(states)) => states,
            _ => panic!("a layer with n-gram embeddings keeps their states"),
        }
    }
}

impl<B: Backend> Context<'_, B> {
    /// `h = norm(x)`, or `h = x` without a norm, where `x` is the half's input from the residual
    /// streams. Then the half may bank the stream.
    pub fn norm(
        &mut self,
        norm: Option<&Norm<B>>,
        (streams, banks): (Option<&StreamHalf<B>>, Option<&BankHalf<B>>),
    ) {
        let Self { backend, config, scratch: s, .. } = self;
        let x = match (streams, &mut s.streams, banks, &mut s.banks) {
            (Some(streams), Some(room), ..) => {
                streams.read(*backend, &s.x, room);
                &room.mixed
            }
            (.., Some(banks), Some(room)) => banks.read(*backend, &s.x, room),
            _ => &s.x,
        };
        match norm {
            Some(norm) => norm.apply(backend, x, &mut s.h),
            None => backend.columns(x, 0..config.width, &mut s.h),
        }
        if let (Some(banks), Some(room)) = (banks, &mut s.banks) {
            banks.bank(*backend, &mut s.x, room);
        }
    }

    /// `x` = the head's input from the residual streams.
    pub fn read_for_head(&mut self, banks: &BankHalf<B>) {
        let Self { backend, config, scratch: s, .. } = self;
        let room = s.banks.as_mut().expect("made for models that bank residual streams");
        banks.read(*backend, &s.x, room);
        backend.columns(&room.mixed, 0..config.width, &mut s.x);
    }

    /// Ends the segment of `half`, which covers all operations since the last call.
    pub fn end_segment(&mut self, half: Half) {
        let Self { layer, step_rows, rows, .. } = *self;
        self.backend.end_segment(SegmentKey { layer, half, rows: step_rows, outputs: rows });
    }

    /// Drops all rows except the outputs. Returns whether any are left.
    pub fn keep_outputs(&mut self) -> bool {
        let Some(Outputs { rows, segments, windows }) = self.outputs else { return true };
        if !rows.is_empty() {
            self.backend.keep(&mut self.scratch.x, rows);
            self.backend.keep(&mut self.scratch.h, rows);
            if let Some(joined) = &mut self.scratch.joined {
                self.backend.keep(joined, rows);
            }
            if let Some(by_layer) = &mut self.scratch.by_layer {
                self.backend.keep(&mut by_layer.shared, rows);
                self.backend.keep(&mut by_layer.all, rows);
            }
            if let Some(streams) = &mut self.scratch.streams {
                self.backend.keep(&mut streams.weights, rows);
            }
            if let Some(room) = &mut self.scratch.banks {
                self.backend.keep(&mut room.banks, rows);
            }
            keep_rows(&mut self.scratch.tokens, rows);
            // An earlier layer's choice was made for all rows.
            let follows = self.config.chooser_of(self.layer).is_some_and(|of| of != self.layer);
            if let Some(chosen) = self.scratch.chosen.as_mut().filter(|_| follows) {
                self.backend.keep_chosen(chosen, rows);
            }
            self.backend.keep_positions(rows);
            let has_window = self.config.windows[self.layer].is_some();
            self.segments = if has_window { windows } else { segments };
            self.all_segments = segments;
            self.rows = rows.len();
        }
        !rows.is_empty()
    }
}

/// Keeps only the tokens of the rows `kept`, ascending, if there are any tokens.
fn keep_rows(tokens: &mut Vec<u32>, kept: &[usize]) {
    if !tokens.is_empty() {
        *tokens = kept.iter().map(|row| tokens[*row]).collect();
    }
}
