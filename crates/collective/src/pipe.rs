//! The link to one rank of another stage, and the queue of its messages.

use std::collections::VecDeque;

use crate::CollectiveError;
use crate::lane::{Lane, admit};
use crate::payload::{Expect, append};
use crate::wire::Op;

/// Messages of one peer to keep: more than the steps ever in flight. Beyond that the peer has to
/// wait.
const KEPT_MAX: usize = 64;

/// The link to one rank of another stage.
pub(crate) struct Pipe {
    pub lane: Lane,
    /// Complete messages that have not been taken, the oldest first.
    kept: VecDeque<Vec<u8>>,
    /// The incoming message, and its total length once known.
    partial: Vec<u8>,
    total: Option<usize>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

impl Pipe {
    pub fn new(lane: Lane) -> Self {
        let (kept, partial, spare) = Default::default();
        Pipe { lane, kept, partial, total: None, spare }
    }

    /// Receives the bytes available; `true` after progress.
    pub fn drain(&mut self, bytes_max: usize) -> Result<bool, CollectiveError> {
        let mut moved = false;
        while self.kept.len() < KEPT_MAX {
            let Some(message) = self.lane.link.poll_recv()? else { break };
            self.lane.received_bytes += message.len() as u64;
            let (expect, received) = (Expect::AtMost(bytes_max), self.partial.len());
            let (total, bytes) =
                admit(self.lane.peer, Op::Send, expect, self.total, received, message)?;
            append(&mut self.partial, received, total, bytes);
            self.total = Some(total);
            self.lane.link.consume();
            if self.partial.len() == total {
                let next = self.spare.pop().unwrap_or_default();
                self.kept.push_back(std::mem::replace(&mut self.partial, next));
                self.partial.clear();
                self.total = None;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Whether a message has begun to arrive and is not complete.
    pub fn has_begun(&self) -> bool {
        self.total.is_some()
    }

    /// Hands out the oldest message, if there is one.
    pub fn take(&mut self, message: &mut Vec<u8>) -> bool {
        let Some(oldest) = self.kept.pop_front() else { return false };
        self.spare.push(std::mem::replace(message, oldest));
        true
    }
}

/// Drains all pipes; `true` after progress.
pub(crate) fn drain(pipes: &mut [Pipe], bytes_max: usize) -> Result<bool, CollectiveError> {
    pipes.iter_mut().try_fold(false, |moved, pipe| Ok(moved | pipe.drain(bytes_max)?))
}
