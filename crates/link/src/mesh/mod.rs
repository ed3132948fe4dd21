//! Builds the mesh of an epoch: one link to every other rank, or to selected ranks where not every
//! pair can reach each other.
//!
//! Lower ranks listen and higher ranks dial, so each pair meets exactly once. One loop accepts,
//! dials and shakes hands, without blocking on any single peer. Strangers, garbage and silence cost
//! a closed connection; the mesh waits for the right ranks until its deadline.

mod dial;
mod listener;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use listener::{Calls, Listener};

use dial::Dial;

use crate::config::validate;
use crate::error::MissingRank;
use crate::handshake::{Context, Established, Handshake, Progress, Purpose, Refused, Session};
use crate::liveness::{Channel, Heartbeats, Way};
use crate::rdma::Rdma;
use crate::socket::prepare;
use crate::{Link, Liveness, MeshConfig, MeshError, Preference, shm};

/// Handshakes at once. Further strangers wait in the kernel's queue until one ends.
const HANDSHAKES_MAX: usize = 128;

/// The time for an accepted connection to authenticate: several round trips of a far and full path.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// The same while [`HANDSHAKES_MAX`] are open.
const HANDSHAKE_MAX_OF_MANY: Duration = Duration::from_secs(1);

/// The interval of the loop: short against a handshake, long against its few system calls.
const ROUND: Duration = Duration::from_micros(500);

/// The result of a complete mesh.
#[derive(Default)]
pub struct Met {
    /// One to each rank in `peers`, in order of rank.
    pub links: Vec<Box<dyn Link>>,
    /// Notes for the user: addresses of peers that do not answer, and transports that do not work.
    pub notes: Vec<String>,
}

/// Links this rank with its `peers`. Raising `abort` ends the wait at once; the deadline ends it
/// with an error that names the missing ranks. Of several addresses of a rank one is enough.
///
/// ```
/// # use std::{sync::atomic::AtomicBool, thread, time::Duration};
/// # use link::{Encryption, HostId, Listener, MeshConfig, Preference, Secret, connect_mesh};
/// // Each rank binds; the control plane tells every rank all addresses and the secret.
/// let any_port = "127.0.0.1:0".parse().unwrap();
/// let listeners = [Listener::bind(any_port).unwrap(), Listener::bind(any_port).unwrap()];
/// let config = |rank| MeshConfig {
///     rank,
///     addrs: listeners.iter().map(Listener::addrs).collect(),
///     segments: Vec::new(),
///     peers: None,
///     instance: *b"an instance's id",
///     epoch: 1,
///     secret: Secret::new([7; 32]),
///     preference: Preference::Auto,
///     encryption: Encryption::Sealed,
///     host: HostId::current(),
///     latency: Duration::ZERO,
///     deadline: Duration::from_secs(10),
/// };
/// thread::scope(|scope| {
///     for rank in 0..2 {
///         let (listener, config) = (&listeners[rank], config(rank));
///         scope.spawn(move || {
///             let links = connect_mesh(listener, &config, &AtomicBool::new(false)).unwrap().links;
///             assert_eq!(links[0].info().peer, 1 - rank);
///         });
///     }
/// });
/// ```
pub fn connect_mesh(
    listener: &Listener,
    config: &MeshConfig,
    abort: &AtomicBool,
) -> Result<Met, MeshError> {
    validate(config)?;
    if matches!(config.preference, Preference::Auto | Preference::Shm) {
        shm::sweep();
    }
    let mut mesh = Mesh::new(config, &listener.rdma)?;
    loop {
        mesh.accept(listener)?;
        mesh.dial();
        mesh.shake_hands()?;
        if mesh.missing_ranks().next().is_none() {
            return mesh.into_links();
        }
        if abort.load(Ordering::Relaxed) {
            return Err(MeshError::Aborted);
        }
        if mesh.started.elapsed() >= config.deadline {
            return Err(mesh.missing());
        }
        std::thread::sleep(ROUND);
    }
}

/// A mesh in the making.
struct Mesh<'a> {
    config: &'a MeshConfig,
    context: Context,
    started: Instant,
    /// Started first: a rank that waits for a third one is alive to the others.
    heartbeats: Heartbeats,
    /// The state by rank: the links, and whether their heartbeat connections are up.
    links: Vec<Option<Established>>,
    has_heartbeats: Vec<bool>,
    dials: Vec<Dial>,
    /// Connections opened by strangers or higher ranks, and when.
    accepted: Vec<(Handshake, Instant)>,
}

impl<'a> Mesh<'a> {
    fn new(config: &'a MeshConfig, rdma: &Rdma) -> Result<Self, MeshError> {
        let ranks = config.addrs.len();
        let lower = (0..config.rank).filter(|peer| config.is_peer(*peer));
        let dial =
            |peer: usize| Dial::new(peer, Purpose::Link, &config.addrs[peer], &config.segments);
        Ok(Mesh {
            config,
            context: Context::new(config, rdma),
            started: Instant::now(),
            heartbeats: Heartbeats::start(ranks).map_err(MeshError::Heartbeats)?,
            links: (0..ranks).map(|_| None).collect(),
            has_heartbeats: vec![false; ranks],
            dials: lower.map(dial).collect(),
            accepted: Vec::new(),
        })
    }

    fn is_met(&self, rank: usize) -> bool {
        self.links[rank].is_some() && self.has_heartbeats[rank]
    }

    fn missing_ranks(&self) -> impl Iterator<Item = usize> + '_ {
        let ranks = 0..self.links.len();
        ranks.filter(|&rank| self.config.is_peer(rank) && !self.is_met(rank))
    }

    fn into_links(self) -> Result<Met, MeshError> {
        let notes = self.notes();
        for established in self.links.iter().flatten() {
            self.heartbeats.watch(established.session.peer, way(established, self.config));
        }
        let heartbeats = Arc::new(self.heartbeats);
        let link = |established: Established| {
            let liveness = Liveness::new(heartbeats.clone(), established.session.peer);
            established.into_link(&self.context, liveness)
        };
        let links = self.links.into_iter().flatten().map(link).collect::<Result<_, _>>()?;
        Ok(Met { links, notes })
    }

    /// Notes for the user about addresses that are not used.
    fn notes(&self) -> Vec<String> {
        let links = self.dials.iter().filter(|dial| dial.purpose == Purpose::Link);
        let note = |dial: &Dial| {
            let (own, peer, addr, reasons) =
                (self.config.rank, dial.peer, dial.addr(), dial.reasons().join("; "));
            format!(
                "ranks {own} and {peer} link over {addr}, not over one before it: {reasons}; \
                 check the address (`sinew up --link-addresses`), the cable and the firewall"
            )
        };
        let addresses = links.filter(|dial| !dial.reasons().is_empty()).map(note);
        addresses.chain(self.fallbacks()).collect()
    }

    /// Pairs whose attempt at RDMA failed; the higher of the two ranks reports it.
    fn fallbacks(&self) -> impl Iterator<Item = String> {
        let own = self.config.rank;
        let peers = self.links.iter().flatten().filter(|link| link.fell_back());
        peers.map(|link| link.session.peer).filter(move |peer| *peer < own).map(move |peer| {
            format!(
                "ranks {own} and {peer} link over TCP, because RDMA did not work between them; see \
                 `sinew doctor rdma` on both nodes"
            )
        })
    }

    fn accept(&mut self, listener: &Listener) -> Result<(), MeshError> {
        while self.accepted.len() < HANDSHAKES_MAX
            && let Some(call) = listener.calls.next()
        {
            self.take(call);
        }
        listener.sockets.iter().try_for_each(|socket| self.accept_on(socket))
    }

    fn take(&mut self, stream: TcpStream) {
        if prepare(&stream).is_ok() {
            let handshake = Handshake::listen(&self.context, stream);
            self.accepted.push((handshake, Instant::now()));
        }
    }

    fn accept_on(&mut self, socket: &TcpListener) -> Result<(), MeshError> {
        while self.accepted.len() < HANDSHAKES_MAX {
            match socket.accept() {
                Ok((stream, _)) => self.take(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The peer hung up before its connection was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(MeshError::Accept(error)),
            }
        }
        Ok(())
    }

    /// Starts the connections that are due and turns established ones into handshakes.
    fn dial(&mut self) {
        let now = Instant::now();
        self.dials.iter_mut().for_each(|dial| dial.advance(&self.context, now));
    }

    /// Advances every handshake as far as the bytes allow.
    fn shake_hands(&mut self) -> Result<(), MeshError> {
        let now = Instant::now();
        let mut done = Vec::new();
        for dial in &mut self.dials {
            done.extend(dial.shake_hands(&self.context, now)?);
        }
        let is_full = self.accepted.len() >= HANDSHAKES_MAX;
        let limit = if is_full { HANDSHAKE_MAX_OF_MANY } else { HANDSHAKE_MAX };
        let mut at = 0;
        while at < self.accepted.len() {
            let (handshake, since) = &mut self.accepted[at];
            let is_in_time = now.saturating_duration_since(*since) < limit;
            match handshake.step(&self.context) {
                Progress::Pending if is_in_time || handshake.is_confirmed() => at += 1,
                Progress::Pending | Progress::Refused(Refused::Stranger(_)) => {
                    self.accepted.swap_remove(at);
                }
                Progress::Done(established) => {
                    done.push(*established);
                    self.accepted.swap_remove(at);
                }
                Progress::Refused(Refused::Fatal(error)) => return Err(error),
            }
        }
        done.into_iter().for_each(|established| self.keep(established));
        Ok(())
    }

    /// Keeps the first connection of each kind to a rank. A second one comes only from a rank that
    /// was started twice; it is closed.
    fn keep(&mut self, established: Established) {
        let Session { peer, purpose, .. } = established.session;
        if !self.config.is_peer(peer) {
            return;
        }
        match purpose {
            Purpose::Link if self.links[peer].is_none() => {
                if let Some(channel) = established.shm_heartbeats(&self.context) {
                    self.add_heartbeats(peer, channel);
                } else if peer < self.config.rank {
                    let link = self.dials.iter().find(|dial| dial.peer == peer);
                    let addr = link.expect("a lower rank was dialed").addr();
                    let segments = &self.config.segments;
                    self.dials.push(Dial::new(peer, Purpose::Heartbeats, &[addr], segments));
                }
                self.links[peer] = Some(established);
            }
            Purpose::Heartbeats if !self.has_heartbeats[peer] => {
                let channel = established.into_heartbeats(&self.context);
                self.add_heartbeats(peer, channel);
            }
            Purpose::Link | Purpose::Heartbeats => {}
        }
    }

    fn add_heartbeats(&mut self, peer: usize, channel: Box<dyn Channel>) {
        self.has_heartbeats[peer] = true;
        self.heartbeats.add(peer, channel);
    }

    fn missing(&self) -> MeshError {
        let missing = self.missing_ranks().map(|rank| {
            let dials = self.dials.iter().filter(|dial| dial.peer == rank && !dial.is_done());
            let reasons: Vec<String> = dials.flat_map(Dial::reasons).collect();
            match reasons.is_empty() {
                true => MissingRank { rank, reason: "it never dialed".to_string() },
                false => MissingRank { rank, reason: reasons.join("; ") },
            }
        });
        MeshError::Missing {
            waited_ms: self.started.elapsed().as_millis() as u64,
            missing: missing.collect(),
        }
    }
}

/// The network path of the link, if the peer has other addresses.
fn way(established: &Established, config: &MeshConfig) -> Option<Way> {
    let goes_to = established.stream.peer_addr().ok()?.ip().to_canonical();
    let is_other = |addr: &&SocketAddr| addr.ip() != goes_to && addr.port() != 0;
    let others = config.addrs[established.session.peer].iter().filter(is_other);
    let messages = established.rdma.is_none().then(|| established.stream.try_clone().ok());
    let has_way = established.mapping.is_none();
    has_way.then(|| Way::new(messages.flatten(), others.copied().collect())).flatten()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::shm::ObjectName;
    use crate::{Encryption, HostId, Secret, Transport};

    #[test]
    fn where_shared_memory_fails_auto_takes_tcp_and_shm_says_why() {
        for preference in [Preference::Auto, Preference::Shm] {
            let bind = |_| Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let listeners: Vec<Listener> = (0..2).map(bind).collect();
            let mut instance = [preference as u8; 16];
            instance[..4].copy_from_slice(&std::process::id().to_le_bytes());
            let config = |rank| MeshConfig {
                rank,
                addrs: listeners.iter().map(Listener::addrs).collect(),
                segments: Vec::new(),
                peers: None,
                instance,
                epoch: 1,
                secret: Secret::new([1; 32]),
                preference,
                encryption: Encryption::Sealed,
                host: HostId::current(),
                latency: Duration::ZERO,
                deadline: Duration::from_secs(20),
            };
            // A directory takes the object's place; it cannot be unlinked.
            let name = ObjectName::new(&instance, 1, 0, 1);
            let squatter = std::path::Path::new("/dev/shm").join(&name.as_str()[1..]);
            std::fs::create_dir(&squatter).unwrap();
            let ends = std::thread::scope(|scope| {
                let (listeners, config) = (&listeners, &config);
                let start = |rank: usize| {
                    scope.spawn(move || {
                        connect_mesh(&listeners[rank], &config(rank), &AtomicBool::new(false))
                    })
                };
                [start(0), start(1)].map(|thread| thread.join().unwrap())
            });
            std::fs::remove_dir(&squatter).unwrap();
            for end in ends {
                match (preference, end) {
                    (Preference::Auto, Ok(Met { links, .. })) => {
                        assert_eq!(links[0].info().transport, Transport::Tcp);
                        assert!(links[0].info().same_host);
                    }
                    (Preference::Shm, Err(MeshError::NoSharedMemory { .. })) => {}
                    (_, end) => panic!("{:?}", end.err()),
                }
            }
        }
    }
}
