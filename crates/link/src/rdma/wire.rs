//! Chooses the port of one machine that reaches a port of another, by the networks of their
//! addresses. Both ends reach the same conclusion.

use std::net::Ipv4Addr;

use super::verbs::Port;

/// The most ports advertised to peers: a Mac Studio has six with Thunderbolt 5.
pub(crate) const PORTS_MAX: usize = 8;

/// A port, as advertised to peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub ip: [u8; 4],
    /// The prefix length of its network.
    pub prefix: u8,
    /// Whether it is a cable to one other machine and not a network.
    pub cable: bool,
}

impl Address {
    const NONE: Address = Address { ip: [0; 4], prefix: 0, cable: false };

    /// Whether both are addresses of one network.
    fn shares_network(&self, other: &Address) -> bool {
        if self.prefix != other.prefix || self.cable != other.cable {
            return false;
        }
        let shift = 32 - u32::from(self.prefix.min(32));
        let network = |ip: [u8; 4]| u64::from(u32::from_be_bytes(ip)) >> shift;
        network(self.ip) == network(other.ip)
    }
}

/// The usable ports of a machine; array elements past the count are unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub all: [Address; PORTS_MAX],
    pub count: usize,
}

impl Addresses {
    pub const NONE: Addresses = Addresses { all: [Address::NONE; PORTS_MAX], count: 0 };

    /// The addresses of the first [`PORTS_MAX`] ports.
    pub fn of(ports: &[Port]) -> Self {
        let mut addresses = Addresses::NONE;
        for (port, address) in ports.iter().zip(&mut addresses.all) {
            *address =
                Address { ip: port.address.octets(), prefix: port.prefix, cable: port.cable };
            addresses.count += 1;
        }
        addresses
    }

    pub fn used(&self) -> &[Address] {
        &self.all[..self.count]
    }

    fn text(&self) -> String {
        let text = |address: &Address| format!("{}/{}", Ipv4Addr::from(address.ip), address.prefix);
        self.used().iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

/// The index of our port that reaches one of theirs.
///
/// # Errors
/// The reason for having none.
pub(crate) fn choose(
    ours: &Addresses,
    theirs: &Addresses,
    same_host: bool,
) -> Result<usize, String> {
    if ours.count == 0 {
        return Err("this machine has no usable RDMA port".to_string());
    }
    if theirs.count == 0 {
        return Err("it has no usable RDMA port".to_string());
    }
    let mut candidates = Vec::new();
    for (at, our) in ours.used().iter().enumerate() {
        for their in theirs.used().iter().filter(|their| our.shares_network(their)) {
            // A cable leads to another machine; on a network a port reaches itself, too.
            let reachable = if same_host { !our.cable } else { our.ip != their.ip };
            if reachable {
                candidates.push((*our.min(their), *our.max(their), at));
            }
        }
    }
    candidates.sort_unstable();
    // On a network any port reaches any other. Two cables with the same network are ambiguous:
    // nothing shows which one joins two ports.
    let is_sure = |(first, second, _): &&(Address, Address, usize)| {
        let alike = candidates
            .iter()
            .filter(|other| first.cable && other.0.cable && first.shares_network(&other.0));
        alike.count() <= 1 && first.shares_network(second)
    };
    match (candidates.iter().find(is_sure), candidates.is_empty()) {
        (Some((_, _, at)), _) => Ok(*at),
        (None, true) => Err(format!(
            "no RDMA port here ({}) has an address in the network of one there ({})",
            ours.text(),
            theirs.text()
        )),
        (None, false) => Err(format!(
            "several cables have addresses in one network ({} here, {} there): give each cable a \
             network of its own",
            ours.text(),
            theirs.text()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[(&str, u8)], cable: bool) -> Addresses {
        let mut addresses = Addresses::NONE;
        for (&(ip, prefix), address) in list.iter().zip(&mut addresses.all) {
            *address = Address { ip: ip.parse::<Ipv4Addr>().unwrap().octets(), prefix, cable };
            addresses.count += 1;
        }
        addresses
    }

    /// The choice of both ends: their addresses, or an error on both.
    fn meet(ours: &Addresses, theirs: &Addresses, same_host: bool) -> Option<(String, String)> {
        let here = choose(ours, theirs, same_host);
        let there = choose(theirs, ours, same_host);
        assert_eq!(here.is_ok(), there.is_ok(), "{here:?} {there:?}");
        let text =
            |addresses: &Addresses, at: usize| Ipv4Addr::from(addresses.all[at].ip).to_string();
        Some((text(ours, here.ok()?), text(theirs, there.ok()?)))
    }

    #[test]
    fn ports_meet_on_a_shared_network_and_nowhere_else() {
        let some = |a: &str, b: &str| Some((a.to_string(), b.to_string()));
        // Ours, theirs, cables?, one machine? -> the two addresses that meet.
        for (ours, theirs, cable, same_host, expected) in [
            (
                &[("10.0.0.1", 24)][..],
                &[("10.0.0.2", 24)][..],
                false,
                false,
                some("10.0.0.1", "10.0.0.2"),
            ),
            (&[("10.0.0.1", 24)], &[("10.0.1.2", 24)], false, false, None),
            (&[("10.0.0.1", 24)], &[("10.0.0.2", 16)], false, false, None),
            (&[("10.0.0.1", 24)], &[], false, false, None),
            // The same address twice is a mistake between machines and a loop within one.
            (&[("10.0.0.1", 24)], &[("10.0.0.1", 24)], false, false, None),
            (&[("10.0.0.1", 24)], &[("10.0.0.1", 24)], false, true, some("10.0.0.1", "10.0.0.1")),
            // Cables: the one with its own network.
            (
                &[("10.1.0.1", 24), ("10.2.0.1", 24)],
                &[("10.2.0.2", 24), ("10.3.0.1", 24)],
                true,
                false,
                some("10.2.0.1", "10.2.0.2"),
            ),
            (&[("10.1.0.1", 24)], &[("10.1.0.1", 24)], true, true, None),
            // Two cables between two machines: the same one on both ends.
            (
                &[("10.2.0.1", 24), ("10.1.0.1", 24)],
                &[("10.1.0.2", 24), ("10.2.0.2", 24)],
                true,
                false,
                some("10.1.0.1", "10.1.0.2"),
            ),
            // Self-assigned addresses of several cables form one network; on a switch that is fine.
            (
                &[("169.254.1.1", 16), ("169.254.2.1", 16)],
                &[("169.254.3.1", 16)],
                true,
                false,
                None,
            ),
            (
                &[("169.254.1.1", 16), ("169.254.2.1", 16)],
                &[("169.254.3.1", 16)],
                false,
                false,
                some("169.254.1.1", "169.254.3.1"),
            ),
            (&[("1.2.3.4", 0)], &[("5.6.7.8", 0)], false, false, some("1.2.3.4", "5.6.7.8")),
        ] {
            let (ours, theirs) = (addresses(ours, cable), addresses(theirs, cable));
            assert_eq!(meet(&ours, &theirs, same_host), expected, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn a_cable_and_a_network_do_not_meet() {
        let (ours, theirs) =
            (addresses(&[("10.0.0.1", 24)], true), addresses(&[("10.0.0.2", 24)], false));
        assert!(choose(&ours, &theirs, false).is_err());
    }
}
