//! Objects that broke off: what is whole of them.

use serde_json::{Map, Value};

use super::value::whole_value;

/// The object that JSON begins, with the members that are whole; an object of nothing if it begins
/// none.
pub fn begun_object(json: &str) -> Value {
    let read = |text: &str| whole_value(text).filter(Value::is_object);
    let empty = || Value::Object(Map::new());
    read(json).or_else(|| read(&closed(json)?)).unwrap_or_else(empty)
}

/// The JSON up to the last place where all brackets can be closed, with them closed.
fn closed(json: &str) -> Option<String> {
    let mut open: Vec<char> = Vec::new();
    let (mut in_string, mut is_escaped, mut is_value) = (false, false, false);
    let mut last = None;
    for (at, ch) in json.char_indices() {
        if in_string {
            match ch {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => {
                    in_string = false;
                    if is_value {
                        last = Some((at + 1, open.clone()));
                    }
                }
                _ => {}
            }
            continue;
        }
        match ch {
            '"' => in_string = true,
            '{' | '[' => {
                open.push(if ch == '{' { '}' } else { ']' });
                is_value = ch == '[';
                last = Some((at + 1, open.clone()));
            }
            '}' | ']' => {
                open.pop();
                last = Some((at + 1, open.clone()));
            }
            ':' => is_value = true,
            ',' => {
                last = Some((at, open.clone()));
                is_value = open.last() == Some(&']');
            }
            _ => {}
        }
    }
    let (end, open) = last?;
    Some(json[..end].chars().chain(open.into_iter().rev()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_whole_stays() {
        let cases = [
            ("{\"a\": 1, \"b\": \"x\"}", json!({"a": 1, "b": "x"})),
            ("{\"a\":1,\"b\":\"x", json!({"a": 1})),
            ("{\"a\":1,\"b\":\"x\"", json!({"a": 1, "b": "x"})),
            ("{\"a\":1,\"b", json!({"a": 1})),
            ("{\"a\":{\"b\":[1,2,3", json!({"a": {"b": [1, 2]}})),
            ("{\"a\":[\"}\",\"\\\"", json!({"a": ["}"]})),
            ("{\"a\":12", json!({})),
            ("{", json!({})),
            ("", json!({})),
            ("[1", json!({})),
        ];
        for (text, want) in cases {
            assert_eq!(begun_object(text), want, "{text}");
        }
    }
}
