//! SentencePiece's table of characters to replace before tokens are looked for, such as full-width
//! letters by plain ones.
//!
//! Layout: 4 bytes with the length of a double-array trie, the trie (32-bit units as Darts-clone
//! writes them), then the replacements, each ended by a zero byte. All numbers are little-endian.
//! What a text begins with is looked for in the trie; of several matches the longest counts.

use gguf::Directory;

use crate::TextError;

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";
/// The published ones have about 240,000.
const BYTES_MAX: usize = 1 << 24;
/// The longest published replacement has 33 bytes; a long one for every character of a text would
/// fill the memory.
const REPLACEMENT_BYTES_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// `None` if the file has no such table.
    pub(super) fn from_gguf(gguf: &Directory) -> Result<Option<Self>, TextError> {
        let Some(array) = gguf.find_array(KEY)? else { return Ok(None) };
        let wrong = TextError::ArrayType { key: KEY, wanted: "bytes" };
        if array.len() > BYTES_MAX {
            let found = array.len();
            return Err(TextError::TooMany {
                what: "bytes of a charsmap",
                found,
                limit: BYTES_MAX,
            });
        }
        // Some writers know only signed bytes.
        let bytes: Vec<u8> = array.integers().ok_or(wrong)?.map(|byte| byte as u8).collect();
        if bytes.is_empty() {
            return Ok(None);
        }
        Self::parse(&bytes).map(Some).ok_or(TextError::Charsmap { bytes: bytes.len() })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (trie, replacements) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let units = trie.chunks_exact(4);
        let whole = units.remainder().is_empty() && replacements.last() == Some(&0);
        let unit = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        whole.then(|| Self { units: units.map(unit).collect(), replacements: replacements.into() })
    }

    /// `text` with all replacements made.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(ch) = rest.chars().next() {
            let found = self.longest(rest.as_bytes()).and_then(|(len, at)| {
                // A trie of a broken file may end inside a character.
                Some((rest.get(len..)?, self.replacement(at)?))
            });
            match found {
                Some((behind, replacement)) => {
                    out.push_str(replacement);
                    rest = behind;
                }
                None => {
                    out.push(ch);
                    rest = &rest[ch.len_utf8()..];
                }
            }
        }
        out
    }

    /// The bytes of the longest match at the start of `text`, and where its replacement is.
    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let mut best = None;
        let mut node = children(*self.units.first()?);
        for (at, byte) in text.iter().enumerate() {
            node ^= u32::from(*byte);
            let Some(&unit) = self.units.get(node as usize) else { break };
            if *byte == 0 || label(unit) != u32::from(*byte) {
                break;
            }
            node ^= children(unit);
            if has_value(unit) {
                let Some(&value) = self.units.get(node as usize) else { break };
                best = Some((at + 1, (value & !TOP_BIT) as usize));
            }
        }
        best
    }

    fn replacement(&self, at: usize) -> Option<&str> {
        let text = self.replacements.get(at..)?;
        let len = text.iter().take(REPLACEMENT_BYTES_MAX).position(|byte| *byte == 0)?;
        std::str::from_utf8(&text[..len]).ok()
    }
}

const TOP_BIT: u32 = 1 << 31;

/// Where a unit's children are, relative to it by exclusive or.
fn children(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}

/// The byte that leads to a unit; more than a byte for units that hold a value.
fn label(unit: u32) -> u32 {
    unit & (TOP_BIT | 0xFF)
}

fn has_value(unit: u32) -> bool {
    unit & 1 << 8 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trie of one match, "A" to "bc": the root's children begin at 128, the value lies at 1.
    fn table() -> Vec<u8> {
        let mut units = vec![0_u32; 256];
        units[0] = 128 << 10;
        let a = 128 ^ u32::from(b'A');
        units[a as usize] = u32::from(b'A') | 1 << 8 | (a ^ 1) << 10;
        units[1] = TOP_BIT;
        let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(b"bc\0");
        bytes
    }

    #[test]
    fn matches_are_replaced_and_the_rest_is_kept() {
        let charsmap = Charsmap::parse(&table()).unwrap();
        assert_eq!(charsmap.apply("xAé\0A"), "xbcé\0bc");
    }

    #[test]
    fn broken_tables_are_refused_or_harmless() {
        for len in [0, 3, 4, 100, table().len() - 1] {
            assert!(Charsmap::parse(&table()[..len]).is_none(), "{len}");
        }
        for at in 4..table().len() - 1 {
            for byte in [0x00, 0xFF, 0x7F, 0x41] {
                let mut bytes = table();
                bytes[at] = byte;
                if let Some(charsmap) = Charsmap::parse(&bytes) {
                    let text = charsmap.apply("AéA");
                    assert!(text.len() <= bytes.len() * 3, "byte {at} as {byte}");
                }
            }
        }
    }
}
