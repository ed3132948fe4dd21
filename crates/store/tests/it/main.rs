//! Tests of `store` from outside, in one executable.

mod shelves;
