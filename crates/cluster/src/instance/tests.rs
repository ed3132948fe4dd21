use std::net::{IpAddr, SocketAddr};

use protocol::{FinishReason, Generation};

use super::*;

const A: NodeId = NodeId([1; 32]);
pub(super) const B: NodeId = NodeId([2; 32]);
const PATH: Path = Path { ours: IpAddr::V4(OURS), theirs: IpAddr::V4(THEIRS) };
const OURS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 0, 2);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn fixed() -> Fixed {
    Fixed {
        id: "i-1".to_owned(),
        model: "m".to_owned(),
        claim: Version { count: 1, node: A },
        digest: Digest([0; 32]),
        model_bytes: 1,
        spec: InstanceSpec::default(),
        secret: Secret([0; 32]),
        first_worker: 0,
    }
}

/// Equal shares of one stage.
pub(super) fn split(ranks: usize) -> Split {
    Split { shares: vec![1; ranks], context_tokens: 100, sequences_max: 2, ..Split::default() }
}

pub(super) fn request() -> GenerateRequest {
    GenerateRequest { prompt: vec![1], max_tokens: 5, ..GenerateRequest::default() }
}

pub(super) fn done(request: RequestId) -> WorkerEvent {
    WorkerEvent::Done(Generation {
        prompt_tokens: 1,
        generated_tokens: 5,
        prefill_us: 1,
        decode_us: 4_000_000,
        ..Generation::nothing(request, FinishReason::Stop)
    })
}

/// Ranks of equal shares on nodes of these names.
pub(super) fn ranks_of(names: &[&str]) -> Vec<Rank> {
    let rank = |name: &&str| {
        let node = NodeId([name.as_bytes()[0]; 32]);
        Rank::new(node, name.to_string(), 10, PATH)
    };
    names.iter().map(rank).collect()
}

/// Rank 0 on node a, rank 1 on node b, as workers 1 and 2.
pub(super) fn instance() -> Instance {
    let rank = |node, name: &str, path| Rank::new(node, name.to_owned(), 10, path);
    Instance::new(fixed(), vec![rank(A, "a", Path::LOOPBACK), rank(B, "b", PATH)], split(2), ms(0))
}

pub(super) fn says(
    instance: &mut Instance,
    worker: WorkerId,
    event: WorkerEvent,
    at: u64,
) -> Vec<Effect> {
    instance.step(Input::FromWorker { worker, event }, ms(at))
}

pub(super) fn load(instance: &mut Instance, worker: WorkerId, at: u64) -> Vec<Effect> {
    instance.step(Input::Spawned { worker, pid: 7 }, ms(at));
    let port = 9000 + worker as u16;
    let more = vec![(THEIRS, 9100 + worker as u16).into()];
    says(instance, worker, WorkerEvent::Listening { port, more }, at);
    let loaded = WorkerEvent::Loaded { weight_bytes: 5, kv_bytes: 5, buffer_bytes: 5, load_us: 1 };
    says(instance, worker, loaded, at)
}

/// The same, loaded and linked.
pub(super) fn ready() -> Instance {
    let mut instance = instance();
    load(&mut instance, 1, 1);
    load(&mut instance, 2, 2);
    says(&mut instance, 1, WorkerEvent::Linked { epoch: 1, notes: Vec::new() }, 3);
    says(&mut instance, 2, WorkerEvent::Linked { epoch: 1, notes: Vec::new() }, 3);
    assert_eq!(instance.status().state, InstanceState::Ready);
    instance
}

/// Effects in a short notation, one word each.
pub(super) fn brief(effects: &[Effect]) -> String {
    let word = |effect: &Effect| match effect {
        Effect::Spawn { worker, .. } => format!("spawn{worker}"),
        Effect::End { worker, at_once, .. } => {
            format!("{}{worker}", if *at_once { "kill" } else { "end" })
        }
        Effect::Send { worker, command, .. } => match command {
            WorkerCommand::Connect { epoch, .. } => format!("connect{worker}@{epoch}"),
            WorkerCommand::Disconnect => format!("disconnect{worker}"),
            WorkerCommand::Generate { request, .. } => format!("generate{worker}#{request}"),
            WorkerCommand::Cancel { request } => format!("cancel{worker}#{request}"),
            WorkerCommand::Open(_) => "open".to_owned(),
            WorkerCommand::Called | WorkerCommand::CalledBy { .. } => "called".to_owned(),
        },
        Effect::Emit { request, event } => match event {
            GenerateEvent::Waiting { .. } => format!("waiting#{request}"),
            GenerateEvent::Began(_) => format!("began#{request}"),
            GenerateEvent::Tokens(_) => format!("tokens#{request}"),
            GenerateEvent::Done(_) => format!("done#{request}"),
            GenerateEvent::Failed { .. } => format!("failed#{request}"),
        },
        Effect::LetGo { request, .. } => format!("let-go#{request}"),
        Effect::Replan => "replan".to_owned(),
        Effect::Reorder(order) => format!("reorder{}", order.len()),
        Effect::Part(_) => "part".to_owned(),
    };
    effects.iter().map(word).collect::<Vec<_>>().join(" ")
}

pub(super) fn reasons(effects: &[Effect]) -> Vec<&str> {
    let reason = |effect| match effect {
        &Effect::Emit { event: GenerateEvent::Failed { ref reason, .. }, .. } => {
            Some(reason.as_str())
        }
        Effect::LetGo { reason, .. } => Some(reason.as_str()),
        _ => None,
    };
    effects.iter().filter_map(reason).collect()
}

pub(super) fn submit(instance: &mut Instance, at: u64) -> String {
    instance.submit(request(), ms(at)).unwrap();
    brief(&instance.take_effects())
}

#[test]
fn an_instance_comes_up_and_answers() {
    let mut instance = instance();
    assert_eq!(brief(&instance.take_effects()), "spawn1 spawn2");
    assert_eq!(submit(&mut instance, 0), "waiting#1");
    assert_eq!(brief(&load(&mut instance, 1, 1)), "");
    let effects = load(&mut instance, 2, 2);
    assert_eq!(brief(&effects), "connect1@1 connect2@1");
    let expected: [[SocketAddr; 2]; 2] = [
        [(THEIRS, 9101).into(), (OURS, 9001).into()],
        [(THEIRS, 9102).into(), (THEIRS, 9002).into()],
    ];
    for effect in &effects {
        let Effect::Send { command: WorkerCommand::Connect { endpoints, .. }, .. } = effect else {
            panic!("{effect:?}")
        };
        assert_eq!(*endpoints, expected);
    }
    assert_eq!(
        brief(&says(&mut instance, 1, WorkerEvent::Linked { epoch: 1, notes: Vec::new() }, 3)),
        ""
    );
    assert_eq!(
        brief(&says(&mut instance, 2, WorkerEvent::Linked { epoch: 1, notes: Vec::new() }, 3)),
        "generate1#1"
    );
    assert_eq!(submit(&mut instance, 4), "generate1#2");
    assert_eq!(submit(&mut instance, 4), "waiting#3");
    let token = WorkerEvent::Token { request: 1, answer: 1.into() };
    assert_eq!(brief(&says(&mut instance, 2, token.clone(), 5)), "", "only rank 0 may answer");
    assert_eq!(brief(&says(&mut instance, 1, token, 5)), "tokens#1");
    assert_eq!(brief(&says(&mut instance, 1, done(1), 6)), "done#1 generate1#3");
    assert_eq!(instance.status().last_decode_tokens_per_sec, Some(1.0));
    assert_eq!(brief(&says(&mut instance, 1, done(1), 7)), "", "it is done once");
}

#[test]
fn a_killed_worker_is_named_whoever_notices_first() {
    let killed = |worker| Input::Exited { worker, how: "was killed by signal 9".to_owned() };
    let lost = || WorkerEvent::Lost {
        epoch: 1,
        rank: Some(1),
        reason: "its link closed".to_owned(),
        unreached: vec![],
    };
    let expected = ["node b (rank 1) was lost: its worker was killed by signal 9"];

    let mut instance = ready();
    submit(&mut instance, 10);
    let effects = instance.step(killed(2), ms(11));
    assert_eq!(
        (brief(&effects).as_str(), reasons(&effects)),
        ("failed#1 disconnect1", expected.to_vec())
    );
    assert_eq!(brief(&says(&mut instance, 1, lost(), 12)), "");
    assert_eq!(instance.deadline(), Some(ms(111)));
    assert_eq!(brief(&instance.step(Input::Tick, ms(111))), "spawn3");

    let mut instance = ready();
    submit(&mut instance, 10);
    assert_eq!(brief(&says(&mut instance, 1, lost(), 11)), "disconnect1 disconnect2");
    let effects = instance.step(killed(2), ms(12));
    assert_eq!(reasons(&effects), expected);

    // Without a better reason, the survivor's report counts.
    let mut instance = ready();
    submit(&mut instance, 10);
    says(&mut instance, 1, lost(), 11);
    assert_eq!(instance.deadline(), Some(ms(61)));
    let effects = instance.step(Input::Tick, ms(61));
    assert_eq!(reasons(&effects), ["node b (rank 1) was lost: its link closed"]);
    assert_eq!(brief(&instance.step(Input::Tick, ms(111))), "connect1@2 connect2@2");
}

#[test]
fn a_lost_node_is_waited_for_then_done_without() {
    let mut instance = ready();
    submit(&mut instance, 10);
    let down = || Input::NodeDown { node: B, reason: "its daemon ended".to_owned() };
    let effects = instance.step(down(), ms(11));
    assert_eq!(reasons(&effects), ["node b (rank 1) was lost: its daemon ended"]);
    assert_eq!(submit(&mut instance, 12), "waiting#2");

    // The node has returned, maybe with its worker.
    let effects = instance.step(Input::NodeUp { node: B, path: PATH }, ms(5000));
    assert_eq!(brief(&effects), "spawn2");
    assert_eq!(brief(&load(&mut instance, 2, 5001)), "connect1@2 connect2@2");
    says(&mut instance, 1, WorkerEvent::Linked { epoch: 2, notes: Vec::new() }, 5002);
    assert_eq!(
        brief(&says(&mut instance, 2, WorkerEvent::Linked { epoch: 2, notes: Vec::new() }, 5003)),
        "generate1#2"
    );

    instance.step(down(), ms(6000));
    assert_eq!(brief(&instance.step(Input::Tick, ms(7900))), "");
    assert_eq!(brief(&instance.step(Input::Tick, ms(8000))), "replan");
    let alone = vec![Rank::new(A, "a".to_owned(), 20, Path::LOOPBACK)];
    assert_eq!(brief(&instance.replace(alone, split(1), ms(8000))), "end1 end2 spawn3");
    assert_eq!(brief(&load(&mut instance, 3, 8001)), "connect3@3");
}

#[test]
fn missing_nodes_are_named_and_their_return_is_enough() {
    let mut instance = ready();
    instance.step(Input::NodeDown { node: B, reason: "its daemon ended".to_owned() }, ms(11));
    submit(&mut instance, 12);
    instance.step(Input::Tick, ms(10_011));
    let effects = instance.give_up("node a would need 9 GiB", ms(10_011));
    assert_eq!(
        reasons(&effects),
        ["node b (rank 1) was lost: its daemon ended; the nodes that are left do not suffice: \
          node a would need 9 GiB. Or bring b back"]
    );
    assert!(instance.submit(request(), ms(10_012)).is_err());
    assert_eq!(instance.deadline(), None);
    let effects = instance.step(Input::NodeUp { node: B, path: PATH }, ms(20_000));
    assert_eq!(brief(&effects), "spawn3 spawn4");
}

#[test]
fn links_that_never_come_up_are_given_up_and_tried_again_when_asked() {
    let mut instance = instance();
    load(&mut instance, 1, 1);
    load(&mut instance, 2, 2);
    assert_eq!(submit(&mut instance, 3), "waiting#1");
    let refused = |epoch| {
        let reason = "no RDMA".to_owned();
        WorkerEvent::Lost { epoch, rank: None, reason, unreached: vec![] }
    };
    for epoch in 1..5 {
        let now = 10_000 * epoch;
        let told = brief(&says(&mut instance, 2, refused(epoch), now));
        assert_eq!(told, "disconnect1 disconnect2");
        instance.step(Input::Tick, ms(now + 10_000));
    }
    let told = brief(&says(&mut instance, 2, refused(5), 50_000));
    assert_eq!(told, "disconnect1 disconnect2 failed#1 end1 end2");
    let InstanceState::Failed { reason } = instance.status().state else { panic!() };
    assert!(reason.ends_with("(5 times in a row)"), "{reason}");
    assert!(instance.submit(request(), ms(79_000)).is_err());
    assert_eq!(submit(&mut instance, 80_000), "spawn3 spawn4 waiting#2");
}

#[test]
fn a_worker_that_does_not_react_is_killed() {
    let mut instance = instance();
    instance.take_effects();
    load(&mut instance, 1, 0);
    instance.step(Input::Spawned { worker: 2, pid: 7 }, ms(0));
    assert_eq!(brief(&instance.step(Input::Tick, ms(119_999))), "");
    assert_eq!(brief(&instance.step(Input::Tick, ms(120_000))), "kill2");
    let exited = Input::Exited { worker: 2, how: "was killed by signal 9".to_owned() };
    instance.step(exited, ms(120_001));
    let InstanceState::Recovering { reason } = instance.status().state else { panic!() };
    assert!(reason.contains("no progress for 120 s"), "{reason}");

    instance.step(Input::Tick, ms(121_000));
    assert_eq!(brief(&load(&mut instance, 3, 121_000)), "connect1@1 connect3@1");
    says(&mut instance, 1, WorkerEvent::Linked { epoch: 1, notes: Vec::new() }, 121_001);
    assert_eq!(brief(&instance.step(Input::Tick, ms(141_000))), "kill3 disconnect1");
}

#[test]
fn cancelling_frees_the_place() {
    let mut instance = ready();
    for _ in 0..4 {
        submit(&mut instance, 10);
    }
    assert_eq!(brief(&instance.step(Input::Cancel(3), ms(11))), "", "it had not begun");
    assert_eq!(brief(&instance.step(Input::Cancel(1), ms(11))), "cancel1#1");
    assert_eq!(brief(&says(&mut instance, 1, done(1), 12)), "done#1 generate1#4");
    assert_eq!(
        brief(&instance.stop("it was stopped")),
        "let-go#2 let-go#4 disconnect1 disconnect2 end1 end2"
    );
}

#[test]
fn those_who_wait_hear_of_it() {
    let mut instance = instance();
    instance.take_effects();
    submit(&mut instance, 0);
    let mut heard = 0;
    for at in (250..=10_000).step_by(250) {
        heard += instance.step(Input::Tick, ms(at)).len();
    }
    assert_eq!(heard, 5);
    for _ in 1..requests::WAITING_MAX {
        submit(&mut instance, 10_000);
    }
    let full = instance.submit(request(), ms(10_000)).unwrap_err();
    assert!(matches!(full, Error::QueueFull { .. }));
}

#[test]
fn what_ranks_count_is_shown_until_its_epoch_ends() {
    let mut instance = ready();
    let stats =
        |running| WorkerEvent::Stats(Box::new(EngineStats { running, ..EngineStats::default() }));
    let shown = |instance: &Instance| instance.status().stats.map(|stats| stats.running);
    says(&mut instance, 2, stats(9), 10);
    assert_eq!(shown(&instance), None);
    says(&mut instance, 1, stats(3), 11);
    assert_eq!(shown(&instance), Some(3));
    says(&mut instance, 1, WorkerEvent::RankStats(Box::default()), 11);
    assert_eq!(instance.status().ranks[0].stats, Some(protocol::RankStats::default()));
    instance.step(Input::Exited { worker: 2, how: "was killed by signal 9".to_owned() }, ms(12));
    assert_eq!(shown(&instance), None);
    assert_eq!(instance.status().ranks[0].stats, None);
}

#[test]
fn what_older_epochs_say_is_ignored() {
    let mut instance = ready();
    let lost = |epoch| WorkerEvent::Lost {
        epoch,
        rank: Some(1),
        reason: "its link closed".to_owned(),
        unreached: vec![],
    };
    assert_eq!(brief(&says(&mut instance, 1, lost(0), 10)), "");
    assert_eq!(instance.status().state, InstanceState::Ready);
    says(&mut instance, 1, lost(1), 11);
    assert_eq!(brief(&instance.step(Input::Tick, ms(111))), "connect1@2 connect2@2");
    for (epoch, expected) in [(1, false), (2, true)] {
        for worker in [1, 2] {
            says(&mut instance, worker, WorkerEvent::Linked { epoch, notes: Vec::new() }, 112);
        }
        assert_eq!(instance.status().state == InstanceState::Ready, expected, "epoch {epoch}");
    }
}

#[test]
fn a_frozen_worker_is_killed_when_the_others_find_that_it_does_not_link() {
    let mut instance = ready();
    let late = |epoch| WorkerEvent::Lost {
        epoch,
        rank: Some(1),
        reason: "it is late".to_owned(),
        unreached: vec![],
    };
    let broken = WorkerEvent::Lost {
        epoch: 1,
        rank: None,
        reason: "a broken link".to_owned(),
        unreached: vec![],
    };
    assert_eq!(brief(&says(&mut instance, 1, broken.clone(), 10)), "disconnect1 disconnect2");
    assert_eq!(brief(&instance.step(Input::Tick, ms(110))), "connect1@2 connect2@2");
    assert_eq!(brief(&says(&mut instance, 1, late(2), 10_110)), "disconnect1 disconnect2");
    assert_eq!(brief(&instance.step(Input::Tick, ms(10_210))), "connect1@3 connect2@3");
    assert_eq!(brief(&instance.step(Input::Tick, ms(11_110))), "kill2");
    let exited = Input::Exited { worker: 2, how: "was killed by signal 9".to_owned() };
    instance.step(exited, ms(11_111));
    assert_eq!(brief(&instance.step(Input::Tick, ms(11_211))), "spawn3");
    // A worker that blames others too is not frozen: the link does not work.
    let mut instance = ready();
    says(&mut instance, 1, broken, 10);
    instance.step(Input::Tick, ms(110));
    says(&mut instance, 1, late(2), 10_110);
    let InstanceState::Recovering { reason } = instance.status().state else { panic!() };
    let both = "node a (rank 0) and node b (rank 1) cannot link: it is late; every two nodes";
    assert!(reason.starts_with(both), "{reason}");
    let lost = WorkerEvent::Lost {
        epoch: 2,
        rank: Some(0),
        reason: "it is late".to_owned(),
        unreached: vec![],
    };
    says(&mut instance, 2, lost, 10_111);
    assert_eq!(brief(&instance.step(Input::Tick, ms(12_000))), "connect1@3 connect2@3");
}

#[test]
fn a_worker_that_was_named_and_then_does_not_link_is_killed_soon() {
    let silent = || WorkerEvent::Lost {
        epoch: 1,
        rank: Some(1),
        reason: "no sign of life".to_owned(),
        unreached: vec![],
    };
    let mut instance = ready();
    assert_eq!(brief(&says(&mut instance, 1, silent(), 10)), "disconnect1 disconnect2");
    assert_eq!(brief(&instance.step(Input::Tick, ms(110))), "connect1@2 connect2@2");
    assert_eq!(brief(&instance.step(Input::Tick, ms(2109))), "");
    assert_eq!(brief(&instance.step(Input::Tick, ms(2110))), "kill2");

    // A worker that reports or links is healthy.
    for word in [
        WorkerEvent::Lost { epoch: 1, rank: Some(0), reason: "gone".to_owned(), unreached: vec![] },
        linked(2),
    ] {
        let mut instance = ready();
        says(&mut instance, 1, silent(), 10);
        let early = matches!(word, WorkerEvent::Lost { .. });
        if early {
            says(&mut instance, 2, word.clone(), 20);
        }
        instance.step(Input::Tick, ms(110));
        if !early {
            says(&mut instance, 2, word, 120);
        }
        assert_eq!(brief(&instance.step(Input::Tick, ms(5000))), "");
    }
}

pub(super) fn linked(epoch: u64) -> WorkerEvent {
    WorkerEvent::Linked { epoch, notes: Vec::new() }
}

#[test]
fn pauses_grow_until_an_answer_is_completed() {
    let mut instance = ready();
    let (mut now, mut epoch) = (10, 1);
    let mut pauses = Vec::new();
    for answered in [false, false, false, true, false] {
        if answered {
            submit(&mut instance, now);
            says(&mut instance, 1, done(1), now);
        }
        let lost = WorkerEvent::Lost {
            epoch,
            rank: None,
            reason: "a broken link".to_owned(),
            unreached: vec![],
        };
        says(&mut instance, 1, lost, now);
        let pause = instance.deadline().unwrap() - ms(now);
        pauses.push(pause.as_millis());
        now += pause.as_millis() as u64;
        instance.step(Input::Tick, ms(now));
        epoch += 1;
        says(&mut instance, 1, WorkerEvent::Linked { epoch, notes: Vec::new() }, now);
        says(&mut instance, 2, WorkerEvent::Linked { epoch, notes: Vec::new() }, now);
        assert_eq!(instance.status().state, InstanceState::Ready);
    }
    assert_eq!(pauses, [100, 100, 500, 100, 100]);
}
