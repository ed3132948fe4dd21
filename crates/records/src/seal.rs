//! One record as it lies on disk: sealed, self-describing, in whole blocks of 4096 bytes.
//!
//! ```text
//!   0  magic "sinewrec"        8
//!   8  version, cipher, kind   3, and a zero
//!  12  bytes of the payload    4, little-endian as all numbers
//!  16  salt, random           24
//!  40  tag                    16, and 8 zeros
//!  64  key                    32 -- sealed from here on
//!  96  bytes of the header     2
//!  98  header, then zeros    414
//! 512  payload, then the block's rest, which nobody reads
//! ```
//!
//! Every record has a key of its own, derived from the sealing key and 192 random bits, as in
//! XAES-256-GCM. So the nonce may be zero, and no counter has to outlive a crash, a copied folder
//! or two programs with one key.

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use crate::buffer::{Buffer, aligned};

/// What a caller finds a record by: a BLAKE3 hash of everything that decides its bytes.
pub type Key = [u8; 32];

/// The longest header. It holds the 64 tokens of a page.
pub const HEADER_BYTES_MAX: usize = 256;
/// The longest payload: one that is read whole, and is far below a segment.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Of the format. Files of another version are not read.
const VERSION: u8 = 1;
const MAGIC: &[u8; 8] = b"sinewrec";
const SALT: std::ops::Range<usize> = 16..40;
const TAG: std::ops::Range<usize> = 40..56;
/// What the tag authenticates beside the sealed bytes.
const CLEAR_BYTES: usize = 40;
const SEALED_AT: usize = 64;
const HEADER_AT: usize = 98;
const PAYLOAD_AT: usize = 512;

/// What a record is for. A record of one kind does not open as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The begin of a segment.
    Head = 1,
    /// The caller's.
    Content = 2,
    /// A segment's list of its records.
    Index = 3,
}

/// Why a record does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It has not the form of one.
    Form,
    Version,
    /// Other bytes, or another sealing key.
    Tag,
}

/// Bytes that a record takes on disk.
pub(crate) fn record_bytes(payload_bytes: usize) -> usize {
    aligned(PAYLOAD_AT + payload_bytes)
}

/// Seals and opens records under one key.
pub(crate) struct Sealing {
    key: Key,
    cipher: Cipher,
    random: SystemRandom,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cipher {
    Aes256Gcm = 1,
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    /// AES-GCM is slow without instructions for it.
    fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        let aes_is_fast = std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let aes_is_fast = std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let aes_is_fast = false;
        if aes_is_fast { Self::Aes256Gcm } else { Self::ChaCha20Poly1305 }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::Aes256Gcm, Self::ChaCha20Poly1305].into_iter().find(|one| *one as u8 == number)
    }

    fn with(self, key: &Key) -> LessSafeKey {
        let algorithm = match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both ciphers take 32-byte keys"))
    }
}

/// A record that has been opened, in the memory that it was read into.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    pub key: Key,
    pub header: &'a [u8],
    pub payload: &'a [u8],
}

impl Sealing {
    pub fn new(key: &Key) -> Self {
        let key = blake3::derive_key("sinew records 2026-11 sealing key", key);
        Self { key, cipher: Cipher::fastest(), random: SystemRandom::new() }
    }

    #[cfg(test)]
    fn with_cipher(key: &Key, cipher: Cipher) -> Self {
        Self { cipher, ..Self::new(key) }
    }

    /// Zeros with room for a payload, and where in them it stands.
    pub fn draft(payload_bytes: usize) -> (Buffer, std::ops::Range<usize>) {
        let buffer = Buffer::zeroed(record_bytes(payload_bytes));
        (buffer, PAYLOAD_AT..PAYLOAD_AT + payload_bytes)
    }

    /// Seals a draft with a payload of `payload_bytes` in place.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn seal(
        &self,
        record: &mut Buffer,
        kind: Kind,
        key: &Key,
        header: &[u8],
        payload_bytes: usize,
    ) -> std::io::Result<()> {
        let header_bytes = u16::try_from(header.len()).expect("a header is short");
        let length = u32::try_from(payload_bytes).expect("a payload is far below 4 GiB");
        record[..8].copy_from_slice(MAGIC);
        record[8..12].copy_from_slice(&[VERSION, self.cipher as u8, kind as u8, 0]);
        record[12..16].copy_from_slice(&length.to_le_bytes());
        let salted = self.random.fill(&mut record[SALT]);
        salted.map_err(|_| std::io::Error::other("the system has no random bytes"))?;
        record[SEALED_AT..96].copy_from_slice(key);
        record[96..HEADER_AT].copy_from_slice(&header_bytes.to_le_bytes());
        record[HEADER_AT..HEADER_AT + header.len()].copy_from_slice(header);

        let cipher = self.cipher_of(self.cipher, &record[SALT]);
        let (clear, sealed) = record.split_at_mut(SEALED_AT);
        let sealed = &mut sealed[..PAYLOAD_AT - SEALED_AT + payload_bytes];
        let tag = cipher
            .seal_in_place_separate_tag(zero(), Aad::from(&clear[..CLEAR_BYTES]), sealed)
            .expect("a record is far below the cipher's limit");
        clear[TAG].copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// The kind of the record that may begin here, and the bytes it takes on disk.
    pub fn look(begin: &[u8]) -> Result<(u8, usize), Damage> {
        if begin.len() < PAYLOAD_AT || begin[..8] != MAGIC[..] {
            return Err(Damage::Form);
        }
        if begin[8] != VERSION {
            return Err(Damage::Version);
        }
        let length = u32::from_le_bytes([begin[12], begin[13], begin[14], begin[15]]) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(Damage::Form);
        }
        Ok((begin[10], record_bytes(length)))
    }

    /// Checks a record and opens it in place. Bytes behind it are left alone.
    pub fn open<'a>(&self, record: &'a mut [u8], kind: Kind) -> Result<Plain<'a>, Damage> {
        let (found, bytes) = Self::look(record)?;
        if found != kind as u8 || bytes > record.len() {
            return Err(Damage::Form);
        }
        let length = u32::from_le_bytes([record[12], record[13], record[14], record[15]]) as usize;
        let cipher = Cipher::of(record[9]).ok_or(Damage::Form)?;
        let cipher = self.cipher_of(cipher, &record[SALT]);
        let (clear, sealed) = record.split_at_mut(SEALED_AT);
        let sealed = &mut sealed[..PAYLOAD_AT - SEALED_AT + length];
        let tag = Tag::try_from(&clear[TAG]).map_err(|_| Damage::Form)?;
        let plain = cipher
            .open_in_place_separate_tag(zero(), Aad::from(&clear[..CLEAR_BYTES]), tag, sealed, 0..)
            .map_err(|_| Damage::Tag)?;
        let (meta, payload) = plain.split_at(PAYLOAD_AT - SEALED_AT);
        let header_bytes = usize::from(u16::from_le_bytes([meta[32], meta[33]]));
        let header = meta[34..].get(..header_bytes).ok_or(Damage::Form)?;
        let key = meta[..32].try_into().map_err(|_| Damage::Form)?;
        Ok(Plain { key, header, payload })
    }

    /// The cipher of one record, by its salt.
    fn cipher_of(&self, cipher: Cipher, salt: &[u8]) -> LessSafeKey {
        cipher.with(blake3::keyed_hash(&self.key, salt).as_bytes())
    }
}

/// The only nonce of a key that seals one record.
fn zero() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(sealing: &Sealing, payload: &[u8]) -> Buffer {
        let (mut record, at) = Sealing::draft(payload.len());
        record[at].copy_from_slice(payload);
        sealing.seal(&mut record, Kind::Content, &[5; 32], b"tokens", payload.len()).unwrap();
        record
    }

    fn opened(sealing: &Sealing, record: &[u8], kind: Kind) -> Result<Vec<u8>, Damage> {
        let mut record = record.to_vec();
        let plain = sealing.open(&mut record, kind)?;
        assert_eq!((plain.key, plain.header), ([5; 32], &b"tokens"[..]));
        Ok(plain.payload.to_vec())
    }

    #[test]
    fn a_record_opens_with_its_key_and_kind_only() {
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let sealing = Sealing::with_cipher(&[7; 32], cipher);
            let record = sealed(&sealing, b"keys and values");
            assert_eq!(record.len(), 4096);
            assert!(!record.windows(4).any(|four| four == b"keys" || four == b"toke"));
            // Whatever is fastest here, both are read.
            let other = Sealing::new(&[7; 32]);
            assert_eq!(opened(&other, &record, Kind::Content).unwrap(), b"keys and values");
            assert_eq!(opened(&sealing, &record, Kind::Index), Err(Damage::Form));
            let foreign = Sealing::new(&[8; 32]);
            assert_eq!(opened(&foreign, &record, Kind::Content), Err(Damage::Tag));
        }
    }

    #[test]
    fn no_flipped_bit_and_no_cut_gives_other_bytes() {
        let sealing = Sealing::new(&[7; 32]);
        let record = sealed(&sealing, b"keys and values");
        let used = PAYLOAD_AT + b"keys and values".len();
        for at in 0..record.len() * 8 {
            let mut flipped = record.to_vec();
            flipped[at / 8] ^= 1 << (at % 8);
            let unread = at / 8 >= used || (TAG.end..SEALED_AT).contains(&(at / 8)) || at / 8 == 11;
            match opened(&sealing, &flipped, Kind::Content) {
                Ok(payload) => assert!(unread && payload == b"keys and values", "bit {at}"),
                Err(_) => assert!(at / 8 < used, "bit {at}"),
            }
        }
        for bytes in 0..record.len() {
            assert!(opened(&sealing, &record[..bytes], Kind::Content).is_err(), "{bytes} bytes");
        }
    }

    #[test]
    fn the_same_content_is_never_sealed_alike() {
        let sealing = Sealing::new(&[7; 32]);
        let (one, other) = (sealed(&sealing, b"same"), sealed(&sealing, b"same"));
        assert_ne!(one[SALT], other[SALT]);
        assert_ne!(one[SEALED_AT..PAYLOAD_AT], other[SEALED_AT..PAYLOAD_AT]);
    }
}
