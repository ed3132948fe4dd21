//! Read-only routes: events, plans, settings of other programs.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::client::get;
use crate::support::double::{Act, Double};
use crate::support::server::{KEY, Server};
use cluster::{ClusterEvent, EventKind, Tone};
use protocol::FinishReason;
use serde_json::Value;
use serve::ApiKeys;

const FINE: [Act; 1] = [Act::Done(FinishReason::Stop)];

fn event(id: u64) -> ClusterEvent {
    ClusterEvent {
        id,
        at_ms: id,
        kind: EventKind::NodeLost,
        tone: Tone::Error,
        text: format!("event {id}"),
        node: None,
        model: None,
        times: None,
        replaces: None,
    }
}

#[test]
fn events_are_told_from_where_the_client_stands_and_as_they_come() {
    let double = Double::new(&FINE);
    double
        .events
        .send_modify(|history| *history = std::sync::Arc::new((1..=3).map(event).collect()));
    let server = Server::start(&double);
    let known = get(server.addr, "/sinew/v1/events?follow=false&after=1", &[]).json();
    let texts: Vec<_> = known.as_array().unwrap().iter().map(|one| one["text"].clone()).collect();
    assert_eq!(texts, ["event 2", "event 3"]);
    assert_eq!(known[0]["kind"], "node_lost");

    let mut stream = TcpStream::connect(server.addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = "GET /sinew/v1/events?after=2 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut next = || {
        let line = lines.by_ref().find(|line| line.starts_with("data: ")).unwrap();
        serde_json::from_str::<Value>(&line[6..]).unwrap()["id"].as_u64().unwrap()
    };
    assert_eq!(next(), 3);
    double.events.send_modify(|history| std::sync::Arc::make_mut(history).push_back(event(4)));
    assert_eq!(next(), 4);
}

#[test]
fn looking_needs_what_the_api_needs() {
    let double = Double::new(&FINE);
    let server = Server::with(&double, |config| config.api_keys = Some(ApiKeys::fixed(&[KEY])));
    let elsewhere = ("x-forwarded-for", "203.0.113.9");
    for path in ["/sinew/v1/events?follow=false", "/sinew/v1/clients?base=http://localhost:1"] {
        assert_eq!(get(server.addr, path, &[elsewhere]).status, 401, "{path}");
        assert_eq!(get(server.addr, path, &[]).status, 200, "{path}");
    }
}

#[test]
fn settings_name_the_address_that_was_asked_and_nothing_hostile() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let path = "/sinew/v1/clients?base=http://studio.local:8750&model=tiny/qwen3&key=1";
    let found = get(server.addr, path, &[]).json();
    let claude = found.as_array().unwrap().iter().find(|one| one["id"] == "claude").unwrap();
    let text = claude["text"].as_str().unwrap();
    assert!(text.contains("http://studio.local:8750") && text.contains("YOUR-API-KEY"), "{text}");
    assert!(claude["about"].as_str().unwrap().contains("has 1024"), "{claude}");
    let below = get(server.addr, "/sinew/v1/clients?base=https://home.local/ai/", &[]).json();
    assert!(below.to_string().contains("https://home.local/ai/v1"), "{below}");
    for base in
        ["javascript:alert(1)", "http://a%27b", "x", "ftp://a", "http://a$(b)", "http://a/$(b)", ""]
    {
        let reply = get(server.addr, &format!("/sinew/v1/clients?base={base}"), &[]);
        assert_eq!(reply.status, 400, "{base}: {reply:?}");
    }
}

#[test]
fn a_query_that_cannot_be_read_is_an_error_as_all_are() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    for path in ["/sinew/v1/events?follow=7", "/sinew/v1/events?after=-1", "/sinew/v1/clients"] {
        let reply = get(server.addr, path, &[]);
        assert_eq!((reply.status, reply.code().as_str()), (400, "invalid_query"), "{reply:?}");
    }
}
