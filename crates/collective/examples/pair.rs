//! All-reduces between two machines, every sum checked to the bit: one process on each.
//!
//!     RANK=0 MY_IP=10.0.0.1 PEER_IP=10.0.0.2 cargo run --example pair -- rdma 100
//!     RANK=1 MY_IP=10.0.0.2 PEER_IP=10.0.0.1 cargo run --example pair -- rdma 100
//!
//! The transport is `auto`, `tcp` or `rdma`; the number of rounds follows. The program prints the
//! transport that carried the messages and fails if a sum was wrong.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use collective::{Group, Options, ReducePlan};
use link::{Encryption, HostId, Listener, MeshConfig, Preference, Secret, connect_mesh};

const PORT: u16 = 7411;

/// Lengths in f32: less than a slot, two slots, many slots, and a tail.
const LENS: [usize; 5] = [1, 2048, 4097, 16_384, 100_003];

fn main() -> ExitCode {
    let transport = std::env::args().nth(1).unwrap_or("auto".to_string());
    let rounds = std::env::args().nth(2).map_or(100, |text| text.parse().expect("rounds"));
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let ip = |name: &str| variable(name).parse::<IpAddr>().expect("an address");
    let rank: usize = variable("RANK").parse().expect("0 or 1");
    let own = SocketAddr::new(ip("MY_IP"), PORT);
    let peer = SocketAddr::new(ip("PEER_IP"), PORT);
    let config = MeshConfig {
        rank,
        addrs: if rank == 0 { vec![vec![own], vec![peer]] } else { vec![vec![peer], vec![own]] },
        segments: Vec::new(),
        peers: None,
        instance: *b"example: a pair.",
        epoch: 1,
        secret: Secret::new([1; 32]),
        preference: match transport.as_str() {
            "tcp" => Preference::Tcp,
            "rdma" => Preference::Rdma,
            _ => Preference::Auto,
        },
        encryption: Encryption::Sealed,
        host: HostId::current(),
        latency: Duration::ZERO,
        deadline: Duration::from_secs(60),
    };
    let listener = Listener::bind(own).expect("a free port");
    let links = match connect_mesh(&listener, &config, &AtomicBool::new(false)) {
        Ok(met) => met.links,
        Err(error) => {
            eprintln!("rank {rank}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let info = links[0].info();
    let abort = Arc::new(AtomicBool::new(false));
    let group = Group::new(rank, links, abort, Options::default()).expect("the mesh is complete");
    match all_reduces(group, rounds) {
        Ok(wrong) => {
            println!("rank {rank}: {rounds} rounds over {}, {wrong} wrong", info.transport);
            if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("rank {rank} over {}: {error}", info.transport);
            ExitCode::FAILURE
        }
    }
}

/// Sums values that both ranks can compute, and returns the number of wrong sums.
fn all_reduces(mut group: Group, rounds: usize) -> Result<usize, collective::CollectiveError> {
    let plan = ReducePlan::new(2, &[0..1, 1..2]).expect("the spans hold each leaf once");
    let rank = group.rank();
    let mut wrong = 0;
    for round in 0..rounds {
        let len = LENS[round % LENS.len()];
        let of = |rank: usize| (0..len).map(move |at| value(rank, round, at));
        let parts: Vec<f32> = of(rank).collect();
        let mut total = vec![0.0; len];
        group.all_reduce(&plan, 1, &parts, &mut total)?;
        let right = of(0).zip(of(1)).map(|(first, second)| first + second);
        wrong +=
            total.iter().zip(right).filter(|(sum, right)| sum.to_bits() != right.to_bits()).count();
    }
    Ok(wrong)
}

/// Values of very different sizes, so that a wrong byte shows.
fn value(rank: usize, round: usize, at: usize) -> f32 {
    let mixed = ((rank + 1) * 0x9e37_79b9 + round * 0x85eb_ca6b + at * 0xc2b2_ae35) as u32;
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d);
    (mixed as i32 as f32) * [1e-9, 1e-3, 1.0][at % 3]
}
