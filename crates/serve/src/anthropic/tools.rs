//! Converts Anthropic's tools to OpenAI's format, which templates expect.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::completion::{ToolChoice, other_of_one_name};
use crate::http::error::ApiError;

const TOOLS_MAX: usize = 512;

/// A tool that the model may call. `cache_control`, `strict`, `defer_loading` and similar fields
/// have no effect: all tools are offered at once.
#[derive(Debug, Deserialize)]
pub(super) struct Tool {
    /// `custom`, or a type that Anthropic runs or defines.
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    description: Option<String>,
    input_schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

/// The tools in OpenAI's format.
///
/// # Errors
/// 400 naming a tool that has no name or schema, or a duplicate name.
pub(super) fn offered(tools: Vec<Tool>) -> Result<Vec<Value>, ApiError> {
    if tools.len() > TOOLS_MAX {
        let message = format!("tools has {} entries; {TOOLS_MAX} are the most", tools.len());
        return Err(ApiError::invalid_value("tools", message));
    }
    let here = tools.into_iter().enumerate().filter(|(_, tool)| !tool.is_foreign());
    let tools = here.map(|(at, tool)| tool.into_openai(at));
    let tools: Vec<Value> = tools.collect::<Result<_, _>>()?;
    match other_of_one_name(&tools) {
        Some((at, name)) => Err(ApiError::other_tool("tools", at, name)),
        None => Ok(tools),
    }
}

impl Tool {
    /// Whether it is a tool that only Anthropic's models and servers know. Agents send such tools
    /// to every server and work without them.
    fn is_foreign(&self) -> bool {
        self.kind.as_ref().is_some_and(|kind| kind != "custom") && self.input_schema.is_none()
    }

    fn into_openai(self, at: usize) -> Result<Value, ApiError> {
        let param = format!("tools[{at}]");
        let Some(name) = self.name.filter(|name| !name.is_empty()) else {
            return Err(ApiError::invalid_value(&param, format!("{param} has no name")));
        };
        let Some(parameters) = self.input_schema.filter(Value::is_object) else {
            let message = format!("{param} has no input_schema: a JSON schema, as an object");
            return Err(ApiError::invalid_value(&param, message));
        };
        let description = self.description.unwrap_or_default();
        Ok(json!({
            "type": "function",
            "function": { "name": name, "description": description, "parameters": parameters },
        }))
    }
}

impl Choice {
    /// Whether a call is required, and whether at most one call is allowed.
    ///
    /// # Errors
    /// 400: unknown type, or a missing name.
    pub fn read(self) -> Result<(ToolChoice, bool), ApiError> {
        let choice = match (self.kind.as_str(), self.name) {
            ("auto", _) => ToolChoice::Auto,
            ("any", _) => ToolChoice::Required,
            ("none", _) => ToolChoice::None,
            ("tool", Some(name)) => ToolChoice::Named(name),
            ("tool", None) => {
                let message = "tool_choice of type tool needs the tool's name";
                return Err(ApiError::invalid_value("tool_choice.name", message));
            }
            (kind, _) => {
                let message =
                    format!("tool_choice is of type {kind}; it may be auto, any, tool or none");
                return Err(ApiError::invalid_value("tool_choice.type", message));
            }
        };
        Ok((choice, self.disable_parallel_tool_use == Some(true)))
    }
}
