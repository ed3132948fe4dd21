//! The last message of a failing rank. It names the culprit, so that the messenger is not blamed.
//!
//! When one rank fails, the ranks that wait for it close their links, and others that wait for
//! *those* would name the wrong one. So a failing group first notifies its peers. Best effort: a
//! peer without the message still sees the links close.

use crate::CollectiveError;
use crate::wire::{Header, Op};

/// Bytes of the reason; it may be a report of a report.
const REASON_BYTES_MAX: usize = 200;

/// No rank is at fault: the sender stops for its own reason.
const NOBODY: u64 = u64::MAX;

/// The message that reports `error` to a peer.
pub(crate) fn encode(error: &CollectiveError) -> Vec<u8> {
    let reason = error.reason();
    let mut message = Header { op: Op::Goodbye, total: 0 }.encode().to_vec();
    let culprit = error.rank().map_or(NOBODY, |rank| rank as u64);
    message.extend_from_slice(&culprit.to_le_bytes());
    message.extend_from_slice(&reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)]);
    message
}

/// The error that a goodbye of `peer` means for this rank.
pub(crate) fn decode(peer: usize, payload: &[u8]) -> CollectiveError {
    let (culprit, reason) = payload.split_first_chunk().unwrap_or((&[0xff; 8], &[]));
    let reason = String::from_utf8_lossy(&reason[..reason.len().min(REASON_BYTES_MAX)]);
    match usize::try_from(u64::from_le_bytes(*culprit)) {
        Ok(rank) if rank < link::RANKS_MAX && rank != peer => {
            CollectiveError::Lost { rank, reason: format!("{reason} (as rank {peer} found)") }
        }
        _ => CollectiveError::Lost { rank: peer, reason: format!("it gave up: {reason}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 1's text for an error on rank 4.
    fn told(error: CollectiveError) -> String {
        let message = encode(&error);
        let (header, payload) = Header::decode(&message).unwrap();
        assert_eq!(header.op, Op::Goodbye);
        decode(4, payload).to_string()
    }

    #[test]
    fn a_goodbye_names_the_culprit_and_the_reason() {
        for (error, expected) in [
            (
                CollectiveError::Late { rank: 2, waited_ms: 70, limit_ms: 60 },
                "rank 2 is lost: it is alive, but sent nothing for 70 ms (as rank 4 found)",
            ),
            (
                CollectiveError::Silent { rank: 2, silent_ms: 70, limit_ms: 60 },
                "rank 2 is lost: it gave no sign of life for 70 ms (as rank 4 found)",
            ),
            (
                CollectiveError::Lost { rank: 3, reason: "reset".into() },
                "rank 3 is lost: reset (as rank 4 found)",
            ),
            (CollectiveError::Aborted, "rank 4 is lost: it gave up: it was stopped"),
            (CollectiveError::Lost { rank: 4, reason: "x".into() }, "rank 4 is lost: it gave up"),
        ] {
            assert!(told(error.clone()).contains(expected), "{}", told(error));
        }
    }

    #[test]
    fn a_broken_goodbye_is_its_senders_fault() {
        let long = [b'x'; 5000];
        for payload in [&b""[..], b"short", &u64::MAX.to_le_bytes(), &[0xc3; 9], &long] {
            let error = decode(4, payload);
            assert_eq!(error.rank(), Some(4));
            assert!(error.to_string().len() < 1000);
        }
    }
}
