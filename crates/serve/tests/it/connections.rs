//! Clients that hold connections open or read nothing must not lock others out.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::client::{CHAT, chat_body, connect, get, parse, request};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, Server};
use crate::support::wait_running;
use protocol::FinishReason;
use serde_json::json;
use serve::OwnProcess;

const DONE: Act = Act::Done(FinishReason::Stop);

/// An answer of some megabytes: more than the kernel buffers for a client that does not read.
fn long_answer() -> [Act; 2] {
    [Act::Say("word word word word ".repeat(5000).leak()), DONE]
}

/// Requests a stream and reads nothing of it.
fn ask(server: &Server) -> TcpStream {
    let mut stream = connect(server.addr);
    let body = chat_body(json!({"stream": true})).to_string();
    let asked = request("POST", CHAT, server.addr, &[], &body);
    stream.write_all(asked.as_bytes()).unwrap();
    stream
}

#[test]
fn connections_without_a_request_make_room() {
    let server = Server::with(&Double::new(&[DONE]), |config| {
        config.limits.connections_max = 20;
        config.limits.header_timeout = Duration::from_secs(600);
    });
    let keeps = request("GET", "/health", server.addr, &[("connection", "keep-alive")], "");
    let mut kept: Vec<TcpStream> = (0..19).map(|_| connect(server.addr)).collect();
    for (at, connection) in kept.iter_mut().enumerate() {
        connection.write_all(keeps.as_bytes()).unwrap();
        // Some read their answer and some do not; the last one sends another request.
        let mut answer = [0; 4096];
        let reads = at % 2 == 0 || at == 18;
        assert!(!reads || connection.read(&mut answer).unwrap() > 0);
    }
    for _ in 0..10 {
        assert_eq!(get(server.addr, "/health", &[]).status, 200);
    }
    let end = kept[0].read(&mut [0; 64]);
    assert!(!matches!(end, Ok(1..)), "the one that was idle for longest is closed: {end:?}");
    kept[18].write_all(keeps.as_bytes()).unwrap();
    assert!(kept[18].read(&mut [0; 4096]).unwrap() > 0, "the last one is kept");
}

#[test]
fn the_last_connections_are_the_owners() {
    for is_own in [false, true] {
        let double = Double::new(&[Act::Hang]);
        let server = Server::with(&double, |config| {
            config.limits.connections_max = 32;
            config.own_process = Some(OwnProcess::new(move |_, _| is_own));
        });
        let asking: Vec<TcpStream> = (0..30).map(|_| ask(&server)).collect();
        wait_running(&double, 30);
        let bearer = format!("Bearer {ADMIN}");
        for path in ["/health", "/sinew/v1/status"] {
            let reply = get(server.addr, path, &[]);
            assert_eq!(reply.status, if is_own { 200 } else { 503 }, "{path} {reply:?}");
            assert!(is_own || reply.code() == "connections_full", "{reply:?}");
            let reply = get(server.addr, path, &[("authorization", &bearer)]);
            assert_eq!(reply.status, 200, "{path} {reply:?}");
        }
        // Connections without a request do not take them either.
        let silent: Vec<TcpStream> = (0..10).map(|_| connect(server.addr)).collect();
        let reply = get(server.addr, "/sinew/v1/status", &[("authorization", &bearer)]);
        assert_eq!(reply.status, 200, "{reply:?}");
        drop((asking, silent));
        wait_running(&double, 0);
        assert_eq!(get(server.addr, "/health", &[]).status, 200);
    }
}

#[test]
fn who_reads_nothing_is_dropped_and_who_reads_slowly_is_not() {
    let double = Double::new(&long_answer());
    let server = Server::with(&double, |config| {
        // Short: the time limit under test.
        config.limits.write_timeout = Duration::from_millis(500);
    });
    let mut slow = ask(&server);
    let reading = std::thread::spawn(move || {
        let (mut answer, mut piece) = (Vec::new(), vec![0; 256 << 10]);
        while let Ok(len @ 1..) = slow.read(&mut piece) {
            answer.extend_from_slice(&piece[..len]);
            // Sleeps: it is the slow reader.
            sleep(Duration::from_millis(100));
        }
        parse(&answer)
    });
    let mut deaf = ask(&server);
    wait_running(&double, 2);
    let start = Instant::now();
    let reply = reading.join().unwrap();
    // Short: a lower bound, which a busy machine cannot break.
    assert!(start.elapsed() > Duration::from_millis(1000), "it was long enough to be slow");
    assert!(reply.whole && reply.text().len() > 50_000, "{} bytes", reply.text().len());
    wait_running(&double, 0);
    let mut answer = Vec::new();
    let _ = deaf.read_to_end(&mut answer);
    assert!(!parse(&answer).whole, "its answer was cut");
}
