//! Announcements over multicast DNS (RFC 6762, RFC 6763), sent and received.

use std::net::SocketAddr;
use std::thread;

use mdns_sd::{IfKind, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::admission::nearby::Sighting;
use crate::context::Announcement;
use crate::core::Event;

const SERVICE: &str = "_sinew._tcp.local.";
/// Version of the announcement's format. It rises with changes that older nodes cannot parse.
const FORMAT: &str = "1";

/// Announces this node and listens for other nodes until it is dropped.
pub(crate) struct Announcer {
    daemon: ServiceDaemon,
    listen: SocketAddr,
    last: Option<Announcement>,
}

impl Announcer {
    /// Returns `None`, with a warning in the log, if the system offers no multicast. Addresses then
    /// have to be given by hand.
    pub(crate) fn start(listen: SocketAddr, inputs: mpsc::Sender<Event>) -> Option<Self> {
        let begin = || -> mdns_sd::Result<_> {
            let daemon = ServiceDaemon::new()?;
            choose_interfaces(&daemon, listen)?;
            let heard = daemon.browse(SERVICE)?;
            Ok((daemon, heard))
        };
        let (daemon, heard) = match begin() {
            Ok(begun) => begun,
            Err(error) => {
                warn!(%error, "nodes nearby cannot be found; give addresses with --peer");
                return None;
            }
        };
        let hear = move || {
            while let Ok(event) = heard.recv() {
                let input = match event {
                    ServiceEvent::ServiceResolved(service) => read(&service).map(Event::Sighted),
                    ServiceEvent::ServiceRemoved(_, name) => id_of(&name).map(Event::Vanished),
                    _ => None,
                };
                // Sending fails only if the whole node has ended.
                if input.is_some_and(|input| inputs.blocking_send(input).is_err()) {
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("sinew-nearby".to_owned()).spawn(hear) {
            warn!(%error, "nodes nearby cannot be found: no thread");
            return None;
        }
        Some(Self { daemon, listen, last: None })
    }

    /// Replaces the announcement.
    pub(crate) fn announce(&mut self, announcement: Announcement) {
        if self.last.as_ref() == Some(&announcement) {
            return;
        }
        let service = self.service(&announcement);
        match service.and_then(|service| self.daemon.register(service)) {
            Ok(()) => self.last = Some(announcement),
            Err(error) => debug!(%error, "this node is not announced"),
        }
    }

    fn service(&self, announcement: &Announcement) -> mdns_sd::Result<ServiceInfo> {
        let Announcement { id, name, nodes, cluster, fleet } = announcement;
        let (full, nodes) = (id.to_string(), nodes.to_string());
        let fleet = fleet.as_deref().unwrap_or("");
        let properties = [
            ("f", FORMAT),
            ("id", &full),
            ("name", name),
            ("nodes", &nodes),
            ("cluster", cluster),
            ("fleet", fleet),
        ];
        let host = format!("sinew-{}.local.", &full[..16]);
        let port = self.listen.port();
        let ip = self.listen.ip();
        if ip.is_unspecified() {
            let service = ServiceInfo::new(SERVICE, &full[..32], &host, (), port, &properties[..]);
            return service.map(ServiceInfo::enable_addr_auto);
        }
        ServiceInfo::new(SERVICE, &full[..32], &host, ip, port, &properties[..])
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        // Sends the goodbye of mDNS. It fails if the mDNS daemon has already ended.
        let _ = self.daemon.shutdown();
    }
}

/// Enables the interfaces on which other nodes can call this one. Loopback counts only if there is
/// no other interface.
fn choose_interfaces(daemon: &ServiceDaemon, listen: SocketAddr) -> mdns_sd::Result<()> {
    let ip = listen.ip();
    if !ip.is_unspecified() {
        daemon.disable_interface(IfKind::All)?;
        return daemon.enable_interface(IfKind::Addr(ip));
    }
    if listen.is_ipv4() {
        daemon.disable_interface(IfKind::IPv6)?;
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    if interfaces.iter().any(|interface| !interface.is_loopback()) {
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
    }
    Ok(())
}

/// Parses another node's announcement; `None` if a field is missing or malformed.
fn read(service: &ResolvedService) -> Option<Sighting> {
    let text = |key| service.get_property_val_str(key);
    if text("f") != Some(FORMAT) {
        return None;
    }
    let announced = Announcement {
        id: text("id")?.parse().ok()?,
        name: text("name")?.to_owned(),
        nodes: text("nodes")?.parse().ok()?,
        cluster: text("cluster")?.to_owned(),
        fleet: text("fleet").filter(|tag| !tag.is_empty()).map(str::to_owned),
    };
    let mut addresses: Vec<SocketAddr> =
        service.addresses.iter().map(|ip| SocketAddr::new(ip.to_ip_addr(), service.port)).collect();
    // Sorted, IPv4 first, so that equal addresses give an equal `Sighting`.
    addresses.sort_unstable();
    addresses.dedup();
    (!addresses.is_empty()).then_some(Sighting { announced, addresses })
}

/// The key prefix of a removed service, which is the first label of its name.
fn id_of(name: &str) -> Option<String> {
    Some(name.split('.').next()?.to_owned()).filter(|id| id.len() == 32)
}
