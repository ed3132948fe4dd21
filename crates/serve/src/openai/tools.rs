//! The tools that the model may call, and whether it must.

use serde_json::{Map, Value, json};

use super::custom::Customs;
use super::fields::{Fields, shaped, shown};
use crate::completion::{ToolChoice, other_of_one_name, tool_name};
use crate::http::error::ApiError;

const TOOLS_MAX: usize = 512;

/// The tools of a request, in the format of OpenAI's `tools`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Tools {
    pub tools: Vec<Value>,
    pub choice: ToolChoice,
    /// Whether the answer ends after its first call.
    pub single: bool,
    /// They came as `functions`, so calls are returned as `function_call`.
    pub as_functions: bool,
    /// Those of them that came as custom tools.
    pub customs: Customs,
    /// The client listed the tools that may be called.
    pub is_allowed_list: bool,
}

/// The tools of a chat completion; an empty list counts as absent.
///
/// # Errors
/// 400 naming a field that is invalid or not supported.
pub(super) fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let single = fields.read::<bool>("parallel_tool_calls")? == Some(false);
    let listed: Vec<Value> = fields.read("tools")?.unwrap_or_default();
    let functions: Vec<Value> = fields.read("functions")?.unwrap_or_default();
    let choice = fields.take("tool_choice");
    let old_choice = fields.take("function_call");
    if listed.is_empty() && !functions.is_empty() {
        let wrap = |function: Value| json!({"type": "function", "function": function});
        let tools = checked("functions", functions.into_iter().map(wrap).collect())?;
        let choice = old_choice.map_or(Ok(ToolChoice::Auto), old_tool_choice)?;
        return Ok(Tools { tools, choice, single: true, as_functions: true, ..Tools::default() });
    }
    let mut listed = listed;
    let customs = Customs::open(&mut listed, false)?;
    let mut tools = checked("tools", listed)?;
    let is_allowed_list = choice.as_ref().is_some_and(is_allowed_list);
    let choice = choice.map(|choice| tool_choice(&mut tools, choice)).transpose()?;
    let choice = choice.unwrap_or(ToolChoice::Auto);
    Ok(Tools { tools, choice, single, as_functions: false, customs, is_allowed_list })
}

/// The functions among the tools; each must have a name. What another server runs itself is left
/// out: agents send such tools to every server and work without them.
///
/// # Errors
/// 400 naming an invalid tool.
pub(super) fn checked(name: &str, mut tools: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    if tools.len() > TOOLS_MAX {
        let message = format!("{name} has {} entries; {TOOLS_MAX} are the most", tools.len());
        return Err(ApiError::invalid_value(name, message));
    }
    for (at, tool) in tools.iter().enumerate() {
        let wrong = |what: &str| {
            let param = format!("{name}[{at}]");
            let message = format!("{param} {what}");
            ApiError::invalid_value(&param, message)
        };
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {}
            _ if !tool.is_object() => return Err(wrong("must be an object")),
            None => return Err(wrong("must have a type, such as \"function\"")),
            Some(_) => continue,
        }
        if tool_name(tool).is_none_or(str::is_empty) {
            return Err(wrong("must have a function with a name"));
        }
        let is_odd = |field: &str, is_right: fn(&Value) -> bool| {
            let value = tool.get("function").and_then(|function| function.get(field));
            value.is_some_and(|value| !value.is_null() && !is_right(value))
        };
        if is_odd("parameters", Value::is_object) {
            return Err(wrong("must have a JSON schema as its parameters"));
        }
        if is_odd("description", Value::is_string) {
            return Err(wrong("must have a text as its description"));
        }
        if is_odd("strict", Value::is_boolean) {
            return Err(wrong("must have strict as true or false, or not at all"));
        }
    }
    if let Some((at, twin)) = other_of_one_name(&tools) {
        return Err(ApiError::other_tool(name, at, twin));
    }
    tools.retain(|tool| tool["type"] == "function");
    Ok(tools)
}

/// Reads `tool_choice`; it may remove some of the tools.
///
/// # Errors
/// 400 if it has an unknown form or names a tool that is not in the list.
pub(super) fn tool_choice(tools: &mut Vec<Value>, choice: Value) -> Result<ToolChoice, ApiError> {
    const NAME: &str = "tool_choice";
    match &choice {
        Value::String(word) if word == "required" && tools.is_empty() => {
            let message = "tool_choice asks for a call, and there are no tools. Send tools, or \
                           \"auto\"";
            Err(ApiError::invalid_value(NAME, message))
        }
        Value::String(word) => mode(word),
        Value::Object(object) => match object.get("type").and_then(Value::as_str) {
            Some("function" | "custom") => {
                named(tools, tool_name(&choice)).ok_or_else(|| no_such_tool(NAME, &choice))
            }
            Some("allowed_tools") => {
                let inner = object.get("allowed_tools").and_then(Value::as_object);
                allowed_tools(tools, inner.unwrap_or(object))
            }
            _ => Err(odd_choice(NAME)),
        },
        _ => Err(odd_choice(NAME)),
    }
}

/// Whether a `tool_choice` lists the tools that may be called.
pub(super) fn is_allowed_list(choice: &Value) -> bool {
    choice.get("type").and_then(Value::as_str) == Some("allowed_tools")
}

fn mode(word: &str) -> Result<ToolChoice, ApiError> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Err(odd_choice("tool_choice")),
    }
}

fn allowed_tools(
    tools: &mut Vec<Value>,
    object: &Map<String, Value>,
) -> Result<ToolChoice, ApiError> {
    let listed = object.get("tools").cloned().unwrap_or_default();
    let mut listed: Vec<Value> = shaped("tool_choice.tools", listed)?;
    // Those of other servers were left out.
    let is_here = |kind: &str| ["function", "custom"].contains(&kind);
    listed.retain(|one| one.get("type").and_then(Value::as_str).is_none_or(is_here));
    for allowed in &listed {
        named(tools, tool_name(allowed)).ok_or_else(|| no_such_tool("tool_choice", allowed))?;
    }
    tools.retain(|tool| listed.iter().any(|allowed| tool_name(allowed) == tool_name(tool)));
    mode(object.get("mode").and_then(Value::as_str).unwrap_or("auto"))
}

/// `function_call`: a word, or an object with a name.
fn old_tool_choice(choice: Value) -> Result<ToolChoice, ApiError> {
    const NAME: &str = "function_call";
    match (choice.as_str(), choice.get("name").and_then(Value::as_str)) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (_, Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
        _ => Err(odd_choice(NAME)),
    }
}

fn named(tools: &[Value], name: Option<&str>) -> Option<ToolChoice> {
    let name = name?;
    let found = tools.iter().any(|tool| tool_name(tool) == Some(name));
    found.then(|| ToolChoice::Named(name.to_owned()))
}

fn no_such_tool(field: &str, choice: &Value) -> ApiError {
    let name = tool_name(choice).map_or("nothing", shown);
    let message = format!("{field} names {name}, which is not among the tools");
    ApiError::invalid_value(field, message)
}

fn odd_choice(field: &str) -> ApiError {
    let message = format!(
        "{field} may be \"auto\", \"none\", \"required\" or {{\"type\": \"function\", \
         \"function\": {{\"name\": ...}}}}"
    );
    ApiError::invalid_value(field, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Tools, ApiError> {
        tools(&mut serde_json::from_value(body).unwrap())
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn two_definitions_of_one_name_are_refused() {
        let mut other = tool("a");
        other["function"]["parameters"] = json!({"type": "object", "required": ["x"]});
        let found = read(json!({"tools": [tool("a"), tool("b"), other]})).unwrap_err();
        assert!(format!("{found:?}").contains("tools[2] is another definition"), "{found:?}");
        assert_eq!(read(json!({"tools": [tool("a"), tool("a")]})).unwrap().tools.len(), 2);
    }

    #[test]
    fn choices_arrive() {
        let two = json!([tool("a"), tool("b")]);
        let allowed = |mode: &str| {
            let tools = json!([{"type": "function", "function": {"name": "b"}}]);
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
        };
        let named = json!({"type": "function", "function": {"name": "b"}});
        let cases = [
            (json!(null), ToolChoice::Auto, 2),
            (json!("auto"), ToolChoice::Auto, 2),
            (json!("none"), ToolChoice::None, 2),
            (json!("required"), ToolChoice::Required, 2),
            (named, ToolChoice::Named("b".to_owned()), 2),
            (json!({"type": "function", "name": "a"}), ToolChoice::Named("a".to_owned()), 2),
            (allowed("auto"), ToolChoice::Auto, 1),
            (allowed("required"), ToolChoice::Required, 1),
        ];
        for (choice, want, count) in cases {
            let found = read(json!({"tools": two, "tool_choice": choice})).unwrap();
            assert_eq!((found.choice, found.tools.len()), (want, count), "{choice}");
        }
        let single = read(json!({"tools": two, "parallel_tool_calls": false})).unwrap();
        assert!(single.single && !single.as_functions);
        let none = read(json!({"tools": [], "tool_choice": "auto"})).unwrap();
        assert_eq!(none, Tools::default());
        for choice in [json!("required"), json!({"type": "function", "name": "a"})] {
            let refused = read(json!({"tools": [], "tool_choice": choice})).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("tool_choice"));
        }
    }

    #[test]
    fn functions_are_tools_of_an_older_form() {
        let functions = json!([{"name": "f", "description": "d"}]);
        let found = read(json!({"functions": functions, "function_call": {"name": "f"}})).unwrap();
        assert_eq!(found.tools[0]["function"]["name"], "f");
        assert_eq!(found.choice, ToolChoice::Named("f".to_owned()));
        assert!(found.single && found.as_functions);
    }

    #[test]
    fn what_is_no_tool_is_named() {
        let one = json!([tool("a")]);
        let custom = json!({"type": "custom", "custom": {"description": "x"}});
        let odd = |field: &str| json!({"type": "function", "function": {"name": "a", field: 7}});
        let cases = [
            (json!({"tools": 7}), "tools"),
            (json!({"tools": [7]}), "tools[0]"),
            (json!({"tools": [{}]}), "tools[0]"),
            (json!({"tools": [tool("a"), {"type": "function"}]}), "tools[1]"),
            (json!({"tools": [tool("")]}), "tools[0]"),
            (json!({"tools": [custom]}), "tools[0]"),
            (json!({"tools": vec![tool("a"); 513]}), "tools"),
            (json!({"tools": [odd("parameters")]}), "tools[0]"),
            (json!({"tools": [odd("description")]}), "tools[0]"),
            (json!({"tools": [odd("strict")]}), "tools[0]"),
            (json!({"tools": one, "tool_choice": "perhaps"}), "tool_choice"),
            (json!({"tools": one, "tool_choice": 7}), "tool_choice"),
            (
                json!({"tools": one, "tool_choice": {"type": "function", "name": "z"}}),
                "tool_choice",
            ),
            (json!({"functions": [{"name": "f"}], "function_call": 7}), "function_call"),
            (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
        ];
        for (body, param) in cases {
            let error = read(body.clone()).expect_err(&body.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
