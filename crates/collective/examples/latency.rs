//! Half round trips and all-reduces between threads of this machine, each pinned to a core.
//!
//!     cargo run --release -p collective --example latency -- [ranks] [repetitions]
//!
//! Judge by minimum and median: on a shared machine the tail is the neighbours'.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use collective::{Algorithm, Group, Options, ReducePlan};
use link::{
    Encryption, HostId, Link, Listener, MeshConfig, Preference, Secret, Transport, connect_mesh,
};

const TRANSPORTS: [Transport; 3] = [Transport::Shm, Transport::TcpPlain, Transport::Tcp];
const WARM_UP: usize = 200;

fn main() {
    let argument = |at: usize, default: usize| {
        std::env::args().nth(at).map_or(default, |text| text.parse().expect("a whole number"))
    };
    let (ranks, repetitions) = (argument(1, 2), argument(2, 20_000));

    println!("| half round trip, 2 ranks | bytes | min us | median us | p99 us |");
    println!("|---|---|---|---|---|");
    for transport in TRANSPORTS {
        for bytes in [64, 8192, 65_472] {
            let times = on_ranks(2, transport, |rank, mut links| {
                ping_pong(rank, links.pop().expect("one link"), bytes, repetitions)
            });
            println!("| {transport} | {bytes} | {} |", row(times));
        }
    }

    println!("\n| all-reduce, {ranks} ranks | algorithm | f32 | min us | median us | p99 us |");
    println!("|---|---|---|---|---|---|");
    for transport in TRANSPORTS {
        for len in [64, 2048, 4096, 16_384, 65_536, 1 << 20] {
            for algorithm in [Algorithm::OneShot, Algorithm::TwoPhase] {
                let options = Options { algorithm, ..Options::default() };
                let repetitions = (repetitions * 2048 / len.max(2048)).max(20);
                let times = on_ranks(ranks, transport, |rank, links| {
                    let abort = Arc::new(AtomicBool::new(false));
                    let group = Group::new(rank, links, abort, options.clone());
                    all_reduce(group.expect("the mesh is complete"), len, repetitions)
                });
                println!("| {transport} | {algorithm:?} | {len} | {} |", row(times));
            }
        }
    }
}

/// Builds a mesh of pinned threads and runs `act` on each; returns what rank 0 measured.
fn on_ranks(
    ranks: usize,
    transport: Transport,
    act: impl Fn(usize, Vec<Box<dyn Link>>) -> Vec<Duration> + Sync,
) -> Vec<Duration> {
    let loopback = "127.0.0.1:0".parse().expect("an address");
    let bind = |_| Listener::bind(loopback).expect("a free port");
    let listeners: Vec<Listener> = (0..ranks).map(bind).collect();
    let (preference, encryption) = match transport {
        Transport::Shm => (Preference::Shm, Encryption::Sealed),
        Transport::Tcp => (Preference::Tcp, Encryption::Sealed),
        Transport::TcpPlain => (Preference::Tcp, Encryption::Plain),
        Transport::Rdma => (Preference::Rdma, Encryption::Sealed),
    };
    let config = MeshConfig {
        rank: 0,
        addrs: listeners.iter().map(Listener::addrs).collect(),
        peers: None,
        instance: std::process::id().to_le_bytes().repeat(4).try_into().expect("16 bytes"),
        epoch: 1,
        secret: Secret::new([1; 32]),
        preference,
        encryption,
        host: HostId::current(),
        latency: Duration::ZERO,
        deadline: Duration::from_secs(10),
    };
    thread::scope(|scope| {
        let start = |(rank, listener)| {
            let (config, act) = (MeshConfig { rank, ..config.clone() }, &act);
            scope.spawn(move || {
                pin(rank);
                let abort = AtomicBool::new(false);
                act(rank, connect_mesh(listener, &config, &abort).expect("a mesh").links)
            })
        };
        let threads: Vec<_> = listeners.iter().enumerate().map(start).collect();
        let mut times = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let first = times.next().expect("there is a rank 0");
        times.for_each(drop);
        first
    })
}

/// Half the time of each round trip.
fn ping_pong(rank: usize, mut link: Box<dyn Link>, bytes: usize, rounds: usize) -> Vec<Duration> {
    let message = vec![7u8; bytes];
    let mut answer = vec![0u8; bytes];
    let mut round = |rank: usize| {
        if rank == 0 {
            send(&mut *link, &message);
        }
        recv(&mut *link, &mut answer);
        if rank == 1 {
            send(&mut *link, &message);
        }
    };
    let times = timed(rounds, || round(rank));
    times.into_iter().map(|time| time / 2).collect()
}

fn send(link: &mut dyn Link, message: &[u8]) {
    loop {
        if let Some(slot) = link.poll_send().expect("the peer lives") {
            slot[..message.len()].copy_from_slice(message);
            break;
        }
        std::hint::spin_loop();
    }
    link.commit(message.len()).expect("the peer lives");
    while !link.progress().expect("the peer lives") {}
}

fn recv(link: &mut dyn Link, answer: &mut [u8]) {
    loop {
        if let Some(message) = link.poll_recv().expect("the peer lives") {
            answer.copy_from_slice(message);
            break;
        }
        std::hint::spin_loop();
    }
    link.consume();
}

/// An even split of 16 leaves: one part a rank where the number of ranks is a power of two.
fn all_reduce(mut group: Group, len: usize, repetitions: usize) -> Vec<Duration> {
    let ranks = group.ranks();
    let spans: Vec<_> = (0..ranks).map(|rank| 16 * rank / ranks..16 * (rank + 1) / ranks).collect();
    let plan = ReducePlan::new(16, &spans).expect("the spans hold each leaf once");
    let parts = vec![1.0; plan.parts(group.rank()) * len];
    let mut total = vec![0.0; len];
    timed(repetitions, || group.all_reduce(&plan, &parts, &mut total).expect("all ranks live"))
}

fn timed(repetitions: usize, mut act: impl FnMut()) -> Vec<Duration> {
    (0..WARM_UP.min(repetitions)).for_each(|_| act());
    let mut times = Vec::with_capacity(repetitions);
    for _ in 0..repetitions {
        let started = Instant::now();
        act();
        times.push(started.elapsed());
    }
    times
}

fn row(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64;
    format!("{:.2} | {:.2} | {:.2}", at(0.0) / 1e3, at(0.5) / 1e3, at(0.99) / 1e3)
}

#[cfg(target_os = "linux")]
fn pin(rank: usize) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    set.set(rank % cores);
    sched_setaffinity(None, &set).expect("the core exists");
}

#[cfg(not(target_os = "linux"))]
fn pin(_rank: usize) {}
