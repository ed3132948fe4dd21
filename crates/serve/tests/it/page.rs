//! The page: access, and that no foreign code can run in it. `tests/page/run` tests the visitor's
//! view in a browser.

use crate::support::client::get;
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use protocol::FinishReason;

const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

fn server() -> Server {
    Server::start(&Double::new(&[Act::Done(FinishReason::Stop)]))
}

/// Every text beside `src/page/mod.rs`, as path and type.
fn files() -> Vec<(String, &'static str)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page");
    let names = std::fs::read_dir(folder).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    let file = |name: String| match name.rsplit_once('.').unwrap().1 {
        "rs" | "png" => None,
        "html" => Some(("/".to_owned(), "text/html; charset=utf-8")),
        "css" => Some((format!("/assets/{name}"), "text/css; charset=utf-8")),
        "js" => Some((format!("/assets/{name}"), "text/javascript; charset=utf-8")),
        "svg" => Some((format!("/assets/{name}"), "image/svg+xml")),
        "webmanifest" => Some((format!("/assets/{name}"), "application/manifest+json")),
        other => panic!("the type of {other} is unknown"),
    };
    names.filter_map(file).collect()
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
fn every_file_is_served_sealed_short_and_needs_nothing_from_elsewhere() {
    let server = server();
    let files = files();
    assert!(files.len() > 15, "{files:?}");
    for (path, kind) in files {
        let reply = get(server.addr, &path, &[BROWSER]);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        // SVG's namespace is the one address that is never fetched.
        let body = reply.body.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http://", "https://", "url(", "@import"] {
            assert!(!body.contains(foreign), "{path} contains {foreign}");
        }
        let wide = body.lines().find(|line| line.chars().count() > 100);
        assert!(body.lines().count() <= 500 && wide.is_none(), "{path}: {wide:?}");
    }
}

#[test]
fn text_cannot_become_markup() {
    let server = server();
    for (path, _) in files().iter().filter(|(path, _)| path.ends_with(".js")) {
        let body = get(server.addr, path, &[]).body;
        let gates = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "createContextualFragment",
            "setHTML",
            "srcdoc",
            "javascript:",
            // A browser's own questions stop the page, and some browsers leave them out.
            "confirm(",
            "alert(",
            "prompt(",
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

/// A proxy may serve the page below its own path.
#[test]
fn the_page_asks_for_nothing_by_an_absolute_path() {
    let server = server();
    for (path, _) in files() {
        let body = get(server.addr, &path, &[BROWSER]).body;
        for quote in ['"', '\'', '`'] {
            for root in ["assets/", "sinew/", "v1/"] {
                let absolute = format!("{quote}/{root}");
                assert!(!body.contains(&absolute), "{path} contains {absolute}");
            }
        }
    }
}

/// Other people's file is what its README says, and has no way to make markup either.
#[test]
fn temml_is_unchanged() {
    let server = server();
    let body = get(server.addr, "/assets/temml.min.js", &[]).body;
    let hash = blake3::hash(body.as_bytes()).to_hex();
    assert_eq!(hash.as_str(), TEMML);
    assert!(body.len() < 250_000, "{}", body.len());
    for gate in ["innerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
        assert!(!body.contains(gate), "{gate}");
    }
}

#[test]
fn a_phone_gets_icons_for_its_home_screen() {
    let server = server();
    let page = get(server.addr, "/", &[BROWSER]).body;
    let manifest = get(server.addr, "/assets/manifest.webmanifest", &[]).body;
    for (name, from) in [("icon-180.png", &page), ("icon-512.png", &manifest)] {
        assert!(from.contains(name), "{from}");
        let reply = get(server.addr, &format!("/assets/{name}"), &[]);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("image/png")));
    }
}

/// The reader of PDFs is served packed, as its README says.
#[test]
fn pdf_js_is_unchanged() {
    let server = server();
    for (name, expected) in PDF_JS {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/third-party/pdfjs");
        let packed = std::fs::read(format!("{folder}/{name}.gz")).unwrap();
        assert_eq!(blake3::hash(&packed).to_hex().as_str(), expected, "{name}");
        let reply = get(server.addr, &format!("/assets/{name}"), &[]);
        let headers = ["content-encoding", "content-type"].map(|header| reply.header(header));
        assert_eq!(headers, [Some("gzip"), Some("text/javascript; charset=utf-8")], "{name}");
        assert_eq!(reply.header("content-length"), Some(packed.len().to_string().as_str()));
        assert!(reply.header("content-security-policy").is_some());
    }
}

const PDF_JS: [(&str, &str); 2] = [
    ("pdf.min.mjs", "2a9e6dfa40c4e5430d6f2ce95bae125cdaf39e178f85066f3cc8704a15d7e4a7"),
    ("pdf.worker.min.mjs", "d7a18c4d84a77643ede563503f74b5d5939ec82ae51098a972f006fc6d5e61fb"),
];
const TEMML: &str = "f03ba42ffb457bf35a3864677ce6983d8f78dd46c94af1f29c6255f8f7954687";
