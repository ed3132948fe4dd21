//! Many clients of a cluster whose workers and nodes are killed. Each gets a complete answer or an
//! error; no answer has a wrong word, and nothing is left behind.
//!
//! `SINEW_CHAOS_SECS` sets the duration (6 s by default), `SINEW_CHAOS_SEED` repeats a run.

use crate::common;
use std::io::{BufRead, BufReader};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Node, PATIENCE, demo_model, kill_9, wait_for};
use fastrand::Rng;
use serde_json::{Value, json};

const CLIENTS: u64 = 64;
const MODEL: &str = "sinew-demo";
const PROMPT: &str = "Who are you?";
const TOKENS_MAX: usize = 60;

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Whole,
    /// With an error.
    Told,
    /// Its client left.
    Left,
    /// Its node was killed, and could not report anything.
    NodeGone,
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One request as a client sees it. All its text must be a prefix of `answer`.
fn ask(api: &str, random: &mut Rng, answer: &str) -> End {
    let stream = random.bool();
    let body = json!({
        "model": MODEL, "temperature": 0, "max_tokens": random.usize(1..=TOKENS_MAX),
        "stream": stream, "messages": [{ "role": "user", "content": PROMPT }],
    });
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let agent: ureq::Agent = config.timeout_global(Some(PATIENCE)).build().into();
    let sent = agent.post(format!("{api}/v1/chat/completions")).send_json(&body);
    let mut response = match sent {
        Ok(response) => response,
        Err(ureq::Error::Timeout(what)) => panic!("no answer in {PATIENCE:?}: {what}"),
        Err(_) => return End::NodeGone,
    };
    if response.status() != 200 {
        let status = response.status().as_u16();
        let Ok(body) = response.body_mut().read_json::<Value>() else { return End::NodeGone };
        assert!([429, 502, 503].contains(&status), "{status} {body}");
        assert!(body["error"]["message"].is_string(), "{body}");
        return End::Told;
    }
    if !stream {
        let Ok(body) = response.body_mut().read_json::<Value>() else { return End::NodeGone };
        let text = body["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(answer.starts_with(text), "{text:?} is no beginning of {answer:?}");
        return End::Whole;
    }
    let leaves_after =
        if random.u8(..4) == 0 { random.usize(..TOKENS_MAX / 2) } else { usize::MAX };
    let lines = BufReader::new(response.into_body().into_reader()).lines();
    let mut text = String::new();
    for (at, line) in lines.map_while(Result::ok).enumerate() {
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return End::Whole;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        if event.get("error").is_some() {
            return End::Told;
        }
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        assert!(answer.starts_with(&text), "{text:?} is no beginning of {answer:?}");
        if at >= leaves_after {
            return End::Left;
        }
    }
    End::NodeGone
}

fn is_ready(node: &Node) -> bool {
    node.instance(MODEL).is_some_and(|instance| instance["state"]["state"] == "ready")
}

/// Kills a worker at intervals, and once the node that does not own the model.
fn make_trouble(a: &Node, b: &Mutex<Option<Node>>, random: &mut Rng, until: Instant) {
    let begun = Instant::now();
    let half = (until - begun) / 2;
    let mut has_killed_node = false;
    while Instant::now() < until {
        // Sleeps: the moment of each kill is drawn.
        std::thread::sleep(Duration::from_millis(random.u64(500..1500)));
        if begun.elapsed() > half && !has_killed_node {
            has_killed_node = true;
            let mut b = b.lock().unwrap();
            let killed = b.take().expect("it runs");
            let listen = killed.listen_addr();
            *b = Some(Node::start_in("b", killed.kill(), &listen));
            continue;
        }
        let Some(instance) = a.instance(MODEL) else { continue };
        let pids: Vec<u64> = instance["ranks"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|rank| rank["pid"].as_u64())
            .filter(|pid| common::is_alive(*pid))
            .collect();
        if is_ready(a) && !pids.is_empty() {
            kill_9(pids[random.usize(..pids.len())]);
        }
    }
}

#[test]
fn whatever_is_killed_every_client_is_told_the_truth() {
    let seed = from_env("SINEW_CHAOS_SEED", fastrand::u64(..1_000_000));
    let until = Duration::from_secs(from_env("SINEW_CHAOS_SECS", 6));
    println!("SINEW_CHAOS_SEED={seed}");
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    let whole = a.chat(MODEL, PROMPT, TOKENS_MAX);
    let answer = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    wait_for("b to know the model", || b.instance(MODEL));

    let until = Instant::now() + until;
    let (b, over) = (Mutex::new(Some(b)), AtomicBool::new(false));
    let ends = std::thread::scope(|scope| {
        let client = |number: u64| {
            let (a, b, over, answer) = (&a, &b, &over, &answer);
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed ^ (number << 32));
                let mut ends = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let of_b = number
                        .is_multiple_of(4)
                        .then(|| b.lock().unwrap().as_ref().map(|b| b.api.clone()))
                        .flatten();
                    let api = of_b.as_deref().unwrap_or(&a.api);
                    let end = ask(api, &mut random, answer);
                    assert!(of_b.is_some() || end != End::NodeGone, "a lives and says nothing");
                    ends.push((of_b.is_some(), end));
                    // A client with an error asks again once there is a model, as clients that
                    // mind `Retry-After` do. Else a pause would count as thousands of errors.
                    while end == End::Told && !over.load(Ordering::Relaxed) && !is_ready(a) {
                        // Sleeps: between two looks at the state.
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                ends
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        make_trouble(&a, &b, &mut Rng::with_seed(seed), until);
        over.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|one| one.join().unwrap()).collect::<Vec<(bool, End)>>()
    });
    let count = |end| ends.iter().filter(|(_, one)| *one == end).count();
    let counts = [End::Whole, End::Told, End::Left, End::NodeGone].map(|end| (end, count(end)));
    println!("{counts:?}");
    // Answers survive the kills: clients of the surviving node rather get one than an error.
    let told = ends.iter().filter(|(of_b, end)| !of_b && *end == End::Told).count();
    assert!(count(End::Whole) > told, "{counts:?}, of which {told} told by the node that lives");

    // Nothing is left behind, and the next answer equals the first.
    wait_for("the last requests to end", || {
        let instance = a.instance(MODEL)?;
        let idle = instance["requests_running"] == 0 && instance["requests_waiting"] == 0;
        (idle && is_ready(&a)).then_some(())
    });
    let again = a.chat(MODEL, PROMPT, TOKENS_MAX);
    assert_eq!(again["choices"], whole["choices"]);
}
