//! What this machine is called and how much memory it has.

use std::process::Command;

/// Part of the memory that models may use unless somebody says otherwise: the rest is for the
/// system and whatever else runs.
const MEMORY_SHARE: (u64, u64) = (3, 4);
/// Assumed where the system does not tell.
const MEMORY_FALLBACK: u64 = 8 << 30;

pub fn host_name() -> String {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = from_kernel.or_else(|| output("hostname", &["-s"]));
    name.map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "node".to_owned())
}

/// Three quarters of this machine's memory.
pub fn default_memory_bytes() -> u64 {
    memory_bytes().unwrap_or(MEMORY_FALLBACK) / MEMORY_SHARE.1 * MEMORY_SHARE.0
}

fn memory_bytes() -> Option<u64> {
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
