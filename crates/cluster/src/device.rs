//! The device that a node's ranks compute on, if it is not this machine's CPU.

use protocol::WorkerDevice;
use serde::{Deserialize, Serialize};

use crate::api::machine::shown;

/// The kind of a GPU that does not share the machine's memory.
const OWN_MEMORY: &str = "GPU";

/// A ggml device, as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDevice {
    /// The name for `sinew up --device`, such as `CUDA0` or `ggml-cpu`.
    pub name: String,
    /// Its maker's name for it.
    pub description: String,
    /// Such as `GPU`, `integrated GPU`, `CPU`.
    pub kind: String,
    /// The library that drives it: ggml's name for it, version and hash.
    pub library: String,
    /// Its total memory, and the free part at its node's start.
    pub memory_bytes: u64,
    pub memory_free_bytes: u64,
}

impl NodeDevice {
    /// Truncates and cleans the texts for display: another node sent them.
    pub(crate) fn within_limits(mut self) -> Self {
        for text in [&mut self.name, &mut self.description, &mut self.kind, &mut self.library] {
            *text = shown(text);
        }
        self
    }
}

/// The device configuration of a node.
#[derive(Debug, Clone, Default)]
pub struct DeviceConfig {
    /// The device, as its workers open it and as others see it; absent: the CPU, with Sinew's own
    /// engine.
    pub device: Option<(WorkerDevice, NodeDevice)>,
    /// Why it is not the requested device, as text for the user.
    pub problem: Option<String>,
}

impl DeviceConfig {
    /// The device as others see it.
    pub(crate) fn told(&self) -> Option<NodeDevice> {
        self.device.as_ref().map(|(_, told)| told.clone())
    }
}

/// A name that must be equal on nodes that share layers.
pub(crate) fn class_of(told: Option<&NodeDevice>) -> String {
    told.map_or_else(
        || "Sinew's engine for the CPU".to_owned(),
        |device| format!("{} by {}", device.description, device.library),
    )
}

/// The device of a node if it has its own memory: the machine's processors and memory are then as
/// fast as without it.
pub(crate) fn own_memory(told: Option<&NodeDevice>) -> Option<String> {
    told.filter(|device| device.kind == OWN_MEMORY).map(|device| device.name.clone())
}

/// The kind of device by which a plan counts a node's memory.
pub(crate) fn kind_of(told: Option<&NodeDevice>) -> layout::Device {
    told.map_or(layout::Device::Cpu, |_| layout::Device::Ggml)
}
