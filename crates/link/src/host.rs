//! Identifies this machine, so that two ranks can find out whether they share its memory.

use ring::rand::{SecureRandom, SystemRandom};

/// A fingerprint of the running operating system, equal for all processes of one boot of one
/// machine. Two containers on one machine may have the same id and separate `/dev/shm`, so equal
/// ids are only a reason to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Reads the boot identity of this machine. Without one, the id is random and equals no
    /// other id: shared memory is not tried, which costs speed and never correctness.
    pub fn current() -> Self {
        let text = boot_identity().unwrap_or_else(|| {
            let mut bytes = [0; 16];
            SystemRandom::new().fill(&mut bytes).expect("the system's random source works");
            bytes.to_vec()
        });
        let hash = blake3::derive_key("sinew link 2026 host id", &text);
        HostId(hash[..16].try_into().expect("16 of 32 bytes"))
    }
}

#[cfg(target_os = "linux")]
fn boot_identity() -> Option<Vec<u8>> {
    std::fs::read("/proc/sys/kernel/random/boot_id").ok()
}

/// Windows names its installations, and no boot.
#[cfg(windows)]
fn boot_identity() -> Option<Vec<u8>> {
    win32::machine::id().map(String::into_bytes)
}

#[cfg(not(any(target_os = "linux", windows)))]
fn boot_identity() -> Option<Vec<u8>> {
    let output =
        std::process::Command::new("sysctl").args(["-n", "kern.bootsessionuuid"]).output().ok()?;
    (output.status.success() && !output.stdout.is_empty()).then_some(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_always_itself() {
        assert_eq!(HostId::current(), HostId::current());
    }
}
