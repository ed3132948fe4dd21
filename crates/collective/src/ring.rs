//! Collectives round a ring: each rank talks to its two neighbours only. Broadcast, gather and
//! barrier pass whole messages on, one hop at a time.
//!
//! An all-reduce that passes *running* sums adds in an order that depends on the number of ranks.
//! This one passes sums of the tree's nodes instead. On its way round, each chunk of the vector
//! collects the parts of one rank after the other, and as soon as two siblings have met, their sum
//! replaces them. The result is the tree's, to the last bit.
//!
//! The cost: a bundle for a run of ranks holds the largest complete subtrees of their leaves, at
//! most `2 log2(ranks)` vectors instead of one running sum. For an even split over 4 and 8 ranks
//! that is 1.5 and 2.1 vectors on average, so with the way back a link carries 1.25 and 1.6 times
//! the bytes of the inexact ring; and `ranks - 1` hops of latency twice, as in any ring. So a ring
//! pays only where the other algorithms are impossible: where not every pair of ranks has a link.

use std::ops::Range;

use sumtree::LEAVES_MAX;

use crate::payload::{BytesIn, BytesOut, Expect, Payload, bytes_of, expect_elements, slice_of};
use crate::plan::{CHUNK_STEP, chunk};
use crate::scratch::grown;
use crate::wire::{Op, get_f32, put_f32};
use crate::{CollectiveError, Group, ReducePlan};

impl Group {
    /// An exact all-reduce round the ring; see the module. `parts`, `total` as for
    /// [`Group::all_reduce`].
    pub(crate) fn ring_all_reduce(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        total: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), CollectiveError> {
        let own = self.ring_reduce(plan, parts, total.len(), scratch)?;
        let (rank, ranks, len) = (self.rank(), self.ranks(), total.len());
        total[chunk(rank, ranks, len)].copy_from_slice(own);
        self.ring_all_gather(total, |rank| chunk(rank, ranks, len))
    }

    /// The first half: returns this rank's chunk of the total, in `scratch`.
    pub(crate) fn ring_reduce<'a>(
        &mut self,
        plan: &ReducePlan,
        parts: &[f32],
        len: usize,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], CollectiveError> {
        let (rank, ranks) = (self.rank(), self.ranks());
        // Two bundles, an outgoing and an incoming one, each with room for own parts.
        let room = plan.parts_total() * (len / ranks + 2 * CHUNK_STEP);
        let (left, right) = grown(scratch, 2 * room).split_at_mut(room);
        let (mut held, mut coming) = (Bundle::new(left), Bundle::new(right));
        // The chunk of rank `c` starts at rank `c + 1` and ends at `c`.
        let mut place = (rank + ranks - 1) % ranks;
        held.start(chunk(place, ranks, len).len(), Nodes::default());
        held.add(plan, rank, parts, len, chunk(place, ranks, len));
        for hop in 1..ranks {
            place = (place + ranks - 1) % ranks;
            let chunk = chunk(place, ranks, len);
            coming.start(chunk.len(), Nodes::of_run(plan, (place + 1) % ranks, hop));
            let (to, from) = self.neighbours();
            self.exchange(Op::RingReduce, &mut Hop { to, from, held: &held, coming: &mut coming })?;
            coming.add(plan, rank, parts, len, chunk);
            std::mem::swap(&mut held, &mut coming);
        }
        assert_eq!(held.nodes.ranges().len(), 1, "all parts have met");
        let at = held.slots[0] * held.len;
        Ok(&held.vectors[at..][..held.len])
    }

    /// Sends every rank's slice of `vector` to every rank, from neighbour to neighbour.
    pub(crate) fn ring_all_gather(
        &mut self,
        vector: &mut [f32],
        slice: impl Fn(usize) -> Range<usize>,
    ) -> Result<(), CollectiveError> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let (to, from) = self.neighbours();
        for hop in 0..ranks - 1 {
            let outgoing = slice((rank + ranks - hop) % ranks);
            let incoming = slice((rank + ranks - hop - 1) % ranks);
            let payload = &mut Relay { to, from, vector, outgoing, incoming };
            self.exchange(Op::AllGather, payload)?;
        }
        Ok(())
    }

    /// Passes `message` of `root` on until all ranks have it.
    pub(crate) fn ring_broadcast(
        &mut self,
        root: usize,
        message: &mut Vec<u8>,
    ) -> Result<(), CollectiveError> {
        let (to, from) = self.neighbours();
        let bytes_max = self.options().bytes_max;
        if self.rank() != root {
            self.exchange(Op::Broadcast, &mut BytesIn { from, bytes_max, bytes: message })?;
        }
        if to == root {
            return Ok(());
        }
        self.exchange(Op::Broadcast, &mut BytesOut { to: Some(to), bytes: message })
    }

    /// Passes every rank's slice round; `root` keeps them.
    pub(crate) fn ring_gather(
        &mut self,
        root: usize,
        own: &[f32],
        lens: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let passing = grown(&mut scratch, lens.iter().sum());
        passing[slice_of(lens, self.rank())].copy_from_slice(own);
        let done = self.ring_all_gather(passing, |rank| slice_of(lens, rank));
        if done.is_ok() && self.rank() == root {
            all.copy_from_slice(passing);
        }
        self.scratch = scratch;
        done
    }

    /// After `ranks - 1` hops every rank has heard from every other.
    pub(crate) fn ring_barrier(&mut self) -> Result<(), CollectiveError> {
        let (to, from) = self.neighbours();
        (1..self.ranks()).try_for_each(|_| self.exchange(Op::Barrier, &mut Token { to, from }))
    }

    /// The ranks that this one sends to and receives from.
    pub(crate) fn neighbours(&self) -> (usize, usize) {
        let (rank, ranks) = (self.rank(), self.ranks());
        ((rank + 1) % ranks, (rank + ranks - 1) % ranks)
    }
}

/// An empty message to the next rank, and one from the rank before.
struct Token {
    to: usize,
    from: usize,
}

impl Payload for Token {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        (peer == self.to).then_some(0)
    }

    fn incoming(&self, peer: usize) -> Expect {
        if peer == self.from { Expect::Bytes(0) } else { Expect::Nothing }
    }
}

/// Subtrees from left to right, each as its range of leaves.
#[derive(Clone, Default)]
struct Nodes {
    ranges: [Range<usize>; LEAVES_MAX],
    count: usize,
}

impl Nodes {
    /// The nodes of a bundle with the parts of `count` ranks from `first` on.
    fn of_run(plan: &ReducePlan, first: usize, count: usize) -> Self {
        let ranks = plan.ranks();
        let mut nodes = Nodes::default();
        for (place, subtree) in plan.subtrees().iter().enumerate() {
            let is_collected = |step: usize| plan.places((first + step) % ranks).contains(&place);
            if (0..count).any(is_collected) {
                nodes.push(subtree.clone());
                while nodes.has_siblings(plan.leaves()) {
                    nodes.merge();
                }
            }
        }
        nodes
    }

    fn ranges(&self) -> &[Range<usize>] {
        &self.ranges[..self.count]
    }

    fn push(&mut self, range: Range<usize>) {
        self.ranges[self.count] = range;
        self.count += 1;
    }

    /// Whether the last two are the halves of one node.
    fn has_siblings(&self, leaves: usize) -> bool {
        let [.., left, right] = self.ranges() else { return false };
        left.end == right.start && sumtree::is_node(leaves, left.start..right.end)
    }

    /// Merges the last two.
    fn merge(&mut self) {
        self.count -= 1;
        self.ranges[self.count - 1].end = self.ranges[self.count].end;
    }
}

/// The sums of some nodes for one chunk.
struct Bundle<'a> {
    /// `[nodes, len]` f32 and more; node `n` is at slot `slots[n]`.
    vectors: &'a mut [f32],
    nodes: Nodes,
    slots: [usize; LEAVES_MAX],
    /// Elements of the chunk.
    len: usize,
}

impl<'a> Bundle<'a> {
    fn new(vectors: &'a mut [f32]) -> Self {
        let slots = std::array::from_fn(|slot| slot);
        Bundle { vectors, nodes: Nodes::default(), slots, len: 0 }
    }

    /// Prepares the bundle to receive these nodes.
    fn start(&mut self, len: usize, nodes: Nodes) {
        (self.len, self.nodes) = (len, nodes);
        self.slots = std::array::from_fn(|slot| slot);
    }

    /// Adds the elements `chunk` of the parts of `rank`, `[parts, len]`: copies them in, then sums
    /// the completed nodes.
    fn add(
        &mut self,
        plan: &ReducePlan,
        rank: usize,
        parts: &[f32],
        len: usize,
        chunk: Range<usize>,
    ) {
        let received = std::mem::take(&mut self.nodes);
        let received_slots = self.slots;
        let own = plan.places(rank);
        for (at, part) in parts.chunks_exact(len).enumerate() {
            let start = (received.count + at) * self.len;
            self.vectors[start..start + self.len].copy_from_slice(&part[chunk.clone()]);
        }
        let (mut next_received, mut next_own) = (0, 0);
        while next_received < received.count || next_own < own.len() {
            let theirs = received.ranges().get(next_received);
            let ours = plan.subtrees()[own.clone()].get(next_own);
            let (range, slot) = match (theirs, ours) {
                (Some(theirs), Some(ours)) if theirs.start < ours.start => {
                    (theirs, received_slots[next_received])
                }
                (_, Some(ours)) => (ours, received.count + next_own),
                (Some(theirs), None) => (theirs, received_slots[next_received]),
                (None, None) => break,
            };
            next_received += usize::from(slot < received.count);
            next_own += usize::from(slot >= received.count);
            self.slots[self.nodes.count] = slot;
            self.nodes.push(range.clone());
            while self.nodes.has_siblings(plan.leaves()) {
                self.sum_siblings();
            }
        }
    }

    fn sum_siblings(&mut self) {
        let count = self.nodes.count;
        let [left, right] = [self.slots[count - 2], self.slots[count - 1]].map(|s| s * self.len);
        let len = self.len;
        // The sum takes the lower of the two slots; both orders of two round alike.
        let (low, high) = (left.min(right), left.max(right));
        let (before, after) = self.vectors.split_at_mut(high);
        for (into, from) in before[low..low + len].iter_mut().zip(&after[..len]) {
            *into += from;
        }
        self.slots[count - 2] = self.slots[count - 2].min(self.slots[count - 1]);
        self.nodes.merge();
    }
}

/// One step of a chunk's bundle round the ring.
struct Hop<'a, 'b> {
    to: usize,
    from: usize,
    held: &'a Bundle<'b>,
    coming: &'a mut Bundle<'b>,
}

impl Payload for Hop<'_, '_> {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        (peer == self.to).then(|| bytes_of(self.held.nodes.count * self.held.len)).flatten()
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        let len = self.held.len;
        let (mut at, mut rest) = (offset / 4, bytes);
        while !rest.is_empty() {
            let (node, column) = (at / len, at % len);
            let run = (len - column).min(rest.len() / 4);
            let start = self.held.slots[node] * len + column;
            let (bytes, after) = rest.split_at_mut(4 * run);
            put_f32(bytes, &self.held.vectors[start..start + run]);
            (at, rest) = (at + run, after);
        }
    }

    fn incoming(&self, peer: usize) -> Expect {
        if peer != self.from {
            return Expect::Nothing;
        }
        expect_elements(self.coming.nodes.count * self.coming.len)
    }

    fn store(&mut self, _peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = offset / 4;
        get_f32(bytes, &mut self.coming.vectors[start..start + bytes.len() / 4]);
    }
}

/// One step of slices round the ring.
struct Relay<'a> {
    to: usize,
    from: usize,
    vector: &'a mut [f32],
    outgoing: Range<usize>,
    incoming: Range<usize>,
}

impl Payload for Relay<'_> {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        (peer == self.to).then(|| bytes_of(self.outgoing.len())).flatten()
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        let start = self.outgoing.start + offset / 4;
        put_f32(bytes, &self.vector[start..start + bytes.len() / 4]);
    }

    fn incoming(&self, peer: usize) -> Expect {
        if peer == self.from { expect_elements(self.incoming.len()) } else { Expect::Nothing }
    }

    fn store(&mut self, _peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = self.incoming.start + offset / 4;
        get_f32(bytes, &mut self.vector[start..start + bytes.len() / 4]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that all links carry for all chunks, for an even split of 16 leaves; running
    /// sums would be `ranks * (ranks - 1)`.
    #[test]
    fn a_bundle_is_little_more_than_a_running_sum() {
        for (ranks, expected) in [(2, 2), (4, 18), (8, 120)] {
            let spans: Vec<_> =
                (0..ranks).map(|rank| 16 * rank / ranks..16 * (rank + 1) / ranks).collect();
            let plan = ReducePlan::new(16, &spans).unwrap();
            let mut carried = 0;
            for first in 0..ranks {
                for count in 1..ranks {
                    carried += Nodes::of_run(&plan, first, count).count;
                }
            }
            assert_eq!(carried, expected, "{ranks} ranks");
        }
    }

    #[test]
    fn a_whole_round_is_one_node() {
        let plan = ReducePlan::new(7, &[2..5, 0..0, 5..7, 0..2]).unwrap();
        for first in 0..4 {
            let whole = 0..7;
            assert_eq!(Nodes::of_run(&plan, first, 4).ranges(), std::slice::from_ref(&whole));
        }
        assert_eq!(Nodes::of_run(&plan, 0, 1).ranges(), [2..4, 4..5]);
        assert_eq!(Nodes::of_run(&plan, 2, 2).ranges(), [0..2, 5..6, 6..7]);
    }
}
