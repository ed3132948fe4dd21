//! A node's speed, derived from the measured speed of one model.

use layout::{Device, Outline};
use protocol::InstanceSpec;
use serde::Serialize;

use crate::cost::{Load, Prediction};
use crate::node::{Node, Rates, Speed};
use crate::plan::{Options, plan};

/// The measured speed of a model on one node, tokens a second: of an answer after a prompt of one
/// token, and of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    pub decode: f64,
    pub prefill: f64,
}

/// Rounds of the fixed-point iteration. Each round corrects both rates by the error of the cost
/// model. Each rate dominates its own measurement, so the error at least halves.
const ROUNDS: usize = 30;

impl Speed {
    /// The speed of a node with which the cost model reproduces the measurements of `model`:
    /// `alone` on the machine, and with `nodes` equal nodes that each compute the whole model at
    /// once. `operation_secs`: the cost of one device operation.
    pub fn calibrated(
        model: &Outline,
        load: Load,
        alone: Measured,
        (nodes, each): (usize, Measured),
        operation_secs: f64,
    ) -> Self {
        let rates = rates(model, load, alone, operation_secs);
        let together = self::rates(model, load, each, operation_secs).times(nodes as f64);
        Self { machine: together, ..Self::alone(rates, operation_secs) }
    }
}

fn rates(model: &Outline, load: Load, measured: Measured, operation_secs: f64) -> Rates {
    let ops = model.row_ops() * measured.prefill;
    let mut rates = Rates {
        read_bytes_per_sec: model.read_bytes as f64 * measured.decode,
        quantised_ops_per_sec: ops,
        float_ops_per_sec: ops,
    };
    // Operations may cost more than the whole measured time.
    let most = rates.times(10.0);
    for _ in 0..ROUNDS {
        let speed = Speed::alone(rates, operation_secs);
        let short = Load { prompt_tokens: 1, ..load };
        let found = predicted(model, speed, short).zip(predicted(model, speed, load));
        let Some((answer, prompt)) = found else { break };
        let ops = measured.prefill / prompt.prefill_tokens_per_sec;
        rates.read_bytes_per_sec *= measured.decode / answer.decode_tokens_per_sec;
        rates.quantised_ops_per_sec *= ops;
        rates.float_ops_per_sec *= ops;
        rates = rates.at_most(most);
    }
    rates
}

/// Predicts the whole model on a node of this speed with unlimited memory.
fn predicted(model: &Outline, speed: Speed, load: Load) -> Option<Prediction> {
    let node = Node {
        id: 0,
        name: String::new(),
        device: Device::Cpu,
        class: String::new(),
        memory_free_bytes: u64::MAX,
        threads: 1,
        speed: Some(speed),
        machine: None,
        links: Vec::new(),
        uncalled: Vec::new(),
    };
    let spec = InstanceSpec::default();
    let options = Options { load: Some(load), ..Options::new(&spec) };
    plan(model, &[node], &options).ok()?.prediction
}

impl Rates {
    fn times(self, factor: f64) -> Self {
        Self {
            read_bytes_per_sec: self.read_bytes_per_sec * factor,
            quantised_ops_per_sec: self.quantised_ops_per_sec * factor,
            float_ops_per_sec: self.float_ops_per_sec * factor,
        }
    }

    fn at_most(self, most: Self) -> Self {
        Self {
            read_bytes_per_sec: self.read_bytes_per_sec.min(most.read_bytes_per_sec),
            quantised_ops_per_sec: self.quantised_ops_per_sec.min(most.quantised_ops_per_sec),
            float_ops_per_sec: self.float_ops_per_sec.min(most.float_ops_per_sec),
        }
    }
}

#[cfg(test)]
mod tests {
    use gguf::TensorType;

    use super::*;
    use crate::shapes::LLAMA;

    #[test]
    fn the_cost_model_gives_back_what_was_measured() {
        let model = LLAMA.outline(TensorType::Q4_0, TensorType::Q6_K);
        let load = Load { users: 1, prompt_tokens: 512, answer_tokens: 64 };
        let alone = Measured { decode: 30.0, prefill: 250.0 };
        let each = Measured { decode: 20.0, prefill: 230.0 };
        let speed = Speed::calibrated(&model, load, alone, (2, each), 1e-6);
        let short = Load { prompt_tokens: 1, ..load };
        let [one, two] = [speed.rates, speed.machine.times(0.5)].map(|rates| {
            let speed = Speed::alone(rates, speed.operation_secs);
            let answer = predicted(&model, speed, short).unwrap().decode_tokens_per_sec;
            [answer, predicted(&model, speed, load).unwrap().prefill_tokens_per_sec]
        });
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 1e-6;
        assert!(near(one[0], 30.0) && near(one[1], 250.0), "{one:?}");
        assert!(near(two[0], 20.0) && near(two[1], 230.0), "{two:?}");
    }
}
