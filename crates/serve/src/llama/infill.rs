//! `POST /infill`: fills in the text between a prefix and a suffix.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value};

use super::completion::respond;
use super::request::Asked;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Fill, FillFile, Prompt};
use crate::http::error::ApiError;
use crate::known::Endpoint;
use crate::openai::fields::Fields;

/// Other files of one request.
const FILES_MAX: usize = 1024;

pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = |mut fields: Fields| {
        fields.settle(Endpoint::Infill)?;
        let fill = fill(&mut fields)?;
        let asked = Asked::read(&mut fields)?;
        fields.finish();
        Ok((asked, fill))
    };
    let (asked, mut fill) = app.intake.read_as(request, read).await?;
    let (completion, answers, wants) = asked.into_request(&app, caller).await?;
    fill.answer_tokens = completion.max_tokens;
    respond(&app, completion, vec![Prompt::Fill(fill)], answers, wants).await
}

/// The text with a gap. `prompt` is the part of the cursor's line before the cursor.
fn fill(fields: &mut Fields) -> Result<Fill, ApiError> {
    let mut text = |name: &str| fields.read::<String>(name);
    let (prefix, suffix) = (text("input_prefix")?, text("input_suffix")?);
    let line = text("prompt")?.unwrap_or_default();
    for (name, given) in [("input_prefix", &prefix), ("input_suffix", &suffix)] {
        if given.is_none() {
            let message = format!("{name} must be the text on that side of the gap");
            return Err(ApiError::invalid_value(name, message));
        }
    }
    Ok(Fill {
        prefix: prefix.unwrap_or_default() + &line,
        suffix: suffix.unwrap_or_default(),
        files: files(fields.read("input_extra")?.unwrap_or_default())?,
        field: "input_suffix",
        ..Fill::default()
    })
}

fn files(extra: Vec<Map<String, Value>>) -> Result<Vec<FillFile>, ApiError> {
    const NAME: &str = "input_extra";
    if extra.len() > FILES_MAX {
        let message = format!("{NAME} has {} entries; {FILES_MAX} are the most", extra.len());
        return Err(ApiError::invalid_value(NAME, message));
    }
    let file = |mut fields: Map<String, Value>| {
        let mut take = |name: &str| fields.remove(name).filter(|value| !value.is_null());
        match (take("filename"), take("text")) {
            (None, Some(Value::String(text))) => Ok(FillFile { name: "file".to_owned(), text }),
            (Some(Value::String(name)), Some(Value::String(text))) => Ok(FillFile { name, text }),
            _ => {
                let message = format!("{NAME} must list objects with a text and its filename");
                Err(ApiError::invalid_value(NAME, message))
            }
        }
    };
    extra.into_iter().map(file).collect()
}
