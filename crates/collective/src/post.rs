//! Messages between ranks of different stages: point to point, and never blocking each other.
//!
//! The collectives of a [`Group`] run among the ranks of one stage. A stage hands its results to
//! the next over *pipes*, the links to the ranks of other stages. A waiting rank, whatever it waits
//! for, drains its pipes and queues the messages. So two ranks that send to each other cannot
//! deadlock, and a stage computes while its next input arrives.

use std::time::Duration;

use crate::back_off::{BackOff, IDLE_LOOK, Phase};
use crate::group::check_silence;
use crate::payload::BytesOut;
use crate::pipe::drain;
use crate::wire::Op;
use crate::{CollectiveError, Group};

/// The meaning of a missing message.
#[derive(Debug, Clone, Copy)]
enum Patience {
    /// After this long the sender is late.
    Late(Duration),
    /// The sender may have none; the call returns after this long.
    Idle(Duration),
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
            // Messages of other ranks are queued, but make this peer no less late.
            let drained = drain(pipes, options.bytes_max)?;
            if sent {
                back_off.reset();
                continue;
            }
            let phase = back_off.pause()?;
            if phase == Phase::Spinning {
                continue;
            }
            check_silence(&self.lanes, pipes, options.silence_max)?;
            if back_off.waited() >= options.wait_max {
                return Err(CollectiveError::late(
                    pipes[at].lane.peer,
                    back_off.waited(),
                    options.wait_max,
                ));
            }
            if phase == Phase::Sleeping && !drained {
                std::thread::sleep(back_off.nap());
            }
        }
        pipes[at].lane.waited += back_off.total();
        Ok(())
    }

    /// Replaces `message` by the oldest message that rank `from` of another stage has posted.
    ///
    /// # Errors
    /// The rank is late or lost.
    pub fn take(&mut self, from: usize, message: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let wait_max = self.options().wait_max;
        self.take_within(from, message, Patience::Late(wait_max)).map(|_| ())
    }

    /// Like [`Group::take`], but a long wait does not use the core: for a stage that is idle until
    /// there is work. `false` if no message came within `wait`.
    ///
    /// # Errors
    /// A rank is lost, or the epoch was ended.
    pub fn take_idle(
        &mut self,
        from: usize,
        message: &mut Vec<u8>,
        wait: Duration,
    ) -> Result<bool, CollectiveError> {
        self.take_within(from, message, Patience::Idle(wait))
    }

    /// Like [`Group::take`], but never waits; `false` if there is no message.
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
        patience: Patience,
    ) -> Result<bool, CollectiveError> {
        self.check()?;
        let at = self.pipe(from)?;
        let taken = self.wait_for(at, message, patience);
        self.keep(taken)
    }

    fn wait_for(
        &mut self,
        at: usize,
        message: &mut Vec<u8>,
        patience: Patience,
    ) -> Result<bool, CollectiveError> {
        let bytes_max = self.options().bytes_max;
        let abort = self.abort.clone();
        let mut back_off = BackOff::new(&abort, self.spin);
        while !self.pipes[at].take(message) {
            if self.pipes[at].drain(bytes_max)? {
                back_off.reset();
                continue;
            }
            // Messages of other ranks are queued, but make this peer no less late.
            let drained = drain(&mut self.pipes, bytes_max)?;
            let phase = back_off.pause()?;
            if phase == Phase::Spinning {
                continue;
            }
            check_silence(&self.lanes, &self.pipes, self.options.silence_max)?;
            // The first byte of a message may take any time; the rest must follow within
            // `wait_max`.
            let begun = self.pipes[at].has_begun().then_some(self.options.wait_max);
            let limit = match patience {
                Patience::Late(wait_max) => Some(wait_max),
                Patience::Idle(wait) if begun.is_none() && back_off.waited() >= wait => {
                    return Ok(false);
                }
                Patience::Idle(_) => begun,
            };
            if let Some(limit) = limit.filter(|limit| back_off.waited() >= *limit) {
                return Err(CollectiveError::late(
                    self.pipes[at].lane.peer,
                    back_off.waited(),
                    limit,
                ));
            }
            if phase != Phase::Sleeping || drained {
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
        self.pipes[at].lane.waited += back_off.total();
        Ok(true)
    }
}
