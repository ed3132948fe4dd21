//! `GET /sinew/v1/clients`: settings of other programs, shown by the page.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::Uri;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::clients::{Change, Program, Target, programs};
use crate::http::error::ApiError;

#[derive(Debug, Deserialize)]
pub(super) struct ClientsQuery {
    /// The address at which the page found this node; programs on the visitor's machine reach it
    /// too.
    base: String,
    /// Empty if no model is served.
    #[serde(default)]
    model: String,
    /// Whether the visitor needs a key.
    #[serde(default)]
    key: u8,
}

pub(super) async fn clients(
    State(app): State<Arc<App>>,
    query: Result<Query<ClientsQuery>, QueryRejection>,
) -> Result<Json<Vec<Value>>, ApiError> {
    let Query(query) = query.map_err(ApiError::query)?;
    let served = app.cluster.status().instances;
    let context_tokens = served.iter().find(|one| one.model == query.model);
    let context_tokens = context_tokens.map_or(8192, |one| one.context_tokens);
    let model = if query.model.is_empty() { "MODEL".to_owned() } else { query.model };
    let key = if query.key == 0 { "none" } else { "YOUR-API-KEY" }.to_owned();
    let target = Target { base: origin(&query.base)?, model, context_tokens, key };
    Ok(Json(programs(&target).iter().map(told).collect()))
}

/// Scheme, host and port, and the path prefix of a proxy. Rejects characters that a shell could
/// interpret.
fn origin(base: &str) -> Result<String, ApiError> {
    let wrong = || {
        let message =
            format!("base is {base:?}; it must be an address such as http://localhost:8750");
        ApiError::invalid_value("base", message)
    };
    let uri: Uri = base.parse().map_err(|_| wrong())?;
    let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
    let authority = uri.authority().map(|authority| authority.as_str());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let authority = authority.filter(|text| text.chars().all(is_plain));
    let (Some(scheme), Some(authority)) = (scheme, authority) else { return Err(wrong()) };
    let path = uri.path().trim_end_matches('/');
    if !path.chars().all(|c| is_plain(c) || c == '/') {
        return Err(wrong());
    }
    Ok(format!("{scheme}://{authority}{path}"))
}

fn told(program: &Program) -> Value {
    let has_launch = program.file.is_some() || program.run.is_some();
    json!({
        "id": program.id,
        "title": program.title,
        "about": program.about,
        "file": program.file.map(|file| format!("~/{file}")),
        "text": program.change.as_ref().map(Change::text),
        "run": program.run,
        "launch": has_launch.then(|| format!("sinew launch {}", program.id)),
    })
}
