//! After set-up neither a link nor an all-reduce allocates. The test counts, in a binary with its
//! own allocator.

mod counting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use collective::{Algorithm, Group, Options, ReducePlan, Wire};
use link::rdma::Fabric;
use link::{Encryption, HostId, Link, Listener, MeshConfig, Preference, Secret, connect_mesh};

use counting::of_this_thread;

/// Echoes `rounds` messages of every size up to a full slot, and counts its allocations.
fn echo(link: &mut dyn Link, first: bool, rounds: usize) -> usize {
    let max = link.message_bytes_max();
    let before = of_this_thread();
    for round in 0..2 * rounds {
        if (round % 2 == 0) == first {
            while link.poll_send().unwrap().is_none() {
                thread::yield_now();
            }
            link.commit(round * 977 % max).unwrap();
            while !link.progress().unwrap() {
                thread::yield_now();
            }
        } else {
            while link.poll_recv().unwrap().is_none() {
                // Short: between two looks.
                link.wait_readable(Duration::from_millis(1)).unwrap();
            }
            link.consume();
            link.check().unwrap();
        }
    }
    of_this_thread() - before
}

/// Links two ranks, runs `act` on both and returns their counts. Links are held until both are
/// done.
fn on_pair(
    kind: Kind,
    act: impl Fn(usize, Box<dyn Link>) -> (usize, Box<dyn std::any::Any + Send>) + Sync,
) -> [usize; 2] {
    static EPOCHS: AtomicU64 = AtomicU64::new(1);
    let Kind { preference, latency } = kind;
    let fabric = Fabric::new(2);
    let bind = |at| {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.with_rdma(fabric.machine(at))
    };
    let listeners: Vec<Listener> = (0..2).map(bind).collect();
    let config = MeshConfig {
        rank: 0,
        addrs: listeners.iter().map(Listener::addrs).collect(),
        segments: Vec::new(),
        peers: None,
        instance: std::process::id().to_le_bytes().repeat(4).try_into().unwrap(),
        epoch: EPOCHS.fetch_add(1, Ordering::Relaxed),
        secret: Secret::new([1; 32]),
        preference,
        encryption: Encryption::Sealed,
        host: HostId::current(),
        latency,
        deadline: Duration::from_secs(60),
    };
    thread::scope(|scope| {
        let threads = [0, 1].map(|rank| {
            // A cable leads to another machine.
            let host = match preference {
                Preference::Rdma => HostId([rank as u8; 16]),
                _ => HostId::current(),
            };
            let config = MeshConfig { rank, host, ..config.clone() };
            let listener = &listeners[rank];
            let act = &act;
            scope.spawn(move || {
                let abort = AtomicBool::new(false);
                act(rank, connect_mesh(listener, &config, &abort).unwrap().links.pop().unwrap())
            })
        });
        threads.map(|thread| thread.join().unwrap()).map(|(count, _held)| count)
    })
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    preference: Preference,
    latency: Duration,
}

const KINDS: [Kind; 4] = [
    Kind { preference: Preference::Shm, latency: Duration::ZERO },
    Kind { preference: Preference::Tcp, latency: Duration::ZERO },
    // The software device, which does not allocate either.
    Kind { preference: Preference::Rdma, latency: Duration::ZERO },
    // Short: the delay under test.
    Kind { preference: Preference::Shm, latency: Duration::from_micros(50) },
];

#[test]
fn messages_cost_no_allocation() {
    assert!(of_this_thread() > 0, "the allocator counts");
    for kind in KINDS {
        let counts =
            on_pair(kind, |rank, mut link| (echo(&mut *link, rank == 0, 200), Box::new(link)));
        assert_eq!(counts, [0, 0], "{kind:?}");
    }
}

/// Lives here because the crate of the collectives holds no unsafe code, which an allocator is.
#[test]
fn an_all_reduce_costs_no_allocation() {
    let ways = [
        (Algorithm::OneShot, Wire::F32),
        (Algorithm::TwoPhase, Wire::F32),
        (Algorithm::OneShot, Wire::Q8),
        (Algorithm::TwoPhase, Wire::Q8),
        (Algorithm::Ring, Wire::F32),
    ];
    for kind in KINDS {
        for (algorithm, wire) in ways {
            let counts = on_pair(kind, |rank, link| {
                let options = Options { algorithm, wire, ..Options::default() };
                let abort = Arc::new(AtomicBool::new(false));
                let mut group = Group::new(rank, vec![link], abort, options).unwrap();
                // An uneven split, so that a rank sends several parts.
                let plan = ReducePlan::new(16, &[0..5, 5..16]).unwrap();
                let parts = vec![1.0; plan.parts(rank) * 2048];
                let mut total = vec![0.0; 2048];
                // The first grows the scratch.
                group.all_reduce(&plan, 1, &parts, &mut total).unwrap();
                let before = of_this_thread();
                for _ in 0..200 {
                    group.all_reduce(&plan, 1, &parts, &mut total).unwrap();
                }
                (of_this_thread() - before, Box::new(group))
            });
            assert_eq!(counts, [0, 0], "{kind:?} {algorithm:?} {wire:?}");
        }
    }
}

/// Messages between the stages of a pipeline. A message that arrives before its receive needs a
/// buffer, and the system's scheduler decides how many do at once. There can be at most six, and
/// each grows to the longest message once.
#[test]
fn messages_between_stages_stop_to_cost_allocations() {
    const BUFFERS_MAX: usize = 6;
    for kind in KINDS {
        let growing = on_pair(kind, |rank, link| {
            let abort = Arc::new(AtomicBool::new(false));
            let (stage, options) = (rank..rank + 1, Options::default());
            let mut group = Group::in_stage(rank, 2, stage, vec![link], abort, options).unwrap();
            let (out, mut back) = (vec![rank as u8; 100_000], Vec::new());
            let mut allocates = || {
                let before = of_this_thread();
                for _ in 0..20 {
                    // As with two steps in flight.
                    group.post(1 - rank, &out).unwrap();
                    group.post(1 - rank, &out[..9000]).unwrap();
                    group.take(1 - rank, &mut back).unwrap();
                    group.take_idle(1 - rank, &mut back, Duration::MAX).unwrap();
                }
                of_this_thread() > before
            };
            let growing = (0..40).filter(|_| allocates()).count();
            (growing, Box::new(group))
        });
        let most = growing.into_iter().max().unwrap();
        assert!(most <= 2 * BUFFERS_MAX, "{kind:?}: {growing:?} of 40 times");
    }
}

/// The message path never waits for a lock: the only lock is between the heartbeat thread and the
/// mesh that adds a new peer. (RDMA's locks are for its devices and its software twin.) The loop
/// over steps has none of its own: that of `records` is held while a key is looked up.
#[test]
fn no_lock_is_near_a_message() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    let mut folders: Vec<_> =
        ["link", "collective", "engine"].map(|name| crates.join(name).join("src")).into();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("link/src/rdma") {
                folders.push(path.clone());
            }
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            if ["Mutex", "RwLock", "Condvar"].iter().any(|lock| text.contains(lock)) {
                found.push(path.strip_prefix(crates).unwrap().to_owned());
            }
        }
    }
    found.sort();
    // Heartbeats, and the listener, which meets ranks before there are messages; and worlds of the
    // scheduler's simulation, which share a disk.
    let known = [
        "engine/src/scheduler/simulation/disk.rs",
        "link/src/liveness/mod.rs",
        "link/src/mesh/listener.rs",
    ];
    assert_eq!(found, known.map(std::path::PathBuf::from));
}
