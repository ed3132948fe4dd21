//! The link to one rank of another stage, and what has come by it that nobody has asked for yet.

use std::collections::VecDeque;

use crate::CollectiveError;
use crate::lane::{Lane, admit};
use crate::payload::{Expect, append};
use crate::wire::Op;

/// Messages that are kept for later, of one peer: more than steps are ever in flight. Beyond that
/// the peer has to wait.
const KEPT_MAX: usize = 64;

/// The link to one rank of another stage.
pub(crate) struct Pipe {
    pub lane: Lane,
    /// Whole messages that nobody has asked for yet, the oldest first.
    kept: VecDeque<Vec<u8>>,
    /// The message that is coming in, and its whole length once that is known.
    partial: Vec<u8>,
    total: Option<usize>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl Pipe {
    pub fn new(lane: Lane) -> Self {
        let (kept, partial, spare) = Default::default();
        Pipe { lane, kept, partial, total: None, spare }
    }

    /// Takes in what is here; `true` if something moved.
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

    /// Whether the beginning of a message is here, and not its end.
    pub fn has_begun(&self) -> bool {
        self.total.is_some()
    }

    /// Hands the oldest message out, if there is one.
    pub fn take(&mut self, message: &mut Vec<u8>) -> bool {
        let Some(oldest) = self.kept.pop_front() else { return false };
        self.spare.push(std::mem::replace(message, oldest));
        true
    }
}

/// Takes in what has come through any pipe; `true` if something moved.
pub(crate) fn drain(pipes: &mut [Pipe], bytes_max: usize) -> Result<bool, CollectiveError> {
    pipes.iter_mut().try_fold(false, |moved, pipe| Ok(moved | pipe.drain(bytes_max)?))
}
