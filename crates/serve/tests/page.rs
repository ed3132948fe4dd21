//! The status page: who gets it, and that nothing foreign can run in it.

mod support;

use protocol::FinishReason;
use support::client::get;
use support::double::{Act, Double};
use support::server::Server;

const FILES: [(&str, &str); 5] = [
    ("/", "text/html; charset=utf-8"),
    ("/assets/status.css", "text/css; charset=utf-8"),
    ("/assets/status.js", "text/javascript; charset=utf-8"),
    ("/assets/chat.js", "text/javascript; charset=utf-8"),
    ("/assets/icon.svg", "image/svg+xml"),
];
const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

fn server() -> Server {
    Server::start(&Double::new(&[Act::Done(FinishReason::Stop)]))
}

#[test]
fn browsers_get_the_page_and_others_a_line() {
    let server = server();
    assert!(get(server.addr, "/", &[BROWSER]).body.starts_with("<!doctype html>"));
    for headers in [&[][..], &[("accept", "*/*")], &[("accept", "application/json")]] {
        let reply = get(server.addr, "/", headers);
        assert_eq!((reply.status, reply.body.as_str()), (200, "Ollama is running"), "{headers:?}");
    }
}

#[test]
fn every_file_is_sealed_and_needs_nothing_from_elsewhere() {
    let server = server();
    for (path, kind) in FILES {
        let reply = get(server.addr, path, &[BROWSER]);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        // The name of SVG's language is the one address that is never fetched.
        let body = reply.body.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http://", "https://", "url(", "@import"] {
            assert!(!body.contains(foreign), "{path} contains {foreign}");
        }
    }
}

#[test]
fn text_cannot_become_markup() {
    let server = server();
    for path in ["/assets/status.js", "/assets/chat.js"] {
        let body = get(server.addr, path, &[]).body;
        let gates = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "DOMParser",
            "createContextualFragment",
            "setHTML",
            "srcdoc",
            "javascript:",
        ];
        for gate in gates {
            assert!(!body.contains(gate), "{path} contains {gate}");
        }
    }
    let html = get(server.addr, "/", &[BROWSER]).body;
    for inline in [" style=", "<style", " onclick=", " onload=", "<script>", "javascript:"] {
        assert!(!html.contains(inline), "the page contains {inline}");
    }
}
