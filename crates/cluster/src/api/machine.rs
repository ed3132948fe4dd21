//! A node's hardware and sensors, as it reports them.

use serde::{Deserialize, Serialize};

/// Longer names add nothing.
const CHARS_MAX: usize = 64;
const DEVICES_MAX: usize = 16;

/// A node's hardware. Unknown values are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Name of the processor, as given by its maker.
    pub chip: String,
    /// Threads that run at once.
    pub cores: usize,
    /// GPUs and RDMA ports, with the system's names.
    pub devices: Vec<String>,
}

/// Temperature, power and the processor use of other programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sensors {
    /// Of the hottest part of the processor.
    pub temperature_celsius: Option<f64>,
    /// Of the processor, or of the whole machine if its power is measured.
    pub power_watts: Option<f64>,
    /// Processors used by other programs, averaged over the last seconds.
    pub others_processors: Option<f64>,
}

impl Machine {
    /// Truncates and cleans the texts for display: another node sent them.
    pub(crate) fn within_limits(mut self) -> Self {
        self.chip = shown(&self.chip);
        self.devices.truncate(DEVICES_MAX);
        self.devices.iter_mut().for_each(|device| *device = shown(device));
        self
    }
}

pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_another_node_are_short_and_clean() {
        let long = Machine { chip: "\x1b[31m".repeat(99), ..Machine::default() }.within_limits();
        assert!(long.chip.len() <= CHARS_MAX && !long.chip.contains('\x1b'));
    }
}
