//! All-reduce with 8 bits a value on the wire, for links too slow for f32.
//!
//! Values travel in blocks of [`BLOCK`], as bytes and one scale: 1.125 bytes each instead of 4.
//! Parts are quantised before they leave, and so are totals. A rank restores its own as well, so
//! that **all ranks still hold the same bits**. But these differ from those of a single machine and
//! of another split: a value is off by up to 1/254 of the largest in its block, once for each of
//! its parts and once more for the total.
//!
//! **A row's total does not depend on the rows beside it**: no block crosses the end of a row,
//! chunks end where blocks end, and a total is quantised whether one phase or two made it. So the
//! algorithm may follow from the length of a message and the links' speed, as for f32.

use std::ops::Range;

use crate::payload::{Expect, Payload};
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

    /// In two phases, each rank gets its blocks of all parts and returns the total to every rank;
    /// in one, every rank gets all parts of every rank. `rows`, `parts`, `total` as for
    /// [`Group::all_reduce`].
    pub(crate) fn quantised_all_reduce(
        &mut self,
        plan: &ReducePlan,
        rows: usize,
        parts: &[f32],
        total: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), CollectiveError> {
        let blocks = Blocks { width: total.len() / rows, rows };
        let algorithm = self.choose(plan, blocks.bytes_before(blocks.count()) / size_of::<f32>());
        let is_in_two = algorithm == Algorithm::TwoPhase;
        let sums = Sums { blocks, ranks: self.ranks(), is_in_two };
        let mut buffers = std::mem::take(&mut self.quantised);
        let done = match self.quantised_sums(plan, sums, parts, scratch, &mut buffers) {
            Ok(own) if is_in_two => self.quantised_return(sums, own, total, &mut buffers),
            own => own.map(|own| blocks.round(own, total, &mut buffers[0])),
        };
        self.quantised = buffers;
        done
    }

    /// The first phase: the total of this rank's span, in `scratch`.
    fn quantised_sums<'a>(
        &mut self,
        plan: &ReducePlan,
        sums: Sums,
        parts: &[f32],
        scratch: &'a mut Vec<f32>,
        [outgoing, incoming]: &mut [Vec<u8>; 2],
    ) -> Result<&'a [f32], CollectiveError> {
        let blocks = sums.blocks;
        let span = |rank| sums.span(rank);
        let (rank, ranks) = (self.rank(), self.ranks());
        let own = blocks.values(span(rank));
        let span_bytes = |rank: usize| blocks.bytes(span(rank)).len();
        // Each rank gets the own parts of its span; this rank gets every rank's parts of the own
        // span.
        let sent = |peer: usize| plan.parts(rank) * span_bytes(peer);
        let come = |peer: usize| plan.parts(peer) * span_bytes(rank);
        let outgoing = grown(outgoing, run(ranks, sent).end);
        let incoming = grown(incoming, run(ranks, come).end);
        for peer in 0..ranks {
            let pieces = outgoing[slot(peer, sent)].chunks_exact_mut(span_bytes(peer).max(1));
            for (piece, part) in pieces.zip(parts.chunks_exact(blocks.len())) {
                blocks.quantise(span(peer), &part[blocks.values(span(peer))], piece);
            }
        }
        let (out, into) = (|peer| slot(peer, sent), |peer| slot(peer, come));
        incoming[into(rank)].copy_from_slice(&outgoing[out(rank)]);
        let op = if sums.is_in_two { Op::ReduceScatter } else { Op::Reduce };
        self.exchange(op, &mut Slots { outgoing, out, incoming, into, rank })?;
        let vectors = grown(scratch, plan.parts_total() * own.len());
        for peer in 0..ranks {
            let bytes = incoming[slot(peer, come)].chunks_exact(span_bytes(rank).max(1));
            for (place, piece) in plan.places(peer).zip(bytes) {
                let vector = &mut vectors[place * own.len()..(place + 1) * own.len()];
                blocks.restore(span(rank), piece, vector);
            }
        }
        plan.finish(vectors, own.len());
        Ok(&vectors[..own.len()])
    }

    /// The second phase: sends the own total to every rank and receives theirs.
    fn quantised_return(
        &mut self,
        sums: Sums,
        own: &[f32],
        total: &mut [f32],
        [outgoing, incoming]: &mut [Vec<u8>; 2],
    ) -> Result<(), CollectiveError> {
        let (rank, ranks, blocks) = (self.rank(), self.ranks(), sums.blocks);
        let into = |peer| blocks.bytes(sums.span(peer));
        let outgoing = grown(outgoing, into(rank).len());
        let incoming = grown(incoming, into(ranks - 1).end);
        blocks.quantise(sums.span(rank), own, outgoing);
        let out = |_| 0..into(rank).len();
        incoming[into(rank)].copy_from_slice(outgoing);
        self.exchange(Op::AllGather, &mut Slots { outgoing, out, incoming, into, rank })?;
        blocks.restore(0..blocks.count(), incoming, total);
        Ok(())
    }
}

/// Which rank sums what.
#[derive(Debug, Clone, Copy)]
struct Sums {
    blocks: Blocks,
    ranks: usize,
    is_in_two: bool,
}

impl Sums {
    /// The blocks that `rank` sums: in one phase all, in two its chunk.
    fn span(self, rank: usize) -> Range<usize> {
        let border = |rank: usize| self.blocks.count() * rank / self.ranks;
        if self.is_in_two { border(rank)..border(rank + 1) } else { 0..self.blocks.count() }
    }
}

/// The blocks of a vector of `rows` rows. The last block of a row may be shorter than [`BLOCK`].
#[derive(Debug, Clone, Copy)]
struct Blocks {
    rows: usize,
    width: usize,
}

impl Blocks {
    fn len(self) -> usize {
        self.rows * self.width
    }

    fn of_row(self) -> usize {
        self.width.div_ceil(BLOCK)
    }

    fn count(self) -> usize {
        self.rows * self.of_row()
    }

    /// The values of all blocks before block `at`.
    fn values_before(self, at: usize) -> usize {
        let (row, block) = (at / self.of_row(), at % self.of_row());
        row * self.width + block * BLOCK
    }

    /// The bytes of all blocks before block `at`.
    fn bytes_before(self, at: usize) -> usize {
        self.values_before(at) + SCALE_BYTES * at
    }

    fn values(self, blocks: Range<usize>) -> Range<usize> {
        self.values_before(blocks.start)..self.values_before(blocks.end)
    }

    fn bytes(self, blocks: Range<usize>) -> Range<usize> {
        self.bytes_before(blocks.start)..self.bytes_before(blocks.end)
    }

    /// `values`: those of `blocks`; `bytes` gets each block's scale and its values.
    fn quantise(self, blocks: Range<usize>, values: &[f32], bytes: &mut [u8]) {
        let (mut values, mut bytes) = (values, bytes);
        for block in blocks {
            let len = self.values(block..block + 1).len();
            let (block, values_after) = values.split_at(len);
            let (block_bytes, bytes_after) = bytes.split_at_mut(SCALE_BYTES + len);
            quantise(block, block_bytes);
            (values, bytes) = (values_after, bytes_after);
        }
    }

    /// The other way: `bytes` are those of `blocks`.
    fn restore(self, blocks: Range<usize>, bytes: &[u8], values: &mut [f32]) {
        let (mut bytes, mut values) = (bytes, values);
        for block in blocks {
            let len = self.values(block..block + 1).len();
            let (block_bytes, bytes_after) = bytes.split_at(SCALE_BYTES + len);
            let (block, values_after) = values.split_at_mut(len);
            restore(block_bytes, block);
            (bytes, values) = (bytes_after, values_after);
        }
    }

    /// `total` gets `sums` as two phases would return them.
    fn round(self, sums: &[f32], total: &mut [f32], buffer: &mut Vec<u8>) {
        let bytes = grown(buffer, self.bytes_before(self.count()));
        self.quantise(0..self.count(), sums, bytes);
        self.restore(0..self.count(), bytes, total);
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

/// `bytes`: `[SCALE_BYTES + values.len()]`, the scale of a block and its values.
fn quantise(values: &[f32], bytes: &mut [u8]) {
    let (scale_bytes, steps) = bytes.split_at_mut(SCALE_BYTES);
    // Positive floats sort like their bits, with infinities and NaNs above all others.
    let magnitude = |value: &f32| (value.to_bits() & i32::MAX as u32) as i32;
    let largest = values.iter().map(magnitude).fold(0, i32::max);
    let largest = f32::from_bits(largest as u32);
    // A NaN or infinity must arrive as NaN, not as a small number.
    let scale = if largest.is_finite() { largest / STEPS } else { f32::NAN };
    let per_step = if scale > 0.0 { STEPS / largest } else { 0.0 };
    scale_bytes.copy_from_slice(&scale.to_le_bytes());
    for (step, value) in steps.iter_mut().zip(values) {
        *step = (value * per_step + ROUNDING).to_bits() as u8;
    }
}

fn restore(bytes: &[u8], values: &mut [f32]) {
    let (scale, steps) = bytes.split_first_chunk().expect("a block begins with its scale");
    let scale = f32::from_le_bytes(*scale);
    for (value, step) in values.iter_mut().zip(steps) {
        *value = f32::from(*step as i8) * scale;
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

    /// `values`, in rows of `width`, after they went over the wire.
    fn sent(values: &[f32], width: usize) -> Vec<f32> {
        let blocks = Blocks { width, rows: values.len() / width };
        let mut back = vec![f32::NAN; values.len()];
        blocks.round(values, &mut back, &mut Vec::new());
        back
    }

    #[test]
    fn a_value_is_off_by_at_most_half_a_step_of_its_block() {
        for width in [1, 31, 32, 33, 100, 4096] {
            let values: Vec<f32> =
                (0..3 * width).map(|at| ((at * 7919) % 1001) as f32 / 10.0 - 50.0).collect();
            let back = sent(&values, width);
            let rows = values.chunks(width).zip(back.chunks(width));
            for (block, found) in rows.flat_map(|(a, b)| a.chunks(BLOCK).zip(b.chunks(BLOCK))) {
                let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                for (value, found) in block.iter().zip(found) {
                    // A little more than half a step, for rounding errors.
                    assert!((value - found).abs() <= largest / (2.0 * STEPS) * 1.001);
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_whatever_is_beside_it() {
        for width in [1, 31, 33, 100, 576] {
            let row: Vec<f32> = (0..width).map(|at| ((at * 7919) % 1001) as f32 - 500.0).collect();
            let alone = sent(&row, width);
            let others = vec![1e6; 2 * width];
            let beside = sent(&[&others[..], &row, &others].concat(), width);
            assert_eq!(beside[2 * width..3 * width], alone, "{width}");
        }
    }

    #[test]
    fn chunks_hold_each_block_once() {
        for (rows, width) in [(1, 1), (1, 33), (3, 100), (7, 4096)] {
            let blocks = Blocks { rows, width };
            assert_eq!(blocks.values(0..blocks.count()), 0..rows * width);
            for ranks in 1..=16 {
                let sums = Sums { blocks, ranks, is_in_two: true };
                let chunks: Vec<_> = (0..ranks).map(|rank| sums.span(rank)).collect();
                assert_eq!((chunks[0].start, chunks[ranks - 1].end), (0, blocks.count()));
                assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }

    #[test]
    fn zero_stays_zero_and_what_is_no_number_stays_none() {
        for (values, is_finite) in
            [([0.0, -0.0, 0.0], true), ([1.0, f32::NAN, 0.0], false), ([f32::INFINITY; 3], false)]
        {
            let back = sent(&values, 3);
            assert_eq!(back.iter().all(|value| value.is_finite()), is_finite, "{values:?}");
            assert!(!is_finite || back == [0.0; 3]);
        }
    }
}
