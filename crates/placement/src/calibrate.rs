//! A node's speed, from how fast one model runs on it.

use layout::Outline;

use crate::node::{Rates, Speed};

/// How fast a model runs on one node, and on all of its machine's cores together: seconds of the
/// next token of a short sequence, and of a token of a long prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub decode_secs: f64,
    pub prefill_secs: f64,
}

impl Speed {
    /// What a node does, so that the cost model gives back what was measured of `model` on it, and
    /// on its machine. `operation_secs`: of giving the device an operation.
    pub fn calibrated(
        model: &Outline,
        node: Measured,
        machine: Measured,
        operation_secs: f64,
    ) -> Self {
        let operations = model.operations();
        let operations: u64 = model.kinds.iter().map(|kind| operations[*kind]).sum();
        let fixed = operations as f64 * operation_secs;
        let ops = model.row_ops();
        let rates = |measured: Measured| {
            // Half of what is shorter, here the multiplications, is not hidden.
            let read = (measured.decode_secs - fixed - measured.prefill_secs / 2.0)
                .max(measured.decode_secs / 10.0);
            let rate = ops / measured.prefill_secs;
            Rates {
                read_bytes_per_sec: model.read_bytes as f64 / read,
                quantised_ops_per_sec: rate,
                float_ops_per_sec: rate,
            }
        };
        Self { machine: rates(machine), ..Self::alone(rates(node), operation_secs) }
    }
}
