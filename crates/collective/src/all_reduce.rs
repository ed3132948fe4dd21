//! All-reduce: adds every rank's partial sums into the tree's total, with the same bits on every
//! rank.

use std::ops::Range;

use crate::payload::{Expect, Payload, Slices, bytes_of, expect_elements};
use crate::plan::chunk;
use crate::scratch::grown;
use crate::wire::{Op, get_f32, put_f32};
use crate::{Algorithm, CollectiveError, Group, ReducePlan};

impl Group {
    /// Adds the parts of all ranks in the order of the summation tree.
    ///
    /// `parts`: `[plan.parts(rank), len]` f32, this rank's sums of its subtrees from left to right.
    /// `total`: `[len]` f32, on return the sum over all leaves: bit-identical on every rank and,
    /// except with [`crate::Wire::Q8`], to the result of a single machine. `rows`: the rows of
    /// `total`; the sum of each is the same, to the bit, whatever rows are beside it.
    pub fn all_reduce(
        &mut self,
        plan: &ReducePlan,
        rows: usize,
        parts: &[f32],
        total: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let rows = self.is_quantised().then_some(rows);
        self.all_reduce_by(plan, rows, parts, total)
    }

    /// Like [`Group::all_reduce`], but exact on any wire: for values that scale all later results.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_reduce_exact(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        total: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.all_reduce_by(plan, None, parts, total)
    }

    /// `quantised_rows`: the rows of `total`, if their sums are quantised.
    fn all_reduce_by(
        &mut self,
        plan: &ReducePlan,
        quantised_rows: Option<usize>,
        parts: &[f32],
        total: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.check_parts(plan, parts, total.len())?;
        if let Some(rows) = quantised_rows
            && (rows == 0 || !total.len().is_multiple_of(rows))
        {
            let (what, given) = ("elements of a whole number of rows", total.len());
            return Err(CollectiveError::Length { what, given, expected: rows });
        }
        if total.is_empty() {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let scratch_here = &mut scratch;
        let done = match (self.choose(plan, total.len()), quantised_rows) {
            (Algorithm::Ring, _) => self.ring_all_reduce(plan, parts, total, scratch_here),
            (_, Some(rows)) => self.quantised_all_reduce(plan, rows, parts, total, scratch_here),
            (Algorithm::TwoPhase, _) => self.two_phase(plan, parts, total, scratch_here),
            _ => self.one_shot(plan, parts, total, scratch_here),
        };
        self.scratch = scratch;
        done
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

    /// The first of the two phases, for the elements `run` of each part of `len`. Returns this
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

fn scale(range: Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// Sends all own parts to every rank and stores every rank's parts.
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

/// Sends each peer its chunk of the own parts' run; receives the peer's parts of the own chunk.
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
