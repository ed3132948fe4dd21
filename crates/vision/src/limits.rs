//! How large a picture may be.

/// The largest file, bytes: several times the largest photographs of cameras.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// The longest side, pixels: that of the largest JPEG files of cameras is below 12,000.
pub const SIDE_MAX: u32 = 16_384;
/// The most pixels: 192 MiB as RGB.
pub const PIXELS_MAX: u64 = 64 << 20;
/// The most memory that decoding may take, bytes: the most pixels as RGB, and once more to turn
/// them.
pub(crate) const DECODING_BYTES_MAX: u64 = PIXELS_MAX * 6;
