//! Link-local IPv6 addresses (`fe80::1`). Each is valid on only one network. Each machine numbers
//! its networks for itself (the *scope*, as in `fe80::1%eth0`), and the numbers change as
//! interfaces come and go.
//!
//! So no scope leaves a machine or is saved. Nodes know each other's link-local addresses without
//! one; a call tries all networks of the calling machine, starting with the last one that worked.
//! The key identifies the node that answers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Mutex, PoisonError};

use if_addrs::Interface;

/// Addresses with a remembered network; a cluster has few link-local paths.
const REMEMBERED_MAX: usize = 1024;

/// Parses `10.0.0.5:8751`, `[fd00::5]:8751` or `[fe80::5%eth0]:8751`, with the interface's name or
/// number.
///
/// # Errors
/// The text is none of these, or this machine has no such interface.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let parse = |text: &str| {
        let wrong = "expected an address and a port, such as 10.0.0.5:8751 or [fe80::5%eth0]:8751";
        text.parse::<SocketAddr>().map_err(|_| wrong.to_owned())
    };
    let named = text.split_once('%').and_then(|(ip, rest)| Some((ip, rest.split_once(']')?)));
    let Some((ip, (name, port))) = named else { return parse(text) };
    let at = parse(&format!("{ip}]{port}"))?;
    let SocketAddr::V6(v6) = at else { return parse(text) };
    if !v6.ip().is_unicast_link_local() {
        return Err(format!("%{name} stands behind link-local addresses alone (fe80::)"));
    }
    let interfaces = interfaces();
    let is_it = |one: &&Interface| {
        one.name == name || name.parse::<u32>().is_ok_and(|number| one.index == Some(number))
    };
    // Windows numbers an interface by its IPv6 addresses alone.
    let Some(scope) = interfaces.iter().filter(is_it).find_map(|one| one.index) else {
        let mut names: Vec<&str> = interfaces.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let there_are = names.join(", ");
        return Err(format!("this machine has no interface {name}; there are {there_are}"));
    };
    Ok(SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into())
}

/// The address without a scope, as other machines can use it.
pub(crate) fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Whether it is link-local and lacks its scope.
fn lacks_scope(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0)
}

/// The network over which each link-local address was last reached.
#[derive(Debug, Default)]
pub(crate) struct Scopes(Mutex<HashMap<Ipv6Addr, u32>>);

impl Scopes {
    /// Records a peer's address, with the scope from the system.
    pub(crate) fn note(&self, seen: SocketAddr) {
        let SocketAddr::V6(v6) = seen else { return };
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = scopes.len() < REMEMBERED_MAX || scopes.contains_key(v6.ip());
        if v6.ip().is_unicast_link_local() && v6.scope_id() != 0 && has_room {
            scopes.insert(*v6.ip(), v6.scope_id());
        }
    }

    /// The addresses under which this machine may reach the given ones: link-local ones once for
    /// each of its networks.
    pub(crate) fn reach(&self, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        if !addresses.iter().any(lacks_scope) {
            return addresses;
        }
        let networks = networks(&interfaces());
        let spread = |address: SocketAddr| match address {
            SocketAddr::V6(v6) if lacks_scope(&address) => self.spread(v6, &networks),
            _ => vec![address],
        };
        addresses.into_iter().flat_map(spread).collect()
    }

    fn spread(&self, address: SocketAddrV6, networks: &[u32]) -> Vec<SocketAddr> {
        let scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = scopes.get(address.ip()).copied().filter(|last| networks.contains(last));
        let others = networks.iter().copied().filter(|one| Some(*one) != last);
        let on = |scope| SocketAddrV6::new(*address.ip(), address.port(), 0, scope).into();
        last.into_iter().chain(others).map(on).collect()
    }
}

fn interfaces() -> Vec<Interface> {
    if_addrs::get_if_addrs().unwrap_or_default()
}

/// The numbers of the interfaces with link-local addresses.
fn networks(interfaces: &[Interface]) -> Vec<u32> {
    let usable = interfaces.iter().filter(|one| is_link_local(one.ip()) && !one.is_loopback());
    let mut networks: Vec<u32> = usable.filter_map(|one| one.index).collect();
    networks.sort_unstable();
    networks.dedup();
    networks
}

/// Whether it is an IPv6 address that is valid on only one network.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The address to show of several: one that is valid elsewhere too, if there is one.
pub(crate) fn first(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let good = addresses.iter().find(|address| !is_link_local(address.ip()));
    good.or(addresses.first()).copied()
}

/// Whether an interface is a port of a bridge, as for containers. Its own link-local address then
/// reaches no other machine; the bridge has one that does.
pub(crate) fn is_bridged(interface: &Interface) -> bool {
    cfg!(target_os = "linux")
        && std::path::Path::new("/sys/class/net").join(&interface.name).join("master").exists()
}

/// Whether an interface is a bridge, as for a machine's containers.
pub(crate) fn is_bridge(interface: &Interface) -> bool {
    cfg!(target_os = "linux")
        && std::path::Path::new("/sys/class/net").join(&interface.name).join("bridge").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_the_interface_by_name_or_number() {
        let plain = |text: &str| text.parse::<SocketAddr>().unwrap();
        for text in ["10.0.0.5:8751", "[fd00::5]:8751", "[fe80::5]:1"] {
            assert_eq!(parse_address(text), Ok(plain(text)));
        }
        let here = interfaces();
        let one = here.iter().find(|one| one.index.is_some()).expect("a loopback at least");
        let index = one.index.unwrap();
        for name in [one.name.clone(), index.to_string()] {
            let expected = plain(&format!("[fe80::5%{index}]:8751"));
            assert_eq!(parse_address(&format!("[fe80::5%{name}]:8751")), Ok(expected));
        }
        let absent = parse_address("[fe80::5%absent0]:8751").unwrap_err();
        assert!(absent.contains("no interface absent0") && absent.contains(&one.name), "{absent}");
        for wrong in ["fe80::5%eth0", "10.0.0.5", "[fd00::5%lo]:1", "[%lo]:1", "%", "]%", "%]"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_link_local_address_is_tried_on_each_network_where_it_was_reached_last_first() {
        let scopes = Scopes::default();
        let SocketAddr::V6(address) = "[fe80::5]:9".parse().unwrap() else { panic!() };
        let on = |scope| SocketAddr::from(SocketAddrV6::new(*address.ip(), 9, 0, scope));
        assert_eq!(scopes.spread(address, &[2, 3, 4]), [on(2), on(3), on(4)]);
        scopes.note("[fe80::5%3]:40000".parse().unwrap());
        scopes.note("10.0.0.1:1".parse().unwrap());
        scopes.note("[fd00::5]:1".parse().unwrap());
        assert_eq!(scopes.spread(address, &[2, 3, 4]), [on(3), on(2), on(4)]);
        assert_eq!(scopes.spread(address, &[2, 4]), [on(2), on(4)], "that network is gone");
        let others = vec!["10.0.0.1:1".parse().unwrap(), on(7)];
        assert_eq!(scopes.reach(others.clone()), others);
        assert_eq!(unscoped(on(7)), address.into());
        assert_eq!(first(&[on(1), others[0]]), Some(others[0]));
        assert_eq!(first(&[on(1), on(2)]), Some(on(1)));
    }
}
