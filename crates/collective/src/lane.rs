//! One link of a group: the progress of the running collective on it, and the messages it may
//! admit.

use std::time::{Duration, Instant};

use link::{Link, LinkError};

use crate::payload::{Expect, Payload};
use crate::wire::{HEADER_BYTES, Header, Op};
use crate::{CollectiveError, goodbye};

/// How long a failing rank tries to notify each peer: many round trips on a LAN, and little beside
/// a deadline that may already have passed.
const GOODBYE_MAX: Duration = Duration::from_millis(2);

/// Messages of a lost peer to skip in search of its last: more than its link and a socket's buffer
/// hold.
const LAST_MESSAGES_MAX: usize = 1024;

/// A link and the progress of the running collective on it.
pub(crate) struct Lane {
    pub link: Box<dyn Link>,
    pub peer: usize,
    /// Bytes of messages, with their headers.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// How long this rank waited for the peer.
    pub waited: Duration,
    send: Sending,
    recv: Receiving,
}

enum Sending {
    /// Bytes of the payload already sent.
    Payload {
        sent: usize,
        total: usize,
    },
    /// All messages are committed, not all have left.
    Flushing,
    Done,
}

enum Receiving {
    /// Bytes received; `total` is known from the first message on.
    Payload {
        received: usize,
        total: Option<usize>,
    },
    Done,
}

impl Lane {
    pub fn new(link: Box<dyn Link>) -> Self {
        let peer = link.info().peer;
        Lane {
            link,
            peer,
            sent_bytes: 0,
            received_bytes: 0,
            waited: Duration::ZERO,
            send: Sending::Done,
            recv: Receiving::Done,
        }
    }

    pub fn start(&mut self, payload: &impl Payload) {
        self.send = match payload.outgoing(self.peer) {
            None => Sending::Done,
            Some(total) => Sending::Payload { sent: 0, total },
        };
        self.recv = match payload.incoming(self.peer) {
            Expect::Nothing => Receiving::Done,
            _ => Receiving::Payload { received: 0, total: None },
        };
    }

    /// Sends one message if a slot is free; `true` after progress.
    pub fn advance_send(
        &mut self,
        op: Op,
        payload: &mut impl Payload,
    ) -> Result<bool, CollectiveError> {
        match &mut self.send {
            Sending::Done => Ok(false),
            Sending::Flushing => {
                let done = self.link.progress()?;
                if done {
                    self.send = Sending::Done;
                }
                Ok(done)
            }
            Sending::Payload { sent, total } => {
                let (total, len_max) = (*total, self.link.message_bytes_max());
                let len = (total - *sent).min(len_max - HEADER_BYTES);
                let Some(slot) = self.link.poll_send()? else {
                    return Ok(false);
                };
                let (header, bytes) = slot.split_at_mut(HEADER_BYTES);
                header.copy_from_slice(&Header { op, total: total as u64 }.encode());
                payload.fill(self.peer, *sent, &mut bytes[..len]);
                self.link.commit(HEADER_BYTES + len)?;
                *sent += len;
                self.sent_bytes += (HEADER_BYTES + len) as u64;
                if *sent == total {
                    let done = self.link.progress()?;
                    self.send = if done { Sending::Done } else { Sending::Flushing };
                }
                Ok(true)
            }
        }
    }

    /// Receives one message if there is one; `true` after progress.
    pub fn advance_recv(
        &mut self,
        op: Op,
        payload: &mut impl Payload,
    ) -> Result<bool, CollectiveError> {
        let Receiving::Payload { received, total } = &mut self.recv else {
            return Ok(false);
        };
        let Some(message) = self.link.poll_recv()? else {
            return Ok(false);
        };
        self.received_bytes += message.len() as u64;
        let expect = payload.incoming(self.peer);
        let (total_there, bytes) = admit(self.peer, op, expect, *total, *received, message)?;
        payload.store(self.peer, *received, total_there, bytes);
        *received += bytes.len();
        *total = Some(total_there);
        if *received == total_there {
            self.recv = Receiving::Done;
        }
        self.link.consume();
        Ok(true)
    }

    /// Checks that the peer is still there. It may have said goodbye while no message was due; any
    /// other message stays queued.
    pub fn check(&mut self) -> Result<(), CollectiveError> {
        let message = self.link.poll_recv()?.and_then(Header::decode);
        if let Some((Header { op: Op::Goodbye, .. }, payload)) = message {
            return Err(goodbye::decode(self.peer, payload));
        }
        Ok(self.link.check()?)
    }

    /// An error if the peer is silent, or the network path to it cut.
    pub fn check_silence(&self, silence_max: Duration) -> Result<(), CollectiveError> {
        if let Some(cut) = self.link.liveness().cut() {
            let unacknowledged_ms = cut.unacknowledged.as_millis() as u64;
            let answers_at = cut.answers_at.ip();
            return Err(CollectiveError::Cut { rank: self.peer, unacknowledged_ms, answers_at });
        }
        let silence = self.link.liveness().silence();
        if silence < silence_max {
            return Ok(());
        }
        Err(CollectiveError::Silent {
            rank: self.peer,
            silent_ms: silence.as_millis() as u64,
            limit_ms: silence_max.as_millis() as u64,
        })
    }

    /// Sends a failing rank's last message, as far as that works at once.
    pub fn say_goodbye(&mut self, message: &[u8]) {
        let started = Instant::now();
        let mut said = false;
        while started.elapsed() < GOODBYE_MAX {
            let done = if said { self.link.progress() } else { self.try_send(message) };
            match done {
                Ok(true) if said => break,
                Ok(done) => said |= done,
                Err(_) => break,
            }
            std::thread::yield_now();
        }
    }

    fn try_send(&mut self, message: &[u8]) -> Result<bool, LinkError> {
        let Some(slot) = self.link.poll_send()? else {
            return Ok(false);
        };
        slot[..message.len()].copy_from_slice(message);
        self.link.commit(message.len())?;
        Ok(true)
    }

    /// The error in a lost peer's goodbye, if it sent one.
    pub fn find_goodbye(&mut self) -> Option<CollectiveError> {
        for _ in 0..LAST_MESSAGES_MAX {
            let Ok(Some(message)) = self.link.poll_recv() else { break };
            if let Some((Header { op: Op::Goodbye, .. }, payload)) = Header::decode(message) {
                return Some(goodbye::decode(self.peer, payload));
            }
            self.link.consume();
        }
        None
    }

    pub fn is_receiving(&self) -> bool {
        !matches!(self.recv, Receiving::Done)
    }

    pub fn is_sending(&self) -> bool {
        !matches!(self.send, Sending::Done)
    }
}

/// Checks that a message is the next one due from `peer`. Returns the payload's total length and
/// this message's part of it.
pub(crate) fn admit(
    peer: usize,
    op: Op,
    expect: Expect,
    total: Option<usize>,
    received: usize,
    message: &[u8],
) -> Result<(usize, &[u8]), CollectiveError> {
    let mismatch =
        |expected: String, found: String| CollectiveError::Mismatch { rank: peer, expected, found };
    let Some((header, bytes)) = Header::decode(message) else {
        let found = format!("{} bytes that are no message of this version", message.len());
        return Err(mismatch(format!("{op:?}"), found));
    };
    if header.op == Op::Goodbye {
        return Err(goodbye::decode(peer, bytes));
    }
    if header.op != op {
        return Err(mismatch(format!("{op:?}"), format!("{:?}", header.op)));
    }
    let too_long =
        |bytes_max| CollectiveError::TooLong { what: "a message", bytes: header.total, bytes_max };
    let due = match (total, expect) {
        (Some(total), _) | (None, Expect::Bytes(total)) => total,
        (None, Expect::AtMost(bytes_max)) => {
            let total = usize::try_from(header.total).map_err(|_| too_long(bytes_max))?;
            if total > bytes_max {
                return Err(too_long(bytes_max));
            }
            total
        }
        (None, Expect::Nothing) => 0,
    };
    if header.total != due as u64 {
        return Err(mismatch(format!("{op:?} of {due} bytes"), format!("{} bytes", header.total)));
    }
    // An empty part of a longer payload would come from a peer that never finishes.
    if bytes.len() > due - received || (bytes.is_empty() && due > 0) {
        let found = format!("{} bytes in one message", bytes.len());
        return Err(mismatch(format!("{op:?} with {} bytes to come", due - received), found));
    }
    Ok((due, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(op: Op, total: u64, len: usize) -> Vec<u8> {
        let mut message = Header { op, total }.encode().to_vec();
        message.resize(HEADER_BYTES + len, 7);
        message
    }

    #[test]
    fn only_what_is_due_is_admitted() {
        use Expect::{AtMost, Bytes};
        // Expected, known total and received so far; total and bytes in the message; admitted?
        for (expect, known, received, total, len, good) in [
            (Bytes(10), None, 0, 10, 10, true),
            (Bytes(10), None, 0, 10, 4, true),
            (Bytes(10), Some(10), 4, 10, 6, true),
            (Bytes(0), None, 0, 0, 0, true),
            (AtMost(10), None, 0, 10, 3, true),
            (AtMost(10), None, 0, 0, 0, true),
            (Bytes(10), None, 0, 11, 10, false),
            (Bytes(10), None, 0, 10, 11, false),
            (Bytes(10), None, 0, 10, 0, false),
            (Bytes(10), Some(10), 4, 10, 7, false),
            (AtMost(10), None, 0, 11, 3, false),
            (AtMost(10), None, 0, u64::MAX, 3, false),
            (AtMost(10), Some(8), 4, 9, 1, false),
            (AtMost(10), Some(8), 4, 8, 5, false),
        ] {
            let message = message(Op::Gather, total, len);
            let end = admit(1, Op::Gather, expect, known, received, &message);
            assert_eq!(end.is_ok(), good, "{expect:?} {known:?} {received} {total} {len}: {end:?}");
            let other_step = admit(1, Op::Send, expect, known, received, &message);
            assert!(matches!(other_step, Err(CollectiveError::Mismatch { rank: 1, .. })));
        }
    }

    proptest! {
        /// Whatever a peer sends, this rank takes at most the expected bytes.
        #[test]
        fn no_message_makes_a_rank_panic_or_take_too_much(
            message in prop::collection::vec(any::<u8>(), 0..64),
            received in 0usize..40,
            limit in 0usize..40,
            first: bool,
        ) {
            let known = (!first).then_some(limit.max(received));
            let received = if first { 0 } else { received };
            let end = admit(1, Op::Broadcast, Expect::AtMost(limit), known, received, &message);
            if let Ok((total, bytes)) = end {
                prop_assert!(received + bytes.len() <= total);
                prop_assert!(total <= limit.max(received));
            }
        }
    }
}
