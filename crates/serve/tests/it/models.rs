//! The list of models, health, and the probes of clients before they start.

use crate::support::client::{self, get, send};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use cluster::InstanceState;
use protocol::FinishReason;
use serde_json::{Value, json};

const FINE: [Act; 1] = [Act::Done(FinishReason::Stop)];

#[test]
fn the_list_suits_both_clients() {
    let server = Server::start(&Double::new(&FINE));
    // Xcode sends a trailing question mark.
    for path in ["/v1/models", "/v1/models?", "/v1/models?limit=1000"] {
        let list = get(server.addr, path, &[]).json();
        assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
        assert_eq!(list["first_id"], "tiny/qwen3");
        assert_eq!(list["last_id"], "tiny/qwen3");
        let model = &list["data"][0];
        assert_eq!((&model["id"], &model["object"]), (&json!("tiny/qwen3"), &json!("model")));
        assert_eq!((&model["type"], &model["owned_by"]), (&json!("model"), &json!("sinew")));
        assert!(model["created"].is_u64() && model["display_name"].is_string());
        assert!(model["created_at"].as_str().unwrap().ends_with('Z'));
        assert_eq!(model["context_length"], 1024);
    }
}

#[test]
fn one_model_is_found_by_its_name_with_slashes() {
    let server = Server::start(&Double::new(&FINE));
    for path in ["/v1/models/tiny/qwen3", "/v1/models/tiny%2Fqwen3", "/v1/models/tiny/qwen3?"] {
        let reply = get(server.addr, path, &[]);
        assert_eq!((reply.status, &reply.json()["id"]), (200, &json!("tiny/qwen3")), "{path}");
    }
    for path in ["/v1/models/other", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/tiny"] {
        let reply = get(server.addr, path, &[]);
        assert_eq!((reply.status, reply.code().as_str()), (404, "model_not_found"), "{path}");
    }
    assert_eq!(get(server.addr, "/v1/models/%ff", &[]).status, 400);
}

#[test]
fn each_usable_model_is_listed_once() {
    let double = Double::new(&FINE);
    {
        let mut status = double.status.lock().unwrap();
        let first = status.instances[0].clone();
        for (id, model, state) in [
            ("b-1", "zeta", InstanceState::Loading),
            ("b-2", "zeta", InstanceState::Ready),
            ("c-1", "alpha", InstanceState::Recovering { reason: "a rank".to_owned() }),
            ("d-1", "broken", InstanceState::Failed { reason: "no memory".to_owned() }),
        ] {
            let (id, model) = (id.to_owned(), model.to_owned());
            status.instances.push(cluster::InstanceStatus { id, model, state, ..first.clone() });
        }
    }
    let server = Server::start(&double);
    let list = get(server.addr, "/v1/models", &[]).json();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["alpha", "tiny/qwen3", "zeta"]);
    double.status.lock().unwrap().instances.clear();
    let empty = get(server.addr, "/v1/models", &[]).json();
    assert_eq!((&empty["data"], &empty["first_id"]), (&json!([]), &Value::Null));
}

#[test]
fn probes_are_answered() {
    let server = Server::start(&Double::new(&FINE));
    assert_eq!(get(server.addr, "/health", &[]).json(), json!({"status": "ok"}));
    for path in ["/", "/v1/models", "/health"] {
        let request = client::request("HEAD", path, server.addr, &[], "");
        let reply = send(server.addr, request.as_bytes());
        assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{path}");
    }
}
