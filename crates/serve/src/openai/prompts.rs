//! Prompts and texts to embed: texts, token ids, both mixed, or several of these.
//!
//! Besides OpenAI's forms there are llama-server's: a list of tokens and texts in one prompt, and
//! objects with the text in `prompt_string` or in content parts.

use serde_json::{Map, Value};

use crate::completion::{Prompt, PromptPiece};
use crate::http::error::ApiError;
use crate::openai::fields::shown_value;

/// The prompts in the field `name`; up to `most`.
///
/// # Errors
/// 400 if there is none or too many, or a part is of another type.
pub(crate) fn prompts(
    name: &str,
    field: Option<Value>,
    most: usize,
) -> Result<Vec<Prompt>, ApiError> {
    let values = match field {
        None => Vec::new(),
        Some(Value::Array(values)) if !values.iter().any(Value::is_number) => values,
        Some(value) => vec![value],
    };
    if values.is_empty() || values.len() > most {
        let found = values.len();
        let message = format!("{name} has {found} entries; 1 to {most} are accepted");
        return Err(ApiError::invalid_value(name, message));
    }
    values.into_iter().map(|value| prompt(name, value)).collect()
}

/// One prompt.
///
/// # Errors
/// 400 if a part is of another type.
pub(crate) fn prompt(name: &str, value: Value) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Object(fields) => object(name, fields).map(Prompt::Text),
        Value::Array(parts) => {
            let pieces: Result<Vec<_>, _> =
                parts.into_iter().map(|part| piece(name, part)).collect();
            Ok(tokens_or_mixed(pieces?))
        }
        other => Err(wrong(name, &other)),
    }
}

/// A text or a token of a mixed prompt.
fn piece(name: &str, part: Value) -> Result<PromptPiece, ApiError> {
    match part {
        Value::String(text) => Ok(PromptPiece::Text(text)),
        part => {
            let token = part.as_u64().and_then(|token| u32::try_from(token).ok());
            token.map(|token| PromptPiece::Tokens(vec![token])).ok_or_else(|| wrong(name, &part))
        }
    }
}

/// The pieces with adjacent tokens joined.
fn tokens_or_mixed(pieces: Vec<PromptPiece>) -> Prompt {
    let mut joined: Vec<PromptPiece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(PromptPiece::Tokens(tokens)), PromptPiece::Tokens(more)) => tokens.extend(more),
            (_, piece) => joined.push(piece),
        }
    }
    match joined.as_mut_slice() {
        [] => Prompt::Tokens(Vec::new()),
        [PromptPiece::Tokens(tokens)] => Prompt::Tokens(std::mem::take(tokens)),
        _ => Prompt::Mixed(joined),
    }
}

/// The text of `{"prompt_string": ...}` or `{"content": [{"type": "text", ...}]}`.
fn object(name: &str, mut fields: Map<String, Value>) -> Result<String, ApiError> {
    let media = fields.get("multimodal_data").filter(|media| !media.is_null());
    if media.is_some_and(|media| *media != Value::Array(Vec::new())) {
        let message = format!("{name}.multimodal_data: only text is read here. Leave it out");
        return Err(ApiError::unsupported(name, message));
    }
    match fields.remove("prompt_string") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => return Ok(text),
        Some(other) => return Err(wrong(name, &other)),
    }
    let Some(Value::Array(parts)) = fields.remove("content") else {
        let message =
            format!("{name} has an object without a prompt_string or a list of content parts");
        return Err(ApiError::invalid_value(name, message));
    };
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        _ => {
            let message = format!("{name} has a content part that is not text. Send text parts");
            Err(ApiError::unsupported(name, message))
        }
    };
    parts.iter().map(text).collect()
}

fn wrong(name: &str, value: &Value) -> ApiError {
    let shown = shown_value(value);
    let message = format!(
        "{name} has {shown}, which is neither a text, a list of texts, nor token ids from 0 on"
    );
    ApiError::invalid_value(name, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Vec<Prompt>, ApiError> {
        prompts("prompt", Some(value), 3)
    }

    #[test]
    fn every_form_is_read() {
        let text = |text: &str| format!("{:?}", Prompt::Text(text.to_owned()));
        let tokens = |tokens: &[u32]| format!("{:?}", Prompt::Tokens(tokens.to_vec()));
        let mixed = Prompt::Mixed(vec![
            PromptPiece::Tokens(vec![1, 2]),
            PromptPiece::Text("a".to_owned()),
            PromptPiece::Tokens(vec![3]),
        ]);
        let mixed = format!("{mixed:?}");
        let part = json!({"type": "text", "text": "b"});
        let cases = [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([5, 6]), vec![tokens(&[5, 6])]),
            (json!([[5], [6]]), vec![tokens(&[5]), tokens(&[6])]),
            (json!([1, 2, "a", 3]), vec![mixed.clone()]),
            (json!([[1, 2, "a", 3], "b"]), vec![mixed, text("b")]),
            (json!({"prompt_string": "a", "multimodal_data": []}), vec![text("a")]),
            (json!([{"content": [part, part]}]), vec![text("bb")]),
        ];
        for (value, want) in cases {
            let found = read(value.clone()).unwrap_or_else(|error| panic!("{value}: {error:?}"));
            let found: Vec<String> = found.iter().map(|prompt| format!("{prompt:?}")).collect();
            assert_eq!(found, want, "{value}");
        }
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        let cases = [
            json!([]),
            json!(["a", "b", "c", "d"]),
            json!(7),
            json!([-1]),
            json!([1.5]),
            json!([4_294_967_296_u64]),
            json!([[[]]]),
            json!([null]),
            json!({"content": "a"}),
            json!({"prompt_string": 7, "content": []}),
            json!({"content": [{"type": "image_url"}]}),
            json!({"prompt_string": "a", "multimodal_data": ["x"]}),
            json!({"prompt_string": "a", "multimodal_data": "x"}),
        ];
        for value in cases {
            let error = read(value.clone()).expect_err(&value.to_string());
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("prompt")));
        }
        assert!(prompts("prompt", None, 3).is_err());
    }
}
