//! Addresses that lead nowhere: a pair takes the next one and notes the failure.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use link::{MeshConfig, MeshError, Met, Preference, connect_mesh};

use crate::common::{addrs, config, listener_of, recv, same, send};

/// A longer silence ends the epoch; an abandoned address must not count.
// Short: the silence is the link's own, with heartbeats many times as often.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// An unused address, or one that accepts connections and never answers.
fn nowhere(is_silent: bool) -> (SocketAddr, Option<TcpListener>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), Some(listener).filter(|_| is_silent))
}

/// Ranks 0 and 1 with `counts` addresses; those of rank 0 in `dead` lead rank 1 nowhere.
fn meet(
    counts: [usize; 2],
    dead: &[usize],
    is_silent: bool,
    adjust: impl Fn(&mut MeshConfig),
) -> [Result<Met, MeshError>; 2] {
    let listeners = counts.map(listener_of);
    let mut config = MeshConfig { preference: Preference::Tcp, ..config(addrs(&listeners)) };
    adjust(&mut config);
    let mut configs = same(&config);
    let mut held = Vec::new();
    for at in dead {
        let (addr, listener) = nowhere(is_silent);
        configs[1].addrs[0][*at] = addr;
        held.push(listener);
    }
    thread::scope(|scope| {
        let threads = [0, 1].map(|rank| {
            let (listener, config) = (&listeners[rank], &configs[rank]);
            scope.spawn(move || connect_mesh(listener, config, &AtomicBool::new(false)))
        });
        threads.map(|thread| thread.join().unwrap())
    })
}

/// Links the ranks and returns the notes. Messages must pass, now and later.
fn notes(counts: [usize; 2], dead: &[usize], is_silent: bool) -> Vec<String> {
    let [mut left, mut right] = meet(counts, dead, is_silent, |_| {}).map(Result::unwrap);
    // Sleeps: nothing may happen to the link in this time.
    thread::sleep(SILENCE_MAX + Duration::from_millis(200));
    let (left_link, right_link) = (&mut *left.links[0], &mut *right.links[0]);
    for len in [1, 30_000] {
        send(left_link, &vec![7; len]).unwrap();
        send(right_link, &vec![8; len]).unwrap();
        assert_eq!(recv(left_link).unwrap(), vec![8; len]);
        assert_eq!(recv(right_link).unwrap(), vec![7; len]);
    }
    for link in [&*left_link, &*right_link] {
        assert!(link.liveness().silence() < SILENCE_MAX, "{counts:?} {dead:?}");
    }
    left.notes.extend(right.notes);
    left.notes
}

#[test]
fn the_first_address_that_answers_is_used_and_the_others_before_it_are_said() {
    thread::scope(|scope| {
        // Numbers of addresses of the two ranks, and the dead ones of rank 0.
        for (counts, dead) in [([2, 2], &[][..]), ([2, 2], &[1]), ([2, 1], &[0]), ([3, 1], &[0, 1])]
        {
            for is_silent in [false, true] {
                scope.spawn(move || {
                    let notes = notes(counts, dead, is_silent);
                    let before = (0..).take_while(|at| dead.contains(at)).count();
                    let text = notes.join("; ");
                    assert_eq!(notes.len(), before.min(1), "{dead:?}: {text}");
                    if before > 0 {
                        assert!(text.contains("ranks 1 and 0 link over 127."), "{text}");
                        let why = if is_silent { "does not answer" } else { "refused" };
                        assert_eq!(text.matches(why).count(), before, "{text}");
                    }
                });
            }
        }
    });
}

#[test]
fn a_rank_none_of_whose_addresses_is_reached_is_missing() {
    // Short: its end is what is waited for.
    let deadline = Duration::from_secs(3);
    let ends = meet([2, 2], &[0, 1], false, |config| config.deadline = deadline);
    let texts = ends.map(|end| match end {
        Err(error @ MeshError::Missing { .. }) => error.to_string(),
        end => panic!("{:?}", end.err()),
    });
    assert!(texts[0].contains("rank 1 (it never dialed)"), "{}", texts[0]);
    assert_eq!(texts[1].matches("refused").count(), 2, "both addresses: {}", texts[1]);
}
