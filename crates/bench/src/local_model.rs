//! A model on ranks of this process, on the CPU or a ggml device: the shared part of a model's
//! measurements.

use std::path::Path;

use backend::Ggml;
use engine::EngineError;
use gguf::{Directory, File, Source};
use placement::Plan;
use protocol::{Transport, WorkerDevice};

use crate::args::{LocalArgs, LocalModelArgs};
use crate::error::Error;
use crate::{device_speed, local};

/// The device of the computation, under llama-bench's keys.
pub struct Device<'a> {
    pub backends: String,
    pub gpu_info: String,
    /// The CPU if absent.
    pub device: Option<&'a WorkerDevice>,
}

/// Opens the file, plans the split and finds the device, then runs the measurement.
///
/// # Errors
/// The file, the split or the device cannot be used, or the measurement fails.
pub fn measure(
    args: &LocalModelArgs,
    device: Option<&WorkerDevice>,
    measurement: impl FnOnce(File, Plan, Device<'_>) -> Result<String, Error>,
) -> Result<String, Error> {
    let file = checkpoint::open(&args.path)?;
    let Some(WorkerDevice { libraries, name }) = device else {
        let plan = local::plan(file.directory(), &args.local)?;
        let (backends, gpu_info) = (format!("CPU {}", backend::isa()), String::new());
        return measurement(file, plan, Device { backends, gpu_info, device });
    };
    let found = Ggml::find(libraries, name).map_err(EngineError::from)?;
    let (backends, gpu_info) =
        (format!("ggml {}", found.backend()), found.description().to_owned());
    let speed = || device_speed::measure(libraries, name, args.local.threads[0]);
    let speed = local::weighs(&args.local).then(speed).transpose().map_err(EngineError::from)?;
    let plan = local::plan_for(file.directory(), &args.local, speed, None)?;
    measurement(file, plan, Device { backends, gpu_info, device })
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
