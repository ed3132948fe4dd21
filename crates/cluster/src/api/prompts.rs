//! How a node keeps prompts on disk.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a node keeps of prompts over restarts, so that they need not be computed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptsConfig {
    pub folder: PathBuf,
    pub limit: PromptsLimit,
}

impl PromptsConfig {
    /// Nothing is kept.
    pub fn off() -> Self {
        Self { folder: PathBuf::new(), limit: PromptsLimit::Off }
    }
}

/// What the prompts of all models together may take of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptsLimit {
    /// A tenth of what the disk has free, at most 20 GiB; nothing if that is less than 1 GiB.
    Auto,
    Bytes(u64),
    /// Nothing is kept, and what was kept is removed.
    Off,
}

/// What a node deleted of the prompts on its disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    pub node: String,
    pub freed_bytes: u64,
    /// The reason if some stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
