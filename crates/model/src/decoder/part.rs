//! What one layer keeps of a text in a page or a checkpoint.

use std::collections::HashMap;
use std::ops::Range;

/// What one layer of this rank keeps of a page's positions, or of the text up to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub layer: usize,
    pub cache: LayerCache,
    pub holder: Holder,
    /// Runs of heads, each as its first head and the one after its last: one of keys and values; of
    /// a state, one of key heads and several of value heads. Empty where every rank has everything.
    /// Ranks with the same numbers hold the same bits.
    pub heads: Vec<u32>,
    pub cut: Cut,
    pub bytes: usize,
}

/// How the bytes of a part belong to its heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Whole,
    /// Head by head.
    Keys {
        head_bytes: usize,
    },
    /// The states of the value heads; then `rows` rows of a convolution's inputs, of the key heads
    /// twice (queries and keys) and of the value heads, up to a multiple of 64 bytes.
    State {
        state_bytes: usize,
        rows: u32,
        key_bytes: usize,
        value_bytes: usize,
    },
}

/// Bytes of a vector, of which a convolution's inputs take whole ones.
const ROWS_ALIGN: usize = 64;

/// One of the caches of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerCache {
    Keys,
    /// The keys of its indexer.
    Index,
    /// Entries of blocks, and the rows for the next ones.
    Entries(u8),
    Rows(u8),
    State,
    /// The state of the convolution over n-gram embeddings, whose channels every rank has.
    Ngrams,
}

/// The numbers by which a part is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    Page,
    /// A page of layers that keep only their window.
    Window,
    Checkpoint,
}

/// Bytes that two parts have in common: their place in the one, and their first byte in the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    pub to: Range<usize>,
    pub from: usize,
}

/// Some bytes of one head: what they are, of which row, of which head.
type Atom = (u8, u32, u32);

impl Part {
    /// The same part of a rank with other heads; `None`: it has no heads, or not of this kind.
    pub fn with_heads(&self, heads: &[u32]) -> Option<Self> {
        let is_sound = heads.len() == self.heads.len() || matches!(self.cut, Cut::State { .. });
        let runs = heads.as_chunks::<2>();
        if !is_sound || heads.is_empty() || !runs.1.is_empty() || runs.0.iter().any(|[a, b]| a > b)
        {
            return None;
        }
        let mut other = Self { heads: heads.to_vec(), ..self.clone() };
        other.bytes = match self.cut {
            Cut::Whole => return None,
            Cut::Keys { .. } => other.atoms().last().map_or(0, |(_, place)| place.end),
            Cut::State { state_bytes, .. } => {
                let state = state_bytes * other.value_heads().count();
                let end = other.atoms().last().map_or(0, |(_, place)| place.end);
                state + (end - state).next_multiple_of(ROWS_ALIGN)
            }
        };
        Some(other)
    }

    /// What this part has in common with another of the same layer, in order; neighbours are one.
    pub fn shared_with(&self, other: &Self) -> Vec<Shared> {
        let there: HashMap<Atom, Range<usize>> = other.atoms().into_iter().collect();
        let mut shared: Vec<Shared> = Vec::new();
        for (atom, to) in self.atoms() {
            let Some(from) = there.get(&atom).filter(|from| from.len() == to.len()) else {
                continue;
            };
            match shared.last_mut() {
                Some(last)
                    if last.to.end == to.start && last.from + last.to.len() == from.start =>
                {
                    last.to.end = to.end;
                }
                _ => shared.push(Shared { to, from: from.start }),
            }
        }
        shared
    }

    /// The places of all bytes that belong to heads.
    fn atoms(&self) -> Vec<(Atom, Range<usize>)> {
        let mut atoms = Vec::new();
        let mut at = 0;
        let mut add = |atom: Atom, bytes: usize| {
            if bytes > 0 {
                atoms.push((atom, at..at + bytes));
            }
            at += bytes;
        };
        match self.cut {
            Cut::Whole => {}
            Cut::Keys { head_bytes } => {
                self.run(0).for_each(|head| add((0, 0, head), head_bytes));
            }
            Cut::State { state_bytes, rows, key_bytes, value_bytes } => {
                self.value_heads().for_each(|head| add((0, 0, head), state_bytes));
                for row in 0..rows {
                    for kind in [1, 2] {
                        self.run(0).for_each(|head| add((kind, row, head), key_bytes));
                    }
                    self.value_heads().for_each(|head| add((3, row, head), value_bytes));
                }
            }
        }
        atoms
    }

    fn run(&self, at: usize) -> Range<u32> {
        match self.heads.as_chunks::<2>().0.get(at) {
            Some([first, end]) => *first..*end,
            None => 0..0,
        }
    }

    fn value_heads(&self) -> impl Iterator<Item = u32> {
        (1..self.heads.len() / 2).flat_map(|at| self.run(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(cut: Cut, heads: &[u32]) -> Part {
        let (cache, holder) = (LayerCache::Keys, Holder::Page);
        let empty = Part { layer: 0, cache, holder, heads: heads.to_vec(), cut, bytes: 0 };
        empty.with_heads(heads).unwrap()
    }

    #[test]
    fn keys_of_two_ranks_share_the_heads_that_both_have() {
        let cut = Cut::Keys { head_bytes: 10 };
        let (one, other) = (part(cut, &[2, 5]), part(cut, &[4, 8]));
        assert_eq!((one.bytes, other.bytes), (30, 40));
        assert_eq!(one.shared_with(&other), [Shared { to: 20..30, from: 0 }]);
        assert_eq!(other.shared_with(&one), [Shared { to: 0..10, from: 20 }]);
        assert_eq!(one.with_heads(&[5, 4]), None);
        assert_eq!(one.with_heads(&[1]), None);
        assert_eq!(one.with_heads(&[0, 1, 0, 1]), None);
    }

    /// Each byte of a state names what it is, so a copied one must name the same.
    #[test]
    fn states_of_two_ranks_share_states_and_inputs_of_the_same_heads() {
        let cut = Cut::State { state_bytes: 6, rows: 3, key_bytes: 2, value_bytes: 4 };
        let ranks: [&[u32]; 3] = [&[0, 2, 0, 2, 4, 6], &[1, 3, 2, 4, 6, 8], &[0, 4, 0, 8]];
        let parts = ranks.map(|heads| part(cut, heads));
        let name = |part: &Part| {
            let mut bytes = vec![String::new(); part.bytes];
            for (atom, place) in part.atoms() {
                for at in place.clone() {
                    bytes[at] = format!("{atom:?} {}", at - place.start);
                }
            }
            bytes
        };
        let [one, other, all] = &parts;
        assert_eq!(all.bytes, 8 * 6 + (3 * (4 * 2 * 2 + 8 * 4_usize)).next_multiple_of(ROWS_ALIGN));
        for (to, from) in [(one, all), (other, all), (all, one), (all, other), (one, other)] {
            let (names, others) = (name(to), name(from));
            for Shared { to, from } in to.shared_with(from) {
                assert!(!to.is_empty() && !names[to.start].is_empty());
                assert_eq!(names[to.clone()], others[from..from + to.len()]);
            }
        }
        let covered = |parts: &[&Part]| -> usize {
            let mut known = vec![false; all.bytes];
            for part in parts {
                all.shared_with(part).iter().for_each(|it| known[it.to.clone()].fill(true));
            }
            known.iter().filter(|known| **known).count()
        };
        assert_eq!(covered(&[all]), 8 * 6 + 3 * (4 * 2 * 2 + 8 * 4));
        // Key head 3 is missing.
        assert_eq!(covered(&[one, other]), covered(&[all]) - 3 * 2 * 2);
        assert_eq!(
            one.shared_with(all).iter().map(|it| it.to.len()).sum::<usize>(),
            4 * 6 + 3 * 24
        );
    }
}
