//! `POST /api/create` and `POST /api/copy`, which write presets.
//!
//! Both are reserved to the node's owner, as is all that outlives a request.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use protocol::{Preset, PresetMessage};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::request::served_name;
use crate::app::App;
use crate::caller::Caller;
use crate::http::error::ApiError;
use crate::http::owner::not_the_owners;
use crate::http::stream::{Framing, Item, respond};

/// Fields that make another model file, each with what to do instead.
const REFUSED: &[(&str, &str)] = &[
    ("files", "models are served from GGUF files as they are: sinew serve FILE"),
    ("adapters", "adapters are not supported. Use a model that has it merged"),
    ("template", "a model's own template is used. Leave it out"),
    ("quantize", "models are not converted. Fetch the quantisation itself: sinew pull NAME:QUANT"),
];

#[derive(Debug, Deserialize)]
struct CreateRequest {
    model: Option<String>,
    /// The field's older name.
    name: Option<String>,
    from: Option<String>,
    /// A whole Modelfile, as older clients send.
    modelfile: Option<String>,
    system: Option<String>,
    parameters: Option<Map<String, Value>>,
    messages: Option<Vec<PresetMessage>>,
    /// True by default.
    stream: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    check_owner(caller, &app).await?;
    let body: CreateRequest = app.intake.read_json(request).await?;
    let streams = body.stream != Some(false);
    let preset = preset(&app, body)?;
    let known = app.preset(&preset.model).is_some();
    if !known {
        // As in Ollama, a model that is not here is fetched.
        caller.fetch_if_missing(&app, &preset.model).await?;
    }
    app.cluster.write_preset(preset).await?;
    Ok(success(&app, streams))
}

/// # Errors
/// 400 naming the first field that is wrong or not supported.
fn preset(app: &App, body: CreateRequest) -> Result<Preset, ApiError> {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    let refused = REFUSED.iter().find(|(field, _)| body.others.get(*field).is_some_and(is_set));
    if let Some((field, why)) = refused {
        return Err(ApiError::unsupported(field, format!("{field}: {why}")));
    }
    let wrong =
        |field: &str, why: String| ApiError::invalid_value(field, format!("{field}: {why}"));
    let mut preset = match body.modelfile.filter(|file| !file.is_empty()) {
        Some(file) => Preset::from_modelfile(&file).map_err(|why| wrong("modelfile", why))?,
        None => Preset::default(),
    };
    let named = |name: Option<String>| name.filter(|name| !name.is_empty());
    let no_name = || wrong("model", "give the new name".to_owned());
    let name = named(body.model).or(named(body.name)).ok_or_else(no_name)?;
    preset.name = bare(&name).to_owned();
    if let Some(from) = named(body.from) {
        preset.model = served_name(app, &from);
    }
    if preset.model.is_empty() {
        return Err(wrong("from", "name the model that answers".to_owned()));
    }
    preset.system = named(body.system).or(preset.system);
    preset.messages.extend(body.messages.unwrap_or_default());
    for (setting, value) in body.parameters.unwrap_or_default() {
        for value in texts(value) {
            let field = format!("parameters.{setting}");
            preset.set(&setting, &value).map_err(|why| wrong(&field, why))?;
        }
    }
    Ok(preset)
}

/// The values of a parameter as a Modelfile has them.
fn texts(value: Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(many) => many.into_iter().flat_map(texts).collect(),
        Value::String(text) => vec![text],
        other => vec![other.to_string()],
    }
}

/// Without the `:latest` that Ollama's clients append: its names are given with and without it.
fn bare(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

#[derive(Debug, Deserialize)]
struct CopyRequest {
    source: String,
    destination: String,
}

/// The copy of a preset is a preset; that of a model is a preset without settings.
pub(super) async fn copy(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    check_owner(Caller::of(&app, &request), &app).await?;
    let CopyRequest { source, destination } = app.intake.read_json(request).await?;
    let source = served_name(&app, &source);
    let of_model = || Preset { model: source.clone(), ..Preset::default() };
    let preset = app.preset(&source).unwrap_or_else(of_model);
    let name = bare(&destination).to_owned();
    app.cluster.write_preset(Preset { name, ..preset }).await?;
    Ok(StatusCode::OK)
}

pub(super) async fn push() -> ApiError {
    let message = "models and presets are published nowhere. Copy a preset: sinew preset show NAME";
    ApiError::server(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}

async fn check_owner(caller: Caller, app: &App) -> Result<(), ApiError> {
    match caller.is_owner(app).await {
        true => Ok(()),
        false => Err(not_the_owners("presets are written (sinew preset create)")),
    }
}

fn success(app: &App, streams: bool) -> Response {
    let line = json!({ "status": "success" });
    if !streams {
        return Json(line).into_response();
    }
    let lines = ["using existing layer", "writing manifest"].map(|text| json!({ "status": text }));
    let lines = lines.into_iter().chain([line]).map(|line| Item::json(&line));
    respond(Framing::JsonLines, stream::iter(lines), app.config.limits.keep_alive)
}
