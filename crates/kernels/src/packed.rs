//! The packed bytes of weight matrices: in memory of their own, or in memory that somebody else has
//! filled, such as a file's.

use std::sync::Arc;

use gguf::TensorType;

use crate::error::Error;
use crate::format::{
    FloatFormat, Quantised, RowBlocks, TILE_COLS, pack_record, with_float, with_quantised,
};
use crate::memory::Region;
use crate::simd::LANES;

/// Changes when the packed bytes of any type do. Files of packed bytes carry it.
pub const PACKING: u32 = 1;

/// Bytes that somebody else keeps.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The bytes of one matrix or of several.
#[derive(Clone)]
pub(crate) enum Packed {
    /// May hold other matrices of the same tensor as well, so that each needs no separate region.
    Own(Arc<Region>),
    Shared(SharedBytes),
}

impl Packed {
    /// # Panics
    /// If the range ends behind the bytes.
    pub fn bytes(&self, start: usize, len: usize) -> &[u8] {
        match self {
            Self::Own(region) => region.slice(start..start + len),
            Self::Shared(bytes) => &(**bytes).as_ref()[start..start + len],
        }
    }
}

/// Bytes of one packed panel, or `None` for unsupported types and widths.
pub(crate) fn panel_bytes(ty: TensorType, cols: usize) -> Option<usize> {
    if !cols.is_multiple_of(ty.block_len()) {
        return None;
    }
    let known = with_quantised!(ty, T => {
        debug_assert_eq!(T::RECORD, LANES * ty.block_bytes(), "{ty} keeps the file's bits");
        debug_assert_eq!(T::TILES * TILE_COLS, ty.block_len());
        debug_assert_eq!(T::TYPE, ty);
        true
    }, _ => with_float!(ty, T => {
        debug_assert_eq!((T::TYPE, T::COLS), (ty, ty.block_len()));
        debug_assert_eq!(T::RECORD, LANES * ty.block_bytes());
        true
    }, _ => false));
    known.then_some(ty.row_bytes(cols) * LANES)
}

/// Packs whole rows, in the file's layout, into panels at the start of `out`; a last panel of fewer
/// than 16 rows is filled up with zeros.
///
/// # Errors
/// The type has no kernels, the rows are not whole, or `out` is shorter than their panels.
pub fn pack_rows(ty: TensorType, cols: usize, rows: &[u8], out: &mut [u8]) -> Result<(), Error> {
    let panel_bytes = panel_bytes(ty, cols).ok_or(Error::Type { ty })?;
    let row_bytes = ty.row_bytes(cols);
    let whole = row_bytes > 0 && rows.len().is_multiple_of(row_bytes);
    let needed = rows.len().next_multiple_of(panel_bytes.max(1));
    if !whole || out.len() < needed {
        return Err(Error::Packed { needed, found: out.len() });
    }
    for (rows, panel) in rows.chunks(panel_bytes).zip(out.chunks_exact_mut(panel_bytes)) {
        match rows.len() == panel_bytes {
            true => pack_panel(ty, rows, panel),
            false => {
                // Zero rows have zero scales and add nothing.
                let mut all = rows.to_vec();
                all.resize(panel_bytes, 0);
                pack_panel(ty, &all, panel);
            }
        }
    }
    Ok(())
}

/// Packs 16 rows in the file's layout; both slices are one panel long.
pub(crate) fn pack_panel(ty: TensorType, rows: &[u8], panel: &mut [u8]) {
    let row_bytes = rows.len() / LANES;
    let rows = std::array::from_fn(|lane| &rows[lane * row_bytes..][..row_bytes]);
    with_quantised!(ty, T => pack_records(&rows, panel, T::RECORD, pack_record::<T>), _ => {
        with_float!(ty, T => pack_records(&rows, panel, T::RECORD, T::pack), _ => {
            unreachable!("no panel of type {ty} can be made")
        })
    });
}

/// Packs each record of a panel from the same block of each row.
fn pack_records(
    rows: &RowBlocks,
    panel: &mut [u8],
    record_bytes: usize,
    pack: impl Fn(&RowBlocks, &mut [u8]),
) {
    let block_bytes = record_bytes / LANES;
    for (index, record) in panel.chunks_exact_mut(record_bytes).enumerate() {
        let at = index * block_bytes;
        pack(&rows.map(|row| &row[at..at + block_bytes]), record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::random_rows;
    use crate::{Packer, Pool};

    #[test]
    fn rows_are_packed_as_a_matrix_is() {
        let (mut rng, pool) = (fastrand::Rng::with_seed(2), Pool::new(1).unwrap());
        for ty in gguf::WEIGHT_TYPES {
            for rows in [1, 16, 21, 48] {
                let cols = 2 * ty.block_len();
                let bytes = random_rows(ty, rows, cols, &mut rng);
                let mut packer = Packer::new(ty, rows, cols).unwrap();
                packer.push(&pool, &bytes).unwrap();
                let due = packer.finish().unwrap();
                let mut packed = vec![7; due.bytes()];
                // In two pieces of whole panels.
                let first = rows / 2 / LANES * LANES;
                let (head, tail) = bytes.split_at(first * ty.row_bytes(cols));
                pack_rows(ty, cols, head, &mut packed).unwrap();
                pack_rows(ty, cols, tail, &mut packed[head.len()..]).unwrap();
                assert!(packed == due.packed(), "{rows} rows of {ty}");
                let short = packed.len() - 1;
                assert!(pack_rows(ty, cols, &bytes, &mut packed[..short]).is_err());
                assert!(pack_rows(ty, cols, &bytes[1..], &mut packed).is_err());
            }
        }
    }
}
