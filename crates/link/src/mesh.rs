//! Builds the full mesh of an epoch: one link to every other rank.
//!
//! Lower ranks listen and higher ranks dial, so each pair meets exactly once. One loop accepts,
//! dials and greets, without blocking on any single peer: strangers, garbage and silence cost a
//! closed connection, and the mesh goes on waiting for the right ranks until its deadline.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bond::Bond;
use crate::context::Context;
use crate::delay::LATENCY_MAX;
use crate::dial::Dial;
use crate::error::MissingRank;
use crate::greeted::Greeted;
use crate::handshake::{Handshake, Refused, Step};
use crate::hello::Purpose;
use crate::pulse::Pulse;
use crate::rdma::Rdma;
use crate::socket::prepare;
use crate::speed;
use crate::{HostId, LINKS_MAX, Link, LinkError, MeshError, Secret, Vital};

/// Ranks in a mesh at most: a rank holds a link, half a MiB of buffers and a socket for each.
pub const RANKS_MAX: usize = 64;

/// Connections in greeting at once. Strangers beyond that wait in the kernel's queue; each of
/// those before them is gone within [`GREETING_MAX`].
const GREETINGS_MAX: usize = 128;

/// How long an accepted connection may take to prove itself.
const GREETING_MAX: Duration = Duration::from_secs(1);

/// Between two rounds of the loop: short against a greeting, long against its few system calls.
const ROUND: Duration = Duration::from_micros(500);

/// Which transport a pair should use. Both ranks of a pair must be able to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    /// Shared memory where both ranks run on one machine and it works, RDMA where both have a
    /// port on one wire and it works, else TCP.
    #[default]
    Auto = 0,
    /// Shared memory or an error.
    Shm = 1,
    /// TCP even on one machine.
    Tcp = 2,
    /// RDMA or an error.
    Rdma = 3,
}

/// Whether TCP frames are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    #[default]
    Sealed = 0,
    /// In the clear, to measure what sealing costs. The greeting is authenticated all the same.
    Plain = 1,
}

/// Who meets, and on what terms. Everything but `rank` and `host` must be the same on all ranks.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    pub rank: usize,
    /// Where each rank listens, by rank: one address or several, as of several cables. Of this
    /// rank's own only the number counts.
    pub addrs: Vec<Vec<SocketAddr>>,
    /// Links between two ranks that do not share memory, each to the next address of the one that
    /// is dialed. `None`: as many as both have addresses.
    pub links: Option<usize>,
    pub instance: [u8; 16],
    /// Counts the meshes of this instance; a rank of an older one is refused.
    pub epoch: u64,
    pub secret: Secret,
    pub preference: Preference,
    pub encryption: Encryption,
    pub host: HostId,
    /// Delays every message by this long ([`crate::Delay`]); only with all ranks on one machine.
    pub latency: Duration,
    /// How long to wait for all ranks together.
    pub deadline: Duration,
}

impl MeshConfig {
    pub(crate) fn links_with(&self, peer: usize) -> usize {
        let addrs = self.addrs[peer].len().min(self.addrs[self.rank].len());
        self.links.unwrap_or(addrs.min(LINKS_MAX))
    }
}

/// The sockets on which a rank is met, and the devices it may use. It outlives epochs: each builds
/// its mesh on it.
pub struct Listener {
    sockets: Vec<TcpListener>,
    addrs: Vec<SocketAddr>,
    rdma: Rdma,
}

impl Listener {
    /// Listens on `addr`; port 0 takes a free one.
    pub fn bind(addr: SocketAddr) -> Result<Self, MeshError> {
        Self::bind_all(&[addr])
    }

    /// Listens on all of `addrs`, of which those with port 0 take free ones.
    pub fn bind_all(addrs: &[SocketAddr]) -> Result<Self, MeshError> {
        let mut listener =
            Listener { sockets: Vec::new(), addrs: Vec::new(), rdma: Rdma::system() };
        for &addr in addrs {
            let bound = TcpListener::bind(addr).and_then(|socket| {
                socket.set_nonblocking(true)?;
                listener.addrs.push(socket.local_addr()?);
                listener.sockets.push(socket);
                Ok(())
            });
            bound.map_err(|source| MeshError::Bind { addr, source })?;
        }
        Ok(listener)
    }

    /// Uses these RDMA devices instead of the machine's own.
    pub fn with_rdma(self, rdma: Rdma) -> Self {
        Listener { rdma, ..self }
    }

    /// Where this listener can be reached.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.addrs.clone()
    }
}

/// Meets all other ranks and returns a link to each, in order of rank. Raising `abort` ends the
/// wait at once; the deadline ends it with the missing ranks named.
///
/// ```
/// # use std::{sync::atomic::AtomicBool, thread, time::Duration};
/// # use sinew_link::{Encryption, HostId, Listener, MeshConfig, Preference, Secret, connect_mesh};
/// // Each rank binds; the control plane tells every rank all addresses and the secret.
/// let any_port = "127.0.0.1:0".parse().unwrap();
/// let listeners = [Listener::bind(any_port).unwrap(), Listener::bind(any_port).unwrap()];
/// let config = |rank| MeshConfig {
///     rank,
///     addrs: listeners.iter().map(Listener::addrs).collect(),
///     links: None,
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
///             let links = connect_mesh(listener, &config, &AtomicBool::new(false)).unwrap();
///             assert_eq!(links[0].info().peer, 1 - rank);
///         });
///     }
/// });
/// ```
pub fn connect_mesh(
    listener: &Listener,
    config: &MeshConfig,
    abort: &AtomicBool,
) -> Result<Vec<Box<dyn Link>>, MeshError> {
    validate(config)?;
    let mut mesh = Mesh::new(config, &listener.rdma)?;
    loop {
        mesh.accept(listener)?;
        mesh.dial();
        mesh.greet()?;
        if mesh.is_complete() {
            return mesh.into_links(abort);
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

/// Why a pair that met cannot use its links.
fn unfit(error: LinkError, abort: &AtomicBool, started: Instant) -> MeshError {
    if abort.load(Ordering::Relaxed) {
        return MeshError::Aborted;
    }
    let (LinkError::Lost { peer, .. }
    | LinkError::Corrupt { peer, .. }
    | LinkError::Epoch { peer, .. }) = error;
    let missing = vec![MissingRank { rank: peer, reason: error.to_string() }];
    MeshError::Missing { waited_ms: started.elapsed().as_millis() as u64, missing }
}

fn validate(config: &MeshConfig) -> Result<(), MeshError> {
    let (ranks, rank) = (config.addrs.len(), config.rank);
    if !(1..=RANKS_MAX).contains(&ranks) {
        let limit = format!("1 to {RANKS_MAX}");
        return Err(MeshError::Config { what: "number of ranks", value: ranks as u64, limit });
    }
    if rank >= ranks {
        let limit = format!("the ranks 0 to {}", ranks - 1);
        return Err(MeshError::Config { what: "rank", value: rank as u64, limit });
    }
    for (at, addrs) in config.addrs.iter().enumerate().filter(|(at, _)| *at != rank) {
        if !(1..=LINKS_MAX).contains(&addrs.len()) {
            let (what, value) = ("number of addresses of a rank", addrs.len() as u64);
            let limit = format!("1 to {LINKS_MAX} (rank {at})");
            return Err(MeshError::Config { what, value, limit });
        }
    }
    let links_max = if config.preference == Preference::Shm { 1 } else { LINKS_MAX };
    if let Some(links) = config.links.filter(|links| !(1..=links_max).contains(links)) {
        let limit = match links_max {
            1 => "what shared memory needs, which is 1".to_string(),
            _ => format!("1 to {LINKS_MAX}"),
        };
        let (what, value) = ("number of links between two ranks", links as u64);
        return Err(MeshError::Config { what, value, limit });
    }
    if config.latency > LATENCY_MAX {
        let limit = format!("0 to {}", LATENCY_MAX.as_micros());
        let value = config.latency.as_micros().min(u64::MAX.into()) as u64;
        return Err(MeshError::Config { what: "link latency in us", value, limit });
    }
    Ok(())
}

/// A mesh in the making.
struct Mesh<'a> {
    config: &'a MeshConfig,
    context: Context,
    started: Instant,
    /// Beats from the start: a rank that waits for a third one is alive to the others.
    pulse: Pulse,
    /// What stands so far, by rank.
    pairs: Vec<Pair>,
    dials: Vec<Dial>,
    /// Connections that strangers, or higher ranks, have opened.
    accepted: Vec<(Handshake, Instant)>,
}

/// What two ranks need of each other: links, and signs of life beside each.
#[derive(Default)]
struct Pair {
    links: [Option<Greeted>; LINKS_MAX],
    beats: [bool; LINKS_MAX],
}

impl<'a> Mesh<'a> {
    fn new(config: &'a MeshConfig, rdma: &Rdma) -> Result<Self, MeshError> {
        let ranks = config.addrs.len();
        let first =
            (0..config.rank).map(|peer| Dial::new(config, peer, Purpose::Link, 0)).collect();
        Ok(Mesh {
            config,
            context: Context::new(config, rdma),
            started: Instant::now(),
            pulse: Pulse::start(ranks).map_err(MeshError::Pulse)?,
            pairs: (0..ranks).map(|_| Pair::default()).collect(),
            dials: first,
            accepted: Vec::new(),
        })
    }

    fn is_complete(&self) -> bool {
        let own = self.config.rank;
        self.pairs.iter().enumerate().all(|(rank, pair)| rank == own || pair.is_complete())
    }

    /// One link a pair. Bonds are measured pair by pair in the same order on all ranks, so that
    /// each finds its peer ready.
    fn into_links(self, abort: &AtomicBool) -> Result<Vec<Box<dyn Link>>, MeshError> {
        let pulse = Arc::new(self.pulse);
        let patience = speed::Patience { until: Instant::now() + self.config.deadline, abort };
        let mut links = Vec::with_capacity(self.pairs.len());
        for pair in self.pairs {
            let mut all = Vec::new();
            for greeted in pair.links.into_iter().flatten() {
                let (path, vital) = (greeted.path(), Vital::new(pulse.clone(), greeted.peer));
                all.push((greeted.into_link(&self.context, vital)?, path));
            }
            match all.len() {
                0 | 1 => links.extend(all.into_iter().map(|(link, _)| link)),
                _ => {
                    let bond = Bond::measured(all, &patience);
                    links.push(Box::new(bond.map_err(|error| unfit(error, abort, self.started))?));
                }
            }
        }
        Ok(links)
    }

    fn accept(&mut self, listener: &Listener) -> Result<(), MeshError> {
        listener.sockets.iter().try_for_each(|socket| self.accept_on(socket))
    }

    fn accept_on(&mut self, socket: &TcpListener) -> Result<(), MeshError> {
        while self.accepted.len() < GREETINGS_MAX {
            match socket.accept() {
                Ok((stream, _)) if prepare(&stream).is_ok() => {
                    let handshake = Handshake::listen(&self.context, stream);
                    self.accepted.push((handshake, Instant::now() + GREETING_MAX));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The peer hung up before we got to it.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(MeshError::Accept(error)),
            }
        }
        Ok(())
    }

    /// Starts the connections that are due and turns those that stand into greetings.
    fn dial(&mut self) {
        let now = Instant::now();
        self.dials.iter_mut().for_each(|dial| dial.advance(&self.context, now));
    }

    /// Moves every greeting as far as the bytes allow.
    fn greet(&mut self) -> Result<(), MeshError> {
        let now = Instant::now();
        let mut done = Vec::new();
        for dial in &mut self.dials {
            done.extend(dial.greet(&self.context, now)?);
        }
        let mut at = 0;
        while at < self.accepted.len() {
            let (handshake, until) = &mut self.accepted[at];
            match handshake.step(&self.context) {
                Step::Pending if now < *until + handshake.allowance() => at += 1,
                Step::Pending | Step::Refused(Refused::Stranger(_)) => {
                    self.accepted.swap_remove(at);
                }
                Step::Done(greeted) => {
                    done.push(*greeted);
                    self.accepted.swap_remove(at);
                }
                Step::Refused(Refused::Fatal(error)) => return Err(error),
            }
        }
        done.into_iter().for_each(|greeted| self.keep(greeted));
        Ok(())
    }

    /// Keeps the first connection of each kind to a rank. A second one can only be a rank that was
    /// started twice; it finds its connection closed.
    fn keep(&mut self, greeted: Greeted) {
        let (peer, index) = (greeted.peer, greeted.index);
        let pair = &mut self.pairs[peer];
        match greeted.purpose {
            Purpose::Link if pair.links[index].is_none() => {
                if let Some(beats) = greeted.shm_beats(&self.context) {
                    pair.beats[index] = true;
                    self.pulse.add(peer, index, greeted.path(), beats);
                } else if peer < self.config.rank {
                    self.dials.push(Dial::new(self.config, peer, Purpose::Beats, index));
                }
                pair.links[index] = Some(greeted);
                // Whether the first link shares memory decides whether there are others.
                if index == 0 && peer < self.config.rank {
                    let more = 1..self.pairs[peer].wanted();
                    let dial = |index| Dial::new(self.config, peer, Purpose::Link, index);
                    self.dials.extend(more.map(dial));
                }
            }
            Purpose::Beats if !pair.beats[index] => {
                pair.beats[index] = true;
                let path = greeted.path();
                self.pulse.add(peer, index, path, greeted.into_beats(&self.context));
            }
            Purpose::Link | Purpose::Beats => {}
        }
    }

    fn missing(&self) -> MeshError {
        let own = self.config.rank;
        let missing = (0..self.pairs.len())
            .filter(|&rank| rank != own && !self.pairs[rank].is_complete())
            .map(|rank| {
                let mut dials = self.dials.iter().filter(|dial| dial.peer == rank);
                let stuck = dials.find(|dial| !dial.is_done());
                let reason = stuck.map_or("it never dialed".to_string(), Dial::reason);
                MissingRank { rank, reason }
            });
        MeshError::Missing {
            waited_ms: self.started.elapsed().as_millis() as u64,
            missing: missing.collect(),
        }
    }
}

impl Pair {
    fn is_complete(&self) -> bool {
        let wanted = self.wanted();
        let links = self.links[..wanted].iter().zip(&self.beats);
        links.into_iter().all(|(link, beats)| link.is_some() && *beats)
    }

    /// Links of this pair: more than one only where the first has turned out not to share memory.
    fn wanted(&self) -> usize {
        let first = self.links[0].as_ref().filter(|first| first.mapping.is_none());
        first.map_or(1, |first| first.agreement.links)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::Transport;
    use crate::shm_object::ObjectName;

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
                links: None,
                instance,
                epoch: 1,
                secret: Secret::new([1; 32]),
                preference,
                encryption: Encryption::Sealed,
                host: HostId::current(),
                latency: Duration::ZERO,
                deadline: Duration::from_secs(20),
            };
            // A directory stands where the object should be, and cannot be unlinked.
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
                    (Preference::Auto, Ok(links)) => {
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
