//! Building a mesh: the members that get in, the strangers that do not, and the errors of each.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use link::{
    Encryption, HostId, Listener, MeshConfig, MeshError, Preference, Secret, Transport,
    connect_mesh,
};

use crate::common::{Mesh, PATIENCE, addrs, config, listeners, meshes, recv, same, send};

/// Builds one rank's mesh in the calling thread.
fn build(listener: &Listener, config: &MeshConfig, rank: usize) -> Mesh {
    let config = MeshConfig { rank, ..config.clone() };
    Ok(connect_mesh(listener, &config, &AtomicBool::new(false))?.links)
}

/// Long enough for what should arrive, short enough to wait for what should not.
// Short: its end is what is waited for.
const BRIEF: Duration = Duration::from_millis(600);

fn missing_ranks(mesh: &Mesh) -> Vec<usize> {
    match mesh {
        Err(MeshError::Missing { missing, .. }) => missing.iter().map(|m| m.rank).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_pair_of_a_mesh_is_linked() {
    let listeners = listeners(6);
    let config = config(addrs(&listeners));
    let mut meshes: Vec<_> =
        meshes(&listeners, same(&config)).into_iter().map(Result::unwrap).collect();
    for (rank, links) in meshes.iter_mut().enumerate() {
        let peers: Vec<usize> = links.iter().map(|link| link.info().peer).collect();
        assert_eq!(peers, (0..6).filter(|&peer| peer != rank).collect::<Vec<_>>());
        for link in links {
            let pair = [rank as u8, link.info().peer as u8];
            send(&mut **link, &pair).unwrap();
        }
    }
    for (rank, links) in meshes.iter_mut().enumerate() {
        for link in links {
            let pair = [link.info().peer as u8, rank as u8];
            assert_eq!(recv(&mut **link).unwrap(), pair);
        }
    }
}

#[test]
fn ranks_that_cannot_reach_each_other_link_with_those_that_they_can() {
    let listeners = listeners(4);
    let mut config = config(addrs(&listeners));
    config.deadline = BRIEF;
    let mut configs = same(&config);
    // Rank 3's address of rank 1 leads nowhere.
    configs[3].addrs[1] = vec!["127.0.0.1:1".parse().unwrap()];
    let found = meshes(&listeners, configs.clone());
    assert_eq!(
        found.iter().map(missing_ranks).collect::<Vec<_>>(),
        [vec![], vec![3], vec![], vec![1]]
    );
    for (rank, config) in configs.iter_mut().enumerate() {
        (config.epoch, config.deadline) = (2, PATIENCE);
        config.peers = Some(vec![(rank + 1) % 4, (rank + 3) % 4]);
    }
    // The ring skips the pair: rank 3 sits between the ranks 0 and 2.
    for (rank, links) in meshes(&listeners, configs).into_iter().enumerate() {
        let mut peers: Vec<_> = links.unwrap().iter().map(|link| link.info().peer).collect();
        peers.sort_unstable();
        let mut near = vec![(rank + 1) % 4, (rank + 3) % 4];
        near.sort_unstable();
        assert_eq!(peers, near);
    }
}

#[test]
fn a_mesh_of_one_needs_nobody() {
    let listeners = listeners(1);
    assert!(build(&listeners[0], &config(addrs(&listeners)), 0).unwrap().is_empty());
}

#[test]
fn ranks_may_start_in_any_order() {
    for late in 0..3 {
        let listeners = listeners(3);
        let config = config(addrs(&listeners));
        thread::scope(|scope| {
            for (rank, listener) in listeners.iter().enumerate() {
                let config = &config;
                scope.spawn(move || {
                    if rank == late {
                        // Sleeps: it is the late one; the others do not tell that they wait.
                        thread::sleep(Duration::from_millis(100));
                    }
                    assert_eq!(build(listener, config, rank).unwrap().len(), 2);
                });
            }
        });
    }
}

#[test]
fn missing_ranks_are_named_with_what_was_heard_of_them() {
    let listeners = listeners(4);
    let mut config = config(addrs(&listeners));
    config.deadline = BRIEF;
    // Rank 1 accepts connections and never answers; rank 3 does not exist.
    let ends = thread::scope(|scope| {
        let threads = [0, 2].map(|rank| {
            scope.spawn({
                let (listeners, config) = (&listeners, &config);
                move || build(&listeners[rank], config, rank)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(ends.each_ref().map(missing_ranks), [vec![1, 3], vec![1, 3]]);
    let text = ends.into_iter().nth(1).unwrap().err().unwrap().to_string();
    assert!(text.contains(&config.addrs[1][0].to_string()), "{text}");
    assert!(text.contains("does not answer the handshake"), "{text}");
    assert!(text.contains("rank 3 (it never dialed)"), "{text}");
}

#[test]
fn a_refused_connection_is_told() {
    let mut listeners = listeners(2);
    let mut config = config(addrs(&listeners));
    config.deadline = BRIEF;
    drop(listeners.remove(0));
    let text = build(&listeners[0], &config, 1).err().unwrap().to_string();
    assert!(text.contains("rank 0 (127.0.0.1") && text.contains("refused"), "{text}");
}

#[test]
fn another_secret_or_instance_does_not_get_in() {
    for stranger in [
        |config: &mut MeshConfig| config.secret = Secret::new([43; 32]),
        |config: &mut MeshConfig| config.instance[0] ^= 1,
    ] {
        let listeners = listeners(2);
        let mut config = config(addrs(&listeners));
        config.deadline = BRIEF;
        let mut configs = same(&config);
        stranger(&mut configs[1]);
        let ends = meshes(&listeners, configs);
        assert_eq!([missing_ranks(&ends[0]), missing_ranks(&ends[1])], [vec![1], vec![0]]);
        let text = ends.into_iter().nth(1).unwrap().err().unwrap().to_string();
        assert!(text.contains("same secret and instance"), "{text}");
    }
}

#[test]
fn strangers_are_shown_out_and_the_mesh_goes_on_waiting() {
    let garbage: [&[u8]; 7] = [
        b"",
        b"s",
        b"sinewlnk",
        &[0xff; 4],
        &[0; 4096],
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        // Our magic, then nonsense to the end of a handshake's first message.
        &{
            let mut message = [0xa5; 224];
            message[..8].copy_from_slice(b"sinewlnk");
            message
        },
    ];
    let listeners = listeners(2);
    let config = config(addrs(&listeners));
    thread::scope(|scope| {
        let rank_0 = scope.spawn(|| build(&listeners[0], &config, 0));
        let strangers: Vec<TcpStream> = garbage
            .iter()
            .map(|bytes| {
                let mut stream = TcpStream::connect(config.addrs[0][0]).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(bytes).unwrap();
                stream
            })
            .collect();
        for mut stream in strangers {
            let mut answer = Vec::new();
            // An end or a reset, and at most our version as an answer.
            let end = stream.read_to_end(&mut answer);
            let timed_out = end.as_ref().is_err_and(|error| {
                matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                )
            });
            assert!(!timed_out, "a stranger was kept");
            assert!(answer.len() <= 224, "{} bytes for a stranger", answer.len());
        }
        // Only now the right rank comes.
        assert_eq!(build(&listeners[1], &config, 1).unwrap().len(), 1);
        assert_eq!(rank_0.join().unwrap().unwrap().len(), 1);
    });
}

#[test]
fn another_version_is_answered_with_ours() {
    let listeners = listeners(2);
    let config = config(addrs(&listeners));
    let abort = AtomicBool::new(false);
    thread::scope(|scope| {
        let rank_0 = scope.spawn(|| connect_mesh(&listeners[0], &config, &abort));
        let mut stream = TcpStream::connect(config.addrs[0][0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&message_of_version(9)).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"sinewlnk\x07\0\0\0");
        abort.store(true, Ordering::Relaxed);
        assert!(matches!(rank_0.join().unwrap(), Err(MeshError::Aborted)));
    });
}

#[test]
fn a_listener_of_another_version_is_told_with_both() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dialer = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut config = config(vec![vec![other.local_addr().unwrap()], dialer.addrs()]);
    config.deadline = BRIEF;
    thread::spawn(move || {
        for stream in other.incoming() {
            let _ = stream.unwrap().write_all(&message_of_version(9));
        }
    });
    let text = build(&dialer, &config, 1).err().unwrap().to_string();
    assert!(text.contains("version 9 of the link protocol, this rank 7"), "{text}");
}

fn message_of_version(version: u32) -> [u8; 224] {
    let mut message = [0; 224];
    message[..8].copy_from_slice(b"sinewlnk");
    message[8..12].copy_from_slice(&version.to_le_bytes());
    message
}

#[test]
fn a_listener_serves_one_epoch_after_another() {
    let listeners = listeners(3);
    for epoch in 1..=5 {
        let config = MeshConfig { epoch, ..config(addrs(&listeners)) };
        for mesh in meshes(&listeners, same(&config)) {
            assert_eq!(mesh.unwrap().len(), 2);
        }
    }
}

#[test]
fn a_rank_of_an_older_epoch_learns_the_current_one() {
    let listeners = listeners(2);
    let config = MeshConfig { epoch: 5, ..config(addrs(&listeners)) };
    let late = MeshConfig { epoch: 4, ..config.clone() };
    thread::scope(|scope| {
        // A late dialer gets an error, and the listener then accepts the right one.
        let rank_0 = scope.spawn(|| build(&listeners[0], &config, 0));
        let error = build(&listeners[1], &late, 1).err().unwrap();
        assert!(matches!(error, MeshError::Epoch { peer: 0, ours: 4, theirs: 5 }), "{error}");
        assert_eq!(build(&listeners[1], &config, 1).unwrap().len(), 1);
        assert_eq!(rank_0.join().unwrap().unwrap().len(), 1);
    });
    thread::scope(|scope| {
        // A late listener gets an error from the dialer, which then connects to the right one.
        let rank_1 = scope.spawn(|| build(&listeners[1], &config, 1));
        let error = build(&listeners[0], &late, 0).err().unwrap();
        assert!(matches!(error, MeshError::Epoch { peer: 1, ours: 4, theirs: 5 }), "{error}");
        assert_eq!(build(&listeners[0], &config, 0).unwrap().len(), 1);
        assert_eq!(rank_1.join().unwrap().unwrap().len(), 1);
    });
}

#[test]
fn ranks_that_disagree_say_so_on_both_ends() {
    type Adjust = fn(&mut MeshConfig);
    let adjustments: [(&str, Adjust); 3] = [
        ("encryption", |config| config.encryption = Encryption::Plain),
        // Short: another delay than the others'; the mesh is refused.
        ("the delay in us", |config| config.latency = Duration::from_micros(10)),
        ("the transport", |config| config.preference = Preference::Tcp),
    ];
    for (what_differs, adjust) in adjustments {
        let listeners = listeners(2);
        let config = MeshConfig { preference: Preference::Shm, ..config(addrs(&listeners)) };
        let mut configs = same(&config);
        adjust(&mut configs[1]);
        for mesh in meshes(&listeners, configs) {
            let error = mesh.err().unwrap();
            let named = matches!(error, MeshError::Mismatch { what, .. } if what == what_differs);
            assert!(named, "{error}");
        }
    }
}

#[test]
fn ranks_on_two_machines_use_tcp() {
    for (preference, works) in [(Preference::Auto, true), (Preference::Shm, false)] {
        let listeners = listeners(2);
        let config = MeshConfig { preference, ..config(addrs(&listeners)) };
        let mut configs = same(&config);
        configs[1].host = HostId([9; 16]);
        for mesh in meshes(&listeners, configs) {
            match mesh {
                Ok(links) => {
                    assert!(works);
                    assert_eq!(links[0].info().transport, Transport::Tcp);
                    assert!(!links[0].info().same_host);
                }
                Err(error) => {
                    assert!(!works && matches!(error, MeshError::NoSharedMemory { .. }), "{error}");
                }
            }
        }
    }
}

#[test]
fn a_bad_configuration_is_refused_before_any_wait() {
    let listeners = listeners(2);
    let good = config(addrs(&listeners));
    for bad in [
        MeshConfig { rank: 2, ..good.clone() },
        MeshConfig { addrs: Vec::new(), ..good.clone() },
        MeshConfig { peers: Some(vec![2]), ..good.clone() },
        MeshConfig { addrs: vec![good.addrs[0].clone(); 65], ..good.clone() },
        MeshConfig { addrs: vec![good.addrs[0].clone(), Vec::new()], ..good.clone() },
        // Short: an invalid delay; nobody waits for it.
        MeshConfig { latency: Duration::from_secs(1), ..good.clone() },
    ] {
        let end = connect_mesh(&listeners[0], &bad, &AtomicBool::new(false));
        assert!(matches!(end, Err(MeshError::Config { .. })));
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let text = Listener::bind(taken.addrs()[0]).err().unwrap().to_string();
    assert!(text.contains(&taken.addrs()[0].to_string()), "{text}");
}
