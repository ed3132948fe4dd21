//! The alphabet of byte-level BPE: every byte written as one printable character.
//!
//! Source: GPT-2's `bytes_to_unicode`. Printable Latin-1 bytes stand for themselves; the other 68
//! are written as the characters from U+0100 on, in order.

/// The byte of a character of the alphabet.
fn byte_of(ch: char) -> Option<u8> {
    let code = u32::from(ch);
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => (0..=255).filter(|byte| !is_printable(*byte)).nth(code as usize - 256),
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Turns token texts of the alphabet into bytes.
pub(super) struct Alphabet {
    /// The byte of each character below U+0144, where the alphabet ends.
    bytes: [Option<u8>; 324],
}

impl Alphabet {
    pub(super) fn new() -> Self {
        let char_at = |code: usize| char::from_u32(code as u32).expect("below U+0144");
        Self { bytes: std::array::from_fn(|code| byte_of(char_at(code))) }
    }

    /// Appends the bytes of `text` to `out`. Returns false, and appends nothing, if `text` contains
    /// a character outside the alphabet.
    pub(super) fn decode(&self, text: &str, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for ch in text.chars() {
            match self.bytes.get(ch as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => {
                    out.truncate(start);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let alphabet = Alphabet::new();
        let mut bytes: Vec<u8> = alphabet.bytes.iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn known_characters() {
        let mut out = Vec::new();
        assert!(Alphabet::new().decode("ĠHelloĊÃ©", &mut out));
        assert_eq!(out, " Hello\né".as_bytes());
        assert!(!Alphabet::new().decode("a b", &mut out), "a raw space is not in the alphabet");
        assert_eq!(out, " Hello\né".as_bytes());
    }
}
