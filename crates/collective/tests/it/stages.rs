//! Stages: collectives within one, and messages between them, without blocking each other.

use std::sync::Barrier;
use std::time::Duration;

use collective::{CollectiveError, Group, Options, ReducePlan};
use link::Preference;

use crate::common::run_links;

const TRANSPORTS: [Preference; 2] = [Preference::Shm, Preference::Tcp];

/// Longer than any link's slots and a socket's buffers hold.
const LONG_BYTES: usize = 24 << 20;

/// Two stages of two ranks each; `act` also gets the rank. A finished rank returns its group, so
/// that no rank sees it as lost while still working itself.
fn run_staged<T: Send>(
    transport: Preference,
    options: &Options,
    act: impl Fn(usize, Group) -> T + Sync,
) -> Vec<T> {
    run_links(4, transport, |rank, links, abort| {
        let first = rank / 2 * 2;
        let stage = first..first + 2;
        act(rank, Group::in_stage(rank, 4, stage, links, abort, options.clone()).unwrap())
    })
}

fn sum_in_stage(group: &mut Group, value: f32) -> Result<f32, CollectiveError> {
    let plan = ReducePlan::new(2, &[0..1, 1..2])?;
    let mut total = [0.0; 3];
    group.all_reduce(&plan, 1, &[value; 3], &mut total)?;
    Ok(total[2])
}

#[test]
fn collectives_stay_within_a_stage() {
    for transport in TRANSPORTS {
        let ends = run_staged(transport, &Options::default(), |rank, mut group| {
            assert_eq!((group.rank(), group.ranks()), (rank % 2, 2));
            let mut message = vec![rank as u8];
            group.broadcast(0, &mut message).unwrap();
            assert_eq!(message, [rank as u8 / 2 * 2]);
            (sum_in_stage(&mut group, rank as f32).unwrap(), group)
        });
        let sums: Vec<f32> = ends.iter().map(|(sum, _open)| *sum).collect();
        assert_eq!(sums, [1.0, 1.0, 5.0, 5.0]);
    }
}

/// Every rank sends a message too long for the buffers to its partner in the other stage, and only
/// then takes its partner's, while the stages' collectives continue in between.
#[test]
fn long_messages_cross_without_a_deadlock_and_in_order() {
    for transport in TRANSPORTS {
        run_staged(transport, &Options::default(), |rank, mut group| {
            let partner = (rank + 2) % 4;
            for round in 0..3 {
                let fill = (10 * round + rank) as u8;
                if rank >= 2 {
                    sum_in_stage(&mut group, 1.0).unwrap();
                }
                group.post(partner, &vec![fill; LONG_BYTES]).unwrap();
                group.post(partner, &[fill, 1]).unwrap();
                group.post(partner, &[]).unwrap();
                if rank < 2 {
                    sum_in_stage(&mut group, 1.0).unwrap();
                }
                let expected = (10 * round + partner) as u8;
                let mut message = Vec::new();
                group.take(partner, &mut message).unwrap();
                assert!(message.len() == LONG_BYTES && message.iter().all(|b| *b == expected));
                group.take_idle(partner, &mut message, Duration::MAX).unwrap();
                assert_eq!(message, [expected, 1]);
                while !group.try_take(partner, &mut message).unwrap() {}
                assert_eq!(message, []);
            }
            assert!(!group.try_take(partner, &mut Vec::new()).unwrap());
            group
        });
    }
}

#[test]
fn a_lost_rank_of_another_stage_is_named_in_every_kind_of_wait() {
    for transport in TRANSPORTS {
        for wait in 0..4 {
            let ends = run_staged(transport, &Options::default(), |rank, mut group| {
                let mut message = Vec::new();
                Some(match (rank, wait) {
                    (3, _) => return None,
                    (2, _) => sum_in_stage(&mut group, 1.0).unwrap_err(),
                    (_, 0) => group.take(3, &mut message).unwrap_err(),
                    (_, 1) => group.take_idle(3, &mut message, Duration::MAX).unwrap_err(),
                    (0, 2) => group.take_idle(2, &mut message, Duration::MAX).unwrap_err(),
                    (_, 2) => group.broadcast_idle(0, &mut message, Duration::MAX).unwrap_err(),
                    _ => loop {
                        if let Err(error) = group.post(3, &[7; 1000]) {
                            break error;
                        }
                    },
                })
            });
            for (rank, end) in ends.into_iter().enumerate() {
                let named = end.as_ref().is_none_or(|error| error.rank() == Some(3));
                assert!(named, "{transport:?} wait {wait}: rank {rank} blames {end:?}");
            }
        }
    }
}

/// The other stage computes and does not notice.
#[test]
fn a_lost_rank_of_the_own_stage_ends_a_wait_for_another_stage() {
    for transport in TRANSPORTS {
        let all_ended = Barrier::new(3);
        let options = Options { wait_max: Duration::from_secs(10), ..Options::default() };
        let ends = run_staged(transport, &options, |rank, mut group| {
            let end = match rank {
                1 => return None,
                0 => group.take(2, &mut Vec::new()).err(),
                _ => None,
            };
            all_ended.wait();
            end
        });
        let end = ends.into_iter().flatten().next();
        assert!(matches!(end, Some(CollectiveError::Lost { rank: 1, .. })), "{end:?}");
    }
}

/// The first bytes of a message of 100, as written by a rank that then hangs.
fn begun_message() -> Vec<u8> {
    const SEND: u8 = 6;
    let mut message = [0; 24];
    (message[0], message[8]) = (SEND, 100);
    message.to_vec()
}

#[test]
fn a_message_that_does_not_go_on_is_late_though_its_beginning_may_take_forever() {
    let wait_max = Duration::from_millis(150);
    for transport in TRANSPORTS {
        let ended = Barrier::new(2);
        let ends = run_links(2, transport, |rank, mut links, abort| {
            let options = Options { wait_max, ..Options::default() };
            if rank == 1 {
                std::thread::sleep(2 * wait_max);
                let message = begun_message();
                let slot = links[0].poll_send().unwrap().unwrap();
                slot[..message.len()].copy_from_slice(&message);
                links[0].commit(message.len()).unwrap();
                ended.wait();
                return None;
            }
            let mut group = Group::in_stage(0, 2, 0..1, links, abort, options).unwrap();
            let end = group.take_idle(1, &mut Vec::new(), Duration::MAX);
            ended.wait();
            Some(end)
        });
        let end = ends.into_iter().flatten().next().unwrap();
        assert!(matches!(end, Err(CollectiveError::Late { rank: 1, .. })), "{end:?}");
    }
}

#[test]
fn what_is_no_stage_and_no_pipe_is_refused() {
    run_links(3, Preference::Shm, |rank, links, abort| {
        let mut group = Group::new(rank, links, abort, Options::default()).unwrap();
        assert!(matches!(group.post((rank + 1) % 3, &[1]), Err(CollectiveError::Links { .. })));
    });
    for stage in [|rank| rank..4, |rank| (rank + 1) % 3..(rank + 1) % 3 + 1] {
        run_links(3, Preference::Shm, |rank, links, abort| {
            let options = Options::default();
            assert!(Group::in_stage(rank, 3, stage(rank), links, abort, options).is_err());
        });
    }
}
