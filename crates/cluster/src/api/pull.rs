//! The progress of a download.

use serde::{Deserialize, Serialize};

/// Models that a node fetches at a time: more would only share the same wire.
pub(crate) const PULLS_MAX: usize = 8;
const SHA256_HEX: usize = 64;
/// Characters of a text in another node's report: a reason with a path is shorter.
const CHARS_MAX: usize = 500;

/// A model that is being fetched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PullStatus {
    /// As it was asked for.
    pub model: String,
    pub stage: PullStage,
    /// What a person should know: which quantisation it is and why, what it waits for, why it
    /// failed.
    pub note: String,
    /// The file that is being fetched, and its SHA-256 as the hub announced it.
    pub file: String,
    pub sha256: Option<String>,
    pub file_done_bytes: u64,
    pub file_total_bytes: u64,
    /// Of all the model's files.
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_sec: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullStage {
    /// The hub is asked what there is.
    Looking,
    Pulling,
    /// The hub asked for patience, or does not answer; `note` says which.
    Waiting,
    /// The SHA-256 is compared with what the hub announced.
    Verifying,
    /// This node's own hash of it is computed.
    Hashing,
    Done,
    Failed,
}

impl PullStage {
    pub fn is_last(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// The downloads of another node, with texts and lists of bounded length.
pub(crate) fn within_limits(mut told: Vec<PullStatus>) -> Vec<PullStatus> {
    told.truncate(PULLS_MAX);
    for one in &mut told {
        for text in [&mut one.model, &mut one.note, &mut one.file] {
            *text = text.chars().filter(|char| !char.is_control()).take(CHARS_MAX).collect();
        }
        one.sha256 = one.sha256.take().filter(|hash| is_hash(hash));
        one.bytes_per_sec = if one.bytes_per_sec.is_finite() { one.bytes_per_sec } else { 0.0 };
    }
    told
}

fn is_hash(text: &str) -> bool {
    text.len() == SHA256_HEX && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
