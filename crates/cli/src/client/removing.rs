//! Requests that free the disks of nodes.

use std::time::Duration;

use cluster::Forgotten;
use serde_json::{Value, json};

use super::{Client, LOOK_MAX};
use crate::error::CliError;

/// Each node waits a minute for its workers to forget.
const FORGET_MAX: Duration = Duration::from_secs(90);

impl Client {
    /// Deletes a model from the node's model folder; returns the bytes freed.
    ///
    /// # Errors
    /// The node does not answer, or keeps the model for the reason that it gives.
    pub fn remove_model(&self, model: &str) -> Result<u64, CliError> {
        let answer: Value =
            self.ask("/sinew/v1/models/remove", &json!({ "model": model }), LOOK_MAX)?;
        Ok(answer["freed_bytes"].as_u64().unwrap_or_default())
    }

    /// Deletes the prompts that the connected nodes keep on disk.
    ///
    /// # Errors
    /// This machine's node does not answer. What others keep stands in the result.
    pub fn forget_prompts(&self) -> Result<Vec<Forgotten>, CliError> {
        self.ask("/sinew/v1/prompts/remove", &json!({}), FORGET_MAX)
    }
}
