//! All-reduce with 8 bits a value on the wire, for links too slow for f32.
//!
//! Values travel in blocks of [`BLOCK`], as bytes and one scale: 1.125 bytes each instead of 4.
//! Parts are quantised before they leave, and so are totals before they return where a sum takes
//! two phases. A rank restores its own as well, so that **all ranks still hold the same bits**. But
//! these differ from those of a single machine and of another split: a value is off by up to 1/254
//! of the largest in its block, once for each of its parts and once more for a returned total.
//!
//! The algorithm depends only on the length of a vector, not on measured speeds: otherwise two runs
//! of one split would differ.

use std::ops::Range;

use crate::payload::{Expect, Payload};
use crate::plan::chunk;
use crate::scratch::grown;
use crate::wire::Op;
use crate::{Algorithm, CollectiveError, Group, ReducePlan, Wire};

/// Values that share a scale.
const BLOCK: usize = 32;

const SCALE_BYTES: usize = 4;

/// Steps from 0 to the largest value of a block.
const STEPS: f32 = 127.0;

/// Added to a number below 2^22, it leaves the nearest integer in the lowest bits. `f32::round`
/// compiles to a call on processors without a known rounding instruction.
const ROUNDING: f32 = 1.5 * (1u32 << 23) as f32;

impl Group {
    /// Whether sums are quantised; a single rank sends none.
    pub(crate) fn is_quantised(&self) -> bool {
        self.ranks() > 1 && self.options().wire == Wire::Q8
    }

    /// In two phases, each rank gets its chunk of all parts and returns the total to every rank; in
    /// one, every rank gets all parts of every rank. `parts`, `total` as for [`Group::all_reduce`].
    pub(crate) fn quantised_all_reduce(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        total: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), CollectiveError> {
        let mut buffers = std::mem::take(&mut self.quantised);
        let (len, ranks) = (total.len(), self.ranks());
        let is_long = 4 * len >= self.options().two_phase_bytes_min;
        let algorithm = self.options().algorithm;
        let in_two = algorithm == Algorithm::TwoPhase || algorithm == Algorithm::Auto && is_long;
        let done = if in_two {
            let span = |rank| chunk(rank, ranks, len);
            self.quantised_sums(Op::ReduceScatter, plan, parts, span, scratch, &mut buffers)
                .and_then(|sums| self.quantised_return(sums, total, span, &mut buffers))
        } else {
            let span = |_| 0..len;
            self.quantised_sums(Op::Reduce, plan, parts, span, scratch, &mut buffers)
                .map(|sums| total.copy_from_slice(sums))
        };
        self.quantised = buffers;
        done
    }

    /// The first phase: the total of this rank's span, in `scratch`. `span`: by rank, the range of
    /// elements that it sums.
    fn quantised_sums<'a>(
        &mut self,
        op: Op,
        plan: &ReducePlan,
        parts: &[f32],
        span: impl Fn(usize) -> Range<usize>,
        scratch: &'a mut Vec<f32>,
        [outgoing, incoming]: &mut [Vec<u8>; 2],
    ) -> Result<&'a [f32], CollectiveError> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let (own, len) = (span(rank), parts.len() / plan.parts(rank).max(1));
        let span_bytes = |rank: usize| quantised_bytes(span(rank).len());
        // Each rank gets the own parts of its span; this rank gets every rank's parts of the own
        // span.
        let sent = |peer: usize| plan.parts(rank) * span_bytes(peer);
        let come = |peer: usize| plan.parts(peer) * span_bytes(rank);
        let outgoing = grown(outgoing, run(ranks, sent).end);
        let incoming = grown(incoming, run(ranks, come).end);
        for peer in 0..ranks {
            let pieces = outgoing[slot(peer, sent)].chunks_exact_mut(span_bytes(peer).max(1));
            for (piece, part) in pieces.zip(parts.chunks_exact(len.max(1))) {
                quantise(&part[span(peer)], piece);
            }
        }
        let (out, into) = (|peer| slot(peer, sent), |peer| slot(peer, come));
        incoming[into(rank)].copy_from_slice(&outgoing[out(rank)]);
        self.exchange(op, &mut Slots { outgoing, out, incoming, into, rank })?;
        let vectors = grown(scratch, plan.parts_total() * own.len());
        for peer in 0..ranks {
            let bytes = incoming[slot(peer, come)].chunks_exact(span_bytes(rank).max(1));
            for (place, piece) in plan.places(peer).zip(bytes) {
                restore(piece, &mut vectors[place * own.len()..(place + 1) * own.len()]);
            }
        }
        plan.finish(vectors, own.len());
        Ok(&vectors[..own.len()])
    }

    /// The second phase: sends the own total to every rank and receives theirs.
    fn quantised_return(
        &mut self,
        own: &[f32],
        total: &mut [f32],
        span: impl Fn(usize) -> Range<usize>,
        [outgoing, incoming]: &mut [Vec<u8>; 2],
    ) -> Result<(), CollectiveError> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let span_bytes = |rank: usize| quantised_bytes(span(rank).len());
        let outgoing = grown(outgoing, span_bytes(rank));
        let incoming = grown(incoming, run(ranks, span_bytes).end);
        quantise(own, outgoing);
        let (out, into) = (|_| 0..span_bytes(rank), |peer| slot(peer, span_bytes));
        incoming[into(rank)].copy_from_slice(outgoing);
        self.exchange(Op::AllGather, &mut Slots { outgoing, out, incoming, into, rank })?;
        for peer in 0..ranks {
            restore(&incoming[slot(peer, span_bytes)], &mut total[span(peer)]);
        }
        Ok(())
    }
}

/// The bytes of all ranks below `rank`; `bytes` returns those of one rank.
fn run(rank: usize, bytes: impl Fn(usize) -> usize) -> Range<usize> {
    0..(0..rank).map(bytes).sum()
}

/// The byte range of `rank`; `bytes` returns the length of one rank.
fn slot(rank: usize, bytes: impl Fn(usize) -> usize + Copy) -> Range<usize> {
    run(rank, bytes).end..run(rank + 1, bytes).end
}

/// Bytes of `len` quantised values.
fn quantised_bytes(len: usize) -> usize {
    len + SCALE_BYTES * len.div_ceil(BLOCK)
}

/// `bytes`: `[quantised_bytes(values.len())]`, block by block a scale and its values.
fn quantise(values: &[f32], bytes: &mut [u8]) {
    let mut rest = bytes;
    for block in values.chunks(BLOCK) {
        let (bytes, after) = rest.split_at_mut(SCALE_BYTES + block.len());
        let (scale_bytes, steps) = bytes.split_at_mut(SCALE_BYTES);
        // Positive floats sort like their bits, with infinities and NaNs above all others.
        let magnitude = |value: &f32| (value.to_bits() & i32::MAX as u32) as i32;
        let largest = block.iter().map(magnitude).fold(0, i32::max);
        let largest = f32::from_bits(largest as u32);
        // A NaN or infinity must arrive as NaN, not as a small number.
        let scale = if largest.is_finite() { largest / STEPS } else { f32::NAN };
        let per_step = if scale > 0.0 { STEPS / largest } else { 0.0 };
        scale_bytes.copy_from_slice(&scale.to_le_bytes());
        for (step, value) in steps.iter_mut().zip(block) {
            *step = (value * per_step + ROUNDING).to_bits() as u8;
        }
        rest = after;
    }
}

fn restore(bytes: &[u8], values: &mut [f32]) {
    let mut rest = bytes;
    for block in values.chunks_mut(BLOCK) {
        let (bytes, after) = rest.split_at(SCALE_BYTES + block.len());
        let (scale, steps) = bytes.split_first_chunk().expect("a block begins with its scale");
        let scale = f32::from_le_bytes(*scale);
        for (value, step) in block.iter_mut().zip(steps) {
            *value = f32::from(*step as i8) * scale;
        }
        rest = after;
    }
}

/// Sends each peer its slot of one buffer and receives its slot of the other.
struct Slots<'a, O, I> {
    outgoing: &'a [u8],
    out: O,
    incoming: &'a mut [u8],
    into: I,
    rank: usize,
}

impl<O, I> Payload for Slots<'_, O, I>
where
    O: Fn(usize) -> Range<usize>,
    I: Fn(usize) -> Range<usize>,
{
    fn outgoing(&self, peer: usize) -> Option<usize> {
        let len = (self.out)(peer).len();
        (peer != self.rank && len > 0).then_some(len)
    }

    fn fill(&mut self, peer: usize, offset: usize, bytes: &mut [u8]) {
        let start = (self.out)(peer).start + offset;
        bytes.copy_from_slice(&self.outgoing[start..start + bytes.len()]);
    }

    fn incoming(&self, peer: usize) -> Expect {
        match (self.into)(peer).len() {
            0 => Expect::Nothing,
            len => Expect::Bytes(len),
        }
    }

    fn store(&mut self, peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = (self.into)(peer).start + offset;
        self.incoming[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_off_by_at_most_half_a_step_of_its_block() {
        for len in [0, 1, 31, 32, 33, 100, 4096] {
            let values: Vec<f32> =
                (0..len).map(|at| ((at * 7919) % 1001) as f32 / 10.0 - 50.0).collect();
            let mut bytes = vec![0; quantised_bytes(len)];
            quantise(&values, &mut bytes);
            let mut back = vec![f32::NAN; len];
            restore(&bytes, &mut back);
            for (block, found) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                for (value, found) in block.iter().zip(found) {
                    // A little more than half a step, for rounding errors.
                    assert!((value - found).abs() <= largest / (2.0 * STEPS) * 1.001);
                }
            }
        }
    }

    #[test]
    fn zero_stays_zero_and_what_is_no_number_stays_none() {
        for (values, is_finite) in
            [([0.0, -0.0, 0.0], true), ([1.0, f32::NAN, 0.0], false), ([f32::INFINITY; 3], false)]
        {
            let mut bytes = vec![0; quantised_bytes(3)];
            quantise(&values, &mut bytes);
            let mut back = [9.0; 3];
            restore(&bytes, &mut back);
            assert_eq!(back.iter().all(|value| value.is_finite()), is_finite, "{values:?}");
            assert!(!is_finite || back == [0.0; 3]);
        }
    }
}
