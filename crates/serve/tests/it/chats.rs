//! Conversations that the node keeps, and answers that belong to it.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use crate::support::client::{Reply, connect, get, parse, post, read_until, request};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, KEY, Server};
use crate::support::{wait_for, wait_running};
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::{ApiKeys, OwnProcess};

const OTHER_KEY: &str = "another-key-of-32-characters-000";
const DONE: Act = Act::Done(FinishReason::Stop);

fn server(double: &Arc<Double>, folder: &Path) -> Server {
    Server::with(double, |config| {
        config.chats = Some(folder.join("chats"));
        config.api_keys = Some(ApiKeys::fixed(&[KEY, OTHER_KEY]));
    })
}

fn chats(server: &Server, act: &str, body: Value) -> Reply {
    post(server.addr, &format!("/sinew/v1/chats/{act}"), &[], &body)
}

fn ask(server: &Server, id: Option<&str>, more: Value) -> Value {
    let mut body = json!({ "model": "tiny/qwen3", "id": id });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = chats(server, "ask", body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn one(server: &Server, id: &str) -> Value {
    get(server.addr, &format!("/sinew/v1/chats/one?id={id}"), &[]).json()
}

/// The conversation once it has no answer in progress.
fn whole(server: &Server, id: &str) -> Value {
    wait_for("the end of an answer", || one(server, id)["running"].is_null());
    one(server, id)["conversation"].take()
}

fn texts(talk: &Value) -> Vec<&str> {
    let messages = talk["messages"].as_array().unwrap().iter();
    messages.map(|message| message["content"].as_str().unwrap()).collect()
}

#[test]
fn a_question_is_answered_without_its_client_and_found_by_all_of_its_user() {
    let double = Double::new(&[Act::Say("Hello "), Act::Say("there"), DONE]);
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    let asked = ask(&server, None, json!({ "content": "Say hello", "system": "Be kind." }));
    let id = asked["id"].as_str().unwrap();
    let talk = whole(&server, id);
    assert_eq!(texts(&talk), ["Say hello", "Hello there"]);
    assert_eq!(talk["messages"][1]["usage"]["completion_tokens"], 8, "{talk}");
    assert!(double.last_prompt().contains("Be kind."), "{}", double.last_prompt());
    let list = get(server.addr, "/sinew/v1/chats", &[]).json();
    assert_eq!(
        (&list["chats"][0]["id"], &list["chats"][0]["title"]),
        (&asked["id"], &json!("Say hello"))
    );
    let known = list["revision"].as_str().unwrap();
    let unchanged = get(server.addr, &format!("/sinew/v1/chats?known={known}"), &[]).json();
    assert_eq!(unchanged, json!({ "revision": known }));
    for (words, count) in [("hello%20THERE", 1), ("boats", 0)] {
        let path = format!("/sinew/v1/chats?search={words}");
        assert_eq!(get(server.addr, &path, &[]).json()["chats"].as_array().unwrap().len(), count);
    }
    let admin = format!("Bearer {ADMIN}");
    let by_token = get(server.addr, "/sinew/v1/chats", &[("authorization", &admin)]).json();
    assert_eq!(by_token["chats"], list["chats"]);
}

#[test]
fn each_key_has_its_own_and_another_user_of_the_machine_none() {
    let double = Double::new(&[Act::Say("yes"), DONE]);
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    let id = ask(&server, None, json!({ "content": "mine" }))["id"].as_str().unwrap().to_owned();
    whole(&server, &id);
    let count = |key: &str| {
        let list = get(server.addr, "/sinew/v1/chats", &[("x-api-key", key)]).json();
        list["chats"].as_array().unwrap().len()
    };
    let body = json!({ "model": "tiny/qwen3", "content": "theirs" });
    let asked = post(server.addr, "/sinew/v1/chats/ask", &[("x-api-key", KEY)], &body).json();
    assert_eq!((count(KEY), count(OTHER_KEY)), (1, 0));
    for (key, id) in [(KEY, id.as_str()), (OTHER_KEY, asked["id"].as_str().unwrap())] {
        for path in ["one", "answer"] {
            let path = format!("/sinew/v1/chats/{path}?id={id}");
            let reply = get(server.addr, &path, &[("x-api-key", key)]);
            let is_hidden = reply.status == 404
                || reply.events()
                    == [json!({ "over": true,
                "text": "", "thoughts": "", "waiting": null, "unsaved": null })];
            assert!(is_hidden, "{reply:?}");
        }
        let forget = json!({ "id": id });
        let reply = post(server.addr, "/sinew/v1/chats/forget", &[("x-api-key", key)], &forget);
        assert_eq!(reply.status, 404);
    }
    drop(server);
    let server = Server::with(&double, |config| {
        config.chats = Some(dir.path().join("chats"));
        config.own_process = Some(OwnProcess::new(|_, _| false));
    });
    let reply = get(server.addr, "/sinew/v1/chats", &[]);
    assert_eq!((reply.status, reply.code().as_str()), (403, "not_the_owner"));
}

#[test]
fn an_answer_is_found_again_while_it_runs_and_can_be_stopped() {
    let double = Double::new(&[Act::Say("One two"), Act::Hang]);
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    let id = ask(&server, None, json!({ "content": "Count" }))["id"].as_str().unwrap().to_owned();
    wait_running(&double, 1);
    let path = format!("/sinew/v1/chats/answer?id={id}");
    // A follower that leaves ends nothing.
    drop(connect(server.addr).write_all(request("GET", &path, server.addr, &[], "").as_bytes()));
    let second =
        chats(&server, "ask", json!({ "id": id, "model": "tiny/qwen3", "content": "and?" }));
    assert_eq!((second.status, second.code().as_str()), (409, "answer_in_progress"));
    wait_for("text on the disk", || {
        let path = dir.path().join(format!("chats/{id}.draft"));
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("One two"))
    });
    let (mut follower, mut bytes) = (connect(server.addr), Vec::new());
    follower.write_all(request("GET", &path, server.addr, &[], "").as_bytes()).unwrap();
    // Otherwise the answer may be over before anybody follows it.
    read_until(&mut follower, &mut bytes, "One two");
    assert_eq!(chats(&server, "stop", json!({ "id": id })).json(), json!({ "stopped": true }));
    follower.read_to_end(&mut bytes).unwrap();
    let events = parse(&bytes).events();
    let text: String = events.iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), &events.last().unwrap()["over"]), ("One two", &json!(true)));
    let talk = whole(&server, &id);
    assert_eq!(
        (texts(&talk), &talk["messages"][1]["ended"]),
        (vec!["Count", "One two"], &json!("stopped"))
    );
    assert!(!dir.path().join(format!("chats/{id}.draft")).exists());
    wait_running(&double, 0);
    double.play(&[Act::Say(" three"), DONE]);
    ask(&server, Some(&id), json!({ "go_on": 2 }));
    let talk = whole(&server, &id);
    assert_eq!(
        (texts(&talk), &talk["messages"][1]["ended"]),
        (vec!["Count", "One two three"], &Value::Null)
    );
}

#[test]
fn an_answer_goes_on_after_its_node_has_ended() {
    let double = Double::new(&[Act::Say("One two"), Act::Hang]);
    let dir = tempfile::tempdir().unwrap();
    let first = server(&double, dir.path());
    let id = ask(&first, None, json!({ "content": "Count" }))["id"].as_str().unwrap().to_owned();
    let draft = dir.path().join(format!("chats/{id}.draft"));
    wait_for("text on the disk", || {
        std::fs::read_to_string(&draft).is_ok_and(|text| text.contains("One two"))
    });
    // As by a kill: nothing is told to anybody.
    drop(first);
    let served = double.status.lock().unwrap().instances.split_off(0);
    double.play(&[Act::Say(" three"), DONE]);
    let second = server(&double, dir.path());
    let found = one(&second, &id);
    assert_eq!(
        (texts(&found["conversation"]), &found["running"]["after"]),
        (vec!["Count"], &json!(1))
    );
    let busy = chats(&second, "ask", json!({ "id": id, "model": "tiny/qwen3", "content": "and?" }));
    assert_eq!(busy.status, 409);
    double.status.lock().unwrap().instances = served;
    assert_eq!(texts(&whole(&second, &id)), ["Count", "One two three"]);
    assert!(double.last_prompt().ends_with("One two"), "{}", double.last_prompt());
    assert!(!draft.exists());
}

#[test]
fn another_answer_and_an_edited_question_take_nothing_away() {
    let double = Double::new(&[Act::Say("first"), DONE]);
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    let id = ask(&server, None, json!({ "content": "q" }))["id"].as_str().unwrap().to_owned();
    whole(&server, &id);
    double.play(&[Act::Say("second"), DONE]);
    ask(&server, Some(&id), json!({ "after": 1 }));
    let talk = whole(&server, &id);
    assert_eq!((texts(&talk), &talk["head"]), (vec!["q", "first", "second"], &json!(3)));
    ask(&server, Some(&id), json!({ "after": 0, "content": "r" }));
    let talk = whole(&server, &id);
    assert_eq!(
        (texts(&talk), &talk["head"]),
        (vec!["q", "first", "second", "r", "second"], &json!(5))
    );
    let shown = chats(&server, "change", json!({ "id": id, "show": 2 })).json();
    assert_eq!(shown["conversation"]["head"], 2);
    let stale = json!({ "id": id, "version": 1, "name": "late" });
    assert_eq!(chats(&server, "change", stale).code(), "conversation_changed");
    for (body, status) in [
        (json!({ "after": 9, "content": "x" }), 400),
        (json!({ "after": 2 }), 400),
        (json!({ "go_on": 1 }), 400),
        (json!({ "content": "x", "settings": { "tools": [] } }), 400),
        (json!({ "content": "x", "settings": { "temperature": 99 } }), 400),
        (json!({ "content": [{ "type": "image_url", "image_url": { "url": PIXEL } }] }), 400),
    ] {
        let mut body = body;
        body["id"] = json!(id);
        body["model"] = json!("tiny/qwen3");
        let reply = chats(&server, "ask", body);
        assert_eq!(reply.status, status, "{reply:?}");
    }
    assert_eq!(texts(&whole(&server, &id)).len(), 5, "what is refused is not kept");
}

#[test]
fn a_picture_that_another_model_saw_ends_no_conversation() {
    let double = Double::new(&[Act::Say("yes"), DONE]);
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    let picture = json!({ "type": "image_url", "image_url": { "url": PIXEL } });
    let shown = json!([picture, { "type": "text", "text": "What is this?" }]);
    let messages = json!([{ "role": "user", "content": shown },
        { "role": "assistant", "content": "A dot." }]);
    let talk = json!({ "conversation": { "messages": messages } });
    let id = chats(&server, "import", talk).json()["id"].as_str().unwrap().to_owned();
    ask(&server, Some(&id), json!({ "content": "And without a picture?" }));
    let kept = whole(&server, &id);
    assert_eq!(kept["messages"][0]["content"], shown, "it stays in the conversation");
    assert!(double.last_prompt().contains("(a picture)"), "{}", double.last_prompt());
}

/// A picture, which this model does not see.
const PIXEL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk\
                     +M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[test]
fn two_tabs_that_write_in_turn_lose_no_turn() {
    let double = Double::new(&[Act::Say("yes"), DONE]);
    double.status.lock().unwrap().instances[0].context_tokens = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    let id = ask(&server, None, json!({ "content": "0" }))["id"].as_str().unwrap().to_owned();
    for turn in 1..100 {
        whole(&server, &id);
        // Neither reads what the other one wrote.
        ask(&server, Some(&id), json!({ "content": turn.to_string() }));
        let rename = json!({ "id": id, "name": format!("turn {turn}") });
        assert_eq!(chats(&server, "change", rename).status, 200);
    }
    let talk = whole(&server, &id);
    let questions: Vec<&str> = texts(&talk).into_iter().filter(|text| *text != "yes").collect();
    assert_eq!(questions, (0..100).map(|turn| turn.to_string()).collect::<Vec<_>>());
    assert_eq!((texts(&talk).len(), &talk["head"]), (200, &json!(200)));
}

#[test]
fn ids_lead_nowhere_and_what_is_no_conversation_is_an_error() {
    let double = Double::new(&[DONE]);
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    std::fs::write(dir.path().join("secret.json"), r#"{"messages":[]}"#).unwrap();
    for id in ["..%2Fsecret", "%2Fetc%2Fpasswd", ".hidden", "a%00b", ""] {
        for path in ["one", "answer"] {
            let reply = get(server.addr, &format!("/sinew/v1/chats/{path}?id={id}"), &[]);
            assert_eq!(reply.status, 400, "{id}: {reply:?}");
        }
    }
    for act in ["forget", "change", "ask", "import"] {
        let body = json!({ "id": "../secret", "model": "m", "conversation": { "messages": [] },
            "content": "x" });
        assert_eq!(chats(&server, act, body).status, 400, "{act}");
    }
    assert!(dir.path().join("secret.json").exists());
    let circle = json!([{ "role": "user", "content": "q", "after": 7 }]);
    for messages in [circle, json!("none"), json!([{ "content": 1 }])] {
        let reply = chats(&server, "import", json!({ "conversation": { "messages": messages } }));
        assert_eq!(reply.status, 422, "{reply:?}");
    }
    std::fs::write(dir.path().join("chats/bad.json"), "{").unwrap();
    let list = get(server.addr, "/sinew/v1/chats", &[]).json();
    assert_eq!((&list["damaged"], &list["chats"]), (&json!(["bad.json"]), &json!([])));
}

#[test]
fn all_are_exported_imported_once_and_forgotten_whole() {
    let double = Double::new(&[Act::Say("yes"), DONE]);
    let dir = tempfile::tempdir().unwrap();
    let server = server(&double, dir.path());
    for question in ["a", "b"] {
        let asked = ask(&server, None, json!({ "content": question }));
        whole(&server, asked["id"].as_str().unwrap());
    }
    let all = get(server.addr, "/sinew/v1/chats/export", &[]).json();
    let all = all["conversations"].as_array().unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(chats(&server, "forget", json!({ "all": true })).json(), json!({ "forgotten": 2 }));
    for (is_new, again) in [(true, all), (false, all)] {
        for one in again {
            let reply = chats(&server, "import", one.clone()).json();
            assert_eq!(reply, json!({ "id": one["id"], "imported": is_new }));
        }
    }
    let again = get(server.addr, "/sinew/v1/chats/export", &[]).json();
    assert_eq!(again["conversations"].as_array().unwrap(), all);
}
