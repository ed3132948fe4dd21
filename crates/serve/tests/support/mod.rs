//! A scripted cluster behind a real listener, and a client that records every byte.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod act;
pub mod client;
pub mod double;
mod nodes;
pub mod server;
pub mod sight;
