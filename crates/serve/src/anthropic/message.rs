//! Converts Anthropic's messages to those that chat templates expect.
//!
//! - The text blocks of a message are joined by line breaks, but for pictures between them. Tool
//!   results become separate messages, as do the assistant's calls and thoughts.
//! - Consecutive turns of the same role are merged, as in Anthropic's API: many templates reject
//!   them.
//! - A system message in the middle of a conversation becomes part of a user turn, between
//!   `<system>` marks: most templates reject or drop it anywhere but at the start.
//! - A final assistant turn is the beginning of the answer.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use text::{Message, ToolCall};

use super::content::{Block, Content};
use crate::http::error::ApiError;
use crate::pictures::{Picture, Pictures, join};

/// More messages than fit any context.
const MESSAGES_MAX: usize = 16_384;

#[derive(Debug, Deserialize)]
pub(super) struct InputMessage {
    role: Role,
    content: Content,
    /// Until when a system message is shown.
    clear_at: Option<ClearAt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClearAt {
    Never,
    NextUserMessage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    User,
    Assistant,
}

/// The messages for the template, and whether to continue the last one.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    pub messages: Vec<Message>,
    pub continue_last: bool,
    pub pictures: Vec<Picture>,
    /// Names of the called tools, by call id.
    called: HashMap<String, String>,
}

impl Conversation {
    /// # Errors
    /// 400 naming the first message or block that cannot be read.
    pub fn new(system: Option<Content>, input: Vec<InputMessage>) -> Result<Self, ApiError> {
        let found = input.len();
        if found == 0 || found > MESSAGES_MAX {
            let message = format!("messages has {found} entries; 1 to {MESSAGES_MAX} are accepted");
            return Err(ApiError::invalid_value("messages", message));
        }
        let mut conversation = Self::default();
        let mut pictures = Pictures::new();
        if let Some(system) = system {
            let text = system.without_billing().into_text("system", None)?;
            if !text.is_empty() {
                conversation.say("system", text);
            }
        }
        let last_user = input.iter().rposition(|message| message.role == Role::User);
        for (index, message) in input.into_iter().enumerate() {
            let is_cleared = message.clear_at == Some(ClearAt::NextUserMessage);
            if is_cleared && last_user.is_some_and(|last| last > index) {
                continue;
            }
            let at = format!("messages[{index}].content");
            conversation.add(message, &at, &mut pictures)?;
        }
        conversation.pictures = pictures.into_read();
        conversation.end()?;
        Ok(conversation)
    }

    fn add(
        &mut self,
        message: InputMessage,
        at: &str,
        pictures: &mut Pictures,
    ) -> Result<(), ApiError> {
        match message.role {
            Role::System if self.messages.iter().all(|message| message.role == "system") => {
                let text = message.content.into_text(at, None)?;
                self.say("system", text);
            }
            Role::System => {
                let text = message.content.into_text(at, None)?;
                self.say("user", format!("<system>\n{text}\n</system>"));
            }
            Role::User => self.add_user(message.content, at, pictures)?,
            Role::Assistant => self.add_assistant(message.content, at)?,
        }
        Ok(())
    }

    fn add_user(
        &mut self,
        content: Content,
        at: &str,
        pictures: &mut Pictures,
    ) -> Result<(), ApiError> {
        for (at, block) in content.into_blocks(at)? {
            if block.kind == "tool_result" {
                let result = self.tool_result(block, &at, pictures)?;
                self.messages.push(result);
            } else {
                let text = block.into_text(&at, Some(pictures))?;
                self.say("user", text);
            }
        }
        Ok(())
    }

    fn tool_result(
        &mut self,
        mut block: Block,
        at: &str,
        pictures: &mut Pictures,
    ) -> Result<Message, ApiError> {
        let Some(id) = block.tool_use_id.take() else {
            return Err(ApiError::invalid_value(at, format!("{at} has no tool_use_id")));
        };
        let text = |content: Content| content.into_result(at, pictures);
        let text = block.content(at)?.map_or(Ok(String::new()), text)?;
        let failed = block.is_error == Some(true);
        let content = if failed { format!("Error: {text}") } else { text };
        let name = self.called.get(&id).cloned();
        Ok(Message { name, tool_call_id: Some(id), ..Message::new("tool", content) })
    }

    fn add_assistant(&mut self, content: Content, at: &str) -> Result<(), ApiError> {
        for (at, block) in content.into_blocks(at)? {
            match block.kind.as_str() {
                "thinking" => {
                    let thought = block.thinking.unwrap_or_default();
                    let turn = self.turn("assistant");
                    let before = turn.reasoning.take().unwrap_or_default();
                    turn.reasoning = Some(joined(before, thought));
                }
                // Encrypted thoughts, which only Anthropic's own models can read.
                "redacted_thinking" => {}
                "tool_use" => self.tool_use(block, &at)?,
                "text" | "image" | "document" | "search_result" => {
                    let text = block.into_text(&at, None)?;
                    self.say("assistant", text);
                }
                // What Anthropic's servers did in a conversation that began there.
                _ => {
                    let text = block.into_readable();
                    self.say("assistant", text);
                }
            }
        }
        Ok(())
    }

    fn tool_use(&mut self, block: Block, at: &str) -> Result<(), ApiError> {
        let (Some(id), Some(name)) = (block.id, block.name) else {
            return Err(ApiError::invalid_value(at, format!("{at} needs an id and a name")));
        };
        self.called.insert(id.clone(), name.clone());
        let arguments = block.input.unwrap_or_else(|| Value::Object(Map::new()));
        self.turn("assistant").tool_calls.push(ToolCall { id, name, arguments });
        Ok(())
    }

    fn say(&mut self, role: &str, text: String) {
        let turn = self.turn(role);
        turn.content = joined(std::mem::take(&mut turn.content), text);
    }

    /// The last message if it has this role, otherwise a new one.
    fn turn(&mut self, role: &str) -> &mut Message {
        if self.messages.last().is_none_or(|last| last.role != role) {
            self.messages.push(Message::new(role, ""));
        }
        self.messages.last_mut().expect("one was pushed")
    }

    fn end(&mut self) -> Result<(), ApiError> {
        let Some(last) = self.messages.last().filter(|last| last.role == "assistant") else {
            return Ok(());
        };
        if !last.tool_calls.is_empty() {
            let message = "the last message calls a tool, and no tool_result answers it. Send one";
            return Err(ApiError::invalid_value("messages", message));
        }
        self.continue_last = !last.content.trim().is_empty();
        if !self.continue_last && last.reasoning.is_none() {
            self.messages.pop();
        }
        Ok(())
    }
}

fn joined(mut before: String, text: String) -> String {
    match (before.is_empty(), text.is_empty()) {
        (true, _) => return text,
        (_, true) => {}
        _ => join(&mut before, &text),
    }
    before
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(system: Value, messages: Value) -> Result<Conversation, ApiError> {
        let system = serde_json::from_value(system).unwrap();
        Conversation::new(system, serde_json::from_value(messages).unwrap())
    }

    /// Role and text of each message.
    fn turns(messages: Value) -> Vec<(String, String)> {
        let found = read(json!("Be brief."), messages.clone());
        let found = found.unwrap_or_else(|error| panic!("{messages}: {error:?}"));
        found.messages.into_iter().map(|message| (message.role, message.content)).collect()
    }

    #[test]
    fn turns_alternate_whatever_clients_send() {
        let text = |text: &str| json!([{"type": "text", "text": text}]);
        let cases = [
            (json!([{"role": "user", "content": "hi"}]), vec![("user", "hi")]),
            (
                json!([{"role": "user", "content": text("a")}, {"role": "user", "content": "b"}]),
                vec![("user", "a\nb")],
            ),
            (
                json!([
                    {"role": "user", "content": "a"},
                    {"role": "system", "content": text("The date has changed.")},
                    {"role": "assistant", "content": "b"},
                    {"role": "user", "content": "c"},
                ]),
                vec![
                    ("user", "a\n<system>\nThe date has changed.\n</system>"),
                    ("assistant", "b"),
                    ("user", "c"),
                ],
            ),
            (
                json!([
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
                    ]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": text("42")},
                        {"type": "text", "text": "and now?"},
                    ]},
                ]),
                vec![("user", "a"), ("assistant", ""), ("tool", "42"), ("user", "and now?")],
            ),
        ];
        for (messages, want) in cases {
            let found = turns(messages.clone());
            let found: Vec<_> =
                found.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect();
            assert_eq!(found, [vec![("system", "Be brief.")], want].concat(), "{messages}");
        }
        let messages = json!([{"role": "user", "content": "y"}]);
        let empty = read(json!(""), messages).unwrap();
        assert!(empty.messages.iter().all(|message| message.role != "system"));
        let first = json!([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]);
        assert_eq!(turns(first)[0].1, "Be brief.\nx");
    }

    #[test]
    fn the_line_for_anthropics_accounts_is_left_out() {
        let line = "x-anthropic-billing-header: cc_version=2.1; cch=1f3a;";
        let text = |text: &str| json!({"type": "text", "text": text});
        let both = format!("{line}\n\nBe brief.");
        let cases = [
            (json!([text(line), text("Be brief.")]), "Be brief."),
            (json!([text("Be brief."), text(line)]), "Be brief."),
            (json!([text(&both)]), "Be brief."),
            (json!(both), "Be brief."),
            (
                json!([text("Say x-anthropic-billing-header: now.")]),
                "Say x-anthropic-billing-header: now.",
            ),
            (
                json!([text(&format!(" {line}"))]),
                " x-anthropic-billing-header: cc_version=2.1; cch=1f3a;",
            ),
        ];
        for (system, want) in cases {
            let found = read(system.clone(), json!([{"role": "user", "content": "hi"}])).unwrap();
            assert_eq!(found.messages[0].content, want, "{system}");
        }
        let found = read(json!([text(line)]), json!([{"role": "user", "content": line}])).unwrap();
        assert_eq!((found.messages.len(), found.messages[0].content.as_str()), (1, line));
    }

    #[test]
    fn a_system_message_is_cleared_when_it_says_so() {
        let told =
            |clear_at: Value| json!({"role": "system", "content": "Quick.", "clear_at": clear_at});
        let user = |text: &str| json!({"role": "user", "content": text});
        let shown = |clear_at: &str, more: bool| {
            let mut messages = vec![user("a"), told(json!(clear_at))];
            messages.extend(more.then(|| user("b")));
            turns(json!(messages)).iter().any(|(_, text)| text.contains("Quick."))
        };
        assert!(shown("never", true) && shown("next_user_message", false));
        assert!(!shown("next_user_message", true));
    }

    #[test]
    fn calls_thoughts_and_results_keep_their_places() {
        let found = read(
            Value::Null,
            json!([
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": [
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "thinking", "thinking": "Look it up.", "signature": "s"},
                    {"type": "text", "text": "One moment."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"at": "Rome"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": "down"},
                ]},
            ]),
        )
        .unwrap();
        let assistant = &found.messages[1];
        assert_eq!(assistant.reasoning.as_deref(), Some("Look it up."));
        assert_eq!(assistant.content, "One moment.");
        let arguments = json!({"at": "Rome"});
        let call = ToolCall { id: "t1".into(), name: "weather".into(), arguments };
        assert_eq!(assistant.tool_calls, [call]);
        let result = &found.messages[2];
        assert_eq!(result.content, "Error: down");
        assert_eq!(result.tool_call_id.as_deref(), Some("t1"));
        assert_eq!(result.name.as_deref(), Some("weather"));
        assert!(!found.continue_last);
    }

    #[test]
    fn a_last_turn_of_the_assistants_is_continued() {
        let found = |content: &str| {
            let messages = json!([
                {"role": "user", "content": "hi"}, {"role": "assistant", "content": content},
            ]);
            read(Value::Null, messages).unwrap()
        };
        assert!(found("Once upon").continue_last);
        let empty = found("");
        assert_eq!((empty.messages.len(), empty.continue_last), (1, false));
    }

    #[test]
    fn documents_are_text_and_what_is_not_is_refused_by_name() {
        let document = json!([{"role": "user", "content": [
            {"type": "document", "title": "Notes", "context": "old",
             "source": {"type": "text", "media_type": "text/plain", "data": "Line."}},
            {"type": "document", "source": {"type": "content", "content": "More."}},
        ]}]);
        assert_eq!(turns(document)[1].1, "Notes\nold\nLine.\nMore.");
        let base64 = json!({"type": "base64", "data": "x"});
        let cases = [
            (json!({"type": "image", "source": base64}), "messages[0].content[0]", "no Base64"),
            (json!({"type": "document", "source": base64}), "messages[0].content[0]", "PDF"),
            (json!({"type": "text"}), "messages[0].content[0]", "no text"),
            (json!({"type": "tool_result"}), "messages[0].content[0]", "no tool_use_id"),
            (
                json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}),
                "messages[0].content[0][0]",
                "type \"none\"",
            ),
        ];
        for (block, param, message) in cases {
            let messages = json!([{"role": "user", "content": [block]}]);
            let error = read(Value::Null, messages).expect_err(&block.to_string());
            assert_eq!((error.param.as_deref(), error.status.as_u16()), (Some(param), 400));
            assert!(error.message.contains(message), "{block}: {}", error.message);
        }
        let calls = json!([{"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        ]}]);
        assert!(read(Value::Null, calls).unwrap_err().message.contains("tool_result"));
        assert!(read(Value::Null, json!([])).unwrap_err().message.contains("0 entries"));
    }
}
