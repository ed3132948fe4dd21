//! `GET /health`: the process is alive. `GET /ready`: a request sent now would be answered.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::{InstanceState, InstanceStatus};
use serde_json::{Value, json};

use crate::app::App;

/// Returns ok as soon as the node listens, regardless of its models.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// 200 if a served model has generated since its ranks were linked or would load on request; 503
/// with a reason otherwise, and once the node is stopping.
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

/// The number of models that can answer now. The route needs no key, so it returns no names.
///
/// # Errors
/// No model can answer, with the reason.
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
