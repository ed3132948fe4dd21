//! trait Backend, the coarse operations of a transformer, and its CPU implementation.
