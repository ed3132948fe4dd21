//! Several links between two ranks: how they are agreed on, what goes over which, and what happens
//! when one of them fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::{LinkError, MeshConfig, MeshError, Preference, connect_mesh};

use crate::common::{
    PATIENCE, Pair, addrs, bond, config, listeners, meshes, pair, recv, same, send, wait,
    wired_bond,
};

#[test]
fn a_pair_has_as_many_links_as_it_was_told() {
    for links in [1, 2, 8] {
        let (left, right) = bond(links);
        assert_eq!([left.info().links, right.info().links], [links; 2]);
    }
    let (left, right) = pair(|config| config.links = Some(3));
    assert_eq!([left.info().links, right.info().links], [1; 2], "shared memory is one link");
}

#[test]
fn every_pair_of_a_larger_mesh_is_bonded() {
    let listeners = listeners(4);
    let config = config(addrs(&listeners));
    let config = MeshConfig { preference: Preference::Tcp, links: Some(2), ..config };
    for mesh in meshes(&listeners, same(&config)) {
        let links = mesh.unwrap();
        assert_eq!(links.iter().map(|link| link.info().links).collect::<Vec<_>>(), [2; 3]);
    }
}

#[test]
fn nonsense_is_refused_with_what_is_possible() {
    let listeners = listeners(2);
    let good = config(addrs(&listeners));
    let no_address = vec![good.addrs[0].clone(), Vec::new()];
    for (bad, expected) in [
        (MeshConfig { links: Some(0), ..good.clone() }, "0 is outside 1 to 8"),
        (MeshConfig { links: Some(9), ..good.clone() }, "9 is outside 1 to 8"),
        (
            MeshConfig { links: Some(2), preference: Preference::Shm, ..good.clone() },
            "2 is outside what shared memory needs, which is 1",
        ),
        (MeshConfig { addrs: no_address, ..good.clone() }, "addresses of a rank: 0"),
    ] {
        let end = connect_mesh(&listeners[0], &bad, &AtomicBool::new(false));
        let text = end.err().unwrap().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn ranks_that_count_their_links_differently_say_so_on_both_ends() {
    let listeners = listeners(2);
    let config = MeshConfig { preference: Preference::Tcp, ..config(addrs(&listeners)) };
    let mut configs = same(&config);
    configs[0].links = Some(2);
    for end in meshes(&listeners, configs) {
        let error = end.err().unwrap();
        let what = "the number of links of the pair";
        assert!(matches!(error, MeshError::Mismatch { what: said, .. } if said == what), "{error}");
    }
}

/// Two equally slow wires, and what has gone by each.
fn counted_bond() -> (Pair, [Arc<AtomicUsize>; 2]) {
    let bytes: [Arc<AtomicUsize>; 2] = Default::default();
    let count = |at: usize| {
        let bytes = bytes[at].clone();
        move |passed| {
            bytes.fetch_add(passed, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(200));
            true
        }
    };
    (wired_bond([count(0), count(1)]), bytes)
}

#[test]
fn long_payloads_go_by_all_links_and_short_ones_by_one() {
    let ((mut left, mut right), bytes) = counted_bond();
    let counts = || bytes.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
    let since = |before: [usize; 2]| {
        let mut now = counts();
        now.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
        now
    };
    let before = counts();
    for _ in 0..50 {
        send(&mut *left, &[1; 4096]).unwrap();
        recv(&mut *right).unwrap();
    }
    // Beats take a few hundred bytes.
    let short = since(before);
    assert!(short.iter().any(|bytes| *bytes < 20_000), "{short:?} of 50 messages of 4 KiB");

    let (before, payload) = (counts(), vec![2; left.message_bytes_max()]);
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..64).for_each(|_| send(&mut *left, &payload).unwrap());
            while !left.progress().unwrap() {
                thread::yield_now();
            }
        });
        (0..64).for_each(|_| assert!(recv(&mut *right).unwrap() == payload));
    });
    let long = since(before);
    assert!(long.iter().all(|bytes| *bytes > 8 * payload.len()), "{long:?} of 64 messages");
}

#[test]
fn the_loss_of_one_link_is_the_loss_of_the_peer_and_says_which() {
    let cut = Arc::new(AtomicBool::new(false));
    let alive = |of: usize| {
        let cut = cut.clone();
        move |_| of == 0 || !cut.load(Ordering::Relaxed)
    };
    let (mut left, mut right) = wired_bond([alive(0), alive(1)]);
    send(&mut *left, b"before").unwrap();
    assert_eq!(recv(&mut *right).unwrap(), b"before");
    cut.store(true, Ordering::Relaxed);
    let payload = vec![0; left.message_bytes_max()];
    let sent = wait::<()>(|| {
        if left.poll_send(payload.len())?.is_some() {
            left.commit(payload.len())?;
        }
        // As a collective does, which never sends without looking.
        right.poll_recv().map(|_| ())?;
        Ok(None)
    });
    let text = sent.unwrap_err().to_string();
    assert!(text.contains("(link 2 of 2, from 127.0.0.1 to 127.0.0.1)"), "{text}");
    for (link, peer) in [(&mut left, 1), (&mut right, 0)] {
        let lost = wait::<()>(|| {
            if link.poll_recv()?.is_some() {
                link.consume();
            }
            Ok(None)
        });
        let error = lost.unwrap_err();
        assert!(matches!(error, LinkError::Lost { peer: lost, .. } if lost == peer), "{error}");
    }
}

#[test]
fn a_link_that_falls_silent_is_found_though_the_other_is_well() {
    let stuck = Arc::new(AtomicBool::new(false));
    let pass = |of: usize| {
        let stuck = stuck.clone();
        move |_| {
            while of == 1 && stuck.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            true
        }
    };
    let (left, right) = wired_bond([pass(0), pass(1)]);
    assert_eq!(left.vital().silent_path(), None);
    stuck.store(true, Ordering::Relaxed);
    let started = Instant::now();
    for link in [&left, &right] {
        while link.vital().silence() < Duration::from_millis(1500) {
            assert!(started.elapsed() < PATIENCE, "nobody noticed");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(link.vital().silent_path().unwrap().starts_with("link 2 of 2"));
    }
    stuck.store(false, Ordering::Relaxed);
}
