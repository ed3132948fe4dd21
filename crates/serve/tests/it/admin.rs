//! Administration: access and effects.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::client::{Reply, connect, get, parse, post, read_until, request};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, KEY, Server};
use cluster::{ClusterStatus, InstanceState};
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::{ApiKeys, Refusal, RefusalKind};

const FINE: [Act; 1] = [Act::Done(FinishReason::Stop)];

fn admin(server: &Server, path: &str, body: Value) -> Reply {
    let bearer = format!("Bearer {ADMIN}");
    post(server.addr, path, &[("authorization", &bearer)], &body)
}

/// The same, where something happens each time the answer says so.
fn admin_acting(server: &Server, path: &str, body: Value, acts: &[(&str, &dyn Fn())]) -> Reply {
    let bearer = format!("Bearer {ADMIN}");
    let headers = [("authorization", bearer.as_str())];
    let asked = request("POST", path, server.addr, &headers, &body.to_string());
    let mut stream = connect(server.addr);
    stream.write_all(asked.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    for (said, act) in acts {
        read_until(&mut stream, &mut bytes, said);
        act();
    }
    // A reset ends the answer like a close.
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

fn lines(reply: &Reply) -> Vec<Value> {
    reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_status_is_the_clusters_own() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply = get(server.addr, "/sinew/v1/status", &[]);
    let status: ClusterStatus = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(json!(status), json!(*double.status.lock().unwrap()));
}

#[test]
fn everything_else_needs_the_token() {
    let double = Double::new(&FINE);
    let server = Server::with(&double, |config| config.api_keys = Some(ApiKeys::fixed(&[KEY])));
    let (key, short) = (format!("Bearer {KEY}"), format!("Bearer {}", &ADMIN[1..]));
    let shown: [&[(&str, &str)]; 5] = [
        &[],
        &[("authorization", &key)],
        &[("authorization", &short)],
        &[("x-api-key", ADMIN)],
        &[("api-key", ADMIN)],
    ];
    for path in [
        "invite",
        "join",
        "pair",
        "pair/accept",
        "pair/refuse",
        "remove",
        "leave",
        "plan",
        "burn",
        "serve",
        "stop",
        "drain",
        "undrain",
        "shutdown",
    ] {
        for headers in shown {
            let path = format!("/sinew/v1/{path}?token={ADMIN}");
            let reply =
                post(server.addr, &path, headers, &json!({"code": "x", "model": "m", "node": "n"}));
            assert_eq!((reply.status, reply.code().as_str()), (401, "invalid_api_key"), "{path}");
            assert!(reply.body.contains("admin.token"), "{reply:?}");
        }
    }
    assert!(double.calls.lock().unwrap().is_empty());
    for headers in shown {
        assert_eq!(get(server.addr, "/sinew/v1/trace", headers).status, 401, "{headers:?}");
        assert_eq!(get(server.addr, "/sinew/v1/pairing", headers).status, 401, "{headers:?}");
    }
    let bearer = format!("Bearer {ADMIN}");
    let trace = get(server.addr, "/sinew/v1/trace", &[("authorization", &bearer)]);
    assert_eq!((trace.status, &trace.json()["traceEvents"]), (200, &json!([])));
}

#[test]
fn calls_reach_the_cluster() {
    let cases = [
        (
            "invite",
            json!({"ttl_secs": 60}),
            "invite 60",
            json!({"code": "sinew-abc", "expires_in_secs": 60}),
        ),
        ("invite", json!({}), "invite 600", json!({"code": "sinew-abc", "expires_in_secs": 600})),
        (
            "pair/accept",
            json!({"number": "048 213"}),
            "accept 048 213 None",
            json!({"node": "02".repeat(32), "name": "mac", "members": 2}),
        ),
        (
            "pair/refuse",
            json!({"node": "mac"}),
            "refuse mac",
            json!({
                "id": "02".repeat(32), "name": "mac", "address": "10.0.0.2",
                "expires_in_secs": 60, "at": "desk",
            }),
        ),
        (
            "pair",
            json!({"peer": "10.0.0.1:8751"}),
            "pair None Some(10.0.0.1:8751)",
            json!({"me": "02".repeat(32), "number": "048213", "node": "01".repeat(32), "name": "desk",
                "state": "waiting", "expires_in_secs": 300}),
        ),
        (
            "remove",
            json!({"node": "mac"}),
            "remove mac",
            json!({"node": "02".repeat(32), "name": "mac", "told": 1, "untold": 0}),
        ),
        (
            "leave",
            json!({}),
            "leave",
            json!({"node": "02".repeat(32), "name": "mac", "told": 1, "untold": 0}),
        ),
        (
            "stop",
            json!({"model": "tiny/qwen3"}),
            "stop tiny/qwen3",
            json!({"stopped": "tiny/qwen3"}),
        ),
        ("stop", json!({"instance": "tiny-1"}), "stop tiny-1", json!({"stopped": "tiny-1"})),
        (
            "drain",
            json!({"node": "mac-mini", "wait": false}),
            "drain mac-mini",
            json!({"status": "draining", "node": "mac-mini"}),
        ),
        (
            "undrain",
            json!({"node": "mac-mini"}),
            "undrain mac-mini",
            json!({"undrained": "mac-mini"}),
        ),
        (
            "serve",
            json!({"model": "/models/a.gguf", "nodes": 2, "wait": false}),
            "serve /models/a.gguf Some(Count(2))",
            json!({"status": "loading", "instance": "tiny-1"}),
        ),
    ];
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    for (path, body, call, want) in cases {
        let reply = admin(&server, &format!("/sinew/v1/{path}"), body);
        assert_eq!((reply.status, reply.json()), (200, want), "{path}");
        assert_eq!(double.calls.lock().unwrap().pop().unwrap(), call);
    }
    let reply = admin(&server, "/sinew/v1/join", json!({"code": "sinew-xyz"}));
    assert_eq!((reply.status, &reply.json()["by_name"]), (200, &json!("desk")));
    assert_eq!(double.calls.lock().unwrap().pop().unwrap(), "join sinew-xyz");
    let reply = admin(&server, "/sinew/v1/plan", json!({"model": "m", "nodes": 2}));
    assert_eq!((reply.status, &reply.json()["why"]), (200, &json!(["a reason"])));
    assert_eq!(double.calls.lock().unwrap().pop().unwrap(), "plan m Some(Count(2))");
    let reply = admin(&server, "/sinew/v1/burn", json!({"seconds": 3}));
    assert_eq!((reply.status, &reply.json()["wrong"]), (200, &json!(0)));
    assert_eq!(double.calls.lock().unwrap().pop().unwrap(), "burn 3 None");
}

#[test]
fn wrong_bodies_and_refusals_are_errors() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    for (path, body) in [
        ("invite", json!({"ttl_secs": 0})),
        ("invite", json!({"ttl_secs": 1_000_000})),
        ("invite", json!({"ttl_secs": -1})),
        ("join", json!({})),
        ("burn", json!({})),
        ("burn", json!({"seconds": 3, "secs": 3})),
        ("pair", json!({"peer": "studio"})),
        ("pair", json!({"nod": "studio"})),
        ("pair/accept", json!({})),
        ("pair/refuse", json!({})),
        ("stop", json!({})),
        ("drain", json!({})),
        ("undrain", json!({"nodes": "n"})),
        ("serve", json!({})),
        ("serve", json!({"model": "m", "nodes": -1})),
    ] {
        let reply = admin(&server, &format!("/sinew/v1/{path}"), body.clone());
        assert_eq!(reply.status, 400, "{path} {body}: {reply:?}");
    }
    assert!(double.calls.lock().unwrap().is_empty());
    let refusal = Refusal::new(RefusalKind::Conflict, "it is served already as tiny-1");
    *double.refusal.lock().unwrap() = Some(refusal);
    let reply = admin(&server, "/sinew/v1/serve", json!({"model": "m"}));
    assert_eq!((reply.status, reply.code().as_str()), (409, "conflict"));
    assert!(reply.body.contains("served already"));
}

#[test]
fn serving_reports_until_the_model_is_ready() {
    let double = Double::new(&FINE);
    double.set_state(InstanceState::Loading);
    double.status.lock().unwrap().instances[0].ranks[1].loaded_bytes = 0;
    let server = Server::start(&double);
    let load = || double.status.lock().unwrap().instances[0].ranks[1].loaded_bytes = 5 << 30;
    let finish = || double.set_state(InstanceState::Ready);
    let all = format!("\"done_bytes\":{}", 10u64 << 30);
    let acts: [(&str, &dyn Fn()); 2] = [("\"loading\"", &load), (&all, &finish)];
    let reply = admin_acting(&server, "/sinew/v1/serve", json!({"model": "tiny/qwen3"}), &acts);
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    assert!(reply.whole);
    let line = |status: &str, done_bytes: u64| {
        json!({
            "status": status, "instance": "tiny-1",
            "done_bytes": done_bytes, "total_bytes": 10u64 << 30,
            "nodes": [
                { "node": "desk", "done_bytes": 5u64 << 30, "total_bytes": 5u64 << 30 },
                { "node": "mac-mini", "done_bytes": done_bytes - (5 << 30), "total_bytes": 5u64 << 30 },
            ],
        })
    };
    let lines = lines(&reply);
    assert_eq!(lines.first(), Some(&line("loading", 5 << 30)));
    assert_eq!(lines.last(), Some(&line("ready", 10 << 30)));
    assert!(lines.iter().filter(|line| line["status"] == "ready").count() == 1, "{lines:?}");
}

#[test]
fn serving_ends_in_an_error_when_it_cannot_be() {
    type Change = fn(&Double);
    let cases: [(Change, &str); 3] = [
        (
            |double| double.set_state(InstanceState::Failed { reason: "out of memory".to_owned() }),
            "out of memory",
        ),
        (|double| double.status.lock().unwrap().instances.clear(), "stopped before"),
        (|_| {}, "has not moved"),
    ];
    for (change, message) in cases {
        let double = Double::new(&FINE);
        double.set_state(InstanceState::Loading);
        let server = Server::with(&double, |config| {
            // Short: the time under test, after which a load that has not moved is given up.
            config.limits.load_stall = Duration::from_millis(1500);
        });
        let model = json!({"model": "tiny/qwen3"});
        let acts: [(&str, &dyn Fn()); 1] = [("\"loading\"", &|| change(&double))];
        let reply = admin_acting(&server, "/sinew/v1/serve", model, &acts);
        let lines = lines(&reply);
        assert_eq!(lines[0]["status"], "loading");
        let error = &lines.last().unwrap()["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{lines:?}");
        assert!(!reply.whole, "a failed stream is cut");
    }
}

#[test]
fn draining_reports_what_is_left_until_the_node_is_empty() {
    for undrained in [false, true] {
        let double = Double::new(&FINE);
        double.status.lock().unwrap().instances[0].notes = vec!["moves to desk".to_owned()];
        let server = Server::start(&double);
        let leave = || double.status.lock().unwrap().instances[0].ranks.truncate(1);
        let empty = || {
            let node = &mut double.status.lock().unwrap().nodes[1];
            (node.memory_used_bytes, node.drained) = (0, !undrained);
        };
        let acts: [(&str, &dyn Fn()); 2] = [("moves to desk", &leave), ("\"left\":[]", &empty)];
        let reply = admin_acting(&server, "/sinew/v1/drain", json!({"node": "mac-mini"}), &acts);
        let lines = lines(&reply);
        let left = json!([{"model": "tiny/qwen3", "notes": ["moves to desk"]}]);
        assert_eq!((&lines[0]["status"], &lines[0]["left"]), (&json!("draining"), &left));
        let last = lines.last().unwrap();
        match undrained {
            false => assert_eq!((&last["status"], &last["left"]), (&json!("drained"), &json!([]))),
            true => assert!(last["error"]["message"].as_str().unwrap().contains("undrained it")),
        }
        assert_eq!(reply.whole, !undrained);
    }
}

#[test]
fn shutdown_tells_the_daemon_and_ends_the_server() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let server = Server::with(&Double::new(&FINE), |config| {
        config.on_shutdown = Some(Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
    });
    let reply = admin(&server, "/sinew/v1/shutdown", json!({}));
    assert_eq!((reply.status, reply.json()), (200, json!({"status": "stopping"})));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    server.runtime.block_on(server.running.unwrap().stop(async {}));
    assert!(std::net::TcpStream::connect(server.addr).is_err());
}
