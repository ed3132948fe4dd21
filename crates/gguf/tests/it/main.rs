//! Tests of `gguf` from outside, in one executable.

mod hostile;
