//! Tests of `checkpoint` from outside, in one executable.

mod architectures;
mod common;
mod configurations;
mod converter;
mod formats;
mod hostile;
mod hostile_families;
mod integers;
mod mlx;
mod models_page;
mod tokens;

#[path = "common/compare.rs"]
mod compare;
#[path = "common/quantised.rs"]
mod quantised;
#[path = "common/unmake.rs"]
mod unmake;
