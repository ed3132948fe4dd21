//! The trait of all transports, and the sizes they share.

use std::fmt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;

use crate::{LinkError, Liveness};

/// Messages start at a multiple of this, with their header before them.
pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// The longest message of a link. It is the same on every transport, so code that cuts data into
/// messages need not know the wire. With its header a message takes 64 KiB: large enough that a
/// system call for each is noise (64 KiB at 10 GB/s take 6.5 us), small enough that a long payload
/// pipelines through several.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 - CACHE_LINE_BYTES;

/// The carrier of a link's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Two rings in POSIX shared memory.
    Shm,
    /// A TCP connection, every frame sealed.
    Tcp,
    /// A TCP connection in the clear, for measurement only.
    TcpPlain,
    /// RDMA queue pairs: RoCE, sealed as TCP is, or a Thunderbolt cable.
    Rdma,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::TcpPlain => "tcp-plain",
            Transport::Rdma => "rdma",
        })
    }
}

/// The properties of a link that are fixed at set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkInfo {
    /// The rank at the other end.
    pub peer: usize,
    pub transport: Transport,
    /// Whether the peer runs on this machine (and competes for its cores).
    pub same_host: bool,
}

/// Moves messages of up to [`Link::message_bytes_max`] bytes to and from one peer, in order.
///
/// Sending: [`poll_send`](Link::poll_send) lends a free slot, [`commit`](Link::commit) sends it.
/// Receiving: [`poll_recv`](Link::poll_recv) lends the oldest message, [`consume`](Link::consume)
/// gives it back. After the first error every call repeats it. Messages of a lost peer that have
/// already arrived are delivered first, if the transport kept them.
pub trait Link: Send {
    fn info(&self) -> LinkInfo;

    /// The peer's heartbeats, which travel separately from its messages.
    fn liveness(&self) -> &Liveness;

    /// The longest message in bytes, at most [`MESSAGE_BYTES_MAX`]; equal on both ends.
    fn message_bytes_max(&self) -> usize;

    /// Lends a free slot with room for any message, or `None` while too many earlier messages are
    /// untaken. A second call before `commit` lends the same slot.
    fn poll_send(&mut self) -> Result<Option<&mut [u8]>, LinkError>;

    /// Sends the first `len` bytes of the slot lent by `poll_send`.
    ///
    /// # Panics
    /// If no slot was lent, or it is shorter than `len`.
    fn commit(&mut self, len: usize) -> Result<(), LinkError>;

    /// Pushes committed messages towards the wire. `true`: all of them have left this process, so
    /// the peer gets them even if this rank never polls again.
    fn progress(&mut self) -> Result<bool, LinkError>;

    /// Lends the oldest message not yet consumed, if there is one.
    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError>;

    /// Gives back the message lent by `poll_recv`.
    ///
    /// # Panics
    /// If no message was lent.
    fn consume(&mut self);

    /// Checks whether the peer is still there; costs a system call. Messages stay queued.
    fn check(&mut self) -> Result<(), LinkError>;

    /// Requests a wake-up: from now until the next `poll_recv`, a message makes [`Link::fd`]
    /// readable. `true`: a message is already here, so do not sleep.
    fn arm(&mut self) -> Result<bool, LinkError>;

    /// The descriptor to `poll(2)` for readability after [`Link::arm`].
    fn fd(&self) -> BorrowedFd<'_>;

    /// Sleeps until a message may be here, the peer is lost or `timeout` expires. The sleep uses no
    /// processor time and may end early.
    fn wait_readable(&mut self, timeout: Duration) -> Result<(), LinkError> {
        if self.arm()? {
            return Ok(());
        }
        let limit = Timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos() as _,
        };
        let fd = PollFd::from_borrowed_fd(self.fd(), PollFlags::IN);
        // An interrupted sleep is a short one: the caller polls and sleeps again.
        let _ = poll(&mut [fd], Some(&limit));
        Ok(())
    }
}
