//! The counters of a rank: traffic of its links, and waits.

use std::sync::Barrier;
use std::time::Duration;

use collective::{Options, Traffic};
use link::Preference;

use crate::common::run;

const LATE: Duration = Duration::from_millis(300);

#[test]
fn who_waits_counts_it() {
    run(2, Preference::Tcp, &Options::default(), |mut group| {
        group.barrier().unwrap();
        let before = group.waited();
        if group.rank() == 1 {
            std::thread::sleep(LATE);
        }
        let mut message = vec![7; 100];
        group.broadcast(1, &mut message).unwrap();
        let waited = group.waited() - before;
        // Far less than that, so that a rank that starts its wait late does not fail.
        assert!(group.rank() == 1 || waited >= LATE / 100, "{waited:?}");
        let of_each: Vec<_> = group.waits().map(|(peer, _)| peer).collect();
        assert_eq!(of_each, [1 - group.rank()]);
        group.barrier().unwrap();
    });
}

#[test]
fn a_wait_is_for_who_comes_last() {
    run(3, Preference::Tcp, &Options::default(), |mut group| {
        group.barrier().unwrap();
        let before: Vec<_> = group.waits().collect();
        if group.rank() == 2 {
            std::thread::sleep(LATE);
        }
        group.barrier().unwrap();
        let waited = group.waits().zip(before).map(|((peer, now), (_, then))| (peer, now - then));
        let most = waited.max_by_key(|(_, waited)| *waited).unwrap();
        assert!(group.rank() == 2 || most.0 == 2 && most.1 >= LATE / 100, "{most:?}");
    });
}

#[test]
fn each_byte_is_counted_at_both_ends_of_its_link() {
    for transport in [Preference::Shm, Preference::Tcp] {
        run(3, transport, &Options::default(), |mut group| {
            let sent = |group: &collective::Group| group.traffic().collect::<Vec<Traffic>>();
            assert!(sent(&group).iter().all(|link| link.sent_bytes + link.received_bytes == 0));
            // Longer than a message, so that there are several.
            let mut message = if group.rank() == 0 { vec![7; 200_000] } else { Vec::new() };
            group.broadcast(0, &mut message).unwrap();
            let links = sent(&group);
            let headers = 200_000..201_000;
            match group.rank() {
                0 => {
                    let peers: Vec<usize> = links.iter().map(|link| link.peer).collect();
                    assert_eq!(peers, [1, 2]);
                    assert!(links.iter().all(|link| headers.contains(&link.sent_bytes)));
                    assert!(links.iter().all(|link| link.received_bytes == 0));
                }
                _ => {
                    assert!(headers.contains(&links[0].received_bytes), "{links:?}");
                    let idle = [links[0].sent_bytes, links[1].sent_bytes, links[1].received_bytes];
                    assert_eq!(idle, [0, 0, 0]);
                }
            }
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_rank_without_work_is_told_so_and_asks_again() {
    let both = Barrier::new(2);
    run(2, Preference::Tcp, &Options::default(), |mut group| {
        let mut message = Vec::new();
        if group.rank() == 0 {
            both.wait();
            message = vec![1, 2, 3];
        } else {
            let wait = Duration::from_millis(5);
            assert!(!group.broadcast_idle(0, &mut message, wait).unwrap());
            assert!(message.is_empty());
            both.wait();
        }
        assert!(group.broadcast_idle(0, &mut message, Duration::MAX).unwrap());
        assert_eq!(message, [1, 2, 3]);
        group.barrier().unwrap();
    });
}
