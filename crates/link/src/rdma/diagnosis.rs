//! Diagnoses whether RDMA works on this machine, for `sinew doctor rdma`: everything that one
//! machine can find out. Whether a message reaches another machine only a link can show.

use super::channel::DEPTH;
use super::device::{LINKS_MAX, Rdma};
use super::error::RdmaError;
use super::ffi;
use super::slot::CHANNEL_BYTES;
use super::survey::{PortFacts, judge, networks};
use super::system::System;

/// The result of a diagnosis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// Whether the verbs library loaded.
    pub library: bool,
    pub ports: Vec<PortFinding>,
    /// Bytes that this user may lock in memory; `None` for no limit.
    pub locked_bytes_max: Option<u64>,
    /// Bytes that each device needs locked.
    pub locked_bytes: u64,
    /// Each problem, and what to do about it.
    pub problems: Vec<String>,
}

/// One port of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFinding {
    pub device: String,
    pub number: u8,
    /// `RoCE`, `Thunderbolt`, or another transport's name.
    pub transport: String,
    /// Its address and network, if it is usable: `10.0.0.1/24`.
    pub network: Option<String>,
    /// Why it is not usable, and what to do about it.
    pub problem: Option<String>,
}

impl Diagnosis {
    /// Whether at least one port is fit for links.
    pub fn is_usable(&self) -> bool {
        self.ports.iter().any(|port| port.problem.is_none())
    }
}

#[cfg(unix)]
fn locked_bytes_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(windows)]
fn locked_bytes_max() -> Option<u64> {
    None
}

/// Checks the library, the devices and their ports; on each port it makes and drops the objects of
/// a link: registered memory and a queue pair.
pub fn diagnose() -> Diagnosis {
    let mut found = Diagnosis {
        library: true,
        ports: Vec::new(),
        locked_bytes_max: locked_bytes_max(),
        locked_bytes: (LINKS_MAX * CHANNEL_BYTES) as u64,
        problems: Vec::new(),
    };
    match System::default().survey() {
        Ok(devices) => {
            let (rdma, networks) = (Rdma::system(), networks());
            // `ports` opens the devices.
            let _ = rdma.ports();
            for device in devices {
                match device {
                    Ok(facts) => found.ports.push(try_port(&rdma, &facts, &networks)),
                    Err(error) => found.problems.push(error.to_string()),
                }
            }
        }
        Err(error) => {
            found.library = !matches!(error, RdmaError::NoLibrary { .. });
            found.problems.push(error.to_string());
            found.problems.extend(devices_without_driver());
        }
    }
    let of_ports = found.ports.iter().filter_map(|port| port.problem.clone());
    found.problems.extend(of_ports);
    found
}

fn try_port(rdma: &Rdma, facts: &PortFacts, networks: &[(std::net::Ipv4Addr, u8)]) -> PortFinding {
    let judged = judge(facts, networks).and_then(|port| {
        let made = rdma.lease(&port).and_then(|lease| lease.queue_pair(DEPTH).map(|_| ()));
        made.map(|()| format!("{}/{}", port.address, port.prefix)).map_err(|e| e.to_string())
    });
    let transport = match facts.transport {
        ffi::TRANSPORT_IB => "RoCE".to_string(),
        ffi::TRANSPORT_THUNDERBOLT => "Thunderbolt".to_string(),
        other => format!("type {other}"),
    };
    let (network, problem) = match judged {
        Ok(network) => (Some(network), None),
        Err(problem) => (None, Some(problem)),
    };
    PortFinding { device: facts.device.clone(), number: facts.number, transport, network, problem }
}

/// Devices that Linux lists, for which the library may have no driver.
fn devices_without_driver() -> Option<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband").ok()?;
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        Some(entry.ok()?.file_name().to_string_lossy().into_owned())
    };
    let names: Vec<String> = entries.filter_map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the kernel has the RDMA devices {}, but the library does not open them: install their \
             drivers (Debian, Ubuntu: `apt install ibverbs-providers`)",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_this_machine_has_the_diagnosis_says_what_to_do() {
        let found = diagnose();
        assert_eq!(found.is_usable(), found.ports.iter().any(|port| port.network.is_some()));
        // A user can do nothing about a refusal without a reason.
        assert!(found.is_usable() || !found.problems.is_empty(), "{found:?}");
        assert!(found.library || found.problems[0].contains("library"), "{found:?}");
    }
}
