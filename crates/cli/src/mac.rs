//! What a Mac's own commands say of it. Elsewhere nothing is asked.

use std::process::Command;

use crate::machine;

/// The cores of a Mac with Apple's processor, which has two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    pub performance: usize,
    pub efficiency: usize,
}

/// None on other machines, and on Macs with Intel's processors, whose cores are alike.
pub fn cores() -> Option<Cores> {
    cores_of(&said("sysctl", &["hw.perflevel0.physicalcpu", "hw.perflevel1.physicalcpu"])?)
}

/// Threads that compute unless `--threads` says otherwise. A step waits for its slowest thread, so
/// a Mac's efficiency cores get none.
pub fn threads() -> usize {
    let all = machine::threads();
    cores().map_or(all, |cores| cores.performance.min(all))
}

/// Level 0 is the fastest.
fn cores_of(sysctl: &str) -> Option<Cores> {
    let level = |level: usize| {
        let name = format!("hw.perflevel{level}.physicalcpu:");
        let value = sysctl.lines().find_map(|line| line.strip_prefix(&name))?;
        value.trim().parse().ok().filter(|count| *count > 0)
    };
    Some(Cores { performance: level(0)?, efficiency: level(1)? })
}

/// The output of a Mac's command; none if it fails or is not there.
pub fn said(program: &str, args: &[&str]) -> Option<String> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = Command::new(program).args(args).output().ok()?;
    // sysctl names what it knows before it fails at what it does not.
    let text = String::from_utf8(output.stdout).ok()?;
    (!text.trim().is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As owners of these Macs published it: M1 Pro, M2 Max and the smaller M3 Ultra in lines of
    /// `sysctl`, M3 Pro with its spaces, and a MacBook Pro of 2019 (i9-9980HK).
    #[test]
    fn cores_are_those_that_sysctl_names() {
        let cores = |performance, efficiency| Some(Cores { performance, efficiency });
        for (sysctl, expected) in [
            (
                "hw.perflevel0.physicalcpu: 8\nhw.perflevel0.physicalcpu_max: 8\n\
                 hw.perflevel0.logicalcpu: 8\nhw.perflevel0.cpusperl2: 4\n\
                 hw.perflevel1.physicalcpu: 2\nhw.perflevel1.physicalcpu_max: 2\n",
                cores(8, 2),
            ),
            ("hw.perflevel0.physicalcpu: 8\nhw.perflevel1.physicalcpu: 4\n", cores(8, 4)),
            (
                "hw.ncpu: 28\nhw.physicalcpu: 28\nhw.perflevel0.physicalcpu: 20\n\
                 hw.perflevel0.cpusperl2: 5\nhw.perflevel1.physicalcpu: 8\n",
                cores(20, 8),
            ),
            (
                "hw.perflevel0.name:            Performance\n\
                 hw.perflevel0.physicalcpu:     5\nhw.perflevel1.name:            Efficiency\n\
                 hw.perflevel1.physicalcpu:     6\n",
                cores(5, 6),
            ),
            ("hw.ncpu: 16\nhw.physicalcpu: 8\nhw.logicalcpu: 16\n", None),
            ("hw.perflevel0.physicalcpu: 0\nhw.perflevel1.physicalcpu: 4\n", None),
            ("hw.perflevel0.physicalcpu: many\n", None),
        ] {
            assert_eq!(cores_of(sysctl), expected, "{sysctl}");
        }
    }
}
