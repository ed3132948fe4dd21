//! Prompts on the disks of other members, for a rank that needs other heads than this node has.
//!
//! ```text
//! worker                                its daemon, at a loopback address
//!   32 bytes: the token      ->
//!                            <-  Vec<Vec<Heads>>: for each member with records of this model,
//!                                the heads that they are of
//!   RecordsAsk               ->                                              (again and again)
//!                            <-  Vec<bool>: which were found; then the bytes of these, in order
//! ```

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The heads of a record: each run's first, and the one after its last.
pub type Heads = Vec<u32>;

/// Most records of one [`RecordsAsk`], and most bytes of its answer if it asks for several.
pub const RECORDS_MAX: usize = 32;
pub const RECORDS_BYTES_MAX: usize = 4 << 20;
/// Most members that a worker is told of, most lists of heads of one, most numbers of a list, and
/// the largest of them.
pub const RECORD_MEMBERS_MAX: usize = 64;
pub const HEADS_OF_DISK_MAX: usize = 32;
const HEADS_MAX: usize = 256;
const HEAD_MAX: u32 = 1 << 20;

/// Where a worker asks for records of other members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordsRelay {
    pub relay: SocketAddr,
    pub token: Secret,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordsAsk {
    /// The member, by its place in the daemon's first frame.
    pub member: usize,
    pub wanted: Vec<RecordWanted>,
}

/// Bytes of one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordWanted {
    pub key: [u8; 32],
    /// A record with another header is none.
    pub header: Vec<u8>,
    /// Bytes of its whole payload; a longer or shorter one is none.
    pub payload_bytes: u32,
    /// The first wanted byte, and how many. 0 asks whether the record exists, whatever its header.
    pub start: u32,
    pub bytes: u32,
}

impl RecordWanted {
    /// The place of the wanted bytes in a payload; `None`: they are not in it.
    pub fn range(&self) -> Option<std::ops::Range<usize>> {
        let end = self.start.checked_add(self.bytes).filter(|end| *end <= self.payload_bytes)?;
        Some(self.start as usize..end as usize)
    }
}

/// Heads as a line of a folder's notes.
pub fn heads_line(heads: &[u32]) -> String {
    heads.iter().fold("heads".to_owned(), |line, head| format!("{line} {head}"))
}

/// The heads that a line of notes names; `None`: it is something else.
pub fn heads_of_line(line: &str) -> Option<Heads> {
    let numbers = line.strip_prefix("heads ")?.split(' ').map(str::parse);
    let heads: Heads = numbers.collect::<Result<_, _>>().ok()?;
    are_heads(&heads).then_some(heads)
}

/// Whether these are heads of a record: what another node says may be anything.
pub fn are_heads(heads: &[u32]) -> bool {
    let (runs, rest) = heads.as_chunks::<2>();
    let is_run = |[first, end]: &[u32; 2]| first <= end && *end <= HEAD_MAX;
    let sum: u64 = runs.iter().map(|[first, end]| u64::from(end.saturating_sub(*first))).sum();
    heads.len() <= HEADS_MAX
        && !runs.is_empty()
        && rest.is_empty()
        && runs.iter().all(is_run)
        && sum <= u64::from(HEAD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_lines_and_bytes_lie_in_their_payload() {
        for heads in [&[3, 8][..], &[0, 2, 0, 2, 4, 6], &[0, 0, 3, 3]] {
            assert_eq!(heads_of_line(&heads_line(heads)).as_deref(), Some(heads));
        }
        let others =
            ["", "heads", "heads 3", "heads 8 3", "heads -1 3", "heads 1 2 3", "heads 1  2"];
        for other in others.into_iter().chain(["heads 0 2000000", "tails 1 2"]) {
            assert_eq!(heads_of_line(other), None, "{other}");
        }
        let wanted = |start, bytes| RecordWanted {
            key: [0; 32],
            header: Vec::new(),
            payload_bytes: 100,
            start,
            bytes,
        };
        assert_eq!(wanted(40, 60).range(), Some(40..100));
        assert_eq!(wanted(41, 60).range(), None);
        assert_eq!(wanted(u32::MAX, 2).range(), None);
    }
}
