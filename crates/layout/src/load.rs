//! The cost of a token on a rank in one layer: bytes read, and multiplications. A plan predicts
//! times from it.

use gguf::TensorType;

use crate::parts::EntryCache;
use crate::slice::{Slice, Slices};
use crate::tensors::Tensor;
use crate::{Capacity, Device, Holding, Outline};

/// One layer on one rank, or its part of the output head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerLoad {
    /// Bytes in the device's memory, all of which are read:
    pub weight_bytes: u64,
    /// those for every token,
    pub common_bytes: u64,
    /// and those of all experts on this rank.
    pub expert_bytes: u64,
    /// Multiplications and additions of a token, two for each weight, in the part for every token,
    pub common_ops: u64,
    /// and in all experts on this rank.
    pub expert_ops: u64,
}

/// Types of weights with kernels of about equal speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightClass {
    /// Quantised with less than eight bits.
    FewBits,
    EightBits,
    Floats,
}

impl WeightClass {
    pub fn of(ty: TensorType) -> Self {
        match ty {
            TensorType::Q8_0
            | TensorType::AFFINE8_32
            | TensorType::AFFINE8_64
            | TensorType::AFFINE8_128 => Self::EightBits,
            TensorType::F8_E4M3_128 => Self::Floats,
            ty if ty.block_len() > 1 => Self::FewBits,
            _ => Self::Floats,
        }
    }
}

impl LayerLoad {
    fn of(slices: Slices<'_>, device: Device) -> Self {
        let mut load = Self::default();
        for slice in slices.iter() {
            let (bytes, ops) = (slice.memory_bytes(device), ops(&slice));
            load.weight_bytes += bytes;
            if slice.tensor.name.contains("_exps.") {
                load.expert_bytes += bytes;
                load.expert_ops += ops;
            } else {
                load.common_bytes += bytes;
                load.common_ops += ops;
            }
        }
        load
    }
}

fn ops(slice: &Slice<'_>) -> u64 {
    let [count, rows, cols] = slice.shape();
    if slice.tensor.is_vector { 0 } else { 2 * (count * rows * cols) as u64 }
}

impl Holding<'_> {
    /// Bytes of the routed experts' matrices on the device, and of the largest one of them: its
    /// gate, up and down.
    pub fn expert_bytes(&self, device: Device) -> (u64, u64) {
        let of_layer = |slices: Slices<'_>| {
            let is_expert =
                |slice: &Slice<'_>| slice.tensor.name.contains("_exps.") && !slice.tensor.is_vector;
            let found: Vec<Slice<'_>> = slices.iter().filter(is_expert).collect();
            let all: u64 = found.iter().map(|slice| slice.memory_bytes(device)).sum();
            let count = found.first().map_or(1, |slice| slice.shape()[0].max(1));
            (all, all.div_ceil(count as u64))
        };
        self.all().map(of_layer).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1.max(one.1)))
    }

    /// The cost of a layer of each kind, numbered as in [`Outline::kinds`].
    pub fn layer_loads(&self, device: Device) -> Vec<LayerLoad> {
        let of_layer = |layer| {
            let mut load = LayerLoad::of(self.layer(layer), device);
            if self.outline.config.recurrence_of(layer).is_some() {
                let (bytes, ops) = self.state_load();
                load.common_bytes += bytes;
                load.common_ops += ops;
            }
            load
        };
        self.outline.first_of_kinds().map(of_layer).collect()
    }

    /// The cost of a row's state: bytes read and written, and multiplications and additions.
    fn state_load(&self) -> (u64, u64) {
        /// Operations for each element of a state: it decays, is read by the key, adds the value
        /// and is read by the query.
        const OPS: u64 = 7;
        let numbers = match (self.outline.config.recurrence, self.recurrent_widths()) {
            (Some(sizes), Some(widths)) => (sizes.k_dim * widths.v) as u64,
            _ => 0,
        };
        (2 * size_of::<f32>() as u64 * numbers, OPS * numbers)
    }

    /// The cost of its part of the output head.
    pub fn head_load(&self, device: Device) -> LayerLoad {
        self.head().map_or(LayerLoad::default(), |head| LayerLoad::of(head, device))
    }

    /// The cost of each attended position, in a layer of each kind.
    pub fn position_loads(&self, capacity: &Capacity, device: Device) -> Vec<PositionLoad> {
        let of_layer = |layer| {
            let config = &self.outline.config;
            if !config.attends(layer) {
                return PositionLoad::default();
            }
            let entries = self.entry_caches(layer, capacity);
            if let Some(read) = entries.last().filter(|_| config.compressed.is_some()) {
                return self.entry_load(layer, read);
            }
            let cache = self.cache(layer, capacity);
            let queries = self.shard.attention[config.heads_kind(layer)].queries.len();
            let ops = 2 * queries * (cache.k_dim + cache.v_dim);
            let index = self.index_cache(layer, capacity).filter(|index| index.heads > 0);
            let index_bytes = index.map_or(0, |index| index.position_bytes(device));
            let index_ops = index.zip(config.indexer).map_or(0, |(_, indexer)| {
                let keys = self.shard.attention[config.heads_kind(layer)].keys.len();
                2 * indexer.own_heads(keys) * indexer.dim
            });
            PositionLoad {
                bytes: cache.position_bytes(device) * cache.heads as u64 + index_bytes,
                ops: (ops + index_ops) as u64,
                in_window: config.windows[layer].is_some(),
            }
        };
        self.outline.first_of_kinds().map(of_layer).collect()
    }

    /// The same for blocks of positions that became entries: an indexer reads all of its own, and
    /// its choice is bounded, like the window.
    fn entry_load(&self, layer: usize, read: &EntryCache) -> PositionLoad {
        let config = &self.outline.config;
        let heads = match config.indexer_of(layer) {
            Some(indexer) => indexer.heads,
            None => 2 * self.shard.attention[config.heads_kind(layer)].queries.len(),
        };
        let positions = read.blocks.positions as u64;
        PositionLoad {
            bytes: read.entry_bytes().div_ceil(positions),
            ops: (2 * (heads * read.dim) as u64).div_ceil(positions),
            in_window: false,
        }
    }

    /// Bytes of the cache of a layer of each kind: keys and values, or states.
    pub fn kept_bytes_of_kinds(&self, capacity: &Capacity, device: Device) -> Vec<u64> {
        let layers = self.outline.first_of_kinds();
        layers.map(|layer| self.kept_bytes(layer, capacity, device)).collect()
    }
}

/// The cost of one attended position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PositionLoad {
    /// Bytes in the cache.
    pub bytes: u64,
    /// Multiplications and additions.
    pub ops: u64,
    /// Whether a token attends only to its window.
    pub in_window: bool,
}

impl Outline {
    /// The first layer of each kind.
    fn first_of_kinds(&self) -> impl Iterator<Item = usize> {
        let kinds = self.kinds.iter().max().map_or(0, |last| last + 1);
        (0..kinds).filter_map(|kind| self.kinds.iter().position(|of| *of == kind))
    }

    /// Device operations for a layer of each kind, whatever their size. A matrix, a norm and a bias
    /// are one each; so are each rotation, each part of a position's storing, the attention, each
    /// addition to the residual stream and each activation. A router's choice is five
    /// (probabilities, order, picking, dividing by the sum, the weighted sum), one more where the
    /// weights are scaled, and four more where groups are chosen first.
    pub fn operations(&self) -> Vec<u64> {
        const ROTATIONS: u64 = 2;
        const STORING: u64 = 2;
        const ATTENTION: u64 = 1;
        const ADDITIONS: u64 = 2;
        const CHOICE: u64 = 5;
        const GROUPS: u64 = 4;
        // The rotated and plain parts of a query and of a key are joined.
        const JOINING: u64 = 2;
        let of_layer = |layer: usize| {
            let mut names: Vec<&str> = self.layers[layer].iter().map(|t| t.name.as_str()).collect();
            names.dedup();
            let all = ROTATIONS + STORING + ATTENTION + ADDITIONS;
            let joining = if self.config.latent.is_some() { JOINING } else { 0 };
            let experts = self.config.experts_of(layer).map_or(0, |experts| {
                let groups = if experts.groups > 1 { GROUPS } else { 0 };
                let scaling = u64::from(experts.scale != 1.0);
                // Its activation, and the addition of its output to the others'.
                let shared = if experts.shared_hidden.is_some() { 2 } else { 0 };
                CHOICE + groups + scaling + shared
            });
            names.len() as u64 + all + 1 + joining + experts
        };
        self.first_of_kinds().map(of_layer).collect()
    }

    /// Multiplications and additions of a row in all layers: two for each used weight.
    pub fn row_ops(&self) -> f64 {
        self.layers.iter().flatten().map(|tensor| 2.0 * self.passed(tensor)).sum()
    }

    /// The weights that a row uses in the layers and the head, by class: their bytes, and
    /// multiplications and additions.
    pub fn row_loads(&self) -> impl Iterator<Item = (WeightClass, f64, f64)> {
        let all = self.layers.iter().flatten().chain(&self.head);
        all.map(|tensor| {
            let (ty, weights) = (tensor.ty, self.passed(tensor));
            let bytes = weights / ty.block_len() as f64 * ty.block_bytes() as f64;
            (WeightClass::of(ty), bytes, 2.0 * weights)
        })
    }

    /// The number of a matrix's weights that a row uses; none for a vector.
    fn passed(&self, tensor: &Tensor) -> f64 {
        let experts = self.config.experts.filter(|_| tensor.name.contains("_exps."));
        let used = experts.map_or(1.0, |experts| experts.used as f64 / experts.count as f64);
        let all = tensor.shape.iter().product::<usize>() as f64;
        if tensor.is_vector { 0.0 } else { all * used }
    }

    /// Whether most multiplied weights are quantised.
    pub fn is_quantised(&self) -> bool {
        let quantised = |tensor: &&Tensor| tensor.ty.block_len() > 1;
        let matrices = || self.layers.iter().flatten().filter(|tensor| !tensor.is_vector);
        let numbers = |tensor: &Tensor| tensor.shape.iter().product::<usize>() as u128;
        let of: u128 = matrices().filter(quantised).map(numbers).sum();
        2 * of > matrices().map(numbers).sum()
    }
}
