//! Broadcast, gather, all-gather, send, receive and barrier.

use std::time::Duration;

use crate::back_off::{BackOff, IDLE_LOOK, Phase};
use crate::payload::{BytesIn, BytesOut, Expect, Payload, Slices, slice_of};
use crate::wire::{Op, get_f32, put_f32};
use crate::{CollectiveError, Group};

impl Group {
    /// Copies `message` of `root` to all ranks. The others overwrite theirs and reuse its capacity.
    pub fn broadcast(&mut self, root: usize, message: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.check_rank(root)?;
        let bytes_max = self.options().bytes_max;
        if root == self.rank() {
            check_len(message.len(), bytes_max)?;
        }
        if self.is_sparse() {
            return self.ring_broadcast(root, message);
        }
        if root == self.rank() {
            self.exchange(Op::Broadcast, &mut BytesOut { to: None, bytes: message })
        } else {
            self.exchange(Op::Broadcast, &mut BytesIn { from: root, bytes_max, bytes: message })
        }
    }

    /// Like [`Group::broadcast`], but a long wait of the other ranks does not use the core: for
    /// ranks that are idle until `root` has work. After `wait` it returns `false` there, and they
    /// may call again. The abort flag and the loss of any rank end the wait.
    pub fn broadcast_idle(
        &mut self,
        root: usize,
        message: &mut Vec<u8>,
        wait: Duration,
    ) -> Result<bool, CollectiveError> {
        self.check_rank(root)?;
        if root != self.rank() {
            self.check()?;
            let source = if self.is_sparse() { self.neighbours().1 } else { root };
            let at = self.lane(source)?;
            let waited = self.wait_idle(at, wait);
            if !self.keep(waited)? {
                return Ok(false);
            }
        }
        self.broadcast(root, message).map(|()| true)
    }

    /// Copies every rank's slice of a vector to `root`.
    ///
    /// `own`: `[lens[rank]]` f32. `all`: on `root` `[sum of lens]` f32, filled in order of rank;
    /// unused elsewhere, where it may be empty. `lens` must be equal on all ranks.
    pub fn gather(
        &mut self,
        root: usize,
        own: &[f32],
        lens: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.check_rank(root)?;
        self.check_lens(own, lens)?;
        let total = lens.iter().sum();
        if root == self.rank() && all.len() != total {
            let what = "elements to gather into";
            return Err(CollectiveError::Length { what, given: all.len(), expected: total });
        }
        if self.is_sparse() {
            return self.ring_gather(root, own, lens, all);
        }
        if root != self.rank() {
            return self.exchange(Op::Gather, &mut FloatsOut { to: root, values: own });
        }
        all[slice_of(lens, root)].copy_from_slice(own);
        self.exchange(Op::Gather, &mut FloatsIn { lens, all })
    }

    /// Copies every rank's slice of a vector to every rank.
    ///
    /// `own`: `[lens[rank]]` f32. `all`: `[sum of lens]` f32, filled in order of rank. `lens` must
    /// be equal on all ranks.
    pub fn all_gather(
        &mut self,
        own: &[f32],
        lens: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.check_lens(own, lens)?;
        let total = lens.iter().sum();
        if all.len() != total {
            let what = "elements to gather into";
            return Err(CollectiveError::Length { what, given: all.len(), expected: total });
        }
        let rank = self.rank();
        all[slice_of(lens, rank)].copy_from_slice(own);
        if self.is_sparse() {
            return self.ring_all_gather(all, |peer| slice_of(lens, peer));
        }
        self.exchange(Op::AllGather, &mut Slices::new(all, |peer| slice_of(lens, peer), rank))
    }

    /// Sends f32 values to `to`, which must [`recv`](Group::recv) the same number.
    pub fn send(&mut self, to: usize, values: &[f32]) -> Result<(), CollectiveError> {
        self.check_peer(to)?;
        self.exchange(Op::Send, &mut FloatsOut { to, values })
    }

    /// Fills `values` with the values that `from` sends.
    pub fn recv(&mut self, from: usize, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.check_peer(from)?;
        self.exchange(Op::Send, &mut FloatsFrom { from, values })
    }

    /// Returns once every rank has called it.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        match self.is_sparse() {
            true => self.ring_barrier(),
            false => self.exchange(Op::Barrier, &mut Nothing),
        }
    }

    /// Waits for a message on `lanes[at]`; `false` after `wait`.
    fn wait_idle(&mut self, at: usize, wait: Duration) -> Result<bool, CollectiveError> {
        let abort = self.abort.clone();
        let mut back_off = BackOff::new(&abort, self.spin);
        while self.lanes[at].link.poll_recv()?.is_none() {
            if back_off.pause()? != Phase::Sleeping {
                continue;
            }
            if back_off.is_check_due() {
                self.check_links()?;
            }
            if back_off.waited() >= wait {
                return Ok(false);
            }
            self.lanes[at].link.wait_readable(IDLE_LOOK)?;
        }
        self.lanes[at].waited += back_off.total();
        Ok(true)
    }

    fn check_rank(&self, rank: usize) -> Result<(), CollectiveError> {
        if rank >= self.ranks() {
            return Err(CollectiveError::Links { rank, problem: "is not one of the group's" });
        }
        Ok(())
    }

    fn check_peer(&self, rank: usize) -> Result<(), CollectiveError> {
        self.check_rank(rank)?;
        if rank == self.rank() {
            return Err(CollectiveError::Links { rank, problem: "would talk to itself" });
        }
        self.lane(rank).map(|_| ())
    }

    fn check_lens(&self, own: &[f32], lens: &[usize]) -> Result<(), CollectiveError> {
        if lens.len() != self.ranks() {
            let (given, expected) = (lens.len(), self.ranks());
            return Err(CollectiveError::Length { what: "lengths by rank", given, expected });
        }
        if own.len() != lens[self.rank()] {
            let (given, expected) = (own.len(), lens[self.rank()]);
            return Err(CollectiveError::Length { what: "own elements", given, expected });
        }
        Ok(())
    }
}

fn check_len(bytes: usize, bytes_max: usize) -> Result<(), CollectiveError> {
    if bytes > bytes_max {
        let bytes = bytes as u64;
        return Err(CollectiveError::TooLong { what: "a message", bytes, bytes_max });
    }
    Ok(())
}

/// Values to one peer.
struct FloatsOut<'a> {
    to: usize,
    values: &'a [f32],
}

impl Payload for FloatsOut<'_> {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        (peer == self.to).then_some(4 * self.values.len())
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        put_f32(bytes, &self.values[offset / 4..(offset + bytes.len()) / 4]);
    }
}

/// Values from one peer.
struct FloatsFrom<'a> {
    from: usize,
    values: &'a mut [f32],
}

impl Payload for FloatsFrom<'_> {
    fn incoming(&self, peer: usize) -> Expect {
        if peer == self.from { Expect::Bytes(4 * self.values.len()) } else { Expect::Nothing }
    }

    fn store(&mut self, _peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        get_f32(bytes, &mut self.values[offset / 4..(offset + bytes.len()) / 4]);
    }
}

/// Stores each peer's slice.
struct FloatsIn<'a> {
    lens: &'a [usize],
    all: &'a mut [f32],
}

impl Payload for FloatsIn<'_> {
    fn incoming(&self, peer: usize) -> Expect {
        Expect::Bytes(4 * self.lens[peer])
    }

    fn store(&mut self, peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = slice_of(self.lens, peer).start + offset / 4;
        get_f32(bytes, &mut self.all[start..start + bytes.len() / 4]);
    }
}

/// An empty message to and from every rank.
struct Nothing;

impl Payload for Nothing {
    fn outgoing(&self, _peer: usize) -> Option<usize> {
        Some(0)
    }

    fn incoming(&self, _peer: usize) -> Expect {
        Expect::Bytes(0)
    }
}
