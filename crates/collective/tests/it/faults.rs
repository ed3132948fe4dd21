//! Ranks that die, freeze or fall out of step: all others end in time and name them.

use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use collective::{Algorithm, CollectiveError, Group, Options, ReducePlan};
use link::Preference;

use crate::common::{run, run_ring, run_with_abort};

const TRANSPORTS: [Preference; 2] = [Preference::Shm, Preference::Tcp];

/// One step of an instance, as the links see it.
fn step(group: &mut Group, len: usize) -> Result<(), CollectiveError> {
    let ranks = group.ranks();
    let mut plan_bytes = vec![0; 100];
    group.broadcast(0, &mut plan_bytes)?;
    let spans: Vec<_> = (0..ranks).map(|rank| 16 * rank / ranks..16 * (rank + 1) / ranks).collect();
    let plan = ReducePlan::new(16, &spans)?;
    let parts = vec![1.0; plan.parts(group.rank()) * len];
    let mut total = vec![0.0; len];
    group.all_reduce(&plan, 1, &parts, &mut total)?;
    group.gather(0, &[1.0], &vec![1; ranks], &mut vec![0.0; ranks])
}

/// Steps until the group fails.
fn steps_until_error(mut group: Group, len: usize) -> CollectiveError {
    loop {
        if let Err(error) = step(&mut group, len) {
            assert_eq!(group.barrier(), Err(error.clone()), "the first error is repeated");
            return error;
        }
    }
}

#[test]
fn survivors_of_a_killed_rank_name_it() {
    for transport in TRANSPORTS {
        for (ranks, algorithm, len) in [
            (2, Algorithm::OneShot, 2048),
            (3, Algorithm::TwoPhase, 2048),
            (4, Algorithm::OneShot, 100_000),
            (5, Algorithm::TwoPhase, 300_000),
        ] {
            for victim in 0..ranks {
                let options = Options { algorithm, ..Options::default() };
                let ends = run(ranks, transport, &options, |mut group| {
                    if group.rank() == victim {
                        (0..3).for_each(|_| step(&mut group, len).unwrap());
                        return None;
                    }
                    Some(steps_until_error(group, len))
                });
                for (rank, end) in ends.into_iter().enumerate() {
                    let named = end.as_ref().is_none_or(|error| {
                        matches!(error, CollectiveError::Lost { rank, .. } if *rank == victim)
                    });
                    assert!(named, "{transport:?} {ranks}: {rank} blames {end:?}, not {victim}");
                }
            }
        }
    }
}

#[test]
fn a_stuck_rank_is_late_and_named_by_all() {
    for transport in TRANSPORTS {
        for (ranks, algorithm) in [(2, Algorithm::OneShot), (4, Algorithm::TwoPhase)] {
            for victim in 0..ranks {
                let wait_max = Duration::from_millis(150);
                let options = Options { algorithm, wait_max, ..Options::default() };
                let all_ended = Barrier::new(ranks);
                let ends = run(ranks, transport, &options, |mut group| {
                    let end = if group.rank() == victim {
                        step(&mut group, 500).unwrap();
                        None
                    } else {
                        Some(steps_until_error(group, 500))
                    };
                    // The victim's process lives and does nothing.
                    all_ended.wait();
                    end
                });
                for (rank, end) in ends.into_iter().enumerate() {
                    let named = end.as_ref().is_none_or(|error| error.rank() == Some(victim));
                    assert!(named, "{transport:?} {ranks}: {rank} blames {end:?}, not {victim}");
                }
            }
        }
    }
}

#[test]
fn a_late_rank_that_comes_in_time_is_waited_for() {
    for transport in TRANSPORTS {
        run(3, transport, &Options::default(), |mut group| {
            for round in 0..4 {
                if group.rank() == round % 3 {
                    // Long enough for the other ranks to fall asleep.
                    thread::sleep(Duration::from_millis(40));
                }
                step(&mut group, 3000).unwrap();
            }
        });
    }
}

#[test]
fn a_rank_that_computes_for_longer_than_silence_may_last_is_waited_for() {
    for transport in TRANSPORTS {
        let options = Options { silence_max: Duration::from_secs(2), ..Options::default() };
        run(3, transport, &options, |mut group| {
            step(&mut group, 100).unwrap();
            if group.rank() == 1 {
                thread::sleep(Duration::from_secs(3));
            }
            step(&mut group, 100).unwrap();
        });
    }
}

#[test]
fn an_idle_rank_waits_beyond_the_deadline_and_wakes_for_work() {
    for transport in TRANSPORTS {
        // A busy machine may let a thread wait for tenths of a second.
        let options = Options { wait_max: Duration::from_secs(1), ..Options::default() };
        run(3, transport, &options, |mut group| {
            for round in 0..2u8 {
                let mut message = vec![round; 10];
                if group.rank() == 0 {
                    thread::sleep(Duration::from_millis(1300));
                } else {
                    message.clear();
                }
                group.broadcast_idle(0, &mut message, Duration::MAX).unwrap();
                assert_eq!(message, [round; 10]);
            }
        });
    }
}

#[test]
fn an_idle_rank_wakes_when_any_rank_is_lost() {
    for transport in TRANSPORTS {
        for victim in [0, 2] {
            let all_ended = Barrier::new(2);
            let ends = run(3, transport, &Options::default(), |mut group| {
                if group.rank() == victim {
                    return None;
                }
                let end = if group.rank() == 1 {
                    group.broadcast_idle(0, &mut Vec::new(), Duration::MAX).err()
                } else {
                    None
                };
                // The third rank stays silent and alive.
                all_ended.wait();
                end
            });
            let lost =
                matches!(ends[1], Some(CollectiveError::Lost { rank, .. }) if rank == victim);
            assert!(lost, "{:?}", ends[1]);
        }
    }
}

/// Rank 0 waits for no rank, and has no link to the lost rank or to some of those that notice.
#[test]
fn a_root_that_waits_for_nobody_hears_of_a_lost_rank_of_its_ring() {
    const PATIENCE: Duration = Duration::from_secs(10);
    for transport in TRANSPORTS {
        let ends = run_ring(5, transport, &Options::default(), |mut group| match group.rank() {
            0 => {
                let started = Instant::now();
                let mut checks = std::iter::repeat_with(|| {
                    thread::sleep(Duration::from_millis(20));
                    group.check_ranks().err()
                });
                checks.find(|end| end.is_some() || started.elapsed() > PATIENCE).flatten()
            }
            2 => None,
            _ => group.broadcast_idle(0, &mut Vec::new(), Duration::MAX).err(),
        });
        for rank in [0, 1, 3, 4] {
            let blamed = ends[rank].as_ref().and_then(CollectiveError::rank);
            assert_eq!(blamed, Some(2), "{transport:?}, rank {rank}: {:?}", ends[rank]);
        }
    }
}

#[test]
fn the_abort_flag_ends_every_wait() {
    type Wait = fn(&mut Group) -> Result<(), CollectiveError>;
    let waits: [Wait; 3] = [
        |group| group.broadcast_idle(1, &mut Vec::new(), Duration::MAX).map(drop),
        |group| group.barrier(),
        |group| step(group, 100),
    ];
    for transport in TRANSPORTS {
        for wait in waits {
            let all_ended = Barrier::new(2);
            let ends = run_with_abort(2, transport, &Options::default(), |mut group, abort| {
                let end = (group.rank() == 0).then(|| {
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            thread::sleep(Duration::from_millis(50));
                            abort.store(true, Ordering::Relaxed);
                        });
                        wait(&mut group)
                    })
                });
                all_ended.wait();
                end
            });
            assert_eq!(ends[0], Some(Err(CollectiveError::Aborted)));
        }
    }
}

#[test]
fn ranks_at_different_steps_find_out() {
    for transport in TRANSPORTS {
        let ends = run(2, transport, &Options::default(), |mut group| match group.rank() {
            // The peer's first barrier has come, its second never does.
            0 => group.send(1, &[1.0; 10]).and_then(|()| group.barrier().and(group.barrier())),
            _ => group.barrier(),
        });
        let expected = |end: &Result<(), CollectiveError>| match end {
            Err(CollectiveError::Mismatch { rank: 0, expected, found }) => {
                expected == "Barrier" && found == "Send"
            }
            _ => false,
        };
        assert!(expected(&ends[1]), "{ends:?}");
        assert!(matches!(ends[0], Err(CollectiveError::Lost { rank: 1, .. })), "{ends:?}");
    }
    let ends = run(2, Preference::Auto, &Options::default(), |mut group| match group.rank() {
        0 => group.send(1, &[1.0; 10]),
        _ => group.recv(0, &mut [0.0; 11]),
    });
    let text = ends[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("44 bytes") && text.contains("40 bytes"), "{text}");
}

#[test]
fn a_group_needs_one_link_to_each_peer() {
    run(3, Preference::Auto, &Options::default(), |group| {
        assert_eq!(group.ranks(), 3);
        assert_eq!(group.links().filter(|link| link.peer != group.rank()).count(), 2);
    });
    let abort = || std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let solo = Group::new(0, Vec::new(), abort(), Options::default()).unwrap();
    assert_eq!((solo.rank(), solo.ranks()), (0, 1));
    assert!(Group::new(1, Vec::new(), abort(), Options::default()).is_err());
}
