//! Classifies this machine's ports: usable, or the missing condition.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ffi;
use super::verbs::Port;

/// The library's description of a port.
pub(super) struct PortFacts {
    pub device: String,
    pub number: u8,
    /// `ibv_device.transport_type`.
    pub transport: i32,
    pub active: bool,
    pub lid: u16,
    pub mtu: u8,
    /// The used entries of its table of addresses.
    pub gids: Vec<GidFacts>,
}

/// An entry of a port's table of addresses (GIDs).
pub(super) struct GidFacts {
    pub index: u8,
    pub gid: [u8; 16],
    /// The type reported by Linux: `RoCE v2`, `IB/RoCE v1`; `None` elsewhere.
    pub kind: Option<String>,
}

/// Judges a port: usable, or the reason and the remedy.
///
/// `networks`: the IPv4 addresses of this machine with the prefix length of their networks.
pub(super) fn judge(facts: &PortFacts, networks: &[(Ipv4Addr, u8)]) -> Result<Port, String> {
    let name = format!("{} port {}", facts.device, facts.number);
    let cable = match facts.transport {
        ffi::TRANSPORT_IB => false,
        ffi::TRANSPORT_THUNDERBOLT => true,
        other => {
            return Err(format!(
                "{name} is of transport type {other}, which needs a connection manager (iWARP); \
                 Sinew uses RoCE and Thunderbolt"
            ));
        }
    };
    if !facts.active {
        return Err(format!("{name} is down: {}", port_down_advice()));
    }
    let Some((gid, address)) = choose_gid(&facts.gids) else {
        return Err(format!(
            "{name} has no IPv4 address among its {} RDMA addresses: give its network interface \
             one (an InfiniBand port without RoCE is not used yet)",
            facts.gids.len()
        ));
    };
    let network = networks.iter().find(|(ip, _)| *ip == address);
    let Some(&(_, prefix)) = network else {
        return Err(format!("{name} has the address {address}, which no network interface has"));
    };
    Ok(Port {
        device: facts.device.clone(),
        number: facts.number,
        gid_index: gid.index,
        gid: gid.gid,
        lid: facts.lid,
        mtu: facts.mtu,
        address,
        prefix,
        cable,
    })
}

/// The entry with an IPv4 address: RoCE v2 if there is one, else the first.
fn choose_gid(gids: &[GidFacts]) -> Option<(&GidFacts, Ipv4Addr)> {
    let with_address = |gid| Some((gid, mapped(gid)?));
    let mut candidates = gids.iter().filter_map(with_address).collect::<Vec<_>>();
    candidates.sort_by_key(|(gid, _)| gid.kind.as_deref() != Some("RoCE v2"));
    candidates.first().copied()
}

fn mapped(gid: &GidFacts) -> Option<Ipv4Addr> {
    Ipv6Addr::from(gid.gid).to_ipv4_mapped()
}

fn port_down_advice() -> &'static str {
    if cfg!(target_os = "macos") {
        "plug the Thunderbolt cable in on both ends, and take the port out of the Thunderbolt \
         Bridge in System Settings, Network"
    } else {
        "plug the cable in, and set its network interface up (`ip link set IFACE up`)"
    }
}

/// The IPv4 addresses of this machine's interfaces, with the prefix length of their networks.
pub(super) fn networks() -> Vec<(Ipv4Addr, u8)> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let network = |interface: if_addrs::Interface| match (interface.ip(), interface.addr) {
        (IpAddr::V4(ip), if_addrs::IfAddr::V4(v4)) => {
            Some((ip, u32::from(v4.netmask).count_ones() as u8))
        }
        _ => None,
    };
    interfaces.into_iter().filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: Option<&str>) -> GidFacts {
        let ip: Ipv6Addr = address.parse().unwrap();
        GidFacts { index, gid: ip.octets(), kind: kind.map(str::to_string) }
    }

    fn facts(transport: i32, active: bool, gids: Vec<GidFacts>) -> PortFacts {
        PortFacts { device: "dev0".into(), number: 1, transport, active, lid: 0, mtu: 3, gids }
    }

    #[test]
    fn the_address_is_found_wherever_it_stands_in_the_table() {
        let networks = [(Ipv4Addr::new(10, 0, 0, 5), 24)];
        let ours = "::ffff:10.0.0.5";
        // The table, and the index to use.
        for (gids, expected) in [
            (vec![gid(0, "fe80::1", None), gid(1, ours, None)], Some(1)),
            (vec![gid(0, "fe80::1", None), gid(1, "fe80::2", None), gid(2, ours, None)], Some(2)),
            (vec![gid(0, ours, None)], Some(0)),
            // Both versions of RoCE have the address.
            (vec![gid(2, ours, Some("IB/RoCE v1")), gid(3, ours, Some("RoCE v2"))], Some(3)),
            (vec![gid(2, ours, Some("IB/RoCE v1"))], Some(2)),
            (vec![gid(0, "fe80::1", None)], None),
            (vec![], None),
        ] {
            let judged = judge(&facts(ffi::TRANSPORT_IB, true, gids), &networks);
            assert_eq!(judged.as_ref().ok().map(|port| port.gid_index), expected, "{judged:?}");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let networks = [(Ipv4Addr::new(10, 0, 0, 5), 24)];
        let good = || vec![gid(1, "::ffff:10.0.0.5", None)];
        for (facts, word) in [
            (facts(1, true, good()), "iWARP"),
            (facts(ffi::TRANSPORT_IB, false, good()), "is down"),
            (facts(ffi::TRANSPORT_IB, true, vec![gid(0, "fe80::1", None)]), "no IPv4"),
            (facts(ffi::TRANSPORT_IB, true, vec![gid(0, "::ffff:10.9.9.9", None)]), "10.9.9.9"),
        ] {
            let reason = judge(&facts, &networks).unwrap_err();
            assert!(reason.contains("dev0 port 1") && reason.contains(word), "{reason}");
        }
        let cable = judge(&facts(ffi::TRANSPORT_THUNDERBOLT, true, good()), &networks).unwrap();
        assert!(cable.cable && cable.prefix == 24);
    }
}
