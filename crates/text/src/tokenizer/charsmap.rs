//! SentencePiece's compiled normalisation: a trie of texts, and what replaces each.
//!
//! The map is a little-endian u32 with the bytes of a double array (Aoe 1989, in the layout of
//! Darts-clone), the array, and the replacements, each ended by a zero byte.

use crate::TextError;

/// The most bytes of a map; that of NFKC has about 240,000.
const BYTES_MAX: usize = 1 << 24;

#[derive(Default)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl Charsmap {
    /// # Errors
    /// It is cut, or too large.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, TextError> {
        let limit = BYTES_MAX;
        if bytes.len() > limit {
            let what = "bytes of the tokenizer's character map";
            return Err(TextError::TooMany { what, found: bytes.len(), limit });
        }
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let cut = || TextError::Charsmap { bytes: bytes.len() };
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let size = u32::from_le_bytes(*size) as usize;
        if size > rest.len() || !size.is_multiple_of(4) {
            return Err(cut());
        }
        let (array, texts) = rest.split_at(size);
        let units = array.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit));
        Ok(Self { units: units.collect(), texts: texts.to_vec() })
    }

    /// The length of the longest text in the map that `text` begins with, and its replacement.
    pub(super) fn find(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut found = None;
        let mut at = offset(*self.units.first()?);
        for (len, byte) in (1..).zip(text) {
            at ^= *byte as usize;
            let Some(unit) = self.units.get(at).filter(|unit| label(**unit) == u32::from(*byte))
            else {
                break;
            };
            at ^= offset(*unit);
            if has_leaf(*unit) {
                let place = self.units.get(at).map(|leaf| (*leaf & 0x7fff_ffff) as usize);
                found = place.map(|place| (len, place)).or(found);
            }
        }
        let (len, place) = found?;
        let text = self.texts.get(place..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some((len, std::str::from_utf8(&text[..end]).ok()?))
    }
}

fn has_leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

/// The byte that leads to a unit; no byte for a leaf.
fn label(unit: u32) -> u32 {
    unit & 0x8000_00ff
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a" becomes "xy", and "ab" nothing.
    fn map() -> Vec<u8> {
        let mut units = vec![0_u32; 512];
        let (a, b) = (u32::from(b'a'), u32::from(b'b'));
        // The root's children are at its offset, changed by their bytes.
        units[0] = 1 << 10;
        let first = 1 ^ a as usize;
        let set = |label: u32, leaf: bool, place: usize, target: usize| {
            label | u32::from(leaf) << 8 | ((place ^ target) as u32) << 10
        };
        units[first] = set(a, true, first, 256);
        units[256] = 1 << 31;
        let second = 256 ^ b as usize;
        units[second] = set(b, true, second, 128);
        units[128] = 1 << 31 | 3;
        let array: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let size = (array.len() as u32).to_le_bytes();
        [&size[..], &array, b"xy\0\0"].concat()
    }

    #[test]
    fn the_longest_text_counts() {
        let map = Charsmap::read(&map()).unwrap();
        for (text, found) in [
            ("abc", Some((2, ""))),
            ("acb", Some((1, "xy"))),
            ("a", Some((1, "xy"))),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(map.find(text.as_bytes()), found, "{text}");
        }
        assert_eq!(Charsmap::default().find(b"a"), None);
    }

    #[test]
    fn a_broken_map_is_an_error_or_finds_nothing() {
        let whole = map();
        for end in [1, 3, 4, 100] {
            assert!(Charsmap::read(&whole[..end]).is_err(), "{end}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            if let Ok(map) = Charsmap::read(&bytes) {
                map.find(b"abab");
            }
        }
    }
}
