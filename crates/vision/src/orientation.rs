//! How a camera was held: EXIF's tag of the orientation, and its effect.

/// The tag's number in a directory of TIFF, and the type of its value.
const TAG: u16 = 0x112;
const SHORT: u16 = 3;

/// EXIF's value, 1 to 8; 1 leaves the picture as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orientation(u8);

impl Orientation {
    pub const PLAIN: Self = Self(1);

    /// Reads the first directory of a block of EXIF. What is missing or damaged turns nothing.
    pub fn of_exif(exif: &[u8]) -> Self {
        find(exif).filter(|value| (1..=8).contains(value)).map_or(Self::PLAIN, Self)
    }

    /// Width and height of the turned picture.
    pub fn size(self, width: usize, height: usize) -> (usize, usize) {
        if self.0 >= 5 { (height, width) } else { (width, height) }
    }

    /// The turned picture. `pixels`: `[height, width, 3]`.
    pub fn apply(self, pixels: Vec<u8>, width: usize, height: usize) -> Vec<u8> {
        if self == Self::PLAIN {
            return pixels;
        }
        let (right, bottom) = (width - 1, height - 1);
        let source = |x: usize, y: usize| match self.0 {
            2 => (right - x, y),
            3 => (right - x, bottom - y),
            4 => (x, bottom - y),
            5 => (y, x),
            6 => (y, bottom - x),
            7 => (right - y, bottom - x),
            _ => (right - y, x),
        };
        let (out_width, out_height) = self.size(width, height);
        let mut out = Vec::with_capacity(pixels.len());
        for y in 0..out_height {
            for x in 0..out_width {
                let (x, y) = source(x, y);
                out.extend_from_slice(&pixels[(y * width + x) * 3..][..3]);
            }
        }
        out
    }
}

fn find(exif: &[u8]) -> Option<u8> {
    let is_little = match exif.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let bytes = exif.get(4..8)?.try_into().ok()?;
    let directory = if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
    let directory = usize::try_from(directory).ok()?;
    for entry in 0..usize::from(u16_at(directory)?) {
        let at = directory.checked_add(2 + 12 * entry)?;
        if u16_at(at)? == TAG && u16_at(at + 2)? == SHORT {
            return u8::try_from(u16_at(at + 8)?).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_of_bytes_are_read_and_damage_turns_nothing() {
        let little = b"II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0\0\0\0\0\
                       \x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        assert_eq!(Orientation::of_exif(little), Orientation(6));
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(Orientation::of_exif(big), Orientation(8));
        for length in 0..big.len() - 2 {
            assert_eq!(Orientation::of_exif(&big[..length]), Orientation::PLAIN, "{length}");
        }
        let far = b"II*\0\xff\xff\xff\xff\x01\0";
        assert_eq!(Orientation::of_exif(far), Orientation::PLAIN);
        let nine = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0";
        assert_eq!(Orientation::of_exif(nine), Orientation::PLAIN);
    }
}
