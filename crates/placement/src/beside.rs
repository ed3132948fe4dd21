//! Room on rank 0 for what runs beside a model: its vision tower and its draft model.

use layout::{Device, Outline};

use crate::choice::gib;
use crate::{Error, Node, Options, Plan, plan};

/// Memory on rank 0 beside its part of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Beside {
    /// Of the vision tower, a picture while it is looked at, and the rows of those that stay.
    pub tower_bytes: u64,
    pub draft: DraftBytes,
}

/// Memory of a draft model or a block, by the device of rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftBytes {
    cpu: u64,
    ggml: u64,
    /// Whether it reads the cache of its model. Rank 0 then keeps more of it.
    pub reads_cache: bool,
    /// Whether it reads layers of its model. In a pipeline rank 0 lacks some of them.
    pub(crate) reads_layers: bool,
    /// The bytes that it reads for a guess.
    read_bytes: u64,
}

impl DraftBytes {
    /// Of a model or a block of this outline.
    pub fn by(outline: &Outline, bytes: impl Fn(Device) -> u64) -> Self {
        Self {
            cpu: bytes(Device::Cpu),
            ggml: bytes(Device::Ggml),
            reads_cache: outline.config.assistant.is_some(),
            reads_layers: outline.config.assistant.is_some() || outline.config.eagle3.is_some(),
            read_bytes: outline.read_bytes,
        }
    }

    /// The bytes that it reads for a guess; `None` without a draft.
    pub(crate) fn read(self) -> Option<f64> {
        (self.read_bytes > 0).then_some(self.read_bytes as f64)
    }

    pub fn on(self, device: Device) -> u64 {
        match device {
            Device::Cpu => self.cpu,
            Device::Ggml => self.ggml,
        }
    }
}

/// Why a draft does not guess in a pipeline.
const FAR: &str = "its draft guesses no tokens in a pipeline, where other nodes have what it reads. \
                   With --strategy tensor it would";

impl Beside {
    fn bytes(&self, device: Device) -> u64 {
        self.tower_bytes.saturating_add(self.draft.on(device))
    }
}

/// [`plan()`] with this room. It counts in rank 0's memory, and the reasons name it.
///
/// # Errors
/// As there.
pub fn plan_beside(
    model: &Outline,
    nodes: &[Node],
    options: &Options<'_>,
    beside: Beside,
) -> Result<Plan, Error> {
    let mut nodes = nodes.to_vec();
    let device = nodes.first().map_or(Device::default(), |first| first.device);
    let bytes = beside.bytes(device);
    if let Some(first) = nodes.first_mut() {
        first.memory_free_bytes = first.memory_free_bytes.saturating_sub(bytes);
    }
    let mut plan = plan(model, &nodes, &Options { draft: beside.draft, ..*options })?;
    if beside.draft.reads_layers && plan.split.stages.len() > 1 {
        plan.why.push(FAR.to_owned());
    }
    let Some(first) = plan.ranks.first_mut() else { return Ok(plan) };
    first.memory_bytes = first.memory_bytes.saturating_add(bytes);
    for (bytes, what) in [
        (beside.tower_bytes, "the vision tower and its pictures"),
        (beside.draft.on(device), "the draft model"),
    ] {
        if bytes > 0 {
            plan.why.push(format!("{} also holds {what}: {}", first.name, gib(bytes)));
        }
    }
    Ok(plan)
}
