//! Pairs of linked ranks in one process, over loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::rdma::Fabric;
use link::{
    Encryption, HostId, Link, LinkError, Listener, MeshConfig, MeshError, Preference, Secret,
    connect_mesh,
};

/// How long a test waits for what must happen: far beyond what a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub type Pair = (Box<dyn Link>, Box<dyn Link>);
pub type Mesh = Result<Vec<Box<dyn Link>>, MeshError>;

pub fn listeners(ranks: usize) -> Vec<Listener> {
    let bind = |_| Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    (0..ranks).map(bind).collect()
}

pub fn addrs(listeners: &[Listener]) -> Vec<Vec<SocketAddr>> {
    listeners.iter().map(Listener::addrs).collect()
}

/// A mesh of its own: the instance differs in every call of every test process.
pub fn config(addrs: Vec<Vec<SocketAddr>>) -> MeshConfig {
    static INSTANCES: AtomicU64 = AtomicU64::new(0);
    let mut instance = [0; 16];
    instance[..4].copy_from_slice(&std::process::id().to_le_bytes());
    instance[8..].copy_from_slice(&INSTANCES.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    MeshConfig {
        rank: 0,
        addrs,
        links: None,
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

/// Two ranks joined by `links` TCP connections.
pub fn bond(links: usize) -> Pair {
    pair(|config| {
        config.preference = Preference::Tcp;
        config.links = Some(links);
    })
}

/// Two ranks with two addresses each, of which the second is a far slower wire.
pub fn unequal_bond() -> Pair {
    let delay = |delay: Duration| {
        move |_| {
            thread::sleep(delay);
            true
        }
    };
    wired_bond([delay(Duration::ZERO), delay(SLOW)])
}

/// A listener with so many addresses.
pub fn listener_of(addrs: usize) -> Listener {
    let any_port = "127.0.0.1:0".parse().unwrap();
    Listener::bind_all(&vec![any_port; addrs]).unwrap()
}

/// Two ranks with two addresses each, each of which leads over a [`wire`].
pub fn wired_bond<F>(before: [F; 2]) -> Pair
where
    F: Fn(usize) -> bool + Clone + Send + 'static,
{
    let listeners = [listener_of(2), listener_of(2)];
    let config = MeshConfig { preference: Preference::Tcp, ..config(addrs(&listeners)) };
    let mut configs = same(&config);
    for (addr, before) in configs[1].addrs[0].iter_mut().zip(before) {
        *addr = wire(*addr, before);
    }
    let links = meshes(&listeners, configs).into_iter();
    let mut links = links.map(|mesh| mesh.unwrap().pop().unwrap());
    (links.next().unwrap(), links.next().unwrap())
}

/// How long a slow wire takes for what it passes on at once, at most [`WIRE_BYTES`].
const SLOW: Duration = Duration::from_micros(300);
const WIRE_BYTES: usize = 16 * 1024;

/// Passes all connections on to `target`, each direction by a thread, which first calls `before`
/// with the bytes that are to be passed on. Once that says `false` the connection is cut.
pub fn wire(
    target: SocketAddr,
    before: impl Fn(usize) -> bool + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for dialer in listener.incoming().map_while(Result::ok) {
            let Ok(target) = TcpStream::connect(target) else { return };
            for (from, to) in [(&dialer, &target), (&target, &dialer)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let before = before.clone();
                thread::spawn(move || pass_on(from, to, before));
            }
        }
    });
    addr
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, before: impl Fn(usize) -> bool) {
    to.set_nodelay(true).unwrap();
    let mut bytes = vec![0; WIRE_BYTES];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !before(read) {
            let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
            return;
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Two linked ranks on two machines, with two links over one RDMA cable.
pub fn rdma_bond(fabric: &Fabric) -> Pair {
    let (listeners, mut configs) = machines(fabric, 2);
    configs.iter_mut().for_each(|config| config.links = Some(2));
    let links = meshes(&listeners, configs).into_iter();
    let mut links = links.map(|mesh| mesh.unwrap().pop().unwrap());
    (links.next().unwrap(), links.next().unwrap())
}

/// Listeners on machines of their own, joined by RDMA cables, and a configuration for each.
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
        let Some(slot) = link.poll_send(message.len())? else {
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
