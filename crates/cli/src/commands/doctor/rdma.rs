//! `sinew doctor rdma`: whether links can use RDMA here, and what to do next.

use link::rdma::{Diagnosis, PortFinding, diagnose};
use serde_json::{Value, json};

use super::{Finding, Verdict};
use crate::args::DoctorRdmaArgs;
use crate::error::CliError;
use crate::table;

/// Reports on RDMA; an error (and so a status other than 0) if no port is usable.
pub fn rdma(args: &DoctorRdmaArgs) -> Result<(), CliError> {
    let found = diagnose();
    if args.json {
        say!("{:#}", to_json(&found));
    } else {
        print(&found);
    }
    let unfit = CliError::Unfit("RDMA is not usable on this machine; links use TCP");
    if found.is_usable() { Ok(()) } else { Err(unfit) }
}

/// RDMA in the full report: most machines have none, which is no fault.
pub(super) fn finding() -> Finding {
    let found = diagnose();
    let usable = found.ports.iter().filter(|port| port.problem.is_none()).count();
    match (found.is_usable(), found.ports.len()) {
        (true, _) => Finding::new("rdma", Verdict::Good, format!("{usable} usable ports")),
        (false, 0) => Finding::new("rdma", Verdict::Note, "none; links use TCP"),
        (false, ports) => {
            let text = format!("{ports} ports, and none is usable; links use TCP");
            Finding::new("rdma", Verdict::Better, text).hint("sinew doctor rdma")
        }
    }
}

fn print(found: &Diagnosis) {
    say!("verbs library: {}", if found.library { "found" } else { "not found" });
    let limit = found.locked_bytes_max.map_or("no limit".to_string(), table::bytes);
    let wanted = table::bytes(found.locked_bytes);
    say!("memory this user may lock: {limit} (a device takes {wanted})");
    if !found.ports.is_empty() {
        say!("");
        table::print(["DEVICE", "PORT", "TRANSPORT", "ADDRESS", "USABLE"], &rows(&found.ports));
    }
    for problem in &found.problems {
        say!("\n- {problem}");
    }
    if found.is_usable() {
        say!(
            "\nRDMA is ready. Two machines with RDMA addresses in one network use it by themselves;"
        );
        say!("--transport rdma insists on it.");
    }
}

fn rows(ports: &[PortFinding]) -> Vec<[String; 5]> {
    let row = |port: &PortFinding| {
        [
            port.device.clone(),
            port.number.to_string(),
            port.transport.clone(),
            port.network.clone().unwrap_or("-".to_string()),
            if port.problem.is_none() { "yes" } else { "no" }.to_string(),
        ]
    };
    ports.iter().map(row).collect()
}

fn to_json(found: &Diagnosis) -> Value {
    let port = |port: &PortFinding| {
        json!({
            "device": port.device,
            "port": port.number,
            "transport": port.transport,
            "network": port.network,
            "usable": port.problem.is_none(),
            "problem": port.problem,
        })
    };
    json!({
        "usable": found.is_usable(),
        "library": found.library,
        "locked_bytes_max": found.locked_bytes_max,
        "locked_bytes": found.locked_bytes,
        "ports": found.ports.iter().map(port).collect::<Vec<_>>(),
        "problems": found.problems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_each_port_and_each_problem() {
        let port = |problem: Option<&str>| PortFinding {
            device: "rxe0".to_string(),
            number: 1,
            transport: "RoCE".to_string(),
            network: problem.is_none().then(|| "10.0.0.1/24".to_string()),
            problem: problem.map(str::to_string),
        };
        for (ports, usable) in [
            (vec![], false),
            (vec![port(Some("it is down"))], false),
            (vec![port(Some("it is down")), port(None)], true),
        ] {
            let found = Diagnosis {
                library: true,
                ports,
                locked_bytes_max: None,
                locked_bytes: 1,
                problems: vec!["a problem".to_string()],
            };
            let json = to_json(&found);
            assert_eq!(json["usable"], usable);
            assert_eq!(json["ports"].as_array().unwrap().len(), found.ports.len());
            assert_eq!(json["problems"][0], "a problem");
            assert_eq!(rows(&found.ports).iter().filter(|row| row[4] == "yes").count(), {
                usize::from(usable)
            });
        }
    }
}
