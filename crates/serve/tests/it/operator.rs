//! The operator's view: health, readiness, metrics.

use crate::support;
use std::sync::Arc;

use crate::support::client::{CHAT, chat, get};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use cluster::{InstanceState, NodeId};
use protocol::{EngineStats, FinishReason, LinkStats, PageStats, RankStats, StepStats};
use serde_json::{Value, json};
use serve::{Refusal, RefusalKind};

const FINE: [Act; 2] = [Act::Say("one two three"), Act::Done(FinishReason::Stop)];

/// The value of a series, written as in the text format.
fn value(server: &Server, series: &str) -> Option<f64> {
    let metrics = get(server.addr, "/metrics", &[]).body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{series} ")))?;
    Some(line.parse().unwrap())
}

#[test]
fn ready_means_that_a_model_has_generated() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply = get(server.addr, "/ready", &[]);
    assert_eq!((reply.status, &reply.json()["models"]), (200, &json!(1)), "{reply:?}");

    let lost = || "node mac-mini was lost".to_owned();
    let cases = [
        (InstanceState::Ready, "has not generated"),
        (InstanceState::Loading, "1 loads"),
        (InstanceState::Recovering { reason: lost() }, "1 recovers"),
        (InstanceState::Failed { reason: lost() }, "1 has failed"),
    ];
    for (state, why) in cases {
        double.set_state(state);
        double.status.lock().unwrap().instances[0].has_generated = false;
        let reply = get(server.addr, "/ready", &[]);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("2")), "{reply:?}");
        assert!(reply.body.contains(why) && !reply.body.contains("mac-mini"), "{reply:?}");
        assert_eq!(get(server.addr, "/health", &[]).status, 200);
    }
    double.status.lock().unwrap().instances.clear();
    let reply = get(server.addr, "/ready", &[]);
    assert_eq!(reply.status, 503);
    assert!(reply.body.contains("sinew serve"), "{reply:?}");
}

#[test]
fn requests_are_counted_and_timed() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let tokens: u64 = (0..3)
        .map(|_| {
            chat(server.addr, json!({})).json()["usage"]["completion_tokens"].as_u64().unwrap()
        })
        .sum();
    let model = "{model_name=\"tiny/qwen3\"}";
    let prompt = double.asked.lock().unwrap()[0].prompt.len() as f64;
    let expected = [
        ("sinew_generation_tokens_total", tokens as f64),
        ("sinew_prompt_tokens_total", 3.0 * prompt),
        ("sinew_time_to_first_token_seconds_count", 3.0),
        ("sinew_inter_token_latency_seconds_count", tokens as f64 - 3.0),
        ("sinew_request_time_per_output_token_seconds_count", 3.0),
        ("sinew_e2e_request_latency_seconds_count", 3.0),
        ("sinew_request_queue_time_seconds_count", 3.0),
        ("sinew_request_prefill_time_seconds_sum", 0.75),
        ("sinew_request_decode_time_seconds_sum", 1.5),
        ("sinew_request_inference_time_seconds_sum", 2.25),
        ("sinew_request_prompt_tokens_sum", 3.0 * prompt),
        ("sinew_request_generation_tokens_sum", tokens as f64),
    ];
    for (name, expected) in expected {
        assert_eq!(value(&server, &format!("{name}{model}")), Some(expected), "{name}");
    }
}

#[test]
fn every_end_of_a_request_is_counted_once() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let ended = |reason: &str| {
        let labels = format!("{{model_name=\"tiny/qwen3\",finished_reason=\"{reason}\"}}");
        value(&server, &format!("sinew_request_success_total{labels}")).unwrap_or_default()
    };
    chat(server.addr, json!({}));
    chat(server.addr, json!({"stop": "two"}));
    assert_eq!(ended("stop"), 2.0);
    double.play(&[Act::Say("one two"), Act::Done(FinishReason::Length)]);
    chat(server.addr, json!({}));
    assert_eq!(ended("length"), 1.0);
    double.play(&[Act::Say("one"), Act::Failed("node b was lost")]);
    assert_eq!(chat(server.addr, json!({})).status, 502);
    assert_eq!(ended("error"), 1.0);
    let failed = "sinew_request_failed_total{model_name=\"tiny/qwen3\",reason=\"lost\"}";
    assert_eq!(value(&server, failed), Some(1.0));

    double.play(&[Act::Say("one"), Act::Hang]);
    let mut leaving = support::client::connect(server.addr);
    let body = support::client::chat_body(json!({"stream": true})).to_string();
    let request = support::client::request("POST", support::client::CHAT, server.addr, &[], &body);
    std::io::Write::write_all(&mut leaving, request.as_bytes()).unwrap();
    support::wait_running(&double, 1);
    drop(leaving);
    support::wait_for("the client's leaving to be seen", || ended("abort") == 1.0);
    assert_eq!((ended("stop"), ended("length"), ended("error")), (2.0, 1.0, 1.0));

    *double.refusal.lock().unwrap() = Some(Refusal::new(RefusalKind::Busy, "64 wait"));
    assert_eq!(chat(server.addr, json!({})).status, 429);
    assert_eq!(chat(server.addr, json!({"model": "gpt-4o"})).status, 404);
    for (reason, count) in [("busy", 1.0), ("unknown_model", 1.0)] {
        let series = format!("sinew_request_failed_total{{reason=\"{reason}\"}}");
        assert_eq!(value(&server, &series), Some(count), "{reason}");
    }
    let metrics = get(server.addr, "/metrics", &[]).body;
    assert!(!metrics.contains("gpt-4o"), "no label comes from what a client wrote");
}

#[test]
fn every_refusal_is_counted_once_and_none_as_an_answer() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let failed = |reason: &str| {
        let metrics = get(server.addr, "/metrics", &[]).body;
        let is_it = |line: &&str| {
            line.starts_with("sinew_request_failed_total")
                && line.contains(&format!("reason=\"{reason}\""))
        };
        let values = metrics.lines().filter(is_it).map(|line| line.rsplit(' ').next().unwrap());
        values.map(|value| value.parse::<f64>().unwrap()).sum::<f64>()
    };
    let post = |path: &str, extra: Value| {
        let body = support::client::chat_body(extra);
        support::client::post(server.addr, path, &[], &body).status
    };
    let refusals = [
        ("/v1/chat/completions", json!({"temperature": 9}), 400, "invalid"),
        ("/v1/messages", json!({"max_tokens": 0}), 400, "invalid"),
        ("/v1/messages/count_tokens", json!({"model": "gpt-4o"}), 404, "unknown_model"),
        ("/v1/responses", json!({"input": "hi", "background": true}), 400, "invalid"),
        ("/api/chat", json!({"options": {"tempreature": 1}}), 400, "invalid"),
        ("/api/show", json!({"model": "gpt-4o"}), 404, "unknown_model"),
        ("/v1/embeddings", json!({"input": ""}), 400, "invalid"),
        ("/v1/chat/completion", json!({}), 404, "no_such_path"),
    ];
    for (path, body, status, reason) in refusals {
        let before = failed(reason);
        assert_eq!(post(path, body), status, "{path}");
        assert_eq!(failed(reason), before + 1.0, "{path}");
    }
    let plain = [("content-type", "text/plain")];
    assert_eq!(support::client::post(server.addr, CHAT, &plain, &json!({})).status, 415);
    let elsewhere = [("x-forwarded-for", "203.0.113.9")];
    assert_eq!(support::client::post(server.addr, CHAT, &elsewhere, &json!({})).status, 401);
    assert_eq!(failed("unauthenticated"), 1.0);

    // The node refuses the request, as for a grammar that cannot be compiled.
    for stream in [true, false] {
        double.play(&[Act::Refused("the grammar cannot be used")]);
        let (before, status) =
            (failed("invalid"), chat(server.addr, json!({"stream": stream})).status);
        assert_eq!((status, failed("invalid")), (400, before + 1.0));
    }
    let metrics = get(server.addr, "/metrics", &[]).body;
    assert!(!metrics.contains("finished_reason"), "no answer was given: {metrics}");
    let by_status = "{handler=\"/v1/chat/completions\",method=\"POST\",status=\"400\"}";
    assert_eq!(value(&server, &format!("sinew_http_requests_total{by_status}")), Some(3.0));
    let unknown = "{handler=\"other\",method=\"POST\",status=\"404\"}";
    assert_eq!(value(&server, &format!("sinew_http_requests_total{unknown}")), Some(1.0));
}

#[test]
fn what_the_engine_told_is_shown_for_instances_of_this_node_alone() {
    let double = Double::new(&FINE);
    let mut steps = StepStats::default();
    for took_us in [900, 900, 30_000] {
        steps.add(took_us, 10, 1);
    }
    let stats = EngineStats {
        running: 3,
        waiting: 2,
        pages: PageStats { positions: 64, total: 100, used: 25, cached: 50 },
        prefix_queried_tokens: 1000,
        prefix_hit_tokens: 640,
        preemptions: 4,
        steps,
        ..EngineStats::default()
    };
    {
        let mut status = double.status.lock().unwrap();
        let instance = &mut status.instances[0];
        instance.ranks[1].stats = Some(RankStats {
            compute_us: 1_500_000,
            exchange_wait_us: 2_500_000,
            step_wait_us: 500_000,
            exchange_ns: Some(2_000),
            links: vec![LinkStats { peer: 0, sent_bytes: 70, received_bytes: 80, is_rdma: false }],
            ..RankStats::default()
        });
        (instance.stats, instance.requests_running) = (Some(stats), 5);
        (instance.requests_waiting, instance.epoch) = (7, 3);
        let mut others = instance.clone();
        (others.owner, others.model) = (NodeId([2; 32]), "of another node".to_owned());
        status.instances.push(others);
    }
    let server = Server::start(&double);
    let model = "{model_name=\"tiny/qwen3\"";
    let expected = [
        ("sinew_num_requests_running", "}", 3.0),
        ("sinew_num_requests_waiting", "}", 9.0),
        ("sinew_kv_cache_usage_perc", "}", 0.25),
        ("sinew_kv_cache_pages", ",state=\"free\"}", 25.0),
        ("sinew_prefix_cache_queries_total", "}", 1000.0),
        ("sinew_prefix_cache_hits_total", "}", 640.0),
        ("sinew_num_preemptions_total", "}", 4.0),
        ("sinew_instance_epochs_total", "}", 3.0),
        ("sinew_instance_state", ",state=\"ready\"}", 1.0),
        ("sinew_instance_state", ",state=\"loading\"}", 0.0),
        ("sinew_step_time_seconds_count", "}", 3.0),
        ("sinew_step_time_seconds_bucket", ",le=\"0.001\"}", 2.0),
        ("sinew_step_time_seconds_bucket", ",le=\"+Inf\"}", 3.0),
    ];
    let rank = ",rank=\"1\",node=\"mac-mini\"";
    let label = |name: &str, value: &str| format!("{rank},{name}=\"{value}\"}}");
    let [exchange, step] = ["exchange", "step"].map(|kind| label("kind", kind));
    let (of_rank, peer) = (format!("{rank}}}"), label("peer", "0"));
    let of_ranks = [
        ("sinew_rank_compute_seconds_total", of_rank.as_str(), 1.5),
        ("sinew_rank_wait_seconds_total", &exchange, 2.5),
        ("sinew_rank_wait_seconds_total", &step, 0.5),
        ("sinew_link_exchange_seconds", &of_rank, 2e-6),
        ("sinew_link_sent_bytes_total", &peer, 70.0),
        ("sinew_link_received_bytes_total", &peer, 80.0),
    ];
    let metrics = get(server.addr, "/metrics", &[]).body;
    for (name, labels, expected) in expected.into_iter().chain(of_ranks) {
        // A histogram's own label comes first.
        let (own, rest) = if labels.contains("le=") {
            (labels.trim_start_matches(',').trim_end_matches('}'), "}")
        } else {
            ("", labels)
        };
        let start = match own {
            "" => format!("{name}{model}{rest} "),
            own => format!("{name}{{{own},{}{rest} ", &model[1..]),
        };
        let other = format!("{name}{model}{labels} ");
        let find = |start: &str| metrics.lines().find_map(|line| line.strip_prefix(start));
        let found = find(&start).or_else(|| find(&other));
        assert_eq!(found.map(|text| text.parse().unwrap()), Some(expected), "{start}");
    }
    assert!(!metrics.contains("of another node"), "its owner tells of it");
    assert!(metrics.contains("sinew_peer_up{node=\"mac-mini\""), "{metrics}");
    assert!(metrics.contains("sinew_peer_round_trip_seconds{node=\"mac-mini\""), "{metrics}");
    assert!(metrics.contains("sinew_build_info{version="), "{metrics}");
    assert!(metrics.contains("sinew_rank_memory_bytes{"), "{metrics}");
}

#[test]
fn both_text_formats_are_spoken() {
    let server = Server::start(&Double::new(&FINE));
    chat(server.addr, json!({}));
    let plain = get(server.addr, "/metrics", &[]);
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(plain.body.contains("# TYPE sinew_prompt_tokens_total counter\n"), "{plain:?}");
    assert!(!plain.body.contains("# EOF"));
    // The header that Prometheus sends.
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    let open = get(server.addr, "/metrics", &[("accept", accept)]);
    let kind = open.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    assert!(open.body.contains("# TYPE sinew_prompt_tokens counter\n"), "{open:?}");
    assert!(open.body.ends_with("# EOF\n"));
}

#[test]
fn metrics_are_not_for_strangers() {
    let double: Arc<Double> = Double::new(&FINE);
    let server = Server::start(&double);
    let elsewhere = [("x-forwarded-for", "203.0.113.9")];
    assert_eq!(get(server.addr, "/metrics", &elsewhere).status, 401);
    for path in ["/health", "/ready"] {
        assert_eq!(get(server.addr, path, &elsewhere).status, 200, "probes have no key");
    }
}
