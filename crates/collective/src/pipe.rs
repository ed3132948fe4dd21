//! Messages between ranks of different stages: point to point, and never in anybody's way.
//!
//! The collectives of a [`Group`] run among the ranks of one stage. What a stage hands to the next
//! goes over *pipes*, the links to all other ranks. A rank that waits, for whatever it may be,
//! takes in what comes through its pipes and keeps it until it is asked for; so two ranks that send
//! to each other cannot wait for each other, and a stage computes while its next input arrives.

use std::collections::VecDeque;
use std::time::Duration;

use crate::back_off::{BackOff, Stage};
use crate::exchange::{Expect, Lane, admit};
use crate::patience::{check_signs, late};
use crate::rooted::{BytesOut, IDLE_LOOK, append};
use crate::wire::Op;
use crate::{CollectiveError, Group};

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
    fn drain(&mut self, bytes_max: usize) -> Result<bool, CollectiveError> {
        let mut moved = false;
        while self.kept.len() < KEPT_MAX {
            let Some(message) = self.lane.link.poll_recv()? else { break };
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

    /// Hands the oldest message out, if there is one.
    fn take(&mut self, message: &mut Vec<u8>) -> bool {
        let Some(oldest) = self.kept.pop_front() else { return false };
        self.spare.push(std::mem::replace(message, oldest));
        true
    }
}

/// Takes in what has come through any pipe; `true` if something moved.
pub(crate) fn drain(pipes: &mut [Pipe], bytes_max: usize) -> Result<bool, CollectiveError> {
    pipes.iter_mut().try_fold(false, |moved, pipe| Ok(moved | pipe.drain(bytes_max)?))
}

impl Group {
    /// Sends bytes to rank `to` of another stage, which must [`take`](Group::take) them.
    ///
    /// # Errors
    /// The rank is late or lost, or the message is too long.
    pub fn post(&mut self, to: usize, bytes: &[u8]) -> Result<(), CollectiveError> {
        self.check()?;
        let bytes_max = self.options().bytes_max;
        if bytes.len() > bytes_max {
            let bytes = bytes.len() as u64;
            return Err(CollectiveError::TooLong { what: "a message", bytes, bytes_max });
        }
        let at = self.pipe(to)?;
        let posted = self.push(at, &mut BytesOut { to: None, bytes });
        self.keep(posted)
    }

    fn push(&mut self, at: usize, payload: &mut BytesOut<'_>) -> Result<(), CollectiveError> {
        let (pipes, options) = (&mut self.pipes, &self.options);
        let mut back_off = BackOff::new(&self.abort, self.spin);
        pipes[at].lane.start(payload);
        while pipes[at].lane.is_sending() {
            let sent = pipes[at].lane.advance_send(Op::Send, payload)?;
            // What others send is taken in, but makes this peer no less late.
            let drained = drain(pipes, options.bytes_max)?;
            if sent {
                back_off.reset();
                continue;
            }
            let stage = back_off.pause()?;
            if stage == Stage::Spinning {
                continue;
            }
            check_signs(&self.lanes, pipes, options.silence_max)?;
            if back_off.waited() >= options.wait_max {
                return Err(late(pipes[at].lane.peer, back_off.waited(), options.wait_max));
            }
            if stage == Stage::Sleeping && !drained {
                std::thread::sleep(back_off.nap());
            }
        }
        Ok(())
    }

    /// Replaces `message` by the oldest that rank `from` of another stage has posted.
    ///
    /// # Errors
    /// The rank is late or lost.
    pub fn take(&mut self, from: usize, message: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let wait_max = self.options().wait_max;
        self.take_within(from, message, Some(wait_max))
    }

    /// As [`Group::take`], without a deadline and, once the wait is long, without using the core:
    /// for a stage that has nothing to do until there is work.
    ///
    /// # Errors
    /// A rank is lost, or the epoch was ended.
    pub fn take_idle(&mut self, from: usize, message: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.take_within(from, message, None)
    }

    /// As [`Group::take`], but only if the message is here already; `false` if it is not.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn try_take(
        &mut self,
        from: usize,
        message: &mut Vec<u8>,
    ) -> Result<bool, CollectiveError> {
        self.check()?;
        let at = self.pipe(from)?;
        let drained = drain(&mut self.pipes, self.options.bytes_max);
        self.keep(drained)?;
        Ok(self.pipes[at].take(message))
    }

    fn take_within(
        &mut self,
        from: usize,
        message: &mut Vec<u8>,
        wait_max: Option<Duration>,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let at = self.pipe(from)?;
        let taken = self.wait_for(at, message, wait_max);
        self.keep(taken)
    }

    fn wait_for(
        &mut self,
        at: usize,
        message: &mut Vec<u8>,
        wait_max: Option<Duration>,
    ) -> Result<(), CollectiveError> {
        let bytes_max = self.options().bytes_max;
        let abort = self.abort.clone();
        let mut back_off = BackOff::new(&abort, self.spin);
        while !self.pipes[at].take(message) {
            if self.pipes[at].drain(bytes_max)? {
                back_off.reset();
                continue;
            }
            // What others send is taken in, but makes this peer no less late.
            let drained = drain(&mut self.pipes, bytes_max)?;
            let stage = back_off.pause()?;
            if stage == Stage::Spinning {
                continue;
            }
            check_signs(&self.lanes, &self.pipes, self.options.silence_max)?;
            // However long the first byte of a message may take, the rest has to follow.
            let begun = self.pipes[at].total.is_some().then_some(self.options.wait_max);
            let limit = wait_max.or(begun);
            if let Some(limit) = limit.filter(|limit| back_off.waited() >= *limit) {
                return Err(late(self.pipes[at].lane.peer, back_off.waited(), limit));
            }
            if stage != Stage::Sleeping || drained {
                continue;
            }
            if back_off.is_check_due() {
                self.check_links()?;
            }
            match limit {
                Some(_) => std::thread::sleep(back_off.nap()),
                None => self.pipes[at].lane.link.wait_readable(IDLE_LOOK)?,
            }
        }
        Ok(())
    }
}
