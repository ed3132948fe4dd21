//! The requested format of an answer: OpenAI's `response_format` and vLLM's `structured_outputs`.

use serde_json::{Map, Value, json};

use super::fields::{Fields, shaped, shown};
use crate::completion::Format;
use crate::http::error::ApiError;

const CHOICES_MAX: usize = 1024;

/// The requested format and the field that requests it. Besides OpenAI's and vLLM's fields there
/// are llama-server's: `json_schema`, and a `grammar` in GBNF.
///
/// # Errors
/// 400 naming the invalid field, or if several fields request a format.
pub(crate) fn format(fields: &mut Fields) -> Result<(Format, &'static str), ApiError> {
    let response = fields.read("response_format")?.map(response_format).transpose()?;
    let mut found = structured(fields, "response_format", response)?;
    let schema = fields.take("json_schema").map(|schema| match schema {
        schema @ Value::Object(_) => Ok(Format::JsonSchema(schema)),
        _ => Err(ApiError::invalid_value("json_schema", "json_schema must be a JSON schema")),
    });
    let grammar: Option<String> = fields.read("grammar")?;
    let grammar = grammar.filter(|source| !source.trim().is_empty()).map(Format::Gbnf);
    for (name, format) in [("json_schema", schema.transpose()?), ("grammar", grammar)] {
        let Some(format) = format else { continue };
        if found.0 != Format::Text {
            let message = format!("{name} and {} both ask for a form. Send one", found.1);
            return Err(ApiError::invalid_value(name, message));
        }
        found = (format, name);
    }
    Ok(found)
}

/// `structured_outputs`, unless the field `name` has already requested a format.
///
/// # Errors
/// 400 naming the invalid field, or if both fields request one.
pub(super) fn structured(
    fields: &mut Fields,
    name: &'static str,
    response: Option<Format>,
) -> Result<(Format, &'static str), ApiError> {
    const NAME: &str = "structured_outputs";
    let structured = fields.read(NAME)?.map(structured_outputs).transpose()?;
    match (response, structured) {
        (None | Some(Format::Text), structured) => Ok((structured.unwrap_or_default(), NAME)),
        (response, None | Some(Format::Text)) => Ok((response.unwrap_or_default(), name)),
        _ => {
            let message = format!("{NAME} and {name} both ask for a form. Send one");
            Err(ApiError::invalid_value(NAME, message))
        }
    }
}

fn response_format(mut format: Map<String, Value>) -> Result<Format, ApiError> {
    const NAME: &str = "response_format";
    match kind(NAME, &format)? {
        Some("json_schema") => {
            let name = "response_format.json_schema";
            let schema = format.remove("json_schema").unwrap_or_default();
            let mut schema: Map<String, Value> = shaped(name, schema)?;
            // Every schema is kept to; a wrong type is still a mistake.
            let mut take = |field: &str| schema.remove(field).unwrap_or_default();
            let _: Option<bool> = shaped("response_format.json_schema.strict", take("strict"))?;
            let _: Option<String> = shaped("response_format.json_schema.name", take("name"))?;
            json_schema("response_format.json_schema.schema", schema.remove("schema"))
        }
        // llama-server and others accept a JSON schema in this field.
        Some("json_object") if format.get("schema").is_some_and(|schema| !schema.is_null()) => {
            json_schema("response_format.schema", format.remove("schema"))
        }
        kind => simple_format(NAME, kind),
    }
}

/// `text.format` of a response: like `response_format`, but the schema is not nested in an object.
///
/// # Errors
/// 400 naming the invalid field.
pub(super) fn text_format(mut format: Map<String, Value>) -> Result<Format, ApiError> {
    match kind("text.format", &format)? {
        Some("json_schema") => json_schema("text.format.schema", format.remove("schema")),
        kind => simple_format("text.format", kind),
    }
}

/// The type of a format; without one it is a text.
fn kind<'f>(name: &str, format: &'f Map<String, Value>) -> Result<Option<&'f str>, ApiError> {
    match format.get("type") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(kind)) => Ok(Some(kind)),
        Some(_) => simple_format(name, Some("no word")).map(|_| None),
    }
}

fn simple_format(name: &str, kind: Option<&str>) -> Result<Format, ApiError> {
    match kind {
        Some("text") | None => Ok(Format::Text),
        Some("json_object") => Ok(Format::JsonObject),
        Some(kind) => {
            let found = shown(kind);
            let param = format!("{name}.type");
            let message = format!("{param} is {found}; it may be text, json_object or json_schema");
            Err(ApiError::invalid_value(&param, message))
        }
    }
}

fn json_schema(name: &str, schema: Option<Value>) -> Result<Format, ApiError> {
    match schema {
        Some(schema @ Value::Object(_)) => Ok(Format::JsonSchema(schema)),
        _ => Err(ApiError::invalid_value(name, format!("{name} must be a JSON schema"))),
    }
}

fn structured_outputs(mut asked: Map<String, Value>) -> Result<Format, ApiError> {
    asked.retain(|_, value| !value.is_null() && *value != Value::Bool(false));
    if asked.len() > 1 {
        let message = format!("structured_outputs asks for {} forms; send one", asked.len());
        return Err(ApiError::invalid_value("structured_outputs", message));
    }
    let Some((kind, value)) = asked.into_iter().next() else { return Ok(Format::Text) };
    let name = format!("structured_outputs.{}", shown(&kind));
    match kind.as_str() {
        "json_object" => Ok(Format::JsonObject),
        "json" => match value {
            // vLLM also accepts the schema as text.
            Value::String(text) => json_schema(&name, text::exact_value(&text)),
            schema => json_schema(&name, Some(schema)),
        },
        "regex" => Ok(Format::Regex(shaped(&name, value)?)),
        "grammar" => Ok(match shaped::<String>(&name, value)? {
            // Only rules of GBNF have such arrows.
            gbnf if gbnf.contains("::=") => Format::Gbnf(gbnf),
            lark => Format::Lark(lark),
        }),
        "choice" => choice(&name, shaped(&name, value)?),
        _ => {
            let message = format!("{name}: there are json, json_object, regex, choice and grammar");
            Err(ApiError::unsupported(&name, message))
        }
    }
}

/// A choice of texts becomes a regex of alternatives.
fn choice(name: &str, choices: Vec<String>) -> Result<Format, ApiError> {
    if choices.is_empty() || choices.len() > CHOICES_MAX || choices.iter().any(String::is_empty) {
        let message = format!(
            "{name} has {} texts; 1 to {CHOICES_MAX} are accepted, none of them empty",
            choices.len()
        );
        return Err(ApiError::invalid_value(name, message));
    }
    let escaped: Vec<String> = choices.iter().map(|choice| escape(choice)).collect();
    Ok(Format::Regex(escaped.join("|")))
}

/// The regex that matches exactly this text.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// The format as a response repeats it.
pub(super) fn shown_format(format: &Format) -> Value {
    match format {
        Format::JsonObject => json!({"type": "json_object"}),
        Format::JsonSchema(schema) => {
            json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": true})
        }
        _ => json!({"type": "text"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Format, ApiError> {
        Ok(format(&mut serde_json::from_value(body).unwrap())?.0)
    }

    #[test]
    fn forms_arrive() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let cases = [
            (json!({}), Format::Text),
            (json!({"response_format": {"type": "text"}}), Format::Text),
            (json!({"response_format": {}}), Format::Text),
            (json!({"response_format": {"type": null}}), Format::Text),
            (json!({"response_format": {"type": "json_object"}}), Format::JsonObject),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                Format::JsonSchema(schema.clone()),
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": null}}),
                Format::JsonObject,
            ),
            (
                json!({"response_format": {"type": "json_schema",
                    "json_schema": {"name": "x", "schema": schema, "strict": true}}}),
                Format::JsonSchema(schema.clone()),
            ),
            (json!({"structured_outputs": {"json": schema}}), Format::JsonSchema(schema.clone())),
            (json!({"json_schema": schema, "grammar": ""}), Format::JsonSchema(schema.clone())),
            (json!({"grammar": "root ::= \"a\""}), Format::Gbnf("root ::= \"a\"".to_owned())),
            (
                json!({"structured_outputs": {"grammar": "root ::= \"a\""}}),
                Format::Gbnf("root ::= \"a\"".to_owned()),
            ),
            (
                json!({"structured_outputs": {"json": schema.to_string(), "regex": null}}),
                Format::JsonSchema(schema.clone()),
            ),
            (json!({"structured_outputs": {"json_object": true}}), Format::JsonObject),
            (json!({"structured_outputs": {"regex": "a+"}}), Format::Regex("a+".to_owned())),
            (
                json!({"structured_outputs": {"choice": ["yes", "no."]}}),
                Format::Regex(r"yes|no\.".to_owned()),
            ),
            (
                json!({"structured_outputs": {"grammar": "start: \"a\""}}),
                Format::Lark("start: \"a\"".to_owned()),
            ),
            (
                json!({"structured_outputs": {}, "response_format": {"type": "json_object"}}),
                Format::JsonObject,
            ),
        ];
        for (body, want) in cases {
            assert_eq!(read(body.clone()).unwrap(), want, "{body}");
        }
    }

    #[test]
    fn what_is_no_form_is_named() {
        let object = json!({"type": "json_object"});
        let cases = [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {"type": 7}}), "response_format.type"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema",
                    "json_schema": {"schema": object, "strict": {}}}}),
                "response_format.json_schema.strict",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": 7}}),
                "response_format.schema",
            ),
            (json!({"structured_outputs": {"regex": 7}}), "structured_outputs.regex"),
            (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"choice": []}}), "structured_outputs.choice"),
            (json!({"structured_outputs": {"choice": [""]}}), "structured_outputs.choice"),
            (json!({"structured_outputs": {"other": 1}}), "structured_outputs.other"),
            (json!({"structured_outputs": {"regex": "a", "json": {}}}), "structured_outputs"),
            (
                json!({"structured_outputs": {"regex": "a"}, "response_format": object}),
                "structured_outputs",
            ),
        ];
        for (body, param) in cases {
            let error = read(body.clone()).expect_err(&body.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
            assert!(error.message.contains(param), "{}", error.message);
        }
    }
}
