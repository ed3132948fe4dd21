//! Connections between nodes: TCP, TLS, handshake. Knows keys and versions, but no members.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::frame::FrameError;
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::NodeId;
use crate::context::CONNECT_TIMEOUT;
pub(crate) use crate::context::DialError;
use crate::io::flow::Flows;
use crate::io::frames;
use crate::io::identity::Identity;
use crate::io::segments::{self, Segments, headers_bytes, used_segment};
use crate::io::tls::{self, Pin};
use crate::link_local::{self, Scopes};
use crate::members::ADDRESSES_MAX;
use crate::wire::{
    About, HANDSHAKE_BYTES_MAX, HandshakeReply, Hello, Purpose, VERSION, Verdict, Versions,
};

/// How long an unidentified caller may hold a socket in each step: several round trips of a far and
/// full path.
pub(super) const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);
/// For TLS, and for the answer to `Hello`: the listener may consult its daemon first.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes and accepts connections with one node's key.
pub(crate) struct Net {
    identity: Identity,
    server: Arc<ServerConfig>,
    name: String,
    boot: u64,
    listen: SocketAddr,
    versions: Versions,
    scopes: Scopes,
    /// Segment sizes of paths that drop large packets.
    pub(crate) segments: Segments,
    pub(crate) flows: Flows,
}

/// Common packet sizes of paths that drop larger ones: Ethernet's beside jumbo frames, those of
/// tunnels, the minimum of IPv6, the minimum of IPv4.
const PACKET_BYTES: [u16; 4] = [1500, 1420, 1280, SMALLEST];
const SMALLEST: u16 = 576;
/// Padding of a greeting: two full packets or more, except with jumbo frames.
const PADDING_BYTES: usize = 4000;
/// TCP retransmits twice within this time. A far path gets several of its round trips more.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// A connection past TLS and the handshake of [`crate::wire`].
pub(crate) struct Connection {
    pub stream: TlsStream<TcpStream>,
    pub peer: NodeId,
    pub about: About,
    /// The protocol version of both ends.
    pub protocol: u32,
    /// The peer's address, as seen from here.
    pub remote: SocketAddr,
    /// This node's address.
    pub local: IpAddr,
}

/// A caller whose `Hello` has arrived and is still unanswered.
pub(crate) struct Visitor {
    pub connection: Connection,
    pub purpose: Purpose,
}

impl Net {
    pub(crate) fn new(identity: Identity, name: String, boot: u64, listen: SocketAddr) -> Self {
        let server = tls::server_config(&identity);
        let (versions, scopes) = (Versions::CURRENT, Scopes::default());
        let (segments, flows) = Default::default();
        Self { identity, server, name, boot, listen, versions, scopes, segments, flows }
    }

    /// Overrides the protocol versions.
    pub(crate) fn speaking(self, versions: Versions) -> Self {
        Self { versions, ..self }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.identity.id()
    }

    /// The key with which this node seals prompts that its workers keep on disk.
    pub(crate) fn prompts_key(&self) -> [u8; 32] {
        self.identity.key_for("sinew 2026-11 prompts at rest")
    }

    /// Signs bytes with this node's key.
    pub(crate) fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.identity.sign(bytes)
    }

    /// A random number drawn at the daemon's start.
    pub(crate) fn boot(&self) -> u64 {
        self.boot
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The configured listen address.
    pub(crate) fn listen(&self) -> SocketAddr {
        self.listen
    }

    pub(crate) fn versions(&self) -> Versions {
        self.versions
    }

    /// This node's introduction. It is computed anew each time because addresses change with cables
    /// and networks.
    pub(crate) fn about(&self) -> About {
        About {
            protocol: self.versions.newest,
            protocol_oldest: self.versions.oldest,
            version: VERSION.to_owned(),
            name: self.name.clone(),
            boot: self.boot,
            addresses: self.addresses(),
            padding: String::new(),
        }
    }

    /// Addresses at which other nodes can reach this one.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses = own_addresses(self.listen);
        if addresses.is_empty() {
            addresses.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.listen.port()));
        }
        addresses.truncate(ADDRESSES_MAX);
        addresses
    }

    /// Calls one node at all its addresses at once; the first answer with the right key wins. If
    /// lists of members will follow, it also checks that full packets pass; if parts of models may
    /// follow, only where no earlier call has checked it.
    pub(crate) async fn dial(
        self: &Arc<Self>,
        addresses: Vec<SocketAddr>,
        pin: Pin,
        purpose: Purpose,
    ) -> Result<Connection, DialError> {
        let mut stream = self.secure_any(addresses, pin).await?;
        let ip = stream.get_ref().0.peer_addr()?.ip();
        let is_due = match purpose {
            Purpose::Control | Purpose::Join | Purpose::Fleet => true,
            Purpose::Share | Purpose::Bulk { .. } => !self.segments.are_checked(ip),
            Purpose::Pair | Purpose::Probe | Purpose::Leave => false,
        };
        if is_due {
            stream = self.checked(stream, pin).await?;
        }
        self.greet(stream, purpose, 0).await
    }

    /// Calls for a measurement, after the same check of packet sizes.
    pub(crate) async fn dial_to_measure(
        self: &Arc<Self>,
        address: SocketAddr,
        pin: Pin,
    ) -> Result<Connection, DialError> {
        let stream = self.secure_any(vec![address], pin).await?;
        let stream = self.checked(stream, pin).await?;
        self.greet(stream, Purpose::Probe, 0).await
    }

    /// Returns the stream, or if full packets do not pass, a new one with smaller segments.
    async fn checked(
        &self,
        stream: TlsStream<TcpStream>,
        pin: Pin,
    ) -> Result<TlsStream<TcpStream>, DialError> {
        let address = stream.get_ref().0.peer_addr()?;
        self.check_size(address, pin).await?;
        match self.segments.of(address.ip()) {
            None => Ok(stream),
            // The check took longer than the other end waits for a greeting, so a new connection is
            // made.
            segment => self.secure(address, pin, segment).await,
        }
    }

    /// Checks whether full packets reach an address and return; if they do not, finds a size that
    /// does. Later connections to the address use that size.
    ///
    /// # Errors
    /// No node with that key answers, at any size.
    async fn check_size(&self, address: SocketAddr, pin: Pin) -> Result<(), DialError> {
        let ip = address.ip();
        let Err(full) = self.greet_at_length(address, pin, None).await? else {
            self.segments.set(ip, None);
            return Ok(());
        };
        let smaller = PACKET_BYTES.map(|bytes| bytes - headers_bytes(ip));
        for segment in smaller.into_iter().filter(|segment| *segment < full) {
            if self.greet_at_length(address, pin, Some(segment)).await?.is_err() {
                continue;
            }
            // A busy machine may have answered the first greeting too late.
            let is_cured = self.greet_at_length(address, pin, None).await?.is_ok();
            let segment = (!is_cured).then_some(segment);
            self.segments.set(ip, segment);
            return Ok(());
        }
        Err(DialError::Packets(SMALLEST))
    }

    /// Sends a greeting of several packets. The inner result is the segment size if there is no
    /// answer.
    async fn greet_at_length(
        &self,
        address: SocketAddr,
        pin: Pin,
        segment: Option<u16>,
    ) -> Result<Result<(), u16>, DialError> {
        let started = Instant::now();
        let stream = self.secure(address, pin, segment).await?;
        let limit = ANSWER_MAX + started.elapsed() * 4;
        let used = used_segment(stream.get_ref().0);
        let greeting = self.greet(stream, Purpose::Probe, PADDING_BYTES);
        match timeout(limit, greeting).await {
            // A caller that is not yet a member gets a refusal of the same length.
            Ok(Ok(_) | Err(DialError::Refused { .. })) => Ok(Ok(())),
            Ok(Err(error @ DialError::Version(_))) => Err(error),
            // The other end waits for the rest of the greeting no longer than this one does.
            Ok(Err(_)) | Err(_) => Ok(Err(used)),
        }
    }

    async fn secure_any(
        self: &Arc<Self>,
        addresses: Vec<SocketAddr>,
        pin: Pin,
    ) -> Result<TlsStream<TcpStream>, DialError> {
        let mut calls = JoinSet::new();
        for address in self.reach(addresses) {
            let net = self.clone();
            let segment = self.segments.of(address.ip());
            calls.spawn(async move { net.secure(address, pin, segment).await });
        }
        let mut failure = DialError::NoAddress;
        while let Some(outcome) = calls.join_next().await {
            match outcome {
                Ok(Ok(stream)) => {
                    calls.abort_all();
                    return Ok(stream);
                }
                Ok(Err(error)) => failure = error,
                Err(panicked) => failure = io::Error::other(panicked).into(),
            }
        }
        Err(failure)
    }

    /// Opens a TLS connection to the node with that key.
    pub(crate) async fn secure(
        &self,
        address: SocketAddr,
        pin: Pin,
        segment: Option<u16>,
    ) -> Result<TlsStream<TcpStream>, DialError> {
        let started = Instant::now();
        let connecting = timeout(CONNECT_TIMEOUT, segments::connect(address, segment)).await;
        let tcp = connecting.map_err(|_| DialError::Timeout(CONNECT_TIMEOUT))??;
        let round_trip = started.elapsed();
        tcp.set_nodelay(true)?;
        let connector = TlsConnector::from(tls::client_config(&self.identity, pin));
        let name = ServerName::IpAddress(address.ip().into());
        let limit = HANDSHAKE_TIMEOUT;
        let connected = timeout(limit, connector.connect(name, tcp)).await;
        let connected = connected.map_err(|_| DialError::Timeout(limit))?;
        let stream = connected.map_err(|error| match tls::is_unknown_key(&error) {
            true => DialError::OtherNode,
            false => error.into(),
        })?;
        if let Pin::Node(peer) = pin {
            self.flows.of(peer).connected(round_trip);
        }
        Ok(TlsStream::from(stream))
    }

    /// Sends `Hello` with this node's introduction, the purpose and `padding` bytes.
    pub(crate) async fn greet(
        &self,
        mut stream: TlsStream<TcpStream>,
        purpose: Purpose,
        padding: usize,
    ) -> Result<Connection, DialError> {
        let exchange = async {
            let node = About { padding: " ".repeat(padding), ..self.about() };
            let hello = Hello { node, purpose };
            frames::write(&mut stream, &hello).await?;
            frames::read(&mut stream, HANDSHAKE_BYTES_MAX).await
        };
        let limit = HANDSHAKE_TIMEOUT;
        let handshake = timeout(limit, exchange).await.map_err(|_| DialError::Timeout(limit))??;
        let about = match handshake {
            HandshakeReply::Welcome(about) => about,
            HandshakeReply::Refused { reason, verdict, .. } => {
                return Err(DialError::Refused { reason, verdict });
            }
        };
        let protocol = about.agree(self.versions).map_err(DialError::Version)?;
        Ok(self.connection(stream, about, protocol)?)
    }

    fn connection(
        &self,
        stream: TlsStream<TcpStream>,
        about: About,
        protocol: u32,
    ) -> io::Result<Connection> {
        self.scopes.note(stream.get_ref().0.peer_addr()?);
        Connection::new(stream, about, protocol)
    }

    /// The addresses under which this machine may reach the given ones.
    pub(crate) fn reach(&self, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        self.scopes.reach(addresses)
    }

    /// Accepts a connection: TLS, then the dialer's `Hello`. The caller of this function answers
    /// it.
    pub(crate) async fn accept(&self, tcp: TcpStream) -> Result<Visitor, DialError> {
        tcp.set_nodelay(true)?;
        let limit = ACCEPT_TIMEOUT;
        let accepting = TlsAcceptor::from(self.server.clone()).accept(tcp);
        let accepted = timeout(limit, accepting).await.map_err(|_| DialError::Timeout(limit))??;
        let mut stream = TlsStream::from(accepted);
        let hello = timeout(limit, frames::read::<Hello>(&mut stream, HANDSHAKE_BYTES_MAX)).await;
        let hello = hello.map_err(|_| DialError::Timeout(limit))??;
        let agreed = hello.node.agree(self.versions);
        let protocol = *agreed.as_ref().unwrap_or(&0);
        let mut connection = self.connection(stream, hello.node, protocol)?;
        if let Err(reason) = agreed {
            connection.refuse(reason.clone()).await;
            return Err(DialError::Version(reason));
        }
        Ok(Visitor { connection, purpose: hello.purpose })
    }
}

/// The addresses of this machine at which others reach a listener on `listen`: `listen` itself, or
/// those of all interfaces if it is unspecified, the likeliest first.
pub fn own_addresses(listen: SocketAddr) -> Vec<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return vec![link_local::unscoped(listen)];
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let all = interfaces
        .iter()
        .filter(|interface| !interface.is_loopback())
        .filter(|one| !link_local::is_link_local(one.ip()) || !link_local::is_bridged(one))
        .map(|one| (one.ip(), link_local::is_bridge(one)))
        .filter(|(ip, _)| ip.is_ipv4() || listen.is_ipv6());
    let ips = likeliest_first(all.collect(), &routed());
    ips.into_iter().map(|ip| SocketAddr::new(ip, listen.port())).collect()
}

/// Sorts addresses; each comes with a flag for bridges. First those of the default routes, then
/// other networks, then bridges, as of containers, and last link-local ones.
fn likeliest_first(mut all: Vec<(IpAddr, bool)>, routed: &[IpAddr]) -> Vec<IpAddr> {
    let is_local = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    all.sort_by_key(|(ip, is_bridge)| {
        let is_routed = routed.contains(ip);
        (is_local(ip), !is_routed && *is_bridge, !is_routed, ip.is_ipv6())
    });
    all.into_iter().map(|(ip, _)| ip).collect()
}

/// Source addresses for calls to far hosts. Nothing is sent: connecting a UDP socket only chooses a
/// route.
fn routed() -> Vec<IpAddr> {
    // Addresses reserved for documentation, which no host has.
    let far = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let from = |(own, far): (&str, &str)| {
        let socket = UdpSocket::bind(own)?;
        socket.connect(far)?;
        socket.local_addr()
    };
    far.into_iter().filter_map(|pair| from(pair).ok()).map(|address| address.ip()).collect()
}

impl Connection {
    fn new(stream: TlsStream<TcpStream>, mut about: About, protocol: u32) -> io::Result<Self> {
        let (tcp, tls) = stream.get_ref();
        let peer = tls::peer_id(tls.peer_certificates())
            .ok_or_else(|| io::Error::other("the peer showed no key"))?;
        let seen = tcp.peer_addr()?;
        let remote = SocketAddr::new(seen.ip().to_canonical(), seen.port());
        let local = tcp.local_addr()?.ip().to_canonical();
        about.addresses.truncate(ADDRESSES_MAX);
        Ok(Self { stream, peer, about, protocol, remote, local })
    }

    /// Where the peer can be called: the address it called from, then those it listed.
    pub(crate) fn peer_addresses(&self) -> Vec<SocketAddr> {
        let port = self.about.addresses.first().map(SocketAddr::port);
        let seen = port.map(|port| SocketAddr::new(self.remote.ip(), port));
        seen.into_iter().chain(self.about.addresses.iter().copied()).collect()
    }

    /// A secret that only the two ends of this connection have. Proofs bound to it are worthless
    /// elsewhere.
    pub(crate) fn session(&self) -> io::Result<[u8; 32]> {
        let label = b"EXPORTER-sinew-session";
        let exported = match &self.stream {
            TlsStream::Client(tls) => tls.get_ref().1.export_keying_material([0; 32], label, None),
            TlsStream::Server(tls) => tls.get_ref().1.export_keying_material([0; 32], label, None),
        };
        exported.map_err(io::Error::other)
    }

    pub(crate) async fn welcome(&mut self, about: About) -> Result<(), FrameError> {
        let about = About { padding: self.about.padding.clone(), ..about };
        frames::write(&mut self.stream, &HandshakeReply::Welcome(about)).await
    }

    pub(crate) async fn refuse(&mut self, reason: String) {
        self.refuse_with(reason, None).await;
    }

    /// Refuses with a verdict on the peer's membership.
    pub(crate) async fn refuse_with(&mut self, reason: String, verdict: Option<Verdict>) {
        let padding = self.about.padding.clone();
        let refused = HandshakeReply::Refused { reason, verdict, padding };
        // The peer may be gone already and not need the reason.
        let _ = timeout(ACCEPT_TIMEOUT, frames::write(&mut self.stream, &refused)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_bridges_come_after_what_others_reach() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let all = [
            ("172.17.0.1", true),
            ("169.254.9.9", false),
            ("fd00::5", false),
            ("10.0.0.5", true),
            ("192.168.9.1", false),
            ("172.18.0.1", true),
        ];
        let all = all.map(|(text, is_bridge)| (ip(text), is_bridge));
        // A bridge may be the machine's own network, as on hosts of virtual machines.
        let found = likeliest_first(all.into(), &[ip("10.0.0.5")]);
        let expected =
            ["10.0.0.5", "192.168.9.1", "fd00::5", "172.17.0.1", "172.18.0.1", "169.254.9.9"];
        assert_eq!(found, expected.map(ip));
    }
}
