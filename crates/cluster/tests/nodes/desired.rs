//! The document outlives the nodes that serve its models.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster::{Error, InstanceSpec, InstanceState, Node, NodeState};
use tokio::time::timeout;

use crate::support::{
    Elsewhere, Ended, Home, LOOPBACK, MINUTE, Streaming, TIMEOUT, ask, cluster, instance, is_alive,
    kill, live, model, pid, poll, ready, serve, until,
};

/// Waits until a model is served by this node, and ready.
async fn served_by(asked: &Node, owner: &Node) {
    until(asked, "the model", |status| {
        let is_it =
            |i: &cluster::InstanceStatus| i.owner == owner.id() && i.state == InstanceState::Ready;
        status.instances.len() == 1 && is_it(&status.instances[0])
    })
    .await;
}

/// Waits until a node is known to have the file of an instance.
async fn has_file(asked: &Node, id: &str, name: &str) {
    until(asked, "the file", |status| {
        let has = |one: &cluster::InstanceStatus| one.file_nodes.iter().any(|node| node == name);
        status.instances.iter().any(|one| one.id == id && has(one))
    })
    .await;
}

/// Puts a model into the folder of a node that does not serve it.
fn copy(home: &Home) {
    model(&home.dir.path().join("models"), "counter");
}

pub async fn a_model_comes_back_after_restarts_and_what_was_stopped_does_not() {
    let mut homes = cluster(&["a", "b"]).await;
    let id = ready(&homes[0]).await;
    // One node, the other, both.
    for restarted in [&[0][..], &[1], &[0, 1]] {
        for at in restarted {
            homes[*at].node.shutdown().await;
        }
        for at in restarted {
            homes[*at].start().await;
        }
        let (a, b) = (&homes[0].node, &homes[1].node);
        live(a, 2).await;
        served_by(a, a).await;
        timeout(TIMEOUT, a.wait_ready(&id)).await.unwrap().unwrap();
        ask(a, "counter", 3).await;
        served_by(b, a).await;
        ask(b, &id, 4).await;
    }
    // It is stopped at the other node while its owner is away.
    homes[0].node.shutdown().await;
    homes[1].node.stop("counter").await.unwrap();
    homes[1].start().await;
    homes[0].start().await;
    for home in &homes {
        live(&home.node, 2).await;
        until(&home.node, "the end", |status| status.instances.is_empty()).await;
        let gone = home.node.generate("counter", crate::support::prompt(1, 1)).await.unwrap_err();
        assert!(matches!(gone, Error::NotServed { .. }), "{gone}");
    }
}

pub async fn another_node_takes_over_and_keeps_it() {
    let mut homes = cluster(&["a", "b", "c"]).await;
    copy(&homes[1]);
    let id = ready(&homes[0]).await;
    let left = pid(&homes[0].node, &id, 2);
    // Nodes search for files at intervals.
    has_file(&homes[0].node, &id, "b").await;
    homes[0].node.shutdown().await;
    let (b, c) = (&homes[1].node, &homes[2].node);
    served_by(c, b).await;
    ask(c, &id, 5).await;
    assert_eq!(instance(b, &id).ranks.len(), 2);
    assert!(!is_alive(left), "the former owner's worker holds no memory");
    // The former owner is back, and takes nothing back; all agree.
    homes[0].start().await;
    live(&homes[0].node, 3).await;
    for home in &homes {
        served_by(&home.node, &homes[1].node).await;
        ask(&home.node, "counter", 6).await;
    }
}

/// Streams at one node while all other processes are killed repeatedly at random moments: all
/// workers, and the daemons, including the model's owner.
pub async fn streams_go_on_over_the_loss_of_any_process() {
    const STREAMS: u32 = 6;
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    println!("  seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ingress = Home::new("ingress").await;
    let (mut dirs, mut others) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("models")).unwrap();
        model(&dir.path().join("models"), "counter");
        let listen = std::net::TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
        let code = ingress.node.invite(MINUTE).await.unwrap().code;
        others.push((Elsewhere::start(dir.path(), listen, &code).await, listen));
        dirs.push(dir);
    }
    live(&ingress.node, 3).await;
    let spec = serve(&model(ingress.dir.path(), "counter"));
    let spec = InstanceSpec { sequences_max: Some(STREAMS as usize), ..spec };
    let id = ingress.node.serve(spec).await.unwrap();
    // Another node becomes the owner.
    let is_ready = |i: &cluster::InstanceStatus| i.state == InstanceState::Ready;
    for absence_secs in [3, 9, 27] {
        has_file(&ingress.node, &id, "elsewhere").await;
        ingress.node.shutdown().await;
        // Sleeps: the other daemons are processes of their own, which nobody asks meanwhile.
        tokio::time::sleep(Duration::from_secs(absence_secs)).await;
        ingress.start().await;
        live(&ingress.node, 3).await;
        until(&ingress.node, "the model", |status| status.instances.iter().any(is_ready)).await;
        if ingress.node.status().instances[0].owner != ingress.node.id() {
            break;
        }
    }
    let node = ingress.node.clone();
    let is_theirs = |i: &cluster::InstanceStatus| i.owner != node.id() && is_ready(i);
    until(&node, "another owner", |status| status.instances.iter().any(is_theirs)).await;

    let over = Arc::new(AtomicBool::new(false));
    let ask = |at: u32| {
        let (node, over) = (node.clone(), over.clone());
        tokio::spawn(async move {
            let (mut answers, mut first) = (0, 1000 * at);
            while !over.load(Ordering::Relaxed) {
                let ended = Streaming::start(&node, "counter", first, 200).await.end().await;
                assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
                (answers, first) = (answers + 1, first + 1);
            }
            answers
        })
    };
    let streams: Vec<_> = (1..=STREAMS).map(ask).collect();
    let (mut workers, mut daemons) = (0, 0);
    for _ in 0..12 {
        // Sleeps: the moment of each kill is drawn.
        tokio::time::sleep(Duration::from_millis(random.u64(200..1500))).await;
        let ranks = node.status().instances.first().map(|i| i.ranks.clone()).unwrap_or_default();
        let pids: Vec<u32> = ranks.iter().filter_map(|rank| rank.pid).collect();
        match random.choice(pids).filter(|pid| random.u64(..3) > 0 && is_alive(*pid)) {
            // The worker may have ended by itself.
            Some(pid) => {
                let _ =
                    std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
                workers += 1;
            }
            None => {
                let at = random.usize(..2);
                others[at].0.kill().await;
                // Sleeps: how long it is away is drawn.
                tokio::time::sleep(Duration::from_millis(random.u64(..3000))).await;
                let listen = others[at].1;
                others[at].0 = Elsewhere::start(dirs[at].path(), listen, "").await;
                daemons += 1;
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    let mut answers = 0;
    for stream in streams {
        answers += stream.await.expect("every stream is whole");
    }
    println!("  {answers} answers were whole over {workers} workers and {daemons} daemons killed");
    assert!(answers >= STREAMS);
}

pub async fn a_worker_whose_instance_was_stopped_meanwhile_ends_at_once() {
    let a = Home::new("a").await;
    let dir = tempfile::tempdir().unwrap();
    let code = a.node.invite(MINUTE).await.unwrap().code;
    let other = Elsewhere::start(dir.path(), LOOPBACK.parse().unwrap(), &code).await;
    live(&a.node, 2).await;
    let daemon = other.child.id().unwrap();
    for _ in 0..2 {
        let id = ready(&a).await;
        let worker = pid(&a.node, &id, 1);
        kill(daemon, "-STOP");
        until(&a.node, "the loss", |s| s.nodes[1].state == NodeState::Lost).await;
        a.node.stop(&id).await.unwrap();
        let since = Instant::now();
        kill(daemon, "-CONT");
        live(&a.node, 2).await;
        poll("it to hold no memory", async || (!is_alive(worker)).then_some(())).await;
        // Short: an orphan without an owner would have 30 s.
        assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
    }
}

pub async fn one_name_is_one_instance_when_halves_meet() {
    let mut homes = cluster(&["a", "b"]).await;
    homes[1].node.shutdown().await;
    ready(&homes[0]).await;
    homes[0].node.shutdown().await;
    homes[1].start().await;
    ready(&homes[1]).await;
    homes[0].start().await;
    for home in &homes {
        live(&home.node, 2).await;
    }
    // Each starts with its own document.
    let known = |home: &Home| home.node.status().instances.first().map(|i| (i.owner, i.id.clone()));
    let agree = async || (known(&homes[0]) == known(&homes[1])).then_some(());
    poll("both to agree on one", agree).await;
    let owner = homes[0].node.status().instances[0].owner;
    let owner = homes.iter().find(|home| home.node.id() == owner).unwrap();
    for home in &homes {
        served_by(&home.node, &owner.node).await;
        ask(&home.node, "counter", 7).await;
    }
}

pub async fn a_model_whose_only_file_is_away_says_what_is_missing() {
    let homes = cluster(&["a", "b"]).await;
    let id = ready(&homes[0]).await;
    homes[0].node.shutdown().await;
    let b = &homes[1].node;
    let reason = |status: &cluster::ClusterStatus| match &status.instances[0].state {
        InstanceState::Recovering { reason } => reason.clone(),
        _ => String::new(),
    };
    until(b, "the reason", |s| reason(s).contains("no other node has its file")).await;
    assert!(reason(&b.status()).contains("Bring a back"), "{}", reason(&b.status()));
    assert_eq!(instance(b, &id).model, "counter");
    // The file is put into the model folder.
    copy(&homes[1]);
    served_by(b, b).await;
    ask(b, &id, 8).await;
    assert!(b.serve(serve(&homes[1].dir.path().join("models/counter.gguf"))).await.is_err());
}

pub async fn a_damaged_document_is_told_and_is_no_reason_not_to_start() {
    let mut homes = cluster(&["a", "b"]).await;
    ready(&homes[0]).await;
    homes[0].node.shutdown().await;
    let path = homes[0].dir.path().join("desired.json");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    homes[0].start().await;
    let a = &homes[0].node;
    assert!(a.status().notices[0].contains("desired.damaged"), "{:?}", a.status().notices);
    // The other node has the document.
    served_by(a, a).await;
    ask(a, "counter", 9).await;
}
