//! The HTTP API of a node: clients' dialects, administration and the status page.
//!
//! [`start`] opens one listener in front of any [`Cluster`]: a running node, or the scripted double
//! in this crate's tests. From the outside in:
//!
//! ```text
//! http        connections, limits, the guard (Host, Origin, keys), bodies, errors, event streams
//! dialect     the error format of a request's client
//! openai      /v1/...: the API of OpenAI's clients
//! anthropic   /v1/messages: the API of Anthropic's clients
//! ollama      /api/...: the API of Ollama's clients
//! llama       /completion, /infill...: the API of llama-server's clients
//! known       the table of the dialects' fields
//! browsers    /sinew/v1/browsers/...: a key for a browser, by a number of six digits
//! chats       /sinew/v1/chats...: conversations that this node keeps, and their answers
//! conversations  their folders and answers in progress
//! admin       /sinew/v1/...: status, events, plan, invite, join, serve, stop, shutdown
//! clients     settings with which other programs use this cluster
//! health      /health, /ready
//! metrics     /metrics
//! openapi     /openapi.json: a machine-readable description of the dialects
//! page        /: the page, and a plain line for clients that only probe
//! pictures    data addresses, Base64 and addresses of the network -> bytes
//! completion  messages -> template -> tokens -> node -> thoughts, text and calls
//! node        the trait that this crate requires of a node
//! ```
//!
//! A dialect is a pair of translations around `completion`. It has no inference logic, so a new
//! dialect is one more folder.
//!
//! This crate does not know workers, links, shards or files, and it starts no processes.

mod admin;
mod anthropic;
mod app;
mod browsers;
mod caller;
mod chats;
pub mod clients;
mod clock;
mod completion;
mod config;
mod conversations;
mod dialect;
mod elsewhere;
mod foreign;
mod health;
mod http;
mod known;
mod llama;
mod metrics;
mod node;
mod ollama;
mod openai;
mod openapi;
mod page;
mod pictures;
mod server;

pub use clock::rfc3339;
pub use config::{Limits, MakeKey, ServeConfig, StartError, Tls};
pub use http::keys::{ApiKey, ApiKeys};
pub use http::owner::OwnProcess;
pub use metrics::{KeyUsage, KeysUsage};
pub use node::{BoxFuture, Cluster, EventStream, PullStream, Refusal, RefusalKind};
pub use pictures::FetchPicture;
pub use server::{Running, start};
