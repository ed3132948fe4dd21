//! Identity, joining, membership, instances and the supervision of their workers.
