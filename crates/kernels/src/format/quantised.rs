//! What every type of quantised weights is made of.

use super::tiles::{TILE, Words, pack_row, tile_bytes, unpack_tile};
use crate::simd::{LANES, Simd, array_of};
use gguf::TensorType;

/// Most tiles of one record (256 columns).
pub(crate) const RECORD_TILES_MAX: usize = 8;

/// One GGUF block of each of the 16 rows of a panel.
pub(crate) type RowBlocks<'a> = [&'a [u8]; LANES];

/// The scales of one tile of 16 rows: one for all 32 columns, or one for each half of them.
/// `offset` is used only where [`Quantised::OFFSETS`] says so.
pub(crate) struct Scales<S: Simd> {
    pub scale: [S::F; 2],
    pub offset: [S::F; 2],
}

/// A type of integer weights with scales.
pub(crate) trait Quantised: 'static {
    const TYPE: TensorType;
    /// Tiles of 32 columns in a record: 1, 2, 4 or 8.
    const TILES: usize;
    /// Bits of a stored weight: 1, 2, 3, 4, 5, 6 or 8; 8 with a `Codebook`.
    const BITS: usize;
    /// The stored weight that represents zero.
    const ZERO: i32;
    /// Whether weights may exceed 127 (after [`Quantised::TABLE`]).
    const BIASED: bool;
    /// Subtracted from weights whose products are added in 16 bits ([`Simd::PAIR_SUMS`]): half
    /// their range if none represents zero, except for types with halves, whose weights are small.
    const CENTRE: i32 =
        if Self::OFFSETS && Self::HALVES == 1 { 1 << (Self::BITS - 1) } else { Self::ZERO };
    /// The largest magnitude of a weight after that.
    const REACH: i32 = {
        let top = match Self::TABLE {
            Some(table) => largest(&table),
            None => (1 << Self::BITS) - 1,
        };
        if Self::CENTRE > top - Self::CENTRE { Self::CENTRE } else { top - Self::CENTRE }
    };
    /// Scales per tile: 1, or 2 for one per 16 columns.
    const HALVES: usize;
    /// Whether offsets are added.
    const OFFSETS: bool;
    /// Whether a tensor of this type may have a factor, [`crate::Matrix::factor`].
    const FACTOR: bool = false;
    /// The value of each stored 4-bit weight or code, if it differs from the number itself.
    const TABLE: Option<[u8; 16]> = None;
    /// Whether tiles are indices of a `Codebook`, and pack and unpack themselves.
    const CODEBOOK: bool = false;
    /// Bytes of a record in front of its tiles.
    const HEADER: usize;
    /// Bytes of a tile in front of its weights. Data for a single tile is best kept here, so that
    /// memory is read in order (NOTES.md).
    const TILE_HEADER: usize = 0;
    /// Bytes of a tile.
    const TILE_BYTES: usize = Self::TILE_HEADER + tile_bytes(Self::BITS);
    /// Bytes of a record.
    const RECORD: usize = Self::HEADER + Self::TILES * Self::TILE_BYTES;

    /// The decoded data shared by the tiles of one record.
    type Head<S: Simd>: Copy;

    /// Writes the header of a record.
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]);

    /// Writes the header of tile `tile`.
    #[inline(always)]
    fn pack_tile_header(_blocks: &RowBlocks, _tile: usize, _header: &mut [u8]) {}

    /// The stored weights of columns `32 * tile ..` of one GGUF block.
    #[inline(always)]
    fn weights(_block: &[u8], _tile: usize) -> Words {
        unreachable!("{} has indices", Self::TYPE)
    }

    /// Writes tile `tile`.
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (header, vectors) = out.split_at_mut(Self::TILE_HEADER);
        Self::pack_tile_header(blocks, tile, header);
        for (lane, block) in blocks.iter().enumerate() {
            pack_row(&Self::weights(block, tile), Self::BITS, lane, vectors);
        }
    }

    /// The eight vectors of weights of tile `tile`, after the table.
    ///
    /// # Safety
    /// `record` points to a whole record, and `tile` is below [`Quantised::TILES`].
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let at = Self::HEADER + tile * Self::TILE_BYTES + Self::TILE_HEADER;
        // SAFETY: the tile lies inside the record.
        let weights = unsafe { unpack_tile::<S>(s, record.add(at), Self::BITS) };
        match Self::TABLE {
            Some(table) => array_of!(TILE, weights[0], i => s.lookup(&table, weights[i])),
            None => weights,
        }
    }

    /// # Safety
    /// `record` points to a whole record.
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> Self::Head<S>;

    /// The scales of tile `tile`, which is below [`Quantised::TILES`].
    ///
    /// # Safety
    /// `record` points to a whole record, and `head` was read from it.
    unsafe fn scales<S: Simd>(
        s: S,
        record: *const u8,
        head: &Self::Head<S>,
        tile: usize,
    ) -> Scales<S>;
}

const fn largest(table: &[u8; 16]) -> i32 {
    let (mut top, mut i) = (0, 0);
    while i < table.len() {
        if table[i] as i32 > top {
            top = table[i] as i32;
        }
        i += 1;
    }
    top
}

/// Packs one GGUF block of each of 16 rows.
#[inline(always)]
pub(crate) fn pack_record<T: Quantised>(blocks: &RowBlocks, record: &mut [u8]) {
    let (header, tiles) = record.split_at_mut(T::HEADER);
    T::pack_header(blocks, header);
    for (index, tile) in tiles.chunks_exact_mut(T::TILE_BYTES).enumerate() {
        T::pack_tile(blocks, index, tile);
    }
}

/// Tile `tile` of a record: its weights, and its scales times the tensor's factor. Where there are
/// no vectors, all kernels call one function for it.
///
/// # Safety
/// As for [`Quantised::unpack`] and [`Quantised::scales`].
#[inline(always)]
pub(crate) unsafe fn read_tile<S: Simd, T: Quantised>(
    s: S,
    record: *const u8,
    head: &T::Head<S>,
    tile: usize,
    factor: f32,
) -> ([S::I; TILE], Scales<S>) {
    // SAFETY: as the caller promises.
    unsafe {
        if S::CALLS {
            read_tile_called::<S, T>(s, record, head, tile, factor)
        } else {
            (T::unpack::<S>(s, record, tile), tile_scales::<S, T>(s, record, head, tile, factor))
        }
    }
}

/// As [`read_tile`].
#[inline(never)]
unsafe fn read_tile_called<S: Simd, T: Quantised>(
    s: S,
    record: *const u8,
    head: &T::Head<S>,
    tile: usize,
    factor: f32,
) -> ([S::I; TILE], Scales<S>) {
    // SAFETY: as the caller promises.
    unsafe { (T::unpack::<S>(s, record, tile), tile_scales::<S, T>(s, record, head, tile, factor)) }
}

/// The scales of tile `tile`, times the tensor's factor.
///
/// # Safety
/// As for [`Quantised::scales`].
#[inline(always)]
unsafe fn tile_scales<S: Simd, T: Quantised>(
    s: S,
    record: *const u8,
    head: &T::Head<S>,
    tile: usize,
    factor: f32,
) -> Scales<S> {
    // SAFETY: as the caller promises.
    let mut scales = unsafe { T::scales(s, record, head, tile) };
    if T::FACTOR {
        scales.scale = array_of!(2, scales.scale[0], half => {
            s.mul(scales.scale[half], s.splat(factor))
        });
    }
    scales
}
