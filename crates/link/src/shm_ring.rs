//! Where things are in a pair's shared memory: two rings, one for each direction, each a control
//! page and slots. Hands out atomics for flags and counters, and raw pointers for messages.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::MESSAGE_BYTES_MAX;
use crate::link::{SLOT_BYTES, SLOT_HEADER_BYTES};
use crate::pulse::{Channel, Heard};
use crate::shm_object::Mapping;

/// Slots of a ring. All of them together are more than a core's second-level cache, so that a slot
/// has left the consumer's by the time that the producer comes back to it: writing to lines that
/// another core still holds is several times as slow (on a Zen 4, 6 and 29 GB/s).
pub(crate) const SLOTS: usize = 32;

/// One direction: a page for the consumer's counter and sleep flag, then the slots.
const CONTROL_BYTES: usize = 4096;
const RING_BYTES: usize = CONTROL_BYTES + SLOTS * SLOT_BYTES;

/// Bytes of the shared object: both directions, 4 MiB.
pub(crate) const OBJECT_BYTES: usize = 2 * RING_BYTES;

/// Offsets in the control page. Two cache lines apart, because processors fetch lines in pairs.
const CONSUMED_AT: usize = 0;
const ASLEEP_AT: usize = 128;
const BEATS_AT: usize = 256;

/// One direction's part of the mapping.
pub(crate) struct Ring {
    mapping: Arc<Mapping>,
    base: usize,
}

impl Ring {
    /// The ring that the pair's lower rank sends through, or the other one.
    pub fn new(mapping: &Arc<Mapping>, first: bool) -> Self {
        Ring { mapping: mapping.clone(), base: if first { 0 } else { RING_BYTES } }
    }

    fn atomic_u64(&self, at: usize) -> &AtomicU64 {
        let address = self.mapping.at(self.base + at, 8).cast::<AtomicU64>();
        debug_assert!(address.is_aligned());
        // SAFETY: in bounds (`at` checks), aligned (all offsets are multiples of 64 in a
        // page-aligned mapping), alive as long as `self`, and only ever accessed atomically.
        unsafe { address.as_ref() }
    }

    /// What the consumer has taken so far.
    pub fn consumed(&self) -> &AtomicU64 {
        self.atomic_u64(CONSUMED_AT)
    }

    /// Whether the consumer sleeps and wants a byte on the connection.
    pub fn asleep(&self) -> &AtomicU32 {
        let address = self.mapping.at(self.base + ASLEEP_AT, 4).cast::<AtomicU32>();
        // SAFETY: as for `atomic_u64`.
        unsafe { address.as_ref() }
    }

    /// Counts the producer's signs of life.
    pub fn beats(&self) -> &AtomicU64 {
        self.atomic_u64(BEATS_AT)
    }

    /// The slot of message `seq`: its ready flag, its epoch, its length and its bytes.
    pub fn slot(&self, seq: u64) -> Slot<'_> {
        let at = CONTROL_BYTES + (seq as usize % SLOTS) * SLOT_BYTES;
        Slot {
            seq: self.atomic_u64(at),
            epoch: self.atomic_u64(at + 8),
            len: self.atomic_u64(at + 16),
            message: self.mapping.at(self.base + at + SLOT_HEADER_BYTES, MESSAGE_BYTES_MAX),
        }
    }
}

pub(crate) struct Slot<'a> {
    pub seq: &'a AtomicU64,
    pub epoch: &'a AtomicU64,
    pub len: &'a AtomicU64,
    /// Good for [`MESSAGE_BYTES_MAX`] bytes.
    pub message: NonNull<u8>,
}

/// Signs of life through the control pages: each side counts in the ring that it sends through.
pub(crate) struct ShmBeats {
    send: Ring,
    recv: Ring,
    heard: u64,
}

/// A counter that says goodbye.
const GOODBYE: u64 = u64::MAX;

impl ShmBeats {
    pub fn new(mapping: Arc<Mapping>, lower: bool) -> Self {
        ShmBeats { send: Ring::new(&mapping, lower), recv: Ring::new(&mapping, !lower), heard: 0 }
    }
}

impl Channel for ShmBeats {
    fn beat(&mut self) {
        self.send.beats().fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&mut self) {
        self.send.beats().store(GOODBYE, Ordering::Relaxed);
    }

    fn listen(&mut self) -> Heard {
        let before = std::mem::replace(&mut self.heard, self.recv.beats().load(Ordering::Relaxed));
        match self.heard {
            GOODBYE => Heard::Goodbye,
            now if now != before => Heard::Beat,
            _ => Heard::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm_object::ObjectName;

    #[test]
    fn beats_are_heard_by_the_other_side_only() {
        let mut instance = [7; 16];
        instance[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let name = ObjectName::new(&instance, 1, 0, 1);
        let mapping = Arc::new(Mapping::create(&name, OBJECT_BYTES).unwrap());
        let [mut lower, mut higher] = [true, false].map(|end| ShmBeats::new(mapping.clone(), end));
        for (beat, left, right) in
            [(true, Heard::Nothing, Heard::Beat), (false, Heard::Nothing, Heard::Nothing)]
        {
            if beat {
                lower.beat();
            }
            assert_eq!([lower.listen(), higher.listen()], [left, right]);
        }
        higher.leave();
        assert_eq!(lower.listen(), Heard::Goodbye);
    }
}
