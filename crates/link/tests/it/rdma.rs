//! RDMA links through the mesh: the conditions of their choice, and the fallback where they do not
//! work.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use link::rdma::Fabric;
use link::{LinkError, MeshConfig, MeshError, Preference, Transport, connect_mesh};

use crate::common::{Mesh, machines, meshes, rdma_pair, recv, send, wait};

/// Builds a mesh of machines on `fabric`, each rank's configuration adjusted.
fn mesh(fabric: &Fabric, ranks: usize, adjust: impl Fn(&mut MeshConfig)) -> Vec<Mesh> {
    let (listeners, mut configs) = machines(fabric, ranks);
    configs.iter_mut().for_each(adjust);
    meshes(&listeners, configs)
}

/// The transports of rank 0's links, or the error of its mesh.
fn transports(meshes: Vec<Mesh>) -> Result<Vec<Transport>, String> {
    let links = meshes.into_iter().next().unwrap().map_err(|error| error.to_string())?;
    Ok(links.iter().map(|link| link.info().transport).collect())
}

#[test]
fn every_pair_of_a_mesh_has_its_cable() {
    let fabric = Fabric::new(5);
    let mut meshes: Vec<_> = mesh(&fabric, 5, |_| ()).into_iter().map(Result::unwrap).collect();
    for (rank, links) in meshes.iter_mut().enumerate() {
        for link in links {
            assert_eq!(link.info().transport, Transport::Rdma);
            send(&mut **link, &[rank as u8]).unwrap();
        }
    }
    for links in &mut meshes {
        for link in links {
            let peer = link.info().peer as u8;
            assert_eq!(recv(&mut **link).unwrap(), [peer]);
        }
    }
}

#[test]
fn one_device_serves_one_epoch_after_another() {
    // More epochs than the device has queue pairs: each epoch frees its own.
    let fabric = Fabric::new(2);
    let (listeners, configs) = machines(&fabric, 2);
    for epoch in 1..=25 {
        let configs = configs.iter().map(|config| MeshConfig { epoch, ..config.clone() });
        for mesh in meshes(&listeners, configs.collect()) {
            assert_eq!(mesh.unwrap()[0].info().transport, Transport::Rdma);
        }
    }
}

#[test]
fn without_a_device_auto_takes_tcp_and_rdma_says_why() {
    // A single machine has no cable; each of two such ranks has its own reason.
    for preference in [Preference::Auto, Preference::Rdma] {
        let alone = [Fabric::new(1), Fabric::new(1)];
        let (_, mut configs) = machines(&Fabric::new(2), 2);
        let listeners = crate::common::listeners(2).into_iter().zip(&alone);
        let listeners: Vec<_> =
            listeners.map(|(listener, fabric)| listener.with_rdma(fabric.machine(0))).collect();
        for config in &mut configs {
            config.addrs = crate::common::addrs(&listeners);
            config.preference = preference;
        }
        for mesh in meshes(&listeners, configs) {
            match (preference, mesh) {
                (Preference::Auto, Ok(links)) => {
                    assert_eq!(links[0].info().transport, Transport::Tcp);
                }
                (Preference::Rdma, Err(MeshError::NoRdma { reason, .. })) => {
                    assert!(reason.contains("no RDMA device"), "{reason}");
                }
                (_, end) => panic!("{:?}", end.err()),
            }
        }
    }
}

#[test]
fn what_does_not_work_is_told_to_both_ends() {
    type Break = fn(&Fabric);
    // Receive queues of one slot only, and a cable through which nothing comes.
    let cases: [(&str, usize, Break); 2] =
        [("ibv_post_recv", 3, |_| ()), ("no message came through", 12, Fabric::cut)];
    for (word, recv_frames, break_it) in cases {
        let fabric = Fabric::with_recv_frames(2, recv_frames);
        break_it(&fabric);
        let mut told = 0;
        for end in mesh(&fabric, 2, |_| ()) {
            let error = end.err().unwrap();
            assert!(matches!(error, MeshError::NoRdma { .. }), "{error}");
            told += usize::from(error.to_string().contains(word));
        }
        assert!(told > 0, "nobody said {word}");
    }
}

#[test]
fn what_does_not_work_is_done_without_and_one_of_two_says_so() {
    let fabric = Fabric::with_recv_frames(2, 3);
    let (listeners, mut configs) = machines(&fabric, 2);
    for config in &mut configs {
        config.preference = Preference::Auto;
        // Ranks with loopback addresses only would not try RDMA; this extra address is unused.
        config.addrs.iter_mut().for_each(|addrs| addrs.push("192.0.2.1:9".parse().unwrap()));
    }
    let notes = std::thread::scope(|scope| {
        let threads: Vec<_> = listeners
            .iter()
            .zip(&configs)
            .map(|(listener, config)| {
                scope.spawn(|| connect_mesh(listener, config, &AtomicBool::new(false)).unwrap())
            })
            .collect();
        let met = threads.into_iter().map(|thread| thread.join().unwrap());
        met.flat_map(|met| {
            assert_eq!(met.links[0].info().transport, Transport::Tcp);
            met.notes
        })
        .collect::<Vec<_>>()
    });
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("ranks 1 and 0 link over TCP"), "{notes:?}");
}

#[test]
fn queue_pairs_run_out_and_come_back() {
    let fabric = Fabric::new(2);
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(rdma_pair(&fabric));
    }
    let error = transports(mesh(&fabric, 2, |_| ())).unwrap_err();
    assert!(error.contains("ibv_create_qp") || error.contains("set up its end"), "{error}");
    drop(held);
    assert_eq!(transports(mesh(&fabric, 2, |_| ())), Ok(vec![Transport::Rdma]));
}

#[test]
fn a_peer_that_ends_without_a_word_is_lost_though_rdma_says_nothing() {
    let fabric = Fabric::new(2);
    let (mut left, right) = rdma_pair(&fabric);
    fabric.cut();
    send(&mut *left, b"into the void").unwrap();
    // Its last messages never leave, so that its end gives up on them.
    drop(right);
    let lost = wait::<()>(|| left.poll_recv().map(|_| None)).unwrap_err();
    assert!(matches!(lost, LinkError::Lost { peer: 1, .. }), "{lost}");
}

#[test]
fn an_idle_link_sleeps_and_wakes_without_events() {
    let (mut left, mut right) = rdma_pair(&Fabric::new(2));
    let mut wakes = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Sleeps: the time in which the other end should sleep too.
            std::thread::sleep(Duration::from_millis(200));
            send(&mut *left, b"at last").unwrap();
        });
        loop {
            right.wait_readable(crate::common::PATIENCE).unwrap();
            wakes += 1;
            if right.poll_recv().unwrap().is_some() {
                break;
            }
        }
    });
    // Polling would have looked far more often.
    assert!(wakes < 2000, "{wakes} wake-ups in 200 ms");
}
