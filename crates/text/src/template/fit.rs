//! Tools for templates that do not know them: what a template leaves out, the messages say in text.
//!
//! Templates are asked by rendering probes. Where tools do not appear, a text tells the model of
//! them and of the form in which the reply's parser reads calls. Where earlier calls or their
//! results do not appear, they become text of their messages.

use serde_json::{Value, json};

use super::{Message, ToolCall};
use crate::ReplyFormat;

/// What a template shows of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shows {
    pub(super) system: bool,
    pub(super) tools: bool,
    pub(super) calls: bool,
    pub(super) results: bool,
}

impl Shows {
    /// Everything, as far as fitting is concerned.
    pub(super) const ALL: Self = Self { system: true, tools: true, calls: true, results: true };

    /// Asks a template; `render` renders messages with tools, or fails.
    pub(super) fn probe(render: impl Fn(&[Message], &[Value]) -> Option<String>) -> Self {
        let user = Message::new("user", "probe_user");
        let system = Message::new("system", "probe_system");
        let asked = render(&[system, user.clone()], &[]);
        let told = render(std::slice::from_ref(&user), &[probe_tool()]);
        let call = ToolCall {
            id: "probeid01".into(),
            name: "probe_call".into(),
            arguments: json!({"probe_key": "probe_value"}),
        };
        let calls = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
        let result = Message {
            tool_call_id: Some("probeid01".into()),
            name: Some("probe_call".into()),
            ..Message::new("tool", "probe_result")
        };
        let called = render(&[user, calls, result], &[probe_tool()]);
        let shows = |text: &Option<String>, what| text.as_ref().is_some_and(|t| t.contains(what));
        Self {
            system: shows(&asked, "probe_system"),
            // A template that cannot render the probe may have asked for another kind of tool.
            tools: told.is_none() || shows(&told, "probe_tool"),
            calls: shows(&called, "probe_call"),
            results: shows(&called, "probe_result"),
        }
    }

    /// The messages in the form that the template shows all of. `guard` keeps a client's text from
    /// being taken for control tokens; the messages' own is guarded already.
    pub(super) fn fit(
        self,
        format: &ReplyFormat,
        messages: Vec<Message>,
        tools: &[Value],
        guard: impl Fn(&str) -> String,
    ) -> Vec<Message> {
        let mut fitted: Vec<Message> = Vec::new();
        let mut was_result = false;
        for mut message in messages {
            if !self.calls && !message.tool_calls.is_empty() {
                let calls = std::mem::take(&mut message.tool_calls);
                message.content = joined([&message.content, &format.write_calls(&calls)]);
            }
            let is_result = !self.results && message.role == "tool";
            if is_result {
                let text = format!("<tool_response>\n{}\n</tool_response>", message.content);
                message = Message::new("user", text);
            }
            // Many templates refuse two messages of a user in a row.
            match fitted.last_mut().filter(|_| was_result && message.role == "user") {
                Some(last) => last.content = joined([&last.content, &message.content]),
                None => fitted.push(message),
            }
            was_result = is_result || (was_result && fitted.last().is_some_and(is_user));
        }
        if !self.tools && !tools.is_empty() {
            let list: Vec<String> = tools.iter().map(|tool| guard(&tool.to_string())).collect();
            self.tell(&mut fitted, &format.tool_text(&list.join("\n")));
        }
        fitted
    }

    /// Puts a text into the system's message, or before the user's where there can be none.
    fn tell(self, messages: &mut Vec<Message>, text: &str) {
        let mut text = text.to_owned();
        let has_system = messages.first().is_some_and(|first| first.role == "system");
        if has_system {
            text = joined([&messages[0].content, &text]);
            messages.remove(0);
        }
        if self.system {
            messages.insert(0, Message::new("system", text));
        } else if let Some(user) = messages.first_mut().filter(|first| is_user(first)) {
            user.content = joined([&text, &user.content]);
        } else {
            messages.insert(0, Message::new("user", text));
        }
    }
}

fn is_user(message: &Message) -> bool {
    message.role == "user"
}

fn joined(texts: [&str; 2]) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn probe_tool() -> Value {
    let key = json!({"type": "string", "description": "probe"});
    let parameters =
        json!({"type": "object", "properties": {"probe_key": key}, "required": ["probe_key"]});
    let function = json!({"name": "probe_tool", "description": "probe", "parameters": parameters});
    json!({"type": "function", "function": function})
}
