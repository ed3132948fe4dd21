//! A link with an added delay: every message arrives `latency` late, so that one machine can stand
//! in for several with a slow network between them.
//!
//! The sender stamps each message with the machine's monotonic clock, which all its processes
//! share. The receiver takes messages off the wire into a queue at once and hands each out when it
//! is due. So the delay holds up neither the sender nor the following messages, and a receiver that
//! was busy meanwhile waits no longer than on a real wire.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::fd::BorrowedFd;

use crate::clock::monotonic_ns;
use crate::{Link, LinkError, LinkInfo, Liveness};

/// The longest delay: a longer one would exceed deadlines of a few seconds.
pub(crate) const LATENCY_MAX: Duration = Duration::from_millis(100);

/// Bytes of the stamp at the end of each message.
const STAMP_BYTES: usize = 8;

/// Bytes that a message loses to the stamp: a cache line, so that full messages stay aligned.
const STAMP_ROOM: usize = 64;

/// Messages in flight at once: 4 MiB, which is 20 GB/s at a delay of 200 us.
const QUEUE_MAX: usize = 64;

/// A delayed link; see the module. Both ends must be wrapped with the same latency, on one machine.
pub struct Delay {
    link: Box<dyn Link>,
    latency_ns: u64,
    /// Received messages, oldest first.
    queue: VecDeque<Delayed>,
    /// Buffers for the next messages.
    free: Vec<Box<[u8]>>,
}

struct Delayed {
    message: Box<[u8]>,
    len: usize,
    due_ns: u64,
}

impl Delay {
    /// Wraps a link whose peer is on this machine.
    ///
    /// # Panics
    /// If the peer is on another machine, whose clock this one cannot read.
    pub fn new(link: Box<dyn Link>, latency: Duration) -> Self {
        assert!(link.info().same_host, "a delay needs both ranks on one machine");
        let latency_ns = latency.min(LATENCY_MAX).as_nanos() as u64;
        let buffer = || vec![0u8; link.message_bytes_max()].into_boxed_slice();
        let free = (0..QUEUE_MAX).map(|_| buffer()).collect();
        Delay { link, latency_ns, queue: VecDeque::with_capacity(QUEUE_MAX), free }
    }

    /// Moves received messages from the wire into the queue.
    fn drain(&mut self) -> Result<(), LinkError> {
        let peer = self.link.info().peer;
        while let Some(mut buffer) = self.free.pop() {
            let taken = match self.link.poll_recv() {
                Ok(None) => Ok(None),
                Ok(Some(stamped)) => match stamped.split_last_chunk::<STAMP_BYTES>() {
                    Some((message, stamp)) => {
                        buffer[..message.len()].copy_from_slice(message);
                        Ok(Some((message.len(), u64::from_le_bytes(*stamp))))
                    }
                    None => Err(LinkError::corrupt(peer, "a delayed message without its stamp")),
                },
                Err(error) => Err(error),
            };
            let Ok(Some((len, sent_ns))) = taken else {
                self.free.push(buffer);
                return taken.map(|_| ());
            };
            self.link.consume();
            let due_ns = sent_ns.saturating_add(self.latency_ns);
            self.queue.push_back(Delayed { message: buffer, len, due_ns });
        }
        Ok(())
    }
}

impl Link for Delay {
    fn info(&self) -> LinkInfo {
        self.link.info()
    }

    fn liveness(&self) -> &Liveness {
        self.link.liveness()
    }

    fn message_bytes_max(&self) -> usize {
        self.link.message_bytes_max() - STAMP_ROOM
    }

    fn poll_send(&mut self) -> Result<Option<&mut [u8]>, LinkError> {
        let max = self.message_bytes_max();
        Ok(self.link.poll_send()?.map(|slot| &mut slot[..max]))
    }

    fn commit(&mut self, len: usize) -> Result<(), LinkError> {
        let slot = self.link.poll_send()?.expect("commit without a lent slot");
        slot[len..len + STAMP_BYTES].copy_from_slice(&monotonic_ns().to_le_bytes());
        self.link.commit(len + STAMP_BYTES)
    }

    fn progress(&mut self) -> Result<bool, LinkError> {
        self.link.progress()
    }

    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError> {
        let drained = self.drain();
        match self.queue.front() {
            // An error is reported after the messages that came before it.
            None => drained.map(|()| None),
            Some(next) => Ok((monotonic_ns() >= next.due_ns).then(|| &next.message[..next.len])),
        }
    }

    fn consume(&mut self) {
        let taken = self.queue.pop_front().expect("consume without a lent message");
        self.free.push(taken.message);
    }

    fn check(&mut self) -> Result<(), LinkError> {
        self.link.check()
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        // A queued message is due before any sleep would end.
        if !self.queue.is_empty() {
            return Ok(true);
        }
        self.link.arm()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}
