//! Conversations with tools under templates that omit some of them.

use serde_json::{Value, json};
use text::{ChatTemplate, Message, Render, ReplyParser, ReplyPart, ToolCall};

/// Supports neither tools nor system messages, and requires alternating users and assistants, like
/// Gemma 2.
const STRICT: &str = "\
{%- for message in messages -%}
{%- if message.role == 'system' or (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
[{{ message.role }}]{{ message.content }}
{% endfor -%}";

/// Accepts all roles and shows only their text.
const PLAIN: &str = "\
{%- for message in messages -%}
[{{ message.role }}]{{ message.content }}
{% endfor -%}";

/// Shows tools, but no calls, like LFM2's.
const LISTS: &str = "\
{%- if tools -%}List of tools: [{{ tools | tojson }}]
{% endif -%}
{%- for message in messages -%}
[{{ message.role }}]{{ message.content }}
{% endfor -%}";

/// Supports everything.
const WHOLE: &str = "\
{%- if tools -%}{{ tools | tojson }}
{% endif -%}
{%- for message in messages -%}
[{{ message.role }}]{{ message.content }}
{%- for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor -%}";

fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    vec![json!({"type": "function", "function": {"name": "weather", "parameters": parameters}})]
}

fn conversation(has_system: bool) -> Vec<Message> {
    let arguments = json!({"city": "Rome", "now": true});
    let call = ToolCall { id: "c1".into(), name: "weather".into(), arguments };
    let result = Message { tool_call_id: Some("c1".into()), ..Message::new("tool", "22 degrees") };
    let mut messages = vec![
        Message::new("system", "Be brief."),
        Message::new("user", "Weather?"),
        Message { tool_calls: vec![call], ..Message::new("assistant", "Let me see.") },
        result,
        Message::new("user", "In Celsius?"),
    ];
    if !has_system {
        messages.remove(0);
    }
    messages
}

fn render(template: &str, messages: &[Message], tools: &[Value]) -> String {
    let template = ChatTemplate::new(template, "", "").unwrap();
    template.render(messages, &Render { tools, ..Render::default() }).unwrap()
}

/// The text before `[role]` for each of the conversation's turns.
fn turns(rendered: &str) -> Vec<(&str, &str)> {
    let turns = rendered.split("\n[").flat_map(|turn| turn.trim_start_matches('[').split_once(']'));
    turns.map(|(role, text)| (role, text.trim())).collect()
}

#[test]
fn what_a_template_leaves_out_is_said_in_text() {
    let call = "Let me see.\n\n<tool_call>\n\
                {\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\",\"now\":true}}\n</tool_call>";
    let result = "<tool_response>\n22 degrees\n</tool_response>\n\nIn Celsius?";

    let rendered = render(STRICT, &conversation(true), &tools());
    let [(_, asked), (_, called), (_, answered)] = turns(&rendered)[..] else {
        panic!("{rendered}")
    };
    assert!(asked.starts_with("Be brief.\n\nYou can call these tools:"), "{asked}");
    assert!(asked.contains("\"name\":\"weather\"") && asked.ends_with("Weather?"), "{asked}");
    assert_eq!((called, answered), (call, result));

    let rendered = render(PLAIN, &conversation(false), &tools());
    let turns = turns(&rendered);
    assert_eq!(turns[0].0, "system");
    assert!(turns[0].1.starts_with("You can call these tools:"), "{rendered}");
    assert_eq!(turns[1..3], [("user", "Weather?"), ("assistant", call)]);
    assert_eq!(turns[3..], [("tool", "22 degrees"), ("user", "In Celsius?")]);
}

#[test]
fn earlier_calls_are_written_as_the_model_writes_them() {
    let rendered = render(LISTS, &conversation(true), &tools());
    let call =
        "Let me see.\n\n<|tool_call_start|>[weather(city=\"Rome\", now=True)]<|tool_call_end|>";
    assert!(rendered.contains(call), "{rendered}");
    assert!(!rendered.contains("You can call"), "{rendered}");
}

#[test]
fn a_template_that_shows_everything_is_left_alone() {
    let rendered = render(WHOLE, &conversation(true), &tools());
    assert!(!rendered.contains("You can call") && rendered.contains("[tool]22"), "{rendered}");
    let plain = [Message::new("user", "Hi")];
    assert_eq!(render(STRICT, &plain, &[]), "[user]Hi\n");
}

#[test]
fn a_told_model_is_understood() {
    for template in [STRICT, PLAIN, "{{ '<｜tool▁calls▁begin｜>' }}", WHOLE] {
        let template = ChatTemplate::new(template, "", "").unwrap();
        let mut parser = ReplyParser::new(template.reply_format(), "", &tools());
        let reply = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
        let mut parts = parser.push(reply);
        parts.extend(parser.finish());
        assert!(matches!(&parts[..], [.., ReplyPart::Call(call)] if call.name == "weather"));
    }
}
