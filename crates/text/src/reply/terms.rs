//! Terms of grammars in Lark.

use serde_json::Value;

/// Any text.
pub(super) const ANY: &str = "/(?s:.*)/";

/// A regex as a part of a grammar.
pub fn lark_regex(regex: &str) -> String {
    let mut escaped = String::from("/");
    let mut is_escaped = false;
    for ch in regex.chars() {
        match ch {
            '\n' => escaped.push_str(if is_escaped { "n" } else { "\\n" }),
            '/' if !is_escaped => escaped.push_str("\\/"),
            ch => escaped.push(ch),
        }
        is_escaped = ch == '\\' && !is_escaped;
    }
    escaped + "/"
}

/// Quotes a string as in JSON.
pub(super) fn quote(text: &str) -> String {
    Value::from(text).to_string()
}
