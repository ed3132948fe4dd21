//! The TCP transport: frames of `header | message | tag` on a non-blocking, busy-polled socket.
//!
//! Messages are sealed and opened in place, in buffers made at set-up: a queue of [`QUEUE_FRAMES`]
//! frames to send and one receive buffer, which one system call fills with all received bytes.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::ops::Range;

use rustix::fd::{AsFd, BorrowedFd};

use crate::error::Sticky;
use crate::frame::{HEADER_BYTES, Header, Verdict};
use crate::link::CACHE_LINE_BYTES;
use crate::seal::{Sealer, Sealers, TAG_BYTES};
use crate::socket::{close_gently, peek_end, read_some, write_some};
use crate::{Link, LinkError, LinkInfo, Liveness, MESSAGE_BYTES_MAX};

/// The longest frame on the wire, in bytes.
const FRAME_BYTES_MAX: usize = HEADER_BYTES + MESSAGE_BYTES_MAX + TAG_BYTES;

/// Frames to send that a link queues: one being written, one being read, and two so that neither
/// side waits for the other's cursor to cross the wire.
const QUEUE_FRAMES: usize = 4;

/// Receive buffer: room for all the frames a peer may have queued.
const RECV_BYTES: usize = QUEUE_FRAMES * FRAME_BYTES_MAX;

/// Where the message starts in a slot; its header sits right before it, so that messages are
/// aligned to a cache line.
const MESSAGE_AT: usize = CACHE_LINE_BYTES;

pub(crate) struct TcpLink {
    info: LinkInfo,
    epoch: u64,
    stream: TcpStream,
    liveness: Liveness,
    /// None in plain mode.
    sealers: Option<Sealers>,
    send: SendQueue,
    recv: RecvBuffer,
    send_error: Sticky,
    recv_error: Sticky,
}

impl TcpLink {
    /// `stream` has been through the handshake and [`crate::socket::prepare`].
    pub fn new(
        info: LinkInfo,
        epoch: u64,
        stream: TcpStream,
        sealers: Option<Sealers>,
        liveness: Liveness,
    ) -> Self {
        TcpLink {
            info,
            epoch,
            stream,
            liveness,
            sealers,
            send: SendQueue::new(),
            recv: RecvBuffer::new(),
            send_error: Sticky::default(),
            recv_error: Sticky::default(),
        }
    }

    /// Writes queued frames until the kernel's buffer is full; `true` if none is left.
    fn flush(&mut self) -> Result<bool, LinkError> {
        self.send_error.check()?;
        let flushed = self.write_queued();
        self.send_error.keep(flushed)
    }

    fn write_queued(&mut self) -> Result<bool, LinkError> {
        while let Some(bytes) = self.send.unsent() {
            let written = write_some(&self.stream, bytes, self.info.peer)?;
            if written == 0 {
                return Ok(false);
            }
            self.send.sent(written);
        }
        Ok(true)
    }

    /// Makes the next message ready; `false` if it is not complete.
    fn recv_next(&mut self) -> Result<bool, LinkError> {
        self.recv_error.check()?;
        let read = self.read_next();
        self.recv_error.keep(read)
    }

    fn read_next(&mut self) -> Result<bool, LinkError> {
        if self.recv.message.is_some() {
            return Ok(true);
        }
        let (peer, epoch) = (self.info.peer, self.epoch);
        if self.recv.open_next(peer, epoch, self.sealers.as_ref())? {
            return Ok(true);
        }
        let read = read_some(&self.stream, self.recv.free(), peer)?;
        self.recv.end += read;
        Ok(read > 0 && self.recv.open_next(peer, epoch, self.sealers.as_ref())?)
    }
}

impl Link for TcpLink {
    fn info(&self) -> LinkInfo {
        self.info
    }

    fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }

    fn poll_send(&mut self) -> Result<Option<&mut [u8]>, LinkError> {
        self.send_error.check()?;
        if self.send.is_full() {
            self.flush()?;
        }
        Ok(self.send.lend())
    }

    fn commit(&mut self, len: usize) -> Result<(), LinkError> {
        let sealer = self.sealers.as_ref().map(|sealers| &sealers.send);
        self.send.push(len, self.epoch, sealer);
        self.flush().map(|_| ())
    }

    fn progress(&mut self) -> Result<bool, LinkError> {
        self.flush()
    }

    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError> {
        self.recv_next()?;
        Ok(self.recv.message.clone().map(|range| &self.recv.bytes[range]))
    }

    fn consume(&mut self) {
        self.recv.consume();
    }

    fn check(&mut self) -> Result<(), LinkError> {
        self.recv_error.check()?;
        peek_end(&self.stream, self.info.peer)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.recv_next()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        let _ = self.flush();
        close_gently(&self.stream);
    }
}

/// Frames waiting for the kernel.
struct SendQueue {
    /// Each `[header padding | header | message | tag]`; `frames` holds the used range.
    slots: Vec<Box<[u8]>>,
    /// The ranges of the queued slots, oldest first; the start of the oldest moves as it is sent.
    frames: VecDeque<Range<usize>>,
    /// The slot of the next message.
    next: usize,
    seq: u64,
}

impl SendQueue {
    fn new() -> Self {
        let slot = || vec![0u8; MESSAGE_AT + MESSAGE_BYTES_MAX + TAG_BYTES].into_boxed_slice();
        SendQueue {
            slots: (0..QUEUE_FRAMES).map(|_| slot()).collect(),
            frames: VecDeque::with_capacity(QUEUE_FRAMES),
            next: 0,
            seq: 1,
        }
    }

    fn is_full(&self) -> bool {
        self.frames.len() == QUEUE_FRAMES
    }

    fn lend(&mut self) -> Option<&mut [u8]> {
        if self.is_full() {
            return None;
        }
        Some(&mut self.slots[self.next][MESSAGE_AT..MESSAGE_AT + MESSAGE_BYTES_MAX])
    }

    /// Queues the lent slot, which holds a message of `len` bytes.
    fn push(&mut self, len: usize, epoch: u64, sealer: Option<&Sealer>) {
        assert!(!self.is_full() && len <= MESSAGE_BYTES_MAX, "commit without a lent slot");
        let header = Header { len: len as u64, seq: self.seq, epoch }.encode();
        let slot = &mut self.slots[self.next];
        let mut end = MESSAGE_AT + len;
        if let Some(sealer) = sealer {
            let tag = sealer.seal(self.seq, &header, &mut slot[MESSAGE_AT..end]);
            slot[end..end + TAG_BYTES].copy_from_slice(&tag);
            end += TAG_BYTES;
        }
        let start = MESSAGE_AT - HEADER_BYTES;
        slot[start..MESSAGE_AT].copy_from_slice(&header);
        self.frames.push_back(start..end);
        self.next = (self.next + 1) % QUEUE_FRAMES;
        self.seq += 1;
    }

    fn unsent(&self) -> Option<&[u8]> {
        let oldest = (self.next + QUEUE_FRAMES - self.frames.len()) % QUEUE_FRAMES;
        self.frames.front().map(|frame| &self.slots[oldest][frame.clone()])
    }

    fn sent(&mut self, bytes: usize) {
        let frame = self.frames.front_mut().expect("bytes were sent from a queued frame");
        frame.start += bytes;
        if frame.start == frame.end {
            self.frames.pop_front();
        }
    }
}

/// Bytes from the kernel: `start..end` is not parsed yet.
struct RecvBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The message that is lent or ready to be, and where its frame ends.
    message: Option<Range<usize>>,
    frame_end: usize,
    seq: u64,
}

impl RecvBuffer {
    fn new() -> Self {
        let bytes = vec![0u8; RECV_BYTES].into_boxed_slice();
        RecvBuffer { bytes, start: 0, end: 0, message: None, frame_end: 0, seq: 1 }
    }

    /// The free space for the kernel to write to. Never empty: parsed bytes have been moved away,
    /// or the rest is shorter than a frame.
    fn free(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + FRAME_BYTES_MAX > self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }

    /// Opens the next frame in place; `false` if it is not complete yet.
    fn open_next(
        &mut self,
        peer: usize,
        epoch: u64,
        sealers: Option<&Sealers>,
    ) -> Result<bool, LinkError> {
        let tag_bytes = if sealers.is_some() { TAG_BYTES } else { 0 };
        while self.end - self.start >= HEADER_BYTES {
            let message_at = self.start + HEADER_BYTES;
            let header_bytes: [u8; HEADER_BYTES] =
                self.bytes[self.start..message_at].try_into().expect("a slice of that length");
            let header = Header::decode(&header_bytes);
            let verdict = header.check(peer, epoch, self.seq)?;
            // The check bounds the length, so that this cannot overflow.
            let message = message_at..message_at + header.len as usize;
            let frame_end = message.end + tag_bytes;
            if frame_end > self.end {
                return Ok(false);
            }
            if verdict == Verdict::Drop {
                self.start = frame_end;
                continue;
            }
            if let Some(sealers) = sealers {
                let sealed = &mut self.bytes[message_at..frame_end];
                sealers.recv.open(self.seq, &header_bytes, sealed).map_err(|_| {
                    LinkError::corrupt(peer, format!("message {} fails its seal", self.seq))
                })?;
            }
            self.message = Some(message);
            self.frame_end = frame_end;
            self.seq += 1;
            return Ok(true);
        }
        Ok(false)
    }

    fn consume(&mut self) {
        self.message.take().expect("consume without a lent message");
        self.start = self.frame_end;
    }
}
