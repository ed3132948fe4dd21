//! Tests of `backend` from outside, in one executable.

mod ggml_faults;
mod ggml_products;
