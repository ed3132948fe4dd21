//! Name and memory of this machine.

use std::process::Command;

use crate::cgroup;

/// Default part of the memory for models: the rest is for the system and other programs.
const MEMORY_SHARE: (u64, u64) = (3, 4);
/// Assumed if the system does not report it.
const MEMORY_FALLBACK: u64 = 8 << 30;

pub fn host_name() -> String {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = from_kernel.or_else(|| match cfg!(windows) {
        true => output("hostname", &[]),
        false => output("hostname", &["-s"]),
    });
    name.map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "node".to_owned())
}

/// Threads that may run at once: limited by the cores, this process's CPUs and its control group.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory that this process may use, with the source of the figure, for a sentence that ends with
/// the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub bytes: u64,
    pub of: &'static str,
}

/// The machine's memory, or the limit of a control group.
pub fn memory_bytes() -> Memory {
    let machine = match installed_bytes() {
        Some(bytes) => Memory { bytes, of: "this machine has" },
        None => Memory { bytes: MEMORY_FALLBACK, of: "the system does not tell, so assumed are" },
    };
    match cgroup::memory_limit_bytes() {
        Some(bytes) if bytes < machine.bytes => {
            Memory { bytes, of: "the control group that sinew runs in has" }
        }
        _ => machine,
    }
}

/// Three quarters.
pub fn share_for_models(bytes: u64) -> u64 {
    bytes / MEMORY_SHARE.1 * MEMORY_SHARE.0
}

#[cfg(windows)]
fn installed_bytes() -> Option<u64> {
    Some(win32::machine::memory()?.total_bytes)
}

#[cfg(unix)]
fn installed_bytes() -> Option<u64> {
    if cfg!(target_os = "macos") {
        return output("sysctl", &["-n", "hw.memsize"])?.trim().parse().ok();
    }
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    String::from_utf8(output.stdout).ok()
}
