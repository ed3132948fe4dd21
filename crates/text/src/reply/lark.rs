//! Grammars that constrain a reply to the form that the model was trained on: thoughts first, if
//! there are any, then tool calls or a text of a given form.
//!
//! They use llguidance's dialect of Lark: rules with alternatives, `?`, `*` and groups; strings,
//! `/regex/` and `%json {...}`; `[lazy]` on rules of terminals; and `<[7]>` for the control token
//! 7, which no string or regex matches. Tokens that a model's users added to its vocabulary are
//! written as text.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::ReplyFormat;
use super::forms::CallStyle;
use super::json::lark_json;
use super::schema::leave_out;
use super::terms::{ANY, quote};
use super::typed::name_of;
use crate::Tokenizer;

/// The separator between parts of a reply.
const SPACE: &str = r"/\s{0,4}/";

impl ReplyFormat {
    /// A grammar for a reply to `prompt` with the text `body`: a regex or a schema in Lark's form.
    pub fn text_grammar(&self, tokenizer: &Tokenizer, prompt: &str, body: &str) -> String {
        let lark = Lark::new(self, tokenizer, prompt);
        let body = lark.text(body);
        lark.finish(&body)
    }

    /// A grammar for a reply to `prompt` that calls one of `tools`, or several if `many`. With
    /// `otherwise`, it may be a text in that format instead.
    pub fn call_grammar(
        &self,
        tokenizer: &Tokenizer,
        prompt: &str,
        tools: &[Value],
        many: bool,
        otherwise: Option<&str>,
    ) -> String {
        let mut lark = Lark::new(self, tokenizer, prompt);
        let calls = lark.calls(tools, many);
        let body = match otherwise {
            Some(body) => format!("{calls} | {}", lark.text(body)),
            None => calls,
        };
        lark.finish(&body)
    }
}

/// A grammar under construction.
pub(super) struct Lark<'a> {
    format: &'a ReplyFormat,
    tokenizer: &'a Tokenizer,
    prompt: &'a str,
    rules: String,
    names: usize,
}

impl<'a> Lark<'a> {
    fn new(format: &'a ReplyFormat, tokenizer: &'a Tokenizer, prompt: &'a str) -> Self {
        Self { format, tokenizer, prompt: prompt.trim_end(), rules: String::new(), names: 0 }
    }

    fn finish(self, body: &str) -> String {
        let thoughts = self.thoughts();
        format!("start: {thoughts} body\nbody: {body}\n{}", self.rules) + &self.thought_rule()
    }

    /// The part before the body: empty if the prompt switches thoughts off.
    fn thoughts(&self) -> String {
        if self.format.harmony || self.format.recipients {
            return "thought?".to_owned();
        }
        let ends = |mark: &str| self.prompt.ends_with(mark);
        let thinking = &self.format.thinking;
        if thinking.iter().any(|(open, _)| ends(open)) {
            return format!("thought {SPACE}");
        }
        match thinking.first() {
            Some((open, _)) if !thinking.iter().any(|(_, close)| ends(close)) => {
                format!("({} thought {SPACE})?", self.mark(open))
            }
            _ => String::new(),
        }
    }

    fn thought_rule(&self) -> String {
        if self.format.harmony {
            let marks = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"];
            let [channel, message, end, start] = marks.map(|mark| self.mark(mark));
            return format!(
                "thought: {channel} \"analysis\" {message} {ANY} {end} {start} \"assistant\"\n"
            );
        }
        if self.format.recipients {
            let [message, next] = [self.mark("<|message|>"), self.next_message()];
            return format!("thought: \" to=self\" {message} {ANY} {next}\n");
        }
        let ends = |open: &str| self.prompt.ends_with(open);
        let thinking = &self.format.thinking;
        let pair = thinking.iter().find(|(open, _)| ends(open)).or(thinking.first());
        let Some((_, close)) = pair else { return String::new() };
        match self.control(close) {
            Some(id) => format!("thought: {ANY} <[{id}]>\n"),
            None => format!("thought[lazy]: {ANY} {}\n", quote(close)),
        }
    }

    /// Ends a message to a recipient and starts the next one.
    fn next_message(&self) -> String {
        format!("{} {} \"assistant\"", self.mark("<|eom|>"), self.mark("<|start|>"))
    }

    /// A mark after Solar Open's thoughts, which may be preceded by a new message header.
    fn solar(&self, mark: &str) -> String {
        format!("({} \"assistant\")? {}", self.mark("<|begin|>"), self.mark(mark))
    }

    fn text(&self, body: &str) -> String {
        if self.format.recipients {
            return format!("\" to=user\" {} {body}", self.mark("<|message|>"));
        }
        if self.format.style == CallStyle::Solar {
            return format!("{} {body}", self.solar("<|content|>"));
        }
        if !self.format.harmony {
            let begun = self.format.begun(self.prompt);
            let head = self.format.around.iter().find_map(|mark| mark.strip_prefix(begun));
            return match head.filter(|_| !begun.is_empty()) {
                Some(head) => format!("{} {body}", quote(head)),
                None => body.to_owned(),
            };
        }
        let [channel, message] = ["<|channel|>", "<|message|>"].map(|mark| self.mark(mark));
        format!("{channel} \"final\" {message} {body}")
    }

    fn calls(&mut self, tools: &[Value], many: bool) -> String {
        let style = self.format.style;
        let mut names = Vec::new();
        for tool in tools {
            let Some(name) = name_of(tool) else { continue };
            let function = tool.get("function").unwrap_or(tool);
            let schema = function.get("parameters").filter(|schema| schema.is_object());
            let schema = arguments(schema);
            let mut call = self.call(style, name, &schema);
            if self.format.recipients {
                let to = quote(&format!(" to={name}"));
                let (open, close) = self.format.around_calls();
                let (open, close) = (quote(&format!("{open}\n")), quote(close));
                call = format!("{to} {} {open} {call} {close}", self.mark("<|message|>"));
            }
            names.push(self.rule("", &call));
        }
        let call = format!("({})", names.join(" | "));
        let (open, between, close) = self.around(style);
        match many && style != CallStyle::Harmony {
            true => format!("{open} {call} ({between} {call})* {close}"),
            false => format!("{open} {call} {close}"),
        }
    }

    /// The marks before, after and between all calls.
    fn around(&self, style: CallStyle) -> (String, String, String) {
        if self.format.recipients {
            return (String::new(), self.next_message(), String::new());
        }
        let (open, close) = self.format.around_calls();
        let marks = || (self.mark(open), self.mark(close));
        match style {
            CallStyle::List | CallStyle::Python => {
                let (open, close) = marks();
                (format!("{open} \"[\""), quote(", "), format!("\"]\" {close}"))
            }
            CallStyle::Solar => (self.solar(open), String::new(), self.mark(close)),
            CallStyle::Kimi | CallStyle::DeepSeek | CallStyle::DeepSeekFenced => {
                let (open, close) = marks();
                (open, String::new(), close)
            }
            CallStyle::Invoke => {
                let (open, close) = marks();
                (open + " \"\\n\"", String::new(), close)
            }
            CallStyle::Bare => (String::new(), quote("; "), String::new()),
            CallStyle::MistralArgs => {
                let first = if self.format.begun(self.prompt).is_empty() { open } else { "" };
                (self.mark(first), self.mark(open), String::new())
            }
            CallStyle::Harmony => Default::default(),
            _ => (String::new(), quote("\n"), String::new()),
        }
    }

    fn call(&mut self, style: CallStyle, name: &str, schema: &Value) -> String {
        let (open, close) = self.format.around_calls();
        let (open, close) = (self.mark(open), self.mark(close));
        let json = lark_json(schema);
        let object = |key: &str| {
            let head = format!("{{\"name\": {}, \"{key}\": ", json!(name));
            format!("{} {json} \"}}\"", quote(&head))
        };
        match style {
            CallStyle::Json => format!("{open} \"\\n\" {} \"\\n\" {close}", object("arguments")),
            CallStyle::Bare => object("parameters"),
            CallStyle::List => object("arguments"),
            CallStyle::MistralArgs => {
                let named = self.format.forms.iter().find_map(|form| form.named());
                let arguments = named.map_or("", |named| named.arguments);
                format!("{} {} {json}", quote(name), self.mark(arguments))
            }
            CallStyle::DeepSeek | CallStyle::DeepSeekFenced => {
                let marks = ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"];
                let [begin, sep, end] = marks.map(|mark| self.mark(mark));
                if style == CallStyle::DeepSeek {
                    return format!("{begin} {} {sep} {json} {end}", quote(name));
                }
                let fence = quote(&format!("{name}\n```json\n"));
                format!("{begin} \"function\" {sep} {fence} {json} \"\\n```\" {end}")
            }
            CallStyle::Kimi => {
                let marks = ["_begin|>", "_argument_begin|>", "_end|>"];
                let [begin, sep, end] = marks.map(|mark| self.mark(&format!("<|tool_call{mark}")));
                let id = quote(&format!("functions.{name}:"));
                format!("{begin} {id} /[0-9]{{1,3}}/ {sep} {json} {end}")
            }
            CallStyle::Solar => {
                let marks = ["begin|>", "name|>", "args|>", "end|>"];
                let marks = marks.map(|mark| self.mark(&format!("<|tool_call:{mark}")));
                let [begin, sep, arguments, end] = marks;
                format!("{begin} /[a-z0-9]{{10}}/ {sep} {} {arguments} {json} {end}", quote(name))
            }
            CallStyle::Harmony => {
                let marks = ["<|channel|>", "<|constrain|>", "<|message|>"];
                let [channel, constrain, message] = marks.map(|mark| self.mark(mark));
                let to = quote(&format!("commentary to=functions.{name} "));
                format!("{channel} {to} {constrain} \"json\" {message} {json}")
            }
            CallStyle::Tagged => {
                let head = quote(&format!("\n<function={name}>\n"));
                let fields = self.fields(schema, ["<parameter=", ">\n", "\n</parameter>\n"]);
                format!("{open} {head} {fields} \"</function>\\n\" {close}")
            }
            CallStyle::Invoke => {
                let Some(tags) = self.format.forms.iter().find_map(|form| form.tags()) else {
                    return object("parameters");
                };
                let head = quote(&format!("{}{name}{}\n", tags.open, tags.name_end));
                let marks = [tags.field, tags.key_end, tags.exact_close];
                let end = quote(&format!("{}\n", tags.close));
                format!("{head} {} {end}", self.fields(schema, marks))
            }
            CallStyle::Python => {
                let fields = self.named_values(schema);
                format!("{} {fields} \")\"", quote(&format!("{name}(")))
            }
            CallStyle::Glm => {
                let head = quote(&format!("{name}\n"));
                let marks = ["<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"];
                let fields = self.fields(schema, marks);
                format!("{open} {head} {fields} {close}")
            }
        }
    }

    /// Adds a rule and names it.
    pub(super) fn rule(&mut self, options: &str, body: &str) -> String {
        let name = format!("r{}", self.names);
        self.names += 1;
        writeln!(self.rules, "{name}{options}: {body}").expect("a string takes everything");
        name
    }

    /// Adds a terminal and names it.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        let name = format!("T{}", self.names);
        self.names += 1;
        writeln!(self.rules, "{name}: {body}").expect("a string takes everything");
        name
    }

    fn mark(&self, text: &str) -> String {
        match self.control(text) {
            Some(id) => format!("<[{id}]>"),
            None if text.is_empty() => String::new(),
            None => quote(text),
        }
    }

    /// The control token with this name.
    fn control(&self, text: &str) -> Option<u32> {
        let id = self.tokenizer.find_token(text).filter(|_| !text.is_empty())?;
        self.tokenizer.is_special(id).then_some(id)
    }
}

/// The schema of a call's arguments, always an object.
fn arguments(schema: Option<&Value>) -> Value {
    let mut schema = schema.cloned().unwrap_or_else(|| json!({}));
    leave_out(&mut schema);
    let says = ["$ref", "enum", "const", "allOf", "anyOf", "oneOf"];
    let Some(fields) = schema.as_object_mut() else { return json!({"type": "object"}) };
    let may_be_object = match fields.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        kind => kind.is_none_or(|kind| kind == "object"),
    };
    if !may_be_object {
        return json!({"type": "object"});
    }
    if fields.contains_key("type") || !says.iter().any(|key| fields.contains_key(*key)) {
        fields.insert("type".to_owned(), "object".into());
    }
    schema
}
