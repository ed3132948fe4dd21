//! `sinew doctor gpu`: whether ggml's libraries open, and the devices that they find.

use std::path::Path;

use ggml::Library;
use serde_json::{Value, json};

use super::{Finding, Verdict};
use crate::args::{DoctorGpuArgs, GpuLibraries};
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::device::{Device, Devices, folder, look, shown};
use crate::error::CliError;
use crate::table;

/// The script that fetches ggml's libraries, in the version that this program needs.
const SCRIPT: &str = include_str!("../../../../../scripts/gpu-libraries.sh");

/// Reports on the devices; an error (and so a status other than 0) if there are none.
pub fn gpu(args: &DoctorGpuArgs) -> Result<(), CliError> {
    if args.script {
        say!("{}", SCRIPT.trim_end());
        return Ok(());
    }
    let data_dir = DataDir::find(&args.query.data_dir)?;
    let dir = folder(&args.libraries, &data_dir);
    let found = if args.query.json {
        let library = Library::open(&dir);
        print_json(&to_json(&library))?;
        library.is_ok_and(|library| library.devices().iter().any(|it| it.kind().runs_models()))
    } else {
        let found = look_from_outside(&dir);
        match &found {
            Ok(found) => print(found),
            Err(problem) => say!("- {problem}"),
        }
        found.is_ok_and(|found| found.devices.iter().any(Device::runs_models))
    };
    let unfit = CliError::Unfit("no device of ggml's is usable on this machine");
    if found { Ok(()) } else { Err(unfit) }
}

/// Devices in the full report: most machines have no prepared device, which is no fault.
pub(super) fn finding(data_dir: &DataDir) -> Finding {
    let dir = folder(&GpuLibraries { gpu_libraries: None }, data_dir);
    let of = |verdict, text: &str| Finding::new("gpu", verdict, text);
    if !dir.is_dir() {
        let hint = "sinew doctor gpu --script | bash";
        return of(Verdict::Note, "ggml's libraries, which GPUs need, are not here").hint(hint);
    }
    let hint = "sinew doctor gpu";
    let found = match look_from_outside(&dir) {
        Err(problem) => return of(Verdict::Better, &problem).hint(hint),
        Ok(found) => found,
    };
    let names: Vec<_> = found.devices.iter().filter(|one| one.is_gpu()).map(in_words).collect();
    match (names.is_empty(), found.problems.first()) {
        (false, _) => of(Verdict::Good, &names.join(", ")),
        (true, Some(problem)) => of(Verdict::Better, problem).hint(hint),
        (true, None) => of(Verdict::Note, "none is found").hint(hint),
    }
}

/// Runs another process, which a broken library or driver may crash.
fn look_from_outside(dir: &Path) -> Result<Devices, String> {
    let found = std::env::current_exe().and_then(|program| look(&program, dir));
    found.unwrap_or_else(|error| Err(format!("cannot look for devices: {error}")))
}

fn in_words(device: &Device) -> String {
    let [free, total] = [device.memory_free_bytes, device.memory_bytes].map(table::bytes);
    format!("{} {} ({free} of {total} free)", device.name, device.description)
}

fn print(found: &Devices) {
    if let Some(version) = &found.version {
        say!("ggml {version}");
    }
    if !found.devices.is_empty() {
        say!("");
        let rows: Vec<_> = found.devices.iter().map(row).collect();
        table::print(["DEVICE", "KIND", "BACKEND", "FREE", "MEMORY", "NAME"], &rows);
    }
    for problem in &found.problems {
        say!("\n- {problem}");
    }
    if found.problems.is_empty() && !found.devices.iter().any(Device::is_gpu) {
        say!("\n- no GPU is found. GGML_VK_VISIBLE_DEVICES=0 lets in a Vulkan driver in software");
    }
}

fn row(device: &Device) -> [String; 6] {
    [
        shown(&device.name).to_owned(),
        device.kind.clone(),
        device.backend.clone(),
        table::bytes(device.memory_free_bytes),
        table::bytes(device.memory_bytes),
        device.description.clone(),
    ]
}

/// Identifies the libraries of a device: name, version and hash.
fn build(library: &Library, device: &ggml::Device) -> String {
    const SHOWN: usize = 12;
    let files = [library.base(), device.file()].map(gguf::on_disk);
    let files: std::io::Result<Vec<_>> = files.into_iter().collect();
    let tree = files.and_then(|files| store::Tree::of_files(files, &|_| {}));
    // They were opened already, so reading fails only with the disk.
    let hash = tree.map_or_else(|error| error.to_string(), |tree| tree.digest.to_string());
    let hash: String = hash.chars().take(SHOWN).collect();
    format!("ggml {} for {} {hash}", library.version(), device.backend())
}

fn to_json(library: &Result<&Library, ggml::Error>) -> Value {
    let library = match library {
        Ok(library) => library,
        Err(error) => return json!({ "devices": [], "problems": [error.to_string()] }),
    };
    let device = |device: &ggml::Device| {
        let (free, total) = device.memory();
        json!({
            "name": device.name(),
            "kind": device.kind().to_string(),
            "backend": device.backend(),
            "description": device.description(),
            "library": build(library, device),
            "memory_bytes": total,
            "memory_free_bytes": free,
        })
    };
    json!({
        "version": library.version(),
        "devices": library.devices().iter().map(device).collect::<Vec<_>>(),
        "problems": library.problems().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
