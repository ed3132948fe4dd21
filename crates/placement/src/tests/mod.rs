mod choices;
mod encoders;
mod mtp;
mod plans;
mod properties;
mod shared;
mod simulations;
mod states;

use gguf::TensorType;
use layout::{Device, Outline};
use protocol::{CacheType, InstanceSpec, SplitOptions, Strategy};

use crate::shapes::{Dense, LLAMA};
use crate::{ClassRates, Classes, Error, LinkSpeed, Node, Options, Plan, Rates, Speed};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Nodes like a core of an AMD EPYC 9004: they read 27 GB/s.
fn speed(read_gb: f64) -> Speed {
    let rates = Rates {
        read_bytes_per_sec: read_gb * 1e9,
        quantised_ops_per_sec: read_gb * 1.2e10,
        float_ops_per_sec: read_gb * 4e9,
    };
    Speed::alone(rates, 1e-6)
}

fn link(message_us: f64) -> LinkSpeed {
    LinkSpeed { message_secs: message_us * 1e-6, bytes_per_sec: 1e9 }
}

fn node(id: usize, memory_free_bytes: u64, read_gb: f64, message_us: f64) -> Node {
    Node {
        id,
        name: format!("n{id}"),
        device: Device::Cpu,
        class: "the CPU".to_owned(),
        memory_free_bytes,
        threads: 1,
        speed: Some(speed(read_gb)),
        machine: None,
        links: vec![Some(link(message_us)); id.min(1)],
        uncalled: Vec::new(),
    }
}

/// Equal nodes with 64 GiB.
pub(crate) fn nodes(count: usize, message_us: f64) -> Vec<Node> {
    (0..count).map(|id| node(id, 64 * GIB, 27.0, message_us)).collect()
}

fn spec() -> InstanceSpec {
    InstanceSpec::default()
}

fn split(options: SplitOptions) -> InstanceSpec {
    InstanceSpec { options, ..spec() }
}

fn of(strategy: Strategy) -> InstanceSpec {
    split(SplitOptions { strategy, ..SplitOptions::default() })
}

fn plan(model: &Outline, nodes: &[Node], spec: &InstanceSpec) -> Result<Plan, Error> {
    crate::plan(model, nodes, &Options::new(spec))
}

/// The ranks of each stage; empty for a single stage.
fn stages_of(plan: &Plan) -> Vec<usize> {
    plan.split.stages.iter().map(|stage| stage.ranks).collect()
}

/// Llama-3.2-1B in Q4_0, with a head in Q6_K: 34.2 MB a layer, and 215 MB of head.
fn llama() -> Outline {
    LLAMA.outline(TensorType::Q4_0, TensorType::Q6_K)
}

/// A layer of about 1 GiB, a head of four.
fn large() -> Outline {
    let dense = Dense {
        layers: 36,
        width: 4096,
        heads: 32,
        kv_heads: 8,
        hidden: 81_920,
        vocab: 1_024_000,
        experts: None,
    };
    dense.outline(TensorType::Q8_0, TensorType::Q8_0)
}
