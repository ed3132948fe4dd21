//! `POST /api/pull` and `DELETE /api/delete`: download and delete models on this machine's disk.
//! A preset's name deletes the preset.
//!
//! Both are reserved to the node's owner: a client that may use models must not change what is on
//! the disk.

use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cluster::{PullStage, PullStatus};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::request::served_name;
use crate::app::App;
use crate::caller::Caller;
use crate::http::error::ApiError;
use crate::http::owner::not_the_owners;
use crate::http::stream::{Framing, Item, respond_with};

/// Digits of a digest that Ollama shows.
const SHORT_DIGITS: usize = 12;

#[derive(Debug, Deserialize)]
struct Named {
    model: Option<String>,
    /// The field's older name.
    name: Option<String>,
    /// True by default.
    stream: Option<bool>,
}

impl Named {
    async fn read(app: &App, request: Request) -> Result<(String, bool), ApiError> {
        if !Caller::of(app, &request).is_owner(app).await {
            let what = "models are fetched and deleted (sinew pull, sinew rm)";
            return Err(not_the_owners(what));
        }
        let named: Self = app.intake.read_json(request).await?;
        let streams = named.stream.unwrap_or(true);
        // A client admitted without a key must not learn what else lies on this disk.
        let is_path = |name: &String| Path::new(name).has_root();
        let wrong = match named.model.or(named.name).filter(|name| !name.is_empty()) {
            Some(name) if !is_path(&name) => return Ok((name, streams)),
            Some(_) => "model is a path; it must be a model's name, such as org/repo:QUANT",
            None => "model must name a model",
        };
        Err(ApiError::invalid_value("model", wrong))
    }
}

pub(super) async fn pull(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (asked, streams) = Named::read(&app, request).await?;
    let name = served_name(&app, &asked);
    if app.completer.find(&name).await.is_ok() {
        return Ok(Json(json!({ "status": "success" })).into_response());
    }
    let mut told = app.cluster.pull(&name, false, false).await?;
    if !streams {
        let mut last = None;
        while let Some(status) = told.next().await {
            last = Some(status);
        }
        return match last {
            Some(last) if last.stage == PullStage::Done => {
                Ok(Json(json!({ "status": "success" })).into_response())
            }
            Some(last) if last.stage == PullStage::Failed => Err(failed(last.note)),
            _ => Err(failed("it ended before the model was there")),
        };
    }
    // A client that joins a running pull also gets its first line, as in Ollama.
    let manifest = || Item::json(&json!({ "status": "pulling manifest" }));
    let told = told.flat_map(|status| stream::iter(lines(&status)));
    let items = stream::once(std::future::ready(manifest())).chain(told);
    // During silences the first line is sent again.
    Ok(respond_with(Framing::JsonLines, items, app.config.limits.keep_alive, manifest))
}

/// Ollama's lines for this status, after the first line of every pull.
fn lines(status: &PullStatus) -> Vec<Item> {
    let line = |value: Value| Item::json(&value);
    match status.stage {
        PullStage::Looking => Vec::new(),
        PullStage::Waiting => vec![line(json!({ "status": status.note }))],
        PullStage::Pulling => vec![line(layer(status))],
        PullStage::Verifying | PullStage::Hashing => {
            vec![line(json!({ "status": "verifying sha256 digest" }))]
        }
        PullStage::Done => ["writing manifest", "success"]
            .into_iter()
            .map(|text| line(json!({ "status": text })))
            .collect(),
        PullStage::Failed => vec![Item::Fail(json!({ "error": status.note }).to_string())],
    }
}

fn layer(status: &PullStatus) -> Value {
    // A file without a digest is shown by its full name.
    let sha256 = status.sha256.as_deref().unwrap_or_default();
    let short = sha256.get(..SHORT_DIGITS).unwrap_or(&status.file);
    let mut line = json!({
        "status": format!("pulling {short}"),
        "digest": format!("sha256:{sha256}"),
        "total": status.file_total_bytes,
    });
    if status.file_done_bytes > 0 {
        line["completed"] = status.file_done_bytes.into();
    }
    line
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let (asked, _) = Named::read(&app, request).await?;
    let name = served_name(&app, &asked);
    match app.preset(&name) {
        Some(_) => app.cluster.remove_preset(&name).await?,
        None => drop(app.cluster.remove_model(&name, None).await?),
    }
    Ok(StatusCode::OK)
}

fn failed(message: impl Into<String>) -> ApiError {
    ApiError::server(StatusCode::BAD_GATEWAY, "pull_failed", message)
}
