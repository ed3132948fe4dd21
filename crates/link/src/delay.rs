//! A link that is slower than its wire: every message arrives `latency` late, so that one machine
//! can feel like many with a slow network between them.
//!
//! The sender stamps each message with the machine's monotonic clock, which all its processes
//! share, and the receiver holds the message until it is due. So the sender is not held up by the
//! delay, and a receiver that was busy meanwhile waits no longer than on a real wire. At most
//! [`crate::SLOTS`] messages and what the transport buffers are under way at once, which bounds
//! the bandwidth of long messages as a small window does.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Link, LinkError, LinkInfo};

/// The longest delay: above it a deadline of seconds would strike first.
pub const LATENCY_MAX: Duration = Duration::from_millis(100);

/// Bytes of the stamp at the end of each message.
const STAMP_BYTES: usize = 8;

/// Bytes by which messages are shorter for it: a cache line, so that full messages stay aligned.
const STAMP_ROOM: usize = 64;

/// See the module's text. Both ends must be wrapped with the same latency, on one machine.
pub struct Delay {
    link: Box<dyn Link>,
    latency_ns: u64,
}

impl Delay {
    /// Wraps a link whose peer is on this machine.
    ///
    /// # Panics
    /// If the peer is on another machine, whose clock this one cannot read.
    pub fn new(link: Box<dyn Link>, latency: Duration) -> Self {
        assert!(link.info().same_host, "a delay needs both ranks on one machine");
        let latency_ns = latency.min(LATENCY_MAX).as_nanos() as u64;
        Delay { link, latency_ns }
    }
}

impl Link for Delay {
    fn info(&self) -> LinkInfo {
        self.link.info()
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
        slot[len..len + STAMP_BYTES].copy_from_slice(&now_ns().to_le_bytes());
        self.link.commit(len + STAMP_BYTES)
    }

    fn progress(&mut self) -> Result<bool, LinkError> {
        self.link.progress()
    }

    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError> {
        let peer = self.info().peer;
        let Some(stamped) = self.link.poll_recv()? else {
            return Ok(None);
        };
        let Some((message, stamp)) = stamped.split_last_chunk::<STAMP_BYTES>() else {
            return Err(LinkError::corrupt(peer, "a delayed link's message without its stamp"));
        };
        let due_ns = u64::from_le_bytes(*stamp).saturating_add(self.latency_ns);
        Ok((now_ns() >= due_ns).then_some(message))
    }

    fn consume(&mut self) {
        self.link.consume();
    }

    fn check(&mut self) -> Result<(), LinkError> {
        self.link.check()
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.link.arm()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}

/// The machine's monotonic clock: the same in all its processes, unlike `Instant`, which does not
/// say so.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
