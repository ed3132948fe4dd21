//! The secret of an epoch; it authenticates the ranks.

use std::fmt;

/// 32 random bytes that only the control plane and the ranks of an instance know. Never printed.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn new(bytes: [u8; 32]) -> Self {
        Secret(bytes)
    }

    /// Derives a key for one purpose, so that no two uses of the secret share one.
    pub(crate) fn derive(&self, purpose: &str, context: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0).update(context);
        *hasher.finalize().as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
