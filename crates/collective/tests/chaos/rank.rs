//! One rank process: links on the parent's order, sums and checks until the epoch ends, reports its
//! end, and is ready for the next.

use std::io::BufRead;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use collective::{Algorithm, CollectiveError, Group, Options, ReducePlan};
use fastrand::Rng;
use link::{Encryption, HostId, Listener, MeshConfig, Preference, Secret, connect_mesh};

/// The argument that makes this program a rank.
pub const ARGUMENT: &str = "be-a-rank";

/// The time for the ranks of a round to find each other.
const LINK_DEADLINE: Duration = Duration::from_secs(2);

const LEAVES: usize = 16;

/// One line from the parent, parsed: the description of the next epoch.
struct Order {
    rank: usize,
    epoch: u64,
    seed: u64,
    preference: Preference,
    ring: bool,
    algorithm: Algorithm,
    instance: [u8; 16],
    addrs: Vec<SocketAddr>,
}

pub fn live() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let orders = read_orders();
    println!("addr {} {}", listener.addrs()[0], holdings());
    while let Ok((order, abort)) = orders.recv() {
        let (reduces, wrong, end) = epoch(&listener, &order, abort);
        println!("ended {reduces} {wrong} {} {end}", holdings());
    }
}

/// The reader thread: raises the running epoch's flag on `stop`, ends the process with its parent.
fn read_orders() -> Receiver<(Order, Arc<AtomicBool>)> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut abort = Arc::new(AtomicBool::new(false));
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line == "stop" {
                abort.store(true, Ordering::Relaxed);
            } else {
                abort = Arc::new(AtomicBool::new(false));
                let _ = sender.send((parse(&line), abort.clone()));
            }
        }
        std::process::exit(0);
    });
    receiver
}

fn parse(line: &str) -> Order {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap();
    Order {
        rank: word().parse().unwrap(),
        epoch: word().parse().unwrap(),
        seed: word().parse().unwrap(),
        preference: if word() == "Shm" { Preference::Shm } else { Preference::Tcp },
        ring: word().parse().unwrap(),
        algorithm: match word() {
            "OneShot" => Algorithm::OneShot,
            _ => Algorithm::TwoPhase,
        },
        instance: u128::to_le_bytes(word().parse().unwrap()),
        addrs: words.map(|addr| addr.parse().unwrap()).collect(),
    }
}

/// The number of sums, the number of wrong ones, and the end: the rank to blame and a text.
fn epoch(listener: &Listener, order: &Order, abort: Arc<AtomicBool>) -> (usize, usize, String) {
    let (rank, ranks) = (order.rank, order.addrs.len());
    let near = vec![(rank + 1) % ranks, (rank + ranks - 1) % ranks];
    let config = MeshConfig {
        rank,
        addrs: order.addrs.iter().map(|addr| vec![*addr]).collect(),
        segments: Vec::new(),
        peers: order.ring.then_some(near),
        instance: order.instance,
        epoch: order.epoch,
        secret: Secret::new([3; 32]),
        preference: order.preference,
        encryption: Encryption::Sealed,
        host: HostId::current(),
        latency: Duration::ZERO,
        deadline: LINK_DEADLINE,
    };
    let links = match connect_mesh(listener, &config, &abort) {
        Ok(met) => met.links,
        Err(error) => return (0, 0, format!("unlinked {error}")),
    };
    println!("linked");
    let options = Options { algorithm: order.algorithm, ..Options::default() };
    let mut group = Group::in_stage(rank, ranks, 0..ranks, links, abort, options).unwrap();
    let (mut reduces, mut wrong) = (0, 0);
    loop {
        match reduce(&mut group, order.seed.wrapping_add(reduces as u64)) {
            Ok(true) => {}
            Ok(false) => wrong += 1,
            Err(error) => {
                let blamed = error.rank().map_or("nobody".to_string(), |rank| rank.to_string());
                return (reduces, wrong, format!("{blamed} {error}"));
            }
        }
        reduces += 1;
    }
}

/// Runs one all-reduce of random values over a random split; whether every bit is right.
fn reduce(group: &mut Group, seed: u64) -> Result<bool, CollectiveError> {
    let mut random = Rng::with_seed(seed);
    let len_max = [64, 3000, 20_000][random.usize(..3)];
    let len = 1 + random.usize(..len_max);
    let leaves: Vec<Vec<f32>> = (0..LEAVES).map(|_| vector(&mut random, len)).collect();
    let spans = spans(&mut random, group.ranks());
    let plan = ReducePlan::new(LEAVES, &spans)?;
    let subtrees = sumtree::cover(LEAVES, spans[group.rank()].clone());
    let parts: Vec<f32> = subtrees.into_iter().flat_map(|tree| sum(&leaves, tree)).collect();
    let mut total = vec![f32::NAN; len];
    group.all_reduce(&plan, 1, &parts, &mut total)?;
    let expected = sum(&leaves, 0..LEAVES);
    Ok(total.iter().zip(&expected).all(|(total, value)| total.to_bits() == value.to_bits()))
}

fn vector(random: &mut Rng, len: usize) -> Vec<f32> {
    let scale = [1e-3, 1.0, 1e4][random.usize(..3)];
    (0..len).map(|_| (2.0 * random.f32() - 1.0) * scale).collect()
}

fn spans(random: &mut Rng, ranks: usize) -> Vec<Range<usize>> {
    let mut borders: Vec<usize> = (1..ranks).map(|_| random.usize(..LEAVES + 1)).collect();
    borders.extend([0, LEAVES]);
    borders.sort_unstable();
    borders.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The definition of the tree, on vectors.
fn sum(leaves: &[Vec<f32>], tree: Range<usize>) -> Vec<f32> {
    if tree.len() == 1 {
        return leaves[tree.start].clone();
    }
    let middle = tree.start + (tree.len().next_power_of_two() >> 1);
    let (left, right) = (sum(leaves, tree.start..middle), sum(leaves, middle..tree.end));
    left.iter().zip(&right).map(|(left, right)| left + right).collect()
}

/// The resources of this process: open files, mappings of shared objects, threads.
fn holdings() -> String {
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mappings = maps.lines().filter(|line| line.contains("/sinew-")).count();
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    format!("{files}/{mappings}/{threads}")
}
