//! On which device this machine's node computes.
//!
//! ggml's libraries are opened by another process, `sinew doctor gpu`: a driver's fault ends that
//! one, and the node says so and computes on the CPU.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cluster::{DeviceConfig, NodeDevice};
use protocol::WorkerDevice;
use serde::Deserialize;

use crate::args::{GpuLibraries, UpArgs};
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::{machine, table};

/// Drivers that were not used for long take seconds to wake.
const PROBE_MAX: Duration = Duration::from_secs(30);
const PROBE_POLL: Duration = Duration::from_millis(20);

/// What models may take of a device's free memory: the rest is for its driver and for displays.
const DEVICE_SHARE: (u64, u64) = (9, 10);

/// By which this program and ggml's libraries know the libraries' own engine on the CPU.
const GGML_CPU: (&str, &str) = ("ggml-cpu", "CPU");

/// As `sinew doctor gpu --json` prints it.
#[derive(Debug, Deserialize)]
struct Found {
    devices: Vec<Device>,
    problems: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Device {
    name: String,
    kind: String,
    description: String,
    memory_bytes: u64,
    memory_free_bytes: u64,
}

/// The folder that was asked for, or the one where the libraries are put.
pub fn folder(asked: &GpuLibraries, data_dir: &DataDir) -> PathBuf {
    asked_folder(asked).unwrap_or_else(|| data_dir.path().join("gpu"))
}

fn asked_folder(asked: &GpuLibraries) -> Option<PathBuf> {
    let set = || std::env::var_os("SINEW_GPU_LIBRARIES").filter(|dir| !dir.is_empty());
    asked.gpu_libraries.clone().or_else(|| set().map(PathBuf::from))
}

/// The device that was asked for, or the best; `program` is this one.
///
/// # Errors
/// The libraries are well, and have no device of that name.
pub fn choose(args: &UpArgs, data_dir: &DataDir, program: &Path) -> Result<DeviceConfig, CliError> {
    let wanted = args.device.as_str();
    let dir = folder(&args.libraries, data_dir);
    let is_asked = wanted != "auto" || asked_folder(&args.libraries).is_some();
    if wanted == "cpu" || !(is_asked || dir.is_dir()) {
        return Ok(DeviceConfig::default());
    }
    let found = match probe(program, &dir).doing("cannot look for devices")? {
        Ok(found) => found,
        Err(problem) => return Ok(on_cpu(&problem)),
    };
    match pick(&found, wanted) {
        Ok(device) => Ok(configured(dir, device)),
        Err(None) => Err(CliError::Usage(format!(
            "--device {wanted}: ggml's libraries in {} know {}. Give one of these, cpu or auto",
            dir.display(),
            names(&found)
        ))),
        Err(Some(problem)) => Ok(on_cpu(&problem)),
    }
}

/// What models may take on the device; nothing where that is the machine's own memory.
///
/// # Errors
/// More was asked for than the device has.
pub fn memory_bytes(config: &DeviceConfig, asked: Option<u64>) -> Result<Option<u64>, CliError> {
    let Some((_, device)) = &config.device else { return Ok(None) };
    if device.kind == "CPU" {
        return Ok(None);
    }
    let free = device.memory_free_bytes / DEVICE_SHARE.1 * DEVICE_SHARE.0;
    let own = match device.kind.as_str() {
        // It has no other memory than the machine.
        "integrated GPU" => free.min(machine::share_for_models(machine::memory_bytes().bytes)),
        _ => free,
    };
    match asked {
        None => Ok(Some(own)),
        Some(asked) if asked <= device.memory_bytes => Ok(Some(asked)),
        Some(asked) => Err(CliError::Usage(format!(
            "--memory {}: {} has {}, of which {} are free. Give less, or leave it out for {}",
            table::bytes(asked),
            device.name,
            table::bytes(device.memory_bytes),
            table::bytes(device.memory_free_bytes),
            table::bytes(own)
        ))),
    }
}

fn on_cpu(problem: &str) -> DeviceConfig {
    let problem = format!("models of this node run on its CPU: {problem} (sinew doctor gpu)");
    DeviceConfig { device: None, problem: Some(problem) }
}

fn configured(libraries: PathBuf, device: &Device) -> DeviceConfig {
    let Device { kind, description, memory_bytes, memory_free_bytes, .. } = device.clone();
    let told = NodeDevice {
        name: shown(&device.name).to_owned(),
        description,
        kind,
        memory_bytes,
        memory_free_bytes,
    };
    let worker = WorkerDevice { libraries, name: device.name.clone() };
    DeviceConfig { device: Some((worker, told)), problem: None }
}

fn shown(name: &str) -> &str {
    if name == GGML_CPU.1 { GGML_CPU.0 } else { name }
}

fn names(found: &Found) -> String {
    let runs = found.devices.iter().filter(|device| device.kind != "accelerator");
    let names: Vec<&str> = runs.map(|device| shown(&device.name)).collect();
    if names.is_empty() { "no device".to_owned() } else { names.join(", ") }
}

/// The device of that name, or with `auto` the GPU with most memory free. There is none: because
/// of a problem, or because nobody knows the name.
fn pick<'f>(found: &'f Found, wanted: &str) -> Result<&'f Device, Option<String>> {
    let problem = || found.problems.first().cloned();
    if wanted != "auto" {
        let is_it = |device: &&Device| {
            device.kind != "accelerator" && shown(&device.name).eq_ignore_ascii_case(wanted)
        };
        return found.devices.iter().find(is_it).ok_or_else(problem);
    }
    let best = |kind: &str| {
        let of_kind = found.devices.iter().filter(|device| device.kind == kind);
        of_kind.max_by_key(|device| device.memory_free_bytes)
    };
    let none = || Some(problem().unwrap_or_else(|| "ggml's libraries find no GPU".to_owned()));
    best("GPU").or_else(|| best("integrated GPU")).ok_or_else(none)
}

/// What the libraries in `dir` find, or what is wrong with them.
fn probe(program: &Path, dir: &Path) -> std::io::Result<Result<Found, String>> {
    let mut command = Command::new(program);
    command.args(["doctor", "gpu", "--json", "--gpu-libraries"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > PROBE_MAX {
            child.kill()?;
            child.wait()?;
            let secs = PROBE_MAX.as_secs();
            return Ok(Err(format!("the libraries in {} say nothing in {secs} s", dir.display())));
        }
        std::thread::sleep(PROBE_POLL);
    };
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut text)?;
    }
    let ended = || format!("opening the libraries in {} ended with {status}", dir.display());
    Ok(match serde_json::from_str::<Found>(&text) {
        Ok(found) if found.devices.is_empty() => {
            Err(found.problems.first().cloned().unwrap_or_else(ended))
        }
        Ok(found) => Ok(found),
        Err(_) => Err(ended()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: &str, memory_free_bytes: u64) -> Device {
        Device {
            name: name.to_owned(),
            kind: kind.to_owned(),
            description: String::new(),
            memory_bytes: 80 << 30,
            memory_free_bytes,
        }
    }

    #[test]
    fn the_roomiest_gpu_is_the_best_and_others_go_by_name() {
        let mut found = Found {
            devices: vec![
                device("CPU", "CPU", 99),
                device("Vulkan0", "integrated GPU", 90),
                device("CUDA0", "GPU", 10),
                device("CUDA1", "GPU", 20),
            ],
            problems: Vec::new(),
        };
        let name = |found: &Found, wanted| pick(found, wanted).map(|device| device.name.clone());
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
            move |asked| memory_bytes(&config, asked)
        };
        assert_eq!(of("GPU")(None).unwrap(), Some(36 << 30));
        assert_eq!(of("GPU")(Some(50 << 30)).unwrap(), Some(50 << 30));
        let error = of("GPU")(Some(81 << 30)).unwrap_err().to_string();
        assert!(error.contains("81.0 GiB") && error.contains("40.0 GiB"), "{error}");
        assert_eq!(of("CPU")(None).unwrap(), None, "the machine's");
    }
}
