//! Addresses that lead nowhere: what a pair does without, and what it says.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use link::{MeshConfig, MeshError, Met, Preference, connect_mesh};

use crate::common::{addrs, config, listener_of, recv, same, send};

/// Beyond this a silent link ends the epoch; a link that was given up must not count.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// An address that nobody has, and one that takes connections and never answers.
fn nowhere(is_silent: bool) -> (SocketAddr, Option<TcpListener>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), Some(listener).filter(|_| is_silent))
}

/// Ranks 0 and 1 with so many addresses each; those of rank 0 in `dead` lead rank 1 nowhere.
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

/// Meets, and returns the links of the pair and what was said. Messages must pass, and go on to.
fn links_and_notes(counts: [usize; 2], dead: &[usize], is_silent: bool) -> (usize, Vec<String>) {
    let [mut left, mut right] = meet(counts, dead, is_silent, |_| {}).map(Result::unwrap);
    let links = [&left, &right].map(|met| met.links[0].info().links);
    assert_eq!(links[0], links[1], "{counts:?} {dead:?}");
    thread::sleep(SILENCE_MAX + Duration::from_millis(200));
    let (left_link, right_link) = (&mut *left.links[0], &mut *right.links[0]);
    for len in [1, 30_000] {
        send(left_link, &vec![7; len]).unwrap();
        send(right_link, &vec![8; len]).unwrap();
        assert_eq!(recv(left_link).unwrap(), vec![8; len]);
        assert_eq!(recv(right_link).unwrap(), vec![7; len]);
    }
    for link in [&*left_link, &*right_link] {
        assert!(link.vital().silence() < SILENCE_MAX, "{counts:?} {dead:?}");
    }
    left.notes.extend(right.notes);
    (links[0], left.notes)
}

#[test]
fn an_address_that_leads_nowhere_is_left_out_and_said() {
    thread::scope(|scope| {
        // Addresses of the two ranks, those that lead nowhere, the links that remain and, of those
        // that do not, the one that is named.
        for (counts, dead, expected, named) in [
            ([2, 2], &[][..], 2, None),
            ([2, 2], &[1], 1, Some(2)),
            ([2, 2], &[0], 1, Some(1)),
            ([3, 3], &[1], 2, Some(2)),
            // One link is all that the two can have, and the other address serves for it.
            ([2, 1], &[0], 1, Some(1)),
            ([2, 1], &[1], 1, None),
        ] {
            for is_silent in [false, true] {
                scope.spawn(move || {
                    let (links, notes) = links_and_notes(counts, dead, is_silent);
                    assert_eq!(links, expected, "{counts:?} {dead:?}: {notes:?}");
                    let text = notes.join("; ");
                    assert_eq!(notes.len(), usize::from(named.is_some()), "{dead:?}: {text}");
                    if let Some(number) = named {
                        let said = format!("link {number} between ranks 1 and 0 is left out: 127.");
                        assert!(text.contains(&said), "{text}");
                        let why = if is_silent { "does not answer" } else { "refused" };
                        assert!(text.contains(why), "{text}");
                    }
                });
            }
        }
    });
}

#[test]
fn a_rank_none_of_whose_addresses_is_reached_is_missing() {
    let deadline = Duration::from_secs(3);
    let ends = meet([2, 2], &[0, 1], false, |config| config.deadline = deadline);
    let texts = ends.map(|end| match end {
        Err(error @ MeshError::Missing { .. }) => error.to_string(),
        end => panic!("{:?}", end.err()),
    });
    assert!(texts[0].contains("rank 1 (it never dialed)"), "{}", texts[0]);
    assert_eq!(texts[1].matches("refused").count(), 2, "both addresses: {}", texts[1]);
}

#[test]
fn links_that_shared_memory_makes_useless_are_said_once() {
    let ends = meet([1, 1], &[], false, |config| {
        (config.preference, config.links) = (Preference::Auto, Some(3));
    });
    let notes: Vec<String> = ends.into_iter().flat_map(|end| end.unwrap().notes).collect();
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.contains("ranks 1 and 0") && note.contains("share memory"), "{note}");
}
