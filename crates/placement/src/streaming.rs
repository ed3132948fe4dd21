//! Mixtures whose experts do not all fit: what a rank keeps of them in memory, and what reading the
//! others costs.

use layout::Device;

use crate::node::Speed;

/// What an unmeasured disk is taken to give: a SATA drive's rate.
pub(crate) const DISK_BYTES_PER_SEC: f64 = 500e6;

/// The wish for experts that are read from disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// What each rank keeps of them in memory; `None`: what is left.
    pub asked_bytes: Option<u64>,
}

/// The experts of a rank that are read from disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Misses {
    /// The part of uses that miss.
    pub part: f64,
    pub bytes_per_sec: f64,
}

impl Streaming {
    /// Whether ranks on this device read experts from disk: those of ggml do not.
    pub fn is_on(device: Device) -> bool {
        device == Device::Cpu
    }

    /// What a rank keeps of `all_bytes`, where `left_bytes` of memory are left beside the rest.
    pub fn kept_bytes(&self, all_bytes: u64, left_bytes: u64) -> u64 {
        self.asked_bytes.unwrap_or(left_bytes).min(all_bytes)
    }

    /// What is missed by a rank that keeps `kept_bytes` of `all_bytes`.
    pub fn misses(kept_bytes: u64, all_bytes: u64, speed: &Speed) -> Misses {
        let bytes_per_sec = speed.disk_bytes_per_sec.unwrap_or(DISK_BYTES_PER_SEC);
        Misses { part: 1.0 - hits(kept_bytes as f64 / all_bytes.max(1) as f64), bytes_per_sec }
    }
}

/// The part of uses that find their expert in memory, where a part of all experts is there. Routers
/// use some experts more than others: published rates of caches that keep what was used last are
/// 0.12 for a part of 0.09, 0.38 for 0.26, 0.81 for 0.64.
pub(crate) fn hits(part: f64) -> f64 {
    let part = part.clamp(0.0, 1.0);
    part * (1.5 - 0.5 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_grow_with_the_part_and_end_at_all() {
        assert_eq!((hits(0.0), hits(1.0), hits(2.0)), (0.0, 1.0, 1.0));
        let rates: Vec<f64> = (0..=100).map(|at| hits(f64::from(at) / 100.0)).collect();
        assert!(rates.is_sorted());
    }
}
