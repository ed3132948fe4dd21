//! The sizes of vectors, and of the tiles of weights that fill them.

/// Lanes of a vector, and rows of a weight panel.
pub const LANES: usize = 16;

/// Bytes of a vector of 32-bit lanes.
pub const VECTOR_BYTES: usize = 4 * LANES;

/// Columns of a tile: the range of one activation scale.
pub(crate) const TILE_COLS: usize = 32;

/// Vectors of an unpacked tile: one byte a weight.
pub(crate) const TILE: usize = TILE_COLS / 4;
