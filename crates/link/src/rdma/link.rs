//! The RDMA transport: a [`Channel`] for the messages, and the TCP connection of the handshake to
//! detect the death of the peer, which RDMA does not report.
//!
//! A device completes nothing and reports nothing when its peer dies, so the end of the TCP
//! connection is the only sign. A peer that leaves in order writes the number of its messages
//! before it closes, so that this end still waits for the last of them.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};

use super::channel::Channel;
use super::sleeper::Sleeper;
use super::slot::SLOT_MESSAGE_BYTES;
use crate::error::Sticky;
use crate::socket::{close_gently, read_some, write_some};
use crate::{Link, LinkError, LinkInfo, Liveness};

/// Polls without success between two looks at the TCP connection: a look costs about 0.3 us, 256
/// polls several us.
const POLLS_PER_LOOK: u32 = 256;

/// Reads of a look at the TCP connection: a goodbye, and the end after it.
const READS_PER_LOOK: usize = 2;

/// The wait for messages sent before an orderly end: a wire's latency, and a retransmission where
/// the network loses packets.
const LAST_MESSAGES_MAX: Duration = Duration::from_secs(1);

/// How long an end waits for its own last messages to leave. A live peer takes them in
/// microseconds; a peer that no longer reads is given up.
const DRAIN_MAX: Duration = Duration::from_millis(500);

pub(crate) struct RdmaLink {
    info: LinkInfo,
    channel: Channel,
    sleeper: Sleeper,
    stream: TcpStream,
    liveness: Liveness,
    idle_polls: u32,
    end: Option<End>,
    /// The peer's total number of messages, which it writes last; may be incomplete.
    goodbye: [u8; 8],
    goodbye_len: usize,
    send_error: Sticky,
    recv_error: Sticky,
}

/// The end of the TCP connection.
struct End {
    error: LinkError,
    since: Instant,
}

impl RdmaLink {
    /// `channel` is connected, and a message has gone each way.
    pub fn new(
        info: LinkInfo,
        channel: Channel,
        stream: TcpStream,
        liveness: Liveness,
    ) -> std::io::Result<Self> {
        let sleeper = Sleeper::new(stream.as_fd(), channel.event_fd())?;
        Ok(RdmaLink {
            info,
            channel,
            sleeper,
            stream,
            liveness,
            idle_polls: 0,
            end: None,
            goodbye: [0; 8],
            goodbye_len: 0,
            send_error: Sticky::default(),
            recv_error: Sticky::default(),
        })
    }

    /// Counts an empty poll; every `POLLS_PER_LOOK` of them check the connection.
    fn idle_poll(&mut self) {
        self.idle_polls += 1;
        if self.idle_polls >= POLLS_PER_LOOK {
            self.look();
        }
    }

    /// Reads the peer's bytes from the connection and detects its end.
    fn look(&mut self) {
        self.idle_polls = 0;
        for _ in 0..READS_PER_LOOK {
            if self.end.is_some() {
                return;
            }
            // One byte longer than a goodbye, so that a full buffer still shows the end.
            let mut bytes = [0; 9];
            let free = self.goodbye.len() - self.goodbye_len + 1;
            match read_some(&self.stream, &mut bytes[..free], self.info.peer) {
                Ok(0) => return,
                Ok(read) => {
                    let kept = read.min(free - 1);
                    let from = self.goodbye_len;
                    self.goodbye[from..from + kept].copy_from_slice(&bytes[..kept]);
                    self.goodbye_len += kept;
                }
                Err(error) => self.end = Some(End { error, since: Instant::now() }),
            }
        }
    }

    /// The error of the peer's end, unless some of its messages are still to come.
    fn ended(&self) -> Result<(), LinkError> {
        let Some(end) = &self.end else {
            return Ok(());
        };
        let (_, received) = self.channel.counts();
        let sent = u64::from_le_bytes(self.goodbye);
        let expected = self.goodbye_len == self.goodbye.len() && received < sent;
        if expected && end.since.elapsed() < LAST_MESSAGES_MAX {
            return Ok(());
        }
        Err(end.error.clone())
    }

    /// Makes the next message ready; `false` if there is none yet.
    fn recv_next(&mut self) -> Result<bool, LinkError> {
        self.recv_error.check()?;
        let taken = self.take_or_look();
        self.recv_error.keep(taken)
    }

    fn take_or_look(&mut self) -> Result<bool, LinkError> {
        let taken = match self.channel.take_next() {
            Ok(false) => {
                self.idle_poll();
                // The peer may have sent its last message between our look at the queue and its
                // end.
                self.ended().or_else(|lost| match self.channel.take_next() {
                    Ok(true) => Ok(()),
                    Ok(false) | Err(_) => Err(lost),
                })?;
                self.channel.message().is_some()
            }
            other => other?,
        };
        if taken {
            self.idle_polls = 0;
            self.sleeper.reset();
        }
        Ok(taken)
    }
}

impl Link for RdmaLink {
    fn info(&self) -> LinkInfo {
        self.info
    }

    fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    fn message_bytes_max(&self) -> usize {
        SLOT_MESSAGE_BYTES
    }

    fn poll_send(&mut self) -> Result<Option<&mut [u8]>, LinkError> {
        self.send_error.check()?;
        let free = self.channel.lend().map(|slot| slot.is_some());
        if self.send_error.keep(free)? {
            return self.channel.lend();
        }
        self.idle_poll();
        let ended = self.end.as_ref().map_or(Ok(()), |end| Err(end.error.clone()));
        self.send_error.keep(ended).map(|()| None)
    }

    fn commit(&mut self, len: usize) -> Result<(), LinkError> {
        let committed = self.channel.commit(len);
        self.send_error.keep(committed)
    }

    fn progress(&mut self) -> Result<bool, LinkError> {
        self.send_error.check()?;
        // A posted message is owned by the device.
        Ok(true)
    }

    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError> {
        self.recv_next()?;
        Ok(self.channel.message())
    }

    fn consume(&mut self) {
        self.channel.consume();
    }

    fn check(&mut self) -> Result<(), LinkError> {
        self.recv_error.check()?;
        self.look();
        self.ended()
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.recv_error.check()?;
        self.look();
        let armed = self.channel.arm();
        self.recv_error.keep(armed)?;
        let lost = |error: std::io::Error| LinkError::lost(self.info.peer, error.to_string());
        let armed = self.sleeper.arm().map_err(lost);
        self.recv_error.keep(armed)?;
        self.recv_next()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.sleeper.fd()
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        self.look();
        if self.end.is_none() && self.channel.drain(Instant::now() + DRAIN_MAX) {
            let (sent, _) = self.channel.counts();
            let _ = write_some(&self.stream, &sent.to_le_bytes(), self.info.peer);
        }
        close_gently(&self.stream);
    }
}
