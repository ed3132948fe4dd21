//! The progress of a download.

use serde::{Deserialize, Serialize};

/// Downloads of a node at a time: more would only share the same link.
pub(crate) const PULLS_MAX: usize = 8;
const SHA256_HEX: usize = 64;
/// Characters of a text in another node's report: a reason with a path is shorter.
const CHARS_MAX: usize = 500;

/// A download.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PullStatus {
    /// The requested name.
    pub model: String,
    pub stage: PullStage,
    /// A note for the user: the quantisation and its reason, the cause of a wait, or the cause of a
    /// failure.
    pub note: String,
    /// The file under way, and its SHA-256 from the hub.
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
    /// The hub's list of files is being fetched.
    Looking,
    Pulling,
    /// The hub is busy or does not answer; `note` has the reason.
    Waiting,
    /// The SHA-256 is being compared with the hub's.
    Verifying,
    /// This node's own hash of it is being computed.
    Hashing,
    Done,
    Failed,
}

impl PullStage {
    pub fn is_last(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// Limits the texts and lists of another node's downloads.
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
