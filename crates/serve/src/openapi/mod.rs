//! `GET /openapi.json`: a machine-readable description of the dialects.

use std::sync::OnceLock;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use protocol::{PARAMETERS, Parameter, ParameterFields};
use serde_json::{Value, json};

/// Maintained by hand beside the code that it describes, but for the parameters of sampling; tests
/// compare the two.
const DOCUMENT: &str = include_str!("openapi.json");
/// A placeholder in the document for this program's version.
const VERSION: &str = "0.0.0";

/// The route.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/openapi.json", get(document))
}

async fn document() -> impl IntoResponse {
    static WRITTEN: OnceLock<String> = OnceLock::new();
    let written = WRITTEN.get_or_init(|| format!("{:#}\n", description()));
    ([(header::CONTENT_TYPE, "application/json")], written.as_str())
}

/// The document, with the parameters of sampling in the schemas that have them.
pub(crate) fn description() -> Value {
    let document = DOCUMENT.replacen(VERSION, env!("CARGO_PKG_VERSION"), 1);
    let mut document: Value = serde_json::from_str(&document).expect("it is JSON");
    let schemas = &mut document["components"]["schemas"];
    for row in PARAMETERS {
        let ParameterFields { range, llama_range, is_ollamas, .. } = row.fields;
        let (name, llama_name) = (row.name, row.llama_name());
        let llama = (llama_name, property(row, llama_range, true));
        let places = [
            ("Preset", (name, property(row, range, false))),
            ("Sampling", (name, property(row, range, true))),
            ("LlamaCompletionRequest", llama.clone()),
            ("LlamaInfillRequest", llama),
            ("OllamaOptions", (llama_name, property(row, range, true))),
        ];
        let places =
            places.into_iter().filter(|(schema, _)| *schema != "OllamaOptions" || is_ollamas);
        for (schema, (name, property)) in places {
            schemas[schema]["properties"][name] = property;
        }
    }
    document
}

/// `of_request`: it may be null, and a switch may be false.
fn property(row: &Parameter, (low, high): (f64, f64), of_request: bool) -> Value {
    let whole = row.fields.is_whole;
    let limit = |limit: f64| if whole { json!(limit as i64) } else { json!(limit) };
    let kind = if whole { "integer" } else { "number" };
    let (minimum, maximum) = (limit(low), limit(high));
    let mut property =
        json!({"type": kind, "minimum": minimum, "maximum": maximum, "description": row.effect});
    match of_request {
        true if row.fields.is_switch => {
            property["type"] = json!([kind, "null", "boolean"]);
            property["not"] = json!({"const": true});
        }
        true => property["type"] = json!([kind, "null"]),
        false => {}
    }
    property
}
