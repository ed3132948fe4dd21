//! Messages over one queue pair: fixed slots in registered memory, each either ours or the
//! device's, and nothing else.
//!
//! The hardware does the flow control: a message waits in the sender's queue until the receiver has
//! posted a slot for it (credits on Thunderbolt, retries on RoCE). So the two ends must agree on
//! the size of a slot, not on the number of slots.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use rustix::fd::BorrowedFd;

use super::bank::Piece;
use super::device::Lease;
use super::error::RdmaError;
use super::slot::{
    CHANNEL_SLOTS, Guard, MESSAGE_AT, SLOT_BYTES, SLOT_FRAMES, SLOT_MESSAGE_BYTES, STRIDE_BYTES,
};
use super::verbs::{Depth, Endpoint, OP_SEND, Port, QueuePair};
use crate::LinkError;
use crate::frame::Header;
use crate::seal::Sealers;

/// The fewest receives that a device must take: one to fill while the other is read.
const RECVS_MIN: usize = 2;

pub(super) const DEPTH: Depth = Depth {
    send_frames: (CHANNEL_SLOTS * SLOT_FRAMES) as u32,
    recv_frames: (CHANNEL_SLOTS * SLOT_FRAMES) as u32,
};

/// Marks the work requests that are receives.
const RECV_BIT: u64 = 1 << 63;

/// Guards of the two directions.
pub(crate) struct Guards {
    pub(super) send: Guard,
    pub(super) recv: Guard,
}

impl Guards {
    /// Seals what travels over a network; a direct cable needs only a checksum.
    pub fn new(port: &Port, sealers: impl FnOnce() -> Option<Sealers>) -> Self {
        match if port.cable { None } else { sealers() } {
            Some(Sealers { send, recv }) => {
                Guards { send: Guard::Sealed(Box::new(send)), recv: Guard::Sealed(Box::new(recv)) }
            }
            None => Guards { send: Guard::Summed, recv: Guard::Summed },
        }
    }
}

pub(crate) struct Channel {
    // Dropped first: until then the device may write to the slots.
    qp: Box<dyn QueuePair>,
    lease: Lease,
    guards: Guards,
    peer: usize,
    epoch: u64,
    /// The numbers of the next messages.
    send_seq: u64,
    recv_seq: u64,
    /// Unfinished sends; they complete in order.
    in_flight: usize,
    /// Filled receive slots, oldest first.
    filled: VecDeque<usize>,
    /// The opened message: its slot and its range there.
    message: Option<(usize, Range<usize>)>,
    /// The device's first error.
    failed: Option<LinkError>,
}

impl Channel {
    /// Takes a queue pair and slots of a device. Call `connect` next.
    pub fn new(lease: Lease, guards: Guards, peer: usize, epoch: u64) -> Result<Self, RdmaError> {
        Ok(Channel {
            qp: lease.queue_pair(DEPTH)?,
            lease,
            guards,
            peer,
            epoch,
            send_seq: 1,
            recv_seq: 1,
            in_flight: 0,
            filled: VecDeque::with_capacity(CHANNEL_SLOTS),
            message: None,
            failed: None,
        })
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint { slot_frames: SLOT_FRAMES as u8, ..self.qp.endpoint() }
    }

    /// Connects to the peer's end and posts the receives.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<(), RdmaError> {
        if usize::from(peer.slot_frames) != SLOT_FRAMES {
            let theirs = usize::from(peer.slot_frames) * super::verbs::FRAME_BYTES;
            return Err(RdmaError::Slots { ours: SLOT_BYTES, theirs });
        }
        self.qp.connect(peer)?;
        for slot in 0..CHANNEL_SLOTS {
            // A device may take fewer receives than it was made for; a few are enough.
            match self.post_recv(slot) {
                Err(error) if slot < RECVS_MIN => return Err(error),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, slot: usize) -> Result<(), RdmaError> {
        let piece = self.recv_piece(slot);
        // SAFETY: a receive slot is posted when it is made and after its message was consumed;
        // until its completion nothing here makes a reference to it.
        unsafe { self.qp.post_recv(RECV_BIT | slot as u64, &[piece]) }
    }

    fn send_piece(&self, slot: usize) -> Piece {
        Piece { at: self.lease.at() + slot * STRIDE_BYTES, len: SLOT_BYTES }
    }

    fn recv_piece(&self, slot: usize) -> Piece {
        self.send_piece(CHANNEL_SLOTS + slot)
    }

    fn bytes(&self, piece: Piece) -> &[u8] {
        let start = self.lease.bank().pointer(piece);
        // SAFETY: in bounds, zeroed by the mapping or written since, and not the device's now:
        // callers name the lent send slot or a filled receive slot.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), piece.len) }
    }

    fn bytes_mut(&mut self, piece: Piece) -> &mut [u8] {
        let start = self.lease.bank().pointer(piece);
        // SAFETY: as in `bytes`; the lease gives this part of the bank to this channel only, and
        // `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), piece.len) }
    }

    /// The send slot of the next message.
    fn next_send(&self) -> Piece {
        self.send_piece(self.send_seq as usize % CHANNEL_SLOTS)
    }

    /// Takes all completions. After an error the filled slots remain, to be read first.
    pub fn reap(&mut self) -> Result<(), LinkError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let end = self.take_completions();
        end.inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn take_completions(&mut self) -> Result<(), LinkError> {
        let lost = |reason: String| LinkError::lost(self.peer, reason);
        // No more can be outstanding, so the loop ends even with a broken device.
        for _ in 0..2 * CHANNEL_SLOTS {
            let completion = match self.qp.poll() {
                Ok(None) => break,
                Ok(Some(completion)) => completion,
                Err(error) => return Err(lost(error.to_string())),
            };
            if completion.status != 0 {
                let text = self.qp.status_text(completion.status);
                return Err(lost(format!("RDMA completion with an error: {text}")));
            }
            if completion.id & RECV_BIT == 0 {
                self.in_flight -= 1;
            } else if completion.bytes == SLOT_BYTES {
                self.filled.push_back((completion.id & !RECV_BIT) as usize);
            } else {
                let reason = format!("{} bytes came in a slot of {SLOT_BYTES}", completion.bytes);
                return Err(LinkError::corrupt(self.peer, reason));
            }
        }
        Ok(())
    }

    /// Lends the next send slot, if it is free.
    pub fn lend(&mut self) -> Result<Option<&mut [u8]>, LinkError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if self.in_flight == CHANNEL_SLOTS {
            self.reap()?;
        }
        if self.in_flight == CHANNEL_SLOTS {
            return Ok(None);
        }
        let piece = self.next_send();
        Ok(Some(&mut self.bytes_mut(piece)[MESSAGE_AT..MESSAGE_AT + SLOT_MESSAGE_BYTES]))
    }

    /// Sends the lent slot with a message of `len` bytes.
    pub fn commit(&mut self, len: usize) -> Result<(), LinkError> {
        assert!(
            self.in_flight < CHANNEL_SLOTS && len <= SLOT_MESSAGE_BYTES,
            "commit without a lent slot"
        );
        let piece = self.next_send();
        let header = Header { len: len as u64, seq: self.send_seq, epoch: self.epoch };
        let start = self.lease.bank().pointer(piece);
        // SAFETY: as in `bytes_mut`; the guards are no part of the bank.
        let slot = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), piece.len) };
        self.guards.send.close(slot, &header);
        // SAFETY: the slot is not lent again before its completion is counted.
        let posted = unsafe { self.qp.post_send(self.send_seq, OP_SEND, &[piece]) };
        let posted = posted.map_err(|error| LinkError::lost(self.peer, error.to_string()));
        posted.inspect_err(|error| self.failed = Some(error.clone()))?;
        self.send_seq += 1;
        self.in_flight += 1;
        Ok(())
    }

    /// Opens the next message, if one is here.
    pub fn take_next(&mut self) -> Result<bool, LinkError> {
        while self.message.is_none() {
            if self.filled.is_empty() {
                let reaped = self.reap();
                if self.filled.is_empty() {
                    reaped?;
                    return Ok(false);
                }
            }
            let slot = self.filled.pop_front().expect("not empty");
            let start = self.lease.bank().pointer(self.recv_piece(slot));
            // SAFETY: as in `bytes_mut`; the guards are no part of the bank.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), SLOT_BYTES) };
            match self.guards.recv.open(bytes, self.peer, self.epoch, self.recv_seq)? {
                Some(range) => {
                    self.message = Some((slot, range));
                    self.recv_seq += 1;
                }
                None => self.give_back(slot),
            }
        }
        Ok(true)
    }

    /// The message that [`take_next`](Channel::take_next) opened.
    pub fn message(&self) -> Option<&[u8]> {
        let (slot, range) = self.message.as_ref()?;
        Some(&self.bytes(self.recv_piece(*slot))[range.clone()])
    }

    pub fn consume(&mut self) {
        let (slot, _) = self.message.take().expect("consume without a lent message");
        self.give_back(slot);
    }

    fn give_back(&mut self, slot: usize) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.post_recv(slot) {
            self.failed = Some(LinkError::lost(self.peer, error.to_string()));
        }
    }

    /// Messages committed and messages opened so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.send_seq - 1, self.recv_seq - 1)
    }

    /// Waits until all sends have left this machine, at most until `until`; `true` if so.
    pub fn drain(&mut self, until: Instant) -> bool {
        while self.in_flight > 0 {
            if self.reap().is_err() || Instant::now() >= until {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.qp.event_fd()
    }

    pub fn arm(&mut self) -> Result<(), LinkError> {
        let armed = self.qp.arm();
        armed.map_err(|error| LinkError::lost(self.peer, error.to_string()))
    }
}
