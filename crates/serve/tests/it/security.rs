//! Access control, and hostile clients.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::client::{self, CHAT, chat, chat_body, connect, get, post, read_reply, send};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, KEY, Server};
use crate::support::wait_for;
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::{ApiKey, ApiKeys, ServeConfig, StartError, start};

const FINE: [Act; 2] = [Act::Say("fine"), Act::Done(FinishReason::Stop)];
const MODELS: &str = "/v1/models";
/// Makes a request from this machine look like one forwarded by a proxy.
const ELSEWHERE: (&str, &str) = ("x-forwarded-for", "203.0.113.9");

type Headers<'a> = &'a [(&'a str, &'a str)];

#[test]
fn only_this_nodes_names_pass_as_host() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.host_names = vec!["den.example".to_owned()];
    });
    let cases = [
        ("localhost:8750", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("[::1]:8750", 200),
        ("den.example", 200),
        ("evil.com", 403),
        ("localhost.evil.com", 403),
        ("127.0.0.1.nip.io", 403),
        ("192.168.1.7:8750", 403),
        ("a@localhost", 400),
        ("", 400),
    ];
    for (host, status) in cases {
        for path in ["/", "/health", MODELS, "/sinew/v1/status", "/assets/app.js"] {
            let reply = get(server.addr, path, &[("host", host)]);
            assert_eq!(reply.status, status, "{host} {path} {reply:?}");
        }
    }
    assert_eq!(get(server.addr, MODELS, &[("host", "evil.com")]).code(), "host_not_allowed");
    let two = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n";
    assert_eq!(send(server.addr, two).status, 400);
    let absolute = b"GET http://evil.com/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(send(server.addr, absolute).status, 400);
    let old = b"GET /v1/models HTTP/1.0\r\n\r\n";
    assert_eq!(send(server.addr, old).status, 400);
}

#[test]
fn the_host_is_checked_on_open_binds_as_well() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.api = "0.0.0.0:0".parse().unwrap();
        config.api_keys = Some(ApiKeys::fixed(&[KEY]));
    });
    let addr = ([127, 0, 0, 1], server.addr.port()).into();
    for (host, status) in [("evil.com", 403), ("0.0.0.0", 403), ("127.0.0.1", 200)] {
        assert_eq!(get(addr, MODELS, &[("host", host)]).status, status, "{host}");
    }
}

#[test]
fn pages_of_other_sites_are_kept_out() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.allowed_origins = vec!["https://chat.example".to_owned()];
    });
    let own = format!("http://{}", server.addr);
    let cases: &[(Headers, u16, Option<&str>)] = &[
        (&[], 200, None),
        (&[("origin", &own)], 200, None),
        (&[("origin", "http://localhost:3000")], 200, Some("http://localhost:3000")),
        (&[("origin", "https://chat.example")], 200, Some("https://chat.example")),
        (&[("origin", "https://evil.com")], 403, None),
        (&[("origin", "null")], 403, None),
        (&[("sec-fetch-site", "cross-site")], 403, None),
        (&[("sec-fetch-site", "same-origin"), ("origin", &own)], 200, None),
    ];
    for (headers, status, allowed) in cases {
        let reply = post(server.addr, CHAT, headers, &chat_body(json!({})));
        assert_eq!(reply.status, *status, "{headers:?} {reply:?}");
        assert_eq!(reply.header("access-control-allow-origin"), *allowed, "{headers:?}");
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        let reply = post(server.addr, CHAT, headers, &chat_body(json!({"stream": true})));
        assert_eq!(reply.status, *status, "streams: {headers:?}");
    }
    // Other pages on this machine may use the models, but nothing else.
    let bearer = format!("Bearer {ADMIN}");
    let other = [("origin", "http://localhost:3000"), ("authorization", bearer.as_str())];
    assert_eq!(get(server.addr, "/sinew/v1/status", &other).status, 403);
    assert_eq!(post(server.addr, "/sinew/v1/invite", &other, &json!({})).status, 403);
}

/// The requests of pictures, scripts and links have no `Origin`.
#[test]
fn what_other_pages_make_a_browser_get_is_kept_out() {
    let server = Server::start(&Double::new(&FINE));
    let cases: &[(&str, &str, u16)] = &[
        ("cross-site", "no-cors", 403),
        ("cross-site", "cors", 403),
        ("cross-site", "websocket", 403),
        ("same-site", "no-cors", 403),
        // A person follows a link, types the address, or uses the node's own page.
        ("cross-site", "navigate", 200),
        ("none", "navigate", 200),
        ("same-origin", "no-cors", 200),
        ("same-origin", "cors", 200),
    ];
    for (site, mode, status) in cases {
        let headers = [("sec-fetch-site", *site), ("sec-fetch-mode", *mode)];
        for path in ["/", MODELS, "/props?model=tiny/qwen3", "/slots?model=tiny/qwen3"] {
            let reply = get(server.addr, path, &headers);
            assert_eq!(reply.status, *status, "{path} {headers:?} {reply:?}");
        }
    }
    // A link never leads to a change.
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(post(server.addr, CHAT, &link, &chat_body(json!({}))).status, 403);
}

/// Old browsers say nothing of the page that makes them get something.
#[test]
fn no_get_serves_or_fetches_a_model() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let document = get(server.addr, "/openapi.json", &[]).json();
    let paths = document["paths"].as_object().unwrap().iter();
    let gets = paths.filter(|(_, about)| about.get("get").is_some()).map(|(path, _)| path);
    let gets: Vec<String> = gets.cloned().chain(["/props", "/slots"].map(str::to_owned)).collect();
    assert!(gets.len() > 9, "{gets:?}");
    for path in gets {
        let path = path.replace("{model}", "org/other").replace("{id}", "org/other");
        let path = format!("{path}?model=org/other&name=org/other&follow=false");
        get(server.addr, &path, &[]);
    }
    let calls = double.calls.lock().unwrap().clone();
    let is_change = |call: &&String| !call.starts_with("pairing");
    assert_eq!(calls.iter().filter(is_change).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(get(server.addr, "/props?model=org/other", &[]).status, 404);
}

#[test]
fn a_browser_may_ask_first() {
    let server = Server::start(&Double::new(&FINE));
    let ask = |headers: Headers| {
        send(server.addr, client::request("OPTIONS", CHAT, server.addr, headers, "").as_bytes())
    };
    let local = [
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, x-stainless-lang"),
    ];
    let reply = ask(&local);
    assert_eq!(reply.status, 204, "{reply:?}");
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://localhost:3000"));
    let headers = reply.header("access-control-allow-headers");
    assert_eq!(headers, Some("authorization, x-stainless-lang"));
    let reply = ask(&[]);
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, None));
    assert_eq!(reply.header("allow"), Some("GET, HEAD, POST, OPTIONS"));
    assert_eq!(ask(&[("origin", "https://evil.com")]).status, 403);
}

#[test]
fn bodies_must_be_plain_json() {
    let server = Server::start(&Double::new(&FINE));
    let cases: &[(Headers, u16)] = &[
        (&[("content-type", "application/json; charset=utf-8")], 200),
        (&[("content-type", "Application/JSON")], 200),
        (&[("content-type", "text/plain")], 415),
        (&[("content-type", "application/x-www-form-urlencoded")], 415),
        (&[("content-type", "multipart/form-data; boundary=x")], 415),
        (&[("content-type", "")], 200),
        (&[("content-type", ""), ("sec-fetch-mode", "no-cors")], 415),
        (&[("content-encoding", "gzip")], 415),
        (&[("content-encoding", "identity")], 200),
    ];
    for (headers, status) in cases {
        let reply = post(server.addr, CHAT, headers, &chat_body(json!({})));
        assert_eq!(reply.status, *status, "{headers:?} {reply:?}");
    }
}

#[test]
fn clients_from_elsewhere_need_a_key_in_a_header() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.api_keys = Some(ApiKeys::fixed(&["another-key-of-32-characters-000", KEY]));
    });
    let (bearer, wrong) = (format!("Bearer {KEY}"), format!("Bearer {}x", &KEY[1..]));
    let cases: &[(Headers, u16)] = &[
        (&[], 200),
        (&[("authorization", "Bearer whatever")], 200),
        (&[ELSEWHERE], 401),
        (&[("forwarded", "for=203.0.113.9")], 401),
        (&[ELSEWHERE, ("authorization", &bearer)], 200),
        (&[ELSEWHERE, ("x-api-key", KEY)], 200),
        (&[ELSEWHERE, ("api-key", KEY)], 200),
        (&[ELSEWHERE, ("authorization", &wrong)], 401),
        (&[ELSEWHERE, ("x-api-key", "no"), ("authorization", &wrong)], 401),
        (&[ELSEWHERE, ("authorization", KEY)], 401),
    ];
    for (headers, status) in cases {
        for path in [MODELS, "/v1/models/tiny/qwen3", "/sinew/v1/status"] {
            let reply = get(server.addr, path, headers);
            assert_eq!(reply.status, *status, "{path} {headers:?} {reply:?}");
        }
        let reply = post(server.addr, CHAT, headers, &chat_body(json!({})));
        assert_eq!(reply.status, *status, "{headers:?} {reply:?}");
    }
    let path = format!("{MODELS}?api_key={KEY}&key={KEY}");
    let reply = get(server.addr, &path, &[ELSEWHERE]);
    assert_eq!((reply.status, reply.code().as_str()), (401, "invalid_api_key"));
    assert!(reply.body.contains("Authorization: Bearer"), "{reply:?}");
    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
}

#[test]
fn keys_come_and_go_while_the_node_runs() {
    let keys: Arc<Mutex<Vec<ApiKey>>> = Arc::default();
    let shown = Arc::clone(&keys);
    let double = Double::new(&FINE);
    let server = Server::with(&double, |config| {
        config.api_keys = Some(ApiKeys::live(move || shown.lock().unwrap().clone().into()));
    });
    let headers = [ELSEWHERE, ("x-api-key", KEY)];
    assert_eq!(get(server.addr, MODELS, &headers).status, 401);
    keys.lock().unwrap().push(ApiKey::new("laptop", KEY));
    assert_eq!(get(server.addr, MODELS, &headers).status, 200);
    assert_eq!(post(server.addr, CHAT, &headers, &chat_body(json!({}))).status, 200);
    // Another key is another client; clients on this machine without a key share one number.
    keys.lock().unwrap().push(ApiKey::new("phone", "another-key-of-32-characters-000"));
    let other = [ELSEWHERE, ("authorization", "Bearer another-key-of-32-characters-000")];
    assert_eq!(post(server.addr, CHAT, &other, &chat_body(json!({}))).status, 200);
    assert_eq!(chat(server.addr, json!({})).status, 200);
    let clients: Vec<u64> =
        double.asked.lock().unwrap().iter().map(|request| request.client).collect();
    assert!(clients[0] != clients[1] && clients[0] != 0 && clients[1] != 0, "{clients:?}");
    assert_eq!(clients[2], 0);
    keys.lock().unwrap().remove(0);
    assert_eq!(get(server.addr, MODELS, &headers).status, 401);
    assert_eq!(get(server.addr, MODELS, &other).status, 200);
}

#[test]
fn what_keys_leave_in_the_cache_can_be_parted() {
    const OTHER: &str = "another-key-of-32-characters-000";
    // One key, and the owner's programs on this machine, share; two keys do not.
    let cases = [(None, &[KEY, OTHER][..], true), (None, &[KEY], false)];
    let told = [(Some(true), &[KEY][..], true), (Some(false), &[KEY, OTHER], false)];
    for (cache_per_key, keys, is_parted) in cases.into_iter().chain(told) {
        let double = Double::new(&FINE);
        let server = Server::with(&double, |config| {
            config.api_keys = Some(ApiKeys::fixed(keys));
            config.cache_per_key = cache_per_key;
        });
        for key in keys {
            let headers: Headers = &[ELSEWHERE, ("x-api-key", key)];
            assert_eq!(post(server.addr, CHAT, headers, &chat_body(json!({}))).status, 200);
        }
        assert_eq!(post(server.addr, CHAT, &[], &chat_body(json!({}))).status, 200);
        let asked = double.asked.lock().unwrap();
        let salts: Vec<u64> = asked.iter().map(|request| request.cache_salt).collect();
        let (here, others) = salts.split_last().unwrap();
        let mut differ: Vec<u64> = others.iter().filter(|salt| **salt != 0).copied().collect();
        differ.dedup();
        assert_eq!(*here, 0);
        assert_eq!(differ.len(), if is_parted { keys.len() } else { 0 }, "{cache_per_key:?}");
    }
}

#[test]
fn without_a_key_nobody_else_comes_in() {
    let server = Server::start(&Double::new(&FINE));
    for headers in [&[ELSEWHERE][..], &[ELSEWHERE, ("x-api-key", "")]] {
        assert_eq!(get(server.addr, MODELS, headers).status, 401);
    }
}

#[test]
fn configurations_that_let_strangers_in_do_not_start() {
    let double: Arc<dyn serve::Cluster> = Double::new(&FINE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let try_start = |api: &str, token: &str, keys: Option<&[&str]>| {
        let mut config = ServeConfig::new(api.parse().unwrap(), token);
        config.api_keys = keys.map(ApiKeys::fixed);
        runtime.block_on(start(Arc::clone(&double), config)).map(|running| running.addr())
    };
    assert!(try_start("127.0.0.1:0", ADMIN, None).is_ok());
    assert!(try_start("0.0.0.0:0", ADMIN, Some(&[KEY])).is_ok());
    let refused = try_start("0.0.0.0:0", ADMIN, None);
    assert!(matches!(refused, Err(StartError::OpenToNetwork { .. })));
    for token in ["", "short"] {
        let refused = try_start("127.0.0.1:0", token, None);
        assert!(matches!(refused, Err(StartError::ShortSecret { .. })), "{token:?}");
    }
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = try_start(&busy.local_addr().unwrap().to_string(), ADMIN, None);
    assert!(matches!(refused, Err(StartError::Listen { .. })));
}

#[test]
fn bodies_over_the_limit_are_413() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.limits.body_bytes_max = 100_000;
    });
    let body = chat_body(json!({"user": "x".repeat(200_000)})).to_string();
    let whole = client::request("POST", CHAT, server.addr, &[], &body);
    let reply = send(server.addr, whole.as_bytes());
    assert_eq!((reply.status, reply.code().as_str()), (413, "request_too_large"), "{reply:?}");

    // Sent in small chunks without end.
    let head = [("transfer-encoding", "chunked"), ("content-length", "")];
    let head = client::request("POST", CHAT, server.addr, &head, "");
    let chunk = format!("{:x}\r\n{}\r\n", 50_000, "y".repeat(50_000));
    let endless = [head.clone(), chunk.repeat(2_000)].concat();
    assert_eq!(send(server.addr, endless.as_bytes()).status, 413);

    // A client that sends `Expect: 100-continue` gets the refusal at once.
    let polite = [("content-length", "1000000000"), ("expect", "100-continue")];
    let reply =
        send(server.addr, client::request("POST", CHAT, server.addr, &polite, "").as_bytes());
    assert_eq!(reply.status, 413, "{reply:?}");
    assert_eq!(chat(server.addr, json!({})).status, 200);
}

#[test]
fn headers_over_the_limits_are_431() {
    let server = Server::start(&Double::new(&FINE));
    let big = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(1_000_000));
    assert_eq!(send(server.addr, big.as_bytes()).status, 431);
    let lines: String = (0..2_000).map(|at| format!("h{at}: x\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    assert_eq!(send(server.addr, many.as_bytes()).status, 431);
    assert_eq!(get(server.addr, "/health", &[]).status, 200);
}

#[test]
fn slow_headers_and_bodies_run_out_of_time() {
    let server = Server::with(&Double::new(&FINE), |config| {
        // Short: the time limits under test.
        config.limits.header_timeout = Duration::from_millis(200);
        config.limits.body_timeout = Duration::from_millis(200);
    });
    let mut silent = connect(server.addr);
    silent.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
    assert_eq!(silent.read(&mut [0; 64]).unwrap_or(0), 0, "closed without an answer");

    let mut slow = connect(server.addr);
    let head = [("content-length", "500")];
    let head = client::request("POST", CHAT, server.addr, &head, "{\"model\":");
    slow.write_all(head.as_bytes()).unwrap();
    let reply = read_reply(&mut slow);
    assert_eq!((reply.status, reply.code().as_str()), (408, "request_timeout"), "{reply:?}");
}

#[test]
fn silent_connections_lock_nobody_out() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.limits.connections_max = 20;
        config.limits.header_timeout = Duration::from_secs(600);
    });
    let mut silent: Vec<_> = (0..100).map(|_| connect(server.addr)).collect();
    for connection in &mut silent {
        // Evicted connections are already closed.
        let _ = connection.write_all(b"GET / HTTP/1.1\r\n");
    }
    for _ in 0..10 {
        assert_eq!(get(server.addr, "/health", &[]).status, 200);
    }
    let oldest = silent[0].read(&mut [0; 64]);
    let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(matches!(&oldest, Ok(0)) || oldest.as_ref().is_err_and(reset), "{oldest:?}");
}

#[test]
fn stopping_lets_a_running_answer_end() {
    let script = [
        Act::Say("first"),
        Act::Pause(Duration::from_millis(400)),
        Act::Say(" last"),
        FINE[1].clone(),
    ];
    let double = Double::new(&script);
    let mut server = Server::start(&double);
    let addr = server.addr;
    let asking = std::thread::spawn(move || chat(addr, json!({"stream": true})));
    wait_for("a request", || !double.asked.lock().unwrap().is_empty());
    server.runtime.block_on(server.running.take().unwrap().stop(async {}));
    let reply = asking.join().unwrap();
    assert_eq!((reply.text().as_str(), reply.whole), ("first last", true));
    assert!(std::net::TcpStream::connect(addr).is_err(), "nobody listens any more");
}

#[test]
fn every_answer_is_sealed() {
    let server = Server::start(&Double::new(&FINE));
    for path in ["/", "/health", MODELS, "/nothing", "/sinew/v1/invite"] {
        let reply = get(server.addr, path, &[]);
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"), "{path}");
        assert_ne!(reply.header("cache-control"), None, "{path}");
    }
    let reply = get(server.addr, "/nothing", &[]);
    assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"));
    let reply = get(server.addr, CHAT, &[]);
    assert_eq!((reply.status, reply.code().as_str()), (405, "method_not_allowed"));
    assert_ne!(reply.json()["error"]["message"], Value::Null);
}
