//! A Mac: its two kinds of cores, the GPU's share of its memory, whether it sleeps, and its
//! Thunderbolt ports.

use super::{Finding, Verdict};
use crate::mac::{Cores, cores, said};

/// Nothing on other machines.
pub(super) fn look() -> Vec<Finding> {
    let ask = |program, args: &[&str], told: fn(&str) -> Option<Finding>| {
        said(program, args).and_then(|text| told(&text))
    };
    [
        cores().map(kinds_of_cores),
        ask("sysctl", &["-n", "iogpu.wired_limit_mb"], wired),
        ask("pmset", &["-g"], sleep),
        ask("ifconfig", &["bridge0"], bridge),
        ask("rdma_ctl", &["status"], rdma),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn kinds_of_cores(cores: Cores) -> Finding {
    let Cores { performance, efficiency } = cores;
    let text = format!(
        "models use its {performance} performance cores, and not its {efficiency} efficiency cores, \
         unless sinew up --threads says more"
    );
    Finding::new("processor", Verdict::Good, text)
}

/// The limit of the memory that a GPU may hold.
fn wired(sysctl: &str) -> Option<Finding> {
    let text = match sysctl.trim() {
        "0" => "the GPU may hold the system's share of it, about three quarters".to_owned(),
        mib => format!("the GPU may hold {} MiB of it", mib.parse::<u64>().ok()?),
    };
    let hint = "sudo sysctl iogpu.wired_limit_mb=MIB raises it until the next start";
    Some(Finding::new("memory", Verdict::Note, text).hint(hint))
}

/// Minutes until the Mac sleeps by itself.
fn sleep(pmset: &str) -> Option<Finding> {
    let value = pmset.lines().find_map(|line| line.trim().strip_prefix("sleep "))?;
    let minutes: u64 = value.split_whitespace().next()?.parse().ok()?;
    if minutes == 0 {
        return Some(Finding::new("sleep", Verdict::Good, "never by itself"));
    }
    let text = format!("after {minutes} min without use; a sleeping Mac is a lost node");
    Some(Finding::new("sleep", Verdict::Better, text).hint("sudo pmset -c sleep 0"))
}

/// Ports of the Thunderbolt Bridge pass packets on in software, and cannot use RDMA.
fn bridge(ifconfig: &str) -> Option<Finding> {
    let member = |line: &str| {
        let name = line.trim().strip_prefix("member: ")?.split_whitespace().next()?;
        Some(name.to_owned())
    };
    let members: Vec<_> = ifconfig.lines().filter_map(member).collect();
    if members.is_empty() {
        return None;
    }
    let text = format!("Thunderbolt ports {} are in a bridge", members.join(", "));
    let hint =
        "for cables between nodes, take them out: System Settings, Network, Thunderbolt Bridge";
    Some(Finding::new("network", Verdict::Note, text).hint(hint))
}

/// Whether RDMA over Thunderbolt is enabled; older systems have no such command.
fn rdma(rdma_ctl: &str) -> Option<Finding> {
    match rdma_ctl.trim() {
        "enabled" => Some(Finding::new("rdma", Verdict::Good, "enabled for Thunderbolt")),
        "disabled" => {
            let hint = "start the Mac in Recovery, run `rdma_ctl enable` in its Terminal, restart";
            Some(Finding::new("rdma", Verdict::Note, "disabled for Thunderbolt").hint(hint))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(found: Option<Finding>) -> (Verdict, String) {
        let found = found.unwrap();
        (found.verdict, found.text)
    }

    /// As published in reports of `sysctl iogpu.wired_limit_mb`: untouched, and raised on a Mac
    /// Studio of 128 GB.
    #[test]
    fn the_share_of_the_gpu_is_told() {
        assert!(told(wired("0\n")).1.contains("three quarters"));
        assert!(told(wired("112640\n")).1.contains("112640 MiB"));
        assert_eq!(wired("unknown oid\n"), None);
    }

    /// As published in reports of `pmset -g`.
    #[test]
    fn a_mac_that_sleeps_is_told() {
        let report = |sleep: &str| {
            format!(
                "System-wide power settings:\nCurrently in use:\n standby              1\n \
                 Sleep On Power Button 1\n hibernatefile        /var/vm/sleepimage\n powernap    \
                 \x20        1\n networkoversleep     0\n disksleep            10\n{sleep}\n \
                 hibernatemode        3\n ttyskeepawake        1\n displaysleep         10\n"
            )
        };
        let never = sleep(&report(" sleep                0 (sleep prevented by caffeinate)"));
        assert_eq!(told(never).0, Verdict::Good);
        let soon = sleep(&report(" sleep                1 (sleep prevented by coreaudiod)"));
        let (verdict, text) = told(soon);
        assert_eq!(verdict, Verdict::Better);
        assert!(text.starts_with("after 1 min "), "{text}");
        assert_eq!(sleep("Currently in use:\n disksleep 10\n displaysleep 5\n"), None);
    }

    /// As published in reports of `ifconfig` on Macs with four ports.
    #[test]
    fn ports_in_a_bridge_are_told() {
        let report = "bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500\n\
                      \toptions=63<RXCSUM,TXCSUM,TSO4,TSO6>\n\tConfiguration:\n\
                      \t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0\n\
                      \tmember: en1 flags=3<LEARNING,DISCOVER>\n\
                      \t        ifmaxaddr 0 port 11 priority 0 path cost 0\n\
                      \tmember: en2 flags=3<LEARNING,DISCOVER>\n\
                      \t        ifmaxaddr 0 port 12 priority 0 path cost 0\n\
                      \tmedia: <unknown type>\n\tstatus: inactive\n";
        assert!(told(bridge(report)).1.contains("ports en1, en2 are"));
        let empty: String = report.lines().filter(|line| !line.contains("member")).collect();
        assert_eq!(bridge(&empty), None);
    }

    /// The two words that users of `rdma_ctl status` report.
    #[test]
    fn rdma_is_told_as_its_command_does() {
        assert_eq!(told(rdma("enabled\n")).0, Verdict::Good);
        assert!(rdma("disabled\n").unwrap().hint.unwrap().contains("rdma_ctl enable"));
        assert_eq!(rdma("usage: rdma_ctl\n"), None);
    }
}
