//! One module a command; each returns a result that `main` turns into an exit code.

pub mod bench_cluster;
pub mod bench_device;
pub mod bench_model;
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
pub mod nodes;
pub mod plan;
pub mod preset;
pub mod query;
pub mod report;
pub mod run;
pub mod serve;
pub mod service;
pub mod top;
pub mod up;
