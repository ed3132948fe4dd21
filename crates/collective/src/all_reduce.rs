//! All-reduce: every rank's partial sums in, the tree's total out, the same bits on every rank.

use std::ops::Range;

use crate::exchange::{Expect, Payload};
use crate::wire::{Op, get_f32, put_f32};
use crate::{Algorithm, CollectiveError, Group, ReducePlan, Wire};

/// Chunks of the two-phase algorithm end at multiples of this many elements: a cache line.
pub(crate) const CHUNK_STEP: usize = 16;

impl Group {
    /// Adds the parts of all ranks in the order of the summation tree.
    ///
    /// `parts`: `[plan.parts(rank), len]` f32, this rank's sums of its subtrees from left to right.
    /// `total`: `[len]` f32, on return the sum over all leaves, bit-identical on every rank and,
    /// but for [`Wire::Q8`], to what one machine alone computes.
    pub fn all_reduce(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        total: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.check_parts(plan, parts, total.len())?;
        if total.is_empty() {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let scratch_here = &mut scratch;
        let done = match (self.choose(plan, total.len()), self.wire()) {
            (Algorithm::Ring, _) => self.ring_all_reduce(plan, parts, total, scratch_here),
            (Algorithm::TwoPhase, Wire::F32) => self.two_phase(plan, parts, total, scratch_here),
            (Algorithm::TwoPhase, Wire::Q8) => {
                self.coded_two_phase(plan, parts, total, scratch_here)
            }
            (_, Wire::F32) => self.one_shot(plan, parts, total, scratch_here),
            (_, Wire::Q8) => self.coded_one_shot(plan, parts, total, scratch_here),
        };
        self.scratch = scratch;
        done
    }

    /// Adds the parts of all ranks as [`Group::all_reduce`] does, and leaves to each rank its chunk
    /// of the total, [`Group::chunk`].
    ///
    /// `parts`: `[plan.parts(rank), len]` f32. `own`: `[chunk(rank, len).len()]` f32.
    pub fn reduce_scatter(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        len: usize,
        own: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.check_parts(plan, parts, len)?;
        let (what, given, expected) =
            ("elements of this rank's chunk", own.len(), self.chunk(self.rank(), len).len());
        if given != expected {
            return Err(CollectiveError::Length { what, given, expected });
        }
        if len == 0 {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let reduced = match self.is_sparse() || self.options().algorithm == Algorithm::Ring {
            true => self.ring_reduce(plan, parts, len, &mut scratch),
            false => self.scatter(plan, parts, len, 0..len, &mut scratch),
        };
        let done = reduced.map(|sums| own.copy_from_slice(sums));
        self.scratch = scratch;
        done
    }

    /// The elements of a vector of `len` that `rank` has after a reduce-scatter: about as many for
    /// each rank, in order of rank, from multiples of a cache line on.
    pub fn chunk(&self, rank: usize, len: usize) -> Range<usize> {
        chunk(rank, self.ranks(), len)
    }

    fn check_parts(
        &self,
        plan: &ReducePlan,
        parts: &[f32],
        len: usize,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let lengths = [
            ("ranks of the reduce plan", plan.ranks(), self.ranks()),
            ("elements of this rank's parts", parts.len(), plan.parts(self.rank()) * len),
        ];
        for (what, given, expected) in lengths {
            if given != expected {
                return Err(CollectiveError::Length { what, given, expected });
            }
        }
        Ok(())
    }

    /// What values are on the wire; a rank alone has none.
    fn wire(&self) -> Wire {
        if self.ranks() == 1 { Wire::F32 } else { self.options().wire }
    }

    fn one_shot(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        total: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), CollectiveError> {
        let len = total.len();
        let own = scale(plan.places(self.rank()), len);
        let vectors = grown(scratch, plan.parts_total() * len);
        vectors[own].copy_from_slice(parts);
        self.exchange(Op::Reduce, &mut OneShot { plan, parts, vectors, len })?;
        plan.finish(vectors, len);
        total.copy_from_slice(&vectors[..len]);
        Ok(())
    }

    fn two_phase(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        total: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), CollectiveError> {
        let (len, rank, ranks) = (total.len(), self.rank(), self.ranks());
        let run_len = self.run_len(len);
        for (at, total) in total.chunks_mut(run_len).enumerate() {
            let (start, run_len) = (at * run_len, total.len());
            let own = self.scatter(plan, parts, len, start..start + run_len, scratch)?;
            let span = |peer| chunk(peer, ranks, run_len);
            total[span(rank)].copy_from_slice(own);
            self.exchange(Op::AllGather, &mut Slices::new(total, span, rank))?;
        }
        Ok(())
    }

    /// The first of the two phases, for the elements `run` of each part of `len`: returns this
    /// rank's chunk of the run's total, in `scratch`.
    fn scatter<'a>(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        len: usize,
        run: Range<usize>,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], CollectiveError> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let own = chunk(rank, ranks, run.len());
        let (chunk_len, start) = (own.len(), run.start + own.start);
        let vectors = grown(scratch, plan.parts_total() * chunk_len);
        for (place, part) in plan.places(rank).zip(parts.chunks_exact(len)) {
            vectors[scale(place..place + 1, chunk_len)]
                .copy_from_slice(&part[start..][..chunk_len]);
        }
        let mut scatter = Scatter { plan, parts, vectors, len, run, chunk_len, ranks };
        self.exchange(Op::ReduceScatter, &mut scatter)?;
        plan.finish(vectors, chunk_len);
        Ok(&vectors[..chunk_len])
    }
}

/// The elements of a vector of `len` that `rank` finishes.
pub(crate) fn chunk(rank: usize, ranks: usize, len: usize) -> Range<usize> {
    let steps = len.div_ceil(CHUNK_STEP);
    let border = |rank: usize| (steps * rank / ranks * CHUNK_STEP).min(len);
    border(rank)..border(rank + 1)
}

fn scale(range: Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// The first `len` elements of `scratch`, which grows if it must.
pub(crate) fn grown(scratch: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if scratch.len() < len {
        scratch.resize(len, 0.0);
    }
    &mut scratch[..len]
}

/// `Some(bytes)`, or `None` where there is nothing to send.
pub(crate) fn bytes_of(elements: usize) -> Option<usize> {
    (elements > 0).then_some(4 * elements)
}

pub(crate) fn expect_elements(elements: usize) -> Expect {
    bytes_of(elements).map_or(Expect::Nothing, Expect::Bytes)
}

/// All own parts to everyone, everyone's parts to their places.
struct OneShot<'a> {
    plan: &'a ReducePlan,
    parts: &'a [f32],
    /// `[parts_total, len]`.
    vectors: &'a mut [f32],
    len: usize,
}

impl Payload for OneShot<'_> {
    fn outgoing(&self, _peer: usize) -> Option<usize> {
        bytes_of(self.parts.len())
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        put_f32(bytes, &self.parts[offset / 4..(offset + bytes.len()) / 4]);
    }

    fn incoming(&self, peer: usize) -> Expect {
        expect_elements(self.plan.parts(peer) * self.len)
    }

    fn store(&mut self, peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = self.plan.places(peer).start * self.len + offset / 4;
        get_f32(bytes, &mut self.vectors[start..start + bytes.len() / 4]);
    }
}

/// To each peer its chunk of the own parts' run; from each peer its parts of the own chunk.
struct Scatter<'a> {
    plan: &'a ReducePlan,
    /// `[own parts, len]`.
    parts: &'a [f32],
    /// `[parts_total, chunk_len]`.
    vectors: &'a mut [f32],
    len: usize,
    run: Range<usize>,
    chunk_len: usize,
    ranks: usize,
}

impl Payload for Scatter<'_> {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        bytes_of(self.parts.len() / self.len * chunk(peer, self.ranks, self.run.len()).len())
    }

    fn fill(&mut self, peer: usize, offset: usize, bytes: &mut [u8]) {
        let chunk = chunk(peer, self.ranks, self.run.len());
        let mut at = offset / 4;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (part, column) = (at / chunk.len(), at % chunk.len());
            let run = (chunk.len() - column).min(rest.len() / 4);
            let start = part * self.len + self.run.start + chunk.start + column;
            let (bytes, after) = rest.split_at_mut(4 * run);
            put_f32(bytes, &self.parts[start..start + run]);
            at += run;
            rest = after;
        }
    }

    fn incoming(&self, peer: usize) -> Expect {
        expect_elements(self.plan.parts(peer) * self.chunk_len)
    }

    fn store(&mut self, peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = self.plan.places(peer).start * self.chunk_len + offset / 4;
        get_f32(bytes, &mut self.vectors[start..start + bytes.len() / 4]);
    }
}

/// One vector of which every rank holds a slice: the own slice to everyone, theirs to their places.
pub(crate) struct Slices<'a, F> {
    vector: &'a mut [f32],
    slice: F,
    rank: usize,
}

impl<'a, F: Fn(usize) -> Range<usize>> Slices<'a, F> {
    /// `slice`: by rank, its elements of `vector`.
    pub fn new(vector: &'a mut [f32], slice: F, rank: usize) -> Self {
        Slices { vector, slice, rank }
    }
}

impl<F: Fn(usize) -> Range<usize>> Payload for Slices<'_, F> {
    fn outgoing(&self, _peer: usize) -> Option<usize> {
        bytes_of((self.slice)(self.rank).len())
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        let start = (self.slice)(self.rank).start + offset / 4;
        put_f32(bytes, &self.vector[start..start + bytes.len() / 4]);
    }

    fn incoming(&self, peer: usize) -> Expect {
        expect_elements((self.slice)(peer).len())
    }

    fn store(&mut self, peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = (self.slice)(peer).start + offset / 4;
        get_f32(bytes, &mut self.vector[start..start + bytes.len() / 4]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_vector_once_and_in_order() {
        for len in [1, 15, 16, 17, 100, 2048, 4097] {
            for ranks in 1..=16 {
                let chunks: Vec<_> = (0..ranks).map(|rank| chunk(rank, ranks, len)).collect();
                assert_eq!((chunks[0].start, chunks[ranks - 1].end), (0, len));
                assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }
}
