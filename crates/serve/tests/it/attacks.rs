//! Attacks on the HTTP server that concern no single route.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::client::{self, CHAT, chat, chat_body, connect, get, parse, post, send};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, KEY, Server};
use protocol::FinishReason;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use serve::{ApiKeys, ServeConfig, StartError, Tls, start};

const FINE: [Act; 2] = [Act::Say("fine"), Act::Done(FinishReason::Stop)];
/// Makes a request from this machine look like one forwarded by a proxy.
const ELSEWHERE: (&str, &str) = ("x-forwarded-for", "203.0.113.9");
const CERT: &[u8] = include_bytes!("tls/cert.pem");
const PRIVATE: &[u8] = include_bytes!("tls/key.pem");

#[test]
fn a_guess_of_a_key_costs_time_and_the_connection() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.api_keys = Some(ApiKeys::fixed(&[KEY]));
    });
    let start = Instant::now();
    for guess in ["x", &KEY[..KEY.len() - 1], &format!("{KEY}x")] {
        let reply = get(server.addr, "/v1/models", &[ELSEWHERE, ("x-api-key", guess)]);
        assert_eq!((reply.status, reply.header("connection")), (401, Some("close")), "{guess:?}");
        assert!(!reply.body.contains(KEY));
    }
    // Short: each request waited. The bound is a lower one, so a busy machine cannot break it.
    assert!(start.elapsed() >= Duration::from_millis(750), "{:?}", start.elapsed());
}

#[test]
fn no_connection_is_upgraded_and_none_from_another_site_is_answered() {
    let server = Server::start(&Double::new(&FINE));
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
    ];
    let foreign = [&upgrade[..], &[("origin", "https://evil.com")]].concat();
    for path in ["/", "/v1/models", CHAT, "/sinew/v1/status"] {
        assert_eq!(get(server.addr, path, &foreign).status, 403, "{path}");
        let mut stream = connect(server.addr);
        let request = client::request("GET", path, server.addr, &upgrade, "");
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_ne!(&head, b"HTTP/1.1 101", "{path}");
    }
}

#[test]
fn a_body_of_very_many_values_is_refused_before_it_is_read() {
    let server = Server::start(&Double::new(&FINE));
    let ignored = |values: usize| {
        let body = format!("{{\"else\":[{}0]}}", "[],".repeat(values));
        let head = [("content-length", &*body.len().to_string())];
        let head = client::request("POST", CHAT, server.addr, &head, "");
        send(server.addr, [head.as_bytes(), body.as_bytes()].concat().as_slice())
    };
    let reply = ignored(1_100_000);
    assert_eq!((reply.status, reply.code().as_str()), (400, "invalid_body"), "{reply:?}");
    assert!(reply.body.contains("values"), "{reply:?}");
    assert!(ignored(1000).body.contains("messages"), "they are missing, and no more");
    // Text may contain any number of commas.
    let long = json!({"user": ",[{\\\"".repeat(1_200_000)});
    assert_eq!(chat(server.addr, long).status, 200);
}

#[test]
fn numbers_that_cannot_be_are_refused_by_the_name_of_their_field() {
    let server = Server::start(&Double::new(&FINE));
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            CHAT,
            &["max_tokens", "max_completion_tokens", "n", "top_logprobs", "min_tokens", "seed"],
            &["-9223372036854775809", "18446744073709551616", "1e30", "0.5", "\"7\"", "[]"],
        ),
        (CHAT, &["max_tokens", "max_completion_tokens", "n", "min_tokens"], &["-2", "-9e18"]),
        (CHAT, &["n", "min_tokens"], &["-1"]),
        (CHAT, &["n"], &["0", "129", "1000000"]),
        (CHAT, &["top_k"], &["-5", "9223372036854775808", "1.5"]),
        (CHAT, &["temperature"], &["-0.1", "2.1", "1e39", "true"]),
        (CHAT, &["top_p", "min_p"], &["-1", "1.1", "1e300"]),
        (CHAT, &["repetition_penalty"], &["0", "-1", "1e39"]),
        (CHAT, &["frequency_penalty", "presence_penalty"], &["-3", "3", "-1e300"]),
        (CHAT, &["logit_bias"], &["{\"-1\":1}", "{\"1\":101}", "{\"99999999\":1}"]),
        ("/v1/messages", &["max_tokens"], &["-1", "0", "9223372036854775808000", "1.5"]),
        ("/v1/messages", &["temperature", "top_p"], &["-1", "7", "\"1\""]),
        ("/v1/messages", &["top_k"], &["-5", "1e30"]),
        ("/api/chat", &["num_predict", "num_ctx", "top_k"], &["-99", "1e30", "\"x\""]),
        ("/api/chat", &["temperature", "top_p", "min_p"], &["-1", "1e39", "\"x\""]),
        ("/api/chat", &["n_discard"], &["-1", "1"]),
    ];
    for (path, fields, values) in cases {
        for (field, value) in fields.iter().flat_map(|f| values.iter().map(move |v| (f, v))) {
            let asked = match *path {
                "/api/chat" => format!("\"options\":{{\"{field}\":{value}}}"),
                _ => format!("\"{field}\":{value}"),
            };
            let messages = json!([{"role": "user", "content": "x"}]);
            let body = format!("{{\"model\":\"tiny/qwen3\",\"messages\":{messages},{asked}}}");
            let request = client::request("POST", path, server.addr, &[], &body);
            let reply = send(server.addr, request.as_bytes());
            assert_eq!(reply.status, 400, "{path} {asked}: {reply:?}");
            assert!(reply.body.contains(field), "{path} {asked}: {reply:?}");
        }
    }
}

#[test]
fn very_many_and_very_long_stop_strings_are_refused() {
    let server = Server::start(&Double::new(&FINE));
    for (path, field) in
        [(CHAT, "stop"), ("/v1/messages", "stop_sequences"), ("/v1/completions", "stop")]
    {
        for stops in [vec!["x".to_owned(); 10_000], vec!["y".repeat(1 << 20)]] {
            let body = client::message_body(json!({ field: stops, "prompt": "x" }));
            let reply = post(server.addr, path, &[], &body);
            assert_eq!(reply.status, 400, "{path}: {reply:?}");
            assert!(reply.body.contains(field), "{path}: {reply:?}");
        }
    }
    let options = json!({"options": {"stop": vec!["x"; 10_000]}});
    let reply = post(server.addr, "/api/chat", &[], &chat_body(options));
    assert!(reply.status == 400 && reply.body.contains("options.stop"), "{reply:?}");
}

/// An HTTPS request to a server with the tests' certificate.
fn https(server: &Server, request: &str) -> client::Reply {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERT).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(tls, connect(server.addr));
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    // The connection may end without a TLS close_notify.
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

#[test]
fn with_a_certificate_the_api_speaks_tls_and_plain_http_to_this_machine_alone() {
    let tls = || Tls { cert_pem: CERT.to_vec(), key_pem: PRIVATE.to_vec() };
    let server = Server::with(&Double::new(&FINE), |config| {
        (config.tls, config.api_keys) = (Some(tls()), Some(ApiKeys::fixed(&[KEY])));
    });
    let body = chat_body(json!({"stream": true})).to_string();
    let reply = https(&server, &client::request("POST", CHAT, server.addr, &[], &body));
    assert_eq!((reply.status, reply.text().as_str()), (200, "fine"), "{reply:?}");
    let request = client::request("GET", "/v1/models", server.addr, &[ELSEWHERE], "");
    assert_eq!(https(&server, &request).status, 401, "keys are asked for as ever");
    assert_eq!(post(server.addr, CHAT, &[], &chat_body(json!({}))).status, 200);

    // An invalid handshake, and one that never arrives.
    let mut garbage = connect(server.addr);
    garbage.write_all(&[22, 3, 3, 255, 255, 0]).unwrap();
    let _: TcpStream = connect(server.addr);
    assert_eq!(get(server.addr, "/health", &[]).status, 200);
}

#[test]
fn a_certificate_that_cannot_be_used_is_told_at_the_start() {
    let double: Arc<dyn serve::Cluster> = Double::new(&FINE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (cert, key) in [(PRIVATE, PRIVATE), (CERT, CERT), (b"".as_slice(), PRIVATE)] {
        let mut config = ServeConfig::new("127.0.0.1:0".parse().unwrap(), ADMIN);
        config.tls = Some(Tls { cert_pem: cert.to_vec(), key_pem: key.to_vec() });
        let refused = runtime.block_on(start(Arc::clone(&double), config)).map(drop);
        assert!(matches!(refused, Err(StartError::Tls { .. })), "{refused:?}");
    }
}
