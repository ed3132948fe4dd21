//! Sealing of frames: one key for each direction of each link of each epoch.
//!
//! The nonce is the direction's message counter, so no nonce repeats under a key, and a frame
//! replayed, reordered or dropped does not open. The header is authenticated with the message.
//! The ciphers' margin shrinks slowly with the data under one key (RFC 8446, section 5.5); every
//! epoch brings new ones.

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::frame::HEADER_BYTES;

/// Bytes the authentication tag adds to a message.
pub(crate) const TAG_BYTES: usize = 16;

/// The two ciphers; a link uses the one that is fast on both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cipher {
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Cipher {
    /// Whether AES-GCM is fast here: it needs hardware for that (and to avoid timing leaks). ChaCha
    /// does not.
    pub fn aes_is_fast() -> bool {
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        return std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return false;
    }
}

/// Seals or opens the frames of one direction.
pub(crate) struct Sealer {
    key: LessSafeKey,
}

/// The keys of the two directions.
pub(crate) struct Sealers {
    pub send: Sealer,
    pub recv: Sealer,
}

/// The frame was altered, or is not the expected one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Forged;

impl Sealer {
    pub fn new(cipher: Cipher, key: &[u8; 32]) -> Self {
        let algorithm = match cipher {
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, key).expect("both ciphers take 32-byte keys");
        Sealer { key: LessSafeKey::new(key) }
    }

    /// Encrypts `message` in place and returns its tag.
    pub fn seal(
        &self,
        seq: u64,
        header: &[u8; HEADER_BYTES],
        message: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(seq), Aad::from(header), message)
            .expect("a slot is far below the cipher's limit");
        tag.as_ref().try_into().expect("both ciphers have 16-byte tags")
    }

    /// Checks and decrypts `sealed`, a message followed by its tag, in place.
    pub fn open(
        &self,
        seq: u64,
        header: &[u8; HEADER_BYTES],
        sealed: &mut [u8],
    ) -> Result<(), Forged> {
        let opened = self.key.open_in_place(nonce(seq), Aad::from(header), sealed);
        opened.map(|_| ()).map_err(|_| Forged)
    }
}

fn nonce(seq: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&seq.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_frame_opens_once_in_its_place_only() {
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let sealer = Sealer::new(cipher, &[7; 32]);
            let header = [1; HEADER_BYTES];
            let mut sealed = b"partial sums".to_vec();
            let tag = sealer.seal(3, &header, &mut sealed);
            assert_ne!(&sealed[..], b"partial sums");
            sealed.extend_from_slice(&tag);

            let open = |seq, header: &[u8; HEADER_BYTES], bytes: &[u8], key: u8| {
                let mut bytes = bytes.to_vec();
                Sealer::new(cipher, &[key; 32]).open(seq, header, &mut bytes).map(|()| bytes)
            };
            assert_eq!(&open(3, &header, &sealed, 7).unwrap()[..12], b"partial sums");
            assert_eq!(open(4, &header, &sealed, 7), Err(Forged), "replayed at another place");
            assert_eq!(open(3, &[2; HEADER_BYTES], &sealed, 7), Err(Forged), "other header");
            assert_eq!(open(3, &header, &sealed, 8), Err(Forged), "other key");
            for byte in 0..sealed.len() {
                let mut flipped = sealed.clone();
                flipped[byte] ^= 1;
                assert_eq!(open(3, &header, &flipped, 7), Err(Forged), "byte {byte}");
            }
        }
    }
}
