//! A model on ranks of this process, on the CPU or a ggml device: the shared part of a model's
//! measurements.

use std::path::Path;
use std::sync::Arc;

use backend::{Backend, Cpu, Ggml};
use engine::{EngineError, OpenDevice};
use gguf::{Directory, File, Source};
use placement::Plan;
use protocol::{Transport, WorkerDevice};

use crate::args::{LocalArgs, LocalModelArgs};
use crate::error::Error;
use crate::{device_speed, local};

/// The device of the computation, under llama-bench's keys.
pub struct Device<B> {
    pub backends: String,
    pub gpu_info: String,
    pub open: OpenDevice<B>,
}

/// A measurement of a model on any kind of device.
pub trait Measurement {
    fn run<B: Backend + 'static>(
        self,
        file: File,
        plan: Plan,
        device: Device<B>,
    ) -> Result<String, Error>;
}

/// Opens the file, plans the split and finds the device, then runs the measurement.
///
/// # Errors
/// The file, the split or the device cannot be used, or the measurement fails.
pub fn measure(
    args: &LocalModelArgs,
    device: Option<&WorkerDevice>,
    measurement: impl Measurement,
) -> Result<String, Error> {
    let file = checkpoint::open(&args.path)?;
    let Some(WorkerDevice { libraries, name }) = device else {
        let plan = local::plan(file.directory(), &args.local)?;
        let backends = format!("CPU {}", backend::isa());
        let (gpu_info, open) = (String::new(), Arc::new(Cpu::new));
        return measurement.run(file, plan, Device { backends, gpu_info, open });
    };
    let (dir, name) = (libraries.clone(), name.clone());
    let found = Ggml::find(&dir, &name).map_err(EngineError::from)?;
    let (backends, gpu_info) =
        (format!("ggml {}", found.backend()), found.description().to_owned());
    let speed = || device_speed::measure(&dir, &name, args.local.threads[0]);
    let speed = local::weighs(&args.local).then(speed).transpose().map_err(EngineError::from)?;
    let plan = local::plan_for(file.directory(), &args.local, speed, None)?;
    let open = Arc::new(move |threads, _: &[usize]| Ggml::open(&dir, &name, threads));
    measurement.run(file, plan, Device { backends, gpu_info, open })
}

/// The model's own name, or its file's.
pub fn name(directory: &Directory, path: &Path) -> String {
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = directory.find_str("general.name").ok().flatten();
    name.map_or_else(stem, str::to_owned)
}

/// The transport of activations between the ranks.
pub fn transport(plan: &Plan, args: &LocalArgs) -> &'static str {
    match (plan.ranks.len(), args.options.transport) {
        (1, _) => "none",
        (_, Transport::Tcp) => "tcp",
        (_, Transport::Rdma) => "rdma",
        (_, Transport::Auto | Transport::Shm) => "shm",
    }
}

/// The strategy's name, with the layers and ranks of its stages.
pub fn strategy(plan: &Plan) -> String {
    let list = |stage: fn(&protocol::StageSize) -> usize| {
        let numbers = plan.split.stages.iter().map(|at| stage(at).to_string());
        numbers.collect::<Vec<_>>().join("+")
    };
    let layers = list(|stage| stage.layers);
    match (plan.ranks.len(), plan.split.stages.as_slice()) {
        (1, _) => "none".to_owned(),
        (_, []) => "tensor".to_owned(),
        (ranks, stages) if ranks == stages.len() => format!("pipeline {layers}"),
        _ => format!("hybrid {layers} ({} nodes)", list(|stage| stage.ranks)),
    }
}
