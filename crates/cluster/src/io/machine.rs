//! The hardware of this machine and its sensors, read from the system; values it does not offer are
//! absent.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::api::machine::{Machine, Sensors};
use crate::io::steal::Others;

/// A sensor that reports more is broken.
const CELSIUS_MAX: f64 = 150.0;

/// The hardware of this machine.
pub(crate) fn read() -> Machine {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Machine { chip: chip(), cores, devices: devices(Path::new("/")) }.within_limits()
}

#[cfg(windows)]
fn chip() -> String {
    win32::machine::processor().unwrap_or_default()
}

#[cfg(unix)]
fn chip() -> String {
    if cfg!(target_os = "macos") {
        let output =
            std::process::Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"]).output();
        return output.map_or(String::new(), |output| {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        });
    }
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let board = fs::read_to_string("/proc/device-tree/model").unwrap_or_default();
    chip_of(&cpus).unwrap_or_else(|| board.trim_end_matches('\0').to_owned())
}

/// x86 names each processor; some Arm machines name their kind at the end.
#[cfg_attr(windows, allow(dead_code))]
fn chip_of(cpus: &str) -> Option<String> {
    let named = |wanted: &str| {
        let mut lines = cpus.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == wanted).map(|(_, value)| value.trim().to_owned())
    };
    named("model name").or_else(|| named("Model")).or_else(|| named("Hardware"))
}

/// Reads below `root`, which is another directory in tests.
fn devices(root: &Path) -> Vec<String> {
    let model = |path: PathBuf| {
        let text = fs::read_to_string(path.join("information")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(line.trim().to_owned())
    };
    let nvidia = entries(&root.join("proc/driver/nvidia/gpus")).into_iter().filter_map(model);
    let amd = entries(&root.join("sys/class/drm")).into_iter().filter_map(|path| {
        Some(fs::read_to_string(path.join("device/product_name")).ok()?.trim().to_owned())
    });
    let rdma = entries(&root.join("sys/class/infiniband"))
        .into_iter()
        .filter_map(|path| Some(format!("rdma {}", path.file_name()?.to_string_lossy())));
    let mut all: Vec<String> = nvidia.chain(amd).chain(rdma).filter(|d| !d.is_empty()).collect();
    all.dedup();
    all
}

/// Reads the sensors. If the system counts energy, power is an average since the last read.
#[derive(Debug)]
pub(crate) struct Thermometer {
    root: PathBuf,
    /// The last reading of the energy counters, and its time.
    energy: Option<(f64, Instant)>,
    others: Others,
}

impl Thermometer {
    pub(crate) fn new() -> Self {
        let root = PathBuf::from("/sys/class");
        Self { root, energy: None, others: Others::new(Path::new("/proc")) }
    }

    /// `workers` are the process ids of this node's workers; they do not count as other programs.
    pub(crate) fn read(&mut self, workers: &[u32]) -> Sensors {
        let power_watts = self.measured_watts().or_else(|| self.counted_watts());
        Sensors {
            temperature_celsius: self.celsius(),
            power_watts,
            others_processors: self.others.processors(workers),
        }
    }

    /// The hottest of the processor's sensors, or of all sensors if none is marked as the
    /// processor's.
    fn celsius(&self) -> Option<f64> {
        let hwmon = entries(&self.root.join("hwmon"));
        let of_cpu = hwmon.iter().filter(|chip| {
            let name = fs::read_to_string(chip.join("name")).unwrap_or_default();
            ["coretemp", "k10temp", "zenpower", "cpu_thermal"].contains(&name.trim())
        });
        let inputs = |chip: &PathBuf| numbers(chip, "temp", "_input");
        let zones = entries(&self.root.join("thermal"));
        let zones = zones.iter().filter_map(|zone| number(&zone.join("temp")));
        let found = hottest(of_cpu.flat_map(inputs));
        found.or_else(|| hottest(zones)).or_else(|| hottest(hwmon.iter().flat_map(inputs)))
    }

    /// Sum of all sensors that measure power, in microwatts before the conversion.
    fn measured_watts(&self) -> Option<f64> {
        let chips = entries(&self.root.join("hwmon"));
        let power = chips.iter().filter_map(|chip| {
            let average = numbers(chip, "power", "_average").into_iter().next();
            average.or_else(|| numbers(chip, "power", "_input").into_iter().next())
        });
        let all: Vec<f64> = power.collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / 1e6)
    }

    /// Rate of the energy counters of all processor packages, which count microjoules.
    fn counted_watts(&mut self) -> Option<f64> {
        let packages = entries(&self.root.join("powercap")).into_iter().filter(|zone| {
            let name = zone.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.matches(':').count() == 1
        });
        let counters: Vec<f64> =
            packages.filter_map(|zone| number(&zone.join("energy_uj"))).collect();
        if counters.is_empty() {
            return None;
        }
        let (joules, now) = (counters.iter().sum::<f64>() / 1e6, Instant::now());
        let (before, at) = self.energy.replace((joules, now))?;
        let seconds = now.duration_since(at).as_secs_f64();
        // After a counter's restart, the next read gives a rate again.
        (joules >= before && seconds > 0.0).then(|| (joules - before) / seconds)
    }
}

fn hottest(millidegrees: impl Iterator<Item = f64>) -> Option<f64> {
    let degrees = millidegrees.map(|value| value / 1e3);
    degrees.filter(|celsius| (0.0..CELSIUS_MAX).contains(celsius)).reduce(f64::max)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = read.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The values of a sensor chip's files with this prefix and suffix.
fn numbers(chip: &Path, begins: &str, ends: &str) -> Vec<f64> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(begins) && name.ends_with(ends)
    };
    entries(chip).iter().filter(|path| is_one(path)).filter_map(|path| number(path)).collect()
}

fn number(path: &Path) -> Option<f64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_chip_is_named_as_its_system_does() {
        assert_eq!(chip_of("processor : 0\nmodel name\t: Xeon 9\n"), Some("Xeon 9".to_owned()));
        let pi = "processor : 0\nHardware\t: BCM\nModel\t\t: Raspberry Pi 5\n";
        assert_eq!(chip_of(pi), Some("Raspberry Pi 5".to_owned()));
        assert_eq!(chip_of(""), None);
    }

    #[test]
    fn devices_are_found_by_their_names() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(devices(root.path()), [""; 0]);
        let gpu = "Model: \t\t H100\nIRQ: 1\n";
        write(root.path(), "proc/driver/nvidia/gpus/0000:01/information", gpu);
        write(root.path(), "sys/class/infiniband/rxe0/node_type", "1");
        assert_eq!(devices(root.path()), ["H100", "rdma rxe0"]);
    }

    #[test]
    fn sensors_tell_the_hottest_part_and_all_power() {
        let root = tempfile::tempdir().unwrap();
        let others = Others::new(&root.path().join("proc"));
        let mut sensors = Thermometer { root: root.path().to_path_buf(), energy: None, others };
        assert_eq!(sensors.read(&[]), Sensors::default());
        write(root.path(), "thermal/thermal_zone0/temp", "45000\n");
        assert_eq!(sensors.read(&[]).temperature_celsius, Some(45.0));
        write(root.path(), "hwmon/hwmon0/name", "nvme\n");
        write(root.path(), "hwmon/hwmon0/temp1_input", "70000\n");
        write(root.path(), "hwmon/hwmon1/name", "coretemp\n");
        write(root.path(), "hwmon/hwmon1/temp1_input", "51000\n");
        write(root.path(), "hwmon/hwmon1/temp2_input", "53000\n");
        write(root.path(), "hwmon/hwmon1/temp3_input", "999000000\n");
        assert_eq!(sensors.read(&[]).temperature_celsius, Some(53.0));

        write(root.path(), "powercap/intel-rapl:0/energy_uj", "1000000\n");
        write(root.path(), "powercap/intel-rapl:0:0/energy_uj", "9000000\n");
        assert_eq!(
            sensors.read(&[]).power_watts,
            None,
            "the first time there is nothing to compare"
        );
        write(root.path(), "powercap/intel-rapl:0/energy_uj", "3000000\n");
        assert!(sensors.read(&[]).power_watts.is_some_and(|watts| watts > 0.0));
        write(root.path(), "powercap/intel-rapl:0/energy_uj", "5\n");
        assert_eq!(sensors.read(&[]).power_watts, None, "the counter has begun anew");
        write(root.path(), "hwmon/hwmon2/power1_average", "12500000\n");
        assert_eq!(sensors.read(&[]).power_watts, Some(12.5));
    }
}
