//! The fleet key: a secret file that all machines of one fleet share. Nodes with the same key form
//! one cluster, without codes or people. Each end of a connection proves that it has the key; the
//! proof is bound to that connection.

use std::fmt;
use std::path::Path;

use subtle::ConstantTimeEq;

use crate::admission::code::BASE32;
use crate::{Error, NodeId, Result};

const PREFIX: &str = "sinew-fleet-";
const KEY_BYTES: usize = 32;
const SUM_BYTES: usize = 2;
/// A key file has one line of about sixty characters.
const FILE_BYTES_MAX: u64 = 1024;
const TAG_CONTEXT: &str = "sinew fleet key: what is announced, 1";
const PROOF_CONTEXT: &str = "sinew fleet key: proofs, 1";

/// The secret. Only [`FleetKey::text`] prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetKey([u8; KEY_BYTES]);

/// The end of a connection that made a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Dialer,
    Listener,
}

impl fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetKey")
    }
}

impl FleetKey {
    /// Draws a new key of 256 random bits.
    pub fn generate() -> Self {
        Self(crate::io::identity::random())
    }

    /// The content of a key file: one line.
    pub fn text(&self) -> String {
        let sum = blake3::hash(&self.0);
        let bytes = [self.0.as_slice(), &sum.as_bytes()[..SUM_BYTES]].concat();
        format!("{PREFIX}{}\n", BASE32.encode(&bytes))
    }

    /// Reads a key file, which only its owner may be able to read.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it, or it contains no key.
    pub fn read(path: &Path) -> Result<Self> {
        let io = |source| Error::KeyFile { path: path.to_owned(), source };
        let about = std::fs::metadata(path).map_err(io)?;
        let bad = |why: &str| Error::FleetKey { path: path.to_owned(), why: why.to_owned() };
        if store::private::is_open_to_others(&about) {
            return Err(bad("other users of this machine may read or change it; type: chmod 600"));
        }
        if about.len() > FILE_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        Self::parse(&text).ok_or_else(|| bad("make one with: sinew fleet-key new FILE"))
    }

    fn parse(text: &str) -> Option<Self> {
        let body = text.trim().strip_prefix(PREFIX)?;
        let bytes = BASE32.decode(body.as_bytes()).ok()?;
        let key: [u8; KEY_BYTES] = bytes.get(..KEY_BYTES)?.try_into().ok()?;
        let sum = blake3::hash(&key);
        (bytes[KEY_BYTES..] == sum.as_bytes()[..SUM_BYTES]).then_some(Self(key))
    }

    /// A hash that identifies the key in announcements and reveals nothing of it.
    pub(crate) fn tag(&self) -> String {
        let tag = blake3::derive_key(TAG_CONTEXT, &self.0);
        data_encoding::HEXLOWER.encode(&tag[..8])
    }

    /// Proves that one end of a connection has the key. `session` is a secret of that connection.
    pub(crate) fn prove(&self, end: End, session: &[u8; 32], from: NodeId, to: NodeId) -> [u8; 32] {
        let key = blake3::derive_key(PROOF_CONTEXT, &self.0);
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(&[end as u8]).update(session).update(&from.0).update(&to.0);
        *hasher.finalize().as_bytes()
    }

    pub(crate) fn accepts(
        &self,
        proof: &[u8],
        end: End,
        session: &[u8; 32],
        from: NodeId,
        to: NodeId,
    ) -> bool {
        self.prove(end, session, from, to).as_slice().ct_eq(proof).into()
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_read_as_it_was_written_and_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.key");
        let key = FleetKey::generate();
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        write(&key.text(), 0o600);
        assert!(FleetKey::read(&path).unwrap() == key);
        let text = key.text();
        let typo = text.replace(&text[20..21], if &text[20..21] == "x" { "y" } else { "x" });
        for (text, mode, why) in [
            (key.text(), 0o644, "chmod 600"),
            (typo, 0o600, "fleet-key new"),
            (String::new(), 0o600, "fleet-key new"),
            ("x".repeat(2000), 0o600, "too long"),
        ] {
            write(&text, mode);
            let error = FleetKey::read(&path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("fleet.key"), "{error}");
            assert!(!error.contains(key.text().trim()), "the key is in no message");
        }
        assert!(!format!("{key:?}").contains(&key.text()[12..20]));
    }

    #[test]
    fn a_proof_is_good_for_one_end_of_one_connection() {
        let (key, other) = (FleetKey::generate(), FleetKey::generate());
        let (a, b) = (NodeId([1; 32]), NodeId([2; 32]));
        let proof = key.prove(End::Dialer, &[7; 32], a, b);
        assert!(key.accepts(&proof, End::Dialer, &[7; 32], a, b));
        assert!(!other.accepts(&proof, End::Dialer, &[7; 32], a, b));
        assert!(!key.accepts(&proof, End::Listener, &[7; 32], a, b));
        assert!(!key.accepts(&proof, End::Dialer, &[8; 32], a, b));
        assert!(!key.accepts(&proof, End::Dialer, &[7; 32], b, a));
        assert!(!key.accepts(&proof[..31], End::Dialer, &[7; 32], a, b));
        assert_ne!(key.tag(), other.tag());
    }
}
