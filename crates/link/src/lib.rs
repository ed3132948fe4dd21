//! Links between two ranks: shared memory and TCP, one trait.
