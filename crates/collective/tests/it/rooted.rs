//! Broadcast, gather, all-gather, send, receive, barrier: over both transports.

use std::time::Duration;

use crate::common::{run, run_links, run_ring};
use collective::{CollectiveError, Group, Options};
use fastrand::Rng;
use link::Preference;

const TRANSPORTS: [Preference; 2] = [Preference::Shm, Preference::Tcp];

/// Runs on 1 to 5 ranks over each transport, and on 5 with links between neighbours only.
fn on_each(act: impl Fn(Group) + Sync) {
    for transport in TRANSPORTS {
        for ranks in 1..=5 {
            run(ranks, transport, &Options::default(), &act);
        }
        run_ring(5, transport, &Options::default(), &act);
    }
}

#[test]
fn broadcast_copies_from_every_root() {
    on_each(|mut group| {
        for root in 0..group.ranks() {
            for len in [0, 1, 1000, 65_456, 65_457, 300_000] {
                let message: Vec<u8> = (0..len).map(|at| (at * 7 + root) as u8).collect();
                let ours = group.rank() == root;
                let mut buffer = if ours { message.clone() } else { b"stale".to_vec() };
                if len % 2 == 0 {
                    group.broadcast(root, &mut buffer).unwrap();
                } else {
                    group.broadcast_idle(root, &mut buffer, Duration::MAX).unwrap();
                }
                assert!(buffer == message, "{len} bytes from {root}");
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn gathers_put_uneven_slices_in_order_of_rank() {
    on_each(|mut group| {
        for (base, step) in [(0, 1), (3, 0), (20_000, 7_000)] {
            let lens: Vec<usize> = (0..group.ranks()).map(|rank| base + step * rank).collect();
            let value = |rank: usize, at: usize| (rank * 100_000 + at) as f32;
            let own: Vec<f32> = (0..lens[group.rank()]).map(|at| value(group.rank(), at)).collect();
            let expected: Vec<f32> = (0..group.ranks())
                .flat_map(|rank| (0..lens[rank]).map(move |at| value(rank, at)))
                .collect();

            let mut all = vec![f32::NAN; expected.len()];
            group.all_gather(&own, &lens, &mut all).unwrap();
            assert!(all == expected);

            let root = group.ranks() - 1;
            let mut all = vec![f32::NAN; if group.rank() == root { expected.len() } else { 0 }];
            group.gather(root, &own, &lens, &mut all).unwrap();
            assert!(group.rank() != root || all == expected);
        }
    });
}

#[test]
fn values_pass_through_a_pipeline() {
    on_each(|mut group| {
        let (rank, ranks) = (group.rank(), group.ranks());
        for len in [0, 1, 5000, 100_000] {
            let mut values: Vec<f32> = (0..len).map(|at| at as f32).collect();
            if rank > 0 {
                values.fill(0.0);
                group.recv(rank - 1, &mut values).unwrap();
            }
            values.iter_mut().for_each(|value| *value += 1.0);
            if rank + 1 < ranks {
                group.send(rank + 1, &values).unwrap();
            }
            let passed = (rank + 1) as f32;
            assert!(values.iter().enumerate().all(|(at, value)| *value == at as f32 + passed));
        }
    });
}

#[test]
fn a_barrier_holds_everyone_until_the_last() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let entered = AtomicUsize::new(0);
    run(4, Preference::Auto, &Options::default(), |mut group| {
        for round in 1..=50 {
            if group.rank() == round % 4 {
                std::thread::sleep(Duration::from_micros(200));
            }
            entered.fetch_add(1, Ordering::SeqCst);
            group.barrier().unwrap();
            assert!(entered.load(Ordering::SeqCst) >= 4 * round);
        }
    });
}

#[test]
fn any_sequence_of_collectives_keeps_its_order() {
    for seed in 0..20 {
        println!("seed {seed}");
        for transport in TRANSPORTS {
            run(3, transport, &Options::default(), |mut group| {
                // The same seed on every rank.
                let mut random = Rng::with_seed(seed);
                for _ in 0..40 {
                    let root = random.usize(..3);
                    let len = random.usize(..30_000);
                    let fill = random.usize(..200) as u8;
                    let mut bytes = if group.rank() == root { vec![fill; len] } else { Vec::new() };
                    match random.usize(..4) {
                        0 => group.broadcast(root, &mut bytes).unwrap(),
                        1 => {
                            let wait = Duration::MAX;
                            assert!(group.broadcast_idle(root, &mut bytes, wait).unwrap());
                        }
                        2 => {
                            let lens = [len, 0, len / 2];
                            let own = vec![f32::from(fill); lens[group.rank()]];
                            let mut all = vec![0.0; len + len / 2];
                            group.all_gather(&own, &lens, &mut all).unwrap();
                            assert!(all.iter().all(|value| *value == f32::from(fill)));
                            continue;
                        }
                        _ => {
                            group.barrier().unwrap();
                            continue;
                        }
                    }
                    assert!(bytes == vec![fill; len]);
                }
            });
        }
    }
}

#[test]
fn a_message_over_the_limit_is_refused_by_both_ends() {
    // The limit of each rank; a message longer than the sender's limit never leaves.
    for (bytes_max, judge) in [([1000, 2000], 0), ([2000, 1000], 1)] {
        let ends = run_links(2, Preference::Auto, |rank, links, abort| {
            let options = Options { bytes_max: bytes_max[rank], ..Options::default() };
            let mut group = Group::new(rank, links, abort, options).unwrap();
            match (rank, judge) {
                (1, 0) => Ok(()),
                _ => group.broadcast(0, &mut vec![1; 1001]),
            }
        });
        let judged = &ends[judge];
        assert!(matches!(judged, Err(CollectiveError::TooLong { .. })), "{judged:?}");
    }
}
