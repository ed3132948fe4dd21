//! Tests of `layout` from outside, in one executable.

mod shapes;
