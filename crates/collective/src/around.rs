//! Broadcast, gather and barrier where not every pair of ranks has a link: from neighbour to
//! neighbour, whole messages one hop at a time. They cost up to `ranks - 1` hops.

use crate::all_reduce::grown;
use crate::exchange::{Expect, Payload};
use crate::rooted::{BytesIn, BytesOut, append, slice_of};
use crate::wire::Op;
use crate::{CollectiveError, Group};

impl Group {
    /// `message` of `root`, passed on until all have it.
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

    /// Every rank's slice passes every rank; `root` keeps them.
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

    /// Every rank's message passes every rank; `root`, whose `all` is not empty, keeps them.
    pub(crate) fn ring_gather_bytes(
        &mut self,
        own: &[u8],
        all: &mut [Vec<u8>],
    ) -> Result<(), CollectiveError> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let [mut passing, mut next] = std::mem::take(&mut self.passing);
        passing.clear();
        passing.extend_from_slice(own);
        let done = (1..ranks).try_for_each(|hop| {
            self.pass(Op::Gather, &passing, &mut next)?;
            if let Some(kept) = all.get_mut((rank + ranks - hop) % ranks) {
                kept.clone_from(&next);
            }
            std::mem::swap(&mut passing, &mut next);
            Ok(())
        });
        self.passing = [passing, next];
        done
    }

    /// After so many hops everyone has heard of everyone.
    pub(crate) fn ring_barrier(&mut self) -> Result<(), CollectiveError> {
        let mut nothing = Vec::new();
        (1..self.ranks()).try_for_each(|_| self.pass(Op::Barrier, &[], &mut nothing))
    }

    /// One message to the next rank, one from the rank before.
    fn pass(&mut self, op: Op, bytes: &[u8], next: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let (to, from) = self.neighbours();
        let bytes_max = self.options().bytes_max;
        self.exchange(op, &mut Pass { to, from, bytes, next, bytes_max })
    }
}

struct Pass<'a> {
    to: usize,
    from: usize,
    bytes: &'a [u8],
    next: &'a mut Vec<u8>,
    bytes_max: usize,
}

impl Payload for Pass<'_> {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        (peer == self.to).then_some(self.bytes.len())
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes[offset..offset + bytes.len()]);
    }

    fn incoming(&self, peer: usize) -> Expect {
        if peer == self.from { Expect::AtMost(self.bytes_max) } else { Expect::Nothing }
    }

    fn store(&mut self, _peer: usize, offset: usize, total: usize, bytes: &[u8]) {
        append(self.next, offset, total, bytes);
    }
}
