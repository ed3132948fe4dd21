//! Bytes of a file to pixels.
//!
//! The format follows from the content, never from a name. Sizes are checked from the header,
//! before memory for pixels is taken: a file of a kilobyte can claim four billion of them.
//!
//! As transformers and PIL do it: the orientation that a camera notes (EXIF) is applied, and
//! transparency lies on white.

use std::fmt;

use crate::PictureError;
use crate::codecs::{Decoded, Format, Header};
use crate::limits::{DECODING_BYTES_MAX, FILE_BYTES_MAX, PIXELS_MAX, SIDE_MAX};

/// A picture.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    /// `[height, width, 3]`: red, green, blue.
    pixels: Vec<u8>,
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture of {} x {}", self.width, self.height)
    }
}

impl Picture {
    /// A picture of `pixels`, `[height, width, 3]`.
    ///
    /// # Panics
    /// If there are not as many, or none.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0 && pixels.len() == width * height * 3);
        Self { width, height, pixels }
    }

    /// Decodes a PNG, JPEG, WebP or GIF file (of an animation, the first frame).
    ///
    /// # Errors
    /// It is none of these, too large, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, PictureError> {
        let format = format_of(bytes)?;
        let Header { width, height, orientation, .. } = header(format, bytes)?;
        let reason = |reason| PictureError::Damaged { format: format.name(), reason };
        let decoded = format.decode(bytes).map_err(reason)?;
        if format == Format::Jpeg && !has_end(bytes) {
            return Err(reason("its end is missing".to_owned()));
        }
        let pixels = orientation.apply(on_white(decoded), width as usize, height as usize);
        let (width, height) = orientation.size(width as usize, height as usize);
        Ok(Self { width, height, pixels })
    }

    /// Width and height of the picture in `bytes`, as [`Self::decode`] would give them; reads the
    /// header alone.
    ///
    /// # Errors
    /// As [`Self::decode`], but for damage behind the header.
    pub fn size(bytes: &[u8]) -> Result<(usize, usize), PictureError> {
        let Header { width, height, orientation, .. } = header(format_of(bytes)?, bytes)?;
        Ok(orientation.size(width as usize, height as usize))
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn height(&self) -> usize {
        self.height
    }

    /// `[height, width, 3]`: red, green, blue.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

fn format_of(bytes: &[u8]) -> Result<Format, PictureError> {
    if bytes.is_empty() {
        return Err(PictureError::Empty);
    }
    if bytes.len() > FILE_BYTES_MAX {
        return Err(PictureError::FileSize { bytes: bytes.len(), most: FILE_BYTES_MAX });
    }
    let start = || bytes[..bytes.len().min(16)].escape_ascii().to_string();
    Format::of(bytes).ok_or_else(|| PictureError::Format { start: start() })
}

fn header(format: Format, bytes: &[u8]) -> Result<Header, PictureError> {
    let header = format.header(bytes);
    let header =
        header.map_err(|reason| PictureError::Damaged { format: format.name(), reason })?;
    check_size(&header, format)?;
    Ok(header)
}

fn check_size(header: &Header, format: Format) -> Result<(), PictureError> {
    let Header { width, height, bytes_a_pixel, .. } = *header;
    let pixels = PIXELS_MAX.min(DECODING_BYTES_MAX / bytes_a_pixel);
    let fits = (1..=SIDE_MAX).contains(&width)
        && (1..=SIDE_MAX).contains(&height)
        && u64::from(width) * u64::from(height) <= pixels;
    let format = format.name();
    let error = PictureError::Size { format, width, height, side: SIDE_MAX, pixels };
    if fits { Ok(()) } else { Err(error) }
}

/// Whether a JPEG file's last scan has an end. The decoder fills what is missing with grey.
fn has_end(bytes: &[u8]) -> bool {
    const SCAN: [u8; 2] = [0xff, 0xda];
    const END: [u8; 2] = [0xff, 0xd9];
    let scan = bytes.windows(2).rposition(|marker| marker == SCAN);
    scan.is_some_and(|scan| bytes[scan..].windows(2).any(|marker| marker == END))
}

/// The pixels as RGB; those that are transparent lie on white.
fn on_white(Decoded { channels, mut pixels }: Decoded) -> Vec<u8> {
    let grey = |pixel: &[u8], alpha| [blend(pixel[0], alpha); 3];
    match channels {
        1 => pixels.iter().flat_map(|value| [*value; 3]).collect(),
        2 => pixels.chunks_exact(2).flat_map(|pixel| grey(pixel, pixel[1])).collect(),
        3 => pixels,
        _ => {
            // In place, as these are the most bytes.
            let count = pixels.len() / 4;
            for at in 0..count {
                let [r, g, b, alpha] = [0, 1, 2, 3].map(|c| pixels[4 * at + c]);
                let rgb = [r, g, b].map(|channel| blend(channel, alpha));
                pixels[3 * at..3 * at + 3].copy_from_slice(&rgb);
            }
            pixels.truncate(3 * count);
            pixels
        }
    }
}

/// A channel with opacity `alpha` on white, to the nearest integer.
fn blend(channel: u8, alpha: u8) -> u8 {
    let (channel, alpha) = (u32::from(channel), u32::from(alpha));
    ((channel * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}
