//! `POST /api/show`: a model's details and capabilities.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use gguf::Directory;
use protocol::Preset;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::request::served_name;
use crate::app::App;
use crate::caller::Caller;
use crate::clock::rfc3339;
use crate::completion::Purpose;
use crate::http::error::ApiError;

const TEMPLATE: &str = "tokenizer.chat_template";

/// `general.file_type` in llama.cpp's numbering.
const FILE_TYPES: &[(u64, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

#[derive(Debug, Deserialize)]
struct ShowRequest {
    model: Option<String>,
    /// The field's older name.
    name: Option<String>,
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let request: ShowRequest = app.intake.read_json(request).await?;
    let asked = request.model.or(request.name).filter(|model| !model.is_empty());
    let missing = || ApiError::invalid_value("model", "model must name a served model");
    let name = served_name(&app, &asked.ok_or_else(missing)?);
    let instance = app.completer.find(&name).await?;
    let text = app.completer.model(&name).await?;
    let model = || Preset { model: instance.model.clone(), ..Preset::default() };
    // A system prompt is for its owner, as in the list of presets.
    let preset = match caller.is_owner(&app).await {
        true => app.preset(&name).unwrap_or_else(model),
        false => model(),
    };
    let header = app.cluster.model_header(&instance.id).await?;
    let template = header.find_str(TEMPLATE).ok().flatten().unwrap_or_default();
    let mut capabilities = match text.purpose() {
        Purpose::Answers => vec!["completion"],
        Purpose::Embeddings => vec!["embedding"],
        Purpose::Ranking => vec!["rerank"],
    };
    if text.purpose() == Purpose::Answers && template.contains("tools") {
        capabilities.push("tools");
    }
    if text.sees() {
        capabilities.push("vision");
    }
    if text.template.reply_format().thinks() {
        capabilities.push("thinking");
    }
    if text.tokenizer.fill_tokens().is_some() {
        capabilities.push("insert");
    }
    let context_tokens = instance.context_tokens;
    let context_tokens =
        preset.context_tokens.map_or(context_tokens, |own| own.min(context_tokens));
    let with_context = Preset { context_tokens: Some(context_tokens), ..preset };
    Ok(Json(json!({
        "modelfile": with_context.to_string(),
        "parameters": with_context.parameters().join("\n"),
        "system": with_context.system.unwrap_or_default(),
        "messages": with_context.messages,
        "template": template,
        "license": header.find_str("general.license").ok().flatten().unwrap_or_default(),
        "details": details(Some(&header)),
        "model_info": model_info(&header, context_tokens),
        "capabilities": capabilities,
        "modified_at": rfc3339(instance.created_unix_s),
    })))
}

/// The details that menus show of a model; empty strings if its header did not arrive.
pub(super) fn details(header: Option<&Directory>) -> Value {
    let text = |key| header.and_then(|header| header.find_str(key).ok().flatten());
    let family = text("general.architecture").unwrap_or_default();
    let file_type = header.and_then(|header| header.find_u64("general.file_type").ok().flatten());
    let quantization = FILE_TYPES.iter().find(|(number, _)| Some(*number) == file_type);
    let size = header.map(|header| short_count(parameters(header))).unwrap_or_default();
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": quantization.map_or("", |(_, name)| name),
    })
}

/// The file's metadata without lists, with the served context length: clients truncate their
/// prompts to it.
fn model_info(header: &Directory, context_tokens: usize) -> Value {
    let mut info = Map::new();
    for (key, value) in header.metadata().filter(|(key, _)| *key != TEMPLATE) {
        info.insert(key.to_owned(), plain(value));
    }
    info.insert("general.parameter_count".to_owned(), parameters(header).into());
    if let Ok(Some(family)) = header.find_str("general.architecture") {
        info.insert(format!("{family}.context_length"), context_tokens.into());
    }
    Value::Object(info)
}

fn plain(value: &gguf::Value) -> Value {
    if let Some(text) = value.as_str() {
        return text.into();
    }
    if let Some(flag) = value.as_bool() {
        return flag.into();
    }
    match value {
        gguf::Value::I8(number) => (*number).into(),
        gguf::Value::I16(number) => (*number).into(),
        gguf::Value::I32(number) => (*number).into(),
        gguf::Value::I64(number) => (*number).into(),
        gguf::Value::F32(number) => (*number).into(),
        gguf::Value::F64(number) => (*number).into(),
        other => other.as_u64().into(),
    }
}

fn parameters(header: &Directory) -> u64 {
    header.tensors().iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum()
}

/// `8.2B`, `135M`, `4.1K`.
fn short_count(count: u64) -> String {
    let (unit, name) = match count {
        1_000_000_000.. => (1e9, "B"),
        1_000_000.. => (1e6, "M"),
        _ => (1e3, "K"),
    };
    let count = count as f64 / unit;
    if count < 100.0 { format!("{count:.1}{name}") } else { format!("{count:.0}{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_for_people() {
        for (count, want) in
            [(8_190_000_000, "8.2B"), (135_000_000, "135M"), (144_000, "144K"), (4_100, "4.1K")]
        {
            assert_eq!(short_count(count), want);
        }
    }
}
