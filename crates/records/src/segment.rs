//! A segment: a file of records, written from its begin to its end and never changed afterwards.
//!
//! ```text
//! head record | records ... | index record | end: magic, where the index begins, its bytes
//! ```
//!
//! A segment without its end (the program was killed) is scanned: records describe themselves.

use std::io;

use crate::buffer::{ALIGN, Buffer, aligned};
use crate::direct::DirectFile;
use crate::index::{Entry, Index};
use crate::seal::{Damage, Kind, Sealing, record_bytes};

const EXTENSION: &str = ".records";
const MAGIC: &[u8; 8] = b"sinewend";
/// The largest segment; it must be read whole if its index is missing. Blocks have 16-bit numbers.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// The smallest one, of which an index is a small part.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 256 << 10;

pub(crate) fn name(number: u32) -> String {
    format!("{number:08x}{EXTENSION}")
}

/// The number of a segment by its file's name; `None`: the file is something else.
pub(crate) fn number(name: &str) -> Option<u32> {
    let number = u32::from_str_radix(name.strip_suffix(EXTENSION)?, 16).ok()?;
    // The other half of the numbers is left for what comes.
    (number < u32::MAX / 2 && name.len() == 8 + EXTENSION.len()).then_some(number)
}

/// The first block of a segment.
pub(crate) fn head(sealing: &Sealing) -> io::Result<Buffer> {
    let (mut head, _) = Sealing::draft(0);
    sealing.seal(&mut head, Kind::Head, &[0; 32], &[], 0)?;
    Ok(head)
}

/// What closes a segment whose records end at `offset`.
pub(crate) fn ending(sealing: &Sealing, index: &Index, offset: u64) -> io::Result<Buffer> {
    let list = index.bytes();
    let bytes = record_bytes(list.len());
    let mut ending = Buffer::zeroed(ending_bytes(list.len()));
    let (_, at) = Sealing::draft(list.len());
    ending[at].copy_from_slice(list);
    sealing.seal(&mut ending, Kind::Index, &[0; 32], &[], list.len())?;
    let last = &mut ending[bytes..];
    last[..8].copy_from_slice(MAGIC);
    last[8..16].copy_from_slice(&offset.to_le_bytes());
    last[16..24].copy_from_slice(&(bytes as u64).to_le_bytes());
    Ok(ending)
}

/// Bytes of what closes a segment with an index of `index_bytes`.
pub(crate) fn ending_bytes(index_bytes: usize) -> usize {
    record_bytes(index_bytes) + ALIGN
}

/// The index of a closed segment; `None`: it has none that opens.
pub(crate) fn read_index(file: &DirectFile, sealing: &Sealing) -> io::Result<Option<Vec<u8>>> {
    let bytes = file.bytes()?;
    let align = ALIGN as u64;
    if bytes < 2 * align || !bytes.is_multiple_of(align) {
        return Ok(None);
    }
    let mut last = Buffer::zeroed(ALIGN);
    let read = file.read_at(&mut last, bytes - align)?;
    let number = |at: usize| u64::from_le_bytes(last[at..at + 8].try_into().expect("8 bytes"));
    let (offset, length) = (number(8), number(16));
    let is_sound = read == ALIGN && last[..8] == MAGIC[..];
    if !is_sound || length > bytes || offset != bytes - align - length || offset % align != 0 {
        return Ok(None);
    }
    let mut record = Buffer::zeroed(length as usize);
    if file.read_at(&mut record, offset)? < record.len() {
        return Ok(None);
    }
    Ok(sealing.open(&mut record, Kind::Index).ok().map(|plain| plain.payload.to_vec()))
}

/// Whether a segment without an index is worth a scan: of this version, and sealed with this key.
pub(crate) fn check_head(file: &DirectFile, sealing: &Sealing) -> io::Result<Result<(), Damage>> {
    let mut head = Buffer::zeroed(ALIGN);
    let read = file.read_at(&mut head, 0)?;
    Ok(sealing.open(&mut head[..read], Kind::Head).map(|_| ()))
}

/// Reads a whole segment and lists the records that open. What is torn or damaged is passed over.
pub(crate) fn scan(file: &DirectFile, sealing: &Sealing) -> io::Result<Index> {
    let mut memory = Buffer::zeroed(aligned(file.bytes()?.min(SEGMENT_BYTES_MAX) as usize));
    let read = file.read_at(&mut memory, 0)?;
    let mut index = Index::default();
    let mut at = ALIGN;
    while at < read {
        let rest = &mut memory[at..read];
        let bytes = Sealing::look(rest).map_or(ALIGN, |(_, bytes)| bytes).min(rest.len());
        at += match sealing.open(&mut rest[..bytes], Kind::Content) {
            Ok(plain) => {
                index.push(&Entry {
                    key: plain.key,
                    block: (at / ALIGN) as u16,
                    payload_bytes: plain.payload.len() as u32,
                    header: plain.header,
                });
                bytes
            }
            // The next one may begin anywhere behind.
            Err(_) => ALIGN,
        };
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers_and_others_are_left_alone() {
        assert_eq!(number(&name(0)), Some(0));
        assert_eq!(number(&name(77)), Some(77));
        for other in ["lock", "1.records", "ffffffff.records", "0000000x.records", "00000001"] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
