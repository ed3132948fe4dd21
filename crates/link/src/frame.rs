//! The header in front of every message, and the check that a message is the expected one.

use crate::{LinkError, MESSAGE_BYTES_MAX};

/// Bytes of the header on the wire.
pub(crate) const HEADER_BYTES: usize = 24;

/// What precedes every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Message bytes, without header and authentication tag.
    pub len: u64,
    /// Counts this direction's messages from 1.
    pub seq: u64,
    pub epoch: u64,
}

/// What to do with a message, decided by its header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Deliver,
    /// The message is of an earlier epoch: a late frame, not an error.
    Drop,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let field = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of 8 bytes"))
        };
        Header { len: field(0), seq: field(8), epoch: field(16) }
    }

    /// Checks a header from `peer` against the epoch of this link and the expected sequence number.
    pub fn check(&self, peer: usize, epoch: u64, next_seq: u64) -> Result<Verdict, LinkError> {
        if self.len > MESSAGE_BYTES_MAX as u64 {
            return Err(LinkError::corrupt(
                peer,
                format!("{} bytes announced, at most {MESSAGE_BYTES_MAX} allowed", self.len),
            ));
        }
        if self.epoch > epoch {
            return Err(LinkError::Epoch { peer, ours: epoch, theirs: self.epoch });
        }
        if self.epoch < epoch {
            return Ok(Verdict::Drop);
        }
        if self.seq != next_seq {
            return Err(LinkError::corrupt(
                peer,
                format!("message {} came where {next_seq} was due", self.seq),
            ));
        }
        Ok(Verdict::Deliver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_undoes_encode(len: u64, seq: u64, epoch: u64) {
            let header = Header { len, seq, epoch };
            prop_assert_eq!(Header::decode(&header.encode()), header);
        }
    }

    #[test]
    fn only_the_next_message_of_this_epoch_is_delivered() {
        let header = |len, seq, epoch| Header { len, seq, epoch };
        let max = MESSAGE_BYTES_MAX as u64;
        for (header, deliver) in [
            (header(0, 5, 7), Some(true)),
            (header(max, 5, 7), Some(true)),
            (header(0, 9, 6), Some(false)),
            (header(max + 1, 5, 7), None),
            (header(1 << 32, 5, 7), None),
            (header(0, 4, 7), None),
            (header(0, 6, 7), None),
            (header(0, 5, 8), None),
        ] {
            let verdict = header.check(3, 7, 5).ok().map(|v| v == Verdict::Deliver);
            assert_eq!(verdict, deliver, "{header:?}");
        }
    }
}
