//! Files of pictures: real ones of each format, turned, transparent, damaged and hostile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vision::{FILE_BYTES_MAX, Picture};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Format {
    Png,
    Jpeg,
    WebP,
    Gif,
}

const FORMATS: [Format; 4] = [Format::Png, Format::Jpeg, Format::WebP, Format::Gif];

/// A picture to encode: `[height, width, 4]`.
struct Pixels {
    width: u16,
    height: u16,
    rgba: Vec<u8>,
}

/// A picture with a red quarter at the top left, on blue.
fn corner(width: u16, height: u16) -> Pixels {
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let colour = |(x, y)| match (x < width / 2, y < height / 2) {
        (true, true) => [250, 10, 20, 255],
        _ => [10, 20, 250, 255],
    };
    Pixels { width, height, rgba: places.flat_map(colour).collect() }
}

fn file(Pixels { width, height, rgba }: &Pixels, format: Format) -> Vec<u8> {
    let (wide, high) = (u32::from(*width), u32::from(*height));
    match format {
        Format::Png => png_file(wide, high, png::ColorType::Rgba, png::BitDepth::Eight, rgba),
        Format::Jpeg => {
            let mut bytes = Vec::new();
            let encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
            encoder.encode(rgba, *width, *height, jpeg_encoder::ColorType::Rgba).unwrap();
            bytes
        }
        Format::WebP => {
            let mut bytes = Vec::new();
            let encoder = image_webp::WebPEncoder::new(&mut bytes);
            encoder.encode(rgba, wide, high, image_webp::ColorType::Rgba8).unwrap();
            bytes
        }
        Format::Gif => {
            // The first two colours of a palette: all that `corner` has.
            let palette = [250, 10, 20, 10, 20, 250];
            let indices: Vec<u8> =
                rgba.chunks_exact(4).map(|pixel| u8::from(pixel[0] != 250)).collect();
            let frame = gif::Frame::from_indexed_pixels(*width, *height, indices, None);
            let mut bytes = Vec::new();
            let mut encoder = gif::Encoder::new(&mut bytes, *width, *height, &palette).unwrap();
            encoder.write_frame(&frame).unwrap();
            drop(encoder);
            bytes
        }
    }
}

fn png_file(
    width: u32,
    height: u32,
    colour: png::ColorType,
    depth: png::BitDepth,
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(data).unwrap();
    writer.finish().unwrap();
    bytes
}

fn pixel(picture: &Picture, x: usize, y: usize) -> &[u8] {
    &picture.pixels()[(y * picture.width() + x) * 3..][..3]
}

fn is_red(pixel: &[u8]) -> bool {
    pixel[0] > 200 && pixel[2] < 60
}

fn error(bytes: &[u8]) -> String {
    let error = Picture::decode(bytes).unwrap_err().to_string();
    assert_eq!(Picture::size(bytes).unwrap_err().to_string(), error);
    error
}

#[test]
fn every_format_is_known_by_its_content() {
    for format in FORMATS {
        let bytes = file(&corner(40, 30), format);
        let picture = Picture::decode(&bytes).unwrap();
        assert_eq!((picture.width(), picture.height()), (40, 30), "{format:?}");
        assert_eq!(Picture::size(&bytes).unwrap(), (40, 30), "{format:?}");
        assert!(is_red(pixel(&picture, 5, 5)) && !is_red(pixel(&picture, 30, 25)), "{format:?}");
    }
}

#[test]
fn the_cameras_orientation_is_applied() {
    let plain = file(&corner(40, 30), Format::Jpeg);
    // Where the red corner is, by the number that EXIF gives to an orientation.
    for (orientation, size, red) in [
        (1, (40, 30), (2, 2)),
        (2, (40, 30), (37, 2)),
        (3, (40, 30), (37, 27)),
        (4, (40, 30), (2, 27)),
        (5, (30, 40), (2, 2)),
        (6, (30, 40), (27, 2)),
        (7, (30, 40), (27, 37)),
        (8, (30, 40), (2, 37)),
    ] {
        let tag = [0x12, 0x01, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0];
        let tiff = [&b"II*\0\x08\0\0\0\x01\0"[..], &tag, &[0; 4]].concat();
        let exif = [&b"Exif\0\0"[..], &tiff].concat();
        let length = (exif.len() as u16 + 2).to_be_bytes();
        let bytes = [&plain[..2], &[0xff, 0xe1], &length, &exif, &plain[2..]].concat();
        let picture = Picture::decode(&bytes).unwrap();
        assert_eq!((picture.width(), picture.height()), size, "orientation {orientation}");
        assert_eq!(Picture::size(&bytes).unwrap(), size, "orientation {orientation}");
        assert!(is_red(pixel(&picture, red.0, red.1)), "orientation {orientation}");
    }
}

#[test]
fn transparency_lies_on_white() {
    let rgba = [0, 128, 255].map(|alpha| [100, 0, 50, alpha]).concat();
    for format in [Format::Png, Format::WebP] {
        let picture =
            Picture::decode(&file(&Pixels { width: 3, height: 1, rgba: rgba.clone() }, format));
        let pixels = [255, 255, 255, 177, 127, 152, 100, 0, 50];
        assert_eq!(picture.unwrap().pixels(), pixels, "{format:?}");
    }
    let grey = [[100, 0], [100, 128], [100, 255]].concat();
    let bytes = png_file(3, 1, png::ColorType::GrayscaleAlpha, png::BitDepth::Eight, &grey);
    let pixels = [255, 255, 255, 177, 177, 177, 100, 100, 100];
    assert_eq!(Picture::decode(&bytes).unwrap().pixels(), pixels);
}

#[test]
fn grey_deep_and_indexed_pictures_become_rgb() {
    use png::{BitDepth, ColorType};
    for (colour, depth, data) in [
        (ColorType::Grayscale, BitDepth::Eight, [77].repeat(4)),
        (ColorType::Rgb, BitDepth::Sixteen, [77].repeat(24)),
        // The upper 8 bits.
        (ColorType::Grayscale, BitDepth::Sixteen, [0x4d, 0xff].repeat(4)),
    ] {
        let picture = Picture::decode(&png_file(2, 2, colour, depth, &data)).unwrap();
        assert_eq!(picture.pixels(), [77; 12], "{colour:?} {depth:?}");
    }
}

/// A frame may be smaller than the screen, and stand out of it.
#[test]
fn a_gifs_first_frame_lies_where_it_says() {
    let mut frame = gif::Frame::from_indexed_pixels(2, 2, vec![0; 4], None);
    (frame.left, frame.top) = (2, 1);
    let mut bytes = Vec::new();
    let mut encoder = gif::Encoder::new(&mut bytes, 3, 4, &[9, 8, 7, 0, 0, 0]).unwrap();
    encoder.write_frame(&frame).unwrap();
    drop(encoder);
    let picture = Picture::decode(&bytes).unwrap();
    let expected = (0..12).map(|at| if [5, 8].contains(&at) { [9, 8, 7] } else { [255; 3] });
    assert_eq!(picture.pixels(), expected.flatten().collect::<Vec<u8>>());
}

/// A colour profile and a text of a gibibyte each, in a megabyte: neither is unpacked.
#[test]
fn what_is_not_pixels_takes_no_memory() {
    let small = file(&corner(8, 8), Format::Png);
    let zeros = vec![0; 1 << 20];
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..1 << 10 {
        std::io::Write::write_all(&mut packed, &zeros).unwrap();
    }
    let packed = packed.finish().unwrap();
    let chunk = |kind: &[u8; 4], name: &[u8]| {
        let data = [kind, name, &packed].concat();
        [&(data.len() as u32 - 4).to_be_bytes()[..], &data, &crc(&data).to_be_bytes()].concat()
    };
    let profile = chunk(b"iCCP", b"profile\0\0");
    let text = chunk(b"zTXt", b"text\0\0");
    let bytes = [&small[..33], &profile, &text, &small[33..]].concat();
    assert_eq!(Picture::size(&bytes).unwrap(), (8, 8));
    assert_eq!(
        Picture::decode(&bytes).unwrap().pixels(),
        Picture::decode(&small).unwrap().pixels()
    );
    if let Some(most) = memory_most() {
        assert!(most < 1 << 30, "{most} bytes were in use at once");
    }
}

/// The coefficients of several scans take as much memory again as the pixels.
#[test]
fn a_jpeg_file_of_several_scans_may_have_fewer_pixels() {
    let Pixels { rgba, .. } = corner(40, 30);
    let jpeg = |set: fn(&mut jpeg_encoder::Encoder<&mut Vec<u8>>)| {
        let mut bytes = Vec::new();
        let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
        set(&mut encoder);
        encoder.encode(&rgba, 40, 30, jpeg_encoder::ColorType::Rgba).unwrap();
        assert_eq!(Picture::size(&bytes).unwrap(), (40, 30));
        // The frame claims more.
        let is_frame = |pair: &[u8]| pair[0] == 0xff && [0xc0, 0xc2].contains(&pair[1]);
        let frame = bytes.windows(2).position(is_frame).unwrap();
        bytes[frame + 5..frame + 9].copy_from_slice(&[6000u16.to_be_bytes(); 2].concat());
        Picture::size(&bytes).map_err(|error| error.to_string())
    };
    assert_eq!(jpeg(|_| {}).unwrap(), (6000, 6000));
    let progressive = jpeg(|encoder| encoder.set_progressive(true)).unwrap_err();
    let parted = jpeg(|encoder| encoder.set_optimized_huffman_tables(true)).unwrap_err();
    assert!(progressive.contains("33554432 in all"), "{progressive}");
    assert_eq!(parted, progressive);
}

/// A PNG file of some hundred bytes that claims `width` by `height` pixels.
fn bomb(width: u32, height: u32) -> Vec<u8> {
    let small = file(&corner(8, 8), Format::Png);
    let header = [&b"IHDR"[..], &width.to_be_bytes(), &height.to_be_bytes(), &[8, 2, 0, 0, 0]];
    let header = header.concat();
    [&small[..12], &header, &crc(&header).to_be_bytes(), &small[33..]].concat()
}

fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[test]
fn what_is_no_picture_is_refused_with_the_reason() {
    assert!(error(b"").contains("0 bytes. Send the bytes of a PNG"));
    let text = error(b"<html>not found</html>");
    assert!(text.contains("starts with \"<html>not found<\", which is no PNG"), "{text}");
    let bitmap = error(b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0");
    assert!(bitmap.contains("which is no PNG, JPEG, WebP or GIF file"), "{bitmap}");
    let large = error(&vec![0; FILE_BYTES_MAX + 1]);
    assert!(large.contains("67108865 bytes, more than the 67108864"), "{large}");
    let bomb_of = |width, height| error(&bomb(width, height));
    assert!(bomb_of(60_000, 60_000).contains("60000 x 60000 pixels; at most 16384 a side"));
    assert!(bomb_of(16_000, 16_000).contains("and 67108864 in all"));
    // Within limits, but with too few bytes.
    let short = Picture::decode(&bomb(8000, 8000)).unwrap_err().to_string();
    assert!(short.contains("the PNG file is damaged or incomplete"), "{short}");
}

#[test]
fn truncated_files_are_refused() {
    for format in FORMATS {
        let bytes = file(&corner(200, 130), format);
        for part in [2, 3, 4] {
            let cut = &bytes[..bytes.len() * (part - 1) / part];
            let error = Picture::decode(cut).unwrap_err().to_string();
            assert!(error.contains("is damaged or incomplete"), "{format:?}: {error}");
        }
    }
}

/// Bytes changed, removed and repeated: an error or a picture within the limits, never a panic, and
/// never more memory than the limits allow.
#[test]
fn mutations_of_real_files_do_no_harm() {
    let seed = 20_261_126;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut decoded = 0;
    let own = FORMATS.map(|format| file(&corner(61, 47), format)).into_iter();
    let others = ["progressive.jpg", "cmyk.jpg", "lossy.webp", "animated.webp", "animated.gif"];
    let others = others.map(|name| std::fs::read(formats().join(name)).unwrap());
    for real in own.chain(others) {
        for _ in 0..4000 {
            let mut bytes = real.clone();
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(..bytes.len());
                match rng.u8(..4) {
                    0 => bytes[at] = rng.u8(..),
                    1 => bytes[at] ^= 1 << rng.u8(..8),
                    2 => bytes.truncate(at.max(1)),
                    _ => {
                        let end = bytes.len().min(at + rng.usize(1..40));
                        let part = bytes[at..end].to_vec();
                        let place = rng.usize(..bytes.len());
                        bytes.splice(place..place, part);
                    }
                }
            }
            if bytes.starts_with(b"\x89PNG") && rng.bool() && bytes.len() > 33 {
                // The checksum of the header, so that its numbers are believed.
                let sum = crc(&bytes[12..29]).to_be_bytes();
                bytes[29..33].copy_from_slice(&sum);
            }
            let size = Picture::size(&bytes);
            if let Ok(picture) = Picture::decode(&bytes) {
                decoded += 1;
                assert_eq!(size.unwrap(), (picture.width(), picture.height()), "seed {seed}");
                assert_eq!(picture.pixels().len(), picture.width() * picture.height() * 3);
            }
        }
    }
    assert!(decoded > 100, "{decoded} of the mutations are still pictures");
    if let Some(most) = memory_most() {
        assert!(most < 1 << 30, "{most} bytes were in use at once, seed {seed}");
    }
}

/// The most memory that this process had in use, where the system tells.
fn memory_most() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn formats() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vision/formats")
}

/// Forms that the encoders here do not write. JPEG and lossy WebP leave the last bits of pixels to
/// the decoder, and a smooth picture's colours at half size to its taste.
#[test]
fn pixels_are_those_of_pil() {
    let text = std::fs::read_to_string(formats().join("formats.json")).unwrap();
    let known: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    assert!(known.len() > 8);
    for (name, hex) in known {
        let picture = Picture::decode(&std::fs::read(formats().join(&name)).unwrap()).unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        assert_eq!(picture.pixels().len(), hex.len() / 2, "{name}");
        let errors = picture.pixels().iter().enumerate().map(|(at, x)| byte(at).abs_diff(*x));
        let (most, sum) = errors.fold((0, 0), |(most, sum), x| (x.max(most), sum + u32::from(x)));
        let mean = f64::from(sum) / (hex.len() / 2) as f64;
        println!("{name}: {most} at most, {mean:.2} on average");
        let is_lossy = name.ends_with(".jpg") || name == "lossy.webp";
        assert!(
            if is_lossy { most <= 12 && mean < 1.5 } else { most == 0 },
            "{name}: {most}, {mean}"
        );
    }
}
