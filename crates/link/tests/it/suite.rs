//! The properties of every transport, checked on each of them.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Pair, pair, rdma_pair, recv, send, wait};
use link::rdma::Fabric;
use link::{Encryption, Link, LinkError, MESSAGE_BYTES_MAX, Preference, Transport};

type Make = fn() -> Pair;

/// Every way to make a pair, with the expected transport.
const KINDS: [(&str, Make, Transport); 7] = [
    ("shm", || pair(|config| config.preference = Preference::Shm), Transport::Shm),
    ("auto", || pair(|_| ()), Transport::Shm),
    ("tcp", || pair(|config| config.preference = Preference::Tcp), Transport::Tcp),
    (
        "tcp-plain",
        || {
            pair(|config| {
                config.preference = Preference::Tcp;
                config.encryption = Encryption::Plain;
            })
        },
        Transport::TcpPlain,
    ),
    ("rdma", || rdma_pair(&Fabric::new(2)), Transport::Rdma),
    // A device that accepts at most two receives.
    ("rdma, short queues", || rdma_pair(&Fabric::with_recv_frames(2, 6)), Transport::Rdma),
    // Short: the delay under test.
    ("delay", || pair(|config| config.latency = Duration::from_micros(200)), Transport::Shm),
];

/// A pair over this machine's own RDMA device; its port must reach itself.
const DEVICE: (&str, Make, Transport) =
    ("rdma device", || pair(|config| config.preference = Preference::Rdma), Transport::Rdma);

/// Set on machines with such a device (`tests/rdma-vm`): the suite then tests only that device.
const DEVICE_VARIABLE: &str = "SINEW_TEST_RDMA_DEVICE";

fn kinds() -> Vec<(&'static str, Make, Transport)> {
    match std::env::var_os(DEVICE_VARIABLE) {
        Some(_) => vec![DEVICE],
        None => KINDS.to_vec(),
    }
}

/// Runs one property over every transport.
fn on_each(property: impl Fn(Box<dyn Link>, Box<dyn Link>)) {
    for (name, make, transport) in kinds() {
        println!("transport {name}");
        let (left, right) = make();
        assert_eq!((left.info().peer, right.info().peer), (1, 0));
        assert_eq!((left.info().transport, right.info().transport), (transport, transport));
        property(left, right);
    }
}

/// Bytes that identify message and position.
fn pattern(message: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (message.wrapping_mul(31) ^ at ^ (at >> 8)) as u8).collect()
}

#[test]
fn messages_of_every_size_arrive_whole_and_in_order() {
    on_each(|mut left, mut right| {
        let max = left.message_bytes_max();
        assert!(max <= MESSAGE_BYTES_MAX && max == right.message_bytes_max());
        let sizes = [0, 1, 2, 3, 63, 64, 65, 4095, 4096, 8192, max - 1, max, 0, 7];
        for (at, &size) in sizes.iter().enumerate() {
            send(&mut *left, &pattern(at, size)).unwrap();
            assert!(recv(&mut *right).unwrap() == pattern(at, size), "{size} bytes");
        }
    });
}

#[test]
fn an_empty_link_has_no_message_and_a_lent_one_stays_until_consumed() {
    on_each(|mut left, mut right| {
        assert!(right.poll_recv().unwrap().is_none());
        send(&mut *left, b"one").unwrap();
        send(&mut *left, b"two").unwrap();
        for _ in 0..3 {
            assert_eq!(wait(|| Ok(right.poll_recv()?.map(<[u8]>::to_vec))).unwrap(), b"one");
        }
        right.consume();
        assert_eq!(recv(&mut *right).unwrap(), b"two");
        assert!(right.poll_recv().unwrap().is_none());
    });
}

#[test]
fn a_peer_that_takes_nothing_stops_the_sender_and_loses_nothing() {
    on_each(|mut left, mut right| {
        // A kernel buffers megabytes, so fill until it accepts nothing for a while.
        let mut sent = 0;
        let mut refusals = 0;
        while refusals < 1000 {
            match left.poll_send().unwrap() {
                Some(slot) => {
                    let len = slot.len();
                    slot.copy_from_slice(&pattern(sent, len));
                    left.commit(len).unwrap();
                    (sent, refusals) = (sent + 1, 0);
                }
                None => refusals += 1,
            }
            assert!(sent < 10_000, "no back-pressure");
        }
        assert!(sent >= 2);
        let len = right.message_bytes_max();
        let mut taken = 0;
        while taken < sent {
            left.progress().unwrap();
            if let Some(message) = right.poll_recv().unwrap() {
                assert!(message == pattern(taken, len), "message {taken} of {sent}");
                right.consume();
                taken += 1;
            }
        }
        send(&mut *left, b"room again").unwrap();
        assert_eq!(recv(&mut *right).unwrap(), b"room again");
    });
}

#[test]
fn both_directions_carry_a_large_volume_at_once() {
    on_each(|left, right| {
        let run = |mut link: Box<dyn Link>| {
            let total = 600;
            let max = link.message_bytes_max();
            let size = |at: usize| (at * 7919) % (max + 1);
            let (mut sent, mut taken) = (0, 0);
            let mut idle = 0u64;
            while taken < total || sent < total || !link.progress().unwrap() {
                idle += 1;
                if sent < total
                    && let Some(slot) = link.poll_send().unwrap()
                {
                    slot[..size(sent)].copy_from_slice(&pattern(sent, size(sent)));
                    link.commit(size(sent)).unwrap();
                    (sent, idle) = (sent + 1, 0);
                }
                if taken < total
                    && let Some(message) = link.poll_recv().unwrap()
                {
                    assert!(message == pattern(taken, size(taken)), "message {taken}");
                    link.consume();
                    (taken, idle) = (taken + 1, 0);
                }
                if idle > 10 {
                    thread::yield_now();
                }
            }
            link
        };
        thread::scope(|scope| {
            let there = scope.spawn(move || run(left));
            let here = scope.spawn(move || run(right));
            // Both links stay open until both threads are done.
            let _links = (there.join().unwrap(), here.join().unwrap());
        });
    });
}

#[test]
fn a_dropped_peer_is_lost_after_its_last_message() {
    on_each(|mut left, mut right| {
        send(&mut *left, b"last words").unwrap();
        drop(left);
        assert_eq!(recv(&mut *right).unwrap(), b"last words");
        let lost = wait::<()>(|| right.poll_recv().map(|_| None)).unwrap_err();
        assert!(matches!(lost, LinkError::Lost { peer: 0, .. }), "{lost}");
        assert_eq!(right.poll_recv().unwrap_err(), lost, "an error is repeated");
        assert_eq!(right.check().unwrap_err(), lost);
    });
}

#[test]
fn a_sender_notices_that_its_peer_is_gone() {
    on_each(|mut left, right| {
        drop(right);
        let full = vec![0; left.message_bytes_max()];
        let lost = wait::<()>(|| send(&mut *left, &full).map(|()| None)).unwrap_err();
        assert!(matches!(lost, LinkError::Lost { peer: 1, .. }), "{lost}");
    });
}

#[test]
fn check_finds_a_dead_peer_and_leaves_a_live_ones_messages() {
    on_each(|mut left, mut right| {
        send(&mut *left, b"kept").unwrap();
        right.check().unwrap();
        assert_eq!(recv(&mut *right).unwrap(), b"kept");
        drop(left);
        let lost = wait::<()>(|| right.check().map(|()| None)).unwrap_err();
        assert!(matches!(lost, LinkError::Lost { peer: 0, .. }), "{lost}");
    });
}

#[test]
fn a_sleeper_is_woken_by_a_message_and_by_the_end() {
    on_each(|mut left, mut right| {
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || {
                let mut wakes = 0;
                let mut next = |right: &mut Box<dyn Link>| loop {
                    right.wait_readable(crate::common::PATIENCE)?;
                    wakes += 1;
                    // A delayed message wakes its receiver before it is due.
                    assert!(wakes < 1_000_000, "woken for nothing");
                    if let Some(message) = right.poll_recv()? {
                        let message = message.to_vec();
                        right.consume();
                        return Ok::<_, LinkError>(message);
                    }
                };
                for round in 0..200usize {
                    assert_eq!(next(&mut right).unwrap(), pattern(round, 9));
                }
                assert!(matches!(next(&mut right).unwrap_err(), LinkError::Lost { .. }));
            });
            for round in 0..200usize {
                if round % 3 == 0 {
                    // Sleeps: so that the receiver does too.
                    thread::sleep(Duration::from_micros(300));
                }
                send(&mut *left, &pattern(round, 9)).unwrap();
            }
            // Sleeps: so that the receiver does too when the link is lost.
            thread::sleep(Duration::from_millis(20));
            drop(left);
            sleeper.join().unwrap();
        });
    });
}

#[test]
fn a_delay_holds_every_message_for_its_time_and_the_sender_not_at_all() {
    // Short: the delay under test.
    let latency = Duration::from_millis(20);
    let (mut left, mut right) = pair(|config| config.latency = latency);
    let started = Instant::now();
    // More messages than a ring has slots, all sent before the first is consumed.
    for at in 0..20 {
        send(&mut *left, &pattern(at, 1000)).unwrap();
        let _ = right.poll_recv().unwrap();
    }
    for at in 0..20 {
        assert_eq!(recv(&mut *right).unwrap(), pattern(at, 1000));
        assert!(started.elapsed() >= latency, "message {at} came early");
    }
}
