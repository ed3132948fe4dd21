//! The layout of a pair's shared memory: two rings, one for each direction, each with a control
//! page and slots. Hands out atomics for flags and counters, and raw pointers for messages.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::object::Mapping;
use crate::MESSAGE_BYTES_MAX;
use crate::link::CACHE_LINE_BYTES;

/// Slots of a ring. Together they exceed a core's second-level cache, so that a slot has left the
/// consumer's cache when the producer comes back to it. Writing to lines that another core still
/// holds is several times as slow (on a Zen 4, 6 and 29 GB/s).
pub(super) const RING_SLOTS: usize = 32;

/// A slot: a line for its header, then the message. It comes to 64 KiB, so that a cursor's update
/// for each is noise.
const SLOT_BYTES: usize = CACHE_LINE_BYTES + MESSAGE_BYTES_MAX;

/// One direction: a page for the consumer's counter and sleep flag, then the slots.
const CONTROL_BYTES: usize = 4096;
const RING_BYTES: usize = CONTROL_BYTES + RING_SLOTS * SLOT_BYTES;

/// Bytes of the shared object: both directions, 4 MiB.
pub(crate) const OBJECT_BYTES: usize = 2 * RING_BYTES;

/// Offsets in the control page. Two cache lines apart, because processors fetch lines in pairs.
const CONSUMED_AT: usize = 0;
const ASLEEP_AT: usize = 128;
const HEARTBEATS_AT: usize = 256;

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

    /// The number of consumed messages.
    pub fn consumed(&self) -> &AtomicU64 {
        self.atomic_u64(CONSUMED_AT)
    }

    /// Whether the consumer sleeps and wants a byte on the connection.
    pub fn asleep(&self) -> &AtomicU32 {
        let address = self.mapping.at(self.base + ASLEEP_AT, 4).cast::<AtomicU32>();
        // SAFETY: as for `atomic_u64`.
        unsafe { address.as_ref() }
    }

    /// Counts the producer's heartbeats.
    pub fn heartbeats(&self) -> &AtomicU64 {
        self.atomic_u64(HEARTBEATS_AT)
    }

    /// The slot of message `seq`: its ready flag, its epoch, its length and its bytes.
    pub fn slot(&self, seq: u64) -> Slot<'_> {
        let at = CONTROL_BYTES + (seq as usize % RING_SLOTS) * SLOT_BYTES;
        Slot {
            seq: self.atomic_u64(at),
            epoch: self.atomic_u64(at + 8),
            len: self.atomic_u64(at + 16),
            message: self.mapping.at(self.base + at + CACHE_LINE_BYTES, MESSAGE_BYTES_MAX),
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
