//! The operations recorded since the last graph, as data: repeated segments are recognised by it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ggml::{Array, Rope, Type};

use super::build::runs;
use super::mixture::Experts;
use crate::AttentionRange;

/// An array, compared by its address.
#[derive(Clone)]
pub(super) struct Ref(pub Arc<Array>);

impl PartialEq for Ref {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Ref {}

impl Hash for Ref {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// A number, compared by its bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number(pub f32);

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// Activations `[rows, width]`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Operand {
    pub array: Ref,
    pub width: usize,
    pub rows: usize,
}

impl Operand {
    /// Its shape on a device.
    pub fn flat(&self) -> [usize; 3] {
        [self.width, self.rows, 1]
    }
}

/// A learned vector of `len` elements.
#[derive(Clone)]
pub struct Vector {
    pub(super) array: Ref,
    pub(super) len: usize,
    /// The same on the host, for joining the biases of experts to one array.
    pub(super) values: Arc<[f32]>,
}

/// Matrix number `at` of a stack of matrices `[rows, cols]`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Matrix {
    pub(super) stack: Ref,
    pub(super) ty: Type,
    pub(super) at: usize,
    pub(super) count: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// One layer's keys and values: `[positions, heads, dim]` each.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Kv {
    pub(super) k: Ref,
    pub(super) v: Ref,
    pub(super) ty: Type,
    pub(super) heads: usize,
    pub(super) k_dim: usize,
    pub(super) v_dim: usize,
    pub(super) positions: usize,
}

/// The attention of a layer's heads.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Attention {
    pub(super) kv_of_head: Arc<[u32]>,
    pub(super) scale: Number,
    pub(super) range: AttentionRange,
    pub(super) soft_cap: Option<Number>,
    pub(super) sinks: Option<Ref>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// `out = x / rms(x) * gain` over each run of `len` elements. `centred` subtracts their mean
    /// first.
    Norm {
        centred: bool,
        x: Operand,
        gain: Ref,
        len: usize,
        eps: Number,
        out: Operand,
    },
    /// `out` gets the columns from `first` on.
    Columns {
        x: Operand,
        first: usize,
        out: Operand,
    },
    Join {
        a: Operand,
        a_dim: usize,
        b: Operand,
        b_dim: usize,
        out: Operand,
    },
    AddBias {
        x: Operand,
        bias: Ref,
    },
    Scale {
        x: Operand,
        factor: Number,
    },
    SoftCap {
        x: Operand,
        cap: Number,
    },
    /// Multiplies each row by its factor in `factors`.
    ScaleRows {
        x: Operand,
        factors: Ref,
    },
    /// `max(x, 0)²`.
    SquaredRelu {
        x: Operand,
    },
    Linear {
        x: Operand,
        matrix: Matrix,
        out: Operand,
    },
    /// Head `h` of `out` is that of `x` times matrix `h` of the stack.
    LinearHeads {
        x: Operand,
        stack: Matrix,
        out: Operand,
    },
    Rotate {
        x: Operand,
        head_dim: usize,
        rope: RopeKey,
        positions: Ref,
        periods: Ref,
    },
    Store {
        kv: Kv,
        k: Operand,
        v: Operand,
        indices: Ref,
    },
    /// Over the first `n_kv` positions of the cache; `mask` limits those of each row.
    Attend {
        kv: Kv,
        shape: Attention,
        q: Operand,
        mask: Ref,
        n_kv: usize,
        out: Operand,
    },
    /// `None` is the sigmoid.
    Gated {
        glu: Option<GluKey>,
        gate: Operand,
        up: Operand,
    },
    /// Multiplies each head of `x` by the sigmoid of its gate.
    GateHeads {
        x: Operand,
        gate: Operand,
        head_dim: usize,
    },
    Add {
        x: Operand,
        y: Operand,
    },
    Mixture {
        x: Operand,
        experts: Box<Experts>,
        out: Operand,
    },
    /// Moves the rows in `indices` to the front.
    Keep {
        x: Operand,
        indices: Ref,
        rows: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RopeKey {
    pub dims: usize,
    pub neox: bool,
    pub magnitude: Number,
}

impl RopeKey {
    pub fn rope(self) -> Rope {
        Rope { dims: self.dims, neox: self.neox, magnitude: self.magnitude.0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum GluKey {
    Gelu,
    Silu,
    Clamped { alpha: Number, limit: Number },
    LimitedSilu { limit: Number },
}

impl Op {
    /// An upper bound of a graph's nodes and arrays.
    pub fn nodes_max(&self) -> usize {
        match self {
            Self::Attend { shape, .. } => 16 * (1 + runs(&shape.kv_of_head).len()),
            Self::Mixture { experts, .. } => 128 + 8 * experts.used(),
            _ => 16,
        }
    }
}
