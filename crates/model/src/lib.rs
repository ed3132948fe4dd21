//! Architectures as data, the sharding rules, the forward pass over a Backend.
