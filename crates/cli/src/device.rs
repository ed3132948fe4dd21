//! The devices that this machine's nodes compute on: one a node.
//!
//! Another process, `sinew doctor gpu`, opens ggml's libraries: a driver's fault ends only that
//! process, and the node reports it and computes on the CPU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cluster::{DeviceConfig, NodeDevice};
use protocol::WorkerDevice;
use serde::Deserialize;

use crate::args::{GpuLibraries, UpArgs};
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::{child, machine, table};

/// Drivers that were unused for long take seconds to wake.
const PROBE_MAX: Duration = Duration::from_secs(30);

/// Part of a device's free memory for models: the rest is for its driver and for displays.
const DEVICE_SHARE: (u64, u64) = (9, 10);

const GPU: &str = "GPU";
/// A GPU that shares the machine's memory.
const INTEGRATED: &str = "integrated GPU";
const ACCELERATOR: &str = "accelerator";

/// The names of the libraries' own CPU engine: this program's, and ggml's.
const GGML_CPU: (&str, &str) = ("ggml-cpu", "CPU");

/// The output of `sinew doctor gpu --json`.
#[derive(Debug, Deserialize)]
pub struct Devices {
    /// Of ggml; `None` if its libraries do not open.
    pub version: Option<String>,
    pub devices: Vec<Device>,
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Device {
    pub name: String,
    pub kind: String,
    pub backend: String,
    pub description: String,
    pub library: String,
    pub memory_bytes: u64,
    pub memory_free_bytes: u64,
}

impl Device {
    pub fn is_gpu(&self) -> bool {
        self.kind == GPU || self.kind == INTEGRATED
    }

    pub fn runs_models(&self) -> bool {
        self.kind != ACCELERATOR
    }
}

/// The given folder, or the default one.
pub fn folder(asked: &GpuLibraries, data_dir: &DataDir) -> PathBuf {
    asked_folder(asked).unwrap_or_else(|| data_dir.path().join("gpu"))
}

fn asked_folder(asked: &GpuLibraries) -> Option<PathBuf> {
    let set = || std::env::var_os("SINEW_GPU_LIBRARIES").filter(|dir| !dir.is_empty());
    asked.gpu_libraries.clone().or_else(|| set().map(PathBuf::from))
}

/// The given devices, or the best; `program` is this one.
///
/// # Errors
/// The libraries work but have no such device; or a name matches several.
pub fn choose(
    args: &UpArgs,
    data_dir: &DataDir,
    program: &Path,
) -> Result<Vec<DeviceConfig>, CliError> {
    let wanted = &args.device;
    let is_word = |name: &String| name == "auto" || name == "all";
    if let (2.., Some(word)) = (wanted.len(), wanted.iter().find(|name| is_word(name))) {
        let text = format!("--device {word} beside another --device. Name each, or give it alone");
        return Err(CliError::Usage(text));
    }
    let dir = folder(&args.libraries, data_dir);
    let is_asked = wanted != &["auto"] || asked_folder(&args.libraries).is_some();
    if wanted.iter().all(|name| name == "cpu") || !(is_asked || dir.is_dir()) {
        return Ok(vec![DeviceConfig::default(); wanted.len()]);
    }
    let found = match look(program, &dir).doing("cannot look for devices")? {
        Ok(found) => found,
        Err(problem) => return Ok(vec![on_cpu(&problem, &dir)]),
    };
    let gpus = every_gpu(&found);
    if wanted == &["all"] && !gpus.is_empty() {
        return Ok(gpus.into_iter().map(|device| configured(dir.clone(), device)).collect());
    }
    let one = |wanted: &String| match pick(&found, wanted) {
        _ if wanted == "cpu" => Ok(DeviceConfig::default()),
        Ok(device) => Ok(configured(dir.clone(), device)),
        Err(None) => Err(CliError::Usage(format!(
            "--device {wanted}: ggml's libraries in {} know {}. Give one of these, cpu or auto",
            dir.display(),
            names(&found)
        ))),
        Err(Some(problem)) => Ok(on_cpu(&problem, &dir)),
    };
    let mut chosen = wanted.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    // One node on the CPU replaces all missing devices.
    let mut is_first = true;
    chosen.retain(|config| config.problem.is_none() || std::mem::take(&mut is_first));
    Ok(chosen)
}

/// Memory for models on the device, divided equally among `parts` nodes; `None` if it is the
/// machine's own.
///
/// # Errors
/// The request exceeds the device's memory.
pub fn memory_bytes(
    config: &DeviceConfig,
    asked: Option<u64>,
    parts: u64,
) -> Result<Option<u64>, CliError> {
    let Some((_, device)) = &config.device else { return Ok(None) };
    if device.kind == "CPU" {
        return Ok(None);
    }
    let free = device.memory_free_bytes / DEVICE_SHARE.1 * DEVICE_SHARE.0;
    let own = match device.kind.as_str() {
        INTEGRATED => free.min(machine::share_for_models(machine::memory_bytes().bytes)),
        _ => free,
    };
    match asked {
        None => Ok(Some(own / parts)),
        Some(asked) if asked <= device.memory_bytes / parts => Ok(Some(asked)),
        Some(asked) => Err(CliError::Usage(format!(
            "--memory {}: {} has {}, of which {} are free{}. Give less, or leave it out for {}",
            table::bytes(asked),
            device.name,
            table::bytes(device.memory_bytes),
            table::bytes(device.memory_free_bytes),
            if parts > 1 { format!(", for {parts} nodes") } else { String::new() },
            table::bytes(own / parts)
        ))),
    }
}

/// Whether its threads are the machine's.
pub fn is_processor(config: &DeviceConfig) -> bool {
    config.device.as_ref().is_none_or(|(_, device)| device.kind == "CPU")
}

/// Whether both use the same memory.
pub fn share_memory(a: &DeviceConfig, b: &DeviceConfig) -> bool {
    let is_machines = |config: &DeviceConfig| {
        let integrated = |(_, device): &(_, NodeDevice)| device.kind == INTEGRATED;
        is_processor(config) || config.device.as_ref().is_some_and(integrated)
    };
    let name = |config: &DeviceConfig| config.device.as_ref().map(|(_, told)| told.name.clone());
    name(a) == name(b) || is_machines(a) && is_machines(b)
}

fn on_cpu(problem: &str, dir: &Path) -> DeviceConfig {
    let look = format!("sinew doctor gpu --gpu-libraries {}", dir.display());
    let problem = format!("models of this node run on its CPU: {problem} ({look})");
    DeviceConfig { device: None, problem: Some(problem) }
}

fn configured(libraries: PathBuf, device: &Device) -> DeviceConfig {
    let Device { kind, description, library, memory_bytes, memory_free_bytes, .. } = device.clone();
    let told = NodeDevice {
        name: shown(&device.name).to_owned(),
        description,
        kind,
        library,
        memory_bytes,
        memory_free_bytes,
    };
    let worker = WorkerDevice { libraries, name: device.name.clone() };
    DeviceConfig { device: Some((worker, told)), problem: None }
}

/// This program's name for the libraries' `name`.
pub fn shown(name: &str) -> &str {
    if name == GGML_CPU.1 { GGML_CPU.0 } else { name }
}

/// The libraries' name for this program's `name`.
pub fn known(name: &str) -> &str {
    if name.eq_ignore_ascii_case(GGML_CPU.0) { GGML_CPU.1 } else { name }
}

fn names(found: &Devices) -> String {
    let runs = found.devices.iter().filter(|device| device.runs_models());
    let names: Vec<&str> = runs.map(|device| shown(&device.name)).collect();
    if names.is_empty() { "no device".to_owned() } else { names.join(", ") }
}

/// The device of that name, or with `auto` or `all` the GPU with the most free memory. An error has
/// the libraries' problem, or `None` if the name is unknown.
fn pick<'f>(found: &'f Devices, wanted: &str) -> Result<&'f Device, Option<String>> {
    let problem = || found.problems.first().cloned();
    if wanted != "auto" && wanted != "all" {
        let is_it = |device: &&Device| {
            device.runs_models() && shown(&device.name).eq_ignore_ascii_case(wanted)
        };
        return found.devices.iter().find(is_it).ok_or_else(problem);
    }
    let none = || Some(problem().unwrap_or_else(|| "ggml's libraries find no GPU".to_owned()));
    every_gpu(found).first().copied().ok_or_else(none)
}

/// GPUs with their own memory, or else those without; the most free memory first.
fn every_gpu(found: &Devices) -> Vec<&Device> {
    let of = |kind: &str| {
        let mut gpus: Vec<_> = found.devices.iter().filter(|device| device.kind == kind).collect();
        gpus.sort_by_key(|device| std::cmp::Reverse(device.memory_free_bytes));
        gpus
    };
    let own = of(GPU);
    if own.is_empty() { of(INTEGRATED) } else { own }
}

/// The devices that the libraries in `dir` find, as reported by another process of `program`, or
/// how that failed.
pub fn look(program: &Path, dir: &Path) -> std::io::Result<Result<Devices, String>> {
    let mut command = Command::new(program);
    command.args(["doctor", "gpu", "--json", "--gpu-libraries"]).arg(dir);
    let Some((status, text)) = child::told(command, PROBE_MAX)? else {
        let secs = PROBE_MAX.as_secs();
        return Ok(Err(format!("the libraries in {} say nothing in {secs} s", dir.display())));
    };
    let ended = || format!("opening the libraries in {} ended with {status}", dir.display());
    Ok(serde_json::from_str(&text).map_err(|_| ended()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: &str, memory_free_bytes: u64) -> Device {
        Device {
            name: name.to_owned(),
            kind: kind.to_owned(),
            backend: String::new(),
            description: String::new(),
            library: String::new(),
            memory_bytes: 80 << 30,
            memory_free_bytes,
        }
    }

    #[test]
    fn the_roomiest_gpu_is_the_best_and_others_go_by_name() {
        let mut found = Devices {
            version: None,
            devices: vec![
                device("CPU", "CPU", 99),
                device("Vulkan0", "integrated GPU", 90),
                device("CUDA0", "GPU", 10),
                device("CUDA1", "GPU", 20),
            ],
            problems: Vec::new(),
        };
        let name = |found: &Devices, wanted| pick(found, wanted).map(|device| device.name.clone());
        assert_eq!(name(&found, "auto").unwrap(), "CUDA1");
        assert_eq!(name(&found, "cuda0").unwrap(), "CUDA0");
        assert_eq!(name(&found, "ggml-cpu").unwrap(), "CPU");
        assert_eq!(name(&found, "CUDA7"), Err(None));
        found.devices.truncate(1);
        assert!(name(&found, "auto").unwrap_err().unwrap().contains("no GPU"));
        found.problems.push("no driver".to_owned());
        assert_eq!(name(&found, "CUDA0"), Err(Some("no driver".to_owned())));
    }

    #[test]
    fn a_devices_memory_is_its_own() {
        let of = |kind| {
            let config = configured(PathBuf::new(), &device("CUDA0", kind, 40 << 30));
            move |asked| memory_bytes(&config, asked, 1)
        };
        assert_eq!(of("GPU")(None).unwrap(), Some(36 << 30));
        assert_eq!(of("GPU")(Some(50 << 30)).unwrap(), Some(50 << 30));
        let error = of("GPU")(Some(81 << 30)).unwrap_err().to_string();
        assert!(error.contains("81.0 GiB") && error.contains("40.0 GiB"), "{error}");
        assert_eq!(of("CPU")(None).unwrap(), None, "the machine's");
        let config = configured(PathBuf::new(), &device("CUDA0", "GPU", 40 << 30));
        assert_eq!(memory_bytes(&config, None, 2).unwrap(), Some(18 << 30));
        let error = memory_bytes(&config, Some(41 << 30), 2).unwrap_err().to_string();
        assert!(error.contains("for 2 nodes"), "{error}");
    }

    #[test]
    fn devices_share_memory_if_it_is_the_machines_or_they_are_one() {
        let of = |name, kind| configured(PathBuf::new(), &device(name, kind, 1));
        let (gpu, other) = (of("CUDA0", "GPU"), of("CUDA1", "GPU"));
        let (cpu, inside) = (DeviceConfig::default(), of("Vulkan0", INTEGRATED));
        assert!(share_memory(&gpu, &gpu) && share_memory(&cpu, &inside));
        assert!(share_memory(&cpu, &of("CPU", "CPU")));
        assert!(!share_memory(&gpu, &other) && !share_memory(&gpu, &cpu));
    }
}
