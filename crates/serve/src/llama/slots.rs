//! `/props` and `/slots`: what a client of `llama-server` may want to know about it.
//!
//! There are no slots here: requests share the cache, and as many run at once as fit. So a slot is
//! a request that runs, and one more is idle.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use cluster::{InstanceState, InstanceStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use super::settings::default_settings;
use crate::app::App;
use crate::caller::Caller;
use crate::http::error::ApiError;

/// More are not listed.
const SLOTS_MAX: usize = 256;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    model: Option<String>,
}

/// The instance that the query names, or the only one. Nothing is served for it: a page of another
/// site can make a browser send a GET.
async fn instance(
    app: &App,
    query: Result<Query<Asked>, QueryRejection>,
    caller: Caller,
) -> Result<InstanceStatus, ApiError> {
    let Query(asked) = query.map_err(ApiError::query)?;
    let model = caller.named_or_only(app, asked.model)?;
    Ok(app.completer.find(&model).await?)
}

pub(super) async fn props(
    State(app): State<Arc<App>>,
    query: Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let instance = instance(&app, query, Caller::of(&app, &request)).await?;
    let model = app.completer.model(&instance.model).await?;
    let token = |id: Option<u32>| {
        let bytes = id.map_or(&[][..], |id| model.tokenizer.token_bytes(id));
        String::from_utf8_lossy(bytes).into_owned()
    };
    let header = app.cluster.model_header(&instance.id).await?;
    let template = header.find_str("tokenizer.chat_template").ok().flatten().unwrap_or_default();
    Ok(Json(json!({
        "default_generation_settings": {
            "id": 0,
            "n_ctx": instance.context_tokens,
            "is_processing": instance.requests_running > 0,
            "params": default_settings(&model),
        },
        "total_slots": instance.requests_running + 1,
        "model_alias": instance.model,
        // Where the file lies is its owner's business.
        "model_path": format!("{}.gguf", instance.model.trim_end_matches(".gguf")),
        "chat_template": template,
        "bos_token": token(model.tokenizer.bos()),
        "eos_token": token(model.tokenizer.eos()),
        "modalities": { "vision": model.sees(), "audio": false },
        "build_info": concat!("sinew-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": instance.state == InstanceState::Unloaded,
    })))
}

pub(super) async fn slots(
    State(app): State<Arc<App>>,
    query: Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let instance = instance(&app, query, Caller::of(&app, &request)).await?;
    let running = instance.requests_running.min(SLOTS_MAX);
    let slot = |id: usize| {
        json!({
            "id": id,
            "n_ctx": instance.context_tokens,
            "speculative": false,
            "is_processing": id < running,
        })
    };
    Ok(Json((0..=running).map(slot).collect()))
}
