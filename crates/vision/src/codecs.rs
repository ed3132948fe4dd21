//! The decoders of PNG, JPEG, WebP and GIF behind one door, each with its limits.
//!
//! Of what is not pixels, only the camera's orientation is read. A colour profile or a text may be
//! a thousand times as large as its bytes in the file.

use std::fmt::Display;
use std::io::Cursor;
use std::num::NonZeroU64;

use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::limits::{DECODING_BYTES_MAX, PIXELS_MAX};
use crate::orientation::Orientation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Png,
    Jpeg,
    WebP,
    Gif,
}

/// What a file says before its pixels.
pub(crate) struct Header {
    pub width: u32,
    pub height: u32,
    pub orientation: Orientation,
    /// The most memory that decoding takes.
    pub bytes_a_pixel: u64,
}

/// Pixels of 8 bits, not yet turned: `[height, width, channels]`. Channels: grey, grey and
/// opacity, RGB, RGB and opacity.
pub(crate) struct Decoded {
    pub channels: usize,
    pub pixels: Vec<u8>,
}

impl Format {
    /// The format by the first bytes of a file.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
        }
    }

    /// Reads a file up to its pixels.
    pub fn header(self, bytes: &[u8]) -> Result<Header, String> {
        // Most bytes of a pixel in memory at once: as RGB twice, for a turned copy; in two frames
        // of four channels, with a frame of indices; in three, or in coefficients and a frame.
        let (rgb, two_frames, three_frames) = (6, 10, 12);
        let ((width, height), exif, bytes_a_pixel) = match self {
            Self::Png => {
                let reader = png(bytes)?;
                let info = reader.info();
                (info.size(), info.exif_metadata.as_ref().map(|exif| exif.to_vec()), rgb)
            }
            Self::Jpeg => {
                let (decoder, _) = jpeg(bytes)?;
                let (width, height) = decoder.dimensions().ok_or("no size")?;
                let number = |side: usize| u32::try_from(side).map_err(text);
                // Else the coefficients of all scans are kept, two bytes each.
                let bytes_a_pixel = if is_one_scan(bytes) { rgb } else { three_frames };
                ((number(width)?, number(height)?), decoder.exif().cloned(), bytes_a_pixel)
            }
            Self::WebP => {
                let mut decoder = webp(bytes)?;
                (decoder.dimensions(), decoder.exif_metadata().ok().flatten(), three_frames)
            }
            Self::Gif => {
                let decoder = gif(bytes)?;
                ((decoder.width().into(), decoder.height().into()), None, two_frames)
            }
        };
        let orientation = exif.map_or(Orientation::PLAIN, |exif| Orientation::of_exif(&exif));
        Ok(Header { width, height, orientation, bytes_a_pixel })
    }

    /// Decodes a file; its size is known to be bearable.
    pub fn decode(self, bytes: &[u8]) -> Result<Decoded, String> {
        match self {
            Self::Png => decode_png(bytes),
            Self::Jpeg => {
                let (mut decoder, channels) = jpeg(bytes)?;
                Ok(Decoded { channels, pixels: decoder.decode().map_err(text)? })
            }
            Self::WebP => {
                let mut decoder = webp(bytes)?;
                let len = decoder.output_buffer_size().ok_or("its size is impossible")?;
                let mut pixels = vec![0; len];
                decoder.read_image(&mut pixels).map_err(text)?;
                Ok(Decoded { channels: if decoder.has_alpha() { 4 } else { 3 }, pixels })
            }
            Self::Gif => decode_gif(bytes),
        }
    }
}

type JpegDecoder<'b> = zune_jpeg::JpegDecoder<ZCursor<&'b [u8]>>;

fn text(error: impl Display) -> String {
    error.to_string()
}

fn png(bytes: &[u8]) -> Result<png::Reader<Cursor<&[u8]>>, String> {
    let limits = png::Limits { bytes: DECODING_BYTES_MAX as usize };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_ignore_text_chunk(true);
    // Of 16 bits the upper 8 count.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder.read_info().map_err(text)
}

fn decode_png(bytes: &[u8]) -> Result<Decoded, String> {
    let mut reader = png(bytes)?;
    let mut pixels = vec![0; reader.output_buffer_size().ok_or("its size is impossible")?];
    let info = reader.next_frame(&mut pixels).map_err(text)?;
    Ok(Decoded { channels: info.color_type.samples(), pixels })
}

/// A decoder past the headers, and the channels that it gives.
fn jpeg(bytes: &[u8]) -> Result<(JpegDecoder<'_>, usize), String> {
    // A damaged scan is decoded as far as it goes; so do browsers.
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(text)?;
    let given = match decoder.input_colorspace() {
        Some(space @ (ColorSpace::Luma | ColorSpace::LumaA | ColorSpace::RGBA)) => space,
        _ => ColorSpace::RGB,
    };
    decoder.set_options(options.jpeg_set_out_colorspace(given));
    Ok((decoder, given.num_components()))
}

/// Whether a JPEG file's first scan has all of the picture: the frame is not progressive, and the
/// scan has all its components.
fn is_one_scan(bytes: &[u8]) -> bool {
    const SCAN: u8 = 0xda;
    const PROGRESSIVE: u8 = 0xc2;
    const TABLES: [u8; 3] = [0xc4, 0xc8, 0xcc];
    let (mut at, mut of_frame) = (2, None);
    while let Some(head) = bytes.get(at..).and_then(<[u8]>::first_chunk::<10>) {
        let step = match head {
            [0xff, SCAN, _, _, components, ..] => return of_frame == Some(*components),
            [0xff, PROGRESSIVE, ..] => return false,
            // Bytes between segments, which decoders pass over.
            [0xff, 0xff, ..] | [0..0xff, ..] => 1,
            [0xff, marker, high, low, .., components] => {
                if (0xc0..0xd0).contains(marker) && !TABLES.contains(marker) {
                    of_frame = Some(*components);
                }
                2 + usize::from(u16::from_be_bytes([*high, *low]))
            }
        };
        at += step;
    }
    false
}

fn webp(bytes: &[u8]) -> Result<image_webp::WebPDecoder<Cursor<&[u8]>>, String> {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(text)?;
    decoder.set_memory_limit(DECODING_BYTES_MAX as usize);
    Ok(decoder)
}

fn gif(bytes: &[u8]) -> Result<gif::Decoder<Cursor<&[u8]>>, String> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    let limit = NonZeroU64::new(DECODING_BYTES_MAX).expect("it is above 0");
    options.set_memory_limit(gif::MemoryLimit::Bytes(limit));
    options.read_info(Cursor::new(bytes)).map_err(text)
}

/// The first frame, on a transparent screen.
fn decode_gif(bytes: &[u8]) -> Result<Decoded, String> {
    let mut decoder = gif(bytes)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(text)?.ok_or("it has no frame")?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (columns, rows) = (usize::from(frame.width), usize::from(frame.height));
    if (columns * rows) as u64 > PIXELS_MAX {
        return Err(format!("its first frame has {columns} x {rows} pixels"));
    }
    let mut read = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut read).map_err(text)?;
    let mut pixels = vec![0; width * height * 4];
    // What stands out of the screen is not seen.
    let seen = columns.min(width.saturating_sub(left));
    let seen_rows = if seen == 0 { 0 } else { rows.min(height.saturating_sub(top)) };
    for row in 0..seen_rows {
        let to = ((top + row) * width + left) * 4;
        pixels[to..to + seen * 4].copy_from_slice(&read[row * columns * 4..][..seen * 4]);
    }
    Ok(Decoded { channels: 4, pixels })
}
