//! The shared-memory transport: two rings, one for each direction, each with one producer and one
//! consumer, and the TCP connection of the handshake for liveness and for waking a sleeper.
//!
//! A slot's sequence number is its ready flag: the producer writes the message, then stores the
//! number (release); the consumer loads it (acquire) and finds the message after it. So one cache
//! line carries flag, length and epoch. The consumer counts its messages in a separate line, which
//! the producer reads only when the ring looks full. Messages are copied in and out: the other
//! process can corrupt bytes, never a Rust reference.

mod object;
mod ring;
mod system;

use std::net::TcpStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fd::{AsFd, BorrowedFd};

pub use object::unlink_leftovers;
pub(crate) use object::{Mapping, ObjectName, sweep};
pub(crate) use ring::{OBJECT_BYTES, Ring};

use crate::error::Sticky;
use crate::frame::{Header, Verdict};
use crate::socket::{close_gently, read_some, write_some};
use crate::{Link, LinkError, LinkInfo, Liveness, MESSAGE_BYTES_MAX};
use ring::RING_SLOTS;

/// Polls without success between two looks at the TCP connection: a look costs about 0.3 us, 256
/// polls at least 1 us of spinning, usually far more.
const POLLS_PER_LOOK: u32 = 256;

pub(crate) struct ShmLink {
    info: LinkInfo,
    epoch: u64,
    send: Producer,
    recv: Consumer,
    stream: TcpStream,
    liveness: Liveness,
    idle_polls: u32,
    send_error: Sticky,
    recv_error: Sticky,
}

impl ShmLink {
    /// `lower`: whether this rank is the pair's lower one, which sends through the first ring.
    pub fn new(
        info: LinkInfo,
        epoch: u64,
        lower: bool,
        mapping: Arc<Mapping>,
        stream: TcpStream,
        liveness: Liveness,
    ) -> Self {
        let ring = |first| Ring::new(&mapping, first);
        let (send, recv) = (Producer::new(ring(lower)), Consumer::new(ring(!lower)));
        ShmLink {
            info,
            epoch,
            send,
            recv,
            stream,
            liveness,
            idle_polls: 0,
            send_error: Sticky::default(),
            recv_error: Sticky::default(),
        }
    }

    /// Counts an empty poll; every `POLLS_PER_LOOK` of them check the connection.
    fn idle_poll(&mut self) -> Result<(), LinkError> {
        self.idle_polls += 1;
        if self.idle_polls < POLLS_PER_LOOK {
            return Ok(());
        }
        self.look()
    }

    /// Reads wake-up bytes off the connection and notices its end.
    fn look(&mut self) -> Result<(), LinkError> {
        self.idle_polls = 0;
        // Each sleep causes at most one, and there was a look before it.
        let mut wake_ups = [0u8; 64];
        read_some(&self.stream, &mut wake_ups, self.info.peer).map(|_| ())
    }

    /// Makes the next message ready; `false` if there is none yet.
    fn recv_next(&mut self) -> Result<bool, LinkError> {
        self.recv_error.check()?;
        let taken = self.take_or_look();
        self.recv_error.keep(taken)
    }

    fn take_or_look(&mut self) -> Result<bool, LinkError> {
        let (peer, epoch) = (self.info.peer, self.epoch);
        if self.recv.take_next(peer, epoch)? {
            self.idle_polls = 0;
            return Ok(true);
        }
        match self.idle_poll() {
            Ok(()) => Ok(false),
            // The peer may have written its last message between our look at the ring and its end.
            Err(lost) => {
                if self.recv.take_next(peer, epoch)? {
                    Ok(true)
                } else {
                    Err(lost)
                }
            }
        }
    }
}

impl Link for ShmLink {
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
            let looked = self.idle_poll();
            self.send_error.keep(looked)?;
            return Ok(None);
        }
        Ok(Some(&mut self.send.message))
    }

    fn commit(&mut self, len: usize) -> Result<(), LinkError> {
        self.send.publish(len, self.epoch);
        if !self.send.peer_sleeps() {
            return Ok(());
        }
        // If the socket takes no byte it is full of earlier wake-ups: the peer wakes anyway.
        let woken = write_some(&self.stream, &[1], self.info.peer);
        self.send_error.keep(woken).map(|_| ())
    }

    fn progress(&mut self) -> Result<bool, LinkError> {
        self.send_error.check()?;
        Ok(true)
    }

    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError> {
        self.recv_next()?;
        Ok(self.recv.taken.map(|len| &self.recv.message[..len]))
    }

    fn consume(&mut self) {
        self.recv.consume();
    }

    fn check(&mut self) -> Result<(), LinkError> {
        self.recv_error.check()?;
        self.look()
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        // Old wake-up bytes would end the sleep at once. If the look finds the peer's end, its
        // earlier messages come first.
        let looked = self.look();
        self.recv.sleep();
        if self.recv_next()? {
            return Ok(true);
        }
        self.recv_error.keep(looked).map(|()| false)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        close_gently(&self.stream);
    }
}

struct Producer {
    ring: Ring,
    /// The message being written.
    message: Box<[u8]>,
    /// The number of the next message; the first is 1, so that a zeroed slot is not ready.
    seq: u64,
    /// The consumer's count, as last read.
    consumed: u64,
}

impl Producer {
    fn new(ring: Ring) -> Self {
        let message = vec![0u8; MESSAGE_BYTES_MAX].into_boxed_slice();
        Producer { ring, message, seq: 1, consumed: 0 }
    }

    fn is_full(&mut self) -> bool {
        let full = |consumed: u64| self.seq > consumed.saturating_add(RING_SLOTS as u64);
        if !full(self.consumed) {
            return false;
        }
        // Acquire pairs with the consumer's release: it has read the slots it counted. A count
        // beyond the last sent message comes from a broken peer; it must not unlock more slots.
        self.consumed = self.ring.consumed().load(Ordering::Acquire).min(self.seq - 1);
        full(self.consumed)
    }

    fn publish(&mut self, len: usize, epoch: u64) {
        assert!(!self.is_full() && len <= MESSAGE_BYTES_MAX, "commit without a lent slot");
        let slot = self.ring.slot(self.seq);
        // SAFETY: `len` bytes are in bounds on both sides, the private buffer cannot overlap the
        // mapping, and the ring is not full, so the consumer does not read this slot now.
        unsafe {
            slot.message.copy_from_nonoverlapping(NonNull::from(&mut self.message[..]).cast(), len);
        }
        slot.epoch.store(epoch, Ordering::Relaxed);
        slot.len.store(len as u64, Ordering::Relaxed);
        slot.seq.store(self.seq, Ordering::Release);
        self.seq += 1;
    }

    /// Whether the consumer requested a wake-up; clears the request.
    fn peer_sleeps(&self) -> bool {
        // Store the message, then look at the flag; the consumer sets the flag, then looks for the
        // message. With a full fence between the two on each side, one of them sees the other.
        fence(Ordering::SeqCst);
        let asleep = self.ring.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }
}

struct Consumer {
    ring: Ring,
    /// A private copy of the message being read.
    message: Box<[u8]>,
    /// Its length, while it is lent or ready to be lent.
    taken: Option<usize>,
    /// The number of the next message.
    seq: u64,
}

impl Consumer {
    fn new(ring: Ring) -> Self {
        let message = vec![0u8; MESSAGE_BYTES_MAX].into_boxed_slice();
        Consumer { ring, message, taken: None, seq: 1 }
    }

    /// A slot not yet written again still holds the number of its last message, or 0.
    fn is_ready(&self, seq: u64) -> bool {
        seq != self.seq.saturating_sub(RING_SLOTS as u64)
    }

    /// Copies the next message out of the ring; `false` if there is none.
    fn take_next(&mut self, peer: usize, epoch: u64) -> Result<bool, LinkError> {
        while self.taken.is_none() {
            let slot = self.ring.slot(self.seq);
            // Acquire pairs with the producer's release: the message is complete.
            let seq = slot.seq.load(Ordering::Acquire);
            if !self.is_ready(seq) {
                return Ok(false);
            }
            let (epoch_there, len) =
                (slot.epoch.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
            let header = Header { len, seq, epoch: epoch_there };
            if header.check(peer, epoch, self.seq)? == Verdict::Drop {
                self.release();
                continue;
            }
            let message = NonNull::from(&mut self.message[..]).cast();
            // SAFETY: `check` bounds `len`, the private buffer cannot overlap the mapping, and the
            // producer does not write this slot before `release` counts it.
            unsafe { slot.message.copy_to_nonoverlapping(message, len as usize) };
            self.taken = Some(len as usize);
            self.release();
        }
        Ok(true)
    }

    /// Gives the slot back after its message was copied or dropped.
    fn release(&mut self) {
        self.ring.consumed().store(self.seq, Ordering::Release);
        self.seq += 1;
    }

    fn consume(&mut self) {
        self.taken.take().expect("consume without a lent message");
    }

    /// Requests a wake-up by the producer's next message.
    fn sleep(&self) {
        self.ring.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 7;

    /// The two ends of one ring, and a third view of it for a peer that breaks the rules.
    fn ring(test: u8) -> (Producer, Consumer, Ring) {
        let mut instance = [test; 16];
        instance[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let name = ObjectName::new(&instance, EPOCH, 0, 1);
        let mapping = Arc::new(Mapping::create(&name, OBJECT_BYTES).unwrap());
        let ring = || Ring::new(&mapping, false);
        (Producer::new(ring()), Consumer::new(ring()), ring())
    }

    fn publish(producer: &mut Producer, message: &[u8], epoch: u64) {
        producer.message[..message.len()].copy_from_slice(message);
        producer.publish(message.len(), epoch);
    }

    fn take(consumer: &mut Consumer) -> Result<Option<Vec<u8>>, LinkError> {
        if !consumer.take_next(1, EPOCH)? {
            return Ok(None);
        }
        let message = consumer.message[..consumer.taken.unwrap()].to_vec();
        consumer.consume();
        Ok(Some(message))
    }

    #[test]
    fn a_ring_goes_round_and_fills_up() {
        let (mut producer, mut consumer, _) = ring(1);
        assert_eq!(take(&mut consumer), Ok(None));
        for round in 0..50u8 {
            let held = 1 + round as usize % RING_SLOTS;
            (0..held).for_each(|at| publish(&mut producer, &[round, at as u8], EPOCH));
            assert_eq!(producer.is_full(), held == RING_SLOTS);
            for at in 0..held {
                assert_eq!(take(&mut consumer), Ok(Some(vec![round, at as u8])));
            }
            assert_eq!(take(&mut consumer), Ok(None));
            assert!(!producer.is_full());
        }
    }

    #[test]
    fn messages_of_an_older_epoch_are_dropped_and_of_a_newer_one_refused() {
        let (mut producer, mut consumer, _) = ring(2);
        publish(&mut producer, b"late", EPOCH - 1);
        publish(&mut producer, b"now", EPOCH);
        publish(&mut producer, b"ahead", EPOCH + 1);
        assert_eq!(take(&mut consumer), Ok(Some(b"now".to_vec())));
        let newer = LinkError::Epoch { peer: 1, ours: EPOCH, theirs: EPOCH + 1 };
        assert_eq!(take(&mut consumer), Err(newer));
    }

    #[test]
    fn a_broken_peer_is_an_error_and_not_a_wrong_message() {
        // A number and a length that the first slot then claims to hold.
        for (seq, len) in [(2, 5), (u64::MAX, 5), (1, MESSAGE_BYTES_MAX as u64 + 1), (1, u64::MAX)]
        {
            let (mut producer, mut consumer, ring) = ring(5);
            publish(&mut producer, b"first", EPOCH);
            ring.slot(1).len.store(len, Ordering::Relaxed);
            ring.slot(1).seq.store(seq, Ordering::Release);
            let end = take(&mut consumer);
            assert!(matches!(end, Err(LinkError::Corrupt { peer: 1, .. })), "{seq} {len}: {end:?}");
        }
    }

    #[test]
    fn a_slot_of_the_last_round_is_not_a_message() {
        let (mut producer, mut consumer, _) = ring(6);
        (0..RING_SLOTS).for_each(|_| publish(&mut producer, b"x", EPOCH));
        (0..RING_SLOTS).for_each(|_| assert!(take(&mut consumer).unwrap().is_some()));
        assert_eq!(take(&mut consumer), Ok(None));
    }

    #[test]
    fn a_count_that_runs_ahead_unlocks_no_more_slots_than_there_are() {
        let (mut producer, _consumer, ring) = ring(3);
        ring.consumed().store(u64::MAX, Ordering::Release);
        (0..RING_SLOTS).for_each(|_| publish(&mut producer, b"x", EPOCH));
        // All sent messages count as taken, and not one more.
        assert!(!producer.is_full());
        assert_eq!(producer.consumed, RING_SLOTS as u64);
    }

    #[test]
    fn a_sleeper_is_seen_once() {
        let (producer, consumer, _) = ring(4);
        assert!(!producer.peer_sleeps());
        consumer.sleep();
        assert!(producer.peer_sleeps());
        assert!(!producer.peer_sleeps());
    }
}
