//! What a cluster could serve: models on disks, on the hub and in the catalogue, and their plans.

use serde::{Deserialize, Serialize};
use store::Listed;

/// A model on the disk of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Held {
    #[serde(flatten)]
    pub listed: Listed,
    /// The node's name, if it is another one than the reporting node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A model on the hub, and its files' bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Download {
    /// `org/repo:QUANT`, or the address.
    pub name: String,
    pub bytes: u64,
    /// Why this quantisation.
    pub why: String,
}

/// A model that a node could fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The name to fetch it by.
    pub name: String,
    /// Its quantisation; absent if the hub lists several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<String>,
    /// The number of parameters, of a model of the catalogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// Of its files; approximate, of a model of the catalogue.
    pub bytes: u64,
    /// The approximate memory that it needs.
    pub needs_bytes: u64,
}

/// A model on the disk of a node, and the approximate memory that it needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    #[serde(flatten)]
    pub held: Held,
    pub needs_bytes: u64,
    /// The model's name without its quantisation: files of one model have the same.
    #[serde(default)]
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<String>,
}

/// What an interrupted download has left on this node's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    /// The name by which it goes on.
    pub name: String,
    /// As in [`Stored`].
    pub model: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// The approximate memory that the whole model needs.
    pub needs_bytes: u64,
}

/// What a cluster could serve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Library {
    /// The free memory of the live nodes, and whose it is: `this machine has`.
    pub free_bytes: u64,
    pub whose: String,
    /// The models on the nodes' disks, this machine's first.
    pub disks: Vec<Stored>,
    /// Those that are not whole and not being downloaded.
    #[serde(default)]
    pub interrupted: Vec<Interrupted>,
    /// The models with a short name.
    pub catalogue: Vec<Offer>,
}

/// The plan for a model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Planned {
    #[serde(flatten)]
    pub plan: placement::Plan,
    /// What must be fetched first, if no node has the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<Download>,
}

impl From<placement::Plan> for Planned {
    fn from(plan: placement::Plan) -> Self {
        Self { plan, download: None }
    }
}
