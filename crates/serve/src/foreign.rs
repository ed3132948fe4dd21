//! Parts of a conversation that only another server understands, such as its searches.
//!
//! A conversation that began there goes on here: what can be read becomes text, and the rest is
//! left out.

use serde_json::{Map, Value};

/// Fields that say nothing to a model: names of things, states, and what is encrypted or encoded.
const UNREADABLE: &[&str] = &[
    "annotations",
    "approve",
    "cache_control",
    "caller",
    "citations",
    "container",
    "data",
    "encrypted_content",
    "encrypted_index",
    "encrypted_stdout",
    "file_type",
    "id",
    "image_url",
    "is_error",
    "media_type",
    "page_age",
    "phase",
    "role",
    "score",
    "signature",
    "status",
    "type",
];

/// The deepest part of a value that is read.
const DEPTH_MAX: usize = 16;

/// A part of an assistant's message or of a tool's result for a model: what it is, and its texts.
/// Empty if it has none.
pub(crate) fn readable(part: &Map<String, Value>) -> String {
    let text = |key: &str| part.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let lines = texts(part);
    match text("name").or(text("type").filter(|_| !lines.is_empty())) {
        Some(name) if lines.is_empty() => format!("[{name}]"),
        Some(name) => format!("[{name}]\n{lines}"),
        None => String::new(),
    }
}

/// The texts of a part, but for its name.
pub(crate) fn texts(part: &Map<String, Value>) -> String {
    let named = part.iter().filter(|(key, _)| *key != "name");
    named.fold(String::new(), |lines, (key, value)| add(lines, key, value, 0))
}

fn add(mut lines: String, key: &str, value: &Value, depth: usize) -> String {
    let is_plain_text = |fields: &Map<String, Value>| fields.get("type") == Some(&"text".into());
    let mut line = |text: &str| {
        if !text.is_empty() {
            let gap = if lines.is_empty() { "" } else { "\n" };
            lines.extend([gap, text]);
        }
    };
    match value {
        _ if UNREADABLE.contains(&key) || key.ends_with("_id") || depth > DEPTH_MAX => {}
        Value::Null => {}
        Value::String(text) => line(text),
        Value::Bool(_) | Value::Number(_) => line(&format!("{key}: {value}")),
        Value::Array(values) => {
            for value in values {
                lines = add(lines, key, value, depth + 1);
            }
        }
        Value::Object(fields) => {
            // The text of a document is its data.
            if let Some(Value::String(text)) = fields.get("data").filter(|_| is_plain_text(fields))
            {
                line(text);
            }
            for (key, value) in fields {
                lines = add(lines, key, value, depth + 1);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_read_and_what_is_encrypted_is_not() {
        let cases = [
            (
                json!({"type": "server_tool_use", "id": "s1", "name": "web_search",
                    "input": {"query": "Rome"}}),
                "[web_search]\nRome",
            ),
            (
                json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": [
                    {"type": "web_search_result", "title": "Rome", "url": "https://rome.example",
                        "encrypted_content": "x", "page_age": "1 day"}]}),
                "[web_search_tool_result]\nRome\nhttps://rome.example",
            ),
            (
                json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content":
                    {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}),
                "[web_search_tool_result]\nmax_uses_exceeded",
            ),
            (
                json!({"type": "web_fetch_tool_result", "content": {"type": "web_fetch_result",
                    "url": "u", "content": {"type": "document", "source":
                    {"type": "text", "media_type": "text/plain", "data": "Page."}}}}),
                "[web_fetch_tool_result]\nu\nPage.",
            ),
            (
                json!({"type": "code_execution_tool_result", "content":
                    {"stdout": "7\n", "stderr": "", "return_code": 0}}),
                "[code_execution_tool_result]\n7\n\nreturn_code: 0",
            ),
            (json!({"type": "web_search_call", "id": "ws_1", "status": "completed"}), ""),
            (json!({"type": "compaction", "encrypted_content": "x"}), ""),
        ];
        for (part, want) in cases {
            assert_eq!(readable(part.as_object().unwrap()), want, "{part}");
        }
    }
}
