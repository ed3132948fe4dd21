//! The network: ports, firewalls, interfaces, multicast.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;

use super::{Finding, Verdict, read};
use crate::args::NODE_PORT;

/// Default port of the API.
const API_PORT: u16 = 8750;
/// A group for local tests, which no other program uses.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 87, 51);
const ECHO_TIME: Duration = Duration::from_millis(500);
/// Below a gigabit, splitting layers over machines costs more than it gains.
const MBITS_MIN: u64 = 1000;

/// `listen`: the address of this machine's node, if one runs.
pub(super) fn look(listen: Option<SocketAddr>) -> Vec<Finding> {
    let mut found = match listen {
        Some(listen) => vec![listening(listen)],
        None => [API_PORT, NODE_PORT].map(port).into(),
    };
    let port = listen.map_or(NODE_PORT, |listen| listen.port());
    found.extend(firewall(port));
    found.extend(interfaces(Path::new("/sys/class/net")));
    found.push(multicast());
    found
}

fn listening(listen: SocketAddr) -> Finding {
    if listen.ip().is_loopback() {
        let text = format!("the node listens on {listen}, which other machines cannot reach");
        return Finding::new("ports", Verdict::Better, text)
            .hint("sinew up without --listen, or with an address of this machine");
    }
    Finding::new("ports", Verdict::Good, format!("the node listens on {listen}"))
}

fn port(port: u16) -> Finding {
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Finding::new("ports", Verdict::Good, format!("TCP port {port} is free")),
        Err(error) => {
            let flag = if port == API_PORT { "--api" } else { "--listen" };
            let text = format!("TCP port {port} cannot be used: {error}");
            Finding::new("ports", Verdict::Bad, text).hint(format!(
                "see who has it: ss -ltnp | grep {port}; or sinew up {flag} ADDR:PORT"
            ))
        }
    }
}

/// Firewalls of this machine that report themselves as active. Those of routers are invisible from
/// here.
fn firewall(port: u16) -> Option<Finding> {
    let (name, hint) = active(port)?;
    let text = format!("the firewall {name} is on; other machines must reach TCP port {port}");
    Some(Finding::new("firewall", Verdict::Note, text).hint(hint))
}

/// The name of an active firewall, and how sinew gets through.
#[cfg(windows)]
fn active(_: u16) -> Option<(&'static str, String)> {
    let program = std::env::current_exe().unwrap_or_default();
    let rule = format!(
        "as an administrator: netsh advfirewall firewall add rule name=Sinew dir=in action=allow \
         program=\"{}\"",
        program.display()
    );
    win32::machine::firewall_is_on().then_some(("of Windows", rule))
}

#[cfg(unix)]
fn active(port: u16) -> Option<(&'static str, String)> {
    Some(if cfg!(target_os = "macos") {
        let tool = "/usr/libexec/ApplicationFirewall/socketfilterfw";
        let state = std::process::Command::new(tool).arg("--getglobalstate").output().ok()?;
        let is_on = String::from_utf8_lossy(&state.stdout).contains("enabled");
        let program = std::env::current_exe().unwrap_or_default();
        is_on.then(|| ("macOS's", format!("sudo {tool} --add {}", program.display())))?
    } else if read("/etc/ufw/ufw.conf").is_some_and(|text| text.contains("ENABLED=yes")) {
        ("ufw", format!("sudo ufw allow {port}/tcp"))
    } else if Path::new("/run/firewalld").exists() {
        (
            "firewalld",
            format!(
                "sudo firewall-cmd --permanent --add-port={port}/tcp && sudo firewall-cmd --reload"
            ),
        )
    } else {
        return None;
    })
}

/// The system's data of each interface that is up.
fn interfaces(folder: &Path) -> Vec<Finding> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name != "lo")
        .collect();
    names.sort();
    names.iter().filter_map(|name| interface(&folder.join(name), name)).collect()
}

fn interface(folder: &Path, name: &str) -> Option<Finding> {
    if read(folder.join("operstate")).as_deref() == Some("down") {
        return None;
    }
    let mtu: u64 = read(folder.join("mtu"))?.parse().ok()?;
    let mbits = read(folder.join("speed")).and_then(|text| text.parse::<u64>().ok());
    let wireless = folder.join("wireless").exists();
    let kind = if wireless { ", Wi-Fi" } else { "" };
    let speed = mbits.map_or(String::new(), |mbits| format!(", {mbits} Mb/s"));
    let text = format!("{name}: MTU {mtu}{speed}{kind}");
    let better = |hint: &str| Finding::new("network", Verdict::Better, text.clone()).hint(hint);
    Some(match mbits {
        _ if wireless => better("a cable has a tenth of the delay"),
        Some(mbits) if mbits < MBITS_MIN => {
            better("a gigabit or more: look at the cable and at both ends' ports")
        }
        _ => Finding::new("network", Verdict::Good, text),
    })
}

/// Whether a multicast message returns: nodes find each other by such messages.
fn multicast() -> Finding {
    match echo() {
        Ok(()) => Finding::new("multicast", Verdict::Good, "works on this machine"),
        Err(error) => {
            let text = format!("does not work: {error}");
            Finding::new("multicast", Verdict::Better, text).hint(
                "machines do not find each other by themselves here; name one of them: sinew up \
                 --peer ADDR:PORT",
            )
        }
    }
}

fn echo() -> std::io::Result<()> {
    // Machines on a separate cable have no default route, and still reach each other.
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let cable = || {
        cluster::own_addresses(any).into_iter().find_map(|at| match at.ip() {
            IpAddr::V4(ip) if !ip.is_loopback() => Some(ip),
            _ => None,
        })
    };
    let own = own_address().or_else(cable).unwrap_or(Ipv4Addr::UNSPECIFIED);
    let receiver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    receiver.join_multicast_v4(&GROUP, &own)?;
    receiver.set_read_timeout(Some(ECHO_TIME))?;
    let sender = UdpSocket::bind((own, 0))?;
    sender.set_multicast_loop_v4(true)?;
    sender.set_multicast_ttl_v4(1)?;
    sender.send_to(b"sinew doctor", (GROUP, receiver.local_addr()?.port()))?;
    let mut got = [0; 32];
    let (length, _) = receiver.recv_from(&mut got)?;
    if &got[..length] == b"sinew doctor" {
        return Ok(());
    }
    Err(std::io::Error::other("something else came back"))
}

/// The address from which this machine reaches others: connecting a datagram socket chooses it and
/// sends nothing.
fn own_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((GROUP, 1)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_told_with_what_would_better_them() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, files: &[(&str, &str)]| {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            for (file, text) in files {
                std::fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
            folder
        };
        make("lo", &[("mtu", "65536"), ("operstate", "unknown")]);
        make("eth0", &[("mtu", "1500"), ("speed", "1000"), ("operstate", "up")]);
        make("eth1", &[("mtu", "1500"), ("speed", "100"), ("operstate", "up")]);
        make("eth2", &[("mtu", "1500"), ("speed", "25000"), ("operstate", "up")]);
        make("eth3", &[("mtu", "1500"), ("speed", "-1"), ("operstate", "down")]);
        make("tun0", &[("mtu", "1280"), ("speed", "-1"), ("operstate", "unknown")]);
        let wlan = make("wlan0", &[("mtu", "1500"), ("operstate", "up")]);
        std::fs::create_dir(wlan.join("wireless")).unwrap();
        let found = interfaces(dir.path());
        let told: Vec<_> = found.iter().map(|one| (one.verdict, one.text.as_str())).collect();
        assert_eq!(
            told,
            [
                (Verdict::Good, "eth0: MTU 1500, 1000 Mb/s"),
                (Verdict::Better, "eth1: MTU 1500, 100 Mb/s"),
                (Verdict::Good, "eth2: MTU 1500, 25000 Mb/s"),
                (Verdict::Good, "tun0: MTU 1280"),
                (Verdict::Better, "wlan0: MTU 1500, Wi-Fi"),
            ]
        );
        // Whether larger packets pass to all members is unknown before they are sent.
        assert!(found.iter().flat_map(|one| &one.hint).all(|hint| !hint.contains("mtu")));
    }

    #[test]
    fn a_port_that_is_taken_is_told() {
        let held = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let taken = port(held.local_addr().unwrap().port());
        assert_eq!((taken.verdict, taken.hint.is_some()), (Verdict::Bad, true));
        let loopback = listening("127.0.0.1:8751".parse().unwrap());
        assert_eq!(loopback.verdict, Verdict::Better);
    }
}
