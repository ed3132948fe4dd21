//! The HTTP API of a node: clients' dialects, administration and the status page.
//!
//! [`start`] opens one listener in front of anything that is a [`Cluster`]; a running node is one,
//! and so is the scripted double of this crate's tests. From the outside in:
//!
//! ```text
//! http        connections, limits, the guard (Host, Origin, keys), bodies, errors, event streams
//! dialect     whose errors a request's client reads
//! openai      /v1/...: what OpenAI's clients send and expect
//! anthropic   /v1/messages: what Anthropic's clients send and expect
//! ollama      /api/...: what Ollama's clients send and expect
//! admin       /sinew/v1/...: status, events, plan, invite, join, serve, stop, shutdown
//! clients     settings of other programs that make them use this cluster
//! health      /health, /ready
//! metrics     /metrics
//! openapi     /openapi.json: the dialects, described for programs
//! page        /: the page, and a plain line for clients that only knock
//! completion  messages -> template -> tokens -> node -> thoughts, text and calls
//! node        the trait for what this crate needs of a node
//! ```
//!
//! A dialect is a pair of translations around `completion`; it owns no inference logic, so that
//! the next dialect is one more folder.
//!
//! This crate does not know workers, links, shards or files, and it starts no processes.

mod admin;
mod anthropic;
mod app;
mod caller;
pub mod clients;
mod clock;
mod completion;
mod config;
mod dialect;
mod health;
mod http;
mod metrics;
mod node;
mod ollama;
mod openai;
mod openapi;
mod page;
mod server;

pub use clock::rfc3339;
pub use config::{Limits, ServeConfig, StartError, Tls};
pub use http::keys::{ApiKey, ApiKeys};
pub use http::owner::OwnProcess;
pub use node::{BoxFuture, Cluster, EventStream, PullStream, Refusal, RefusalKind};
pub use server::{Running, start};
