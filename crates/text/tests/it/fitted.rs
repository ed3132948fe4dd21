//! Conversations that a template refuses or shows only partly, in the nearest form that it
//! supports.

use serde_json::{Value, json};
use text::{ChatTemplate, Message, Render, TextError, ToolCall};

/// Refuses a text and a thought beside calls, shows one call a message, requires a description of
/// each tool, and drops thoughts and texts beside calls of earlier turns, like gpt-oss's.
const CHANNELS: &str = "\
{%- for tool in tools or [] -%}// {{ tool.function.description + '\n' }}{{ tool.function.name }};
{% endfor -%}
{%- set last = namespace(name=none) -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' and 'tool_calls' in message -%}
{%- set later = namespace(found=false) -%}
{%- for next in messages[loop.index:] -%}
{%- if next.role == 'assistant' and 'tool_calls' not in next -%}{% set later.found = true %}{% endif -%}
{%- endfor -%}
{%- if message.content and message.thinking -%}{{ raise_exception('both') }}{%- endif -%}
{%- if not later.found and (message.content or message.thinking) -%}
[analysis]{{ message.content or message.thinking }}
{% endif -%}
{%- set call = message.tool_calls[0].function -%}
{%- set last.name = call.name -%}
[to={{ call.name }}]{{ call.arguments | tojson }}
{% elif message.role == 'tool' -%}
{%- if last.name is none -%}{{ raise_exception('no call') }}{%- endif -%}
[{{ last.name }}]{{ message.content }}
{% else -%}
{%- if message.role == 'assistant' -%}{% set last.name = none %}{%- endif -%}
[{{ message.role }}]{{ message.content }}
{% endif -%}
{%- endfor -%}";

/// Requires alternating turns and ids of nine letters and digits, and shows no text beside calls,
/// like Mistral's.
const TURNS: &str = "\
{%- set ns = namespace(index=0) -%}
{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first -%}{{ raise_exception('late system') }}{%- endif -%}
{%- if message.role in ['user', 'assistant'] and message.tool_calls is not defined -%}
{%- if (message.role == 'user') != (ns.index % 2 == 0) -%}{{ raise_exception('turns') }}{%- endif -%}
{%- set ns.index = ns.index + 1 -%}
{%- endif -%}
{%- if message.tool_calls is defined -%}
{%- for call in message.tool_calls -%}
{%- if call.id | length != 9 -%}{{ raise_exception('id') }}{%- endif -%}
[call {{ call.id }}]{{ call.function.name }} {{ call.function.arguments | tojson }}
{% endfor -%}
{%- elif message.role == 'tool' -%}
{%- if message.tool_call_id | length != 9 -%}{{ raise_exception('id') }}{%- endif -%}
[result {{ message.tool_call_id }}]{{ message.content }}
{% else -%}
[{{ message.role }}]{{ message.content }}
{% endif -%}
{%- endfor -%}
{{ tools | tojson }}";

/// Shows calls only without text, and only the last system message, like DeepSeek's R1.
const NONE: &str = "\
{%- set ns = namespace(system='') -%}
{%- for message in messages if message.role == 'system' -%}
{%- set ns.system = message.content -%}
{%- endfor -%}
[system]{{ ns.system }} {{ tools | tojson }}
{% for message in messages -%}
{%- if message.role == 'assistant' and message.content is none -%}
{%- for call in message.tool_calls -%}
[call]{{ call.function.name + ' ' + call.function.arguments }}
{% endfor -%}
{%- elif message.role != 'system' -%}
[{{ message.role }}]{{ message.content }}
{% endif -%}
{%- endfor -%}";

/// Refuses two calls in a message, and system messages after the start.
const SINGLE: &str = "\
{{ tools | tojson }}
{% for message in messages -%}
{%- if message.role == 'system' and not loop.first -%}{{ raise_exception('late') }}{%- endif -%}
{%- if message.tool_calls -%}
{%- if message.tool_calls | length != 1 -%}{{ raise_exception('one call') }}{%- endif -%}
{%- set call = message.tool_calls[0].function -%}
[call]{{ message.content }}{{ call.name }}
{%- for key, value in call.arguments | items %} {{ key }}={{ value }}{% endfor -%}
{{ '\n' }}
{%- else -%}
[{{ message.role }}]{{ message.content }}
{% endif -%}
{%- endfor -%}";

fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "properties": {"at": {"type": "string"}}});
    let tool =
        |name| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    vec![tool("look"), tool("ask")]
}

fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: id.into(), name: name.into(), arguments }
}

fn calls(text: &str, tool_calls: Vec<ToolCall>) -> Message {
    Message { tool_calls, ..Message::new("assistant", text) }
}

fn result(id: &str, name: &str, content: &str) -> Message {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Message { tool_call_id: some(id), name: some(name), ..Message::new("tool", content) }
}

fn said(role: &str, text: &str) -> Message {
    Message::new(role, text)
}

fn try_render(template: &str, messages: &[Message], tools: &[Value]) -> Result<String, TextError> {
    let template = ChatTemplate::new(template, "", "").unwrap();
    template.render(messages, &Render { tools, ..Render::default() })
}

/// The turns, each `[role]text`, without the template's output before the first `[`.
fn turns(template: &str, messages: &[Message]) -> Vec<String> {
    let rendered = try_render(template, messages, &tools()).unwrap();
    let turns = rendered.lines().skip_while(|line| line.starts_with(['/', 'l', 'a']));
    let turns = turns.filter(|line| !line.starts_with("[{") && !line.is_empty());
    turns.map(str::to_owned).collect()
}

fn at(place: &str) -> Value {
    json!({ "at": place })
}

#[test]
fn what_gpt_oss_answered_comes_back() {
    let thinking = |message| Message { reasoning: Some("hm".into()), ..message };
    let turn = [
        said("user", "hi"),
        thinking(calls(
            "Let me look.",
            vec![call("c1", "look", at("A")), call("c2", "ask", at("B"))],
        )),
        result("c2", "", "b"),
        result("c1", "", "a"),
    ];
    let expected = [
        "[user]hi",
        "[analysis]hm",
        "Let me look.",
        "[to=look]{\"at\": \"A\"}",
        "[look]a",
        "[to=ask]{\"at\": \"B\"}",
        "[ask]b",
    ];
    assert_eq!(turns(CHANNELS, &turn), expected);
    // In an earlier turn the thoughts are gone, but its text is not.
    let ended = [&turn[..], &[said("assistant", "done"), said("user", "more")]].concat();
    let expected = [
        "[user]hi",
        "[assistant]Let me look.",
        "[to=look]{\"at\": \"A\"}",
        "[look]a",
        "[to=ask]{\"at\": \"B\"}",
        "[ask]b",
        "[assistant]done",
        "[user]more",
    ];
    assert_eq!(turns(CHANNELS, &ended), expected);
}

#[test]
fn a_tool_needs_no_description() {
    let rendered = try_render(CHANNELS, &[said("user", "hi")], &tools()).unwrap();
    assert_eq!(rendered, "// \nlook;\n// \nask;\n[user]hi\n");
}

#[test]
fn results_need_no_ids_and_turns_alternate() {
    let messages = [
        said("user", "hi"),
        calls("Let me look.", vec![call("", "look", at("A")), call("", "ask", json!(null))]),
        result("", "ask", "b"),
        result("", "look", "a"),
        said("user", "and?"),
        said("system", "Be brief."),
    ];
    let expected = [
        "[user]hi",
        "[assistant]Let me look.",
        "[user]",
        "[call call00000]look {\"at\": \"A\"}",
        "[call call00001]ask {}",
        "[result call00001]b",
        "[result call00000]a",
        "[assistant]",
        "[user]and?",
        "<system>",
        "Be brief.",
        "</system>",
    ];
    assert_eq!(turns(TURNS, &messages), expected);
    let messages = [said("assistant", "Hello!"), said("user", "a"), said("user", "b")];
    assert_eq!(turns(TURNS, &messages), ["[user]", "[assistant]Hello!", "[user]a", "b"]);
}

#[test]
fn calls_are_shown_beside_no_text_and_beside_some() {
    let messages = [
        said("system", "one"),
        said("system", "two"),
        said("user", "hi"),
        calls("", vec![call("c1", "look", at("A"))]),
        result("c1", "", "a"),
        calls("Now this.", vec![call("c2", "ask", json!(""))]),
        result("c2", "", "b"),
    ];
    let expected = [
        "[user]hi",
        "[call]look {\"at\":\"A\"}",
        "[tool]a",
        "[assistant]Now this.",
        "[call]ask {}",
        "[tool]b",
    ];
    let rendered = try_render(NONE, &messages, &tools()).unwrap();
    assert!(rendered.starts_with("[system]one\n\ntwo [{"), "{rendered}");
    assert!(rendered.ends_with(&(expected.join("\n") + "\n")), "{rendered}");
}

#[test]
fn calls_of_a_turn_are_told_one_by_one() {
    let messages = [
        said("user", "hi"),
        calls(
            "So:",
            vec![call("x", "look", json!("{\"at\": \"A\"}")), call("y", "ask", json!(""))],
        ),
        result("x", "", "a"),
        result("y", "", "b"),
        said("system", "Be brief."),
        said("user", "and?"),
    ];
    let expected = [
        "[user]hi",
        "[call]So:look at=A",
        "[tool]a",
        "[call]ask",
        "[tool]b",
        "[user]<system>",
        "Be brief.",
        "</system>",
        "[user]and?",
    ];
    assert_eq!(turns(SINGLE, &messages), expected);
}

#[test]
fn what_is_no_object_is_shown_all_the_same() {
    let half = json!("{\"at\": \"A");
    let messages = [said("user", "hi"), calls("", vec![call("x", "look", half)])];
    assert_eq!(turns(SINGLE, &messages)[1], "[call]look arguments={\"at\": \"A");
}

/// Shows a system message only before the last message, if that is a user's; refuses empty answers
/// and tools with untyped fields; shows a call's text after its result.
const LATE: &str = "\
{%- for tool in tools or [] -%}{% for name, one in tool.function.parameters.properties.items() -%}
|{{ tool.function.name + ' ' + name + ':' + one.type + ' ' + one.description }}
{% endfor -%}{% endfor -%}
{%- set ns = namespace(system='', said='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{% set ns.system = message.content %}
{%- elif message.tool_calls -%}
{% set ns.said = message.content -%}
[call]{{ message.tool_calls[0].function.name }}
{% elif message.role == 'assistant' and not message.content -%}{{ raise_exception('empty') }}
{%- else -%}
[{{ message.role }}]{{ ns.system if loop.last and message.role == 'user' }}{{ message.content }}
{% if message.role == 'tool' and ns.said -%}
[said]{{ ns.said }}{% set ns.said = '' %}
{% endif -%}
{%- endif -%}
{%- endfor -%}";

#[test]
fn nothing_is_hidden_or_late() {
    let turn = [
        said("system", "Be brief."),
        said("user", "hi"),
        said("assistant", ""),
        calls("Let me look.", vec![call("x", "look", at("A"))]),
        result("x", "", "a"),
    ];
    let shown = |messages: &[Message]| {
        let rendered = try_render(LATE, messages, &tools()).unwrap();
        let lines = rendered.lines().filter(|line| !line.is_empty() && !line.starts_with('|'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = ["[user]Be brief.", "hi", "[assistant]Let me look.", "[call]look", "[tool]a"];
    let lines: Vec<String> = shown(&turn);
    assert_eq!(lines, expected);
    let ended = [&turn[..], &[said("assistant", "done"), said("user", "more")]].concat();
    assert_eq!(shown(&ended)[0], "[user]hi");
    assert_eq!(shown(&ended).last().unwrap(), "[user]Be brief.more");
}

#[test]
fn tools_come_in_the_form_that_a_template_takes() {
    let parameters = json!({"type": "object", "properties": {
        "a": {"type": ["null", "integer"]}, "b": {"$ref": "#/$defs/B"}, "c": true,
    }, "$defs": {"B": {"type": "boolean", "description": "yes?"}}});
    let odd = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let bare =
        json!({"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}});
    let rendered = try_render(LATE, &[said("user", "hi")], &[odd, bare]).unwrap();
    assert!(rendered.starts_with("|f a:integer \n|f b:boolean yes?\n|f c:string \n"), "{rendered}");
}

#[test]
fn what_no_form_can_be_found_for_is_refused_in_the_templates_words() {
    let never = "{{ raise_exception('never: ' + messages[0].content) }}";
    match try_render(never, &[said("user", "hi")], &[]) {
        Err(TextError::TemplateRaised { message }) => assert_eq!(message, "never: hi"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_goes_on_where_it_stopped() {
    let plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}";
    let trimmed = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}";
    // Its marks contain the same text that is continued.
    let echo = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end of answer]{% endfor %}";
    let users = "{% for m in messages if m.role == 'user' %}[user]{{ m.content }}{% endfor %}\
                 {% if add_generation_prompt %}[assistant]{% endif %}";
    let thinks = "{% for m in messages if m.role == 'user' %}[user]{{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}[assistant]<think>\n{% endif %}";
    let cases = [
        (plain, "Once upon ", "[user]hi</s>[assistant]Once upon "),
        (plain, "</s>", "[user]hi</s>[assistant]</s>"),
        (plain, "", "[user]hi</s>[assistant]"),
        (trimmed, "Once upon ", "[user]hi</s>[assistant]Once upon "),
        (echo, "an", "[user]hi[end of answer][assistant]an"),
        (echo, "answer", "[user]hi[end of answer][assistant]answer"),
        (users, "Once ", "[user]hi[assistant]Once "),
        (thinks, "Once ", "[user]hi[assistant]<think></think>Once "),
    ];
    for (template, text, expected) in cases {
        let template = ChatTemplate::new(template, "", "").unwrap();
        let render = Render { continue_last: true, ..Render::default() };
        let found = template.render(&[said("user", "hi"), said("assistant", text)], &render);
        assert_eq!(found.unwrap(), expected, "{text}");
    }
}

/// Shows tools only before the last user message, like Mistral's.
const BEFORE_USER: &str = "\
{%- set users = messages|selectattr('role', 'eq', 'user')|list -%}
{%- for message in messages -%}
{%- if message == users[-1] and tools %}[tools]{{ tools|tojson }}
{% endif -%}
[{{ message.role }}]{{ message.content }}
{% for call in message.tool_calls or [] %}[call]{{ call|tojson }}
{% endfor -%}
{%- endfor -%}";

#[test]
fn a_system_alone_has_its_tools() {
    let lone = [said("system", "Be brief.")];
    let with_tools = try_render(BEFORE_USER, &lone, &tools()).unwrap();
    assert!(with_tools.starts_with("[tools]"), "{with_tools}");
    assert!(with_tools.ends_with("[user]Be brief.\n"), "{with_tools}");
    assert_eq!(try_render(BEFORE_USER, &lone, &[]).unwrap(), "[system]Be brief.\n");
}
