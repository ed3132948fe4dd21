//! Bytes of a file to pixels.
//!
//! The format follows from the content, never from a name. Sizes are checked from the header,
//! before memory for pixels is taken: a file of a kilobyte can claim four billion of them.
//!
//! As transformers and PIL do it: the orientation that a camera notes (EXIF) is applied, and
//! transparency lies on white.

use std::fmt;
use std::io::Cursor;

use image::codecs::{gif::GifDecoder, jpeg::JpegDecoder, png::PngDecoder, webp::WebPDecoder};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, Limits};

use crate::PictureError;

/// The largest file, bytes: several times the largest photographs of cameras.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// The longest side, pixels: that of the largest JPEG files of cameras is below 12,000.
pub const SIDE_MAX: u32 = 16_384;
/// The most pixels: 192 MiB as RGB.
pub const PIXELS_MAX: u64 = 64 << 20;
/// The most memory that a decoder may take beside the pixels, bytes: 16 bits of four channels, and
/// as much for its own tables.
const DECODER_BYTES_MAX: u64 = PIXELS_MAX * 16;

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
        let damaged = |error| damaged(format, error);
        let mut decoder = open(format, bytes).map_err(damaged)?;
        check_size(decoder.dimensions())?;
        decoder.set_limits(limits()).map_err(damaged)?;
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut picture = DynamicImage::from_decoder(decoder).map_err(damaged)?;
        if format == ImageFormat::Jpeg && !has_end(bytes) {
            let reason = "its end is missing".to_owned();
            return Err(PictureError::Damaged { format: "JPEG", reason });
        }
        picture.apply_orientation(orientation);
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        Ok(Self { width, height, pixels: on_white(picture) })
    }

    /// Width and height of the picture in `bytes`, as [`Self::decode`] would give them; reads the
    /// header alone.
    ///
    /// # Errors
    /// As [`Self::decode`], but for damage behind the header.
    pub fn size(bytes: &[u8]) -> Result<(usize, usize), PictureError> {
        let format = format_of(bytes)?;
        let mut decoder = open(format, bytes).map_err(|error| damaged(format, error))?;
        let (width, height) = decoder.dimensions();
        check_size((width, height))?;
        let (width, height) = (width as usize, height as usize);
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        Ok(if is_turned(orientation) { (height, width) } else { (width, height) })
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

fn format_of(bytes: &[u8]) -> Result<ImageFormat, PictureError> {
    if bytes.is_empty() {
        return Err(PictureError::Empty);
    }
    if bytes.len() > FILE_BYTES_MAX {
        return Err(PictureError::FileSize { bytes: bytes.len(), most: FILE_BYTES_MAX });
    }
    const KNOWN: [ImageFormat; 4] =
        [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];
    let found = image::guess_format(bytes).ok().filter(|format| KNOWN.contains(format));
    let start = || bytes[..bytes.len().min(16)].escape_ascii().to_string();
    found.ok_or_else(|| PictureError::Format { start: start() })
}

fn open(format: ImageFormat, bytes: &[u8]) -> Result<Box<dyn ImageDecoder + '_>, ImageError> {
    let file = Cursor::new(bytes);
    Ok(match format {
        ImageFormat::Png => Box::new(PngDecoder::with_limits(file, limits())?),
        ImageFormat::Jpeg => Box::new(JpegDecoder::new(file)?),
        ImageFormat::WebP => Box::new(WebPDecoder::new(file)?),
        _ => Box::new(GifDecoder::new(file)?),
    })
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODER_BYTES_MAX);
    limits
}

fn check_size((width, height): (u32, u32)) -> Result<(), PictureError> {
    let fits = (1..=SIDE_MAX).contains(&width)
        && (1..=SIDE_MAX).contains(&height)
        && u64::from(width) * u64::from(height) <= PIXELS_MAX;
    let error = PictureError::Size { width, height, side: SIDE_MAX, pixels: PIXELS_MAX };
    if fits { Ok(()) } else { Err(error) }
}

fn damaged(format: ImageFormat, error: ImageError) -> PictureError {
    let format = match format {
        ImageFormat::Png => "PNG",
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::WebP => "WebP",
        _ => "GIF",
    };
    PictureError::Damaged { format, reason: error.to_string() }
}

/// Whether a JPEG file's last scan has an end. The decoder fills what is missing with grey.
fn has_end(bytes: &[u8]) -> bool {
    const SCAN: [u8; 2] = [0xff, 0xda];
    const END: [u8; 2] = [0xff, 0xd9];
    let scan = bytes.windows(2).rposition(|marker| marker == SCAN);
    scan.is_some_and(|scan| bytes[scan..].windows(2).any(|marker| marker == END))
}

/// Whether width and height are exchanged.
fn is_turned(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

/// The pixels as RGB; those that are transparent lie on white.
fn on_white(picture: DynamicImage) -> Vec<u8> {
    if !picture.color().has_alpha() {
        return picture.into_rgb8().into_raw();
    }
    let pixels = picture.into_rgba8().into_raw();
    pixels.chunks_exact(4).flat_map(|pixel| [0, 1, 2].map(|c| blend(pixel[c], pixel[3]))).collect()
}

/// A channel with opacity `alpha` on white, to the nearest integer.
fn blend(channel: u8, alpha: u8) -> u8 {
    let (channel, alpha) = (u32::from(channel), u32::from(alpha));
    ((channel * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}
