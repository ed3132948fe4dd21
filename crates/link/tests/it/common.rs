//! Pairs of linked ranks in one process, over loopback.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::rdma::Fabric;
use link::{
    Encryption, HostId, Link, LinkError, Listener, MeshConfig, MeshError, Preference, Secret,
    connect_mesh,
};

/// The time limit of a test for an expected event: far beyond the need of a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type Pair = (Box<dyn Link>, Box<dyn Link>);
pub type Mesh = Result<Vec<Box<dyn Link>>, MeshError>;

pub fn listeners(ranks: usize) -> Vec<Listener> {
    let bind = |_| Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    (0..ranks).map(bind).collect()
}

pub fn addrs(listeners: &[Listener]) -> Vec<Vec<SocketAddr>> {
    listeners.iter().map(Listener::addrs).collect()
}

/// A separate mesh: the instance differs in every call of every test process.
pub fn config(addrs: Vec<Vec<SocketAddr>>) -> MeshConfig {
    static INSTANCES: AtomicU64 = AtomicU64::new(0);
    let mut instance = [0; 16];
    instance[..4].copy_from_slice(&std::process::id().to_le_bytes());
    instance[8..].copy_from_slice(&INSTANCES.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    MeshConfig {
        rank: 0,
        addrs,
        segments: Vec::new(),
        peers: None,
        instance,
        epoch: 1,
        secret: Secret::new([42; 32]),
        preference: Preference::Auto,
        encryption: Encryption::Sealed,
        host: HostId::current(),
        latency: Duration::ZERO,
        deadline: PATIENCE,
    }
}

/// Runs `connect_mesh` on every listener, each in its own thread with its own configuration.
pub fn meshes(listeners: &[Listener], configs: Vec<MeshConfig>) -> Vec<Mesh> {
    thread::scope(|scope| {
        let start = |(listener, config): (_, MeshConfig)| {
            scope.spawn(move || {
                let met = connect_mesh(listener, &config, &AtomicBool::new(false))?;
                Ok(met.links)
            })
        };
        let threads: Vec<_> = listeners.iter().zip(configs).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The same configuration for every rank.
pub fn same(config: &MeshConfig) -> Vec<MeshConfig> {
    let ranks = 0..config.addrs.len();
    ranks.map(|rank| MeshConfig { rank, ..config.clone() }).collect()
}

/// Two linked ranks, 0 and 1.
pub fn pair(adjust: impl FnOnce(&mut MeshConfig)) -> Pair {
    let listeners = listeners(2);
    let mut config = config(addrs(&listeners));
    adjust(&mut config);
    let links = meshes(&listeners, same(&config)).into_iter();
    let mut links = links.map(|mesh| mesh.unwrap().pop().unwrap());
    (links.next().unwrap(), links.next().unwrap())
}

/// A listener with `addrs` addresses.
pub fn listener_of(addrs: usize) -> Listener {
    let any_port = "127.0.0.1:0".parse().unwrap();
    Listener::bind_all(&vec![any_port; addrs]).unwrap()
}

/// Listeners on separate machines, joined by RDMA cables, and a configuration for each.
pub fn machines(fabric: &Fabric, ranks: usize) -> (Vec<Listener>, Vec<MeshConfig>) {
    let listeners = listeners(ranks).into_iter().enumerate();
    let listeners: Vec<Listener> =
        listeners.map(|(at, listener)| listener.with_rdma(fabric.machine(at))).collect();
    let config = MeshConfig { preference: Preference::Rdma, ..config(addrs(&listeners)) };
    let mut configs = same(&config);
    for (at, config) in configs.iter_mut().enumerate() {
        config.host = HostId([at as u8; 16]);
    }
    (listeners, configs)
}

/// Two linked ranks on two machines with an RDMA cable between them.
pub fn rdma_pair(fabric: &Fabric) -> Pair {
    let (listeners, configs) = machines(fabric, 2);
    let links = meshes(&listeners, configs).into_iter();
    let mut links = links.map(|mesh| mesh.unwrap().pop().unwrap());
    (links.next().unwrap(), links.next().unwrap())
}

/// Polls until something comes, as a collective does.
pub fn wait<T>(mut poll: impl FnMut() -> Result<Option<T>, LinkError>) -> Result<T, LinkError> {
    let started = Instant::now();
    loop {
        if let Some(value) = poll()? {
            return Ok(value);
        }
        assert!(started.elapsed() < PATIENCE, "nothing came");
        thread::yield_now();
    }
}

pub fn send(link: &mut dyn Link, message: &[u8]) -> Result<(), LinkError> {
    wait(|| {
        let Some(slot) = link.poll_send()? else {
            return Ok(None);
        };
        slot[..message.len()].copy_from_slice(message);
        link.commit(message.len()).map(Some)
    })
}

pub fn recv(link: &mut dyn Link) -> Result<Vec<u8>, LinkError> {
    let message = wait(|| Ok(link.poll_recv()?.map(<[u8]>::to_vec)))?;
    link.consume();
    Ok(message)
}
