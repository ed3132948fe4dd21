//! The operator's view of real nodes, and their refusals.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Node, PATIENCE, demo_model, kill_9, sinew, stdout, wait_for};
use serde_json::{Value, json};

fn get(node: &Node, path: &str) -> String {
    node.request(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

fn is_ready(node: &Node) -> bool {
    get(node, "/ready").starts_with("HTTP/1.1 200")
}

#[test]
fn a_node_is_ready_by_itself_and_again_after_a_crash() {
    const EPOCHS: &str = "sinew_instance_epochs_total{model_name=\"sinew-demo\"} ";
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    assert!(get(&a, "/ready").starts_with("HTTP/1.1 503"), "nothing is served");
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    for node in [&a, &b] {
        // Without requests, the instance tests itself.
        wait_for("the node to be ready", || is_ready(node).then_some(()));
    }
    let epochs = |node: &Node| {
        let metrics = get(node, "/metrics");
        let count = metrics.lines().find_map(|line| line.strip_prefix(EPOCHS))?;
        Some(count.parse::<u64>().unwrap())
    };
    // A busy machine may need more than one to begin with, or after the crash.
    let before = epochs(&a).unwrap();
    assert_eq!(epochs(&b), None, "the owner tells of an instance");
    kill_9(a.worker_pids("sinew-demo")[1]);
    wait_for("the loss to be seen", || (!is_ready(&a)).then_some(()));
    wait_for("the node to be ready again", || is_ready(&a).then_some(()));
    wait_for("another epoch", || epochs(&a).filter(|now| *now > before));
}

#[test]
fn a_node_says_that_other_programs_use_its_processors() {
    let node = Node::start("studio");
    let (over, deadline) = (AtomicBool::new(false), Instant::now() + PATIENCE);
    let busy = || {
        while !over.load(Ordering::Relaxed) && Instant::now() < deadline {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(busy);
        }
        let told = "other programs on studio use ";
        wait_for("the word of it", || {
            let shown = sinew(&["nodes", "-v", "--data-dir", node.dir.path().to_str().unwrap()]);
            let all = [shown.stdout, shown.stderr].concat();
            let all = String::from_utf8(all).unwrap();
            (all.contains(told) && all.contains(" cores ")).then_some(())
        });
        over.store(true, Ordering::Relaxed);
    });
}

/// Requests of many clients at a node without a part of the model: those beyond the owner's queue
/// are refused as busy, with the time to wait, and not as failures.
#[test]
fn a_full_queue_of_another_node_is_429() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let model = a.dir.path().join("models/slow.gguf");
    let model = model.to_str().unwrap();
    stdout(&["dev", "synth", "--shape", "llama-150m", "--quant", "q4_0", "-o", model]);
    a.run(&["serve", "slow", "--ctx", "1024", "--nodes", "1", "--parallel", "1"]);
    wait_for("b to know the model", || b.instance("slow"));
    let over = AtomicBool::new(false);
    let body = json!({
        "model": "slow", "max_tokens": 900, "stream": true, "temperature": 0,
        "messages": [{ "role": "user", "content": "go on" }],
    });
    std::thread::scope(|scope| {
        // One runs and 64 wait; the rest find the queue full.
        let ask = || {
            let config = ureq::Agent::config_builder().http_status_as_error(false);
            let agent: ureq::Agent = config.timeout_global(Some(PATIENCE)).build().into();
            let url = format!("{}/v1/chat/completions", b.api);
            let mut response = agent.post(&url).send_json(&body).expect("the node answers");
            if response.status() == 200 {
                // Keeps its place until the others have their answers.
                while !over.load(Ordering::Relaxed) {
                    // Sleeps: between two looks.
                    std::thread::sleep(Duration::from_millis(20));
                }
                return None;
            }
            let after = response.headers().get("retry-after").cloned();
            let body: serde_json::Value = response.body_mut().read_json().unwrap();
            Some((response.status().as_u16(), after, body))
        };
        let asking: Vec<_> = (0..72).map(|_| scope.spawn(ask)).collect();
        let is_done = |count| asking.iter().filter(|one| one.is_finished()).count() >= count;
        wait_for("the queue to be full", || is_done(7).then_some(()));
        over.store(true, Ordering::Relaxed);
        let refused: Vec<_> = asking.into_iter().filter_map(|one| one.join().unwrap()).collect();
        assert_eq!(refused.len(), 7);
        for (status, after, body) in refused {
            assert_eq!((status, after.is_some()), (429, true), "{body}");
            assert_eq!(body["error"]["type"], "rate_limit_error", "{body}");
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains("64 requests"), "{message}");
        }
    });
}

/// A request that came through a proxy, and so from another machine, with a key.
fn from_elsewhere(node: &Node, key: &str) -> String {
    let answer = node.request(&format!(
        "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: 203.0.113.9\r\n\
         authorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    ));
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn keys_are_made_and_revoked_while_the_node_runs() {
    let dir = tempfile::tempdir().unwrap();
    let printed = dir.path().join("printed");
    let file = std::fs::File::create(&printed).unwrap();
    let lan = |command: &mut std::process::Command| {
        command.arg("--lan").stdout(file);
    };
    let node = Node::start_with("a", dir, "127.0.0.1:0", lan);
    let first = wait_for("the first key to be printed", || {
        let text = std::fs::read_to_string(&printed).ok()?;
        let key = text.split_whitespace().find(|word| word.starts_with("sk-sinew-"))?;
        Some(key.to_owned())
    });
    let (ok, unauthorized) = ("HTTP/1.1 200 OK", "HTTP/1.1 401 Unauthorized");
    assert_eq!(from_elsewhere(&node, &first), ok);
    let laptop = node.run(&["keys", "create", "laptop"]).trim().to_owned();
    assert_eq!(from_elsewhere(&node, &laptop), ok);
    let listed = node.run(&["keys", "list"]);
    assert!(listed.contains("first") && listed.contains("laptop"), "{listed}");
    assert!(!listed.contains(&laptop), "{listed}");
    node.run(&["keys", "revoke", "laptop"]);
    assert_eq!(from_elsewhere(&node, &laptop), unauthorized);
    assert_eq!(from_elsewhere(&node, &first), ok);
    assert!(node.refused(&["keys", "revoke", "laptop"]).contains("no key laptop"));
    assert!(node.refused(&["keys", "create", "first"]).contains("already"));
}

#[test]
fn the_usage_of_each_key_is_counted() {
    let node = Node::start("a");
    node.run(&["serve", &demo_model()]);
    let key = node.run(&["keys", "create", "laptop"]).trim().to_owned();
    node.run(&["keys", "create", "phone"]);
    node.chat("sinew-demo", "Who are you?", 4);
    let body = json!({ "model": "sinew-demo", "prompt": "Who are you? ", "max_tokens": 3 });
    let usage = [(); 2].map(|()| {
        let agent = ureq::Agent::new_with_defaults();
        let request = agent.post(format!("{}/v1/completions", node.api));
        let request = request.header("authorization", format!("Bearer {key}"));
        let answer: Value = request.send_json(&body).unwrap().body_mut().read_json().unwrap();
        answer["usage"].clone()
    });
    let sum = |field: &str| usage.iter().map(|one| one[field].as_u64().unwrap()).sum::<u64>();
    let (prompt, generated) = (sum("prompt_tokens"), sum("completion_tokens"));
    let listed: Value = serde_json::from_str(&node.run(&["keys", "list", "--json"])).unwrap();
    let of = |name: &str| {
        let found = listed.as_array().unwrap().iter().find(|key| key["name"] == name);
        found.unwrap()["usage"].clone()
    };
    let told = of("laptop");
    assert_eq!((&told["requests"], &told["prompt_tokens"]), (&json!(2), &json!(prompt)), "{told}");
    assert_eq!(told["generated_tokens"], generated, "{told}");
    assert_eq!(of("phone")["requests"], 0, "a request without a key is nobody's");
    let metrics = get(&node, "/metrics");
    for (series, count) in [("generation_tokens", generated), ("prompt_tokens", prompt)] {
        let line = format!("sinew_key_{series}_total{{key=\"laptop\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}");
    }
    node.run(&["keys", "revoke", "laptop"]);
    assert!(!get(&node, "/metrics").contains("key=\"laptop\""));
}

#[test]
fn the_log_level_changes_while_the_node_runs() {
    let node = Node::start("a");
    let log = node.dir.path().join("logs/sinew.log");
    let told = || {
        get(&node, "/health");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter(|line| line.contains("DEBUG") && line.contains("answered")).count()
    };
    assert_eq!(told(), 0);
    assert!(node.refused(&["log-level", "loud"]).contains("no level"));
    node.run(&["log-level", "warn,serve=debug"]);
    wait_for("the log to have requests", || (told() > 0).then_some(()));
    node.run(&["log-level", "default"]);
    let before = told();
    assert_eq!(told(), before);
}

#[test]
fn a_proxy_on_this_machine_needs_a_key_and_no_lan() {
    let node = Node::start("a");
    let key = node.run(&["keys", "create", "proxy"]).trim().to_owned();
    assert_eq!(from_elsewhere(&node, &key), "HTTP/1.1 200 OK");
    assert_eq!(from_elsewhere(&node, "sk-sinew-wrong"), "HTTP/1.1 401 Unauthorized");
}

#[test]
fn an_answer_that_ends_at_a_stop_string_tells_what_of_its_prompt_was_cached() {
    let node = Node::start("a");
    node.run(&["serve", &demo_model()]);
    let prompt = "Who are you? ".repeat(40);
    let ask = |stop: Option<&str>| {
        let body = serde_json::json!({
            "model": "sinew-demo", "temperature": 0, "max_tokens": 30, "stop": stop,
            "messages": [{ "role": "user", "content": prompt }],
        });
        let url = format!("{}/v1/chat/completions", node.api);
        let answer: serde_json::Value =
            common::request(&url, &body).body_mut().read_json().unwrap();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        (content, cached.unwrap())
    };
    let (whole, cold) = ask(None);
    assert!(cold < 8, "{cold}: the node's own first request began alike");
    let (_, warm) = ask(None);
    assert!(warm >= 64, "{warm}");
    let word = whole.split(' ').nth(3).unwrap();
    let (cut, stopped) = ask(Some(word));
    assert!(cut.len() < whole.len(), "{cut:?} of {whole:?}");
    assert_eq!(stopped, warm);
}

/// The queries of the board.
fn board_queries() -> Vec<String> {
    let board = common::repository().join("contrib/grafana/sinew.json");
    let board: Value = serde_json::from_slice(&std::fs::read(board).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// An alert rule: its lines as key and text, without quotes.
type Rule = BTreeMap<String, String>;

/// The alert rules, whose file has one key a line.
fn alert_rules() -> Vec<Rule> {
    let text = std::fs::read_to_string(common::repository().join("contrib/grafana/alerts.yml"));
    let text = text.unwrap();
    let rules = text.split("      - alert: ").skip(1);
    let rule = |text: &str| {
        let lines = format!("alert: {text}");
        let pairs = lines.lines().map(|line| line.trim().split_once(':').expect(line));
        let pair = |(key, text): (&str, &str)| {
            let text = text.trim();
            let is_quoted = text.starts_with('"') && text.ends_with('"');
            // YAML reads these as something else.
            let is_plain = !text.contains(": ") && !text.contains(" #") && !text.starts_with('{');
            assert!(is_quoted || is_plain || key == "labels", "{key}: {text}");
            (key.to_owned(), text.trim_matches('"').to_owned())
        };
        pairs.map(pair).collect()
    };
    rules.map(rule).collect()
}

/// The names of series in a query.
fn series(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("sinew_")).map(str::to_owned).collect()
}

/// Every command between backticks is one of the program.
#[test]
fn every_alert_says_what_happened_and_what_to_type() {
    let rules = alert_rules();
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in rules {
        let keys: Vec<&str> = rule.keys().map(String::as_str).filter(|key| *key != "for").collect();
        let expected = ["alert", "annotations", "description", "expr", "labels", "summary"];
        assert_eq!(keys, expected, "{rule:?}");
        let query = &rule["expr"];
        assert!(query == "up{job=\"sinew\"} == 0" || !series(query).is_empty(), "{query}");
        let severity = ["{ severity: critical }", "{ severity: warning }"];
        assert!(severity.contains(&rule["labels"].as_str()), "{rule:?}");
        let commands: Vec<&str> = rule["description"].split('`').skip(1).step_by(2).collect();
        assert!(!commands.is_empty(), "{rule:?}");
        for command in commands {
            let words = command.strip_prefix("sinew ").expect(command).split(' ');
            let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
            let names: Vec<&str> = words.clone().take_while(is_name).collect();
            let help = stdout(&[&names[..], &["--help"]].concat());
            for flag in words.filter(|word| word.starts_with('-')) {
                assert!(help.contains(flag), "{command}");
            }
        }
    }
}

#[test]
fn every_query_of_the_board_and_the_alerts_has_something_to_show() {
    let alerts = alert_rules().into_iter().map(|rule| rule["expr"].clone());
    let queries = board_queries().into_iter().chain(alerts);
    let asked: BTreeSet<String> = queries.flat_map(|query| series(&query)).collect();
    assert!(asked.len() > 30, "{asked:?}");
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    a.chat("sinew-demo", "Who are you?", 5);
    a.chat("no-such-model", "Who are you?", 5);
    let trace: serde_json::Value = serde_json::from_str(&a.run(&["trace"])).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap();
    let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["request", "arrival", "queue", "prefill", "decode"], "{trace}");
    // The ranks' reports take a moment.
    for name in asked {
        wait_for(&name, || {
            let metrics = get(&a, "/metrics");
            let is_it = |line: &str| {
                line.strip_prefix(&name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            };
            metrics.lines().any(is_it).then_some(())
        });
    }
}

/// The sum over a rank's series of that name.
fn of_rank(metrics: &str, name: &str, rank: usize) -> Option<f64> {
    let rank = format!("rank=\"{rank}\"");
    let lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(&rank));
    let values = lines.map(|line| line.rsplit(' ').next()?.parse().ok());
    values.reduce(|sum: Option<f64>, value| Some(sum? + value?))?
}

#[test]
fn every_rank_tells_how_it_computes_waits_and_sends() {
    const COUNTS: [&str; 4] = [
        "sinew_rank_compute_seconds_total",
        "sinew_rank_wait_seconds_total",
        "sinew_link_sent_bytes_total",
        "sinew_link_received_bytes_total",
    ];
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--split", "1,1"]);
    let counts = || {
        let metrics = get(&a, "/metrics");
        let series = [0, 1].into_iter().flat_map(|rank| COUNTS.map(|name| (name, rank)));
        series.map(|(name, rank)| of_rank(&metrics, name, rank)).collect::<Option<Vec<f64>>>()
    };
    a.chat("sinew-demo", "Who are you?", 20);
    let before = wait_for("both ranks to tell", counts);
    a.chat("sinew-demo", "What can you do?", 20);
    let trace: serde_json::Value = serde_json::from_str(&a.run(&["trace"])).unwrap();
    for name in ["prefill", "decode"] {
        let spans = trace["traceEvents"].as_array().unwrap().iter();
        let waits =
            spans.filter(|span| span["name"] == name).map(|span| &span["args"]["waited_us"]);
        let waits: Vec<_> = waits.collect();
        assert_eq!(waits.len(), 2, "{trace}");
        assert!(waits.iter().all(|waits| waits["rank 1"].is_u64()), "{name}: {trace}");
    }
    // No further requests: a rank sends its remaining counts when it falls idle.
    wait_for("all of it to grow", || {
        counts()?.iter().zip(&before).all(|(now, before)| now > before).then_some(())
    });
}
