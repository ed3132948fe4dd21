//! The experts of a mixture, in the recording device's form.

use super::*;

pub fn on_cpu(mixture: &Mixture<Recording>) -> Mixture<Cpu> {
    let bias = |bias: &ExpertBias<Recording>| ExpertBias {
        gate: bias.gate.to_vec(),
        up: bias.up.to_vec(),
        down: bias.down.as_ref().map(|down| down.to_vec()),
    };
    let expert = |expert: &Expert<Recording>| Expert {
        gate: expert.gate.clone(),
        up: expert.up.clone(),
        down: expert.down.clone(),
        bias: expert.bias.as_ref().map(bias),
        activation: expert.activation,
    };
    let experts = mixture.experts.iter().map(expert).collect();
    Mixture { experts, streamed: None }
}

/// The memory of the shared expert's gate, if it has one, and whether there is no such expert.
pub fn gate(shared: SharedExpert<'_, Rows>) -> (Option<Of<<Cpu as Backend>::Rows>>, bool) {
    match shared {
        SharedExpert::Gated(gate) => (Some(gate.memory.clone()), false),
        SharedExpert::Absent => (None, true),
        SharedExpert::Full => (None, false),
    }
}
