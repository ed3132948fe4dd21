//! The work of a rank in a step.

/// The work of a rank, summed over its layers and its part of the output head.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Work {
    /// Bytes that every step reads, and bytes of all experts on this rank.
    pub common_bytes: f64,
    pub expert_bytes: f64,
    /// Multiplications and additions of a row, in the common part and in all experts on this rank.
    pub common_ops: f64,
    pub expert_ops: f64,
    /// For each cached position: bytes of its sequence, and operations of a row.
    pub position_bytes: f64,
    pub position_ops: f64,
    /// The same for each position inside the window, in layers that have one.
    pub window_bytes: f64,
    pub window_ops: f64,
    /// Device operations in a step.
    pub operations: f64,
}

impl Work {
    pub fn plus(self, other: Self) -> Self {
        Self {
            common_bytes: self.common_bytes + other.common_bytes,
            expert_bytes: self.expert_bytes + other.expert_bytes,
            common_ops: self.common_ops + other.common_ops,
            expert_ops: self.expert_ops + other.expert_ops,
            position_bytes: self.position_bytes + other.position_bytes,
            position_ops: self.position_ops + other.position_ops,
            window_bytes: self.window_bytes + other.window_bytes,
            window_ops: self.window_ops + other.window_ops,
            operations: self.operations + other.operations,
        }
    }

    pub fn times(self, count: f64) -> Self {
        Self {
            common_bytes: self.common_bytes * count,
            expert_bytes: self.expert_bytes * count,
            common_ops: self.common_ops * count,
            expert_ops: self.expert_ops * count,
            position_bytes: self.position_bytes * count,
            position_ops: self.position_ops * count,
            window_bytes: self.window_bytes * count,
            window_ops: self.window_ops * count,
            operations: self.operations * count,
        }
    }
}
