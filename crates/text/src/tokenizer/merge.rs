//! The merge loop that byte-pair encoding and SentencePiece share.
//!
//! Symbols form a linked list over the text; a heap holds the currently possible merges. Each merge
//! removes one symbol and adds at most two candidates, so `n` symbols cost `O(n log n)` time and
//! `O(n)` memory for any text.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The id of a symbol that is no token.
pub(super) const NO_TOKEN: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// A run of bytes of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    pub(super) start: u32,
    /// 0 after it was merged into the symbol before it.
    pub(super) len: u32,
    pub(super) id: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

/// A possible merge of a symbol with the next one, ordered by priority, then from the left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    /// Bytes of both symbols, to detect an outdated candidate.
    len: u32,
    id: u32,
}

/// The working memory of the loop, reused for every word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends the next `len` bytes as a symbol.
    pub(super) fn push(&mut self, len: u32, id: u32) {
        let at = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |last| last.start + last.len);
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        let prev = at.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start, len, id, prev, next: NONE });
    }

    /// Merges until `merge` returns no pair. `merge` returns the priority (the smallest goes first)
    /// and the id of the token made from two neighbours.
    pub(super) fn run(&mut self, merge: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let mut symbols = std::mem::take(&mut self.symbols);
        let heap = &mut self.heap;
        let offer = |heap: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32| {
            let Some(first) = symbols.get(left as usize) else { return };
            let Some(second) = symbols.get(first.next as usize) else { return };
            if let Some((priority, id)) = merge(first, second) {
                heap.push(Reverse(Candidate { priority, left, len: first.len + second.len, id }));
            }
        };
        for left in 0..symbols.len() as u32 {
            offer(heap, &symbols, left);
        }
        while let Some(Reverse(best)) = heap.pop() {
            let left = symbols[best.left as usize];
            // A symbol only ever grows to the right, so the same length means the same two.
            let Some(&right) = symbols.get(left.next as usize) else { continue };
            if left.len == 0 || left.len + right.len != best.len {
                continue;
            }
            symbols[left.next as usize].len = 0;
            let merged = Symbol { len: best.len, id: best.id, next: right.next, ..left };
            symbols[best.left as usize] = merged;
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.prev = best.left;
            }
            offer(heap, &symbols, left.prev);
            offer(heap, &symbols, best.left);
        }
        self.symbols = symbols;
    }

    /// The remaining symbols, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }
}
