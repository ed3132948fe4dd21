use serde_json::{Map, Value, json};

use crate::json_text;

/// One message of a conversation, as chat templates expect it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role of the template.
    pub role: String,
    pub content: String,
    /// The name of the speaker, or of the tool that answers.
    pub name: Option<String>,
    /// The calls in an assistant's message.
    pub tool_calls: Vec<ToolCall>,
    /// The id of the call that a tool's message answers.
    pub tool_call_id: Option<String>,
    /// The thoughts of an assistant before its answer.
    pub reasoning: Option<String>,
}

/// Where a template reads the thoughts of an assistant's message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Thoughts {
    /// In a field of the message.
    #[default]
    Field,
    /// In a part of its content (Ministral).
    Part,
    /// In a block of its content, as the texts of all answers are (Apertus).
    Block,
    /// At the start of its text, between the marks of a reply.
    Text,
}

/// The representation of calls and thoughts in templates.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    pub(super) thoughts: Thoughts,
    /// Arguments are JSON text instead of objects.
    pub(super) text_arguments: bool,
    /// A missing text beside calls is none instead of empty.
    pub(super) no_text: bool,
}

/// One call of a tool by the assistant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// Usually an object.
    pub arguments: Value,
}

impl ToolCall {
    /// The arguments as JSON text. Those of a call that broke off are the start of it.
    pub fn arguments_text(&self) -> String {
        match &self.arguments {
            Value::String(text) => text.clone(),
            arguments => json_text(arguments),
        }
    }
}

/// Appends a text to the system message, or adds it where that would be.
pub(super) fn instruct(messages: &mut Vec<Message>, text: &str) {
    match messages.first_mut().filter(|first| first.role == "system") {
        Some(system) if !system.content.is_empty() => {
            system.content.push_str("\n\n");
            system.content.push_str(text);
        }
        Some(system) => system.content = text.to_owned(),
        None => messages.insert(0, Message::new("system", text)),
    }
}

impl Message {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }

    /// The message with `map` applied to all its texts.
    pub(super) fn map_text(&self, map: &dyn Fn(&str) -> String) -> Self {
        let maybe = |text: &Option<String>| text.as_deref().map(map);
        let call = |call: &ToolCall| ToolCall {
            id: map(&call.id),
            name: map(&call.name),
            arguments: super::map_text(call.arguments.clone(), map),
        };
        Self {
            role: map(&self.role),
            content: map(&self.content),
            name: maybe(&self.name),
            tool_calls: self.tool_calls.iter().map(call).collect(),
            tool_call_id: maybe(&self.tool_call_id),
            reasoning: maybe(&self.reasoning),
        }
    }

    /// The dictionary for templates. Absent fields are left out, since many templates check whether
    /// they are defined.
    pub(super) fn to_value(&self, style: Style) -> Value {
        let mut fields = Map::new();
        fields.insert("role".into(), json!(self.role));
        fields.insert("content".into(), self.content_value(style));
        if let Some(name) = &self.name {
            fields.insert("name".into(), json!(name));
        }
        if let Some(id) = &self.tool_call_id {
            fields.insert("tool_call_id".into(), json!(id));
        }
        if let Some(reasoning) = &self.reasoning {
            // Qwen and DeepSeek use reasoning_content, gpt-oss thinking, Solar Open reasoning,
            // Apriel 1.5 thought.
            for name in ["reasoning", "reasoning_content", "thinking", "thought"] {
                fields.insert(name.into(), json!(reasoning));
            }
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(|call| call.to_value(style.text_arguments));
            fields.insert("tool_calls".into(), calls.collect());
        }
        Value::Object(fields)
    }

    fn content_value(&self, style: Style) -> Value {
        let is_none = style.no_text && self.content.is_empty() && !self.tool_calls.is_empty();
        let text = (!self.content.is_empty()).then_some(&self.content);
        match (style.thoughts, &self.reasoning) {
            (Thoughts::Part, Some(thought)) => {
                let thought = json!({"type": "thinking", "thinking": thought});
                let text = text.map(|text| json!({"type": "text", "text": text}));
                [thought].into_iter().chain(text).collect()
            }
            (Thoughts::Block, thought) if self.role == "assistant" => {
                let thought =
                    thought.as_ref().map(|text| json!({"type": "thoughts", "text": text}));
                let text = text.map(|text| json!({"type": "response", "text": text}));
                json!({ "blocks": thought.into_iter().chain(text).collect::<Vec<_>>() })
            }
            _ => json!((!is_none).then_some(&self.content)),
        }
    }
}

impl ToolCall {
    fn to_value(&self, text_arguments: bool) -> Value {
        let arguments = match (&self.arguments, text_arguments) {
            (Value::String(text), false) => crate::exact_value(text).unwrap_or_else(|| json!(text)),
            (Value::String(text), true) => json!(text),
            (other, false) => other.clone(),
            (other, true) => json!(crate::json_text(other)),
        };
        json!({
            "id": self.id,
            "type": "function",
            "function": { "name": self.name, "arguments": arguments },
        })
    }
}
