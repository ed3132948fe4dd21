//! Tests of `vision` from outside, in one executable.

mod hostile;
mod parity;
mod pictures;
mod types;
