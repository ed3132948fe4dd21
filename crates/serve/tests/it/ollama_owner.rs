//! Actions on models that are reserved to the node's owner, in Ollama's dialect and all others.

use crate::support::client::{CHAT, Reply, chat_body, post, request, send};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, Server};
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::OwnProcess;

const FINE: [Act; 2] = [Act::Say("fine"), Act::Done(FinishReason::Stop)];

type Headers<'a> = &'a [(&'a str, &'a str)];

/// A server whose local clients are programs of the owner or of another user.
fn server(double: &std::sync::Arc<Double>, is_own: Option<bool>) -> Server {
    Server::with(double, |config| {
        config.own_process = is_own.map(|is_own| OwnProcess::new(move |_, _| is_own));
    })
}

fn delete(server: &Server, headers: Headers) -> Reply {
    let body = json!({"model": "org/m"}).to_string();
    let length = body.len().to_string();
    let headers = [headers, &[("content-length", &*length)]].concat();
    send(server.addr, request("DELETE", "/api/delete", server.addr, &headers, &body).as_bytes())
}

#[test]
fn models_are_the_owners_to_fetch_delete_and_unload() {
    let bearer = format!("Bearer {ADMIN}");
    let token = ("authorization", bearer.as_str());
    let wrong = ("authorization", "Bearer admin-token-of-32-characters-00x");
    let page = ("origin", "http://localhost:3000");
    let cases: &[(Option<bool>, Headers, bool)] = &[
        (Some(true), &[], true),
        (Some(false), &[], false),
        (None, &[], false),
        (Some(false), &[token], true),
        (None, &[token], true),
        (Some(false), &[wrong], false),
        (Some(true), &[page], false),
        (Some(true), &[("sec-fetch-site", "same-origin")], false),
        (Some(true), &[page, token], true),
    ];
    for (is_own, headers, may) in cases {
        let double = Double::new(&FINE);
        let server = server(&double, *is_own);
        let ask = |path: &str, body: Value| post(server.addr, path, headers, &body);
        let unload = json!({"model": "tiny/qwen3", "messages": [], "keep_alive": 0});
        let embed = json!({"model": "tiny/qwen3", "input": "x", "keep_alive": "0s"});
        let replies = [
            ask("/api/pull", json!({"model": "org/m", "stream": false})),
            delete(&server, headers),
            ask("/api/chat", unload.clone()),
            ask("/api/generate", json!({"model": "tiny/qwen3", "keep_alive": 0})),
            ask("/api/embed", embed),
        ];
        for reply in replies {
            assert_eq!(reply.status == 403, !may, "{is_own:?} {headers:?}: {reply:?}");
            assert!(*may || reply.body.contains("admin token"), "{reply:?}");
        }
        let calls = double.calls.lock().unwrap().clone();
        assert_eq!(calls.contains(&"remove org/m".to_owned()), *may, "{calls:?}");
        // Naming a missing model fetches it only for the owner.
        let named = chat_body(json!({"model": "org/another"}));
        ask(CHAT, named.clone());
        ask("/api/chat", named);
        let calls = double.calls.lock().unwrap().clone();
        assert_eq!(calls.contains(&"pull org/another".to_owned()), *may, "{calls:?}");
    }
}

#[test]
fn others_ask_models_and_have_no_say_in_how_long_they_stay() {
    for is_own in [true, false] {
        let double = Double::new(&FINE);
        let server = server(&double, Some(is_own));
        let asked = json!({"stream": false, "keep_alive": -1});
        let reply = post(server.addr, "/api/chat", &[], &chat_body(asked));
        assert_eq!(reply.status, 200, "{reply:?}");
        let keep = double.asked.lock().unwrap()[0].keep_alive;
        assert_eq!(keep.is_some(), is_own, "{keep:?}");
    }
}
