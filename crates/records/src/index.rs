//! The list of a segment's records, as one payload: written at the segment's end, so that opening a
//! folder reads no record.

use crate::seal::Key;

/// One record of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub key: Key,
    /// Where the record begins in its segment, in blocks of 4096 bytes.
    pub block: u16,
    pub payload_bytes: u32,
    pub header: &'a [u8],
}

/// Key, block, bytes of the payload, bytes of the header.
const FIXED_BYTES: usize = 32 + 2 + 4 + 2;

/// Entries, one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index(Vec<u8>);

impl Index {
    pub fn push(&mut self, entry: &Entry<'_>) {
        let header_bytes = u16::try_from(entry.header.len()).expect("a header is short");
        self.0.extend_from_slice(&entry.key);
        self.0.extend_from_slice(&entry.block.to_le_bytes());
        self.0.extend_from_slice(&entry.payload_bytes.to_le_bytes());
        self.0.extend_from_slice(&header_bytes.to_le_bytes());
        self.0.extend_from_slice(entry.header);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn entry_bytes(header: &[u8]) -> usize {
        FIXED_BYTES + header.len()
    }
}

/// The entries of an index; they end where the bytes make no sense.
pub(crate) fn entries(mut bytes: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        let (key, fixed) = fixed.split_first_chunk::<32>()?;
        let header_bytes = usize::from(u16::from_le_bytes([fixed[6], fixed[7]]));
        let (header, rest) = rest.split_at_checked(header_bytes)?;
        bytes = rest;
        Some(Entry {
            key: *key,
            block: u16::from_le_bytes([fixed[0], fixed[1]]),
            payload_bytes: u32::from_le_bytes([fixed[2], fixed[3], fixed[4], fixed[5]]),
            header,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_in_order_and_a_cut_loses_the_last() {
        let entry = |at: u8| Entry {
            key: [at; 32],
            block: u16::from(at) + 300,
            payload_bytes: u32::from(at) * 1000,
            header: &b"0123456789"[..usize::from(at)],
        };
        let mut index = Index::default();
        (0..10).for_each(|at| index.push(&entry(at)));
        assert!(entries(index.bytes()).eq((0..10).map(entry)));
        for cut in 0..index.bytes().len() {
            let found = entries(&index.bytes()[..cut]).count();
            assert!(entries(&index.bytes()[..cut]).eq((0..found as u8).map(entry)), "cut {cut}");
            assert!(found < 10);
        }
    }
}
