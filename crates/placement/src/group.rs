//! What the ranks of one stage hold and do, so far as it does not depend on which layers are
//! theirs: made once for each group of nodes and shares, then asked for many cuts.

use layout::{Capacity, Device, Holding, LayerLoad, Outline, Split};

use crate::cost::Work;

/// Memory of a worker beside what it holds of the model: code, stacks, links, and what the device
/// works with between two operations.
pub(crate) const WORKER_BYTES: u64 = 64 << 20;

/// The model, and what all its splits have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub outline: &'a Outline,
    pub whole_experts: bool,
    pub capacity: &'a Capacity,
}

/// One rank of a stage.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Without layers and without a part of the head.
    pub fixed_bytes: u64,
    /// Weights and cache of a layer, by kind,
    pub layer_bytes: Vec<u64>,
    /// and the work of one.
    pub work: Vec<Work>,
}

/// The ranks of a stage in order, with their shares. `stages`: of all.
pub(crate) fn members(
    subject: &Subject<'_>,
    shares: &[u32],
    devices: &[Device],
    stages: usize,
) -> Vec<Member> {
    let Ok(split) = Split::new(shares) else { return Vec::new() };
    let operations = subject.outline.operations();
    let member = |(at, device): (usize, &Device)| {
        let held = Holding::of_stage(subject.outline, &split, at, subject.whole_experts, stages);
        let cache_bytes = held.cache(subject.capacity).bytes(*device);
        let (position_bytes, position_ops) = held.position_load(subject.capacity, *device);
        let loads = held.layer_loads(*device);
        let work = |(load, operations): (&LayerLoad, &u64)| Work {
            position_bytes: position_bytes as f64,
            position_ops: position_ops as f64,
            operations: *operations as f64,
            ..of_load(load)
        };
        let buffers = held.buffers(subject.capacity).bytes(*device);
        Member {
            fixed_bytes: buffers.saturating_add(WORKER_BYTES),
            layer_bytes: loads.iter().map(|l| l.weight_bytes.saturating_add(cache_bytes)).collect(),
            work: loads.iter().zip(&operations).map(work).collect(),
        }
    };
    devices.iter().enumerate().map(member).collect()
}

fn of_load(load: &LayerLoad) -> Work {
    Work {
        common_bytes: load.common_bytes as f64,
        expert_bytes: load.expert_bytes as f64,
        common_ops: load.common_ops as f64,
        expert_ops: load.expert_ops as f64,
        ..Work::default()
    }
}

/// What `rows` rows of the output head are: bytes in memory with room for their logits, and work.
pub(crate) fn head(subject: &Subject<'_>, rows: usize, device: Device) -> (u64, Work) {
    /// A norm and a product.
    const OPERATIONS: f64 = 2.0;
    let Ok(split) = Split::new(&[1]) else { return (0, Work::default()) };
    let mut held = Holding::of_stage(subject.outline, &split, 0, subject.whole_experts, 1);
    let without = held.buffers(subject.capacity).bytes(device);
    held.set_vocab(0..rows);
    let with = held.buffers(subject.capacity).bytes(device);
    let load = held.head_load(device);
    let work = Work { operations: OPERATIONS, ..of_load(&load) };
    (load.weight_bytes.saturating_add(with.saturating_sub(without)), work)
}

/// How many of the layers before each are of each kind: `[kind][layer]`, one more than layers.
pub(crate) fn counts(outline: &Outline) -> Vec<Vec<u32>> {
    let kinds = outline.kinds.iter().max().map_or(0, |last| last + 1);
    let of_kind = |kind: usize| {
        let mut sum = 0;
        let mut before = vec![0];
        before.extend(outline.kinds.iter().map(|of| {
            sum += u32::from(*of == kind);
            sum
        }));
        before
    };
    (0..kinds).map(of_kind).collect()
}
