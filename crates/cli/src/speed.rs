//! Measures the speed of this machine's threads or of a device. Another process measures devices,
//! because a driver may crash it.

use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use cluster::{Speed, WorkerDevice};
use tracing::warn;

use crate::{child, device as devices};

/// A driver may have to compile its kernels first.
const DEVICE_MAX: Duration = Duration::from_secs(60);

/// The speed of `threads` threads of this machine, or of a device, if measurable. One measurement
/// at a time: nodes of one process would disturb each other.
pub fn measure_node(threads: usize, device: Option<&WorkerDevice>) -> Option<Speed> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(device) = device else { return Some(bench::speed::measure(threads)) };
    let found = of_device(threads, device);
    if let Err(why) = &found {
        warn!(device = device.name, why, "not measured: plans with this node predict nothing");
    }
    found.ok()
}

/// By `sinew bench device`.
fn of_device(threads: usize, device: &WorkerDevice) -> Result<Speed, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["bench", "device", "--output", "json", "--gpu-libraries"]);
    command.arg(&device.libraries).args(["--device", devices::shown(&device.name)]);
    command.args(["--threads", &threads.to_string()]);
    let told = child::told(command, DEVICE_MAX).map_err(|error| error.to_string())?;
    let (status, text) =
        told.ok_or_else(|| format!("no answer within {} s", DEVICE_MAX.as_secs()))?;
    serde_json::from_str(&text)
        .map_err(|_| format!("the process that measured ended with {status}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_measured_has_no_speed() {
        // This program is the test binary, which has no `bench device`.
        let nowhere = WorkerDevice { libraries: "nowhere".into(), name: "CUDA0".to_owned() };
        assert_eq!(measure_node(1, Some(&nowhere)), None);
        assert!(measure_node(1, None).is_some());
    }
}
