use std::time::{Duration, Instant};

use cluster::{Error, FinishReason, GenerateEvent, InstanceSpec, InstanceState, NodeConfig};

use crate::support::{
    Elsewhere, Ended, Home, LOOPBACK, MINUTE, Streaming, TIMEOUT, ask, cluster, collect, instance,
    is_alive, kill, kill_worker, live, model, pid, poll, prompt, ready, serve, streaming, until,
};
use crate::worker::{MODE_BROKEN, MODE_SHY, MODE_WELL, PROMPT_EXIT, PROMPT_REJECT};

/// Waits for the pause of a stream that is about to be interrupted; returns its reason.
async fn interrupted(stream: &mut Streaming, since: Instant) -> String {
    let reason = stream.pause().await;
    println!("  {:?} until: {reason}", since.elapsed());
    reason
}

pub async fn tokens_flow_from_a_model_on_two_nodes() {
    let homes = cluster(&["a", "b"]).await;
    let a = &homes[0].node;
    let id = ready(&homes[0]).await;
    let status = instance(a, &id);
    assert_eq!(status.ranks.len(), 2);
    assert_eq!((status.ranks[0].node, status.ranks[1].node), (a.id(), homes[1].node.id()));
    assert!(status.ranks.iter().all(|rank| rank.loaded_bytes > 0), "{status:#?}");
    ask(a, &id, 7).await;
    ask(a, "counter", 70).await;
    assert!(instance(a, &id).last_decode_tokens_per_sec.is_some());
    assert!(a.model_header("counter").await.unwrap().str("general.name").unwrap() == "counter");

    let again = serve(&homes[0].dir.path().join("counter.gguf"));
    let again = a.serve(again).await.unwrap_err();
    assert!(matches!(&again, Error::AlreadyServed { instance, .. } if *instance == id), "{again}");
    let named = |name: &str| {
        let name = Some(name.to_owned());
        InstanceSpec { name, ..serve(&homes[0].dir.path().join("counter.gguf")) }
    };
    for (name, why) in [("counter", "counter is already served as"), ("", "is no name")] {
        let refused = a.serve(named(name)).await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let other = a.serve(named("another")).await.unwrap();
    a.wait_ready(&other).await.unwrap();
    ask(a, "another", 7).await;
    a.stop("another").await.unwrap();

    let used = a.status().nodes[0].memory_used_bytes;
    a.stop("counter").await.unwrap();
    assert!(used > 0 && a.status().nodes[0].memory_used_bytes == 0);
    let gone = a.generate("counter", prompt(1, 1)).await.unwrap_err();
    assert!(matches!(gone, Error::NotServed { .. }), "{gone}");
}

pub async fn a_split_is_chosen_by_what_was_measured() {
    let homes = cluster(&["a", "b"]).await;
    let a = &homes[0].node;
    let path = model(homes[0].dir.path(), "counter");
    // Nodes that have just met measure for a moment.
    let why = poll("a prediction", async || {
        let id = a.serve(serve(&path)).await.unwrap();
        let why = instance(a, &id).placement.join("\n");
        a.stop(&id).await.unwrap();
        why.contains(" over a, b: about ").then_some(why)
    })
    .await;
    assert!(why.contains("next best: "), "{why}");
}

pub async fn a_killed_worker_is_named_and_replaced() {
    let homes = cluster(&["a", "b"]).await;
    let a = &homes[0].node;
    let id = ready(&homes[0]).await;
    for (rank, name) in [(1, "node b (rank 1)"), (0, "node a (rank 0)"), (1, "node b (rank 1)")] {
        let survivor = pid(a, &id, 1 - rank);
        let victim = pid(a, &id, rank);
        let mut stream = streaming(a, &id).await;
        let since = Instant::now();
        kill(victim, "-KILL");
        let reason = interrupted(&mut stream, since).await;
        let lost = format!("{name} was lost: its worker was killed by signal 9");
        assert!(reason.starts_with(&lost), "{reason}");
        stream.go_on().await;
        println!("  {:?} until the next token", since.elapsed());
        ask(a, &id, 5).await;
        assert_eq!(pid(a, &id, 1 - rank), survivor, "the survivor keeps its shard");
        assert_ne!(pid(a, &id, rank), victim);
    }
    // All at once.
    tokio::join!(kill_worker(a, &id, 0), kill_worker(a, &id, 1));
    ask(a, &id, 6).await;
    assert!(instance(a, &id).epoch >= 5);
}

pub async fn a_killed_daemon_is_named_and_waited_for() {
    let a = Home::new("a").await;
    let dir = tempfile::tempdir().unwrap();
    let code = a.node.invite(MINUTE).await.unwrap().code;
    // A fixed port, so that it can be found again.
    let listen = std::net::TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let mut other = Elsewhere::start(dir.path(), listen, &code).await;
    live(&a.node, 2).await;
    let id = ready(&a).await;
    let orphan = pid(&a.node, &id, 1);
    let mut stream = streaming(&a.node, &id).await;
    let since = Instant::now();
    other.kill().await;
    let reason = interrupted(&mut stream, since).await;
    assert!(reason.starts_with("node elsewhere (rank 1) was lost: its daemon"), "{reason}");

    // A request waits and gets the reason at once; the node's return serves it.
    let mut waiting = a.node.generate(&id, prompt(3, 10)).await.unwrap();
    match waiting.recv().await {
        Some(GenerateEvent::Waiting { reason }) => {
            assert!(reason.contains("elsewhere"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    let _other = Elsewhere::start(dir.path(), listen, "").await;
    let (tokens, ended) = collect(waiting).await;
    assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
    assert_eq!(tokens.len(), 10);
    stream.go_on().await;
    assert_eq!(instance(&a.node, &id).ranks.len(), 2);
    assert!(!is_alive(orphan), "a worker ends with its daemon");
}

pub async fn a_node_that_stays_away_is_done_without() {
    let homes = cluster(&["a", "b"]).await;
    let a = &homes[0].node;
    let id = ready(&homes[0]).await;
    homes[1].node.shutdown().await;
    until(a, "the loss", |s| s.instances[0].state != InstanceState::Ready).await;
    ask(a, &id, 8).await;
    assert_eq!(instance(a, &id).ranks.len(), 1);
}

pub async fn a_new_node_revives_what_the_old_ones_cannot_hold() {
    // More than 60 MiB of cache and weights, 64 MiB for each worker: too much for one node, not for
    // two.
    let small = |config: &mut NodeConfig| config.memory_bytes = 100 << 20;
    let (a, b) = (Home::with("a", small).await, Home::with("b", small).await);
    b.join(&a.node).await;
    let mut request = serve(&model(a.dir.path(), "counter"));
    (request.context_tokens, request.cache_tokens) = (Some(4096), Some(21 * 4096));
    let id = a.node.serve(request).await.unwrap();
    tokio::time::timeout(TIMEOUT, a.node.wait_ready(&id)).await.unwrap().unwrap();

    b.node.shutdown().await;
    let is_failed = |state: &InstanceState| matches!(state, InstanceState::Failed { .. });
    until(&a.node, "the failure", |s| is_failed(&s.instances[0].state)).await;
    let error = a.node.generate(&id, prompt(1, 1)).await.unwrap_err().to_string();
    assert!(error.contains("node b (rank 1) was lost"), "{error}");
    assert!(error.contains("node a would need 0.13 GiB"), "{error}");
    assert_eq!(a.node.status().nodes[0].memory_used_bytes, 0);

    let c = Home::with("c", small).await;
    c.join(&a.node).await;
    until(&a.node, "the revival", |s| s.instances[0].state == InstanceState::Ready).await;
    ask(&a.node, &id, 11).await;
    assert_eq!(instance(&a.node, &id).ranks[1].node, c.node.id());
}

pub async fn a_model_file_may_be_replaced_but_not_overwritten() {
    let homes = cluster(&["a", "b"]).await;
    let a = &homes[0].node;
    let id = ready(&homes[0]).await;
    let path = homes[0].dir.path().join("counter.gguf");
    let length = std::fs::metadata(&path).unwrap().len() as usize;
    // Replaced as by a download; the old file is still served.
    std::fs::write(path.with_extension("new"), vec![b'?'; length]).unwrap();
    std::fs::rename(path.with_extension("new"), &path).unwrap();
    for rank in [0, 1] {
        kill_worker(a, &id, rank).await;
        ask(a, &id, 5).await;
    }
    a.stop(&id).await.unwrap();

    let id = ready(&homes[0]).await;
    std::fs::write(&path, vec![b'?'; length + 1]).unwrap();
    kill(pid(a, &id, 0), "-KILL");
    let is_failed = |state: &InstanceState| matches!(state, InstanceState::Failed { .. });
    until(a, "the failure", |s| is_failed(&s.instances[0].state)).await;
    let error = a.generate(&id, prompt(1, 1)).await.unwrap_err().to_string();
    assert!(error.contains("was overwritten since it was placed"), "{error}");
}

pub async fn a_worker_that_cannot_load_is_given_up() {
    let home = Home::with("a", |config| config.worker_command[2] = MODE_BROKEN.to_owned()).await;
    let path = model(home.dir.path(), "counter");
    let id = home.node.serve(serve(&path)).await.unwrap();
    let waiting = home.node.generate(&id, prompt(1, 1)).await.unwrap();
    let error = home.node.wait_ready(&id).await.unwrap_err().to_string();
    let expected = "node a (rank 0) was lost: its worker exited with status 3: tensor \
                    blk.0.attn_q.weight is missing (3 times in a row)";
    assert_eq!(error, format!("counter cannot answer: {expected}"));
    let refused = home.node.generate(&id, prompt(1, 1)).await.unwrap_err();
    assert!(matches!(refused, Error::Failed { .. }), "{refused}");
    assert!(matches!(collect(waiting).await.1, Ended::Failed(reason) if reason == expected));
    // A failed instance gives way.
    let again = home.node.serve(serve(&path)).await.unwrap();
    assert_ne!(again, id);
}

pub async fn nodes_without_a_link_answer_round_a_ring() {
    let mut homes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let mode = if name == "b" || name == "c" { MODE_SHY } else { MODE_WELL };
        let home = Home::with(name, |config| config.worker_command[2] = mode.to_owned()).await;
        if name != "a" {
            let first: &Home = &homes[0];
            home.join(&first.node).await;
        }
        homes.push(home);
    }
    let a = &homes[0].node;
    let request =
        InstanceSpec { nodes: Some(4.into()), ..serve(&model(homes[0].dir.path(), "counter")) };
    let id = a.serve(request).await.unwrap();
    a.wait_ready(&id).await.unwrap();
    ask(a, &id, 5).await;
    let status = instance(a, &id);
    let names: Vec<&str> = status.ranks.iter().map(|rank| rank.node_name.as_str()).collect();
    let place = |name| names.iter().position(|found| *found == name).unwrap();
    assert_eq!(place("b").abs_diff(place("c")), 2, "they are no neighbours: {names:?}");
    assert!(status.notes[0].contains("have no link"), "{:?}", status.notes);
    // Such a ring is lost and recovers like any other instance.
    for rank in 0..4 {
        let mut stream = streaming(a, &id).await;
        kill(pid(a, &id, rank), "-KILL");
        let reason = interrupted(&mut stream, Instant::now()).await;
        assert!(reason.contains(&format!("(rank {rank}) was lost")), "{reason}");
        stream.go_on().await;
    }
}

pub async fn requests_end_well_in_all_other_ways() {
    let homes = cluster(&["a", "b"]).await;
    let a = &homes[0].node;
    let id = ready(&homes[0]).await;

    let (_, ended) = collect(a.generate(&id, prompt(PROMPT_REJECT, 5)).await.unwrap()).await;
    assert!(matches!(&ended, Ended::Failed(reason) if reason == "not today"), "{ended:?}");
    for (length, expected) in [(0, "is empty"), (1024, "has 1024 tokens"), (5000, "has 5000")] {
        let mut request = prompt(1, 1);
        request.prompt = vec![1; length];
        let error = a.generate(&id, request).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    // Two run, 64 wait, the next is refused; dropping the two lets others in.
    let busy = [streaming(a, &id).await, streaming(a, &id).await];
    let mut waiting = Vec::new();
    for at in 0..64 {
        waiting.push(a.generate(&id, prompt(at, 3)).await.unwrap());
    }
    let full = a.generate(&id, prompt(1, 1)).await.unwrap_err();
    assert!(matches!(full, Error::QueueFull { limit: 64, .. }), "{full}");
    drop(busy);
    for (at, stream) in (0..).zip(waiting) {
        let (tokens, ended) = collect(stream).await;
        assert_eq!(tokens, [at, at + 1, at + 2], "{ended:?}");
        let Ended::Done(done) = ended else { panic!("{ended:?}") };
        assert_eq!((done.reason, done.generated_tokens), (FinishReason::Length, 3));
    }

    // A worker that runs out of memory reports that; the instance recovers for the next request.
    let (_, ended) = collect(a.generate(&id, prompt(PROMPT_EXIT, 5)).await.unwrap()).await;
    let expected = "node a (rank 0) was lost: its worker stopped: no memory: 12 GiB are needed";
    assert!(matches!(&ended, Ended::Failed(reason) if reason.starts_with(expected)), "{ended:?}");
    ask(a, &id, 9).await;

    let stream = streaming(a, &id).await;
    a.stop(&id).await.unwrap();
    let ended = stream.end().await;
    assert!(matches!(&ended, Ended::Failed(reason) if reason.contains("stopped")), "{ended:?}");
}

pub async fn a_frozen_node_is_not_lost() {
    let a = Home::new("a").await;
    let dir = tempfile::tempdir().unwrap();
    let code = a.node.invite(MINUTE).await.unwrap().code;
    let other = Elsewhere::start(dir.path(), LOOPBACK.parse().unwrap(), &code).await;
    live(&a.node, 2).await;
    let id = ready(&a).await;
    let stream = a.node.generate(&id, prompt(1, 400)).await.unwrap();
    let pid = other.child.id().unwrap();
    kill(pid, "-STOP");
    // Sleeps: this is how long it is frozen.
    tokio::time::sleep(Duration::from_secs(2)).await;
    kill(pid, "-CONT");
    let (tokens, ended) = collect(stream).await;
    assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
    assert_eq!(tokens.len(), 400);
    assert_eq!(instance(&a.node, &id).epoch, 1);

    // A longer freeze is a loss. If the node wakes up before it is replaced, it returns with its
    // worker and its shard.
    let worker = crate::support::pid(&a.node, &id, 1);
    let since = Instant::now();
    kill(pid, "-STOP");
    until(&a.node, "the loss", |s| s.nodes[1].state == cluster::NodeState::Lost).await;
    println!("  {:?} until a frozen node was lost", since.elapsed());
    // Sleeps: it stays lost for a while.
    tokio::time::sleep(Duration::from_secs(1)).await;
    kill(pid, "-CONT");
    ask(&a.node, &id, 4).await;
    assert_eq!(crate::support::pid(&a.node, &id, 1), worker);
}

pub async fn two_models_run_side_by_side() {
    let homes = cluster(&["a", "b"]).await;
    let (a, b) = (&homes[0].node, &homes[1].node);
    let first = ready(&homes[0]).await;
    let path = model(homes[1].dir.path(), "second");
    let second = b.serve(serve(&path)).await.unwrap();
    tokio::time::timeout(TIMEOUT, b.wait_ready(&second)).await.unwrap().unwrap();
    ask(a, &first, 1).await;
    ask(b, &second, 2).await;
    until(a, "both instances", |status| status.instances.len() == 2).await;
    let node = &a.status().nodes[0];
    assert!(node.memory_used_bytes > 2 * (64 << 20), "two workers: {}", node.memory_used_bytes);

    // There is no room for a third one with this large context; the error states how much is
    // missing.
    let path = model(homes[0].dir.path(), "third");
    let mut request = serve(&path);
    (request.cache_tokens, request.context_tokens) = (Some(10_000 * 4096), Some(4096));
    let error = a.serve(request).await.unwrap_err().to_string();
    assert!(error.contains("node a would need") && error.contains("GiB free"), "{error}");
    // The death of its workers does not affect the other instance.
    kill(pid(b, &second, 0), "-KILL");
    ask(a, &first, 3).await;
    assert_eq!(instance(a, &first).epoch, 1);
}

pub async fn requests_from_other_nodes_are_passed_on() {
    let homes = cluster(&["a", "b", "c"]).await;
    let id = ready(&homes[0]).await;
    let c = &homes[2].node;
    until(c, "the instance", |s| s.instances.iter().any(|i| i.state == InstanceState::Ready)).await;
    c.wait_ready("counter").await.unwrap();
    ask(c, &id, 3).await;
    let header = c.model_header("counter").await.unwrap();
    assert_eq!(header.str("general.name").unwrap(), "counter");
    let unknown = c.model_header("other").await.unwrap_err();
    assert!(matches!(unknown, Error::NotServed { .. }), "{unknown}");
    // Dropping the stream here ends the request there.
    let stream = streaming(c, "counter").await;
    assert_eq!(instance(&homes[0].node, &id).requests_running, 1);
    drop(stream);
    until(&homes[0].node, "the cancellation", |s| s.instances[0].requests_running == 0).await;

    let stream = streaming(c, "counter").await;
    homes[0].node.shutdown().await;
    let ended = stream.end().await;
    let says = |reason: &str| reason.contains("node a, which owns it, is gone, and no other node");
    assert!(matches!(&ended, Ended::Failed(reason) if says(reason)), "{ended:?}");
    let is_gone = |state: &InstanceState| matches!(state, InstanceState::Recovering { .. });
    until(c, "the loss of the owner", |status| is_gone(&status.instances[0].state)).await;
}

pub async fn nothing_outlives_its_daemon() {
    let homes = cluster(&["a", "b"]).await;
    let id = ready(&homes[0]).await;
    let pids = [pid(&homes[0].node, &id, 0), pid(&homes[0].node, &id, 1)];
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    homes[0].node.shutdown().await;
    assert!(!is_alive(pids[0]));
    assert!(matches!(homes[0].node.invite(MINUTE).await, Err(Error::ShutDown)));
    homes[1].node.shutdown().await;
    assert!(!is_alive(pids[1]));
}
