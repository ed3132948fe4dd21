//! The page of one member shows the conversations that another one keeps.

use std::path::Path;
use std::sync::{Arc, Mutex};

use cluster::NodeId;
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::{ApiKey, ApiKeys};

use crate::support::client::{Reply, get, post};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, Server};
use crate::support::wait_for;

const PHONE: (&str, &str) = ("x-forwarded-for", "203.0.113.9");
const DESK: NodeId = NodeId([1; 32]);
const MAC: NodeId = NodeId([2; 32]);

/// A node that makes keys and keeps conversations.
fn node(double: &Arc<Double>, folder: &Path) -> Server {
    let keys: Arc<Mutex<Vec<ApiKey>>> = Arc::default();
    Server::with(double, |config| {
        config.chats = Some(folder.join("chats"));
        let (kept, made) = (Arc::clone(&keys), keys);
        config.api_keys = Some(ApiKeys::live(move || kept.lock().unwrap().clone().into()));
        config.make_key = Some(Arc::new(move |name: &str, is_owners| {
            let mut made = made.lock().unwrap();
            let key = format!("sk-{}-of-{name}", made.len());
            made.push(ApiKey { is_owners, ..ApiKey::new(name, &key) });
            Ok(key)
        }));
    })
}

/// Two members, of which the desk can reach the Mac's API.
struct Two {
    desk: Server,
    mac: Server,
    at_desk: Arc<Double>,
    _folders: [tempfile::TempDir; 2],
}

fn two(script: &[Act]) -> Two {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (at_desk, at_mac) = (Double::new(script), Double::new(script));
    at_desk.status.lock().unwrap().node = DESK;
    at_mac.status.lock().unwrap().node = MAC;
    at_desk.ways.there.lock().unwrap().insert(MAC.to_string(), at_mac.ways.here.clone());
    let (desk, mac) = (node(&at_desk, folders[0].path()), node(&at_mac, folders[1].path()));
    Two { desk, mac, at_desk, _folders: folders }
}

fn number(server: &Server, guest: bool) -> String {
    let admin = format!("Bearer {ADMIN}");
    let headers = [("authorization", admin.as_str())];
    let body = json!({ "guest": guest });
    let shown = post(server.addr, "/sinew/v1/browsers/number", &headers, &body).json();
    shown["number"].as_str().unwrap().to_owned()
}

fn pair(server: &Server, number: &str, headers: &[(&str, &str)]) -> Reply {
    post(server.addr, "/sinew/v1/browsers/pair", headers, &json!({ "number": number }))
}

/// The phone on the desk's page, with the Mac's conversations.
struct Phone<'a> {
    desk: &'a Server,
    key: String,
    node_key: String,
}

impl<'a> Phone<'a> {
    fn paired(desk: &'a Server, paired: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        assert_eq!(paired["kept_on"]["node"], MAC.to_string());
        assert_eq!(paired["kept_on"]["name"], "mac-mini");
        Self { desk, key: text(&paired["key"]), node_key: text(&paired["kept_on"]["key"]) }
    }

    fn ask(&self, act: &str, body: Option<Value>) -> Reply {
        let (bearer, mac) = (format!("Bearer {}", self.key), MAC.to_string());
        let headers = [
            PHONE,
            ("authorization", bearer.as_str()),
            ("x-sinew-node", mac.as_str()),
            ("x-sinew-node-key", self.node_key.as_str()),
        ];
        let path = format!("/sinew/v1/chats{act}");
        match body {
            Some(body) => post(self.desk.addr, &path, &headers, &body),
            None => get(self.desk.addr, &path, &headers),
        }
    }
}

#[test]
fn a_browser_on_another_members_page_has_the_conversations_of_its_own_node() {
    let two = two(&[Act::Say("Hello "), Act::Say("there"), Act::Done(FinishReason::Stop)]);
    let (desk, mac) = (&two.desk, &two.mac);
    let paired = pair(desk, &number(mac, false), &[PHONE]);
    assert_eq!(paired.status, 200, "{paired:?}");
    let phone = Phone::paired(desk, &paired.json());
    // It asks through the desk, and the Mac's owner sees it at once.
    let asked = phone.ask("/ask", Some(json!({ "model": "tiny/qwen3", "content": "Say hello" })));
    assert_eq!(asked.status, 200, "{asked:?}");
    let id = asked.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/one?id={id}");
    wait_for("the end of an answer", || phone.ask(&path, None).json()["running"].is_null());
    let here = get(mac.addr, &format!("/sinew/v1/chats{path}"), &[]).json();
    assert_eq!(here["conversation"], phone.ask(&path, None).json()["conversation"]);
    assert_eq!(here["conversation"]["messages"][1]["content"], "Hello there");
    let events = phone.ask(&format!("/answer?id={id}"), None);
    assert!(events.body.contains("\"over\":true"), "{events:?}");
    // The desk keeps nothing of it.
    let listed = get(desk.addr, "/sinew/v1/chats", &[]).json();
    assert_eq!(listed["chats"], json!([]));
    // An export is still a file.
    let exported = phone.ask("/export", None);
    assert_eq!(exported.json()["conversations"].as_array().unwrap().len(), 1);
}

#[test]
fn a_guests_browser_has_conversations_of_its_own() {
    let two = two(&[Act::Say("Hi"), Act::Done(FinishReason::Stop)]);
    let body = json!({ "model": "tiny/qwen3", "content": "The owner's" });
    assert_eq!(post(two.mac.addr, "/sinew/v1/chats/ask", &[], &body).status, 200);
    for (guest, seen) in [(false, 1), (true, 0)] {
        let number = number(&two.mac, guest);
        let phone = Phone::paired(&two.desk, &pair(&two.desk, &number, &[PHONE]).json());
        let listed = phone.ask("", None).json();
        assert_eq!(listed["chats"].as_array().unwrap().len(), seen, "guest: {guest}, {listed}");
    }
}

#[test]
fn a_visit_grants_nothing_without_a_key_of_that_node() {
    let two = two(&[Act::Done(FinishReason::Stop)]);
    let mac = MAC.to_string();
    let through = ("x-sinew-node", mac.as_str());
    // This machine's programs are the owner's at the desk, and strangers at the Mac.
    let refused = get(two.desk.addr, "/sinew/v1/chats", &[through]);
    assert_eq!(refused.status, 401, "{refused:?}");
    let wrong = [through, ("x-sinew-node-key", "no-key")];
    assert_eq!(get(two.desk.addr, "/sinew/v1/chats", &wrong).status, 401);
    // Nobody gets through the desk without the desk's key.
    let paired = pair(&two.desk, &number(&two.mac, false), &[PHONE]).json();
    let key = paired["kept_on"]["key"].as_str().unwrap();
    let strange = [PHONE, through, ("x-sinew-node-key", key)];
    assert_eq!(get(two.desk.addr, "/sinew/v1/chats", &strange).status, 401);
    // Administration does not go through at all: these headers mean nothing there.
    let admin = format!("Bearer {ADMIN}");
    let steering = [through, ("authorization", admin.as_str())];
    let shown = post(two.desk.addr, "/sinew/v1/browsers/number", &steering, &json!({})).json();
    assert_eq!(pair(&two.mac, shown["number"].as_str().unwrap(), &[PHONE]).status, 401);
}

#[test]
fn a_number_of_a_member_works_once_and_a_local_page_needs_no_second_key() {
    let two = two(&[Act::Done(FinishReason::Stop)]);
    let shown = number(&two.mac, false);
    let paired = pair(&two.desk, &shown, &[]).json();
    assert_eq!(paired["key"], Value::Null);
    assert_eq!(paired["kept_on"]["name"], "mac-mini");
    assert_eq!(pair(&two.desk, &shown, &[]).status, 401, "it worked once");
    let shown = number(&two.mac, false);
    let wrong = if shown == "000000" { "111111" } else { "000000" };
    for _ in 0..5 {
        assert_eq!(pair(&two.desk, wrong, &[PHONE]).status, 401);
    }
    assert_eq!(pair(&two.desk, &shown, &[PHONE]).status, 401, "it was guessed at too often");
}

#[test]
fn a_node_that_is_away_is_named() {
    let two = two(&[Act::Done(FinishReason::Stop)]);
    let phone = pair(&two.desk, &number(&two.mac, false), &[PHONE]).json();
    let phone = Phone::paired(&two.desk, &phone);
    assert_eq!(phone.ask("", None).status, 200);
    two.at_desk.ways.there.lock().unwrap().clear();
    let away = phone.ask("", None);
    assert_eq!(away.status, 503, "{away:?}");
    let error = &away.json()["error"];
    assert_eq!(error["code"], "node_away");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("node mac does not answer: it is off. It keeps these"), "{message}");
}
