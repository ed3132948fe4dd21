//! One module a command; each returns what `main` turns into an exit code.

pub mod bench;
pub mod bench_serve;
pub mod chat;
pub mod demo;
pub mod dev;
pub mod docs;
pub mod doctor;
pub mod drain;
pub mod joining;
pub mod keys;
pub mod launch;
pub mod looking;
pub mod members;
pub mod models;
pub mod net;
pub mod nodes;
pub mod plan;
pub mod query;
pub mod run;
pub mod serve;
pub mod service;
pub mod splits;
pub mod synth;
pub mod top;
pub mod up;
