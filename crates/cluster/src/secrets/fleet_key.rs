//! The fleet key: a secret file that all machines of one fleet share. Nodes with the same key form
//! one cluster, without codes or people. Each end of a connection proves that it has the key; the
//! proof is bound to that connection.

use std::fmt;

use subtle::ConstantTimeEq;

use crate::NodeId;
use crate::secrets::code::BASE32;

const PREFIX: &str = "sinew-fleet-";
const KEY_BYTES: usize = 32;
const SUM_BYTES: usize = 2;
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
    /// The key of 256 random bits.
    pub(crate) fn of(random: [u8; KEY_BYTES]) -> Self {
        Self(random)
    }

    /// The content of a key file: one line.
    pub fn text(&self) -> String {
        let sum = blake3::hash(&self.0);
        let bytes = [self.0.as_slice(), &sum.as_bytes()[..SUM_BYTES]].concat();
        format!("{PREFIX}{}\n", BASE32.encode(&bytes))
    }

    /// Reads [`Self::text`] again.
    pub(crate) fn parse(text: &str) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_end_of_one_connection() {
        let (key, other) = (FleetKey::of([3; 32]), FleetKey::of([4; 32]));
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
