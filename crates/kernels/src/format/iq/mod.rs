//! The types with codebooks: IQ1_S to IQ3_S. A packed tile keeps GGUF's own bits, sorted by use:
//! scales and the high bits of indices, the low bytes of indices, four of each row a vector, then
//! the signs. Indices become weights where they are used, so that a file of two bits takes two
//! bits in memory.

pub(crate) mod codebook;
pub(crate) mod grids;
mod iq1;
mod iq2;
mod iq3;
mod record;

pub(crate) use codebook::Codebook;
pub(crate) use iq1::{Iq1M, Iq1S};
pub(crate) use iq2::{Iq2S, Iq2Xs, Iq2Xxs};
pub(crate) use iq3::{Iq3S, Iq3Xxs};
