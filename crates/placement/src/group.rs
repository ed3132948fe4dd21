//! The memory and work of a stage's ranks, as far as they do not depend on the stage's layers. They
//! are computed once for each group of nodes and shares, and used for many cuts.

use layout::{Capacity, Device, Holding, LayerLoad, Outline, PositionLoad, Split};

use crate::shares::common_divisor;
use crate::streaming::Streaming;
use crate::work::Work;

/// Memory of a worker beside its part of the model: code, stacks, links, and the device's
/// temporaries between two operations.
pub(crate) const WORKER_BYTES: u64 = 64 << 20;

/// The model and the parameters common to all its splits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub outline: &'a Outline,
    pub whole_experts: bool,
    pub capacity: &'a Capacity,
    /// Whether experts are read from disk, where nodes can.
    pub streaming: Option<Streaming>,
}

/// One rank of a stage.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Without layers or a part of the head.
    pub fixed_bytes: u64,
    /// Weights and cache of a layer, by kind,
    pub layer_bytes: Vec<u64>,
    /// and the work of one.
    pub work: Vec<Work>,
    /// What `fixed_bytes` has for experts that are read from disk.
    pub expert_bytes: u64,
}

/// A rank's position in a stage: the shares before its own, its own, and all. They determine its
/// part completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub before: u32,
    pub share: u32,
    pub all: u32,
}

impl Place {
    /// The positions of a stage's ranks with these shares, in lowest terms.
    pub fn of_ranks(shares: &[u32]) -> impl Iterator<Item = Self> {
        let common = common_divisor(shares);
        let all: u32 = shares.iter().map(|share| share / common).sum();
        shares.iter().scan(0, move |before, share| {
            let place = Self { before: *before, share: share / common, all };
            *before += place.share;
            Some(place)
        })
    }
}

/// One rank of a stage. `stages`: the number of stages.
pub(crate) fn member(
    subject: &Subject<'_>,
    Place { before, share, all }: Place,
    device: Device,
    stages: usize,
) -> Member {
    let split = Split::new(&[before, share, all - before - share]);
    // A rank with an invalid split has no part, and no cut of it is used.
    let split = split.unwrap_or_else(|_| Split::new(&[1, 0, 0]).expect("somebody has a share"));
    let held = Holding::of_stage(subject.outline, &split, 1, subject.whole_experts, stages);
    let kept = held.kept_bytes_of_kinds(subject.capacity, device);
    let positions = held.position_loads(subject.capacity, device);
    let loads = held.layer_loads(device);
    let work = |((load, operations), of): ((&LayerLoad, u64), &PositionLoad)| {
        let none = PositionLoad::default();
        let (position, window) = if of.in_window { (none, *of) } else { (*of, none) };
        Work {
            position_bytes: position.bytes as f64,
            position_ops: position.ops as f64,
            window_bytes: window.bytes as f64,
            window_ops: window.ops as f64,
            operations: operations as f64,
            ..of_load(load)
        }
    };
    let buffers = held.buffers(subject.capacity).bytes(device);
    let streaming = subject.streaming.filter(|_| Streaming::is_on(device));
    let expert_bytes = streaming.map_or(0, |streaming| {
        let count = subject.outline.config.experts.map_or(1, |experts| experts.count) as u64;
        let layer = loads.iter().map(|load| load.expert_bytes).max().unwrap_or(0);
        let all = subject.outline.kinds.iter().map(|kind| loads[*kind].expert_bytes).sum();
        streaming.asked_bytes.unwrap_or(0).max(layer.div_ceil(count)).min(all)
    });
    let resident = |load: &LayerLoad| match streaming {
        Some(_) => load.weight_bytes.saturating_sub(load.expert_bytes),
        None => load.weight_bytes,
    };
    Member {
        fixed_bytes: buffers.saturating_add(WORKER_BYTES).saturating_add(expert_bytes),
        expert_bytes,
        layer_bytes: loads
            .iter()
            .zip(kept)
            .map(|(load, kept)| resident(load).saturating_add(kept))
            .collect(),
        work: loads.iter().zip(subject.outline.operations()).zip(&positions).map(work).collect(),
    }
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

/// The bytes of `rows` rows of the output head with room for their logits, and their work.
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

/// The number of layers of each kind before each border: `[kind][border]`.
pub(crate) fn counts(outline: &Outline, borders: &[usize]) -> Vec<Vec<u32>> {
    let kinds = outline.kinds.iter().max().map_or(0, |last| last + 1);
    let of_kind = |kind: usize| {
        let before = |border: &usize| {
            outline.kinds[..*border].iter().filter(|of| **of == kind).count() as u32
        };
        borders.iter().map(before).collect()
    };
    (0..kinds).map(of_kind).collect()
}
