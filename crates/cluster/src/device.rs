//! On which device a node's ranks compute, if it is not this machine's processors.

use protocol::WorkerDevice;
use serde::{Deserialize, Serialize};

use crate::io::machine::shown;

/// The kind of a GPU that does not share the machine's memory.
const OWN_MEMORY: &str = "GPU";

/// A device of ggml's, as its node tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDevice {
    /// By which `sinew up --device` knows it, such as `CUDA0` or `ggml-cpu`.
    pub name: String,
    /// Its maker's name for it.
    pub description: String,
    /// Such as `GPU`, `integrated GPU`, `CPU`.
    pub kind: String,
    /// The library that drives it, and of which build: ggml's name for it, version and hash.
    pub library: String,
    /// Of its memory in all, and what of it was free when its node started.
    pub memory_bytes: u64,
    pub memory_free_bytes: u64,
}

impl NodeDevice {
    /// The same, as it may be shown: another node told it.
    pub(crate) fn within_limits(mut self) -> Self {
        for text in [&mut self.name, &mut self.description, &mut self.kind, &mut self.library] {
            *text = shown(text);
        }
        self
    }
}

/// What a node was started with.
#[derive(Debug, Clone, Default)]
pub struct DeviceConfig {
    /// How workers open the device, and what it is; absent: the CPU, with Sinew's own engine.
    pub device: Option<(WorkerDevice, NodeDevice)>,
    /// Why it is not the device that was wanted, for a person to read.
    pub problem: Option<String>,
}

impl DeviceConfig {
    /// What others are told.
    pub(crate) fn told(&self) -> Option<NodeDevice> {
        self.device.as_ref().map(|(_, told)| told.clone())
    }
}

/// What must be the same of nodes that share layers.
pub(crate) fn class_of(told: Option<&NodeDevice>) -> String {
    told.map_or_else(
        || "Sinew's engine for the CPU".to_owned(),
        |device| format!("{} by {}", device.description, device.library),
    )
}

/// The device whose memory is no other node's, if that is what a node computes with: beside it the
/// machine's processors and memory are as fast as ever.
pub(crate) fn own_memory(told: Option<&NodeDevice>) -> Option<String> {
    told.filter(|device| device.kind == OWN_MEMORY).map(|device| device.name.clone())
}

/// By what a plan counts a node's memory.
pub(crate) fn kind_of(told: Option<&NodeDevice>) -> layout::Device {
    told.map_or(layout::Device::Cpu, |_| layout::Device::Ggml)
}
