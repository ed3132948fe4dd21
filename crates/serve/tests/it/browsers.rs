//! A browser that is paired by a number gets a key of its own.

use std::sync::{Arc, Mutex};

use crate::support::client::{get, post};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, Server};
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::{ApiKey, ApiKeys, OwnProcess};

const ELSEWHERE: (&str, &str) = ("x-forwarded-for", "203.0.113.9");

#[test]
fn a_number_gives_one_browser_a_key_for_chats_alone() {
    let keys: Arc<Mutex<Vec<ApiKey>>> = Arc::default();
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::with(&double, |config| {
        let (kept, made) = (Arc::clone(&keys), Arc::clone(&keys));
        config.api_keys = Some(ApiKeys::live(move || kept.lock().unwrap().clone().into()));
        config.make_key = Some(Arc::new(move |name: &str, _| {
            let key = format!("sk-of-{name}");
            made.lock().unwrap().push(ApiKey::new(name, &key));
            Ok(key)
        }));
    });
    let admin = format!("Bearer {ADMIN}");
    let show = |headers: &[(&str, &str)]| {
        post(server.addr, "/sinew/v1/browsers/number", headers, &json!({}))
    };
    let pair = |number: &str| {
        let body = json!({ "number": number, "name": "My <phone>" });
        post(server.addr, "/sinew/v1/browsers/pair", &[ELSEWHERE], &body)
    };
    assert_eq!(show(&[]).status, 401, "only the owner has one shown");
    assert_eq!(pair("").status, 401, "none is shown");
    let shown = show(&[("authorization", &admin)]).json();
    let number = shown["number"].as_str().unwrap();
    assert_eq!(number.len(), 6);
    let spaced = format!("{} {}", &number[..3], &number[3..]);
    let paired = pair(&spaced).json();
    assert_eq!(paired["name"], format!("browser-Myphone-{number}"));
    assert_eq!(pair(number).status, 401, "it worked once");
    let key = paired["key"].as_str().unwrap();
    let bearer = format!("Bearer {key}");
    let with_key = [ELSEWHERE, ("authorization", bearer.as_str())];
    assert_eq!(get(server.addr, "/sinew/v1/status", &with_key).status, 200);
    assert_eq!(show(&with_key).status, 401, "it steers nothing");

    let number = show(&[("authorization", &admin)]).json()["number"].as_str().unwrap().to_owned();
    let wrong = if number == "000000" { "111111" } else { "000000" };
    for _ in 0..5 {
        assert_eq!(pair(wrong).status, 401);
    }
    assert_eq!(pair(&number).status, 401, "it was guessed at too often");
    assert_eq!(keys.lock().unwrap().len(), 1);
}

/// Two proofs: the key of an owner's browser, and a process of the node's user on this machine.
#[test]
fn a_remembered_browser_has_the_owners_rights_on_this_machine_alone() {
    let key = |is_owners, key| ApiKey { is_owners, ..ApiKey::new(key, key) };
    let keys: Arc<[ApiKey]> = [key(true, "the-owners-key"), key(false, "a-guests-key")].into();
    let token = |is_own: bool, headers: &[(&str, &str)]| {
        let double = Double::new(&[Act::Done(FinishReason::Stop)]);
        let server = Server::with(&double, |config| {
            let keys = Arc::clone(&keys);
            config.api_keys = Some(ApiKeys::live(move || Arc::clone(&keys)));
            config.own_process = Some(OwnProcess::new(move |_, _| is_own));
        });
        post(server.addr, "/sinew/v1/browsers/owner", headers, &json!({})).json()["token"].clone()
    };
    let (owners, guests) = (("x-api-key", "the-owners-key"), ("x-api-key", "a-guests-key"));
    assert_eq!(token(true, &[owners]), ADMIN);
    assert_eq!(token(true, &[]), Value::Null, "any program of the user, such as a proxy");
    assert_eq!(token(true, &[guests]), Value::Null);
    assert_eq!(token(true, &[ELSEWHERE, owners]), Value::Null);
    assert_eq!(token(false, &[owners]), Value::Null, "another user of this machine");
}
