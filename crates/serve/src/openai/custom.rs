//! Tools of the type `custom`, whose input is a text instead of JSON.
//!
//! The model sees a function with one text. Its calls are returned as calls of a custom tool: the
//! text is taken out of the arguments, also while they are written.

use serde_json::{Value, json};
use text::Gbnf;

use crate::http::error::ApiError;

/// The parameter that has the text.
const INPUT: &str = "input";
/// What stands before the text in a call's arguments.
const HEAD: &str = "{\"input\":\"";

/// A custom tool as a function. Its fields are beside its type, or in `custom`. A grammar holds the
/// text, and a model reads it in the description too. `at` is the tool's place in the request.
///
/// # Errors
/// 400 if no text can be held to the grammar.
fn as_function(tool: &Value, at: &str) -> Result<Value, ApiError> {
    let inner = tool.get("custom").filter(|fields| fields.is_object());
    let fields = inner.unwrap_or(tool);
    let format = fields.get("format").cloned().unwrap_or_default();
    let described = fields.get("description").is_none_or(|one| one.is_null() || one.is_string());
    if !described || !format.is_null() && !format.is_object() {
        let message = format!("{at} may have a text as its description, an object as its format");
        return Err(ApiError::invalid_value(at, message));
    }
    let grammar = format.get("grammar").unwrap_or(&format);
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let syntax = text(grammar, "syntax").unwrap_or_default();
    let definition = text(grammar, "definition").filter(|definition| !definition.is_empty());
    let mut input = json!({"type": "string"});
    let mut description = text(fields, "description").unwrap_or_default();
    if let Some(definition) = definition {
        let kind = if syntax == "regex" { "regular expression" } else { "Lark grammar" };
        let blank = if description.is_empty() { "" } else { "\n\n" };
        description += &format!("{blank}The text in {INPUT} matches this {kind}:\n{definition}");
        input = held(&syntax, &definition).map_err(|why| {
            let inner = if inner.is_some() { ".custom.format.grammar" } else { ".format" };
            let param = format!("{at}{inner}.definition");
            let message = format!("{param}, {why}. Change it, or leave the format out");
            ApiError::invalid_value(&param, message)
        })?;
    }
    let mut function = json!({
        "name": fields.get("name").cloned().unwrap_or_default(),
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {INPUT: input},
            "required": [INPUT],
            "additionalProperties": false,
        },
    });
    if description.is_empty() {
        function.as_object_mut().map(|fields| fields.remove("description"));
    }
    Ok(json!({"type": "function", "function": function}))
}

/// The schema of a text of this grammar.
fn held(syntax: &str, definition: &str) -> Result<Value, String> {
    if syntax != "regex" {
        return Gbnf::schema_of_lark(definition).map_err(|error| error.to_string());
    }
    let held = json!({"type": "string", "pattern": format!("^(?:{definition})$")});
    match text::schema_fault(&held) {
        None => Ok(held),
        Some(fault) => Err(format!("the regular expression {}", fault.why)),
    }
}

/// The arguments of an earlier call with this input.
pub(super) fn arguments_of(input: String) -> Value {
    json!({ INPUT: input })
}

/// The custom tools of a request, by the names that the model sees.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Customs(Vec<String>);

impl Customs {
    /// Replaces custom tools by functions. Their fields are beside their type if `flat`.
    ///
    /// # Errors
    /// 400 naming a tool with a grammar that no text can be held to.
    pub fn open(tools: &mut [Value], flat: bool) -> Result<Self, ApiError> {
        let mut found = Self::default();
        for (at, tool) in tools.iter_mut().enumerate() {
            if tool.get("type").and_then(Value::as_str) != Some("custom") {
                continue;
            }
            let mut function = as_function(tool, &format!("tools[{at}]"))?;
            found.0.extend(function["function"]["name"].as_str().map(str::to_owned));
            if flat {
                function = function["function"].take();
                function["type"] = json!("function");
            }
            *tool = function;
        }
        Ok(found)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|own| own == name)
    }
}

/// Takes a call's input out of its arguments while they are written.
#[derive(Debug, Default)]
pub(super) struct Input {
    arguments: String,
    /// Bytes of the arguments that are read.
    read: usize,
    shown: String,
}

impl Input {
    /// The piece of the input that the next piece of the arguments completes.
    pub fn push(&mut self, piece: &str) -> String {
        self.arguments.push_str(piece);
        if self.read == 0 {
            if !self.arguments.starts_with(HEAD) {
                return String::new();
            }
            self.read = HEAD.len();
        }
        let (text, bytes) = unescaped(&self.arguments[self.read..]);
        self.read += bytes;
        self.shown.push_str(&text);
        text
    }

    /// The whole input, and the rest of it that has not been shown.
    pub fn finish(self, arguments: &str) -> (String, String) {
        let whole = input_of(arguments);
        let rest = whole.strip_prefix(&self.shown).unwrap_or_default().to_owned();
        (whole, rest)
    }
}

/// The input in a call's arguments: the only text in them, or all of them.
pub(super) fn input_of(arguments: &str) -> String {
    if let Some(begun) = arguments.strip_prefix(HEAD) {
        return unescaped(begun).0;
    }
    let read: Value = serde_json::from_str(arguments).unwrap_or_default();
    let only = || match read.as_object()?.values().collect::<Vec<_>>()[..] {
        [Value::String(text)] => Some(text.clone()),
        _ => None,
    };
    let input = read.get(INPUT).and_then(Value::as_str).map(str::to_owned);
    input.or_else(only).unwrap_or_else(|| arguments.to_owned())
}

/// The text up to the quotation mark that ends it, and the bytes that it takes. An escape that is
/// incomplete is left.
fn unescaped(json: &str) -> (String, usize) {
    let (mut text, mut at) = (String::new(), 0);
    while let Some(ch) = json[at..].chars().next().filter(|ch| *ch != '"') {
        let len = match (ch, json.as_bytes().get(at + 1)) {
            ('\\', None) => break,
            ('\\', Some(b'u')) => 6,
            ('\\', _) => 2,
            _ => ch.len_utf8(),
        };
        let Some(piece) = json.get(at..at + len) else { break };
        let read = serde_json::from_str::<String>(&format!("\"{piece}\""));
        text.push_str(&read.unwrap_or_default());
        at += len;
    }
    (text, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_tool_is_a_function_with_a_text() {
        let grammar = |syntax: &str| json!({"syntax": syntax, "definition": "[a-z]+"});
        let flat = json!({"type": "custom", "name": "run", "description": "Runs.", "format":
            {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}});
        let nested = json!({"type": "custom", "custom": {"name": "run", "format":
            {"type": "grammar", "grammar": grammar("regex")}}});
        let nests = "start: \"(\" start \")\" | \"x\"";
        let recursive = json!({"type": "custom", "name": "run", "format":
            {"type": "grammar", "syntax": "lark", "definition": nests}});
        for (tool, input, said) in [
            (
                flat,
                json!({"type": "string", "pattern": "^(?:(?:(?s:.))+)$"}),
                "Runs.\n\nThe text in input matches this Lark grammar:\nstart: /.+/s",
            ),
            (
                nested,
                json!({"type": "string", "pattern": "^(?:[a-z]+)$"}),
                "The text in input matches this regular expression:\n[a-z]+",
            ),
            (
                recursive,
                json!({"type": "string", "x-lark": nests}),
                &*format!("The text in input matches this Lark grammar:\n{nests}"),
            ),
        ] {
            let function = as_function(&tool, "").unwrap()["function"].take();
            assert_eq!(function["name"], "run", "{tool}");
            assert_eq!(function["description"], said);
            let schema = &function["parameters"];
            assert_eq!(
                (&schema["required"], &schema["properties"]["input"]),
                (&json!(["input"]), &input)
            );
        }
        let plain = as_function(&json!({"type": "custom", "name": "run"}), "").unwrap();
        assert!(plain["function"].get("description").is_none());
    }

    #[test]
    fn a_grammar_that_no_text_can_be_held_to_is_refused_with_its_line() {
        let flat = json!({"type": "custom", "name": "run", "format":
            {"type": "grammar", "syntax": "lark", "definition": "start: A\nA: /(?<=x)y/"}});
        let regex = json!({"syntax": "regex", "definition": "(?=a)"});
        let nested = json!({"type": "custom", "custom": {"name": "run", "format":
            {"type": "grammar", "grammar": regex}}});
        let [odd, undescribed] = [json!({"format": [null]}), json!({"description": {}})]
            .map(|fields| json!({"type": "custom", "custom": fields}));
        for (tool, param, why) in [
            (flat, "tools[1].format.definition", "line 2: /(?<=x)y/"),
            (nested, "tools[1].custom.format.grammar.definition", "the regular expression"),
            (odd, "tools[1]", "an object as its format"),
            (undescribed, "tools[1]", "a text as its description"),
        ] {
            let mut tools = [json!({"type": "web_search"}), tool];
            let error = Customs::open(&mut tools, true).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param));
            assert!(error.message.contains(why), "{}", error.message);
        }
    }

    #[test]
    fn an_input_comes_out_in_pieces_as_it_is_whole() {
        let cases = [
            ("{\"input\":\"a\\n\\\"é\\u001f\\\\ b\"}", "a\n\"é\u{1f}\\ b"),
            ("{\"input\":\"\"}", ""),
            ("{\"patch\":\"x\"}", "x"),
            ("{\"a\":\"x\",\"input\":\"y\"}", "y"),
            ("{\"a\":1}", "{\"a\":1}"),
            ("{\"input\":7}", "{\"input\":7}"),
            ("{\"input\":\"cut\\", "cut"),
            ("{}", "{}"),
        ];
        for (arguments, whole) in cases {
            assert_eq!(input_of(arguments), whole);
            for size in 1..5 {
                let mut input = Input::default();
                let letters: Vec<char> = arguments.chars().collect();
                let pieces = letters.chunks(size).map(|piece| piece.iter().collect::<String>());
                let shown: String = pieces.map(|piece| input.push(&piece)).collect();
                let (all, rest) = input.finish(arguments);
                assert_eq!((shown + &rest, all), (whole.to_owned(), whole.to_owned()));
            }
        }
    }
}
