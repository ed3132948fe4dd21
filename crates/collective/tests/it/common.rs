//! Groups of ranks in one process: a thread for each, real links over loopback between them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use collective::{Group, Options};
use fastrand::Rng;
use link::{
    Delay, Encryption, HostId, Link, Listener, MeshConfig, Preference, Secret, connect_mesh,
};

/// Values of very different sizes, so that the order of a sum shows in its last bits.
pub fn float(random: &mut Rng) -> f32 {
    let size = random.choice([1e-3, 1.0, 1e4]).expect("there are three");
    (2.0 * random.f32() - 1.0) * size
}

/// Runs `act` on every rank of a new group of `ranks`, and returns the results.
pub fn run<T: Send>(
    ranks: usize,
    preference: Preference,
    options: &Options,
    act: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    run_with_abort(ranks, preference, options, |group, _| act(group))
}

/// Like [`run`], with links between neighbours only.
pub fn run_ring<T: Send>(
    ranks: usize,
    preference: Preference,
    options: &Options,
    act: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    run_links(ranks, preference, |rank, mut links, abort| {
        let is_near = |peer| (peer + 1) % ranks == rank || (rank + 1) % ranks == peer;
        links.retain(|link| is_near(link.info().peer));
        let stage = 0..ranks;
        let options = options.clone();
        act(Group::in_stage(rank, ranks, stage, links, abort, options).unwrap())
    })
}

/// Like [`run`], over links with this latency.
pub fn run_delayed<T: Send>(
    ranks: usize,
    preference: Preference,
    latency: Duration,
    act: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    run_links(ranks, preference, |rank, links, abort| {
        let delayed = links.into_iter().map(|link| Box::new(Delay::new(link, latency)) as _);
        act(Group::new(rank, delayed.collect(), abort, Options::default()).unwrap())
    })
}

/// Like [`run`]; `act` also gets the flag that ends the group's waits.
pub fn run_with_abort<T: Send>(
    ranks: usize,
    preference: Preference,
    options: &Options,
    act: impl Fn(Group, Arc<AtomicBool>) -> T + Sync,
) -> Vec<T> {
    run_links(ranks, preference, |rank, links, abort| {
        act(Group::new(rank, links, abort.clone(), options.clone()).unwrap(), abort)
    })
}

/// Like [`run`], with the links themselves.
pub fn run_links<T: Send>(
    ranks: usize,
    preference: Preference,
    act: impl Fn(usize, Vec<Box<dyn Link>>, Arc<AtomicBool>) -> T + Sync,
) -> Vec<T> {
    static INSTANCES: AtomicU64 = AtomicU64::new(0);
    let bind = |_| Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listeners: Vec<Listener> = (0..ranks).map(bind).collect();
    let mut instance = [1; 16];
    instance[..4].copy_from_slice(&std::process::id().to_le_bytes());
    instance[8..].copy_from_slice(&INSTANCES.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    let config = MeshConfig {
        rank: 0,
        addrs: listeners.iter().map(Listener::addrs).collect(),
        segments: Vec::new(),
        peers: None,
        instance,
        epoch: 1,
        secret: Secret::new([7; 32]),
        preference,
        encryption: Encryption::Sealed,
        host: HostId::current(),
        latency: Duration::ZERO,
        deadline: Duration::from_secs(20),
    };
    thread::scope(|scope| {
        let start = |(rank, listener)| {
            let config = MeshConfig { rank, ..config.clone() };
            let act = &act;
            scope.spawn(move || {
                let abort = Arc::new(AtomicBool::new(false));
                let links = connect_mesh(listener, &config, &abort).unwrap().links;
                act(rank, links, abort)
            })
        };
        let threads: Vec<_> = listeners.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Cuts `leaves` into one run for each rank, some possibly empty.
pub fn random_spans(random: &mut Rng, leaves: usize, ranks: usize) -> Vec<Range<usize>> {
    let mut borders: Vec<usize> = (1..ranks).map(|_| random.usize(..leaves + 1)).collect();
    borders.extend([0, leaves]);
    borders.sort_unstable();
    borders.windows(2).map(|pair| pair[0]..pair[1]).collect()
}
