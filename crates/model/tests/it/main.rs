//! Tests of `model` from outside, in one executable.

mod hostile;
mod recording;
