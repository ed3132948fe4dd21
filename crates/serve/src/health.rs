//! `GET /health`: the process lives. `GET /ready`: a request sent now would be answered.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::{InstanceState, InstanceStatus};
use serde_json::{Value, json};

use crate::app::App;

/// The node answers from the moment it listens, whatever becomes of its models.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// 200 when a model is served that has generated since its ranks were linked; 503 with a reason
/// otherwise, and from the moment that the node is told to end.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    let judged = match *app.stopping.borrow() {
        true => Err("the node is stopping".to_owned()),
        false => judge(&app.cluster.status().instances),
    };
    match judged {
        Ok(models) => Json(json!({ "status": "ready", "models": models })).into_response(),
        Err(reason) => {
            let body = Json(json!({ "status": "unavailable", "reason": reason }));
            let mut response = (StatusCode::SERVICE_UNAVAILABLE, body).into_response();
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
            response
        }
    }
}

/// How many models can be asked now. Whoever may not ask them may read this: it has no names.
///
/// # Errors
/// None; why.
fn judge(instances: &[InstanceStatus]) -> Result<usize, String> {
    let answers = |one: &&InstanceStatus| one.has_generated || one.state == InstanceState::Unloaded;
    let ready = instances.iter().filter(answers).count();
    if ready > 0 {
        return Ok(ready);
    }
    let in_state =
        |is: fn(&InstanceState) -> bool| instances.iter().filter(|one| is(&one.state)).count();
    let counts = [
        (in_state(|state| *state == InstanceState::Ready), "has not generated its first token yet"),
        (in_state(|state| *state == InstanceState::Loading), "loads"),
        (in_state(|state| matches!(state, InstanceState::Recovering { .. })), "recovers"),
        (in_state(|state| matches!(state, InstanceState::Failed { .. })), "has failed"),
    ];
    let said = counts.iter().filter(|(count, _)| *count > 0);
    let said: Vec<String> = said.map(|(count, what)| format!("{count} {what}")).collect();
    Err(match said.is_empty() {
        true => "no model is served. Start one with \"sinew serve MODEL\"".to_owned(),
        false => format!("of the models that are served, {}", said.join(", ")),
    })
}
