//! What proves that a node may belong to a cluster: a code, a number, or the key of a fleet. Only
//! secrets and proofs; `admission` and `io::join` know who asks whom for them.

pub(crate) mod code;
pub(crate) mod fleet_key;
pub(crate) mod pake;
