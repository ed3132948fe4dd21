//! Calls as text, for templates that do not show them.

use serde_json::{Map, Value};

use super::ReplyFormat;
use super::forms::{Body, HERMES};
use crate::ToolCall;

impl ReplyFormat {
    /// The same for a model that is told of its tools by [`Self::tool_text`].
    pub(crate) fn told(mut self) -> Self {
        if !self.harmony && self.forms.first().is_none_or(|form| form.open != HERMES.open) {
            self.forms.insert(0, &HERMES);
        }
        self.style = Default::default();
        self
    }

    /// Tells a model of its tools, and in which form it can call them.
    pub(crate) fn tool_text(&self, tools: &str) -> String {
        let (open, close) = (HERMES.open, HERMES.close);
        format!(
            "You can call these tools:\n{tools}\n\nTo call one, write its name and its arguments \
             as JSON between {open} and {close}, and then wait for its result:\n{open}\n\
             {{\"name\": \"NAME\", \"arguments\": {{\"KEY\": \"VALUE\"}}}}\n{close}\nIf none of them \
             helps, answer without a call."
        )
    }

    /// Calls as the model itself would write them.
    pub(crate) fn write_calls(&self, calls: &[ToolCall]) -> String {
        let form = self.forms.first().copied().unwrap_or(&HERMES);
        if matches!(form.bodies.first(), Some(Body::Python)) {
            let calls: Vec<String> = calls.iter().map(python).collect();
            return format!("{}[{}]{}", form.open, calls.join(", "), form.close);
        }
        let calls = calls.iter().map(|call| {
            let mut fields = Map::new();
            fields.insert("name".into(), call.name.clone().into());
            fields.insert("arguments".into(), call.arguments.clone());
            format!("{}\n{}\n{}", HERMES.open, Value::Object(fields), HERMES.close)
        });
        calls.collect::<Vec<_>>().join("\n")
    }
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
