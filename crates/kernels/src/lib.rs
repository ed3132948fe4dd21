//! CPU numerics: quantised products, attention, norms, rope; instruction-set dispatch; the spin pool.
