//! Writes calls as text, for templates that do not show them.

use serde_json::{Map, Value};

use super::ReplyFormat;
use super::forms::{Body, Breaks, CallStyle, HERMES, Named, Tags};
use crate::{ToolCall, json_text};

impl ReplyFormat {
    /// The format of a model that gets its tools as [`Self::tool_text`].
    pub(crate) fn told(mut self) -> Self {
        if !self.harmony && self.forms.first().is_none_or(|form| form.open != HERMES.open) {
            self.forms.insert(0, &HERMES);
        }
        self.style = Default::default();
        self
    }

    /// A text that describes the tools and the form of their calls.
    pub(crate) fn tool_text(&self, tools: &str) -> String {
        let (open, close) = (HERMES.open, HERMES.close);
        format!(
            "You can call these tools:\n{tools}\n\nTo call one, write its name and its arguments \
             as JSON between {open} and {close}, and then wait for its result:\n{open}\n\
             {{\"name\": \"NAME\", \"arguments\": {{\"KEY\": \"VALUE\"}}}}\n{close}\nIf none of them \
             helps, answer without a call."
        )
    }

    /// Calls in the model's own form.
    pub(crate) fn write_calls(&self, calls: &[ToolCall]) -> String {
        let form = self.forms.first().copied().unwrap_or(&HERMES);
        // Each call in a block, or all in one.
        let each = |write: &dyn Fn(&ToolCall) -> String| {
            let blocks =
                calls.iter().map(|call| format!("{}{}{}", form.open, write(call), form.close));
            blocks.collect::<Vec<_>>().join("\n")
        };
        let all = |write: &dyn Fn((usize, &ToolCall)) -> String, between: &str| {
            let calls: Vec<String> = calls.iter().enumerate().map(write).collect();
            calls.join(between)
        };
        match (form.bodies.first(), self.style) {
            (Some(Body::Python), _) => {
                let calls = all(&|(_, call)| python(call), ", ");
                format!("{}[{calls}]{}", form.open, form.close)
            }
            (Some(Body::Named(marks)), _) => {
                let calls = all(&|(index, call)| named(marks, index, call), "");
                format!("{}{calls}{}", form.open, form.close)
            }
            (Some(Body::Json), CallStyle::List) => {
                format!("{}[{}]{}", form.open, all(&|(_, call)| object(call), ", "), form.close)
            }
            (_, CallStyle::Tagged | CallStyle::Invoke) => match form.tags() {
                Some(tags) => each(&|call| tagged(tags, call)),
                None => each(&object),
            },
            (Some(Body::Json), _) => each(&|call| format!("\n{}\n", object(call))),
            _ => all(&|(_, call)| object(call), "\n"),
        }
    }
}

fn object(call: &ToolCall) -> String {
    let mut fields = Map::new();
    fields.insert("name".into(), call.name.clone().into());
    fields.insert("arguments".into(), call.arguments.clone());
    json_text(&Value::Object(fields))
}

fn named(marks: &Named, index: usize, call: &ToolCall) -> String {
    let name = match marks.in_id {
        true => format!("functions.{}:{index}", call.name),
        false => call.name.clone(),
    };
    format!("{}{name}{}{}{}", marks.open, marks.arguments, json_text(&call.arguments), marks.close)
}

fn tagged(tags: &Tags, call: &ToolCall) -> String {
    let fields = call.arguments.as_object().into_iter().flatten().map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let text = if tags.breaks == Breaks::Each { format!("\n{text}\n") } else { text };
        format!("{}{key}{}{}{text}{}\n", tags.field, tags.key_end, tags.value, tags.field_close)
    });
    let fields: String = fields.collect();
    format!("\n{}{}{}\n{fields}{}\n", tags.open, call.name, tags.name_end, tags.close)
}

fn python(call: &ToolCall) -> String {
    let arguments = call.arguments.as_object();
    let arguments = arguments.into_iter().flatten().map(|(key, value)| match value {
        Value::Bool(true) => format!("{key}=True"),
        Value::Bool(false) => format!("{key}=False"),
        Value::Null => format!("{key}=None"),
        value => format!("{key}={value}"),
    });
    format!("{}({})", call.name, arguments.collect::<Vec<_>>().join(", "))
}
