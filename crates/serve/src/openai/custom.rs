//! Tools of the type `custom`, whose input is a text instead of JSON.
//!
//! The model sees a function with one text. Its calls are returned as calls of a custom tool: the
//! text is taken out of the arguments, also while they are written.

use serde_json::{Value, json};

/// The parameter that has the text.
const INPUT: &str = "input";
/// What stands before the text in a call's arguments.
const HEAD: &str = "{\"input\":\"";

/// A custom tool as a function. Its fields are beside its type, or in `custom`. A regular grammar
/// holds a required call; a model reads any other in the description.
pub(super) fn as_function(tool: &Value) -> Value {
    let fields = tool.get("custom").filter(|fields| fields.is_object()).unwrap_or(tool);
    let format = fields.get("format").cloned().unwrap_or_default();
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
        let held = json!({"type": "string", "pattern": format!("^(?:{definition})$")});
        if syntax == "regex" && text::schema_fault(&held).is_none() {
            input = held;
        }
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
    json!({"type": "function", "function": function})
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
    pub fn open(tools: &mut [Value], flat: bool) -> Self {
        let mut found = Self::default();
        for tool in tools {
            if tool.get("type").and_then(Value::as_str) != Some("custom") {
                continue;
            }
            let mut function = as_function(tool);
            found.0.extend(function["function"]["name"].as_str().map(str::to_owned));
            if flat {
                function = function["function"].take();
                function["type"] = json!("function");
            }
            *tool = function;
        }
        found
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
        let bad = json!({"type": "custom", "name": "run", "format":
            {"type": "grammar", "syntax": "regex", "definition": "(?=a)"}});
        for (tool, pattern, said) in [
            (
                flat,
                Value::Null,
                "Runs.\n\nThe text in input matches this Lark grammar:\nstart: /.+/s",
            ),
            (
                nested,
                json!("^(?:[a-z]+)$"),
                "The text in input matches this regular expression:\n[a-z]+",
            ),
            (bad, Value::Null, "The text in input matches this regular expression:\n(?=a)"),
        ] {
            let function = as_function(&tool)["function"].take();
            assert_eq!(function["name"], "run", "{tool}");
            assert_eq!(function["description"], said);
            let schema = &function["parameters"];
            assert_eq!(
                (&schema["required"], &schema["properties"]["input"]["pattern"]),
                (&json!(["input"]), &pattern)
            );
        }
        let plain = as_function(&json!({"type": "custom", "name": "run"}));
        assert!(plain["function"].get("description").is_none());
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
