//! Tests of `constrain` from outside, in one executable.

mod custom;
mod gbnf;
mod grammars;
mod integers;
mod support;
