use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Length of a key's fingerprint: 128 bits, far beyond a search for a second key with the same one.
pub(crate) const FINGERPRINT_BYTES: usize = 16;
pub(crate) type Fingerprint = [u8; FINGERPRINT_BYTES];

/// A node's name in the cluster: its Ed25519 public key, shown as lower-case hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 32]);

/// The text is not a node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a node id is 64 hexadecimal digits")]
pub struct NodeIdError;

impl NodeId {
    /// The first eight digits: enough for a user to distinguish nodes, not to trust one.
    pub fn short(&self) -> String {
        HEXLOWER.encode(&self.0[..4])
    }
}

/// The start of BLAKE3 over the public key.
pub(crate) fn fingerprint(id: NodeId) -> Fingerprint {
    let hash = blake3::hash(&id.0);
    hash.as_bytes()[..FINGERPRINT_BYTES].try_into().expect("BLAKE3 gives 32 bytes")
}

/// Whether node `id` signed these bytes.
pub(crate) fn is_signed_by(id: NodeId, bytes: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, id.0).verify(bytes, signature).is_ok()
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", self.short())
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<Self, NodeIdError> {
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| NodeIdError)?;
        bytes.try_into().map(NodeId).map_err(|_| NodeIdError)
    }
}

impl Serialize for NodeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text_and_json() {
        let id = NodeId(std::array::from_fn(|at| at as u8 * 7));
        assert_eq!(id.to_string().parse(), Ok(id));
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<NodeId>(&json).unwrap(), id);
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "00", &"zz".repeat(32), &"00".repeat(33)] {
            assert_eq!(text.parse::<NodeId>(), Err(NodeIdError), "{text}");
        }
    }
}
