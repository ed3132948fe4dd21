//! The content of a slot: a header, the message, and its tag or checksum.
//!
//! ```text
//! 0        24       64                        64 + len      + 16                12 KiB
//! | header | zeroes | message (sealed or not) | tag or sum  | zeroes            |
//! ```
//!
//! Whole slots are sent, so that a message and its receive have the same number of frames. Slots
//! over a network are sealed, as over TCP. A Thunderbolt cable connects only the two machines, and
//! a checksum is enough to find what its unacknowledged service has torn.

use std::ops::Range;

use super::verbs::FRAME_BYTES;
use crate::LinkError;
use crate::frame::{HEADER_BYTES, Header, Verdict};
use crate::link::CACHE_LINE_BYTES;
use crate::seal::{Sealer, TAG_BYTES};

/// Frames of a slot: three, so that 8 KiB with their header, the commonest all-reduce, fit one
/// message, and longer ones waste little in their last slot.
pub(super) const SLOT_FRAMES: usize = 3;

pub(super) const SLOT_BYTES: usize = SLOT_FRAMES * FRAME_BYTES;

/// The longest message: a slot less its header and its guard, a cache line each.
pub(super) const SLOT_MESSAGE_BYTES: usize = SLOT_BYTES - 2 * CACHE_LINE_BYTES;

/// Where the message starts.
pub(super) const MESSAGE_AT: usize = CACHE_LINE_BYTES;

/// Slots of each direction. Eight of three frames are 24, below the 32 that every device takes
/// whether it counts frames or work requests. 96 KiB are in flight at once, which sustains 9 GB/s
/// over 10 us.
pub(super) const CHANNEL_SLOTS: usize = 8;

/// Bytes from one slot to the next: an Apple page, so that each slot starts on one.
pub(super) const STRIDE_BYTES: usize = 16 * 1024;

/// Bytes of the bank that one channel uses: the sends' slots, then the receives'.
pub(super) const CHANNEL_BYTES: usize = 2 * CHANNEL_SLOTS * STRIDE_BYTES;

/// The protection of one direction's slots.
pub(super) enum Guard {
    Sealed(Box<Sealer>),
    Summed,
}

impl Guard {
    /// Completes `slot`, which holds a message of `len` bytes, for sending.
    pub fn close(&self, slot: &mut [u8], header: &Header) {
        let end = MESSAGE_AT + header.len as usize;
        let header = header.encode();
        slot[..HEADER_BYTES].copy_from_slice(&header);
        let guard_end = match self {
            Guard::Sealed(sealer) => {
                let seq = u64::from_le_bytes(header[8..16].try_into().expect("8 bytes"));
                let tag = sealer.seal(seq, &header, &mut slot[MESSAGE_AT..end]);
                slot[end..end + TAG_BYTES].copy_from_slice(&tag);
                end + TAG_BYTES
            }
            Guard::Summed => {
                let sum = checksum(&header, &slot[MESSAGE_AT..end]);
                slot[end..end + 8].copy_from_slice(&sum.to_le_bytes());
                end + 8
            }
        };
        // Clears the rest of an earlier message.
        slot[guard_end..].fill(0);
    }

    /// The message's range in `slot`, opened in place; `None` if it is to be dropped.
    pub fn open(
        &self,
        slot: &mut [u8],
        peer: usize,
        epoch: u64,
        next_seq: u64,
    ) -> Result<Option<Range<usize>>, LinkError> {
        let header_bytes: [u8; HEADER_BYTES] =
            slot[..HEADER_BYTES].try_into().expect("a slice of that length");
        let header = Header::decode(&header_bytes);
        if header.check(peer, epoch, next_seq)? == Verdict::Drop {
            return Ok(None);
        }
        if header.len > SLOT_MESSAGE_BYTES as u64 {
            let reason = format!("{} bytes announced in a slot of {SLOT_BYTES}", header.len);
            return Err(LinkError::corrupt(peer, reason));
        }
        let message = MESSAGE_AT..MESSAGE_AT + header.len as usize;
        let torn = || LinkError::corrupt(peer, format!("message {next_seq} fails its guard"));
        match self {
            Guard::Sealed(sealer) => {
                let sealed = &mut slot[message.start..message.end + TAG_BYTES];
                sealer.open(next_seq, &header_bytes, sealed).map_err(|_| torn())?;
            }
            Guard::Summed => {
                let sum = checksum(&header_bytes, &slot[message.clone()]);
                if slot[message.end..message.end + 8] != sum.to_le_bytes() {
                    return Err(torn());
                }
            }
        }
        Ok(Some(message))
    }
}

/// Finds torn and altered bytes, not malice: eight lanes of multiply and fold, so that 8 KiB cost
/// about a quarter of a microsecond. Any change within one word changes its lane.
fn checksum(header: &[u8; HEADER_BYTES], message: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |lane: u64, word: u64| {
        let mixed = (lane ^ word).wrapping_mul(ODD);
        mixed ^ (mixed >> 32)
    };
    let mut lanes: [u64; 8] = std::array::from_fn(|at| at as u64 + 1);
    let mut add = |line: &[u8; 64]| {
        for (lane, word) in lanes.iter_mut().zip(line.as_chunks::<8>().0) {
            *lane = fold(*lane, u64::from_le_bytes(*word));
        }
    };
    let (lines, tail) = message.as_chunks::<64>();
    lines.iter().for_each(&mut add);
    let mut last = [0; 64];
    last[..tail.len()].copy_from_slice(tail);
    add(&last);
    let mut first = [0; 64];
    first[..HEADER_BYTES].copy_from_slice(header);
    add(&first);
    lanes.into_iter().fold(0, fold)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Cipher;

    const EPOCH: u64 = 7;

    fn guards() -> [Guard; 2] {
        [Guard::Sealed(Box::new(Sealer::new(Cipher::Aes256Gcm, &[3; 32]))), Guard::Summed]
    }

    fn closed(guard: &Guard, message: &[u8], seq: u64, epoch: u64) -> Vec<u8> {
        let mut slot = vec![0xee; SLOT_BYTES];
        slot[MESSAGE_AT..MESSAGE_AT + message.len()].copy_from_slice(message);
        guard.close(&mut slot, &Header { len: message.len() as u64, seq, epoch });
        slot
    }

    #[test]
    fn a_closed_slot_opens_with_its_message_whatever_its_length() {
        for guard in guards() {
            for len in [0, 1, 7, 63, 64, 65, 8192, SLOT_MESSAGE_BYTES] {
                let message: Vec<u8> = (0..len).map(|at| (at ^ (at >> 8)) as u8).collect();
                let mut slot = closed(&guard, &message, 3, EPOCH);
                let range = guard.open(&mut slot, 1, EPOCH, 3).unwrap().unwrap();
                assert!(slot[range] == message, "{len} bytes");
                let tail = MESSAGE_AT + len + TAG_BYTES;
                assert!(slot[tail..].iter().all(|&byte| byte == 0), "leftovers are sent");
            }
        }
    }

    #[test]
    fn whatever_is_torn_altered_or_late_is_not_delivered() {
        for guard in guards() {
            let good = closed(&guard, &[9; 5000], 3, EPOCH);
            for byte in (0..HEADER_BYTES).chain(MESSAGE_AT..MESSAGE_AT + 5000 + 8) {
                // The header's own check covers the upper half of an epoch or a length.
                let mut slot = good.clone();
                slot[byte] ^= 1 << (byte % 8);
                let end = guard.open(&mut slot, 1, EPOCH, 3);
                assert!(!matches!(end, Ok(Some(_))), "byte {byte}");
            }
            // The last frame of an earlier message under the head of this one.
            let mut torn = good.clone();
            torn[FRAME_BYTES..]
                .copy_from_slice(&closed(&guard, &[8; 5000], 2, EPOCH)[FRAME_BYTES..]);
            assert!(guard.open(&mut torn, 1, EPOCH, 3).is_err());
            assert!(guard.open(&mut good.clone(), 1, EPOCH, 4).is_err(), "a message is missing");
            assert_eq!(guard.open(&mut good.clone(), 1, EPOCH + 1, 3), Ok(None), "older epoch");
        }
    }

    #[test]
    fn a_length_beyond_the_slot_is_corrupt() {
        let mut slot = vec![0; SLOT_BYTES];
        let header = Header { len: SLOT_MESSAGE_BYTES as u64 + 1, seq: 1, epoch: EPOCH };
        slot[..HEADER_BYTES].copy_from_slice(&header.encode());
        let end = Guard::Summed.open(&mut slot, 1, EPOCH, 1);
        assert!(matches!(end, Err(LinkError::Corrupt { peer: 1, .. })), "{end:?}");
    }
}
