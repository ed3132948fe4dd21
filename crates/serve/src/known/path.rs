//! Finds fields inside a body by their paths.

use serde_json::{Map, Value};

/// The values at a path: `a`, `a.b` (a field of an object), `a[].b` (of each object in a list).
pub(super) fn values<'v>(fields: &'v Map<String, Value>, path: &str) -> Vec<&'v Value> {
    let (step, rest) = match path.split_once('.') {
        Some((step, rest)) => (step, Some(rest)),
        None => (path, None),
    };
    let (name, is_list) = match step.strip_suffix("[]") {
        Some(name) => (name, true),
        None => (step, false),
    };
    let Some(value) = fields.get(name) else { return Vec::new() };
    let Some(rest) = rest else { return vec![value] };
    let below = |value: &'v Value| value.as_object().map(|fields| values(fields, rest));
    match value {
        Value::Array(items) if is_list => items.iter().filter_map(below).flatten().collect(),
        value => below(value).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_into_objects_and_lists() {
        let body =
            json!({"a": 1, "b": {"c": 2}, "d": [{"e": {"f": 3}}, {"e": {"f": 4}}, 5], "g": []});
        let fields = body.as_object().unwrap();
        let found = |path: &str| values(fields, path).into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(found("a"), [json!(1)]);
        assert_eq!(found("b.c"), [json!(2)]);
        assert_eq!(found("d[].e.f"), [json!(3), json!(4)]);
        for path in ["a.b", "b.x", "d.e", "g[].e", "x", "x[].y"] {
            assert!(found(path).is_empty(), "{path}");
        }
    }
}
