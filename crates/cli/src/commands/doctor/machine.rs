//! This machine: memory and its limits, processors, disk, clock.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::{Finding, Verdict, read};
use crate::{cgroup, machine, table};

const GIB: u64 = 1 << 30;
/// Written to measure a disk: enough to exceed its first cache, and quick enough to wait for.
const DISK_BYTES: usize = 64 << 20;
/// A model of 40 GB loads in over three minutes below this.
const DISK_BYTES_PER_SEC_MIN: f64 = 200e6;
/// Less is too little for most models' files.
const DISK_FREE_MIN: u64 = 20 * GIB;

/// `told`: memory for models on the node that runs here.
pub(super) fn look(data_dir: &Path, told: Option<u64>) -> Vec<Finding> {
    let mut found = vec![memory(told)];
    found.extend(limit());
    found.push(processor());
    found.extend(disk(data_dir));
    found.extend(clock());
    found
}

fn memory(told: Option<u64>) -> Finding {
    let meant = told.unwrap_or_else(|| machine::share_for_models(machine::memory_bytes().bytes));
    let mut text = match told {
        Some(_) => format!("{} for models, as the node here was started", table::bytes(meant)),
        None => format!("{} for models, unless sinew up --memory says more", table::bytes(meant)),
    };
    if let Some(free) = available_bytes() {
        text.push_str(&format!("; {} are free now", table::bytes(free)));
        if free < meant / 2 {
            return Finding::new("memory", Verdict::Better, text)
                .hint("other programs hold most of it: end some, or give less with --memory");
        }
    }
    Finding::new("memory", Verdict::Good, text)
}

#[cfg(windows)]
fn available_bytes() -> Option<u64> {
    Some(win32::machine::memory()?.available_bytes)
}

#[cfg(unix)]
fn available_bytes() -> Option<u64> {
    meminfo("MemAvailable:")
}

fn meminfo(field: &str) -> Option<u64> {
    kib_of(&read("/proc/meminfo")?, field)
}

fn kib_of(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The limit of a container or a service, if it is below the machine's memory.
fn limit() -> Option<Finding> {
    let total = meminfo("MemTotal:")?;
    let least = cgroup::memory_limit_bytes().filter(|least| *least < total)?;
    let text = format!(
        "this process may use {} of the machine's {}",
        table::bytes(least),
        table::bytes(total)
    );
    let hint = "raise it where it comes from (docker run --memory, MemoryMax= of a unit), or give \
                the node less with --memory";
    Some(Finding::new("memory", Verdict::Better, text).hint(hint))
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let text = format!(
        "{cores} threads at most{}",
        match &governor {
            Some(governor) => format!(", governed for {governor}"),
            None => String::new(),
        }
    );
    if governor.as_deref() == Some("powersave") && !has_own_states() {
        return Finding::new("processor", Verdict::Better, text)
            .hint("sudo cpupower frequency-set -g performance");
    }
    Finding::new("processor", Verdict::Good, text)
}

/// Processors that choose their own frequency do so under any governor.
fn has_own_states() -> bool {
    let driver = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver").unwrap_or_default();
    ["intel_pstate", "amd-pstate-epp"].contains(&driver.as_str())
}

fn disk(data_dir: &Path) -> Vec<Finding> {
    // Before the first start there is no such folder; its parent is on the same disk.
    let Some(folder) = data_dir.ancestors().find(|folder| folder.is_dir()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if let Some(free) = hub::free_bytes(folder) {
        let text = format!("{} free where models are kept", table::bytes(free));
        let hint = "remove what is not needed (sinew rm MODEL), or use --data-dir on another disk";
        found.push(match free < DISK_FREE_MIN {
            true => Finding::new("disk", Verdict::Better, text).hint(hint),
            false => Finding::new("disk", Verdict::Good, text),
        });
    }
    match write_speed(folder) {
        Ok(rate) => {
            let text = format!("writes {}/s", table::bytes(rate as u64));
            found.push(match rate < DISK_BYTES_PER_SEC_MIN {
                true => Finding::new("disk", Verdict::Better, text)
                    .hint("models load slowly from it; an internal SSD is faster"),
                false => Finding::new("disk", Verdict::Good, text),
            });
        }
        Err(error) => {
            let text = format!("{} cannot be written: {error}", folder.display());
            let hint = "give the folder to this user, free some room, or use --data-dir";
            found.push(Finding::new("disk", Verdict::Bad, text).hint(hint));
        }
    }
    found
}

fn write_speed(folder: &Path) -> std::io::Result<f64> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let piece: Vec<u8> =
        (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let began = Instant::now();
    for _ in 0..DISK_BYTES / piece.len() {
        file.write_all(&piece)?;
    }
    file.as_file().sync_all()?;
    Ok(DISK_BYTES as f64 / began.elapsed().as_secs_f64())
}

/// Whether the system's clock is synchronised. No decision compares clocks of several machines, but
/// people compare logs, and invitations expire by clocks.
fn clock() -> Option<Finding> {
    let output = std::process::Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let synchronised = String::from_utf8(output.stdout).ok()?;
    Some(match synchronised.trim() {
        "yes" => Finding::new("clock", Verdict::Good, "kept right by the network"),
        _ => Finding::new("clock", Verdict::Better, "nobody keeps it right")
            .hint("sudo timedatectl set-ntp true"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_at_here_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let found = look(&dir.path().join("not/there/yet"), None);
        for area in ["memory", "processor", "disk"] {
            assert!(found.iter().any(|one| one.area == area), "{area}: {found:?}");
        }
        assert!(found.iter().any(|one| one.text.starts_with("writes ")), "{found:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        assert_eq!(kib_of("A:  1 kB\nMemTotal:  16 kB\n", "MemTotal:"), Some(16 * 1024));
        assert_eq!(kib_of("MemTotal:  16 pages\n", "MemTotal:"), None);
    }
}
